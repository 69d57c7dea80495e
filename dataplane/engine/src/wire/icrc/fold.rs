//! The algorithm of the kernels that multiply without carries, for vectors of any number of 16-byte lanes.
//!
//! All that came before is kept as one *block* of 16 bytes: a polynomial of degree below 128 that leaves the same remainder
//! as the message so far. To append d bytes is to multiply the block by x^(8d) and to add what was appended, right-aligned.
//! That holds for every d, so headers, payload and pad follow each other whatever their lengths, and nothing has to be
//! aligned. Vectors are appended as they lie in memory; their lanes are brought together at the end, and for short messages
//! the block joins them only there, so that payload does not wait for its headers. The register of the CRC is the block
//! times x^32 modulo the polynomial, by Barrett's reduction; one vector does that for as many packets as it has lanes.
//! (The method is that of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009,
//! with distances for tails instead of shuffles.)
//!
//! When bytes are copied, each is loaded once: what is stored and what is summed are the same even if a program
//! writes to its memory meanwhile.

use super::header::{self, Family};
use super::polynomial::{BARRETT, REDUCE, WHOLE, keys};
use super::sparse::{self, Fronts, Piece};
use super::{BATCH, Begin, Check, Seal};

/// So many packets go side by side at least.
pub(super) const HALF: usize = BATCH / 2;

/// What packets of a batch have been summed to.
pub(super) type Blocks = [u128; BATCH];

/// Vectors that one pass of the loop takes.
pub(super) const UNROLL: usize = 4;
/// Below this many vectors the block joins at the end.
const LATE: usize = 8;

/// `LANES` lanes of 16 bytes.
///
/// # Safety of the methods
///
/// The CPU must have the instructions; pointers must be good for as many bytes as the vector has, without alignment.
pub(super) trait Vector: Copy {
    /// 1, 2 or 4.
    const LANES: usize;
    /// One lane.
    type Block: Vector<Block = Self::Block>;
    /// What headers are summed with: at most two lanes.
    type Header: Vector<Block = Self::Block>;

    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Of the first so many blocks as there are lanes.
    unsafe fn join(blocks: [Self::Block; 4]) -> Self;
    unsafe fn zero() -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    /// In each lane the product of a half of `self` (bit 0: the high one) and a half of `other` (bit 4).
    unsafe fn multiply<const HALVES: i32>(self, other: Self) -> Self;
    /// In each lane the high half in place of the low one, and zeros above.
    unsafe fn high(self) -> Self;
    /// Rows to columns, of the first so many as there are lanes.
    unsafe fn transpose(rows: [Self; 4]) -> [Self; 4];
    /// The last lane.
    unsafe fn last(self) -> Self::Block;
    /// With another last lane.
    unsafe fn with_last(self, block: Self::Block) -> Self;
    /// The sum of all lanes.
    unsafe fn sum(self) -> Self::Block;

    /// Each lane moved ahead by the distance of `keys`, with `other` added.
    #[inline(always)]
    unsafe fn fold(self, keys: Self, other: Self) -> Self {
        // SAFETY: the caller's promise; keys are tables as long as the widest vector.
        unsafe {
            self.multiply::<0x00>(keys)
                .xor(self.multiply::<0x11>(keys))
                .xor(other)
        }
    }
}

/// Keys, each long enough for the widest vector.
#[repr(C, align(64))]
pub(super) struct Keys {
    /// Every lane by 1 to 4 vectors.
    pub(super) ahead: [[u64; 8]; UNROLL + 1],
    /// Every lane to the end of the last, and in place of the last lane the block before so many vectors.
    together: [[u64; 8]; LATE],
}

