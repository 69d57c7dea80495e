//! The rxe provider's function table, as it passes through `verbs_set_ops` of libibverbs: where polling for
//! completions can be made to yield, and to notice the end of the daemon (`end`).
//!
//! A program that polls an empty CQ in a loop on a machine without a core to spare keeps the NIC, or its peer, off the
//! CPU for a scheduler slice at every hop. So there an empty poll gives the CPU away
//! (`ROCELINE_YIELD=auto|never|always`). On two busy CPUs, lcore on one and both programs on the other, half a round
//! trip of `ib_write_lat -s 64` takes 8 us (median) with yields and 10 ms without; unpinned, 10.5 us, and without more
//! than 10 ms; the bandwidth tests gain up to 10 % and `ib_send_bw -s 64` triples.
//!
//! The table's layout is private to rdma-core and tied to its symbol version: it is touched only if that is the one
//! we know, and by copy.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::calls::dlopen;
use crate::view::env;
use crate::{end, sys};

/// Symbol version of the layout below (rdma-core 44 to 56).
const VERSION: &CStr = c"IBVERBS_PRIVATE_34";
/// Functions in `struct verbs_context_ops`.
const OPS: usize = 76;
/// Position of `create_cq_ex`.
const CREATE_CQ_EX: usize = 16;
/// Position of `poll_cq`.
const POLL_CQ: usize = 53;
/// With `auto`, empty polls yield on machines with this many CPUs or fewer: the NIC's lcore and two programs, the
/// least there is, do not fit on them.
const CROWDED: usize = 2;

type Function = *mut c_void;
type SetOps = unsafe extern "C" fn(*mut c_void, *const Function);
type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type CreateCqEx = unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut CqEx;
type StartPoll = unsafe extern "C" fn(*mut CqEx, *mut c_void) -> c_int;

/// The start of `struct ibv_cq_ex` (`infiniband/verbs.h`, public).
#[repr(C)]
struct CqEx {
    context: *mut c_void,
    channel: *mut c_void,
    cq_context: *mut c_void,
    handle: u32,
    cqe: c_int,
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
    comp_events_completed: u32,
    async_events_completed: u32,
    comp_mask: u32,
    status: u32,
    wr_id: u64,
    start_poll: Option<StartPoll>,
}

/// The provider's own functions. There is one rxe provider in a process; a second copy is left alone.
static REAL_POLL_CQ: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REAL_CREATE_CQ_EX: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REAL_START_POLL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// What [`yields`] said when the first device was opened.
static YIELDS: AtomicBool = AtomicBool::new(false);

/// # Safety
/// As for `verbs_set_ops` of libibverbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn verbs_set_ops(context: *mut c_void, ops: *const Function) {
    let owner = Owner::of(ops.cast());
    let (real, known) = owner.find();
    let Some(real) = real else {
        // Whoever called us has libibverbs loaded, so this does not happen.
        return;
    };
    // SAFETY: by the caller's promise.
    unsafe {
        if known && owner.is_rxe {
            YIELDS.store(yields(), Ordering::Relaxed);
            let mut copy = [std::ptr::null_mut(); OPS];
            std::ptr::copy_nonoverlapping(ops, copy.as_mut_ptr(), OPS);
            patch(
                &mut copy[POLL_CQ],
                &REAL_POLL_CQ,
                poll_cq as PollCq as Function,
            );
            let create = create_cq_ex as CreateCqEx as Function;
            patch(&mut copy[CREATE_CQ_EX], &REAL_CREATE_CQ_EX, create);
            real(context, copy.as_ptr());
        } else {
            real(context, ops);
        }
    }
}

/// Puts `ours` in `slot` if `real` is, or becomes, what was there.
fn patch(slot: &mut Function, real: &AtomicPtr<c_void>, ours: Function) {
    let was = *slot;
    if was.is_null() {
        return;
    }
    let (order, null) = (Ordering::Relaxed, std::ptr::null_mut());
    if real.compare_exchange(null, was, order, order).is_ok() || real.load(order) == was {
        *slot = ours;
    }
}

/// The library that a function table belongs to.
struct Owner {
    handle: *mut c_void,
    is_rxe: bool,
}

