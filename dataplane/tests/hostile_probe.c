/* Programs that take all they can, lie about all they know and break all they share, and one that wants only its share.
 *
 *   hostile_probe MODE [ARGUMENT...]
 *
 * Each mode goes on until it is killed, but for `control` and `register`, which print what they measured.
 */
#define _GNU_SOURCE
#include "../../verbs-shim/tests/verbs_end.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct options options = { .device = { "roce0", "roce1" }, .gid_index = 0, .mtu = 1024, .seconds = 60 };

/* xorshift64*: the same lies for the same seed. */
static __thread uint64_t state = 1;

static uint64_t rnd(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 0x2545f4914f6cdd1dULL;
}

static uint64_t below(uint64_t n)
{
	return rnd() % n;
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* A count that whoever started us reads while we run. */
static _Atomic uint64_t *count_in(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	void *at;

	check(fd >= 0 && ftruncate(fd, 4096) == 0, "%s: %s", path, strerror(errno));
	at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(at != MAP_FAILED, "mmap %s: %s", path, strerror(errno));
	close(fd);
	return at;
}

/* Moves messages and looks at every byte of each. */
static void victim(const char *path)
{
	_Atomic uint64_t *count = count_in(path);
	struct end ends[2];

	connect_pair(ends, patient);
	for (uint32_t seed = 0;; seed++) {
		uint32_t length = seed % 4 ? 4096 : 20000;

		/* What the message before left behind this one is no guard. */
		memset(ends[1].buffer, 0, 20000);
		fill(&ends[0], seed, length);
		post_op(&ends[0], &ends[1], IBV_WR_RDMA_WRITE, length, seed);
		expect(&ends[0], "WRITE", seed, IBV_WC_SUCCESS);
		check_bytes(&ends[1], "WRITE", seed, length);
		atomic_fetch_add(count, 1);
	}
}

/* The whole context file, which the provider maps in parts. */
static uint8_t *whole_file(struct ibv_context *context)
{
	void *at = mmap(NULL, 16ULL << 30, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, context->cmd_fd, 0);

	check(at != MAP_FAILED, "mmap of the context file: %s", strerror(errno));
	return at;
}

enum {
	DOORBELLS = 1 << 20,
	ARM_WORDS = 2 << 20,
	END_WORDS = 3 << 20,
	QP_RECORDS = 4 << 20,
	CQ_RECORDS = 8 << 20,
};

static void ring_all(uint8_t *file)
{
	volatile uint64_t *summary = (void *)(file + DOORBELLS + 128);
	volatile uint64_t *bells = (void *)(file + DOORBELLS + 4096);

	for (int i = 0; i < 1024; i++)
		bells[i] = ~0ULL;
	for (int i = 0; i < 16; i++)
		summary[i] = ~0ULL;
}

/* A value that is whole nonsense, or nearly right. */
static uint64_t lie(const struct end *end)
{
	switch (below(6)) {
	case 0:
		return rnd();
	case 1:
		return below(64);
	case 2:
		return (uint64_t)end->buffer + below(1 << 16);
	case 3:
		return (uint64_t)end->mr->lkey << 32 | below(5000);
	case 4:
		return below(8) << 32 | below(1 << 16);
	default:
		return ~0ULL << below(64);
	}
}

static void scribble(uint64_t seed, int milliseconds)
{
	int64_t stop = now_ms() + milliseconds;
	struct end ends[2];
	uint8_t *file;
	const uint64_t top = 16ULL << 30, queues = 1 << 20;

	state = seed * 2 + 1;
	connect_pair(ends, patient);
	file = whole_file(ends[0].context);
	/* Something is under way while it happens. */
	for (int i = 0; i < 16; i++)
		post_op(&ends[0], &ends[1], i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 4096, i);
	while (now_ms() < stop) {
		for (int i = 0; i < 512; i++) {
			uint64_t at;

			switch (below(8)) {
			case 0:
				at = DOORBELLS + below(8192);
				break;
			case 1:
				at = ARM_WORDS + below(64);
				break;
			case 2:
				at = END_WORDS + below(128);
				break;
			case 3:
				at = QP_RECORDS + below(256);
				break;
			case 4:
				at = CQ_RECORDS + below(256);
				break;
			case 5:
				/* Headers of the queues are in the first bytes of their pages. */
				at = top - queues + below(queues / 4096) * 4096 + below(256);
				break;
			default:
				at = top - queues + below(queues);
			}
			*(volatile uint64_t *)(file + (at & ~7ULL)) = lie(&ends[0]);
		}
		ring_all(file);
		if (below(16) == 0)
			sched_yield();
	}
}

/* One life after the other: what is broken beyond use is left to the daemon to clear away. */
static void garbage(uint64_t seed)
{
	for (;; seed++) {
		pid_t child = fork();

		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			scribble(seed, 300);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
}

/* ---- the control socket ---- */

struct header {
	uint32_t magic, version, kind, len;
};

static uint32_t version;

static int dial(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval patience = { .tv_sec = 0, .tv_usec = 200000 };
	const char *path = getenv("ROCELINE_SOCKET");
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	check(path != NULL && strlen(path) < sizeof address.sun_path, "ROCELINE_SOCKET is not set");
	strcpy(address.sun_path, path);
	if (connect(fd, (void *)&address, sizeof address) != 0) {
		close(fd);
		return -1;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	return fd;
}

/* Sends one message with descriptors beside it, and takes what comes back. False when the connection is gone. */
static bool tell(int fd, uint32_t kind, const void *payload, uint32_t len, const int *fds, int nfds)
{
	struct header header = { .magic = 0x314c4352, .version = version, .kind = kind, .len = len };
	struct iovec iov[2] = { { &header, sizeof header }, { (void *)payload, len } };
	union {
		struct cmsghdr head;
		char bytes[256];
	} control;
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	static __thread char reply[1 << 16];
	struct iovec back = { reply, sizeof reply };

	if (below(64) == 0)
		header.len = rnd();
	if (below(256) == 0)
		header.magic = rnd();
	if (nfds > 0) {
		memset(&control, 0, sizeof control);
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, nfds * sizeof(int));
	}
	if (sendmsg(fd, &msg, MSG_NOSIGNAL) < 0)
		return false;
	if (below(32) == 0)
		return true;	/* rude: the answer stays unread */
	msg = (struct msghdr){ .msg_iov = &back, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	if (recvmsg(fd, &msg, MSG_CMSG_CLOEXEC) <= 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		int n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			for (int i = 0; i < n; i++) {
				int got;

				memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
				/* What the daemon gave is written to and cut off as far as it can be. */
				if (below(2))
					(void)!ftruncate(got, below(1 << 20));
				if (below(4) == 0)
					(void)!write(got, reply, 8);
				close(got);
			}
	}
	return true;
}

/* Some kind of descriptor. */
static int any_fd(void)
{
	int pair[2];

	switch (below(8)) {
	case 0:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 1:
		return open("/", O_RDONLY | O_CLOEXEC);
	case 2:
		return eventfd(0, EFD_CLOEXEC);
	case 3:
		if (pipe2(pair, O_CLOEXEC) != 0)
			return -1;
		close(pair[1]);
		return pair[0];
	case 4:
		return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	case 5:
		return open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	default:
		return open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	}
}

static bool open_device(int fd)
{
	struct {
		char device[64];
		uint64_t program;
		uint32_t pid, reserved;
	} request = { .device = "roce0", .program = rnd(), .pid = below(2) ? getpid() : (int)rnd() };
	int mem = below(8) ? open("/proc/self/mem", O_RDWR | O_CLOEXEC) : any_fd();
	bool alive;

	if (below(16) == 0)
		request.device[4] = rnd();
	alive = tell(fd, 1, &request, sizeof request, &mem, mem >= 0);
	close(mem);
	return alive;
}

/* A number as a program might write it into a field. */
static uint32_t field(void)
{
	switch (below(5)) {
	case 0:
		return rnd();
	case 1:
		return 1u << below(32);
	case 2:
		return below(2) - 1;
	default:
		return below(40);
	}
}

static bool command(int fd)
{
	uint32_t words[64];
	uint32_t number = below(42), body = 2 + below(40);
	uint16_t out = below(8) ? 2 + below(48) : rnd();

	for (int i = 0; i < 64; i++)
		words[i] = field();
	/* Regions are of memory that is there, now and then. */
	if (number == 9 && below(2)) {
		static char memory[1 << 16];
		uint64_t at = (uint64_t)memory, len = below(sizeof memory);

		memcpy(words + 4, &at, 8);
		memcpy(words + 6, &len, 8);
		memcpy(words + 8, &at, 8);
		words[11] = below(16);
		body = 12;
	}
	words[0] = number;
	if (below(8) == 0)
		words[0] = 0x80000000u | below(64);
	words[1] = (body + 2) | (uint32_t)out << 16;
	if (below(16) == 0)
		words[1] = rnd();
	return tell(fd, 2, words, (body + 2) * 4, NULL, 0);
}

static bool memory_object(int fd)
{
	int object = memfd_create("object", MFD_CLOEXEC | (below(2) ? MFD_ALLOW_SEALING : 0));
	struct {
		uint64_t addr, len, offset;
		uint32_t file, reserved;
	} piece = { .addr = below(1 << 20) << below(14), .len = below(64) << 12, .offset = below(64) << 12, .file = below(8) };
	bool alive;

	(void)!ftruncate(object, below(64) << 12);
	alive = tell(fd, 5, NULL, 0, &object, 1) && tell(fd, 6, &piece, sizeof piece, NULL, 0);
	(void)!ftruncate(object, 0);
	close(object);
	return alive;
}

static void messages(uint64_t seed)
{
	state = seed * 2 + 1;
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		int fd = dial();
		bool alive = fd >= 0;

		if (!alive) {
			usleep(1000);
			continue;
		}
		if (below(8))
			alive = open_device(fd);
		if (alive && below(8)) {
			uint32_t context[4] = { 0, 4 | 2 << 16, 1, 0 };

			alive = tell(fd, 2, context, sizeof context, NULL, 0);
		}
		for (int left = below(200); alive && left > 0; left--) {
			char junk[512];
			int fds[3], nfds = below(4) ? 0 : below(4);

			switch (below(16)) {
			case 0:
				alive = memory_object(fd);
				break;
			case 1:
				for (size_t i = 0; i < sizeof junk; i++)
					junk[i] = rnd();
				for (int i = 0; i < nfds; i++)
					fds[i] = any_fd();
				alive = tell(fd, below(12), junk, below(sizeof junk), fds, nfds);
				for (int i = 0; i < nfds; i++)
					close(fds[i]);
				break;
			case 2: {
				static const char *const questions[] = {
					"{\"query\":\"qps\"}", "{\"query\":\"programs\"}", "{\"query\":\"impair-clear\",\"x\":[[[[",
					"{\"query\":\"impair-add\",\"rule\":{\"nic\":\"roce0\"}}", "nothing", "{\"query\":\"postmortems\"}",
				};
				const char *question = questions[below(6)];

				/* What only operators may do is left out where we are one: it would be done. */
				alive = tell(fd, 4, question, strlen(question), NULL, 0);
				break;
			}
			default:
				alive = command(fd);
			}
		}
		close(fd);
	}
}

/* ---- those that are only greedy ---- */

/* All is set up: from here on it takes what it can. */
static void begun(void)
{
	puts("begun");
	fflush(stdout);
}

static void bells(void)
{
	struct end ends[2];
	uint8_t *file;

	connect_pair(ends, patient);
	/* Many queue pairs, so that many bells count. */
	for (int i = 0; i < 500; i++) {
		struct ibv_qp_init_attr init = { .send_cq = ends[0].cq, .recv_cq = ends[0].cq,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC };

		struct ibv_qp *qp = ibv_create_qp(ends[0].pd, &init);

		check(qp != NULL, "ibv_create_qp: %s", strerror(errno));
	}
	file = whole_file(ends[0].context);
	begun();
	for (;;)
		ring_all(file);
}

static void reregister(void)
{
	struct end end;
	void *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	open_end(&end, options.device[0]);
	memset(memory, 1, 1 << 20);
	begun();
	for (;;) {
		struct ibv_mr *mr = ibv_reg_mr(end.pd, memory, 1 << 20, IBV_ACCESS_LOCAL_WRITE);

		check(mr != NULL, "ibv_reg_mr: %s", strerror(errno));
		ibv_dereg_mr(mr);
	}
}

static struct ibv_device *device_named(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			return list[i];
	fail("no device %s", name);
}

static void *open_and_close(void *device)
{
	for (;;) {
		struct ibv_context *context = ibv_open_device(device);

		if (context)
			ibv_close_device(context);
	}
	return NULL;
}

static void *ask(void *seed)
{
	const char *question = (uintptr_t)seed % 2 ? "{\"query\":\"qps\"}" : "{\"query\":\"devices\"}";
	int fd = dial();

	for (;;) {
		struct header header = { .magic = 0x314c4352, .version = version, .kind = 4, .len = strlen(question) };
		struct iovec iov[2] = { { &header, sizeof header }, { (void *)question, strlen(question) } };
		static __thread char reply[1 << 17];

		if (fd < 0 || writev(fd, iov, 2) < 0 || recv(fd, reply, sizeof reply, 0) <= 0) {
			close(fd);
			fd = dial();
		}
	}
	return NULL;
}

static void threads(void *(*run)(void *), void *argument, int number)
{
	pthread_t thread;

	signal(SIGPIPE, SIG_IGN);
	begun();
	for (int i = 1; i < number; i++)
		check(pthread_create(&thread, NULL, run, argument ? argument : (void *)(uintptr_t)i) == 0, "no thread");
	run(argument);
}

/* Completions, all of them armed for, and nobody who reads the events. */
static void deaf(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	begun();
	for (uint64_t i = 0;; i++) {
		arm(&ends[0], false);
		post_op(&ends[0], &ends[1], IBV_WR_RDMA_WRITE, 8, i);
		expect(&ends[0], "WRITE", i, IBV_WC_SUCCESS);
	}
}

/* As many requests as fit, none of which can succeed: the queue pair fails and is set up again. */
static void wrong(void)
{
	begun();
	for (;;) {
		struct end ends[2];

		connect_pair(ends, patient);
		for (int i = 0; i < QUEUE - 1; i++) {
			struct ibv_sge sge = sge_of(&ends[0], 0, 64);
			struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				.send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = { .remote_addr = rnd(), .rkey = rnd() } };

			if (try_send(&ends[0], &wr) != 0)
				break;
		}
		for (int i = 0; i < QUEUE - 1; i++) {
			struct ibv_wc wc;

			while (ibv_poll_cq(ends[0].cq, 1, &wc) == 0)
				;
		}
		close_pair(ends);
	}
}

/* Much is under way, and then it stands still. */
static void stopped(void)
{
	struct end ends[2];

	connect_pair(ends, patient);
	for (int i = 0; i < 32; i++)
		post_op(&ends[0], &ends[1], IBV_WR_RDMA_READ, 1 << 20, i);
	begun();
	raise(SIGSTOP);
	pause();
}

/* ---- what is measured ---- */

static int by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

enum { SAMPLES = 1 << 18 };

static int64_t samples[SAMPLES];
static size_t taken;

static void sample(int64_t since)
{
	if (taken < SAMPLES)
		samples[taken++] = now_us() - since;
}

/* One of each common command; registrations wait for each other in a program, as those that pin memory do. */
static void commands(struct end *end, bool memory_too)
{
	static char memory[1 << 16] __attribute__((aligned(4096)));
	int64_t at = now_us();
	struct ibv_pd *pd = ibv_alloc_pd(end->context);
	struct ibv_mr *mr = NULL;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC };

	sample(at);
	if (memory_too) {
		at = now_us();
		mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
		sample(at);
		check(mr != NULL, "ibv_reg_mr: %s", strerror(errno));
	}
	at = now_us();
	cq = ibv_create_cq(end->context, 64, NULL, NULL, 0);
	sample(at);
	init.send_cq = init.recv_cq = cq;
	at = now_us();
	qp = ibv_create_qp(pd, &init);
	sample(at);
	check(cq && qp, "an object could not be made: %s", strerror(errno));
	at = now_us();
	ibv_destroy_qp(qp);
	sample(at);
	at = now_us();
	ibv_destroy_cq(cq);
	sample(at);
	if (mr) {
		at = now_us();
		ibv_dereg_mr(mr);
		sample(at);
	}
	at = now_us();
	ibv_dealloc_pd(pd);
	sample(at);
}

