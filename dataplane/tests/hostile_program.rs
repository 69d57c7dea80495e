//! A program that scribbles over all it shares with the daemon hurts nobody but itself.

use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::bench::producer::SIGNALED;
use roceline::lcore::probe::NoProbe;
use roceline_abi::layout::{ARM_OFFSET, DB_BELLS, DB_SUMMARY, DOORBELL_OFFSET};
use roceline_abi::queue::{Q_CONSUMER, Q_DATA, Q_PRODUCER};
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};

/// xorshift64*: the same scribble for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[test]
fn garbage_in_shared_memory_hurts_only_its_writer() {
    let seed = std::env::var("ROCELINE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    println!("seed {seed}: replay with ROCELINE_SEED={seed}");
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M1024, 6).unwrap();
    let mut random = Random(seed);
    let mut memory = vec![0u8; 1 << 16];
    let key = pair
        .a
        .producer
        .register(memory.as_mut_ptr() as u64, 1 << 16, &mut || {
            pair.lcore.turn(&mut NoProbe);
        })
        .unwrap();
    for round in 0..2_000 {
        let (mut good_a, mut good_b) = if round % 400 == 399 {
            let (a, b) = pair.more(Mtu::M4096, 4).unwrap();
            (Some(a), Some(b))
        } else {
            (None, None)
        };
        let file = pair.a.producer.file();
        for queue in [pair.a.qp.sq, pair.a.qp.rq] {
            let bytes = u64::from(queue.mask + 1) << queue.log2_elem;
            for _ in 0..64 {
                let at = queue.offset + Q_DATA + random.next() % (bytes / 8) * 8;
                // Whole garbage, small numbers that look right, or the real key and address.
                let value = match random.next() % 4 {
                    0 => random.next(),
                    1 => random.next() % 64,
                    2 => memory.as_ptr() as u64 + random.next() % (1 << 16),
                    _ => (u64::from(key) << 32) | (random.next() % 5000),
                };
                file.atomic_u64(at)
                    .store(value, std::sync::atomic::Ordering::Relaxed);
            }
            file.store_u32(queue.offset + Q_PRODUCER, random.next() as u32);
            if random.next() % 8 == 0 {
                file.store_u32(queue.offset + Q_CONSUMER, random.next() as u32);
                file.store_u32(queue.offset, random.next() as u32);
                file.store_u32(queue.offset + 4, random.next() as u32);
            }
        }
        for _ in 0..4 {
            let word = random.next() % 1024;
            file.atomic_u64(DOORBELL_OFFSET + DB_BELLS + 8 * word)
                .store(random.next(), std::sync::atomic::Ordering::Relaxed);
        }
        for summary in 0..16 {
            file.atomic_u64(DOORBELL_OFFSET + DB_SUMMARY + 8 * summary)
                .store(random.next(), std::sync::atomic::Ordering::Relaxed);
        }
        file.store_u32(ARM_OFFSET, random.next() as u32);
        pair.a.producer.ring(&pair.a.qp);
        for _ in 0..8 {
            pair.lcore.turn(&mut NoProbe);
        }
        while pair.a.producer.poll_cq().is_some() {}
        if let (Some(a), Some(b)) = (&mut good_a, &mut good_b) {
            check_transfer(&mut pair, a, b);
        }
    }
}

/// Another pair of programs moves its bytes all the same.
fn check_transfer(pair: &mut Pair, a: &mut roceline::bench::Side, b: &mut roceline::bench::Side) {
    let mut from: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    let mut to = vec![0u8; 10_000];
    let mut poll = || {
        pair.lcore.turn(&mut NoProbe);
    };
    let from_key = a
        .producer
        .register(from.as_mut_ptr() as u64, 10_000, &mut poll)
        .unwrap();
    let to_key = b
        .producer
        .register(to.as_mut_ptr() as u64, 10_000, &mut poll)
        .unwrap();
    let local = Sge {
        addr: from.as_ptr() as u64,
        length: 10_000,
        lkey: from_key,
    };
    let remote = (to.as_ptr() as u64, to_key);
    a.producer
        .post_send(&mut a.qp, WrOpcode::Write, SIGNALED, local, remote, None);
    a.producer.ring(&a.qp);
    let end = Instant::now() + Duration::from_secs(60);
    let cqe = loop {
        poll();
        if let Some(cqe) = a.producer.poll_cq() {
            break cqe;
        }
        assert!(
            Instant::now() < end,
            "the well-behaved program's WRITE never completed"
        );
        std::thread::yield_now();
    };
    assert_eq!(cqe.status, 0);
    assert_eq!(to, from);
}
