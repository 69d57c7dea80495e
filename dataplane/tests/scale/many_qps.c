/*
 * Many queue pairs: many_qps DEVICE DEVICE PAIRS DEPTH ROUNDS
 *
 * Connects PAIRS queue pairs of the first device to as many of the second, each with queues of DEPTH requests, all of a
 * side on one CQ. Then, ROUNDS times, every queue pair of the first device sends a message of its own to its peer, and
 * what has arrived is compared. Says how long each step took, and destroys all.
 */
#include "qps.h"

struct end {
	struct side side;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp **qps;
	uint64_t *words;
};

static void open_end(struct end *end, const char *name, int pairs, int depth)
{
	struct ibv_qp_cap cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 };

	open_side(&end->side, name);
	end->words = calloc(pairs, sizeof(*end->words));
	end->qps = calloc(pairs, sizeof(*end->qps));
	end->cq = ibv_create_cq(end->side.context, pairs, NULL, NULL, 0);
	end->mr = ibv_reg_mr(end->side.pd, end->words, pairs * sizeof(*end->words), IBV_ACCESS_LOCAL_WRITE);
	if (!end->cq || !end->mr)
		FAIL("%s: no CQ of %d or no MR: %m", name, pairs);
	for (int i = 0; i < pairs; i++)
		end->qps[i] = create_qp(&end->side, end->cq, cap);
}

static void close_end(struct end *end, int pairs)
{
	for (int i = 0; i < pairs; i++)
		if (ibv_destroy_qp(end->qps[i]))
			FAIL("QP %d cannot be destroyed", i);
	if (ibv_destroy_cq(end->cq) || ibv_dereg_mr(end->mr))
		FAIL("CQ or MR cannot be destroyed");
	close_side(&end->side);
}

static void complete(struct end *end, int left)
{
	struct ibv_wc wcs[64];

	while (left > 0) {
		int n = ibv_poll_cq(end->cq, 64, wcs);

		for (int i = 0; i < n; i++)
			expect_success(&wcs[i]);
		left -= n;
	}
}

static void message_each(struct end ends[2], int pairs, int round)
{
	for (int i = 0; i < pairs; i++) {
		struct ibv_sge sge = { (uintptr_t)&ends[1].words[i], 8, ends[1].mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		if (ibv_post_recv(ends[1].qps[i], &wr, &bad))
			FAIL("receive %d cannot be posted", i);
	}
	for (int i = 0; i < pairs; i++) {
		struct ibv_sge sge = { (uintptr_t)&ends[0].words[i], 8, ends[0].mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED };
		struct ibv_send_wr *bad;

		ends[0].words[i] = (uint64_t)(round + 1) << 32 | i;
		if (ibv_post_send(ends[0].qps[i], &wr, &bad))
			FAIL("send %d cannot be posted", i);
	}
	complete(&ends[1], pairs);
	complete(&ends[0], pairs);
	if (memcmp(ends[0].words, ends[1].words, pairs * sizeof(*ends[0].words)))
		FAIL("round %d: not what was sent", round);
}

/* Two queues of each QP are mapped. Were the mappings not joined, 32,000 QPs would use up the kernel's default for them
 * (vm.max_map_count), and a device of 65,536 could not be used by one program. */
static void expect_joined_mappings(int qps)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int lines = 0;

	if (!maps)
		FAIL("/proc/self/maps cannot be read: %m");
	for (int c; (c = getc(maps)) != EOF;)
		lines += c == '\n';
	fclose(maps);
	if (lines > 500 + qps / 10)
		FAIL("%d QPs have %d mappings", qps, lines);
}

int main(int count, char **arguments)
{
	if (count != 6)
		FAIL("many_qps DEVICE DEVICE PAIRS DEPTH ROUNDS");

	int pairs = atoi(arguments[3]), depth = atoi(arguments[4]), rounds = atoi(arguments[5]);
	struct end ends[2];
	double begin = now();

	for (int e = 0; e < 2; e++)
		open_end(&ends[e], arguments[1 + e], pairs, depth);
	printf("%d queue pairs created in %.3f s\n", 2 * pairs, now() - begin);
	expect_joined_mappings(2 * pairs);

	begin = now();
	for (int i = 0; i < pairs; i++)
		for (int e = 0; e < 2; e++)
			connect_qp(&ends[e].side, ends[e].qps[i], &ends[!e].side, ends[!e].qps[i]);
	printf("connected in %.3f s\n", now() - begin);

	begin = now();
	for (int round = 0; round < rounds; round++)
		message_each(ends, pairs, round);
	printf("%d messages in %.3f s\n", rounds * pairs, now() - begin);

	begin = now();
	for (int e = 0; e < 2; e++)
		close_end(&ends[e], pairs);
	printf("destroyed in %.3f s\n", now() - begin);
	return 0;
}
