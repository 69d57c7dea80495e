//! Registered memory: which of it the daemon may map, and how that memory is made shareable and private again.
//!
//! In flow registrations and deregistrations on their way to the daemon (`command`), forks (`fork`) and advice (`calls`).
//! Out flow pieces for the daemon: pages of a region and where they lie in a memory object. What is in no piece is reached
//! through `/proc/self/mem`, which is always right; to map is only faster.
//!
//! | memory | what is done |
//! | --- | --- |
//! | private anonymous (heap, `mmap`) | changed to a mapping of our object, a sealed sparse memfd in which every address has the offset of its own number; private again when its last region goes |
//! | shared objects of the program (tmpfs, memfd, SysV) | their descriptor is passed |
//! | private huge pages (`MAP_HUGETLB`) | the same, with an object of such pages, whole pages at a time |
//! | all else (files, stacks, devices) | nothing |
//!
//! [`State`] has the regions of the process and the addresses that were changed. One lock guards it; whoever also needs a
//! context's lock takes that first, and `table::LOCK` last.

mod advice;
mod cover;
mod fork;
mod huge;
mod hugetlb;
mod list;
pub(crate) mod maps;
mod object;
mod pins;
mod regions;
mod share;
mod spans;
mod swap;
mod uffd;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use roceline_abi::control::{Kind, MemoryPolicy};

pub use advice::{Advice, advise, concerns};
pub use fork::{after_in_child, after_in_parent, before};

use self::list::List;
use self::maps::Vma;
use self::object::Objects;
use self::regions::Regions;
use self::spans::{Span, Spans};
use self::swap::{PAGE, Writers};
use self::uffd::Uffd;
use crate::context::Context;
use crate::say::say;
use crate::sys::{self, Held, Lock};
use crate::view::env;

/// Offsets in our object are addresses below this: the user half with four page-table levels.
const ADDRESSES: u64 = 1 << 47;
/// `IBV_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: u32 = 1;

/// A memory object that a context's daemon knows.
#[derive(Clone, Copy, Debug)]
struct File {
    serial: u64,
    dev: u64,
    inode: u64,
    number: u32,
}

/// What is known of this process's memory.
#[derive(Debug)]
struct State {
    regions: Regions,
    /// Addresses that were made shared with our object.
    swapped: Spans,
    /// Addresses that children are not to have (`MADV_DONTFORK`).
    unforked: Spans,
    files: List<File>,
    vmas: List<Vma>,
}

struct Guarded(UnsafeCell<State>);

// SAFETY: only the holder of `LOCK` uses the state.
unsafe impl Sync for Guarded {}

static STATE: Guarded = Guarded(UnsafeCell::new(State {
    regions: Regions::new(),
    swapped: Spans::new(),
    unforked: Spans::new(),
    files: List::new(),
    vmas: List::new(),
}));
static LOCK: Lock = Lock::new();
/// Whether any address is in `swapped` or `unforked`: calls on memory look no further without.
static ANY: AtomicBool = AtomicBool::new(false);

/// The state, while its lock is held.
struct Locked {
    _held: Held<'static>,
}

fn lock() -> Locked {
    Locked { _held: LOCK.hold() }
}

impl Locked {
    fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held, and the borrow ends before it is given back.
        unsafe { &mut *STATE.0.get() }
    }
}

/// The policy of a context whose NIC has `policy`: what a person said for this program counts, unless the NIC maps nothing.
pub fn effective(policy: u32) -> MemoryPolicy {
    let nic = MemoryPolicy::from_u32(policy);
    if nic == MemoryPolicy::Never {
        return nic;
    }
    let Some(word) = env(c"ROCELINE_MEMORY") else {
        return nic;
    };
    MemoryPolicy::from_word(word).unwrap_or_else(|| {
        static SAID: AtomicBool = AtomicBool::new(false);
        crate::say::say_once(
            &SAID,
            format_args!(
                "ROCELINE_MEMORY={} means nothing: it is auto, never or always; nothing is mapped",
                crate::say::text(word)
            ),
        );
        MemoryPolicy::Never
    })
}

/// A registration as REG_MR has it (`struct ib_uverbs_reg_mr` behind the header).
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    start: u64,
    len: u64,
    access: u32,
}

impl Registration {
    /// Reads it from the bytes of a command.
    pub fn parse(command: &[u8]) -> Option<Registration> {
        let word = |at: usize| {
            Some(u64::from_ne_bytes(
                command.get(at..at + 8)?.try_into().ok()?,
            ))
        };
        let access = u32::from_ne_bytes(command.get(44..48)?.try_into().ok()?);
        Some(Registration {
            start: word(16)?,
            len: word(24)?,
            access,
        })
    }

