//! Vectors of x86-64, and the kernels of [`super::fold`] compiled for each.

use core::arch::x86_64::*;

use super::fold::{self, Blocks, Vector};
use super::kernel::Kernel;
use super::{BATCH, Check, Seal, lockstep};

impl Vector for __m128i {
    const LANES: usize = 1;
    type Block = __m128i;
    type Header = __m128i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_loadu_si128(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_storeu_si128(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn join([block, ..]: [Self; 4]) -> Self {
        block
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_setzero_si128() }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_xor_si128(self, other) }
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_or_si128(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_clmulepi64_si128::<HALVES>(self, other) }
    }
    #[inline(always)]
    unsafe fn high(self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_srli_si128::<8>(self) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; 4]) -> [Self; 4] {
        rows
    }
    #[inline(always)]
    unsafe fn last(self) -> Self {
        self
    }
    #[inline(always)]
    unsafe fn with_last(self, block: Self) -> Self {
        block
    }
    #[inline(always)]
    unsafe fn sum(self) -> Self {
        self
    }
}

#[cfg(has_vpclmulqdq)]
#[allow(clippy::incompatible_msrv)] // compiled only where the compiler has it: build.rs
impl Vector for __m256i {
    const LANES: usize = 2;
    type Block = __m128i;
    type Header = __m256i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_storeu_si256(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn join([low, high, ..]: [__m128i; 4]) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_set_m128i(high, low) }
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_xor_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_or_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_clmulepi64_epi128::<HALVES>(self, other) }
    }
    #[inline(always)]
    unsafe fn high(self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_srli_si256::<8>(self) }
    }
    #[inline(always)]
    unsafe fn transpose([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe {
            let low = _mm256_permute2x128_si256::<0x20>(a, b);
            let high = _mm256_permute2x128_si256::<0x31>(a, b);
            [low, high, c, d]
        }
    }
    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_extracti128_si256::<1>(self) }
    }
    #[inline(always)]
    unsafe fn with_last(self, block: __m128i) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm256_inserti128_si256::<1>(self, block) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> __m128i {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm_xor_si128(_mm256_castsi256_si128(self), self.last()) }
    }
}

#[cfg(has_vpclmulqdq)]
#[allow(clippy::incompatible_msrv)] // compiled only where the compiler has it: build.rs
impl Vector for __m512i {
    const LANES: usize = 4;
    type Block = __m128i;
    type Header = __m256i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_storeu_si512(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn join([a, b, c, d]: [__m128i; 4]) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe {
            let (low, high) = (_mm256_set_m128i(b, a), _mm256_set_m128i(d, c));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_xor_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_or_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply<const HALVES: i32>(self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_clmulepi64_epi128::<HALVES>(self, other) }
    }
    #[inline(always)]
    unsafe fn high(self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_bsrli_epi128::<8>(self) }
    }
    #[inline(always)]
    unsafe fn transpose([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe {
            let even_ab = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b); // a0 a2 b0 b2
            let odd_ab = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
            let even_cd = _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d);
            let odd_cd = _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d);
            [
                _mm512_shuffle_i64x2::<0b10_00_10_00>(even_ab, even_cd),
                _mm512_shuffle_i64x2::<0b10_00_10_00>(odd_ab, odd_cd),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(even_ab, even_cd),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(odd_ab, odd_cd),
            ]
        }
    }
    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_extracti32x4_epi32::<3>(self) }
    }
    #[inline(always)]
    unsafe fn with_last(self, block: __m128i) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe { _mm512_inserti32x4::<3>(self, block) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> __m128i {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe {
            let high = _mm512_extracti64x4_epi64::<1>(self);
            _mm256_xor_si256(_mm512_castsi512_si256(self), high).sum()
        }
    }
    /// The sum of three in one instruction.
    #[inline(always)]
    unsafe fn fold(self, keys: Self, other: Self) -> Self {
        // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
        unsafe {
            let (low, high) = (self.multiply::<0x00>(keys), self.multiply::<0x11>(keys));
            _mm512_ternarylogic_epi64::<0x96>(low, high, other)
        }
    }
}

