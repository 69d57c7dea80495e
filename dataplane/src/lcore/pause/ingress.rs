//! Received packets on their way from the port to the parser, by priority.
//!
//! A poll reads more from the port than the parser takes, so what comes faster than this thread works waits here, where it
//! is counted, and not in front of the port, where nobody would be told to stop.
//!
//! A lossless priority that has no room left drops nothing: the port is not read but for pause frames, where it has them apart, and what stands
//! behind it waits, or is dropped by a driver that can only drop, which counts it. A lossy priority drops what finds no room, and has but a part of the room for packets, so
//! that a lossless one has asked for a pause before there is none.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::PauseMode;
use roceline_engine::congestion::priority::{PriorityMask, each};
use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause::{PRIORITIES, is_mac_control};

use super::super::nic::{Nic, Shared};
use super::{BURSTS, LOSSY_LIMIT, NicPause, QUEUE_LIMIT};
use crate::port::{Burst, Mbuf, PausePart, RX_BURST};

/// Reads the port, and fills the NIC's burst with packets for the parser unless it is to `hold` them. Gives how many came or went, pause
/// frames aside: these are told again and again while nothing else happens, and must not keep the thread awake.
pub fn receive(nic: &mut Nic, shared: &mut Shared, hold: bool, now: Nanos) -> usize {
    let Nic {
        info,
        pause,
        port,
        rx_burst,
        injected,
        tapped,
        ..
    } = nic;
    let Some(pause) = pause else { return 0 };
    let index = info.index as usize;
    let mut count = 0;
    if !pause.settings.is_on() {
        // As where they never were on, but for what still waits.
        pause.hear_parts();
        if hold {
            return 0;
        }
        if pause.waiting > 0 {
            return pause.dequeue(rx_burst);
        }
        port.rx_burst(rx_burst);
        rx_burst.refill(injected);
        return rx_burst.len();
    }
    for n in 0..BURSTS {
        let more = if n > 0 && !pause.reads_ahead() {
            break;
        } else if pause.is_full() {
            pause.full += u64::from(n == 0);
            port.rx_control(rx_burst);
            false
        } else {
            let came = port.rx_burst(rx_burst);
            rx_burst.refill(injected);
            came == rx_burst.wanted()
        };
        for mbuf in rx_burst.drain() {
            if is_mac_control(mbuf.data()) {
                if *tapped {
                    shared.taps.record(index, false, [mbuf.data()].into_iter());
                }
                pause.control(mbuf.data(), &info.mac, now);
            } else {
                count += 1;
                pause.enqueue(mbuf);
            }
        }
        if !more {
            break;
        }
    }
    if !hold {
        count = count.max(pause.dequeue(rx_burst));
    }
    pause.levels(now);
    count
}

impl NicPause {
    /// A MAC control frame: it ends here, whatever it says.
    fn control(&mut self, frame: &[u8], own: &[u8; 6], now: Nanos) {
        self.control[0] += 1;
        if let Some(frame) = PauseFrame::parse(frame, own) {
            self.receiver.on_frame(&frame, now);
        }
    }

