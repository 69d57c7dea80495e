/* Completion queues: resized, overflowing, extended. */
#include "probe.h"

static void poll_one(struct ibv_cq *cq, const char *what, struct ibv_wc *wc)
{
	int64_t deadline = now_ms() + 1000 * options.seconds;
	int n;

	while ((n = ibv_poll_cq(cq, 1, wc)) == 0)
		check(now_ms() < deadline, "%s: no completion", what);
	check(n == 1, "%s: ibv_poll_cq gives %d", what, n);
}

/* What is not polled stays, in order; a CQ cannot become smaller than that; who armed it stays armed. */
void resize_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct ibv_device_attr device;

	connect_pair(ends, patient);
	check(ibv_query_device(a->context, &device) == 0, "ibv_query_device");
	for (uint64_t i = 0; i < 20; i++)
		post_op(a, b, IBV_WR_RDMA_WRITE, 8, i);
	check(ibv_resize_cq(a->cq, 0) == EINVAL, "a CQ of no entries");
	check(ibv_resize_cq(a->cq, device.max_cqe + 1) == EINVAL, "a CQ larger than the device has");
	/* When all 20 have completed. */
	int64_t deadline = now_ms() + 1000 * options.seconds;
	while (ibv_resize_cq(a->cq, 19) != EINVAL)
		check(now_ms() < deadline, "20 completions fit 19 entries");
	int sizes[] = { 20, 1000, 20, 4000, 63 };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int error = ibv_resize_cq(a->cq, sizes[i]);

		check(!error, "ibv_resize_cq to %d: %s", sizes[i], strerror(error));
		check(a->cq->cqe >= sizes[i], "resized to %d, got %d", sizes[i], a->cq->cqe);
	}
	for (uint64_t i = 0; i < 20; i++)
		expect(a, "after resizing", i, IBV_WC_SUCCESS);
	expect_nothing(a, "after resizing", 20);
	/* Armed before, fired after. */
	arm(a, false);
	check(ibv_resize_cq(a->cq, 300) == 0, "ibv_resize_cq while armed");
	check(!event_within(a, 20), "an event for nothing");
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 99);
	take_event(a);
	expect(a, "armed before it was resized", 99, IBV_WC_SUCCESS);
	close_pair(ends);
}

struct pump {
	struct end *a, *b;
	uint64_t messages;
	_Atomic uint64_t polled;	/* the poster stays within sight: the CQ is finite */
};

static void *pump(void *argument)
{
	struct pump *p = argument;

	for (uint64_t i = 0; i < p->messages; i++) {
		struct ibv_sge sge = sge_of(p->a, 0, 64);
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED,
					  .wr.rdma = { (uintptr_t)p->b->buffer, p->b->mr->rkey } };
		int64_t deadline = now_ms() + 1000 * options.seconds;
		int error;

		while (i - p->polled >= QUEUE)
			check(now_ms() < deadline, "the poller has stopped");
		while ((error = try_send(p->a, &wr)) == ENOMEM)
			check(now_ms() < deadline, "the send queue stays full");
		check(!error, "ibv_post_send: %s", strerror(error));
	}
	return NULL;
}

static void *resize_all_the_time(void *argument)
{
	struct end *end = argument;
	static const int sizes[] = { 4 * QUEUE, 1000, 2 * QUEUE, 5000 };

	for (int i = 0; i < 400; i++) {
		int error = ibv_resize_cq(end->cq, sizes[i % 4]);

		check(!error, "ibv_resize_cq to %d: %s", sizes[i % 4], strerror(error));
	}
	return NULL;
}

/* One thread posts, one resizes, one polls: nothing is lost, comes twice or out of order. */
void resize_traffic_case(void)
{
	struct end ends[2];
	pthread_t threads[2];
	struct pump p = { .a = &ends[0], .b = &ends[1], .messages = 20000 };
	struct ibv_wc wc;

	connect_pair(ends, patient);
	pthread_create(&threads[0], NULL, pump, &p);
	pthread_create(&threads[1], NULL, resize_all_the_time, &ends[0]);
	for (uint64_t i = 0; i < p.messages; i++) {
		poll_one(ends[0].cq, "resized under traffic", &wc);
		check(wc.status == IBV_WC_SUCCESS && wc.wr_id == i, "completion %" PRIu64 " of %s, expected %" PRIu64,
		      wc.wr_id, ibv_wc_status_str(wc.status), i);
		p.polled = i + 1;
	}
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	expect_nothing(&ends[0], "resized under traffic", 20);
	close_pair(ends);
}

/* Whoever flushes when the daemon is dead finds the queue where it is now. */
void resize_death_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];

	connect_pair(ends, patient);
	join(ends, &(struct how){ .timeout = 20 });
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 1);
	check(ibv_resize_cq(a->cq, 300) == 0, "ibv_resize_cq");
	expect(a, "before the end", 1, IBV_WC_SUCCESS);
	check(modify(b, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0, "to RESET");
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 2);
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 3);
	printf("posted\n");
	expect(a, "the end", 2, IBV_WC_WR_FLUSH_ERR);
	expect(a, "the end", 3, IBV_WC_WR_FLUSH_ERR);
	expect_nothing(a, "the end", 20);
	check(take_async(a, "the end").event_type == IBV_EVENT_DEVICE_FATAL, "no DEVICE_FATAL");
}

