//! Several short packets at once, each in a lane of its own: nothing is left to bring together at the end, headers
//! and tails fill whole vectors, and the chains of multiplications run beside each other. Packets must be alike in all
//! their lengths. Long packets have nothing to gain here: what [`super::fold`] does once for each of them no longer counts.

#![allow(
    clippy::needless_range_loop,
    reason = "an index is the number of a lane or packet, and goes into several arrays and closures at once"
)]

use super::fold::{Vector, few, load_keys, reduce};
use super::header::{self, Family};
use super::polynomial::keys;
use super::{BATCH, Begin, Check, Seal};

/// From so many bytes on packets are summed one by one.
const LONG: usize = 512;

/// Keys for distances to 16 bytes, the same in every lane.
static SPREAD: [[u64; 8]; 17] = {
    let mut all = [[0; 8]; 17];
    let mut bytes = 1;
    while bytes <= 16 {
        let [low, high] = keys(bytes);
        all[bytes] = [low, high, low, high, low, high, low, high];
        bytes += 1;
    }
    all
};

static ONES: [u64; 8] = [u64::MAX; 8];

/// Vectors with a lane for each of `P` packets; those behind `P / LANES` are not used.
type Lanes<V> = [V; 4];

/// The lanes of vector `i`, by the packet.
#[inline(always)]
unsafe fn join<V: Vector>(i: usize, block: impl Fn(usize) -> V::Block) -> V {
    // SAFETY: the caller has the instructions.
    unsafe {
        let mut blocks = [V::Block::zero(); 4];
        for lane in 0..V::LANES {
            blocks[lane] = block(i * V::LANES + lane);
        }
        V::join(blocks)
    }
}

/// The next 16 bytes of the packets of vector `i`.
#[inline(always)]
unsafe fn block<V: Vector, const COPY: bool>(
    i: usize,
    from: impl Fn(usize) -> *const u8,
    to: impl Fn(usize) -> *mut u8,
    at: usize,
) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        join::<V>(i, |packet| {
            let block = V::Block::load(from(packet).add(at));
            if COPY {
                block.store(to(packet).add(at));
            }
            block
        })
    }
}

/// As many blocks as a vector has lanes, of the packets of vector `i`.
#[inline(always)]
unsafe fn square<V: Vector, const COPY: bool>(
    i: usize,
    from: impl Fn(usize) -> *const u8,
    to: impl Fn(usize) -> *mut u8,
    at: usize,
    mask: V,
) -> [V; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [V::zero(); 4];
        for lane in 0..V::LANES {
            let packet = i * V::LANES + lane;
            rows[lane] = V::load(from(packet).add(at)).or(mask);
            if COPY {
                rows[lane].store(to(packet).add(at));
            }
        }
        V::transpose(rows)
    }
}

/// As [`super::fold::append`], for `P` packets.
///
/// # Safety
///
/// As there, of the pointers for each of the first `P` packets.
#[inline(always)]
unsafe fn append<V: Vector, const P: usize, const COPY: bool>(
    lanes: &mut Lanes<V>,
    from: impl Fn(usize) -> *const u8,
    to: impl Fn(usize) -> *mut u8,
    len: usize,
) {
    let mut at = 0;
    // SAFETY: all accesses are below `len`, as the loops say; the rest is the caller's promise.
    unsafe {
        let one: V = load_keys(&SPREAD[16]);
        while len - at >= 16 * V::LANES {
            for i in 0..P / V::LANES {
                let columns = square::<V, COPY>(i, &from, &to, at, V::zero());
                for column in &columns[..V::LANES] {
                    lanes[i] = lanes[i].fold(one, *column);
                }
            }
            at += 16 * V::LANES;
        }
        while len - at >= 16 {
            for i in 0..P / V::LANES {
                lanes[i] = lanes[i].fold(one, block::<V, COPY>(i, &from, &to, at));
            }
            at += 16;
        }
        if at < len {
            let rest: V = load_keys(&SPREAD[len - at]);
            for i in 0..P / V::LANES {
                let next = join::<V>(i, |packet| {
                    let (from, to) = (from(packet).add(at), to(packet).wrapping_add(at));
                    let bytes = few::<COPY>(from, to, len - at);
                    V::Block::load((&raw const bytes).cast())
                });
                lanes[i] = lanes[i].fold(rest, next);
            }
        }
    }
}

