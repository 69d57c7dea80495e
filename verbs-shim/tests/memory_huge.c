/* Cases of memory_check.c about pages: huge ones, those that were never touched, and those that are slow to come. */
#define _GNU_SOURCE
#include "memory_end.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20, HUGE_PAGES = 4, MOST = 4096 };

static uint8_t *huge_pages(int count)
{
	uint8_t *p = mmap(NULL, (size_t)count * HUGE_PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* A part of each page, as all of them would take long. */
static void set_pages(uint8_t *p, uint32_t seed)
{
	for (int i = 0; i < HUGE_PAGES; i++)
		set_memory(p + i * HUGE_PAGE + 12345, 5000, seed + i);
}

static void check_pages(const uint8_t *p, uint32_t seed, const char *what)
{
	for (int i = 0; i < HUGE_PAGES; i++)
		check_memory(p + i * HUGE_PAGE + 12345, 5000, seed + i, what);
}

static void huge_forks(uint8_t *p, uint32_t seed)
{
	pid_t child = fork();

	if (child == 0) {
		check_pages(p, seed, "huge pages in the child");
		check(!is_shared(p, NULL), "the child shares huge pages");
		set_pages(p, seed + 50);
		check_pages(p, seed + 50, "huge pages that the child wrote");
		_exit(0);
	}
	must_succeed(child, "a fork with huge pages");
	check_pages(p, seed, "huge pages of the parent, after a fork");
}

static void check_huge(void)
{
	uint8_t *p = huge_pages(HUGE_PAGES), *taken[MOST];
	int others = 0;

	if (!p) {
		printf("   (no free huge pages here)\n");
		return;
	}
	set_pages(p, 200);
	/* Neither begins nor ends with a page; a page in the middle was never touched but for its part. */
	struct ibv_mr *mr = must_register(p + 100, 2 * HUGE_PAGE);

	expect_shared(p, true, "huge pages");
	expect_shared(p + 2 * HUGE_PAGE, true, "the huge page in which a region ends");
	expect_shared(p + 3 * HUGE_PAGE, false, "a huge page behind");
	check_pages(p, 200, "registered huge pages");
	exchange(mr, p + 2 * HUGE_PAGE - 100000, 100100, "huge pages");
	exchange(mr, p + HUGE_PAGE - 50000, 100000, "from one huge page to the next");
	set_pages(p, 210);
	/* Two regions in one page: it stays until the last goes. */
	struct ibv_mr *second = must_register(p + 2 * HUGE_PAGE + 500000, HUGE_PAGE);

	huge_forks(p, 210);
	must_deregister(mr);
	expect_shared(p, false, "a huge page in no region");
	expect_shared(p + 2 * HUGE_PAGE, true, "a huge page in another region");
	check_pages(p, 210, "huge pages after ibv_dereg_mr");
	exchange(second, p + 2 * HUGE_PAGE + 600000, 100000, "the second region");
	set_pages(p, 220);
	check(madvise(p + 2 * HUGE_PAGE, HUGE_PAGE, MADV_DONTNEED) != 0 || p[2 * HUGE_PAGE + 12345] == 0,
	      "a huge page after MADV_DONTNEED");
	set_pages(p, 230);
	must_deregister(second);
	expect_shared(p + 2 * HUGE_PAGE, false, "a huge page in no region");
	check_pages(p, 230, "huge pages after all");

	/* With none left for a copy, memory is reached through the kernel. */
	while (others < MOST && (taken[others] = huge_pages(1)) != NULL)
		others++;
	if (others == MOST) {
		printf("   (more huge pages than this takes)\n");
	} else {
		mr = must_register(p, HUGE_PAGES * HUGE_PAGE);
		expect_shared(p, false, "huge pages with none free");
		exchange(mr, p + HUGE_PAGE - 50000, 100000, "huge pages with none free");
		must_deregister(mr);
	}
	for (int i = 0; i < others; i++)
		munmap(taken[i], HUGE_PAGE);

	/* With none left for a child's copy, the child does not have them, and whoever executes something needs none. */
	mr = must_register(p, HUGE_PAGES * HUGE_PAGE);
	bool shared = is_shared(p, NULL);

	for (others = 0; others < MOST && (taken[others] = huge_pages(1)) != NULL;)
		others++;
	set_pages(p, 240);
	if (shared && others < MOST) {
		unsigned char there;
		pid_t child = fork();

		if (child == 0)
			_exit(mincore(p, PAGE, &there) == -1 && errno == ENOMEM ? 0 : 2);
		must_succeed(child, "a fork with no free huge page");
	}
	check_pages(p, 240, "huge pages after a fork with none free");
	for (int i = 0; i < others; i++)
		munmap(taken[i], HUGE_PAGE);
	exchange(mr, p + HUGE_PAGE - 50000, 100000, "huge pages after a fork with none free");
	must_deregister(mr);
	check(!is_shared(p, NULL), "huge pages stay shared");
	munmap(p, HUGE_PAGES * HUGE_PAGE);
}

static void *idle(void *argument)
{
	pthread_barrier_wait(argument);
	pthread_barrier_wait(argument);
	return NULL;
}

/* The same with one thread and with two. */
static void both_ways(void (*run)(void))
{
	pthread_barrier_t barrier;
	pthread_t thread;

	run();
	pthread_barrier_init(&barrier, NULL, 2);
	check(pthread_create(&thread, NULL, idle, &barrier) == 0, "pthread_create");
	pthread_barrier_wait(&barrier);
	run();
	pthread_barrier_wait(&barrier);
	pthread_join(thread, NULL);
	pthread_barrier_destroy(&barrier);
}

/* Whether memory is mapped at all: where writers cannot be held back, that of several threads is not. */
static bool is_mapped(void)
{
	uint8_t *p = pages(1);
	struct ibv_mr *mr = must_register(p, PAGE);
	bool mapped = is_shared(p, NULL);

	must_deregister(mr);
	munmap(p, PAGE);
	return mapped;
}

static void huge_if_mapped(void)
{
	if (never || is_mapped())
		check_huge();
}

void case_huge(void)
{
	both_ways(huge_if_mapped);
}

enum { SPARSE = 64 << 20 };

static int resident(uint8_t *p)
{
	static unsigned char map[SPARSE / PAGE];
	int count = 0;

	check(mincore(p, SPARSE, map) == 0, "mincore: %s", strerror(errno));
	for (int i = 0; i < SPARSE / PAGE; i++)
		count += map[i] & 1;
	return count;
}

/* Whether memory objects get huge pages. */
static bool gives_huge(void)
{
	FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "r");
	char line[128] = "";

	if (file) {
		check(fgets(line, sizeof line, file) != NULL, "shmem_enabled is empty");
		fclose(file);
	}
	return strstr(line, "[always]") || strstr(line, "[within_size]") || strstr(line, "[advise]");
}

/* Of a large region of which little was touched, little is copied: at most the huge pages that hold it. */
static void sparse(void)
{
	static const char what[] = "memory of which little was touched";
	uint8_t *p = mmap(NULL, SPARSE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int touched[] = { 5, 4000, 12345 };
	/* The daemon reads the first and the last page, to see whether they can be. */
	const int most = 3 * (gives_huge() ? HUGE_PAGE / PAGE : 1) + 2;

	check(p != MAP_FAILED, "mmap: %s", strerror(errno));
	for (int i = 0; i < 3; i++)
		set_memory(p + touched[i] * PAGE, PAGE, 60 + i);
	struct ibv_mr *mr = must_register(p, SPARSE);
	int count = resident(p);

	check(count <= most, "%s: %d pages of memory for three that were touched", what, count);
	for (int i = 0; i < 3; i++)
		peer_reads(mr, p + touched[i] * PAGE, PAGE, 60 + i);
	exchange(mr, p + 9000 * PAGE, 3 * PAGE, what);
	must_deregister(mr);
	count = resident(p);
	check(count <= most + 5, "%s: %d pages after", what, count);
	for (int i = 0; i < 3; i++)
		check_memory(p + touched[i] * PAGE, PAGE, 60 + i, what);
	munmap(p, SPARSE);
}

void case_untouched(void)
{
	both_ways(sparse);
}

/* A page that the program brings itself, when it pleases: hardware would have made it come at registration; here the kernel does
 * not wait for it on behalf of another process, so what is for it fails, and nothing else does. */
static void blocked(void)
{
	uint8_t *p = pages(8), *page = p + 4 * PAGE;
	int uffd = (int)syscall(SYS_userfaultfd, (long)O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { (uintptr_t)page, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct end others[2];

	if (uffd < 0)
		_exit(77);
	check(ioctl(uffd, UFFDIO_API, &api) == 0 && ioctl(uffd, UFFDIO_REGISTER, &range) == 0, "userfaultfd: %s",
	      strerror(errno));
	connect_pair(ends, patient);
	connect_pair(others, patient);
	struct ibv_mr *mr = must_register(p, 8 * PAGE);

	expect_shared(p, false, "memory with page faults of the program's own");
	fill(&ends[1], 80, PAGE);
	struct ibv_sge sge = sge_of(&ends[1], 0, PAGE);

	post_send(&ends[1], (struct ibv_send_wr){
				    .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = IBV_SEND_SIGNALED,
				    .wr.rdma = { .remote_addr = (uintptr_t)page, .rkey = mr->rkey } });
	for (uint64_t i = 0; i < 20; i++) {
		fill(&others[1], 90 + i, 5000);
		post_op(&others[1], &others[0], IBV_WR_RDMA_WRITE, 5000, i);
		expect(&others[1], "beside a page that does not come", i, IBV_WC_SUCCESS);
		check_memory(others[0].buffer, 5000, 90 + i, "beside a page that does not come");
	}
	expect(&ends[1], "a WRITE to a page that has not come", 5, IBV_WC_REM_OP_ERR);
	must_deregister(mr);
	close_pair(ends);
	connect_pair(ends, patient);
	struct uffdio_zeropage zero = { .range = { (uintptr_t)page, PAGE } };

	check(ioctl(uffd, UFFDIO_ZEROPAGE, &zero) == 0, "zero page: %s", strerror(errno));
	mr = must_register(p, 8 * PAGE);
	exchange(mr, p, 8 * PAGE, "with a page that has come");
	_exit(0);
}

void case_blocked(void)
{
	int status;

	fflush(stdout);
	pid_t child = fork();

	/* A process of its own: whoever has such a descriptor is not mapped any more. */
	if (child == 0)
		blocked();
	check(waitpid(child, &status, 0) == child, "wait");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		printf("   (no userfaultfd here)\n");
	else
		check(status == 0, "the child ended with %#x", status);
}
