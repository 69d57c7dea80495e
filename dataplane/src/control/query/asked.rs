//! What the lcores say when they are asked: each one's part, put together.

use crate::control::error::CommandError;
use crate::control::server::Shared;
use crate::fabric::report::FabricReport;
use crate::lcore::message::{Command, Cursor, PostMortemReport, Reply, Snapshot};

/// The switches of all lcores.
pub(super) fn fabric(shared: &Shared) -> Result<FabricReport, CommandError> {
    let mut all = FabricReport::default();
    for lcore in shared.all_lcores() {
        match shared.ask_lcore(lcore, Command::Fabric)? {
            Reply::Fabric(report) => all.switches.extend(report.switches),
            other => return Err(CommandError::BadAnswer("Fabric", format!("{other:?}"))),
        }
    }
    all.switches.sort_by_key(|switch| switch.number);
    Ok(all)
}

/// What all lcores keep of queue pairs that failed.
pub(super) fn post_mortems(shared: &Shared) -> Result<Vec<PostMortemReport>, CommandError> {
    let mut all = Vec::new();
    for lcore in shared.all_lcores() {
        match shared.ask_lcore(lcore, Command::PostMortems)? {
            Reply::PostMortems(reports) => all.extend(reports),
            other => return Err(CommandError::BadAnswer("PostMortems", format!("{other:?}"))),
        }
    }
    Ok(all)
}

/// What each lcore owns, by its number.
pub(super) fn snapshots(shared: &Shared) -> Result<Vec<(u32, Snapshot)>, CommandError> {
    let mut all = Vec::new();
    for lcore in shared.all_lcores() {
        let part = |from| snapshot(shared, lcore, Command::Snapshot(from));
        let mut whole = part(Cursor::default())?;
        while let Some(from) = whole.more {
            // Between two parts the lcore does other things: what is made or freed meanwhile is in it or not.
            let next = part(from)?;
            whole.qps.extend(next.qps);
            whole.mrs.extend(next.mrs);
            whole.more = next.more;
        }
        all.push((lcore, whole));
    }
    Ok(all)
}

fn snapshot(shared: &Shared, lcore: u32, command: Command) -> Result<Snapshot, CommandError> {
    let _turn = shared.questions.take();
    match shared.ask_lcore(lcore, command)? {
        Reply::Snapshot(snapshot) => Ok(*snapshot),
        other => Err(CommandError::BadAnswer("Snapshot", format!("{other:?}"))),
    }
}

/// What the NICs of each lcore have counted, by its number.
pub(super) fn counted(shared: &Shared) -> Result<Vec<(u32, Snapshot)>, CommandError> {
    let count = |lcore| Ok((lcore, snapshot(shared, lcore, Command::Counters)?));
    shared.all_lcores().map(count).collect()
}
