//! The rxe provider's function table, as it passes through `verbs_set_ops` of libibverbs: where polling for
//! completions can be made to yield, and to notice the end of the daemon (`end`).
//!
//! A program that polls an empty CQ in a loop on a machine without a core to spare keeps the NIC, or its peer, off the
//! CPU for a scheduler slice at every hop. So there an empty poll gives the CPU away, at its time ([`turn`])
//! (`ROCELINE_YIELD=auto|never|always`). On two busy CPUs, lcore on one and both programs on the other, half a round
//! trip of `ib_write_lat -s 64` takes 8 us (median) with yields and 10 ms without; unpinned, 10.5 us, and without more
//! than 10 ms; the bandwidth tests gain up to 10 % and `ib_send_bw -s 64` triples.
//!
//! The table's layout is private to rdma-core. The symbol version of `verbs_set_ops` tells it nearly: 62 and 63 have
//! the version of 59 with two functions more. So a table is believed to have a layout only if three functions of
//! libibverbs that the provider puts into it are where they should be ([`Layout::fits`]). It is passed on as it is, and
//! what replaces functions of it follows in a table of our own: of that libibverbs takes over what is not null, as
//! providers rely on that call it several times (mlx5).

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::calls::dlopen;
use crate::view::env;
use crate::{end, sys, turn};

/// Where the functions that matter here are in `struct verbs_context_ops` (`libibverbs/driver.h`).
#[derive(Debug)]
struct Layout {
    /// Symbol version of `verbs_set_ops`.
    version: &'static CStr,
    create_cq_ex: usize,
    poll_cq: usize,
    /// `attach_mcast`, `detach_mcast` and `req_notify_cq`: the rxe provider has libibverbs' own there ([`COMMANDS`]).
    commands: [usize; 3],
}

/// By version, oldest first. rdma-core 65 was not released when its row was written, from its sources of August 2026.
#[rustfmt::skip]
static LAYOUTS: [Layout; 6] = [
    // rdma-core 44 to 56
    Layout { version: c"IBVERBS_PRIVATE_34", create_cq_ex: 16, poll_cq: 53, commands: [9, 38, 69] },
    // 57, 58
    Layout { version: c"IBVERBS_PRIVATE_57", create_cq_ex: 16, poll_cq: 53, commands: [9, 38, 69] },
    // 59 to 61
    Layout { version: c"IBVERBS_PRIVATE_59", create_cq_ex: 17, poll_cq: 55, commands: [10, 40, 72] },
    // 62, 63
    Layout { version: c"IBVERBS_PRIVATE_59", create_cq_ex: 17, poll_cq: 56, commands: [10, 40, 74] },
    // 64
    Layout { version: c"IBVERBS_PRIVATE_64", create_cq_ex: 18, poll_cq: 58, commands: [11, 41, 76] },
    // 65
    Layout { version: c"IBVERBS_PRIVATE_65", create_cq_ex: 19, poll_cq: 62, commands: [11, 43, 84] },
];
/// Functions of libibverbs at [`Layout::commands`].
const COMMANDS: [&CStr; 3] = [
    c"ibv_cmd_attach_mcast",
    c"ibv_cmd_detach_mcast",
    c"ibv_cmd_req_notify_cq",
];
/// More functions than any version has: of a table that replaces some.
const OPS: usize = 256;

impl Layout {
    /// Whether `ops` has the functions of libibverbs where this layout has them.
    ///
    /// # Safety
    /// `ops` is a function table of libibverbs' version `self.version`.
    unsafe fn fits(&self, ops: *const Function, commands: &[Function; 3]) -> bool {
        self.commands.iter().zip(commands).all(|(at, command)| {
            // SAFETY: no table of that version is shorter than this layout up to here (79 functions of 59, of which
            // the row of 62 reads the 75th).
            !command.is_null() && unsafe { *ops.add(*at) } == *command
        })
    }
}

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
    let Some(found) = owner.find() else {
        // Whoever called us has libibverbs loaded, so this does not happen.
        return;
    };
    // SAFETY: by the caller's promise.
    unsafe { (found.set_ops)(context, ops) };
    // SAFETY: the version is that of the library whose table it is.
    let Some(layout) = (unsafe { found.layout(ops) }).filter(|_| owner.is_rxe) else {
        return;
    };
    YIELDS.store(yields(), Ordering::Relaxed);
    let mut ours = [std::ptr::null_mut(); OPS];
    // SAFETY: both are within the table, whose layout this is.
    unsafe {
        ours[layout.poll_cq] = replace(
            *ops.add(layout.poll_cq),
            &REAL_POLL_CQ,
            poll_cq as PollCq as Function,
        );
        ours[layout.create_cq_ex] = replace(
            *ops.add(layout.create_cq_ex),
            &REAL_CREATE_CQ_EX,
            create_cq_ex as CreateCqEx as Function,
        );
    }
    // SAFETY: the context is the caller's, and the table longer than libibverbs reads.
    unsafe { (found.set_ops)(context, ours.as_ptr()) };
}

