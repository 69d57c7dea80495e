//! `roceline replay`: packets of a capture, fed to a NIC as if they had come from its port.
//!
//! In flows a file, which this process reads as its own user; out flow frames to the daemon, in batches that its NIC has
//! room for, and what the NIC's counters say afterwards.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use serde::Serialize;

use super::capture::interruption;
use super::table::Table;
use super::{CliError, number_in};
use crate::capture::filter::Filter;
use crate::capture::request::Injected;
use crate::capture::rewrite::{Map, Rewrite};
use crate::capture::source::{Frame, Source, SourceError};
use crate::control::client::{Client, ClientError};
use crate::control::query::{Device, DeviceStat, DevicesReply, Query, StatReply};
use crate::daemon::DaemonError;
use crate::impair::MatchArgs;

const EXAMPLES: &str = "\
Examples:
  roceline replay -r crash.pcapng --nic roce1            # what roce1 received then, at the same pace
  roceline replay -r all.pcapng --nic roce1 --class nak --speed max
  roceline replay -r peer.pcap --nic roce0 --map-ip 10.0.0.2=10.77.0.1 --map-qpn 0x11=0x12

By default the packets are those that the file says were received, by the interface of the NIC's name if there is
one; packets without a direction count as received. With --map-qpn and --map-ip the packets are changed to fit the
NIC and the queue pairs of now, and their ICRC is computed anew if it was right.

At the end, or when it is interrupted (ctrl-C), it prints how the counters of the NIC grew meanwhile; other traffic counts as well.";

/// Feed the packets of a capture to a NIC
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// File to read, pcap or pcapng; `-` is stdin
    #[arg(short, long, value_name = "FILE")]
    read: PathBuf,

    /// NIC that is to receive them [default: the only one]
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,

    /// Pace: real (as captured), max, or a multiple such as x10 or x0.5
    #[arg(long, value_name = "SPEED", default_value = "real", value_parser = speed)]
    speed: Speed,

    /// Only packets of this interface of the file
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// Which packets of the file, where it knows their direction
    #[arg(long, value_enum, default_value = "received")]
    direction: Direction,

    /// Stop after this many packets
    #[arg(long, value_name = "N", value_parser = number_in(1..=u64::MAX))]
    count: Option<u64>,

    /// Another destination QP number, again for another
    #[arg(long, value_name = "OLD=NEW")]
    map_qpn: Vec<Map<u32>>,

    /// Another address, source or destination, again for another
    #[arg(long, value_name = "OLD=NEW")]
    map_ip: Vec<Map<IpAddr>>,

    #[command(flatten)]
    matching: MatchArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// Those that a NIC received
    Received,
    /// Those that a NIC sent
    Sent,
    /// All
    Any,
}

/// Seconds of a capture in a second; `None`: no waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Speed(Option<f64>);

fn speed(text: &str) -> Result<Speed, String> {
    match text {
        "real" => return Ok(Speed(Some(1.0))),
        "max" => return Ok(Speed(None)),
        _ => {}
    }
    let times = text
        .strip_prefix('x')
        .and_then(|times| times.parse::<f64>().ok());
    match times {
        Some(times) if times.is_finite() && times > 0.0 => Ok(Speed(Some(times))),
        _ => Err("must be real, max, or a multiple such as x10 or x0.5".into()),
    }
}

/// Why a replay did not go through.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("which NIC? name one of {0} with --nic")]
    WhichNic(String),
    #[error("there is no NIC {name}: there are {all}")]
    NoNic { name: String, all: String },
    #[error("{path}: {source}", path = path.display())]
    Source { path: PathBuf, source: SourceError },
    #[error(
        "{path}: packet {number} has {len} bytes, and {nic} takes {longest} at most: leave it out with --length, or \
         replay to a NIC with a larger mtu",
        path = path.display()
    )]
    TooLong {
        path: PathBuf,
        number: u64,
        len: usize,
        nic: String,
        longest: usize,
    },
    #[error("{path} has no packets", path = path.display())]
    NoPackets { path: PathBuf },
    #[error(
        "{path} has no interface {name}, so nothing was replayed: it has {all}",
        path = path.display()
    )]
    NoInterface {
        path: PathBuf,
        name: String,
        all: String,
    },
    #[error(
        "none of the {read} packets of {path} was replayed: {why}",
        path = path.display()
    )]
    NoneChosen {
        path: PathBuf,
        read: u64,
        why: String,
    },
    #[error("{0} took no packet for 10 s: its lcore stands still, or its program's memory does")]
    Stuck(String),
}

