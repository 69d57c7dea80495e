//! A context: one open of a device. Its memory is never given back, so a stale pointer to it is harmless; closed
//! contexts are used again.
//!
//! The fast path rings a doorbell or arms a CQ in the shared context file, without a lock and without a system call
//! unless the lcore sleeps. Everything else is a request on the hidden control socket (`command`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use roceline_abi::control::{MAX_PAYLOAD, MemoryPolicy};
use roceline_abi::layout::{
    ARM_NEXT, ARM_NONE, ARM_OFFSET, ARM_SOLICITED, CLOSED_OFFSET, CONTROL_BYTES, DB_BELLS,
    DB_SLEEPING, DB_SUMMARY, DOORBELL_OFFSET, DOORBELL_STRIDE, MAX_CQS, MAX_LCORE_SLOTS, MAX_QPS,
    QP_SLOT_SHIFT,
};

use crate::end::End;
use crate::say::say_once;
use crate::sys::{self, Lock};
use crate::{memory, table};

/// One open of a device.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Context {
    /// The start of the context file; null unless the context is live in this process.
    map: AtomicPtr<u8>,
    /// Lcore slots with doorbells.
    slots: AtomicU32,
    /// Eventfd that wakes the lcore.
    wake: AtomicI32,
    /// The control socket, -1 without one.
    socket: AtomicI32,
    /// N of `uverbsN`.
    device: AtomicU32,
    /// Device and inode of the context file: whether an fd is still what it was.
    file_dev: AtomicU64,
    file_ino: AtomicU64,
    /// Tells it from what it was before it was used again; 0 for the holder of the memory object.
    serial: AtomicU64,
    /// Which memory may be mapped, a [`MemoryPolicy`].
    memory: AtomicU32,
    /// The next in the list of all contexts.
    next: AtomicPtr<Context>,
    /// Free to be used again; changed under the table's lock.
    free: AtomicU32,
    /// Why no command can be answered any more: [`LOST`], [`PARENTS`], or 0.
    lost: AtomicU32,
    /// The end of the daemon as `end` sees it.
    pub(crate) end: End,
    /// One request at a time. Holding it is what allows the use of `reply`.
    pub(crate) lock: Lock,
    pub(crate) reply: UnsafeCell<[u8; MAX_PAYLOAD]>,
}

// SAFETY: all fields are atomics but `reply`, which only the holder of `lock` uses.
unsafe impl Sync for Context {}

/// The daemon is gone, or what leads to it.
const LOST: u32 = 1;
/// It is the parent's of this process.
const PARENTS: u32 = 2;

/// All contexts that were ever made, live or free.
static ALL: AtomicPtr<Context> = AtomicPtr::new(std::ptr::null_mut());
/// Memory objects that this process may have.
pub const OBJECTS: usize = 3;
/// Those that hold the memory objects.
static HOLDERS: [AtomicPtr<Context>; OBJECTS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; OBJECTS];

/// What a new context is made of.
#[derive(Debug)]
pub struct Parts {
    /// The context file.
    pub file: c_int,
    /// The control socket.
    pub socket: c_int,
    /// The wake eventfd.
    pub wake: c_int,
    /// N of `uverbsN`.
    pub device: u32,
    /// Lcore slots with doorbells.
    pub slots: u32,
    /// Which memory may be mapped.
    pub memory: MemoryPolicy,
}

impl Context {
    /// Makes a context and enters its fds in the table; errno if that fails.
    pub fn create(parts: &Parts) -> Result<(), c_int> {
        let (dev, ino) = sys::identity(parts.file).ok_or(libc::EIO)?;
        let map = sys::map(CONTROL_BYTES as usize, Some(parts.file)).ok_or(libc::ENOMEM)?;
        let held = table::LOCK.hold();
        let entered = Context::unused().ok_or(libc::ENOMEM).and_then(|c| {
            c.slots
                .store(parts.slots.min(MAX_LCORE_SLOTS as u32), Ordering::Relaxed);
            c.wake.store(parts.wake, Ordering::Relaxed);
            c.socket.store(parts.socket, Ordering::Relaxed);
            c.device.store(parts.device, Ordering::Relaxed);
            c.serial.store(memory::next_serial(), Ordering::Relaxed);
            c.memory.store(parts.memory as u32, Ordering::Relaxed);
            c.file_dev.store(dev, Ordering::Relaxed);
            c.file_ino.store(ino, Ordering::Relaxed);
            c.lost.store(0, Ordering::Relaxed);
            c.map.store(map, Ordering::Release);
            let entered = table::enter(parts.file, c, table::Role::Command, 0)
                && table::enter(parts.socket, c, table::Role::Hidden, 0)
                && table::enter(parts.wake, c, table::Role::Hidden, 0);
            if !entered {
                table::remove_all(c);
                c.map.store(std::ptr::null_mut(), Ordering::Release);
                return Err(libc::EMFILE);
            }
            c.free.store(0, Ordering::Relaxed);
            Ok(())
        });
        drop(held);
        if entered.is_err() {
            // SAFETY: our new mapping, which nobody knows yet.
            unsafe { sys::unmap(map, CONTROL_BYTES as usize) };
        }
        entered
    }

