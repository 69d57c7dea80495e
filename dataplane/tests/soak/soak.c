/* Threads and episodes.
 *
 *   soak [--seed N] [--seconds N] [--threads N] [--devices A,B] [--episode SEED] [--mrs N]
 *
 * Each thread runs one episode after the other: it makes two ends on random devices (perhaps the same), up to four queue
 * pairs between them, random memory and completion queues, lets requests flow for a while, checks all, and destroys it all in
 * a random order. Kinds of queue pairs that a device does not have are left out, and said once. */
#include "soak.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PAIRS = 4, MAX_THREADS = 16, DEPTH = 32 };

static struct {
	uint64_t seed;
	int seconds;
	unsigned threads;
	const char *device[2];
	uint64_t episode;
	unsigned long mrs;
} options = { .seed = 1, .seconds = 10, .threads = 2, .device = { "roce0", "roce1" } };

static struct ibv_context *contexts[2];
static int64_t deadline;

struct worker {
	pthread_t thread;
	struct chance chance;
	struct totals totals;
};

/* ---- ends */

/* The table's length, asked for by reading it; entries are all RoCE v2. */
static unsigned gids_of(struct ibv_context *context)
{
	static const union ibv_gid zero;
	union ibv_gid gid;
	unsigned count = 0;

	while (count < 8 && !ibv_query_gid(context, 1, (int)count, &gid) && memcmp(&gid, &zero, sizeof gid))
		count++;
	return count;
}

static void make_side(struct side *side, struct ibv_context *context, uint8_t gid_index, struct chance *chance)
{
	*side = (struct side){ .context = context, .gid_index = gid_index };
	check(ibv_query_gid(context, 1, gid_index, &side->gid) == 0, "GID %u", gid_index);
	side->pd = ibv_alloc_pd(context);
	check(side->pd != NULL, "ibv_alloc_pd: %s", strerror(errno));
	if (one_in(chance, 2)) {
		side->channel = ibv_create_comp_channel(context);
		check(side->channel != NULL, "ibv_create_comp_channel: %s", strerror(errno));
	}
	side->cq = ibv_create_cq(context, MAX_PAIRS * (SLOTS + RECVS), NULL, side->channel, 0);
	check(side->cq != NULL, "ibv_create_cq: %s", strerror(errno));
}

static void free_side(struct side *side)
{
	int error;

	if (side->unacked)
		ibv_ack_cq_events(side->cq, side->unacked);
	error = ibv_destroy_cq(side->cq);
	check(error == 0, "ibv_destroy_cq: %s", strerror(error));
	if (side->srq) {
		error = ibv_destroy_srq(side->srq);
		check(error == 0, "ibv_destroy_srq: %s", strerror(error));
	}
	if (side->channel) {
		error = ibv_destroy_comp_channel(side->channel);
		check(error == 0, "ibv_destroy_comp_channel: %s", strerror(error));
	}
	error = ibv_dealloc_pd(side->pd);
	check(error == 0, "ibv_dealloc_pd: %s", strerror(error));
}

/* ---- queue pairs */

static struct ibv_qp *make_qp(struct side *side, enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = side->cq, .recv_cq = side->cq, .srq = srq, .qp_type = type,
					 .cap = { .max_send_wr = DEPTH, .max_recv_wr = RECVS, .max_send_sge = MAX_SGE,
						  .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(side->pd, &init);

	check(qp != NULL || errno == EOPNOTSUPP, "ibv_create_qp: %s", strerror(errno));
	return qp;
}

static void step(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, const char *what)
{
	int error = ibv_modify_qp(qp, attr, mask | IBV_QP_STATE);

	check(error == 0, "QP %#x to %s: %s", qp->qp_num, what, strerror(error));
}

static void connect_qp(struct ibv_qp *qp, const struct side *own, const struct side *peer, uint32_t dest,
		       enum ibv_mtu mtu, uint8_t reads)
{
	enum ibv_qp_type type = qp->qp_type;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						       IBV_ACCESS_REMOTE_ATOMIC };

	step(qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = dest,
				     .rq_psn = dest & 0xffff, .max_dest_rd_atomic = reads, .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = peer->gid, .sgid_index = own->gid_index,
							   .hop_limit = 64 } } };
	step(qp, &attr,
	     type == IBV_QPT_UD ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	     (type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0), "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = qp->qp_num & 0xffff, .timeout = 14,
				     .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = reads };
	step(qp, &attr,
	     IBV_QP_SQ_PSN | (type == IBV_QPT_RC ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_MAX_QP_RD_ATOMIC : 0), "RTS");
}