/// As [`super::fold::headers`], for `P` packets.
///
/// # Safety
///
/// As there, of the pointers for each of the first `P` packets.
#[inline(always)]
unsafe fn headers<V: Vector, const P: usize>(
    start: impl Fn(usize) -> *const u8,
    family: Family,
) -> Lanes<V> {
    let (mask, skip): (&[u8], _) = match family {
        Family::V4 => (&header::MASK_V4, 0),
        Family::V6 => (&header::MASK_V6, 4),
    };
    // SAFETY: the span of the family is that of its mask and what is skipped.
    unsafe {
        let from = |packet| start(packet).add(skip);
        let to = |_| core::ptr::null_mut();
        let one: V = load_keys(&SPREAD[16]);
        let mut lanes = [V::zero(); 4];
        let mut cancel = V::zero();
        if family == Family::V4 {
            let ones = V::Block::load(header::CANCEL.as_ptr());
            cancel = V::join([ones; 4]);
        }
        let mut at = 0;
        while mask.len() - at >= 16 * V::LANES {
            let mask = V::load(mask.as_ptr().add(at));
            for i in 0..P / V::LANES {
                let columns = square::<V, false>(i, from, to, at, mask);
                for (c, column) in columns[..V::LANES].iter().enumerate() {
                    lanes[i] = match at + c {
                        0 => column.xor(cancel),
                        _ => lanes[i].fold(one, *column),
                    };
                }
            }
            at += 16 * V::LANES;
        }
        while at < mask.len() {
            let mask = V::join([V::Block::load(mask.as_ptr().add(at)); 4]);
            for i in 0..P / V::LANES {
                let next = block::<V, false>(i, from, to, at).or(mask);
                lanes[i] = match at {
                    0 => next.xor(cancel),
                    _ => lanes[i].fold(one, next),
                };
            }
            at += 16;
        }
        lanes
    }
}

/// The ICRCs of `P` packets: their registers, inverted.
#[inline(always)]
unsafe fn finish<V: Vector, const P: usize>(lanes: &Lanes<V>) -> [u32; BATCH] {
    let mut out = [0; BATCH];
    for i in 0..P / V::LANES {
        let mut words = [[0u32; 4]; 4];
        // SAFETY: as many words as the longest vector has, and as many ones.
        unsafe {
            let inverted = reduce(lanes[i]).xor(load_keys(&ONES));
            inverted.store(words.as_mut_ptr().cast());
        }
        for lane in 0..V::LANES {
            out[i * V::LANES + lane] = u32::from_le(words[lane][2]);
        }
    }
    out
}

/// Whether they can go side by side.
#[inline(always)]
pub(super) fn checks_alike(checks: &[Check<'_>]) -> bool {
    let shape = |check: &Check<'_>| (check.rest, check.family);
    let first = shape(&checks[0]);
    (first.0 as usize) < LONG && checks.iter().all(|check| shape(check) == first)
}

/// Bit i is set if the ICRC of `checks[i]` is right, of `P` that are alike.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn check<V: Vector, const P: usize>(checks: &[Check<'_>]) -> u64 {
    let checks = &checks[..P];
    let (rest, family) = (checks[0].rest as usize, checks[0].family);
    // SAFETY: a `Check` has borrowed the bytes that it speaks of, and all are alike.
    let icrcs = unsafe {
        let mut lanes = headers::<V, P>(|i| checks[i].start, family);
        let from = |i: usize| checks[i].start.add(family.span());
        append::<V, P, false>(&mut lanes, from, |_| core::ptr::null_mut(), rest);
        finish::<V, P>(&lanes)
    };
    let both = checks.iter().zip(icrcs).enumerate();
    both.fold(0, |good, (i, (check, icrc))| {
        good | u64::from(check.found == icrc) << i
    })
}

/// Whether they can go side by side.
#[inline(always)]
pub(super) fn seals_alike(seals: &[Seal<'_>]) -> bool {
    let first = &seals[0].shape;
    let differences = seals.iter().map(|seal| first.differences(&seal.shape));
    first.ready() + first.payload() < LONG && differences.fold(0, |all, some| all | some) == 0
}

/// As [`super::fold::seal`], of `P` that are alike.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn seal<V: Vector, const P: usize>(seals: &mut [Seal<'_>]) {
    let seals = &mut seals[..P];
    let shape = seals[0].shape;
    let (begin, ready) = (shape.begin(), shape.ready());
    let (payload, pad) = (shape.payload(), shape.pad());
    // SAFETY: a `Seal` has borrowed its frame, its lengths add up to that of the frame, and all are alike.
    let icrcs = unsafe {
        let mut lanes = match begin {
            Begin::Headers(family) => headers::<V, P>(|i| seals[i].start.cast_const(), family),
            Begin::State => {
                let mut lanes = [V::zero(); 4];
                for i in 0..P / V::LANES {
                    let state = |i: usize| V::Block::load(seals[i].state.as_ptr().cast());
                    lanes[i] = join::<V>(i, state);
                }
                lanes
            }
        };
        let rest = |i: usize| seals[i].start.add(begin.span());
        append::<V, P, false>(&mut lanes, |i| rest(i).cast_const(), rest, ready);
        if shape.copies() {
            let to = |i: usize| rest(i).add(ready);
            append::<V, P, true>(&mut lanes, |i| seals[i].source, to, payload);
            if pad > 0 {
                for i in 0..P {
                    to(i).add(payload).write_bytes(0, pad);
                }
                let keys: V = load_keys(&SPREAD[pad]);
                for lanes in &mut lanes[..P / V::LANES] {
                    *lanes = lanes.fold(keys, V::zero());
                }
            }
        }
        finish::<V, P>(&lanes)
    };
    let end = shape.icrc_offset();
    for (seal, icrc) in seals.iter_mut().zip(icrcs) {
        // SAFETY: the frame has four bytes there, as all are alike.
        unsafe { seal.write(end, icrc) };
    }
}