impl Keys {
    const fn new(lanes: usize) -> Keys {
        let mut all = Keys {
            ahead: [[0; 8]; UNROLL + 1],
            together: [[0; 8]; LATE],
        };
        let mut vectors = 1;
        while vectors <= UNROLL {
            let pair = keys(16 * lanes * vectors);
            let mut lane = 0;
            while lane < lanes {
                all.ahead[vectors][2 * lane] = pair[0];
                all.ahead[vectors][2 * lane + 1] = pair[1];
                lane += 1;
            }
            vectors += 1;
        }
        let mut vectors = 0;
        while vectors < LATE {
            let mut lane = 0;
            while lane < lanes {
                let distance = if lane + 1 < lanes {
                    16 * (lanes - 1 - lane)
                } else {
                    16 * lanes * vectors
                };
                if distance > 0 {
                    let pair = keys(distance);
                    all.together[vectors][2 * lane] = pair[0];
                    all.together[vectors][2 * lane + 1] = pair[1];
                }
                lane += 1;
            }
            vectors += 1;
        }
        all
    }
}

static KEYS_1: Keys = Keys::new(1);
static KEYS_2: Keys = Keys::new(2);
static KEYS_4: Keys = Keys::new(4);

#[inline(always)]
pub(super) fn keys_of<V: Vector>() -> &'static Keys {
    match V::LANES {
        1 => &KEYS_1,
        2 => &KEYS_2,
        _ => &KEYS_4,
    }
}

/// Keys of a block for distances below a block and for one.
static TAIL: [[u64; 2]; 17] = {
    let mut all = [[0; 2]; 17];
    let mut bytes = 1;
    while bytes <= 16 {
        all[bytes] = keys(bytes);
        bytes += 1;
    }
    all
};

/// Keys of the first two of the three blocks of an IPv4 header.
static THREE_BLOCKS: [[u64; 2]; 2] = [keys(32), keys(16)];

static REDUCTION: [[u64; 8]; 2] = [
    [
        REDUCE, BARRETT, REDUCE, BARRETT, REDUCE, BARRETT, REDUCE, BARRETT,
    ],
    [WHOLE, 0, WHOLE, 0, WHOLE, 0, WHOLE, 0],
];

#[inline(always)]
pub(super) unsafe fn load_keys<V: Vector>(keys: &[u64]) -> V {
    // SAFETY: the caller's promise; keys are tables as long as the widest vector.
    unsafe { V::load(keys.as_ptr().cast()) }
}

#[inline(always)]
pub(super) unsafe fn take<V: Vector, const COPY: bool>(
    from: *const u8,
    to: *mut u8,
    at: usize,
) -> V {
    // SAFETY: the caller's promise; keys are tables as long as the widest vector.
    unsafe {
        let vector = V::load(from.add(at));
        if COPY {
            vector.store(to.add(at));
        }
        vector
    }
}

