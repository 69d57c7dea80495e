/* RC queue pairs of test programs that have many of them. What fails is said, and ends the program. */
#ifndef QPS_H
#define QPS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAIL(...)                             \
	do {                                  \
		fflush(stdout);               \
		fprintf(stderr, __VA_ARGS__); \
		fprintf(stderr, "\n");        \
		exit(1);                      \
	} while (0)

/* An open device. */
struct side {
	const char *name;
	struct ibv_context *context;
	struct ibv_pd *pd;
	union ibv_gid gid;
	enum ibv_mtu mtu;
};

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline void open_side(struct side *side, const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;
	struct ibv_port_attr port;

	while (device && *device && strcmp(ibv_get_device_name(*device), name))
		device++;
	if (!device || !*device)
		FAIL("no device %s", name);
	side->name = name;
	side->context = ibv_open_device(*device);
	ibv_free_device_list(list);
	if (!side->context || ibv_query_port(side->context, 1, &port) || ibv_query_gid(side->context, 1, 0, &side->gid))
		FAIL("%s cannot be opened or asked: %m", name);
	side->mtu = port.active_mtu;
	side->pd = ibv_alloc_pd(side->context);
	if (!side->pd)
		FAIL("%s: no PD: %m", name);
}

static inline void close_side(struct side *side)
{
	int error = ibv_dealloc_pd(side->pd);

	if (!error)
		error = ibv_close_device(side->context);
	if (error)
		FAIL("%s cannot be closed: %s", side->name, strerror(error));
}

static inline struct ibv_qp *create_qp(struct side *side, struct ibv_cq *cq, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(side->pd, &init);

	if (!qp)
		FAIL("%s: a QP cannot be created: %m", side->name);
	return qp;
}

static inline void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	int error = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);

	if (error)
		FAIL("QP 0x%x to state %d: %s", qp->qp_num, attr.qp_state, strerror(error));
}

/* To RTS, towards that queue pair of the other side. Nothing is retried in vain: both ends live. */
static inline void connect_qp(struct side *side, struct ibv_qp *qp, struct side *peer, struct ibv_qp *to)
{
	modify(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
	       IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(qp,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = side->mtu, .dest_qp_num = to->qp_num,
				     .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = peer->gid, .hop_limit = 1 } } },
	       IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		       IBV_QP_MIN_RNR_TIMER);
	modify(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7 },
	       IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Fails for a completion with an error. */
static inline void expect_success(const struct ibv_wc *wc)
{
	if (wc->status)
		FAIL("request %llu of QP 0x%x: %s", (unsigned long long)wc->wr_id, wc->qp_num,
		     ibv_wc_status_str(wc->status));
}

#endif
