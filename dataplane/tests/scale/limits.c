/*
 * What a device says that it can do, done: limits DEVICE [MOST]
 *
 * Makes queues as long and requests as large as the device reports, and fills them with traffic; one more of either is
 * refused. Then makes as many objects of each kind as the device reports, after which one more is refused; or MOST of a kind,
 * to save time. Memory regions are pages of a buffer of 4 GiB that is registered as a whole as well.
 */
#include "qps.h"

#include <sys/mman.h>

static struct side side;
static struct ibv_device_attr attr;
static int most;

static void expect_errno(const char *what, const void *object, int expected)
{
	if (object || errno != expected)
		FAIL("%s: %s, expected: %s", what, object ? "made" : strerror(errno), strerror(expected));
}

static void poll_all(struct ibv_cq *cq, int left)
{
	struct ibv_wc wcs[64];

	while (left > 0) {
		int n = ibv_poll_cq(cq, 64, wcs);

		for (int i = 0; i < n; i++)
			expect_success(&wcs[i]);
		left -= n;
	}
}

/* A queue pair connected to itself, both queues full of the longest lists: entry i of a request has one byte. */
static void longest_queues(void)
{
	int wrs = attr.max_qp_wr, sges = attr.max_sge;
	size_t bytes = (size_t)wrs * sges;
	uint8_t *from = malloc(bytes), *to = calloc(bytes, 1);
	struct ibv_qp_cap cap = { .max_send_wr = wrs, .max_recv_wr = wrs, .max_send_sge = sges, .max_recv_sge = sges };
	struct ibv_cq *cq = ibv_create_cq(side.context, attr.max_cqe, NULL, NULL, 0);
	struct ibv_mr *source = ibv_reg_mr(side.pd, from, bytes, 0);
	struct ibv_mr *target = ibv_reg_mr(side.pd, to, bytes, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list[sges];

	if (!cq || !source || !target)
		FAIL("no CQ of %d or no MR: %m", attr.max_cqe);
	if (cq->cqe < attr.max_cqe)
		FAIL("the CQ has %d entries of %d", cq->cqe, attr.max_cqe);
	struct ibv_qp *qp = create_qp(&side, cq, cap);
	connect_qp(&side, qp, &side, qp);
	for (size_t i = 0; i < bytes; i++)
		from[i] = i * 2654435761u >> 13;
	for (int i = 0; i < wrs; i++) {
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = list, .num_sge = sges }, *bad;

		for (int j = 0; j < sges; j++)
			list[j] = (struct ibv_sge){ (uintptr_t)&to[(size_t)i * sges + j], 1, target->lkey };
		int error = ibv_post_recv(qp, &wr, &bad);
		if (error)
			FAIL("receive %d of %d: %s", i, wrs, strerror(error));
	}
	for (int i = 0; i < wrs; i++) {
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = list, .num_sge = sges, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED };
		struct ibv_send_wr *bad;

		for (int j = 0; j < sges; j++)
			list[j] = (struct ibv_sge){ (uintptr_t)&from[(size_t)i * sges + j], 1, source->lkey };
		int error = ibv_post_send(qp, &wr, &bad);
		if (error)
			FAIL("send %d of %d: %s", i, wrs, strerror(error));
	}
	poll_all(cq, 2 * wrs);
	if (memcmp(from, to, bytes))
		FAIL("requests of %d entries: not what was sent", sges);
	if (ibv_destroy_qp(qp) || ibv_dereg_mr(source) || ibv_dereg_mr(target))
		FAIL("queue pair or MRs cannot be destroyed");
	free(from);
	free(to);

	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	for (int i = 0; i < 4; i++) {
		init.cap = cap;
		*(uint32_t *[]){ &init.cap.max_send_wr, &init.cap.max_recv_wr, &init.cap.max_send_sge,
				 &init.cap.max_recv_sge }[i] += 1;
		expect_errno("a queue pair beyond a limit", ibv_create_qp(side.pd, &init), EINVAL);
	}
	if (ibv_destroy_cq(cq))
		FAIL("the CQ cannot be destroyed");
	expect_errno("a longer CQ", ibv_create_cq(side.context, attr.max_cqe + 1, NULL, NULL, 0), EINVAL);
	printf("queues of %d requests with %d entries each, CQ of %d\n", wrs, sges, attr.max_cqe);
}

