//! Reaching memory that programs share with the daemon or let it into.

mod context_file;

pub use context_file::ContextFile;
