/* Checks the preloaded library from inside a program, against the stub daemon of stub.rs, by plain libc calls.
 *
 *     shim_probe CASE
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

#define DEVICE "/sys/class/infiniband/roce0"

static void check_line(FILE *file, const char *expected)
{
	char line[64] = "";

	CHECK(file != NULL);
	CHECK(fgets(line, sizeof line, file) != NULL);
	CHECK(!strcmp(line, expected));
	fclose(file);
}

/* What `ls -l` asks of each entry: no such attribute, or none at all here, but not "no such file". */
static void check_attributes(const char *path)
{
	char text[256];

	CHECK(getxattr(path, "system.posix_acl_access", text, sizeof text) < 0 && errno != ENOENT);
	CHECK(lgetxattr(path, "system.posix_acl_access", text, sizeof text) < 0 && errno != ENOENT);
	CHECK(listxattr(path, text, sizeof text) >= 0 || errno != ENOENT);
	CHECK(llistxattr(path, text, sizeof text) >= 0 || errno != ENOENT);
}

static void case_paths(void)
{
	check_attributes(DEVICE);
	check_attributes(NODE);

	struct stat st;
	struct statx stx;
	char text[PATH_MAX], link[64];

	check_line(fopen(DEVICE "/node_type", "r"), "1: CA\n");
	check_line(freopen("/sys/class/infiniband_verbs/abi_version", "r", fopen("/dev/null", "r")), "6\n");
	int dir = open("/sys/class/infiniband_verbs", O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0);
	int fd = openat(dir, "uverbs0/ibdev", O_RDONLY);
	CHECK(fd >= 0);
	CHECK(read(fd, text, sizeof text) == 6 && !memcmp(text, "roce0\n", 6));
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, text, sizeof text);
	CHECK(n > 0);
	text[n] = 0;
	CHECK(!strcmp(text, "/sys/class/infiniband_verbs/uverbs0/ibdev"));
	close(fd);
	close(dir);

	DIR *d = opendir("/sys/class/infiniband/");
	CHECK(d != NULL);
	struct dirent *entry;
	int entries = 0;
	while ((entry = readdir(d)))
		entries += !strcmp(entry->d_name, "roce0");
	CHECK(entries == 1);
	closedir(d);
	struct dirent **list;
	CHECK(scandir("/dev/infiniband", &list, NULL, alphasort) == 3);
	glob_t found;
	CHECK(glob("/sys/class/infiniband/*/node_type", 0, NULL, &found) == 0);
	CHECK(found.gl_pathc == 1 && !strcmp(found.gl_pathv[0], DEVICE "/node_type"));
	globfree(&found);
	CHECK(glob("/sys/class/infiniband/x*", 0, NULL, &found) == GLOB_NOMATCH);

	CHECK(realpath(DEVICE "/ports/../node_type", text) == text);
	CHECK(!strcmp(text, DEVICE "/node_type"));
	char *name = realpath(DEVICE "/../..", NULL);
	CHECK(name && !strcmp(name, "/sys/class"));
	name = canonicalize_file_name(NODE);
	CHECK(name && !strcmp(name, NODE));
	CHECK(realpath("/proc/self/cwd/..", text) && strncmp(text, "/proc", 5));

	CHECK(stat(NODE, &st) == 0);
	check_node(&st);
	CHECK(lstat(NODE, &st) == 0);
	check_node(&st);
	CHECK(fstatat(AT_FDCWD, NODE, &st, 0) == 0);
	check_node(&st);
	CHECK(statx(AT_FDCWD, NODE, 0, STATX_BASIC_STATS, &stx) == 0);
	CHECK(S_ISCHR(stx.stx_mode) && stx.stx_rdev_major == 231 && stx.stx_rdev_minor == 192);
	CHECK(stat(DEVICE, &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(stat("/dev/null", &st) == 0 && st.st_rdev == makedev(1, 3));
	CHECK(access(NODE, R_OK | W_OK) == 0);
	CHECK(euidaccess(NODE, R_OK | W_OK) == 0);
	CHECK(faccessat(AT_FDCWD, NODE, X_OK, 0) == -1 && errno == EACCES);

	CHECK(access("/dev/infiniband/uverbs7", F_OK) == -1 && errno == ENOENT);
	CHECK(open("/dev/infiniband/uverbs7", O_RDWR) == -1 && errno == ENOENT);
	CHECK(open("/dev/infiniband/rdma_cm", O_RDWR) == -1 && errno == ENOENT);
	CHECK(stat("/sys/class/misc/rdma_cm/abi_version", &st) == -1 && errno == ENOENT);
	CHECK(opendir("/sys/class/infiniband_mad") == NULL && errno == ENOENT);
	CHECK(open(nothing, O_RDONLY) == -1 && errno == EFAULT);
	CHECK(socket(AF_NETLINK, SOCK_RAW, 20) == -1 && errno == EPROTONOSUPPORT);
	memset(text, 'x', sizeof text);
	memcpy(text, DEVICE "/", sizeof DEVICE);
	text[sizeof text - 1] = 0;
	CHECK(open(text, O_RDONLY) == -1 && errno == ENAMETOOLONG);
}

/* A device of the kernel's beside ours; the test made files of known content stand for it. */
/* The next entry whose name begins so. */
static const char *next_of(DIR *dir, const char *start)
{
	struct dirent *entry;

	errno = 0;
	while ((entry = readdir(dir)))
		if (!strncmp(entry->d_name, start, strlen(start)))
			return entry->d_name;
	CHECK(errno == 0);
	return "";
}

/* The test has made twelve devices, out of order. */
static void case_order(void)
{
	static const char *const places[][2] = { { "/sys/class/infiniband_verbs", "uverbs" },
						 { "/sys/class/infiniband//", "roce" },
						 { "/dev/infiniband", "uverbs" } };
	char name[32];

	for (int round = 0; round < 50; round++) {
		DIR *dirs[3];

		for (int i = 0; i < 3; i++) {
			dirs[i] = opendir(places[i][0]);
			CHECK(dirs[i] != NULL);
		}
		/* Each has its own place. */
		for (int n = 0; n < 12; n++) {
			for (int i = 0; i < 3; i++) {
				snprintf(name, sizeof name, "%s%d", places[i][1], n);
				CHECK(!strcmp(next_of(dirs[i], places[i][1]), name));
			}
		}
		for (int i = 0; i < 3; i++) {
			snprintf(name, sizeof name, "%s0", places[i][1]);
			CHECK(readdir(dirs[i]) == NULL && readdir(dirs[i]) == NULL);
			rewinddir(dirs[i]);
			CHECK(!strcmp(next_of(dirs[i], places[i][1]), name));
			long place = telldir(dirs[i]);
			snprintf(name, sizeof name, "%s", next_of(dirs[i], places[i][1]));
			CHECK(name[strlen(name) - 1] == '1');
			next_of(dirs[i], places[i][1]);
			seekdir(dirs[i], place);
			CHECK(!strcmp(next_of(dirs[i], places[i][1]), name));
			CHECK(closedir(dirs[i]) == 0);
		}
	}
	/* More at once than there is room for in order: they are whole all the same. */
	DIR *many[20];
	for (int i = 0; i < 20; i++) {
		many[i] = opendir("/sys/class/infiniband_verbs");
		CHECK(many[i] != NULL);
	}
	for (int i = 0; i < 20; i++) {
		int entries = 0;

		while (*next_of(many[i], "uverbs"))
			entries++;
		CHECK(entries == 12);
		closedir(many[i]);
	}
	/* One that goes while they are listed is left out, and none of the others. */
	DIR *dir = opendir("/dev/infiniband");
	CHECK(dir != NULL && !strcmp(next_of(dir, "uverbs"), "uverbs0"));
	const char *socket = getenv("ROCELINE_SOCKET");
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s.d/all/dev/infiniband/uverbs1", socket);
	CHECK(unlink(path) == 0);
	for (int n = 2; n < 12; n++) {
		snprintf(name, sizeof name, "uverbs%d", n);
		CHECK(!strcmp(next_of(dir, "uverbs"), name));
	}
	CHECK(readdir(dir) == NULL);
	/* What has come meanwhile is listed from the start on. */
	char more[PATH_MAX];
	snprintf(more, sizeof more, "%s.d/all/dev/infiniband/uverbs12", socket);
	CHECK(close(creat(more, 0644)) == 0);
	rewinddir(dir);
	CHECK(!strcmp(next_of(dir, "uverbs"), "uverbs0"));
	for (int n = 2; n < 13; n++) {
		snprintf(name, sizeof name, "uverbs%d", n);
		CHECK(!strcmp(next_of(dir, "uverbs"), name));
	}
	CHECK(readdir(dir) == NULL);
	closedir(dir);
	/* The test goes on with all. */
	CHECK(unlink(more) == 0 && close(creat(path, 0644)) == 0);
	/* Others are as they are. */
	dir = opendir("/proc/self/task");
	CHECK(dir != NULL && readdir(dir) != NULL);
	seekdir(dir, telldir(dir));
	CHECK(closedir(dir) == 0);
	CHECK(opendir("/sys/class/infiniband/nothing") == NULL && errno == ENOENT);
}

static void case_machine(void)
{
	static const char own[] = "/dev/infiniband/uverbs3";
	struct stat st;
	struct statx stx;
	char text[64];

	int dir = open("/dev/infiniband", O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0);
	int fds[] = { open(own, O_RDWR), openat(dir, "uverbs3", O_RDWR), openat(AT_FDCWD, own, O_RDONLY) };
	for (int i = 0; i < 3; i++) {
		CHECK(fds[i] >= 0);
		CHECK(read(fds[i], text, sizeof text) == 5 && !memcmp(text, "node\n", 5));
		CHECK(fstat(fds[i], &st) == 0 && S_ISREG(st.st_mode));
		close(fds[i]);
	}
	close(dir);
	check_line(fopen(own, "r"), "node\n");
	CHECK(stat(own, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(lstat(own, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(statx(AT_FDCWD, own, 0, STATX_BASIC_STATS, &stx) == 0 && S_ISREG(stx.stx_mode));
	CHECK(access(own, R_OK) == 0);
	CHECK(access(own, X_OK) == -1 && errno == EACCES);
	check_line(fopen("/sys/class/infiniband/mlx5_0/node_type", "r"), "1: CA\n");
	check_line(fopen("/sys/class/infiniband_verbs/uverbs3/ibdev", "r"), "mlx5_0\n");

	/* Ours is as it was. */
	check_line(fopen("/sys/class/infiniband_verbs/uverbs0/ibdev", "r"), "roce0\n");
	CHECK(lstat(NODE, &st) == 0);
	check_node(&st);
	int fd = open_node();
	CHECK(fstat(fd, &st) == 0);
	check_node(&st);
	check_echo(fd);
	close(fd);
	CHECK(socket(AF_NETLINK, SOCK_RAW, 20) == -1 && errno == EPROTONOSUPPORT);
}

static void case_open(void)
{
	struct stat st;
	struct statx stx;
	int lowest = dup(0);

	close(lowest);
	int fd = open_node();
	CHECK(fd == lowest);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	int plain = open(NODE, O_RDWR);
	CHECK(fcntl(plain, F_GETFD) == 0);
	close(plain);
	CHECK(fstat(fd, &st) == 0);
	check_node(&st);
	CHECK(fstatat(fd, "", &st, AT_EMPTY_PATH) == 0);
	check_node(&st);
	CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx) == 0 && S_ISCHR(stx.stx_mode));
	CHECK(ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 0x1b, 1, 24), &stx) == -1 && errno == ENOTTY);
	errno = 4242;
	check_echo(fd);
	CHECK(errno == 4242);

	int dir = open("/dev/infiniband", O_RDONLY | O_DIRECTORY);
	int below = openat(dir, "uverbs0", O_RDWR);
	CHECK(below >= 0);
	check_echo(below);
	close(below);
	close(dir);
	check_echo(fd);
}

static void case_commands(void)
{
	int fd = open_node();
	uint32_t words[4] = { 0 }, answer[8] = { 0 };

	CHECK(command(fd, 5000, words, 2, answer, 16) == -1 && errno == EOPNOTSUPP);
	uint32_t wrong[4] = { ECHO, 5 };
	CHECK(write(fd, wrong, sizeof wrong) == -1 && errno == EINVAL);
	CHECK(write(fd, wrong, 3) == -1 && errno == EINVAL);
	CHECK(write(fd, nothing, 24) == -1 && errno == EINVAL);

	/* Extended: lengths in words of eight bytes, the answer's address in the second header. */
	uint64_t extended[5] = { 0x80000000u | ECHO | (uint64_t)1 << 32 | (uint64_t)2 << 48, (uintptr_t)answer,
				 1 | 1 << 16, 7, 8 };
	answer[6] = 0x77;
	CHECK(write(fd, extended, sizeof extended) == sizeof extended);
	CHECK(answer[0] == (0x80000000u | ECHO) && answer[4] == (1 | 1 << 16));
	CHECK(answer[6] == 0x77);
	check_echo(fd);
}

static ssize_t notify(int fd, uint32_t cq, uint32_t solicited)
{
	uint32_t words[4] = { 23, 4, cq, solicited };

	return write(fd, words, sizeof words);
}

static void case_doorbells(void)
{
	int fd = open_node();
	volatile uint32_t *control = map_control(fd);
	volatile uint64_t *area = (volatile uint64_t *)(control + ((1 << 20) + (64 << 10)) / 4);

	/* Slot 1, index 65 x 64 + 3: bell word 65, summary word 1. */
	CHECK(ring(fd, 1 << 20 | (65 * 64 + 3)) == 32);
	CHECK(area[512 + 65] == 1 << 3);
	CHECK(area[16 + 1] == 1 << 1);
	CHECK(ask(fd, READ_WAKE) == 0);
	*(volatile uint32_t *)area = 1;
	CHECK(ring(fd, 1 << 20 | 5) == 32);
	CHECK(area[512] == 1 << 5 && area[16] == 1);
	CHECK(ask(fd, READ_WAKE) == 1);
	CHECK(ring(fd, 2 << 20) == -1 && errno == EINVAL);
	CHECK(ring(fd, 1 << 20 | 1 << 16) == -1 && errno == EINVAL);

	volatile uint32_t *arms = control + (2 << 20) / 4;
	CHECK(notify(fd, 9, 1) == 16 && arms[9] == 1);
	CHECK(notify(fd, 9, 0) == 16 && arms[9] == 2);
	CHECK(notify(fd, 9, 1) == 16 && arms[9] == 2);
	CHECK(notify(fd, 1 << 16, 0) == -1 && errno == EINVAL);
}

static uint32_t create_cq(int fd, int channel)
{
	/* user_handle, cqe, comp_vector, comp_channel, reserved; the stub answers what it saw as channel. */
	uint32_t words[6] = { 0, 0, 1, 0, (uint32_t)channel, 0 }, answer[4] = { 0 };

	return command(fd, 18, words, 6, answer, sizeof answer) == 40 ? answer[0] : 0xeeeeeeee;
}

static void case_channels(void)
{
	int fd = open_node(), channel;

	CHECK(command(fd, 17, NULL, 0, &channel, 4) == 16);
	CHECK(fcntl(channel, F_GETFD) == FD_CLOEXEC);
	CHECK(create_cq(fd, channel) == 7);
	CHECK(create_cq(fd, -1) == 0xffffffff);
	CHECK(create_cq(fd, fd) == 0xeeeeeeee && errno == EINVAL);
	CHECK(create_cq(fd, 0) == 0xeeeeeeee && errno == EINVAL);
	int copy = fcntl(channel, F_DUPFD_CLOEXEC, 50);
	CHECK(copy == 50);
	CHECK(create_cq(fd, copy) == 7);
	close(channel);
	CHECK(ask(fd, CLOSED_CHANNELS) == 0);
	CHECK(dup2(0, copy) == copy);
	CHECK(ask(fd, CLOSED_CHANNELS) == 1);

	/* Another context's channel is none. */
	int other = open_node();
	CHECK(command(fd, 17, NULL, 0, &channel, 4) == 16);
	CHECK(create_cq(other, channel) == 0xeeeeeeee && errno == EINVAL);
	close(fd);
	close(channel);
	check_echo(other);
}

static void case_dup(void)
{
	int fd = open_node(), copy = dup(fd), high = fcntl(fd, F_DUPFD, 100);
	struct stat st;

	close(fd);
	CHECK(fstat(copy, &st) == 0);
	check_node(&st);
	check_echo(copy);
	CHECK(dup3(high, fd, O_CLOEXEC) == fd);
	close(copy);
	close(high);
	check_echo(fd);
	CHECK(dup2(fd, fd) == fd);
	CHECK(dup2(999, fd) == -1 && errno == EBADF);
	check_echo(fd);
	int ends[2];
	CHECK(pipe(ends) == 0);
	CHECK(dup2(ends[0], fd) == fd);
	CHECK(fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode));
}

