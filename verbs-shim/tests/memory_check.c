/* Registered memory of every kind, over two devices: what a peer writes and reads is what the program has, and what the program
 * does with its memory meanwhile (fork, madvise, mremap, munmap, threads) has the results that it has without a NIC.
 *
 *   memory_check [-t SECONDS] [-n] [-f] DEVICE DEVICE [CASE...]
 *
 * -t: for each completion, and for the storm; -n: nothing is mapped into the daemon (ROCELINE_MEMORY=never), so do not expect it;
 * -f: with ibv_fork_init. */
#define _GNU_SOURCE
#include "memory_end.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool with_fork_init;

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int c, lines = 0;

	while ((c = getc(maps)) != EOF)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

static void case_private(void)
{
	uint8_t *p = pages(256);
	char *heap = malloc(200000);

	set_memory(p, 100 * PAGE, 1);
	for (int round = 0; round < 20; round++) {
		struct ibv_mr *mr = must_register(p, 256 * PAGE);

		expect_shared(p, true, "a registered region");
		check_memory(p, 100 * PAGE, 1, "after ibv_reg_mr");
		check(p[200 * PAGE] == 0, "untouched memory is not zero");
		peer_reads(mr, p, 100 * PAGE, 1);
		peer_writes(mr, p + 150 * PAGE + 5, 50001, 2 + round);
		check_memory(p + 150 * PAGE + 5, 50001, 2 + round, "after a WRITE");
		must_deregister(mr);
		expect_shared(p, false, "a region that is no more");
		check_memory(p, 100 * PAGE, 1, "after ibv_dereg_mr");
		check_memory(p + 150 * PAGE + 5, 50001, 2 + round, "after ibv_dereg_mr");
	}
	struct ibv_mr *mr = must_register(heap + 100, 150001);

	exchange(mr, (uint8_t *)heap + 100, 150001, "heap");
	/* The heap grows while a part of it is shared. */
	enum { GROWTH = 4 << 20 };
	uint8_t *top = sbrk(GROWTH);

	check(top != (void *)-1, "sbrk: %s", strerror(errno));
	set_memory(top, GROWTH, 90);
	exchange(mr, (uint8_t *)heap + 100, 150001, "heap that has grown");
	check_memory(top, GROWTH, 90, "what the heap has grown by");
	must_deregister(mr);
	free(heap);
	munmap(p, 256 * PAGE);
}

static void case_small(void)
{
	struct ibv_mr *mr[64];
	uint8_t *p = pages(64);
	int before = mappings();

	for (int i = 0; i < 64; i++) {
		mr[i] = must_register(p + i * PAGE + 100, PAGE - 200);
		expect_shared(p + i * PAGE, true, "a small region");
	}
	int after = mappings();

	check(after <= before + 2, "64 neighbours made %d mappings", after - before);
	for (int i = 0; i < 64; i++)
		exchange(mr[i], p + i * PAGE + 100, PAGE - 200, "a small region");
	for (int i = 0; i < 64; i++)
		must_deregister(mr[i]);
	munmap(p, 64 * PAGE);
}

static void case_overlap(void)
{
	uint8_t *p = pages(8);
	struct ibv_mr *a = must_register(p, 5 * PAGE), *b = must_register(p + 3 * PAGE, 5 * PAGE), *c = must_register(p, PAGE);

	exchange(a, p, 5 * PAGE, "the first");
	exchange(b, p + 3 * PAGE, 5 * PAGE, "the second");
	must_deregister(a);
	expect_shared(p, true, "still in the third");
	expect_shared(p + 1 * PAGE, false, "in none");
	expect_shared(p + 3 * PAGE, true, "still in the second");
	exchange(b, p + 3 * PAGE, 5 * PAGE, "the second alone");
	exchange(c, p, PAGE, "the third alone");
	must_deregister(b);
	must_deregister(c);
	expect_shared(p + 3 * PAGE, false, "in none");
	munmap(p, 8 * PAGE);
}

