//! Vectors without vector instructions, so that the algorithm for any number of lanes is tested on any CPU.

use crate::wire::icrc::fold::{self, Blocks, Vector};
use crate::wire::icrc::kernel::Kernel;
use crate::wire::icrc::{BATCH, Check, Seal, lockstep};

#[derive(Clone, Copy)]
struct Lanes<const N: usize>([u128; N]);

/// Number of lanes of the vector for headers.
trait Headers {
    type Vector: Vector<Block = Lanes<1>>;
}
impl Headers for Lanes<1> {
    type Vector = Lanes<1>;
}
impl Headers for Lanes<2> {
    type Vector = Lanes<2>;
}
impl Headers for Lanes<4> {
    type Vector = Lanes<2>;
}

impl<const N: usize> Vector for Lanes<N>
where
    Lanes<N>: Headers,
{
    const LANES: usize = N;
    type Block = Lanes<1>;
    type Header = <Lanes<N> as Headers>::Vector;

    unsafe fn load(from: *const u8) -> Self {
        Lanes(core::array::from_fn(|i| {
            // SAFETY: the caller's promise, lane by lane.
            u128::from_le_bytes(unsafe { from.add(16 * i).cast::<[u8; 16]>().read() })
        }))
    }
    unsafe fn store(self, to: *mut u8) {
        for (i, lane) in self.0.into_iter().enumerate() {
            // SAFETY: the caller's promise, lane by lane.
            unsafe { to.add(16 * i).cast::<[u8; 16]>().write(lane.to_le_bytes()) };
        }
    }
    unsafe fn join(blocks: [Lanes<1>; 4]) -> Self {
        Lanes(core::array::from_fn(|i| blocks[i].0[0]))
    }
    unsafe fn zero() -> Self {
        Lanes([0; N])
    }
    unsafe fn xor(self, other: Self) -> Self {
        Lanes(core::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }
    unsafe fn or(self, other: Self) -> Self {
        Lanes(core::array::from_fn(|i| self.0[i] | other.0[i]))
    }
    unsafe fn multiply<const HALVES: i32>(self, other: Self) -> Self {
        let half = |lane: u128, high: bool| {
            if high {
                lane >> 64
            } else {
                lane & u128::from(u64::MAX)
            }
        };
        Lanes(core::array::from_fn(|i| {
            let a = half(self.0[i], HALVES & 1 != 0);
            let b = half(other.0[i], HALVES & 0x10 != 0);
            (0..64)
                .filter(|bit| b >> bit & 1 == 1)
                .fold(0, |sum, bit| sum ^ a << bit)
        }))
    }
    unsafe fn high(self) -> Self {
        Lanes(self.0.map(|lane| lane >> 64))
    }
    unsafe fn transpose(rows: [Self; 4]) -> [Self; 4] {
        let mut columns = rows;
        for (i, column) in columns.iter_mut().enumerate().take(N) {
            *column = Lanes(core::array::from_fn(|lane| rows[lane].0[i]));
        }
        columns
    }
    unsafe fn last(self) -> Lanes<1> {
        Lanes([self.0[N - 1]])
    }
    unsafe fn with_last(mut self, block: Lanes<1>) -> Self {
        self.0[N - 1] = block.0[0];
        self
    }
    unsafe fn sum(self) -> Lanes<1> {
        Lanes([self.0.into_iter().fold(0, |sum, lane| sum ^ lane)])
    }
}

macro_rules! emulated {
    ($kernel:ident, $lanes:literal, $name:literal) => {
        pub static $kernel: Kernel = Kernel {
            name: $name,
            needs: "nothing",
            present: || true,
            append: {
                unsafe fn append(before: u128, from: *const u8, len: usize) -> u128 {
                    let to = core::ptr::null_mut();
                    // SAFETY: the caller's promise, lane by lane.
                    unsafe {
                        fold::append::<Lanes<$lanes>, false>(Lanes([before]), from, to, len).0[0]
                    }
                }
                append
            },
            copy: {
                unsafe fn copy(before: u128, from: *const u8, to: *mut u8, len: usize) -> u128 {
                    // SAFETY: the caller's promise, lane by lane.
                    unsafe {
                        fold::append::<Lanes<$lanes>, true>(Lanes([before]), from, to, len).0[0]
                    }
                }
                copy
            },
            registers: {
                unsafe fn registers(blocks: &Blocks, count: usize) -> [u32; BATCH] {
                    // SAFETY: the caller's promise, lane by lane.
                    unsafe { fold::registers::<Lanes<$lanes>>(blocks, count) }
                }
                registers
            },
            check: {
                unsafe fn check(checks: &[Check<'_>]) -> u64 {
                    // SAFETY: the caller's promise, lane by lane.
                    unsafe {
                        fold::check::<Lanes<$lanes>>(checks, lockstep::check::<Lanes<$lanes>>)
                    }
                }
                check
            },
            seal: {
                unsafe fn seal(seals: &mut [Seal<'_>]) {
                    // SAFETY: the caller's promise, lane by lane.
                    unsafe { fold::seal::<Lanes<$lanes>>(seals, lockstep::seal::<Lanes<$lanes>>) }
                }
                seal
            },
        };
    };
}

emulated!(LANES_1, 1, "emulated, 128 bits");
emulated!(LANES_2, 2, "emulated, 256 bits");
emulated!(LANES_4, 4, "emulated, 512 bits");
