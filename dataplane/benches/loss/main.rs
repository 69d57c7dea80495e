//! Goodput against loss: go-back-N in virtual time, held against its first-order expectation, and in the real loop.
//!
//! `cargo bench -p roceline --bench loss [--features plots] [-- --json] [-- --draw PATH] [-- --virtual]`
//!
//! `--draw docs/loss` writes `docs/loss.svg` and `docs/loss.png`; `--virtual` leaves the real loop out; `--quick` takes a tenth of
//! the packets.

#[cfg(feature = "plots")]
#[path = "../figure/mod.rs"]
mod figure;
#[cfg(feature = "plots")]
mod plot;
mod real;

use std::path::PathBuf;
use std::process::ExitCode;

use roceline::sim::loss::{Point, Setup, Terms, Where};
use roceline_engine::fabric::impair::Probability;

/// From nearly nothing to what no network should have.
const LOSSES: [&str; 11] = [
    "1e-6", "1e-5", "1e-4", "3e-4", "1e-3", "2e-3", "5e-3", "1e-2", "2e-2", "3e-2", "5e-2",
];
/// Packets' worth of messages at each point in virtual time.
const PACKETS: u64 = 1_000_000;

/// A goodput for each of some losses, as a part of that without loss.
pub struct Curve {
    /// For people.
    pub name: String,
    /// Loss and part.
    pub points: Vec<(f64, f64)>,
}

struct Options {
    json: bool,
    real: bool,
    packets: u64,
    draw: Option<PathBuf>,
}

