/* One queue pair and what is under way on it.
 *
 * Each request has a slot of the near end's memory (`local`) and one of the far end's (`remote`), so requests never touch
 * each other's bytes and each can be checked by itself, guards included. SEND lands in receives (`landing`). The model is
 * a copy of each area, changed when a request completes by what it should have done. */
#define _GNU_SOURCE
#include "soak.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { UNTOUCHED = 0xee };

const char *const kind_names[KINDS] = { "send", "send_imm", "write", "write_imm", "read", "cas", "add" };

static uint8_t *slot_of(const struct area *area, uint32_t slot)
{
	return area->base + slot * area->stride + GUARD;
}

static uint8_t *model_of(const struct area *area, uint32_t slot)
{
	return area->model + slot * area->stride + GUARD;
}

void make_area(struct area *area, struct ibv_pd *pd, struct chance *chance, size_t slot, unsigned slots)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	area->stride = (slot + 2 * GUARD + 63) / 64 * 64;
	area->bytes = area->stride * slots;
	area->fd = -1;
	switch (below(chance, 4)) {
	case 0:
		area->fd = memfd_create("soak", MFD_CLOEXEC);
		check(area->fd >= 0 && !ftruncate(area->fd, (off_t)area->bytes), "memfd: %s", strerror(errno));
		area->base = mmap(NULL, area->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, area->fd, 0);
		break;
	case 1:
		/* In the middle of the heap: not at the start of a page, beside what is not registered. */
		area->base = malloc(area->bytes);
		check(area->base != NULL, "malloc");
		area->fd = -2;
		break;
	default:
		area->base = mmap(NULL, area->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		break;
	}
	check(area->base != MAP_FAILED, "mmap: %s", strerror(errno));
	memset(area->base, UNTOUCHED, area->bytes);
	area->model = malloc(area->bytes);
	check(area->model != NULL, "malloc");
	memset(area->model, UNTOUCHED, area->bytes);
	area->mr = ibv_reg_mr(pd, area->base, area->bytes, access);
	check(area->mr != NULL, "ibv_reg_mr of %zu bytes: %s", area->bytes, strerror(errno));
}

void free_area(struct area *area)
{
	int error = ibv_dereg_mr(area->mr);

	check(error == 0, "ibv_dereg_mr: %s", strerror(error));
	if (area->fd == -2)
		free(area->base);
	else
		munmap(area->base, area->bytes);
	if (area->fd >= 0)
		close(area->fd);
	free(area->model);
}

static void same(const struct area *area, uint32_t slot, const char *what, const struct pair *pair,
		 const struct request *request)
{
	const uint8_t *is = area->base + slot * area->stride, *should = area->model + slot * area->stride;

	if (!memcmp(is, should, area->stride))
		return;
	for (size_t i = 0; i < area->stride; i++)
		if (is[i] != should[i])
			fail("QP %#x: byte %zd of %s slot %u is %#x, not %#x, after %s of %u bytes (request %" PRIu64 ")",
			     pair->qp[0]->qp_num, (ssize_t)i - GUARD, what, slot, is[i], should[i],
			     request ? kind_names[request->kind] : "all", request ? request->length : 0,
			     request ? request->id : 0);
}

void check_all(struct pair *pair)
{
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		same(&pair->local, slot, "local", pair, NULL);
		/* What nobody acknowledges may have arrived in part. */
		if (pair->type == IBV_QPT_RC)
			same(&pair->remote, slot, "remote", pair, NULL);
	}
}

/* ---- receives */

