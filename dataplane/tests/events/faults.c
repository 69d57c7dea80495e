/* Each row of the table of faults in docs/conformance.md, between two devices. */
#define _GNU_SOURCE
#include "probe.h"

#include <sys/mman.h>

/* `vendor_err` of a status: what users know from mlx5. */
static unsigned vendor(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_LOC_LEN_ERR: return 0x8e;
	case IBV_WC_LOC_QP_OP_ERR: return 0x68;
	case IBV_WC_LOC_PROT_ERR: return 0x51;
	case IBV_WC_WR_FLUSH_ERR: return 0xf9;
	case IBV_WC_REM_INV_REQ_ERR: return 0x8a;
	case IBV_WC_REM_ACCESS_ERR: return 0x88;
	case IBV_WC_REM_OP_ERR: return 0x89;
	case IBV_WC_RETRY_EXC_ERR: return 0x81;
	case IBV_WC_RNR_RETRY_EXC_ERR: return 0x87;
	default: return 0;
	}
}

enum { NO_EVENT = -1, NO_STATUS = -1 };

/* What is to be seen at the two ends. */
struct row {
	const char *name;
	int send;		/* status of the send request */
	int receive;		/* status of the receive request, if one is posted */
	bool peer_fails;
	int event;		/* of the responder's QP */
};

static void expect_row(struct end ends[2], const struct row *row)
{
	struct end *a = &ends[0], *b = &ends[1];

	/* Behind the faulty request. */
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 101);
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 102);
	struct ibv_wc wc = expect(a, row->name, 100, row->send);
	check(wc.vendor_err == vendor(row->send), "%s: vendor_err 0x%x, expected 0x%x", row->name, wc.vendor_err,
	      vendor(row->send));
	for (uint64_t id = 101; id <= 102; id++) {
		wc = expect(a, row->name, id, IBV_WC_WR_FLUSH_ERR);
		check(wc.vendor_err == 0xf9, "%s: vendor_err 0x%x of a flush", row->name, wc.vendor_err);
	}
	expect_state(a, IBV_QPS_ERR);
	/* Posted afterwards, flushed too. */
	post_op(a, b, IBV_WR_RDMA_WRITE, 8, 103);
	expect(a, row->name, 103, IBV_WC_WR_FLUSH_ERR);
	if (row->receive != NO_STATUS) {
		wc = expect(b, row->name, 1, row->receive);
		check(wc.vendor_err == vendor(row->receive), "%s: vendor_err 0x%x of the receive", row->name,
		      wc.vendor_err);
	}
	if (row->event != NO_EVENT)
		expect_event(b, row->name, row->event, b->qp);
	expect_state(b, row->peer_fails ? IBV_QPS_ERR : IBV_QPS_RTS);
	post_recv(b, 64, 2);
	if (row->peer_fails)
		expect(b, row->name, 2, IBV_WC_WR_FLUSH_ERR);
	else
		expect_nothing(b, row->name, 5);
	expect_no_event(a, row->name);
	expect_no_event(b, row->name);
	printf("row: %s\n", row->name);
}

static struct ibv_send_wr request(struct ibv_sge *sge, int opcode, const struct end *peer)
{
	return (struct ibv_send_wr){ .wr_id = 100, .sg_list = sge, .num_sge = 1, .opcode = (enum ibv_wr_opcode)opcode,
				     .send_flags = IBV_SEND_SIGNALED,
				     .wr.rdma = { (uintptr_t)peer->buffer, peer->mr->rkey } };
}

/* Memory of a file that is registered and then cut off. */
struct lost {
	int fd;
	void *at;
	struct ibv_mr *mr;
};

static struct lost lost_memory(struct end *end)
{
	struct lost lost = { .fd = memfd_create("lost", 0) };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	check(lost.fd >= 0 && ftruncate(lost.fd, 1 << 16) == 0, "memfd_create");
	lost.at = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, lost.fd, 0);
	check(lost.at != MAP_FAILED, "mmap");
	memset(lost.at, 1, 1 << 16);
	lost.mr = ibv_reg_mr(end->pd, lost.at, 1 << 16, access);
	check(lost.mr != NULL, "ibv_reg_mr: %s", strerror(errno));
	check(ftruncate(lost.fd, 0) == 0, "ftruncate");
	return lost;
}

