use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::congestion::pfc::PauseMode;
use crate::fabric::impair::Probability;

const GBIT: u64 = 1_000_000_000;

/// `n` ports of 100 Gb/s; port n is the way to destination n.
fn switch<F>(n: u16, change: impl FnOnce(&mut SwitchConfig)) -> Switch<F> {
    let port = PortConfig::new(100 * GBIT, 4200, 10, SwitchConfig::CELL);
    let mut config = SwitchConfig::roce(vec![port; n.into()], 1 << 20);
    change(&mut config);
    let mut switch = Switch::new(&config).unwrap();
    for port in 0..n {
        switch.set_route(port.into(), &[port]).unwrap();
    }
    switch
}

fn info(dst: u32, priority: u8, bytes: u32) -> FrameInfo {
    FrameInfo {
        bytes,
        priority,
        ecn_capable: true,
        dst,
        flow_hash: 0,
    }
}

#[test]
fn frames_leave_in_order_at_the_port_of_their_route() {
    let mut s = switch(3, |_| {});
    for n in 0..4 {
        assert_eq!(s.receive(0, &info(2, 3, 1_000), n, Nanos(1)), Ok(2));
    }
    assert_eq!(
        (s.depth(2, 3), s.frames(2, 3), s.depth(1, 3)),
        (4_000, 4, 0)
    );
    assert!(s.has_waiting(2) && !s.has_waiting(1));
    assert_eq!(s.held(0, 3), 4_096, "four cells of 256 for each");
    for n in 0..4 {
        let departure = s.transmit(2, Nanos(2)).unwrap();
        assert_eq!((departure.frame, departure.ingress), (n, 0));
    }
    assert_eq!(s.transmit(2, Nanos(2)), None);
    assert_eq!((s.held(0, 3), s.shared().0), (0, 0));
    assert_eq!(s.queue_counters(2, 3).max_depth, 4_000);
}

#[test]
fn what_has_no_way_comes_back() {
    let mut s = switch(2, |_| {});
    let to = |dst| info(dst, 0, 100);
    assert_eq!(
        s.receive(0, &to(7), 'x', Nanos(0)),
        Err(('x', DropReason::NoRoute))
    );
    assert_eq!(
        s.receive(1, &to(1), 'y', Nanos(0)),
        Err(('y', DropReason::NoRoute))
    );
    assert_eq!(s.ingress_counters(0, 0).unroutable, 1);
    let huge = FrameInfo {
        bytes: MAX_FRAME + 1,
        ..to(1)
    };
    assert_eq!(
        s.receive(0, &huge, 'z', Nanos(0)),
        Err(('z', DropReason::NoRoom))
    );
}

#[test]
fn a_lossy_queue_drops_at_its_dynamic_threshold() {
    let mut s = switch(2, |_| {});
    let mut kept = 0u64;
    while s.receive(0, &info(1, 0, 1_024), (), Nanos(0)).is_ok() {
        kept += 1;
    }
    // Alpha 1: as much as is left free, half of the shared part.
    assert_eq!(kept, (1 << 20) / 2 / 1_024);
    assert_eq!(s.queue_counters(1, 0).dropped, 1);
    assert_eq!(s.next_pause(Nanos(0)), None, "nobody is paused for it");
}