    /// A free context, or a new one. The table's lock is held by the caller.
    fn unused() -> Option<&'static Context> {
        if let Some(free) = all().iter().find(|c| c.free.load(Ordering::Relaxed) != 0) {
            return Some(free);
        }
        // Pages of zeroes are a context without a map, and they are never unmapped.
        let p = sys::map(size_of::<Context>(), None)?.cast::<Context>();
        // SAFETY: a new mapping of the right size; page alignment is more than enough; zeroes are valid.
        let new: &'static Context = unsafe { &*p };
        new.free.store(1, Ordering::Relaxed);
        new.socket.store(-1, Ordering::Relaxed);
        new.wake.store(-1, Ordering::Relaxed);
        new.next
            .store(ALL.load(Ordering::Relaxed), Ordering::Relaxed);
        ALL.store(p, Ordering::Release);
        Some(new)
    }

    /// Ends it: its last `cmd_fd` was taken out of the table.
    pub fn end(&self) {
        let map = self.map.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // A thread that still waits for a reply gets the end of the connection instead.
        let socket = self.socket.load(Ordering::Relaxed);
        if socket >= 0 && table::is_current(socket) {
            sys::shutdown(socket);
        }
        let request = self.lock.hold();
        let socket = self.socket.swap(-1, Ordering::Relaxed);
        let wake = self.wake.swap(-1, Ordering::Relaxed);
        drop(request);
        let held = table::LOCK.hold();
        // What was closed behind our back may be another file's by now.
        let ours = [socket, wake].map(|fd| fd >= 0 && table::is_current(fd));
        table::remove_all(self);
        self.end.clear();
        for (fd, ours) in [socket, wake].into_iter().zip(ours) {
            if ours {
                sys::close(fd);
            }
        }
        if !map.is_null() {
            // SAFETY: the map was taken out above. A thread that rings at this moment uses a closed fd.
            unsafe { sys::unmap(map, CONTROL_BYTES as usize) };
        }
        let serial = self.serial.load(Ordering::Relaxed);
        self.free.store(1, Ordering::Relaxed);
        drop(held);
        memory::ended(serial);
    }

    /// In the child of a fork: the daemon speaks with the parent only. What the child holds of the connection is
    /// closed, or it would outlive the parent.
    fn orphan(&self) {
        self.map.store(std::ptr::null_mut(), Ordering::Relaxed);
        for fd in [&self.socket, &self.wake] {
            let fd = fd.swap(-1, Ordering::Relaxed);
            if fd >= 0 {
                if table::is_current(fd) {
                    sys::close(fd);
                }
                table::remove(fd);
            }
        }
        self.lost.store(PARENTS, Ordering::Relaxed);
        self.end.orphan();
        self.lock.release();
    }

    /// A number of its own.
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// Which memory may be mapped.
    pub fn memory_policy(&self) -> MemoryPolicy {
        MemoryPolicy::from_u32(self.memory.load(Ordering::Relaxed))
    }

    /// Keeps the fd of memory object `which` hidden, under a context that is no open of a device. False if that cannot be.
    pub fn hold_file(fd: c_int, which: usize) -> bool {
        let Some((dev, ino)) = sys::identity(fd) else {
            return false;
        };
        let _held = table::LOCK.hold();
        let Some(c) = Context::unused() else {
            return false;
        };
        if !table::enter(fd, c, table::Role::Hidden, 0) {
            return false;
        }
        c.serial.store(0, Ordering::Relaxed);
        c.file_dev.store(dev, Ordering::Relaxed);
        c.file_ino.store(ino, Ordering::Relaxed);
        // Where a hidden fd is moved from, should the program want its number.
        c.wake.store(fd, Ordering::Relaxed);
        c.free.store(0, Ordering::Relaxed);
        HOLDERS[which].store(std::ptr::from_ref(c).cast_mut(), Ordering::Release);
        true
    }

    /// The fd of the memory object, if it is still that.
    pub fn held_file(&self) -> Option<c_int> {
        let fd = self.wake.load(Ordering::Relaxed);
        (fd >= 0 && self.is_file(fd)).then_some(fd)
    }

    /// Device and inode of its file.
    pub fn file_identity(&self) -> (u64, u64) {
        (
            self.file_dev.load(Ordering::Relaxed),
            self.file_ino.load(Ordering::Relaxed),
        )
    }

    /// N of `uverbsN`.
    pub fn device(&self) -> u32 {
        self.device.load(Ordering::Relaxed)
    }

    /// The control socket, while the daemon answers. The lock is held by the caller.
    pub fn socket(&self) -> Option<c_int> {
        let fd = self.socket.load(Ordering::Relaxed);
        if fd < 0 || self.is_lost() {
            return None;
        }
        if !table::is_current(fd) {
            self.lose();
            return None;
        }
        Some(fd)
    }

    /// Whether the daemon was found gone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != 0
    }

    /// Whether this process has it from its parent, by fork.
    pub fn is_parents(&self) -> bool {
        self.lost.load(Ordering::Relaxed) == PARENTS
    }

    /// Whether the connection has ended. Asks the system.
    pub fn is_cut(&self) -> bool {
        let socket = self.socket.load(Ordering::Relaxed);
        socket >= 0 && (sys::hung_up(socket) || !table::is_current(socket))
    }

    /// Whether it is open in this process.
    pub fn is_live(&self) -> bool {
        !self.map.load(Ordering::Relaxed).is_null()
    }

    /// Whether `fd` is the context file, or something else that got its number behind our back.
    pub fn is_file(&self, fd: c_int) -> bool {
        let ours = (
            self.file_dev.load(Ordering::Relaxed),
            self.file_ino.load(Ordering::Relaxed),
        );
        sys::identity(fd) == Some(ours)
    }

    /// The daemon is gone: commands fail from now on. Posting does not: as with a QP in the error state, what is posted
    /// completes with a flush error (`end`).
    pub fn lose(&self) {
        if self.lost.swap(LOST, Ordering::Relaxed) == 0 {
            self.say_end();
        }
    }

    /// Says that the daemon has ended, if it is that: not a program's own doing, nor a device that is being closed.
    #[cold]
    fn say_end(&self) {
        let socket = self.socket.load(Ordering::Relaxed);
        if !self.is_live() || socket < 0 || !table::is_current(socket) {
            return;
        }
        static SAID: AtomicBool = AtomicBool::new(false);
        say_once(
            &SAID,
            format_args!(
                "the daemon has ended, and uverbs{} of this program with it: what is posted is flushed, commands fail; \
                 once a daemon runs again, the device can be opened again",
                self.device()
            ),
        );
    }

    /// Gives a hidden fd another number because the program wants its own. The table's lock is held by the caller.
    pub fn move_hidden(&'static self, fd: c_int) {
        for place in [&self.socket, &self.wake] {
            if place.load(Ordering::Relaxed) == fd {
                let moved = crate::open::hide(fd);
                place.store(moved, Ordering::Relaxed);
                table::enter(moved, self, table::Role::Hidden, 0);
            }
        }
    }

    /// Rings the doorbell of a QP. EINVAL, as the kernel's driver says, for one that takes no send requests yet.
    #[inline]
    pub fn ring(&self, handle: u32) -> Result<(), c_int> {
        let (slot, index) = (handle >> QP_SLOT_SHIFT, handle & ((1 << QP_SLOT_SHIFT) - 1));
        let map = self.map.load(Ordering::Acquire);
        if map.is_null() {
            return Err(libc::EIO);
        }
        if slot >= self.slots.load(Ordering::Relaxed) || index as usize >= MAX_QPS {
            return Err(libc::EINVAL);
        }
        let area = DOORBELL_OFFSET + u64::from(slot) * DOORBELL_STRIDE;
        let word = u64::from(index / 64);
        // SAFETY: slot and index are in bounds, so all four words are inside the first CONTROL_BYTES, aligned; the
        // daemon accesses them atomically.
        let (closed, bell, summary, sleeping) = unsafe {
            let closed = map.add((CLOSED_OFFSET + 8 * word) as usize);
            let area = map.add(area as usize);
            (
                &*closed.cast::<AtomicU64>(),
                &*area.add((DB_BELLS + 8 * word) as usize).cast::<AtomicU64>(),
                &*area
                    .add((DB_SUMMARY + 8 * (word / 64)) as usize)
                    .cast::<AtomicU64>(),
                &*area.add(DB_SLEEPING as usize).cast::<AtomicU32>(),
            )
        };
        if closed.load(Ordering::Relaxed) & 1 << (index % 64) != 0 {
            return Err(libc::EINVAL);
        }
        // This orders the producer index before it and the two loads after it, as a fence would.
        bell.fetch_or(1 << (index % 64), Ordering::SeqCst);
        let bit = 1 << (word % 64);
        if summary.load(Ordering::SeqCst) & bit == 0 {
            summary.fetch_or(bit, Ordering::SeqCst);
        }
        // Whoever takes the flag back makes the call; the lcore sets it anew before its next sleep.
        if sleeping.load(Ordering::SeqCst) != 0 && sleeping.swap(0, Ordering::SeqCst) != 0 {
            self.wake_lcore();
        }
        Ok(())
    }

    #[cold]
    fn wake_lcore(&self) {
        let errno = sys::errno();
        let wake = self.wake.load(Ordering::Relaxed);
        if table::is_current(wake) {
            // A full counter wakes as well, so the result does not matter.
            sys::write_bytes(wake, &1u64.to_ne_bytes());
        }
        sys::set_errno(errno);
    }

    /// Asks for an event on the next completion, or on the next solicited one.
    #[inline]
    pub fn arm(&self, cq: u32, solicited: bool) -> Result<(), c_int> {
        let map = self.map.load(Ordering::Acquire);
        if map.is_null() {
            return Err(libc::EIO);
        }
        if cq as usize >= MAX_CQS {
            return Err(libc::EINVAL);
        }
        // SAFETY: in bounds, aligned, and accessed atomically by the daemon.
        let word = unsafe {
            &*map
                .add((ARM_OFFSET + 4 * u64::from(cq)) as usize)
                .cast::<AtomicU32>()
        };
        if solicited {
            // A request for any completion is not weakened (IBTA 11.4.2.2).
            let (seq, no) = (Ordering::SeqCst, Ordering::SeqCst);
            let _ = word.compare_exchange(ARM_NONE, ARM_SOLICITED, seq, no);
        } else {
            word.store(ARM_NEXT, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// The contexts that there were at a moment, live or free.
#[derive(Clone, Copy, Debug)]
pub struct All(*mut Context);

impl All {
    /// None.
    pub const NONE: All = All(std::ptr::null_mut());

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = &'static Context> {
        let at = |p: *mut Context| {
            // SAFETY: contexts are never freed.
            unsafe { p.as_ref() }
        };
        std::iter::successors(at(self.0), move |c| at(c.next.load(Ordering::Relaxed)))
    }
}

/// All contexts that were ever made; new ones come in front.
pub fn all() -> All {
    All(ALL.load(Ordering::Acquire))
}

/// At the end of the program: one that was never told anything but flush errors learns why.
pub fn say_ends() {
    if table::is_owner() {
        let open = all().iter().filter(|context| context.is_live());
        open.filter(|context| context.is_cut())
            .for_each(Context::lose);
    }
}

/// The context that holds memory object `which`, if there is one.
pub fn holder(which: usize) -> Option<&'static Context> {
    // SAFETY: contexts are never freed.
    unsafe { HOLDERS[which].load(Ordering::Acquire).as_ref() }
}

/// In the child of a fork: see [`Context::orphan`].
pub fn orphan_all() {
    all().iter().for_each(Context::orphan);
    for (which, place) in HOLDERS.iter().enumerate() {
        if let Some(holder) = holder(which) {
            place.store(std::ptr::null_mut(), Ordering::Relaxed);
            holder.free.store(1, Ordering::Relaxed);
        }
    }
}
