//! Several short packets at once, each in a lane of its own: nothing is left to bring together at the end, headers
//! and tails fill whole vectors, and the chains of multiplications run beside each other. Packets must be alike in all
//! their lengths. Long packets have nothing to gain here: what [`super::fold`] does once for each of them no longer counts.

#![allow(
    clippy::needless_range_loop,
    reason = "an index is the number of a lane or packet, and goes into several arrays and closures at once"
)]

use super::fold::{HALF, Vector, few, load_keys, reduce};
use super::header::{self, Family};
use super::polynomial::keys;
use super::{BATCH, Begin, Check, Seal};

/// From so many bytes on packets are summed one by one.
const LONG: usize = 512;

/// Bytes of payload of which the loop is compiled apart, as a length that is known asks for nothing: those of a cache line.
const COMMON: usize = 64;

/// Blocks of a packet that are multiplied beside each other; as many as the longest vector has lanes.
const STEP: usize = 4;

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

/// Keys for distances of 1 to [`STEP`] blocks, the same in every lane.
static BLOCKS: [[u64; 8]; STEP + 1] = {
    let mut all = [[0; 8]; STEP + 1];
    let mut blocks = 1;
    while blocks <= STEP {
        let [low, high] = keys(16 * blocks);
        all[blocks] = [low, high, low, high, low, high, low, high];
        blocks += 1;
    }
    all
};

static ONES: [u64; 8] = [u64::MAX; 8];

/// Vectors with a lane for each of `P` packets; those behind `P / LANES` are not used.
type Lanes<V> = [V; 4];

/// Where bytes of each packet are, and where they go.
type From<const P: usize> = [*const u8; P];
type To<const P: usize> = [*mut u8; P];

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
unsafe fn block<V: Vector, const P: usize, const COPY: bool>(
    i: usize,
    from: &From<P>,
    to: &To<P>,
    at: usize,
) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        join::<V>(i, |packet| {
            let block = V::Block::load(from[packet].add(at));
            if COPY {
                block.store(to[packet].add(at));
            }
            block
        })
    }
}

