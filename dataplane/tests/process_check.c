/* Registered memory in programs that make children, become daemons, close descriptors and execute others, while a peer writes
 * to it.
 *
 *   process_check [-n] DEVICE DEVICE [CASE...]
 *
 * -n: nothing is mapped into the daemon (ROCELINE_MEMORY=never), so do not expect it. */
#define _GNU_SOURCE
#include "../../verbs-shim/tests/memory_end.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REGION = 64, BURST = 16 };
extern char **environ;

/* Requests of the peer that are under way while something happens. */
static void start_writes(struct ibv_mr *mr, void *p, uint32_t length, uint32_t seed)
{
	struct ibv_sge sge = sge_of(&ends[1], 0, length);

	fill(&ends[1], seed, length);
	for (uint64_t i = 0; i < BURST; i++) {
		struct ibv_send_wr wr = {
			.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)p, .rkey = mr->rkey },
		};
		post_send(&ends[1], wr);
	}
}

static void end_writes(const char *what)
{
	for (uint64_t i = 0; i < BURST; i++)
		expect(&ends[1], what, i, IBV_WC_SUCCESS);
}

static char *true_arguments[] = { "true", NULL };

static pid_t by_spawn(void)
{
	pid_t child;

	check(posix_spawnp(&child, "true", NULL, NULL, true_arguments, environ) == 0, "posix_spawn");
	return child;
}

static pid_t by_system(void)
{
	check(system("exit 3") >> 8 == 3, "system");
	return 0;
}

static pid_t by_popen(void)
{
	char line[16] = "";
	FILE *said = popen("echo said", "r");

	check(said && fgets(line, sizeof line, said) && !strcmp(line, "said\n"), "popen: %s", line);
	check(pclose(said) == 0, "pclose");
	return 0;
}

static pid_t by_vfork(void)
{
	pid_t child = vfork();

	if (child == 0) {
		execvp("true", true_arguments);
		_exit(1);
	}
	return child;
}

static pid_t by_fork(void)
{
	pid_t child = fork();

	if (child == 0) {
		execvp("true", true_arguments);
		_exit(1);
	}
	return child;
}

/* As container runtimes do it, unheard of pthread_atfork(3). */
static pid_t by_clone3(void)
{
	struct clone_args arguments = { .exit_signal = SIGCHLD };
	pid_t child = (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);

	if (child == -1 && errno == ENOSYS)
		return 0;
	if (child == 0) {
		execvp("true", true_arguments);
		_exit(1);
	}
	return child;
}

static void case_children(void)
{
	static const struct {
		const char *name;
		pid_t (*make)(void);
	} ways[] = {
		{ "posix_spawn", by_spawn }, { "system", by_system }, { "popen", by_popen },
		{ "vfork", by_vfork },	     { "fork", by_fork },     { "clone3", by_clone3 },
	};
	uint8_t *p = pages(REGION);
	struct ibv_mr *mr = must_register(p, REGION * PAGE);

	for (uint32_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		set_memory(p, REGION * PAGE, 1);
		/* The rest is the peer's, while the child is made. */
		start_writes(mr, p, REGION / 2 * PAGE, 40 + i);
		pid_t child = ways[i].make();

		if (child)
			must_succeed(child, ways[i].name);
		end_writes(ways[i].name);
		check_memory(p, REGION / 2 * PAGE, 40 + i, ways[i].name);
		for (uint32_t at = REGION / 2 * PAGE; at < REGION * PAGE; at++)
			check(p[at] == pattern(1, at), "%s: byte %u of the parent is another", ways[i].name, at);
		expect_shared(p, true, ways[i].name);
		exchange(mr, p, REGION * PAGE, ways[i].name);
	}
	must_deregister(mr);
	munmap(p, REGION * PAGE);
}

