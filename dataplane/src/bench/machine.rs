//! What a benchmark ran on: CPUs, kernel, hugepages, and how far the two CPUs are from each other. The last changes within
//! seconds on virtual machines, and with it all figures of two cores, so it is measured before and after.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use roceline_engine::wire::icrc;
use serde::Serialize;

use crate::lcore::probe::tsc;

/// Round trips of a cache line below this are between near CPUs: one cluster of cores with a common cache.
const NEAR: f64 = 200.0;
/// Round trips above this are not between CPUs but between time slices.
const BUSY: f64 = 2000.0;
/// How long the ping-pong takes.
pub const PING_PONG: Duration = Duration::from_millis(200);

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: Vec<usize>,
    /// Ticks of the time stamp counter in a second.
    pub tsc_hz: f64,
    /// Release of the kernel.
    pub kernel: String,
    /// Whether EAL's memory is of hugepages; none if EAL is not used.
    pub hugepages: Option<bool>,
    /// Of memory objects, as the kernel calls the setting.
    pub shmem_huge_pages: String,
    /// The kernel of ICRC.
    pub icrc: String,
    /// Load averages.
    pub load: String,
    /// How far the first two CPUs are from each other.
    pub distance: Option<Distance>,
}

impl Machine {
    /// Looks at the machine; takes a quarter of a second.
    pub fn look(hugepages: Option<bool>) -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let model = info.lines().find(|line| line.starts_with("model name"));
        let cpu = model.and_then(|line| line.split_once(": "));
        let cpus = crate::config::allowed_cpus();
        let shmem = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        let chosen = shmem.split(['[', ']']).nth(1).unwrap_or("unknown");
        Machine {
            cpu: cpu.map_or("unknown", |(_, name)| name).to_owned(),
            tsc_hz: tsc_hz(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            hugepages,
            shmem_huge_pages: chosen.to_owned(),
            icrc: icrc::current().name().to_owned(),
            load: read("/proc/loadavg")
                .split(' ')
                .take(3)
                .collect::<Vec<_>>()
                .join(" "),
            distance: match *cpus {
                [a, b, ..] => Distance::between(a, b),
                _ => None,
            },
            cpus,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "machine: {}, CPUs {:?}, TSC {:.2} GHz, kernel {}, {}huge pages of memory objects: {}, ICRC by {}, load {}",
            self.cpu,
            self.cpus,
            self.tsc_hz / 1e9,
            self.kernel,
            match self.hugepages {
                None => "",
                Some(true) => "EAL with hugepages, ",
                Some(false) => "EAL without hugepages, ",
            },
            self.shmem_huge_pages,
            self.icrc,
            self.load
        )?;
        match &self.distance {
            Some(distance) => write!(f, "\nCPUs {} and {}: {distance}", distance.a, distance.b),
            None => Ok(()),
        }
    }
}

/// Ticks of the time stamp counter in a second; the first call takes a twentieth of one.
pub fn tsc_hz() -> f64 {
    static HZ: OnceLock<f64> = OnceLock::new();
    *HZ.get_or_init(|| {
        let (begin, ticks) = (Instant::now(), tsc());
        while begin.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        (tsc() - ticks) as f64 / begin.elapsed().as_secs_f64()
    })
}

/// Pins this thread. False if it may not run there.
pub fn pin(cpu: usize) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

/// How far two CPUs are from each other.
#[derive(Clone, Debug, Serialize)]
pub struct Distance {
    /// One of them.
    pub a: usize,
    /// The other.
    pub b: usize,
    /// Round trip of a cache line, in nanoseconds: the first quartile, as whatever disturbs makes it longer.
    pub round_trip_ns: f64,
    /// Whether they are near.
    pub near: bool,
}

impl Distance {
    /// Measures it with two threads that are pinned there; `None` if they may not run there, or others do.
    pub fn between(a: usize, b: usize) -> Option<Distance> {
        let line = Arc::new(CachePadded::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let echo = {
            let (line, stop) = (Arc::clone(&line), Arc::clone(&stop));
            thread::spawn(move || {
                let pinned = pin(b);
                let mut seen = 0;
                while !stop.load(Ordering::Relaxed) {
                    let now = line.load(Ordering::Acquire);
                    if now != seen {
                        seen = now + 1;
                        line.store(seen, Ordering::Release);
                    }
                }
                pinned
            })
        };
        let ping = thread::spawn(move || {
            let pinned = pin(a);
            let mut trips = Vec::with_capacity(4096);
            let begin = Instant::now();
            let mut value = 0;
            while begin.elapsed() < PING_PONG {
                // A hundred at once: reading the clock is not free.
                let start = tsc();
                for _ in 0..100 {
                    line.store(value + 1, Ordering::Release);
                    value += 2;
                    while line.load(Ordering::Acquire) != value {
                        if begin.elapsed() > 10 * PING_PONG {
                            return (false, trips);
                        }
                    }
                }
                trips.push((tsc() - start) as f64 / 100.0);
            }
            (pinned, trips)
        });
        let (ping_pinned, mut trips) = ping.join().ok()?;
        stop.store(true, Ordering::Relaxed);
        let pinned = echo.join().ok()? && ping_pinned;
        if !pinned || trips.is_empty() {
            return None;
        }
        trips.sort_by(f64::total_cmp);
        let round_trip_ns = trips[trips.len() / 4] / tsc_hz() * 1e9;
        if round_trip_ns > BUSY {
            return None;
        }
        Some(Distance {
            a,
            b,
            round_trip_ns,
            near: round_trip_ns < NEAR,
        })
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.near { "near" } else { "far" };
        write!(
            f,
            "{word} (a cache line there and back takes {:.0} ns)",
            self.round_trip_ns
        )
    }
}
