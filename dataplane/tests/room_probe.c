/*
 * Uses up what address space the daemon may have: room_probe DEVICE PID MIB
 *
 * Opens the device, and lets the process PID of the daemon have MIB more than it has (RLIMIT_AS), which the test may do as the
 * daemon's user. Then it registers objects until there is no room to map them, which is no error, and has long queues made, of
 * which some are refused for want of memory. All that it got is usable: the last region is sent by a queue pair that is
 * connected to itself.
 */
#define _GNU_SOURCE
#include "scale/qps.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { OBJECTS = 600, BYTES = 1 << 20, QPS = 40 };

static void limit(pid_t daemon, long mib)
{
	struct rlimit limits;
	unsigned long pages;
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/statm", daemon);
	FILE *file = fopen(path, "r");
	if (!file || fscanf(file, "%lu", &pages) != 1 || prlimit(daemon, RLIMIT_AS, NULL, &limits))
		FAIL("no process %d: %m", daemon);
	fclose(file);
	limits.rlim_cur = pages * 4096 + ((rlim_t)mib << 20);
	if (prlimit(daemon, RLIMIT_AS, &limits, NULL))
		FAIL("prlimit: %m");
}

int main(int argc, char **argv)
{
	static struct side side;
	struct ibv_device_attr attr;
	struct ibv_mr *last = NULL;
	int made = 0, refused = 0;

	if (argc != 4)
		FAIL("room_probe DEVICE PID MIB");
	open_side(&side, argv[1]);
	if (ibv_query_device(side.context, &attr))
		FAIL("ibv_query_device");
	limit(atoi(argv[2]), atol(argv[3]));
	for (int i = 0; i < OBJECTS; i++) {
		int fd = memfd_create("object", MFD_CLOEXEC);
		void *p;

		if (fd < 0 || ftruncate(fd, BYTES))
			FAIL("memfd: %m");
		p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		last = ibv_reg_mr(side.pd, p, BYTES, IBV_ACCESS_LOCAL_WRITE);
		if (!last)
			FAIL("region %d: %m", i);
	}
	struct ibv_cq *cq = ibv_create_cq(side.context, 16, NULL, NULL, 0);

	if (!cq)
		FAIL("no CQ: %m");
	struct ibv_qp *qp = NULL;

	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { attr.max_qp_wr, attr.max_qp_wr, 1, 1, 0 } };
		struct ibv_qp *next = ibv_create_qp(side.pd, &init);

		if (!next && errno != ENOMEM)
			FAIL("queue pair %d: %m", i);
		if (next)
			qp = next, made++;
		else
			refused++;
	}
	if (!qp)
		FAIL("no queue pair: %m");
	connect_qp(&side, qp, &side, qp);
	uint8_t *bytes = last->addr;
	struct ibv_sge from = { (uintptr_t)bytes, 4096, last->lkey }, to = { (uintptr_t)bytes + 8192, 4096, last->lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
			   *bad_send;

	memset(bytes, 0x5a, 4096);
	if (ibv_post_recv(qp, &receive, &bad_receive) || ibv_post_send(qp, &send, &bad_send))
		FAIL("post: %m");
	for (int left = 2; left;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n < 0)
			FAIL("ibv_poll_cq");
		if (n)
			expect_success(&wc);
		left -= n;
	}
	if (memcmp(bytes, bytes + 8192, 4096))
		FAIL("other bytes came");
	printf("%d queue pairs, %d refused\n", made, refused);
	return 0;
}
