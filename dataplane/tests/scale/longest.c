/*
 * A message as long as messages may be: longest DEVICE PEER [BYTES]
 *
 * One SEND of as many bytes as the port says, or of BYTES. Both buffers show a few MiB again and again, so that they take no more memory.
 */
#define _GNU_SOURCE
#include "qps.h"

#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 16 << 20 };

/* `bytes` that all lie in one piece. */
static uint8_t *repeated(size_t bytes)
{
	int fd = memfd_create("piece", MFD_CLOEXEC);
	uint8_t *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (fd < 0 || ftruncate(fd, PIECE) || p == MAP_FAILED)
		FAIL("no memory: %m");
	for (size_t at = 0; at < bytes; at += PIECE) {
		size_t here = bytes - at < PIECE ? bytes - at : PIECE;

		if (mmap(p + at, here, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
			FAIL("mmap: %m");
	}
	return p;
}

int main(int argc, char **argv)
{
	static struct side sides[2];
	struct ibv_port_attr port;

	if (argc < 3)
		FAIL("longest DEVICE PEER [BYTES]");
	for (int i = 0; i < 2; i++)
		open_side(&sides[i], argv[1 + i]);
	if (ibv_query_port(sides[0].context, 1, &port))
		FAIL("no port: %m");
	size_t bytes = argc > 3 ? strtoull(argv[3], NULL, 0) : port.max_msg_sz;
	struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	uint8_t *memory[2];
	struct ibv_mr *mrs[2];
	struct ibv_cq *cqs[2];
	struct ibv_qp *qps[2];

	for (int i = 0; i < 2; i++) {
		memory[i] = repeated(bytes);
		mrs[i] = ibv_reg_mr(sides[i].pd, memory[i], bytes, IBV_ACCESS_LOCAL_WRITE);
		cqs[i] = ibv_create_cq(sides[i].context, 2, NULL, NULL, 0);
		if (!mrs[i] || !cqs[i])
			FAIL("%zu bytes cannot be registered: %m", bytes);
		qps[i] = create_qp(&sides[i], cqs[i], cap);
	}
	for (int i = 0; i < 2; i++)
		connect_qp(&sides[i], qps[i], &sides[1 - i], qps[1 - i]);
	for (size_t i = 0; i < PIECE && i < bytes; i++)
		memory[0][i] = i * 2654435761u >> 17;
	struct ibv_sge to = { (uintptr_t)memory[1], bytes, mrs[1]->lkey }, from = { (uintptr_t)memory[0], bytes, mrs[0]->lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
			   *bad_send;
	double begin = now();

	if (ibv_post_recv(qps[1], &receive, &bad_receive) || ibv_post_send(qps[0], &send, &bad_send))
		FAIL("%zu bytes cannot be posted: %m", bytes);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;
		int n;

		while ((n = ibv_poll_cq(cqs[i], 1, &wc)) == 0)
			;
		if (n < 0)
			FAIL("ibv_poll_cq");
		expect_success(&wc);
		if (i == 1 && wc.byte_len != bytes)
			FAIL("%u bytes came, not %zu", wc.byte_len, bytes);
	}
	double seconds = now() - begin;

	/* All pieces of a side are the same memory. */
	if (memcmp(memory[0], memory[1], bytes < PIECE ? bytes : PIECE))
		FAIL("other bytes came");
	printf("%zu bytes in one message, %.2f s\n", bytes, seconds);
	return 0;
}
