//! Both halves by hand-computed steps, against models, and joined by a link.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::congestion::priority::{PriorityMap, Trust};
use crate::wire::PauseFrame;
use crate::wire::pause::PRIORITIES;

const GBIT: u64 = 1_000_000_000;
const NO_WATCHDOG: Watchdog = Watchdog {
    rx_limit: Nanos::ZERO,
    rx_restore: Nanos::from_millis(200),
    rx_action: StormAction::Forward,
    tx_limit: Nanos::ZERO,
};

fn settings(mode: PauseMode, priorities: u8) -> PfcSettings {
    PfcSettings {
        mode,
        priorities,
        watchdog: NO_WATCHDOG,
        ..PfcSettings::default()
    }
}

fn pause(priorities: u8, quanta: u16) -> PauseFrame {
    PauseFrame::Priority {
        enabled: priorities,
        quanta: core::array::from_fn(|p| if priorities >> p & 1 == 1 { quanta } else { 0 }),
    }
}

/// 512 bit times: 51.2 ns at 10 Gb/s, 5.12 at 100, 1.28 at 400.
#[test]
fn a_quantum_is_512_bit_times_of_the_link() {
    assert_eq!(quanta_time(65535, 10 * GBIT), Nanos(3_355_392));
    assert_eq!(quanta_time(65535, 100 * GBIT), Nanos(335_540));
    assert_eq!(quanta_time(65535, 400 * GBIT), Nanos(83_885));
    assert_eq!(quanta_time(65535, 1), Nanos(65535 * 512 * GBIT));
    assert_eq!(quanta_time(1, 100 * GBIT), Nanos(6));
    assert_eq!(quanta_time(0, 100 * GBIT), Nanos::ZERO);
}

/// 100 m at 100 Gb/s: 12.5 kB of cable, 3840 B of response, two frames.
#[test]
fn headroom_is_frames_response_and_cable() {
    assert_eq!(headroom(100 * GBIT, 4200, 100), 2 * 4242 + 3840 + 12_500);
    assert_eq!(headroom(10 * GBIT, 1500, 0), 2 * 1542 + 3840);
    // Each metre is 1.25 bytes for each Gb/s.
    assert_eq!(
        headroom(400 * GBIT, 1500, 3) - headroom(400 * GBIT, 1500, 0),
        1500
    );
}

#[test]
fn a_pause_ends_after_its_time_or_by_zero() {
    let mut r = PauseReceiver::new(&settings(PauseMode::Pfc, 0b1000), 100 * GBIT);
    assert_eq!((r.advance(Nanos(5)), r.next_deadline()), (0, None));
    // Of priorities 2, 3 and 4 only 3 is lossless.
    r.on_frame(&pause(0b1_1100, 1000), Nanos(100));
    assert_eq!(r.paused(), 0b1000);
    assert_eq!(r.next_deadline(), Some(Nanos(5220)));
    assert_eq!(r.advance(Nanos(5219)), 0b1000);
    assert_eq!(r.counts(3, Nanos(1100)).duration, Nanos(1000));
    assert_eq!(r.advance(Nanos(5220)), 0);
    r.on_frame(&pause(0b1000, 65535), Nanos(10_000));
    r.on_frame(&pause(0b1000, 0), Nanos(10_700));
    assert_eq!((r.paused(), r.next_deadline()), (0, None));
    let expected = PauseCounts {
        frames: 3,
        duration: Nanos(5120 + 700),
        transitions: 2,
    };
    assert_eq!(r.counts(3, Nanos(99_999)), expected);
    assert_eq!(r.counts(2, Nanos(99_999)), PauseCounts::default());
    // A resume of what is not paused is counted as a frame and nothing else.
    r.on_frame(&pause(0b1000, 0), Nanos(20_000));
    assert_eq!(r.counts(3, Nanos(99_999)).transitions, 2);
}