static void forget(struct lost *lost)
{
	check(ibv_dereg_mr(lost->mr) == 0, "ibv_dereg_mr");
	munmap(lost->at, 1 << 16);
	close(lost->fd);
}

void fault_case(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	struct ibv_sge sge, two[2];
	struct ibv_send_wr wr;
	struct how usual = { 0 };

	connect_pair(ends, patient);

	/* Found by the requester: the peer goes on in peace. */
	join(ends, &usual);
	sge = sge_of(a, 0, 8);
	post_send(a, request(&sge, 77, b));
	expect_row(ends, &(struct row){ "opcode that does not exist", IBV_WC_LOC_QP_OP_ERR, NO_STATUS, false, NO_EVENT });

	join(ends, &(struct how){ .no_reads = true });
	post_send(a, request(&sge, IBV_WR_RDMA_READ, b));
	expect_row(ends, &(struct row){ "READ without credits", IBV_WC_LOC_QP_OP_ERR, NO_STATUS, false, NO_EVENT });

	join(ends, &usual);
	two[0] = sge_of(a, 0, 1u << 30);
	two[1] = sge_of(a, 0, (1u << 30) + 1);
	wr = request(two, IBV_WR_RDMA_WRITE, b);
	wr.num_sge = 2;
	post_send(a, wr);
	expect_row(ends, &(struct row){ "message of more than 2 GiB", IBV_WC_LOC_LEN_ERR, NO_STATUS, false, NO_EVENT });

	join(ends, &usual);
	sge.lkey ^= 0x100;
	post_send(a, request(&sge, IBV_WR_RDMA_WRITE, b));
	expect_row(ends, &(struct row){ "local key", IBV_WC_LOC_PROT_ERR, NO_STATUS, false, NO_EVENT });

	join(ends, &usual);
	struct lost lost = lost_memory(a);
	sge = (struct ibv_sge){ (uintptr_t)lost.at, 8, lost.mr->lkey };
	post_send(a, request(&sge, IBV_WR_RDMA_WRITE, b));
	expect_row(ends, &(struct row){ "local memory", IBV_WC_LOC_PROT_ERR, NO_STATUS, false, NO_EVENT });
	forget(&lost);

	/* No answer. */
	sge = sge_of(a, 0, 8);
	join(ends, &(struct how){ .retry_cnt = 1, .timeout = 8 });
	check(modify(b, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0, "to RESET");
	post_send(a, request(&sge, IBV_WR_RDMA_WRITE, b));
	expect(a, "retries exceeded", 100, IBV_WC_RETRY_EXC_ERR);
	expect_state(a, IBV_QPS_ERR);
	expect_no_event(a, "retries exceeded");
	printf("row: retries exceeded\n");

	join(ends, &(struct how){ .rnr_retry = 1 });
	post_send(a, request(&sge, IBV_WR_SEND, b));
	expect_row(ends, &(struct row){ "no receive request", IBV_WC_RNR_RETRY_EXC_ERR, NO_STATUS, false, NO_EVENT });

	/* Refused by the responder. */
	join(ends, &(struct how){ .access = NO_ACCESS });
	post_send(a, request(&sge, IBV_WR_RDMA_WRITE, b));
	expect_row(ends, &(struct row){ "right of the QP", IBV_WC_REM_INV_REQ_ERR, NO_STATUS, true, IBV_EVENT_QP_REQ_ERR });

	join(ends, &usual);
	wr = request(&sge, IBV_WR_RDMA_WRITE, b);
	wr.wr.rdma.rkey ^= 0x100;
	post_send(a, wr);
	expect_row(ends, &(struct row){ "remote key", IBV_WC_REM_ACCESS_ERR, NO_STATUS, true, IBV_EVENT_QP_ACCESS_ERR });

	join(ends, &usual);
	post_recv(b, 7, 1);
	post_send(a, request(&sge, IBV_WR_SEND, b));
	expect_row(ends, &(struct row){ "SEND too long", IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, true, NO_EVENT });

	join(ends, &usual);
	struct ibv_sge bad = sge_of(b, 0, 8);
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &bad, .num_sge = 1 }, *bad_recv;
	bad.lkey ^= 0x100;
	check(ibv_post_recv(b->qp, &recv, &bad_recv) == 0, "ibv_post_recv");
	post_send(a, request(&sge, IBV_WR_SEND, b));
	expect_row(ends, &(struct row){ "key of a receive", IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, true, NO_EVENT });

	join(ends, &usual);
	lost = lost_memory(b);
	bad = (struct ibv_sge){ (uintptr_t)lost.at, 8, lost.mr->lkey };
	check(ibv_post_recv(b->qp, &recv, &bad_recv) == 0, "ibv_post_recv");
	post_send(a, request(&sge, IBV_WR_SEND, b));
	expect_row(ends, &(struct row){ "memory of a receive", IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, true, NO_EVENT });

	for (int read = 0; read < 2; read++) {
		join(ends, &usual);
		wr = request(&sge, read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, b);
		wr.wr.rdma.remote_addr = (uintptr_t)lost.at;
		wr.wr.rdma.rkey = lost.mr->rkey;
		post_send(a, wr);
		expect_row(ends, &(struct row){ read ? "memory of a READ" : "memory of a WRITE", IBV_WC_REM_OP_ERR,
						NO_STATUS, true, IBV_EVENT_QP_FATAL });
	}
	forget(&lost);

	/* The program's own doing. */
	join(ends, &(struct how){ .timeout = 20 });
	check(modify(b, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0, "to RESET");
	post_send(a, request(&sge, IBV_WR_RDMA_WRITE, b));
	post_recv(a, 8, 5);
	to_error(a);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;
		int64_t deadline = now_ms() + 1000 * options.seconds;

		while (ibv_poll_cq(a->cq, 1, &wc) == 0)
			check(now_ms() < deadline, "no flush");
		check(wc.status == IBV_WC_WR_FLUSH_ERR && wc.vendor_err == 0xf9 && (wc.wr_id == 100 || wc.wr_id == 5),
		      "flushed: request %" PRIu64 ", %s", wc.wr_id, ibv_wc_status_str(wc.status));
	}
	printf("row: flushed\n");
	close_pair(ends);
}

