//! What the supervisor keeps of each open device: its context file and the write ends of its event pipes. While the
//! worker lives they lie here unused. When it is dead, they speak for it: posted work is flushed
//! (`roceline_abi::flush`), `IBV_EVENT_DEVICE_FATAL` arrives, and waiting programs wake.
//!
//! A dead context stays dead until its program lets go of it, and is flushed again and again meanwhile: a program may
//! post until it has seen the end, and those that wait for receives post them without telling anybody.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use roceline_abi::flush::{self, DEVICE_FATAL_RECORD};

use super::message::News;
use crate::lcore::message::ContextId;
use crate::memory::ContextFile;

/// Contexts, and channels of a context, beyond which the worker is not believed. It allows fewer of both.
const MOST_CONTEXTS: usize = 1 << 14;
const MOST_CHANNELS: usize = 1 << 14;
/// Between two looks at a context that died not long ago.
const SOON: Duration = Duration::from_millis(20);
/// And later.
const LATER: Duration = Duration::from_millis(200);
/// What "not long ago" is.
const FRESH: Duration = Duration::from_secs(10);
/// And where there was no time for all.
const AT_ONCE: Duration = Duration::from_millis(1);
/// Records looked at and completions written for a context before the next program has its turn.
const SLICE: u32 = 1 << 13;
/// And in a look at all of them: about 0.2 s. Then the supervisor does what else there is to do.
const LOOK: u32 = 1 << 21;
/// A lock held for so many looks is held by a program that died, or that lies.
const LOCKED_LOOKS: u32 = 100;

/// An open device of the living worker.
#[derive(Debug)]
struct Held {
    pid: u32,
    program: (i32, u32),
    file: OwnedFd,
    events: OwnedFd,
    channels: HashMap<u32, OwnedFd>,
}

/// An open device whose worker is dead.
#[derive(Debug)]
struct Dead {
    program: (i32, u32),
    round: flush::Round,
    file: ContextFile,
    events: OwnedFd,
    channels: HashMap<u32, OwnedFd>,
    since: Instant,
    woken: bool,
    told: bool,
    locked: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Estate {
    held: HashMap<ContextId, Held>,
    dead: Vec<Dead>,
}

impl Estate {
    /// Takes what the worker hands over.
    pub fn take(&mut self, news: News) {
        match news {
            News::Context {
                id,
                pid,
                peer,
                file,
                events,
            } => {
                if self.held.len() >= MOST_CONTEXTS {
                    tracing::error!(pid, "more open devices than there can be: one is not kept");
                    return;
                }
                let held = Held {
                    pid,
                    program: peer.program(),
                    file,
                    events,
                    channels: HashMap::new(),
                };
                self.held.insert(id, held);
            }
            News::ContextGone(id) => {
                self.held.remove(&id);
            }
            News::Channel { id, handle, events } => {
                let Some(held) = self.held.get_mut(&id) else {
                    return;
                };
                if held.channels.len() < MOST_CHANNELS {
                    held.channels.insert(handle, events);
                } else {
                    tracing::error!(pid = held.pid, "more channels than there can be");
                }
            }
            News::ChannelGone { id, handle } => {
                if let Some(held) = self.held.get_mut(&id) {
                    held.channels.remove(&handle);
                }
            }
            News::Ready | News::Stopped => {}
        }
    }

    /// Open devices of the living worker.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The worker is dead, and with it all its contexts. Tells their programs.
    pub fn bury(&mut self, now: Instant) {
        for (_, held) in self.held.drain() {
            match ContextFile::adopt(held.file) {
                Ok(file) => self.dead.push(Dead {
                    program: held.program,
                    round: flush::Round::default(),
                    file,
                    events: held.events,
                    channels: held.channels,
                    since: now,
                    woken: false,
                    told: false,
                    locked: 0,
                }),
                Err(error) => tracing::error!(
                    pid = held.pid,
                    %error,
                    "the queues of a program cannot be reached: it sees the end of its event pipes only"
                ),
            }
        }
        self.look(now);
    }

    /// Looks at the dead contexts once. Says when to look again.
    pub fn look(&mut self, now: Instant) -> Option<Duration> {
        let whole = self.go_round();
        self.dead.retain(|dead| !is_left(&dead.events));
        if !whole && !self.dead.is_empty() {
            return Some(AT_ONCE);
        }
        let age = |dead: &Dead| now.saturating_duration_since(dead.since);
        let youngest = self.dead.iter().map(age).min()?;
        Some(if youngest < FRESH { SOON } else { LATER })
    }

    /// Programs take turns, so that none waits for the many and large contexts of another. False if there was not time for all.
    fn go_round(&mut self) -> bool {
        let mut programs: BTreeMap<(i32, u32), VecDeque<usize>> = BTreeMap::new();
        for (at, dead) in self.dead.iter().enumerate() {
            programs.entry(dead.program).or_default().push_back(at);
        }
        let mut left = LOOK;
        while left > 0 && !programs.is_empty() {
            programs.retain(|_, contexts| {
                let Some(at) = contexts.pop_front() else {
                    return false;
                };
                let slice = SLICE.min(left);
                let mut rest = slice;
                if !self.dead[at].look(&mut rest) {
                    contexts.push_back(at);
                }
                // Who has nothing to do costs something too.
                left = left.saturating_sub((slice - rest).max(1));
                !contexts.is_empty()
            });
        }
        programs.is_empty()
    }

    /// Dead contexts whose programs still have them.
    #[cfg(test)]
    pub fn dead(&self) -> usize {
        self.dead.len()
    }
}

impl Dead {
    /// Flushes as much as `left` allows. True if that was all, or must do for now.
    fn look(&mut self, left: &mut u32) -> bool {
        let view = self.file.view();
        let channels = &self.channels;
        let mut notify = |channel: u32, user_handle: u64| match channels.get(&channel) {
            Some(pipe) => write(pipe, &user_handle.to_ne_bytes()),
            // Closed: nobody waits there.
            None => true,
        };
        match flush::part(&view, &mut self.round, !self.woken, left, &mut notify) {
            Some(false) => {
                self.locked = 0;
                return false;
            }
            Some(true) => {
                self.woken = true;
                self.locked = 0;
            }
            None => {
                self.locked += 1;
                if self.locked > LOCKED_LOOKS {
                    flush::break_lock(&view);
                }
            }
        }
        if !self.told {
            // After the flush: a program that hears of the death finds its completions.
            self.told = self.woken && write(&self.events, &DEVICE_FATAL_RECORD);
        }
        true
    }
}

/// Writes a whole event, at once or not at all (`pipe(7)`: up to PIPE_BUF bytes). False if the pipe is full.
fn write(pipe: &OwnedFd, bytes: &[u8]) -> bool {
    loop {
        // SAFETY: writes initialised bytes; the pipe does not block.
        let n = unsafe { libc::write(pipe.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        if n >= 0 {
            return true;
        }
        match io::Error::last_os_error().kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return false,
            // Nobody reads it any more.
            _ => return true,
        }
    }
}

/// Whether nobody has the read end any more: the program closed the device, or ended.
fn is_left(pipe: &OwnedFd) -> bool {
    let mut poll = libc::pollfd {
        fd: pipe.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: polls one live entry, without waiting.
    let n = unsafe { libc::poll(&mut poll, 1, 0) };
    n > 0 && poll.revents & (libc::POLLERR | libc::POLLNVAL) != 0
}

#[cfg(test)]
mod tests;
