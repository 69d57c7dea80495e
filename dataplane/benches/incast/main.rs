//! Four senders to one receiver over an emulated switch at 1 Gb/s, in real time, with perftest as it comes: first without
//! congestion control, then with it. Shows both live in a terminal, judges them, and draws them.
//!
//! `cargo bench -p roceline --bench incast [--features plots] [-- --seconds N] [-- --draw PATH] [-- --json]`, or
//! `scripts/lab-congestion`, which says what is judged.

#[path = "../../tests/support/mod.rs"]
mod support;

#[cfg(feature = "plots")]
#[path = "../figure/mod.rs"]
mod figure;
#[cfg(feature = "plots")]
mod plot;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use support::incast::{Incast, Look, Setup, Window};

/// Before anything is judged.
const SETTLE: Duration = Duration::from_secs(2);
/// Between two looks.
const STEP: Duration = Duration::from_millis(200);
/// Part of what the link carried without congestion control; where less is carried with it, there is a remark.
const ENOUGH: f64 = 0.8;
/// Characters of a bar.
const BAR: usize = 40;

struct Options {
    seconds: u64,
    json: bool,
    draw: Option<PathBuf>,
}

impl Options {
    fn read() -> Result<Options, String> {
        let mut options = Options {
            seconds: 10,
            json: false,
            draw: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--seconds" => {
                    let text = value()?;
                    let seconds = text.parse().ok().filter(|s| (1..=600).contains(s));
                    options.seconds = seconds.ok_or(format!("--seconds {text}: 1 to 600"))?;
                }
                "--draw" => options.draw = Some(value()?.into()),
                "--json" => options.json = true,
                // What cargo passes to every benchmark.
                "--bench" => {}
                other => return Err(format!("{other}: there are --seconds, --draw PATH, --json")),
            }
        }
        if options.draw.is_some() && !cfg!(feature = "plots") {
            return Err("--draw needs the feature: cargo bench --features plots …".into());
        }
        Ok(options)
    }
}

/// One run.
pub struct Run {
    /// How the NICs were set up.
    pub setup: Setup,
    /// What was seen, in order.
    pub looks: Vec<Look>,
    /// What is judged.
    window: Window,
    /// When all is quiet again.
    end: Look,
}

