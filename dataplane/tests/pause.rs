//! A NIC obeys pause frames: its port falls silent within one poll, for the time that the frame says and no longer, for the
//! priorities that it names and no others, and what waits goes out in its order.

#[path = "support/one_nic.rs"]
mod one_nic;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use one_nic::OneNic;
use roceline::bench::{Producer, ProducerQp};
use roceline::congestion::Settings;
use roceline::lcore::Lcore;
use roceline::lcore::message::{Command, Reply};
use roceline::lcore::probe::NoProbe;
use roceline::port::{Burst, Counters, Driver, FabricEnd, LinkStatus, Mempool, Port};
use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::{PauseMode, PfcSettings, StormAction, Threshold, Watchdog};
use roceline_engine::congestion::priority::{PriorityMap, Trust};
use roceline_engine::verbs::{Sge, WrOpcode};
use roceline_engine::wire::pause::{DST, LEN};
use roceline_engine::wire::{PauseFrame, Psn, icrc, parse};

/// Send requests posted at once, more than the engine sends in a poll.
const SENDS: usize = 60;
/// 1000 quanta at the `line_rate` of 100 Gb/s, whatever the driver says of its link.
const PAUSE: Nanos = Nanos(5120);

/// The NIC's end of its link, as a driver that knows a speed, and which cannot pause by itself.
struct Nic {
    end: FabricEnd,
    /// How often it was told of pauses.
    told: Arc<AtomicU32>,
    /// PSNs of packets that it was offered.
    offered: Vec<Psn>,
    /// How many of those that it is offered next were, as it is told or as it has left them.
    before: usize,
}

impl Driver for Nic {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        self.end.rx_burst(burst)
    }

    fn rx_control(&mut self, burst: &mut Burst) -> usize {
        self.end.rx_control(burst)
    }

    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        for (at, mbuf) in burst.iter().enumerate() {
            let Ok(parsed) = parse(mbuf.data()) else {
                continue;
            };
            let psn = parsed.packet.psn;
            let is_new = !self.offered.contains(&psn);
            assert_eq!(is_new, at >= self.before, "{psn:?}, at {at}");
            if is_new {
                self.offered.push(psn);
            }
        }
        let sent = self.end.tx_burst(burst);
        self.before = burst.len();
        sent
    }

    fn offered_before(&mut self, count: usize) {
        self.before = count;
    }

    fn counters(&self) -> Counters {
        self.end.counters()
    }

    fn link(&self) -> LinkStatus {
        LinkStatus {
            speed_mbps: Some(10_000),
            ..self.end.link()
        }
    }

    fn set_pause(&mut self, _: &PfcSettings, _: Threshold) -> bool {
        self.told.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.end.mac()
    }

    fn rx_event(&self) -> Option<BorrowedFd<'_>> {
        self.end.rx_event()
    }

    fn arm_rx(&mut self) -> bool {
        self.end.arm_rx()
    }

    fn disarm_rx(&mut self) {
        self.end.disarm_rx();
    }

    fn describe(&self) -> String {
        self.end.describe()
    }
}

/// One NIC, a program on it that sends, and the other end of its link.
struct World {
    lcore: Lcore,
    wire: FabricEnd,
    /// How often the driver was told of pauses.
    told: Arc<AtomicU32>,
    pool: Arc<Mempool>,
    program: Producer,
    qp: ProducerQp,
    now: Nanos,
}

fn settings(mode: PauseMode, priorities: u8) -> PfcSettings {
    PfcSettings {
        mode,
        priorities,
        ..PfcSettings::default()
    }
}

fn pause(priorities: u8, quanta: u16) -> PauseFrame {
    PauseFrame::Priority {
        enabled: priorities,
        quanta: std::array::from_fn(|p| if priorities >> p & 1 == 1 { quanta } else { 0 }),
    }
}