/* Says once that something is left out. */
static void left_out(const char *what)
{
	static const char *said[8];
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < sizeof said / sizeof *said; i++) {
		if (said[i] == what)
			break;
		if (!said[i]) {
			said[i] = what;
			printf("left out, since the device does not have it: %s\n", what);
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

static const char *name_of(enum ibv_qp_type type)
{
	return type == IBV_QPT_UD ? "UD" : type == IBV_QPT_UC ? "UC" : "RC";
}

/* False where the device has no such queue pairs. */
static bool make_pair(struct pair *pair, struct pair *first, struct side *near, struct side *far, enum ibv_qp_type type,
		      enum ibv_mtu mtu, struct chance *chance)
{
	static const uint32_t longest[] = { 64, 4096, 5000, 65536, 1 << 20 };
	struct ibv_device_attr device;
	uint8_t reads = (uint8_t)(1 + below(chance, 16));
	uint32_t grh = type == IBV_QPT_UD ? GRH : 0;

	*pair = (struct pair){ .near = near, .far = far, .type = type, .lander = far->srq ? first : pair };
	pair->qp[0] = make_qp(near, type, NULL);
	if (!pair->qp[0]) {
		left_out(name_of(type));
		return false;
	}
	pair->qp[1] = make_qp(far, type, far->srq);
	check(pair->qp[1] != NULL, "a second QP: %s", strerror(errno));
	pair->longest = far->srq && pair != first ? first->longest : longest[below(chance, one_in(chance, 8) ? 5 : 4)];
	if (type == IBV_QPT_UD)
		pair->longest = 128u << mtu;
	check(ibv_query_device(far->context, &device) == 0, "ibv_query_device");
	pair->atomics = device.atomic_cap != IBV_ATOMIC_NONE;
	if (!pair->atomics)
		left_out("atomics");
	make_area(&pair->local, near->pd, chance, pair->longest, SLOTS);
	make_area(&pair->remote, far->pd, chance, pair->longest, SLOTS);
	memset(pair->counters, 0xee, sizeof pair->counters);
	if (pair->lander == pair)
		make_area(&pair->landing, far->pd, chance, pair->longest + grh, RECVS);
	connect_qp(pair->qp[0], near, far, pair->qp[1]->qp_num, mtu, reads);
	connect_qp(pair->qp[1], far, near, pair->qp[0]->qp_num, mtu, reads);
	if (type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
					    .grh = { .dgid = far->gid, .sgid_index = near->gid_index, .hop_limit = 64 } };

		pair->ah = ibv_create_ah(near->pd, &attr);
		check(pair->ah != NULL, "ibv_create_ah: %s", strerror(errno));
	}
	if (pair->lander == pair)
		post_receives(pair);
	return true;
}

static void free_pair(struct pair *pair, struct chance *chance)
{
	unsigned order = below(chance, 2);
	int error = ibv_destroy_qp(pair->qp[order]) | ibv_destroy_qp(pair->qp[!order]);

	check(error == 0, "ibv_destroy_qp: %s", strerror(error));
	if (pair->ah)
		check(ibv_destroy_ah(pair->ah) == 0, "ibv_destroy_ah");
	check_all(pair);
	free_area(&pair->local);
	free_area(&pair->remote);
}

/* ---- an episode */

/* Takes what a completion queue has; gives how many. */
static int take(struct side *side, bool near, struct pair *pairs, unsigned count, struct totals *totals)
{
	struct ibv_wc wcs[8];
	int taken = ibv_poll_cq(side->cq, 8, wcs);

	check(taken >= 0, "ibv_poll_cq: %d", taken);
	for (int i = 0; i < taken; i++)
		complete(pairs, count, near, &wcs[i], totals);
	return taken;
}

static void arm(struct side *side)
{
	int error;

	if (!side->channel)
		return;
	error = ibv_req_notify_cq(side->cq, 0);
	check(error == 0, "ibv_req_notify_cq: %s", strerror(error));
}

/* Sleeps until one of the armed ends has an event; where one has to be polled, or soon. */
static void wait_a_little(struct side sides[2])
{
	struct pollfd fds[2];
	nfds_t count = 0;
	bool polls = !sides[0].channel || !sides[1].channel;

	for (int i = 0; i < 2; i++)
		if (sides[i].channel)
			fds[count++] = (struct pollfd){ .fd = sides[i].channel->fd, .events = POLLIN };
	poll(fds, count, polls ? 0 : 100);
	for (int i = 0, at = 0; i < 2; i++) {
		struct ibv_cq *cq;
		void *context;

		if (!sides[i].channel || !(fds[at++].revents & POLLIN))
			continue;
		check(ibv_get_cq_event(sides[i].channel, &cq, &context) == 0 && cq == sides[i].cq, "ibv_get_cq_event");
		sides[i].unacked++;
	}
}

/* Lets requests flow: `budget` are posted, at most so many at once, and all complete. */
static void flow(struct side sides[2], struct pair *pairs, unsigned count, unsigned budget, struct chance *chance,
		 struct totals *totals)
{
	int64_t progress = now_ms();
	unsigned waiting = 0;

	for (;;) {
		int done = 0;

		arm(&sides[0]);
		arm(&sides[1]);
		for (unsigned tries = 0; budget && tries < 4; tries++) {
			if (post_something(&pairs[below(chance, count)], chance, totals)) {
				budget--;
				done++;
			}
		}
		done += take(&sides[0], true, pairs, count, totals);
		done += take(&sides[1], false, pairs, count, totals);
		if (done) {
			progress = now_ms();
			continue;
		}
		waiting = 0;
		for (unsigned i = 0; i < count; i++)
			waiting += under_way(&pairs[i]);
		if (!waiting && !budget)
			return;
		check(now_ms() - progress < PATIENCE_MS, "nothing completes any more; %u requests are under way", waiting);
		wait_a_little(sides);
	}
}

static void run_episode(uint64_t seed, struct totals *totals)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	struct chance chance = { seed };
	struct pair pairs[MAX_PAIRS];
	struct side sides[2];
	unsigned wanted = 1 + below(&chance, MAX_PAIRS), count = 0, first = below(&chance, 2);
	bool loopback = one_in(&chance, 4);
	struct ibv_context *near = contexts[first], *far = contexts[loopback ? first : !first];
	uint8_t gid = (uint8_t)below(&chance, gids_of(near));
	enum ibv_qp_type type = types[below(&chance, 5)];
	enum ibv_mtu mtu = IBV_MTU_256 + below(&chance, 5);
	struct ibv_port_attr port;
	bool srq = one_in(&chance, 4);

	episode_seed = seed;
	check(ibv_query_port(near, 1, &port) == 0, "ibv_query_port");
	if (mtu > port.active_mtu)
		mtu = port.active_mtu;
	make_side(&sides[0], near, gid, &chance);
	make_side(&sides[1], far, gid, &chance);
	if (srq && type != IBV_QPT_UC) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = RECVS, .max_sge = 1 } };

		sides[1].srq = ibv_create_srq(sides[1].pd, &attr);
		if (!sides[1].srq)
			left_out("shared receive queues");
	}
	while (count < wanted &&
	       make_pair(&pairs[count], pairs, &sides[0], &sides[1], type, mtu, &chance))
		count++;
	if (count)
		flow(sides, pairs, count, 20 + below(&chance, 400), &chance, totals);
	for (unsigned i = 0; i < count; i++)
		free_pair(&pairs[i], &chance);
	for (unsigned i = 0; i < count; i++)
		if (pairs[i].lander == &pairs[i])
			free_area(&pairs[i].landing);
	free_side(&sides[0]);
	free_side(&sides[1]);
	totals->episodes++;
	totals->pairs += count;
	totals->by_type[type] += count;
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	do
		run_episode(next(&worker->chance), &worker->totals);
	while (now_ms() < deadline && !options.episode);
	return NULL;
}

