//! Keeps the counter files of the device tree true, those of the ports' links, and the links to other devices of the machine.
//!
//! In: the lcore's counters, asked for by message, what it says of links, and `hw_counters/lifespan`, which anybody who may write it may set. Out: the
//! files. One thread does it; it ends when the value is dropped.
//!
//! In the kernel, `lifespan` is how long (ms) a read of `hw_counters` may be answered from what was read before. A file
//! cannot ask when it is read, so here the files are written again every `lifespan`: as fresh, at the same setting. Only files
//! whose value has changed are written.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::LcorePort;
use super::counters::NicCounters;
use super::tree::{CounterFile, Tree, counter_files};
use crate::lcore::message::{Command, ContextId, NicSnapshot, Reply, Request};
use crate::nic::{LinkState, NicInfo};

/// A change of `lifespan` is seen after this time at the latest.
const LONGEST_TICK: Duration = Duration::from_secs(1);
/// How long to wait for an lcore, which answers between two bursts.
const PATIENCE: Duration = Duration::from_secs(1);

/// The device tree with the thread that keeps its counter files true. Dropping it ends both.
#[derive(Debug)]
pub struct CounterFiles {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CounterFiles {
    /// Starts to write the counters of `nics` into `tree`.
    pub fn start(
        tree: Tree,
        nics: Arc<[NicInfo]>,
        lcores: Arc<dyn LcorePort>,
    ) -> io::Result<CounterFiles> {
        let (stop, stopped) = sync_channel(0);
        let mut writer = Writer::new(tree, &nics, lcores);
        let thread = thread::Builder::new()
            .name("counters".into())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(writer.tick()) {
                    writer.turn(Instant::now());
                }
            })?;
        Ok(CounterFiles {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for CounterFiles {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Its panic would have been logged; there is nothing left to do about it here.
            let _ = thread.join();
        }
    }
}

/// A NIC's files.
struct Nic {
    index: u32,
    name: String,
    link: LinkState,
    /// What the files say of the link, and the log; not known at the start.
    up: Option<bool>,
    lifespan: Duration,
    written_at: Option<Instant>,
    /// Storms of pauses that the log was told of.
    storms: (u64, u64),
    /// What the files say.
    files: Vec<CounterFile>,
}

impl Nic {
    /// With files as they are in a new tree.
    fn new(nic: &NicInfo) -> Nic {
        Nic {
            index: nic.index,
            name: nic.name.clone(),
            link: nic.link.clone(),
            up: None,
            lifespan: Tree::LIFESPAN,
            written_at: None,
            storms: (0, 0),
            files: counter_files(&NicCounters::default()),
        }
    }

    /// Tells the tree and the log if the link came or went, since the last look or, in the first, since the tree was written. Gives
    /// whether it did.
    fn follow_link(&mut self, tree: &Tree) -> io::Result<bool> {
        let up = self.link.is_up();
        if self.up == Some(up) {
            return Ok(false);
        }
        let news = tree.update_link(&self.name, up)?;
        self.up = Some(up);
        match up {
            true if news => tracing::info!(nic = self.name, "link up"),
            false if news => tracing::warn!(nic = self.name, "link down"),
            _ => {}
        }
        Ok(news)
    }
}

impl Nic {
    /// Tells the log of storms of pauses that were found since the last look: received ones, and our own.
    fn follow_storms(&mut self, now: (u64, u64)) {
        let before = std::mem::replace(&mut self.storms, now);
        if now.0 > before.0 {
            tracing::warn!(
                nic = self.name,
                storms = now.0,
                "paused by the other end without a break for longer than watchdog_rx_limit: its pauses are ignored until they stop; \
                 `roceline stat` has rx_prioN_pause_duration"
            );
        }
        if now.1 > before.1 {
            tracing::warn!(
                nic = self.name,
                storms = now.1,
                "paused the other end without a break for longer than watchdog_tx_limit: packets that find no room are dropped until \
                 there is; a program's memory does not keep up"
            );
        }
    }
}

struct Writer {
    tree: Tree,
    nics: Vec<Nic>,
    lcores: Arc<dyn LcorePort>,
    complained: bool,
    looked_at: Option<Instant>,
}

impl Writer {
    fn new(tree: Tree, nics: &[NicInfo], lcores: Arc<dyn LcorePort>) -> Writer {
        Writer {
            tree,
            nics: nics.iter().map(Nic::new).collect(),
            lcores,
            complained: false,
            looked_at: None,
        }
    }

