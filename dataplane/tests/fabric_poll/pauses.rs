//! Pauses, of switches and of NICs.

use std::sync::Arc;

use roceline::port::Mempool;
use roceline_engine::Nanos;
use roceline_engine::wire::PauseFrame;

use super::world::{MTU, drain, stop, world};

/// Nobody reads, so all links are full; a NIC is told to stop all the same, and a switch is.
pub fn pauses_pass_full_links_in_both_directions(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nrate = \"1Gb/s\"\nbuffer = \"256KiB\"\nswitch = [{ name = \"s\" }]\n";
    let mut world = world(pool, &["s", "s"], fabric);
    let mut told = Vec::new();
    // Until the link to each is full, then the switch, and then it pauses both.
    for _ in 0..20_000 {
        for from in [0, 1] {
            world.send(from, 1 - from as u8, MTU, 0, 8);
        }
        world.pass(Nanos(10_000));
        told.extend(world.told(0));
        if !told.is_empty() {
            break;
        }
    }
    assert_eq!(told[..1], [stop(3, u16::MAX)], "{:?}", world.queue("roce0"));
    assert!(world.queue("roce0").depth > 0 && world.queue("roce1").depth > 0);
    // Behind what stands on its link for a millisecond and more.
    while world.send(1, 0, MTU, 0, 8) > 0 {}
    world.pause(1, &stop(3, u16::MAX));
    world.pass(Nanos(50_000));
    assert_eq!(world.queue("roce1").pause_rx.frames, 1);
    // Let go, and let all arrive.
    world.pause(1, &stop(3, 0));
    drain(world);
}

/// What only time does happens in its turn: a switch that pauses tells it again before the pause is over, by its own time, and
/// the station hears of it before it looks at the clock.
pub fn a_pause_is_told_again_however_late_the_poll(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nrate = \"10Gb/s\"\nbuffer = \"64KiB\"\nquanta = 1000\nwatchdog_tx_limit = \"0\"\n\
                  [[fabric.switch]]\nname = \"a\"\nuplinks = \"b\"\n[[fabric.switch]]\nname = \"b\"\n";
    let mut world = world(pool, &["a", "b"], fabric);
    // NIC 1 lets nothing through for 3.3 ms at a time, so b pauses a, and a pauses NIC 0.
    let (mut sent, mut paused) = (0, false);
    for _ in 0..60 {
        world.pause(1, &stop(3, u16::MAX));
        if !paused {
            sent += world.send(0, 1, MTU, 0, 32);
        }
        // 1000 quanta are 51.2 us.
        world.pass(Nanos(500_000));
        if let Some(last) = world.told(0).last() {
            paused = *last != stop(3, 0);
        }
    }
    assert!(paused);
    let cable = world.queue("b");
    assert_eq!(cable.pause_rx.transitions, 0, "{cable:?}");
    let nic = world.queue("roce0");
    assert!(
        nic.pause_tx.frames > 500 && nic.pause_tx.transitions == 0,
        "{nic:?}"
    );
    for peer in ["roce0", "roce1", "a", "b"] {
        let queue = world.queue(peer);
        assert_eq!((queue.rx_dropped, queue.dropped), (0, 0), "{queue:?}");
    }
    world.pause(1, &stop(3, 0));
    let mut got = 0;
    for _ in 0..400 {
        world.pass(Nanos(100_000));
        world.told(0);
        got += world.take(1);
    }
    assert_eq!(got, sent);
    drain(world);
}

/// A NIC that has not heard of a pause yet sends on. Where no line has a rate nothing says that its frames have to be here.
pub fn without_a_rate_a_nic_that_hears_late_loses_nothing(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\ndelay = \"2us\"\nbuffer = \"64KiB\"\nheadroom = \"16KiB\"\nswitch = [{ name = \"s\" }]\n";
    let mut world = world(pool, &["s", "s", "s"], fabric);
    let (mut sent, mut got) = (0, 0);
    for round in 0..3_000 {
        if round < 2_000 {
            sent += world.send(1, 0, MTU, 0, 32) + world.send(2, 0, 100, 0, 32);
        }
        world.pass(Nanos(1_000));
        world.told(1);
        world.told(2);
        // A receiver that takes less than comes.
        if round % 8 == 0 || round >= 2_000 {
            got += world.take(0);
        }
    }
    for peer in ["roce1", "roce2"] {
        let queue = world.queue(peer);
        assert_eq!(queue.rx_dropped, 0, "{queue:?}");
        assert!(queue.pause_tx.frames > 0, "{queue:?}");
    }
    assert!(sent > 2_000 && sent == got, "{sent} {got}");
    drain(world);
}

