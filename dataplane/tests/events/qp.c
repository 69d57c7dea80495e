/* Posting, modifying and asking. */
#include "probe.h"

/* What ibv_post_send and ibv_post_recv refuse at once: with which errno, and at which request. */
/* Requests built by ibv_wr_*, which need no IBV_SEND_INLINE for inline data. */
void builder_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	uint8_t bytes[64];

	connect_pair(ends, patient);
	join(ends, &(struct how){ .builder = true });
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = pattern(1, i);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a->qp);
	blank(b);
	post_recv(b, 100, 7);
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	qp->wr_id = 1;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, bytes, 33);
	check(ibv_wr_complete(qp) == 0, "an inline SEND");
	memset(bytes, 0, 33);
	expect(a, "an inline SEND", 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(b, "an inline SEND", 7, IBV_WC_SUCCESS);
	check(wc.byte_len == 33, "%u bytes of 33 came", wc.byte_len);
	check_bytes(b, "an inline SEND", 1, 33);

	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = pattern(2, i);
	blank(b);
	ibv_wr_start(qp);
	qp->wr_id = 2;
	ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->buffer);
	ibv_wr_set_inline_data(qp, bytes, 64);
	check(ibv_wr_complete(qp) == 0, "an inline WRITE");
	expect(a, "an inline WRITE", 2, IBV_WC_SUCCESS);
	check_bytes(b, "an inline WRITE", 2, 64);

	/* Entries and none. */
	struct ibv_sge list[3] = { sge_of(a, 0, 10), sge_of(a, 10, 20), sge_of(a, 30, 5) };
	fill(a, 3, 35);
	blank(b);
	ibv_wr_start(qp);
	qp->wr_id = 3;
	ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->buffer);
	ibv_wr_set_sge_list(qp, 3, list);
	qp->wr_id = 4;
	ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->buffer);
	check(ibv_wr_complete(qp) == 0, "three entries, and none");
	expect(a, "three entries", 3, IBV_WC_SUCCESS);
	expect(a, "no entries", 4, IBV_WC_SUCCESS);
	check_bytes(b, "three entries", 3, 35);

	/* Nothing of a batch is posted when one is wrong. */
	ibv_wr_start(qp);
	qp->wr_id = 5;
	ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->buffer);
	ibv_wr_set_inline_data(qp, bytes, 65);
	check(ibv_wr_complete(qp) == ENOSPC, "65 bytes inline");
	expect_nothing(a, "65 bytes inline", 5);
	close_pair(ends);
}