    /// How long until the next turn.
    fn tick(&self) -> Duration {
        let lifespans = self.nics.iter().map(|nic| nic.lifespan);
        lifespans.min().unwrap_or(LONGEST_TICK).min(LONGEST_TICK)
    }

    /// Looks at `lifespan`, and writes what has become too old.
    fn turn(&mut self, now: Instant) {
        let mut asked: BTreeMap<u32, Vec<NicSnapshot>> = BTreeMap::new();
        let mut problem = None;
        let looked = self
            .looked_at
            .map(|then| now.saturating_duration_since(then));
        if looked.is_none_or(|ago| ago >= LONGEST_TICK) {
            self.looked_at = Some(now);
            problem = self.tree.follow_machine().err();
        }
        for nic in &mut self.nics {
            if let Err(error) = nic.follow_link(&self.tree) {
                problem = Some(error);
            }
            match self.tree.lifespan(&nic.name, nic.lifespan) {
                Ok(lifespan) => nic.lifespan = lifespan,
                Err(error) => problem = Some(error),
            }
            // A tick may come a little early.
            let slack = nic.lifespan / 8;
            let old = |then: Instant| now.saturating_duration_since(then) + slack >= nic.lifespan;
            if !nic.written_at.is_none_or(old) {
                continue;
            }
            let Some(counters) = counted(&*self.lcores, &mut asked, nic) else {
                // An lcore is busy or gone; the next turn will tell.
                continue;
            };
            nic.follow_storms(counters.storms());
            let files = counter_files(&counters);
            match self.tree.update(&nic.name, &nic.files, &files) {
                Ok(()) => {
                    nic.files = files;
                    nic.written_at = Some(now);
                }
                Err(error) => problem = Some(error),
            }
        }
        match problem {
            Some(error) if !self.complained => {
                tracing::warn!(%error, "cannot keep the counter files; they have old values");
                self.complained = true;
            }
            Some(_) => {}
            None => self.complained = false,
        }
    }
}

/// What a NIC counted on all lcores that serve it; those that were not asked in this turn are.
fn counted(
    lcores: &dyn LcorePort,
    asked: &mut BTreeMap<u32, Vec<NicSnapshot>>,
    nic: &Nic,
) -> Option<NicCounters> {
    let mut counters = NicCounters::default();
    for &lcore in lcores.serving(nic.index) {
        let parts = match asked.entry(lcore) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(ask(lcores, lcore)?),
        };
        for part in parts.iter().filter(|part| part.name == nic.name) {
            counters.add(part);
        }
    }
    Some(counters)
}

fn ask(lcores: &dyn LcorePort, lcore: u32) -> Option<Vec<NicSnapshot>> {
    let (reply, answer) = sync_channel(1);
    let request = Request {
        context: ContextId::NONE,
        command: Command::Counters,
        reply,
    };
    lcores.send(lcore, request).ok()?;
    match answer.recv_timeout(PATIENCE) {
        Ok(Reply::Snapshot(snapshot)) => Some(snapshot.nics),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use roceline_engine::verbs::Mtu;

    use super::*;
    use crate::control::testing;

    #[test]
    fn a_link_that_comes_before_the_first_look_is_news() {
        let dir = std::env::temp_dir().join(format!("roceline-first-look-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let info = testing::nic(0, Mtu::M4096);
        info.link.set(false);
        let tree = Tree::create(&dir.join("r.sock"), std::slice::from_ref(&info)).unwrap();

        let mut nic = Nic::new(&info);
        info.link.set(true);
        assert!(nic.follow_link(&tree).unwrap());
        assert!(!nic.follow_link(&tree).unwrap());
        // What the tree says already is none.
        assert!(!Nic::new(&info).follow_link(&tree).unwrap());
        drop(tree);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
