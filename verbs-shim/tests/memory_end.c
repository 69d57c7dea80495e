#include "memory_end.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct options options = { .gid_index = 0, .mtu = 1024, .seconds = 30 };
bool never;
struct end ends[2];
static uint64_t next_id = 1;

struct ibv_mr *must_register(void *p, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(ends[0].pd, p, length, ALL);

	check(mr != NULL, "ibv_reg_mr(%p, %zu): %s", p, length, strerror(errno));
	return mr;
}

void must_deregister(struct ibv_mr *mr)
{
	int error = ibv_dereg_mr(mr);

	check(error == 0, "ibv_dereg_mr: %s", strerror(error));
}

enum ibv_wc_status peer(enum ibv_wr_opcode opcode, struct ibv_mr *mr, void *p, uint32_t length)
{
	struct ibv_sge sge = sge_of(&ends[1], 0, length);
	struct ibv_send_wr wr = {
		.wr_id = next_id++, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)p, .rkey = mr->rkey },
	};
	struct ibv_wc wc;
	int64_t end = now_ms() + options.seconds * 1000LL;

	post_send(&ends[1], wr);
	while (ibv_poll_cq(ends[1].cq, 1, &wc) == 0)
		check(now_ms() < end, "no completion in %d s", options.seconds);
	return wc.status;
}

void peer_writes(struct ibv_mr *mr, void *p, uint32_t length, uint32_t seed)
{
	fill(&ends[1], seed, length);
	enum ibv_wc_status status = peer(IBV_WR_RDMA_WRITE, mr, p, length);

	check(status == IBV_WC_SUCCESS, "WRITE of %u bytes: %s", length, ibv_wc_status_str(status));
}

void check_memory(const void *p, uint32_t length, uint32_t seed, const char *what)
{
	const volatile uint8_t *bytes = p;

	for (uint32_t i = 0; i < length; i++)
		check(bytes[i] == pattern(seed, i), "%s: byte %u of %u is %02x, not %02x", what, i, length, bytes[i], pattern(seed, i));
}

void set_memory(void *p, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++)
		((volatile uint8_t *)p)[i] = pattern(seed, i);
}

void peer_reads(struct ibv_mr *mr, void *p, uint32_t length, uint32_t seed)
{
	blank(&ends[1]);
	enum ibv_wc_status status = peer(IBV_WR_RDMA_READ, mr, p, length);

	check(status == IBV_WC_SUCCESS, "READ of %u bytes: %s", length, ibv_wc_status_str(status));
	check_memory(ends[1].buffer, length, seed, "READ");
}

/* Both ways, through an offset that crosses pages. */
void exchange(struct ibv_mr *mr, uint8_t *p, uint32_t length, const char *what)
{
	static uint32_t seed = 100;

	peer_writes(mr, p, length, ++seed);
	check_memory(p, length, seed, what);
	set_memory(p, length, ++seed);
	peer_reads(mr, p, length, seed);
}

/* Whether an address lies in the shim's memory object; gives the protection. */
bool is_shared(const void *p, char perms[5])
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096], found[5] = "";
	bool shared = false;

	check(maps != NULL, "maps: %s", strerror(errno));
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;

		if (sscanf(line, "%lx-%lx %4s", &from, &to, found) == 3 && from <= (uintptr_t)p && (uintptr_t)p < to) {
			shared = strstr(line, "roceline-memory") != NULL;
			break;
		}
	}
	fclose(maps);
	if (perms)
		memcpy(perms, found, 5);
	return shared;
}

void expect_shared(const void *p, bool shared, const char *what)
{
	if (never)
		shared = false;
	check(is_shared(p, NULL) == shared, "%s: %p is %smapped into the daemon", what, p, shared ? "not " : "");
}

uint8_t *pages(int count)
{
	uint8_t *p = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(p != MAP_FAILED, "mmap: %s", strerror(errno));
	return p;
}

void must_succeed(pid_t child, const char *what)
{
	int status;

	check(child > 0 && waitpid(child, &status, 0) == child, "%s: fork: %s", what, strerror(errno));
	check(status == 0, "%s: the child ended with %#x", what, status);
}

int run_tests(const struct test *tests, size_t count, char **words)
{
	int chosen = 0;

	options.device[0] = words[0];
	options.device[1] = words[1];
	for (size_t i = 0; i < count; i++) {
		bool named = words[2] == NULL && !tests[i].by_name;
		int64_t start = now_ms();

		for (char **word = &words[2]; *word != NULL; word++)
			named |= !strcmp(*word, tests[i].name);
		if (!named)
			continue;
		alarm(120);
		connect_pair(ends, patient);
		tests[i].run();
		close_pair(ends);
		alarm(0);
		printf("ok %s (%ld ms)\n", tests[i].name, (long)(now_ms() - start));
		fflush(stdout);
		chosen++;
	}
	check(chosen > 0, "no such case");
	return 0;
}
