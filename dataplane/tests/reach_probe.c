/* Whom does a device reach? For each address, a queue pair goes to RTR with it as its destination, and a line says how
 * that ended: the address, errno (0: it got there), milliseconds.
 *
 *   reach_probe DEVICE GID-INDEX ADDRESS... */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static union ibv_gid gid_of(const char *text)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	check(inet_pton(AF_INET, text, gid.raw + 12) == 1 || inet_pton(AF_INET6, text, gid.raw) == 1, text);
	return gid;
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	check(list != NULL, "ibv_get_device_list");
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;

	if (argc < 4)
		return 2;
	context = open_device(argv[1]);
	check(context != NULL, argv[1]);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	check(pd && cq, "objects");
	for (int i = 3; i < argc; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
							  .max_recv_sge = 1 } };
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		long before;
		int error;

		check(qp != NULL, "ibv_create_qp");
		error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		check(error == 0, "INIT");
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 0x11,
					     .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
					     .ah_attr = { .is_global = 1, .port_num = 1,
							  .grh = { .dgid = gid_of(argv[i]), .hop_limit = 64,
								   .sgid_index = (uint8_t)atoi(argv[2]) } } };
		before = now_ms();
		error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
						 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		printf("%s %d %ld\n", argv[i], error, now_ms() - before);
		ibv_destroy_qp(qp);
	}
	return 0;
}