    /// Its pages, if it is one that can be.
    fn span(&self) -> Option<Span> {
        let end = self
            .start
            .checked_add(self.len)
            .filter(|e| *e <= ADDRESSES)?;
        let page = PAGE as u64;
        (self.len > 0).then(|| Span {
            start: (self.start & !(page - 1)) as usize,
            end: end.next_multiple_of(page) as usize,
        })
    }
}

/// Before a REG_MR of `context`, whose lock the caller holds: makes memory shareable and tells the daemon where it lies. `scratch` is
/// the caller's for a while. An errno if the memory cannot be registered.
pub fn prepare(
    context: &Context,
    socket: c_int,
    registration: &Registration,
    scratch: &mut [u8],
) -> Result<(), c_int> {
    // What is no range at all is for the daemon to refuse.
    let Some(span) = registration.span() else {
        return Ok(());
    };
    let mut locked = lock();
    let state = locked.state();
    let mut span = span;
    if state.collect_in(span, |_| true) {
        let write = registration.access & LOCAL_WRITE != 0;
        check(state.vmas.as_slice(), registration, span, write)?;
        span = state.whole_pages(span);
    }
    let noted = state.regions.begin(context.serial(), span);
    let policy = context.memory_policy();
    if !noted || policy == MemoryPolicy::Never {
        return Ok(());
    }
    let mapped = state.map(context, socket, span, policy, Kind::Memory, &[], scratch);
    if let Some(region) = state.regions.pending(context.serial()) {
        region.mapped = mapped;
    }
    Ok(())
}

/// After the REG_MR: its handle, or none if it failed.
pub fn registered(context: &Context, handle: Option<u32>) {
    let mut locked = lock();
    let state = locked.state();
    match handle {
        Some(handle) => state.regions.registered(context.serial(), handle),
        None => {
            let span = state.regions.failed(context.serial());
            state.release(span);
        }
    }
}

/// After a DEREG_MR that went well: the daemon no longer touches the region.
pub fn deregistered(context: &Context, handle: u32) {
    let mut locked = lock();
    let state = locked.state();
    let span = state.regions.remove(context.serial(), handle);
    state.release(span);
}

/// Pages that are readable, and writable where they must be: what the kernel asks of pages that it pins. `vmas`: all that is mapped
/// in `span`.
fn check(vmas: &[Vma], registration: &Registration, span: Span, write: bool) -> Result<(), c_int> {
    let refuse = |why: &str, at: usize| {
        if env(c"ROCELINE_DEBUG").is_some() {
            let (start, len) = (registration.start, registration.len);
            say(format_args!(
                "memory region {start:#x}+{len:#x}: {why} at {at:#x}"
            ));
        }
        Err(libc::EFAULT)
    };
    let mut at = span.start;
    for vma in vmas {
        if vma.span.start > at {
            break;
        }
        if vma.perms[0] != b'r' {
            return refuse("nothing can be read", at);
        }
        if write && vma.perms[1] != b'w' {
            return refuse(
                "local write is asked for, but the program may not write",
                at,
            );
        }
        at = vma.span.end;
    }
    if at < span.end {
        return refuse("nothing is mapped", at);
    }
    Ok(())
}

impl State {
    /// The range, all of whose mappings are in `vmas`, up to the ends of the huge pages that it begins and ends in: such are
    /// shared whole or not at all.
    fn whole_pages(&self, span: Span) -> Span {
        let objects = object::all();
        let mut whole = span;
        for vma in self.vmas.as_slice() {
            if !vma.is_private_huge() && !objects.of(vma).is_some_and(|object| object.is_huge()) {
                continue;
            }
            let Some(object) = objects.of(vma).or_else(|| object::for_private(vma)) else {
                continue;
            };
            if let Some(part) = vma.span.common(span) {
                whole.start = whole.start.min(part.start & !(object.page - 1));
                whole.end = whole.end.max(part.end.next_multiple_of(object.page));
            }
        }
        whole
    }