void post_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how usual = { 0 }, in_init = { .stop = 1 + IBV_QPS_INIT };
	struct ibv_send_wr wr[4], *bad;
	struct ibv_sge sge[5];
	struct ibv_recv_wr recv[2], *bad_recv;

	connect_pair(ends, patient);
	join(ends, &usual);
	for (int i = 0; i < 5; i++)
		sge[i] = sge_of(a, 0, 8);
	for (int i = 0; i < 4; i++)
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < 3 ? &wr[i + 1] : NULL, .sg_list = sge, .num_sge = 1,
					      .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					      .wr.rdma = { (uintptr_t)b->buffer, b->mr->rkey } };
	/* Too many entries, in the middle of a list: what is before it is posted. */
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	check(ibv_query_qp(a->qp, &attr, IBV_QP_CAP, &init) == 0, "ibv_query_qp");
	check(init.cap.max_send_sge == 4 && init.cap.max_recv_sge == 4 && init.cap.max_inline_data == 64 &&
		      init.cap.max_send_wr >= QUEUE,
	      "cap: %u %u %u %u", init.cap.max_send_sge, init.cap.max_recv_sge, init.cap.max_inline_data,
	      init.cap.max_send_wr);
	wr[2].num_sge = 5;
	check(ibv_post_send(a->qp, wr, &bad) == EINVAL && bad == &wr[2], "five entries");
	expect(a, "before a bad request", 0, IBV_WC_SUCCESS);
	expect(a, "before a bad request", 1, IBV_WC_SUCCESS);
	expect_nothing(a, "a bad request", 5);
	/* Inline data beyond what was asked for. */
	sge[0].length = 65;
	wr[2].num_sge = 1;
	wr[2].send_flags |= IBV_SEND_INLINE;
	check(ibv_post_send(a->qp, &wr[2], &bad) == EINVAL && bad == &wr[2], "65 bytes inline");
	sge[0].length = 64;
	check(ibv_post_send(a->qp, &wr[2], &bad) == 0, "64 bytes inline");
	expect(a, "inline", 2, IBV_WC_SUCCESS);
	expect(a, "inline", 3, IBV_WC_SUCCESS);
	/* A full queue: nobody answers, so nothing leaves it. */
	check(modify(b, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0, "to RESET");
	wr[0].next = NULL;
	unsigned room = init.cap.max_send_wr;
	for (unsigned i = 0; i < room; i++)
		check(ibv_post_send(a->qp, wr, &bad) == 0, "request %u of %u", i, room);
	check(ibv_post_send(a->qp, wr, &bad) == ENOMEM && bad == &wr[0], "one request too many");
	to_error(a);
	for (unsigned i = 0; i < room; i++)
		expect(a, "a full queue", 0, IBV_WC_WR_FLUSH_ERR);
	expect_nothing(a, "a full queue", 5);

	/* Receives: too many entries, a full queue, RESET. */
	join(ends, &in_init);
	for (int i = 0; i < 2; i++)
		recv[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i ? NULL : &recv[1], .sg_list = sge, .num_sge = 1 };
	recv[1].num_sge = 5;
	check(ibv_post_recv(a->qp, recv, &bad_recv) == EINVAL && bad_recv == &recv[1], "a receive of five entries");
	recv[0].next = NULL;
	unsigned posted = 1;
	int error;
	while ((error = ibv_post_recv(a->qp, recv, &bad_recv)) == 0)
		check(++posted <= init.cap.max_recv_wr, "a receive queue without end");
	check(error == ENOMEM && bad_recv == recv && posted == init.cap.max_recv_wr, "%u receives of %u: %s", posted,
	      init.cap.max_recv_wr, strerror(error));
	to_error(a);
	for (unsigned i = 0; i < posted; i++)
		expect(a, "a full receive queue", 0, IBV_WC_WR_FLUSH_ERR);
	renew(a, &usual);
	check(ibv_post_recv(a->qp, recv, &bad_recv) == EINVAL, "a receive in RESET");

	/* Before RTS nothing is posted, and nothing of it carried out later. */
	for (int state = IBV_QPS_RESET; state < IBV_QPS_RTS; state++) {
		if (state == IBV_QPS_RESET)
			renew(a, &usual);
		else
			join(ends, &(struct how){ .stop = 1 + state });
		wr[0].wr_id = 70;
		check(ibv_post_send(a->qp, wr, &bad) == EINVAL, "a request in state %d", state);
	}
	check(modify(a,
		     (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
					   .sq_psn = a->psn, .max_rd_atomic = 4 },
		     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC) == 0,
	      "RTR to RTS");
	expect_nothing(a, "posted before RTS", 20);
	wr[0].wr_id = 71;
	check(ibv_post_send(a->qp, wr, &bad) == 0, "a request in RTS");
	expect(a, "after a refusal", 71, IBV_WC_SUCCESS);
	/* In ERR it is flushed, also where the QP was never in RTS. */
	join(ends, &in_init);
	to_error(a);
	check(ibv_post_send(a->qp, wr, &bad) == 0, "a request in ERR");
	expect(a, "posted in ERR", 71, IBV_WC_WR_FLUSH_ERR);
	check(modify(a, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0, "to RESET");
	check(ibv_post_send(a->qp, wr, &bad) == EINVAL, "a request in RESET again");
	join(ends, &(struct how){ .stop = 1 + IBV_QPS_RTR });
	check(modify(b,
		     (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
					   .sq_psn = b->psn, .max_rd_atomic = 4 },
		     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC) == 0,
	      "RTR to RTS");
	wr[1] = (struct ibv_send_wr){ .wr_id = 72, .sg_list = &sge[4], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				      .send_flags = IBV_SEND_SIGNALED,
				      .wr.rdma = { (uintptr_t)a->buffer, a->mr->rkey ^ 0x100 } };
	sge[4] = sge_of(b, 0, 8);
	check(ibv_post_send(b->qp, &wr[1], &bad) == 0, "a stray WRITE");
	expect(b, "stray", 72, IBV_WC_REM_ACCESS_ERR);
	check(ibv_post_send(a->qp, wr, &bad) == 0, "a request in ERR, from RTR");
	expect(a, "posted in ERR, from RTR", 71, IBV_WC_WR_FLUSH_ERR);
	expect_event(a, "stray", IBV_EVENT_COMM_EST, a->qp);
	expect_event(a, "stray", IBV_EVENT_QP_ACCESS_ERR, a->qp);
	close_pair(ends);
}

/* What modify_qp refuses, beside what the table of transitions does. */
void modify_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0];
	struct how usual = { 0 }, in_init = { .stop = 1 + IBV_QPS_INIT };
	struct ibv_device_attr device;
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC;
	union ibv_gid gid;

	connect_pair(ends, patient);
	check(ibv_query_device(a->context, &device) == 0, "ibv_query_device");
	check(ibv_query_gid(ends[1].context, 1, 0, &gid) == 0, "ibv_query_gid");
	renew(a, &usual);
