/*
 * Shared receive queues as a program sees them: order, limit events, resizing under traffic, the end of a queue pair, errors.
 * Usage: srq_check RECEIVER SENDER. Prints a line a check; exits non-zero with a sentence at the first that fails.
 *        srq_check --death DEVICE. Says "ready", and expects the daemon's end.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define QPS 4
#define SLOT 4096
#define SLOTS 64
#define PATIENCE_MS 20000

static _Noreturn void fail(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "FAILED: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	exit(1);
}

#define CHECK(ok, ...)                    \
	do {                              \
		if (!(ok))                \
			fail(__VA_ARGS__); \
	} while (0)

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	uint8_t *memory;
	union ibv_gid gid;
	struct ibv_qp *qps[QPS];
};

static void open_end(struct end *e, const char *name)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);

	for (int i = 0; i < count; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			e->context = ibv_open_device(devices[i]);
	CHECK(e->context, "cannot open %s", name);
	ibv_free_device_list(devices);
	e->pd = ibv_alloc_pd(e->context);
	e->cq = ibv_create_cq(e->context, 4096, NULL, NULL, 0);
	e->memory = aligned_alloc(4096, SLOTS * SLOT);
	e->mr = ibv_reg_mr(e->pd, e->memory, SLOTS * SLOT, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(e->pd && e->cq && e->mr, "cannot set up %s: %m", name);
	CHECK(!ibv_query_gid(e->context, 1, 0, &e->gid), "no GID at %s", name);
	fcntl(e->context->async_fd, F_SETFL, O_NONBLOCK);
}

static struct ibv_qp *make_qp(struct end *e, enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = e->cq, .recv_cq = e->cq, .srq = srq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 256, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_qp *qp = ibv_create_qp(e->pd, &init);

	CHECK(qp, "ibv_create_qp: %m");
	CHECK(!srq || init.cap.max_recv_wr == 0, "a QP with an SRQ says that it holds %u receives", init.cap.max_recv_wr);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
	return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid)
{
	bool rc = qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 64 } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(!ibv_modify_qp(qp, &attr, mask), "to RTR: %m");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (rc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(!ibv_modify_qp(qp, &attr, mask), "to RTS: %m");
}

/* Receives of one slot each; the request's number is that of its slot. */
static int post(struct end *e, uint64_t slot)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->memory + slot % SLOTS * SLOT, .length = SLOT, .lkey = e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_srq_recv(e->srq, &wr, &bad);
}

static void send_on(struct end *e, struct ibv_qp *qp, uint64_t number, uint32_t length)
{
	uint8_t *at = e->memory + number % SLOTS * SLOT;
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = e->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = (uint32_t)number,
	}, *bad;

	memset(at, (int)(number * 7 + 1), length);
	CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send: %m");
}

static struct ibv_wc completion(struct end *e, const char *what)
{
	struct ibv_wc wc;
	int64_t end = now_ms() + PATIENCE_MS;

	while (!ibv_poll_cq(e->cq, 1, &wc))
		CHECK(now_ms() < end, "%s: no completion", what);
	return wc;
}

static struct ibv_wc success(struct end *e, const char *what)
{
	struct ibv_wc wc = completion(e, what);

	CHECK(wc.status == IBV_WC_SUCCESS, "%s: %s for request %ju", what, ibv_wc_status_str(wc.status), (uintmax_t)wc.wr_id);
	return wc;
}

/* The next asynchronous event; NULL if none comes in time. */
static bool event(struct end *e, int wait_ms, struct ibv_async_event *event)
{
	struct pollfd fd = { .fd = e->context->async_fd, .events = POLLIN };

	for (;;) {
		if (poll(&fd, 1, wait_ms) <= 0)
			return false;
		if (ibv_get_async_event(e->context, event))
			continue;
		ibv_ack_async_event(event);
		/* Queue pairs say when the first message came before they were in RTS; that is not looked at here. */
		if (event->event_type != IBV_EVENT_COMM_EST)
			return true;
	}
}

static void expect_event(struct end *e, enum ibv_event_type type, const char *what)
{
	struct ibv_async_event got;

	CHECK(event(e, PATIENCE_MS, &got), "%s: no event", what);
	CHECK(got.event_type == type, "%s: event %s", what, ibv_event_type_str(got.event_type));
	if (type == IBV_EVENT_SRQ_LIMIT_REACHED || type == IBV_EVENT_SRQ_ERR)
		CHECK(got.element.srq == e->srq, "%s: of another queue", what);
	CHECK(!event(e, 50, &got), "%s: then %s", what, ibv_event_type_str(got.event_type));
}

