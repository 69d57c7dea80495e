//! Records of queue pairs that failed, for `roceline show qp --post-mortem` and the log.

use roceline_engine::{Nanos, PostMortem};

use super::Lcore;
use super::message::PostMortemReport;
use super::nic::Nic;

/// What the NICs of an lcore keep.
pub fn post_mortems(lcore: &Lcore, now: Nanos) -> Vec<PostMortemReport> {
    let mut reports = Vec::new();
    for nic in &lcore.nics {
        reports.extend(of_nic(nic, now));
    }
    reports
}

fn of_nic(nic: &Nic, now: Nanos) -> impl Iterator<Item = PostMortemReport> {
    let report = move |record: &PostMortem| PostMortemReport {
        device: nic.info.name.clone(),
        age: now.saturating_sub(record.at),
        record: *record,
    };
    nic.engine.post_mortems().iter().map(report)
}
