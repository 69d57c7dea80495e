/* What mapping costs a program in memory, mappings and time. */
#include "memory_end.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int c, lines = 0;

	check(maps != NULL, "maps: %s", strerror(errno));
	while ((c = getc(maps)) != EOF)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

/* Private memory of a process, and what is in its memory objects whether it is mapped or not. */
static size_t bytes_of(pid_t pid)
{
	char path[300], line[256];
	size_t bytes = 0, kib;

	snprintf(path, sizeof path, "/proc/%d/status", pid);
	FILE *status = fopen(path, "r");

	check(status != NULL, "%s: %s", path, strerror(errno));
	while (fgets(line, sizeof line, status))
		if (sscanf(line, "RssAnon: %zu kB", &kib) == 1)
			bytes += kib << 10;
	fclose(status);
	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	DIR *fds = opendir(path);

	check(fds != NULL, "%s: %s", path, strerror(errno));
	for (struct dirent *fd; (fd = readdir(fds)) != NULL;) {
		struct stat st;

		snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, fd->d_name);
		ssize_t n = readlink(path, line, sizeof line - 1);

		line[n < 0 ? 0 : n] = 0;
		if (strstr(line, "roceline-memory") && stat(path, &st) == 0)
			bytes += st.st_blocks * 512;
	}
	closedir(fds);
	return bytes;
}

struct watch {
	_Atomic size_t most;
	_Atomic unsigned looks;
	_Atomic int state;	/* 1: watches; 2: is to end */
};

/* To deregister a large region takes little more memory than the region has: it is made private bit by bit, and what was
 * copied goes at once. */
void case_room(void)
{
	enum { LENGTH = 96 << 20, MORE = 40 << 20 };
	struct watch *watch = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *p = pages(LENGTH / PAGE);

	memset(p, 7, LENGTH);
	size_t before = bytes_of(getpid());
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		while (watch->state < 2) {
			size_t bytes = bytes_of(parent);

			if (bytes > watch->most)
				watch->most = bytes;
			watch->looks++;
			watch->state += watch->state == 0;
		}
		_exit(0);
	}
	while (watch->state == 0)
		usleep(1000);
	/* On a busy machine the watcher may have few turns meanwhile: again, then. */
	unsigned looks = watch->looks;

	do {
		struct ibv_mr *mr = must_register(p, LENGTH);

		expect_shared(p + LENGTH / 2, true, "a large region");
		must_deregister(mr);
		expect_shared(p + LENGTH / 2, false, "a large region that is no more");
	} while (watch->looks - looks < 10);
	watch->state = 2;
	must_succeed(child, "the watcher");
	check(watch->most <= before + MORE, "%zu MiB more were used to register and deregister %d MiB",
	      (watch->most - before) >> 20, LENGTH >> 20);
	for (size_t i = 0; i < LENGTH; i += PAGE / 2)
		check(p[i] == 7, "byte %zu is %d", i, p[i]);
	munmap(p, LENGTH);
	munmap(watch, PAGE);
}

/* Regions in very many places: the kernel allows a process so many mappings and no more, so that of small ones, in the end, no
 * more are made; those beside others make none. */
void case_scattered(void)
{
	enum { COUNT = 600, MOST = 512, LARGE = 256 };
	static struct ibv_mr *mr[COUNT];
	uint8_t *p = pages(2 * COUNT), *large = pages(LARGE);
	int before = mappings();

	for (int i = 0; i < COUNT; i++)
		mr[i] = must_register(p + 2 * i * PAGE, PAGE);
	expect_shared(p, true, "the first of many");
	expect_shared(p + 2 * (COUNT - 1) * PAGE, false, "the last of very many");
	int made = mappings() - before;

	check(made <= 2 * MOST + 10, "%d regions made %d mappings", COUNT, made);
	struct ibv_mr *beside = must_register(p + PAGE, PAGE), *one = must_register(large, LARGE * PAGE);

	expect_shared(p + PAGE, true, "one between others");
	expect_shared(large, true, "a large one beside many small ones");
	exchange(mr[0], p, PAGE, "the first of many");
	exchange(beside, p + PAGE, PAGE, "one between others");
	exchange(mr[COUNT - 1], p + 2 * (COUNT - 1) * PAGE, PAGE, "the last of very many");
	must_deregister(beside);
	must_deregister(one);
	for (int i = 0; i < COUNT; i++)
		must_deregister(mr[i]);
	expect_shared(p, false, "the first, which is no more");
	munmap(p, 2 * COUNT * PAGE);
	munmap(large, LARGE * PAGE);
}

/* Descriptors that nobody needs. */
static int useless[512], useless_count;
static struct rlimit descriptors;

/* Leaves so many descriptors free. */
static void leave_free(int count)
{
	struct rlimit few = { sizeof useless / sizeof *useless, descriptors.rlim_max };

	check(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit: %s", strerror(errno));
	for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;)
		useless[useless_count++] = fd;
	check(errno == EMFILE && useless_count >= count, "open: %s", strerror(errno));
	while (count-- > 0)
		close(useless[--useless_count]);
}

