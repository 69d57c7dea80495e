/* Completion queues, asynchronous events, states and faults as a program meets them. Names of cases are the arguments. */
#include "probe.h"

#include <fcntl.h>

struct options options = { .device = { "roce0", "roce1" }, .gid_index = 0, .mtu = 1024, .seconds = 30 };

int modify(struct end *end, struct ibv_qp_attr attr, int mask)
{
	return ibv_modify_qp(end->qp, &attr, mask);
}

struct ibv_qp_attr query(struct end *end)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	check(ibv_query_qp(end->qp, &attr, 2 * IBV_QP_DEST_QPN - 1, &init) == 0, "ibv_query_qp on %s", end->name);
	return attr;
}

void renew(struct end *end, const struct how *how)
{
	if (end->qp)
		check(ibv_destroy_qp(end->qp) == 0, "ibv_destroy_qp on %s", end->name);
	if (how->cqe) {
		check(ibv_destroy_cq(end->cq) == 0, "ibv_destroy_cq on %s: %s", end->name, strerror(errno));
		end->cq = ibv_create_cq(end->context, how->cqe, end, end->channel, 0);
		check(end->cq != NULL, "ibv_create_cq on %s: %s", end->name, strerror(errno));
	}
	struct ibv_qp_init_attr init = {
		.qp_context = end,
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 4, .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = init.cap,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = end->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	end->qp = how->builder ? ibv_create_qp_ex(end->context, &extended) : ibv_create_qp(end->pd, &init);
	check(end->qp != NULL, "ibv_create_qp on %s: %s", end->name, strerror(errno));
}

static void join_one(struct end ends[2], int own, const struct how *how)
{
	struct end *end = &ends[own];
	const struct end *peer = &ends[1 - own];
	union ibv_gid gid;
	unsigned all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	unsigned access = how->access ? how->access & ~NO_ACCESS : all;
	int last = how->stop ? how->stop - 1 : IBV_QPS_RTS;

	check(ibv_query_gid(peer->context, 1, how->gid[1 - own], &gid) == 0, "no GID on %s", peer->name);
	int error = modify(end,
			   (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access },
			   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	check(!error, "%s to INIT: %s", end->name, strerror(error));
	if (last == IBV_QPS_INIT)
		return;
	error = modify(end,
		       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
					     .dest_qp_num = peer->qp->qp_num, .rq_psn = peer->psn,
					     .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
					     .ah_attr = { .is_global = 1, .port_num = 1,
							  .grh = { .dgid = gid, .hop_limit = 64,
								   .sgid_index = how->gid[own] } } },
		       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	check(!error, "%s to RTR: %s", end->name, strerror(error));
	if (last == IBV_QPS_RTR)
		return;
	error = modify(end,
		       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = how->timeout ? how->timeout : 14,
					     .retry_cnt = how->retry_cnt ? how->retry_cnt : 7,
					     .rnr_retry = how->rnr_retry ? how->rnr_retry : 7, .sq_psn = end->psn,
					     .max_rd_atomic = how->no_reads ? 0 : 4 },
		       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			       IBV_QP_MAX_QP_RD_ATOMIC);
	check(!error, "%s to RTS: %s", end->name, strerror(error));
}

void join(struct end ends[2], const struct how *how)
{
	for (int i = 0; i < 2; i++)
		renew(&ends[i], how);
	for (int i = 0; i < 2; i++)
		join_one(ends, i, how);
}

struct ibv_async_event take_async(struct end *end, const char *what)
{
	struct ibv_async_event event;
	struct pollfd fd = { .fd = end->context->async_fd, .events = POLLIN };

	check(poll(&fd, 1, 1000 * options.seconds) == 1, "%s: no event on %s", what, end->name);
	check(ibv_get_async_event(end->context, &event) == 0, "%s: ibv_get_async_event on %s", what, end->name);
	return event;
}

void expect_event(struct end *end, const char *what, enum ibv_event_type type, const void *object)
{
	struct ibv_async_event event = take_async(end, what);

	check(event.event_type == type, "%s: event \"%s\" on %s, expected \"%s\"", what,
	      ibv_event_type_str(event.event_type), end->name, ibv_event_type_str(type));
	if (type == IBV_EVENT_PORT_ACTIVE || type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_GID_CHANGE)
		check(event.element.port_num == 1, "%s: event of port %d", what, event.element.port_num);
	else
		check(event.element.qp == object, "%s: the event on %s names another object", what, end->name);
	ibv_ack_async_event(&event);
}

void expect_no_event(struct end *end, const char *what)
{
	struct pollfd fd = { .fd = end->context->async_fd, .events = POLLIN };

	if (poll(&fd, 1, 0) == 1)
		fail("%s: unexpected event \"%s\" on %s", what,
		     ibv_event_type_str(take_async(end, what).event_type), end->name);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "resize", resize_case },
	{ "resize-traffic", resize_traffic_case },
	{ "resize-death", resize_death_case },
	{ "overflow", overflow_case },
	{ "overrun", overrun_case },
	{ "extended", extended_case },
	{ "events", event_case },
	{ "acknowledge", acknowledge_case },
	{ "link", link_case },
	{ "gid", gid_case },
	{ "gid-order", gid_order_case },
	{ "faults", fault_case },
	{ "threads", thread_case },
	{ "post", post_case },
	{ "builder", builder_case },
	{ "modify", modify_case },
	{ "query", query_case },
};

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		size_t n = 0;

		while (n < sizeof cases / sizeof *cases && strcmp(cases[n].name, argv[i]))
			n++;
		check(n < sizeof cases / sizeof *cases, "no case %s", argv[i]);
		cases[n].run();
		printf("%s ok\n", argv[i]);
	}
	return 0;
}