/* ---- the program */

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	check(list != NULL, "ibv_get_device_list: %s", strerror(errno));
	for (int i = 0; list[i] && !context; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	check(context != NULL, "no device %s", name);
	ibv_free_device_list(list);
	return context;
}

static void read_options(int argc, char **argv)
{
	static const struct option known[] = { { "seed", 1, 0, 's' }, { "seconds", 1, 0, 't' }, { "threads", 1, 0, 'j' },
					       { "devices", 1, 0, 'd' }, { "episode", 1, 0, 'e' }, { "mrs", 1, 0, 'm' },
					       { 0 } };
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 's':
			options.seed = strtoull(optarg, NULL, 0);
			break;
		case 't':
			options.seconds = atoi(optarg);
			break;
		case 'j':
			options.threads = (unsigned)atoi(optarg);
			break;
		case 'd':
			options.device[0] = strtok(optarg, ",");
			options.device[1] = strtok(NULL, ",");
			break;
		case 'e':
			options.episode = strtoull(optarg, NULL, 0);
			options.threads = 1;
			break;
		case 'm':
			options.mrs = strtoul(optarg, NULL, 0);
			break;
		default:
			exit(2);
		}
	}
	if (options.threads < 1 || options.threads > MAX_THREADS)
		options.threads = 1;
	if (!options.device[1])
		options.device[1] = options.device[0];
}

