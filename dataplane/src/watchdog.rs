//! The watch on the polling thread: one that makes no progress is ended with its worker, so that the supervisor tells programs
//! of it and starts another. Otherwise a daemon that hangs would look alive for ever.
//!
//! In flow beats, four a second from the thread's slow round ([`Heart`]), idle or not, and what the kernel says of the thread.
//! Out flows, if need be, SIGABRT for the process, which leaves a core file where the system keeps such.
//!
//! It must not fire on a machine that is merely busy, nor while a person looks at the process. So time alone is no evidence.
//! What is:
//!
//! * CPU time that the thread has used since its last beat: a loop without end has used as much as is allowed, a thread that
//!   gets no CPU has used none;
//! * looks, one after the other, that all find it waiting for something (state `S`, `proc_pid_stat(5)`), which is no lack of CPU
//!   either: a deadlock, a call that blocks.
//!
//! A thread that waits for a page (`D`) or is stopped (`T`, `t`: a debugger, SIGSTOP) proves nothing, and a process that is
//! stopped or frozen as a whole does not look.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// What the polling thread shows of itself.
#[derive(Debug, Default)]
pub struct Heart {
    beats: AtomicU64,
    /// Its number; 0 before it runs.
    thread: AtomicI32,
}

impl Heart {
    /// The calling thread is the one to be watched.
    pub fn begin(&self) {
        // SAFETY: no argument, and it cannot fail.
        self.thread
            .store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }

    /// It gets on.
    pub fn beat(&self) {
        // Only that thread writes.
        let beats = self.beats.load(Ordering::Relaxed);
        self.beats.store(beats + 1, Ordering::Relaxed);
    }

    /// There is nothing to be watched any more.
    pub fn end(&self) {
        self.thread.store(0, Ordering::Relaxed);
    }
}

/// How the thread is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sight {
    beats: u64,
    state: char,
    /// CPU time that it has used since it began.
    cpu: Duration,
}

/// Why it is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It runs and runs.
    Loops { cpu: Duration },
    /// It waits and waits.
    Waits { time: Duration },
}

/// What was seen since the last beat.
#[derive(Debug)]
struct Evidence {
    limit: Duration,
    beats: u64,
    cpu_at_beat: Duration,
    cpu_before: Duration,
    waiting: Duration,
}

impl Evidence {
    fn new(limit: Duration, first: Sight) -> Evidence {
        Evidence {
            limit,
            beats: first.beats,
            cpu_at_beat: first.cpu,
            cpu_before: first.cpu,
            waiting: Duration::ZERO,
        }
    }

    /// Another look, `LOOK` after the one before.
    fn add(&mut self, sight: Sight) -> Option<Verdict> {
        if sight.beats != self.beats {
            *self = Evidence::new(self.limit, sight);
            return None;
        }
        let waits = sight.state == 'S' && sight.cpu == self.cpu_before;
        self.cpu_before = sight.cpu;
        self.waiting = if waits {
            self.waiting + LOOK
        } else {
            Duration::ZERO
        };
        let cpu = sight.cpu.saturating_sub(self.cpu_at_beat);
        if cpu >= self.limit {
            return Some(Verdict::Loops { cpu });
        }
        let time = self.waiting;
        (time >= self.limit).then_some(Verdict::Waits { time })
    }
}

/// The watching thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches `heart`, that of lcore `lcore`; `limit` of zero: nobody does.
    pub fn start(heart: Arc<Heart>, limit: Duration, lcore: usize) -> std::io::Result<Watchdog> {
        if limit.is_zero() {
            return Ok(Watchdog {
                stop: None,
                thread: None,
            });
        }
        let (stop, stopped) = channel::<()>();
        let thread = thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || {
                let mut evidence: Option<Evidence> = None;
                while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    let Some(sight) = look(&heart) else {
                        evidence = None;
                        continue;
                    };
                    let verdict = match &mut evidence {
                        Some(evidence) => evidence.add(sight),
                        None => {
                            evidence = Some(Evidence::new(limit, sight));
                            None
                        }
                    };
                    if let Some(verdict) = verdict {
                        end(verdict, lcore);
                    }
                }
            })?;
        Ok(Watchdog {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It does nothing that could fail.
            let _ = thread.join();
        }
    }
}

