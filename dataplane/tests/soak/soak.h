/* A soak: random work over random queue pairs, each byte of it checked against a model.
 *
 *   soak.c    threads, episodes: objects made at random, used, and destroyed
 *   work.c    one queue pair and what is under way on it: posts, completions, checks
 *   mrs.c     very many memory regions over one buffer
 *   base.c    chance, bytes, failure
 *
 * All chance comes from one seed. An episode's is printed when it fails, and `--episode SEED` runs just that one: the same
 * objects and the same requests in the same order. When completions come, and so which slots are free, depends on the
 * machine. */
#ifndef SOAK_H
#define SOAK_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- base.c */

struct chance {
	uint64_t state;
};

uint64_t next(struct chance *chance);
/* From 0 on, below the limit. */
uint32_t below(struct chance *chance, uint32_t limit);
bool one_in(struct chance *chance, uint32_t n);

/* Byte `i` of message `id`. */
void fill(uint8_t *to, size_t length, uint64_t id, size_t first);
/* Index of the first byte that is not of message `id`, or `length`. */
size_t differs(const uint8_t *bytes, size_t length, uint64_t id, size_t first);

int64_t now_ms(void);

/* Says what failed, in which episode, and ends the process. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What the thread is at, for `fail`. */
extern _Thread_local uint64_t episode_seed;

/* ---- work.c */

enum {
	SLOTS = 16,		/* requests under way on a queue pair, each with memory of its own */
	RECVS = 32,		/* receives posted */
	GUARD = 64,		/* bytes on both sides of a slot that must not change */
	MAX_SGE = 4,
	GRH = 40,
	COUNTERS = 4,		/* words for atomics */
	PATIENCE_MS = 60000,	/* for one completion */
};

/* One end of an episode: what its queue pairs have together. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;	/* or NULL: polled */
	struct ibv_cq *cq;
	struct ibv_srq *srq;			/* or NULL */
	union ibv_gid gid;
	uint8_t gid_index;
	unsigned unacked;
};

/* Registered memory of one end of a queue pair: a slot for each request, each between guards. */
struct area {
	struct ibv_mr *mr;
	uint8_t *base;
	size_t stride;		/* from one slot to the next */
	size_t bytes;		/* of all */
	int fd;			/* of a memory object, or -1 */
	uint8_t *model;		/* what all of it should hold */
};

enum kind { K_SEND, K_SEND_IMM, K_WRITE, K_WRITE_IMM, K_READ, K_CAS, K_ADD, KINDS };

struct request {
	bool busy, sent, received;
	bool consumes;		/* a receive of the peer */
	enum kind kind;
	uint64_t id;
	uint32_t length;
	uint32_t remote_offset;
	uint32_t pieces;
	uint64_t compare, value;
	uint32_t counter;
};

struct pair {
	struct side *near, *far;
	struct ibv_qp *qp[2];	/* the near one posts, the far one receives */
	struct ibv_ah *ah;
	enum ibv_qp_type type;
	struct area local, remote;
	struct area landing;		/* the far end's receives */
	struct pair *lander;		/* whose landing it is: with an SRQ one for all */
	uint32_t longest;
	bool atomics;
	struct request requests[SLOTS];
	uint64_t counters[COUNTERS];
	bool counter_busy[COUNTERS];
	uint64_t next_id;
	/* Requests that consume receives, in their order: RC delivers in it. */
	uint32_t order[SLOTS + 1], order_first, order_count;
};

struct totals {
	uint64_t episodes, pairs, requests, bytes, by_kind[KINDS], by_type[5], delivered;
};

extern const char *const kind_names[KINDS];

void make_area(struct area *area, struct ibv_pd *pd, struct chance *chance, size_t slot, unsigned slots);
void free_area(struct area *area);
void post_receives(struct pair *pair);
/* Posts a random request if there is room for one. */
bool post_something(struct pair *pair, struct chance *chance, struct totals *totals);
/* Takes a completion of either end; `pairs` are all of the episode. */
void complete(struct pair *pairs, unsigned count, bool near, const struct ibv_wc *wc, struct totals *totals);
unsigned under_way(const struct pair *pair);
/* All memory is what the model says. */
void check_all(struct pair *pair);

/* ---- mrs.c */

/* Registers `count` regions of 4 KiB over one buffer, uses some, and lets all go. */
void many_regions(const char *device, unsigned long count, uint64_t seed);

#endif