/// `ours`, if `real` is, or becomes, what was there; else null, for nothing.
fn replace(was: Function, real: &AtomicPtr<c_void>, ours: Function) -> Function {
    let (order, null) = (Ordering::Relaxed, std::ptr::null_mut());
    if was.is_null() {
        return null;
    }
    if real.compare_exchange(null, was, order, order).is_ok() || real.load(order) == was {
        ours
    } else {
        null
    }
}

/// The real `verbs_set_ops`.
struct Found {
    set_ops: SetOps,
    /// Its symbol version, where it is one that we know.
    version: Option<&'static CStr>,
    /// [`COMMANDS`] of the same library.
    commands: [Function; 3],
}

impl Found {
    /// # Safety
    /// `ops` is a function table of that library's.
    unsafe fn layout(&self, ops: *const Function) -> Option<&'static Layout> {
        let version = self.version?;
        LAYOUTS.iter().find(|layout| {
            // SAFETY: as the caller promises.
            layout.version == version && unsafe { layout.fits(ops, &self.commands) }
        })
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

    /// The real `verbs_set_ops`. libibverbs may have been loaded out of the global scope (`dlopen` with RTLD_LOCAL), so
    /// three places are tried, with each version that we know and then without.
    fn find(&self) -> Option<Found> {
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
        let versions = LAYOUTS.iter().map(|layout| Some(layout.version));
        for version in versions.chain([None]) {
            for place in places {
                let handle = place();
                if handle.is_null() {
                    continue;
                }
                // SAFETY: a handle or RTLD_NEXT, and C strings.
                let p = unsafe {
                    match version {
                        Some(version) => libc::dlvsym(handle, NAME.as_ptr(), version.as_ptr()),
                        None => libc::dlsym(handle, NAME.as_ptr()),
                    }
                };
                let ours = verbs_set_ops as SetOps as Function;
                if !p.is_null() && p != ours {
                    return Some(Found {
                        // SAFETY: the function of that name has this prototype.
                        set_ops: unsafe { std::mem::transmute::<Function, SetOps>(p) },
                        version,
                        // SAFETY: as above.
                        commands: COMMANDS
                            .map(|name| unsafe { libc::dlsym(handle, name.as_ptr()) }),
                    });
                }
            }
        }
        None
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
        turn::nothing_found();
    }
    end::after_empty_poll(cq);
}

unsafe extern "C" fn poll_cq(cq: *mut c_void, entries: c_int, wc: *mut c_void) -> c_int {
    let real = REAL_POLL_CQ.load(Ordering::Relaxed);
    // SAFETY: set before this function was put in its place; the prototype is the same.
    let found = unsafe { std::mem::transmute::<Function, PollCq>(real)(cq, entries, wc) };
    if found == 0 {
        nothing_found(cq.addr());
    } else {
        turn::found();
    }
    found
}

unsafe extern "C" fn create_cq_ex(context: *mut c_void, attr: *mut c_void) -> *mut CqEx {
    let real = REAL_CREATE_CQ_EX.load(Ordering::Relaxed);
    // SAFETY: as for `poll_cq`; the result is null or a new ibv_cq_ex that nobody uses yet.
    unsafe {
        let cq = std::mem::transmute::<Function, CreateCqEx>(real)(context, attr);
        if let Some(cq) = cq.as_mut() {
            let was = cq
                .start_poll
                .map_or(std::ptr::null_mut(), |f| f as Function);
            let ours = replace(was, &REAL_START_POLL, start_poll as StartPoll as Function);
            if !ours.is_null() {
                cq.start_poll = std::mem::transmute::<Function, Option<StartPoll>>(ours);
            }
        }
        cq
    }
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut c_void) -> c_int {
    let real = REAL_START_POLL.load(Ordering::Relaxed);
    // SAFETY: as for `poll_cq`.
    let result = unsafe { std::mem::transmute::<Function, StartPoll>(real)(cq, attr) };
    match result {
        0 => turn::found(),
        libc::ENOENT => nothing_found(cq.addr()),
        _ => {}
    }
    result
}
