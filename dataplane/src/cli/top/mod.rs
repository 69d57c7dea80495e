//! `roceline top`: what polling threads do with their time, and what holds traffic up.
//!
//! In flow two answers of the daemon, an interval apart; out flow figures, tables and sentences. The daemon counts while it is asked: each
//! question says for how long from now, so a `top` that is killed leaves nothing on.

mod figures;
mod screen;
mod words;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde::Serialize;

use super::CliError;
use super::wait::seconds;
use crate::control::client::{Client, ClientError};
use crate::control::congestion::CongestionReply;
use crate::control::query::{Qp, QpsReply, Query};
use figures::{Figures, Held, Look};
use screen::Screen;
use words::{Finding, findings};

const EXAMPLES: &str = "\
Examples:
  roceline top                        # until interrupted, a new look each second
  roceline top --once --interval 5    # five seconds, then the end
  roceline top --json | jq -r '.bottlenecks[0].text'

Polling threads: the share of their time in which they had something to do, polled in vain, or
gave the CPU to others; cycles of the time stamp counter for each packet received or sent, by
stage of the poll; packets of a poll that had any. Devices: cycles of `receive` for a packet
received, of `transmit` for one that is sent. Last, what holds traffic up, in words.
docs/top.md says how it is measured and what each sentence means. It costs the daemon less than
2 % while it runs, and nothing afterwards.";

/// Show what polling threads do with their time, and what holds traffic up
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,

    /// Look once, and end
    #[arg(long)]
    once: bool,

    /// Seconds between two looks, from 0.1 to 20
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(100)..=Duration::from_secs(20);
    let found = seconds(text).ok().filter(|time| bounds.contains(time));
    found.ok_or_else(|| "must be a number of seconds from 0.1 to 20, such as 0.5".into())
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    figures: &'a Figures,
    bottlenecks: &'a [Finding],
}

/// The daemon goes on counting for so many intervals: enough for an answer that comes late.
const INTERVALS: u32 = 3;
/// And so long at least.
const LEAST: Duration = Duration::from_secs(2);
/// Looks that must not fail in a row to show something: another daemon's process may have taken over in between.
const TRIES: usize = 3;
/// Share of queue pairs looked at that wait for their rate, from which on it is asked how fast they are.
const HELD: f64 = 0.05;

/// A daemon whose process has ended may have another one in so much time.
const BACK: Duration = Duration::from_secs(10);
/// Between two tries to reach it.
const AGAIN: Duration = Duration::from_millis(100);

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let mut client = Client::connect(socket)?;
    let how_long = (args.interval * INTERVALS).max(LEAST);
    let mut out = io::stdout().lock();
    let mut screen = Screen::new(!args.json && !args.once && io::stdout().is_terminal());
    let (mut then, mut before) = (Instant::now(), look(&client, how_long)?);
    let mut failed = 0;
    loop {
        thread::sleep(args.interval.saturating_sub(then.elapsed()));
        let now = Instant::now();
        let after = match look(&client, how_long) {
            Err(error) if is_gone(&error) => {
                // The supervisor starts another process; what that one counts begins anew.
                (client, before) = look_again(socket, how_long, error)?;
                then = Instant::now();
                continue;
            }
            looked => looked?,
        };
        let seconds = now.duration_since(then).as_secs_f64();
        let figures = Figures::between(&before, &after, seconds);
        (then, before) = (now, after);
        let Some(mut figures) = figures else {
            failed += 1;
            if failed >= TRIES {
                return Err(CliError::NotCounted);
            }
            continue;
        };
        failed = 0;
        match name_held(&client, &mut figures) {
            // The next look finds it out.
            Err(error) if is_gone(&error) => {}
            named => named?,
        }
        let findings = findings(&figures);
        if args.json {
            let report = Report {
                figures: &figures,
                bottlenecks: &findings,
            };
            let text = serde_json::to_string(&report).map_err(io::Error::from)?;
            writeln!(out, "{text}")?;
        } else {
            screen.show(&mut out, &figures, &findings)?;
        }
        if args.once {
            return Ok(());
        }
        out.flush()?;
    }
}