/// Ethernet header and one VLAN tag.
const LINK_HEADERS: u32 = 18;
/// Bytes of frames in one request.
const BATCH_BYTES: usize = 48 << 10;
/// Packets in one request: what a NIC takes from its port at a time.
const BATCH: usize = 32;
/// Pause while the NIC has no room.
const PAUSE: Duration = Duration::from_micros(200);
/// Longest sleep between two looks for an interruption.
const LOOK: Duration = Duration::from_millis(50);
/// A NIC that takes nothing for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Outcome {
    nic: String,
    /// Packets of the file that were looked at.
    read: u64,
    /// Of those, the ones left out by --direction, --interface or the filter.
    left_out: u64,
    /// Packets that the NIC got.
    sent: u64,
    /// Of those, the ones changed by --map-qpn or --map-ip.
    changed: u64,
    /// Whether it was interrupted before the end of the file.
    interrupted: bool,
    /// What the NIC's counters grew by.
    counters: BTreeMap<String, u64>,
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let interrupted = interruption().map_err(|source| DaemonError::System {
        what: "signal handlers",
        source,
    })?;
    let filter = Filter::new(&args.matching.spec(), 1)?;
    let in_file = |source| ReplayError::Source {
        path: args.read.clone(),
        source,
    };
    let file: Box<dyn Read> = match args.read.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(File::open(&args.read).map_err(|e| in_file(e.into()))?),
    };
    let source = Source::new(file).map_err(in_file)?;
    let client = Client::connect(socket)?;
    let nic = choose(&client, args.nic.as_deref())?;
    let before = counters(&client, &nic.name)?;
    let mut replay = Replay {
        choice: Choice::new(&args, &nic.name),
        rewrite: Rewrite {
            qpns: args.map_qpn.clone(),
            addrs: args.map_ip.clone(),
        },
        filter,
        outcome: Outcome {
            nic: nic.name.clone(),
            ..Outcome::default()
        },
        pace: Pace::new(args.speed),
        batch: Batch::default(),
        left_out: [0; 4],
        interrupted,
        client,
        args: &args,
        nic,
    };
    replay.feed(source)?;
    let after = counters(&replay.client, &replay.nic.name)?;
    let mut outcome = replay.outcome;
    outcome.counters = growth(&before, &after);
    report(&mut io::stdout().lock(), &outcome, args.json)?;
    Ok(())
}

fn choose(client: &Client, name: Option<&str>) -> Result<Device, CliError> {
    let DevicesReply { mut devices } = client.ask(&Query::Devices)?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let all = names.join(", ");
    let at = match name {
        None if devices.len() == 1 => Some(0),
        None => return Err(ReplayError::WhichNic(all).into()),
        Some(name) => devices.iter().position(|device| device.name == name),
    };
    match at {
        Some(at) => Ok(devices.swap_remove(at)),
        None => {
            let name = name.unwrap_or_default().into();
            Err(ReplayError::NoNic { name, all }.into())
        }
    }
}

/// Which packets of the file.
struct Choice {
    direction: Direction,
    interface: Option<String>,
    /// The NIC's own name: if the file has such an interface, the packets are its.
    own: String,
}

impl Choice {
    fn new(args: &Args, nic: &str) -> Choice {
        Choice {
            direction: args.direction,
            interface: args.interface.clone(),
            own: nic.into(),
        }
    }