impl World {
    fn new(settings: &PfcSettings, link_packets: usize) -> World {
        let told = Arc::new(AtomicU32::new(0));
        let port = |end| {
            Port::new(Nic {
                end,
                told: Arc::clone(&told),
                offered: Vec::new(),
                before: 0,
            })
        };
        let prepare = |lcore: &mut Lcore| lcore.set_pause(0, settings);
        // The loop's time is the test's.
        let poll = |lcore: &mut Lcore| {
            lcore.poll(Nanos(1000), &mut NoProbe);
        };
        let nic = OneNic::new(link_packets, port, 7, prepare, poll);
        let OneNic {
            lcore,
            wire,
            pool,
            program,
            qp,
            ..
        } = nic;
        World {
            lcore,
            wire,
            told,
            pool,
            program,
            qp,
            now: Nanos(1000),
        }
    }

    fn poll_at(&mut self, now: Nanos) {
        self.now = now;
        self.lcore.poll(now, &mut NoProbe);
    }

    /// Posts [`SENDS`] WRITEs of a packet each.
    fn send(&mut self) {
        let bytes = [7u8; 48];
        let sge = Sge {
            addr: bytes.as_ptr() as u64,
            length: 48,
            lkey: 0,
        };
        const INLINE: u32 = roceline::bench::producer::INLINE;
        for _ in 0..SENDS {
            let (qp, to) = (&mut self.qp, (0x1000, 1));
            self.program
                .post_send(qp, WrOpcode::Write, INLINE, sge, to, Some(&bytes));
        }
        self.program.ring(&self.qp);
    }

    /// What left the NIC since the last look: PSNs of RoCE packets, and pause frames.
    fn left(&mut self) -> (Vec<Psn>, Vec<PauseFrame>) {
        let (mut psns, mut pauses) = (Vec::new(), Vec::new());
        let mut burst = Burst::new();
        while self.wire.rx_burst(&mut burst) > 0 {
            for mbuf in burst.drain() {
                match parse(mbuf.data()) {
                    Ok(parsed) => psns.push(parsed.packet.psn),
                    Err(_) => pauses.push(PauseFrame::parse(mbuf.data(), &[0; 6]).unwrap()),
                }
            }
        }
        (psns, pauses)
    }

    /// What leaves in some more polls, a nanosecond apart.
    fn rest(&mut self) -> Vec<Psn> {
        let mut all = self.left().0;
        for _ in 0..10 {
            self.poll_at(self.now + Nanos(1));
            all.extend(self.left().0);
        }
        all
    }

    /// Frames of 4000 bytes and priority 0, which are no RoCE.
    fn flood(&mut self, count: usize) {
        let mut burst = Burst::new();
        for _ in 0..count {
            let mut mbuf = self.pool.alloc().unwrap();
            let frame = mbuf.set_len(4000).unwrap();
            frame.fill(0);
            frame[12..16].copy_from_slice(&[0x08, 0, 0x45, 0]);
            assert!(burst.push(mbuf).is_ok());
            assert_eq!(self.wire.tx_burst(&mut burst), 1);
        }
    }

    fn arrive(&mut self, frame: &PauseFrame) {
        let mut mbuf = self.pool.alloc().unwrap();
        let out = mbuf.set_len(LEN).unwrap().first_chunk_mut().unwrap();
        frame.emit(&[2, 0, 0, 0, 0, 9], out);
        let mut burst = Burst::new();
        assert!(burst.push(mbuf).is_ok());
        assert_eq!(self.wire.tx_burst(&mut burst), 1);
    }

    /// A counter of the group `ethtool`, or of `port`.
    fn count(&mut self, name: &str) -> u64 {
        let (lcore, now) = (&mut self.lcore, self.now);
        let mut poll = || {
            lcore.poll(now, &mut NoProbe);
        };
        let Ok(Reply::Snapshot(all)) = self.program.command(Command::Counters, &mut poll) else {
            panic!("no snapshot");
        };
        let nic = &all.nics[0];
        let mut named = nic.pause.named().chain(nic.port.iter().copied());
        named.find(|(n, _)| *n == name).expect(name).1
    }
}

/// PSNs from `first` on.
fn psns(first: u32, count: usize) -> Vec<Psn> {
    (0..count as u32).map(|i| Psn::new(first + i)).collect()
}

