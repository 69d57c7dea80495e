/* See wrapper.h. */
#define ALLOW_EXPERIMENTAL_API /* rte_eth_dev_priority_flow_ctrl_queue_configure */
#include "wrapper.h"

#include <stdio.h>
#include <string.h>

int rl_errno(void)
{
	return rte_errno;
}

int rl_has_lcore_id(void)
{
	return rte_lcore_id() != LCORE_ID_ANY;
}

void rl_log_to_stderr(void)
{
	/* 22.11's own default is stdout, which belongs to the program. */
	rte_openlog_stream(stderr);
}

struct rte_mbuf *rl_mbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

int rl_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, count);
}

void rl_mbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

int rl_mbuf_linearize(struct rte_mbuf *mbuf)
{
	return rte_pktmbuf_linearize(mbuf);
}

int rl_port_info(uint16_t port, struct rl_port_info *info)
{
	struct rte_eth_dev_info dev;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	info->driver = dev.driver_name;
	info->max_rx_pktlen = dev.max_rx_pktlen;
	info->max_mtu = dev.max_mtu;
	info->min_mtu = dev.min_mtu;
	info->max_rx_queues = dev.max_rx_queues;
	info->max_tx_queues = dev.max_tx_queues;
	info->socket = rte_eth_dev_socket_id(port);
	return 0;
}

int rl_port_link(uint16_t port, struct rl_link *link)
{
	struct rte_eth_link l;
	int ret;

	memset(&l, 0, sizeof(l));
	ret = rte_eth_link_get_nowait(port, &l);
	if (ret != 0)
		return ret;
	link->speed_mbps = l.link_speed;
	link->up = l.link_status == RTE_ETH_LINK_UP;
	return 0;
}

/* Of one priority: by the older call, or by the one that speaks of queues, of which there is one. */
static int priority_pause(uint16_t port, const struct rl_pause *pause, uint8_t priority, int on)
{
	struct rte_eth_pfc_conf conf;
	struct rte_eth_pfc_queue_conf queue;
	int ret;

	memset(&conf, 0, sizeof(conf));
	conf.priority = priority;
	conf.fc.mode = on ? RTE_ETH_FC_FULL : RTE_ETH_FC_NONE;
	conf.fc.pause_time = pause->quanta;
	conf.fc.high_water = pause->xoff;
	conf.fc.low_water = pause->xon;
	conf.fc.send_xon = 1;
	ret = rte_eth_dev_priority_flow_ctrl_set(port, &conf);
	if (ret != -ENOTSUP)
		return ret;
	memset(&queue, 0, sizeof(queue));
	queue.mode = conf.fc.mode;
	queue.rx_pause.tc = priority;
	queue.tx_pause.tc = priority;
	queue.tx_pause.pause_time = pause->quanta;
	return rte_eth_dev_priority_flow_ctrl_queue_configure(port, &queue);
}

int rl_port_pause(uint16_t port, const struct rl_pause *pause)
{
	uint8_t wanted = pause->mode == RL_PAUSE_PRIORITY ? pause->priorities : 0;
	struct rte_eth_fc_conf conf;
	uint8_t p;
	int ret;

	/*
	 * A driver keeps what it was told of each priority until it is told otherwise, so those that are not wanted, or no longer, are
	 * cleared: first, so that never more are on than before or after. It may refuse that for what never was on, or as it
	 * knows no priorities; whether it can do what is wanted is for the calls below to say.
	 */
	for (p = 0; p < 8; p++)
		if (!(wanted >> p & 1) && priority_pause(port, pause, p, 0) == -ENOTSUP)
			break;
	if (pause->mode == RL_PAUSE_PRIORITY) {
		for (p = 0; p < 8; p++) {
			if (!(wanted >> p & 1))
				continue;
			ret = priority_pause(port, pause, p, 1);
			if (ret != 0) {
				/* All or none: also those that an earlier call had turned on. */
				for (p = 0; p < 8; p++)
					if (wanted >> p & 1)
						priority_pause(port, pause, p, 0);
				return ret;
			}
		}
		return 0;
	}
	memset(&conf, 0, sizeof(conf));
	ret = rte_eth_dev_flow_ctrl_get(port, &conf);
	if (ret != 0)
		return ret;
	conf.mode = pause->mode == RL_PAUSE_GLOBAL ? RTE_ETH_FC_FULL : RTE_ETH_FC_NONE;
	conf.pause_time = pause->quanta;
	conf.high_water = pause->xoff;
	conf.low_water = pause->xon;
	conf.send_xon = 1;
	return rte_eth_dev_flow_ctrl_set(port, &conf);
}

int rl_port_probe(const char *devargs)
{
	int ret;

	rl_control_lock();
	ret = rte_dev_probe(devargs);
	rl_control_unlock();
	return ret;
}

/* Several queues: UDP by addresses and ports, as far as the device can spread at all. */
static int spread(uint16_t port, struct rte_eth_conf *eth)
{
	struct rte_eth_dev_info dev;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	eth->rx_adv_conf.rss_conf.rss_hf =
		(RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP) & dev.flow_type_rss_offloads;
	if (eth->rx_adv_conf.rss_conf.rss_hf != 0)
		eth->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
	return 0;
}

static int setup(uint16_t port, const struct rl_port_conf *conf, struct rte_mempool *const *pools,
		 enum rl_port_stage *stage)
{
	struct rte_eth_conf eth;
	uint16_t rx_desc = conf->rx_desc, tx_desc = conf->tx_desc, queue;
	unsigned int socket = (unsigned int)rte_eth_dev_socket_id(port);
	int ret;

	memset(&eth, 0, sizeof(eth));
	eth.rxmode.mtu = conf->mtu;

	*stage = RL_PORT_CONFIGURE;
	if (conf->queues > 1) {
		ret = spread(port, &eth);
		if (ret != 0)
			return ret;
	}
	ret = rte_eth_dev_configure(port, conf->queues, conf->queues, &eth);
	if (ret != 0)
		return ret;
	ret = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx_desc, &tx_desc);
	if (ret != 0)
		return ret;
	*stage = RL_PORT_RX_QUEUE;
	for (queue = 0; queue < conf->queues; queue++) {
		ret = rte_eth_rx_queue_setup(port, queue, rx_desc, socket, NULL, pools[queue]);
		if (ret != 0)
			return ret;
	}
	*stage = RL_PORT_TX_QUEUE;
	for (queue = 0; queue < conf->queues; queue++) {
		ret = rte_eth_tx_queue_setup(port, queue, tx_desc, socket, NULL);
		if (ret != 0)
			return ret;
	}
	*stage = RL_PORT_START;
	return conf->start ? rte_eth_dev_start(port) : 0;
}

int rl_port_setup(uint16_t port, const struct rl_port_conf *conf, struct rte_mempool *const *pools,
		  enum rl_port_stage *stage)
{
	int ret;

	rl_control_lock();
	ret = setup(port, conf, pools, stage);
	rl_control_unlock();
	return ret;
}

int rl_port_restart(uint16_t port)
{
	int ret;

	rl_control_lock();
	/* Stopping a port that did not start is a success that does nothing. */
	rte_eth_dev_stop(port);
	ret = rte_eth_dev_start(port);
	rl_control_unlock();
	return ret;
}

void rl_port_close(uint16_t port, const char *vdev)
{
	rl_control_lock();
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (vdev != NULL)
		rte_vdev_uninit(vdev);
	rl_control_unlock();
}
