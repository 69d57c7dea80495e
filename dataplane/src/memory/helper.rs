//! `/proc/self/mem` of a program, used from a thread of its own.
//!
//! In flow pieces of packets ([`Piece`]) in the order in which they must happen; out flow outcomes, one for each
//! piece, in the same order. The lcore owns the buffer of a piece until its outcome has come back.
//!
//! A read or write there can block for as long as the program likes (a page under its own userfaultfd, a
//! network file system), so no lcore ever does it. The descriptor reaches only the address space that opened it:
//! after `exec` or exit it reads and writes nothing.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, Thread};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use super::atomic::{AtomicOp, ProgramLock};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the program into a packet.
    Fetch,
    /// From a packet into the program.
    Place,
    /// Compare and swap of 8 bytes. The packet's bytes are 16: what is to be there, which what was there replaces, and what is
    /// stored.
    CompareSwap,
    /// Fetch and add of 8 bytes: what is added, which what was there replaces.
    FetchAdd,
    /// The packet's 8 bytes are stored at once, and not while another atomic of the program is between its read and its write.
    Store,
}

/// How a piece ended. Of several, the greatest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moved {
    /// All of it was moved.
    #[default]
    Done,
    /// The program has no such memory.
    Fault,
    /// The address space is no more: the program ended, or became another one by `exec`. What is left of it in the daemon
    /// goes soon; until then it is to look like a host that vanished, not like one that answers.
    Gone,
}

/// One contiguous piece of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Which way.
    pub direction: Direction,
    /// Bytes.
    pub len: u32,
    /// Address in the program.
    pub addr: u64,
    /// The packet's bytes: `len`, or 16 for those two atomics that answer. Valid, and not touched by the lcore, until the outcome is back.
    pub buf: *mut u8,
}

// SAFETY: the buffer belongs to an mbuf that the lcore keeps and leaves alone until the outcome is back, so
// the helper is its only user meanwhile.
unsafe impl Send for Piece {}

/// Pieces that may be under way at once, outcomes not yet taken included.
pub const CAPACITY: usize = 4096;
/// Yields of an idle helper with CPUs of its own before it parks: to be woken from another CPU takes 16 us. One that shares
/// the lcore's CPU parks at once: its polling would only delay the lcore's (`ib_write_lat` p50 9.4 us against 7.6).
const IDLE_YIELDS: u32 = 200;
/// Pieces that one system call may join.
const JOIN: usize = 64;

#[derive(Debug)]
struct Shared {
    work: ArrayQueue<Piece>,
    outcomes: ArrayQueue<Moved>,
    stop: AtomicBool,
    parked: CachePadded<AtomicBool>,
    /// Outcomes that no one has taken yet may wake a sleeping lcore.
    lcore: Arc<LcoreWake>,
}

/// How a helper wakes the lcore that waits for it.
#[derive(Debug)]
pub struct LcoreWake {
    /// Non-zero while the lcore sleeps or is about to.
    pub sleeping: AtomicU32,
    /// The lcore's own eventfd.
    pub eventfd: OwnedFd,
}