/* CQ_ERR of the CQ, then QP_FATAL of its QP, once each; then both can be destroyed. */
void overflow_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how small = { .cqe = 7 };

	connect_pair(ends, patient);
	join(ends, &small);
	for (uint64_t i = 0; i < 20; i++)
		post_op(a, b, IBV_WR_RDMA_WRITE, 8, i);
	expect_event(a, "overflow", IBV_EVENT_CQ_ERR, a->cq);
	expect_event(a, "overflow", IBV_EVENT_QP_FATAL, a->qp);
	expect_state(a, IBV_QPS_ERR);
	/* What fitted is there. */
	for (uint64_t i = 0; i < 7; i++)
		expect(a, "before the overflow", i, IBV_WC_SUCCESS);
	expect_no_event(a, "overflow");
	check(ibv_destroy_cq(a->cq) == EBUSY, "a CQ in use was destroyed");
	close_pair(ends);
}

static struct ibv_cq_ex *extended(struct end *end, uint32_t cqe, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe,
		.cq_context = end,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
			    IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SL,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = flags,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(end->context, &attr);

	check(cq != NULL, "ibv_create_cq_ex: %s", strerror(errno));
	return cq;
}

/* The QP of `end` completes to `cq` from now on. */
static void use_cq(struct end *end, struct ibv_cq_ex *cq)
{
	check(ibv_destroy_qp(end->qp) == 0 && ibv_destroy_cq(end->cq) == 0, "destroying the old CQ");
	end->qp = NULL;
	end->cq = ibv_cq_ex_to_cq(cq);
}

/* Completions that find no room are lost, and nothing else happens. */
void overrun_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how usual = { 0 };

	connect_pair(ends, patient);
	use_cq(a, extended(a, 7, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN));
	join(ends, &usual);
	for (uint64_t i = 0; i < 20; i++)
		post_op(a, b, IBV_WR_RDMA_WRITE, 8, i);
	/* All of them have completed, with room or without, when what the peer says afterwards is here: the acknowledgements
	 * came before it. */
	post_recv(b, 64, 1);
	post_op(a, b, IBV_WR_RDMA_WRITE_WITH_IMM, 8, 20);
	expect(b, "ignored overrun", 1, IBV_WC_SUCCESS);
	b->buffer[0] = 0xa5;
	post_op(b, a, IBV_WR_RDMA_WRITE, 1, 2);
	expect(b, "ignored overrun", 2, IBV_WC_SUCCESS);
	check(a->buffer[0] == 0xa5, "the peer's WRITE");
	for (uint64_t i = 0; i < 7; i++)
		expect(a, "ignored overrun", i, IBV_WC_SUCCESS);
	expect_nothing(a, "ignored overrun", 20);
	expect_no_event(a, "ignored overrun");
	expect_state(a, IBV_QPS_RTS);
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 21);
	expect(a, "after an ignored overrun", 21, IBV_WC_SUCCESS);
	close_pair(ends);
}

/* An extended CQ tells the same as a plain one; it can be resized; flags that nobody has are refused. */
void extended_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how usual = { 0 };
	struct ibv_poll_cq_attr none = { 0 };

	connect_pair(ends, patient);
	struct ibv_cq_ex *cq = extended(b, 15, 0);
	use_cq(b, cq);
	join(ends, &usual);
	check(ibv_start_poll(cq, &none) == ENOENT, "an empty extended CQ");
	for (uint64_t i = 0; i < 3; i++) {
		post_recv(b, 64, i);
		post_op(a, b, i == 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, 10 + i, i);
	}
	for (uint64_t i = 0; i < 3; i++)
		expect(a, "extended CQ", i, IBV_WC_SUCCESS);
	check(ibv_resize_cq(b->cq, 100) == 0, "resizing an extended CQ");
	int64_t deadline = now_ms() + 1000 * options.seconds;
	while (ibv_start_poll(cq, &none) == ENOENT)
		check(now_ms() < deadline, "extended CQ: no completion");
	for (uint64_t i = 0; i < 3; i++) {
		check(cq->wr_id == i && cq->status == IBV_WC_SUCCESS, "extended CQ: request %" PRIu64, cq->wr_id);
		check(ibv_wc_read_opcode(cq) == IBV_WC_RECV, "extended CQ: opcode");
		check(ibv_wc_read_byte_len(cq) == 10 + i, "extended CQ: length %u", ibv_wc_read_byte_len(cq));
		check(ibv_wc_read_qp_num(cq) == b->qp->qp_num, "extended CQ: QP");
		unsigned flags = ibv_wc_read_wc_flags(cq);
		check(flags == (i == 1 ? IBV_WC_WITH_IMM : 0), "extended CQ: flags %x", flags);
		if (i == 1)
			check(ibv_wc_read_imm_data(cq) == htobe32(0x01020304), "extended CQ: immediate");
		if (i < 2)
			while (ibv_next_poll(cq) == ENOENT)
				check(now_ms() < deadline, "extended CQ: no further completion");
	}
	ibv_end_poll(cq);

	struct ibv_cq_init_attr_ex attr = { .cqe = 7, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	check(!ibv_create_cq_ex(b->context, &attr) && errno == EOPNOTSUPP, "a CQ with time stamps: %s", strerror(errno));
	struct ibv_device_attr device;
	check(ibv_query_device(b->context, &device) == 0, "ibv_query_device");
	check(!ibv_create_cq(b->context, device.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL, "a CQ too large");
	check(!ibv_create_cq(b->context, 0, NULL, NULL, 0) && errno == EINVAL, "a CQ of no entries");
	check(!ibv_create_cq(b->context, 7, NULL, NULL, b->context->num_comp_vectors) && errno == EINVAL,
	      "a completion vector that does not exist");
	/* Whole numbers of entries that do not round to a power of two are given with room to spare. */
	struct ibv_cq *large = ibv_create_cq(b->context, device.max_cqe, NULL, NULL, 0);
	check(large && large->cqe == device.max_cqe, "the largest CQ");
	check(ibv_destroy_cq(large) == 0, "ibv_destroy_cq");
	close_pair(ends);
}
