//! `roceline capture`: packets of NICs, and at ports of emulated switches, as a pcapng file.
//!
//! In flow records from the daemon, asked for batch by batch; out flows the file, which this process opens and writes
//! as its own user. However slow the file (or the pipe) is, the daemon only counts what it could not keep.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::wait::seconds;
use super::{CliError, number_in};
use crate::capture::filter::Filter;
use crate::capture::pcapng::Writer;
use crate::capture::record::decode;
use crate::capture::request::{
    Capture, Counts, EVENT, FailedQp, RuleNames, Start, Started, Status, Stopped,
};
use crate::control::client::{Client, ClientError};
use crate::control::post_mortem::PostMortemsReply;
use crate::control::query::Query;
use crate::daemon::DaemonError;
use crate::impair::MatchArgs;

const EXAMPLES: &str = "\
Examples:
  roceline capture -w all.pcapng                          # until interrupted (ctrl-C)
  roceline capture -w tx.pcapng --nic roce0 --tx --duration 5
  roceline capture -w - | tshark -r -                     # look at packets as they come
  roceline capture -w - | wireshark -k -i -
  roceline capture -w heads.pcapng --snaplen 96           # headers are enough
  roceline capture -w tor.pcapng --switch tor             # at all ports of the emulated switch tor
  roceline capture -w tor.pcapng --switch tor.roce1 --tx  # what it sends to roce1, with its marks
  roceline capture -w naks.pcapng --class nak             # conditions as those of `roceline impair`
  roceline capture -w qp.pcapng --qpn 0x11 --psn 100..200
  roceline capture -w crash.pcapng --last 10000           # wait for a queue pair to fail, keep what led to it

Sent packets are recorded after their impairments, as the wire gets them; received ones as they
arrive. Those that a rule drops are recorded as well. A comment names the rules that hit a packet:
`impaired: NAME (rule N, delay)`, `dropped by NAME (rule N, drop)`. A reader that is too slow
loses records, which are counted at the end and in the file; it never slows a NIC.

Payload is private data: only root, the daemon's own user and `[control] operators` may capture,
and the file is made readable for its owner only.";

/// Record packets in a pcapng file
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// File to write; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,

    /// NIC to record, again for another [default: all, unless there is --switch]
    #[arg(long, value_name = "NAME")]
    nic: Vec<String>,

    /// Emulated switch to record, at all of its ports, or at one: by number, as `tor.port3`, or by what is beyond,
    /// as `tor.roce1`; again for another
    #[arg(long, value_name = "SWITCH[.PORT]")]
    switch: Vec<String>,

    /// Only what NICs and switches send
    #[arg(long, conflicts_with = "rx")]
    tx: bool,

    /// Only what NICs and switches receive
    #[arg(long)]
    rx: bool,

    /// Stop after this many packets
    #[arg(short, long, value_name = "N", value_parser = number_in(1..=u64::MAX))]
    count: Option<u64>,

    /// Stop after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,

    /// Bytes of each packet to keep, from its Ethernet header on
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535)]
    snaplen: u32,

    /// MiB of buffer in the daemon, for while the file is slow
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = number_in(1..=1024))]
    buffer: u64,

    /// Keep the newest N packets in the daemon; write them when a queue pair of these NICs fails, or when
    /// interrupted, and end
    #[arg(long, value_name = "N", conflicts_with = "count", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,

    #[command(flatten)]
    matching: MatchArgs,
}