#[test]
fn a_pause_holds_its_priority_for_its_time_from_the_next_poll_on() {
    for (mode, frame, names) in [
        (PauseMode::Pfc, pause(1, 1000), "prio0"),
        (
            PauseMode::Global,
            PauseFrame::Global { quanta: 1000 },
            "global",
        ),
    ] {
        let mut w = World::new(&settings(mode, 1), 1024);
        w.send();
        w.poll_at(Nanos(2000));
        let mut seen = w.left().0;
        assert!((1..SENDS).contains(&seen.len()), "{seen:?}");
        w.arrive(&frame);
        for at in [3000, 3001, 5000, 8119] {
            w.poll_at(Nanos(at));
            assert_eq!(w.left(), (vec![], vec![]), "{mode:?} at {at}");
        }
        w.poll_at(Nanos(3000) + PAUSE);
        let first = w.left().0;
        assert!(!first.is_empty(), "{mode:?}");
        seen.extend(first);
        seen.extend(w.rest());
        assert_eq!(seen, psns(0, SENDS), "{mode:?}");
        let counts = ["pause", "pause_duration", "pause_transition"]
            .map(|what| w.count(&format!("rx_{names}_{what}")));
        assert_eq!(counts, [1, 5, 1], "{mode:?}");
        assert_eq!(w.count("rx_pause_ctrl_phy"), 1);
        assert_eq!(w.count("tx_prio0_packets"), SENDS as u64);
        assert_eq!(w.count("rx_not_roce"), 0);
    }
}

#[test]
fn a_resume_ends_it_and_other_priorities_do_not_stop() {
    let mut w = World::new(&settings(PauseMode::Pfc, 0b1001), 1024);
    w.send();
    w.arrive(&pause(0b1000, 65535));
    w.poll_at(Nanos(2000));
    let mut seen = w.left().0;
    assert!((1..SENDS).contains(&seen.len()), "priority 3 is not ours");
    w.arrive(&pause(0b1001, 65535));
    w.poll_at(Nanos(3000));
    assert_eq!(w.left().0, []);
    w.arrive(&pause(0b0001, 0));
    w.poll_at(Nanos(4000));
    seen.extend(w.rest());
    assert_eq!(seen, psns(0, SENDS));
    assert_eq!(w.count("rx_prio0_pause"), 2);
    assert_eq!(w.count("rx_prio3_pause_transition"), 0);
}

/// The link takes a few packets only, so most of them are finished and wait when the pause comes.
#[test]
fn what_was_finished_before_waits_in_its_order() {
    let mut w = World::new(&settings(PauseMode::Pfc, 1), 8);
    w.send();
    w.poll_at(Nanos(2000));
    let mut seen = w.left().0;
    let mut now = 2000;
    while seen.len() < SENDS {
        // Room for some in between, pauses and resumes, so that packets are put aside more than once.
        let paused = now % 3 != 0;
        w.arrive(&pause(1, if paused { 100 } else { 0 }));
        now += 100;
        w.poll_at(Nanos(now));
        let before = w.left().0;
        now += 600;
        w.poll_at(Nanos(now));
        assert!(!paused || before.is_empty(), "sent in a pause: {before:?}");
        seen.extend(before);
        seen.extend(w.left().0);
        assert!(now < 1_000_000, "{seen:?}");
    }
    assert_eq!(seen, psns(0, SENDS));
    assert_eq!(w.count("tx_queue_full"), 0);
    assert_eq!(w.count("tx_prio0_packets"), SENDS as u64);
}

/// A driver that looks at each packet once, also at what it did not take before pause frames went in front.
#[test]
fn a_driver_knows_what_it_was_offered_before() {
    let set = PfcSettings {
        xoff_bytes: Some(40_000),
        ..settings(PauseMode::Pfc, 1)
    };
    let mut w = World::new(&set, 64);
    for at in [2000, 3000] {
        w.send();
        // A poll takes 16 requests of a queue.
        for n in 0..4 {
            w.poll_at(Nanos(at + n));
        }
    }
    assert!(w.count("tx_backpressure") > 0, "the link is full");
    let mut seen = w.left().0;
    assert_eq!(seen.len(), 64);
    // More than are worked off in a poll.
    w.flood(64);
    w.poll_at(Nanos(4000));
    let (more, pauses) = w.left();
    assert_eq!(pauses, [pause(1, 65535)]);
    seen.extend(more);
    seen.extend(w.rest());
    assert_eq!(seen, psns(0, 2 * SENDS));
}