impl Owner {
    fn of(ops: *const c_void) -> Owner {
        // SAFETY: zeroes are a valid Dl_info.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the output is writable.
        let found = unsafe { libc::dladdr(ops, &mut info) } != 0;
        if !found || info.dli_fname.is_null() {
            return Owner {
                handle: std::ptr::null_mut(),
                is_rxe: false,
            };
        }
        // SAFETY: the loader gives a C string.
        let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
        let file = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        // A link map is a handle only if it was opened as one: others have no search list, and dlvsym crashes on them.
        // SAFETY: a C string; nothing new is loaded.
        let handle = unsafe { dlopen::open(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        Owner {
            handle,
            is_rxe: file.starts_with(b"librxe"),
        }
    }

    /// The real `verbs_set_ops`, and whether it is of the version that we know. libibverbs may have been loaded out
    /// of the global scope (`dlopen` with RTLD_LOCAL), so three places are tried.
    fn find(&self) -> (Option<SetOps>, bool) {
        const NAME: &CStr = c"verbs_set_ops";
        // SAFETY: C strings; without RTLD_NOLOAD's library the handle is null. It stays open, as libibverbs does.
        let library = || unsafe {
            dlopen::open(
                c"libibverbs.so.1".as_ptr(),
                libc::RTLD_LAZY | libc::RTLD_NOLOAD,
            )
        };
        let places: [&dyn Fn() -> *mut c_void; 3] =
            [&|| self.handle, &|| libc::RTLD_NEXT, &library];
        for known in [true, false] {
            for place in places {
                let handle = place();
                if handle.is_null() {
                    continue;
                }
                // SAFETY: a handle or RTLD_NEXT, and C strings.
                let p = unsafe {
                    if known {
                        libc::dlvsym(handle, NAME.as_ptr(), VERSION.as_ptr())
                    } else {
                        libc::dlsym(handle, NAME.as_ptr())
                    }
                };
                let ours = verbs_set_ops as SetOps as Function;
                if !p.is_null() && p != ours {
                    // SAFETY: the function of that name has this prototype.
                    return (
                        Some(unsafe { std::mem::transmute::<Function, SetOps>(p) }),
                        known,
                    );
                }
            }
        }
        (None, false)
    }
}

/// Whether empty polls are to yield.
fn yields() -> bool {
    match env(c"ROCELINE_YIELD") {
        Some(b"never") => false,
        Some(b"always") => true,
        _ => sys::allowed_cpus() <= CROWDED,
    }
}

#[inline]
fn nothing_found(cq: usize) {
    if YIELDS.load(Ordering::Relaxed) {
        sys::yield_now();
    }
    end::after_empty_poll(cq);
}

unsafe extern "C" fn poll_cq(cq: *mut c_void, entries: c_int, wc: *mut c_void) -> c_int {
    let real = REAL_POLL_CQ.load(Ordering::Relaxed);
    // SAFETY: set before this function was put in its place; the prototype is the same.
    let found = unsafe { std::mem::transmute::<Function, PollCq>(real)(cq, entries, wc) };
    if found == 0 {
        nothing_found(cq.addr());
    }
    found
}

unsafe extern "C" fn create_cq_ex(context: *mut c_void, attr: *mut c_void) -> *mut CqEx {
    let real = REAL_CREATE_CQ_EX.load(Ordering::Relaxed);
    // SAFETY: as for `poll_cq`; the result is null or a new ibv_cq_ex that nobody uses yet.
    unsafe {
        let cq = std::mem::transmute::<Function, CreateCqEx>(real)(context, attr);
        if let Some(cq) = cq.as_mut() {
            let mut slot = cq
                .start_poll
                .map_or(std::ptr::null_mut(), |f| f as Function);
            patch(
                &mut slot,
                &REAL_START_POLL,
                start_poll as StartPoll as Function,
            );
            cq.start_poll = std::mem::transmute::<Function, Option<StartPoll>>(slot);
        }
        cq
    }
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut c_void) -> c_int {
    let real = REAL_START_POLL.load(Ordering::Relaxed);
    // SAFETY: as for `poll_cq`.
    let result = unsafe { std::mem::transmute::<Function, StartPoll>(real)(cq, attr) };
    if result == libc::ENOENT {
        nothing_found(cq.addr());
    }
    result
}
