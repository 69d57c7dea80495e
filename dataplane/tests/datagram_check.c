/* Datagrams as a program sees them, on two devices: datagram_check DEVICE DEVICE CHECK [GID INDEX [GROUP]]
 * CHECK is grh, group or errors; hold makes objects and waits. */
#include "../../verbs-shim/tests/verbs_end.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	QKEY = 0x11223344,
	GRH = 40,
	SIZE = 2048,		/* of one message's place */
	PLACES = 16,
};

struct options options;

/* A UD queue pair with memory, on a device that several may share. */
struct dgram {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
};

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	check(list != NULL, "no device list: %s", strerror(errno));
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	check(context != NULL, "cannot open %s: %s", name, strerror(errno));
	ibv_free_device_list(list);
	return context;
}

static void to_rts(struct dgram *d)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

	check(!ibv_modify_qp(d->qp, &attr, mask), "to INIT: %s", strerror(errno));
	attr.qp_state = IBV_QPS_RTR;
	check(!ibv_modify_qp(d->qp, &attr, IBV_QP_STATE), "to RTR: %s", strerror(errno));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 7;
	check(!ibv_modify_qp(d->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "to RTS: %s", strerror(errno));
}

static struct dgram make(struct ibv_context *context)
{
	struct dgram d = { .context = context, .pd = ibv_alloc_pd(context) };

	check(d.pd != NULL, "ibv_alloc_pd: %s", strerror(errno));
	d.cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	check(d.cq != NULL, "ibv_create_cq: %s", strerror(errno));
	d.memory = calloc(PLACES, SIZE);
	d.mr = ibv_reg_mr(d.pd, d.memory, PLACES * SIZE, IBV_ACCESS_LOCAL_WRITE);
	check(d.mr != NULL, "ibv_reg_mr: %s", strerror(errno));
	struct ibv_qp_init_attr init = {
		.send_cq = d.cq,
		.recv_cq = d.cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
	};
	d.qp = ibv_create_qp(d.pd, &init);
	check(d.qp != NULL, "ibv_create_qp: %s", strerror(errno));
	to_rts(&d);
	return d;
}

static void unmake(struct dgram *d)
{
	check(!ibv_destroy_qp(d->qp), "ibv_destroy_qp: %s", strerror(errno));
	check(!ibv_destroy_cq(d->cq), "ibv_destroy_cq: %s", strerror(errno));
	check(!ibv_dereg_mr(d->mr), "ibv_dereg_mr: %s", strerror(errno));
	check(!ibv_dealloc_pd(d->pd), "ibv_dealloc_pd: %s", strerror(errno));
	free(d->memory);
}

/* A receive into place `n`, which is its number. */
static void post_place(struct dgram *d, int n)
{
	struct ibv_sge sge = { (uintptr_t)d->memory + n * SIZE, SIZE, d->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(!ibv_post_recv(d->qp, &wr, &bad), "ibv_post_recv: %s", strerror(errno));
}

/* Sends `text` inline, so that nothing of the memory is used. */
static void send_text(struct dgram *d, struct ibv_ah *ah, uint32_t qpn, const char *text)
{
	struct ibv_sge sge = { (uintptr_t)text, strlen(text) + 1, 0 };
	struct ibv_send_wr wr = {
		.wr_id = 100,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htonl(0xcafe),
		.send_flags = IBV_SEND_INLINE,
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY },
	}, *bad;

	check(!ibv_post_send(d->qp, &wr, &bad), "ibv_post_send: %s", strerror(errno));
}

static struct ibv_wc next(struct dgram *d, const char *what)
{
	int64_t end = now_ms() + 20000;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(d->cq, 1, &wc)))
		check(now_ms() < end, "no completion: %s", what);
	check(n == 1, "ibv_poll_cq: %d", n);
	return wc;
}

static void expect_wc(struct dgram *d, const char *what, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next(d, what);

	check(wc.wr_id == wr_id && wc.status == status, "%s: request %d, %s; expected %d, %s", what, (int)wc.wr_id,
	      ibv_wc_status_str(wc.status), (int)wr_id, ibv_wc_status_str(status));
}

/* A receive that holds `text` from `from`; the completion. */
static struct ibv_wc expect_text(struct dgram *d, int place, const char *text, uint32_t from)
{
	struct ibv_wc wc = next(d, text);