#define REFUSED(errno_, mask, ...)                                                                                   \
	do {                                                                                                         \
		int error = modify(a, (struct ibv_qp_attr){ __VA_ARGS__ }, mask);                                    \
		check(error == errno_, "line %d: %s, expected %s", __LINE__, strerror(error), strerror(errno_));     \
	} while (0)
	REFUSED(EINVAL, init & ~IBV_QP_PORT, .qp_state = IBV_QPS_INIT, .port_num = 1);
	REFUSED(EINVAL, init | IBV_QP_QKEY, .qp_state = IBV_QPS_INIT, .port_num = 1);
	REFUSED(EINVAL, init, .qp_state = IBV_QPS_INIT, .port_num = 0);
	REFUSED(EINVAL, init, .qp_state = IBV_QPS_INIT, .port_num = 2);
	REFUSED(EINVAL, init, .qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = 1);
	REFUSED(EINVAL, IBV_QP_STATE, .qp_state = IBV_QPS_RTS);
	REFUSED(EINVAL, IBV_QP_STATE, .qp_state = IBV_QPS_ERR);
	REFUSED(EINVAL, IBV_QP_STATE, .qp_state = IBV_QPS_UNKNOWN);
	check(query(a).qp_state == IBV_QPS_RESET, "the state after refusals");
	/* As with Linux: rights that there are not, and bits of PSNs beyond the 24th, mean nothing. */
	check(modify(a,
		     (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
					   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | 1 << 10 },
		     init) == 0,
	      "rights that there are not");
	check(query(a).qp_access_flags == IBV_ACCESS_REMOTE_WRITE, "rights: %#x", query(a).qp_access_flags);
	join(ends, &in_init);
	struct ibv_qp_attr good = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = ends[1].qp->qp_num,
				    .max_dest_rd_atomic = device.max_qp_rd_atom, .min_rnr_timer = 1, .rq_psn = 0x1000005,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } } };
	struct ibv_qp_attr bad;
#define REFUSED_BUT(errno_, mask, change)                                                                            \
	do {                                                                                                         \
		bad = good;                                                                                          \
		change;                                                                                              \
		int error = modify(a, bad, mask);                                                                    \
		check(error == errno_, "line %d: %s, expected %s", __LINE__, strerror(error), strerror(errno_));     \
	} while (0)
	REFUSED_BUT(EINVAL, rtr, bad.max_dest_rd_atomic = device.max_qp_rd_atom + 1);
	REFUSED_BUT(EINVAL, rtr, bad.path_mtu = 0);
	REFUSED_BUT(EINVAL, rtr, bad.path_mtu = 6);
	REFUSED_BUT(EINVAL, rtr, bad.min_rnr_timer = 32);
	REFUSED_BUT(EINVAL, rtr, bad.dest_qp_num = 1 << 24);
	REFUSED_BUT(EINVAL, rtr, bad.ah_attr.port_num = 2);
	REFUSED_BUT(EINVAL, rtr, bad.ah_attr.is_global = 0);
	REFUSED_BUT(EINVAL, rtr, bad.ah_attr.grh.sgid_index = 200);
	REFUSED_BUT(EOPNOTSUPP, rtr | IBV_QP_ALT_PATH, bad.alt_port_num = 1);
	check(query(a).qp_state == IBV_QPS_INIT, "the state after refusals");
	check(modify(a, good, rtr) == 0, "to RTR");
	check(query(a).rq_psn == 5, "rq_psn of 25 bits: %#x", query(a).rq_psn);
	good = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = device.max_qp_init_rd_atom, .timeout = 31,
				     .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 0xff000007 };
	REFUSED_BUT(EINVAL, rts, bad.max_rd_atomic = device.max_qp_init_rd_atom + 1);
	REFUSED_BUT(EINVAL, rts, bad.timeout = 32);
	REFUSED_BUT(EINVAL, rts, bad.retry_cnt = 8);
	REFUSED_BUT(EINVAL, rts, bad.rnr_retry = 8);
	REFUSED_BUT(EINVAL, rts | IBV_QP_CUR_STATE, bad.cur_qp_state = IBV_QPS_RTS);
	REFUSED_BUT(EINVAL, rts | IBV_QP_PATH_MIG_STATE, bad.path_mig_state = IBV_MIG_ARMED);
	bad = good;
	bad.cur_qp_state = IBV_QPS_RTR;
	bad.path_mig_state = IBV_MIG_MIGRATED;
	check(modify(a, bad, rts | IBV_QP_CUR_STATE | IBV_QP_PATH_MIG_STATE) == 0, "to RTS");
	check(query(a).sq_psn == 7, "sq_psn of 32 bits: %#x", query(a).sq_psn);
	close_pair(ends);
}