fn look(client: &Client, how_long: Duration) -> Result<Look, ClientError> {
    let how_long_ms = u32::try_from(how_long.as_millis()).unwrap_or(u32::MAX);
    Ok(Look {
        top: client.ask(&Query::Top { how_long_ms })?,
        stat: client.ask(&Query::Stat)?,
    })
}

/// Whether the process that was asked is no more.
fn is_gone(error: &ClientError) -> bool {
    matches!(error, ClientError::Ended | ClientError::Io(_))
}

/// A first look at the process that takes the place of one that has ended.
///
/// # Errors
/// `gone`, if none does within [`BACK`].
fn look_again(
    socket: &Path,
    how_long: Duration,
    gone: ClientError,
) -> Result<(Client, Look), ClientError> {
    eprintln!("roceline: the daemon's process has ended; waiting for another one");
    let begin = Instant::now();
    // A daemon that stops removes its socket.
    while begin.elapsed() < BACK && socket.exists() {
        thread::sleep(AGAIN);
        let Ok(client) = Client::connect(socket) else {
            continue;
        };
        if let Ok(first) = look(&client, how_long) {
            return Ok((client, first));
        }
    }
    Err(gone)
}

/// Of devices whose queue pairs wait for their rates, how fast these are. All queue pairs are listed for it, so only then.
fn name_held(client: &Client, figures: &mut Figures) -> Result<(), ClientError> {
    let waits = |device: &&mut figures::Device| {
        let share = device.waiting.get("rate");
        share.is_some_and(|&share| share >= HELD)
    };
    let mut devices = figures.devices.iter_mut().filter(waits).peekable();
    if devices.peek().is_none() {
        return Ok(());
    }
    let QpsReply { qps } = client.ask(&Query::Qps)?;
    let settings: CongestionReply = client.ask(&Query::Congestion { device: None })?;
    for device in devices {
        let own = settings.devices.iter().find(|d| d.name == device.name);
        let algorithm = own.map_or("", |settings| settings.value("algorithm"));
        device.held = held(&qps, &device.name, algorithm);
    }
    Ok(())
}

/// The queue pairs of a device that are slower than its fastest, or all if they are alike.
fn held(qps: &[Qp], device: &str, algorithm: &str) -> Option<Held> {
    let own = qps
        .iter()
        .filter(|qp| qp.device == device && qp.state == "RTS");
    let rates: Vec<u64> = own.map(|qp| qp.rate).filter(|&rate| rate > 0).collect();
    let fastest = rates.iter().copied().max()?;
    let slower = || rates.iter().copied().filter(|&rate| rate < fastest);
    let (queue_pairs, rates) = match (slower().min(), slower().max()) {
        (Some(least), Some(most)) => (slower().count(), (least, most)),
        _ => (rates.len(), (fastest, fastest)),
    };
    Some(Held {
        algorithm: algorithm.into(),
        queue_pairs,
        rates,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "0.05", "21", "-1", "x"] {
            assert!(interval(bad).unwrap_err().contains("0.1 to 20"), "{bad}");
        }
    }

    #[test]
    fn queue_pairs_below_the_fastest_are_held_back() {
        let qp = |device: &str, rate| Qp {
            rate,
            ..Qp::sample(device, 1)
        };
        let all = [
            qp("roce0", 100),
            qp("roce0", 30),
            qp("roce0", 20),
            qp("roce1", 5),
        ];
        let of_0 = held(&all, "roce0", "dcqcn").unwrap();
        assert_eq!((of_0.queue_pairs, of_0.rates), (2, (20, 30)));
        let of_1 = held(&all, "roce1", "dcqcn").unwrap();
        assert_eq!((of_1.queue_pairs, of_1.rates), (1, (5, 5)));
        assert_eq!(held(&all, "roce2", "dcqcn"), None);
    }
}
