//! Ways between the parts of a port: queues, and doors at which one is woken that sleeps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use crossbeam_utils::CachePadded;

use super::super::Mbuf;
use super::super::fabric_link::eventfd;
use super::super::spsc::Producer;

/// Where a part that sleeps hears a knock.
#[derive(Debug)]
pub struct Door {
    armed: CachePadded<AtomicBool>,
    event: OwnedFd,
}

impl Door {
    /// A door at which nobody waits.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> io::Result<Door> {
        Ok(Door {
            armed: CachePadded::new(AtomicBool::new(false)),
            event: eventfd()?,
        })
    }

    /// What becomes readable by a knock.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// From now on a knock wakes: the part is about to sleep.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Wakes the part if it sleeps. What it is to find was shown before.
    #[inline]
    pub fn knock(&self) {
        // As with fabric links: the sleeper arms, runs membarrier, then looks, so one of the two sees the other.
        compiler_fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: an open eventfd and eight readable bytes. A full counter is readable, too.
            unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Nobody waits any more.
    pub fn clear(&self) {
        self.armed.store(false, Ordering::Release);
        let mut count = [0u8; 8];
        // SAFETY: an open eventfd and eight writable bytes; without a knock it returns at once.
        unsafe {
            libc::read(
                self.event.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            );
        }
    }
}

/// The way to another part.
#[derive(Debug)]
pub struct Outlet {
    queue: Producer<Mbuf>,
    door: Arc<Door>,
    /// Something was pushed and not shown.
    pushed: bool,
}

impl Outlet {
    /// By `queue`, to whom is behind `door`.
    pub fn new(queue: Producer<Mbuf>, door: &Arc<Door>) -> Outlet {
        Outlet {
            queue,
            door: Arc::clone(door),
            pushed: false,
        }
    }

    /// Whether it takes a frame more.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.queue.has_room()
    }

    /// Puts a frame on its way, which is seen when it is shown.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        self.queue.push(mbuf)?;
        self.pushed = true;
        Ok(())
    }

    /// Shows the other part what was pushed.
    #[inline]
    pub fn show(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.queue.flush();
            self.door.knock();
        }
    }
}

/// A descriptor that is readable when one of these is.
pub fn either(door: BorrowedFd<'_>, port: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor that becomes ours.
    let epoll = unsafe {
        match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
            -1 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    for fd in [Some(door), port].into_iter().flatten() {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: open descriptors and a live event, which is only read.
        let added = unsafe {
            libc::epoll_ctl(
                epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &raw mut event,
            )
        };
        if added != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(epoll)
}