/// Why there is no capture, or not all of it.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub(super) enum CaptureError {
    #[error(
        "stdout is a terminal, and a capture is no text: give a file with -w, or a reader, as in `roceline capture -w - | \
         tshark -r -`"
    )]
    Terminal,
    #[error(
        "--last waits until a queue pair of a NIC fails, and with --switch alone no NIC is recorded: name one with --nic"
    )]
    NoNic,
    #[error(
        "the daemon ended before it could hand over the packets that --last kept: they are lost, and {0} has none; see its \
         log"
    )]
    LastLost(String),
    #[error(
        "the daemon ended without notice: {place} is whole and has the {written} packets that had come; those that were \
         still in the daemon's buffer are lost, and the totals are not known; see its log"
    )]
    Cut { place: String, written: u64 },
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    if is_stdout(&args.write) && io::stdout().is_terminal() {
        return Err(CaptureError::Terminal.into());
    }
    if args.last.is_some() && args.nic.is_empty() && !args.switch.is_empty() {
        return Err(CaptureError::NoNic.into());
    }
    let interrupted = interruption().map_err(|source| DaemonError::System {
        what: "signal handlers",
        source,
    })?;
    // What is wrong with a condition is said before anything else is tried.
    Filter::new(&args.matching.spec(), 1)?;
    let client = Client::connect(socket)?;
    let started: Started = client.capture(&Capture::Start(Start {
        nics: args.nic.clone(),
        switches: args.switch.clone(),
        inbound: !args.tx,
        outbound: !args.rx,
        snaplen: args.snaplen,
        buffer: args.buffer << 20,
        last: args.last,
        filter: args.matching.spec(),
    }))?;
    let mut session = Session {
        client,
        started,
        interrupted,
        end: args.duration.map(|duration| Instant::now() + duration),
        left: args.count.unwrap_or(u64::MAX),
        written: 0,
        known_rules: 0,
    };
    // The file comes after the start: what is refused leaves none behind. And before the wait for a failure, which may
    // take days: that there can be no file is said now.
    let out = open(&args.write)?;
    let interfaces = session.started.interfaces.iter();
    let names: Vec<&str> = interfaces.map(|i| i.name.as_str()).collect();
    eprintln!("capturing {}; interrupt to end", names.join(", "));
    let waited = match args.last {
        Some(_) => session.wait_for_failure(),
        None => Ok(None),
    };
    let found = waited.as_ref().ok().and_then(Option::as_ref);
    let comments: Vec<String> = found.map(sentence).into_iter().collect();
    let interfaces = &session.started.interfaces;
    let failed = |source| match args.write.to_str() {
        Some("-") => CliError::Output(source),
        _ => CliError::File {
            path: args.write.clone(),
            source,
        },
    };
    let mut file =
        Writer::new(out, interfaces, session.started.snaplen, &comments).map_err(failed)?;
    // `tshark -i -` waits for the head of the file before it says that it is ready.
    file.flush().map_err(failed)?;
    // A daemon that ends the connection ends the capture; what came before is in the file, and the file is whole.
    if let Err(error) = waited {
        file.finish(&[]).map_err(failed)?;
        return Err(session.cut(error, &args));
    }
    let stopped = match session.record(&mut file, args.last.is_some()) {
        Err(RecordError::File(source)) => return Err(failed(source)),
        Err(RecordError::Daemon(error)) => {
            file.finish(&[]).map_err(failed)?;
            return Err(session.cut(error, &args));
        }
        Ok(stopped) => stopped,
    };
    file.finish(&stopped.counts).map_err(failed)?;
    session.report(&args.write, &comments, &stopped.counts);
    Ok(())
}

/// Why a recording did not end as it should.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Daemon(#[from] ClientError),
}

/// A capture under way.
struct Session {
    client: Client,
    started: Started,
    interrupted: Arc<AtomicBool>,
    end: Option<Instant>,
    left: u64,
    written: u64,
    /// Rules up to this number were asked for their names.
    known_rules: u32,
}

impl Session {
    fn is_over(&self) -> bool {
        self.left == 0
            || self.interrupted.load(Ordering::Relaxed)
            || self.client.is_ending()
            || self.end.is_some_and(|end| Instant::now() >= end)
    }

    fn wait_for_failure(&self) -> Result<Option<FailedQp>, ClientError> {
        loop {
            let status: Status = self.client.capture(&Capture::Status)?;
            if let Some(mut failed) = status.failed {
                self.explain(&mut failed);
                return Ok(Some(failed));
            }
            if self.is_over() {
                return Ok(None);
            }
        }
    }

    /// Adds what the post-mortem of the QP knows, if there is one.
    fn explain(&self, failed: &mut FailedQp) {
        let asked = self.client.ask::<PostMortemsReply>(&Query::PostMortems);
        let records = asked.map_or_else(|_| Vec::new(), |reply| reply.post_mortems);
        let own = records
            .iter()
            .rfind(|r| r.device == failed.nic && r.qpn == failed.qpn);
        let Some(record) = own else { return };
        let sentence = record.cause.sentence.trim_end_matches('.');
        failed.cause = match failed.cause.as_str() {
            EVENT => sentence.into(),
            status => format!("{status}: {sentence}"),
        };
    }

    /// What is lost by an end of the daemon that it had no time to tell of.
    fn cut(&self, error: ClientError, args: &Args) -> CliError {
        match (error, args.last) {
            (ClientError::Ended, Some(_)) => CaptureError::LastLost(place(&args.write)).into(),
            (ClientError::Ended, None) => CaptureError::Cut {
                place: place(&args.write),
                written: self.written,
            }
            .into(),
            (other, _) => other.into(),
        }
    }

    /// Writes what comes until the end, and then what is left. `kept`: it has ended, all is to be had.
    fn record(
        &mut self,
        file: &mut Writer<impl Write>,
        kept: bool,
    ) -> Result<Stopped, RecordError> {
        while !kept && !self.is_over() {
            let records = self.client.records()?;
            self.write(file, &records)?;
        }
        let stopped = self.client.capture(&Capture::Stop)?;
        while self.left > 0 {
            let records = self.client.records()?;
            if records.is_empty() {
                break;
            }
            self.write(file, &records)?;
        }
        Ok(stopped)
    }

