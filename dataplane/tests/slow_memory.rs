//! A program whose memory is slow holds back its NIC, which then loses nothing: READ responses beyond those that the engine
//! can keep waiting would be dropped and asked for again, though the link is lossless. With pauses on, the other end is told to stop
//! before the link is full.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::bench::producer::SIGNALED;
use roceline::lcore::message::{Command, Cursor, NicSnapshot, Reply};
use roceline::lcore::probe::NoProbe;
use roceline_engine::congestion::pfc::{PauseMode, PfcSettings};
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};
use roceline_engine::{AckPolicy, Nanos};

/// Far more packets than the engine keeps waiting and the link holds.
const BYTES: usize = 1 << 20;

/// Where the handler waits for a byte.
static GATE: AtomicI32 = AtomicI32::new(-1);
static HELD: AtomicBool = AtomicBool::new(false);

/// Stops the thread that it interrupts until there is a byte to read.
extern "C" fn hold(_signal: libc::c_int) {
    HELD.store(true, Ordering::SeqCst);
    let mut byte = 0u8;
    // SAFETY: read is async-signal-safe, and writes one byte of a local.
    while unsafe { libc::read(GATE.load(Ordering::SeqCst), (&raw mut byte).cast(), 1) } != 1 {}
}

/// The helper of the program that was opened first. A thread has its name once it has run.
fn first_memory_thread() -> libc::pid_t {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        assert!(
            Instant::now() < end,
            "each of the two programs has a memory thread"
        );
        let tasks = fs::read_dir("/proc/self/task").expect("proc is mounted");
        let numbered = tasks.filter_map(|task| {
            let task = task.ok()?;
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let context: u64 = name.trim().strip_prefix("memory-")?.parse().ok()?;
            Some((context, task.file_name().to_str()?.parse().ok()?))
        });
        let mut numbered: Vec<(u64, libc::pid_t)> = numbered.collect();
        if numbered.len() == 2 {
            // Numbers of contexts only grow; those of threads start again at some point.
            numbered.sort_unstable();
            return numbered[0].1;
        }
        thread::yield_now();
    }
}

/// The program on `roce0` reads [`BYTES`] from the one on `roce1` while its memory stands still, until `enough` says so of the counters of
/// both NICs; then it goes on.
fn read_slowly(pair: &mut Pair, mut enough: impl FnMut(&[NicSnapshot]) -> bool) {
    let source: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 251) as u8).collect();
    let target = vec![0u8; BYTES];
    let lcore = &mut pair.lcore;
    let mut turn = || {
        lcore.turn(&mut NoProbe);
    };
    let mut register = |side: &roceline::bench::Side, bytes: &[u8]| {
        let producer = &side.producer;
        producer
            .register(bytes.as_ptr() as u64, BYTES as u64, &mut turn)
            .unwrap()
    };
    let (to, from) = (register(&pair.a, &target), register(&pair.b, &source));

    HELD.store(false, Ordering::SeqCst);
    let mut gate = [0; 2];
    // SAFETY: a pipe, and a handler that only makes async-signal-safe calls, for a thread of ours.
    unsafe {
        assert_eq!(libc::pipe(gate.as_mut_ptr()), 0);
        GATE.store(gate[0], Ordering::SeqCst);
        libc::signal(libc::SIGUSR1, hold as *const () as libc::sighandler_t);
        libc::syscall(
            libc::SYS_tgkill,
            libc::getpid(),
            first_memory_thread(),
            libc::SIGUSR1,
        );
    }
    let end = Instant::now() + Duration::from_secs(120);
    while !HELD.load(Ordering::SeqCst) {
        assert!(
            Instant::now() < end,
            "the memory thread does not take its signal"
        );
        thread::yield_now();
    }

    let sge = Sge {
        addr: target.as_ptr() as u64,
        length: BYTES as u32,
        lkey: to,
    };
    let remote = (source.as_ptr() as u64, from);
    let (producer, qp) = (&mut pair.a.producer, &mut pair.a.qp);
    producer.post_send(qp, WrOpcode::Read, SIGNALED, sge, remote, None);
    producer.ring(qp);
    // The loop's time is the test's, so that neither a retry timer nor the patience with slow memory ends however long this
    // takes.
    let lcore = &mut pair.lcore;
    let mut now = Nanos(NOW.load(Ordering::SeqCst));
    let mut poll = |times: u32| {
        for _ in 0..times {
            now = now + Nanos(10);
            lcore.poll(now, &mut NoProbe);
        }
    };
    loop {
        assert!(Instant::now() < end, "the sender does not stop");
        poll(32);
        let Ok(Reply::Snapshot(all)) = pair
            .b
            .producer
            .command(Command::Snapshot(Cursor::default()), &mut || poll(1))
        else {
            panic!("no snapshot");
        };
        if enough(&all.nics) {
            break;
        }
        let sent = all.nics[1].counters.rdma_tx_packets;
        assert!(
            sent < 2 * BYTES as u64 / 256,
            "the NIC took in more than it can keep waiting"
        );
        thread::yield_now();
    }
    // SAFETY: writes one byte of a constant.
    assert_eq!(unsafe { libc::write(gate[1], b"x".as_ptr().cast(), 1) }, 1);
    let done = loop {
        assert!(Instant::now() < end, "the READ does not end");
        poll(32);
        if let Some(done) = pair.a.producer.poll_cq() {
            break done;
        }
        thread::yield_now();
    };
    NOW.store(now.0, Ordering::SeqCst);
    assert_eq!(done.status, 0);
    // Read anew: the daemon's side wrote it.
    assert!(std::hint::black_box(&target) == &source, "wrong bytes");
    for nic in 0..2 {
        let c = pair.lcore.counters(nic);
        assert_eq!(
            (
                c.out_of_sequence,
                c.implied_nak_seq_err,
                c.duplicate_request
            ),
            (0, 0, 0),
            "NIC {nic} lost packets"
        );
        assert_eq!(pair.lcore.nic_counts(nic).rx_memory_overrun, 0);
    }
}

