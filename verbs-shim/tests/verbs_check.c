/* Checks a pair of RDMA devices through verbs alone: every byte of every operation, and the exact completion of every
 * error. Both ends are in this process.
 *
 *     verbs_check [-g GID_INDEX] [-m MTU] [-t SECONDS] DEVICE DEVICE [CASE...]
 *
 * Without a case all are run. The same device twice is loopback. */
#include "verbs_end.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options options = { .gid_index = 0, .mtu = 1024, .seconds = 10 };

static const struct operation {
	const char *name;
	enum ibv_wr_opcode opcode;
	enum ibv_wc_opcode completes_as;
	bool takes_recv;
	bool has_imm;
} operations[] = {
	{ "SEND", IBV_WR_SEND, IBV_WC_SEND, true, false },
	{ "SEND with immediate", IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, true, true },
	{ "WRITE", IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, false, false },
	{ "WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, true, true },
	{ "READ", IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, false, false },
};

static void check_recv(struct ibv_wc wc, const char *what, const struct operation *op, uint32_t size)
{
	bool is_write = op->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	enum ibv_wc_opcode opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;

	check(wc.opcode == opcode, "%s: receive opcode %d, expected %d", what, wc.opcode, opcode);
	check(wc.byte_len == size, "%s: receive of %u bytes, expected %u", what, wc.byte_len, size);
	check(!(wc.wc_flags & IBV_WC_WITH_IMM) == !op->has_imm, "%s: receive flags 0x%x", what, wc.wc_flags);
	if (op->has_imm)
		check(be32toh(wc.imm_data) == 0x01020304, "%s: immediate 0x%x", what, be32toh(wc.imm_data));
}

static void one_message(struct end ends[2], const struct operation *op, uint32_t size, uint32_t seed)
{
	struct end *a = &ends[0], *b = &ends[1];
	bool read = op->opcode == IBV_WR_RDMA_READ;
	char what[64];

	snprintf(what, sizeof what, "%s of %u bytes", op->name, size);
	blank(a);
	blank(b);
	fill(read ? b : a, seed, size);
	if (op->takes_recv)
		post_recv(b, size, 100 + seed);
	post_op(a, b, op->opcode, size, seed);
	struct ibv_wc wc = expect(a, what, seed, IBV_WC_SUCCESS);
	check(wc.opcode == op->completes_as, "%s: completion opcode %d, expected %d", what, wc.opcode,
	      op->completes_as);
	if (read)
		check(wc.byte_len == size, "%s: completion of %u bytes", what, wc.byte_len);
	if (op->takes_recv) {
		check_recv(expect(b, what, 100 + seed, IBV_WC_SUCCESS), what, op, size);
	} else if (!read) {
		/* A WRITE is in memory for sure once a later SEND has been received. */
		post_recv(b, 0, 1);
		post_op(a, b, IBV_WR_SEND, 0, 2);
		expect(b, what, 1, IBV_WC_SUCCESS);
		expect(a, what, 2, IBV_WC_SUCCESS);
	}
	check_bytes(a, what, seed, size);
	check_bytes(b, what, seed, size);
}

/* Pieces that cross packet boundaries, gathered and scattered; inline data; no signal for it. */
static void pieces(struct end ends[2])
{
	struct end *a = &ends[0], *b = &ends[1];
	uint32_t m = (uint32_t)options.mtu, size = 3 * m + 7;
	struct ibv_sge out[3] = { sge_of(a, 0, 5), sge_of(a, 5, 2 * m), sge_of(a, 5 + 2 * m, size - 2 * m - 5) };
	struct ibv_sge in[2] = { sge_of(b, 0, m + 1), sge_of(b, m + 1, size - m - 1) };
	struct ibv_recv_wr recv = { .wr_id = 3, .sg_list = in, .num_sge = 2 }, *bad;

	blank(a);
	blank(b);
	fill(a, 9, size);
	check(ibv_post_recv(b->qp, &recv, &bad) == 0, "ibv_post_recv of two pieces");
	post_send(a, (struct ibv_send_wr){ .wr_id = 4, .sg_list = out, .num_sge = 3, .opcode = IBV_WR_SEND,
					   .send_flags = IBV_SEND_SIGNALED });
	expect(a, "SEND of three pieces", 4, IBV_WC_SUCCESS);
	expect(b, "SEND of three pieces", 3, IBV_WC_SUCCESS);
	check_bytes(b, "SEND of three pieces", 9, size);

	uint8_t data[64];
	struct ibv_sge sge = { (uintptr_t)data, sizeof data, 0 };

	blank(b);
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = pattern(10, i);
	post_recv(b, sizeof data, 5);
	post_send(a, (struct ibv_send_wr){ .wr_id = 6, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					   .send_flags = IBV_SEND_INLINE });
	memset(data, 0, sizeof data);	/* ours again when post_send returns */
	expect(b, "inline SEND", 5, IBV_WC_SUCCESS);
	check_bytes(b, "inline SEND", 10, sizeof data);
	expect_nothing(a, "unsignaled SEND", 20);
}

static void case_bytes(void)
{
	struct end ends[2];
	uint32_t m = (uint32_t)options.mtu;
	uint32_t sizes[] = { 0, 1, m - 1, m, m + 1, 1 << 16, MAX_MESSAGE };
	uint32_t seed = 10;

	connect_pair(ends, patient);
	for (size_t o = 0; o < sizeof operations / sizeof *operations; o++)
		for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
			one_message(ends, &operations[o], sizes[s], seed++);
	pieces(ends);
	close_pair(ends);
}

/* A request that fails at the requester: its QP goes to ERR with all that was posted; the peer hears nothing. */
static void local_error(const char *what, struct ibv_send_wr wr, struct end ends[2], enum ibv_wc_status status)
{
	struct end *a = &ends[0], *b = &ends[1];

	for (uint64_t i = 0; i < 3; i++)
		post_recv(a, 8, 20 + i);
	post_recv(b, 64, 30);
	wr.wr_id = 10;
	post_send(a, wr);
	for (uint64_t i = 11; i < 14; i++)
		post_op(a, b, IBV_WR_SEND, 8, i);
	expect(a, what, 10, status);
	uint64_t send = 11, recv = 20;
	/* The two queues are flushed each in order; which comes first is free. */
	for (int i = 0; i < 6; i++) {
		struct ibv_wc wc = { 0 };
		int64_t deadline = now_ms() + 1000 * options.seconds;

		while (!ibv_poll_cq(a->cq, 1, &wc))
			check(now_ms() < deadline, "%s: %d of 6 flushed requests completed", what, i);
		uint64_t *next = wc.wr_id < 20 ? &send : &recv;
		check(wc.status == IBV_WC_WR_FLUSH_ERR, "%s: request %" PRIu64 " completed with \"%s\", expected \"%s\"",
		      what, wc.wr_id, ibv_wc_status_str(wc.status), ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR));
		check(wc.wr_id == *next, "%s: request %" PRIu64 " flushed, expected %" PRIu64, what, wc.wr_id, *next);
		++*next;
	}
	expect_state(a, IBV_QPS_ERR);
	expect_nothing(b, what, 20);
	expect_state(b, IBV_QPS_RTS);
}