	check(wc.wr_id == (uint64_t)place && wc.status == IBV_WC_SUCCESS, "\"%s\": request %d, %s", text,
	      (int)wc.wr_id, ibv_wc_status_str(wc.status));
	check(wc.byte_len == GRH + strlen(text) + 1, "\"%s\": %u bytes", text, wc.byte_len);
	check(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM), "\"%s\": flags %d", text, wc.wc_flags);
	check(wc.imm_data == htonl(0xcafe) && wc.src_qp == from, "\"%s\": from %#x", text, wc.src_qp);
	check(!strcmp((char *)d->memory + place * SIZE + GRH, text), "\"%s\" arrived as \"%s\"", text,
	      d->memory + place * SIZE + GRH);
	return wc;
}

static void expect_silence(struct dgram *d, const char *what)
{
	struct ibv_wc wc;

	check(ibv_poll_cq(d->cq, 1, &wc) == 0, "%s: a completion", what);
}

static struct ibv_ah *ah_to(struct ibv_pd *pd, union ibv_gid gid, int sgid_index)
{
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = gid, .sgid_index = sgid_index, .hop_limit = 9, .traffic_class = 0x28 },
	};

	return ibv_create_ah(pd, &attr);
}

static union ibv_gid gid_of(struct dgram *d, int index)
{
	union ibv_gid gid;

	check(!ibv_query_gid(d->context, 1, index, &gid), "ibv_query_gid: %s", strerror(errno));
	return gid;
}

/* The 40 bytes, and the answer that they make possible. */
static void check_grh(struct dgram *a, struct dgram *b, int index)
{
	union ibv_gid own = gid_of(a, index), peer = gid_of(b, index);
	struct ibv_ah *ah = ah_to(a->pd, peer, index);
	struct ibv_ah_attr attr;

	check(ah != NULL, "ibv_create_ah: %s", strerror(errno));
	post_place(b, 1);
	send_text(a, ah, b->qp->qp_num, "there");
	struct ibv_wc wc = expect_text(b, 1, "there", a->qp->qp_num);
	uint8_t *grh = b->memory + SIZE;
	static const uint8_t zeros[20];
	bool ipv4 = own.raw[10] == 0xff && own.raw[11] == 0xff && !own.raw[0];
	if (ipv4) {
		uint32_t sum = 0;
		check(!memcmp(grh, zeros, 20), "bytes before the IPv4 header");
		/* The class that was asked for, with ECT(0): congestion control is on. */
		check(grh[20] == 0x45 && grh[21] == (0x28 | 2) && grh[29] == 17, "version, TOS, protocol");
		for (int i = 20; i < 40; i += 2)
			sum += grh[i] << 8 | grh[i + 1];
		while (sum >> 16)
			sum = (sum & 0xffff) + (sum >> 16);
		check(sum == 0xffff, "checksum of the IPv4 header");
		check(!memcmp(grh + 32, own.raw + 12, 4) && !memcmp(grh + 36, peer.raw + 12, 4), "addresses");
	} else {
		check(grh[0] >> 4 == 6 && grh[6] == 17, "version, next header");
		check(!memcmp(grh + 8, own.raw, 16) && !memcmp(grh + 24, peer.raw, 16), "addresses");
	}
	check(!ibv_init_ah_from_wc(b->context, 1, &wc, (struct ibv_grh *)grh, &attr), "ibv_init_ah_from_wc");
	check(!memcmp(&attr.grh.dgid, &own, 16) && attr.grh.sgid_index == index, "the way back");
	struct ibv_ah *back = ibv_create_ah_from_wc(b->pd, &wc, (struct ibv_grh *)grh, 1);
	check(back != NULL, "ibv_create_ah_from_wc: %s", strerror(errno));
	post_place(a, 2);
	expect_wc(a, "the first send", 100, IBV_WC_SUCCESS);
	send_text(b, back, wc.src_qp, "and back");
	expect_text(a, 2, "and back", b->qp->qp_num);
	expect_wc(b, "the second send", 100, IBV_WC_SUCCESS);
	check(!ibv_destroy_ah(ah) && !ibv_destroy_ah(back), "ibv_destroy_ah");
}