struct poster {
	struct end *a, *b;
	_Atomic uint64_t posted, polled;
	_Atomic bool stop;
};

static void *keep_posting(void *argument)
{
	struct poster *p = argument;

	while (!p->stop) {
		struct ibv_sge sge = sge_of(p->a, 0, 64);
		struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_WRITE, p->b);

		wr.wr_id = p->posted;
		/* In the midst of all a request that the peer refuses. */
		if (p->posted == 3000)
			wr.wr.rdma.rkey ^= 0x100;
		/* The CQ is finite. */
		if (p->posted - p->polled > 10000)
			continue;
		int error = try_send(p->a, &wr);
		check(!error || error == ENOMEM, "ibv_post_send: %s", strerror(error));
		if (!error)
			p->posted++;
	}
	return NULL;
}

/* A QP fails while another thread posts: all that it posted completes, in order, once. */
void thread_case(void)
{
	struct end ends[2];
	struct poster p = { .a = &ends[0], .b = &ends[1] };
	pthread_t thread;
	uint64_t next = 0, end = UINT64_MAX;

	connect_pair(ends, patient);
	join(ends, &(struct how){ .cqe = 1 << 16 });
	pthread_create(&thread, NULL, keep_posting, &p);
	int64_t deadline = now_ms() + 1000 * options.seconds;
	while (next < end) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(ends[0].cq, 1, &wc);

		check(now_ms() < deadline, "completion %" PRIu64 " of %" PRIu64 " does not come", next, end);
		if (!n)
			continue;
		enum ibv_wc_status status = next < 3000	   ? IBV_WC_SUCCESS
					    : next == 3000 ? IBV_WC_REM_ACCESS_ERR
							   : IBV_WC_WR_FLUSH_ERR;
		check(wc.wr_id == next && wc.status == status, "request %" PRIu64 " ended with %s, expected %" PRIu64 ", %s",
		      wc.wr_id, ibv_wc_status_str(wc.status), next, ibv_wc_status_str(status));
		p.polled = ++next;
		if (next == 6000)
			p.stop = true;
		if (p.stop && end == UINT64_MAX) {
			pthread_join(thread, NULL);
			end = p.posted;
		}
	}
	expect_nothing(&ends[0], "after the last", 20);
	expect_event(&ends[1], "refused", IBV_EVENT_QP_ACCESS_ERR, ends[1].qp);
	close_pair(ends);
}
