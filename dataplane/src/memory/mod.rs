//! Reaching memory that programs share with the daemon or let it into.

mod atomic;
mod context_file;
mod copy;
mod guard;
pub mod helper;
mod mapping;
pub(crate) mod memfd;
pub(crate) mod pages;
mod reach;
pub(crate) mod room;

pub use atomic::{AtomicOp, ProgramLock};
pub use context_file::{BLOCK, ContextFile};
pub use mapping::{Mapping, MappingError, Mark, MemoryFile};
pub use reach::{Range, Reach, Window};

#[cfg(test)]
pub use mapping::tests;
#[cfg(test)]
mod written;