#[test]
fn a_nic_with_pauses_off_counts_them_and_goes_on() {
    let mut w = World::new(&PfcSettings::default(), 1024);
    w.send();
    w.arrive(&pause(0xff, 65535));
    w.arrive(&PauseFrame::Global { quanta: 65535 });
    w.poll_at(Nanos(2000));
    assert_eq!(w.rest(), psns(0, SENDS));
    assert_eq!((w.count("rx_mac_control"), w.count("rx_not_roce")), (2, 0));
    assert_eq!(w.count("rx_prio0_pause"), 0);
}

#[test]
fn a_storm_of_pauses_is_ignored_or_what_waits_is_dropped() {
    for rx_action in [StormAction::Forward, StormAction::Drop] {
        let mut set = settings(PauseMode::Pfc, 1);
        set.watchdog = Watchdog {
            rx_limit: Nanos::from_millis(2),
            rx_restore: Nanos::from_millis(1),
            rx_action,
            ..Watchdog::default()
        };
        let mut w = World::new(&set, 1024);
        w.send();
        let mut sent = 0;
        for at in 0..30 {
            w.arrive(&pause(1, 65535));
            w.poll_at(Nanos(2000 + 100_000 * at));
            sent += w.left().0.len();
            assert_eq!(
                sent > 0,
                at >= 20 && rx_action == StormAction::Forward,
                "{at}"
            );
        }
        assert_eq!(w.count("rx_pause_storms"), 1);
        assert_eq!(w.count("rx_prio0_pause_duration"), 2000);
        let dropped = w.count("tx_pause_storm_drops");
        match rx_action {
            StormAction::Forward => assert_eq!((sent, dropped), (SENDS, 0)),
            StormAction::Drop => assert_eq!((sent, dropped), (0, SENDS as u64)),
        }
    }
}

/// Settings that change let go whoever waits.
#[test]
fn pauses_that_are_turned_off_end() {
    let mut w = World::new(&settings(PauseMode::Pfc, 1), 1024);
    w.send();
    w.arrive(&pause(1, 65535));
    w.poll_at(Nanos(2000));
    assert_eq!(w.left().0, []);
    w.lcore.set_pause(0, &PfcSettings::default());
    w.poll_at(Nanos(3000));
    assert_eq!(w.rest(), psns(0, SENDS));
    w.arrive(&pause(1, 65535));
    w.poll_at(Nanos(4000));
    assert_eq!(w.count("rx_prio0_pause"), 1);
    assert_eq!(w.count("rx_mac_control"), 1);
}

/// The driver's call may be slow, and what is not changed need not be told.
#[test]
fn only_settings_that_pauses_depend_on_are_told_to_the_driver() {
    let mut w = World::new(&PfcSettings::default(), 1024);
    let mut all = Settings::default();
    let mut told = w.told.load(Ordering::Relaxed);
    for (key, value, more) in [
        ("rpg_ai_rate", "40", 0),
        ("cnp_dscp", "46", 0),
        ("algorithm", "none", 0),
        ("pfc.mode", "pfc", 1),
        ("pfc.mode", "pfc", 0),
        ("pfc.priorities", "0", 1),
        ("line_rate", "50Gb/s", 1),
    ] {
        all.set(key, value).unwrap();
        let (lcore, now) = (&mut w.lcore, w.now);
        let mut poll = || {
            lcore.poll(now, &mut NoProbe);
        };
        let command = Command::SetCongestion {
            nic: 0,
            settings: Box::new(all),
        };
        let reply = w.program.command(command, &mut poll);
        assert!(matches!(reply, Ok(Reply::Done)), "{key}");
        told += more;
        assert_eq!(w.told.load(Ordering::Relaxed), told, "{key} = {value}");
    }
    // They hold: quanta are of the rate that was set last.
    w.send();
    w.arrive(&pause(1, 1000));
    w.poll_at(Nanos(2000));
    w.poll_at(Nanos(2000) + PAUSE + PAUSE);
    assert!(!w.left().0.is_empty());
    assert_eq!(w.count("rx_prio0_pause_duration"), 10);
}