/// A NIC hangs: it reads nothing and pauses for ever. What is for it stands on the link of another NIC until the watchdog has had
/// enough; then that NIC gets through to others.
pub fn what_a_storm_discards_does_not_wait_for_room(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nbuffer = \"64KiB\"\nheadroom = \"16KiB\"\nwatchdog_rx_limit = \"10ms\"\n\
                  watchdog_rx_action = \"drop\"\nswitch = [{ name = \"s\" }]\n";
    let mut world = world(pool, &["s", "s", "s"], fabric);
    let mut others = 0;
    for round in 0..300 {
        if round % 2 == 0 {
            world.pause(0, &stop(3, u16::MAX));
        }
        world.send(1, 2, 100, 0, 1);
        while world.send(1, 0, MTU, 0, 8) == 8 {}
        world.pass(Nanos(100_000));
        others += world.take(2);
        if round < 80 {
            assert_eq!(world.queue("roce0").dropped_storm, 0);
        }
    }
    let (hung, sender) = (world.queue("roce0"), world.queue("roce1"));
    assert!(hung.dropped_storm > 1_000, "{hung:?}");
    assert_eq!(sender.rx_dropped, 0, "{sender:?}");
    assert!(others > 50, "{others}");
    world.pause(0, &stop(3, 0));
    drain(world);
}

/// Its lane for pauses is full of stops when it is told to go on.
pub fn the_newest_pauses_come_to_a_nic_that_does_not_read(pool: &Arc<Mempool>) {
    // For 3 ms, and for so long that more are told than are kept.
    for rounds in [30, 300] {
        let fabric = "[fabric]\nrate = \"10Gb/s\"\nbuffer = \"64KiB\"\nquanta = 1000\nwatchdog_tx_limit = \"0\"\n\
                      switch = [{ name = \"s\" }]\n";
        let mut world = world(pool, &["s", "s"], fabric);
        for _ in 0..rounds {
            world.pause(1, &stop(3, u16::MAX));
            world.send(0, 1, MTU, 0, 32);
            world.pass(Nanos(100_000));
        }
        world.pause(1, &stop(3, 0));
        for _ in 0..100 {
            world.pass(Nanos(100_000));
            world.take(1);
        }
        let mut told = Vec::new();
        for _ in 0..10 {
            told.extend(world.told(0));
            world.pass(Nanos(1_000));
        }
        assert!(told.len() > 64, "{}", told.len());
        assert_eq!(told.last(), Some(&stop(3, 0)), "after {rounds} rounds");
        let report = world.fabric.report(world.now);
        let no_mbuf: u64 = report.switches[0].ports.iter().map(|p| p.no_mbuf).sum();
        assert_eq!(no_mbuf > 0, rounds == 300, "{no_mbuf}");
        drain(world);
    }
}

pub fn a_switch_pauses_all_at_once_and_goes_by_tags(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nrate = \"1Gb/s\"\nbuffer = \"64KiB\"\npause = \"global\"\ntrust = \"pcp\"\nquanta = 7\n\
                  lossless = [0]\nswitch = [{ name = \"s\" }]\n";
    let mut world = world(pool, &["s", "s", "s"], fabric);
    let mut told = Vec::new();
    // DSCP 26 says nothing where tags are trusted, and there are none.
    for _ in 0..2_000 {
        world.send(1, 0, MTU, 0, 8);
        world.send(2, 0, MTU, 0, 8);
        world.pass(Nanos(10_000));
        told.extend(world.told(1));
        if told.len() > 1 {
            break;
        }
    }
    assert_eq!(told[0], PauseFrame::Global { quanta: 7 });
    let report = world.fabric.report(world.now);
    let port = &report.switches[0].ports[1];
    assert!(port.global_pause_tx.frames > 0, "{port:?}");
    assert_eq!(port.queues[0].priority, 0);
    // And is paused by such a frame.
    while world.take(0) > 0 {}
    world.pause(0, &PauseFrame::Global { quanta: u16::MAX });
    world.pass(Nanos(1_000));
    let before = world.fabric.report(world.now).switches[0].ports[0].clone();
    assert_eq!(before.global_pause_rx.frames, 1);
    world.pass(Nanos(1_000_000));
    let after = world.fabric.report(world.now).switches[0].ports[0].clone();
    assert!(after.queues[0].tx_frames <= before.queues[0].tx_frames + 1);
    world.pause(0, &PauseFrame::Global { quanta: 0 });
    drain(world);
}
