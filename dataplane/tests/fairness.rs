//! Programs beside others that take all they can: what each gets is counted in the polls of the loop, not in time, so that a
//! crowded machine changes nothing.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use roceline::bench::producer::{ProducerQp, SIGNALED};
use roceline::bench::{Pair, Side};
use roceline::lcore::message::{Command, Cursor, Reply};
use roceline::lcore::probe::NoProbe;
use roceline_abi::layout::{ARM_NEXT, ARM_OFFSET, DB_BELLS, DB_SUMMARY, DOORBELL_OFFSET};
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};

/// A pair of programs that WRITEs without end: as many requests out as its queues take. They are empty, so that no memory
/// is touched: that would be up to threads of their own, which poll counts say nothing of.
struct Stream {
    a: Side,
    _b: Side,
    more: Vec<ProducerQp>,
    sge: Sge,
    remote: (u64, u32),
    /// By QP number.
    out: HashMap<u32, usize>,
    done: u64,
    _memory: Box<[u8]>,
}

const DEPTH: usize = 32;

impl Stream {
    /// With `qps` queue pairs on each side.
    fn new(pair: &mut Pair, len: u32, qps: usize) -> Stream {
        let (mut a, mut b) = pair.more(Mtu::M1024, 6).unwrap();
        let memory = vec![7u8; 2 * len as usize].into_boxed_slice();
        let at = memory.as_ptr() as u64;
        let mut turn = || {
            pair.lcore.turn(&mut NoProbe);
        };
        let lkey = a.producer.register(at, len.into(), &mut turn).unwrap();
        let to = at + u64::from(len);
        let rkey = b.producer.register(to, len.into(), &mut turn).unwrap();
        let mut more = Vec::new();
        for _ in 1..qps {
            let ours = a.producer.create_qp(6, &mut turn).unwrap();
            let theirs = b.producer.create_qp(6, &mut turn).unwrap();
            for (side, own, peer, qpn) in [(&a, &ours, &b, theirs.qpn), (&b, &theirs, &a, ours.qpn)]
            {
                let (producer, mtu) = (&side.producer, Mtu::M1024);
                producer
                    .connect(own, &side.info, &peer.info, qpn, mtu, &mut turn)
                    .unwrap();
            }
            more.push(ours);
        }
        Stream {
            a,
            _b: b,
            more,
            sge: Sge {
                addr: at,
                length: 0,
                lkey,
            },
            remote: (to, rkey),
            out: HashMap::new(),
            done: 0,
            _memory: memory,
        }
    }

    /// Posts what fits and takes what is done.
    fn go_on(&mut self) {
        let (producer, sge, remote) = (&mut self.a.producer, self.sge, self.remote);
        for qp in self.more.iter_mut().chain([&mut self.a.qp]) {
            let out = self.out.entry(qp.qpn).or_default();
            while *out < DEPTH {
                producer.post_send(qp, WrOpcode::Write, SIGNALED, sge, remote, None);
                *out += 1;
            }
            producer.ring(qp);
        }
        while let Some(cqe) = producer.poll_cq() {
            assert_eq!(cqe.status, 0);
            *self.out.get_mut(&cqe.qp_num).expect("a QP of ours") -= 1;
            self.done += 1;
        }
    }
}

/// Polls in which `stream` completes `requests`, while `beside` does what it does before each.
fn polls(
    pair: &mut Pair,
    stream: &mut Stream,
    requests: u64,
    mut beside: impl FnMut(&mut Pair),
) -> u64 {
    let end = Instant::now() + Duration::from_secs(60);
    let (goal, mut polls) = (stream.done + requests, 0);
    while stream.done < goal {
        beside(pair);
        stream.go_on();
        pair.lcore.turn(&mut NoProbe);
        polls += 1;
        assert!(Instant::now() < end, "{} of {goal}", stream.done);
    }
    polls
}

/// One test, as DPDK's environment exists once in a process.
#[test]
fn a_program_takes_its_share_and_no_more() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M1024, 6).unwrap();
    let mut victim = Stream::new(&mut pair, 64, 1);
    let alone = polls(&mut pair, &mut victim, 2_000, |_| {});

    // As many queue pairs as it likes: the other program has half of the turns.
    let mut many = Stream::new(&mut pair, 64, 24);
    let beside = polls(&mut pair, &mut victim, 2_000, |_| many.go_on());
    println!(
        "2000 requests: {alone} polls alone, {beside} beside a program of 24 queue pairs, which did {}",
        many.done
    );
    assert!(beside <= 2 * alone, "{beside} polls instead of {alone}");
    assert!(many.done > 500, "the other is served too: {}", many.done);
    drop(many);

    // All bells, again and again, and nothing behind them.
    let beside = polls(&mut pair, &mut victim, 2_000, |pair| {
        let file = pair.a.producer.file();
        for word in 0..1024 {
            file.atomic_u64(DOORBELL_OFFSET + DB_BELLS + 8 * word)
                .store(u64::MAX, Ordering::Relaxed);
        }
        for word in 0..16 {
            file.atomic_u64(DOORBELL_OFFSET + DB_SUMMARY + 8 * word)
                .store(u64::MAX, Ordering::Relaxed);
        }
        file.store_u32(ARM_OFFSET, ARM_NEXT);
    });
    println!("2000 requests: {beside} beside bells");
    assert!(beside <= 2 * alone, "{beside} polls instead of {alone}");

    a_listing_of_very_much_comes_in_parts(&mut pair);
}

fn a_listing_of_very_much_comes_in_parts(pair: &mut Pair) {
    let memory = vec![0u8; 4096];
    let mut turn = || {
        pair.lcore.turn(&mut NoProbe);
    };
    for _ in 0..150 {
        let at = memory.as_ptr() as u64;
        pair.a.producer.register(at, 4096, &mut turn).unwrap();
    }
    let (mut from, mut parts, mut mrs, mut qps) = (Some(Cursor::default()), 0, Vec::new(), 0);
    while let Some(cursor) = from {
        let command = Command::Snapshot(cursor);
        let Ok(Reply::Snapshot(part)) = pair.b.producer.command(command, &mut turn) else {
            panic!("no snapshot");
        };
        assert!(part.nics.iter().map(|nic| nic.mrs).sum::<u32>() >= 150);
        assert!(part.mrs.len() + part.qps.len() <= 64);
        mrs.extend(part.mrs.iter().map(|mr| mr.lkey));
        qps += part.qps.len();
        from = part.more;
        parts += 1;
    }
    mrs.sort_unstable();
    mrs.dedup();
    assert!(mrs.len() >= 150 && qps >= 2 && parts >= 3, "{parts} parts");
}
