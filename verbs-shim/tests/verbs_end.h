/* One end of an RC connection inside a test program, and the checks that every case needs. A failed check says what
 * was expected and what came, and ends the program. */
#ifndef VERBS_END_H
#define VERBS_END_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	QUEUE = 64,		/* work requests per queue */
	GUARD = 256,		/* bytes on both sides of a buffer that must not change */
	MAX_MESSAGE = (1 << 24) + 1,
};

struct options {
	const char *device[2];
	int gid_index;
	int mtu;		/* bytes */
	int seconds;		/* for one completion */
};

struct end {
	const char *name;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;	/* what is registered: guard, buffer, guard */
	uint8_t *buffer;
	uint32_t psn;
	unsigned unacked;	/* completion events */
};

/* How the two ends are connected. */
struct link {
	uint8_t rnr_retry;
	uint8_t retry_cnt;
	uint8_t timeout;	/* 4.096 us * 2^timeout; 0: 14 */
};

extern struct options options;
extern const struct link patient;	/* retries without end */

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens a device and makes all that an end has; the QP is in RESET. */
void open_end(struct end *end, const char *device);
/* Opens both devices and connects a QP on each to the other. */
void connect_pair(struct end ends[2], struct link link);
/* Connects with an end of another program, which does the same, over a socket between the two. */
void connect_over(struct end *end, int socket, struct link link);
void close_pair(struct end ends[2]);

struct ibv_sge sge_of(const struct end *end, size_t offset, uint32_t length);
int try_send(struct end *end, struct ibv_send_wr *wr);
void post_send(struct end *end, struct ibv_send_wr wr);
/* A signaled request on the start of the buffer; READ and WRITE name the start of the peer's. */
void post_op(struct end *end, const struct end *peer, enum ibv_wr_opcode opcode, uint32_t length, uint64_t wr_id);
void post_recv(struct end *end, uint32_t length, uint64_t wr_id);

/* Waits for one completion, which must be this one. */
struct ibv_wc expect(struct end *end, const char *what, uint64_t wr_id, enum ibv_wc_status status);
void expect_nothing(struct end *end, const char *what, int milliseconds);
void expect_state(struct end *end, enum ibv_qp_state state);
void to_error(struct end *end);

/* Whether the channel has an event within the time. */
bool event_within(struct end *end, int milliseconds);
void take_event(struct end *end);
void arm(struct end *end, bool solicited_only);

/* Byte `i` of the message that `seed` names. */
uint8_t pattern(uint32_t seed, size_t i);
void fill(struct end *end, uint32_t seed, size_t length);
/* Fills the buffer and both guards with a byte that no check expects. */
void blank(struct end *end);
void check_bytes(const struct end *end, const char *what, uint32_t seed, size_t length);

int64_t now_ms(void);

#endif
