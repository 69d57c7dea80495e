/* A connection that fails on purpose: two ends in one process, set up as KEY=VALUE arguments say, wrongly where asked. Prints
 * the numbers of its queue pairs, then the status of the request that fails. What is wrong is for others to find out. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUFFER 65536

static int argument_count;
static char **arguments;

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd, *other_pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
};

static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "FAILED: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The value of KEY=VALUE; numbers may be hexadecimal. */
static const char *text(const char *key, const char *otherwise)
{
	size_t length = strlen(key);

	for (int i = 3; i < argument_count; i++)
		if (!strncmp(arguments[i], key, length) && arguments[i][length] == '=')
			return arguments[i] + length + 1;
	return otherwise;
}

static int number(const char *key, int otherwise)
{
	const char *value = text(key, NULL);

	return value ? (int)strtol(value, NULL, 0) : otherwise;
}

static enum ibv_mtu mtu(const char *key)
{
	int bytes = number(key, 1024), code = IBV_MTU_256;

	while (128 << code < bytes)
		code++;
	return code;
}

static void open_end(struct end *end, const char *device, int access, int elsewhere)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1,
						  .max_recv_sge = 1 } };

	need(list != NULL, "device list");
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			end->context = ibv_open_device(list[i]);
	need(end->context != NULL, device);
	ibv_free_device_list(list);
	end->pd = ibv_alloc_pd(end->context);
	end->other_pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, number("cqe", 128), NULL, NULL, 0);
	need(end->pd && end->other_pd && end->cq, "PD and CQ");
	end->memory = calloc(1, BUFFER);
	end->mr = ibv_reg_mr(elsewhere ? end->other_pd : end->pd, end->memory, BUFFER, access);
	need(end->mr != NULL, "ibv_reg_mr");
	init.send_cq = init.recv_cq = end->cq;
	end->qp = ibv_create_qp(end->pd, &init);
	need(end->qp != NULL, "ibv_create_qp");
}

/* To RTS; `tell` is the GID that the peer says it has. */
static void connect_end(struct end *end, struct end *peer, int own_gid, int tell, int access, enum ibv_mtu path_mtu,
			int reads, int stop_at_init, int sq_psn, int rq_psn)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };

	need(!ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
	if (stop_at_init)
		return;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = path_mtu, .dest_qp_num = peer->qp->qp_num,
				     .rq_psn = rq_psn, .max_dest_rd_atomic = reads, .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .sgid_index = own_gid, .hop_limit = 64 } } };
	need(!ibv_query_gid(peer->context, 1, tell, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	need(!ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = number("timeout", 10),
				     .retry_cnt = number("retry", 3), .rnr_retry = number("rnr", 7), .sq_psn = sq_psn,
				     .max_rd_atomic = 1 };
	need(!ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC), "to RTS");
}

static void post_receive(struct end *end, int length, uint32_t lkey_change)
{
	struct ibv_sge sge = { (uintptr_t)end->memory, length, end->mr->lkey ^ lkey_change };
	struct ibv_recv_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1 }, *bad;

	need(!ibv_post_recv(end->qp, &wr, &bad), "ibv_post_recv");
}

static void post(struct end *end, struct end *peer, int length, int wrong)
{
	const char *op = text("op", "send");
	struct ibv_sge sge = { (uintptr_t)end->memory, length, end->mr->lkey ^ (wrong ? number("lkey", 0) : 0) };
	struct ibv_send_wr wr = { .wr_id = wrong ? 42 : 1, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.opcode = *op == 'w' ? IBV_WR_RDMA_WRITE : *op == 'r' ? IBV_WR_RDMA_READ : IBV_WR_SEND;
	wr.wr.rdma.remote_addr = (uintptr_t)peer->memory + (wrong ? number("shift", 0) : 0);
	wr.wr.rdma.rkey = peer->mr->rkey ^ (wrong ? number("rkey", 0) : 0);
	need(!ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
}

static int finish(struct end *end)
{
	time_t end_at = time(NULL) + 60;
	struct ibv_wc wc;

	while (time(NULL) < end_at)
		if (ibv_poll_cq(end->cq, 1, &wc) > 0)
			return wc.status;
	need(0, "no completion within 60 s");
	return -1;
}

int main(int argc, char **argv)
{
	struct end a = { 0 }, b = { 0 };
	int length, status = -1;

	if (argc < 3) {
		fprintf(stderr, "usage: verbs_fail DEVICE DEVICE [KEY=VALUE...]\n");
		return 2;
	}
	argument_count = argc;
	arguments = argv;
	length = number("length", 64);
	open_end(&a, argv[1], 7, 0);
	open_end(&b, argv[2], number("mr-b", 7), number("pd-b", 0));
	connect_end(&a, &b, number("gid-a", 0), number("tell-b", number("gid-b", 0)), 7, mtu("mtu-a"), 1, 0,
		    number("sq-a", 100), 100);
	connect_end(&b, &a, number("gid-b", 0), number("tell-a", number("gid-a", 0)), number("access-b", 7), mtu("mtu-b"),
		    1, number("init-b", 0), 100, number("rq-b", 100));
	printf("%u %u\n", a.qp->qp_num, b.qp->qp_num);
	fflush(stdout);
	for (int i = 0; i < number("warm", 0); i++) {
		post_receive(&b, BUFFER, 0);
		post(&a, &b, 64, 0);
		status = finish(&a);
		need(status == 0, "a request before the one that fails");
		if (*text("op", "send") == 's')
			need(finish(&b) == 0, "a receive before the one that fails");
	}
	if (number("gone-b", 0))
		need(!ibv_destroy_qp(b.qp), "ibv_destroy_qp");
	if (number("dereg-b", 0)) {
		struct ibv_mr old = *b.mr;

		need(!ibv_dereg_mr(b.mr), "ibv_dereg_mr");
		*(b.mr = malloc(sizeof old)) = old;
	}
	if (number("receive", length))
		post_receive(&b, number("receive", length), number("lkey-b", 0));
	if (number("answer", 0))
		post(&b, &a, 64, 0);
	if (number("to-err", 0)) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

		need(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), "to ERR");
	} else if (!number("die", 0)) {
		post(&a, &b, length, 1);
		printf("%s\n", ibv_wc_status_str(finish(&a)));
	}
	fflush(stdout);
	/* Nothing is destroyed: whoever asks afterwards finds what the daemon kept. */
	_exit(0);
}
