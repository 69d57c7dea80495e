//! How true paced rates are in real time: queue pairs with the algorithm `fixed-rate` send as fast as they may, and the rate of each is
//! measured by its completions over the larger of 100 ms and 1,000 packets, by the machine's clock.
//!
//! Prints, for each rate, how far the mean is from it, how far the worst window of any queue pair is, and for how long the kernel kept
//! the polling thread from running, which is time that pacing does not know of. Virtual time, where no kernel interferes, is what
//! is judged: `cargo test -p roceline-engine --test pacing`.
//!
//! `cargo bench -p roceline --bench pacing [-- --json]`

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::bench::producer::{ProducerQp, SIGNALED};
use roceline::lcore::message::Command;
use roceline::lcore::probe::NoProbe;
use roceline::memory::{Mapping, MemoryFile, Range, Reach};
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};
use roceline_engine::wire::{Opcode, link_bytes};

/// A window is so long at least.
const WINDOW: Duration = Duration::from_millis(100);
/// And has so many packets.
const PACKETS: u64 = 1_000;
/// Windows of each queue pair, where one takes less than a second.
const WINDOWS: usize = 5;
/// Packets of a queue pair before the first window.
const SETTLE: u64 = 50;
/// Slots of a send queue, as a power of two.
const LOG2_DEPTH: u32 = 6;
/// Where the memory of both programs is. It is mapped into the loop, so nothing has to be there in this process.
const BASE: u64 = 1 << 32;
/// Its bytes.
const BYTES: u64 = 4096;

struct Case {
    /// Bits per second of each queue pair; 0: as fast as it goes.
    rate: u64,
    qps: usize,
    /// Payload of a packet.
    payload: u32,
}

const CASES: [Case; 8] = [
    case(1_000_000, 1, 256),
    case(10_000_000, 1, 1024),
    case(100_000_000, 1, 1024),
    case(1_000_000_000, 1, 4096),
    case(4_000_000_000, 1, 4096),
    case(10_000_000, 64, 1024),
    case(50_000_000, 64, 4096),
    case(0, 1, 4096),
];

const fn case(rate: u64, qps: usize, payload: u32) -> Case {
    Case { rate, qps, payload }
}

/// A queue pair and its windows.
struct Sender {
    qp: ProducerQp,
    done: u64,
    /// Since when the present window counts, and what had been done by then.
    since: Option<(Instant, u64)>,
    /// Bits per second of each window.
    rates: Vec<f64>,
    /// Seconds of the last window.
    window: f64,
}

/// What was measured of a case.
struct Measured {
    rates: Vec<f64>,
    window: f64,
    /// Time in which the loop did not run though it wanted to.
    lost: Duration,
}

fn main() -> io::Result<()> {
    let json = std::env::args().any(|arg| arg == "--json");
    // Each message is a packet that is acknowledged, so that completions tell what has left.
    let mut pair = Pair::new(AckPolicy::PerMessage, Mtu::M4096, LOG2_DEPTH)?;
    let keys = (register(&mut pair, false)?, register(&mut pair, true)?);
    if !json {
        println!("pacing in real time: 2 NICs, 1 lcore and the programs on one thread\n");
        println!(
            "{:>10} {:>4} {:>8} {:>8} {:>11} {:>9} {:>9} {:>9}",
            "set", "QPs", "payload", "window", "achieved", "mean", "worst", "lost CPU"
        );
    }
    for case in &CASES {
        let measured = measure(&mut pair, case, keys)?;
        report(case, &measured, json);
    }
    Ok(())
}