static void arm(struct end *e, uint32_t limit)
{
	struct ibv_srq_attr attr = { .srq_limit = limit };

	CHECK(!ibv_modify_srq(e->srq, &attr, IBV_SRQ_LIMIT), "arming the limit: %m");
}

static int resize(struct end *e, uint32_t max_wr)
{
	struct ibv_srq_attr attr = { .max_wr = max_wr };

	return ibv_modify_srq(e->srq, &attr, IBV_SRQ_MAX_WR);
}

static uint32_t size(struct end *e)
{
	struct ibv_srq_attr attr;

	CHECK(!ibv_query_srq(e->srq, &attr), "ibv_query_srq: %m");
	return attr.max_wr;
}

/* One message over queue pair `n`: it must take receive `slot`. */
static void message(struct end *from, struct end *to, int n, uint64_t number, uint64_t slot)
{
	struct ibv_wc wc;

	send_on(from, from->qps[n], number, 1500);
	wc = success(to, "message");
	CHECK(wc.wr_id == slot, "message %ju took receive %ju, not %ju", (uintmax_t)number, (uintmax_t)wc.wr_id, (uintmax_t)slot);
	CHECK(wc.qp_num == to->qps[n]->qp_num && wc.byte_len == 1500 && wc.imm_data == (uint32_t)number,
	      "message %ju: its completion names another", (uintmax_t)number);
	for (int i = 0; i < 1500; i++)
		CHECK(to->memory[slot % SLOTS * SLOT + i] == (uint8_t)(number * 7 + 1), "message %ju: byte %d", (uintmax_t)number, i);
	success(from, "send");
}

static void set_up(struct end *to, struct end *from, enum ibv_qp_type type)
{
	for (int i = 0; i < QPS; i++) {
		to->qps[i] = make_qp(to, type, to->srq);
		from->qps[i] = make_qp(from, type, NULL);
		connect_qp(to->qps[i], from->qps[i]->qp_num, &from->gid);
		connect_qp(from->qps[i], to->qps[i]->qp_num, &to->gid);
	}
}

static void tear_down(struct end *to, struct end *from)
{
	for (int i = 0; i < QPS; i++)
		CHECK(!ibv_destroy_qp(to->qps[i]) && !ibv_destroy_qp(from->qps[i]), "ibv_destroy_qp: %m");
}

static void order_and_limit(struct end *to, struct end *from, uint64_t *next)
{
	uint64_t posted = *next, taken = *next;
	struct ibv_async_event got;

	for (int i = 0; i < 12; i++)
		CHECK(!post(to, posted++), "ibv_post_srq_recv: %m");
	arm(to, 10);
	message(from, to, 0, *next, taken++);
	message(from, to, 1, *next + 1, taken++);
	CHECK(!event(to, 50, &got), "ten are left, and yet %s", ibv_event_type_str(got.event_type));
	message(from, to, 2, *next + 2, taken++);
	expect_event(to, IBV_EVENT_SRQ_LIMIT_REACHED, "fewer than the limit");
	for (int i = 3; i < 12; i++)
		message(from, to, i % QPS, *next + i, taken++);
	CHECK(!event(to, 50, &got), "the limit was not armed again, and yet %s", ibv_event_type_str(got.event_type));
	arm(to, 1);
	expect_event(to, IBV_EVENT_SRQ_LIMIT_REACHED, "armed when it is empty");
	*next = posted;
}

/* Sends go on while the queue grows and shrinks; every message comes, and every receive is used in its turn. */
static void resize_under_traffic(struct end *to, struct end *from, uint64_t *next)
{
	static const uint32_t sizes[] = { 40, 300, 50, 2000, 33, 100 };
	uint64_t first = *next, posted = first, taken = first, sent = first, done = first;
	const uint64_t end = first + 3000;
	unsigned int changes = 0;

	while (taken < end) {
		struct ibv_wc wc;

		while (posted < end && posted - taken < 30)
			CHECK(!post(to, posted++), "ibv_post_srq_recv: %m");
		while (sent < end && sent - done < 40) {
			send_on(from, from->qps[sent % QPS], sent, 600);
			sent++;
		}
		if (taken - first > changes * 100) {
			uint32_t wanted = sizes[changes++ % 6];

			CHECK(!resize(to, wanted), "resizing to %u: %m", wanted);
			CHECK(size(to) >= wanted && size(to) < 2 * wanted + 2, "%u places for %u", size(to), wanted);
		}
		while (ibv_poll_cq(to->cq, 1, &wc)) {
			CHECK(wc.status == IBV_WC_SUCCESS, "receive %ju: %s", (uintmax_t)wc.wr_id, ibv_wc_status_str(wc.status));
			CHECK(wc.byte_len == 600, "receive %ju: %u bytes", (uintmax_t)wc.wr_id, wc.byte_len);
			taken++;
		}
		while (ibv_poll_cq(from->cq, 1, &wc)) {
			CHECK(wc.status == IBV_WC_SUCCESS, "send: %s", ibv_wc_status_str(wc.status));
			done++;
		}
	}
	while (done < end)
		success(from, "send"), done++;
	CHECK(changes > 20, "only %u resizes", changes);
	*next = end;
}