static void case_bad_lkey(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	struct ibv_sge sge = sge_of(&ends[0], 0, 64);
	sge.lkey ^= 0x5a5a00;
	local_error("SEND with a bad lkey",
		    (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED },
		    ends, IBV_WC_LOC_PROT_ERR);
	close_pair(ends);
}

static void case_bad_range(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	struct ibv_sge sge = sge_of(&ends[0], MAX_MESSAGE + GUARD - 63, 64);
	local_error("WRITE from one byte beyond the region",
		    (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED,
					  .wr.rdma = { (uintptr_t)ends[1].buffer, ends[1].mr->rkey } },
		    ends, IBV_WC_LOC_PROT_ERR);
	close_pair(ends);
}

static void case_bad_opcode(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	struct ibv_sge sge = sge_of(&ends[0], 0, 64);
	local_error("a request with opcode 0x55",
		    (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = 0x55,
					  .send_flags = IBV_SEND_SIGNALED },
		    ends, IBV_WC_LOC_QP_OP_ERR);
	close_pair(ends);
}

/* A request that the responder refuses: both QPs go to ERR (IBTA 9.9.3, class C). */
static void remote_error(const char *what, enum ibv_wr_opcode opcode, uint64_t offset, uint32_t rkey_error)
{
	struct end ends[2];

	connect_pair(ends, patient);
	struct end *a = &ends[0], *b = &ends[1];
	struct ibv_sge sge = sge_of(a, 0, 64);
	post_recv(b, 64, 30);
	post_send(a, (struct ibv_send_wr){ .wr_id = 10, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
					   .send_flags = IBV_SEND_SIGNALED,
					   .wr.rdma = { (uintptr_t)b->buffer + offset, b->mr->rkey ^ rkey_error } });
	post_op(a, b, IBV_WR_SEND, 8, 11);
	expect(a, what, 10, IBV_WC_REM_ACCESS_ERR);
	expect(a, what, 11, IBV_WC_WR_FLUSH_ERR);
	expect_state(a, IBV_QPS_ERR);
	expect_state(b, IBV_QPS_ERR);
	expect(b, what, 30, IBV_WC_WR_FLUSH_ERR);
	for (size_t i = 0; i < 64; i++)
		check(b->buffer[i] == 0, "%s: byte %zu was written all the same", what, i);
	close_pair(ends);
}