    /// Whether a lossless priority has no room left.
    fn is_full(&self) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let many = self.waiting >= QUEUE_LIMIT;
        (0..PRIORITIES).any(|p| (many || self.occupancy(p) > self.share) && self.is_lossless(p))
    }

    /// Whether more may be read than the parser has taken: another burst of lossy packets, each as long as they can be, must find room,
    /// for outside they would have waited.
    fn reads_ahead(&self) -> bool {
        let burst = RX_BURST as u64 * self.longest;
        self.lossy_waiting() + RX_BURST <= LOSSY_LIMIT
            && (0..PRIORITIES)
                .filter(|p| !self.is_lossless(*p))
                .all(|p| self.occupancy(p) + burst <= self.share)
    }

    /// Bytes that count against the share of a priority.
    fn occupancy(&self, priority: usize) -> u64 {
        match self.settings.mode {
            PauseMode::Global => self.bytes.iter().sum(),
            PauseMode::Off | PauseMode::Pfc => self.bytes[priority],
        }
    }

    /// Whether packets of a priority wait rather than be dropped. In a storm, when it was stopped for too long, they are.
    fn is_lossless(&self, priority: usize) -> bool {
        let slot = self.sender.slot(priority as u8);
        slot.is_some_and(|slot| self.in_storm() >> slot & 1 == 0)
    }

    /// Packets that wait and might have been dropped.
    fn lossy_waiting(&self) -> usize {
        let lossy = (0..PRIORITIES).filter(|p| !self.is_lossless(*p));
        lossy.map(|p| self.queues[p].len()).sum()
    }

    fn enqueue(&mut self, mbuf: Mbuf) {
        let len = mbuf.len() as u64;
        let p = usize::from(self.settings.map.of_frame(mbuf.data())) % PRIORITIES;
        let traffic = &mut self.traffic[p];
        traffic.rx_packets += 1;
        traffic.rx_bytes += len;
        let cost = len.max(self.cell);
        if !self.is_lossless(p) {
            let fits = self.occupancy(p) + cost <= self.share && self.waiting < QUEUE_LIMIT;
            let many = self.waiting >= LOSSY_LIMIT && self.lossy_waiting() >= LOSSY_LIMIT;
            if !fits || many {
                self.traffic[p].rx_discards += 1;
                return;
            }
        }
        self.bytes[p] += cost;
        self.waiting += 1;
        self.queues[p].push_back(mbuf);
    }

    /// Moves packets to the end of `burst`, as many as one takes; another priority is first each time. Gives how many.
    fn dequeue(&mut self, burst: &mut Burst) -> usize {
        if self.waiting == 0 {
            return 0;
        }
        let before = burst.len();
        for i in 0..PRIORITIES {
            let p = (self.turn + i) % PRIORITIES;
            while burst.len() < burst.wanted() {
                let Some(mbuf) = self.queues[p].pop_front() else {
                    break;
                };
                self.bytes[p] -= (mbuf.len() as u64).max(self.cell).min(self.bytes[p]);
                self.waiting -= 1;
                if let Err(mbuf) = burst.push(mbuf) {
                    // There was room.
                    drop(mbuf);
                }
            }
            if self.queues[p].is_empty() {
                // Settings that changed meanwhile counted them differently.
                self.bytes[p] = 0;
            }
        }
        self.turn = (self.turn + 1) % PRIORITIES;
        burst.len() - before
    }

    /// Tells the sender of pauses, or the part that has it, how much waits.
    fn levels(&mut self, now: Nanos) {
        let slots = match self.settings.mode {
            PauseMode::Off => 0,
            PauseMode::Pfc => self.settings.priorities,
            PauseMode::Global => 1,
        };
        if self.spoken_for().is_some() {
            for slot in each(slots) {
                let (bytes, bit) = (self.occupancy(slot), 1 << slot);
                if bytes > self.threshold.xoff {
                    self.full_slots |= bit;
                } else if bytes <= self.threshold.xon {
                    self.full_slots &= !bit;
                }
            }
            if let Some(part) = &self.part {
                part.set_full(self.full_slots);
            }
            return;
        }
        let others = self.hear_parts();
        for slot in each(slots) {
            let mut bytes = self.occupancy(slot);
            if others >> slot & 1 == 1 {
                // The other end goes on when all parts have room.
                bytes = bytes.max(self.threshold.xoff + 1);
            }
            self.sender.level(slot, bytes, self.threshold, now);
        }
    }

    /// What other parts have too much of, if they say it to this one. Also while pauses are off, which parts are told one after the other: what is
    /// left unread keeps the thread awake.
    fn hear_parts(&self) -> PriorityMask {
        let part = self.part.as_ref().filter(|part| part.is_first());
        part.map_or(0, PausePart::full)
    }

    /// By other settings, which may not count the same, nothing is above XOFF until it is looked at.
    pub(super) fn forget_levels(&mut self) {
        self.full_slots = 0;
        if let Some(part) = self.spoken_for() {
            part.set_full(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use roceline_engine::AckPolicy;
    use roceline_engine::congestion::pfc::PfcSettings;
    use roceline_engine::wire::{PauseFrame, pause};

    use super::*;

    use crate::bench::pair::{engine, lcore_of, nic_of};
    use crate::config::{Config, Preset};
    use crate::lcore::probe::NoProbe;
    use crate::port::spread::spread;
    use crate::port::{Eal, FabricEnd, FabricLink, FabricLinkConfig, Mempool, MempoolConfig, Port};

    const RATE: u64 = 10_000_000_000;
    const MTU: u32 = 1500;

    fn pool(name: &str) -> Arc<Mempool> {
        let config = MempoolConfig {
            name: name.into(),
            ..MempoolConfig::default()
        };
        Mempool::new(Eal::of_tests(), &config).unwrap()
    }

    /// The smallest frame, of IPv4 with the DSCP that `priority` has.
    fn frame(pool: &Mempool, priority: u8) -> Mbuf {
        let mut mbuf = pool.alloc().unwrap();
        let bytes = mbuf.set_len(60).unwrap();
        bytes.fill(0);
        bytes[12..16].copy_from_slice(&[0x08, 0x00, 0x45, priority << 5]);
        mbuf
    }

    fn pauses(mode: PauseMode, priorities: u8) -> Box<NicPause> {
        let settings = PfcSettings {
            mode,
            priorities,
            ..PfcSettings::default()
        };
        settings.validate(RATE, MTU).unwrap();
        NicPause::new(&settings, RATE, MTU, None)
    }

    /// Small packets of `priorities` in turn, until one of these has the other end told to stop. Gives for which it was.
    fn told_to_stop(pause: &mut NicPause, pool: &Mempool, priorities: &[u8]) -> u8 {
        for n in 0..QUEUE_LIMIT {
            assert!(!pause.is_full(), "after {n} packets, and nobody was told");
            pause.enqueue(frame(pool, priorities[n % priorities.len()]));
            pause.levels(Nanos(n as u64));
            match pause.sender.poll(Nanos(n as u64)) {
                None => {}
                Some(PauseFrame::Priority { enabled, .. }) => return enabled,
                Some(other) => panic!("{other:?}"),
            }
        }
        panic!("nobody was told");
    }

    /// The port is not read where a lossless priority has no room, so the other end must have been told before.
    #[test]
    fn no_packets_fill_the_room_before_the_other_end_is_told() {
        let pool = pool("ingress");
        for lossy in [&[0][..], &[0, 1, 2, 5]] {
            let mut pause = pauses(PauseMode::Pfc, 1 << 3);
            let count = 2 * QUEUE_LIMIT;
            for n in 0..count {
                pause.enqueue(frame(&pool, lossy[n % lossy.len()]));
            }
            assert!(!pause.is_full());
            assert_eq!(pause.waiting, LOSSY_LIMIT);
            let lost: u64 = pause.traffic.iter().map(|t| t.rx_discards).sum();
            assert_eq!(lost, (count - LOSSY_LIMIT) as u64);
            assert_eq!(told_to_stop(&mut pause, &pool, &[3]), 1 << 3);
            assert_eq!(pause.traffic[3].rx_discards, 0);
        }
        // Priorities that are lossless do not fill it for each other either.
        let mut pause = pauses(PauseMode::Pfc, 0b1111_1000);
        for _ in 0..QUEUE_LIMIT {
            pause.enqueue(frame(&pool, 0));
        }
        let told = told_to_stop(&mut pause, &pool, &[3, 4, 5, 6, 7]);
        assert!(told & 0b1111_1000 != 0, "{told:b}");
    }

    /// Two parts of a NIC: the other end is told to stop when either has too much, and to go on when neither has; what it asks for
    /// holds for both.
    #[test]
    fn parts_pause_as_one() {
        let pool = &pool("parts");
        let (mut ports, _end) = two_parts(pool);
        let settings = on();
        let mut parts = ports
            .iter()
            .map(|port| NicPause::new(&settings, RATE, MTU, port.pause_part()));
        let [mut first, mut other] = std::array::from_fn(|_| parts.next().unwrap());
        let fill = |pause: &mut NicPause| {
            while pause.occupancy(3) <= pause.threshold.xoff {
                pause.enqueue(frame(pool, 3));
            }
            pause.levels(Nanos(1));
        };
        let empty = |pause: &mut NicPause| {
            let mut burst = Burst::new();
            while pause.dequeue(&mut burst) > 0 {
                burst.clear();
            }
            pause.levels(Nanos(2));
        };
        let told = |pause: &mut NicPause| {
            pause.levels(Nanos(3));
            match pause.sender.poll(Nanos(3)) {
                Some(PauseFrame::Priority { enabled, quanta }) => {
                    assert_eq!(enabled, 1 << 3);
                    Some(quanta[3] > 0)
                }
                other => {
                    assert_eq!(other, None);
                    None
                }
            }
        };
        fill(&mut other);
        assert!(!ports[0].arm_rx(), "there is something at the board");
        assert_eq!(told(&mut other), None, "it speaks by the first");
        assert_eq!(told(&mut first), Some(true));
        fill(&mut first);
        assert_eq!(told(&mut first), None, "it was told");
        empty(&mut other);
        assert_eq!(told(&mut first), None, "the first has too much");
        empty(&mut first);
        assert_eq!(told(&mut first), Some(false));

        let mut heard = [0; pause::LEN];
        stop(u16::MAX).emit(&[2; 6], &mut heard);
        first.control(&heard, &[2; 6], Nanos(4));
        assert_eq!(first.advance(Nanos(4)), 1 << 3);
        assert_eq!(other.paused(), 0, "it has not looked");
        assert!(!ports[1].arm_rx(), "there is something at the board");
        assert_eq!(other.advance(Nanos(4)), 1 << 3);
        assert_eq!(other.paused(), 1 << 3);
        assert_eq!((first.control[0], other.control[0]), (1, 0));
        stop(0).emit(&[2; 6], &mut heard);
        first.control(&heard, &[2; 6], Nanos(5));
        assert_eq!((first.advance(Nanos(5)), other.advance(Nanos(5))), (0, 0));

        // The first gave up on its pause, so both lose what finds no room.
        fill(&mut other);
        assert_eq!(told(&mut first), Some(true));
        let late = Nanos(3) + settings.watchdog.tx_limit;
        first.levels(late);
        assert!(first.sender.poll(late).is_some());
        first.advance(late);
        assert!(other.is_lossless(3), "it has not looked");
        other.advance(late);
        assert!(!other.is_lossless(3) && !first.is_lossless(3));
        // Off again, nothing is left at the board.
        other.settings.mode = PauseMode::Off;
        other.forget_levels();
        first.levels(late);
        assert!(first.is_lossless(3));
    }

    /// A port in two parts, and its other end.
    fn two_parts(pool: &Arc<Mempool>) -> (Vec<Port>, FabricEnd) {
        let (ours, end) = FabricLink::pair(&FabricLinkConfig::default()).unwrap();
        let pools = [pool, pool].map(Arc::clone);
        let ports = spread(std::iter::once(Port::new(ours)), [2; 6], &pools);
        (ports.unwrap(), end)
    }

    fn on() -> PfcSettings {
        PfcSettings {
            mode: PauseMode::Pfc,
            ..PfcSettings::default()
        }
    }

    /// The first part is told that pauses are off while another one still has too much, and hears only later that it has not.
    #[test]
    fn pauses_that_end_on_one_part_after_the_other_let_the_first_sleep() {
        let pool = pool("off");
        let (mut ports, _end) = two_parts(&pool);
        if !ports[0].has_rx_interrupt() {
            println!("skipped: membarrier(2) is not available here");
            return;
        }
        let other = ports[1].pause_part().unwrap();
        let infos = Config::preset(Preset::Pair).unwrap().nic_infos();
        let first = ports.swap_remove(0);
        let nic = nic_of(&infos[0], first, engine(AckPolicy::Coalesced));
        let (mut lcore, _) = lcore_of(vec![nic], pool).unwrap();
        lcore.set_pause(0, &on());
        other.set_full(1 << 3);
        lcore.poll(Nanos(1), &mut NoProbe);
        assert!(lcore.nics[0].port.arm_rx());
        lcore.nics[0].port.disarm_rx();
        lcore.set_pause(0, &PfcSettings::default());
        other.set_full(0);
        assert!(!lcore.nics[0].port.arm_rx(), "there is something to hear");
        lcore.poll(Nanos(2), &mut NoProbe);
        assert!(lcore.nics[0].port.arm_rx());
    }

    fn stop(time: u16) -> PauseFrame {
        PauseFrame::Priority {
            enabled: 1 << 3,
            quanta: [0, 0, 0, time, 0, 0, 0, 0],
        }
    }
}