static void refused(struct end *to)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 10, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .max_wr = 1 << 30 };
	uint32_t before = size(to);
	struct ibv_srq *other;

	CHECK(ibv_destroy_srq(to->srq) == EBUSY, "an SRQ with queue pairs was destroyed");
	CHECK(resize(to, 1 << 30) == EINVAL && resize(to, 0) == EINVAL, "a size that cannot be");
	attr.srq_limit = before + 1;
	CHECK(ibv_modify_srq(to->srq, &attr, IBV_SRQ_LIMIT) == EINVAL, "a limit above the size");
	CHECK(size(to) == before, "what was refused changed the size");
	init.attr.max_wr = 0;
	CHECK(!ibv_create_srq(to->pd, &init) && errno == EINVAL, "an SRQ without places");
	init.attr = (typeof(init.attr)){ .max_wr = 10, .max_sge = 33 };
	CHECK(!ibv_create_srq(to->pd, &init) && errno == EINVAL, "an SRQ with too many entries");
	init.attr = (typeof(init.attr)){ .max_wr = 10, .max_sge = 3, .srq_limit = 5 };
	other = ibv_create_srq(to->pd, &init);
	CHECK(other && init.attr.max_wr == 15 && init.attr.max_sge == 3, "%u places", init.attr.max_wr);
	CHECK(!ibv_query_srq(other, &attr) && attr.srq_limit == 0, "the limit is armed by modify only");
	CHECK(ibv_dealloc_pd(to->pd) == EBUSY, "a PD with objects was freed");
	CHECK(!ibv_destroy_srq(other), "ibv_destroy_srq: %m");
}

/* A queue pair ends; what is posted is for the others. */
static void last_wqe(struct end *to, struct end *from, uint64_t *next)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;
	uint64_t first = *next;

	for (int i = 0; i < 3; i++)
		CHECK(!post(to, (*next)++), "ibv_post_srq_recv: %m");
	CHECK(!ibv_modify_qp(to->qps[0], &attr, IBV_QP_STATE), "to ERR: %m");
	expect_event(to, IBV_EVENT_QP_LAST_WQE_REACHED, "a queue pair in ERR");
	CHECK(!ibv_poll_cq(to->cq, 1, &wc), "request %ju was flushed with the queue pair", (uintmax_t)wc.wr_id);
	for (int i = 0; i < 3; i++)
		message(from, to, 1 + i, first + i, first + i);
}

/* The file that holds all queues of a context is the device's descriptor; new queues lie below older ones (docs/architecture.md). */
#define FILE_BYTES (16ull << 30)
#define WINDOW (16ull << 20)
/* Of a queue (rdma_user_rxe.h): log2 of the size of an element, mask, at 128 the producer's index, at 384 the elements. */
#define PRODUCER 32
#define ELEMENTS 384

/* The queue with this mask. */
static uint32_t *queue_with(struct end *e, uint32_t mask)
{
	uint8_t *all = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, e->context->cmd_fd, FILE_BYTES - WINDOW);

	CHECK(all != MAP_FAILED, "mapping the queues: %m");
	for (uint64_t at = 0; at < WINDOW; at += 4096)
		if (*(uint32_t *)(all + at) == 6 && *(uint32_t *)(all + at + 4) == mask)
			return (uint32_t *)(all + at);
	fail("the shared queue is not in the file");
}

