//! `roceline show qp --post-mortem`: why queue pairs failed, as text.

use std::io::{self, Write};

use roceline_engine::Nanos;
use roceline_engine::diagnosis::Duration;

use super::table::Table;
use crate::control::post_mortem::{Line, PostMortemsReply, Record};
use crate::control::refused_qps::RefusedQp;

/// Columns that a cause or remedy may take.
const WIDTH: usize = 100;
/// Where values begin.
const INDENT: usize = 13;

/// Which records are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All of them, one a line.
    All,
    /// The newest.
    Last,
    /// The newest of the queue pair with this number.
    Qpn(u32),
}

impl std::str::FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Which, String> {
        let number = match text {
            "all" => return Ok(Which::All),
            "last" => return Ok(Which::Last),
            _ => match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => text.parse(),
            },
        };
        match number {
            Ok(qpn) if qpn < 1 << 24 => Ok(Which::Qpn(qpn)),
            _ => Err(format!(
                "`{text}` is no queue pair number: give one as `show qps` prints it (0x000011), or `last`, or `all`"
            )),
        }
    }
}

/// Leaves the wanted records; an error says that there is none.
pub(super) fn choose(reply: &mut PostMortemsReply, which: Which) -> Result<(), String> {
    let (records, refused) = (&mut reply.post_mortems, &mut reply.refused);
    match which {
        Which::All => return Ok(()),
        Which::Last => {
            // A failure is more interesting than a program that ended its own queue pairs afterwards.
            let failed = records.iter().rposition(|r| !r.cause.orderly);
            let newest = failed.or(records.len().checked_sub(1));
            *records = newest.map(|i| records.swap_remove(i)).into_iter().collect();
            // Only what went wrong after that: a connection that could not be set up is then the newest failure.
            let age = records
                .first()
                .filter(|r| !r.cause.orderly)
                .map_or(u64::MAX, |r| r.age_ns);
            refused.retain(|r| r.age_ns < age);
            *refused = refused.pop().into_iter().collect();
            if !refused.is_empty() {
                records.clear();
            }
        }
        Which::Qpn(qpn) => {
            records.retain(|r| r.qpn == qpn);
            *records = records.pop().into_iter().collect();
            refused.retain(|r| r.qpn == qpn);
            *refused = refused.pop().into_iter().collect();
        }
    }
    match (records.is_empty() && refused.is_empty(), which) {
        (false, _) => Ok(()),
        (true, Which::Qpn(qpn)) => Err(format!(
            "no record of queue pair {qpn:#08x}: it has not failed, or newer failures have pushed its record out; `roceline \
             show qp` lists the queue pairs that exist, `roceline show qp --post-mortem` those that failed"
        )),
        (true, _) => Err("no queue pair has failed".into()),
    }
}

/// The records, one a line.
pub(super) fn list(out: &mut impl Write, reply: &PostMortemsReply) -> io::Result<()> {
    let mut table = Table::new(&[
        ">ago",
        "device",
        ">qpn",
        ">pid",
        "program",
        "peer",
        ">peer qpn",
        "cause",
    ]);
    for r in &reply.post_mortems {
        table.row(vec![
            duration(r.age_ns),
            r.device.clone(),
            format!("{:#08x}", r.qpn),
            r.pid.to_string(),
            r.program.clone(),
            peer(r).0,
            peer(r).1,
            r.cause.name.clone(),
        ]);
    }
    table.write(out, "no queue pair has failed")?;
    if !reply.refused.is_empty() {
        writeln!(out, "\nqueue pairs that could not be connected:")?;
    }
    for r in &reply.refused {
        refused(out, r)?;
    }
    if !reply.post_mortems.is_empty() {
        writeln!(out)?;
        writeln!(
            out,
            "`roceline show qp --post-mortem QPN` says more, `--post-mortem last` of the newest failure"
        )?;
    }
    Ok(())
}

/// A queue pair that could not be connected.
pub(super) fn refused(out: &mut impl Write, r: &RefusedQp) -> io::Result<()> {
    writeln!(
        out,
        "modify_qp of queue pair {:#08x} of {} to {} was refused {} ago",
        r.qpn,
        r.device,
        r.to,
        duration(r.age_ns)
    )?;
    field(out, "program", &format!("{} (pid {})", r.program, r.pid))?;
    field(out, "cause", &r.reason)?;
    let errno = io::Error::from_raw_os_error(r.errno);
    field(out, "errno", &errno.to_string())
}

/// What NICs dropped, below a list.
pub(super) fn notes(out: &mut impl Write, notes: &[String]) -> io::Result<()> {
    if !notes.is_empty() {
        writeln!(out)?;
    }
    for note in notes {
        field(out, "note", note)?;
    }
    Ok(())
}