impl Options {
    fn read() -> Result<Options, String> {
        let mut options = Options {
            json: false,
            real: true,
            packets: PACKETS,
            draw: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--virtual" => options.real = false,
                "--quick" => options.packets = PACKETS / 10,
                "--draw" => {
                    let path = args.next().ok_or("--draw needs a path without extension")?;
                    options.draw = Some(path.into());
                }
                // What cargo passes to every benchmark.
                "--bench" => {}
                other => {
                    return Err(format!(
                        "{other}: there are --json, --virtual, --quick, --draw PATH"
                    ));
                }
            }
        }
        if options.draw.is_some() && !cfg!(feature = "plots") {
            return Err("--draw needs the feature: cargo bench --features plots …".into());
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::read().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("loss: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// One loss: on data and on the way back in virtual time, on data in the real loop.
struct Row {
    text: &'static str,
    data: Point,
    reverse: Point,
    both: Point,
    real: Option<real::Point>,
}

fn run(options: &Options) -> Result<(), String> {
    let setup = Setup::default();
    let terms = setup.terms();
    let mut real = match options.real {
        true => Some(real::Loop::new().map_err(|e| e.to_string())?),
        false => None,
    };
    let clean = real
        .as_mut()
        .map(|real| real.point(Probability::NEVER))
        .transpose()?;
    if !options.json {
        head(&setup, &terms, clean.as_ref());
    }
    let mut rows = Vec::new();
    for text in LOSSES {
        let loss: Probability = text.parse().map_err(|e| format!("{e}"))?;
        let row = Row {
            text,
            data: setup.point(Where::Data, loss, options.packets),
            reverse: setup.point(Where::Reverse, loss, options.packets),
            both: setup.point(Where::Both, loss, options.packets),
            real: real.as_mut().map(|real| real.point(loss)).transpose()?,
        };
        match options.json {
            true => println!("{}", json(&row, &terms)),
            false => line(&row, &terms),
        }
        rows.push(row);
    }
    match &options.draw {
        Some(path) => draw(path, &rows, &terms),
        None => Ok(()),
    }
}

fn head(setup: &Setup, terms: &Terms, clean: Option<&real::Point>) {
    println!(
        "virtual time: {} Gb/s, {} us each way, path MTU {}, WRITEs of {} KiB, {} under way, window 256, seed {}",
        setup.link.bits_per_s / 1_000_000_000,
        setup.link.delay.0 / 1000,
        setup.mtu.bytes(),
        setup.message_packets * setup.mtu.bytes() / 1024,
        setup.depth,
        setup.seed
    );
    println!(
        "  t_pkt {:.1} ns, RTT {:.2} us, W {:.1} packets, T {:.3} ms as it fires (timeout {}), {:.2} Gb/s without loss",
        terms.packet_ns,
        terms.round_trip.0 as f64 / 1e3,
        terms.window,
        terms.timeout.0 as f64 / 1e6,
        setup.timeout,
        terms.goodput / 1e9
    );
    println!("  expected: 1 / (1 + p W + p^2 T / t_pkt)");
    if let Some(clean) = clean {
        println!(
            "real loop: 2 NICs on 1 lcore, FabricLink, WRITEs of 64 KiB, path MTU 4096, timeout {}: {:.2} Gb/s without loss",
            real::TIMEOUT,
            clean.goodput / 1e9
        );
    }
    println!();
    println!("as parts of the goodput without loss; lost, NAKs and timeouts are counts");
    println!(
        "{:>6} | {:>8} {:>8} {:>6} {:>7} {:>6} {:>8} | {:>8} {:>8} | {:>8} {:>8} | {:>8} {:>6}",
        "loss",
        "data",
        "expected",
        "ratio",
        "lost",
        "NAKs",
        "timeouts",
        "reverse",
        "timeouts",
        "both",
        "timeouts",
        format!("real (of {})", real::ROUNDS),
        "lost"
    );
}

fn line(row: &Row, terms: &Terms) {
    let part = row.data.goodput / terms.goodput;
    let expected = terms.expected(row.data.loss);
    print!(
        "{:>6} | {:>8.4} {:>8.4} {:>6.3} {:>7} {:>6} {:>8} | {:>8.4} {:>8} | {:>8.4} {:>8} |",
        row.text,
        part,
        expected,
        part / expected,
        row.data.lost,
        row.data.counters.packet_seq_err,
        row.data.counters.local_ack_timeout_err,
        row.reverse.goodput / terms.goodput,
        row.reverse.counters.local_ack_timeout_err,
        row.both.goodput / terms.goodput,
        row.both.counters.local_ack_timeout_err,
    );
    match &row.real {
        Some(real) => {
            let [part, least, most] = real.part;
            println!(" {part:>8.4} ({least:.2}..{most:.2}) {:>6}", real.lost);
        }
        None => println!(),
    }
    if let Some(status) = row.real.as_ref().and_then(|real| real.failed) {
        println!("       the QP failed with status {status} (real loop)");
    }
    for (name, point) in [
        ("data", &row.data),
        ("the reverse path", &row.reverse),
        ("both", &row.both),
    ] {
        if let Some(status) = point.failed {
            println!("       the QP failed with {status:?} (loss on {name})");
        }
    }
}

fn json(row: &Row, terms: &Terms) -> serde_json::Value {
    let point = |point: &Point| {
        serde_json::json!({
            "gbps": point.goodput / 1e9,
            "part": point.goodput / terms.goodput,
            "sent": point.sent,
            "lost": point.lost,
            "naks": point.counters.packet_seq_err,
            "timeouts": point.counters.local_ack_timeout_err,
            "failed": point.failed.map(|status| format!("{status:?}")),
        })
    };
    let real = row.real.as_ref().map(|real| {
        serde_json::json!({
            "gbps": real.goodput / 1e9,
            "part": real.part[0],
            "least": real.part[1],
            "most": real.part[2],
            "lost": real.lost,
            "failed": real.failed,
        })
    });
    serde_json::json!({
        "loss": row.data.loss,
        "expected": terms.expected(row.data.loss),
        "virtual": point(&row.data),
        "reverse": point(&row.reverse),
        "both": point(&row.both),
        "real": real,
        "t_pkt_ns": terms.packet_ns,
        "rtt_ns": terms.round_trip.0,
        "window": terms.window,
        "timeout_ns": terms.timeout.0,
    })
}

#[cfg(not(feature = "plots"))]
fn draw(_: &std::path::Path, _: &[Row], _: &Terms) -> Result<(), String> {
    Err("built without the feature plots".into())
}

#[cfg(feature = "plots")]
fn draw(path: &std::path::Path, rows: &[Row], terms: &Terms) -> Result<(), String> {
    let curve = |name: &str, part: &dyn Fn(&Row) -> Option<f64>| Curve {
        name: name.into(),
        points: rows
            .iter()
            .filter_map(|row| Some((row.data.loss, part(row)?)))
            .collect(),
    };
    let mut measured = vec![
        curve("virtual time, loss on data", &|row| {
            Some(row.data.goodput / terms.goodput)
        }),
        curve("virtual time, loss on ACKs and NAKs", &|row| {
            Some(row.reverse.goodput / terms.goodput)
        }),
        curve("virtual time, loss on all", &|row| {
            Some(row.both.goodput / terms.goodput)
        }),
    ];
    if rows.iter().any(|row| row.real.is_some()) {
        measured.push(curve("real loop, loss on data", &|row| {
            row.real.as_ref().map(|real| real.part[0])
        }));
    }
    plot::draw(path, &|p| terms.expected(p), &measured)
}
