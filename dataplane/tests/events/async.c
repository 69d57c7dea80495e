/* Asynchronous events: each comes once, in order, names its object, and is acknowledged before that goes. */
#include "probe.h"

#include <time.h>

static void to_state(struct end *end, enum ibv_qp_state state, int mask)
{
	int error = modify(end, (struct ibv_qp_attr){ .qp_state = state, .en_sqd_async_notify = 1 }, IBV_QP_STATE | mask);

	check(!error, "%s to state %d: %s", end->name, state, strerror(error));
}

/* Events of QPs. */
void event_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how usual = { 0 }, to_rtr = { .stop = 1 + IBV_QPS_RTR }, no_rights = { .access = NO_ACCESS };

	/* The first message in RTR establishes the connection. */
	connect_pair(ends, patient);
	join(ends, &to_rtr);
	int error = modify(a,
			   (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
						 .sq_psn = a->psn, .max_rd_atomic = 4 },
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC);
	check(!error, "to RTS: %s", strerror(error));
	for (uint64_t i = 0; i < 3; i++) {
		post_op(a, b, IBV_WR_RDMA_WRITE, 8, i);
		expect(a, "COMM_EST", i, IBV_WC_SUCCESS);
	}
	expect_event(b, "COMM_EST", IBV_EVENT_COMM_EST, b->qp);
	expect_no_event(b, "COMM_EST");

	/* SQ_DRAINED, when it is wanted. */
	join(ends, &usual);
	to_state(a, IBV_QPS_SQD, 0);
	to_state(a, IBV_QPS_RTS, 0);
	expect_no_event(a, "SQD without notification");
	to_state(a, IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY);
	expect_event(a, "SQD", IBV_EVENT_SQ_DRAINED, a->qp);
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 7);
	expect_nothing(a, "posted in SQD", 20);
	to_state(a, IBV_QPS_RTS, 0);
	expect(a, "posted in SQD", 7, IBV_WC_SUCCESS);
	expect_no_event(a, "SQD");

	/* What the responder refuses it tells its program, too, and once, whatever comes behind. */
	struct ibv_sge sge = sge_of(a, 0, 8);
	struct ibv_send_wr stray = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				     .wr.rdma = { (uintptr_t)b->buffer, b->mr->rkey ^ 0x100 } };
	post_send(a, stray);
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 2);
	expect(a, "QP_ACCESS_ERR", 1, IBV_WC_REM_ACCESS_ERR);
	expect(a, "QP_ACCESS_ERR", 2, IBV_WC_WR_FLUSH_ERR);
	expect_event(b, "QP_ACCESS_ERR", IBV_EVENT_QP_ACCESS_ERR, b->qp);
	join(ends, &no_rights);
	post_op(a, b, IBV_WR_RDMA_READ, 8, 3);
	expect(a, "QP_REQ_ERR", 3, IBV_WC_REM_INV_REQ_ERR);
	expect_event(b, "QP_REQ_ERR", IBV_EVENT_QP_REQ_ERR, b->qp);
	expect_no_event(a, "errors");
	expect_no_event(b, "errors");
	close_pair(ends);
}

static _Atomic int destroyed;

static void *destroy(void *argument)
{
	struct end *end = argument;

	check(ibv_destroy_qp(end->qp) == 0, "ibv_destroy_qp");
	destroyed = 1;
	return NULL;
}

/* A QP stays until the events that were read are acknowledged; those that nobody read go with it. */
void acknowledge_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0];
	struct how usual = { 0 };
	pthread_t thread;

	connect_pair(ends, patient);
	for (int i = 0; i < 3; i++) {
		to_state(a, IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY);
		to_state(a, IBV_QPS_RTS, 0);
	}
	struct ibv_async_event event = take_async(a, "acknowledged late");
	struct ibv_async_event second = take_async(a, "acknowledged late");
	pthread_create(&thread, NULL, destroy, a);
	/* It waits: the daemon has the QP no more, and the call has still not returned. */
	struct timespec wait = { 0, 20 * 1000 * 1000 };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int64_t deadline = now_ms() + 1000 * options.seconds;
	while (ibv_query_qp(a->qp, &attr, IBV_QP_STATE, &init) == 0)
		check(now_ms() < deadline, "the QP is not destroyed");
	nanosleep(&wait, NULL);
	check(!destroyed, "a QP was destroyed with two events not acknowledged");
	ibv_ack_async_event(&event);
	nanosleep(&wait, NULL);
	check(!destroyed, "a QP was destroyed with an event not acknowledged");
	ibv_ack_async_event(&second);
	pthread_join(thread, NULL);
	a->qp = NULL;
	expect_no_event(a, "of a QP that is gone");
	/* The same for a CQ whose error nobody read. */
	struct how small = { .cqe = 3 };
	join(ends, &small);
	for (uint64_t i = 0; i < 10; i++)
		post_op(a, &ends[1], IBV_WR_RDMA_WRITE, 8, i);
	expect_state(a, IBV_QPS_ERR);
	check(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_cq(a->cq) == 0, "destroying QP and CQ");
	a->qp = NULL;
	expect_no_event(a, "of a CQ that is gone");
	a->cq = ibv_create_cq(a->context, 63, a, a->channel, 0);
	check(a->cq != NULL, "ibv_create_cq");
	join(ends, &usual);
	post_op(a, &ends[1], IBV_WR_RDMA_WRITE, 8, 9);
	expect(a, "afterwards", 9, IBV_WC_SUCCESS);
	close_pair(ends);
}

static enum ibv_port_state port_state(struct end *end)
{
	struct ibv_port_attr port;

	check(ibv_query_port(end->context, 1, &port) == 0, "ibv_query_port on %s", end->name);
	return port.state;
}

/* Somebody else takes the link down and up. */
void link_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct how patient_one = { .timeout = 20, .retry_cnt = 7 };

	connect_pair(ends, patient);
	join(ends, &patient_one);
	check(port_state(a) == IBV_PORT_ACTIVE && port_state(b) == IBV_PORT_ACTIVE, "ports are not active at first");
	printf("ready\n");
	for (int i = 0; i < 2; i++) {
		expect_event(&ends[i], "link down", IBV_EVENT_PORT_ERR, NULL);
		check(port_state(&ends[i]) == IBV_PORT_DOWN, "link down: the port on %s is not", ends[i].name);
	}
	post_op(a, b, IBV_WR_RDMA_WRITE, 5000, 1);
	expect_nothing(a, "link down", 50);
	expect_state(a, IBV_QPS_RTS);
	printf("down\n");
	for (int i = 0; i < 2; i++) {
		expect_event(&ends[i], "link up", IBV_EVENT_PORT_ACTIVE, NULL);
		check(port_state(&ends[i]) == IBV_PORT_ACTIVE, "link up: the port on %s is not", ends[i].name);
	}
	/* Sent again. */
	expect(a, "link up", 1, IBV_WC_SUCCESS);
	for (int i = 0; i < 2; i++)
		expect_no_event(&ends[i], "link");
	close_pair(ends);
}