/// One record in full.
pub(super) fn full(out: &mut impl Write, r: &Record) -> io::Result<()> {
    writeln!(
        out,
        "queue pair {:#08x} of {} went from {} to {} {} ago",
        r.qpn,
        r.device,
        r.state,
        r.to,
        duration(r.age_ns)
    )?;
    let program = if r.program.is_empty() {
        "unknown"
    } else {
        &r.program
    };
    field(out, "program", &format!("{program} (pid {})", r.pid))?;
    let likely = if r.cause.likely { ", likely" } else { "" };
    field(
        out,
        "cause",
        &format!("{} [{}{likely}]", r.cause.sentence, r.cause.name),
    )?;
    field(out, "remedy", &r.cause.remedy)?;
    for hint in &r.hints {
        field(out, "hint", hint)?;
    }
    // Datagrams go anywhere, and nobody acknowledges them.
    if r.transport != "UD" {
        path(out, r)?;
    }
    if let Some(q) = &r.request {
        let psns = match q.packets {
            0 => String::new(),
            n => format!(
                ", PSN {} to {}",
                q.first_psn,
                q.first_psn.wrapping_add(n - 1) & 0xff_ffff
            ),
        };
        field(
            out,
            "request",
            &format!(
                "{} of {} bytes, wr_id {:#x}, {}{psns}",
                q.operation, q.length, q.wr_id, q.status
            ),
        )?;
    }
    if r.transport != "UD" {
        progress(out, r)?;
    }
    field(
        out,
        "packets",
        &format!(
            "{} sent, {} of them again; {} requests and {} responses received",
            r.sent, r.resent, r.requests_received, r.responses_received
        ),
    )?;
    let counters: Vec<String> = r
        .counters
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    if !counters.is_empty() {
        field(out, "counters", &counters.join(", "))?;
    }
    writeln!(out, "  last packets, before the end:")?;
    let mut table = Table::new(&["  ", ">when", "event", "packet", ">psn", ""]);
    for l in &r.journal {
        table.row(row(l));
    }
    table.write(out, "    none")
}

/// Address and number of the peer; a queue pair for datagrams has none.
fn peer(r: &Record) -> (String, String) {
    match r.transport.as_str() {
        "UD" => ("-".into(), "-".into()),
        _ => (r.remote.clone(), format!("{:#08x}", r.remote_qpn)),
    }
}

/// From where to where.
fn path(out: &mut impl Write, r: &Record) -> io::Result<()> {
    field(
        out,
        "path",
        &format!(
            "{} to {} queue pair {:#08x}, path MTU {}",
            r.local, r.remote, r.remote_qpn, r.path_mtu
        ),
    )
}

/// How far its requests came, and what it waited for.
fn progress(out: &mut impl Write, r: &Record) -> io::Result<()> {
    field(
        out,
        "PSNs",
        &format!(
            "first unacknowledged {}, next {}, newest sent {}, expected from the peer {}",
            r.psn_unacked,
            r.psn_next,
            r.psn_newest.wrapping_sub(1) & 0xff_ffff,
            r.psn_expected
        ),
    )?;
    let timeout = match r.timeout_ns {
        0 => "none".into(),
        ns => format!("{} ({})", r.timeout, duration(ns)),
    };
    let rnr = match r.rnr_retry {
        7 => "endless RNR retries".into(),
        n => format!("{} of {n} RNR retries left", r.rnr_retries_left),
    };
    field(
        out,
        "timers",
        &format!(
            "ACK timeout {timeout}, {}, {rnr}",
            match r.ended_by_time {
                true => format!(
                    "given up by adaptive retransmission after {} times that, however many retries",
                    r.retry_cnt
                ),
                false => format!("{} of {} retries left", r.retries_left, r.retry_cnt),
            }
        ),
    )
}

fn row(l: &Line) -> Vec<String> {
    let packet = match (&l.opcode, l.count) {
        (Some(op), 1) => op.clone(),
        (Some(op), n) => format!("{op} x{n}"),
        (None, _) => String::new(),
    };
    let psn = match l.count {
        n if n > 1 && l.syndrome.is_none() => {
            let first = l.psn.wrapping_sub(u32::from(n) - 1) & 0xff_ffff;
            format!("{first}..{}", l.psn)
        }
        _ => l.psn.to_string(),
    };
    let said = match (l.retries_left, &l.syndrome) {
        (Some(left), _) => format!("{left} retries left"),
        (None, Some(syndrome)) => syndrome.clone(),
        (None, None) => String::new(),
    };
    vec![
        "  ".into(),
        format!("-{}", duration(l.before_ns)),
        l.event.replace('_', " "),
        packet,
        psn,
        said,
    ]
}

fn duration(ns: u64) -> String {
    Duration(Nanos(ns)).to_string()
}

/// A named value; long ones go on below themselves.
fn field(out: &mut impl Write, name: &str, text: &str) -> io::Result<()> {
    let mut line = format!("  {name:<width$}", width = INDENT - 2);
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{line}")?;
            line = " ".repeat(INDENT);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    writeln!(out, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_named_as_they_are_printed() {
        assert_eq!("0x000011".parse(), Ok(Which::Qpn(17)));
        assert_eq!("17".parse(), Ok(Which::Qpn(17)));
        assert_eq!("last".parse(), Ok(Which::Last));
        for bad in ["", "roce0", "0x", "0x1000000", "-1"] {
            assert!(
                bad.parse::<Which>().unwrap_err().contains("show qps"),
                "{bad}"
            );
        }
    }

    #[test]
    fn long_texts_are_broken_between_words() {
        let mut out = Vec::new();
        field(&mut out, "cause", &"word ".repeat(40)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().count() > 1);
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH));
        assert!(
            text.lines()
                .skip(1)
                .all(|l| l.starts_with(&" ".repeat(INDENT)))
        );
    }
}
