//! Long pieces with fewer multiplications than they have vectors.
//!
//! Some multiples of the polynomial have very few terms. One with a term x^0 and a term x^-8d for each of a few distances d says
//! that a byte may be taken out of a message if it is added to the bytes that come d later instead: the remainder stays what it was. So the first
//! [`AWAY`] bytes of each [`CHUNK`] are added to later ones of it by exclusive or, which other parts of a CPU do than those that
//! multiply, and only the rest is multiplied. No distance is below [`AWAY`], nor above what is left of the chunk behind it: no
//! byte that is taken out has anything added, and chunks do not reach into each other.
//! (That multiples with few terms replace multiplications: Russell, "Chorba: A novel CRC32 implementation", 2024. That those whose
//! exponents are multiples of eight have as few terms as those without that bound: the eighth power of a polynomial over
//! GF(2) has its terms at eight times the exponents.)
//!
//! What is taken out is read back from a copy with zeros around it, at places that no store had: loads wait for such stores. So
//! it is copied well before.

use core::mem::MaybeUninit;

use super::fold::{UNROLL, Vector, keys_of, load_keys, take};
use super::polynomial::keys;

/// Bytes that are shortened at once.
pub(super) const CHUNK: usize = 992;
/// Bytes at its beginning that are not multiplied.
const AWAY: usize = 352;
/// Where each of them is added instead.
const DISTANCES: [usize; 5] = [362, 398, 510, 526, 548];
/// Zeros on both sides: the longest vector that is used here.
const AROUND: usize = 32;

/// Keys for what came before a chunk: it goes ahead by what is taken out, too.
static BEYOND: [[u64; 8]; 3] = {
    let mut all = [[0; 8]; 3];
    let mut lanes = 1;
    while lanes <= 2 {
        let pair = keys(AWAY + 16 * lanes * UNROLL);
        let mut i = 0;
        while i < 8 {
            all[lanes][i] = pair[i % 2];
            i += 1;
        }
        lanes += 1;
    }
    all
};

/// A piece of a message, and where it is copied to.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub from: *const u8,
    pub to: *mut u8,
    pub len: usize,
}

impl Piece {
    /// Whether it is to be shortened by vectors of this kind: a single chunk does not win what it takes to begin.
    #[inline(always)]
    pub fn is_long<V: Vector>(&self) -> bool {
        V::LANES <= 2 && self.len >= 2 * CHUNK
    }
}

/// What is taken out of a chunk, between zeros.
#[repr(C, align(64))]
struct Front([MaybeUninit<u8>; AROUND + AWAY + AROUND]);

/// Of the chunk that is summed and of the next, which may be of the next piece.
pub(super) struct Fronts {
    all: [Front; 2],
    /// Which of them is of the chunk that is summed next.
    turn: usize,
    /// Whether that has been taken.
    filled: bool,
    /// Whether there are zeros around.
    framed: bool,
}

impl Fronts {
    #[inline(always)]
    pub fn new() -> Fronts {
        Fronts {
            all: [const { Front([MaybeUninit::uninit(); AROUND + AWAY + AROUND]) }; 2],
            turn: 0,
            filled: false,
            framed: false,
        }
    }

    #[inline(always)]
    fn frame(&mut self) {
        for front in &mut self.all {
            front.0[..AROUND].fill(MaybeUninit::new(0));
            front.0[AROUND + AWAY..].fill(MaybeUninit::new(0));
        }
        self.framed = true;
    }
}

impl Front {
    /// Takes the beginning of the chunk at `from`.
    ///
    /// # Safety
    ///
    /// As for [`append`].
    #[inline(always)]
    unsafe fn fill<V: Vector, const COPY: bool>(&mut self, from: *const u8, to: *mut u8) {
        let width = 16 * V::LANES;
        for i in 0..AWAY / width {
            // SAFETY: below `AWAY`, which the chunk and the copy both have.
            unsafe {
                let vector = take::<V, COPY>(from, to, i * width);
                vector.store(self.0.as_mut_ptr().add(AROUND + i * width).cast());
            }
        }
    }