/* What a child posts is refused, and not carried out with the parent's next request; what it polls is not taken from its parent. */
static void case_posts(void)
{
	uint8_t *p = pages(8);
	struct ibv_mr *mr = must_register(p, 8 * PAGE);
	uint8_t *stray = p + 4 * PAGE;

	set_memory(p, 8 * PAGE, 11);
	start_writes(mr, p, PAGE, 12);
	while (memcmp(p, ends[1].buffer, PAGE))
		check(now_ms() > 0, "no clock");
	pid_t child = fork();

	if (child == 0) {
		struct ibv_sge sge = sge_of(&ends[1], 0, PAGE);
		struct ibv_recv_wr receive = { .wr_id = 77, .sg_list = &sge, .num_sge = 1 }, *bad_receive;
		struct ibv_send_wr wr = {
			.wr_id = 78, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)stray, .rkey = mr->rkey },
		}, *bad;
		struct ibv_wc wc;
		int64_t end = now_ms() + 100;

		check(ibv_post_send(ends[1].qp, &wr, &bad) == EIO, "a child posts a request");
		ibv_post_recv(ends[0].qp, &receive, &bad_receive);
		while (now_ms() < end)
			ibv_poll_cq(ends[1].cq, 1, &wc);
		_exit(0);
	}
	must_succeed(child, "a child that posts");
	end_writes("a child posted and polled");
	exchange(mr, p, 4 * PAGE, "after a child posted");
	start_writes(mr, p, PAGE, 13);
	end_writes("after a child posted");
	for (uint32_t at = 0; at < 4 * PAGE; at++)
		check(stray[at] == pattern(11, 4 * PAGE + at), "the child's request was carried out: byte %u", at);
	must_deregister(mr);
	munmap(p, 8 * PAGE);
}

/* A handler in the child that is older than the first open of a device, and writes to what is registered then. */
static uint8_t *volatile handlers_page;

static void scribble(void)
{
	if (handlers_page)
		memset(handlers_page, 0xee, PAGE);
}

static void case_handlers(void)
{
	uint8_t *p = pages(4);
	struct ibv_mr *mr = must_register(p, 4 * PAGE);

	set_memory(p, 4 * PAGE, 2);
	handlers_page = p + PAGE;
	pid_t child = fork();

	if (child == 0) {
		check(p[PAGE] == 0xee && p[0] == pattern(2, 0), "the child's memory is not its own");
		_exit(0);
	}
	handlers_page = NULL;
	must_succeed(child, "a child whose handler writes");
	check_memory(p, 4 * PAGE, 2, "the parent, after a handler of the child wrote");
	exchange(mr, p, 4 * PAGE, "after a handler of the child wrote");
	must_deregister(mr);
	munmap(p, 4 * PAGE);
}

/* As daemon(3): the process that opened the device ends, its grandchild goes on. */
static void become_daemon(int report)
{
	uint8_t *p = pages(8);

	connect_pair(ends, patient);
	struct ibv_mr *mr = must_register(p, 8 * PAGE);

	set_memory(p, 8 * PAGE, 3);
	exchange(mr, p + PAGE, 2 * PAGE, "before");
	set_memory(p, 8 * PAGE, 4);
	pid_t child = fork();

	check(child >= 0, "fork: %s", strerror(errno));
	if (child)
		_exit(0);
	check(setsid() > 0, "setsid");
	check_memory(p, 8 * PAGE, 4, "in the daemon");
	check(!is_shared(p, NULL), "the daemon shares memory with its parent");
	check(ibv_reg_mr(ends[0].pd, p, PAGE, ALL) == NULL && errno == EIO, "the parent's device registers memory");
	connect_pair(ends, patient);
	mr = must_register(p, 8 * PAGE);
	exchange(mr, p, 8 * PAGE, "in the daemon");
	must_deregister(mr);
	close_pair(ends);
	check(write(report, "k", 1) == 1, "write");
	exit(0);
}

static void case_daemon(void)
{
	int report[2];
	char verdict = 0;

	check(pipe(report) == 0, "pipe");
	fflush(stdout);
	pid_t child = fork();

	if (child == 0) {
		close(report[0]);
		become_daemon(report[1]);
	}
	close(report[1]);
	must_succeed(child, "the process that left a daemon");
	check(read(report[0], &verdict, 1) == 1 && verdict == 'k', "the daemon has failed");
	close(report[0]);
}

static bool is_of_the_pair(int fd)
{
	for (int i = 0; i < 2; i++)
		if (fd == ends[i].context->cmd_fd || fd == ends[i].context->async_fd || fd == ends[i].channel->fd)
			return true;
	return false;
}

/* Moves a descriptor to a new number, as programs do that want the low ones for themselves. */
static int move(int fd, int to)
{
	int copy = to ? dup3(fd, to, O_CLOEXEC) : fcntl(fd, F_DUPFD_CLOEXEC, 200);

	check(copy >= 0, "dup: %s", strerror(errno));
	check(close(fd) == 0, "close: %s", strerror(errno));
	return copy;
}