#[test]
fn a_nic_that_goes_by_tags_sends_them() {
    let set = PfcSettings {
        map: PriorityMap::new(Trust::Pcp),
        ..settings(PauseMode::Pfc, 1)
    };
    let mut w = World::new(&set, 8);
    w.send();
    let mut seen = 0;
    let mut burst = Burst::new();
    for _ in 0..100 {
        w.poll_at(w.now + Nanos(1));
        w.wire.rx_burst(&mut burst);
        for mbuf in burst.drain() {
            let frame = mbuf.data();
            // Priority 0, VLAN 0: a priority tag.
            assert_eq!(frame[12..18], [0x81, 0, 0, 0, 0x08, 0]);
            let parsed = parse(frame).unwrap();
            assert!(icrc::verify(frame, &parsed));
            assert_eq!(parsed.packet.psn, Psn::new(seen));
            seen += 1;
        }
    }
    assert_eq!(seen, SENDS as u32);
    w.arrive(&pause(1, 65535));
    w.send();
    w.poll_at(w.now + Nanos(1));
    assert_eq!(w.left().0, []);
}

/// What comes faster than the loop works waits where it is counted, and stops the other end.
#[test]
fn more_than_is_worked_off_stops_the_other_end_until_it_is() {
    let mut w = World::new(&settings(PauseMode::Pfc, 1), 1024);
    w.flood(100);
    w.poll_at(Nanos(2000));
    assert_eq!(w.left(), (vec![], vec![pause(1, 65535)]));
    for at in 0..3 {
        w.poll_at(Nanos(2100 + at));
    }
    assert_eq!(w.left(), (vec![], vec![pause(1, 0)]));
    assert_eq!(w.count("rx_prio0_packets"), 100);
    assert_eq!(w.count("rx_prio0_discards"), 0);
    assert_eq!(w.count("tx_prio0_pause"), 2);
}

/// A lossy priority loses nothing by it: what finds no room in the queue is left in the port.
#[test]
fn what_is_lossy_is_not_read_to_be_dropped() {
    let mut w = World::new(&settings(PauseMode::Pfc, 0b1000), 1024);
    w.flood(400);
    for at in 0..20 {
        w.poll_at(Nanos(2000 + at));
    }
    assert_eq!(w.count("rx_prio0_packets"), 400);
    assert_eq!(w.count("rx_prio0_discards"), 0);
    assert_eq!(w.left(), (vec![], vec![]));
}

/// The pause stands behind more packets than the NIC has room for.
#[test]
fn a_full_nic_hears_pauses() {
    let mut w = World::new(&settings(PauseMode::Pfc, 1), 1024);
    w.send();
    w.flood(300);
    w.arrive(&pause(1, 65535));
    w.poll_at(Nanos(2000));
    assert!(w.count("rx_prio0_packets") < 300, "it is full");
    assert_eq!(w.left().0, []);
    for at in 0..20 {
        w.flood(30);
        w.poll_at(Nanos(2100 + at));
        assert_eq!(w.left().0, []);
    }
    w.arrive(&pause(1, 0));
    w.poll_at(Nanos(3000));
    assert_eq!(w.rest(), psns(0, SENDS));
}

/// A frame for the group of MAC control ends here even where its operation is unknown.
#[test]
fn mac_control_of_other_kinds_is_counted_and_dropped() {
    let mut w = World::new(&settings(PauseMode::Pfc, 1), 1024);
    let mut mbuf = w.pool.alloc().unwrap();
    let frame = mbuf.set_len(LEN).unwrap();
    frame.fill(0);
    frame[..6].copy_from_slice(&DST);
    frame[12..16].copy_from_slice(&[0x88, 0x08, 0x77, 0x77]);
    let mut burst = Burst::new();
    assert!(burst.push(mbuf).is_ok());
    assert_eq!(w.wire.tx_burst(&mut burst), 1);
    w.send();
    w.poll_at(Nanos(2000));
    assert_eq!(w.rest(), psns(0, SENDS));
    assert_eq!(w.count("rx_pause_ctrl_phy"), 1);
    assert_eq!(
        (w.count("rx_not_roce"), w.count("rx_prio0_packets")),
        (0, 0)
    );
}
