/*
 * Threads that share queue pairs and a completion queue: threads DEVICE DEVICE POSTERS POLLERS MESSAGES
 *
 * POSTERS threads post MESSAGES SENDs each, to four queue pairs in turn, so that every thread posts to every queue
 * pair. POLLERS threads poll the CQs of both ends, and post receives again. Each message names its thread, its queue pair
 * and its number: it must arrive once, on that queue pair's peer, behind those that its thread had posted there before,
 * and its request must complete once.
 */
#include "qps.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { QPS = 4, DEPTH = 64, MAX_POSTERS = 64 };

struct message {
	uint32_t poster;
	uint32_t qp;
	uint32_t number;	/* of those that this thread sends on this queue pair */
	uint32_t index;		/* of all that this thread sends */
};

static struct side sides[2];
static struct ibv_qp *qps[2][QPS];
static struct ibv_cq *cqs[2];
static struct ibv_mr *mr;
static struct message slots[QPS][DEPTH];
static int posters, pollers, messages;
static atomic_uchar *sent, *arrived;	/* times that each message did */
static atomic_int left[2];		/* completions to come on each CQ */

static void post_receive(int qp, int slot)
{
	struct ibv_sge sge = { (uintptr_t)&slots[qp][slot], sizeof(struct message), mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = qp * DEPTH + slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(qps[1][qp], &wr, &bad))
		FAIL("receive %d of queue pair %d cannot be posted", slot, qp);
}

static void *post(void *argument)
{
	int poster = (intptr_t)argument;
	uint32_t numbers[QPS] = { 0 };

	for (int i = 0; i < messages; i++) {
		int qp = (poster + i) % QPS, error;
		struct message message = { poster, qp, numbers[qp]++, i };
		struct ibv_sge sge = { (uintptr_t)&message, sizeof(message), 0 };
		struct ibv_send_wr wr = { .wr_id = (uint64_t)poster * messages + i, .sg_list = &sge, .num_sge = 1,
					  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
		struct ibv_send_wr *bad;

		while ((error = ibv_post_send(qps[0][qp], &wr, &bad)) == ENOMEM)
			sched_yield();
		if (error)
			FAIL("message %d of thread %d: %s", i, poster, strerror(error));
	}
	return NULL;
}

/* `next`: numbers that this thread of pollers expects at least, by poster and queue pair. */
static void take(const struct ibv_wc *wc, uint32_t next[MAX_POSTERS][QPS])
{
	int qp = wc->wr_id / DEPTH, slot = wc->wr_id % DEPTH;
	struct message message = slots[qp][slot];

	if (wc->qp_num != qps[1][qp]->qp_num || wc->byte_len != sizeof(message) || message.qp != (uint32_t)qp ||
	    message.poster >= (uint32_t)posters || message.index >= (uint32_t)messages)
		FAIL("not a message of queue pair %d in what it received", qp);
	if (message.number < next[message.poster][qp])
		FAIL("queue pair %d: message %u of thread %u came after message %u", qp, message.number, message.poster,
		     next[message.poster][qp] - 1);
	next[message.poster][qp] = message.number + 1;
	arrived[(size_t)message.poster * messages + message.index]++;
	post_receive(qp, slot);
}

static void *poll_both(void *argument)
{
	static _Thread_local uint32_t next[MAX_POSTERS][QPS];
	struct ibv_wc wcs[8];

	(void)argument;
	while (left[0] > 0 || left[1] > 0)
		for (int e = 0; e < 2; e++) {
			int n = ibv_poll_cq(cqs[e], 8, wcs);

			if (n < 0)
				FAIL("ibv_poll_cq: %d", n);
			for (int i = 0; i < n; i++) {
				expect_success(&wcs[i]);
				if (e == 0)
					sent[wcs[i].wr_id]++;
				else
					take(&wcs[i], next);
			}
			left[e] -= n;
		}
	return NULL;
}

int main(int count, char **arguments)
{
	if (count != 6)
		FAIL("threads DEVICE DEVICE POSTERS POLLERS MESSAGES");
	posters = atoi(arguments[3]);
	pollers = atoi(arguments[4]);
	messages = atoi(arguments[5]);
	if (posters > MAX_POSTERS)
		FAIL("at most %d posting threads", MAX_POSTERS);

	size_t all = (size_t)posters * messages;
	struct ibv_qp_cap cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1,
				  .max_inline_data = sizeof(struct message) };

	sent = calloc(all, 1);
	arrived = calloc(all, 1);
	for (int e = 0; e < 2; e++) {
		open_side(&sides[e], arguments[1 + e]);
		cqs[e] = ibv_create_cq(sides[e].context, 2 * QPS * DEPTH, NULL, NULL, 0);
		if (!cqs[e])
			FAIL("no CQ: %m");
		for (int i = 0; i < QPS; i++)
			qps[e][i] = create_qp(&sides[e], cqs[e], cap);
		left[e] = all;
	}
	mr = ibv_reg_mr(sides[1].pd, slots, sizeof(slots), IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		FAIL("no MR: %m");
	for (int i = 0; i < QPS; i++) {
		for (int e = 0; e < 2; e++)
			connect_qp(&sides[e], qps[e][i], &sides[!e], qps[!e][i]);
		for (int slot = 0; slot < DEPTH; slot++)
			post_receive(i, slot);
	}

	pthread_t threads[posters + pollers];
	for (int i = 0; i < posters + pollers; i++)
		if (pthread_create(&threads[i], NULL, i < posters ? post : poll_both, (void *)(intptr_t)i))
			FAIL("no thread");
	for (int i = 0; i < posters + pollers; i++)
		pthread_join(threads[i], NULL);

	for (size_t i = 0; i < all; i++)
		if (sent[i] != 1 || arrived[i] != 1)
			FAIL("message %zu completed %d times and arrived %d times", i, sent[i], arrived[i]);
	for (int e = 0; e < 2; e++) {
		for (int i = 0; i < QPS; i++)
			if (ibv_destroy_qp(qps[e][i]))
				FAIL("a QP cannot be destroyed");
		if (ibv_destroy_cq(cqs[e]) || (e == 1 && ibv_dereg_mr(mr)))
			FAIL("CQ or MR cannot be destroyed");
		close_side(&sides[e]);
	}
	printf("%zu messages\n", all);
	return 0;
}
