//! Reaching memory that programs share with the daemon or let it into.

mod context_file;
pub mod helper;

pub use context_file::ContextFile;