/* Two members on each device, one of which sends: five copies of two messages, then less and less. */
static void check_group(struct ibv_context *contexts[2], int index, const char *name)
{
	struct dgram members[4], stranger = make(contexts[1]);
	union ibv_gid group;

	check(inet_pton(AF_INET6, name, &group) == 1, "%s is no IPv6 address", name);
	for (int i = 0; i < 4; i++) {
		members[i] = make(contexts[i / 2]);
		/* Twice is once. */
		for (int twice = 0; twice < 2; twice++)
			check(!ibv_attach_mcast(members[i].qp, &group, 0), "ibv_attach_mcast: %s", strerror(errno));
		post_place(&members[i], 1);
		post_place(&members[i], 2);
	}
	post_place(&stranger, 1);
	struct ibv_ah *ah = ah_to(members[0].pd, group, index);
	check(ah != NULL, "ibv_create_ah: %s", strerror(errno));
	uint32_t from = members[0].qp->qp_num;
	send_text(&members[0], ah, 0xffffff, "to all");
	/* The loop back into the NIC may be faster or slower than the completion of the send. */
	struct ibv_wc first = next(&members[0], "one of two");
	struct ibv_wc second = next(&members[0], "two of two");
	check(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS, "send and receive");
	check(first.wr_id + second.wr_id == 101, "requests %d and %d", (int)first.wr_id, (int)second.wr_id);
	check(!strcmp((char *)members[0].memory + SIZE + GRH, "to all"), "the sender's own copy");
	for (int i = 1; i < 4; i++)
		expect_text(&members[i], 1, "to all", from);
	check(ibv_destroy_qp(members[0].qp) == EBUSY, "a member was destroyed");
	check(!ibv_detach_mcast(members[0].qp, &group, 0), "ibv_detach_mcast: %s", strerror(errno));
	check(ibv_detach_mcast(members[0].qp, &group, 0) == EINVAL, "detached twice");
	check(!ibv_detach_mcast(members[3].qp, &group, 0), "ibv_detach_mcast: %s", strerror(errno));
	send_text(&members[0], ah, 0xffffff, "to two");
	expect_wc(&members[0], "send", 100, IBV_WC_SUCCESS);
	for (int i = 1; i < 3; i++)
		expect_text(&members[i], 2, "to two", from);
	expect_silence(&members[0], "no longer a member");
	expect_silence(&members[3], "no longer a member");
	expect_silence(&stranger, "never a member");
	check(!ibv_destroy_ah(ah), "ibv_destroy_ah");
	for (int i = 1; i < 3; i++)
		check(!ibv_detach_mcast(members[i].qp, &group, 0), "ibv_detach_mcast: %s", strerror(errno));
	for (int i = 0; i < 4; i++)
		unmake(&members[i]);
	unmake(&stranger);
}

