//! The poll loop allocates nothing while data flows: a counting allocator says so.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::bench::producer::{INLINE, SIGNALED};
use roceline::capture::chunks::stream;
use roceline::capture::filter::Filter;
use roceline::capture::last::LastPackets;
use roceline::capture::request::Counts;
use roceline::control::LcorePort;
use roceline::impair::{MatchArgs, Place, Point, Spec};
use roceline::lcore::message::{Command, ContextId, Reply, Request};
use roceline::lcore::probe::NoProbe;
use roceline::lcore::tap::{Clock, Store, Tap, TapId};
use roceline::memory::{Mapping, MemoryFile, Range, Reach};
use roceline_engine::AckPolicy;
use roceline_engine::congestion::pfc::{PauseMode, PfcSettings};
use roceline_engine::verbs::{Mtu, QpState, Sge, WrOpcode};
use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause::LEN as LEN_OF_PAUSE;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

struct Counting;

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() -> u64 {
    COUNT.with(Cell::get)
}

// SAFETY: hands everything on to the system allocator; counting has no effect on it. The thread-local is const and
// has no destructor, so it may be touched here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: u32 = 20_000;
/// Of a buffer.
const BYTES: usize = 20_480;

/// Shared memory with a descriptor, as a program's memory is when it is mapped.
struct Shared {
    base: *mut u8,
    file: MemoryFile,
}

impl Shared {
    fn new() -> Shared {
        // SAFETY: plain system calls on a new descriptor, which becomes ours, and a new mapping, which stays.
        unsafe {
            let fd =
                OwnedFd::from_raw_fd(libc::memfd_create(c"no_alloc".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), BYTES as libc::off_t), 0);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            Shared {
                base: base.cast(),
                file: MemoryFile::adopt(fd).unwrap(),
            }
        }
    }

    /// The first `bytes` of it mapped, the rest through the kernel.
    fn reach(&self, bytes: usize) -> Reach {
        if bytes == 0 {
            return Reach::kernel();
        }
        let start = self.base as u64;
        Reach::mapped(vec![Range {
            start,
            end: start + bytes as u64,
            mapping: Mapping::new(&self.file, 0, bytes as u64, "test".into()).unwrap(),
            offset: 0,
        }])
    }

    fn fill(&self, round: u8) {
        for i in 0..LEN as usize {
            // SAFETY: inside the mapping; the loop that reads it is not running.
            unsafe { self.base.add(i).write((i % 251) as u8 ^ round) };
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: nobody writes while the loop is not running.
        unsafe { std::slice::from_raw_parts(self.base, LEN as usize) }
    }
}

/// Through the kernel, mapped, and both in one message.
#[test]
fn the_loop_allocates_nothing_while_data_flows() {
    let before_setup = count();
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 6).unwrap();
    assert!(count() > before_setup, "the counter works");
    for (from_mapped, to_mapped) in [(0, 0), (BYTES, BYTES), (8192, 4096), (4096, 0), (0, 8192)] {
        data_flows(&mut pair, from_mapped, to_mapped);
    }
    // With captures: one to a reader that stands still, one of the last packets, both with conditions.
    let (filler, mut drainer) = stream(1 << 20);
    let kept = LastPackets::new(100, 4218);
    for (id, store) in [(1, Store::Stream(filler)), (2, Store::Last(kept))] {
        listen(&mut pair, id, store);
    }
    data_flows(&mut pair, BYTES, BYTES);
    data_flows(&mut pair, 0, 0);
    impair(&mut pair);
    data_flows(&mut pair, 0, 0);
    data_flows(&mut pair, BYTES, BYTES);
    pause(&mut pair);
    data_flows(&mut pair, 0, 0);
    data_flows(&mut pair, BYTES, BYTES);
    let mut records = Vec::new();
    assert!(drainer.read(&mut records), "the tap heard something");
    overflow(&mut pair);
}

