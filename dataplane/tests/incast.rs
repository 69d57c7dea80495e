//! Congestion in real time: four senders to one receiver over a switch of the daemon at 1 Gb/s, by perftest as it comes.
//!
//! The machine may be slow and busy, so what is judged are counters, which say the same at any speed: packets are marked,
//! marks make CNPs, CNPs are handled, the switch pauses nearly nobody, nothing is lost. `scripts/lab-congestion` judges
//! rates, too, over ten seconds.

mod support;

use std::thread::sleep;
use std::time::Duration;

use support::incast::{Incast, Look, Setup, Window};
use support::{PATIENCE, alone, wait_for};

/// Lets it run until so many bytes have come since a settled beginning.
fn run(setup: Setup, bytes: u64) -> (Window, Look) {
    let incast = Incast::start(setup);
    let came = |look: &Look| look.bytes.iter().sum::<u64>();
    let mut first = incast.look();
    let start = came(&first);
    let mut settle = |more| {
        wait_for("bytes", 4 * PATIENCE, || {
            sleep(Duration::from_millis(100));
            let look = incast.look();
            let enough = came(&look) >= start + more;
            if enough {
                first = look;
            }
            enough
        });
        first.clone()
    };
    let settled = settle(bytes / 4);
    let last = settle(bytes);
    let window = Window::between(&settled, &last);
    let (end, daemon) = incast.end();
    assert_eq!(end.lost, 0, "nothing is lost: {end:?}{}", daemon.log());
    (window, end)
}

#[test]
fn marks_make_cnps_that_are_handled_and_nobody_is_paused() {
    let _alone = alone();
    // A second and a half of the link.
    let bytes = 200_000_000;
    let off = Setup {
        control: false,
        ..Setup::default()
    };
    let (without, end) = run(off, bytes / 4);
    assert_eq!((end.cnps, end.handled), (0, 0), "{end:?}");
    assert!(without.pauses > 0, "{without:?}");
    let per_byte = |window: &Window, bytes: u64| window.pauses as f64 / bytes as f64;

    let (with, end) = run(Setup::default(), bytes);
    // A mark makes a CNP at most, and what was sent arrived.
    assert!(end.cnps > 0 && end.marked >= end.seen, "{end:?}");
    assert!(end.seen >= end.cnps, "{end:?}");
    assert_eq!(end.cnps, end.handled + end.ignored, "{end:?}");
    // One on its way to each queue pair whose program was killed in the end.
    assert!(end.ignored <= 4, "{end:?}");
    let kmax = u64::from(Setup::default().marks.1) << 10;
    println!("{with:?} {end:?}");
    assert!(with.depth(0.5) < kmax, "{with:?}");
    let fewer = per_byte(&without, bytes / 4) / per_byte(&with, bytes).max(1e-12);
    assert!(fewer >= 100.0, "{with:?} {without:?}");
}
