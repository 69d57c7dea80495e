/* A library with a folder of its own for more libraries, in its DT_RUNPATH: whose dlopen is it? */
#define _GNU_SOURCE
#include <dlfcn.h>

void *open_neighbour(const char *name, int flags);

void *open_neighbour(const char *name, int flags)
{
	void *handle = dlopen(name, flags);
	/* Behind the call, so that it is no tail call. */
	__asm__ volatile("" ::: "memory");
	return handle;
}