static void case_hidden(void)
{
	int fd = open_node(), hidden[2] = { -1, -1 }, found = 0;

	for (int i = 3; i < 65536; i++)
		if (i != fd && fcntl(i, F_GETFD) >= 0) {
			CHECK(found < 2 && i > 400);
			hidden[found++] = i;
			CHECK(close(i) == -1 && errno == EBADF);
		}
	check_echo(fd);
	for (int i = 0; i < 2; i++)
		CHECK(dup2(0, hidden[i]) == hidden[i]);
	check_echo(fd);
	for (int i = 0; i < 2; i++)
		CHECK(close(hidden[i]) == 0);
	check_echo(fd);
	CHECK(close_range((unsigned)fd + 1, ~0u, 0) == 0);
	check_echo(fd);
	*(map_control(fd) + (1 << 20) / 4) = 1;
	CHECK(ring(fd, 0) == 32);
	CHECK(ask(fd, READ_WAKE) == 1);
	CHECK(close_range(3, ~0u, 0) == 0);
	CHECK(fcntl(fd, F_GETFD) == -1);
	CHECK(command(fd, ECHO, NULL, 0, NULL, 0) == -1 && errno == EBADF);
	fd = open_node();
	check_echo(fd);
	closefrom(3);
	CHECK(fcntl(fd, F_GETFD) == -1);
}

