/* Checks the preloaded library in programs that fork, spawn, clone, and close descriptors behind its back, against the stub
 * daemon of support/mod.rs.
 *
 *     process_probe CASE
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "probe.h"

enum { CREATE_COMP_CHANNEL = 17, FEW = 32 };

static int open_channel(int fd)
{
	int channel;

	CHECK(command(fd, CREATE_COMP_CHANNEL, NULL, 0, &channel, 4) == 16);
	return channel;
}

/* Few descriptors may be open, so that the hidden ones have low numbers, which the program soon has again. */
static void limit_descriptors(void)
{
	struct rlimit few = { FEW, FEW };

	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
}

static void raw_close(unsigned first, unsigned last)
{
	CHECK(syscall(SYS_close_range, (long)first, (long)last, 0L) == 0);
}

/* Gives all free numbers to sockets of ours; what is written to one of them arrives at its peer. Gives how many. */
static int take_all(int sockets[FEW])
{
	int count = 0;

	while (count + 2 <= FEW && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets + count) == 0)
		count += 2;
	CHECK(errno == EMFILE && count >= 8);
	return count;
}

static void check_silent(const int sockets[FEW], int count)
{
	char bytes[256];

	for (int i = 0; i < count; i++) {
		ssize_t n = recv(sockets[i], bytes, sizeof bytes, MSG_DONTWAIT);

		CHECK(n == -1 && errno == EAGAIN);
	}
}

/* All descriptors go by system call, and their numbers become the program's own. */
static void case_raw(void)
{
	int sockets[FEW], node, channel, count;

	limit_descriptors();
	node = open_node();
	channel = open_channel(node);
	check_echo(node);
	/* The lcore sleeps: who rings must wake it. */
	*(map_control(node) + (1 << 20) / 4) = 1;
	raw_close(3, ~0u);
	count = take_all(sockets);
	/* What was written to its own file by number is the program's; a doorbell there would wake somebody. */
	ring(node, 0);
	check_silent(sockets, count);
	CHECK(close(channel) == 0);
	for (int i = 0; i < count; i++)
		CHECK(sockets[i] == channel || fcntl(sockets[i], F_GETFD) >= 0);
	for (int i = 0; i < count; i++)
		if (sockets[i] != channel && sockets[i ^ 1] != channel) {
			char byte = 'x';

			CHECK(write(sockets[i], &byte, 1) == 1);
			CHECK(read(sockets[i ^ 1], &byte, 1) == 1 && byte == 'x');
		}
	for (int i = 0; i < count; i++)
		CHECK(sockets[i] == channel || close(sockets[i]) == 0);
	CHECK(fcntl(node, F_GETFD) == -1);
	node = open_node();
	check_echo(node);
	CHECK(close(node) == 0);
}

/* The hidden ones go by system call, the device stays: commands fail, nothing hangs, and no stranger is written to. */
static void case_hidden_gone(void)
{
	int sockets[FEW], node, count;

	limit_descriptors();
	node = open_node();
	if (node > 3)
		raw_close(3, node - 1);
	raw_close(node + 1, ~0u);
	count = take_all(sockets);
	CHECK(command(node, ECHO, NULL, 0, NULL, 0) == -1 && errno == EIO);
	check_silent(sockets, count);
	/* A program may put a file in the place of one of them. */
	CHECK(dup2(0, sockets[0]) == sockets[0]);
	CHECK(close(node) == 0);
	for (int i = 0; i < count; i++)
		CHECK(close(sockets[i]) == 0);
	node = open_node();
	check_echo(node);
}