static void post_receive(struct pair *user, uint32_t slot)
{
	struct pair *pair = user->lander;
	uint32_t grh = pair->type == IBV_QPT_UD ? GRH : 0;
	struct ibv_sge sge = { .addr = (uintptr_t)slot_of(&pair->landing, slot), .length = pair->longest + grh,
			       .lkey = pair->landing.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error;

	memset(slot_of(&pair->landing, slot), UNTOUCHED, sge.length);
	memset(model_of(&pair->landing, slot), UNTOUCHED, sge.length);
	if (pair->far->srq)
		error = ibv_post_srq_recv(pair->far->srq, &wr, &bad);
	else
		error = ibv_post_recv(pair->qp[1], &wr, &bad);
	check(error == 0, "posting a receive: %s", strerror(error));
}

void post_receives(struct pair *pair)
{
	for (uint32_t slot = 0; slot < RECVS; slot++)
		post_receive(pair, slot);
}

/* ---- requests */

unsigned under_way(const struct pair *pair)
{
	unsigned count = 0;

	for (uint32_t slot = 0; slot < SLOTS; slot++)
		count += pair->requests[slot].busy;
	return count;
}

static uint32_t some_length(struct chance *chance, uint32_t longest)
{
	switch (below(chance, 8)) {
	case 0:
		return below(chance, 2);
	case 1:
		return longest;
	case 2:
	case 3:
		return below(chance, longest < 64 ? longest + 1 : 65);
	default:
		return below(chance, longest + 1);
	}
}

static enum kind some_kind(const struct pair *pair, struct chance *chance)
{
	static const enum kind of_uc[] = { K_SEND_IMM, K_WRITE_IMM };
	static const enum kind of_rc[] = { K_SEND, K_SEND_IMM, K_WRITE, K_WRITE, K_WRITE_IMM, K_READ, K_READ, K_CAS, K_ADD };

	switch (pair->type) {
	case IBV_QPT_UD:
		return K_SEND_IMM;
	case IBV_QPT_UC:
		return of_uc[below(chance, 2)];
	default:
		return of_rc[below(chance, pair->atomics ? 9 : 7)];
	}
}

/* The pieces of a request: consecutive bytes of its slot, cut at random places. */
static int cut(const struct pair *pair, uint32_t slot, struct request *request, struct chance *chance,
	       struct ibv_sge sges[MAX_SGE])
{
	uint32_t left = request->length, at = 0;
	int count = 0;

	if (left == 0 && one_in(chance, 2))
		return 0;
	while (count < MAX_SGE - 1 && left > 1 && one_in(chance, 3)) {
		uint32_t piece = 1 + below(chance, left - 1);

		sges[count++] = (struct ibv_sge){ .addr = (uintptr_t)slot_of(&pair->local, slot) + at, .length = piece,
						  .lkey = pair->local.mr->lkey };
		at += piece;
		left -= piece;
	}
	sges[count++] = (struct ibv_sge){ .addr = (uintptr_t)slot_of(&pair->local, slot) + at, .length = left,
					  .lkey = pair->local.mr->lkey };
	return count;
}

static void set_atomic(struct pair *pair, uint32_t slot, struct request *request, struct chance *chance,
		       struct ibv_send_wr *wr)
{
	request->length = 8;
	request->counter = slot % COUNTERS;
	pair->counter_busy[request->counter] = true;
	wr->wr.atomic.remote_addr = (uintptr_t)slot_of(&pair->remote, 0) + 8 * request->counter;
	wr->wr.atomic.rkey = pair->remote.mr->rkey;
	request->value = next(chance);
	if (request->kind == K_ADD) {
		wr->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr->wr.atomic.compare_add = request->value;
		return;
	}
	wr->opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	request->compare = pair->counters[request->counter] + one_in(chance, 3);
	wr->wr.atomic.compare_add = request->compare;
	wr->wr.atomic.swap = request->value;
}

bool post_something(struct pair *pair, struct chance *chance, struct totals *totals)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
						      IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ };
	/* Slot 0 of the far end has the counters. */
	uint32_t slot = 1 + below(chance, SLOTS - 1);
	struct request *request = &pair->requests[slot];
	struct ibv_sge sges[MAX_SGE];
	struct ibv_send_wr wr = { .wr_id = slot, .sg_list = sges, .send_flags = IBV_SEND_SIGNALED }, *bad;
	enum kind kind = some_kind(pair, chance);
	int error;

	if (request->busy || ((kind == K_CAS || kind == K_ADD) && pair->counter_busy[slot % COUNTERS]))
		return false;
	*request = (struct request){ .busy = true, .kind = kind, .id = ++pair->next_id };
	request->consumes = kind == K_SEND || kind == K_SEND_IMM || kind == K_WRITE_IMM;
	request->length = some_length(chance, pair->longest);
	request->remote_offset = below(chance, pair->longest - request->length + 1);
	if (kind == K_CAS || kind == K_ADD) {
		set_atomic(pair, slot, request, chance, &wr);
	} else {
		wr.opcode = opcodes[kind];
		wr.wr.rdma.remote_addr = (uintptr_t)slot_of(&pair->remote, slot) + request->remote_offset;
		wr.wr.rdma.rkey = pair->remote.mr->rkey;
	}
	/* What identifies a message that may come alone. */
	wr.imm_data = (uint32_t)request->id;
	if (kind <= K_WRITE_IMM) {
		fill(slot_of(&pair->local, slot), request->length, request->id, 0);
		memcpy(model_of(&pair->local, slot), slot_of(&pair->local, slot), request->length);
	} else {
		memset(slot_of(&pair->local, slot), UNTOUCHED, request->length);
	}
	wr.num_sge = cut(pair, slot, request, chance, sges);
	if (kind == K_CAS || kind == K_ADD)
		wr.num_sge = 1, sges[0] = (struct ibv_sge){ (uintptr_t)slot_of(&pair->local, slot), 8, pair->local.mr->lkey };
	if (pair->type == IBV_QPT_UD) {
		wr.wr.ud.ah = pair->ah;
		wr.wr.ud.remote_qpn = pair->qp[1]->qp_num;
		wr.wr.ud.remote_qkey = 0x11111111;
	}
	if (pair->type == IBV_QPT_RC && one_in(chance, 8))
		wr.send_flags |= IBV_SEND_FENCE;
	if (request->consumes && one_in(chance, 2))
		wr.send_flags |= IBV_SEND_SOLICITED;
	error = ibv_post_send(pair->qp[0], &wr, &bad);
	check(error == 0, "ibv_post_send of %s: %s", kind_names[kind], strerror(error));
	if (request->consumes && pair->type == IBV_QPT_RC)
		pair->order[(pair->order_first + pair->order_count++) % (SLOTS + 1)] = slot;
	totals->requests++;
	totals->by_kind[kind]++;
	totals->bytes += request->length;
	return true;
}