/// A completion queue overflows, its queue pair fails and is flushed.
fn overflow(pair: &mut Pair) {
    let end = Instant::now() + Duration::from_secs(120);
    let mut allocated = 0;
    for round in 0.. {
        assert!(Instant::now() < end, "the QP is still not in ERR");
        // Empty SENDs; nobody polls the receiver's CQ of 4,095 entries.
        for _ in 0..32 {
            pair.b.producer.post_recv(&mut pair.b.qp, Sge::default());
            if pair.a.producer.can_send(&pair.a.qp) {
                let (sge, remote) = (Sge::default(), (0, 0));
                let (producer, qp) = (&pair.a.producer, &mut pair.a.qp);
                producer.post_send(qp, WrOpcode::Send, 0, sge, remote, None);
            }
        }
        pair.a.producer.ring(&pair.a.qp);
        for _ in 0..8 {
            let before = count();
            pair.lcore.turn(&mut NoProbe);
            allocated += if round >= 5 { count() - before } else { 0 };
        }
        let command = Command::QueryQp {
            qp: pair.b.qp.handle,
        };
        let lcore = &mut pair.lcore;
        let reply = pair.b.producer.command(command, &mut || {
            lcore.turn(&mut NoProbe);
        });
        match reply.unwrap() {
            Reply::QpState { attr, .. } if attr.state == QpState::Err => break,
            Reply::QpState { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(allocated, 0);
}

/// Rules of all kinds that lose nothing for good, at every place of both NICs. What is sent again is what the last rule looks at
/// next, so its bursts are short: with one in two lost, seven retries were too few once in ten runs.
fn impair(pair: &mut Pair) {
    let rules = [
        "duplicate = 2\nprobability = '5%'",
        "reorder = 3\nprobability = '5%'",
        "delay = '1us..20us'\nprobability = '20%'",
        "corrupt = 'payload.bit'\nprobability = '1%'",
        "mark_ce = true\nmessage = '1..1000'",
        "rate = '10Gb/s'",
        "drop = true\nburst = 'p=1%,r=95%'\npsn_modulo = 50",
    ];
    for nic in 0..2 {
        for point in [Point::Tx, Point::Link, Point::Rx] {
            for (id, rule) in (1..).zip(rules) {
                let rule: Spec = toml::from_str(rule).unwrap();
                pair.impair(Place { nic, point }, rule.compile(id).unwrap())
                    .unwrap();
            }
        }
    }
}

/// Turns pauses on, and lets both NICs be paused for a while.
fn pause(pair: &mut Pair) {
    let settings = PfcSettings {
        mode: PauseMode::Pfc,
        priorities: 1,
        ..PfcSettings::default()
    };
    for nic in 0..2 {
        pair.lcore.set_pause(nic as usize, &settings);
        let mut frame = [0; LEN_OF_PAUSE];
        let stop = PauseFrame::Priority {
            enabled: 1,
            quanta: [u16::MAX; 8],
        };
        stop.emit(&[2, 0, 0, 0, 0, 9], &mut frame);
        let (reply, answer) = sync_channel(1);
        let request = Request {
            context: ContextId(0),
            command: Command::Inject {
                nic,
                frames: vec![frame.into()],
            },
            reply,
        };
        pair.mailbox().send(nic, request).unwrap();
        pair.lcore.turn(&mut NoProbe);
        assert!(matches!(answer.try_recv(), Ok(Reply::Injected { .. })));
    }
}

/// Puts a tap in place that hears both NICs.
fn listen(pair: &mut Pair, id: u64, store: Store) {
    let args = MatchArgs {
        class: Some("roce".into()),
        message: Some("1..1000000".into()),
        ..MatchArgs::default()
    };
    let tap = Tap {
        id: TapId(id),
        nics: [true, true].into(),
        inbound: true,
        outbound: true,
        snaplen: 4218,
        filter: Filter::new(&args.spec(), 2).unwrap(),
        store,
        counts: [Counts::default(); 2].into(),
        clock: Clock::start(),
        state: Arc::default(),
    };
    let (reply, answer) = sync_channel(1);
    let request = Request {
        context: ContextId(0),
        command: Command::AddTap(Box::new(tap)),
        reply,
    };
    pair.mailbox().send(0, request).unwrap();
    pair.lcore.turn(&mut NoProbe);
    assert!(matches!(answer.try_recv(), Ok(Reply::Done)));
}

fn data_flows(pair: &mut Pair, from_mapped: usize, to_mapped: usize) {
    let (from, to) = (Shared::new(), Shared::new());
    let mut poll = || {
        pair.lcore.turn(&mut NoProbe);
    };
    let a_key = pair
        .a
        .producer
        .register_reached(
            from.base as u64,
            BYTES as u64,
            from.reach(from_mapped),
            &mut poll,
        )
        .unwrap();
    let b_key = pair
        .b
        .producer
        .register_reached(
            to.base as u64,
            u64::from(LEN),
            to.reach(to_mapped),
            &mut poll,
        )
        .unwrap();
    let local = |length| Sge {
        addr: from.base as u64,
        length,
        lkey: a_key,
    };
    let sink = Sge {
        addr: to.base as u64,
        length: LEN,
        lkey: b_key,
    };
    let remote = (to.base as u64, b_key);
    // Behind what is compared.
    let answer = Sge {
        addr: from.base as u64 + u64::from(LEN),
        length: 8,
        lkey: a_key,
    };
    let end = Instant::now() + Duration::from_secs(120);
    // The first rounds may grow what grows once; after them not one allocation is allowed.
    let mut allocated = 0;
    for round in 0..200 {
        from.fill(round as u8);
        pair.b.producer.post_recv(&mut pair.b.qp, sink);
        let (producer, qp) = (&pair.a.producer, &mut pair.a.qp);
        producer.post_send(
            qp,
            WrOpcode::Write,
            SIGNALED | INLINE,
            local(8),
            remote,
            Some(&[9; 8]),
        );
        // The WRITE behind it covers what it changes. Behind the READ it could overtake that (IBTA 10.8.3.3: no order
        // without a fence).
        producer.post_fetch_add(qp, answer, remote);
        producer.post_send(qp, WrOpcode::Write, SIGNALED, local(LEN), remote, None);
        producer.post_send(qp, WrOpcode::Read, SIGNALED, local(LEN), remote, None);
        producer.post_send(qp, WrOpcode::Send, SIGNALED, local(LEN), remote, None);
        producer.ring(qp);
        let (mut sent, mut received) = (0, 0);
        while sent < 5 || received < 1 {
            assert!(
                Instant::now() < end,
                "round {round}: {sent} sent, {received} received"
            );
            let before = count();
            // Every other round somebody looks what the loop does with its time.
            let work = match round % 2 {
                0 => pair.lcore.turn(&mut NoProbe),
                _ => {
                    let now = pair.lcore.now();
                    pair.lcore.watched_poll(now)
                }
            };
            if round >= 5 {
                allocated += count() - before;
            }
            if work == 0 {
                std::thread::yield_now();
            }
            while let Some(cqe) = pair.a.producer.poll_cq() {
                assert_eq!((cqe.status, cqe.vendor_err), (0, 0));
                sent += 1;
            }
            while let Some(cqe) = pair.b.producer.poll_cq() {
                assert_eq!((cqe.status, cqe.byte_len), (0, LEN));
                received += 1;
            }
        }
        // The inline WRITE was overtaken by nothing: the later messages covered its bytes.
        assert!(to.bytes() == from.bytes(), "round {round}");
    }
    assert_eq!(allocated, 0, "mapped: {from_mapped} and {to_mapped} bytes");
}