/* In every state query_qp gives what was set. */
void query_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how in_init = { .stop = 1 + IBV_QPS_INIT }, in_rtr = { .stop = 1 + IBV_QPS_RTR }, usual = { 0 };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr q;

	connect_pair(ends, patient);
	a->psn = 0x123456;
	renew(a, &usual);
	q = query(a);
	check(q.qp_state == IBV_QPS_RESET && q.cur_qp_state == IBV_QPS_RESET, "RESET: state");
	check(ibv_query_qp(a->qp, &q, 0, &init) == 0, "ibv_query_qp");
	check(init.send_cq == a->cq && init.recv_cq == a->cq && init.qp_type == IBV_QPT_RC && !init.sq_sig_all &&
		      init.qp_context == a && init.srq == NULL,
	      "init attributes");
	check(init.cap.max_send_sge == 4 && init.cap.max_inline_data == 64 && q.cap.max_send_wr == init.cap.max_send_wr,
	      "cap");
	join(ends, &in_init);
	q = query(a);
	check(q.qp_state == IBV_QPS_INIT && q.port_num == 1 && q.pkey_index == 0 &&
		      q.qp_access_flags == (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
	      "INIT: %u %u %u %x", q.qp_state, q.port_num, q.pkey_index, q.qp_access_flags);
	join(ends, &in_rtr);
	q = query(a);
	union ibv_gid gid;
	check(ibv_query_gid(b->context, 1, 0, &gid) == 0, "ibv_query_gid");
	check(q.qp_state == IBV_QPS_RTR && q.path_mtu == IBV_MTU_1024 && q.dest_qp_num == b->qp->qp_num &&
		      q.rq_psn == b->psn && q.max_dest_rd_atomic == 4 && q.min_rnr_timer == 1,
	      "RTR");
	check(q.ah_attr.is_global && q.ah_attr.port_num == 1 && !memcmp(&q.ah_attr.grh.dgid, &gid, sizeof gid) &&
		      q.ah_attr.grh.hop_limit == 64,
	      "RTR: address vector");
	join(ends, &usual);
	q = query(a);
	check(q.qp_state == IBV_QPS_RTS && q.timeout == 14 && q.retry_cnt == 7 && q.rnr_retry == 7 &&
		      q.sq_psn == a->psn && q.max_rd_atomic == 4 && !q.sq_draining,
	      "RTS");
	post_op(a, b, IBV_WR_RDMA_WRITE, 3000, 1);
	expect(a, "query", 1, IBV_WC_SUCCESS);
	check(query(a).sq_psn == a->psn + 3 && query(b).rq_psn == a->psn + 3, "PSNs after three packets");
	/* Draining: the peer answers no more. */
	join(ends, &(struct how){ .timeout = 20 });
	check(modify(b, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0, "to RESET");
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 2);
	int64_t deadline = now_ms() + 1000 * options.seconds;
	while (query(a).sq_psn == a->psn)
		check(now_ms() < deadline, "the WRITE is not sent");
	check(modify(a, (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD }, IBV_QP_STATE) == 0, "to SQD");
	q = query(a);
	check(q.qp_state == IBV_QPS_SQD && q.sq_draining, "SQD: draining");
	check(modify(a, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_STATE) == EINVAL, "SQD to RTS while draining");
	to_error(a);
	expect(a, "query", 2, IBV_WC_WR_FLUSH_ERR);
	check(query(a).qp_state == IBV_QPS_ERR && !query(a).sq_draining, "ERR");
	close_pair(ends);
}