    fn takes(&mut self, frame: &Frame, interfaces: &[String]) -> Result<(), LeftOut> {
        if self.interface.is_none() && interfaces.contains(&self.own) {
            self.interface = Some(self.own.clone());
        }
        let direction = match self.direction {
            Direction::Any => true,
            Direction::Received => frame.outbound != Some(true),
            Direction::Sent => frame.outbound == Some(true),
        };
        let interface = self.interface.as_ref();
        if interface.is_some_and(|name| frame.interface.as_ref() != Some(name)) {
            Err(LeftOut::Interface)
        } else if !direction {
            Err(LeftOut::Direction)
        } else if frame.dropped {
            Err(LeftOut::Dropped)
        } else {
            Ok(())
        }
    }
}

/// Why a packet is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftOut {
    Interface,
    Direction,
    /// It never was on the wire.
    Dropped,
    Condition,
}

/// When the packets are due.
struct Pace {
    speed: Speed,
    first: Option<(Instant, Duration)>,
}

impl Pace {
    fn new(speed: Speed) -> Pace {
        Pace { speed, first: None }
    }

    /// How long until a packet is due that was captured at `time`.
    fn wait(&mut self, time: Duration) -> Duration {
        let (begin, first) = *self.first.get_or_insert((Instant::now(), time));
        let Some(times) = self.speed.0 else {
            return Duration::ZERO;
        };
        let since = time.saturating_sub(first).as_secs_f64() / times;
        // Longer than anybody waits: as good as never.
        let since = Duration::try_from_secs_f64(since).unwrap_or(Duration::MAX);
        since.saturating_sub(begin.elapsed())
    }
}

/// Frames on their way.
#[derive(Default)]
struct Batch {
    frames: Vec<Vec<u8>>,
    bytes: usize,
}

struct Replay<'a> {
    args: &'a Args,
    client: Client,
    nic: Device,
    choice: Choice,
    filter: Option<Filter>,
    rewrite: Rewrite,
    pace: Pace,
    batch: Batch,
    outcome: Outcome,
    /// Packets by [`LeftOut`].
    left_out: [u64; 4],
    interrupted: Arc<AtomicBool>,
}

