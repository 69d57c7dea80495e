#include "verbs_end.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const struct link patient = { .rnr_retry = 7, .retry_cnt = 7 };

_Noreturn void fail(const char *format, ...)
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

void check(bool ok, const char *format, ...)
{
	char text[512];
	va_list args;

	if (ok)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fail("%s", text);
}

int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

uint8_t pattern(uint32_t seed, size_t i)
{
	uint32_t x = (seed + 1) * 2654435761u ^ (uint32_t)i * 2246822519u;

	return (uint8_t)(x >> 13) | 1;	/* never the 0 of blank() */
}

void fill(struct end *end, uint32_t seed, size_t length)
{
	for (size_t i = 0; i < length; i++)
		end->buffer[i] = pattern(seed, i);
}

void blank(struct end *end)
{
	memset(end->memory, 0, GUARD + MAX_MESSAGE + GUARD);
}

void check_bytes(const struct end *end, const char *what, uint32_t seed, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (end->buffer[i] != pattern(seed, i))
			fail("%s: byte %zu of %zu at %s is 0x%02x, expected 0x%02x", what, i, length, end->name,
			     end->buffer[i], pattern(seed, i));
	for (size_t i = 0; i < GUARD; i++) {
		check(end->memory[i] == 0, "%s: byte %zu before the buffer at %s was overwritten", what, GUARD - i,
		      end->name);
		check(end->buffer[length + i] == 0, "%s: byte %zu after the message at %s was overwritten", what, i,
		      end->name);
	}
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list = ibv_get_device_list(NULL);

	check(list != NULL, "no device list: %s", strerror(errno));
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name)) {
			context = ibv_open_device(list[i]);
			check(context != NULL, "cannot open %s: %s", name, strerror(errno));
			break;
		}
	check(context != NULL, "no device %s", name);
	ibv_free_device_list(list);
	return context;
}

void open_end(struct end *end, const char *device)
{
	*end = (struct end){ .name = device, .psn = (uint32_t)rand() & 0xffffff };
	end->context = open_device(device);
	end->pd = ibv_alloc_pd(end->context);
	check(end->pd != NULL, "ibv_alloc_pd on %s: %s", device, strerror(errno));
	end->channel = ibv_create_comp_channel(end->context);
	check(end->channel != NULL, "ibv_create_comp_channel on %s: %s", device, strerror(errno));
	end->cq = ibv_create_cq(end->context, 4 * QUEUE, end, end->channel, 0);
	check(end->cq != NULL, "ibv_create_cq on %s: %s", device, strerror(errno));

	/* An odd address: nothing may depend on alignment. */
	end->memory = (uint8_t *)malloc(GUARD + MAX_MESSAGE + GUARD + 1) + 1;
	check(end->memory != (uint8_t *)1, "out of memory");
	end->buffer = end->memory + GUARD;
	blank(end);
	end->mr = ibv_reg_mr(end->pd, end->memory, GUARD + MAX_MESSAGE + GUARD,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	check(end->mr != NULL, "ibv_reg_mr on %s: %s", device, strerror(errno));

	struct ibv_qp_init_attr init = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 4, .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
	end->qp = ibv_create_qp(end->pd, &init);
	check(end->qp != NULL, "ibv_create_qp on %s: %s", device, strerror(errno));
}

static enum ibv_mtu mtu_code(int bytes)
{
	switch (bytes) {
	case 256: return IBV_MTU_256;
	case 512: return IBV_MTU_512;
	case 1024: return IBV_MTU_1024;
	case 2048: return IBV_MTU_2048;
	case 4096: return IBV_MTU_4096;
	}
	fail("MTU %d: it is 256, 512, 1024, 2048 or 4096", bytes);
}

static void modify(struct end *end, struct ibv_qp_attr attr, int mask)
{
	int error = ibv_modify_qp(end->qp, &attr, mask);

	check(error == 0, "ibv_modify_qp on %s to state %d: %s", end->name, attr.qp_state, strerror(error));
}

/* What one end must know of the other. */
struct address {
	uint32_t qpn, psn;
	union ibv_gid gid;
};

static struct address address_of(const struct end *end)
{
	struct address address = { .qpn = end->qp->qp_num, .psn = end->psn };

	check(ibv_query_gid(end->context, 1, options.gid_index, &address.gid) == 0, "no GID %d on %s", options.gid_index,
	      end->name);
	return address;
}

static void connect_end(struct end *end, struct address peer, struct link link)
{
	modify(end,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
				     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						       IBV_ACCESS_REMOTE_ATOMIC },
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(end,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu_code(options.mtu),
				     .dest_qp_num = peer.qpn, .rq_psn = peer.psn, .max_dest_rd_atomic = 4,
				     .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = peer.gid, .sgid_index = (uint8_t)options.gid_index,
							   .hop_limit = 64 } } },
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	modify(end,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = link.timeout ? link.timeout : 14,
				     .retry_cnt = link.retry_cnt, .rnr_retry = link.rnr_retry, .sq_psn = end->psn,
				     .max_rd_atomic = 4 },
	       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		       IBV_QP_MAX_QP_RD_ATOMIC);
	expect_state(end, IBV_QPS_RTS);
}

void connect_pair(struct end ends[2], struct link link)
{
	open_end(&ends[0], options.device[0]);
	open_end(&ends[1], options.device[1]);
	connect_end(&ends[0], address_of(&ends[1]), link);
	connect_end(&ends[1], address_of(&ends[0]), link);
}

