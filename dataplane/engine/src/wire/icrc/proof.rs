//! Whether a kernel computes on this CPU what the portable one does. A kernel is chosen by what the CPU says of itself, also on CPUs
//! on which nobody has run it yet; so before it is used it has to show once that it is right, by every way through the kernels. Each start of
//! the daemon waits for this, so lengths are chosen: about half a megabyte goes through the portable kernel.

use super::header::Family;
use super::kernel::Kernel;
use super::portable::PORTABLE;
use super::sparse::CHUNK;
use super::{BATCH, BEFORE_L3, Check, IcrcState, LEN, Seal, ethernet, pad_len};

/// All lengths below this many bytes: several turns of each loop, and each rest.
const EVERY: usize = 288;
/// And some above: around the ends of longer loops, and what packets have.
const LONGER: [usize; 12] = [
    320, 383, 511, 512, 1023, 1024, 1044, 1535, 2048, 2079, 4096, 4112,
];
/// Payloads of bursts: whole vectors and rests of packets that go side by side, and packets that do not.
const PAYLOADS: [usize; 14] = [0, 1, 8, 15, 16, 31, 48, 64, 103, 256, 509, 512, 1024, 1101];
/// Frames of a burst: some that go side by side, half as many, and some alone.
const BURST: usize = BATCH + BATCH / 2 + 3;
/// Payloads of another burst: of several chunks that are shortened ([`super::sparse`]) and the fewest bytes of which some are, the next one's beginning
/// taken while one is summed; between them one that is not, and behind it a rest.
const SHORTENED: [usize; 6] = [2048, 3000, 2 * CHUNK, 1024, 2079, 4096];
/// Bytes between headers and payload, as extended headers are.
const READY: [usize; 3] = [0, 16, 28];
/// The longest frame of a burst, and where the next begins.
const FRAME: usize = 1344;
/// Of the one with payloads that are shortened.
const LONG_FRAME: usize = 4288;
/// What is around bytes that are written.
const UNTOUCHED: u8 = 0xee;

/// Bytes without a pattern (Marsaglia, "Xorshift RNGs", 2003).
fn bytes(len: usize) -> Vec<u8> {
    let mut value = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        value.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).collect()
}

/// Whether `kernel` sums, copies, seals and verifies as the portable one does.
pub(super) fn agrees(kernel: &Kernel) -> bool {
    let data = bytes(LONGER[LONGER.len() - 1] + 128);
    pieces(kernel, &data)
        && finishes(kernel, &data)
        && bursts(kernel, &data)
        && shortened(kernel, &data)
}

/// Pieces of all lengths, at all places in a cache line.
fn pieces(kernel: &Kernel, data: &[u8]) -> bool {
    let mut copies = [vec![0; data.len() + 192], vec![0; data.len() + 192]];
    (0..EVERY).chain(LONGER).all(|len| {
        let (before, from, to) = (len % 5, len * 7 % 64, 16 + len * 5 % 64);
        let piece = &data[from..from + len];
        let mut ends = [[0; LEN]; 4];
        for (i, kernel) in [kernel, &PORTABLE].into_iter().enumerate() {
            let copy = &mut copies[i][..to + len + 16];
            copy.fill(UNTOUCHED);
            let mut summed = IcrcState::crc32();
            kernel.update(&mut summed, &data[..before]);
            let mut copied = summed;
            kernel.update(&mut summed, piece);
            // SAFETY: a slice of as many bytes, and apart.
            unsafe { kernel.copy_from(&mut copied, &mut copy[to..to + len], piece.as_ptr()) };
            ends[2 * i] = kernel.finish_batch(&[summed])[0];
            ends[2 * i + 1] = kernel.finish_batch(&[copied])[0];
        }
        let [own, portable] = &copies;
        ends.iter().all(|end| *end == ends[2]) && own[..to + len + 16] == portable[..to + len + 16]
    })
}

/// Every number of packets that are finished at once.
fn finishes(kernel: &Kernel, data: &[u8]) -> bool {
    let ends = |kernel: &Kernel, count: usize| {
        let mut states = [IcrcState::crc32(); BATCH];
        for (i, state) in states.iter_mut().enumerate() {
            kernel.update(state, &data[i..][..3 + 13 * i]);
        }
        kernel.finish_batch(&states[..count])
    };
    (1..=BATCH).all(|count| ends(kernel, count)[..count] == ends(&PORTABLE, count)[..count])
}

/// Bursts of frames of one length, and of several.
fn bursts(kernel: &Kernel, data: &[u8]) -> bool {
    let mut places = [vec![0; BURST * FRAME], vec![0; BURST * FRAME]];
    PAYLOADS.into_iter().enumerate().all(|(i, len)| {
        [Family::V4, Family::V6].into_iter().all(|family| {
            let ready = READY[i % READY.len()];
            let alike = [(family, ready, len); BURST];
            // The last of them in their own ways.
            let mut mixed = alike;
            for (j, shape) in mixed.iter_mut().enumerate().skip(i % BURST) {
                *shape = (family, READY[j % READY.len()], len / (1 + j % 4));
            }
            burst(kernel, data, &mut places, &alike) && burst(kernel, data, &mut places, &mixed)
        })
    })
}

/// A burst of long frames.
fn shortened(kernel: &Kernel, data: &[u8]) -> bool {
    let mut places = [(); 2].map(|()| vec![0; SHORTENED.len() * LONG_FRAME]);
    let shapes = SHORTENED.map(|len| (Family::V4, READY[1], len));
    burst(kernel, data, &mut places, &shapes)
}

/// A burst sealed by both, and verified with some of its frames damaged.
fn burst(
    kernel: &Kernel,
    data: &[u8],
    places: &mut [Vec<u8>; 2],
    shapes: &[(Family, usize, usize)],
) -> bool {
    let lengths = |&(family, ready, len): &(Family, usize, usize)| {
        let header_len = ethernet::LEN - BEFORE_L3 + family.span() + ready;
        (header_len, header_len + len + pad_len(len) + LEN)
    };
    let each = places[0].len() / shapes.len();
    for (place, kernel) in places.iter_mut().zip([kernel, &PORTABLE]) {
        place.fill(UNTOUCHED);
        let mut seals = Vec::with_capacity(shapes.len());
        for (i, (place, shape)) in place.chunks_exact_mut(each).zip(shapes).enumerate() {
            let (header_len, frame_len) = lengths(shape);
            place[..header_len].copy_from_slice(&data[i..][..header_len]);
            place[ethernet::LEN] = match shape.0 {
                Family::V4 => 0x45,
                Family::V6 => 0x60,
            };
            let payload = &data[100 + i..][..shape.2];
            seals.extend(Seal::copy(&mut place[..frame_len], header_len, payload));
        }
        kernel.seal_burst(&mut seals);
    }
    let [own, portable] = places;
    if own != portable {
        return false;
    }
    for (i, (place, shape)) in own.chunks_exact_mut(each).zip(shapes).enumerate() {
        let (_, frame_len) = lengths(shape);
        if i % 5 == 2 {
            place[frame_len - 1 - i % 9] ^= 1 << (i % 8);
        }
    }
    let frames = own.chunks_exact(each).zip(shapes);
    let checks: Vec<Check<'_>> = frames
        .filter_map(|(place, shape)| {
            let frame = &place[..lengths(shape).1];
            Check::at(frame, ethernet::LEN, frame.len() - LEN)
        })
        .collect();
    let good = kernel.verify_burst(&checks);
    good == PORTABLE.verify_burst(&checks) && good.count_ones() < shapes.len() as u32
}
