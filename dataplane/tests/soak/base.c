/* Chance, bytes, failure. */
#include "soak.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Thread_local uint64_t episode_seed;

/* splitmix64 */
static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

uint64_t next(struct chance *chance)
{
	return mix(chance->state += 0x9e3779b97f4a7c15);
}

uint32_t below(struct chance *chance, uint32_t limit)
{
	return (uint32_t)((next(chance) >> 32) * limit >> 32);
}

bool one_in(struct chance *chance, uint32_t n)
{
	return below(chance, n) == 0;
}

static uint8_t byte_of(uint64_t id, size_t i)
{
	return (uint8_t)(mix(id + 0x9e3779b97f4a7c15 * (i / 8 + 1)) >> i % 8 * 8);
}

void fill(uint8_t *to, size_t length, uint64_t id, size_t first)
{
	size_t i = 0;

	for (; i < length && (first + i) % 8; i++)
		to[i] = byte_of(id, first + i);
	for (; i + 8 <= length; i += 8) {
		uint64_t word = mix(id + 0x9e3779b97f4a7c15 * ((first + i) / 8 + 1));

		memcpy(to + i, &word, 8);
	}
	for (; i < length; i++)
		to[i] = byte_of(id, first + i);
}

size_t differs(const uint8_t *bytes, size_t length, uint64_t id, size_t first)
{
	uint8_t chunk[512];

	for (size_t at = 0; at < length;) {
		size_t step = length - at < sizeof chunk ? length - at : sizeof chunk;

		fill(chunk, step, id, first + at);
		if (memcmp(bytes + at, chunk, step))
			for (size_t i = 0; i < step; i++)
				if (bytes[at + i] != chunk[i])
					return at + i;
		at += step;
	}
	return length;
}

int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void say(const char *format, va_list arguments)
{
	char text[1024];

	vsnprintf(text, sizeof text, format, arguments);
	fprintf(stderr, "soak: episode %#" PRIx64 ": %s\n", episode_seed, text);
	fflush(stderr);
}

void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(format, arguments);
	/* Other threads use what exit handlers would take down. */
	_exit(1);
}

void check(bool ok, const char *format, ...)
{
	va_list arguments;

	if (ok)
		return;
	va_start(arguments, format);
	say(format, arguments);
	_exit(1);
}