static void free_all(void)
{
	while (useless_count > 0)
		close(useless[--useless_count]);
	check(setrlimit(RLIMIT_NOFILE, &descriptors) == 0, "setrlimit: %s", strerror(errno));
}

static void *wait_until_cancelled(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

/* A program may have no descriptor left when it deregisters memory or forks. What it has in memory stays, however few are free:
 * without one, nothing can be known of what lies where. */
void case_few_descriptors(void)
{
	enum { COUNT = 16 };

	check(getrlimit(RLIMIT_NOFILE, &descriptors) == 0, "getrlimit: %s", strerror(errno));
	for (int round = 0; round < 8; round++) {
		int left = round / 2;
		bool threads = round % 2;
		uint8_t *p = pages(COUNT);
		struct ibv_mr *mr = must_register(p, COUNT * PAGE);
		pthread_t thread;

		/* Who may not hold threads still has its memory mapped only before it ever had one. */
		if (round == 0)
			expect_shared(p, true, "a region of one who has descriptors");
		set_memory(p, COUNT * PAGE, 30 + round);
		check(!threads || pthread_create(&thread, NULL, wait_until_cancelled, NULL) == 0, "pthread_create");
		leave_free(left);
		pid_t child = fork();

		if (child == 0) {
			check_memory(p, COUNT * PAGE, 30 + round, "in a child with few descriptors");
			_exit(0);
		}
		int status, ended = waitpid(child, &status, 0);

		check_memory(p, COUNT * PAGE, 30 + round, "after a fork with few descriptors");
		check(child > 0 && ended == child, "fork: %s", strerror(errno));
		/* It may end at once, and say so. */
		check(status == 0 || WEXITSTATUS(status) == 127, "the child ended with %#x", status);
		exchange(mr, p, COUNT * PAGE, "after a fork with few descriptors");
		set_memory(p, COUNT * PAGE, 50 + round);
		must_deregister(mr);
		check_memory(p, COUNT * PAGE, 50 + round, "deregistered with few descriptors");
		free_all();
		check_memory(p, COUNT * PAGE, 50 + round, "deregistered with few descriptors, later");
		mr = must_register(p, COUNT * PAGE);
		exchange(mr, p, COUNT * PAGE, "registered again");
		set_memory(p, COUNT * PAGE, 70 + round);
		must_deregister(mr);
		check_memory(p, COUNT * PAGE, 70 + round, "deregistered again");
		if (threads) {
			pthread_cancel(thread);
			pthread_join(thread, NULL);
		}
		munmap(p, COUNT * PAGE);
	}
}

static double us_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Very many regions, each of a page, with a page between them. */
static void cost_of_scattered(int count)
{
	const clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID };
	struct ibv_mr **mr = calloc(count, sizeof *mr);
	uint8_t *p = pages(2 * count);
	double t[3][2];

	check(mr != NULL, "no memory");
	memset(p, 1, 2 * (size_t)count * PAGE);
	for (int at = 0; at < 3; at++) {
		for (int i = 0; i < count && at > 0; i++) {
			if (at == 1)
				mr[i] = must_register(p + 2 * i * PAGE, PAGE);
			else
				must_deregister(mr[i]);
		}
		for (int k = 0; k < 2; k++)
			t[at][k] = us_of(clocks[k]);
	}
	printf("   %4d x 4 KiB, apart: register %.0f us (%.0f of CPU time), deregister %.0f us (%.0f)\n", count,
	       (t[1][0] - t[0][0]) / count, (t[1][1] - t[0][1]) / count, (t[2][0] - t[1][0]) / count, (t[2][1] - t[1][1]) / count);
	munmap(p, 2 * (size_t)count * PAGE);
	free(mr);
}

/* How long it takes to register and deregister memory of which every page was touched. */
void case_cost(void)
{
	static const size_t sizes[] = { 1 << 12, 1 << 16, 1 << 20, 1 << 26, 1 << 30 };

	alarm(0);
	printf("   %12s %14s %14s\n", "bytes", "register [us]", "deregister [us]");
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		size_t size = sizes[i];
		int rounds = size > 1 << 22 ? 3 : 30;
		double best[2] = { 1e9, 1e9 };
		uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		check(p != MAP_FAILED, "mmap of %zu bytes: %s", size, strerror(errno));
		memset(p, 1, size);
		for (int round = 0; round < rounds; round++) {
			double start = us_of(CLOCK_MONOTONIC);
			struct ibv_mr *mr = must_register(p, size);
			double registered = us_of(CLOCK_MONOTONIC);

			must_deregister(mr);
			double end = us_of(CLOCK_MONOTONIC);

			if (registered - start < best[0])
				best[0] = registered - start;
			if (end - registered < best[1])
				best[1] = end - registered;
		}
		printf("   %12zu %14.0f %14.0f\n", size, best[0], best[1]);
		munmap(p, size);
	}
	cost_of_scattered(200);
	cost_of_scattered(1000);
}