fn main() -> ExitCode {
    match Options::read().and_then(|options| lab(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("incast: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn lab(options: &Options) -> Result<bool, String> {
    let live = std::io::stdout().is_terminal() && !options.json;
    let without = Setup {
        control: false,
        ..Setup::default()
    };
    let runs = [without, Setup::default()].map(|setup| run(setup, options, live));
    let held = judge(&runs, options.json);
    if let Some(path) = &options.draw {
        draw(path, &runs)?;
    }
    Ok(held)
}

fn run(setup: Setup, options: &Options, live: bool) -> Run {
    let incast = Incast::start(setup.clone());
    let mut looks = vec![incast.look()];
    let length = SETTLE + Duration::from_secs(options.seconds);
    let mut lines = 0;
    while looks[looks.len() - 1].at < length {
        sleep(STEP);
        looks.push(incast.look());
        if live {
            lines = show(&setup, &looks, lines);
        }
    }
    let settled = looks.iter().position(|look| look.at >= SETTLE).unwrap_or(0);
    let window = Window::between(&looks[settled], &looks[looks.len() - 1]);
    let (end, _) = incast.end();
    Run {
        setup,
        looks,
        window,
        end,
    }
}

fn bar(part: f64) -> String {
    let full = (part.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!("{}{}", "#".repeat(full), ".".repeat(BAR - full))
}

/// Draws the last second over what was drawn before, which took `lines` lines.
fn show(setup: &Setup, looks: &[Look], lines: usize) -> usize {
    let last = &looks[looks.len() - 1];
    let window = Window::between(&looks[looks.len().saturating_sub(6)], last);
    let mut text = Vec::new();
    let control = if setup.control {
        "DCQCN"
    } else {
        "no congestion control"
    };
    text.push(format!(
        "{} senders, 1 Gb/s, {control}: {:.1} s",
        setup.senders,
        last.at.as_secs_f64()
    ));
    for (n, rate) in window.rates.iter().enumerate() {
        let part = rate / setup.rate as f64;
        text.push(format!(
            "  roce{} {} {:4.0} Mb/s",
            n + 1,
            bar(part),
            rate / 1e6
        ));
    }
    let kmax = f64::from(setup.marks.1) * 1024.0;
    let depth = window.depth(0.5) as f64;
    text.push(format!(
        "  queue {} {:4.0} kB (median; the bar ends at twice Kmax)",
        bar(depth / kmax / 2.0),
        depth / 1e3
    ));
    text.push(format!(
        "  CE marks {}, CNPs sent {}, handled {}, pause frames {}",
        last.marked, last.cnps, last.handled, last.pauses
    ));
    let mut out = std::io::stdout().lock();
    if lines > 0 {
        // Up again, over the old picture.
        let _ = write!(out, "\x1b[{lines}A");
    }
    for line in &text {
        let _ = writeln!(out, "\x1b[2K{line}");
    }
    let _ = out.flush();
    text.len()
}

/// Says of each thing that must hold whether it does.
fn judge([without, with]: &[Run; 2], json: bool) -> bool {
    let kmax = u64::from(with.setup.marks.1) << 10;
    let (w, end) = (&with.window, &with.end);
    let goodput = |run: &Run| run.window.rates.iter().sum::<f64>() / 1e6;
    let used = |run: &Run| goodput(run) * 1e6 / run.setup.rate as f64;
    let checks = [
        (
            "shares within 25 % of their mean",
            w.unfairness() <= 0.25,
            format!(
                "{:.0} % away at most ({:.0} % without)",
                w.unfairness() * 100.0,
                without.window.unfairness() * 100.0
            ),
        ),
        (
            "99 % of frames find less than Kmax in the queue",
            w.depth(0.99) < kmax,
            format!(
                "{} kB of {} ({} without)",
                w.depth(0.99) / 1000,
                kmax / 1000,
                without.window.depth(0.99) / 1000
            ),
        ),
        (
            "at least 100 times fewer pause frames",
            without.window.pauses >= 100 * w.pauses.max(1),
            format!("{}, not {}", w.pauses, without.window.pauses),
        ),
        (
            "CE marks >= CNPs sent = CNPs handled",
            // One may be on its way to each queue pair whose program ends.
            end.marked >= end.cnps
                && end.cnps > 0
                && end.cnps == end.handled + end.ignored
                && end.ignored <= 4,
            format!(
                "{}, {}, {} (and {} for queue pairs that had ended)",
                end.marked, end.cnps, end.handled, end.ignored
            ),
        ),
        (
            "nothing lost",
            end.lost + without.end.lost == 0,
            format!("{} and {} frames", end.lost, without.end.lost),
        ),
    ];
    if json {
        let line = |run: &Run| {
            serde_json::json!({
                "control": run.setup.control,
                "rates_mbps": run.window.rates.iter().map(|r| r / 1e6).collect::<Vec<_>>(),
                "utilisation": used(run),
                "unfairness": run.window.unfairness(),
                "depth_p50": run.window.depth(0.5),
                "depth_p99": run.window.depth(0.99),
                "kmax": kmax,
                "pauses": run.window.pauses,
                "marked": run.end.marked,
                "cnps_sent": run.end.cnps,
                "cnps_handled": run.end.handled,
                "lost": run.end.lost,
                "retries": run.end.retries,
            })
        };
        println!("{}\n{}", line(without), line(with));
    } else {
        println!(
            "\ntogether {:.0} Mb/s with DCQCN, {:.0} without: {:.0} % and {:.0} % of the link",
            goodput(with),
            goodput(without),
            used(with) * 100.0,
            used(without) * 100.0
        );
        if used(with) < ENOUGH * used(without) {
            println!(
                "much of the link was not used with DCQCN. A polling thread that gets too little CPU paces late, and a sender \
                 without one sends nothing: what else runs on this machine? Run it again when it is quiet"
            );
        }
        for (what, held, how) in &checks {
            println!("{} {what}: {how}", if *held { "holds " } else { "FAILS " });
        }
    }
    checks.iter().all(|check| check.1)
}

#[cfg(not(feature = "plots"))]
fn draw(_: &std::path::Path, _: &[Run; 2]) -> Result<(), String> {
    Err("built without the feature plots".into())
}

#[cfg(feature = "plots")]
fn draw(path: &std::path::Path, runs: &[Run; 2]) -> Result<(), String> {
    plot::draw(path, runs)
}
