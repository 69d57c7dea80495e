//! Queue pairs that could not be connected: `modify_qp` to RTR or RTS that was refused. The program gets an errno and no
//! more, and there is no queue pair that failed, so the reason is kept here for `roceline show qp --post-mortem`.
//!
//! In: what sessions refused. Out: the newest [`KEPT`] of them. The daemon's process owns them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use roceline_engine::Owner;
use serde::{Deserialize, Serialize};

/// How many are kept.
const KEPT: usize = 32;
/// Of one process, so that one that tries again and again pushes out only its own.
const KEPT_OF_PROCESS: usize = 4;

/// A `modify_qp` that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedQp {
    /// Device.
    pub device: String,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Its program.
    pub pid: u32,
    /// Name of its program.
    pub program: String,
    /// The state that it was to get: `RTR`, `RTS`.
    pub to: String,
    /// What the program got.
    pub errno: i32,
    /// Why, and what helps.
    pub reason: String,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// How long ago, in nanoseconds.
    pub age_ns: u64,
}

/// The newest ones.
#[derive(Debug, Default)]
pub struct RefusedQps(Mutex<VecDeque<(Instant, RefusedQp)>>);

impl RefusedQps {
    /// Keeps one.
    pub fn add(&self, device: &str, qpn: u32, owner: Owner, to: &str, errno: i32, reason: String) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let new = RefusedQp {
            device: device.into(),
            qpn,
            pid: owner.pid,
            program: owner.name(),
            to: to.into(),
            errno,
            reason,
            unix_ms: since_1970.map_or(0, |t| t.as_millis() as u64),
            age_ns: 0,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().filter(|(_, r)| r.pid == new.pid).count();
        if own >= KEPT_OF_PROCESS {
            if let Some(oldest) = all.iter().position(|(_, r)| r.pid == new.pid) {
                all.remove(oldest);
            }
        }
        if all.len() >= KEPT {
            all.pop_front();
        }
        all.push_back((Instant::now(), new));
    }

    /// Those that are kept, oldest first.
    pub fn list(&self) -> Vec<RefusedQp> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let with_age = |(at, refused): &(Instant, RefusedQp)| RefusedQp {
            age_ns: at.elapsed().as_nanos().try_into().unwrap_or(u64::MAX),
            ..refused.clone()
        };
        all.iter().map(with_age).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_bounded_and_one_process_pushes_out_only_its_own() {
        let kept = RefusedQps::default();
        let add = |pid, qpn| {
            let owner = Owner {
                pid,
                ..Owner::default()
            };
            kept.add("roce0", qpn, owner, "RTR", libc::EINVAL, "why".into());
        };
        add(1, 7);
        (0..1000).for_each(|qpn| add(2, qpn));
        let qpns: Vec<u32> = kept.list().iter().map(|r| r.qpn).collect();
        assert_eq!(qpns, [7, 996, 997, 998, 999]);
        (3..1000).for_each(|pid| add(pid, pid));
        assert_eq!(kept.list().len(), KEPT);
    }
}
