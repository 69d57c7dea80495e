/* What posting and polling cost in the program's thread: the median of many rounds of 64 WRITEs of 64 bytes inline, and empty polls.
 * The completions of a round are there before it polls. */
#include "../verbs-shim/tests/verbs_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 3000, EMPTY = 20000000 };

struct options options = { .device = { "roce0", "roce1" }, .mtu = 1024, .seconds = 30 };

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(const char *what, double *samples, int count)
{
	qsort(samples, count, sizeof *samples, ascending);
	printf("%-24s %7.1f ns (median), %7.1f (tenth percentile)\n", what, samples[count / 2], samples[count / 10]);
}

int main(void)
{
	static double posts[ROUNDS], polls[ROUNDS], empty[20];
	struct end ends[2];
	struct ibv_wc wc[QUEUE];

	connect_pair(ends, patient);
	struct ibv_sge sge = sge_of(&ends[1], 0, 64);
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.wr.rdma = { .remote_addr = (uintptr_t)ends[0].buffer, .rkey = ends[0].mr->rkey },
	}, *bad;

	for (int round = 0; round < ROUNDS; round++) {
		struct timespec moment = { 0, 1000000 };
		double t[4];
		int failed = 0, found = 0;

		t[0] = now_ns();
		for (int i = 0; i < QUEUE; i++)
			failed |= ibv_post_send(ends[1].qp, &wr, &bad);
		t[1] = now_ns();
		check(failed == 0, "ibv_post_send");
		nanosleep(&moment, NULL);
		t[2] = now_ns();
		for (int i = 0; i < QUEUE; i++)
			found += ibv_poll_cq(ends[1].cq, 1, wc + i);
		t[3] = now_ns();
		posts[round] = (t[1] - t[0]) / QUEUE;
		polls[round] = found == QUEUE ? (t[3] - t[2]) / QUEUE : 1e9;
		for (int64_t end = now_ms() + 30000; found < QUEUE;) {
			found += ibv_poll_cq(ends[1].cq, 1, wc);
			check(now_ms() < end, "no completion");
		}
	}
	for (int i = 0; i < 20; i++) {
		double start = now_ns();

		for (int k = 0; k < EMPTY / 20; k++)
			ibv_poll_cq(ends[1].cq, 1, wc);
		empty[i] = (now_ns() - start) / (EMPTY / 20);
	}
	print("ibv_post_send, inline", posts, ROUNDS);
	print("ibv_poll_cq, one each", polls, ROUNDS);
	print("ibv_poll_cq, empty", empty, 20);
	return 0;
}
