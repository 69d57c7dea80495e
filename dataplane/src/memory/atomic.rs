//! Operations on 8 bytes of a program's memory: what they do, and how they are done where the memory is not mapped here.
//!
//! In mapped memory an operation is an instruction of the CPU ([`super::Window::execute`]), so it is atomic for
//! everybody: peers, the program's own atomics, other processes that share the memory. Through `/proc/self/mem` it is a read
//! and a write. A lock makes those of one program, on whichever of its open devices, exclude each other; the program itself
//! may write in between. That is what `IBV_ATOMIC_HCA` promises: atomic among the operations of the device.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use super::helper::Moved;

/// What is done to a word at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// `swap` is stored if `compare` is there.
    CompareSwap {
        /// What is to be there.
        compare: u64,
        /// What is stored.
        swap: u64,
    },
    /// This is added, modulo 2^64.
    FetchAdd(u64),
    /// This is stored.
    Store(u64),
}

impl AtomicOp {
    /// What is there afterwards.
    pub const fn apply(self, before: u64) -> u64 {
        match self {
            AtomicOp::CompareSwap { compare, swap } if before == compare => swap,
            AtomicOp::CompareSwap { .. } => before,
            AtomicOp::FetchAdd(add) => before.wrapping_add(add),
            AtomicOp::Store(value) => value,
        }
    }
}

/// What the operations of one program exclude each other by. Only memory threads of that program take it, which may wait for
/// the program's memory as long as they like.
#[derive(Debug, Default)]
pub struct ProgramLock(Mutex<()>);

impl ProgramLock {
    fn take(&self) -> MutexGuard<'_, ()> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Executes `op` at `addr` of the program whose `/proc/self/mem` this is; with what was there before, 0 for a store.
pub fn execute(mem: &OwnedFd, lock: &ProgramLock, addr: u64, op: AtomicOp) -> (Moved, u64) {
    let Ok(offset) = libc::off_t::try_from(addr) else {
        return (Moved::Fault, 0);
    };
    let _guard = lock.take();
    let mut before = 0u64;
    // A store need not know what was there.
    if !matches!(op, AtomicOp::Store(_)) {
        // SAFETY: reads at most eight bytes into a local.
        let ended =
            ended(|| unsafe { libc::pread(mem.as_raw_fd(), (&raw mut before).cast(), 8, offset) });
        if ended != Moved::Done || op.apply(before) == before {
            return (ended, before);
        }
    }
    let after = op.apply(before);
    // SAFETY: writes eight bytes of a local.
    let ended = self::ended(|| unsafe {
        libc::pwrite(mem.as_raw_fd(), (&raw const after).cast(), 8, offset)
    });
    (ended, before)
}

/// Calls until no signal interrupts. Nothing moved means that the address space is gone, as for [`super::helper`]'s copies.
fn ended(mut call: impl FnMut() -> libc::ssize_t) -> Moved {
    loop {
        match call() {
            8 => return Moved::Done,
            0 => return Moved::Gone,
            n if n < 0
                && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return Moved::Fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::Arc;

    fn mem() -> OwnedFd {
        let mem = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        mem.unwrap().into()
    }

    #[test]
    fn the_kernel_path_does_the_same_as_the_instructions() {
        let (mem, lock) = (mem(), ProgramLock::default());
        let mut word = Box::new(5u64);
        let addr = &raw mut *word as u64;
        let run = |op| execute(&mem, &lock, addr, op);
        let swap = |compare, swap| AtomicOp::CompareSwap { compare, swap };
        assert_eq!(run(AtomicOp::FetchAdd(u64::MAX)), (Moved::Done, 5));
        assert_eq!(run(swap(5, 7)), (Moved::Done, 4));
        assert_eq!(run(swap(4, 7)), (Moved::Done, 4));
        assert_eq!(run(AtomicOp::Store(9)), (Moved::Done, 0));
        assert_eq!(run(AtomicOp::FetchAdd(0)), (Moved::Done, 9));
        assert_eq!(std::hint::black_box(&*word), &9);
        assert_eq!(
            execute(&mem, &lock, 16, AtomicOp::FetchAdd(1)).0,
            Moved::Fault
        );
        assert_eq!(
            execute(&mem, &lock, u64::MAX - 7, swap(0, 0)).0,
            Moved::Fault
        );
    }

    #[test]
    fn threads_of_one_program_exclude_each_other() {
        let lock = Arc::new(ProgramLock::default());
        let word = Box::leak(Box::new(0u64));
        let addr = &raw mut *word as u64;
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    let mem = mem();
                    for _ in 0..2_000 {
                        let done = execute(&mem, &lock, addr, AtomicOp::FetchAdd(1));
                        assert_eq!(done.0, Moved::Done);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(execute(&mem(), &lock, addr, AtomicOp::FetchAdd(0)).1, 6_000);
    }
}