/// Of the loop, in nanoseconds.
static NOW: AtomicU64 = AtomicU64::new(1_000_000_000_000_000);

fn count(nic: &NicSnapshot, name: &str) -> u64 {
    let mut named = nic.pause.named().chain(nic.port.iter().copied());
    named.find(|(n, _)| *n == name).expect(name).1
}

/// What both NICs counted.
fn counted(pair: &mut Pair) -> Vec<NicSnapshot> {
    let (lcore, now) = (&mut pair.lcore, Nanos(NOW.load(Ordering::SeqCst)));
    let reply = pair.b.producer.command(Command::Counters, &mut || {
        lcore.poll(now, &mut NoProbe);
    });
    match reply {
        Ok(Reply::Snapshot(all)) => all.nics,
        other => panic!("{other:?}"),
    }
}

#[test]
fn slow_memory_costs_a_lossless_link_no_packet() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M256, 6).unwrap();
    // Until the sender can send no more.
    read_slowly(&mut pair, |nics| count(&nics[1], "tx_backpressure") > 0);
    let pushed_back = count(&counted(&mut pair)[1], "tx_backpressure");

    // A pause lasts for 5.12 us, so it is asked for again every 256 polls.
    let settings = PfcSettings {
        mode: PauseMode::Pfc,
        priorities: 1,
        quanta: 1000,
        buffer_bytes: 64 << 10,
        ..PfcSettings::default()
    };
    pair.lcore.set_pause(0, &settings);
    pair.lcore.set_pause(1, &settings);
    let (mut stopped_at, mut looks) = (0, 0);
    let mut last = (0, 0, 0);
    read_slowly(&mut pair, |nics| {
        let asked = count(&nics[0], "tx_prio0_pause");
        // At the port: payload that was asked for before the pause may be fetched in it, and then waits.
        let sent = count(&nics[1], "tx_packets");
        // Long after the first pause has come to it, the sender is as silent as it was then.
        if asked > 2 {
            looks += 1;
            stopped_at = if looks == 1 { sent } else { stopped_at };
            assert_eq!(sent, stopped_at, "sent in a pause");
        }
        last = (
            asked,
            count(&nics[1], "rx_prio0_pause"),
            count(&nics[1], "rx_prio0_pause_transition"),
        );
        looks == 100
    });
    assert!(
        last.0 >= 10 && last.0 - last.1 <= 1 && last.2 == 0,
        "{last:?}"
    );
    let nics = counted(&mut pair);
    let (a, b) = (&nics[0], &nics[1]);
    assert_eq!(
        count(b, "tx_backpressure"),
        pushed_back,
        "the link was full"
    );
    assert!(count(b, "rx_prio0_pause_duration") >= 20 && count(b, "rx_prio0_pause_transition") > 0);
    assert!(count(a, "tx_prio0_pause_duration") >= count(b, "rx_prio0_pause_duration"));
    assert_eq!(
        (
            count(a, "rx_prio0_discards"),
            count(a, "tx_pause_storm_warning_events")
        ),
        (0, 0)
    );
}
