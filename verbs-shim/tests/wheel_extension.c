/* The extension module of a wheel: it needs the bundled libibverbs by DT_NEEDED and with symbol versions. */
#include <stdio.h>

void **ibv_get_device_list(int *count);
const char *ibv_get_device_name(void *device);
void *ibv_open_device(void *device);

void devices(void);

void devices(void)
{
	int count = 0;
	void **list = ibv_get_device_list(&count);

	printf("%d:", count);
	for (int i = 0; i < count; i++)
		printf(" %s", ibv_get_device_name(list[i]));
	printf("\n");
	if (count)
		printf("%s\n", ibv_open_device(list[0]) ? "opened" : "not opened");
}
