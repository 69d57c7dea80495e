//! A session's capture: the tap that it put into lcores, and what comes out of it.
//!
//! In flow requests of the command line ([`crate::capture::request`]), out flow records, as many as fit one answer, when
//! they are asked for. The tap goes when the session ends, for whatever reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roceline_engine::verbs::WcStatus;
use serde::Serialize;

use super::error::CommandError;
use super::server::Shared;
use crate::capture::chunks::{self, Drainer};
use crate::capture::filter::Filter;
use crate::capture::last::LastPackets;
use crate::capture::request::{
    Capture, Counts, EVENT, FailedQp, Interface, RuleNames, Start, Started, Status, Stopped,
};
use crate::fabric::plan::PortName;
use crate::lcore::message::{Command, Reply};
use crate::lcore::tap::{Clock, Store, Tap, TapId, TapState};
use crate::memory::room;

/// Longest wait for records or a failure before an empty answer. Bounds how long an interrupted command line waits.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks: the lcore makes no system call to wake us.
const PAUSE: Duration = Duration::from_millis(2);
/// Bytes of records in one answer.
const BATCH: usize = 1 << 20;
/// Most memory that a capture may take of the daemon.
const MAX_MEMORY: u64 = 1 << 30;
/// Snap lengths: a frame's headers fit into the least.
const SNAPLEN: std::ops::RangeInclusive<u32> = 64..=65_535;

/// The capture of a session, from its start to the end of the session.
#[derive(Debug)]
pub struct Session {
    parts: Vec<Part>,
    interfaces: Vec<Interface>,
}

/// What one lcore has of it.
#[derive(Debug)]
struct Part {
    /// The lcore.
    lcore: u32,
    id: TapId,
    state: Arc<TapState>,
    drainer: Option<Drainer>,
    /// The tap, once it was taken out.
    removed: Option<Box<Tap>>,
}

impl Part {
    /// Takes the tap out, if it is still in.
    fn remove(&mut self, shared: &Shared) -> Result<(), CommandError> {
        if self.removed.is_some() {
            return Ok(());
        }
        match shared.ask_lcore(self.lcore, Command::RemoveTap(self.id))? {
            Reply::Tap(tap) => {
                self.removed = Some(tap);
                Ok(())
            }
            other => Err(CommandError::BadAnswer("RemoveTap", format!("{other:?}"))),
        }
    }
}

/// Serves a request. `session` is the connection's capture, if it has one.
pub fn answer(
    shared: &Shared,
    session: &mut Option<Session>,
    request: Capture,
) -> Result<Vec<u8>, CommandError> {
    const NONE: CommandError = CommandError::Message("no capture was started on this connection");
    match (request, session.as_mut()) {
        (Capture::Start(_), Some(_)) => Err(CommandError::Message(
            "this connection has its capture already: connect again for another",
        )),
        (Capture::Start(start), None) => {
            let (started, reply) = Session::start(shared, &start)?;
            *session = Some(started);
            json(&reply)
        }
        (_, None) => Err(NONE),
        (Capture::Next, Some(own)) => Ok(own.next()),
        (Capture::Status, Some(own)) => json(&own.status()),
        (Capture::Rules, Some(_)) => json(&RuleNames {
            names: shared.impairments.names(),
        }),
        (Capture::Stop, Some(own)) => json(&own.stop(shared)?),
    }
}