static struct ibv_cq *small_cq;
static char *buffer;
static size_t page;
#define BUFFER (4ull << 30)
#define PAGE 4096

static void *make_pd(void) { return ibv_alloc_pd(side.context); }
static int end_pd(void *pd) { return ibv_dealloc_pd(pd); }
static void *make_cq(void) { return ibv_create_cq(side.context, 1, NULL, NULL, 0); }
static int end_cq(void *cq) { return ibv_destroy_cq(cq); }
static int end_mr(void *mr) { return ibv_dereg_mr(mr); }
static void *make_mw(void) { return ibv_alloc_mw(side.pd, IBV_MW_TYPE_2); }
static int end_mw(void *mw) { return ibv_dealloc_mw(mw); }
static int end_qp(void *qp) { return ibv_destroy_qp(qp); }
static int end_srq(void *srq) { return ibv_destroy_srq(srq); }
static int end_ah(void *ah) { return ibv_destroy_ah(ah); }

static void *make_mr(void)
{
	page = (page + 1) % (BUFFER / PAGE);
	return ibv_reg_mr(side.pd, buffer + page * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);
}

static void *make_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = small_cq, .recv_cq = small_cq, .qp_type = IBV_QPT_RC,
					 .cap = { 1, 1, 1, 1, 0 } };

	return ibv_create_qp(side.pd, &init);
}

static void *make_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };

	return ibv_create_srq(side.pd, &init);
}

static void *make_ah(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = side.gid, .hop_limit = 1 } };

	return ibv_create_ah(side.pd, &to);
}

/* `there`: how many of the kind exist already. */
static void as_many(const char *what, int limit, int there, void *(*make)(void), int (*end)(void *))
{
	int count = (most && most < limit ? most : limit) - there;
	void **all = calloc(count + 1, sizeof(*all));
	double begin = now();

	for (int i = 0; i < count; i++) {
		all[i] = make();
		if (!all[i])
			FAIL("%d %s were made of %d: %m", i + there, what, limit);
	}
	if (count + there == limit)
		expect_errno(what, make(), ENOMEM);
	double made = now();
	for (int i = 0; i < count; i++) {
		int error = end(all[i]);

		if (error)
			FAIL("%s: one of them cannot be destroyed: %s", what, strerror(error));
	}
	printf("%d %s: made in %.2f s, gone in %.2f s\n", count + there, what, made - begin, now() - made);
	free(all);
}

int main(int count, char **arguments)
{
	if (count < 2)
		FAIL("limits DEVICE [MOST]");
	most = count > 2 ? atoi(arguments[2]) : 0;
	open_side(&side, arguments[1]);
	if (ibv_query_device(side.context, &attr))
		FAIL("the device cannot be asked");
	longest_queues();
	as_many("PDs", attr.max_pd, 1, make_pd, end_pd);
	as_many("CQs", attr.max_cq, 0, make_cq, end_cq);

	buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct ibv_mr *whole = buffer != MAP_FAILED ? ibv_reg_mr(side.pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!whole)
		FAIL("a buffer of 4 GiB cannot be registered: %m");
	as_many("MRs", attr.max_mr, 1, make_mr, end_mr);
	if (ibv_dereg_mr(whole))
		FAIL("the buffer cannot be deregistered");

	if (attr.max_mw)
		as_many("MWs", attr.max_mw, 0, make_mw, end_mw);
	if (attr.max_srq)
		as_many("SRQs", attr.max_srq, 0, make_srq, end_srq);
	if (attr.max_ah)
		as_many("AHs", attr.max_ah, 0, make_ah, end_ah);
	small_cq = make_cq();
	as_many("QPs", attr.max_qp, 0, make_qp, end_qp);
	if (ibv_destroy_cq(small_cq))
		FAIL("the CQ cannot be destroyed");
	close_side(&side);
	return 0;
}
