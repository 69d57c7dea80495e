/* Files of a device that change it, written and left by ways that no shell takes; the test sees what reaches the daemon.
 *
 *     attribute_probe CASE
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/uio.h>

#include "probe.h"

#define RATE "/sys/class/infiniband/roce0/ecn/roce_rp/rpg_ai_rate"

static int open_rate(void)
{
	int fd = open(RATE, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

/* By a call that the library does not stand in front of. */
static void put(int fd, const char *value)
{
	struct iovec part = { (void *)value, strlen(value) };

	CHECK(writev(fd, &part, 1) == (ssize_t)part.iov_len);
}

static FILE *print(const char *value)
{
	FILE *file = fopen(RATE, "w");

	CHECK(file != NULL);
	CHECK(fputs(value, file) >= 0);
	return file;
}

/* A number that the program takes for one of these may be that of a hidden fd. */
static void case_hidden(void)
{
	int device = open_node(), rate = open_rate(), hidden[2] = { -1, -1 }, found = 0;

	for (int i = 3; i < 65536; i++)
		if (i != device && i != rate && fcntl(i, F_GETFD) >= 0) {
			CHECK(found < 2);
			hidden[found++] = i;
		}
	for (int i = 0; i < 2; i++) {
		CHECK(dup2(rate, hidden[i]) == hidden[i]);
		check_echo(device);
	}
	*(map_control(device) + (1 << 20) / 4) = 1;
	CHECK(ring(device, 0) == 32);
	CHECK(ask(device, READ_WAKE) == 1);
	CHECK(write(rate, "1\n", 2) == 2);
}

/* One takes the place of the device's last fd, and the other way round. */
static void case_places(void)
{
	int device = open_node(), rate = open_rate();

	put(rate, "1\n");
	CHECK(dup2(device, rate) == rate);
	CHECK(close(device) == 0);
	check_echo(rate);
	int other = open_rate();
	CHECK(dup2(other, rate) == rate);
	CHECK(write(rate, "2\n", 2) == 2);
}

static void *reads(void *file)
{
	fgetc(file);
	return NULL;
}

/* Neither closed nor flushed, while another thread holds the lock of a stream. */
static void case_exit(void)
{
	int ends[2];
	pthread_t thread;

	CHECK(pipe(ends) == 0);
	FILE *file = fdopen(ends[0], "r");
	CHECK(file != NULL);
	CHECK(pthread_create(&thread, NULL, reads, file) == 0);
	usleep(50000);
	print("1\n");
	exit(0);
}

static void case_ranges(void)
{
	put(open_rate(), "1\n");
	CHECK(close_range(3, ~0u, 0) == 0);
	put(open_rate(), "2\n");
	closefrom(3);
}

static void case_flush(void)
{
	FILE *file = print("nonsense\n");

	CHECK(fflush(NULL) == EOF && errno == EINVAL);
	CHECK(fclose(file) == 0);
}

static void case_reopen(void)
{
	FILE *file = print("1\n");

	CHECK(freopen("/dev/null", "w", file) == file);
	CHECK(fputs("2\n", file) >= 0);
	CHECK(fclose(file) == 0);
}

static void case_vfork(void)
{
	int rate = open_rate();
	pid_t child = vfork();

	if (child == 0) {
		close(rate);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	wait_for(child);
	put(rate, "1\n");
	CHECK(close(rate) == 0);
}

static const struct probe cases[] = {
	{ "hidden", case_hidden }, { "places", case_places }, { "exit", case_exit },   { "ranges", case_ranges },
	{ "flush", case_flush },   { "reopen", case_reopen }, { "vfork", case_vfork },
};

int main(int argc, char **argv)
{
	return probe_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