#[test]
fn a_lossless_priority_pauses_its_upstream_and_lets_it_go_on() {
    let mut s = switch(2, |_| {});
    let mut sent = 0;
    let frame = loop {
        s.receive(0, &info(1, 3, 1_024), sent, Nanos(0)).unwrap();
        sent += 1;
        if let Some((port, frame)) = s.next_pause(Nanos(0)) {
            assert_eq!(port, 0);
            break frame;
        }
    };
    assert_eq!(s.next_pause(Nanos(0)), None);
    // Alpha 1/8: an eighth of what is free, a ninth of all.
    assert_eq!(sent, ((1u32 << 20) / 9).div_ceil(1_024));
    let PauseFrame::Priority { enabled, quanta } = frame else {
        panic!("{frame:?}");
    };
    assert_eq!((enabled, quanta[3]), (1 << 3, u16::MAX));
    // It is told again before the pause runs out: 65535 quanta of 5.12 ns.
    let (mut again, mut told) = (Nanos(0), None);
    while told.is_none() {
        again = s.next_deadline().unwrap();
        s.advance(again, |_| panic!("no pause of others"));
        told = s.next_pause(again);
    }
    assert!(again < Nanos(335_539), "{again:?}");
    assert_eq!(told, Some((0, frame)));
    assert_eq!(s.next_pause(again), None);
    // One frame less, and it may go on.
    let now = again + Nanos(1_000);
    s.transmit(1, now).unwrap();
    let mut quanta = [0; PRIORITIES];
    let go = PauseFrame::Priority {
        enabled: 1 << 3,
        quanta,
    };
    assert_eq!(s.next_pause(now), Some((0, go)));
    assert_eq!(s.next_pause(now), None);
    assert_eq!(s.next_deadline(), None);
    let [ours, theirs] = s.pause_counts(0, 3, now);
    assert_eq!((ours.frames, ours.transitions, ours.duration), (3, 1, now));
    assert_eq!(theirs.frames, 0);
    // The station beyond port 1 pauses the switch.
    quanta[3] = 100;
    let stop = PauseFrame::Priority {
        enabled: 1 << 3,
        quanta,
    };
    s.on_pause(1, &stop, now);
    assert_eq!(s.transmit(1, now), None);
    let over = now + Nanos(512);
    let mut ended = Vec::new();
    s.advance(now + Nanos(200), |port| ended.push(port));
    assert!(ended.is_empty());
    assert!(s.next_deadline().unwrap() <= over + Nanos(256));
    while s.next_deadline().is_some_and(|at| at < over + Nanos(300)) {
        s.advance(s.next_deadline().unwrap(), |port| ended.push(port));
    }
    assert_eq!(ended, [1]);
    assert!(s.transmit(1, over + Nanos(300)).is_some());
}

#[test]
fn pause_without_priorities_stops_all() {
    let mut s = switch(2, |config| {
        config.pause = PauseMode::Global;
        config.classes = [ClassConfig::lossless(); PRIORITIES];
        config.buffer_bytes = config.buffer_for(1 << 20);
    });
    for priority in [2, 5] {
        for _ in 0..120 {
            let frame = info(1, priority, 1_024);
            s.receive(0, &frame, (), Nanos(0)).unwrap();
        }
    }
    let stop = PauseFrame::Global { quanta: u16::MAX };
    assert_eq!(s.next_pause(Nanos(0)), Some((0, stop)));
    assert_eq!(s.next_pause(Nanos(0)), None);
    // Priority 5 is as full; as long as either is, the upstream does not go on.
    s.on_pause(1, &PauseFrame::Global { quanta: 1 }, Nanos(0));
    assert_eq!(s.transmit(1, Nanos(1)), None);
    let now = Nanos(10_000);
    let mut told = Vec::new();
    while s.transmit(1, now).is_some() {
        told.extend(s.next_pause(now));
    }
    assert_eq!(told, [(0, PauseFrame::Global { quanta: 0 })]);
    assert_eq!(s.global_pause_counts(0, now)[0].transitions, 1);
}

#[test]
fn marks_depend_on_what_waits_behind_and_only_capable_packets_get_them() {
    let red = Red {
        kmin: 1_000,
        kmax: 3_000,
        pmax: Probability::ratio(1, 2),
    };
    let mut s = switch(2, |config| config.ports[1].red = Some(red));
    let run = |s: &mut Switch<()>, ecn_capable| {
        for _ in 0..6 {
            let frame = FrameInfo {
                ecn_capable,
                ..info(1, 3, 1_000)
            };
            s.receive(0, &frame, (), Nanos(0)).unwrap();
        }
        let marks = std::iter::from_fn(|| s.transmit(1, Nanos(0)).map(|d| d.mark_ce));
        marks.collect::<Vec<_>>()
    };
    let marks = run(&mut s, true);
    assert_eq!(
        marks[..3],
        [true; 3],
        "5000, 4000 and 3000 bytes are behind"
    );
    assert_eq!(marks[4..], [false; 2], "1000 and none");
    assert_eq!(run(&mut s, false), [false; 6]);
    let marked = marks.iter().filter(|m| **m).count() as u64;
    assert_eq!(s.queue_counters(1, 3).ce_marked, marked);
}

