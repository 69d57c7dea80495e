/* Two programs, of which one is killed. The parent opens roce0 and stays; the child opens roce1, connects, and is killed
 * by the parent with SIGKILL.
 *
 *   requester   the parent has a SEND outstanding for which the child has no buffer: it must end with a retry error
 *   responder   the child has sent something: the parent must not notice its end
 *   vanished    as requester, but the child has a buffer, and a process that it leaves behind keeps its connection to the
 *               daemon: with its memory gone it must not answer either */
#define _GNU_SOURCE
#include "../../verbs-shim/tests/verbs_end.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT = 15, RETRIES = 1 };	/* 134 ms */

struct options options = { .device = { "roce0", "roce1" }, .mtu = 1024, .seconds = 60 };

static const struct link brief = { .rnr_retry = 7, .retry_cnt = RETRIES, .timeout = TIMEOUT };

_Noreturn static void be_killed(int peer, bool sends, bool receives)
{
	struct end end;

	open_end(&end, options.device[1]);
	connect_over(&end, peer, brief);
	if (receives)
		post_recv(&end, 64, 100);
	/* Not by the C library: what watches forks would close the connection. */
	if (receives && syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
		char byte;

		while (read(peer, &byte, 1) > 0)
			;
		_exit(0);
	}
	if (sends) {
		post_op(&end, &end, IBV_WR_SEND, 64, 1);
		expect(&end, "SEND of the child", 1, IBV_WC_SUCCESS);
	}
	check(write(peer, "k", 1) == 1, "write");
	for (;;)
		pause();
}

static void be_requester(struct end *end, pid_t child, bool early)
{
	int64_t t = (4096LL << TIMEOUT) / 1000000, limit = 4 * t * (RETRIES + 1), before;

	if (early) {
		post_op(end, end, IBV_WR_SEND, 64, 7);
		expect_nothing(end, "while the child lives", 300);
	}
	kill(child, SIGKILL);
	check(waitpid(child, NULL, 0) == child, "waitpid");
	if (!early)
		post_op(end, end, IBV_WR_SEND, 64, 7);
	before = now_ms();
	expect(end, "SEND to the dead", 7, IBV_WC_RETRY_EXC_ERR);
	printf("retries exceeded after %" PRId64 " ms; at most %" PRId64 " by the standard\n", now_ms() - before, limit);
	expect_state(end, IBV_QPS_ERR);
}

static void be_responder(struct end *end, pid_t child)
{
	struct ibv_async_event event;

	expect(end, "what the child sent", 100, IBV_WC_SUCCESS);
	kill(child, SIGKILL);
	check(waitpid(child, NULL, 0) == child, "waitpid");
	expect_nothing(end, "after the end of the child", 1000);
	expect_state(end, IBV_QPS_RTS);
	fcntl(end->context->async_fd, F_SETFL, O_NONBLOCK);
	check(ibv_get_async_event(end->context, &event) != 0, "an asynchronous event");
	printf("nothing noticed\n");
}

int main(int argc, char **argv)
{
	bool responder = argc > 1 && !strcmp(argv[1], "responder");
	bool vanished = argc > 1 && !strcmp(argv[1], "vanished");
	struct end end;
	int ends[2];

	check(responder || vanished || (argc > 1 && !strcmp(argv[1], "requester")), "requester, responder or vanished");
	if (vanished)
		setenv("ROCELINE_MEMORY", "never", 1);
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
	pid_t child = fork();
	check(child >= 0, "fork");
	if (child == 0) {
		close(ends[0]);
		be_killed(ends[1], responder, vanished);
	}
	close(ends[1]);
	open_end(&end, options.device[0]);
	connect_over(&end, ends[0], brief);
	if (responder)
		post_recv(&end, 64, 100);
	char ready;
	check(read(ends[0], &ready, 1) == 1, "the child is gone");
	if (responder)
		be_responder(&end, child);
	else
		be_requester(&end, child, !vanished);
	return 0;
}
