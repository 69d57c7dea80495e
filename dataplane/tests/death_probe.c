/* A program that outlives its NIC. It connects roce0 with roce1, posts work that cannot complete, says "posted", and
 * then waits for the end that the test makes of the daemon.
 *
 *   poll    polls for completions
 *   event   sleeps in ibv_get_cq_event and ibv_get_async_event
 *   cut     as poll, where nobody is left who could tell of the end otherwise
 *   closed  as cut, and the program brings it about itself: it closes the shim's descriptors behind the shim's back
 *
 * With "again" behind it the program then opens the devices anew and transfers a message. */
#include "../../verbs-shim/tests/verbs_end.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SENDS = 12, RECVS = 5, RECV_ID = 100 };

struct options options = { .device = { "roce0", "roce1" }, .mtu = 1024, .seconds = 100 };

static void say(const char *what)
{
	printf("%s %" PRId64 "\n", what, now_ms());
	fflush(stdout);
}

/* Signaled and not: both are flushed. */
static void post_some(struct end *end, uint64_t first, int count)
{
	struct ibv_sge sge = sge_of(end, 0, 64);

	for (int i = 0; i < count; i++)
		post_send(end, (struct ibv_send_wr){ .wr_id = first + (uint64_t)i, .sg_list = &sge, .num_sge = 1,
						     .opcode = IBV_WR_SEND,
						     .send_flags = i % 2 ? IBV_SEND_SIGNALED : 0 });
}

static void *wait_for_fatal(void *argument)
{
	struct end *end = argument;
	struct ibv_async_event event;

	check(ibv_get_async_event(end->context, &event) == 0, "ibv_get_async_event on %s: %s", end->name,
	      strerror(errno));
	check(event.event_type == IBV_EVENT_DEVICE_FATAL, "event %s on %s", ibv_event_type_str(event.event_type),
	      end->name);
	ibv_ack_async_event(&event);
	return NULL;
}

static void expect_flushed(struct end *end)
{
	for (uint64_t id = 1; id <= SENDS; id++)
		expect(end, "posted SEND", id, IBV_WC_WR_FLUSH_ERR);
	for (uint64_t id = RECV_ID; id < RECV_ID + RECVS; id++)
		expect(end, "posted receive", id, IBV_WC_WR_FLUSH_ERR);
	expect_nothing(end, "after the flush", 50);
	/* As with any QP in the error state. */
	post_recv(end, 64, 300);
	expect(end, "receive posted after the end", 300, IBV_WC_WR_FLUSH_ERR);
	post_some(end, 301, 1);
	expect(end, "SEND posted after the end", 301, IBV_WC_WR_FLUSH_ERR);
}

static void expect_no_commands(struct end *end)
{
	int64_t before = now_ms();

	errno = 0;
	check(ibv_alloc_pd(end->context) == NULL && errno == EIO, "ibv_alloc_pd on %s: %s, expected %s", end->name,
	      strerror(errno), strerror(EIO));
	check(now_ms() - before < 1000, "it took %" PRId64 " ms", now_ms() - before);
}

int main(int argc, char **argv)
{
	struct end ends[2];
	const char *mode = argc > 1 ? argv[1] : "";
	bool event = !strcmp(mode, "event"), closed = !strcmp(mode, "closed");
	bool cut = closed || !strcmp(mode, "cut");
	pthread_t waiting[2];

	check(event || cut || !strcmp(mode, "poll"), "poll, event, cut or closed");
	connect_pair(ends, patient);
	if (event) {
		for (int i = 0; i < 2; i++) {
			arm(&ends[i], false);
			check(pthread_create(&waiting[i], NULL, wait_for_fatal, &ends[i]) == 0, "no thread");
		}
	}
	for (uint64_t id = RECV_ID; id < RECV_ID + RECVS; id++)
		post_recv(&ends[0], 64, id);
	/* The other side posts no receive: they stay outstanding. */
	post_some(&ends[0], 1, SENDS);
	say("posted");
	if (closed)
		check(syscall(SYS_close_range, 100U, ~0U, 0U) == 0, "close_range: %s", strerror(errno));
	if (event) {
		take_event(&ends[0]);
		/* It has nothing posted, and wakes all the same. */
		take_event(&ends[1]);
		for (int i = 0; i < 2; i++)
			pthread_join(waiting[i], NULL);
	}
	expect_flushed(&ends[0]);
	say("flushed");
	for (int i = 0; i < 2 && !event && !cut; i++)
		wait_for_fatal(&ends[i]);
	say("told");
	for (int i = 0; i < 2; i++)
		expect_no_commands(&ends[i]);
	for (int i = 0; i < 2; i++) {
		/* Destroying fails as with a device of the kernel's that was unplugged; closing does not. */
		check(ibv_destroy_qp(ends[i].qp) == EIO, "ibv_destroy_qp on %s", ends[i].name);
		check(ibv_close_device(ends[i].context) == 0, "ibv_close_device on %s", ends[i].name);
	}
	say("closed");
	if (argc > 2 && !strcmp(argv[2], "again")) {
		connect_pair(ends, patient);
		post_recv(&ends[1], 64, 1);
		post_op(&ends[0], &ends[1], IBV_WR_SEND, 64, 2);
		expect(&ends[0], "SEND after the restart", 2, IBV_WC_SUCCESS);
		expect(&ends[1], "receive after the restart", 1, IBV_WC_SUCCESS);
		close_pair(ends);
		say("again");
	}
	return 0;
}