/* An fd closed behind the library's back and given to a file must be the file's. */
static void case_reuse(void)
{
	int fd = open_node();
	char path[] = "/tmp/shim-probe-XXXXXX";
	uint32_t words[4] = { ECHO, 4 | 4 << 16 };
	struct stat st;

	syscall(SYS_close, fd);
	int file = mkstemp(path);
	CHECK(file == fd);
	unlink(path);
	CHECK(fstat(file, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(write(file, words, sizeof words) == sizeof words);
	CHECK(fstat(file, &st) == 0 && st.st_size == sizeof words);
}

static void case_fork(void)
{
	int fd = open_node();
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		CHECK(command(fd, ECHO, NULL, 0, NULL, 0) == -1 && errno == EIO);
		CHECK(ring(fd, 0) == -1 && errno == EIO);
		close(fd);
		int own = open_node();
		check_echo(own);
		_exit(0);
	}
	wait_for(child);
	check_echo(fd);

	/* A child that outlives us, until the harness closes stdin, keeps no connection. */
	if (fork() == 0) {
		char byte;
		_exit(read(0, &byte, 1) != 0);
	}
}

static void case_spawn(void)
{
	int fd = open_node();
	volatile pid_t child = vfork();

	if (child == 0) {
		for (int i = 3; i < 5000; i++)
			close(i);
		dup2(0, fd);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	wait_for(child);
	check_echo(fd);
	pid_t spawned;
	char *argv[] = { "true", NULL };
	CHECK(posix_spawn(&spawned, "/bin/true", NULL, NULL, argv, environ) == 0);
	wait_for(spawned);
	check_echo(fd);
	CHECK(system("true") == 0);
	check_echo(fd);
}

static void case_gone(void)
{
	int fd = open_node();

	CHECK(command(fd, HANG_UP, NULL, 0, NULL, 0) == -1 && errno == EIO);
	CHECK(command(fd, ECHO, NULL, 0, NULL, 0) == -1 && errno == EIO);
	/* Posting still works: what is posted completes with a flush error. */
	CHECK(ring(fd, 0) > 0);
	CHECK(close(fd) == 0);
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Opening fails with this errno, and libibverbs does not wait for udev after that. */
static void refused(int expected)
{
	CHECK(open(NODE, O_RDWR | O_CLOEXEC) == -1 && errno == expected);
	int watch = inotify_init1(IN_CLOEXEC);
	CHECK(inotify_add_watch(watch, "/dev/char/", IN_CREATE) == -1 && errno == expected);
	CHECK(inotify_add_watch(watch, "/tmp", IN_CREATE) >= 0);
}

static void case_no_daemon(void) { refused(ENODEV); }
static void case_version(void) { refused(EPROTO); }
static void case_denied(void) { refused(EACCES); }

static void case_many(void)
{
	for (int i = 0; i < 200; i++) {
		int fd = open_node();
		check_echo(fd);
		CHECK(close(fd) == 0);
	}
	int fds[20];
	for (int i = 0; i < 20; i++)
		fds[i] = open_node();
	for (int i = 0; i < 20; i++) {
		check_echo(fds[i]);
		CHECK(close(fds[i]) == 0);
	}
}

/* Not a check: what the calls cost. */
static void case_cost(void)
{
	int fd = open_node(), null = open("/dev/null", O_WRONLY);
	enum { N = 2000000 };
	int64_t start = now_ns();

	for (int i = 0; i < N; i++)
		ring(fd, (uint32_t)i & 63);
	printf("doorbell %.1f ns\n", (double)(now_ns() - start) / N);
	start = now_ns();
	for (int i = 0; i < N; i++)
		notify(fd, 1, 0);
	printf("req_notify %.1f ns\n", (double)(now_ns() - start) / N);
	start = now_ns();
	for (int i = 0; i < N / 10; i++)
		CHECK(write(null, "x", 1) == 1);
	printf("write to /dev/null %.1f ns\n", (double)(now_ns() - start) / (N / 10));
	start = now_ns();
	for (int i = 0; i < N / 10; i++)
		CHECK(syscall(SYS_write, null, "x", 1) == 1);
	printf("the same by system call %.1f ns\n", (double)(now_ns() - start) / (N / 10));
}

static const struct probe cases[] = {
	{ "paths", case_paths }, { "machine", case_machine }, { "order", case_order },	{ "open", case_open },	    { "commands", case_commands },
	{ "doorbells", case_doorbells }, { "channels", case_channels }, { "dup", case_dup },
	{ "hidden", case_hidden },	{ "reuse", case_reuse },    { "fork", case_fork },
	{ "spawn", case_spawn },	{ "gone", case_gone },	    { "no-daemon", case_no_daemon },
	{ "version", case_version },	{ "denied", case_denied },  { "many", case_many },
	{ "cost", case_cost },
};

int main(int argc, char **argv)
{
	return probe_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
