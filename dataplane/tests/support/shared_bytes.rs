//! A file that is looked at while, and after, somebody writes to it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Clones share the bytes.
#[derive(Clone, Default)]
pub struct SharedBytes(Arc<Mutex<Vec<u8>>>);

impl SharedBytes {
    /// What was written so far.
    pub fn now(&self) -> Vec<u8> {
        self.0.lock().expect("nobody panics").clone()
    }
}

impl Write for SharedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
