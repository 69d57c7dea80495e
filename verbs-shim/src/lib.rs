//! `libroceline_shim.so`: preloaded into an unmodified program, it plays the kernel to the distribution's own
//! rdma-core, with the rxe provider.
//!
//! In: the libc calls by which rdma-core and programs reach `/sys/class/infiniband*` and `/dev/infiniband`. Out: the
//! same calls on the daemon's device tree (`view`), requests on a hidden socket to the daemon (`client`), and
//! doorbells in memory shared with it (`context`). All other calls go to where they would have gone, after one
//! comparison.
//!
//! | module | part |
//! | --- | --- |
//! | `calls` | the interposed functions of libc |
//! | `audit` | libraries that programs bring under another name, as an auditor of the loader |
//! | `view` | which paths are ours and where they lead |
//! | `table` | which fds are ours |
//! | `open`, `context`, `command`, `client` | a device's way from `open` through `write` |
//! | `provider`, `turn`, `end` | polls that yield, when they do, and that find the daemon dead |
//! | `attribute` | files of a device that change it when they are written |
//! | `memory` | which registered memory the daemon may map |
//! | `fork`, `next`, `sys`, `say` | forks; the functions behind ours; system calls; words |
//!
//! Rules of the house: nothing here panics, allocates or calls an interposed function of its own; `errno` is what the
//! original would have left.

mod attribute;
mod audit;
mod calls;
mod client;
mod command;
mod context;
mod end;
mod fork;
mod memory;
mod next;
mod open;
mod provider;
mod say;
mod sys;
mod table;
mod turn;
mod view;

/// Run by the loader.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    next::find_all();
    fork::watch();
    attribute::inherit();
    #[cfg(target_arch = "x86_64")]
    calls::dlopen::find();
}

extern "C" fn end_of_program() {
    if attribute::any() {
        attribute::end();
    }
    context::say_ends();
}

/// Run by `exit` and the end of `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end_of_program;

/// Tells `roceline doctor`, which reads the file and does not load it, what this is. Exported, or the linker would
/// drop it.
#[unsafe(no_mangle)]
pub static ROCELINE_SHIM_MARK: [u8; 28] = roceline_abi::mark();
