//! Runs workloads with a setting: fresh NICs and programs in this process, each time.
//!
//! Fresh ones, as where they happen to lie in memory makes one pair of NICs faster than another with the same setting, by more than
//! many a setting does; what is the same for all of one setting would be taken for its merit. (T. Mytkowicz and others, Producing
//! Wrong Data Without Doing Anything Obviously Wrong!, 2009.)

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roceline_engine::AckPolicy;

use super::latency;
use super::search::{Measure, Setting};
use super::space::{Choice, Space};
use super::workload::{Kind, Workload};
use crate::bench::datapath::{MBUFS, Settings, end_config, least_bytes};
use crate::bench::end::EndConfig;
use crate::bench::load::Load;
use crate::bench::machine::{pin, tsc_hz};
use crate::bench::one_core::{Measured, OneCore};
use crate::bench::stats::median;
use crate::config::{Config, allowed_cpus};
use crate::port::{Eal, EalConfig, Mempool, MempoolConfig};

/// Before the first part of a measurement, and as long as each QP needs for its first turn.
const WARM_UP: Duration = Duration::from_millis(2);
/// Parts of a measurement, of which the median counts: what disturbs one is not in it.
const PARTS: usize = 5;
/// Length of a part.
const PART: Duration = Duration::from_micros(1500);
/// And at least so much for each QP.
const OF_A_QP: Duration = Duration::from_micros(1);

/// Where it runs.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// CPU of the polling thread.
    pub lcore: Option<usize>,
    /// CPU of the programs whose latency is measured.
    pub programs: Option<usize>,
    /// CPUs that this process may use.
    pub cpus: usize,
}

impl Place {
    /// As a daemon with this configuration would have it: the first polling thread on its CPU, or on the last one.
    pub fn of(config: &Config) -> Place {
        let cpus = allowed_cpus();
        let lcore = config.lcores.first().and_then(|lcore| lcore.cpu);
        let lcore = lcore.or(cpus.last().copied());
        Place {
            lcore,
            cpus: cpus.len(),
            programs: cpus.into_iter().find(|cpu| Some(*cpu) != lcore),
        }
    }
}

/// What runs workloads.
pub struct Rig<'a> {
    space: &'a Space,
    workloads: &'a [Workload],
    place: Place,
    begin: Instant,
    interrupted: Arc<AtomicBool>,
    tsc_hz: f64,
    pool: Arc<Mempool>,
    // Last: the pool is of its memory.
    eal: Eal,
}

impl<'a> Rig<'a> {
    /// Initialises EAL, so once in a process. `interrupted`: whether somebody wants it to end.
    ///
    /// # Errors
    /// When EAL refuses.
    pub fn new(
        space: &'a Space,
        workloads: &'a [Workload],
        place: Place,
        interrupted: Arc<AtomicBool>,
    ) -> io::Result<Rig<'a>> {
        let eal = Eal::init(&EalConfig::default()).map_err(io::Error::other)?;
        let pool = MempoolConfig {
            count: MBUFS,
            ..MempoolConfig::default()
        };
        Ok(Rig {
            space,
            workloads,
            place,
            begin: Instant::now(),
            interrupted,
            tsc_hz: tsc_hz(),
            pool: Mempool::new(&eal, &pool).map_err(io::Error::other)?,
            eal,
        })
    }

    /// Whether memory of packets is of hugepages.
    pub fn has_hugepages(&self) -> bool {
        self.eal.has_hugepages()
    }

    /// Messages in a second of a thread that polls both NICs and does nothing else.
    fn rate(&self, choice: &Choice, load: Load, qps: usize) -> io::Result<f64> {
        if let Some(cpu) = self.place.lcore {
            // Where it may not be pinned the figures vary more, and say so.
            pin(cpu);
        }
        let mtu = choice.path_mtu().bytes();
        let settings = Settings {
            mtu,
            mapped: true,
            ack_per_message: choice.ack_policy == AckPolicy::PerMessage,
            congestion_control: true,
            rounds: PARTS,
            round: PART,
        };
        let config = EndConfig {
            tuning: choice.tuning,
            ring: choice.tx_ring,
            ..end_config(&settings, qps, least_bytes(load.len as usize))
        };
        let mut ends = OneCore::new(&config, &self.pool)?;
        let mut requester = ends.begin(load);
        let turn = OF_A_QP * qps as u32;
        ends.sample(
            &mut requester,
            &load,
            WARM_UP.max(turn),
            self.tsc_hz,
            Measured::Plain,
        );
        let mut rates: Vec<f64> = (0..PARTS)
            .map(|_| {
                let part = ends.sample(
                    &mut requester,
                    &load,
                    PART.max(turn),
                    self.tsc_hz,
                    Measured::Plain,
                );
                let cycles = (part.requester.all + part.responder.all).max(1);
                part.messages / cycles as f64 * self.tsc_hz
            })
            .collect();
        ends.finish(&mut requester)?;
        match median(&mut rates) {
            rate if rate > 0.0 => Ok(rate),
            _ => Err(io::Error::other(
                "no message came through in the time of a measurement",
            )),
        }
    }
}

impl Measure for Rig<'_> {
    fn measure(&mut self, setting: &Setting) -> io::Result<Vec<f64>> {
        let choice = self.space.choice(setting);
        let figure = |workload: &Workload| match workload.kind {
            Kind::Rate(load) => self.rate(&choice, load, workload.qps),
            Kind::Latency(ping) => {
                let trip =
                    latency::half_round_trip(&choice, ping, self.place, &self.pool, self.tsc_hz)?;
                Ok(1.0 / trip)
            }
        };
        self.workloads.iter().map(figure).collect()
    }

    fn spent(&self) -> Duration {
        self.begin.elapsed()
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}
