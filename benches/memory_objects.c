/* Makes COUNT objects of one kind and holds them until the end of its input, so that what they cost the daemon can be read:
 *
 *   memory_objects DEVICE qp|mr|cq COUNT
 *
 * Queue pairs have room for 128 requests each way, of one piece, share a completion queue, and are ready to send, each to itself;
 * regions are of a page each; completion queues have 128 entries. Says "ready" when they are there. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 128, PAGE = 4096, PAGES = 4096 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static struct ibv_context *open_device(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    for (int i = 0; list && list[i]; i++)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0)
            context = ibv_open_device(list[i]);
    if (!context)
        fail(name);
    return context;
}

static void make_qp(struct ibv_pd *pd, struct ibv_cq *cq, const union ibv_gid *own) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (!qp)
        fail("ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("INIT");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *own, .hop_limit = 1}},
    };
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                                     | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                                     | IBV_QP_MAX_QP_RD_ATOMIC))
        fail("RTS");
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: memory_objects DEVICE qp|mr|cq COUNT\n");
        return 2;
    }
    struct ibv_context *context = open_device(argv[1]);
    const char *kind = argv[2];
    long count = atol(argv[3]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
    union ibv_gid own;
    if (!pd || !cq || ibv_query_gid(context, 1, 0, &own))
        fail("set-up");
    char *buffer = aligned_alloc(PAGE, (size_t)PAGE * PAGES);
    if (!buffer)
        fail("memory");
    memset(buffer, 1, (size_t)PAGE * PAGES);
    for (long i = 0; i < count; i++) {
        if (strcmp(kind, "qp") == 0)
            make_qp(pd, cq, &own);
        else if (strcmp(kind, "mr") == 0) {
            if (!ibv_reg_mr(pd, buffer + i % PAGES * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE))
                fail("ibv_reg_mr");
        } else if (!ibv_create_cq(context, DEPTH, NULL, NULL, 0))
            fail("ibv_create_cq");
    }
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