#[test]
fn a_new_time_replaces_the_old_one_even_a_shorter() {
    let mut r = PauseReceiver::new(&settings(PauseMode::Pfc, 1), 100 * GBIT);
    r.on_frame(&pause(1, 65535), Nanos(0));
    r.on_frame(&pause(1, 100), Nanos(1000));
    assert_eq!(r.next_deadline(), Some(Nanos(1512)));
    assert_eq!(r.advance(Nanos(2000)), 0);
    assert_eq!(r.counts(0, Nanos(2000)).duration, Nanos(1512));
}

#[test]
fn each_mode_has_its_own_frames() {
    let global = PauseFrame::Global { quanta: 1000 };
    let mut pfc = PauseReceiver::new(&settings(PauseMode::Pfc, 0xff), 100 * GBIT);
    pfc.on_frame(&global, Nanos(0));
    assert_eq!((pfc.paused(), pfc.unexpected()), (0, 1));
    let mut r = PauseReceiver::new(&settings(PauseMode::Global, 1), 100 * GBIT);
    r.on_frame(&pause(1, 1000), Nanos(0));
    assert_eq!((r.paused(), r.unexpected()), (0, 1));
    r.on_frame(&global, Nanos(0));
    assert_eq!(r.paused(), 0xff);
    assert_eq!(r.advance(Nanos(5120)), 0);
    let expected = PauseCounts {
        frames: 1,
        duration: Nanos(5120),
        transitions: 1,
    };
    assert_eq!(r.global_counts(Nanos(9000)), expected);
    assert_eq!(r.counts(0, Nanos(9000)), PauseCounts::default());
    let mut off = PauseReceiver::new(&PfcSettings::default(), 100 * GBIT);
    off.on_frame(&pause(8, 1000), Nanos(0));
    off.on_frame(&global, Nanos(0));
    assert_eq!((off.paused(), off.unexpected()), (0, 2));
}

#[test]
fn a_pause_without_a_break_is_a_storm_until_there_is_silence() {
    for action in [StormAction::Forward, StormAction::Drop] {
        let mut set = settings(PauseMode::Pfc, 0b1000);
        set.watchdog.rx_limit = Nanos::from_millis(200);
        set.watchdog.rx_action = action;
        let mut r = PauseReceiver::new(&set, 10 * GBIT);
        let ms = Nanos::from_millis;
        for at in 0..=250 {
            r.on_frame(&pause(0b1000, 65535), ms(at));
            assert_eq!(r.paused() != 0, at < 200, "{at} ms");
            assert_eq!(r.in_storm() != 0, at >= 200, "{at} ms");
            let dropped = if action == StormAction::Drop {
                0b1000
            } else {
                0
            };
            assert_eq!(r.discarding(), if at >= 200 { dropped } else { 0 });
        }
        assert_eq!((r.storms()[3], r.counts(3, ms(250)).duration), (1, ms(200)));
        // The last one came at 250.
        assert_eq!(r.next_deadline(), Some(ms(450)));
        r.advance(ms(449));
        assert_eq!(r.in_storm(), 0b1000);
        r.advance(ms(450));
        assert_eq!((r.in_storm(), r.discarding()), (0, 0));
        r.on_frame(&pause(0b1000, 65535), ms(460));
        assert_eq!(r.paused(), 0b1000);
    }
}

#[test]
fn a_break_makes_it_no_storm() {
    let mut set = settings(PauseMode::Pfc, 0b1000);
    set.watchdog.rx_limit = Nanos::from_millis(200);
    let mut r = PauseReceiver::new(&set, 10 * GBIT);
    for at in 0..400 {
        let quanta = if at == 150 { 0 } else { 65535 };
        r.on_frame(&pause(0b1000, quanta), Nanos::from_millis(at));
        assert_eq!(r.storms()[3], u64::from(at >= 351), "{at} ms");
    }
}

const LIMITS: Threshold = Threshold {
    xoff: 1000,
    xon: 500,
};

