/* What the parts of the probe share: two ends in one process, connected as a case wants it, and asynchronous events. */
#ifndef PROBE_H
#define PROBE_H

#include "verbs_end.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How a QP is connected; zeroes mean the usual. */
struct how {
	unsigned access;	/* rights of the peer, NO_ACCESS for none */
	uint8_t retry_cnt, rnr_retry, timeout;
	bool no_reads;		/* max_rd_atomic 0 */
	uint32_t cqe;		/* entries of a CQ of the QP's own */
	int stop;		/* 1 + the state to stop in */
	bool builder;		/* for ibv_wr_send and ibv_wr_rdma_write */
	uint8_t gid[2];		/* GID index of each end */
};
enum { NO_ACCESS = 1 << 30 };

/* Makes an end's QP anew with this, in place of the one it has. */
void renew(struct end *end, const struct how *how);
/* Connects both QPs. */
void join(struct end ends[2], const struct how *how);
int modify(struct end *end, struct ibv_qp_attr attr, int mask);
struct ibv_qp_attr query(struct end *end);

/* Waits for the next event of a device, which must be this one, of this object; acknowledges it. */
void expect_event(struct end *end, const char *what, enum ibv_event_type type, const void *object);
/* The same without acknowledging it. */
struct ibv_async_event take_async(struct end *end, const char *what);
void expect_no_event(struct end *end, const char *what);

void resize_case(void);
void resize_traffic_case(void);
void resize_death_case(void);
void overflow_case(void);
void overrun_case(void);
void extended_case(void);
void event_case(void);
void acknowledge_case(void);
void link_case(void);
void gid_case(void);
void gid_order_case(void);
void fault_case(void);
void thread_case(void);
void post_case(void);
void builder_case(void);
void modify_case(void);
void query_case(void);

#endif