fn end(verdict: Verdict, lcore: usize) -> ! {
    match verdict {
        Verdict::Loops { cpu } => tracing::error!(
            lcore,
            cpu_s = cpu.as_secs(),
            "the polling thread hangs: it uses CPU time and finishes no round; this process ends with SIGABRT. Please report \
             this, with the core file"
        ),
        Verdict::Waits { time } => tracing::error!(
            lcore,
            seconds = time.as_secs(),
            "the polling thread hangs: it waits for something that does not come; this process ends with SIGABRT. Please report \
             this, with the core file"
        ),
    }
    std::process::abort()
}

fn look(heart: &Heart) -> Option<Sight> {
    let thread = heart.thread.load(Ordering::Relaxed);
    if thread == 0 {
        return None;
    }
    let beats = heart.beats.load(Ordering::Relaxed);
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    let (state, ticks) = parse(&stat)?;
    // SAFETY: no pointers.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    Some(Sight {
        beats,
        state,
        cpu: Duration::from_millis(ticks * 1000 / per_second.max(1)),
    })
}

/// State, and user and system time in clock ticks: fields 3, 14 and 15 of `proc_pid_stat(5)`. The name before them may hold
/// anything.
fn parse(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((state, user + system))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    fn sight(beats: u64, state: char, cpu_ms: u64) -> Sight {
        Sight {
            beats,
            state,
            cpu: Duration::from_millis(cpu_ms),
        }
    }

    /// What becomes of looks at a thread whose last beat was the first.
    fn verdict(sights: impl IntoIterator<Item = Sight>) -> Option<Verdict> {
        let mut evidence = Evidence::new(LIMIT, sight(1, 'R', 1000));
        sights.into_iter().find_map(|sight| evidence.add(sight))
    }

    #[test]
    fn a_thread_that_loops_is_ended_by_its_cpu_time() {
        let looks =
            |per_look: u64, n: u64| (1..=n).map(move |i| sight(1, 'R', 1000 + i * per_look));
        assert_eq!(verdict(looks(500, 5)), None);
        let cpu = Duration::from_secs(3);
        assert_eq!(verdict(looks(500, 6)), Some(Verdict::Loops { cpu }));
        // One that gets a tenth of a CPU takes ten times as long.
        assert_eq!(verdict(looks(50, 59)), None);
        assert!(verdict(looks(50, 60)).is_some());
    }

    #[test]
    fn a_busy_machine_is_no_evidence() {
        assert_eq!(verdict((0..10_000).map(|_| sight(1, 'R', 1000))), None);
    }

    #[test]
    fn neither_is_a_debugger_or_a_disk() {
        for state in ['t', 'T', 'D'] {
            assert_eq!(verdict((0..10_000).map(|_| sight(1, state, 1000))), None);
        }
        // Woken now and then, and asleep again.
        let looks = (0..10_000u64).map(|i| sight(1, if i % 5 == 4 { 'D' } else { 'S' }, 1000));
        assert_eq!(verdict(looks), None);
    }

    #[test]
    fn a_thread_that_waits_is_ended_by_its_waiting() {
        let looks = |n: usize| (0..n).map(|_| sight(1, 'S', 1000));
        assert_eq!(verdict(looks(5)), None);
        let time = Duration::from_secs(3);
        assert_eq!(verdict(looks(6)), Some(Verdict::Waits { time }));
    }

    #[test]
    fn a_beat_is_an_acquittal() {
        let mut evidence = Evidence::new(LIMIT, sight(1, 'R', 0));
        for i in 1..1000 {
            assert_eq!(
                evidence.add(sight(1 + i / 5, 'R', 500 * i)),
                None,
                "look {i}"
            );
        }
    }

    #[test]
    fn the_name_of_a_thread_may_hold_anything() {
        let stat = "7 (a) R 1 (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13";
        assert_eq!(parse(stat), Some(('S', 23)));
        let own = fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert_eq!(parse(&own).map(|(state, _)| state), Some('R'));
        assert_eq!(parse("7 (a"), None);
    }
}
