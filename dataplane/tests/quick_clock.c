/* A preloaded gettimeofday(2) that runs 50 times as fast, and a sleep(3) that is as much shorter: for tests that run perftest often.
 * `ROCELINE_CLOCK=true` leaves them the machine's.
 *
 * perftest 4.5 asks for the time only to measure the CPU's frequency, 0.22 s of a busy CPU for every message size; with this it
 * takes 4 ms, and the frequency, and every rate that is printed, is wrong by that factor. It sleeps only between connecting and
 * talking, a second at both ends of ib_write_bw. Nothing else of a run changes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

enum { FASTER = 50 };

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    static int64_t start;
    int64_t now = now_us();
    (void)zone;
    if (start == 0)
        start = now;
    now = start + (now - start) * FASTER;
    time->tv_sec = now / 1000000;
    time->tv_usec = now % 1000000;
    return 0;
}

/* Of perftest's programs alone: others mean what they say. */
unsigned sleep(unsigned seconds) {
    int perftest = strncmp(program_invocation_short_name, "ib_", 3) == 0;
    int64_t ms = (int64_t)seconds * 1000 / (perftest ? FASTER : 1);
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    if (nanosleep(&left, &left) == 0)
        return 0;
    return left.tv_sec + (left.tv_nsec > 0);
}