static void report(const struct worker *workers, int64_t took)
{
	struct totals sum = { 0 };

	for (unsigned i = 0; i < options.threads; i++) {
		const uint64_t *from = (const uint64_t *)&workers[i].totals;
		uint64_t *to = (uint64_t *)&sum;

		for (size_t j = 0; j < sizeof sum / sizeof *to; j++)
			to[j] += from[j];
	}
	printf("%" PRIu64 " episodes, %" PRIu64 " RC, %" PRIu64 " UC, %" PRIu64 " UD queue pairs, %" PRIu64
	       " requests, %" PRIu64 " MB in %.1f s:", sum.episodes, sum.by_type[IBV_QPT_RC], sum.by_type[IBV_QPT_UC],
	       sum.by_type[IBV_QPT_UD], sum.requests, sum.bytes / 1000000, (double)took / 1000);
	for (int kind = 0; kind < KINDS; kind++)
		printf(" %s %" PRIu64, kind_names[kind], sum.by_kind[kind]);
	printf("\n");
}

int main(int argc, char **argv)
{
	static struct worker workers[MAX_THREADS];
	int64_t begin = now_ms();

	setvbuf(stdout, NULL, _IOLBF, 0);
	read_options(argc, argv);
	if (options.mrs) {
		many_regions(options.device[0], options.mrs, options.seed);
		return 0;
	}
	for (int i = 0; i < 2; i++)
		contexts[i] = open_device(options.device[i]);
	deadline = begin + options.seconds * 1000;
	for (unsigned i = 0; i < options.threads; i++) {
		workers[i].chance.state = options.seed * 0x1000003 + i;
		if (options.episode)
			continue;
		check(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "pthread_create");
	}
	if (options.episode)
		run_episode(options.episode, &workers[0].totals);
	else
		for (unsigned i = 0; i < options.threads; i++)
			pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < 2; i++)
		check(ibv_close_device(contexts[i]) == 0, "ibv_close_device");
	report(workers, now_ms() - begin);
	return 0;
}