static void case_advice(void)
{
	uint8_t *p = pages(8);

	set_memory(p, 8 * PAGE, 3);
	struct ibv_mr *mr = must_register(p + 2 * PAGE, 4 * PAGE);

	check(madvise(p + PAGE, 3 * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED: %s", strerror(errno));
	for (int i = PAGE; i < 4 * PAGE; i++)
		check(p[i] == 0, "byte %d after MADV_DONTNEED is %02x", i, p[i]);
	check(p[PAGE - 1] != 0 && p[4 * PAGE] != 0, "MADV_DONTNEED went too far");
	exchange(mr, p + 2 * PAGE, 4 * PAGE, "after MADV_DONTNEED");
	check(madvise(p + PAGE, 4 * PAGE, MADV_FREE) == 0, "MADV_FREE: %s", strerror(errno));
	exchange(mr, p + 2 * PAGE, 4 * PAGE, "after MADV_FREE");
	check(madvise(p + 2 * PAGE, PAGE, MADV_REMOVE) != 0 && errno == EINVAL, "MADV_REMOVE is for shared memory");
	must_deregister(mr);
	check(madvise(p, 8 * PAGE, MADV_DONTNEED) == 0 && p[3 * PAGE] == 0, "MADV_DONTNEED afterwards");
	munmap(p, 8 * PAGE);
}

/* Memory that goes while it is registered: the region keeps the old pages, as hardware does. */
static void case_unmapped(void)
{
	uint8_t *p = pages(4);
	struct ibv_mr *old = must_register(p, 4 * PAGE);

	exchange(old, p, 4 * PAGE, "before munmap");
	munmap(p, 4 * PAGE);
	if (!never)
		peer_writes(old, p, 4 * PAGE, 4);
	void *again = mmap(p, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	check(again == p && p[5] == 0, "new memory is new");
	set_memory(p, 4 * PAGE, 5);
	struct ibv_mr *new = must_register(p, 4 * PAGE);

	exchange(new, p, 4 * PAGE, "new memory at the old address");
	set_memory(p, 4 * PAGE, 6);
	must_deregister(old);
	check_memory(p, 4 * PAGE, 6, "after the old region went");
	exchange(new, p, 4 * PAGE, "new memory alone");
	must_deregister(new);
	munmap(p, 4 * PAGE);
}

static void case_moved(void)
{
	uint8_t *p = pages(8), *to = pages(16);

	set_memory(p, 8 * PAGE, 7);
	struct ibv_mr *mr = must_register(p, 8 * PAGE);
	uint8_t *q = mremap(p, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	check(q == to, "mremap: %s", strerror(errno));
	check_memory(q, 8 * PAGE, 7, "after mremap");
	if (!never) {
		/* The region follows its pages. */
		peer_writes(mr, p, 8 * PAGE, 8);
		check_memory(q, 8 * PAGE, 8, "WRITE after mremap");
	}
	set_memory(q, 8 * PAGE, 9);
	must_deregister(mr);
	expect_shared(q, false, "moved, and in no region");
	check_memory(q, 8 * PAGE, 9, "after ibv_dereg_mr");
	mr = must_register(q, 8 * PAGE);
	exchange(mr, q, 8 * PAGE, "registered at its new place");
	must_deregister(mr);
	munmap(to, 16 * PAGE);
}

static void case_protection(void)
{
	uint8_t *p = pages(4);
	char perms[5];

	set_memory(p, 4 * PAGE, 10);
	mprotect(p + PAGE, PAGE, PROT_READ);
	check(ibv_reg_mr(ends[0].pd, p, 4 * PAGE, ALL) == NULL && errno == EFAULT, "a page that cannot be written was registered");
	struct ibv_mr *mr = ibv_reg_mr(ends[0].pd, p, 4 * PAGE, IBV_ACCESS_REMOTE_READ);

	check(mr != NULL, "for reading: %s", strerror(errno));
	peer_reads(mr, p, 4 * PAGE, 10);
	is_shared(p + PAGE, perms);
	check(perms[0] == 'r' && perms[1] == '-', "protection became %s", perms);
	must_deregister(mr);
	is_shared(p + PAGE, perms);
	check(!strcmp(perms, "r--p"), "protection became %s", perms);
	mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE);

	/* Protected while it is registered. */
	mr = must_register(p, 4 * PAGE);
	mprotect(p, 4 * PAGE, PROT_READ);
	peer_writes(mr, p, 4 * PAGE, 11);
	check_memory(p, 4 * PAGE, 11, "WRITE to protected memory");
	must_deregister(mr);
	is_shared(p, perms);
	check(!strcmp(perms, "r--p"), "protection became %s", perms);
	munmap(p + 2 * PAGE, PAGE);
	check(ibv_reg_mr(ends[0].pd, p, 4 * PAGE, 0) == NULL && errno == EFAULT, "a hole was registered");
	munmap(p, 4 * PAGE);
}

static void case_stack(void)
{
	uint8_t array[3 * PAGE];
	struct ibv_mr *mr = must_register(array, sizeof array);

	exchange(mr, array, sizeof array, "the own stack");
	must_deregister(mr);
	check(array[1] != 0, "the stack is gone");
}

static const uint8_t constant[PAGE] = { 1, 2, 3 };
static uint8_t variable[3 * PAGE] = { 1 }, zero[3 * PAGE];

static void case_program(void)
{
	struct ibv_mr *mr = ibv_reg_mr(ends[0].pd, (void *)constant, sizeof constant, IBV_ACCESS_REMOTE_READ);

	check(mr != NULL, "read-only data: %s", strerror(errno));
	blank(&ends[1]);
	check(peer(IBV_WR_RDMA_READ, mr, (void *)constant, PAGE) == IBV_WC_SUCCESS, "READ of read-only data");
	check(!memcmp(ends[1].buffer, constant, PAGE), "read-only data arrived wrong");
	must_deregister(mr);
	mr = must_register(variable, sizeof variable);
	exchange(mr, variable, sizeof variable, "initialised data");
	must_deregister(mr);
	mr = must_register(zero, sizeof zero);
	exchange(mr, zero, sizeof zero, "zero data");
	must_deregister(mr);

	int fd = open("/proc/self/exe", O_RDONLY);
	uint8_t *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	check(p != MAP_FAILED, "mmap of a file: %s", strerror(errno));
	mr = must_register(p, 2 * PAGE);
	exchange(mr, p, 2 * PAGE, "a private file mapping");
	must_deregister(mr);
	munmap(p, 2 * PAGE);
	close(fd);
}

static uint8_t *object(int *fd, int count)
{
	*fd = memfd_create("of the program", MFD_CLOEXEC);
	check(*fd >= 0 && ftruncate(*fd, count * PAGE) == 0, "memfd: %s", strerror(errno));
	uint8_t *p = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);

	check(p != MAP_FAILED, "mmap of a memfd: %s", strerror(errno));
	return p;
}

static void case_objects(void)
{
	int fd;
	uint8_t *p = object(&fd, 8);
	struct ibv_mr *mr = must_register(p + 2 * PAGE, 6 * PAGE);

	exchange(mr, p + 2 * PAGE, 6 * PAGE, "a memfd");
	check(pread(fd, ends[1].buffer, 6 * PAGE, 2 * PAGE) == 6 * PAGE && !memcmp(ends[1].buffer, p + 2 * PAGE, 6 * PAGE),
	      "the memfd has other bytes than its mapping");
	must_deregister(mr);
	munmap(p, 8 * PAGE);
	close(fd);

	/* One that ends within a page. */
	p = object(&fd, 4);
	check(ftruncate(fd, 2 * PAGE + 100) == 0, "ftruncate: %s", strerror(errno));
	mr = must_register(p, 3 * PAGE);
	exchange(mr, p, 2 * PAGE + 100, "a memfd that ends within a page");
	must_deregister(mr);
	check(ibv_reg_mr(ends[0].pd, p, 4 * PAGE, ALL) == NULL && errno == EFAULT, "pages beyond the end were registered");
	munmap(p, 4 * PAGE);
	close(fd);

	char name[64];

	snprintf(name, sizeof name, "/roceline-check-%d", getpid());
	fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
	check(fd >= 0 && ftruncate(fd, 8 * PAGE) == 0, "shm_open: %s", strerror(errno));
	p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	mr = must_register(p, 8 * PAGE);
	exchange(mr, p, 8 * PAGE, "POSIX shared memory");
	must_deregister(mr);
	munmap(p, 8 * PAGE);
	shm_unlink(name);

	int id = shmget(IPC_PRIVATE, 8 * PAGE, IPC_CREAT | 0600);

	check(id >= 0, "shmget: %s", strerror(errno));
	p = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	mr = must_register(p, 8 * PAGE);
	exchange(mr, p, 8 * PAGE, "SysV shared memory");
	must_deregister(mr);
	shmdt(p);

	p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	mr = must_register(p, 8 * PAGE);
	exchange(mr, p, 8 * PAGE, "shared anonymous memory");
	must_deregister(mr);
	munmap(p, 8 * PAGE);
}

/* One region over neighbours of different kinds. */
static void case_mixed(void)
{
	uint8_t *p = pages(12);
	int fd = memfd_create("of the program", MFD_CLOEXEC), file = open("/proc/self/exe", O_RDONLY);

	check(fd >= 0 && ftruncate(fd, 4 * PAGE) == 0, "memfd: %s", strerror(errno));
	check(mmap(p + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED, "mmap");
	check(mmap(p + 8 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) != MAP_FAILED, "mmap");
	for (int round = 0; round < 5; round++) {
		struct ibv_mr *mr = must_register(p + 100, 12 * PAGE - 200);

		exchange(mr, p + 100, 12 * PAGE - 200, "memory of four kinds");
		must_deregister(mr);
	}
	munmap(p, 12 * PAGE);
	close(fd);
	close(file);
}

/* An object that loses its pages while it is registered: the QP fails, nothing else. */
static void case_truncated(void)
{
	int fd;
	uint8_t *p = object(&fd, 8);
	struct ibv_mr *mr = must_register(p, 8 * PAGE);

	exchange(mr, p, 8 * PAGE, "a memfd");
	check(ftruncate(fd, 2 * PAGE) == 0, "ftruncate: %s", strerror(errno));
	fill(&ends[1], 12, PAGE);
	enum ibv_wc_status status = peer(IBV_WR_RDMA_WRITE, mr, p + 5 * PAGE, PAGE);

	check(status == IBV_WC_REM_OP_ERR, "WRITE beyond the end: %s", ibv_wc_status_str(status));
	/* And whose memory it was is told, behind that the connection was there. */
	struct ibv_async_event event;
	bool told;

	do {
		check(ibv_get_async_event(ends[0].context, &event) == 0, "ibv_get_async_event: %s", strerror(errno));
		told = event.event_type == IBV_EVENT_QP_FATAL;
		check(event.element.qp == ends[0].qp && (told || event.event_type == IBV_EVENT_COMM_EST), "event %s",
		      ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	} while (!told);
	must_deregister(mr);
	close_pair(ends);
	connect_pair(ends, patient);
	mr = must_register(p, 2 * PAGE);
	exchange(mr, p, 2 * PAGE, "what is left");
	must_deregister(mr);
	munmap(p, 8 * PAGE);
	close(fd);
}

static void case_fork(void)
{
	uint8_t *p = pages(64);
	int ready[2], go[2];
	char byte = 0;

	set_memory(p, 32 * PAGE, 13);
	struct ibv_mr *mr = must_register(p + 100, 64 * PAGE - 200);

	check(pipe(ready) == 0 && pipe(go) == 0, "pipe: %s", strerror(errno));
	pid_t child = fork();

	if (child == 0) {
		unsigned char there;

		/* _exit: what the parent has at exit is not the child's. */
		if (with_fork_init) {
			_exit(mincore(p, PAGE, &there) == -1 && errno == ENOMEM ? 0 : 2);
		}
		check_memory(p, 32 * PAGE, 13, "in the child");
		check(!is_shared(p, NULL), "the child shares the memory");
		set_memory(p, 32 * PAGE, 14);
		check(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1, "pipe");
		check_memory(p, 32 * PAGE, 14, "in the child, after the parent wrote");
		for (int i = 40 * PAGE; i < 60 * PAGE; i++)
			check(p[i] == 0, "untouched memory of the child is %02x", p[i]);
		_exit(0);
	}
	if (!with_fork_init)
		check(read(ready[0], &byte, 1) == 1, "the child has ended");
	check_memory(p, 32 * PAGE, 13, "in the parent, after the child wrote");
	exchange(mr, p + 100, 64 * PAGE - 200, "after the fork");
	check(write(go[1], &byte, 1) == 1, "pipe");
	must_succeed(child, "fork");
	/* Deregistered memory is inherited as ever. */
	must_deregister(mr);
	set_memory(p, 4 * PAGE, 15);
	child = fork();
	if (child == 0) {
		check_memory(p, 4 * PAGE, 15, "in a child without regions");
		_exit(0);
	}
	must_succeed(child, "fork without regions");
	for (int i = 0; i < 2; i++) {
		close(ready[i]);
		close(go[i]);
	}
	munmap(p, 64 * PAGE);
}

/* The stack of a thread that forks, registered by another. */
struct stack {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	int step;		/* 1: the array is there; 2: it is registered; 3: the thread has forked */
	uint8_t *array;
};

static void step_to(struct stack *s, int step)
{
	pthread_mutex_lock(&s->lock);
	s->step = step;
	pthread_cond_broadcast(&s->moved);
	pthread_mutex_unlock(&s->lock);
}

static void wait_for(struct stack *s, int step)
{
	pthread_mutex_lock(&s->lock);
	while (s->step < step)
		pthread_cond_wait(&s->moved, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

static void *forker(void *argument)
{
	struct stack *s = argument;
	uint8_t array[5 * PAGE];

	set_memory(array, sizeof array, 17);
	s->array = array;
	step_to(s, 1);
	wait_for(s, 2);
	pid_t child = fork();

	if (child == 0) {
		check_memory(array, sizeof array, 17, "a stack in the child");
		check(!is_shared(array, NULL), "the child shares a stack");
		set_memory(array, sizeof array, 18);
		_exit(0);
	}
	must_succeed(child, "fork of a thread");
	check_memory(array, sizeof array, 17, "a stack in the parent");
	step_to(s, 3);
	wait_for(s, 4);
	return NULL;
}

static void case_thread(void)
{
	static struct stack s = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, NULL };
	pthread_t thread;

	check(pthread_create(&thread, NULL, forker, &s) == 0, "pthread_create");
	wait_for(&s, 1);
	struct ibv_mr *mr = must_register(s.array, 5 * PAGE);

	peer_reads(mr, s.array, 5 * PAGE, 17);
	step_to(&s, 2);
	wait_for(&s, 3);
	exchange(mr, s.array + 8, 5 * PAGE - 16, "another thread's stack");
	must_deregister(mr);
	step_to(&s, 4);
	pthread_join(thread, NULL);
	s.step = 0;
}

/* Memory that is unmapped and mapped anew while its region lives is the program's to advise. */
static void case_renewed(void)
{
	uint8_t *p = pages(4);
	struct ibv_mr *mr = must_register(p, 4 * PAGE);

	set_memory(p, 4 * PAGE, 19);
	check(mmap(p + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + PAGE, "mmap");
	set_memory(p + PAGE, PAGE, 20);
	check(madvise(p + PAGE, 3 * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED: %s", strerror(errno));
	for (int i = PAGE; i < 4 * PAGE; i++)
		check(p[i] == 0, "byte %d after MADV_DONTNEED is %02x", i, p[i]);
	check_memory(p, PAGE, 19, "beside it");
	set_memory(p + PAGE, PAGE, 21);
	check(madvise(p, 4 * PAGE, MADV_FREE) == 0, "MADV_FREE: %s", strerror(errno));
	must_deregister(mr);
	munmap(p, 4 * PAGE);
}

static void case_exec(void)
{
	uint8_t *p = pages(16);
	struct ibv_mr *mr = must_register(p, 16 * PAGE);
	char *arguments[] = { "true", NULL };
	pid_t child;
	extern char **environ;

	set_memory(p, 16 * PAGE, 16);
	check(system("exit 3") >> 8 == 3, "system");
	check(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0, "posix_spawn");
	must_succeed(child, "posix_spawn");
	child = vfork();
	if (child == 0) {
		execvp("true", arguments);
		_exit(1);
	}
	must_succeed(child, "vfork");
	expect_shared(p, true, "after children");
	check_memory(p, 16 * PAGE, 16, "after children");
	exchange(mr, p, 16 * PAGE, "after children");
	must_deregister(mr);
	munmap(p, 16 * PAGE);
}

/* A guard page that is no mapping of its own (Linux 6.13) is not taken for memory that was never touched. */
static void case_guard(void)
{
	enum { MADV_GUARD = 102 };
	uint8_t *p = pages(8);
	int nowhere = open("/dev/zero", O_RDONLY);

	set_memory(p, 3 * PAGE, 30);
	if (madvise(p + 3 * PAGE, PAGE, MADV_GUARD) != 0) {
		printf("   (no MADV_GUARD_INSTALL here)\n");
	} else {
		struct ibv_mr *mr = must_register(p, 8 * PAGE);

		check(read(nowhere, p + 3 * PAGE, 1) == -1 && errno == EFAULT, "the guard page is lost");
		expect_shared(p, false, "beside a guard page");
		check_memory(p, 3 * PAGE, 30, "beside a guard page");
		exchange(mr, p, 3 * PAGE, "beside a guard page");
		must_deregister(mr);
	}
	close(nowhere);
	munmap(p, 8 * PAGE);
}

/* A fork that has no descriptor left for its pipe: the child ends, rather than go on with memory of another moment. */
static void case_full(void)
{
	uint8_t *p = pages(4);
	struct ibv_mr *mr = must_register(p, 4 * PAGE);
	struct rlimit was, none;
	int status;

	set_memory(p, 4 * PAGE, 31);
	check(getrlimit(RLIMIT_NOFILE, &was) == 0, "getrlimit: %s", strerror(errno));
	none = was;
	/* One is left, and a pipe has two. */
	none.rlim_cur = dup(0) + 1;
	close(none.rlim_cur - 1);
	fflush(stdout);
	check(setrlimit(RLIMIT_NOFILE, &none) == 0, "setrlimit: %s", strerror(errno));
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	check(setrlimit(RLIMIT_NOFILE, &was) == 0, "setrlimit: %s", strerror(errno));
	check(child > 0 && waitpid(child, &status, 0) == child, "fork: %s", strerror(errno));
	if (!never && !with_fork_init)
		check(WIFEXITED(status) && WEXITSTATUS(status) == 127, "the child ended with %#x", status);
	check_memory(p, 4 * PAGE, 31, "in the parent");
	exchange(mr, p, 4 * PAGE, "in the parent");
	must_deregister(mr);
	munmap(p, 4 * PAGE);
}

/* A pinned buffer must stay where it is: with a ring about, nothing is moved, neither away nor back. */
/* A disk reads from and writes to registered memory past the page cache, by `O_DIRECT`, before and after a peer does. */
static void case_direct(void)
{
	uint8_t *p = pages(4);
	struct ibv_mr *mr = must_register(p, 4 * PAGE);
	int fd = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);

	if (fd < 0) {
		printf("   (no O_DIRECT in this directory)\n");
	} else {
		for (uint32_t seed = 40; seed < 48; seed++) {
			peer_writes(mr, p, 4 * PAGE, seed);
			check(pwrite(fd, p, 4 * PAGE, 0) == 4 * PAGE, "pwrite: %s", strerror(errno));
			set_memory(p, 4 * PAGE, seed + 100);
			peer_reads(mr, p, 4 * PAGE, seed + 100);
			check(pread(fd, p, 4 * PAGE, 0) == 4 * PAGE, "pread: %s", strerror(errno));
			check_memory(p, 4 * PAGE, seed, "read from the disk");
			peer_reads(mr, p, 4 * PAGE, seed);
			/* The next time beside a new registration. */
			must_deregister(mr);
			check_memory(p, 4 * PAGE, seed, "no longer registered");
			mr = must_register(p, 4 * PAGE);
		}
		close(fd);
	}
	must_deregister(mr);
	munmap(p, 4 * PAGE);
}

static void case_ring(void)
{
	uint8_t *p = pages(4);
	char parameters[120] = { 0 };
	pid_t child = fork();

	if (child == 0) {
		/* A process of its own: what was seen once counts for good. */
		connect_pair(ends, patient);
		uint8_t *early = pages(4);
		struct ibv_mr *before = must_register(early, 4 * PAGE);

		expect_shared(early, true, "before there is a ring");
		long ring = syscall(SYS_io_uring_setup, 4, parameters);

		if (ring < 0)
			_exit(77);
		/* Right after a look that found nothing. */
		struct ibv_mr *mr = must_register(p, 4 * PAGE);

		check(!is_shared(p, NULL), "memory of a program with io_uring was moved");
		exchange(mr, p, 4 * PAGE, "beside io_uring");
		exchange(before, early, 4 * PAGE, "registered before io_uring");
		must_deregister(before);
		expect_shared(early, true, "memory that a ring may have pinned since");
		_exit(0);
	}
	int status;

	check(waitpid(child, &status, 0) == child, "wait");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		printf("   (no io_uring here)\n");
	else
		check(status == 0, "the child ended with %#x", status);
	munmap(p, 4 * PAGE);
}

/* Deregistered while a peer writes: afterwards nothing changes any more. */
static void case_traffic(void)
{
	uint8_t *p = pages(64);

	for (int round = 0; round < 8; round++) {
		struct ibv_mr *mr = must_register(p, 64 * PAGE);
		struct ibv_sge sge = sge_of(&ends[1], 0, 64 * PAGE);
		struct ibv_wc wc;
		int64_t end = now_ms() + options.seconds * 1000LL;

		fill(&ends[1], round, 64 * PAGE);
		for (int i = 0; i < 16; i++) {
			struct ibv_send_wr wr = {
				.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				.send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = { .remote_addr = (uintptr_t)p, .rkey = mr->rkey },
			};
			post_send(&ends[1], wr);
		}
		for (int i = 0; i < 3 * round; i++)
			sched_yield();
		must_deregister(mr);
		memset(p, 0, 64 * PAGE);
		for (int i = 0; i < 16; i++) {
			while (ibv_poll_cq(ends[1].cq, 1, &wc) == 0)
				check(now_ms() < end, "no completion in %d s", options.seconds);
		}
		for (int i = 0; i < 64 * PAGE; i++)
			check(p[i] == 0, "round %d: byte %d was written after ibv_dereg_mr", round, i);
		close_pair(ends);
		connect_pair(ends, patient);
	}
	munmap(p, 64 * PAGE);
}

/* The storm. Every page has words of each writer; a word has its value in both halves, and each writer knows what it wrote last. */
enum { STORM_PAGES = 48, WRITERS = 3, WORDS = PAGE / 8, SLOT = 64 };
static _Atomic bool stop;
static _Atomic uint64_t writes;
static uint64_t *storm;

static uint64_t doubled(uint64_t value)
{
	return value << 32 | (value & 0xffffffff);
}

static _Atomic uint64_t *word(int page, int writer)
{
	return (_Atomic uint64_t *)&storm[page * WORDS + writer * SLOT + page % SLOT];
}

static void *writer(void *argument)
{
	int me = (int)(intptr_t)argument;
	uint64_t value = 0;

	while (!atomic_load(&stop)) {
		/* Ascending over the pages: at any moment earlier pages are at most one ahead. */
		for (int page = 0; page < STORM_PAGES; page++) {
			uint64_t now = atomic_load(word(page, me));

			check(now == doubled(value), "writer %d lost page %d: %lx, not %lx", me, page, now, doubled(value));
			atomic_store(word(page, me), doubled(value + 1));
		}
		value++;
		atomic_fetch_add(&writes, STORM_PAGES);
		if (value % 64 == 0)
			sched_yield();
	}
	return NULL;
}

/* The kernel writes, in read(2). */
static void *reader(void *argument)
{
	int pipes[2];
	uint64_t value = 0;

	(void)argument;
	check(pipe(pipes) == 0, "pipe: %s", strerror(errno));
	while (!atomic_load(&stop)) {
		for (int page = 0; page < STORM_PAGES; page++) {
			uint64_t out = doubled(value + 1), now = atomic_load(word(page, WRITERS));

			check(now == doubled(value), "read(2) lost page %d: %lx, not %lx", page, now, doubled(value));
			check(write(pipes[1], &out, 8) == 8, "write: %s", strerror(errno));
			ssize_t n = read(pipes[0], (void *)word(page, WRITERS), 8);

			check(n == 8, "read into registered memory: %zd, %s", n, strerror(errno));
		}
		value++;
		atomic_fetch_add(&writes, STORM_PAGES);
	}
	return NULL;
}

/* In a child: every writer's words are as of one moment. */
static void check_snapshot(void)
{
	for (int w = 0; w <= WRITERS; w++) {
		uint64_t first = atomic_load(word(0, w)), last = first;

		for (int page = 0; page < STORM_PAGES; page++) {
			uint64_t now = atomic_load(word(page, w));

			if (now >> 32 != (now & 0xffffffff) || now > last || (first >> 32) - (now >> 32) > 1)
				_exit(20 + w);
			last = now;
		}
	}
	_exit(0);
}

static void case_storm(void)
{
	pthread_t threads[WRITERS + 1];
	int64_t end = now_ms() + options.seconds * 1000LL;
	uint64_t rounds = 0, forks = 0, value = 0;

	alarm(0);
	storm = (uint64_t *)pages(STORM_PAGES);
	for (int i = 0; i < WRITERS; i++)
		check(pthread_create(&threads[i], NULL, writer, (void *)(intptr_t)i) == 0, "pthread_create");
	check(pthread_create(&threads[WRITERS], NULL, reader, NULL) == 0, "pthread_create");
	while (now_ms() < end) {
		/* Sometimes only some of the pages, and two regions that overlap. */
		int skip = rounds % 3 == 1 ? 5 : 0;
		uint8_t *start = (uint8_t *)storm + skip * PAGE;
		struct ibv_mr *mr = must_register(start, (STORM_PAGES - skip) * PAGE), *second = NULL;

		if (rounds % 4 == 2)
			second = must_register(storm, STORM_PAGES * PAGE / 2);
		/* Most rounds are short: what is to be caught happens while memory changes hands. */
		for (int page = skip; page < STORM_PAGES; page += rounds % 8 ? 40 : 7) {
			uint64_t *mine = (uint64_t *)word(page, WRITERS + 1), *out = (uint64_t *)ends[1].buffer;

			*out = doubled(++value);
			check(peer(IBV_WR_RDMA_WRITE, mr, mine, 8) == IBV_WC_SUCCESS, "WRITE in the storm");
			check(*(volatile uint64_t *)mine == doubled(value), "a WRITE to page %d is lost: %lx, not %lx", page, *mine,
			      doubled(value));
			*out = 0;
			check(peer(IBV_WR_RDMA_READ, mr, word(page, 0), 8) == IBV_WC_SUCCESS, "READ in the storm");
			check(*out >> 32 == (*out & 0xffffffff), "a READ got a torn word: %lx", *out);
		}
		if (rounds % 16 == 5) {
			pid_t child = fork();

			if (child == 0)
				check_snapshot();
			must_succeed(child, "fork in the storm");
			forks++;
		}
		must_deregister(mr);
		if (second)
			must_deregister(second);
		rounds++;
	}
	atomic_store(&stop, true);
	for (int i = 0; i <= WRITERS; i++)
		pthread_join(threads[i], NULL);
	printf("   %lu registrations, %lu forks, %lu words written, %lu by the peer\n", rounds, forks, atomic_load(&writes), value);
	check(rounds > 0, "nothing was registered");
	munmap(storm, STORM_PAGES * PAGE);
}

/* Registers one region of each kind and waits for the end of standard input: what does `roceline show mrs` say? */
static void case_hold(void)
{
	int fd;
	uint8_t *p = pages(4), *q = object(&fd, 4), array[PAGE];

	struct { const char *name; struct ibv_mr *mr; } held[] = {
		{ "private", must_register(p, 4 * PAGE) },
		{ "object", must_register(q, 4 * PAGE) },
		{ "stack", must_register(array, PAGE) },
	};

	alarm(0);
	for (int i = 0; i < 3; i++)
		printf("%s %lx\n", held[i].name, (unsigned long)held[i].mr->addr);
	printf("held\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	for (int i = 0; i < 3; i++)
		must_deregister(held[i].mr);
	close(fd);
}

static const struct test tests[] = {
	{ "private", case_private, false }, { "small", case_small, false }, { "overlap", case_overlap, false },
	{ "advice", case_advice, false }, { "unmapped", case_unmapped, false }, { "moved", case_moved, false },
	{ "protection", case_protection, false }, { "stack", case_stack, false }, { "program", case_program, false },
	{ "objects", case_objects, false }, { "mixed", case_mixed, false }, { "truncated", case_truncated, false },
	{ "fork", case_fork, false }, { "exec", case_exec, false }, { "thread", case_thread, false }, { "renewed", case_renewed, false }, { "ring", case_ring, false }, { "direct", case_direct, false },
	{ "huge", case_huge, false }, { "untouched", case_untouched, false },
	{ "blocked", case_blocked, false },
	{ "room", case_room, false }, { "scattered", case_scattered, false },
	{ "descriptors", case_few_descriptors, false },
	{ "guard", case_guard, false }, { "full", case_full, false },
	{ "traffic", case_traffic, false }, { "storm", case_storm, true }, { "hold", case_hold, true },
	{ "cost", case_cost, true },
};

int main(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "t:nf")) != -1) {
		switch (option) {
		case 't': options.seconds = atoi(optarg); break;
		case 'n': never = true; break;
		case 'f': with_fork_init = true; break;
		default: return 2;
		}
	}
	if (argc - optind < 2) {
		fprintf(stderr, "usage: memory_check [-t SECONDS] [-n] [-f] DEVICE DEVICE [CASE...]\n");
		return 2;
	}
	if (with_fork_init)
		check(ibv_fork_init() == 0, "ibv_fork_init");
	return run_tests(tests, sizeof tests / sizeof *tests, argv + optind);
}
