//! `dlopen` without `RTLD_DEEPBIND`.
//!
//! A library opened with that flag looks into itself and its dependencies before it looks at what is preloaded: a
//! libibverbs that comes in so reads the kernel's `/sys` and finds no device. So the flag is taken out, as sanitizers
//! demand for the same reason; `ROCELINE_DEEPBIND=keep` leaves it in.
//!
//! The loader tells by the return address who calls: `DT_RUNPATH`, `$ORIGIN` and the namespace are that object's
//! (glibc `dlfcn/dlopen.c`, `RETURN_ADDRESS (0)`). A call from here would make every caller the shim, so there is
//! none: the flag goes in its register, and a jump leaves the stack as the caller made it.

use std::arch::{asm, global_asm};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::{sys, view};

/// The next `dlopen`; null until [`find`] was here.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The flags that pass.
static PASS: AtomicI32 = AtomicI32::new(!libc::RTLD_DEEPBIND);

// file in rdi, flags in esi (System V AMD64 ABI, 3.2.3). Three words on the stack make it 16-byte aligned at the call.
global_asm!(
    ".pushsection .text.roceline_dlopen,\"ax\",@progbits",
    // Global, as the jump may be compiled into another object; the library does not export it.
    ".globl roceline_dlopen",
    ".hidden roceline_dlopen",
    ".type roceline_dlopen,@function",
    "roceline_dlopen:",
    "mov rax, [rip + {next}]",
    "test rax, rax",
    "jnz 2f",
    "push rdi",
    "push rsi",
    "sub rsp, 8",
    "call {find}",
    "add rsp, 8",
    "pop rsi",
    "pop rdi",
    "2:",
    "and esi, [rip + {pass}]",
    "jmp rax",
    ".size roceline_dlopen, . - roceline_dlopen",
    ".popsection",
    next = sym NEXT,
    find = sym find,
    pass = sym PASS,
);

/// Declared without its parameters, which stay in their registers: a function that has neither parameters nor
/// locals needs no frame, so the jump is its first instruction (a test looks: it would fail with any other).
///
/// # Safety
/// As for `dlopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    // SAFETY: nothing was pushed yet, so the target finds registers and stack as the caller left them, and returns to
    // the caller.
    unsafe { asm!("jmp roceline_dlopen", options(noreturn, nostack)) }
}

/// `dlopen` for the shim itself. Not by that name: the optimiser takes such a call for one of the function above, which is
/// declared without parameters, and passes none.
///
/// # Safety
/// As for `dlopen`.
pub unsafe fn open(file: *const c_char, flags: c_int) -> *mut c_void {
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        next = find();
    }
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: `find` gives the C library's `dlopen`, or `nowhere`, which has the same type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Dlopen>(next) };
    // SAFETY: the caller's promise.
    unsafe { next(file, flags) }
}

/// The next `dlopen`, looked up.
pub extern "C" fn find() -> *mut c_void {
    let errno = sys::errno();
    if view::env(c"ROCELINE_DEEPBIND") == Some(b"keep") {
        PASS.store(-1, Ordering::Relaxed);
    }
    // SAFETY: a C string.
    let mut next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    if next.is_null() {
        // Before glibc 2.34 it is in libdl, which a program may not have.
        next = nowhere as extern "C" fn(*const c_char, c_int) -> *mut c_void as *mut c_void;
    }
    NEXT.store(next, Ordering::Relaxed);
    sys::set_errno(errno);
    next
}

extern "C" fn nowhere(_file: *const c_char, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}
