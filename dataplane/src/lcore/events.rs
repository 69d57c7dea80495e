//! Events to a program over a pipe, exactly counted. A pipe holds 64 KiB; what does not fit waits in a list and is
//! written later. To destroy an object one must know how many of its events the program has *read*
//! (libibverbs waits until that many are acknowledged), so unread ones are taken back out of the pipe.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;

use super::message::EventPipe;

/// One record: 8 bytes for a completion channel, 16 for the async fd.
type Record<const N: usize> = [u8; N];

/// Writes records of `N` bytes.
#[derive(Debug)]
pub struct EventWriter<const N: usize> {
    pipe: EventPipe,
    pending: VecDeque<Record<N>>,
}

impl<const N: usize> EventWriter<N> {
    /// A writer with room for `capacity` waiting records before it must allocate.
    pub fn new(pipe: EventPipe, capacity: usize) -> EventWriter<N> {
        EventWriter {
            pipe,
            pending: VecDeque::with_capacity(capacity),
        }
    }

    /// Queues a record; [`EventWriter::flush`] writes it.
    pub fn push(&mut self, record: Record<N>) {
        self.pending.push_back(record);
    }

    /// Whether records wait.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes what the pipe takes, several records a call. Never blocks.
    pub fn flush(&mut self) {
        const BATCH: usize = 32;
        while !self.pending.is_empty() {
            let mut bytes = [[0u8; N]; BATCH];
            let n = self.pending.len().min(BATCH);
            for (to, from) in bytes.iter_mut().zip(&self.pending) {
                *to = *from;
            }
            // A write of at most PIPE_BUF (4,096) bytes is all or nothing (pipe(7)).
            // SAFETY: writes initialised bytes of a local array.
            let written =
                unsafe { libc::write(self.pipe.write.as_raw_fd(), bytes.as_ptr().cast(), n * N) };
            if written < 0 {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    // Full: try fewer, else wait for the program.
                    io::ErrorKind::WouldBlock if n > 1 => {
                        if !self.write_one() {
                            return;
                        }
                    }
                    io::ErrorKind::WouldBlock => return,
                    // The reader is gone; its connection will end too.
                    _ => self.pending.clear(),
                }
            } else {
                self.pending.drain(..(written as usize / N).min(n));
            }
        }
    }

    fn write_one(&mut self) -> bool {
        let Some(record) = self.pending.front() else {
            return false;
        };
        // SAFETY: writes one initialised record.
        let n = unsafe { libc::write(self.pipe.write.as_raw_fd(), record.as_ptr().cast(), N) };
        if n == N as isize {
            self.pending.pop_front();
        }
        n == N as isize
    }

    /// Takes back the records that match and that the program has not read, and gives their number; all others
    /// stay, in order.
    pub fn take_back(&mut self, mut matches: impl FnMut(&Record<N>) -> bool) -> u32 {
        let mut unread: VecDeque<Record<N>> = VecDeque::new();
        loop {
            let mut record = [0u8; N];
            // SAFETY: reads into a local array of N bytes.
            let n =
                unsafe { libc::read(self.pipe.drain.as_raw_fd(), record.as_mut_ptr().cast(), N) };
            if n == N as isize {
                unread.push_back(record);
            } else if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            } else {
                break;
            }
        }
        unread.append(&mut self.pending);
        let before = unread.len();
        unread.retain(|r| !matches(r));
        let taken = before - unread.len();
        self.pending = unread;
        self.flush();
        taken as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};

    fn pipe() -> (EventPipe, OwnedFd) {
        let mut fds = [0; 2];
        // SAFETY: fills two descriptors, which become ours.
        let (read, write) = unsafe {
            assert_eq!(
                libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK),
                0
            );
            (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
        };
        let drain = read.try_clone().unwrap();
        (EventPipe { write, drain }, read)
    }

    fn read(fd: &OwnedFd) -> Option<u64> {
        let mut b = [0u8; 8];
        // SAFETY: reads into a local array.
        let n = unsafe { libc::read(fd.as_raw_fd(), b.as_mut_ptr().cast(), 8) };
        (n == 8).then(|| u64::from_ne_bytes(b))
    }

    #[test]
    fn nothing_is_lost_when_the_pipe_is_full() {
        let (pipe, fd) = pipe();
        let mut w = EventWriter::<8>::new(pipe, 0);
        for i in 0..20_000u64 {
            w.push(i.to_ne_bytes());
        }
        w.flush();
        assert!(w.has_pending());
        for i in 0..20_000 {
            assert_eq!(read(&fd), Some(i));
            w.flush();
        }
        assert_eq!(read(&fd), None);
    }

    #[test]
    fn unread_events_are_taken_back_and_the_others_stay_in_order() {
        let (pipe, fd) = pipe();
        let mut w = EventWriter::<8>::new(pipe, 0);
        for i in [1u64, 2, 1, 3, 1] {
            w.push(i.to_ne_bytes());
        }
        w.flush();
        assert_eq!(read(&fd), Some(1));
        assert_eq!(w.take_back(|r| u64::from_ne_bytes(*r) == 1), 2);
        assert_eq!(read(&fd), Some(2));
        assert_eq!(read(&fd), Some(3));
        assert_eq!(read(&fd), None);
    }
}