#[test]
fn a_lossy_class_may_drop_what_it_cannot_mark() {
    let red = Red {
        kmin: 0,
        kmax: 1_000,
        pmax: Probability::ALWAYS,
    };
    let mut s = switch(2, |config| {
        config.classes[0].red = Some(red);
        config.classes[0].drop_not_ect = true;
        config.ports[1].red = None;
    });
    let other = FrameInfo {
        ecn_capable: false,
        ..info(1, 0, 1_000)
    };
    assert_eq!(s.receive(0, &other, 'a', Nanos(0)), Ok(1));
    assert_eq!(
        s.receive(0, &other, 'b', Nanos(0)),
        Err(('b', DropReason::NotEct))
    );
    assert_eq!(s.receive(0, &info(1, 0, 1_000), 'c', Nanos(0)), Ok(1));
    assert_eq!(s.queue_counters(1, 0).dropped_not_ect, 1);
}

#[test]
fn the_same_seed_marks_the_same_packets() {
    let marks = |seed| {
        let red = Red {
            kmin: 0,
            kmax: 1 << 20,
            pmax: Probability::ALWAYS,
        };
        let mut s = switch(2, |config| {
            config.seed = seed;
            config.ports[1].red = Some(red);
        });
        for _ in 0..100 {
            s.receive(0, &info(1, 3, 1_000), (), Nanos(0)).unwrap();
        }
        std::iter::from_fn(|| s.transmit(1, Nanos(0)).map(|d| d.mark_ce)).collect::<Vec<_>>()
    };
    assert_eq!(marks(1), marks(1));
    assert_ne!(marks(1), marks(2));
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    let check = |change: fn(&mut SwitchConfig)| {
        let port = PortConfig::new(GBIT, 1500, 10, 256);
        let mut config = SwitchConfig::roce(vec![port; 4], 1 << 20);
        change(&mut config);
        Switch::<()>::new(&config).err().map(|e| e.to_string())
    };
    assert_eq!(check(|_| {}), None);
    for (change, says) in [
        ((|c| c.ports.clear()) as fn(&mut SwitchConfig), "ports 0"),
        (|c| c.cell_bytes = 1, "cell_bytes 1"),
        (|c| c.buffer_bytes = 1 << 50, "1 TiB"),
        (|c| c.buffer_bytes = 10_000, "no room to share"),
        (|c| c.classes[0].turn = Turn::Weighted(0), "weight 0"),
        (|c| c.ports[1].bits_per_s = 0, "bits_per_s 0"),
        (|c| c.quanta = 0, "quanta 0"),
        (
            |c| {
                c.ports[1].red = Some(Red {
                    kmin: 2,
                    kmax: 1,
                    pmax: Probability::NEVER,
                })
            },
            "Kmin 2 is above Kmax 1",
        ),
    ] {
        let error = check(change).expect(says);
        assert!(error.contains(says), "{error}");
    }
}