/* ---- completions */

/* A request is over: both ends have said so, as far as they do. */
static void settle(struct pair *pair, uint32_t slot)
{
	struct request *request = &pair->requests[slot];
	bool waits = request->consumes && pair->type == IBV_QPT_RC && !request->received;
	uint8_t *near = model_of(&pair->local, slot), *far = model_of(&pair->remote, slot);
	uint64_t old;

	if (!request->sent || waits)
		return;
	switch (request->kind) {
	case K_WRITE:
	case K_WRITE_IMM:
		/* What nobody acknowledges may have arrived in part, or come later. */
		if (pair->type == IBV_QPT_RC)
			memcpy(far + request->remote_offset, near, request->length);
		break;
	case K_READ:
		memcpy(near, far + request->remote_offset, request->length);
		break;
	case K_CAS:
	case K_ADD:
		old = pair->counters[request->counter];
		memcpy(near, &old, 8);
		if (request->kind == K_ADD)
			pair->counters[request->counter] = old + request->value;
		else if (old == request->compare)
			pair->counters[request->counter] = request->value;
		memcpy(model_of(&pair->remote, 0) + 8 * request->counter, &pair->counters[request->counter], 8);
		pair->counter_busy[request->counter] = false;
		break;
	default:
		break;
	}
	same(&pair->local, slot, "local", pair, request);
	if (pair->type == IBV_QPT_RC)
		same(&pair->remote, slot, "remote", pair, request);
	request->busy = false;
}