void connect_over(struct end *end, int socket, struct link link)
{
	struct address own = address_of(end), other;
	char ready = 'r';

	check(write(socket, &own, sizeof own) == sizeof own, "write: %s", strerror(errno));
	check(read(socket, &other, sizeof other) == sizeof other, "the other end is gone");
	connect_end(end, other, link);
	check(write(socket, &ready, 1) == 1 && read(socket, &ready, 1) == 1, "the other end is gone");
}

void close_pair(struct end ends[2])
{
	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];

		check(ibv_destroy_qp(end->qp) == 0, "ibv_destroy_qp on %s", end->name);
		if (end->unacked)
			ibv_ack_cq_events(end->cq, end->unacked);
		check(ibv_destroy_cq(end->cq) == 0, "ibv_destroy_cq on %s", end->name);
		check(ibv_destroy_comp_channel(end->channel) == 0, "ibv_destroy_comp_channel on %s", end->name);
		check(ibv_dereg_mr(end->mr) == 0, "ibv_dereg_mr on %s", end->name);
		check(ibv_dealloc_pd(end->pd) == 0, "ibv_dealloc_pd on %s", end->name);
		check(ibv_close_device(end->context) == 0, "ibv_close_device on %s", end->name);
		free(end->memory - 1);
	}
}

struct ibv_sge sge_of(const struct end *end, size_t offset, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)end->buffer + offset, length, end->mr->lkey };
}

int try_send(struct end *end, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(end->qp, wr, &bad);
}

void post_send(struct end *end, struct ibv_send_wr wr)
{
	int error = try_send(end, &wr);

	check(error == 0, "ibv_post_send on %s: %s", end->name, strerror(error));
}

void post_op(struct end *end, const struct end *peer, enum ibv_wr_opcode opcode, uint32_t length, uint64_t wr_id)
{
	struct ibv_sge sge = sge_of(end, 0, length);

	post_send(end, (struct ibv_send_wr){
			       .wr_id = wr_id, .sg_list = &sge, .num_sge = length ? 1 : 0, .opcode = opcode,
			       .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(0x01020304),
			       .wr.rdma = { .remote_addr = (uintptr_t)peer->buffer, .rkey = peer->mr->rkey } });
}

void post_recv(struct end *end, uint32_t length, uint64_t wr_id)
{
	struct ibv_sge sge = sge_of(end, 0, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = length ? 1 : 0 }, *bad;
	int error = ibv_post_recv(end->qp, &wr, &bad);

	check(error == 0, "ibv_post_recv on %s: %s", end->name, strerror(error));
}

static bool poll_until(struct end *end, struct ibv_wc *wc, int64_t deadline)
{
	for (;;) {
		int n = ibv_poll_cq(end->cq, 1, wc);

		check(n >= 0, "ibv_poll_cq on %s: %d", end->name, n);
		if (n || now_ms() > deadline)
			return n;
	}
}

struct ibv_wc expect(struct end *end, const char *what, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = { 0 };

	check(poll_until(end, &wc, now_ms() + 1000 * options.seconds),
	      "%s: no completion on %s within %d s, expected \"%s\" of request %" PRIu64, what, end->name,
	      options.seconds, ibv_wc_status_str(status), wr_id);
	check(wc.status == status,
	      "%s: request %" PRIu64 " on %s completed with \"%s\" (vendor error 0x%x), expected \"%s\"", what, wc.wr_id,
	      end->name, ibv_wc_status_str(wc.status), wc.vendor_err, ibv_wc_status_str(status));
	check(wc.wr_id == wr_id, "%s: request %" PRIu64 " completed on %s, expected request %" PRIu64, what, wc.wr_id,
	      end->name, wr_id);
	check(wc.qp_num == end->qp->qp_num, "%s: completion of QP 0x%x on %s, expected QP 0x%x", what, wc.qp_num,
	      end->name, end->qp->qp_num);
	return wc;
}

void expect_nothing(struct end *end, const char *what, int milliseconds)
{
	struct ibv_wc wc = { 0 };
	bool came = poll_until(end, &wc, now_ms() + milliseconds);

	check(!came, "%s: unexpected completion on %s: request %" PRIu64 ", \"%s\"", what, end->name, wc.wr_id,
	      ibv_wc_status_str(wc.status));
}

void expect_state(struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int64_t deadline = now_ms() + 1000 * options.seconds;

	do {
		int error = ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init);

		check(error == 0, "ibv_query_qp on %s: %s", end->name, strerror(error));
	} while (attr.qp_state != state && now_ms() < deadline);
	check(attr.qp_state == state, "the QP on %s is in state %d, expected %d", end->name, attr.qp_state, state);
}

void to_error(struct end *end)
{
	modify(end, (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE);
}

bool event_within(struct end *end, int milliseconds)
{
	struct pollfd fd = { .fd = end->channel->fd, .events = POLLIN };

	return poll(&fd, 1, milliseconds) == 1;
}

void take_event(struct end *end)
{
	struct ibv_cq *cq;
	void *user;

	check(event_within(end, 1000 * options.seconds), "no completion event on %s within %d s", end->name,
	      options.seconds);
	check(ibv_get_cq_event(end->channel, &cq, &user) == 0, "ibv_get_cq_event on %s", end->name);
	check(cq == end->cq && user == end, "the event on %s names another CQ", end->name);
	end->unacked++;
}

void arm(struct end *end, bool solicited_only)
{
	check(ibv_req_notify_cq(end->cq, solicited_only) == 0, "ibv_req_notify_cq on %s", end->name);
}