static void case_bad_rkey(void)
{
	remote_error("WRITE with a bad rkey", IBV_WR_RDMA_WRITE, 0, 0x5a5a00);
	remote_error("READ with a bad rkey", IBV_WR_RDMA_READ, 0, 0x5a5a00);
	remote_error("WRITE to one byte beyond the region", IBV_WR_RDMA_WRITE, MAX_MESSAGE + GUARD - 63, 0);
	remote_error("READ from one byte beyond the region", IBV_WR_RDMA_READ, MAX_MESSAGE + GUARD - 63, 0);
}

/* A receive that is too small (IBTA 9.9.3: the responder's NAK is "invalid request"). */
static void case_too_long(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	post_recv(&ends[1], 63, 30);
	post_recv(&ends[1], 64, 31);
	post_op(&ends[0], &ends[1], IBV_WR_SEND, 64, 10);
	expect(&ends[0], "SEND longer than the receive", 10, IBV_WC_REM_INV_REQ_ERR);
	expect(&ends[1], "SEND longer than the receive", 30, IBV_WC_LOC_LEN_ERR);
	expect(&ends[1], "SEND longer than the receive", 31, IBV_WC_WR_FLUSH_ERR);
	expect_state(&ends[0], IBV_QPS_ERR);
	expect_state(&ends[1], IBV_QPS_ERR);
	close_pair(ends);
}

/* What is posted before and after a QP goes to ERR is flushed in order. */
static void case_flush(void)
{
	struct end ends[2];
	enum { N = 32 };

	connect_pair(ends, patient);
	struct end *a = &ends[0], *b = &ends[1];
	for (uint64_t i = 0; i < N; i++)
		post_recv(a, 8, 100 + i);
	to_error(a);
	for (uint64_t i = 0; i < N; i++)
		expect(a, "flush of receives", 100 + i, IBV_WC_WR_FLUSH_ERR);
	for (uint64_t i = 0; i < N; i++)
		post_op(a, b, IBV_WR_SEND, 8, 200 + i);
	for (uint64_t i = 0; i < N; i++)
		expect(a, "flush of sends posted in ERR", 200 + i, IBV_WC_WR_FLUSH_ERR);
	expect_nothing(b, "flush", 20);
	close_pair(ends);
}

/* No doorbell announces a receive: the NIC must look. */
static void case_recv_after_err(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	to_error(&ends[0]);
	expect_nothing(&ends[0], "an empty QP in ERR", 20);
	for (uint64_t round = 0; round < 3; round++) {
		for (uint64_t i = 0; i < 5; i++)
			post_recv(&ends[0], 8, 10 * round + i);
		for (uint64_t i = 0; i < 5; i++)
			expect(&ends[0], "receive posted in ERR", 10 * round + i, IBV_WC_WR_FLUSH_ERR);
	}
	close_pair(ends);
}

/* Nobody has posted a receive. */
static void case_rnr(void)
{
	struct end ends[2];

	connect_pair(ends, (struct link){ .rnr_retry = 2, .retry_cnt = 7 });
	post_op(&ends[0], &ends[1], IBV_WR_SEND, 8, 10);
	expect(&ends[0], "SEND without a receive, rnr_retry 2", 10, IBV_WC_RNR_RETRY_EXC_ERR);
	expect_state(&ends[0], IBV_QPS_ERR);
	expect_state(&ends[1], IBV_QPS_RTS);
	close_pair(ends);

	connect_pair(ends, patient);
	fill(&ends[0], 1, 3000);
	post_op(&ends[0], &ends[1], IBV_WR_SEND, 3000, 10);
	expect_nothing(&ends[0], "SEND without a receive, rnr_retry 7", 50);
	post_recv(&ends[1], 3000, 30);
	expect(&ends[1], "SEND after RNR", 30, IBV_WC_SUCCESS);
	expect(&ends[0], "SEND after RNR", 10, IBV_WC_SUCCESS);
	check_bytes(&ends[1], "SEND after RNR", 1, 3000);
	close_pair(ends);
}

/* The peer's QP is gone: the retries are used up. */
static void case_no_peer(void)
{
	struct end ends[2];

	connect_pair(ends, (struct link){ .rnr_retry = 7, .retry_cnt = 1 });
	to_error(&ends[1]);
	post_op(&ends[0], &ends[1], IBV_WR_RDMA_WRITE, 8, 10);
	expect(&ends[0], "WRITE to a QP in ERR", 10, IBV_WC_RETRY_EXC_ERR);
	expect_state(&ends[0], IBV_QPS_ERR);
	close_pair(ends);
}

