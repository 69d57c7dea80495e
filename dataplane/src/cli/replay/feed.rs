//! Feeding: which packets of a file are taken, when they are due, and in what batches they go to the NIC.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Args, Direction, Outcome, ReplayError, Speed};
use crate::capture::filter::Filter;
use crate::capture::request::Injected;
use crate::capture::rewrite::Rewrite;
use crate::capture::source::{Frame, Source};
use crate::cli::CliError;
use crate::control::client::Client;
use crate::control::query::Device;

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

/// A replay under way.
pub(super) struct Replay<'a> {
    args: &'a Args,
    pub(super) client: Client,
    pub(super) nic: Device,
    choice: Choice,
    filter: Option<Filter>,
    rewrite: Rewrite,
    pace: Pace,
    batch: Batch,
    pub(super) outcome: Outcome,
    /// Packets by [`LeftOut`].
    left_out: [u64; 4],
    interrupted: Arc<AtomicBool>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(
        args: &'a Args,
        client: Client,
        nic: Device,
        filter: Option<Filter>,
        interrupted: Arc<AtomicBool>,
    ) -> Replay<'a> {
        Replay {
            choice: Choice::new(args, &nic.name),
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
            args,
            nic,
        }
    }

    /// Sends what is chosen of the file, when it is due.
    pub(super) fn feed(&mut self, mut source: Source<impl Read>) -> Result<(), CliError> {
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

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
}