static void expect_state_of(struct dgram *d, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	check(!ibv_query_qp(d->qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp: %s", strerror(errno));
	check(attr.qp_state == state, "state %d, not %d", attr.qp_state, state);
}

static void check_errors(struct dgram *a, struct dgram *b)
{
	union ibv_gid peer = gid_of(b, 0), nobody = peer, none = { .raw = { 0 } };
	struct ibv_port_attr port;
	struct ibv_ah_attr no_grh = { .port_num = 1, .dlid = 1 };

	nobody.raw[15] = 99;
	check(!ah_to(a->pd, nobody, 0) && errno == ETIMEDOUT, "nobody's address: %s", strerror(errno));
	check(!ah_to(a->pd, none, 0) && errno == EINVAL, "no address: %s", strerror(errno));
	check(!ah_to(a->pd, peer, 77) && errno == EINVAL, "GID index 77: %s", strerror(errno));
	check(!ibv_create_ah(a->pd, &no_grh) && errno == EINVAL, "no GRH: %s", strerror(errno));
	check(ibv_attach_mcast(a->qp, &peer, 0) == EINVAL, "a unicast group");

	struct ibv_ah *ah = ah_to(a->pd, peer, 0);
	check(ah != NULL, "ibv_create_ah: %s", strerror(errno));
	check(ibv_dealloc_pd(a->pd) == EBUSY, "a PD with an address handle was freed");

	/* Longer than the MTU: SQE, flush, and back. */
	struct ibv_sge sge[2] = { { (uintptr_t)a->memory, 4000, a->mr->lkey },
				  { (uintptr_t)a->memory, 200, a->mr->lkey } };
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = sge,
		.num_sge = 2,
		.opcode = IBV_WR_SEND,
		.wr.ud = { .ah = ah, .remote_qpn = b->qp->qp_num, .remote_qkey = QKEY },
	}, *bad;
	check(!ibv_post_send(a->qp, &wr, &bad), "ibv_post_send: %s", strerror(errno));
	expect_wc(a, "longer than the MTU", 1, IBV_WC_LOC_LEN_ERR);
	expect_state_of(a, IBV_QPS_SQE);
	send_text(a, ah, b->qp->qp_num, "flushed");
	expect_wc(a, "in SQE", 100, IBV_WC_WR_FLUSH_ERR);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	check(!ibv_modify_qp(a->qp, &attr, IBV_QP_STATE), "SQE to RTS: %s", strerror(errno));

	/* A wrong Q_Key, and no receive: the sender hears nothing of it. */
	check(!ibv_query_port(b->context, 1, &port), "ibv_query_port: %s", strerror(errno));
	unsigned violations = port.qkey_viol_cntr;
	wr.num_sge = 1;
	sge[0].length = 10;
	wr.wr.ud.remote_qkey = QKEY + 1;
	check(!ibv_post_send(a->qp, &wr, &bad), "ibv_post_send: %s", strerror(errno));
	expect_wc(a, "wrong Q_Key", 1, IBV_WC_SUCCESS);
	send_text(a, ah, b->qp->qp_num, "no receive");
	expect_wc(a, "no receive", 100, IBV_WC_SUCCESS);
	int64_t end = now_ms() + 20000;
	do {
		check(now_ms() < end, "the violation is not counted");
		check(!ibv_query_port(b->context, 1, &port), "ibv_query_port: %s", strerror(errno));
	} while (port.qkey_viol_cntr != violations + 1);
	expect_silence(b, "dropped");

	/* An address handle of another protection domain. */
	struct ibv_pd *other = ibv_alloc_pd(a->context);
	check(other != NULL, "ibv_alloc_pd: %s", strerror(errno));
	struct ibv_ah *strange = ah_to(other, peer, 0);
	check(strange != NULL, "ibv_create_ah: %s", strerror(errno));
	wr.wr.ud.ah = strange;
	check(!ibv_post_send(a->qp, &wr, &bad), "ibv_post_send: %s", strerror(errno));
	expect_wc(a, "another PD's address handle", 1, IBV_WC_LOC_QP_OP_ERR);
	expect_state_of(a, IBV_QPS_SQE);
	check(!ibv_destroy_ah(strange) && !ibv_destroy_ah(ah), "ibv_destroy_ah: %s", strerror(errno));
	check(!ibv_dealloc_pd(other), "ibv_dealloc_pd: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	check(argc > 3, "usage: datagram_check DEVICE DEVICE grh|group|errors [GID INDEX [GROUP]]");
	struct ibv_context *contexts[2] = { open_device(argv[1]), open_device(argv[2]) };
	int index = argc > 4 ? atoi(argv[4]) : 0;

	if (!strcmp(argv[3], "group")) {
		check(argc > 5, "which group?");
		check_group(contexts, index, argv[5]);
	} else {
		struct dgram a = make(contexts[0]), b = make(contexts[1]);
		if (!strcmp(argv[3], "hold")) {
			/* Until somebody ends it. */
			union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 9 } };
			for (int i = 0; i < 150; i++)
				check(ah_to(a.pd, gid_of(&b, 0), 0) && ah_to(b.pd, group, 1), "ibv_create_ah");
			check(!ibv_attach_mcast(a.qp, &group, 0) && !ibv_attach_mcast(b.qp, &group, 0),
			      "ibv_attach_mcast");
			pause();
		}
		if (!strcmp(argv[3], "grh"))
			check_grh(&a, &b, index);
		else
			check_errors(&a, &b);
		unmake(&a);
		unmake(&b);
	}
	check(!ibv_close_device(contexts[0]) && !ibv_close_device(contexts[1]), "ibv_close_device");
	printf("ok\n");
	return 0;
}