impl Session {
    fn start(shared: &Shared, start: &Start) -> Result<(Session, Started), CommandError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let interfaces = interfaces(shared, start)?;
        if !SNAPLEN.contains(&start.snaplen) {
            return Err(CommandError::Capture(format!(
                "snaplen {} is out of range: {} to {}",
                start.snaplen,
                SNAPLEN.start(),
                SNAPLEN.end()
            )));
        }
        // No frame is longer than its port allows, and no record than a chunk.
        let longest = shared.config.nics.iter().map(|nic| nic.port_mtu).max();
        let longest = longest.unwrap_or(0) as usize + LINK_HEADERS;
        let snaplen = (start.snaplen as usize).min(longest).min(chunks::MAX_DATA);
        let memory = match start.last {
            Some(count) => LastPackets::memory(count as usize, snaplen) as u64,
            None => start.buffer,
        };
        if memory > MAX_MEMORY {
            return Err(CommandError::Capture(format!(
                "it would take {} MiB of the daemon's memory, {} at most: keep fewer packets, or fewer bytes of each \
                 with --snaplen",
                memory >> 20,
                MAX_MEMORY >> 20
            )));
        }
        let lcores = by_lcore(shared, &interfaces);
        let stores = stores(start, snaplen, memory, lcores.len())?;
        let filter = || {
            Filter::new(&start.filter, places(shared))
                .map_err(|error| CommandError::Capture(error.to_string()))
        };
        let clock = Clock::start();
        let mut session = Session {
            parts: Vec::new(),
            interfaces,
        };
        for ((lcore, nics), (store, drainer)) in lcores.into_iter().zip(stores) {
            let filter = filter()?;
            let state = Arc::new(TapState::default());
            let tap = Tap {
                id: TapId(NEXT.fetch_add(1, Ordering::Relaxed)),
                counts: vec![Counts::default(); nics.len()].into(),
                nics,
                inbound: start.inbound,
                outbound: start.outbound,
                snaplen,
                filter,
                store,
                clock,
                state: Arc::clone(&state),
            };
            let id = tap.id;
            match shared.ask_lcore(lcore, Command::AddTap(Box::new(tap))) {
                Ok(_) => session.parts.push(Part {
                    lcore,
                    id,
                    state,
                    drainer,
                    removed: None,
                }),
                Err(error) => {
                    // It may still be put in, by an lcore that was late.
                    shared.take_back(lcore, &error, Command::RemoveTap(id));
                    session.close(shared);
                    return Err(error);
                }
            }
        }
        let started = Started {
            interfaces: session.interfaces.clone(),
            snaplen: snaplen as u32,
        };
        Ok((session, started))
    }

    /// Records, after a moment's wait for the first.
    fn next(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let end = Instant::now() + PATIENCE;
        loop {
            let mut running = false;
            for part in &mut self.parts {
                running |= part.removed.is_none();
                if let Some(drainer) = &mut part.drainer {
                    while out.len() < BATCH && drainer.read(&mut out) {}
                }
                if let Some(Store::Last(ring)) = part.removed.as_mut().map(|tap| &mut tap.store) {
                    ring.read(&mut out, BATCH);
                }
            }
            if !out.is_empty() || !running || Instant::now() >= end {
                return out;
            }
            thread::sleep(PAUSE);
        }
    }

    fn status(&self) -> Status {
        let end = Instant::now() + PATIENCE;
        loop {
            let failed = self.parts.iter().find_map(|part| part.state.failed());
            if failed.is_some() || Instant::now() >= end {
                let failed = failed.map(|(nic, qpn, status)| FailedQp {
                    nic: self.name(nic),
                    qpn,
                    cause: cause(status).into(),
                });
                return Status { failed };
            }
            thread::sleep(PAUSE);
        }
    }

    fn name(&self, nic: u16) -> String {
        let found = self.interfaces.iter().find(|i| i.index == nic);
        found.map(|i| i.name.clone()).unwrap_or_default()
    }

    /// Takes the taps out; what they recorded stays to be read.
    fn stop(&mut self, shared: &Shared) -> Result<Stopped, CommandError> {
        for part in &mut self.parts {
            part.remove(shared)?;
        }
        let counts = self.interfaces.iter().map(|interface| {
            let mut sum = Counts::default();
            for tap in self.parts.iter().filter_map(|part| part.removed.as_ref()) {
                if let Some(counts) = tap.counts.get(usize::from(interface.index)) {
                    sum.seen += counts.seen;
                    sum.accepted += counts.accepted;
                    sum.lost += counts.lost;
                }
            }
            sum
        });
        Ok(Stopped {
            counts: counts.collect(),
        })
    }

    /// The end of the session.
    pub fn close(mut self, shared: &Shared) {
        for part in &mut self.parts {
            // One that fails is not to keep the others in their places.
            if let Err(error) = part.remove(shared) {
                tracing::warn!(lcore = part.lcore, %error, "a capture's tap was not taken out");
            }
        }
    }
}

/// Ethernet header and one VLAN tag.
const LINK_HEADERS: usize = 18;

/// NICs and ports of switches that there are.
fn places(shared: &Shared) -> usize {
    shared.config.nics.len() + shared.config.switch_ports.len()
}

/// What is to be recorded, in the order of indices.
fn interfaces(shared: &Shared, start: &Start) -> Result<Vec<Interface>, CommandError> {
    let mut all = match start.nics.is_empty() && !start.switches.is_empty() {
        true => Vec::new(),
        false => nics(shared, &start.nics)?,
    };
    all.extend(ports(shared, &start.switches)?);
    Ok(all)
}