static void report(const char *what)
{
	qsort(samples, taken, sizeof samples[0], by_size);
	printf("%s: %zu commands, p50 %lld us, p99 %lld us, p99.9 %lld us, longest %lld us\n", what, taken,
	       (long long)samples[taken / 2], (long long)samples[taken * 99 / 100],
	       (long long)samples[taken * 999 / 1000], (long long)samples[taken - 1]);
	fflush(stdout);
}

static void control(int milliseconds)
{
	struct end end;
	int64_t stop;

	open_end(&end, options.device[0]);
	stop = now_ms() + milliseconds;
	while (now_ms() < stop)
		commands(&end, true);
	report("control");
}

static atomic_bool registered;

/* The other threads of a program that registers very much. */
static void *beside(void *end)
{
	while (!atomic_load(&registered))
		commands(end, false);
	return NULL;
}

static void register_bytes(uint64_t bytes, bool touch)
{
	struct end end, other;
	pthread_t thread;
	struct ibv_mr *mr;
	int64_t at;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	check(memory != MAP_FAILED, "mmap: %s", strerror(errno));
	if (touch)
		memset(memory, 1, bytes);
	open_end(&end, options.device[0]);
	open_end(&other, options.device[0]);
	check(pthread_create(&thread, NULL, beside, &other) == 0, "no thread");
	at = now_us();
	mr = ibv_reg_mr(end.pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check(mr != NULL, "ibv_reg_mr: %s", strerror(errno));
	printf("register: %llu bytes in %lld us\n", (unsigned long long)bytes, (long long)(now_us() - at));
	at = now_us();
	ibv_dereg_mr(mr);
	printf("deregister: %lld us\n", (long long)(now_us() - at));
	atomic_store(&registered, true);
	pthread_join(thread, NULL);
	if (taken > 0)
		report("beside");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	const char *argument = argc > 2 ? argv[2] : "0";
	uint64_t number = strtoull(argument, NULL, 0);

	version = argc > 3 ? strtoul(argv[3], NULL, 0) : 0;
	/*
	 * Attackers run when a CPU has nothing else to do: what they take from the victim is then the daemon's time, not
	 * the scheduler's slices of a CPU that all programs share.
	 */
	if (strcmp(mode, "victim") != 0 && strcmp(mode, "control") != 0 && strcmp(mode, "register") != 0 &&
	    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }) != 0)
		fail("SCHED_IDLE: %s", strerror(errno));
	if (strcmp(mode, "victim") == 0)
		victim(argument);
	else if (strcmp(mode, "garbage") == 0)
		garbage(number);
	else if (strcmp(mode, "messages") == 0)
		messages(number);
	else if (strcmp(mode, "bells") == 0)
		bells();
	else if (strcmp(mode, "reregister") == 0)
		reregister();
	else if (strcmp(mode, "opens") == 0)
		threads(open_and_close, device_named("roce0"), 4);
	else if (strcmp(mode, "flood") == 0)
		threads(ask, NULL, 8);
	else if (strcmp(mode, "deaf") == 0)
		deaf();
	else if (strcmp(mode, "wrong") == 0)
		wrong();
	else if (strcmp(mode, "stopped") == 0)
		stopped();
	else if (strcmp(mode, "control") == 0)
		control(number);
	else if (strcmp(mode, "register") == 0)
		register_bytes(number, argc > 3 && strcmp(argv[3], "touched") == 0);
	else
		fail("unknown mode %s", mode);
	return 0;
}
