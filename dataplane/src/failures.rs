//! The log's word about queue pairs that fail. The lcore only wakes this thread, between polls; it asks for the
//! records as the command line does, and logs them, not too many.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use roceline_engine::diagnosis::diagnose;

use crate::control::LcorePort;
use crate::lcore::message::{Command, ContextId, PostMortemReport, Reply, Request};

/// Lines logged in one [`PERIOD`]; what is beyond is only counted.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);
/// Between two looks, however many queue pairs fail.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the lcore may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// The thread that logs failures. Dropping it ends it.
pub struct FailureLog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FailureLog {
    /// Starts it; it asks `lcores` for the records.
    pub fn start(lcores: Arc<dyn LcorePort>) -> io::Result<FailureLog> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("failures".into())
            .spawn(move || {
                let mut limit = Limit::new();
                let mut seen = Seen::default();
                while !stopped.load(Ordering::Acquire) {
                    match limit.dropped {
                        0 => thread::park(),
                        // The count is due when the period ends, also if nothing more fails.
                        _ => thread::park_timeout(PERIOD),
                    }
                    limit.settle(Instant::now());
                    for lcore in 0..lcores.count() {
                        for report in seen.fresh(lcore, reports(&*lcores, lcore)) {
                            log(&report, &mut limit);
                        }
                    }
                    thread::sleep(PAUSE);
                }
            })?;
        Ok(FailureLog {
            stop,
            thread: Some(thread),
        })
    }

    /// What the lcore wakes when a queue pair has failed.
    pub fn thread(&self) -> Option<Thread> {
        self.thread.as_ref().map(|t| t.thread().clone())
    }
}

impl Drop for FailureLog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its panic would have been logged; there is nothing left to do about it here.
            let _ = thread.join();
        }
    }
}

/// What an lcore keeps; nothing if it does not answer.
fn reports(lcores: &dyn LcorePort, lcore: u32) -> Vec<PostMortemReport> {
    let (reply, answer) = sync_channel(1);
    let request = Request {
        context: ContextId::NONE,
        command: Command::PostMortems,
        reply,
    };
    if lcores.send(lcore, request).is_err() {
        return Vec::new();
    }
    match answer.recv_timeout(ANSWER) {
        Ok(Reply::PostMortems(reports)) => reports,
        _ => Vec::new(),
    }
}

/// The newest record of each device that was logged; each lcore counts those of its part of a device.
#[derive(Default)]
struct Seen(std::collections::BTreeMap<(u32, String), u64>);

impl Seen {
    fn fresh(&mut self, lcore: u32, mut reports: Vec<PostMortemReport>) -> Vec<PostMortemReport> {
        let key = |r: &PostMortemReport| (lcore, r.device.clone());
        reports.retain(|r| r.record.number > self.0.get(&key(r)).copied().unwrap_or(0));
        reports.sort_by_key(|r| r.record.number);
        for r in &reports {
            self.0.insert(key(r), r.record.number);
        }
        reports
    }
}

/// So many lines in a period.
struct Limit {
    since: Instant,
    lines: u32,
    dropped: u32,
}

impl Limit {
    fn new() -> Limit {
        Limit {
            since: Instant::now(),
            lines: 0,
            dropped: 0,
        }
    }

    /// Begins a new period if the old one is over, and says what was not logged in that.
    fn settle(&mut self, now: Instant) {
        if now.duration_since(self.since) >= PERIOD {
            if self.dropped > 0 {
                tracing::warn!(
                    queue_pairs = self.dropped,
                    "more queue pairs failed than are logged: `roceline show qp --post-mortem` lists them"
                );
            }
            *self = Limit {
                since: now,
                ..Limit::new()
            };
        }
    }

    fn allows(&mut self, now: Instant) -> bool {
        self.settle(now);
        self.lines += 1;
        let allowed = self.lines <= LINES;
        self.dropped += u32::from(!allowed);
        allowed
    }
}

fn log(report: &PostMortemReport, limit: &mut Limit) {
    let r = &report.record;
    let diagnosis = diagnose(r);
    let (device, pid) = (&report.device, r.owner.pid);
    let qpn = format!("{:#x}", r.qp.0);
    if r.cause.is_orderly() {
        // Programs that disconnect do this.
        tracing::debug!(%device, %qpn, pid, "queue pair in ERR: {}", diagnosis.sentence);
    } else if limit.allows(Instant::now()) {
        let program = r.owner.name();
        tracing::warn!(
            %device, %qpn, pid, program, cause = diagnosis.name,
            "queue pair failed: {} (`roceline show qp --post-mortem {:#x}` says more)",
            diagnosis.sentence, r.qp.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_ten_lines_and_a_count() {
        let mut limit = Limit::new();
        let start = limit.since;
        let allowed = (0..1000).filter(|_| limit.allows(start)).count();
        assert_eq!((allowed, limit.dropped), (10, 990));
        assert!(limit.allows(start + PERIOD));
        assert_eq!(limit.dropped, 0);
    }
}