    /// What belongs to the vector `at` bytes behind the chunk's beginning.
    ///
    /// # Safety
    ///
    /// It must have been filled.
    #[inline(always)]
    unsafe fn add_to<V: Vector>(&self, mut vector: V, at: usize) -> V {
        let width = 16 * V::LANES;
        for distance in DISTANCES {
            let place = (AROUND + at).wrapping_sub(distance);
            if place > AROUND - width && place < AROUND + AWAY {
                // SAFETY: it ends within the zeros behind.
                vector = unsafe { vector.xor(V::load(self.0.as_ptr().add(place).cast())) };
            }
        }
        vector
    }
}

/// What [`super::fold::append`] has in its registers after as many chunks as there are in a long piece, and their bytes. The
/// beginning of `next`, if that is long, is taken (and copied) as well; it has to be the next piece that this is called with.
///
/// # Safety
///
/// As there, of both pieces.
#[inline(always)]
pub(super) unsafe fn append<V: Vector, const COPY: bool>(
    block: V::Block,
    piece: Piece,
    fronts: &mut Fronts,
    next: Option<Piece>,
) -> ([V; UNROLL], usize) {
    let width = 16 * V::LANES;
    if !fronts.framed {
        fronts.frame();
    }
    // SAFETY: all accesses are within the chunks, which are within the pieces; fronts are filled before they are read.
    unsafe {
        let mut a = [V::zero(); UNROLL];
        a[UNROLL - 1] = a[UNROLL - 1].with_last(block);
        let four: V = load_keys(&keys_of::<V>().ahead[UNROLL]);
        let beyond: V = load_keys(&BEYOND[V::LANES]);
        let Piece {
            mut from,
            mut to,
            len,
        } = piece;
        if !fronts.filled {
            fronts.all[fronts.turn].fill::<V, COPY>(from, to);
        }
        let end = len / CHUNK * CHUNK;
        let mut left = end;
        while left > 0 {
            left -= CHUNK;
            let (after, after_to) = (from.wrapping_add(CHUNK), to.wrapping_add(CHUNK));
            let other = &mut fronts.all[1 - fronts.turn];
            fronts.filled = true;
            match next {
                _ if left > 0 => other.fill::<V, COPY>(after, after_to),
                Some(next) if next.is_long::<V>() => other.fill::<V, COPY>(next.from, next.to),
                _ => fronts.filled = false,
            }
            let front = &fronts.all[fronts.turn];
            // Written out, as all that depends on the place is known then.
            macro_rules! steps {
                ($($step:literal)*) => {$(
                    if AWAY + $step * UNROLL * width < CHUNK {
                        let keys = if $step == 0 { beyond } else { four };
                        for i in 0..UNROLL {
                            let at = AWAY + ($step * UNROLL + i) * width;
                            let next = front.add_to(take::<V, COPY>(from, to, at), at);
                            a[i] = a[i].fold(keys, next);
                        }
                    }
                )*};
            }
            steps!(0 1 2 3 4 5 6 7 8 9);
            fronts.turn = 1 - fronts.turn;
            (from, to) = (after, after_to);
        }
        (a, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::icrc::polynomial::power;

    /// The order of x is 2^32 - 1, so x^-n is x to that less n.
    fn inverse_power(n: usize) -> u32 {
        power(u32::MAX as usize - n)
    }

    #[test]
    fn what_is_taken_out_is_added_elsewhere() {
        let sum = DISTANCES
            .iter()
            .fold(0, |sum, d| sum ^ inverse_power(8 * d));
        assert_eq!(sum, power(0));
        assert!(DISTANCES.iter().all(|d| (AWAY..=CHUNK - AWAY).contains(d)));
    }
}