#[test]
fn xoff_and_xon_have_a_gap_between_them() {
    let mut s = PauseSender::new(&settings(PauseMode::Pfc, 0b1010), 100 * GBIT);
    assert_eq!((s.slot(3), s.slot(1), s.slot(2)), (Some(3), Some(1), None));
    s.level(3, 1000, LIMITS, Nanos(0));
    assert_eq!((s.poll(Nanos(0)), s.next_deadline()), (None, None));
    s.level(3, 1001, LIMITS, Nanos(10));
    assert_eq!(s.next_deadline(), Some(Nanos::ZERO));
    assert_eq!(s.poll(Nanos(10)), Some(pause(0b1000, 65535)));
    assert_eq!(s.poll(Nanos(10)), None);
    s.level(3, 501, LIMITS, Nanos(20));
    assert_eq!((s.poll(Nanos(20)), s.stopped()), (None, 0b1000));
    // Lossy priorities never stop.
    s.level(2, 1_000_000, LIMITS, Nanos(20));
    assert_eq!(s.poll(Nanos(20)), None);
    s.level(3, 500, LIMITS, Nanos(30));
    assert_eq!(s.poll(Nanos(30)), Some(pause(0b1000, 0)));
    assert_eq!((s.poll(Nanos(30)), s.next_deadline()), (None, None));
    let expected = PauseCounts {
        frames: 2,
        duration: Nanos(20),
        transitions: 1,
    };
    assert_eq!(s.counts(3, Nanos(99)), expected);
}

#[test]
fn a_pause_is_asked_for_again_before_it_ends() {
    let mut s = PauseSender::new(&settings(PauseMode::Pfc, 0b1010), 100 * GBIT);
    s.level(3, 2000, LIMITS, Nanos(0));
    assert!(s.poll(Nanos(0)).is_some());
    // 65535 quanta are 335.54 us.
    assert_eq!(s.next_deadline(), Some(Nanos(167_770)));
    assert_eq!(s.poll(Nanos(167_769)), None);
    // Another priority stops on the way: one frame for both.
    s.level(1, 2000, LIMITS, Nanos(100_000));
    assert_eq!(s.poll(Nanos(100_000)), Some(pause(0b1010, 65535)));
    assert_eq!(s.next_deadline(), Some(Nanos(267_770)));
    s.level(1, 0, LIMITS, Nanos(200_000));
    let mixed = s.poll(Nanos(200_000)).unwrap();
    let mut quanta = [0; PRIORITIES];
    quanta[3] = 65535;
    assert_eq!(
        mixed,
        PauseFrame::Priority {
            enabled: 0b1010,
            quanta
        }
    );
    assert_eq!(s.counts(3, Nanos(200_000)).duration, Nanos(200_000));
}

#[test]
fn a_global_pause_is_one_for_all() {
    let mut s = PauseSender::new(&settings(PauseMode::Global, 0), 100 * GBIT);
    assert_eq!((s.slot(3), s.slot(7)), (Some(0), Some(0)));
    s.level(0, 2000, LIMITS, Nanos(0));
    assert_eq!(s.poll(Nanos(0)), Some(PauseFrame::Global { quanta: 65535 }));
    s.level(0, 0, LIMITS, Nanos(7));
    assert_eq!(s.poll(Nanos(7)), Some(PauseFrame::Global { quanta: 0 }));
    assert_eq!(s.global_counts(Nanos(9)).duration, Nanos(7));
    assert_eq!(s.counts(0, Nanos(9)), PauseCounts::default());
    let mut off = PauseSender::new(&PfcSettings::default(), 100 * GBIT);
    assert_eq!(off.slot(3), None);
    off.level(3, 2000, LIMITS, Nanos(0));
    assert_eq!(off.poll(Nanos(0)), None);
}

