//! The functions of libc that a program calls and that end up here first. Each is the original's prototype, a test
//! whether the call concerns us, and either the original or our answer.
//!
//! Functions with an optional argument (`open`'s mode, `fcntl`'s argument) are defined with it: on the 64-bit ABIs
//! of Linux it arrives in the same register either way.

mod dirs;
#[cfg(target_arch = "x86_64")]
pub mod dlopen;
mod fds;
mod listing;
mod memory;
mod open;
mod stat;
mod xattr;
