//! Copies of payloads between mapped memory and packets, of up to a path MTU.
//!
//! A call of the C library's `memcpy` costs more than to move 64 bytes, and above 256 bytes it falls behind a plain loop of vector
//! registers on the CPUs that we measured (`docs/performance.md`).
//!
//! The program writes to mapped memory whenever it likes, so there is never a reference to it, by which the compiler could take for
//! granted that it stays as it is: only addresses and lengths, whose bytes are loaded by vector and integer loads. These are not volatile
//! (a volatile load of a vector needs an aligned address), so the language promises nothing of *which* bytes they find while another
//! process writes; that they are bytes, and those which are stored here, is all that is relied on. Nothing is decided by them where they lie:
//! what is to be checked (work requests, indices) is copied by volatile loads first (`lcore/queue.rs`), and what is to be summed is summed
//! as it was stored (`engine/src/wire/icrc`).

use core::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm_storeu_si128, _mm256_loadu_si256, _mm256_storeu_si256,
};

/// Longer ones are worth a call.
const SHORT: usize = 256;

/// Copies `len` bytes.
///
/// # Safety
///
/// They can be read at `from` and written at `to`, and the two do not overlap. Another process may write to either meanwhile: then
/// any mix of bytes is what is copied.
#[inline(always)]
pub unsafe fn bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if len > SHORT {
            long(from, to, len);
        } else {
            short(from, to, len);
        }
    }
}

/// Two halves that overlap where `len` is no power of two.
///
/// # Safety
///
/// As for [`bytes`]; a `T` is half of `len` at least, and `len` at most.
#[inline(always)]
unsafe fn halves<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: both halves are inside; unaligned accesses of integers.
    unsafe {
        let a = from.cast::<T>().read_unaligned();
        let b = from.add(last).cast::<T>().read_unaligned();
        to.cast::<T>().write_unaligned(a);
        to.add(last).cast::<T>().write_unaligned(b);
    }
}

/// # Safety
///
/// As for [`bytes`].
#[inline(always)]
unsafe fn short(from: *const u8, to: *mut u8, len: usize) {
    const STEP: usize = size_of::<__m128i>();
    // SAFETY: all accesses are inside of the first `len` bytes; SSE2 is part of x86-64.
    unsafe {
        match len {
            0 => {}
            1 => to.write(from.read()),
            2..4 => halves::<u16>(from, to, len),
            4..8 => halves::<u32>(from, to, len),
            8..16 => halves::<u64>(from, to, len),
            16..=32 => halves::<__m128i>(from, to, len),
            33..=64 => {
                // Two from the front and two from the end; they overlap where there are fewer than 64.
                let (second, third, last) = (STEP, len - 2 * STEP, len - STEP);
                let pieces =
                    [0, second, third, last].map(|at| _mm_loadu_si128(from.add(at).cast()));
                for (at, piece) in [0, second, third, last].into_iter().zip(pieces) {
                    _mm_storeu_si128(to.add(at).cast(), piece);
                }
            }
            _ => {
                let last = len - STEP;
                let mut at = 0;
                while at < last {
                    let piece = _mm_loadu_si128(from.add(at).cast());
                    _mm_storeu_si128(to.add(at).cast(), piece);
                    at += STEP;
                }
                let piece = _mm_loadu_si128(from.add(last).cast());
                _mm_storeu_si128(to.add(last).cast(), piece);
            }
        }
    }
}

/// # Safety
///
/// As for [`bytes`].
#[inline(never)]
unsafe fn long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the CPU was asked.
    unsafe {
        if std::arch::is_x86_feature_detected!("avx2") {
            wide(from, to, len);
        } else {
            core::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

/// # Safety
///
/// As for [`bytes`], and there are 32 bytes at least.
#[target_feature(enable = "avx2")]
unsafe fn wide(from: *const u8, to: *mut u8, len: usize) {
    const STEP: usize = size_of::<__m256i>();
    const AT_ONCE: usize = 4;
    let last = len - STEP;
    // Stores that cross cache lines cost more than loads that do: they are aligned, behind an unaligned first one.
    let mut at = STEP - to.addr() % STEP;
    // SAFETY: all accesses are inside of the first `len` bytes.
    unsafe {
        let first = _mm256_loadu_si256(from.cast());
        _mm256_storeu_si256(to.cast(), first);
        while at + AT_ONCE * STEP <= len {
            let (source, target) = (from.add(at), to.add(at));
            // Written out, as closures now and then are not inlined here, and then each register goes by memory.
            let a = _mm256_loadu_si256(source.cast());
            let b = _mm256_loadu_si256(source.add(STEP).cast());
            let c = _mm256_loadu_si256(source.add(2 * STEP).cast());
            let d = _mm256_loadu_si256(source.add(3 * STEP).cast());
            _mm256_storeu_si256(target.cast(), a);
            _mm256_storeu_si256(target.add(STEP).cast(), b);
            _mm256_storeu_si256(target.add(2 * STEP).cast(), c);
            _mm256_storeu_si256(target.add(3 * STEP).cast(), d);
            at += AT_ONCE * STEP;
        }
        while at < last {
            let piece = _mm256_loadu_si256(from.add(at).cast());
            _mm256_storeu_si256(to.add(at).cast(), piece);
            at += STEP;
        }
        let piece = _mm256_loadu_si256(from.add(last).cast());
        _mm256_storeu_si256(to.add(last).cast(), piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
        let source: Vec<u8> = (0..8192u32).map(|i| (i * 7 + 1) as u8).collect();
        let lengths = (0..600).chain([1024, 2048, 4091, 4096, 4097]);
        for (n, len) in lengths.enumerate() {
            for (from, to) in [(0, 0), (n % 32, n % 31), (54, 64), (5, 32)] {
                let mut target = vec![0xeeu8; 4300];
                // SAFETY: both ranges are inside of their vectors.
                unsafe { bytes(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                assert_eq!(
                    target[to..to + len],
                    source[from..from + len],
                    "{len} bytes"
                );
                let beside = target[..to].iter().chain(&target[to + len..]);
                assert!(beside.copied().all(|b| b == 0xee), "beside {len} bytes");
            }
        }
    }
}