    /// Makes those addresses of a region that is gone private again that are in no other one.
    fn release(&mut self, span: Option<Span>) {
        let Some(mut rest) = span.filter(|span| self.swapped.first_in(*span).is_some()) else {
            return;
        };
        'idle: while let Some(idle) = self.regions.first_idle(rest) {
            let mut part = idle;
            while let Some(shared) = self.swapped.first_in(part) {
                self.make_private(shared, None);
                // Pages that are pinned by now stay where they are.
                if pins::seen() {
                    break 'idle;
                }
                part.start = shared.end;
            }
            rest.start = idle.end;
        }
        self.note();
    }

    /// Makes addresses private wherever the object's pages of that name are mapped by now. What cannot be made private now
    /// stays shared. `writers`: how they are held, where more than the other threads may write, by one who has looked for signs
    /// of pinned pages.
    fn make_private(&mut self, span: Span, writers: Option<&Writers>) -> bool {
        let objects = object::all();
        // Without all of them (no descriptor is free to read the maps, say) there would seem to be nothing to copy, and the pages
        // that go below would still be the program's.
        if !self.collect(|vma| objects.of(vma).is_some()) {
            return false;
        }
        let own = match writers {
            Some(_) => None,
            None if pins::any_but_maps() => return false,
            None => self.writers(false),
        };
        let Some(writers) = writers.or(own.as_ref()) else {
            return false;
        };
        let largest = self.vmas.as_slice().iter().filter_map(|v| objects.of(v));
        let step = largest.map(|object| object.page).max();
        let step = step.unwrap_or(PAGE).max(swap::STEP);
        let mut whole = true;
        let mut rest = span;
        while rest.start < rest.end {
            // The object's pages go with each step, so that no more memory is needed than for one. Steps end where the pages of
            // all objects do.
            let next = (rest.start / step + 1).saturating_mul(step);
            let part = Span {
                end: next.min(rest.end),
                ..rest
            };
            if self.copy_private(part, &objects, writers) {
                for object in objects.iter() {
                    sys::punch_hole(object.fd, part.start as u64, part.len());
                }
                self.swapped.remove(part);
            } else {
                whole = false;
            }
            rest.start = part.end;
        }
        whole
    }

    /// Puts private copies wherever pages of `span` are mapped by `vmas`. False: somewhere there is none.
    fn copy_private(&self, span: Span, objects: &Objects, writers: &Writers) -> bool {
        let mut whole = true;
        for vma in self.vmas.as_slice() {
            let Some(object) = objects.of(vma) else {
                continue;
            };
            // The part whose pages are those of `span`.
            let file = Span {
                start: vma.offset as usize,
                end: vma.offset as usize + vma.span.len(),
            };
            let Some(pages) = file.common(span) else {
                continue;
            };
            let delta = vma.span.start.wrapping_sub(file.start);
            let at = Span {
                start: pages.start.wrapping_add(delta),
                end: pages.end.wrapping_add(delta),
            };
            if swap::own_pages().iter().any(|own| own.common(at).is_some()) {
                whole = false;
                continue;
            }
            let unforked = &self.unforked;
            whole &= swap::to_private(
                &object,
                at,
                pages.start as u64,
                vma.protection(),
                writers,
                |part| apply_unforked(unforked, part),
            );
        }
        whole
    }

    /// Who may write while memory is changed, and what holds them; none if they cannot be held. `daemon`: the daemon may.
    fn writers(&self, daemon: bool) -> Option<Writers> {
        if sys::threads() == 1 && !daemon {
            return Some(Writers::None);
        }
        Uffd::new().map(Writers::Held)
    }

    /// Keeps the mappings for which `wanted` says yes in `vmas`. Signs of pinned pages are noted.
    fn collect(&mut self, wanted: impl Fn(&Vma) -> bool) -> bool {
        self.vmas.clear();
        let vmas = &mut self.vmas;
        let mut room = true;
        maps::each(|vma, _| {
            pins::note(vma);
            if wanted(vma) {
                room = vmas.push(*vma);
            }
            room
        }) && room
    }

    /// The same of those in `span`. The maps are read no further: most registrations are small, and many in a program.
    fn collect_in(&mut self, span: Span, wanted: impl Fn(&Vma) -> bool) -> bool {
        self.vmas.clear();
        let vmas = &mut self.vmas;
        let mut room = true;
        maps::each_beyond(span.start, |vma, _| {
            if vma.span.start >= span.end {
                return false;
            }
            if vma.span.common(span).is_some() && wanted(vma) {
                room = vmas.push(*vma);
            }
            room
        }) && room
    }

    fn note(&self) {
        let any = !self.swapped.is_empty() || !self.unforked.is_empty();
        ANY.store(any, Ordering::SeqCst);
    }
}

/// Gives a new mapping the mark that the old one had.
fn apply_unforked(unforked: &Spans, part: Span) {
    let mut rest = part;
    while let Some(marked) = unforked.first_in(rest) {
        sys::madvise(marked.start, marked.len(), libc::MADV_DONTFORK);
        rest.start = marked.end;
    }
}

/// Numbers contexts, so that one that is used again is told from its former self.
pub fn next_serial() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    u64::from(NEXT.fetch_add(1, Ordering::Relaxed)) + 1
}

/// A context has ended: the daemon may be using its regions for a moment still, so what was shared stays so.
pub fn ended(serial: u64) {
    let mut locked = lock();
    let state = locked.state();
    state.regions.remove_all(serial);
    let mut at = 0;
    while let Some(file) = state.files.as_slice().get(at) {
        if file.serial == serial {
            state.files.remove(at);
        } else {
            at += 1;
        }
    }
}