/* close_range with its flags, by libc and by system call. */
static void case_ranges(void)
{
	int node = open_node(), copy = fcntl(node, F_DUPFD_CLOEXEC, 50);

	CHECK(copy == 50);
	CHECK(close_range(40, 60, CLOSE_RANGE_UNSHARE) == 0);
	CHECK(fcntl(copy, F_GETFD) == -1);
	check_echo(node);
	CHECK(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
	check_echo(node);
	CHECK(syscall(SYS_close_range, 3L, (long)~0u, (long)CLOSE_RANGE_CLOEXEC) == 0);
	check_echo(node);
	CHECK(close_range(60, 50, 0) == -1 && errno == EINVAL);
	/* A duplicate keeps the device, whatever was closed around it. */
	copy = fcntl(node, F_DUPFD, 70);
	CHECK(close_range(3, 69, 0) == 0);
	check_echo(copy);
	CHECK(close_range(71, ~0u, 0) == 0);
	check_echo(copy);
}

/* What a daemon of the old school does, before and after it opens a device. */
static void case_daemon(void)
{
	int node, ends[2];
	char verdict = 0;

	for (int i = 3; i < 1024; i++)
		close(i);
	node = open_node();
	check_echo(node);
	CHECK(pipe(ends) == 0);
	if (fork() == 0) {
		setsid();
		if (fork() != 0)
			_exit(0);
		/* The device is the parent's. */
		CHECK(command(node, 13, NULL, 0, NULL, 0) == -1 && errno == EIO);
		CHECK(command(node, ECHO, NULL, 0, NULL, 0) == -1 && errno == EIO);
		for (int i = 3; i < 1024; i++)
			if (i != ends[1])
				close(i);
		node = open_node();
		check_echo(node);
		CHECK(write(ends[1], "k", 1) == 1);
		_exit(0);
	}
	close(ends[1]);
	CHECK(read(ends[0], &verdict, 1) == 1 && verdict == 'k');
	check_echo(node);
	CHECK(wait(NULL) > 0);
}

static pid_t bare_clone(void)
{
	return (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
}

static pid_t bare_clone3(void)
{
	struct clone_args arguments = { .exit_signal = SIGCHLD };

	return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

/* Children that no handler of pthread_atfork(3) hears of: whatever they do, the parent's device stays open. */
static void case_clones(void)
{
	int node = open_node(), channel = open_channel(node);
	pid_t (*const ways[])(void) = { bare_clone, bare_clone3 };

	for (int i = 0; i < 2; i++) {
		pid_t child = ways[i]();

		if (child == 0) {
			CHECK(command(node, ECHO, NULL, 0, NULL, 0) == -1 && errno == EIO);
			CHECK(dup2(0, channel) == channel);
			CHECK(close(channel) == 0 && close(node) == 0);
			CHECK(close_range(3, ~0u, 0) == 0);
			if (i == 0)
				execl("/bin/true", "true", (char *)NULL);
			_exit(0);
		}
		if (child == -1 && errno == ENOSYS)
			continue;
		wait_for(child);
		check_echo(node);
	}
	CHECK(ask(node, CLOSED_CHANNELS) == 0);
}

/* Children of libc's making that close what they inherit. */
static void case_children(void)
{
	int node = open_node();
	char *argv[] = { "true", NULL }, line[16];
	posix_spawn_file_actions_t actions;
	pid_t child;

	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, 0, node) == 0);
	CHECK(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
	CHECK(posix_spawn(&child, "/bin/true", &actions, NULL, argv, environ) == 0);
	wait_for(child);
	posix_spawn_file_actions_destroy(&actions);
	check_echo(node);
	FILE *said = popen("echo said", "r");

	CHECK(said && fgets(line, sizeof line, said) && !strcmp(line, "said\n"));
	CHECK(pclose(said) == 0);
	check_echo(node);
	child = fork();
	if (child == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	wait_for(child);
	check_echo(node);
}

/* Handlers of the program's own, and of a library that was initialised before the shim (atfork_early.c, preloaded): they use
 * descriptors and memory of ours while the fork is under way. */
static int copies[2];
static char *page;
static int runs;

static void use(void)
{
	runs++;
	CHECK(close(copies[0]) == 0);
	copies[0] = dup(copies[1]);
	CHECK(copies[0] >= 0);
	CHECK(madvise(page, 4096, MADV_DONTFORK) == 0);
	CHECK(madvise(page, 4096, MADV_DOFORK) == 0);
}

static void case_atfork(void)
{
	void (**early)(void) = dlsym(RTLD_DEFAULT, "early_handlers");
	int node;

	CHECK(early != NULL);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	/* Before the first device is open, and after. */
	CHECK(pthread_atfork(use, use, use) == 0);
	node = open_node();
	CHECK(pthread_atfork(use, use, use) == 0);
	for (int i = 0; i < 3; i++)
		early[i] = use;
	copies[0] = dup(node);
	copies[1] = dup(node);
	alarm(20);
	pid_t child = fork();

	if (child == 0)
		_exit(runs == 6 ? 0 : 3);
	wait_for(child);
	CHECK(runs == 6);
	check_echo(node);
	check_echo(copies[0]);
}

static const struct probe cases[] = {
	{ "raw", case_raw },	   { "hidden-gone", case_hidden_gone }, { "ranges", case_ranges },
	{ "daemon", case_daemon }, { "clones", case_clones },	    { "children", case_children },
	{ "atfork", case_atfork },
};

int main(int argc, char **argv)
{
	return probe_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
