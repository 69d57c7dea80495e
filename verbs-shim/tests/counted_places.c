/*
 * Places in directories as a tmpfs before Linux 6.6 has them: counts of the entries before, which shift when one comes or goes.
 * Preloaded behind the shim.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>

static struct {
	DIR *dir;
	long count;
} places[64];

static long *count_of(DIR *dir)
{
	int unused = -1;

	for (int i = 0; i < 64; i++) {
		if (places[i].dir == dir)
			return &places[i].count;
		if (!places[i].dir && unused < 0)
			unused = i;
	}
	if (unused < 0)
		abort();
	places[unused].dir = dir;
	places[unused].count = 0;
	return &places[unused].count;
}

/* Not by the names that the shim stands in front of. */
static struct dirent *read_on(DIR *dir)
{
	struct dirent *(*next)(DIR *) = dlsym(RTLD_NEXT, "readdir");
	struct dirent *entry = next(dir);

	if (entry)
		++*count_of(dir);
	return entry;
}

static void to_start(DIR *dir)
{
	void (*next)(DIR *) = dlsym(RTLD_NEXT, "rewinddir");

	next(dir);
	*count_of(dir) = 0;
}

struct dirent *readdir(DIR *dir)
{
	return read_on(dir);
}

void rewinddir(DIR *dir)
{
	to_start(dir);
}

long telldir(DIR *dir)
{
	return *count_of(dir);
}

void seekdir(DIR *dir, long place)
{
	to_start(dir);
	while (place-- > 0 && read_on(dir))
		;
}

int closedir(DIR *dir)
{
	int (*next)(DIR *) = dlsym(RTLD_NEXT, "closedir");

	for (int i = 0; i < 64; i++)
		if (places[i].dir == dir)
			places[i].dir = NULL;
	return next(dir);
}
