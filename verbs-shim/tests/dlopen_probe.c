/* A program that does not link libibverbs and loads it, or something that needs it, at run time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *p, const char *what)
{
	if (!p) {
		const char *why = dlerror();
		printf("no %s: %s\n", what, why ? why : "null");
		exit(1);
	}
	return p;
}

/* As NCCL does it. */
static void verbs(int flags)
{
	void *library = need(dlopen("libibverbs.so.1", flags), "libibverbs");
	void **(*list)(int *) = (void **(*)(int *))(intptr_t)need(
		dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1"), "ibv_get_device_list");
	const char *(*name)(void *) = (const char *(*)(void *))(intptr_t)need(
		dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1"), "ibv_get_device_name");
	void *(*open)(void *) = (void *(*)(void *))(intptr_t)need(
		dlvsym(library, "ibv_open_device", "IBVERBS_1.1"), "ibv_open_device");
	int count = 0;
	void **devices = list(&count);

	printf("%d:", count);
	for (int i = 0; i < count; i++)
		printf(" %s", name(devices[i]));
	printf("\n");
	if (count)
		printf("%s\n", open(devices[0]) ? "opened" : "not opened");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "plain")) {
		verbs(RTLD_NOW);
	} else if (!strcmp(what, "deepbind")) {
		verbs(RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	} else if (!strcmp(what, "extension")) {
		/* What else is loaded first, under the system's name or the wheel's. */
		if (argc > 3)
			need(dlopen(argv[3], RTLD_NOW), argv[3]);
		void *library = need(dlopen(argv[2], RTLD_NOW), "extension");
		void (*devices)(void) = (void (*)(void))(intptr_t)need(dlsym(library, "devices"), "devices");
		devices();
	} else if (!strcmp(what, "runpath")) {
		void *library = need(dlopen(argv[2], RTLD_NOW), "library");
		void *(*open)(const char *, int) = (void *(*)(const char *, int))(intptr_t)need(
			dlsym(library, "open_neighbour"), "open_neighbour");
		need(open(argv[3], RTLD_NOW | RTLD_DEEPBIND), "neighbour");
		/* It is the library's neighbour and not ours. */
		printf("%d\n", dlopen(argv[3] + 0, RTLD_NOW | RTLD_NOLOAD) != NULL);
		printf("%d\n", dlopen("libno-such-thing.so", RTLD_NOW) == NULL && dlerror() != NULL);
		printf("%d\n", dlopen(NULL, RTLD_NOW) != NULL);
	} else if (!strcmp(what, "names")) {
		char *(*search)(const char *, uintptr_t *, unsigned) =
			(char *(*)(const char *, uintptr_t *, unsigned))(intptr_t)need(
				dlsym(RTLD_DEFAULT, "la_objsearch"), "la_objsearch");
		/* As asked, then as a place to look. */
		for (int i = 2; i < argc; i++) {
			printf("%s", search(argv[i], NULL, 1));
			printf(" %s\n", search(argv[i], NULL, 2));
		}
		unsigned (*version)(unsigned) =
			(unsigned (*)(unsigned))(intptr_t)need(dlsym(RTLD_DEFAULT, "la_version"), "la_version");
		printf("%u %u %u\n", version(1), version(2), version(3));
	} else {
		return 2;
	}
	return 0;
}
