/* Atomics, memory windows and regions of other kinds, seen by a program.
 *
 *   shared   peers' atomics and the program's own on one word, as mapped memory allows
 *   peers    peers' atomics on one word by several queue pairs at once, which holds for every memory
 *   windows  what is bound, used, invalidated, refused and kept busy
 *   regions  zero based, overlapping, with an iova of their own, and flags that do not go together */
#include "../../verbs-shim/tests/verbs_end.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDS = 2000, LOCKS = 100, BATCH = 16, PAIRS = 3 };

struct options options = { .device = { "roce0", "roce1" }, .mtu = 1024, .seconds = 100 };

static struct ibv_mr *reg(struct end *end, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(end->pd, addr, length, access);

	check(mr != NULL, "ibv_reg_mr on %s with access 0x%x: %s", end->name, (unsigned)access, strerror(errno));
	return mr;
}

static uint64_t *words(size_t count)
{
	uint64_t *memory = NULL;

	check(posix_memalign((void **)&memory, 4096, (count * 8 + 4095) & ~(size_t)4095) == 0, "out of memory");
	memset(memory, 0, (count * 8 + 4095) & ~(size_t)4095);
	return memory;
}

static void atomic(struct end *end, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t at, uint32_t rkey,
		   uint64_t compare_add, uint64_t swap, uint64_t wr_id)
{
	post_send(end, (struct ibv_send_wr){ .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
					     .send_flags = IBV_SEND_SIGNALED,
					     .wr.atomic = { at, compare_add, swap, rkey } });
}

static const int ATOMIC_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				 IBV_ACCESS_REMOTE_ATOMIC;

/* The program's half of `shared`: adds one to a word, and keeps a lock in another. */
static _Atomic uint64_t *counter, *lock, *guarded;
static atomic_bool stop;

static void *add_here(void *unused)
{
	(void)unused;
	for (int i = 0; i < ADDS; i++)
		atomic_fetch_add(counter, 1);
	while (!atomic_load(&stop)) {
		uint64_t none = 0;

		/* A small machine has others to run, who may hold the lock. */
		sched_yield();
		if (!atomic_compare_exchange_strong(lock, &none, 1))
			continue;
		/* Nobody else may write while the lock is held. */
		uint64_t now = atomic_load_explicit(guarded, memory_order_relaxed);
		atomic_store_explicit(guarded, now + 1, memory_order_relaxed);
		atomic_store(lock, 0);
	}
	return NULL;
}