impl Replay<'_> {
    fn feed(&mut self, mut source: Source<impl Read>) -> Result<(), CliError> {
        let longest = (self.nic.mtu + LINK_HEADERS) as usize;
        while self.args.count != Some(self.outcome.sent + self.batch.frames.len() as u64) {
            if self.is_interrupted() {
                break;
            }
            let next = source.next_frame().map_err(|source| ReplayError::Source {
                path: self.args.read.clone(),
                source,
            })?;
            let Some(mut frame) = next else { break };
            self.outcome.read += 1;
            if let Err(reason) = self.chosen(&frame, &source.interfaces()) {
                self.outcome.left_out += 1;
                self.left_out[reason as usize] += 1;
                continue;
            }
            if frame.data.len() > longest {
                self.flush()?;
                return Err(ReplayError::TooLong {
                    path: self.args.read.clone(),
                    number: frame.number,
                    len: frame.data.len(),
                    nic: self.nic.name.clone(),
                    longest,
                }
                .into());
            }
            let wait = self.pace.wait(frame.time);
            if wait > Duration::ZERO {
                self.flush()?;
                self.sleep(wait);
            }
            if self.is_interrupted() {
                break;
            }
            self.outcome.changed += u64::from(self.rewrite.apply(&mut frame.data));
            if self.batch.frames.len() >= BATCH || self.batch.bytes + frame.data.len() > BATCH_BYTES
            {
                self.flush()?;
            }
            self.batch.bytes += frame.data.len();
            self.batch.frames.push(frame.data);
        }
        self.flush()?;
        self.outcome.interrupted = self.is_interrupted();
        if self.outcome.sent == 0 && !self.outcome.interrupted {
            return Err(self.nothing(&source.interfaces()).into());
        }
        self.settle()
    }

    fn chosen(&mut self, frame: &Frame, interfaces: &[String]) -> Result<(), LeftOut> {
        self.choice.takes(frame, interfaces)?;
        let filter = self.filter.as_mut();
        if filter.is_none_or(|filter| filter.accepts(0, false, &frame.data)) {
            Ok(())
        } else {
            Err(LeftOut::Condition)
        }
    }

    /// Why no packet was replayed, of a file with these interfaces.
    fn nothing(&self, interfaces: &[String]) -> ReplayError {
        let path = self.args.read.clone();
        let read = self.outcome.read;
        if read == 0 {
            return ReplayError::NoPackets { path };
        }
        let all = match interfaces {
            [] => "none with a name".to_owned(),
            names => names.join(", "),
        };
        match &self.args.interface {
            Some(name) if !interfaces.contains(name) => ReplayError::NoInterface {
                path,
                name: name.clone(),
                all,
            },
            _ => ReplayError::NoneChosen {
                path,
                read,
                why: self.why(&all),
            },
        }
    }

    fn why(&self, interfaces: &str) -> String {
        let [interface, direction, dropped, condition] = self.left_out;
        let wanted = self.choice.interface.as_deref().unwrap_or_default();
        let reasons = [
            (
                interface,
                format!(
                    "are not of the interface {wanted} (--interface; the file has {interfaces})"
                ),
            ),
            (
                direction,
                "have another direction than asked for (--direction any takes all)".into(),
            ),
            (dropped, "were dropped before they were on the wire".into()),
            (condition, "do not meet the conditions given".into()),
        ];
        let there = reasons.iter().filter(|(count, _)| *count > 0);
        let texts: Vec<String> = there
            .map(|(count, reason)| format!("{count} {reason}"))
            .collect();
        texts.join(", ")
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Sleeps until the time has passed, or until it is interrupted.
    fn sleep(&self, wait: Duration) {
        let begin = Instant::now();
        while !self.is_interrupted() {
            let Some(left) = wait.checked_sub(begin.elapsed()) else {
                return;
            };
            thread::sleep(left.min(LOOK));
        }
    }

    /// Sends the batch.
    fn flush(&mut self) -> Result<(), CliError> {
        let mut begin = Instant::now();
        while !self.batch.frames.is_empty() {
            let Injected { taken, .. } = self.client.inject(self.index(), &self.batch.frames)?;
            self.batch.frames.drain(..taken as usize);
            self.outcome.sent += u64::from(taken);
            if taken > 0 {
                begin = Instant::now();
            } else if self.is_interrupted() {
                break;
            } else {
                self.rest(begin)?;
            }
        }
        self.batch.bytes = 0;
        Ok(())
    }

    /// Waits until the NIC has taken in all that it got, so that its counters tell.
    fn settle(&self) -> Result<(), CliError> {
        let begin = Instant::now();
        while self.client.inject(self.index(), &[])?.waiting > 0 {
            if self.is_interrupted() && begin.elapsed() > LOOK {
                break;
            }
            self.rest(begin)?;
        }
        Ok(())
    }

    fn rest(&self, begin: Instant) -> Result<(), CliError> {
        if begin.elapsed() > PATIENCE {
            return Err(ReplayError::Stuck(self.nic.name.clone()).into());
        }
        thread::sleep(PAUSE);
        Ok(())
    }

    fn index(&self) -> u32 {
        self.nic.index
    }
}

fn counters(client: &Client, nic: &str) -> Result<BTreeMap<String, u64>, ClientError> {
    let StatReply { devices } = client.ask(&Query::Stat)?;
    let own: Option<DeviceStat> = devices.into_iter().find(|device| device.name == nic);
    let Some(own) = own else {
        return Ok(BTreeMap::new());
    };
    let all = own
        .hw_counters
        .into_iter()
        .chain(own.counters)
        .chain(own.port);
    Ok(all.collect())
}

fn growth(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = after.iter().map(|(name, value)| {
        let before = before.get(name).copied().unwrap_or(0);
        (name.clone(), value.saturating_sub(before))
    });
    grown.filter(|(_, growth)| *growth > 0).collect()
}

