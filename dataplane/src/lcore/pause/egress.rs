//! Obeying pauses: what was finished before one came waits aside, in its order, until it has ended. And pause frames of our own,
//! which go in front of all else.

use roceline_engine::Nanos;
use roceline_engine::congestion::priority::{Trust, each};
use roceline_engine::wire::pause::{self, PRIORITIES};

use super::super::nic::{Nic, Shared, TX_LIMIT};
use super::{HELD_LIMIT, NicPause};
use crate::port::{Mbuf, RX_BURST};

/// Of the priority in tag control information (IEEE 802.1Q 9.6).
pub const PCP_SHIFT: u32 = 13;

/// Looks which priorities are paused now.
pub fn obey(nic: &mut Nic, now: Nanos) {
    let Some(pause) = &mut nic.pause else { return };
    let paused = pause.advance(now);
    if paused != pause.told {
        pause.told = paused;
        nic.engine.set_paused(paused);
    }
}

/// Sorts finished packets: those of paused priorities out of the way to the port, those whose pause has ended back.
pub fn set_aside(nic: &mut Nic) {
    let Nic {
        pause,
        tx,
        tx_burst,
        counts,
        ..
    } = nic;
    let Some(pause) = pause else { return };
    let (paused, dropped) = (pause.paused(), pause.discarding());
    if paused | dropped | pause.holding == 0 {
        return;
    }
    for p in each(pause.holding & !paused) {
        if dropped >> p & 1 == 1 {
            pause.lose(p);
            continue;
        }
        let held = &mut pause.held[p];
        while held.offered > 0 && tx_burst.len() < tx_burst.wanted() {
            let Some(mbuf) = held.packets.pop_front() else {
                break;
            };
            held.offered -= 1;
            pause.held_count -= 1;
            if let Err(mbuf) = tx_burst.push(mbuf) {
                // There was room.
                drop(mbuf);
            }
        }
        if held.offered == 0 {
            debug_assert!(tx.len() <= TX_LIMIT + RX_BURST);
            pause.held_count -= held.packets.len();
            // In front of newer ones.
            for mbuf in held.packets.drain(..).rev() {
                tx.push_front(mbuf);
            }
            pause.holding &= !(1 << p);
        }
    }
    // What the port did not take last time is older than all that waits.
    for at in (0..tx_burst.len()).rev() {
        let Some(p) = tx_burst.get(at).map(|mbuf| pause.priority(mbuf)) else {
            continue;
        };
        if (paused | dropped) >> p & 1 == 0 {
            continue;
        }
        let Some(mbuf) = tx_burst.take(at) else {
            continue;
        };
        if dropped >> p & 1 == 1 {
            pause.storm_drops += 1;
        } else {
            let held = &mut pause.held[p];
            held.packets.push_front(mbuf);
            held.offered += 1;
            pause.held_count += 1;
            pause.holding |= 1 << p;
        }
    }
    for _ in 0..tx.len() {
        let Some(mbuf) = tx.pop_front() else { break };
        let p = pause.priority(&mbuf);
        if dropped >> p & 1 == 1 {
            pause.storm_drops += 1;
        } else if (paused | pause.holding) >> p & 1 == 0 {
            tx.push_back(mbuf);
        } else if pause.held_count >= HELD_LIMIT {
            counts.tx_queue_full += 1;
        } else {
            pause.held[p].packets.push_back(mbuf);
            pause.held_count += 1;
            pause.holding |= 1 << p;
        }
    }
}

/// Sends pause frames that are due. Gives how many went.
pub fn tell(nic: &mut Nic, shared: &mut Shared, now: Nanos) -> usize {
    let Nic {
        info,
        pause,
        port,
        tapped,
        counts,
        ..
    } = nic;
    let Some(pause) = pause else { return 0 };
    if pause.frames.is_empty() {
        let last = pause.last.take();
        while let Some(frame) = last.or_else(|| pause.sender.poll(now)) {
            // Without a buffer it is lost, and asked for again when half of its time is over.
            let Some(mut mbuf) = shared.pool.alloc() else {
                counts.tx_no_mbuf += 1;
                break;
            };
            let out = mbuf.set_len(pause::LEN).and_then(|b| b.first_chunk_mut());
            let Some(out) = out else { break };
            frame.emit(&info.mac, out);
            if *tapped {
                let index = info.index as usize;
                shared.taps.record(index, true, [mbuf.data()].into_iter());
            }
            pause.control[1] += 1;
            if pause.frames.push(mbuf).is_err() || last.is_some() {
                break;
            }
        }
    }
    port.tx_burst(&mut pause.frames)
}

impl NicPause {
    /// Of a packet to send. Its tag may not be in it yet.
    fn priority(&self, mbuf: &Mbuf) -> usize {
        let map = &self.settings.map;
        let priority = match map.trust() {
            Trust::Pcp => (mbuf.tci() >> PCP_SHIFT) as u8,
            Trust::Dscp => map.of_frame(mbuf.data()),
        };
        usize::from(priority) % PRIORITIES
    }

    /// Drops what waits of a priority.
    fn lose(&mut self, p: usize) {
        let held = &mut self.held[p];
        self.held_count -= held.packets.len();
        self.storm_drops += held.packets.len() as u64;
        held.packets.clear();
        held.offered = 0;
        self.holding &= !(1 << p);
    }

    /// Counts packets that are offered to the port for the first time.
    #[inline]
    pub fn count_sent<'a>(&mut self, mbufs: impl Iterator<Item = &'a Mbuf>) {
        if !self.settings.is_on() {
            // As for what is received.
            return;
        }
        for mbuf in mbufs {
            let traffic = &mut self.traffic[self.priority(mbuf)];
            traffic.tx_packets += 1;
            traffic.tx_bytes += mbuf.len() as u64;
        }
    }
}