/// As many blocks as a vector has lanes, of the packets of vector `i`.
#[inline(always)]
unsafe fn square<V: Vector, const P: usize, const COPY: bool>(
    i: usize,
    from: &From<P>,
    to: &To<P>,
    at: usize,
    mask: V,
) -> [V; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [V::zero(); 4];
        for lane in 0..V::LANES {
            let packet = i * V::LANES + lane;
            rows[lane] = V::load(from[packet].add(at)).or(mask);
            if COPY {
                rows[lane].store(to[packet].add(at));
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
    from: &From<P>,
    to: &To<P>,
    len: usize,
) {
    let mut at = 0;
    // SAFETY: all accesses are below `len`, as the loops say; the rest is the caller's promise.
    unsafe {
        while len - at >= 16 * STEP {
            for i in 0..P / V::LANES {
                let mut sum = V::zero();
                for part in 0..STEP / V::LANES {
                    let from_here = part * V::LANES;
                    let columns = square::<V, P, COPY>(i, from, to, at + 16 * from_here, V::zero());
                    for (c, column) in columns[..V::LANES].iter().enumerate() {
                        // The last one is not multiplied: what was before comes ahead to it.
                        let (before, ahead) = match STEP - 1 - (from_here + c) {
                            0 => (lanes[i], STEP),
                            ahead => (*column, ahead),
                        };
                        sum = before.fold(load_keys(&BLOCKS[ahead]), sum);
                        if ahead == STEP {
                            sum = sum.xor(*column);
                        }
                    }
                }
                lanes[i] = sum;
            }
            at += 16 * STEP;
        }
        let one: V = load_keys(&SPREAD[16]);
        while len - at >= 16 * V::LANES {
            for i in 0..P / V::LANES {
                let columns = square::<V, P, COPY>(i, from, to, at, V::zero());
                for column in &columns[..V::LANES] {
                    lanes[i] = lanes[i].fold(one, *column);
                }
            }
            at += 16 * V::LANES;
        }
        while len - at >= 16 {
            for i in 0..P / V::LANES {
                lanes[i] = lanes[i].fold(one, block::<V, P, COPY>(i, from, to, at));
            }
            at += 16;
        }
        if at < len {
            let rest: V = load_keys(&SPREAD[len - at]);
            for i in 0..P / V::LANES {
                let next = join::<V>(i, |packet| {
                    let (from, to) = (from[packet].add(at), to[packet].wrapping_add(at));
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
unsafe fn headers<V: Vector, const P: usize>(start: &From<P>, family: Family) -> Lanes<V> {
    let (mask, skip): (&[u8], _) = match family {
        Family::V4 => (&header::MASK_V4, 0),
        Family::V6 => (&header::MASK_V6, 4),
    };
    // SAFETY: the span of the family is that of its mask and what is skipped.
    unsafe {
        let (from, to) = (
            &start.map(|start| start.add(skip)),
            &[core::ptr::null_mut(); P],
        );
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
                let columns = square::<V, P, false>(i, from, to, at, mask);
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
                let next = block::<V, P, false>(i, from, to, at).or(mask);
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

/// Verifies the first of some frames, as many as are alike and make groups; bit i is set if the ICRC of `checks[i]` is right. Also
/// says how many these are.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn check<V: Vector>(checks: &[Check<'_>]) -> (u64, usize) {
    // Two vectors keep the multiplier busy; more packets have more pointers than there are registers.
    // SAFETY: the caller's promise.
    unsafe {
        if V::LANES == 4 && checks.len() >= BATCH {
            let some = check_shape::<V, BATCH>(checks);
            if some.1 > 0 {
                return some;
            }
        }
        check_shape::<V, HALF>(checks)
    }
}

/// As [`check`], in groups of `P`.
#[inline(always)]
unsafe fn check_shape<V: Vector, const P: usize>(checks: &[Check<'_>]) -> (u64, usize) {
    // What is known of the family need not be asked for each group.
    // SAFETY: the caller's promise.
    unsafe {
        match checks[0].family {
            _ if checks[0].rest as usize >= LONG => (0, 0),
            Family::V4 => check_groups::<V, P>(checks, Family::V4),
            Family::V6 => check_groups::<V, P>(checks, Family::V6),
        }
    }
}

/// As [`check_shape`], if all are of that family.
#[inline(always)]
unsafe fn check_groups<V: Vector, const P: usize>(
    checks: &[Check<'_>],
    family: Family,
) -> (u64, usize) {
    let rest = checks[0].rest;
    let (mut good, mut done) = (0, 0);
    for checks in checks.chunks_exact(P) {
        let alike = |check: &Check<'_>| check.rest == rest && check.family == family;
        if !checks.iter().all(alike) {
            break;
        }
        // SAFETY: a `Check` has borrowed the bytes that it speaks of, and all are alike.
        let icrcs = unsafe {
            let start: From<P> = core::array::from_fn(|i| checks[i].start);
            let mut lanes = headers::<V, P>(&start, family);
            let from = start.map(|start| start.add(family.span()));
            let to = [core::ptr::null_mut(); P];
            append::<V, P, false>(&mut lanes, &from, &to, rest as usize);
            finish::<V, P>(&lanes)
        };
        let both = checks.iter().zip(icrcs).enumerate();
        let bits = both.fold(0, |good, (i, (check, icrc))| {
            good | u64::from(check.found == icrc) << i
        });
        good |= bits << done;
        done += P;
    }
    (good, done)
}

/// As [`super::fold::seal`], of the first of some frames, as many as are alike and make groups. Says how many these are.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn seal<V: Vector>(seals: &mut [Seal<'_>]) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        if V::LANES == 4 && seals.len() >= BATCH {
            let count = seal_shape::<V, BATCH>(seals);
            if count > 0 {
                return count;
            }
        }
        seal_shape::<V, HALF>(seals)
    }
}

/// As [`seal`], in groups of `P`.
#[inline(always)]
unsafe fn seal_shape<V: Vector, const P: usize>(seals: &mut [Seal<'_>]) -> usize {
    let shape = seals[0].shape;
    let ready = shape.ready();
    if ready + shape.payload() >= LONG {
        return 0;
    }
    let copied = shape.copies().then_some(shape.payload());
    // What is known of the shape need not be asked for each group.
    // SAFETY: the caller's promise; behind a state nothing is ready, and there is a payload to be copied.
    unsafe {
        match shape.begin() {
            Begin::State if shape.payload() == COMMON => {
                seal_groups::<V, P>(seals, Begin::State, 0, Some(COMMON))
            }
            Begin::State => seal_groups::<V, P>(seals, Begin::State, 0, copied),
            Begin::Headers(Family::V4) if copied == Some(COMMON) => {
                seal_groups::<V, P>(seals, Begin::Headers(Family::V4), ready, Some(COMMON))
            }
            Begin::Headers(Family::V4) => {
                seal_groups::<V, P>(seals, Begin::Headers(Family::V4), ready, copied)
            }
            Begin::Headers(Family::V6) => {
                seal_groups::<V, P>(seals, Begin::Headers(Family::V6), ready, copied)
            }
        }
    }
}

/// As [`seal_shape`], given some of what the first one's shape says.
#[inline(always)]
unsafe fn seal_groups<V: Vector, const P: usize>(
    seals: &mut [Seal<'_>],
    begin: Begin,
    ready: usize,
    copied: Option<usize>,
) -> usize {
    let shape = seals[0].shape;
    let (span, payload) = (begin.span(), copied.unwrap_or(shape.payload()));
    let pad = match copied {
        Some(COMMON) => 0,
        _ => shape.pad(),
    };
    let end = span + ready + payload + pad;
    let mut done = 0;
    for seals in seals.chunks_exact_mut(P) {
        if !seals.iter().all(|seal| seal.shape == shape) {
            break;
        }
        // SAFETY: a `Seal` has borrowed its frame, its lengths add up to that of the frame, and all are alike.
        let icrcs = unsafe {
            let start: To<P> = core::array::from_fn(|i| seals[i].start);
            let mut lanes = [V::zero(); 4];
            match begin {
                Begin::Headers(family) => {
                    lanes = headers::<V, P>(&start.map(<*mut u8>::cast_const), family);
                }
                Begin::State => {
                    for i in 0..P / V::LANES {
                        let state = |i: usize| V::Block::load(seals[i].state.as_ptr().cast());
                        lanes[i] = join::<V>(i, state);
                    }
                }
            }
            let rest = start.map(|start| start.add(span));
            append::<V, P, false>(&mut lanes, &rest.map(<*mut u8>::cast_const), &rest, ready);
            if copied.is_some() {
                let source: From<P> = core::array::from_fn(|i| seals[i].source);
                let to = rest.map(|rest| rest.add(ready));
                append::<V, P, true>(&mut lanes, &source, &to, payload);
                if pad > 0 {
                    for to in to {
                        to.add(payload).write_bytes(0, pad);
                    }
                    let keys: V = load_keys(&SPREAD[pad]);
                    for lanes in &mut lanes[..P / V::LANES] {
                        *lanes = lanes.fold(keys, V::zero());
                    }
                }
            }
            finish::<V, P>(&lanes)
        };
        for (seal, icrc) in seals.iter_mut().zip(icrcs) {
            // SAFETY: the frame has four bytes there, as all are alike.
            unsafe { seal.write(end, icrc) };
        }
        done += P;
    }
    done
}
