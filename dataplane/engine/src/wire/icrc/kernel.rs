//! The kernels by name, and the one that is used.

use core::sync::atomic::{AtomicPtr, Ordering};

use super::fold::Blocks;
use super::{BATCH, Check, IcrcState, LEN, Seal, portable, proof};

/// Environment variable that names the kernel; without it the fastest is used.
pub const ENV: &str = "ROCELINE_ICRC";

/// One way to compute ICRCs.
pub struct Kernel {
    pub(super) name: &'static str,
    pub(super) needs: &'static str,
    pub(super) present: fn() -> bool,
    pub(super) append: unsafe fn(u128, *const u8, usize) -> u128,
    pub(super) copy: unsafe fn(u128, *const u8, *mut u8, usize) -> u128,
    pub(super) registers: unsafe fn(&Blocks, usize) -> [u32; BATCH],
    pub(super) check: unsafe fn(&[Check<'_>]) -> u64,
    pub(super) seal: unsafe fn(&mut [Seal<'_>]),
}

/// Why there is no such kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The name is none of theirs.
    #[error("there is no ICRC kernel `{0}`: {names} exist", names = names(NAMES))]
    Unknown(String),
    /// The CPU has not the instructions.
    #[error("ICRC kernel `{0}` needs {1}, which this CPU has not")]
    Absent(&'static str, &'static str),
    /// The compiler was too old for it.
    #[error("ICRC kernel `{0}` is not in this build: it takes rustc 1.89")]
    NotBuilt(String),
    /// It does not compute what the portable one does.
    #[error("ICRC kernel `{0}` computes wrong ICRCs on this CPU")]
    Wrong(&'static str),
}

/// What was chosen.
#[derive(Clone, Debug)]
pub struct Choice {
    /// It agrees with the portable kernel.
    pub kernel: &'static Kernel,
    /// Faster ones, which this CPU has the instructions for, but which do not.
    pub wrong: Vec<&'static Kernel>,
}

impl Choice {
    /// The first of some, the fastest first, that agrees with the portable kernel.
    pub(super) fn of(kernels: impl Iterator<Item = &'static Kernel>) -> Choice {
        let mut wrong = Vec::new();
        for kernel in kernels {
            if proof::agrees(kernel) {
                return Choice { kernel, wrong };
            }
            wrong.push(kernel);
        }
        Choice {
            kernel: &portable::PORTABLE,
            wrong,
        }
    }
}

/// The names of all kernels, the fastest first.
pub const NAMES: &[&str] = &["vpclmulqdq-512", "vpclmulqdq-256", "pclmulqdq", "portable"];

/// What was built, the fastest first.
static ALL: &[&Kernel] = &[
    #[cfg(all(target_arch = "x86_64", has_vpclmulqdq))]
    super::x86::LANES_4,
    #[cfg(all(target_arch = "x86_64", has_vpclmulqdq))]
    super::x86::LANES_2,
    #[cfg(target_arch = "x86_64")]
    super::x86::LANES_1,
    &portable::PORTABLE,
];

/// What [`current`] answers; null until it is asked.
static CURRENT: AtomicPtr<Kernel> = AtomicPtr::new(core::ptr::null_mut());

fn names(names: &[&str]) -> String {
    names.join(", ")
}

impl Kernel {
    /// Those that this CPU can run, the fastest first.
    pub fn all() -> impl Iterator<Item = &'static Kernel> {
        ALL.iter().copied().filter(|kernel| (kernel.present)())
    }

    /// The kernel of that name.
    pub fn named(name: &str) -> Result<&'static Kernel, KernelError> {
        match ALL.iter().find(|kernel| kernel.name == name) {
            Some(kernel) if (kernel.present)() => Ok(kernel),
            Some(kernel) => Err(KernelError::Absent(kernel.name, kernel.needs)),
            None if NAMES.contains(&name) => Err(KernelError::NotBuilt(name.into())),
            None => Err(KernelError::Unknown(name.into())),
        }
    }

    /// The kernel that [`ENV`] names; if it names none, the fastest that this CPU can run. Kernels are tried before: one that
    /// does not agree with the portable one is an error where it was named, and else the next one is taken.
    ///
    /// # Errors
    /// When [`ENV`] names a kernel that is not to be had.
    pub fn choose() -> Result<Choice, KernelError> {
        match std::env::var_os(ENV) {
            Some(name) if !name.is_empty() => Kernel::try_out(&name.to_string_lossy()),
            _ => Ok(Choice::of(Kernel::all())),
        }
    }

    fn try_out(name: &str) -> Result<Choice, KernelError> {
        let choice = Choice::of(std::iter::once(Kernel::named(name)?));
        match choice.wrong.first() {
            Some(kernel) => Err(KernelError::Wrong(kernel.name)),
            None => Ok(choice),
        }
    }

    /// Whether it computes on this CPU what the portable one does.
    pub fn agrees(&self) -> bool {
        proof::agrees(self)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// From now on the functions of [`super`] use it.
    pub fn make_current(&'static self) {
        CURRENT.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// As [`super::verify_burst`], by this kernel.
    #[inline]
    pub fn verify_burst(&self, checks: &[Check<'_>]) -> u64 {
        // A bit each.
        let checks = &checks[..checks.len().min(u64::BITS as usize)];
        // SAFETY: the CPU has what the kernel needs, or nobody would have a reference to it.
        unsafe { (self.check)(checks) }
    }

    /// As [`super::seal_burst`], by this kernel.
    #[inline]
    pub fn seal_burst(&self, seals: &mut [Seal<'_>]) {
        // SAFETY: as above, and what `Seal::copy_from` promised of the sources.
        unsafe { (self.seal)(seals) }
    }

    /// As [`IcrcState::update`].
    #[inline]
    pub fn update(&self, state: &mut IcrcState, bytes: &[u8]) {
        // SAFETY: as above; a slice is good for its length.
        state.0 = unsafe { (self.append)(state.0, bytes.as_ptr(), bytes.len()) };
    }

    /// As [`IcrcState::copy_from`].
    ///
    /// # Safety
    ///
    /// `from` must be good for reads of as many bytes as `to` has, and apart from it.
    #[inline]
    pub unsafe fn copy_from(&self, state: &mut IcrcState, to: &mut [u8], from: *const u8) {
        // SAFETY: as above; of `from` the caller's promise.
        state.0 = unsafe { (self.copy)(state.0, from, to.as_mut_ptr(), to.len()) };
    }

    /// As [`super::finish_batch`].
    #[inline]
    pub fn finish_batch(&self, states: &[IcrcState]) -> [[u8; LEN]; BATCH] {
        let mut blocks = [0; BATCH];
        for (block, state) in blocks.iter_mut().zip(states) {
            *block = state.0;
        }
        // SAFETY: as above.
        let registers = unsafe { (self.registers)(&blocks, states.len().min(BATCH)) };
        registers.map(|register| (!register).to_le_bytes())
    }
}

impl core::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

/// The kernel that the functions of [`super`] use: that of the last [`Kernel::make_current`]; else what [`Kernel::choose`] says, or
/// what it says without [`ENV`] where that is an error. (Who starts a program should ask `choose` itself, and say what it says.)
#[inline]
pub fn current() -> &'static Kernel {
    // SAFETY: null, or from a `&'static Kernel`.
    match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        Some(kernel) => kernel,
        None => choose(),
    }
}

#[cold]
fn choose() -> &'static Kernel {
    let choice = Kernel::choose().unwrap_or_else(|_| Choice::of(Kernel::all()));
    choice.kernel.make_current();
    choice.kernel
}