impl LcoreWake {
    /// Wakes the lcore if it sleeps. To be called after the news was published.
    pub fn wake(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Adds one to the eventfd.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes of a local to our own eventfd. A full counter (EAGAIN) is as good as a wake.
        unsafe { libc::write(self.eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// The lcore's end.
#[derive(Debug)]
pub struct MemHelper {
    shared: Arc<Shared>,
    thread: Thread,
}

/// Where such threads run.
#[derive(Clone, Debug)]
pub struct HelperCpus {
    /// On one of these CPUs; none: on those of the caller.
    pub cpus: Arc<[usize]>,
    /// The lcore polls on the same ones.
    pub shared: bool,
}

impl MemHelper {
    /// Starts the thread. `mem` is the program's `/proc/self/mem`; `context`
    /// tells the threads apart by name. Atomics take the lock of the program.
    pub fn start(
        mem: OwnedFd,
        lock: Arc<ProgramLock>,
        lcore: Arc<LcoreWake>,
        HelperCpus {
            cpus,
            shared: beside,
        }: HelperCpus,
        context: u64,
    ) -> io::Result<MemHelper> {
        let shared = Arc::new(Shared {
            work: ArrayQueue::new(CAPACITY),
            outcomes: ArrayQueue::new(CAPACITY),
            stop: AtomicBool::new(false),
            parked: CachePadded::new(AtomicBool::new(false)),
            lcore,
        });
        super::room::check(super::room::THREAD)?;
        let mine = Arc::clone(&shared);
        let handle = thread::Builder::new()
            .name(format!("memory-{context}"))
            .spawn(move || {
                restrict_to(&cpus);
                crate::lcore::slice::shorten();
                let idle_yields = if beside { 0 } else { IDLE_YIELDS };
                run(&mine, &mem, &lock, idle_yields);
            })?;
        Ok(MemHelper {
            shared,
            thread: handle.thread().clone(),
        })
    }

    /// One that does nothing.
    #[cfg(test)]
    pub fn stopped() -> MemHelper {
        let eventfd = std::fs::File::open("/dev/null").unwrap().into();
        let sleeping = AtomicU32::new(0);
        MemHelper {
            shared: Arc::new(Shared {
                work: ArrayQueue::new(CAPACITY),
                outcomes: ArrayQueue::new(CAPACITY),
                stop: AtomicBool::new(false),
                parked: CachePadded::new(AtomicBool::new(false)),
                lcore: Arc::new(LcoreWake { sleeping, eventfd }),
            }),
            thread: thread::current(),
        }
    }

    /// Hands over a piece. False if there is no room, which cannot be while fewer than [`CAPACITY`] are under way.
    #[must_use]
    pub fn push(&self, piece: Piece) -> bool {
        self.shared.work.push(piece).is_ok()
    }

    /// Wakes the thread if it sleeps; once per poll, after the pushes.
    pub fn kick(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.shared.parked.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
    }

    /// The next outcome.
    #[inline]
    pub fn outcome(&self) -> Option<Moved> {
        // To pop from an empty queue is a full fence; to look at it first is not.
        if self.shared.outcomes.is_empty() {
            return None;
        }
        self.shared.outcomes.pop()
    }

    /// Whether an outcome is waiting.
    pub fn has_outcome(&self) -> bool {
        !self.shared.outcomes.is_empty()
    }
}

impl Drop for MemHelper {
    fn drop(&mut self) {
        // Not joined: the thread may be blocked in the program's memory; it owns all that it uses.
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Restricts the calling thread to `cpus`. Only a matter of speed: a refusal is ignored.
pub fn restrict_to(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    // SAFETY: a cpu_set_t is plain bits, all zero is the empty set; CPU_SET checks its bounds.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

fn run(shared: &Shared, mem: &OwnedFd, lock: &ProgramLock, idle_yields: u32) {
    let mut idle = 0;
    let mut batch: Vec<Piece> = Vec::with_capacity(JOIN);
    loop {
        batch.clear();
        while batch.len() < JOIN {
            match shared.work.pop() {
                Some(piece) => batch.push(piece),
                None => break,
            }
        }
        if batch.is_empty() {
            if shared.stop.load(Ordering::SeqCst) {
                return;
            }
            if idle < idle_yields {
                idle += 1;
                thread::yield_now();
                continue;
            }
            shared.parked.store(true, Ordering::SeqCst);
            std::sync::atomic::fence(Ordering::SeqCst);
            if shared.work.is_empty() && !shared.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            shared.parked.store(false, Ordering::SeqCst);
            idle = 0;
            continue;
        }
        idle = 0;
        let mut at = 0;
        while at < batch.len() {
            if let Some(outcome) = atomic(mem, lock, &batch[at]) {
                let _ = shared.outcomes.push(outcome);
                at += 1;
                continue;
            }
            let end = join_end(&batch, at);
            let done = transfer(mem, &batch[at..end]);
            for outcome in done {
                // Never full: the lcore keeps fewer than CAPACITY pieces under way.
                let _ = shared.outcomes.push(outcome);
            }
            at = end;
        }
        shared.lcore.wake();
    }
}

/// End of the run of pieces from `start` that are neighbours in the program and go the same way.
fn join_end(batch: &[Piece], start: usize) -> usize {
    let mut end = start + 1;
    while end < batch.len() {
        let (prev, next) = (&batch[end - 1], &batch[end]);
        if next.direction != prev.direction
            || prev.addr.checked_add(u64::from(prev.len)) != Some(next.addr)
        {
            break;
        }
        end += 1;
    }
    end
}

/// Executes a piece that is an atomic.
fn atomic(mem: &OwnedFd, lock: &ProgramLock, piece: &Piece) -> Option<Moved> {
    let operands = piece.buf.cast::<[u64; 2]>();
    let op = match piece.direction {
        Direction::Fetch | Direction::Place => return None,
        // SAFETY: 16 bytes are valid until the outcome is reported (see `Piece`); they need no alignment.
        Direction::CompareSwap => unsafe {
            let [compare, swap] = operands.read_unaligned();
            AtomicOp::CompareSwap { compare, swap }
        },
        Direction::Store if piece.len != 8 => return Some(Moved::Fault),
        // SAFETY: as above, of the 8 bytes that the length says.
        Direction::Store => unsafe { AtomicOp::Store(piece.buf.cast::<u64>().read_unaligned()) },
        // SAFETY: as above.
        Direction::FetchAdd => unsafe { AtomicOp::FetchAdd(operands.read_unaligned()[0]) },
    };
    if piece.direction == Direction::Store {
        // The packet keeps what it came with.
        return Some(super::atomic::execute(mem, lock, piece.addr, op).0);
    }
    let (moved, before) = super::atomic::execute(mem, lock, piece.addr, op);
    // SAFETY: as above.
    unsafe { piece.buf.cast::<u64>().write_unaligned(before) };
    Some(moved)
}

/// Moves the pieces, neighbours in the program, with as few system calls as it takes. Yields for each piece how it
/// ended.
fn transfer(mem: &OwnedFd, pieces: &[Piece]) -> impl Iterator<Item = Moved> + use<> {
    let total: u64 = pieces.iter().map(|p| u64::from(p.len)).sum();
    let first = pieces[0].addr;
    let mut moved = 0u64;
    let mut end_of_rest = Moved::Fault;
    while moved < total {
        let mut iov = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; JOIN];
        let mut count = 0;
        let mut skip = moved;
        for piece in pieces {
            let len = u64::from(piece.len);
            if skip >= len {
                skip -= len;
                continue;
            }
            // SAFETY: `skip` is less than the piece's length, so this stays inside its buffer.
            iov[count].iov_base = unsafe { piece.buf.add(skip as usize) }.cast();
            iov[count].iov_len = (len - skip) as usize;
            skip = 0;
            count += 1;
        }
        let Ok(offset) = libc::off_t::try_from(first.wrapping_add(moved)) else {
            break;
        };
        // SAFETY: the buffers are valid for their lengths until the outcome is reported (see `Piece`).
        let n = unsafe {
            match pieces[0].direction {
                Direction::Fetch => {
                    libc::preadv(mem.as_raw_fd(), iov.as_ptr(), count as libc::c_int, offset)
                }
                _ => libc::pwritev(mem.as_raw_fd(), iov.as_ptr(), count as libc::c_int, offset),
            }
        };
        if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        // The kernel says nothing was moved, and no error, when nobody has the address space any more (`mem_rw` in
        // fs/proc/base.c); memory that is not there is EIO.
        if n == 0 {
            end_of_rest = Moved::Gone;
        }
        if n <= 0 {
            break;
        }
        moved += n as u64;
    }
    let lens: Vec<u32> = if moved == total {
        Vec::new()
    } else {
        pieces.iter().map(|p| p.len).collect()
    };
    let count = pieces.len();
    let mut end = 0u64;
    (0..count).map(move |i| match lens.get(i) {
        None => Moved::Done,
        Some(&len) => {
            end += u64::from(len);
            if end <= moved {
                Moved::Done
            } else {
                end_of_rest
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::fd::FromRawFd;
    use std::time::{Duration, Instant};

    fn helper() -> MemHelper {
        helper_of("/proc/self/mem")
    }

    fn helper_of(path: &str) -> MemHelper {
        helper_with(path, Arc::default())
    }

    fn helper_with(path: &str, lock: Arc<ProgramLock>) -> MemHelper {
        let mem = OpenOptions::new().read(true).write(true).open(path);
        let mem = mem.unwrap();
        // SAFETY: a new descriptor.
        let eventfd = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let wake = Arc::new(LcoreWake {
            sleeping: AtomicU32::new(0),
            eventfd,
        });
        let here = HelperCpus {
            cpus: Arc::new([]),
            shared: true,
        };
        MemHelper::start(mem.into(), lock, wake, here, 1).unwrap()
    }

    fn wait(h: &MemHelper) -> Moved {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(o) = h.outcome() {
                return o;
            }
            assert!(Instant::now() < end, "no outcome");
            thread::yield_now();
        }
    }

    #[test]
    fn bytes_arrive_both_ways_and_neighbours_are_joined() {
        let h = helper();
        let mut program = vec![0u8; 3000];
        let mut a = vec![1u8; 1000];
        let mut b = vec![2u8; 2000];
        let base = program.as_mut_ptr() as u64;
        let place = |addr, v: &mut Vec<u8>| Piece {
            direction: Direction::Place,
            len: v.len() as u32,
            addr,
            buf: v.as_mut_ptr(),
        };
        assert!(h.push(place(base, &mut a)));
        assert!(h.push(place(base + 1000, &mut b)));
        h.kick();
        assert_eq!([wait(&h), wait(&h)], [Moved::Done; 2]);
        assert!(program[..1000].iter().all(|&x| x == 1) && program[1000..].iter().all(|&x| x == 2));
        let mut back = vec![0u8; 3000];
        assert!(h.push(Piece {
            direction: Direction::Fetch,
            len: 3000,
            addr: base,
            buf: back.as_mut_ptr()
        }));
        h.kick();
        assert_eq!(wait(&h), Moved::Done);
        assert_eq!(back, program);
    }

    #[test]
    fn no_store_is_lost_between_the_read_and_the_write_of_another_context() {
        let lock = Arc::new(ProgramLock::default());
        let mem = "/proc/self/mem";
        let (adds, stores) = (helper_with(mem, Arc::clone(&lock)), helper_with(mem, lock));
        let word = Box::leak(Box::new(0u64));
        let addr = &raw mut *word as u64;
        let run = |h: &MemHelper, direction, operands: &mut [u64; 2]| {
            let buf = operands.as_mut_ptr().cast();
            assert!(h.push(Piece {
                direction,
                len: 8,
                addr,
                buf
            }));
            h.kick();
            assert_eq!(wait(h), Moved::Done);
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    run(&adds, Direction::FetchAdd, &mut [1, 0]);
                }
            });
            let mut lost = None;
            for n in 1..=2_000u64 {
                run(&stores, Direction::Store, &mut [n << 32, 0]);
                let mut now = [0, 0];
                run(&stores, Direction::FetchAdd, &mut now);
                if now[0] >> 32 != n {
                    lost = Some(n);
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(lost, None, "the number of a store that was lost");
        });
    }

    #[test]
    fn atomics_are_executed_in_their_turn() {
        let h = helper();
        let mut word = Box::new(0u64);
        let addr = &raw mut *word as u64;
        let mut seven = 7u64.to_ne_bytes();
        let mut operands = [[3u64, 0], [10, 99], [0, 1]];
        let directions = [
            Direction::FetchAdd,
            Direction::CompareSwap,
            Direction::CompareSwap,
        ];
        assert!(h.push(Piece {
            direction: Direction::Place,
            len: 8,
            addr,
            buf: seven.as_mut_ptr()
        }));
        for (direction, operands) in directions.into_iter().zip(&mut operands) {
            let buf = operands.as_mut_ptr().cast();
            assert!(h.push(Piece {
                direction,
                len: 8,
                addr,
                buf
            }));
        }
        h.kick();
        assert_eq!([(); 4].map(|()| wait(&h)), [Moved::Done; 4]);
        assert_eq!(operands.map(|o| o[0]), [7, 10, 99]);
        assert_eq!(std::hint::black_box(&*word), &99);
    }

    #[test]
    fn an_unmapped_piece_faults_and_no_other() {
        let h = helper();
        let mut program = [0u8; 8];
        let mut bytes = [7u8; 8];
        for addr in [16, program.as_mut_ptr() as u64] {
            assert!(h.push(Piece {
                direction: Direction::Place,
                len: 8,
                addr,
                buf: bytes.as_mut_ptr()
            }));
        }
        h.kick();
        assert_eq!([wait(&h), wait(&h)], [Moved::Fault, Moved::Done]);
        assert_eq!(program, [7; 8]);
    }

    #[test]
    fn the_memory_of_a_dead_program_is_gone_and_no_fault() {
        let mut program = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let h = helper_of(&format!("/proc/{}/mem", program.id()));
        program.kill().unwrap();
        program.wait().unwrap();
        let mut bytes = [7u8; 8];
        for direction in [Direction::Place, Direction::Fetch] {
            assert!(h.push(Piece {
                direction,
                len: 8,
                addr: 0x10000,
                buf: bytes.as_mut_ptr()
            }));
        }
        h.kick();
        assert_eq!([wait(&h), wait(&h)], [Moved::Gone; 2]);
    }
}