/// A kernel of [`fold`] for one kind of vector, compiled with its instructions.
macro_rules! kernel {
    ($module:ident, $kernel:ident, $vector:ty, $name:literal, $needs:literal, [$($feature:tt),*], $enabled:literal) => {
        mod $module {
            use super::*;

            type Block = <$vector as Vector>::Block;

            #[inline(always)]
            unsafe fn block(value: u128) -> Block {
                // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
                unsafe { Block::load((&raw const value).cast()) }
            }

            #[inline(always)]
            unsafe fn value(block: Block) -> u128 {
                let mut value = 0u128;
                // SAFETY: the caller's promise: the CPU has the instruction, and pointers are good for a vector.
                unsafe { block.store((&raw mut value).cast()) };
                value
            }

            // SAFETY of all: `Kernel` hands these out only where the CPU has the features; the rest is the caller's.
            #[target_feature(enable = $enabled)]
            unsafe fn append(before: u128, from: *const u8, len: usize) -> u128 {
                // SAFETY: as above.
                unsafe {
                    let to = core::ptr::null_mut();
                    value(fold::append::<$vector, false>(block(before), from, to, len))
                }
            }

            #[target_feature(enable = $enabled)]
            unsafe fn copy(before: u128, from: *const u8, to: *mut u8, len: usize) -> u128 {
                // SAFETY: as above.
                unsafe { value(fold::append::<$vector, true>(block(before), from, to, len)) }
            }

            #[target_feature(enable = $enabled)]
            unsafe fn registers(blocks: &Blocks, count: usize) -> [u32; BATCH] {
                // SAFETY: as above.
                unsafe { fold::registers::<$vector>(blocks, count) }
            }

            #[target_feature(enable = $enabled)]
            unsafe fn check(checks: &[Check<'_>]) -> u64 {
                // SAFETY: as above.
                unsafe { fold::check::<$vector>(checks, check_alike) }
            }

            // Functions of their own, as they need all registers; that is asked for, and rustc 1.95 has one for two lanes all the same.
            #[inline(never)]
            #[target_feature(enable = $enabled)]
            unsafe fn check_alike(checks: &[Check<'_>]) -> (u64, usize) {
                // SAFETY: as above.
                unsafe { lockstep::check::<$vector>(checks) }
            }

            #[target_feature(enable = $enabled)]
            unsafe fn seal(seals: &mut [Seal<'_>]) {
                // SAFETY: as above.
                unsafe { fold::seal::<$vector>(seals, seal_alike) }
            }

            #[inline(never)]
            #[target_feature(enable = $enabled)]
            unsafe fn seal_alike(seals: &mut [Seal<'_>]) -> usize {
                // SAFETY: as above.
                unsafe { lockstep::seal::<$vector>(seals) }
            }

            fn present() -> bool {
                true $(&& is_x86_feature_detected!($feature))*
            }

            pub(super) static KERNEL: Kernel = Kernel {
                name: $name,
                needs: $needs,
                present,
                append,
                copy,
                registers,
                check,
                seal,
            };
        }

        pub(super) static $kernel: &Kernel = &$module::KERNEL;
    };
}

kernel!(
    one_lane,
    LANES_1,
    __m128i,
    "pclmulqdq",
    "PCLMULQDQ and SSE4.1",
    ["pclmulqdq", "sse4.1"],
    "pclmulqdq,sse4.1"
);
#[cfg(has_vpclmulqdq)]
kernel!(
    two_lanes,
    LANES_2,
    __m256i,
    "vpclmulqdq-256",
    "VPCLMULQDQ and AVX2",
    ["vpclmulqdq", "pclmulqdq", "avx2"],
    "vpclmulqdq,pclmulqdq,avx2"
);
#[cfg(has_vpclmulqdq)]
kernel!(
    four_lanes,
    LANES_4,
    __m512i,
    "vpclmulqdq-512",
    "VPCLMULQDQ and AVX-512 (F and BW)",
    ["vpclmulqdq", "pclmulqdq", "avx2", "avx512f", "avx512bw"],
    "vpclmulqdq,pclmulqdq,avx2,avx512f,avx512bw"
);
