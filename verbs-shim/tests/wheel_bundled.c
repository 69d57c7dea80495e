/* The libibverbs that a Python wheel brings under a name of its own: no provider, so no device. */
#include <stddef.h>

void *ibv_get_device_list(int *count);
void ibv_free_device_list(void *list);
const char *ibv_get_device_name(void *device);
void *ibv_open_device(void *device);

static void *none[1];

void *ibv_get_device_list(int *count)
{
	if (count)
		*count = 0;
	return none;
}

void ibv_free_device_list(void *list)
{
	(void)list;
}

const char *ibv_get_device_name(void *device)
{
	(void)device;
	return NULL;
}

void *ibv_open_device(void *device)
{
	(void)device;
	return NULL;
}