static void send_one(struct end ends[2], uint64_t id, bool solicited)
{
	struct ibv_sge sge = sge_of(&ends[0], 0, 8);

	post_recv(&ends[1], 8, id);
	post_send(&ends[0], (struct ibv_send_wr){
				    .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED | (solicited ? IBV_SEND_SOLICITED : 0) });
	expect(&ends[0], "SEND", id, IBV_WC_SUCCESS);
}

static void case_events(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	struct end *b = &ends[1];
	send_one(ends, 1, false);
	check(!event_within(b, 20), "an event on a CQ that was never armed");
	expect(b, "unarmed", 1, IBV_WC_SUCCESS);
	for (uint64_t i = 2; i < 20; i++) {
		arm(b, false);
		send_one(ends, i, false);
		take_event(b);
		expect(b, "armed", i, IBV_WC_SUCCESS);
	}
	send_one(ends, 20, false);
	check(!event_within(b, 20), "a second event for one arming");
	expect(b, "armed once", 20, IBV_WC_SUCCESS);

	arm(b, true);
	send_one(ends, 21, false);
	check(!event_within(b, 20), "an event for an unsolicited completion");
	send_one(ends, 22, true);
	take_event(b);
	arm(b, false);
	arm(b, true);	/* does not weaken the first */
	send_one(ends, 23, false);
	take_event(b);
	for (uint64_t i = 21; i < 24; i++)
		expect(b, "solicited", i, IBV_WC_SUCCESS);

	arm(b, true);
	to_error(b);
	post_recv(b, 8, 24);
	take_event(b);	/* an error counts as solicited */
	expect(b, "error", 24, IBV_WC_WR_FLUSH_ERR);
	close_pair(ends);

	/* An event that nobody reads must not keep the CQ from going. */
	connect_pair(ends, patient);
	arm(&ends[1], false);
	send_one(ends, 30, false);
	check(event_within(&ends[1], 1000 * options.seconds), "no event to leave unread");
	close_pair(ends);
}

static void on_alarm(int signal)
{
	static const char text[] = "FAILED: a verb does not return\n";

	(void)signal;
	(void)!write(2, text, sizeof text - 1);
	_exit(1);
}

static const struct test {
	const char *name;
	void (*run)(void);
	const char *checked;
} tests[] = {
	{ "bytes", case_bytes, "every byte of SEND, WRITE, READ from 0 to 2^24+1 bytes, in pieces and inline" },
	{ "events", case_events, "one event per arming, solicited events, CQs with unread events" },
	{ "bad-lkey", case_bad_lkey, "local protection error, flush in order, QP in ERR" },
	{ "bad-range", case_bad_range, "local protection error one byte beyond the region" },
	{ "bad-opcode", case_bad_opcode, "local QP operation error" },
	{ "bad-rkey", case_bad_rkey, "remote access error on both sides, nothing written" },
	{ "too-long", case_too_long, "local length error and remote invalid request" },
	{ "flush", case_flush, "receives and sends of a QP in ERR are flushed in order" },
	{ "recv-after-err", case_recv_after_err, "receives posted to a QP in ERR are found without a doorbell" },
	{ "rnr", case_rnr, "RNR retries are counted, or endless" },
	{ "no-peer", case_no_peer, "transport retries are used up" },
};
enum { TESTS = sizeof tests / sizeof *tests };

static void usage(void)
{
	fprintf(stderr, "usage: verbs_check [-g GID_INDEX] [-m MTU] [-t SECONDS] DEVICE DEVICE [CASE...]\ncases:\n");
	for (int i = 0; i < TESTS; i++)
		fprintf(stderr, "  %-16s%s\n", tests[i].name, tests[i].checked);
	exit(2);
}

static void run(const struct test *test)
{
	int64_t start = now_ms();

	alarm(120);
	test->run();
	alarm(0);
	printf("ok %s: %s (%" PRId64 " ms)\n", test->name, test->checked, now_ms() - start);
	fflush(stdout);
}

static const struct test *find(const char *name)
{
	for (int i = 0; i < TESTS; i++)
		if (!strcmp(tests[i].name, name))
			return &tests[i];
	fprintf(stderr, "no case %s\n", name);
	usage();
	return NULL;
}

int main(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "g:m:t:")) != -1) {
		switch (option) {
		case 'g': options.gid_index = atoi(optarg); break;
		case 'm': options.mtu = atoi(optarg); break;
		case 't': options.seconds = atoi(optarg); break;
		default: usage();
		}
	}
	if (argc - optind < 2)
		usage();
	options.device[0] = argv[optind];
	options.device[1] = argv[optind + 1];
	signal(SIGALRM, on_alarm);
	if (argc - optind == 2)
		for (int i = 0; i < TESTS; i++)
			run(&tests[i]);
	for (int i = optind + 2; i < argc; i++)
		run(find(argv[i]));
	return 0;
}