/// What a property test does to a switch.
#[derive(Clone, Debug)]
enum Step {
    Receive {
        port: u16,
        dst: u32,
        priority: u8,
        bytes: u32,
        ecn: bool,
    },
    Transmit(u16),
    Pause {
        port: u16,
        enabled: u8,
        quanta: u16,
    },
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let receive = (0..4u16, 0..5u32, 0..8u8, 0..10_000u32, any::<bool>());
    prop_oneof![
        6 => receive.prop_map(|(port, dst, priority, bytes, ecn)| Step::Receive { port, dst, priority, bytes, ecn }),
        4 => (0..4u16).prop_map(Step::Transmit),
        1 => (0..4u16, any::<u8>(), 0..200u16).prop_map(|(port, enabled, quanta)| Step::Pause { port, enabled, quanta }),
        1 => (0..3_000u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Frames in are frames out, dropped or waiting, and so are bytes; the buffer is never exceeded; each queue is first in
    /// first out; what is paused does not leave; and when all is gone, nothing is held.
    #[test]
    fn nothing_is_lost_or_made(
        steps in prop::collection::vec(step(), 1..400),
        lossless: u8,
        buffer in 100_000u64..400_000,
        reserved in 0u32..2_000,
    ) {
        let mut config = None;
        let mut s: Switch<(usize, u32)> = switch(4, |c| {
            for (p, class) in c.classes.iter_mut().enumerate() {
                class.lossless = lossless >> p & 1 == 1;
                class.reserved_bytes = reserved;
                class.drop_not_ect = p == 2;
                class.red = Some(Red { kmin: 5_000, kmax: 50_000, pmax: Probability::ratio(1, 2) });
            }
            for port in &mut c.ports {
                port.headroom_bytes = 5_000;
            }
            c.buffer_bytes = c.buffer_for(buffer);
            config = Some(c.clone());
        });
        let config = config.unwrap();
        let mut model: BTreeMap<(u16, u8), VecDeque<(usize, u32)>> = BTreeMap::new();
        let mut paused = [[Nanos(0); 8]; 4];
        let (mut now, mut arrived, mut dropped, mut left) = (Nanos(0), 0usize, 0usize, 0usize);
        let mut wheel_ended = 0;
        for step in steps {
            match step {
                Step::Receive { port, dst, priority, bytes, ecn } => {
                    let frame = (arrived, bytes);
                    arrived += 1;
                    let info = FrameInfo { ecn_capable: ecn, ..info(dst, priority, bytes) };
                    match s.receive(port, &info, frame, now) {
                        Ok(to) => {
                            prop_assert_eq!(u32::from(to), dst);
                            model.entry((to, priority)).or_default().push_back(frame);
                        }
                        Err((back, why)) => {
                            prop_assert_eq!(back, frame);
                            let no_way = dst == 4 || dst == u32::from(port);
                            prop_assert_eq!(why == DropReason::NoRoute, no_way);
                            dropped += 1;
                        }
                    }
                }
                Step::Transmit(port) => match s.transmit(port, now) {
                    Some(departure) => {
                        let priority = departure.priority;
                        let first = model.get_mut(&(port, priority)).and_then(VecDeque::pop_front);
                        prop_assert_eq!(first, Some(departure.frame));
                        prop_assert_eq!(departure.bytes, departure.frame.1);
                        prop_assert!(paused[usize::from(port)][usize::from(priority)] <= now);
                        left += 1;
                    }
                    None => {
                        for ((_, priority), queue) in model.range((port, 0)..(port + 1, 0)) {
                            let until = paused[usize::from(port)][usize::from(*priority)];
                            prop_assert!(queue.is_empty() || until > now);
                        }
                    }
                },
                Step::Pause { port, enabled, quanta } => {
                    let frame = PauseFrame::Priority { enabled, quanta: [quanta; 8] };
                    s.on_pause(port, &frame, now);
                    for (p, until) in paused[usize::from(port)].iter_mut().enumerate() {
                        if enabled >> p & 1 == 1 && lossless >> p & 1 == 1 {
                            // 5.12 ns, rounded up for all of them together.
                            *until = now + Nanos((u64::from(quanta) * 512).div_ceil(100));
                        }
                    }
                }
                Step::Pass(ns) => now = now + Nanos(ns),
            }
            s.advance(now, |_| wheel_ended += 1);
            while s.next_pause(now).is_some() {}
            let waiting: usize = model.values().map(VecDeque::len).sum();
            prop_assert_eq!(arrived, dropped + left + waiting);
            let (mut held, mut frames) = (s.shared().0, 0);
            prop_assert!(held <= buffer);
            for port in 0..4 {
                for p in 0..8 {
                    let queue = model.get(&(port, p));
                    let bytes: u64 = queue.into_iter().flatten().map(|f| u64::from(f.1)).sum();
                    prop_assert_eq!(s.depth(port, p), bytes);
                    frames += s.frames(port, p) as usize;
                    held = held.max(s.held(port, p));
                }
            }
            prop_assert_eq!(frames, waiting);
            prop_assert!(held <= config.buffer_bytes);
        }
        now = now + Nanos(1 << 30);
        s.advance(now, |_| {});
        for port in 0..4 {
            while s.transmit(port, now).is_some() {}
            for p in 0..8 {
                let c = s.queue_counters(port, p);
                let i = s.ingress_counters(port, p);
                prop_assert_eq!((s.depth(port, p), s.frames(port, p)), (0, 0));
                prop_assert!(c.ce_marked <= c.tx_frames && u64::from(i.max_headroom) <= 5_000);
            }
        }
        prop_assert_eq!(s.shared().0, 0);
        let sum = |f: fn(&Switch<(usize, u32)>, u16, u8) -> u64| -> u64 {
            (0..4).flat_map(|port| (0..8).map(move |p| (port, p))).map(|(port, p)| f(&s, port, p)).sum()
        };
        let rx = sum(|s, port, p| s.ingress_counters(port, p).rx_frames);
        let tx = sum(|s, port, p| s.queue_counters(port, p).tx_frames);
        let lost = sum(|s, port, p| {
            let (i, c) = (s.ingress_counters(port, p), s.queue_counters(port, p));
            i.dropped + i.unroutable + c.dropped + c.dropped_not_ect
        });
        prop_assert_eq!((rx, lost), (arrived as u64, dropped as u64));
        prop_assert_eq!(tx, rx - lost);
        for port in 0..4 {
            for p in 0..8 {
                prop_assert_eq!(s.held(port, p), 0);
            }
        }
        while let Some((_, frame)) = s.next_pause(now) {
            let ends = matches!(frame, PauseFrame::Priority { quanta: [0, 0, 0, 0, 0, 0, 0, 0], .. });
            prop_assert!(ends);
        }
    }

    /// Stations that obey pauses when they reach them lose nothing in a lossless class, whatever they send and however long
    /// the cable is, with the headroom that [`PortConfig::new`] reckons; and nobody is paused for ever.
    #[test]
    fn a_lossless_class_loses_nothing(
        senders in 1..12u16,
        mtu in 600..9_000u32,
        cable in 0..400u32,
        gbits in prop::sample::select(vec![1u64, 10, 100, 400]),
        shared in 60_000u64..400_000,
        seed: u64,
    ) {
        let rate = gbits * GBIT;
        let mut s: Switch<()> = switch(senders + 1, |c| {
            c.ports = vec![PortConfig::new(rate, mtu, cable, c.cell_bytes); usize::from(senders) + 1];
            c.buffer_bytes = c.buffer_for(shared);
        });
        let mut random = Random::new(seed);
        // All times in picoseconds. A frame is in the switch when its last bit is.
        let flight = u64::from(cable) * 5_000;
        let time = |bytes: u32| u64::from(bytes + 20) * 8_000 / gbits;
        let mut station = vec![(0u64, false); senders.into()];
        let mut wire: BTreeMap<(u64, u64), (u16, Result<u32, bool>)> = BTreeMap::new();
        let (mut serial, mut egress_free, mut sent, mut paused) = (0u64, 0u64, 0u64, 0u64);
        let mut now = 0u64;
        for _ in 0..20_000 {
            let clock = Nanos(now / 1_000);
            for (port, (free, stopped)) in station.iter_mut().enumerate() {
                if !*stopped && *free <= now {
                    let bytes = 64 + random.below(u64::from(mtu) - 46) as u32;
                    *free = now + time(bytes);
                    serial += 1;
                    wire.insert((*free + flight, serial), (port as u16, Ok(bytes)));
                }
            }
            if egress_free <= now {
                if let Some(departure) = s.transmit(senders, clock) {
                    egress_free = now + time(departure.bytes);
                    sent += 1;
                }
            }
            while let Some((port, frame)) = s.next_pause(clock) {
                let PauseFrame::Priority { quanta, .. } = frame else { unreachable!() };
                paused += u64::from(quanta[3] > 0);
                serial += 1;
                // Behind a frame of the switch's that has just begun, and obeyed after 60 quanta.
                let at = now + time(mtu + 18) + time(64) + flight + 60 * 512_000 / gbits;
                wire.insert((at, serial), (port, Err(quanta[3] > 0)));
            }
            let next = station.iter().filter(|(free, stopped)| !stopped && *free > now).map(|(free, _)| *free);
            let first = wire.first_key_value().map(|(key, _)| key.0);
            let egress = (egress_free > now).then_some(egress_free);
            let Some(at) = next.chain(first).chain(egress).min() else {
                prop_assert!(false, "everybody waits for somebody");
                unreachable!();
            };
            now = now.max(at);
            let clock = Nanos(now / 1_000);
            while let Some(entry) = wire.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                match entry.remove() {
                    (port, Ok(bytes)) => {
                        let to = info(senders.into(), 3, bytes);
                        prop_assert_eq!(s.receive(port, &to, (), clock), Ok(senders));
                    }
                    (port, Err(stop)) => station[usize::from(port)].1 = stop,
                }
            }
            s.advance(clock, |_| {});
        }
        prop_assert!(sent > 1_000 && (paused > 0 || senders == 1));
    }
}
