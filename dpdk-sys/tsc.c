/*
 * The frequency of the time stamp counter, without a pause.
 *
 * EAL measures it over a nanosleep of 100 ms where the CPU does not tell it (AMD's, and most guests), and rounds to
 * 10 MHz (lib/eal/linux/eal_timer.c). Here the clocks are read when the process begins, by rl_tsc_begin(), and again
 * when EAL asks, so that little or nothing is left to wait for. The readings are right to within 100 ns: 20 ms are
 * enough for 10 ppm, and EAL's rounding makes the same of it.
 *
 * The build weakens EAL's get_tsc_freq(), so that the one below is linked in its place. With shared libraries EAL
 * has its own, and the pause.
 */
#include "wrapper.h"

#include <time.h>

#include <rte_common.h>
#include <rte_cycles.h>

#define NS_PER_S 1000000000ULL
#define CYC_PER_10MHZ 10000000ULL
#define LEAST_NS (20 * 1000 * 1000ULL)

struct instant {
	uint64_t cycles;
	uint64_t ns;
};

static struct instant begin;

/* Both clocks at once: of several readings the one that took least, as the thread may be interrupted in between. */
static struct instant both(void)
{
	struct instant found = { 0, 0 };
	uint64_t least = UINT64_MAX;
	int i;

	for (i = 0; i < 8; i++) {
		struct timespec time;
		uint64_t before, took;

		before = rte_rdtsc_precise();
		if (clock_gettime(CLOCK_MONOTONIC_RAW, &time) != 0)
			return found;
		took = rte_rdtsc_precise() - before;
		if (took < least) {
			least = took;
			found.cycles = before + took / 2;
			found.ns = time.tv_sec * NS_PER_S + time.tv_nsec;
		}
	}
	return found;
}

void rl_tsc_begin(void)
{
	if (begin.ns == 0)
		begin = both();
}

uint64_t rl_tsc_hz(void)
{
	return rte_get_tsc_hz();
}

/* Called by EAL. Zero makes it estimate the frequency in another way. */
uint64_t get_tsc_freq(void);

uint64_t get_tsc_freq(void)
{
	struct instant end;
	double hz;

	rl_tsc_begin();
	end = both();
	if (end.ns - begin.ns < LEAST_NS) {
		struct timespec rest = { .tv_nsec = LEAST_NS - (end.ns - begin.ns) };

		nanosleep(&rest, NULL);
		end = both();
	}
	if (begin.ns == 0 || end.ns <= begin.ns)
		return 0;
	hz = (double)(end.cycles - begin.cycles) * NS_PER_S / (end.ns - begin.ns);
	return RTE_ALIGN_MUL_NEAR((uint64_t)hz, CYC_PER_10MHZ);
}