/* All descriptors are closed but those of the device, one by one and by range; then those are duplicated and moved. */
static void case_descriptors(void)
{
	uint8_t *p = pages(8);
	struct ibv_mr *mr = must_register(p, 8 * PAGE);

	for (int fd = 3; fd < 5000; fd++)
		if (!is_of_the_pair(fd))
			close(fd);
	exchange(mr, p, 8 * PAGE, "after all others were closed");
	for (unsigned fd = 3, from = 3; fd < 5000; fd++)
		if (is_of_the_pair((int)fd) || fd == 4999) {
			check(fd == from || close_range(from, fd - 1, 0) == 0, "close_range: %s", strerror(errno));
			from = fd + 1;
		}
	exchange(mr, p, 8 * PAGE, "after ranges were closed");

	for (int i = 0; i < 2; i++) {
		struct ibv_context *context = ends[i].context;

		context->cmd_fd = move(context->cmd_fd, i ? 0 : 150);
		context->async_fd = move(context->async_fd, i ? 0 : 151);
		ends[i].channel->fd = move(ends[i].channel->fd, i ? 0 : 152);
	}
	exchange(mr, p, 8 * PAGE, "after the device's were moved");
	arm(&ends[1], false);
	start_writes(mr, p, 8 * PAGE, 5);
	take_event(&ends[1]);
	end_writes("with an event on a channel that was moved");
	ibv_ack_cq_events(ends[1].cq, ends[1].unacked);
	ends[1].unacked = 0;
	must_deregister(mr);
	mr = must_register(p, 8 * PAGE);
	exchange(mr, p, 8 * PAGE, "registered after the device's were moved");
	must_deregister(mr);
	munmap(p, 8 * PAGE);
}

/* The device's own are closed, too: it is gone, the memory is as it was, and the device can be opened again. */
static void case_all_closed(void)
{
	uint8_t *p = pages(8);
	struct ibv_mr *mr = must_register(p, 8 * PAGE);

	exchange(mr, p, 8 * PAGE, "before");
	set_memory(p, 8 * PAGE, 6);
	for (int fd = 3; fd < 5000; fd++)
		close(fd);
	check_memory(p, 8 * PAGE, 6, "after all was closed");
	check(ibv_reg_mr(ends[0].pd, p, PAGE, ALL) == NULL && errno == EBADF, "a closed device registers memory");
	connect_pair(ends, patient);
	mr = must_register(p, 8 * PAGE);
	exchange(mr, p, 8 * PAGE, "opened again");
	must_deregister(mr);
	munmap(p, 8 * PAGE);
}

/* exec: the new image has memory at the very addresses that the peer goes on writing to. Its descriptors are those of the old
 * one, hidden ones and all, so that the connection to the daemon stays. */
enum { IMAGE_BYTES = 8 << 20 };
static void *const image = (void *)0x100000000000;

static uint8_t *map_image(void)
{
	uint8_t *p = mmap(image, IMAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	check(p == image, "mmap at %p: %s", image, strerror(errno));
	return p;
}

_Noreturn static void be_new_image(int socket)
{
	uint8_t *p = map_image();
	char byte = 'm';

	set_memory(p, IMAGE_BYTES, 8);
	check(write(socket, &byte, 1) == 1, "write");
	/* The peer says when it has done its worst. */
	check(read(socket, &byte, 1) == 1, "the peer is gone");
	check_memory(p, IMAGE_BYTES, 8, "the new image");
	exit(0);
}

_Noreturn static void be_old_image(int socket)
{
	char number[16];
	uint8_t *p = map_image();
	struct { uint32_t rkey; } told;

	open_end(&ends[0], options.device[0]);
	struct ibv_mr *mr = must_register(p, IMAGE_BYTES);

	expect_shared(p, true, "before exec");
	connect_over(&ends[0], socket, patient);
	told.rkey = mr->rkey;
	check(write(socket, &told, sizeof told) == sizeof told, "write");
	check(read(socket, number, 1) == 1, "the peer is gone");
	for (int fd = 3; fd < 65536; fd++)
		fcntl(fd, F_SETFD, 0);
	snprintf(number, sizeof number, "%d", socket);
	execl("/proc/self/exe", "process_check", "-i", number, (char *)NULL);
	fail("exec: %s", strerror(errno));
}

/* Writes for so long, or until the connection fails; how many succeeded. */
static unsigned hammer(uint32_t rkey, int64_t milliseconds, int until)
{
	struct pollfd news = { .fd = until, .events = POLLIN };
	int64_t end = now_ms() + milliseconds;
	unsigned succeeded = 0, outstanding = 0;
	struct ibv_sge sge = sge_of(&ends[1], 0, 1 << 20);

	for (uint64_t i = 0; now_ms() < end && (until < 0 || poll(&news, 1, 0) == 0); i++) {
		struct ibv_wc wc;
		struct ibv_send_wr wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)image + (i % 8 << 20), .rkey = rkey },
		};

		if (outstanding < 8) {
			post_send(&ends[1], wr);
			outstanding++;
		}
		if (ibv_poll_cq(ends[1].cq, 1, &wc) > 0) {
			outstanding--;
			if (wc.status != IBV_WC_SUCCESS)
				break;
			succeeded++;
		}
	}
	return succeeded;
}

