//! What a kernel that is wrong on some CPU meets before it is used.

use super::emulated;
use crate::wire::icrc::kernel::{Choice, Kernel};
use crate::wire::icrc::portable::PORTABLE;
use crate::wire::icrc::sparse::CHUNK;
use crate::wire::icrc::{BATCH, Check, Seal, fold::Blocks, proof};

/// The portable kernel with a change.
fn broken(change: impl FnOnce(&mut Kernel)) -> &'static Kernel {
    let mut kernel = Kernel {
        name: "broken",
        needs: "nothing",
        present: || true,
        ..PORTABLE
    };
    change(&mut kernel);
    Box::leak(Box::new(kernel))
}

// SAFETY of all: what the caller of a `Kernel` promises, handed on to the portable one.

unsafe fn append_some(before: u128, from: *const u8, len: usize) -> u128 {
    // SAFETY: as above.
    unsafe { (PORTABLE.append)(before, from, len) ^ u128::from(len == 279) << 100 }
}

unsafe fn append_long(before: u128, from: *const u8, len: usize) -> u128 {
    // SAFETY: as above.
    unsafe { (PORTABLE.append)(before, from, len) ^ u128::from(len >= 4096) << 127 }
}

/// The sum is that of what was to be copied, but something else was.
unsafe fn copy_wrong(before: u128, from: *const u8, to: *mut u8, len: usize) -> u128 {
    // SAFETY: as above.
    unsafe {
        let after = (PORTABLE.copy)(before, from, to, len);
        if len == 95 {
            *to.add(94) ^= 1;
        }
        after
    }
}

unsafe fn copy_beyond(before: u128, from: *const u8, to: *mut u8, len: usize) -> u128 {
    // SAFETY: as above; and the test leaves room behind.
    unsafe {
        let after = (PORTABLE.copy)(before, from, to, len);
        to.add(len).write_bytes(0, usize::from(len % 32 == 31));
        after
    }
}

unsafe fn registers_wrong(blocks: &Blocks, count: usize) -> [u32; BATCH] {
    // SAFETY: as above.
    let mut registers = unsafe { (PORTABLE.registers)(blocks, count) };
    registers[BATCH - 1] ^= u32::from(count == BATCH);
    registers
}

unsafe fn check_blind(checks: &[Check<'_>]) -> u64 {
    u64::MAX >> (64 - checks.len())
}

unsafe fn check_wrong(checks: &[Check<'_>]) -> u64 {
    // SAFETY: as above.
    unsafe { (PORTABLE.check)(checks) & !(1 << 13) }
}

/// Only where some go side by side, and only the last of those.
unsafe fn seal_wrong(seals: &mut [Seal<'_>]) {
    // SAFETY: as above; a frame has an ICRC behind its last byte.
    unsafe {
        (PORTABLE.seal)(seals);
        if let Some(seal) = seals.get_mut(BATCH - 1) {
            let at = seal.shape.icrc_offset();
            *seal.start.add(at + 3) ^= 0x80;
        }
    }
}

/// Only where long payloads are shortened, and only behind another of those.
unsafe fn seal_long_wrong(seals: &mut [Seal<'_>]) {
    // SAFETY: as above.
    unsafe {
        (PORTABLE.seal)(seals);
        for i in 1..seals.len() {
            let [before, seal] = [&seals[i - 1], &seals[i]].map(|seal| seal.shape.payload());
            if before.min(seal) >= 2 * CHUNK {
                let seal = &mut seals[i];
                *seal.start.add(seal.shape.icrc_offset()) ^= 1;
            }
        }
    }
}

unsafe fn check_long_wrong(checks: &[Check<'_>]) -> u64 {
    let long = |i: usize| checks[i].rest as usize >= 2 * CHUNK;
    let behind = (1..checks.len()).filter(|i| long(i - 1) && long(*i));
    // SAFETY: as above.
    let good = unsafe { (PORTABLE.check)(checks) };
    behind.fold(good, |good, i| good & !(1 << i))
}

#[test]
fn what_every_kernel_of_this_build_shows() {
    for kernel in Kernel::all() {
        assert!(kernel.agrees(), "{kernel:?}");
    }
    // Slow, so only one of them.
    assert!(proof::agrees(&emulated::LANES_2));
}

#[test]
fn a_wrong_kernel_is_found() {
    let changes: [fn(&mut Kernel); 10] = [
        |kernel| kernel.append = append_some,
        |kernel| kernel.append = append_long,
        |kernel| kernel.copy = copy_wrong,
        |kernel| kernel.copy = copy_beyond,
        |kernel| kernel.registers = registers_wrong,
        |kernel| kernel.check = check_blind,
        |kernel| kernel.check = check_wrong,
        |kernel| kernel.seal = seal_wrong,
        |kernel| kernel.seal = seal_long_wrong,
        |kernel| kernel.check = check_long_wrong,
    ];
    assert!(broken(|_| ()).agrees());
    for (i, change) in changes.into_iter().enumerate() {
        assert!(!broken(change).agrees(), "change {i}");
    }
}

#[test]
fn the_next_one_is_taken() {
    let first = broken(|kernel| kernel.append = append_long);
    let second = broken(|kernel| kernel.seal = seal_wrong);
    let sound = broken(|kernel| kernel.name = "sound");
    let choice = Choice::of([first, second, sound, &PORTABLE].into_iter());
    assert_eq!(choice.kernel.name(), "sound");
    assert_eq!(choice.wrong.len(), 2);
    let choice = Choice::of([first].into_iter());
    assert_eq!(choice.kernel.name(), "portable");
    assert!(Choice::of(Kernel::all()).wrong.is_empty());
}