#[test]
fn a_pause_of_ours_that_does_not_end_is_given_up() {
    let mut set = settings(PauseMode::Pfc, 8);
    set.watchdog.tx_limit = Nanos::from_millis(100);
    let mut s = PauseSender::new(&set, 100 * GBIT);
    s.level(3, 2000, LIMITS, Nanos(0));
    let mut now = Nanos(0);
    let mut last = None;
    while let Some(next) = s.next_deadline() {
        now = now.max(next);
        last = s.poll(now).or(last);
        assert_eq!(s.storms().0 > 0, now >= Nanos::from_millis(85));
    }
    assert_eq!(now, Nanos::from_millis(100));
    assert_eq!(last, Some(pause(8, 0)));
    assert_eq!((s.storms(), s.stopped(), s.in_storm()), ((1, 1), 0, 8));
    // Nothing more until it has drained; then all is as before.
    s.level(3, 3000, LIMITS, Nanos::from_millis(120));
    assert_eq!(s.poll(Nanos::from_millis(120)), None);
    s.level(3, 0, LIMITS, Nanos::from_millis(130));
    assert_eq!((s.poll(Nanos::from_millis(130)), s.in_storm()), (None, 0));
    assert_eq!(s.counts(3, now).duration, Nanos::from_millis(100));
    s.level(3, 3000, LIMITS, Nanos::from_millis(140));
    assert_eq!(s.poll(Nanos::from_millis(140)), Some(pause(8, 65535)));
}

#[test]
fn other_settings_let_go_what_they_no_longer_pause() {
    let mut s = PauseSender::new(&settings(PauseMode::Pfc, 0b1010), 100 * GBIT);
    s.level(3, 2000, LIMITS, Nanos(0));
    s.level(1, 2000, LIMITS, Nanos(0));
    s.poll(Nanos(0));
    let last = s.configure(&settings(PauseMode::Pfc, 0b1000), 100 * GBIT, Nanos(5));
    assert_eq!((last, s.stopped()), (Some(pause(0b10, 0)), 0b1000));
    let last = s.configure(&settings(PauseMode::Global, 0), 100 * GBIT, Nanos(6));
    assert_eq!((last, s.stopped()), (Some(pause(0b1000, 0)), 0));
    assert_eq!(s.configure(&settings(PauseMode::Off, 0), 1, Nanos(7)), None);

    let mut r = PauseReceiver::new(&settings(PauseMode::Pfc, 0b1010), 100 * GBIT);
    r.on_frame(&pause(0b1010, 65535), Nanos(0));
    r.configure(&settings(PauseMode::Pfc, 0b1000), 100 * GBIT, Nanos(5));
    assert_eq!(
        (r.paused(), r.counts(1, Nanos(9)).duration),
        (0b1000, Nanos(5))
    );
    r.configure(&PfcSettings::default(), 100 * GBIT, Nanos(7));
    assert_eq!((r.paused(), r.counts(3, Nanos(9)).duration), (0, Nanos(7)));
}

#[test]
fn settings_that_do_not_go_together_are_named() {
    let good = settings(PauseMode::Pfc, 0b1000);
    assert_eq!(good.validate(100 * GBIT, 4200), Ok(()));
    let needed = headroom(100 * GBIT, 4200, 5);
    assert_eq!(
        good.threshold(100 * GBIT, 4200),
        Ok(Threshold {
            xoff: (256 << 10) - needed - 4242,
            xon: (256 << 10) - needed - 3 * 4242,
        })
    );
    let told = |set: PfcSettings| set.validate(100 * GBIT, 4200).unwrap_err().to_string();
    let with = |change: fn(&mut PfcSettings)| {
        let mut set = good;
        change(&mut set);
        told(set)
    };
    assert!(with(|s| s.priorities = 0).contains("no priority"));
    assert!(with(|s| s.quanta = 0).contains("1 to 65535"));
    assert!(with(|s| s.xoff_bytes = Some(256 << 10)).contains("lower xoff_bytes"));
    assert!(with(|s| s.buffer_bytes = 4096).contains("too small for 1"));
    assert!(with(|s| s.cable_m = 100_000).contains("too small"));
    assert!(
        with(|s| {
            s.xoff_bytes = Some(9000);
            s.xon_bytes = Some(9001);
        })
        .contains("xon_bytes = 9001")
    );
    assert!(with(|s| s.watchdog.rx_limit = Nanos(1)).contains("rx_limit = 0"));
    assert!(with(|s| s.watchdog.rx_restore = Nanos::ZERO).contains("rx_restore"));
    let off = PfcSettings {
        quanta: 0,
        ..PfcSettings::default()
    };
    assert_eq!(off.validate(100 * GBIT, 4200), Ok(()));
    assert_eq!(off.map, PriorityMap::new(Trust::Dscp));
}

