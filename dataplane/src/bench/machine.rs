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
use serde::{Serialize, Serializer};

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
    pub distance: Seen,
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
                _ => Seen(Err(Unknown::OneCpu)),
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
        match &self.distance.0 {
            Ok(distance) => write!(f, "\nCPUs {} and {}: {distance}", distance.a, distance.b),
            Err(unknown) => write!(f, "\nCPUs near or far: unknown ({unknown})"),
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
    /// Measures it with two threads that are pinned there, if they may run there and others do not.
    pub fn between(a: usize, b: usize) -> Seen {
        Seen(Distance::measured(a, b))
    }

    fn measured(a: usize, b: usize) -> Result<Distance, Unknown> {
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
                            return (None, trips);
                        }
                    }
                }
                trips.push((tsc() - start) as f64 / 100.0);
            }
            (Some(pinned), trips)
        });
        let (ping_pinned, mut trips) = ping.join().unwrap_or((None, Vec::new()));
        stop.store(true, Ordering::Relaxed);
        let echo_pinned = echo.join().unwrap_or(false);
        let busy = Unknown::Busy(a, b);
        if !echo_pinned || !ping_pinned.ok_or(busy)? {
            return Err(Unknown::NotPinned(a, b));
        }
        if trips.is_empty() {
            return Err(busy);
        }
        trips.sort_by(f64::total_cmp);
        let round_trip_ns = trips[trips.len() / 4] / tsc_hz() * 1e9;
        if round_trip_ns > BUSY {
            return Err(busy);
        }
        Ok(Distance {
            a,
            b,
            round_trip_ns,
            near: round_trip_ns < NEAR,
        })
    }
}

/// Why it is not known how far two CPUs are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// There are no two.
    #[error("this process may use one CPU only")]
    OneCpu,
    /// The halves of a benchmark may run anywhere.
    #[error("the two halves are not pinned to CPUs")]
    Anywhere,
    /// Threads may not run there.
    #[error("threads cannot be pinned to CPUs {0} and {1}")]
    NotPinned(usize, usize),
    /// What was measured are time slices.
    #[error("others are busy on CPU {0} or {1}")]
    Busy(usize, usize),
}

/// How far two CPUs are from each other, or why that is not known.
#[derive(Clone, Debug)]
pub struct Seen(pub Result<Distance, Unknown>);

impl Seen {
    /// In a table.
    pub fn cell(&self) -> String {
        match &self.0 {
            Ok(distance) => format!("{} ({:.0} ns)", distance.word(), distance.round_trip_ns),
            Err(_) => "unknown".into(),
        }
    }

    /// Whether both are known, and not alike.
    pub fn moved(&self, after: &Seen) -> bool {
        match (&self.0, &after.0) {
            (Ok(before), Ok(after)) => before.near != after.near,
            _ => false,
        }
    }
}

/// A distance as such; else the reason, by the name `unknown`.
impl Serialize for Seen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(distance) => distance.serialize(serializer),
            Err(unknown) => serializer.collect_map([("unknown", unknown.to_string())]),
        }
    }
}

impl Distance {
    fn word(&self) -> &'static str {
        if self.near { "near" } else { "far" }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (a cache line there and back takes {:.0} ns)",
            self.word(),
            self.round_trip_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_has_a_reason_wherever_it_is_shown() {
        let near = Seen(Ok(Distance {
            a: 0,
            b: 1,
            round_trip_ns: 120.0,
            near: true,
        }));
        let unknown = Seen(Err(Unknown::Busy(0, 1)));
        assert_eq!(
            (near.cell(), unknown.cell()),
            ("near (120 ns)".into(), "unknown".into())
        );
        assert!(!near.moved(&unknown) && !near.moved(&near));
        let json = |seen: &Seen| serde_json::to_value(seen).unwrap();
        assert_eq!(json(&near)["near"], true);
        assert_eq!(json(&unknown)["unknown"], "others are busy on CPU 0 or 1");
    }
}
