//! Sentences for the person at the terminal: one line on stderr, without allocation.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

/// A line that is cut at its end when it gets too long.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // One byte is kept for the newline.
        let n = s.len().min(self.bytes.len() - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Says it. `errno` is kept.
pub fn say(what: fmt::Arguments<'_>) {
    let errno = sys::errno();
    let mut line = Line {
        bytes: [0; 512],
        len: 0,
    };
    let _ = write!(line, "roceline: {what}");
    line.bytes[line.len] = b'\n';
    sys::write_bytes(libc::STDERR_FILENO, &line.bytes[..line.len + 1]);
    sys::set_errno(errno);
}

/// Says it the first time, and every time if `ROCELINE_DEBUG` is set.
pub fn say_once(said: &AtomicBool, what: fmt::Arguments<'_>) {
    if !said.swap(true, Ordering::Relaxed) || crate::view::env(c"ROCELINE_DEBUG").is_some() {
        say(what);
    }
}

/// Bytes of a path as text; what is not UTF-8 is shown up to there.
pub fn text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(s) => s,
        Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
    }
}