/// The block after `len` bytes at `from` that follow what `block` stands for; with `COPY` they are also stored at `to`.
///
/// # Safety
///
/// `from` must be good for reads of `len` bytes and, with `COPY`, `to` for writes; they must not overlap. The CPU must have the
/// instructions of `V`.
#[inline(always)]
pub(super) unsafe fn append<V: Vector, const COPY: bool>(
    block: V::Block,
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> V::Block {
    let piece = Piece { from, to, len };
    // SAFETY: the caller's promise.
    unsafe { append_in_turn::<V, COPY>(block, piece, &mut Fronts::new(), None) }
}

/// The same where there may be a next piece that is long, of which something is taken, and copied, already.
///
/// # Safety
///
/// As there, of both pieces; `fronts` must not be used for another but the next.
#[inline(always)]
unsafe fn append_in_turn<V: Vector, const COPY: bool>(
    block: V::Block,
    piece: Piece,
    fronts: &mut Fronts,
    next: Option<Piece>,
) -> V::Block {
    let Piece { from, to, len } = piece;
    let width = 16 * V::LANES;
    let vectors = len / width;
    // SAFETY: all accesses are below `len`, as the loops say; the rest is the caller's promise.
    unsafe {
        if vectors == 0 {
            return tail::<V, COPY>(block, from, to, 0, len);
        }
        let all = keys_of::<V>();
        let one: V = load_keys(&all.ahead[1]);
        let late = vectors < LATE;
        let mut at = width;
        let mut v: V;
        if vectors < UNROLL {
            v = take::<V, COPY>(from, to, 0);
        } else {
            let four: V = load_keys(&all.ahead[4]);
            let mut a = [V::zero(); UNROLL];
            if piece.is_long::<V>() {
                (a, at) = sparse::append::<V, COPY>(block, piece, fronts, next);
            } else {
                for (i, a) in a.iter_mut().enumerate() {
                    *a = take::<V, COPY>(from, to, i * width);
                }
                if !late {
                    a[3] = V::zero().with_last(block).fold(four, a[3]);
                }
                at = UNROLL * width;
            }
            while len - at >= UNROLL * width {
                for (i, a) in a.iter_mut().enumerate() {
                    let next = take::<V, COPY>(from, to, at + i * width);
                    *a = a.fold(four, next);
                }
                at += UNROLL * width;
            }
            let far = a[0].fold(load_keys(&all.ahead[3]), a[3]);
            let near = a[2].fold(one, a[1].fold(load_keys(&all.ahead[2]), V::zero()));
            v = far.xor(near);
        }
        while len - at >= width {
            v = v.fold(one, take::<V, COPY>(from, to, at));
            at += width;
        }
        let (earlier, distance) = if late {
            (block, vectors)
        } else {
            (V::Block::zero(), 0)
        };
        let together: V = load_keys(&all.together[distance]);
        let sum = v.with_last(earlier).fold(together, V::zero()).sum();
        tail::<V, COPY>(sum.xor(v.last()), from, to, at, len)
    }
}

/// The rest from `at` on, less than a vector.
#[inline(always)]
unsafe fn tail<V: Vector, const COPY: bool>(
    mut block: V::Block,
    from: *const u8,
    to: *mut u8,
    mut at: usize,
    len: usize,
) -> V::Block {
    // SAFETY: the caller's promise; keys are tables as long as the widest vector.
    unsafe {
        while len - at >= 16 {
            let next = take::<V::Block, COPY>(from, to, at);
            block = block.fold(load_keys(&TAIL[16]), next);
            at += 16;
        }
        if at < len {
            let next = few::<COPY>(from.add(at), to.wrapping_add(at), len - at);
            let next = V::Block::load((&raw const next).cast());
            block = block.fold(load_keys(&TAIL[len - at]), next);
        }
        block
    }
}

/// 1 to 15 bytes at the end of a block of zeros, each loaded once.
#[inline(always)]
pub(super) unsafe fn few<const COPY: bool>(from: *const u8, to: *mut u8, len: usize) -> u128 {
    let (mut value, mut at) = (0u128, 0);
    macro_rules! part {
        ($word:ty) => {
            let size = size_of::<$word>();
            if len & size != 0 {
                // SAFETY: the parts, by their sizes, lie one after the other within `len`.
                let part = unsafe { from.add(at).cast::<$word>().read_unaligned() };
                if COPY {
                    // SAFETY: as above; with `COPY`, `to` is good for as many bytes.
                    unsafe { to.add(at).cast::<$word>().write_unaligned(part) };
                }
                value |= u128::from(<$word>::from_le(part)) << (8 * at);
                at += size;
            }
        };
    }
    part!(u64);
    part!(u32);
    part!(u16);
    part!(u8);
    value << (8 * (16 - at))
}

/// The block of masked headers: eight bytes of ones, IP, UDP and BTH. `start` is eight bytes before the IP header.
///
/// # Safety
///
/// `start` must be good for reads of [`Family::span`] bytes, and the CPU must have the instructions of `V`.
#[inline(always)]
unsafe fn headers<V: Vector>(start: *const u8, family: Family) -> V::Block {
    // SAFETY: the caller's promise; keys are tables as long as the widest vector.
    unsafe {
        match family {
            Family::V4 => {
                let mask = header::MASK_V4.as_ptr();
                let masked = |i: usize| {
                    V::Block::load(start.add(16 * i)).or(V::Block::load(mask.add(16 * i)))
                };
                // The first four bytes of ones and the ones that the register starts with cancel each other.
                let cancel = V::Block::load(header::CANCEL.as_ptr());
                let third = masked(2);
                if V::Header::LANES == 2 {
                    let two = V::Header::load(start).or(V::Header::load(mask));
                    let two = two.xor(V::Header::load(header::CANCEL.as_ptr()));
                    let keys = V::Header::load(THREE_BLOCKS.as_ptr().cast());
                    two.fold(keys, V::Header::zero()).sum().xor(third)
                } else {
                    let one = load_keys(&TAIL[16]);
                    masked(0).xor(cancel).fold(one, masked(1)).fold(one, third)
                }
            }
            Family::V6 => {
                let all = keys_of::<V::Header>();
                let (start, mask) = (start.add(4), header::MASK_V6.as_ptr());
                let width = 16 * V::Header::LANES;
                let mut v = V::Header::zero();
                let mut at = 0;
                while at < header::LEN_V6 {
                    let masked = V::Header::load(start.add(at)).or(V::Header::load(mask.add(at)));
                    v = v.fold(load_keys(&all.ahead[1]), masked);
                    at += width;
                }
                let lanes = v.with_last(V::Block::zero());
                let together = load_keys(&all.together[0]);
                lanes.fold(together, V::Header::zero()).sum().xor(v.last())
            }
        }
    }
}

/// The registers of as many blocks as a vector has lanes, in the third word of each lane.
#[inline(always)]
pub(super) unsafe fn reduce<V: Vector>(blocks: V) -> V {
    // SAFETY: the caller's promise; keys are tables as long as the widest vector.
    unsafe {
        let first: V = load_keys(&REDUCTION[0]);
        let second: V = load_keys(&REDUCTION[1]);
        let t = blocks.multiply::<0x00>(first).xor(blocks.high());
        let quotient = t.multiply::<0x10>(first);
        quotient.multiply::<0x00>(second).xor(t)
    }
}

/// The registers of the first `count` of some blocks, one at least.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn registers<V: Vector>(blocks: &Blocks, count: usize) -> [u32; BATCH] {
    // The lanes of a vector are blocks that do not lie next to each other, so that the compiler does not load as a whole what
    // was just stored in halves.
    let stride = BATCH / V::LANES;
    let mut out = [0; BATCH];
    for first in 0..count.min(stride) {
        let mut words = [[0u32; 4]; 4];
        // SAFETY: the array has as many words as the longest vector.
        unsafe {
            let mut lanes = [V::Block::zero(); 4];
            for lane in 0..V::LANES {
                lanes[lane] = V::Block::load((&raw const blocks[first + lane * stride]).cast());
            }
            reduce(V::join(lanes)).store(words.as_mut_ptr().cast());
        }
        for lane in 0..V::LANES {
            out[first + lane * stride] = u32::from_le(words[lane][2]);
        }
    }
    out
}