/// Registers the memory of the sender or of the `receiver`.
fn register(pair: &mut Pair, receiver: bool) -> io::Result<u32> {
    // SAFETY: a new descriptor, which becomes ours, and a call that takes no pointer.
    let fd = unsafe {
        let fd = libc::memfd_create(c"pacing".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 || libc::ftruncate(fd, BYTES as libc::off_t) != 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let file = MemoryFile::adopt(fd).map_err(io::Error::other)?;
    let mapping = Mapping::new(&file, 0, BYTES, "pacing".into()).map_err(io::Error::other)?;
    let reach = Reach::mapped(vec![Range {
        start: BASE,
        end: BASE + BYTES,
        mapping,
        offset: 0,
    }]);
    let Pair { lcore, a, b, .. } = pair;
    let side = if receiver { b } else { a };
    side.producer.register_reached(BASE, BYTES, reach, &mut || {
        lcore.turn(&mut NoProbe);
    })
}

/// New queue pairs, connected, whose rate is the case's.
fn senders(pair: &mut Pair, case: &Case) -> io::Result<Vec<Sender>> {
    let Pair { lcore, a, b, .. } = pair;
    let mut poll = || {
        lcore.turn(&mut NoProbe);
    };
    let mut settings = a.info.congestion.now();
    let algorithm = if case.rate == 0 { "none" } else { "fixed-rate" };
    let rate = format!("{}kb/s", case.rate / 1_000);
    for (key, value) in [("algorithm", algorithm), ("fixed_rate", &rate)] {
        if case.rate > 0 || key == "algorithm" {
            settings.set(key, value).map_err(io::Error::other)?;
        }
    }
    let command = Command::SetCongestion {
        nic: 0,
        settings: Box::new(settings),
    };
    a.producer.command(command, &mut poll)?;
    let mut all = Vec::new();
    for _ in 0..case.qps {
        let qp = a.producer.create_qp(LOG2_DEPTH, &mut poll)?;
        let peer = b.producer.create_qp(1, &mut poll)?;
        let mtu = Mtu::M4096;
        a.producer
            .connect(&qp, &a.info, &b.info, peer.qpn, mtu, &mut poll)?;
        b.producer
            .connect(&peer, &b.info, &a.info, qp.qpn, mtu, &mut poll)?;
        all.push(Sender {
            qp,
            done: 0,
            since: None,
            rates: Vec::new(),
            window: 0.0,
        });
    }
    Ok(all)
}

fn measure(pair: &mut Pair, case: &Case, keys: (u32, u32)) -> io::Result<Measured> {
    let bits = f64::from(link_bytes(false, Opcode::RC_WRITE_ONLY, case.payload)) * 8.0;
    let takes = PACKETS as f64 * bits / case.rate.max(1) as f64;
    let windows = if takes < 1.0 { WINDOWS } else { 1 };
    let mut senders = senders(pair, case)?;
    let local = Sge {
        addr: BASE,
        length: case.payload,
        lkey: keys.0,
    };
    let (mut last, mut lost) = (Instant::now(), Duration::ZERO);
    while senders.iter().any(|s| s.rates.len() < windows) {
        for sender in &mut senders {
            let mut rang = false;
            while pair.a.producer.can_send(&sender.qp) {
                let remote = (BASE, keys.1);
                pair.a.producer.post_send(
                    &mut sender.qp,
                    WrOpcode::Write,
                    SIGNALED,
                    local,
                    remote,
                    None,
                );
                rang = true;
            }
            if rang {
                pair.a.producer.ring(&sender.qp);
            }
        }
        pair.lcore.turn(&mut NoProbe);
        let now = Instant::now();
        // As the loop's clock has it: what is longer than a millisecond was no poll.
        lost += (now - last).saturating_sub(Duration::from_millis(1));
        last = now;
        while let Some(cqe) = pair.a.producer.poll_cq() {
            if cqe.status != 0 {
                let problem = format!("a completion has status {}", cqe.status);
                return Err(io::Error::other(problem));
            }
            if let Some(sender) = senders.iter_mut().find(|s| s.qp.qpn == cqe.qp_num) {
                sender.done += 1;
            }
        }
        for sender in &mut senders {
            sender.note(now, bits);
        }
    }
    // What is still posted is sent at full speed, so that the next case does not share the link with it.
    let mut settings = pair.a.info.congestion.now();
    settings
        .set("algorithm", "none")
        .map_err(io::Error::other)?;
    let Pair { lcore, a, .. } = pair;
    let mut poll = || {
        lcore.turn(&mut NoProbe);
    };
    let command = Command::SetCongestion {
        nic: 0,
        settings: Box::new(settings),
    };
    a.producer.command(command, &mut poll)?;
    let quiet = Instant::now() + Duration::from_millis(50);
    while Instant::now() < quiet {
        poll();
        while a.producer.poll_cq().is_some() {}
    }
    Ok(Measured {
        window: senders.iter().map(|s| s.window).fold(0.0, f64::max),
        rates: senders.into_iter().flat_map(|s| s.rates).collect(),
        lost,
    })
}

impl Sender {
    /// Ends a window that is long enough, and begins the next one, if something was done since the last look.
    fn note(&mut self, now: Instant, bits: f64) {
        match self.since {
            None if self.done >= SETTLE => self.since = Some((now, self.done)),
            Some((start, before)) => {
                let (time, packets) = (now - start, self.done - before);
                if time >= WINDOW && packets >= PACKETS {
                    self.window = time.as_secs_f64();
                    self.rates.push(packets as f64 * bits / self.window);
                    self.since = Some((now, self.done));
                }
            }
            None => {}
        }
    }
}

fn report(case: &Case, measured: &Measured, json: bool) {
    let mean = measured.rates.iter().sum::<f64>() / measured.rates.len() as f64;
    let off = |rate: f64| rate / case.rate as f64 - 1.0;
    let worst = measured.rates.iter().copied().map(off);
    let worst = worst.fold(0.0, |a: f64, b| if b.abs() > a.abs() { b } else { a });
    if json {
        let limited = case.rate > 0;
        println!(
            "{}",
            serde_json::json!({
                "rate": case.rate, "qps": case.qps, "payload": case.payload, "window_s": measured.window,
                "achieved": mean, "deviation": limited.then(|| off(mean)), "worst": limited.then_some(worst),
                "lost_s": measured.lost.as_secs_f64(),
            })
        );
        return;
    }
    let percent = |part: f64| match case.rate {
        0 => "-".into(),
        _ => format!("{:+.3} %", part * 100.0),
    };
    let set = match case.rate {
        0 => "none".into(),
        rate => format!("{} Mb/s", rate / 1_000_000),
    };
    println!(
        "{set:>10} {:>4} {:>6} B {:>5.0} ms {:>6.1} Mb/s {:>9} {:>9} {:>6.1} ms",
        case.qps,
        case.payload,
        measured.window * 1e3,
        mean / 1e6,
        percent(off(mean)),
        percent(worst),
        measured.lost.as_secs_f64() * 1e3,
    );
}