/// Ports of switches, by names as [`Start::switches`] has them.
fn ports(shared: &Shared, names: &[String]) -> Result<Vec<Interface>, CommandError> {
    let ports = &shared.config.switch_ports;
    let is_meant = |name: &String, port: &PortName| match name.split_once('.') {
        None => *name == port.switch,
        Some((switch, of)) => {
            switch == port.switch && (of == port.peer || *of == format!("port{}", port.number))
        }
    };
    if let Some(name) = names
        .iter()
        .find(|name| !ports.iter().any(|port| is_meant(name, port)))
    {
        return Err(CommandError::Capture(format!(
            "switch {name:?}: there is none, or no such port of it: `roceline show fabric` has their names, and a port is \
             SWITCH.portN or SWITCH.PEER"
        )));
    }
    let first = shared.config.nics.len();
    let chosen = ports.iter().enumerate();
    let chosen = chosen.filter(|(_, port)| names.iter().any(|name| is_meant(name, port)));
    Ok(chosen
        .map(|(n, port)| Interface {
            index: (first + n) as u16,
            name: format!("{}.port{}", port.switch, port.number),
            mac: port.mac,
            addrs: vec![format!("to {}", port.peer)],
        })
        .collect())
}

fn nics(shared: &Shared, names: &[String]) -> Result<Vec<Interface>, CommandError> {
    let nics = &shared.config.nics;
    if let Some(unknown) = names
        .iter()
        .find(|name| nics.iter().all(|nic| nic.name != **name))
    {
        return Err(CommandError::Device(unknown.clone()));
    }
    let chosen = nics
        .iter()
        .filter(|nic| names.is_empty() || names.contains(&nic.name));
    Ok(chosen
        .map(|nic| Interface {
            index: nic.index as u16,
            name: nic.name.clone(),
            mac: nic.mac,
            addrs: nic
                .addresses
                .now()
                .given()
                .map(ToString::to_string)
                .collect(),
        })
        .collect())
}

/// Where each of `lcores` lcores keeps records in `memory` bytes, and who takes them out of there.
fn stores(
    start: &Start,
    snaplen: usize,
    memory: u64,
    lcores: usize,
) -> Result<Vec<(Store, Option<Drainer>)>, CommandError> {
    // Until all are made: another capture that comes meanwhile sees what is left. A failed allocation would be the daemon's end.
    let turn = room::take(memory.saturating_mul(lcores as u64));
    let _turn = turn.map_err(|source| CommandError::System {
        what: "memory for the packets of a capture",
        source,
    })?;
    let store = || match start.last {
        Some(count) => {
            let ring = LastPackets::new(count as usize, snaplen);
            (Store::Last(ring), None)
        }
        None => {
            let (filler, drainer) = chunks::stream(start.buffer as usize);
            (Store::Stream(filler), Some(drainer))
        }
    };
    Ok((0..lcores).map(|_| store()).collect())
}

/// For each lcore concerned, by index, which interfaces are recorded.
fn by_lcore(shared: &Shared, interfaces: &[Interface]) -> BTreeMap<u32, Box<[bool]>> {
    let mut all: BTreeMap<u32, Box<[bool]>> = BTreeMap::new();
    for interface in interfaces {
        let index = usize::from(interface.index);
        let port = index.checked_sub(shared.config.nics.len());
        let port = port.and_then(|port| shared.config.switch_ports.get(port));
        let own = port.map(|port| port.lcore as u32);
        let serving = match &own {
            Some(own) => std::slice::from_ref(own),
            None => shared.lcores.serving(interface.index.into()),
        };
        for &lcore in serving {
            let none = || vec![false; places(shared)].into();
            if let Some(recorded) = all.entry(lcore).or_insert_with(none).get_mut(index) {
                *recorded = true;
            }
        }
    }
    all
}

/// Why a QP failed, by the status of its first completion in error.
fn cause(status: u8) -> &'static str {
    const NAMES: [(WcStatus, &str); 12] = [
        (WcStatus::Success, EVENT),
        (WcStatus::LocLenErr, "local length error"),
        (WcStatus::LocQpOpErr, "local QP operation error"),
        (WcStatus::LocProtErr, "local protection error"),
        (WcStatus::MwBindErr, "memory window bind error"),
        (WcStatus::BadRespErr, "bad response"),
        (WcStatus::LocAccessErr, "local access error"),
        (WcStatus::RemInvReqErr, "remote invalid request"),
        (WcStatus::RemAccessErr, "remote access error"),
        (WcStatus::RemOpErr, "remote operation error"),
        (WcStatus::RetryExcErr, "transport retries exceeded"),
        (WcStatus::RnrRetryExcErr, "RNR retries exceeded"),
    ];
    let found = NAMES
        .iter()
        .find(|(known, _)| *known as u32 == u32::from(status));
    found.map_or("general error", |(_, name)| name)
}

fn json(reply: &impl Serialize) -> Result<Vec<u8>, CommandError> {
    serde_json::to_vec(reply).map_err(|e| CommandError::Query(e.to_string()))
}