fn report(out: &mut impl Write, outcome: &Outcome, json: bool) -> io::Result<()> {
    if json {
        return writeln!(out, "{:#}", serde_json::json!(outcome));
    }
    if outcome.interrupted {
        writeln!(out, "interrupted before the end of the file")?;
    }
    writeln!(
        out,
        "{} packets read, {} left out, {} given to {} ({} of them changed)",
        outcome.read, outcome.left_out, outcome.sent, outcome.nic, outcome.changed
    )?;
    let mut table = Table::new(&["counter", ">grew by"]);
    for (name, growth) in &outcome.counters {
        table.row(vec![name.clone(), growth.to_string()]);
    }
    table.write(out, "no counter grew")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        assert_eq!(speed("real"), Ok(Speed(Some(1.0))));
        assert_eq!(speed("x0.5"), Ok(Speed(Some(0.5))));
        assert_eq!(speed("max"), Ok(Speed(None)));
        for bad in ["2", "x", "x0", "x-1", "xinf", "fast"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn packets_are_due_as_far_apart_as_they_were() {
        let mut pace = Pace::new(Speed(Some(2.0)));
        let first = Duration::from_secs(1_700_000_000);
        assert_eq!(pace.wait(first), Duration::ZERO);
        let wait = pace.wait(first + Duration::from_secs(7200));
        assert!(wait > Duration::from_secs(3500) && wait <= Duration::from_secs(3600));
        assert_eq!(pace.wait(first - Duration::from_secs(5)), Duration::ZERO);
        let mut pace = Pace::new(Speed(None));
        assert_eq!(pace.wait(first), Duration::ZERO);
        assert_eq!(pace.wait(first + Duration::from_secs(7200)), Duration::ZERO);
    }

    #[test]
    fn the_nics_own_received_packets_are_meant() {
        let args = |words: &[&str]| {
            Args::try_parse_from([&["replay", "-r", "x"], words].concat()).unwrap()
        };
        let frame = |interface: Option<&str>, outbound| Frame {
            number: 1,
            time: Duration::ZERO,
            interface: interface.map(String::from),
            outbound,
            dropped: false,
            data: vec![],
        };
        let both = ["roce0".to_string(), "roce1".into()];
        let mut own = Choice::new(&args(&[]), "roce1");
        assert_eq!(own.takes(&frame(Some("roce1"), Some(false)), &both), Ok(()));
        assert_eq!(own.takes(&frame(Some("roce1"), None), &both), Ok(()));
        assert_eq!(
            own.takes(&frame(Some("roce1"), Some(true)), &both),
            Err(LeftOut::Direction)
        );
        assert_eq!(
            own.takes(&frame(Some("roce0"), Some(false)), &both),
            Err(LeftOut::Interface)
        );
        let mut foreign = Choice::new(&args(&[]), "roce1");
        assert_eq!(
            foreign.takes(&frame(Some("eth0"), None), &["eth0".into()]),
            Ok(())
        );
        assert_eq!(foreign.takes(&frame(None, None), &[]), Ok(()));
        let mut sent = Choice::new(
            &args(&["--direction", "sent", "--interface", "roce0"]),
            "roce1",
        );
        assert_eq!(sent.takes(&frame(Some("roce0"), Some(true)), &both), Ok(()));
        assert_eq!(
            sent.takes(&frame(Some("roce0"), None), &both),
            Err(LeftOut::Direction)
        );
        let dropped = Frame {
            dropped: true,
            ..frame(Some("roce0"), Some(true))
        };
        assert_eq!(sent.takes(&dropped, &both), Err(LeftOut::Dropped));
    }

    #[test]
    fn only_what_grew_is_told() {
        let count = |value| BTreeMap::from([("a".to_string(), value), ("b".into(), 1)]);
        let outcome = Outcome {
            nic: "roce0".into(),
            read: 5,
            left_out: 2,
            sent: 3,
            changed: 1,
            interrupted: false,
            counters: growth(&count(1), &count(4)),
        };
        let mut out = Vec::new();
        report(&mut out, &outcome, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "5 packets read, 2 left out, 3 given to roce0 (1 of them changed)"
        );
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["a", "3"]);
        assert_eq!(lines.len(), 3);
    }
}
