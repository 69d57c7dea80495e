//! The fabric in one process with real mbufs and a time of our own: rates, order, marks, pauses, groups, and that it allocates
//! nothing. EAL starts once per process, so this file is one test whose parts run in order.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use roceline::capture::chunks::{Drainer, stream};
use roceline::capture::record::decode;
use roceline::capture::request::Counts;
use roceline::config::Config;
use roceline::fabric::Fabric;
use roceline::fabric::report::{FabricReport, QueueReport};
use roceline::lcore::tap::{Clock, Store, Tap, TapId, Taps};
use roceline::port::{Burst, Eal, EalConfig, FabricEnd, Huge, Mbuf, Mempool, MempoolConfig, Port};
use roceline_engine::Nanos;
use roceline_engine::fabric::impair::Random;
use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::{ipv4, pause};

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

const MTU: usize = 4096;

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

/// NICs at the ends of a fabric, and its clock.
struct World {
    fabric: Fabric,
    taps: Taps,
    nics: Vec<Port>,
    pool: Arc<Mempool>,
    burst: Burst,
    now: Nanos,
}

fn world(pool: &Arc<Mempool>, ports: &[&str], fabric: &str) -> World {
    let nic = |(n, port): (usize, &&str)| {
        format!(
            "[[nic]]\nname = \"roce{n}\"\nmac = \"02:00:00:00:00:0{n}\"\naddresses = [\"10.0.0.{}/24\"]\nport = \"fabric:{port}\"\n",
            n + 1
        )
    };
    let nics: String = ports.iter().enumerate().map(nic).collect();
    let config = Config::parse("test", &(nics + fabric)).unwrap();
    let (fabric, ends) = Fabric::new(&config.fabric, Arc::clone(pool)).unwrap();
    World {
        fabric,
        taps: Taps::new(),
        nics: ends
            .into_iter()
            .map(|end: FabricEnd| Port::new(end))
            .collect(),
        pool: Arc::clone(pool),
        burst: Burst::new(),
        now: Nanos(1_000_000),
    }
}

impl World {
    fn pass(&mut self, time: Nanos) {
        self.now = self.now + time;
        self.fabric.poll(self.now, &mut self.taps);
    }

    /// Offers frames of `len` bytes, ECN-capable and of priority 3, from a NIC until its link is full or there are `count`.
    fn send(&mut self, from: usize, to: u8, len: usize, first: u32, count: u32) -> u32 {
        for n in 0..count {
            let Some(mut mbuf) = self.pool.alloc() else {
                return n;
            };
            let frame = mbuf.append(len).unwrap();
            frame.fill(0);
            frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
            frame[12..16].copy_from_slice(&[0x08, 0, 0x45, 26 << 2 | 2]);
            frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
            ipv4::set_checksum(&mut frame[14..]);
            frame[40..44].copy_from_slice(&(first + n).to_be_bytes());
            frame[44] = from as u8;
            self.burst.push(mbuf).unwrap();
            if self.nics[from].tx_burst(&mut self.burst) == 0 {
                self.burst.clear();
                return n;
            }
        }
        count
    }

    fn receive(&mut self, nic: usize) -> Option<Mbuf> {
        if self.burst.is_empty() {
            self.nics[nic].rx_burst(&mut self.burst);
        }
        self.burst.take(0)
    }

    /// Offers a pause frame of a NIC.
    fn pause(&mut self, from: usize, frame: &PauseFrame) {
        let mut mbuf = self.pool.alloc().unwrap();
        let bytes = mbuf.set_len(pause::LEN).unwrap().first_chunk_mut().unwrap();
        frame.emit(&[2, 0, 0, 0, 0, from as u8], bytes);
        self.burst.push(mbuf).unwrap();
        assert_eq!(self.nics[from].tx_burst(&mut self.burst), 1);
    }

    /// Reads a burst at a NIC and drops it; gives how many there were.
    fn take(&mut self, nic: usize) -> u32 {
        let mut burst = Burst::new();
        self.nics[nic].rx_burst(&mut burst) as u32
    }

