//! Events to a program over a pipe, exactly counted. A pipe holds 64 KiB; what does not fit waits in a list and is
//! written later. To destroy an object one must know how many of its events the program has *read*
//! (libibverbs waits until that many are acknowledged), so unread ones are taken back out of the pipe.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;

use super::message::EventPipe;

/// One record: 8 bytes for a completion channel, 16 for the async fd.
type Record<const N: usize> = [u8; N];

/// Records that one call writes at most.
const BATCH: usize = 32;
/// Records that one call reads at most.
const READ_BATCH: usize = 256;

/// Writes records of `N` bytes.
#[derive(Debug)]
pub struct EventWriter<const N: usize> {
    pipe: EventPipe,
    pending: VecDeque<Record<N>>,
    /// Records that were ever queued.
    queued: u64,
}

/// Records of one writer that may wait outside of the pipe. A program that reads none of them for so long is not told more;
/// completion events do not come so far ([`EventWriter::waits`]).
const MOST: usize = 1 << 16;

impl<const N: usize> EventWriter<N> {
    /// A writer with room for `capacity` waiting records before it must allocate.
    pub fn new(pipe: EventPipe, capacity: usize) -> EventWriter<N> {
        EventWriter {
            pipe,
            pending: VecDeque::with_capacity(capacity),
            queued: 0,
        }
    }

    /// Queues a record; [`EventWriter::flush`] writes it. False if too many wait: then it is not counted either.
    pub fn push(&mut self, record: Record<N>) -> bool {
        let fits = self.pending.len() < MOST;
        if fits {
            self.pending.push_back(record);
            self.queued += 1;
        }
        fits
    }

    /// Number of the newest record, from 1.
    pub fn newest(&self) -> u64 {
        self.queued
    }

    /// Whether the record of that number (0: none) may still wait outside of the pipe. Who is going to read it will find
    /// everything that has happened by then, so that another one would tell nothing new.
    #[inline]
    pub fn waits(&self, number: u64) -> bool {
        // Those that wait may be more than were queued: a program can write to its own pipe, and what is taken back goes in again.
        number > self.queued.saturating_sub(self.pending.len() as u64)
    }

    /// Takes memory for `records` that wait, so that none is taken later.
    pub fn expect(&mut self, records: usize) {
        let more = records.saturating_sub(self.pending.len());
        self.pending.reserve(more);
    }

    /// Whether records wait.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes what the pipe takes, several records a call. Never blocks.
    pub fn flush(&mut self) {
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
        // In place: what was reserved for the hot loop stays.
        let waited = self.pending.len();
        // A program that has opened the pipe for writing could go on filling it for ever.
        while self.pending.len() < waited + MOST {
            let mut records = [[0u8; N]; READ_BATCH];
            // SAFETY: reads into a local array of N * READ_BATCH bytes.
            let n = unsafe {
                let to = records.as_mut_ptr().cast();
                libc::read(self.pipe.drain.as_raw_fd(), to, N * READ_BATCH)
            };
            if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            // Records are written whole, and whoever reads them reads whole ones.
            let whole = usize::try_from(n).unwrap_or(0) / N;
            if whole == 0 {
                break;
            }
            self.pending.extend(&records[..whole]);
        }
        // What was in the pipe is older than what waited for room there.
        self.pending.rotate_left(waited);
        let before = self.pending.len();
        self.pending.retain(|r| !matches(r));
        let taken = before - self.pending.len();
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

    #[test]
    fn taking_back_keeps_the_memory_that_was_reserved_and_the_order() {
        let (pipe, fd) = pipe();
        let mut w = EventWriter::<8>::new(pipe, 0);
        w.expect(40_000);
        let reserved = w.pending.capacity();
        for i in 0..20_000u64 {
            w.push(i.to_ne_bytes());
        }
        w.flush();
        assert!(w.has_pending());
        let odd = |r: &Record<8>| u64::from_ne_bytes(*r) % 2 == 1;
        assert_eq!(w.take_back(odd), 10_000);
        assert!(w.pending.capacity() >= reserved);
        for i in 0..10_000 {
            assert_eq!(read(&fd), Some(2 * i));
            w.flush();
        }
        assert_eq!(read(&fd), None);
    }

    #[test]
    fn records_that_a_program_forges_confuse_no_count() {
        let (pipe, _fd) = pipe();
        let forger = pipe.write.try_clone().unwrap();
        let mut w = EventWriter::<8>::new(pipe, 0);
        // SAFETY: writes a local array to a pipe that does not block.
        let forge = || unsafe { libc::write(forger.as_raw_fd(), [9u8; 8].as_ptr().cast(), 8) } == 8;
        while forge() {}
        // The program fills the pipe again before what was read can go back.
        let taken = w.take_back(|_| {
            while forge() {}
            false
        });
        assert_eq!((taken, w.newest()), (0, 0));
        assert!(w.has_pending());
        assert!(!w.waits(0) && w.push([1; 8]) && w.waits(w.newest()));
    }

    #[test]
    fn a_writer_knows_what_waits_outside_of_the_pipe() {
        let (pipe, fd) = pipe();
        let mut w = EventWriter::<8>::new(pipe, 0);
        assert!(!w.waits(0) && w.push([1; 8]));
        let first = w.newest();
        assert!(w.waits(first));
        w.flush();
        assert!(!w.waits(first), "in the pipe");
        while {
            w.push([2; 8]);
            w.flush();
            !w.has_pending()
        } {}
        let last = w.newest();
        assert!(w.waits(last) && !w.waits(last - 1));
        // A pipe has room again when a page of it was read.
        while read(&fd).is_some() {}
        w.flush();
        assert!(!w.waits(last));
    }

    #[test]
    fn what_nobody_reads_does_not_grow_for_ever() {
        let (pipe, _fd) = pipe();
        let mut w = EventWriter::<8>::new(pipe, 0);
        let taken = (0..2 * MOST).filter(|_| w.push([7; 8])).count();
        assert_eq!(taken, MOST);
    }
}
