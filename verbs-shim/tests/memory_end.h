/* Memory of a program that is registered at one end of a connection and written and read by the other end, and what a test
 * asks of it. */
#ifndef MEMORY_END_H
#define MEMORY_END_H

#include <sys/types.h>

#include "verbs_end.h"

enum { PAGE = 4096, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

/* Nothing is mapped into the daemon (ROCELINE_MEMORY=never), so do not expect it. */
extern bool never;
/* The first has the memory, the second is its peer. */
extern struct end ends[2];

struct ibv_mr *must_register(void *p, size_t length);
void must_deregister(struct ibv_mr *mr);

/* An operation of the peer on the start of its buffer, and how it ended. */
enum ibv_wc_status peer(enum ibv_wr_opcode opcode, struct ibv_mr *mr, void *p, uint32_t length);
void peer_writes(struct ibv_mr *mr, void *p, uint32_t length, uint32_t seed);
void peer_reads(struct ibv_mr *mr, void *p, uint32_t length, uint32_t seed);
void check_memory(const void *p, uint32_t length, uint32_t seed, const char *what);
void set_memory(void *p, uint32_t length, uint32_t seed);
/* Both ways, through an offset that crosses pages. */
void exchange(struct ibv_mr *mr, uint8_t *p, uint32_t length, const char *what);

/* Whether an address lies in the shim's memory object; gives the protection. */
bool is_shared(const void *p, char perms[5]);
void expect_shared(const void *p, bool shared, const char *what);

/* New private memory. */
uint8_t *pages(int count);
void must_succeed(pid_t child, const char *what);

/* A case, which finds both ends connected. */
struct test {
	const char *name;
	void (*run)(void);
	bool by_name;		/* runs only when it is asked for */
};

/* Runs the cases named in words, which follow two devices; all that need not be asked for where none is named. */
int run_tests(const struct test *tests, size_t count, char **words);

/* Cases of memory_huge.c. */
void case_huge(void);
void case_untouched(void);
void case_blocked(void);

/* Cases of memory_room.c. */
void case_room(void);
void case_scattered(void);
void case_few_descriptors(void);
void case_cost(void);

#endif