    /// Pause frames that have come to a NIC, for which they are read alone.
    fn told(&mut self, nic: usize) -> Vec<PauseFrame> {
        let mut burst = Burst::new();
        self.nics[nic].rx_control(&mut burst);
        let frames = burst.drain();
        frames
            .map(|mbuf| PauseFrame::parse(mbuf.data(), &[2; 6]).unwrap())
            .collect()
    }

    fn queue(&self, peer: &str) -> QueueReport {
        let report: FabricReport = self.fabric.report(self.now);
        let ports = report.switches.iter().flat_map(|s| &s.ports);
        let port = ports.into_iter().find(|p| p.peer == peer).unwrap();
        port.queues
            .iter()
            .find(|q| q.priority == 3)
            .cloned()
            .unwrap_or_default()
    }
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

/// Lets everything arrive.
fn drain(mut world: World) {
    for _ in 0..20_000 {
        world.pass(Nanos(1_000_000));
        let mut came = false;
        for nic in 0..world.nics.len() {
            while world.receive(nic).is_some() {
                came = true;
            }
        }
        // The slowest link takes 3.4 ms for a frame.
        if !came && world.fabric.next_deadline().is_none() {
            break;
        }
    }
    assert_eq!(world.queue("roce0").depth, 0);
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

fn stop(priority: u8, time: u16) -> PauseFrame {
    PauseFrame::Priority {
        enabled: 1 << priority,
        quanta: std::array::from_fn(|p| if p == usize::from(priority) { time } else { 0 }),
    }
}

/// Nobody reads, so all links are full; a NIC is told to stop all the same, and a switch is.
fn pauses_pass_full_links_in_both_directions(pool: &Arc<Mempool>) {
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
fn a_pause_is_told_again_however_late_the_poll(pool: &Arc<Mempool>) {
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
fn without_a_rate_a_nic_that_hears_late_loses_nothing(pool: &Arc<Mempool>) {
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
fn what_a_storm_discards_does_not_wait_for_room(pool: &Arc<Mempool>) {
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

/// Its lane for pauses is full of stops when it is told to go on.
fn the_newest_pauses_come_to_a_nic_that_does_not_read(pool: &Arc<Mempool>) {
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

fn a_switch_pauses_all_at_once_and_goes_by_tags(pool: &Arc<Mempool>) {
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

/// A frame that a capture heard at a port of a switch.
#[derive(Debug)]
struct Heard {
    port: u16,
    outbound: bool,
    time: u64,
    data: Vec<u8>,
}

fn heard(world: &mut World, drainer: &mut Drainer) -> Vec<Heard> {
    world.taps.settle();
    let mut bytes = Vec::new();
    while drainer.read(&mut bytes) {}
    let mut rest = bytes.as_slice();
    let records = std::iter::from_fn(|| decode(&mut rest));
    let heard = records.map(|record| Heard {
        // Behind the three NICs.
        port: record.nic - 3,
        outbound: record.outbound,
        time: record.stamp,
        data: record.data.to_vec(),
    });
    heard.collect()
}

/// Two senders to a receiver whose port is slow, over two switches: marks, pauses from switch to switch and to NICs, at the times that the
/// rates of links give them.
fn captures_hear_marks_and_pauses_at_their_times(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nrate = \"1Gb/s\"\nkmin = \"20KiB\"\nkmax = \"40KiB\"\nbuffer = \"256KiB\"\n\
                  [[fabric.switch]]\nname = \"a\"\nport = [{ to = \"roce0\", rate = \"500Mb/s\" }]\n\
                  [[fabric.switch]]\nname = \"b\"\nuplinks = \"a\"\n";
    let mut world = world(pool, &["a", "b", "b"], fabric);
    // a to NIC 0 and to b, b to NICs 1 and 2 and to a.
    let [a_nic, a_b, b_nic, b_a] = [0, 1, 2, 4];
    let (filler, mut drainer) = stream(16 << 20);
    let tap = Tap {
        id: TapId(1),
        nics: (0..8).map(|n| n >= 3).collect(),
        inbound: true,
        outbound: true,
        snaplen: 64,
        filter: None,
        store: Store::Stream(filler),
        counts: vec![Counts::default(); 8].into(),
        clock: Clock::start(),
        state: Arc::default(),
    };
    world.taps.add(Box::new(tap)).unwrap();
    world.fabric.listen(&world.taps);
    assert_eq!(world.send(1, 0, MTU, 0, 10), 10);
    world.pass(Nanos(5_000_000));
    let first = heard(&mut world, &mut drainer);
    let frame_time = 8 * (MTU as u64 + 24);
    for (port, outbound, gap) in [
        (b_nic, false, frame_time),
        (b_a, true, frame_time),
        (a_b, false, frame_time),
        (a_nic, true, 2 * frame_time),
    ] {
        let there = first
            .iter()
            .filter(|h| (h.port, h.outbound) == (port, outbound));
        let times: Vec<u64> = there.map(|h| h.time).collect();
        assert_eq!(times.len(), 10, "{first:?}");
        for pair in times.windows(2) {
            // Picoseconds are left out.
            assert!((pair[1] - pair[0]).abs_diff(gap) <= 1, "{port}: {times:?}");
        }
    }

    let mut paused = [false; 3];
    let mut all = first;
    for round in 0..3_000 {
        let allocated = ALLOCATIONS.get();
        for from in [1, 2] {
            if round < 400 && !paused[from] {
                world.send(from, 0, MTU, 0, 16);
            }
        }
        world.pass(Nanos(100_000));
        for (nic, paused) in paused.iter_mut().enumerate() {
            while let Some(mbuf) = world.receive(nic) {
                match PauseFrame::parse(mbuf.data(), &[2; 6]) {
                    Some(PauseFrame::Priority { quanta, .. }) => *paused = quanta[3] > 0,
                    Some(pause) => panic!("{pause:?}"),
                    None => {}
                }
            }
        }
        assert_eq!(ALLOCATIONS.get(), allocated, "captures allocate nothing");
        all.extend(heard(&mut world, &mut drainer));
    }
    let counts = world.taps.remove(TapId(1)).unwrap().counts;
    assert_eq!(counts.iter().map(|counts| counts.lost).sum::<u64>(), 0);
    let is_pause = |h: &&Heard| h.data[12..14] == [0x88, 0x08];
    let at = |port, outbound| {
        all.iter()
            .filter(move |h| (h.port, h.outbound) == (port, outbound))
    };
    let queue = world.queue("roce0");
    assert_eq!(at(a_nic, true).count() as u64, queue.tx_frames);
    // b marks first. a may mark some of the same, which are seen once.
    let marked = |port| at(port, true).filter(|h| h.data[15] & 3 == 3).count() as u64;
    let by_b = world.queue("a").ce_marked;
    assert!(by_b > 0 && marked(b_a) == by_b, "{} {by_b}", marked(b_a));
    let seen = marked(a_nic);
    assert!(
        queue.ce_marked > 0 && (by_b..=by_b + queue.ce_marked).contains(&seen),
        "{seen} {by_b} {queue:?}"
    );
    // What a tells b is at both ends, from a's port.
    let (own, other) = (world.queue("b"), world.queue("a"));
    assert!(own.pause_tx.frames > 0, "{own:?}");
    for (port, outbound, count) in [
        (a_b, true, own.pause_tx.frames),
        (b_a, false, other.pause_rx.frames),
        (b_nic, true, world.queue("roce1").pause_tx.frames),
    ] {
        let pauses: Vec<&Heard> = at(port, outbound).filter(is_pause).collect();
        assert_eq!(pauses.len() as u64, count, "{port}");
        if port != b_nic {
            assert!(
                pauses
                    .iter()
                    .all(|h| h.data[6..12] == [2, 0x52, 0x4c, 0xff, 0, 1])
            );
        }
    }
    assert!(all.windows(2).all(|pair| pair[0].time <= pair[1].time));
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