/* Peers and program add to one word, and take one lock in turn. */
static void shared(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	uint64_t *theirs = words(3 * 8), *mine = words(BATCH);
	uint64_t wr_id = 0, locked = 0;
	pthread_t thread;

	connect_pair(ends, patient);
	struct ibv_mr *remote = reg(b, theirs, 3 * 64, ATOMIC_ACCESS);
	struct ibv_mr *local = reg(a, mine, BATCH * 8, IBV_ACCESS_LOCAL_WRITE);
	counter = (_Atomic uint64_t *)theirs;
	lock = (_Atomic uint64_t *)(theirs + 8);
	guarded = (_Atomic uint64_t *)(theirs + 16);
	check(pthread_create(&thread, NULL, add_here, NULL) == 0, "no thread");
	for (int done = 0; done < ADDS; done += BATCH) {
		for (int i = 0; i < BATCH; i++)
			atomic(a, IBV_WR_ATOMIC_FETCH_AND_ADD,
			       (struct ibv_sge){ (uintptr_t)&mine[i], 8, local->lkey }, (uintptr_t)&theirs[0],
			       remote->rkey, 1, 0, wr_id + (uint64_t)i);
		for (int i = 0; i < BATCH; i++)
			expect(a, "fetch and add", wr_id++, IBV_WC_SUCCESS);
		for (int i = 1; i < BATCH; i++)
			check(mine[i] > mine[i - 1], "answers %llu and %llu are out of order",
			      (unsigned long long)mine[i - 1], (unsigned long long)mine[i]);
	}
	struct ibv_sge answer = { (uintptr_t)&mine[0], 8, local->lkey };
	while (locked < LOCKS) {
		atomic(a, IBV_WR_ATOMIC_CMP_AND_SWP, answer, (uintptr_t)&theirs[8], remote->rkey, 0, 2, wr_id);
		expect(a, "compare and swap", wr_id++, IBV_WC_SUCCESS);
		if (mine[0] != 0)
			continue;
		locked++;
		/* With the lock: read, add by hand, write back. */
		struct ibv_sge value = { (uintptr_t)&mine[1], 8, local->lkey };
		struct ibv_send_wr wr = { .sg_list = &value, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
					  .wr.rdma = { (uintptr_t)&theirs[16], remote->rkey } };
		wr.opcode = IBV_WR_RDMA_READ, wr.wr_id = wr_id;
		post_send(a, wr);
		expect(a, "READ under the lock", wr_id++, IBV_WC_SUCCESS);
		mine[1] += 1000000;
		wr.opcode = IBV_WR_RDMA_WRITE, wr.wr_id = wr_id;
		post_send(a, wr);
		expect(a, "WRITE under the lock", wr_id++, IBV_WC_SUCCESS);
		atomic(a, IBV_WR_ATOMIC_CMP_AND_SWP, answer, (uintptr_t)&theirs[8], remote->rkey, 2, 0, wr_id);
		expect(a, "unlock", wr_id++, IBV_WC_SUCCESS);
		check(mine[0] == 2, "the lock was %llu while it was held", (unsigned long long)mine[0]);
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	uint64_t rounds = (ADDS + BATCH - 1) / BATCH * BATCH;
	check(theirs[0] == ADDS + rounds, "%llu adds of %llu are there", (unsigned long long)theirs[0],
	      (unsigned long long)(ADDS + rounds));
	check(theirs[16] / 1000000 == locked, "of %llu writes under the lock %llu are there",
	      (unsigned long long)locked, (unsigned long long)(theirs[16] / 1000000));
	check(ibv_dereg_mr(remote) == 0 && ibv_dereg_mr(local) == 0, "ibv_dereg_mr");
	close_pair(ends);
}

/* Several pairs, each with its own open devices, add to one word. */
static void peers(void)
{
	static struct end ends[PAIRS][2];
	struct ibv_mr *remote[PAIRS], *local[PAIRS];
	uint64_t *theirs = words(1), *mine = words(PAIRS * BATCH);
	uint64_t wr_id = 0, sum = 0;

	for (int p = 0; p < PAIRS; p++) {
		connect_pair(ends[p], patient);
		remote[p] = reg(&ends[p][1], theirs, 8, ATOMIC_ACCESS);
		local[p] = reg(&ends[p][0], &mine[p * BATCH], BATCH * 8, IBV_ACCESS_LOCAL_WRITE);
	}
	for (int round = 0; round < 100; round++) {
		for (int i = 0; i < BATCH; i++)
			for (int p = 0; p < PAIRS; p++)
				atomic(&ends[p][0], IBV_WR_ATOMIC_FETCH_AND_ADD,
				       (struct ibv_sge){ (uintptr_t)&mine[p * BATCH + i], 8, local[p]->lkey },
				       (uintptr_t)theirs, remote[p]->rkey, 1, 0, wr_id + (uint64_t)i);
		for (int p = 0; p < PAIRS; p++)
			for (int i = 0; i < BATCH; i++)
				expect(&ends[p][0], "fetch and add", wr_id + (uint64_t)i, IBV_WC_SUCCESS);
		wr_id += BATCH;
		for (int i = 0; i < PAIRS * BATCH; i++)
			sum += mine[i];
	}
	uint64_t total = 100 * PAIRS * BATCH;
	check(*theirs == total, "%llu adds of %llu are there", (unsigned long long)*theirs, (unsigned long long)total);
	/* Each number below the total was an answer once. */
	check(sum == total * (total - 1) / 2, "the answers sum up to %llu", (unsigned long long)sum);
	for (int p = 0; p < PAIRS; p++) {
		check(ibv_dereg_mr(remote[p]) == 0 && ibv_dereg_mr(local[p]) == 0, "ibv_dereg_mr");
		close_pair(ends[p]);
	}
}

static struct ibv_mw *alloc_mw(struct end *end, enum ibv_mw_type type)
{
	struct ibv_mw *mw = ibv_alloc_mw(end->pd, type);

	check(mw != NULL, "ibv_alloc_mw on %s: %s", end->name, strerror(errno));
	return mw;
}

/* A WRITE through a key. */
static void write_through(struct end *a, uint64_t at, uint32_t rkey, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_sge sge = sge_of(a, 0, 64);

	post_send(a, (struct ibv_send_wr){ .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					   .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { at, rkey } });
	expect(a, "WRITE through a window", wr_id, status);
}

static void windows(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	uint8_t *memory = (uint8_t *)words(1024);
	const int access = IBV_ACCESS_REMOTE_WRITE;

	connect_pair(ends, patient);
	struct ibv_mr *mr = reg(b, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	/* The region itself gives no right to peers. */
	struct ibv_mw *one = alloc_mw(b, IBV_MW_TYPE_1), *two = alloc_mw(b, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { mr, (uintptr_t)memory + 64, 4096, access } };
	check(ibv_bind_mw(b->qp, one, &bind) == 0, "ibv_bind_mw: %s", strerror(errno));
	check(expect(b, "ibv_bind_mw", 1, IBV_WC_SUCCESS).opcode == IBV_WC_BIND_MW, "opcode of the completion");
	write_through(a, (uintptr_t)memory + 64, one->rkey, 2, IBV_WC_SUCCESS);
	check(memcmp(memory + 64, a->buffer, 64) == 0, "the bytes arrived");

	/* It keeps its region. */
	check(ibv_dereg_mr(mr) == EBUSY, "ibv_dereg_mr of a region with a window");
	bind.bind_info.length = 0, bind.wr_id = 3;
	check(ibv_bind_mw(b->qp, one, &bind) == 0, "ibv_bind_mw: %s", strerror(errno));
	expect(b, "unbinding", 3, IBV_WC_SUCCESS);

	struct ibv_send_wr wr = { .wr_id = 4, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
				  .bind_mw = { two, ibv_inc_rkey(two->rkey),
					       { mr, (uintptr_t)memory, 8192, access } } };
	post_send(b, wr);
	expect(b, "bind of type 2", 4, IBV_WC_SUCCESS);
	uint32_t key = wr.bind_mw.rkey;
	write_through(a, (uintptr_t)memory, key, 5, IBV_WC_SUCCESS);
	post_recv(b, 64, 6);
	struct ibv_sge sge = sge_of(a, 0, 8);
	post_send(a, (struct ibv_send_wr){ .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
					   .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key });
	expect(a, "SEND with invalidate", 7, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(b, "its receive", 6, IBV_WC_SUCCESS);
	check((wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == key, "flags 0x%x, key 0x%x", wc.wc_flags,
	      wc.invalidated_rkey);
	/* Nothing is bound any more: invalidating it again fails, as does binding to what has gone. */
	write_through(a, (uintptr_t)memory, key, 8, IBV_WC_REM_ACCESS_ERR);
	check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr: %s", strerror(errno));
	check(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0, "ibv_dealloc_mw: %s", strerror(errno));
	expect_state(b, IBV_QPS_ERR);
	close_pair(ends);

	/* The three faults that only windows have. */
	for (int fault = 0; fault < 3; fault++) {
		connect_pair(ends, patient);
		two = alloc_mw(b, IBV_MW_TYPE_2);
		post_recv(b, 64, 20);
		sge = sge_of(a, 0, 8);
		switch (fault) {
		case 0: /* A region without the right to be bound. */
			wr.wr_id = 21, wr.bind_mw.mw = two, wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
			wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ b->mr, (uintptr_t)b->buffer, 64, access };
			post_send(b, wr);
			expect(b, "bind without the right", 21, IBV_WC_MW_BIND_ERR);
			break;
		case 1: /* A region cannot be invalidated. */
			post_send(b, (struct ibv_send_wr){ .wr_id = 21, .opcode = IBV_WR_LOCAL_INV,
							   .send_flags = IBV_SEND_SIGNALED,
							   .invalidate_rkey = b->mr->rkey });
			expect(b, "invalidation of a region", 21, IBV_WC_LOC_QP_OP_ERR);
			break;
		default: /* Nor can a window that is not bound. */
			post_send(a, (struct ibv_send_wr){ .wr_id = 22, .sg_list = &sge, .num_sge = 1,
							   .opcode = IBV_WR_SEND_WITH_INV,
							   .send_flags = IBV_SEND_SIGNALED,
							   .invalidate_rkey = two->rkey });
			expect(a, "SEND with invalidate of nothing", 22, IBV_WC_REM_ACCESS_ERR);
			expect(b, "its receive", 20, IBV_WC_REM_INV_REQ_ERR);
			expect_state(a, IBV_QPS_ERR);
		}
		if (fault < 2)
			expect(b, "the receive", 20, IBV_WC_WR_FLUSH_ERR);
		expect_state(b, IBV_QPS_ERR);
		check(ibv_dealloc_mw(two) == 0, "ibv_dealloc_mw: %s", strerror(errno));
		close_pair(ends);
	}

	/* One that stays: it goes with the program. */
	connect_pair(ends, patient);
	two = alloc_mw(b, IBV_MW_TYPE_2);
	mr = reg(b, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	wr.wr_id = 30, wr.bind_mw.mw = two, wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory, 64, access };
	post_send(b, wr);
	expect(b, "the last bind", 30, IBV_WC_SUCCESS);
	errno = 0;
	check(ibv_dealloc_pd(b->pd) == EBUSY, "ibv_dealloc_pd with a window: %s", strerror(errno));
}

static void regions(void)
{
	struct end ends[2];
	struct end *a = &ends[0], *b = &ends[1];
	uint8_t *memory = (uint8_t *)words(1024);
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	connect_pair(ends, patient);
	fill(a, 7, 64);
	/* Its first byte is named 0. */
	struct ibv_mr *zero = reg(b, memory + 24, 4096, access | IBV_ACCESS_ZERO_BASED);
	write_through(a, 100, zero->rkey, 1, IBV_WC_SUCCESS);
	check(memcmp(memory + 124, a->buffer, 64) == 0, "zero based");
	/* Another name for the same bytes, and two regions over one another. */
	const uint64_t name = 0x123456780000;
	struct ibv_mr *named = ibv_reg_mr_iova(b->pd, memory, 8192, name, access);
	check(named != NULL, "ibv_reg_mr_iova: %s", strerror(errno));
	write_through(a, name + 4000, named->rkey, 2, IBV_WC_SUCCESS);
	check(memcmp(memory + 4000, a->buffer, 64) == 0, "iova");
	struct ibv_mr *plain = reg(b, memory + 100, 5000, access | IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB);
	write_through(a, (uintptr_t)memory + 5000, plain->rkey, 3, IBV_WC_SUCCESS);
	check(memcmp(memory + 5000, a->buffer, 64) == 0, "overlapping");
	static const struct { int access, error; } refused[] = {
		{ IBV_ACCESS_REMOTE_WRITE, EINVAL },
		{ IBV_ACCESS_REMOTE_ATOMIC, EINVAL },
		{ IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND, EOPNOTSUPP },
		{ IBV_ACCESS_LOCAL_WRITE | 1 << 10, EINVAL },
	};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		errno = 0;
		check(ibv_reg_mr(b->pd, memory, 64, refused[i].access) == NULL && errno == refused[i].error,
		      "ibv_reg_mr with access 0x%x: %s, expected %s", (unsigned)refused[i].access, strerror(errno),
		      strerror(refused[i].error));
	}
	check(ibv_dereg_mr(zero) == 0 && ibv_dereg_mr(named) == 0 && ibv_dereg_mr(plain) == 0, "ibv_dereg_mr");
	close_pair(ends);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (!strcmp(mode, "shared"))
		shared();
	else if (!strcmp(mode, "peers"))
		peers();
	else if (!strcmp(mode, "windows"))
		windows();
	else if (!strcmp(mode, "regions"))
		regions();
	else
		fail("shared, peers, windows or regions");
	return 0;
}