    fn write(&mut self, file: &mut Writer<impl Write>, records: &[u8]) -> Result<(), RecordError> {
        let mut rest = records;
        let mut newest = 0;
        while let Some(record) = decode(&mut rest) {
            let hits = record.hits().iter().map(|hit| hit.rule);
            newest = hits.chain(record.dropped_by).fold(newest, u32::max);
        }
        // Numbers of rules only grow, and the daemon remembers the names of those that are gone.
        if newest > self.known_rules {
            let RuleNames { names } = self.client.capture(&Capture::Rules)?;
            file.rules.extend(names);
            self.known_rules = newest;
        }
        let mut rest = records;
        while self.left > 0 {
            let Some(record) = decode(&mut rest) else {
                break;
            };
            file.packet(&record)?;
            self.left -= 1;
            self.written += 1;
        }
        // For whoever reads along. An empty batch has nothing to hand on.
        if !records.is_empty() {
            file.flush()?;
        }
        Ok(())
    }

    /// Totals for people: on stderr, as stdout may be the file.
    fn report(&self, path: &Path, comments: &[String], counts: &[Counts]) {
        for comment in comments {
            eprintln!("{comment}");
        }
        if self.client.is_ending() {
            eprintln!("the daemon stops, and the capture with it");
        }
        let lost: u64 = counts.iter().map(|counts| counts.lost).sum();
        let place = place(path);
        eprintln!("{} packets written to {place}, {lost} lost", self.written);
        for (interface, counts) in self.started.interfaces.iter().zip(counts) {
            eprintln!(
                "  {}: {} seen, {} accepted, {} lost",
                interface.name, counts.seen, counts.accepted, counts.lost
            );
        }
        if lost > 0 {
            eprintln!(
                "the file was too slow for them: a smaller --snaplen or a larger --buffer helps"
            );
        }
    }
}

/// Set by the first SIGINT or SIGTERM. The second one ends the process, for when the file blocks.
pub(super) fn interruption() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn place(path: &Path) -> String {
    if is_stdout(path) {
        "stdout".into()
    } else {
        path.display().to_string()
    }
}

fn open(path: &Path) -> Result<Box<dyn Write>, CliError> {
    if is_stdout(path) {
        return Ok(Box::new(BufWriter::with_capacity(1 << 18, io::stdout())));
    }
    let file = open_private(path).map_err(|source| CliError::File {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(Box::new(BufWriter::with_capacity(1 << 18, file)))
}

/// Opens a file for writing that only its owner can read: payload of programs is in it. Pipes and devices keep their modes.
fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Emptied below: not before it is certain that nobody else can read it.
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    let found = file.metadata()?;
    if found.is_file() {
        if found.permissions().mode() & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        file.set_len(0)?;
    }
    Ok(file)
}

fn sentence(failed: &FailedQp) -> String {
    format!(
        "QP {:#08x} of {} failed: {}; these are the packets up to then",
        failed.qpn, failed.nic, failed.cause
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_wrong_usage() {
        let parse = |words: &[&str]| Args::try_parse_from([&["capture"], words].concat());
        assert!(parse(&[]).is_err(), "where to?");
        assert!(parse(&["-w", "-", "--tx", "--rx"]).is_err());
        assert!(parse(&["-w", "-", "--last", "3", "--count", "3"]).is_err());
        assert!(parse(&["-w", "-", "--count", "0"]).is_err());
        assert!(parse(&["-w", "-", "--class", "nak", "--qpn", "7"]).is_ok());
        let args = parse(&[
            "-w",
            "x",
            "--nic",
            "roce0",
            "--nic",
            "roce1",
            "--duration",
            "0.5",
        ]);
        assert_eq!(args.unwrap().nic, ["roce0", "roce1"]);
    }

    #[test]
    fn a_file_that_is_there_becomes_private_and_empty() {
        let name = format!("roceline-capture-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let opened = open_private(&path);
        let found = std::fs::metadata(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(opened.is_ok());
        let found = found.unwrap();
        assert_eq!(
            (found.permissions().mode() & 0o777, found.len()),
            (0o600, 0)
        );
        assert!(open_private(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn the_failed_qp_is_named() {
        let failed = FailedQp {
            nic: "roce1".into(),
            qpn: 0x11,
            cause: "transport retries exceeded".into(),
        };
        assert!(sentence(&failed).starts_with("QP 0x000011 of roce1 failed: transport retries"));
    }
}
