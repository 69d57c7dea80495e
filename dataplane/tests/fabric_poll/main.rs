//! The fabric in one process with real mbufs and a time of our own: rates, order, marks, pauses, groups, and that it allocates
//! nothing. EAL starts once per process, so this file is one test whose parts run in order.

mod captures;
mod pauses;
mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use roceline::port::{Eal, EalConfig, Huge, Mempool, MempoolConfig};
use roceline_engine::Nanos;
use roceline_engine::fabric::impair::Random;
use roceline_engine::wire::{PauseFrame, ipv4};

use captures::captures_hear_marks_and_pauses_at_their_times;
use pauses::*;
use world::{MTU, drain, world};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything on to the system allocator; counting has no effect on it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counter any more.
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn fabrics() {
    let config = EalConfig {
        huge: Huge::Never,
        mem_mb: 160,
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let settings = MempoolConfig {
        count: 24_000,
        ..MempoolConfig::default()
    };
    let pool = Mempool::new(&eal, &settings).unwrap();
    a_late_poll_changes_no_rate_and_no_order(&pool);
    stations_that_obey_lose_nothing_and_the_queue_is_marked(&pool);
    pauses_pass_full_links_in_both_directions(&pool);
    a_pause_is_told_again_however_late_the_poll(&pool);
    without_a_rate_a_nic_that_hears_late_loses_nothing(&pool);
    what_a_storm_discards_does_not_wait_for_room(&pool);
    what_never_fits_is_lost_and_counted_and_holds_nothing_up(&pool);
    the_newest_pauses_come_to_a_nic_that_does_not_read(&pool);
    ports_differ_and_ways_are_written_by_hand(&pool);
    a_switch_pauses_all_at_once_and_goes_by_tags(&pool);
    frames_for_all_go_to_each_once(&pool);
    captures_hear_marks_and_pauses_at_their_times(&pool);
    what_waits_for_room_is_no_work(&pool);
    assert_eq!(pool.available(), 24_000, "all came home");
}

/// Two senders to one receiver, looked at often or seldom: the same bytes in the same time.
fn a_late_poll_changes_no_rate_and_no_order(pool: &Arc<Mempool>) {
    for step in [1_000, 33_000, 170_000] {
        let fabric = "[fabric]\nrate = \"1Gb/s\"\nswitch = [{ name = \"s\" }]\n";
        let mut world = world(pool, &["s", "s", "s"], fabric);
        let (mut next, mut seen, mut bytes) = ([0u32; 3], [0u32; 3], 0u64);
        let allocated = ALLOCATIONS.get();
        let mut began = None;
        while bytes < 5_000_000 {
            for from in [1, 2] {
                // As long as there is room on the link; each has half of what leaves.
                while next[from] - seen[from] < 40 {
                    next[from] += match world.send(from, 0, 1_000, next[from], 8) {
                        0 => break,
                        sent => sent,
                    };
                }
            }
            world.pass(Nanos(step));
            while let Some(mbuf) = world.receive(0) {
                let frame = mbuf.data();
                let from = usize::from(frame[44]);
                let number = u32::from_be_bytes(frame[40..44].try_into().unwrap());
                assert_eq!(number, seen[from], "order");
                seen[from] += 1;
                bytes += frame.len() as u64 + 24;
            }
            if began.is_none() && bytes > 200_000 {
                began = Some((world.now, bytes));
            }
        }
        let (start, first) = began.unwrap();
        let rate = (bytes - first) as f64 * 8e9 / (world.now - start).0 as f64;
        // What one look brings is not cut off at the ends.
        let slack = 2.0 * step as f64 / (world.now - start).0 as f64 + 0.001;
        assert!((rate / 1e9 - 1.0).abs() < slack, "step {step}: {rate}");
        assert_eq!(ALLOCATIONS.get(), allocated, "step {step}");
        let share = seen[1] as f64 / (seen[1] + seen[2]) as f64;
        assert!((0.45..0.55).contains(&share), "{seen:?}");
        assert_eq!(world.queue("roce0").dropped, 0);
        drain(world);
    }
}

fn stations_that_obey_lose_nothing_and_the_queue_is_marked(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nrate = \"1Gb/s\"\nkmin = \"50KiB\"\nkmax = \"100KiB\"\nbuffer = \"1MiB\"\n\
                  switch = [{ name = \"s\" }]\n";
    let mut world = world(pool, &["s"; 5], fabric);
    let mut random = Random::new(7);
    let mut paused = [false; 5];
    let (mut sent, mut got, mut marked, mut pauses) = (0u64, 0u64, 0u64, 0);
    let allocated = ALLOCATIONS.get();
    // In the end all that was sent arrives.
    for round in 0..7_000 {
        for (from, &paused) in paused.iter().enumerate().skip(1) {
            if round < 6_000 && !paused {
                sent += u64::from(world.send(from, 0, MTU + 62, 0, 32));
            }
        }
        world.pass(Nanos(random.below(100_000)));
        for (nic, paused) in paused.iter_mut().enumerate() {
            while let Some(mbuf) = world.receive(nic) {
                let frame = mbuf.data();
                if let Some(pause) = PauseFrame::parse(frame, &[2; 6]) {
                    let PauseFrame::Priority { enabled, quanta } = pause else {
                        panic!("{pause:?}");
                    };
                    assert_eq!(enabled, 1 << 3);
                    *paused = quanta[3] > 0;
                    pauses += 1;
                } else {
                    got += 1;
                    marked += u64::from(frame[15] & 3 == 3);
                    let mut again = [0; 20];
                    again.copy_from_slice(&frame[14..34]);
                    ipv4::set_checksum(&mut again);
                    assert_eq!(again[..], frame[14..34], "the checksum is right");
                }
            }
        }
    }
    assert_eq!(ALLOCATIONS.get(), allocated);
    let queue = world.queue("roce0");
    assert!(
        pauses > 8 && marked > 0 && marked < got,
        "{pauses} {marked} {got} {queue:?}"
    );
    assert_eq!(queue.ce_marked, marked);
    for peer in ["roce1", "roce2", "roce3", "roce4"] {
        let queue = world.queue(peer);
        assert_eq!((queue.rx_dropped, queue.dropped), (0, 0), "{queue:?}");
        assert!(queue.max_headroom > 0, "{queue:?}");
    }
    assert!(sent == got && got > 5_000, "{sent} {got}");
}

fn ports_differ_and_ways_are_written_by_hand(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nrate = \"10Gb/s\"\n\
                  [[fabric.switch]]\nname = \"a\"\nuplinks = [\"b\", \"c\"]\n\
                  port = [{ to = \"roce0\", rate = \"100Mb/s\", delay = \"50us\" }]\n\
                  route = [{ to = \"roce1\", via = \"c\" }]\n\
                  [[fabric.switch]]\nname = [\"b\", \"c\"]\nuplinks = \"d\"\n\
                  [[fabric.switch]]\nname = \"d\"\n";
    let mut world = world(pool, &["a", "d"], fabric);
    world.pass(Nanos(1_000));
    // 125 bytes with all around them: 10 us on the slow link, 0.1 us on the others.
    assert_eq!(world.send(0, 1, 101, 0, 20), 20);
    let begin = world.now;
    let mut last = begin;
    let mut seen = 0;
    while seen < 20 {
        world.pass(Nanos(1_000));
        while let Some(mbuf) = world.receive(1) {
            assert_eq!(mbuf.data()[43], seen, "all took the same way");
            seen += 1;
            last = world.now;
        }
        assert!(world.now < begin + Nanos::from_millis(10), "{seen}");
    }
    let took = (last - begin).0;
    assert!((249_000..=253_000).contains(&took), "{took}");
    let sent: Vec<u64> = ["b", "c"].map(|s| world.queue(s).tx_frames).to_vec();
    assert_eq!(sent, [0, 20]);
}

fn frames_for_all_go_to_each_once(pool: &Arc<Mempool>) {
    let fabric = "[[fabric.switch]]\nname = [\"a\", \"b\"]\nuplinks = [\"c\", \"d\"]\n\
                  [[fabric.switch]]\nname = [\"c\", \"d\"]\n";
    let mut world = world(pool, &["a", "a", "b", "b"], fabric);
    // To nobody known: 02:00:00:00:00:63.
    assert_eq!(world.send(1, 99, 100, 0, 10), 10);
    for _ in 0..5 {
        world.pass(Nanos(1_000));
    }
    for (nic, expected) in [(0, 10), (1, 0), (2, 10), (3, 10)] {
        let mut got = 0;
        while world.receive(nic).is_some() {
            got += 1;
        }
        assert_eq!(got, expected, "roce{nic}");
    }
}

/// A buffer and a headroom that are too small for the frame: it would wait for ever.
fn what_never_fits_is_lost_and_counted_and_holds_nothing_up(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nbuffer = \"16KiB\"\nheadroom = \"1KiB\"\nswitch = [{ name = \"s\" }]\n";
    let mut world = world(pool, &["s", "s"], fabric);
    assert_eq!(world.send(1, 0, MTU, 0, 3), 3);
    assert_eq!(world.send(1, 0, 100, 0, 1), 1);
    world.pass(Nanos(1_000));
    world.pass(Nanos(1_000));
    assert_eq!(world.take(0), 1);
    assert_eq!(world.queue("roce1").rx_dropped, 3);
    drain(world);
}

/// A slow port behind a NIC whose link has no rate: frames wait on that link. Looking again whether one fits is nothing done, or the
/// thread would never rest, and the time at which one can is known.
fn what_waits_for_room_is_no_work(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nbuffer = \"32KiB\"\nheadroom = \"64KiB\"\n\
                  switch = [{ name = \"s\", port = [{ to = \"roce0\", rate = \"10Mb/s\" }] }]\n";
    let mut world = world(pool, &["s", "s"], fabric);
    // It does not obey, so the switch fills, and then the link.
    for _ in 0..40 {
        world.send(1, 0, MTU, 0, 32);
        world.pass(Nanos(1_000));
    }
    assert!(world.queue("roce0").depth > 0);
    let (mut idle, mut busy) = (0, 0);
    for _ in 0..200 {
        let now = world.now;
        let next = world.fabric.next_deadline().expect("something waits");
        assert!(next >= now, "{next:?} is before {now:?}");
        if next > now + Nanos(2_000) {
            // Long before that. Room that came is filled at one such look.
            world.now = now + Nanos(1_000);
            match world.fabric.poll(world.now, &mut world.taps) {
                0 => idle += 1,
                _ => busy += 1,
            }
        }
        world.now = next;
        world.fabric.poll(world.now, &mut world.taps);
        world.take(0);
        world.take(1);
    }
    assert!(idle > 50 && busy < 10, "{idle} {busy}");
    drain(world);
}
