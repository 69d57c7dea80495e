/*
 * Two faults of net_memif (the same in 22.11, 23.11 and 24.11) that a peer's departure can turn into a crash:
 *
 * 1. Its socket handlers run on EAL's interrupt thread and unmap the rings when the peer goes, while a polling
 *    thread may be inside a burst that reads them.
 * 2. Closing the last server port of a socket frees the listener's state but leaves its handler registered and
 *    its descriptor open: the next client that connects makes the handler use freed memory.
 *
 * The build renames four functions that memif_socket.o calls to the rl_intr_* functions below. They run each
 * handler only while no burst of a memif port is in progress and no other thread changes a port, never after
 * it was unregistered, and they unregister a listener before its handle is freed.
 *
 * With shared libraries the calls cannot be renamed; the guard is then idle and the faults remain.
 */
#define ALLOW_EXPERIMENTAL_API /* rte_intr_fd_get, rte_intr_instance_free: stable from 23.11 on */

#include "wrapper.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_interrupts.h>
#include <rte_spinlock.h>

/* One cache line per port, written by the thread that polls it. */
struct busy {
	atomic_int now;
} __rte_cache_aligned;

static struct busy busy[RTE_MAX_ETHPORTS];
static atomic_int closed;
static pthread_mutex_t control = PTHREAD_MUTEX_INITIALIZER;

void rl_control_lock(void)
{
	pthread_mutex_lock(&control);
}

void rl_control_unlock(void)
{
	pthread_mutex_unlock(&control);
}

int rl_memif_enter(uint16_t port)
{
	/* Sequentially consistent on both sides: either we see `closed`, or gate_close sees us. */
	atomic_store(&busy[port].now, 1);
	if (atomic_load(&closed) == 0)
		return 1;
	atomic_store_explicit(&busy[port].now, 0, memory_order_release);
	return 0;
}

void rl_memif_leave(uint16_t port)
{
	atomic_store_explicit(&busy[port].now, 0, memory_order_release);
}

static void gate_close(void)
{
	unsigned int port;

	atomic_store(&closed, 1);
	for (port = 0; port < RTE_MAX_ETHPORTS; port++)
		while (atomic_load(&busy[port].now) != 0)
			sched_yield();
}

static void gate_open(void)
{
	atomic_store_explicit(&closed, 0, memory_order_release);
}

/* The handlers in force. A listener per socket and a control channel per port: few. */
struct handler {
	const struct rte_intr_handle *handle;
	rte_intr_callback_fn fn;
	void *arg;
};

static struct handler handlers[4 * RTE_MAX_ETHPORTS];
static rte_spinlock_t handlers_lock = RTE_SPINLOCK_INITIALIZER;

static struct handler *find(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg)
{
	unsigned int i;

	for (i = 0; i < RTE_DIM(handlers); i++)
		if (handlers[i].handle == handle && handlers[i].fn == fn && handlers[i].arg == arg)
			return &handlers[i];
	return NULL;
}

static int add(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg)
{
	struct handler *slot;

	rte_spinlock_lock(&handlers_lock);
	slot = find(NULL, NULL, NULL);
	if (slot != NULL)
		*slot = (struct handler){ handle, fn, arg };
	rte_spinlock_unlock(&handlers_lock);
	return slot != NULL ? 0 : -ENOMEM;
}

static void forget(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg)
{
	struct handler *slot;

	rte_spinlock_lock(&handlers_lock);
	slot = find(handle, fn, arg);
	if (slot != NULL)
		*slot = (struct handler){ NULL, NULL, NULL };
	rte_spinlock_unlock(&handlers_lock);
}

/* What handler has this argument: each has an object of its own. */
static rte_intr_callback_fn handler_of(void *arg)
{
	rte_intr_callback_fn fn = NULL;
	unsigned int i;

	rte_spinlock_lock(&handlers_lock);
	for (i = 0; i < RTE_DIM(handlers) && fn == NULL; i++)
		if (handlers[i].arg == arg)
			fn = handlers[i].fn;
	rte_spinlock_unlock(&handlers_lock);
	return fn;
}

static void guarded(void *arg)
{
	rte_intr_callback_fn fn;

	rl_control_lock();
	fn = handler_of(arg);
	if (fn != NULL) {
		gate_close();
		fn(arg);
		gate_open();
	}
	rl_control_unlock();
}

int rl_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg);
int rl_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg);
int rl_intr_callback_unregister_pending(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg,
					rte_intr_unregister_callback_fn done);
void rl_intr_instance_free(struct rte_intr_handle *handle);

int rl_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg)
{
	int ret = add(handle, fn, arg);

	if (ret != 0)
		return ret;
	ret = rte_intr_callback_register(handle, guarded, arg);
	if (ret != 0)
		forget(handle, fn, arg);
	return ret;
}

int rl_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg)
{
	int ret = rte_intr_callback_unregister(handle, guarded, arg);

	if (ret > 0)
		forget(handle, fn, arg);
	return ret;
}

int rl_intr_callback_unregister_pending(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg,
					rte_intr_unregister_callback_fn done)
{
	int ret = rte_intr_callback_unregister_pending(handle, guarded, arg, done);

	if (ret > 0)
		forget(handle, fn, arg);
	return ret;
}

/* A listener's descriptor is left open by the driver; that of a connection is closed before its handle is freed. */
static void close_listener(int fd)
{
	int listens = 0;
	socklen_t len = sizeof(listens);

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens)
		close(fd);
}

void rl_intr_instance_free(struct rte_intr_handle *handle)
{
	struct handler left = { NULL, NULL, NULL };
	unsigned int i;
	int ret;

	rte_spinlock_lock(&handlers_lock);
	for (i = 0; i < RTE_DIM(handlers) && handle != NULL; i++) {
		if (handlers[i].handle == handle) {
			left = handlers[i];
			handlers[i] = (struct handler){ NULL, NULL, NULL };
			break;
		}
	}
	rte_spinlock_unlock(&handlers_lock);
	if (left.handle != NULL) {
		/*
		 * Its handler may be waiting for the control lock at this moment; it then finds that it was
		 * forgotten. EAL drops it when it returns.
		 */
		do {
			ret = rte_intr_callback_unregister(handle, guarded, left.arg);
			if (ret == -EAGAIN)
				ret = rte_intr_callback_unregister_pending(handle, guarded, left.arg, NULL);
		} while (ret == -EAGAIN);
		close_listener(rte_intr_fd_get(handle));
	}
	rte_intr_instance_free(handle);
}