#[test]
fn few_busy_queues_get_much_of_a_shared_buffer() {
    let t = |free, alpha| Threshold::dynamic(free, alpha, 10);
    assert_eq!(
        t(1000, 0),
        Threshold {
            xoff: 1000,
            xon: 990
        }
    );
    assert_eq!(t(1000, -3).xoff, 125);
    assert_eq!(t(1000, 3).xoff, 8000);
    assert_eq!((t(5, 0).xon, t(1000, -100).xoff), (0, 0));
    // Queues that each take their threshold leave 1 / (1 + n alpha) free.
    let (buffer, n) = (1_000_000u64, 4);
    let mut used = 0;
    for _ in 0..200 {
        used = n * (t(buffer - used, -1).xoff + used / n) / 2;
    }
    assert!((buffer - used).abs_diff(buffer / 3) < 10);
}

/// Frames at times, and looks between them.
fn story() -> impl Strategy<Value = Vec<(u64, Option<(u8, u16)>)>> {
    let frame = (any::<u8>(), prop_oneof![Just(0u16), any::<u16>()]);
    prop::collection::vec((0..400_000u64, prop::option::weighted(0.7, frame)), 1..60)
}

proptest! {
    /// Whoever looks at every microsecond and whoever looks only when a frame comes see the same.
    #[test]
    fn time_that_nobody_looked_at_is_made_up_for(story in story(), limit_us in prop_oneof![Just(0u64), 1..1000u64]) {
        let mut set = settings(PauseMode::Pfc, 0b0101_1010);
        set.watchdog.rx_limit = Nanos::from_micros(limit_us);
        set.watchdog.rx_restore = Nanos::from_micros(300);
        let mut lazy = PauseReceiver::new(&set, 100 * GBIT);
        let mut eager = lazy.clone();
        let mut now = Nanos(0);
        for (gap, frame) in story {
            let next = now + Nanos(gap);
            while now < next {
                now = (now + Nanos(1000)).min(next);
                eager.advance(now);
            }
            if let Some((mask, quanta)) = frame {
                lazy.on_frame(&pause(mask, quanta), now);
                eager.on_frame(&pause(mask, quanta), now);
            }
        }
        prop_assert_eq!(lazy.advance(now), eager.advance(now));
        prop_assert_eq!(lazy.in_storm(), eager.in_storm());
        prop_assert_eq!(lazy.storms(), eager.storms());
        prop_assert_eq!(lazy.next_deadline(), eager.next_deadline());
        for p in 0..PRIORITIES {
            prop_assert_eq!(lazy.counts(p, now), eager.counts(p, now));
        }
    }

    /// Against the rule itself: paused is who was told last for a time that has not passed.
    #[test]
    fn paused_is_who_was_told_so(story in story()) {
        let enabled = 0b0101_1010;
        let mut r = PauseReceiver::new(&settings(PauseMode::Pfc, enabled), 100 * GBIT);
        let mut model = [0u64; PRIORITIES];
        let mut paused_ns = [0u64; PRIORITIES];
        let mut now = 0;
        for (gap, frame) in story {
            for p in 0..PRIORITIES {
                paused_ns[p] += model[p].saturating_sub(now).min(gap);
            }
            now += gap;
            if let Some((mask, quanta)) = frame {
                r.on_frame(&pause(mask, quanta), Nanos(now));
                for p in (0..PRIORITIES).filter(|p| (mask & enabled) >> p & 1 == 1) {
                    model[p] = now + (u64::from(quanta) * 512).div_ceil(100);
                }
            }
            let mask = r.advance(Nanos(now));
            let soonest = model.iter().copied().filter(|until| *until > now).min();
            prop_assert_eq!(r.next_deadline(), soonest.map(Nanos));
            for p in 0..PRIORITIES {
                prop_assert_eq!(mask >> p & 1 == 1, model[p] > now, "priority {} at {}", p, now);
                prop_assert_eq!(r.counts(p, Nanos(now)).duration, Nanos(paused_ns[p]));
            }
        }
    }

    /// A link with its delay between a sender that always has something and a receiver that drains as it likes: the buffer never
    /// holds more than its share, and the sender stays paused as long as the receiver is above XON.
    #[test]
    fn headroom_holds_what_is_under_way(
        rate_gbit in prop_oneof![Just(10u64), Just(100), Just(400)],
        mtu in 256u32..4200,
        cable_m in 0u32..300,
        quanta in prop_oneof![Just(65535u16), 400..2000u16],
        drains in prop::collection::vec((1..200_000u64, 0..3u64), 1..20),
    ) {
        let rate = rate_gbit * GBIT;
        let set = PfcSettings { buffer_bytes: 200_000, cable_m, quanta, ..settings(PauseMode::Pfc, 8) };
        let threshold = set.threshold(rate, mtu).unwrap();
        let delay = u64::from(cable_m) * 5;
        let frame = u64::from(mtu) + FRAME_OVERHEAD;
        let frame_ns = (frame * 8).div_ceil(rate_gbit);
        let (mut sender, mut receiver) = (PauseSender::new(&set, rate), PauseReceiver::new(&set, rate));
        // Frames by the time at which they have arrived; pause frames by the time at which they are obeyed: behind one of the receiver's
        // own frames, the cable, and the response time.
        let (mut data, mut pauses) = (VecDeque::new(), VecDeque::new());
        let response = frame_ns + delay + RESPONSE_BYTES * 8 / rate_gbit;
        let (mut queue, mut free_at, mut drained) = (0u64, 0u64, 0u64);
        let (mut now, mut stopped_since) = (0u64, None);
        let mut changes = Vec::new();
        let mut at = 0;
        for (time, speed) in drains {
            changes.push((at, speed));
            at += time;
        }
        while now < at {
            let speed = changes.iter().rev().find(|(from, _)| *from <= now).map_or(0, |c| c.1);
            let step = 50;
            now += step;
            while pauses.front().is_some_and(|(when, _)| *when <= now) {
                let (when, frame) = pauses.pop_front().unwrap();
                receiver.on_frame(&frame, Nanos(when));
            }
            receiver.advance(Nanos(now));
            if receiver.paused() == 0 && free_at <= now {
                free_at = free_at.max(now - step) + frame_ns;
                data.push_back(free_at + delay);
            }
            while data.front().is_some_and(|when| *when <= now) {
                data.pop_front();
                queue += frame;
            }
            // Half of the link's rate, all of it, or nothing.
            drained += step * rate_gbit * speed / 16;
            while drained >= frame && queue > 0 {
                drained -= frame;
                queue -= frame;
            }
            if queue == 0 {
                drained = 0;
            }
            sender.level(3, queue, threshold, Nanos(now));
            while let Some(frame) = sender.poll(Nanos(now)) {
                pauses.push_back((now + response, frame));
            }
            // This clock's step is coarse; what comes in two of them is no fault.
            let slack = 2 * step * rate_gbit / 8;
            prop_assert!(queue <= u64::from(set.buffer_bytes) + slack, "{} bytes at {}", queue, now);
            stopped_since = match (sender.stopped() != 0, stopped_since) {
                (true, since) => since.or(Some(now)),
                (false, _) => None,
            };
            if stopped_since.is_some_and(|since| now > since + response + 2 * step) {
                prop_assert_eq!(receiver.paused(), 8, "no pause at {}", now);
            }
        }
    }
}
