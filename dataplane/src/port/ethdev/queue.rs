//! One rx and one tx queue of an ethdev. The burst calls are those of `rte_ethdev.h`, written out here over the exported
//! `rte_eth_fp_ops`, so that they are inlined.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use dpdk_sys as sys;

use super::super::{Burst, Counters, Driver, LinkStatus, Mbuf};
use super::Open;

/// A queue pair of a port.
#[derive(Debug)]
pub(super) struct Queue {
    /// Entry of `rte_eth_fp_ops`, where the driver keeps its burst functions.
    ops: *const sys::rte_eth_fp_ops,
    number: u16,
    /// Longest frame that may be sent; 0 leaves the judgement to the driver.
    max_frame: usize,
    count: Count,
}

// SAFETY: a queue may be polled by any thread, one at a time, which `&mut self` sees to; `ops` points to a static array.
unsafe impl Send for Queue {}

/// Kept by the lcore that polls.
#[derive(Debug, Default)]
struct Count {
    tx_packets: u64,
    tx_bytes: u64,
    rx_packets: u64,
    rx_bytes: u64,
    tx_oversize: u64,
    rx_oversize: u64,
    rx_linearized: u64,
    tx_backpressure: u64,
    tx_link_down: u64,
}

impl Queue {
    /// Queue `number` of a valid port, which was or will be configured with as many.
    pub(super) fn new(port: u16, number: u16, max_frame: usize) -> Queue {
        Queue {
            // SAFETY: the address of an element of a static array; the port number is below its length.
            ops: unsafe {
                (&raw const sys::rte_eth_fp_ops)
                    .cast::<sys::rte_eth_fp_ops>()
                    .add(port.into())
            },
            number,
            max_frame,
            count: Count::default(),
        }
    }

    /// `rte_eth_rx_burst`, to the end of `burst`.
    #[inline(always)]
    pub(super) fn receive(&self, burst: &mut Burst) -> usize {
        let wanted = burst.room().min(burst.wanted());
        // SAFETY: for every port DPDK keeps valid functions and queues here, dummies while it is stopped, and as many queues
        // as any port may have; the burst has room for what is wanted, and counts the owned packets that were written.
        unsafe {
            let ops = &*self.ops;
            let got = match ops.rx_pkt_burst {
                Some(rx) => {
                    let queue = *ops.rxq.data.add(self.number.into());
                    rx(queue, burst.spare(), wanted as u16).into()
                }
                None => 0,
            };
            burst.grow(got);
            got
        }
    }

    /// The last `got` packets of `burst` were received: counts them, with one segment each. Gives the number of those that are
    /// left.
    #[inline(always)]
    pub(super) fn received(&mut self, burst: &mut Burst, mut got: usize) -> usize {
        let start = burst.len() - got;
        if burst.as_slice()[start..].iter().any(|m| m.segments() != 1) {
            got = self.linearize_from(burst, start);
        }
        self.count.rx_packets += got as u64;
        self.count.rx_bytes += bytes(&burst.as_slice()[start..]);
        got
    }

    /// `rte_eth_tx_burst` of a burst that is not empty. What was sent is no longer in it.
    #[inline(always)]
    pub(super) fn send(&mut self, burst: &mut Burst) -> usize {
        let offered = bytes(burst.as_slice());
        // SAFETY: as in `receive`; the burst's packets are owned, and the driver takes over those that it sent.
        let sent = unsafe {
            let ops = &*self.ops;
            let sent = match ops.tx_pkt_burst {
                Some(tx) => {
                    let queue = *ops.txq.data.add(self.number.into());
                    tx(queue, burst.front(), burst.len() as u16).into()
                }
                None => 0,
            };
            burst.forget_front(sent);
            sent
        };
        self.count.tx_packets += sent as u64;
        self.count.tx_bytes += offered - bytes(burst.as_slice());
        sent
    }

    /// Of `offered` packets so many were sent; the others are dropped if nobody will ever take them. Gives the number of those
    /// that are gone.
    #[inline(always)]
    pub(super) fn sent(
        &mut self,
        burst: &mut Burst,
        offered: usize,
        sent: usize,
        up: bool,
    ) -> usize {
        if sent == offered {
            return sent;
        }
        if sent == 0 && !up {
            self.count.tx_link_down += offered as u64;
            burst.clear();
            return offered;
        }
        self.count.tx_backpressure += 1;
        sent
    }

    /// Makes packets from `start` on one segment each, or drops them. Returns how many are left.
    #[cold]
    fn linearize_from(&mut self, burst: &mut Burst, start: usize) -> usize {
        let mut at = start;
        while let Some(mbuf) = burst.get_mut(at) {
            if mbuf.segments() == 1 {
                at += 1;
            } else if mbuf.linearize() {
                self.count.rx_linearized += 1;
                at += 1;
            } else {
                self.count.rx_oversize += 1;
                drop(burst.take(at));
            }
        }
        at - start
    }

    /// Drops packets longer than the MTU allows. Returns how many.
    #[inline(always)]
    pub(super) fn drop_oversize(&mut self, burst: &mut Burst) -> usize {
        match self.max_frame != 0 && burst.iter().any(|m| m.len() > self.max_frame) {
            true => self.drop_longer(burst),
            false => 0,
        }
    }

    #[cold]
    fn drop_longer(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let mut at = 0;
        while let Some(mbuf) = burst.get(at) {
            if mbuf.len() > self.max_frame {
                drop(burst.take(at));
            } else {
                at += 1;
            }
        }
        let dropped = before - burst.len();
        self.count.tx_oversize += dropped as u64;
        dropped
    }

    /// What passed, and what did not.
    pub(super) fn counters(&self) -> Counters {
        let own = &self.count;
        vec![
            ("tx_packets", own.tx_packets),
            ("tx_bytes", own.tx_bytes),
            ("rx_packets", own.rx_packets),
            ("rx_bytes", own.rx_bytes),
            ("tx_oversize", own.tx_oversize),
            ("rx_oversize", own.rx_oversize),
            ("rx_linearized", own.rx_linearized),
            ("tx_backpressure", own.tx_backpressure),
            ("tx_link_down", own.tx_link_down),
        ]
    }
}

/// Bytes of some packets.
#[inline(always)]
fn bytes(mbufs: &[Mbuf]) -> u64 {
    mbufs.iter().map(|m| m.len() as u64).sum()
}

/// A further queue of a port, for another lcore. The port itself, its link and what the driver counts, is with the first queue.
#[derive(Debug)]
pub struct EthdevQueue {
    pub(super) queue: Queue,
    pub(super) name: String,
    pub(super) _open: Arc<Open>,
}

impl Driver for EthdevQueue {
    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        match self.queue.receive(burst) {
            0 => 0,
            got => self.queue.received(burst, got),
        }
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = self.queue.drop_oversize(burst);
        let offered = burst.len();
        let sent = match offered {
            0 => 0,
            _ => self.queue.send(burst),
        };
        taken + self.queue.sent(burst, offered, sent, true)
    }

    fn counters(&self) -> Counters {
        self.queue.counters()
    }

    fn link(&self) -> LinkStatus {
        LinkStatus {
            up: true,
            speed_mbps: None,
        }
    }

    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    fn rx_event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm_rx(&mut self) -> bool {
        false
    }

    fn disarm_rx(&mut self) {}

    fn describe(&self) -> String {
        self.name.clone()
    }
}
