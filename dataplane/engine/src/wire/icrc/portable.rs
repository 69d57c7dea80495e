//! The kernel for every CPU: tables, eight bytes at a time.
//!
//! It keeps the block of [`super::fold`] too, with all but its last four bytes zero. As a register that has taken all but the last
//! four bytes of a message, with those four added, is the message modulo the polynomial, no division is needed.

use super::fold::Blocks;
use super::header::Family;
use super::kernel::Kernel;
use super::{BATCH, Begin, Check, Seal};

pub(super) static PORTABLE: Kernel = Kernel {
    name: "portable",
    needs: "nothing",
    present: || true,
    append,
    copy,
    registers,
    check,
    seal,
};

/// The register after more bytes.
#[cfg(target_arch = "x86_64")]
fn update(mut register: u32, bytes: &[u8]) -> u32 {
    use super::polynomial::TABLES;

    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let value = word.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)) ^ u64::from(register);
        register = (0..8).fold(0, |sum, i| {
            sum ^ TABLES[7 - i][usize::from((value >> (8 * i)) as u8)]
        });
    }
    words.remainder().iter().fold(register, |register, byte| {
        TABLES[0][usize::from(register as u8 ^ byte)] ^ (register >> 8)
    })
}

/// The register after more bytes, by what the CPU has instead of x86's carry-less multiplication.
#[cfg(not(target_arch = "x86_64"))]
fn update(register: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!register);
    hasher.update(bytes);
    !hasher.finalize()
}

fn after(before: u128, bytes: &[u8]) -> u128 {
    let block = before.to_le_bytes();
    let (register, last) = if let Some((bytes, last)) = bytes.split_last_chunk::<4>() {
        (update(update(0, &block), bytes), *last)
    } else {
        // The last four are partly of the block.
        let (taken, kept) = block.split_at(12 + bytes.len());
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(kept.iter().chain(bytes)) {
            *to = *from;
        }
        (update(0, taken), last)
    };
    u128::from(register ^ u32::from_le_bytes(last)) << 96
}

// SAFETY of all: what the caller of a `Kernel` promises.

unsafe fn append(before: u128, from: *const u8, len: usize) -> u128 {
    // SAFETY: good for reads of `len` bytes.
    after(before, unsafe { core::slice::from_raw_parts(from, len) })
}

unsafe fn copy(before: u128, from: *const u8, to: *mut u8, len: usize) -> u128 {
    // SAFETY: good for reads and writes of `len` bytes, and apart. What is summed is what was stored.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, len);
        append(before, to, len)
    }
}

unsafe fn registers(blocks: &Blocks, _: usize) -> [u32; BATCH] {
    blocks.map(|block| update(0, &block.to_le_bytes()))
}

/// The block of the headers from eight bytes before the IP header on.
unsafe fn headers(start: *const u8, family: Family) -> u128 {
    // SAFETY: good for reads of that many bytes.
    let start = unsafe { core::slice::from_raw_parts(start, family.span()) };
    after(0, &family.masked(start))
}

unsafe fn check(checks: &[Check<'_>]) -> u64 {
    let one = |check: &Check<'_>| {
        // SAFETY: a `Check` has borrowed the bytes that it speaks of.
        let block = unsafe {
            let rest = check.start.add(check.family.span());
            append(
                headers(check.start, check.family),
                rest,
                check.rest as usize,
            )
        };
        check.found == !update(0, &block.to_le_bytes())
    };
    let bits = checks.iter().enumerate();
    bits.fold(0, |good, (i, check)| good | u64::from(one(check)) << i)
}

unsafe fn seal(seals: &mut [Seal<'_>]) {
    for seal in seals {
        // SAFETY: a `Seal` has borrowed its frame, and its lengths add up to that of the frame.
        let block = unsafe {
            let shape = seal.shape;
            let begin = match shape.begin() {
                Begin::Headers(family) => headers(seal.start, family),
                Begin::State => u128::from_le_bytes(seal.state),
            };
            let rest = seal.start.add(shape.begin().span());
            let mut len = shape.ready();
            if shape.copies() {
                let (to, payload) = (rest.add(len), shape.payload());
                core::ptr::copy_nonoverlapping(seal.source, to, payload);
                to.add(payload).write_bytes(0, shape.pad());
                len += payload + shape.pad();
            }
            append(begin, rest, len)
        };
        let icrc = !update(0, &block.to_le_bytes());
        // SAFETY: the frame has four bytes there.
        unsafe { seal.write(seal.shape.icrc_offset(), icrc) };
    }
}