/// Verifies up to 64 frames; bit i is set if the ICRC of `checks[i]` is right.
///
/// # Safety
///
/// The CPU must have the instructions of `V`; `alike` must be [`super::lockstep::check`].
#[inline(always)]
pub(super) unsafe fn check<V: Vector>(
    mut checks: &[Check<'_>],
    alike: unsafe fn(&[Check<'_>]) -> (u64, usize),
) -> u64 {
    let (mut good, mut done) = (0, 0);
    while !checks.is_empty() {
        // SAFETY: the caller's promise; a `Check` has borrowed the bytes that it speaks of.
        let (bits, count) = unsafe {
            match alike(checks) {
                (_, 0) => {
                    let n = checks.len().min(HALF);
                    (check_each::<V>(&checks[..n]), n)
                }
                some => some,
            }
        };
        good |= bits << done;
        done += count;
        checks = &checks[count..];
    }
    good
}

#[inline(always)]
unsafe fn check_each<V: Vector>(checks: &[Check<'_>]) -> u64 {
    let mut blocks: Blocks = [0; BATCH];
    // SAFETY: as for `check`.
    let registers = unsafe {
        let rest = |check: &Check<'_>| Piece {
            from: check.start.add(check.family.span()),
            to: core::ptr::null_mut(),
            len: check.rest as usize,
        };
        let mut fronts = Fronts::new();
        for (i, (block, check)) in blocks.iter_mut().zip(checks).enumerate() {
            let head = headers::<V>(check.start, check.family);
            let next = checks.get(i + 1).map(rest);
            let whole = append_in_turn::<V, false>(head, rest(check), &mut fronts, next);
            whole.store((&raw mut *block).cast());
        }
        registers::<V>(&blocks, checks.len())
    };
    let both = checks.iter().zip(registers).enumerate();
    both.fold(0, |good, (i, (check, register))| {
        good | u64::from(check.found == !register) << i
    })
}

/// Copies payload, fills pad and writes the ICRC of frames whose headers are written.
///
/// # Safety
///
/// The CPU must have the instructions of `V`; sources must be what [`Seal::copy_from`] asks for; `alike` must be [`super::lockstep::seal`].
#[inline(always)]
pub(super) unsafe fn seal<V: Vector>(
    mut seals: &mut [Seal<'_>],
    alike: unsafe fn(&mut [Seal<'_>]) -> usize,
) {
    while !seals.is_empty() {
        // SAFETY: the caller's promise.
        let count = unsafe {
            match alike(seals) {
                0 => {
                    let n = seals.len().min(HALF);
                    seal_each::<V>(&mut seals[..n]);
                    n
                }
                n => n,
            }
        };
        seals = &mut seals[count..];
    }
}

#[inline(always)]
unsafe fn seal_each<V: Vector>(seals: &mut [Seal<'_>]) {
    let mut blocks: Blocks = [0; BATCH];
    // SAFETY: a `Seal` has borrowed its frame, and its lengths add up to that of the frame.
    let registers = unsafe {
        let payload = |seal: &Seal<'_>| Piece {
            from: seal.source,
            to: seal
                .start
                .add(seal.shape.begin().span() + seal.shape.ready()),
            len: seal.shape.payload(),
        };
        let mut fronts = Fronts::new();
        for (i, (block, seal)) in blocks.iter_mut().zip(&*seals).enumerate() {
            let shape = seal.shape;
            let mut so_far = match shape.begin() {
                Begin::Headers(family) => headers::<V>(seal.start, family),
                Begin::State => V::Block::load(seal.state.as_ptr().cast()),
            };
            let rest = seal.start.add(shape.begin().span());
            so_far = append::<V, false>(so_far, rest, rest, shape.ready());
            if shape.copies() {
                let next = seals.get(i + 1).filter(|next| next.shape.copies());
                let (piece, next) = (payload(seal), next.map(payload));
                so_far = append_in_turn::<V, true>(so_far, piece, &mut fronts, next);
                if shape.pad() > 0 {
                    piece.to.add(shape.payload()).write_bytes(0, shape.pad());
                    so_far = so_far.fold(load_keys(&TAIL[shape.pad()]), V::Block::zero());
                }
            }
            so_far.store((&raw mut *block).cast());
        }
        registers::<V>(&blocks, seals.len())
    };
    for (seal, register) in seals.iter_mut().zip(registers) {
        // SAFETY: the frame has four bytes there.
        unsafe { seal.write(seal.shape.icrc_offset(), !register) };
    }
}
