/* A library that is initialised before the shim, because it stands behind it in LD_PRELOAD, and watches forks. */
#include <pthread.h>

void (*early_handlers[3])(void);

static void run(int which)
{
	if (early_handlers[which])
		early_handlers[which]();
}

static void prepare(void) { run(0); }
static void parent(void) { run(1); }
static void child(void) { run(2); }

__attribute__((constructor)) static void start(void)
{
	pthread_atfork(prepare, parent, child);
}