static void sent(struct pair *pair, const struct ibv_wc *wc)
{
	struct request *request;

	check(wc->wr_id < SLOTS, "a completion of slot %" PRIu64, wc->wr_id);
	request = &pair->requests[wc->wr_id];
	check(request->busy && !request->sent, "QP %#x: a second completion of slot %" PRIu64, wc->qp_num, wc->wr_id);
	check(wc->status == IBV_WC_SUCCESS, "QP %#x: %s of %u bytes (request %" PRIu64 "): %s, vendor_err %#x",
	      wc->qp_num, kind_names[request->kind], request->length, request->id, ibv_wc_status_str(wc->status),
	      wc->vendor_err);
	request->sent = true;
	settle(pair, (uint32_t)wc->wr_id);
}

static void landed(struct pair *pair, uint32_t slot, uint64_t id, uint32_t length)
{
	struct area *landing = &pair->lander->landing;
	uint8_t *is = slot_of(landing, slot), *should = model_of(landing, slot);
	uint32_t grh = pair->type == IBV_QPT_UD ? GRH : 0;

	/* The header area is the NIC's to write; of a UC message that was broken off, the receive's next user finds a part. */
	if (pair->type != IBV_QPT_RC)
		memcpy(should, is, grh + pair->longest);
	fill(should + grh, length, id, 0);
	same(landing, slot, "receive", pair, NULL);
}

static void received(struct pair *pair, const struct ibv_wc *wc, struct totals *totals)
{
	uint32_t grh = pair->type == IBV_QPT_UD ? GRH : 0, slot;
	struct request *request = NULL;
	bool with_imm = wc->wc_flags & IBV_WC_WITH_IMM;

	check(wc->status == IBV_WC_SUCCESS, "QP %#x: receive %" PRIu64 ": %s, vendor_err %#x", wc->qp_num, wc->wr_id,
	      ibv_wc_status_str(wc->status), wc->vendor_err);
	check(wc->wr_id < RECVS, "QP %#x: a receive %" PRIu64, wc->qp_num, wc->wr_id);
	if (pair->type != IBV_QPT_RC) {
		check(with_imm, "QP %#x: a message without its immediate", wc->qp_num);
		check(wc->byte_len >= grh && wc->byte_len - grh <= pair->longest, "a message of %u bytes", wc->byte_len);
		/* A WRITE with immediate leaves the receive as it was. */
		landed(pair, (uint32_t)wc->wr_id, wc->imm_data,
		       wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM ? 0 : wc->byte_len - grh);
		totals->delivered++;
		post_receive(pair, (uint32_t)wc->wr_id);
		return;
	}
	check(pair->order_count > 0, "QP %#x: received what was not sent", wc->qp_num);
	slot = pair->order[pair->order_first];
	pair->order_first = (pair->order_first + 1) % (SLOTS + 1);
	pair->order_count--;
	request = &pair->requests[slot];
	check(request->busy && !request->received, "QP %#x: request %" PRIu64 " received twice", wc->qp_num, request->id);
	check(with_imm == (request->kind != K_SEND), "QP %#x: immediate of %s", wc->qp_num, kind_names[request->kind]);
	check(!with_imm || wc->imm_data == (uint32_t)request->id, "QP %#x: immediate %#x, not %#x", wc->qp_num,
	      wc->imm_data, (uint32_t)request->id);
	check(wc->byte_len == request->length, "QP %#x: %u bytes received of %u", wc->qp_num, wc->byte_len,
	      request->length);
	landed(pair, (uint32_t)wc->wr_id, request->id, request->kind == K_WRITE_IMM ? 0 : request->length);
	request->received = true;
	totals->delivered++;
	settle(pair, slot);
	post_receive(pair, (uint32_t)wc->wr_id);
}

void complete(struct pair *pairs, unsigned count, bool near, const struct ibv_wc *wc, struct totals *totals)
{
	for (unsigned i = 0; i < count; i++) {
		struct pair *pair = &pairs[i];

		/* Both queue pairs may be of one device, but never have one number there. */
		if (pair->qp[near ? 0 : 1]->qp_num != wc->qp_num)
			continue;
		if (near)
			sent(pair, wc);
		else
			received(pair, wc, totals);
		return;
	}
	fail("a completion of QP %#x, which is none of this episode: %s", wc->qp_num, ibv_wc_status_str(wc->status));
}
