/* Very many memory regions over one buffer: they are registered, some are used, and all go. */
#define _GNU_SOURCE
#include "soak.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { REGION = 4096, ASK_EVERY = 1024 };

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	check(list != NULL, "ibv_get_device_list: %s", strerror(errno));
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	fail("no device %s", name);
}

/* A queue pair that is its own peer. */
static struct ibv_qp *to_itself(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	union ibv_gid gid;

	check(qp && !ibv_query_gid(context, 1, 0, &gid), "a queue pair: %s", strerror(errno));
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
				     .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } } };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				     .max_rd_atomic = 1 };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	return qp;
}

/* Writes 64 bytes from one region into another and looks at them. */
static void use(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *from, struct ibv_mr *to, uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from->addr, .length = 64, .lkey = from->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)to->addr + REGION - 64, .rkey = to->rkey } }, *bad;
	int64_t begin = now_ms();
	struct ibv_wc wc;

	fill(from->addr, 64, id, 0);
	check(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		check(now_ms() - begin < PATIENCE_MS, "no completion of a WRITE with key %#x", to->rkey);
	check(wc.status == IBV_WC_SUCCESS, "a WRITE with key %#x: %s", to->rkey, ibv_wc_status_str(wc.status));
	check(differs((uint8_t *)to->addr + REGION - 64, 64, id, 0) == 64, "a WRITE with key %#x went elsewhere", to->rkey);
}

void many_regions(const char *device, unsigned long count, uint64_t seed)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct chance chance = { seed };
	struct ibv_context *context = open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_mr **mrs = calloc(count, sizeof *mrs);
	uint8_t *buffer = mmap(NULL, count * REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			       0);
	int64_t begin = now_ms(), registered, used;
	struct ibv_mr *whole;
	struct ibv_qp *qp;

	check(pd && cq && mrs && buffer != MAP_FAILED, "objects: %s", strerror(errno));
	qp = to_itself(context, pd, cq);
	/* The buffer as one, as programs do that register parts of it later: all of them lie in its memory. */
	whole = ibv_reg_mr(pd, buffer, count * REGION, access);
	check(whole != NULL, "ibv_reg_mr of %lu MiB: %s", count * REGION >> 20, strerror(errno));
	for (unsigned long i = 0; i < count; i++) {
		mrs[i] = ibv_reg_mr(pd, buffer + i * REGION, REGION, access);
		check(mrs[i] != NULL, "ibv_reg_mr, the %lu. region: %s", i + 1, strerror(errno));
	}
	registered = now_ms();
	for (unsigned long i = 0; i < count / ASK_EVERY + 16; i++) {
		uint32_t limit = (uint32_t)count;

		use(qp, cq, mrs[below(&chance, limit)], mrs[below(&chance, limit)], i + 1);
	}
	used = now_ms();
	check(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
	for (unsigned long i = 0; i < count; i++)
		check(ibv_dereg_mr(mrs[i]) == 0, "ibv_dereg_mr, the %lu. region", i + 1);
	check(ibv_dereg_mr(whole) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0, "the rest");
	check(ibv_close_device(context) == 0, "ibv_close_device");
	printf("%lu regions over %lu MiB: registered in %.1f s (%.1f us each), used in %.1f s, gone in %.1f s\n", count,
	       count * REGION >> 20, (double)(registered - begin) / 1000,
	       (double)(registered - begin) * 1000 / (double)count, (double)(used - registered) / 1000,
	       (double)(now_ms() - used) / 1000);
	free(mrs);
}