static void case_exec(void)
{
	int sockets[2];
	char byte = 'x';
	struct { uint32_t rkey; } told;

	close_pair(ends);
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
	fflush(stdout);
	pid_t child = fork();

	check(child >= 0, "fork");
	if (child == 0) {
		close(sockets[0]);
		be_old_image(sockets[1]);
	}
	close(sockets[1]);
	open_end(&ends[1], options.device[1]);
	fill(&ends[1], 9, 1 << 20);
	connect_over(&ends[1], sockets[0], patient);
	check(read(sockets[0], &told, sizeof told) == sizeof told, "the old image is gone");
	check(write(sockets[0], &byte, 1) == 1, "write");
	/* All through the exec, until the new image is there, and then some. */
	unsigned before = hammer(told.rkey, 1000LL * options.seconds, sockets[0]);

	check(read(sockets[0], &byte, 1) == 1, "there is no new image");
	unsigned after = hammer(told.rkey, 300, -1);

	check(write(sockets[0], &byte, 1) == 1, "the new image is gone");
	must_succeed(child, "the new image");
	printf("   %u writes of 1 MiB before the new image had memory there, %u after\n", before, after);
	check(never || after > 0, "nobody wrote to the old image's memory, so the test shows nothing");
	close(sockets[0]);
	connect_pair(ends, patient);
}

/* A program with a filter of its own, which lets through what the data path needs and nothing else: what was set up before goes
 * on, and what would need the daemon fails. */
static void filter_calls(void)
{
	static const uint16_t needed[] = {
		SYS_read, SYS_write, SYS_poll, SYS_sched_yield, SYS_clock_gettime, SYS_exit_group,
	};
	struct sock_filter filter[2 * sizeof needed / sizeof *needed + 2];
	unsigned short n = 0;

	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < sizeof needed / sizeof *needed; i++) {
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, needed[i], 0, 1);
		filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	struct sock_fprog program = { .len = n, .filter = filter };

	check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
	check(syscall(SYS_seccomp, (long)SECCOMP_SET_MODE_FILTER, 0L, &program) == 0, "seccomp: %s", strerror(errno));
	check(getppid() == -1, "the filter lets getppid through");
}

static void case_filtered(void)
{
	fflush(stdout);
	pid_t child = fork();

	if (child == 0) {
		connect_pair(ends, patient);
		uint8_t *p = pages(8);
		struct ibv_mr *mr = must_register(p, 8 * PAGE);

		exchange(mr, p, 8 * PAGE, "before the filter");
		filter_calls();
		for (int i = 0; i < 3; i++) {
			exchange(mr, p, 8 * PAGE, "behind the filter");
			arm(&ends[1], false);
			/* Long enough for the daemon to fall asleep. */
			check(!event_within(&ends[1], 20), "an event of nothing");
			start_writes(mr, p, 8 * PAGE, 70);
			take_event(&ends[1]);
			end_writes("behind the filter");
		}
		check(ibv_reg_mr(ends[0].pd, p, PAGE, ALL) == NULL, "a command behind the filter");
		_exit(0);
	}
	must_succeed(child, "a program with a filter");
}

static const struct test tests[] = {
	{ "children", case_children, false }, { "posts", case_posts, false }, { "handlers", case_handlers, false },	{ "daemon", case_daemon, false },
	{ "descriptors", case_descriptors, false }, { "all-closed", case_all_closed, false }, { "exec", case_exec, false },
	{ "filtered", case_filtered, false },
};

int main(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "ni:")) != -1) {
		switch (option) {
		case 'n': never = true; break;
		case 'i': be_new_image(atoi(optarg));
		default: return 2;
		}
	}
	if (argc - optind < 2) {
		fprintf(stderr, "usage: process_check [-n] DEVICE DEVICE [CASE...]\n");
		return 2;
	}
	check(pthread_atfork(NULL, NULL, scribble) == 0, "pthread_atfork");
	return run_tests(tests, sizeof tests / sizeof *tests, argv + optind);
}
