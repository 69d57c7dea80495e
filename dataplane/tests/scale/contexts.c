/*
 * Many opens of a device by one process: contexts DEVICE COUNT
 *
 * Each has a protection domain of its own, and all stay open until the last one is there.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define FAIL(...) (printf(__VA_ARGS__), printf("\n"), exit(1))
/* Descriptors of an open device: the device, its events, and the shim's two. */
#define EACH 4

int main(int argc, char **argv)
{
	if (argc != 3)
		FAIL("contexts DEVICE COUNT");
	int count = atoi(argv[2]), found = 0;
	struct rlimit files;
	struct ibv_context **contexts = calloc(count, sizeof *contexts);
	struct ibv_device **devices = ibv_get_device_list(NULL), *device = NULL;

	for (int i = 0; devices && devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), argv[1]))
			device = devices[i];
	if (!device || !contexts || getrlimit(RLIMIT_NOFILE, &files))
		FAIL("no %s", argv[1]);
	files.rlim_cur = files.rlim_max;
	if (files.rlim_max < (rlim_t)(count + 100) * EACH || setrlimit(RLIMIT_NOFILE, &files)) {
		printf("skipped: this user may have %ju files open\n", (uintmax_t)files.rlim_max);
		return 0;
	}
	for (int i = 0; i < count; i++) {
		contexts[i] = ibv_open_device(device);
		if (!contexts[i])
			FAIL("open %d: %s", i, strerror(errno));
		if (!ibv_alloc_pd(contexts[i]))
			FAIL("protection domain %d: %s", i, strerror(errno));
		found++;
	}
	for (int i = 0; i < count; i++)
		if (ibv_close_device(contexts[i]))
			FAIL("close %d: %s", i, strerror(errno));
	printf("%d open at once\n", found);
}
