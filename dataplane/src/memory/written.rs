//! What is sent of memory that the program writes to at the same moment: any mix of old and new bytes, with the ICRC of just that mix.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use roceline_engine::wire::icrc::{BATCH, IcrcState, Kernel, LEN, Seal};

use super::mapping::tests::memfd;
use super::mapping::{Mapping, MemoryFile};
use super::{Range, Reach};

const ROUNDS: usize = 400;
const LENGTHS: [usize; 8] = [1, 7, 8, 64, 255, 1024, 4092, 4096];

/// The bytes behind the ICRC of nothing, with theirs.
fn is_sealed(kernel: &Kernel, frame: &[u8]) -> bool {
    let (bytes, icrc) = frame.split_at(frame.len() - LEN);
    let mut state = IcrcState::crc32();
    kernel.update(&mut state, bytes);
    kernel.finish_batch(&[state])[0] == icrc
}

#[test]
fn the_icrc_is_that_of_the_bytes_that_are_sent() {
    let file = MemoryFile::adopt(memfd(1 << 16, 0)).unwrap();
    let mapping = |file| Mapping::new(file, 0, 1 << 16, String::new()).unwrap();
    // The program's, as good as another process's.
    let (theirs, ours) = (mapping(&file), mapping(&file));
    let reach = Reach::mapped(vec![Range {
        start: 0,
        end: 1 << 16,
        mapping: ours,
        offset: 0,
    }]);
    let ends = AtomicBool::new(false);
    let changed = thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u64;
            while !ends.load(Ordering::Relaxed) {
                round += 1;
                for line in 0..(BATCH + 1) * 4096 / 8 {
                    theirs.write(
                        8 * line,
                        &round.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes(),
                    );
                }
            }
        });
        let mut changed = 0;
        for kernel in Kernel::all() {
            for len in LENGTHS {
                for round in 0..ROUNDS {
                    // Of the same length, of two lengths, and one alone.
                    let lens: Vec<usize> = match round % 3 {
                        0 => vec![len; BATCH],
                        1 => (0..BATCH).map(|i| len - i % 2).collect(),
                        _ => vec![len],
                    };
                    changed += usize::from(seal_some(kernel, &reach, &lens));
                }
            }
        }
        ends.store(true, Ordering::Relaxed);
        changed
    });
    println!("{changed} bursts were written to while they were sent");
}

/// Whether what a packet has is no longer what the program has.
fn seal_some(kernel: &'static Kernel, reach: &Reach, lens: &[usize]) -> bool {
    let mut frames: Vec<Vec<u8>> = lens
        .iter()
        .map(|len| vec![0xee; len.next_multiple_of(4) + LEN])
        .collect();
    let mut seals: Vec<Seal<'_>> = Vec::new();
    for (i, (frame, &len)) in frames.iter_mut().zip(lens).enumerate() {
        let window = reach.at(i as u64 * 4096 + 3, len as u32).unwrap();
        let (at, _) = window.source();
        // SAFETY: the bytes are the mapping's, which the reach keeps.
        seals.push(unsafe { Seal::behind(IcrcState::crc32(), frame, at, len) }.unwrap());
    }
    kernel.seal_burst(&mut seals);
    drop(seals);
    for (frame, len) in frames.iter().zip(lens) {
        assert!(is_sealed(kernel, frame), "{kernel:?}, {len} bytes");
    }
    let mut now = vec![0; lens[0]];
    assert!(reach.at(3, lens[0] as u32).unwrap().read(&mut now));
    now != frames[0][..lens[0]]
}
