//! A program whose memory is slow holds back its NIC, which then loses nothing: READ responses beyond those that the engine
//! can keep waiting would be dropped and asked for again, though the link is lossless.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::bench::producer::SIGNALED;
use roceline::lcore::message::{Command, Cursor, Reply};
use roceline::lcore::probe::NoProbe;
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

/// The helper of the program that was opened first.
fn first_memory_thread() -> libc::pid_t {
    let tasks = fs::read_dir("/proc/self/task").expect("proc is mounted");
    tasks
        .filter_map(|task| {
            let task = task.ok()?;
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let context: u64 = name.trim().strip_prefix("memory-")?.parse().ok()?;
            Some((context, task.file_name().to_str()?.parse().ok()?))
        })
        // Numbers of contexts only grow; those of threads start again at some point.
        .min_by_key(|&(context, _)| context)
        .expect("each program has a memory thread")
        .1
}

#[test]
fn slow_memory_costs_a_lossless_link_no_packet() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M256, 6).unwrap();
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
    let mut now = Nanos::from_millis(1_000_000);
    let mut poll = |times: u32| {
        for _ in 0..times {
            now = now + Nanos(10);
            lcore.poll(now, &mut NoProbe);
        }
    };
    // Until the sender can send no more.
    loop {
        assert!(Instant::now() < end, "the link does not fill");
        poll(32);
        let Ok(Reply::Snapshot(all)) = pair
            .b
            .producer
            .command(Command::Snapshot(Cursor::default()), &mut || poll(1))
        else {
            panic!("no snapshot");
        };
        let of_b = |name: &str| all.nics[1].port.iter().find(|(n, _)| *n == name).unwrap().1;
        if of_b("tx_backpressure") > 0 {
            break;
        }
        let sent = all.nics[1].counters.rdma_tx_packets;
        assert!(
            sent < BYTES as u64 / 256,
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