/* A program that writes nonsense into the pages of its queue hurts what takes from it, and nothing else. */
static void scribbled(struct end *to, struct end *from)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 2047, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 1 };
	struct ibv_async_event got;
	struct ibv_wc wc;
	uint32_t *queue;

	to->srq = ibv_create_srq(to->pd, &init);
	CHECK(to->srq, "ibv_create_srq: %m");
	queue = queue_with(to, 2047);
	set_up(to, from, IBV_QPT_RC);
	for (int i = 0; i < 10; i++)
		CHECK(!post(to, i), "ibv_post_srq_recv: %m");
	/* Requests with four thousand million entries. */
	memset((uint8_t *)queue + ELEMENTS + 64, 0xff, 64);
	message(from, to, 0, 0, 0);
	send_on(from, from->qps[1], 1, 100);
	wc = completion(to, "a broken receive");
	CHECK(wc.status == IBV_WC_LOC_QP_OP_ERR, "a broken receive: %s", ibv_wc_status_str(wc.status));
	wc = completion(from, "its SEND");
	CHECK(wc.status == IBV_WC_REM_OP_ERR, "its SEND: %s", ibv_wc_status_str(wc.status));
	expect_event(to, IBV_EVENT_QP_LAST_WQE_REACHED, "after a broken receive");
	message(from, to, 2, 2, 2);
	/* An index that cannot be. */
	queue[PRODUCER] = 5000;
	send_on(from, from->qps[3], 3, 100);
	expect_event(to, IBV_EVENT_SRQ_ERR, "a broken index");
	CHECK(ibv_modify_srq(to->srq, &attr, IBV_SRQ_LIMIT) == EINVAL, "a queue in error takes orders");
	queue[PRODUCER] = 10;
	CHECK(!event(to, 100, &got) && !ibv_poll_cq(to->cq, 1, &wc), "a queue in error goes on");
	tear_down(to, from);
	CHECK(!ibv_destroy_srq(to->srq), "ibv_destroy_srq: %m");
	while (ibv_poll_cq(from->cq, 1, &wc))
		;
}

/* Of a dead device sends are flushed; receives in a shared queue are of no queue pair, and nobody hears of them. */
static int death(const char *device)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 100, .max_sge = 1 } };
	static struct end e;
	struct ibv_async_event got;
	struct ibv_wc wc;
	int64_t end;

	open_end(&e, device);
	e.srq = ibv_create_srq(e.pd, &init);
	CHECK(e.srq, "ibv_create_srq: %m");
	e.qps[0] = make_qp(&e, IBV_QPT_RC, e.srq);
	/* Connected to nobody, so that a send stays. */
	connect_qp(e.qps[0], 0x123456, &e.gid);
	for (int i = 0; i < 5; i++)
		CHECK(!post(&e, i), "ibv_post_srq_recv: %m");
	send_on(&e, e.qps[0], 77, 100);
	puts("ready");
	fflush(stdout);
	CHECK(event(&e, PATIENCE_MS, &got) && got.event_type == IBV_EVENT_DEVICE_FATAL, "no end of the device");
	wc = completion(&e, "a send to a dead device");
	CHECK(wc.wr_id == 77 && wc.status == IBV_WC_WR_FLUSH_ERR, "request %ju: %s", (uintmax_t)wc.wr_id,
	      ibv_wc_status_str(wc.status));
	for (end = now_ms() + 300; now_ms() < end;)
		CHECK(!ibv_poll_cq(e.cq, 1, &wc), "receive %ju completes", (uintmax_t)wc.wr_id);
	CHECK(!ibv_close_device(e.context), "closing");
	puts("over");
	return 0;
}

int main(int argc, char **argv)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 100, .max_sge = 1 } };
	static struct end to, from;
	uint64_t next = 0;

	if (argc == 3 && !strcmp(argv[1], "--death"))
		return death(argv[2]);
	CHECK(argc == 3, "usage: %s RECEIVER SENDER", argv[0]);
	open_end(&to, argv[1]);
	open_end(&from, argv[2]);
	to.srq = ibv_create_srq(to.pd, &init);
	CHECK(to.srq && init.attr.max_wr == 127, "ibv_create_srq: %m, %u places", init.attr.max_wr);
	set_up(&to, &from, IBV_QPT_RC);
	order_and_limit(&to, &from, &next);
	puts("order and limit");
	resize_under_traffic(&to, &from, &next);
	puts("resize under traffic");
	refused(&to);
	puts("refused");
	last_wqe(&to, &from, &next);
	puts("last request of a queue pair");
	tear_down(&to, &from);
	set_up(&to, &from, IBV_QPT_UC);
	order_and_limit(&to, &from, &next);
	puts("unreliable connections");
	tear_down(&to, &from);
	/* Posted and never taken: nobody flushes it. */
	CHECK(!post(&to, next), "ibv_post_srq_recv: %m");
	CHECK(!ibv_destroy_srq(to.srq), "ibv_destroy_srq: %m");
	scribbled(&to, &from);
	puts("scribbled");
	CHECK(!ibv_dereg_mr(to.mr) && !ibv_destroy_cq(to.cq) && !ibv_dealloc_pd(to.pd) && !ibv_close_device(to.context), "closing");
	CHECK(!ibv_dereg_mr(from.mr) && !ibv_destroy_cq(from.cq) && !ibv_dealloc_pd(from.pd) && !ibv_close_device(from.context),
	      "closing");
	puts("all checked");
	return 0;
}
