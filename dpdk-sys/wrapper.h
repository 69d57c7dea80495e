/*
 * What Roceline uses of DPDK: the headers that bindgen reads, and plain functions for what DPDK
 * offers only as static inlines, macros or thread-local variables.
 */
#ifndef ROCELINE_WRAPPER_H
#define ROCELINE_WRAPPER_H

#include <stddef.h>
#include <stdint.h>

#include <rte_bus_vdev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/*
 * Where the fields of an mbuf lie. Newer headers move some of them into anonymous unions, which bindgen
 * names by number; offsets read the same from every version.
 */
enum {
	RL_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	RL_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	RL_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	RL_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	RL_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	RL_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	RL_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
};

/* What rte_eth_link_get_nowait says, without its bit fields. */
struct rl_link {
	uint32_t speed_mbps; /* 0 or UINT32_MAX when unknown */
	uint8_t up;
};

/* What Roceline asks of a port. */
struct rl_port_conf {
	uint32_t mtu; /* 0: leave alone */
	uint16_t rx_desc;
	uint16_t tx_desc;
	uint16_t queues; /* for receiving and sending, each */
	uint8_t start;   /* 0: leave it stopped */
};

/* Why rl_port_setup failed. */
enum rl_port_stage { RL_PORT_OK, RL_PORT_CONFIGURE, RL_PORT_RX_QUEUE, RL_PORT_TX_QUEUE, RL_PORT_START };

/* What rte_eth_dev_info_get says that Roceline needs. */
struct rl_port_info {
	const char *driver;
	uint32_t max_rx_pktlen;
	uint16_t max_mtu;
	uint16_t min_mtu;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	int socket;
};

/* Pauses that the hardware itself sends and obeys. */
enum rl_pause_mode { RL_PAUSE_OFF, RL_PAUSE_PRIORITY, RL_PAUSE_GLOBAL };

struct rl_pause {
	enum rl_pause_mode mode;
	uint8_t priorities; /* bit n: priority n */
	uint16_t quanta;
	uint32_t xoff;
	uint32_t xon;
};

int rl_errno(void);
int rl_has_lcore_id(void);
void rl_log_to_stderr(void);
/* From here on the frequency of the time stamp counter is measured: early, or EAL's start waits for it. */
void rl_tsc_begin(void);
/* What EAL holds it to be. */
uint64_t rl_tsc_hz(void);

struct rte_mbuf *rl_mbuf_alloc(struct rte_mempool *pool);
int rl_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count);
void rl_mbuf_free(struct rte_mbuf *mbuf);
int rl_mbuf_linearize(struct rte_mbuf *mbuf);

int rl_port_info(uint16_t port, struct rl_port_info *info);
int rl_port_link(uint16_t port, struct rl_link *link);
/* 0, or a negative errno; -ENOTSUP where the driver cannot. */
int rl_port_pause(uint16_t port, const struct rl_pause *pause);

/* What changes a port's state; none of them runs beside a handler of net_memif (memif_guard.c). */
int rl_port_probe(const char *devargs);
/* A pool for each queue. */
int rl_port_setup(uint16_t port, const struct rl_port_conf *conf, struct rte_mempool *const *pools,
		  enum rl_port_stage *stage);
int rl_port_restart(uint16_t port);
void rl_port_close(uint16_t port, const char *vdev);

/* Held while a port's state changes. */
void rl_control_lock(void);
void rl_control_unlock(void);

/*
 * Around every burst of a net_memif port. Enter returns 0 while a connection is being made or torn down: the
 * port must not be touched then.
 */
int rl_memif_enter(uint16_t port);
void rl_memif_leave(uint16_t port);

#endif
