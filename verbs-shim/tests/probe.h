/* What the probes of the shim have in common: the device node, and commands to the stub of the daemon behind it. */
#ifndef PROBE_H
#define PROBE_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODE "/dev/infiniband/uverbs0"

/* Commands of the stub beyond those of uverbs. */
enum { ECHO = 40, CLOSED_CHANNELS = 41, HANG_UP = 42, READ_WAKE = 43 };

#define CHECK(condition)                                                                               \
	do {                                                                                           \
		if (!(condition)) {                                                                    \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			exit(1);                                                                       \
		}                                                                                      \
	} while (0)

/* A null pointer that the compiler does not see. */
static char *volatile nothing __attribute__((unused));

static inline int open_node(void)
{
	int fd = open(NODE, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

/* A command without an extended header: its words, and room for the answer. */
static inline ssize_t command(int fd, uint32_t number, const uint32_t *words, size_t count, void *answer, size_t room)
{
	uint32_t buffer[64] = { number };
	size_t bytes = 16 + 4 * count;
	uint64_t response = (uintptr_t)answer;

	buffer[1] = (uint32_t)(bytes / 4) | (uint32_t)(room / 4) << 16;
	memcpy(buffer + 2, &response, sizeof response);
	memcpy(buffer + 4, words, 4 * count);
	return write(fd, buffer, bytes);
}

static inline uint32_t ask(int fd, uint32_t number)
{
	uint32_t answer[4] = { 0 };

	CHECK(command(fd, number, NULL, 0, answer, sizeof answer) == 16);
	return answer[0];
}

static inline void check_echo(int fd)
{
	uint32_t words[3] = { 11, 22, 33 }, answer[5] = { 0, 0, 0, 0, 0x99 };

	CHECK(command(fd, ECHO, words, 3, answer, 16) == 28);
	CHECK(answer[0] == ECHO && answer[1] == (7 | 4 << 16));
	/* Sixteen bytes are what was asked for, though the echo is longer. */
	CHECK(answer[4] == 0x99);
}

static inline void check_node(const struct stat *st)
{
	CHECK(S_ISCHR(st->st_mode));
	CHECK(st->st_rdev == makedev(231, 192));
}

static inline volatile uint32_t *map_control(int fd)
{
	/* By raw system call, as some programs do. */
	void *p = (void *)syscall(SYS_mmap, NULL, 4L << 20, (long)(PROT_READ | PROT_WRITE), (long)MAP_SHARED, (long)fd, 0L);

	CHECK(p != MAP_FAILED);
	return p;
}

static inline ssize_t ring(int fd, uint32_t handle)
{
	uint32_t words[4] = { handle, 0, 0, 128 }, answer;

	return command(fd, 28, words, 4, &answer, 4);
}

static inline void wait_for(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
}

/* One thing that a probe can try. */
struct probe {
	const char *name;
	void (*run)(void);
};

/* Runs the case that the command line names. */
static inline int probe_main(int argc, char **argv, const struct probe *cases, size_t count)
{
	/* Whatever the harness left open is in the way. */
	syscall(SYS_close_range, 3L, 65535L, 0L);
	for (size_t i = 0; argc == 2 && i < count; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	fprintf(stderr, "usage: %s CASE\n", argv[0]);
	return 2;
}

#endif
