//! Several senders to one receiver over a switch, by perftest, with the daemon's counters looked at from outside.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::daemon::Daemon;
use super::process::Process;
use super::{PATIENCE, free_port, listening, wait_for};

/// The paper's profile for 1 Gb/s and a NIC in software. A packet of 4 KiB takes 33 us here, as long as 160 packets of the paper's at 40 Gb/s,
/// so times are twenty times as long, and the steps up are a fortieth, as the rate is.
const SLOW_LINK: &str = "dcqcn = { profile = \"paper\", rpg_time_reset = 1000, dce_tcp_rtt = 1000, rpg_ai_rate = 1, rpg_hai_rate = 5 }\n\
                         np = { min_time_between_cnps = 500 }\n";

/// What the switch and the NICs are told.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Senders: roce1 and on. The receiver is roce0.
    pub senders: usize,
    /// Bits per second of all links.
    pub rate: u64,
    /// Where marks begin and end, in KiB.
    pub marks: (u32, u32),
    /// Congestion control of the senders.
    pub control: bool,
    /// Further lines of each NIC.
    pub nic: &'static str,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            senders: 4,
            rate: 1_000_000_000,
            marks: (64, 256),
            control: true,
            nic: SLOW_LINK,
        }
    }
}

impl Setup {
    fn config(&self) -> String {
        let (kmin, kmax) = self.marks;
        let mut text = format!(
            "[fabric]\nrate = \"{}kb/s\"\nkmin = \"{kmin}KiB\"\nkmax = \"{kmax}KiB\"\npmax = \"10%\"\n\
             switch = [{{ name = \"tor\" }}]\n",
            self.rate / 1_000
        );
        let congestion = if self.control { "dcqcn" } else { "none" };
        for n in 0..=self.senders {
            text += &format!(
                "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.78.0.{}/24\"]\nport = \"fabric:tor\"\n\
                 congestion = \"{congestion}\"\n{}\n",
                n + 1,
                self.nic
            );
        }
        text
    }
}

/// What runs.
pub struct Incast {
    pub daemon: Daemon,
    pub setup: Setup,
    programs: Vec<Process>,
    began: Instant,
}

/// What was counted until a moment.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Since the traffic began.
    pub at: Duration,
    /// Bytes that came from each sender.
    pub bytes: Vec<u64>,
    /// Bytes in the queue to the receiver.
    pub depth: u64,
    /// How deep it was, as frames found it, and how many did.
    pub depths: Vec<(u64, u64)>,
    /// Frames that the switch marked, and pause frames that it sent.
    pub marked: u64,
    /// See `marked`.
    pub pauses: u64,
    /// Frames that found no room.
    pub lost: u64,
    /// Marked packets that the receiver got, and CNPs that it sent.
    pub seen: u64,
    /// See `seen`.
    pub cnps: u64,
    /// CNPs that senders handled, and those that they ignored.
    pub handled: u64,
    /// See `handled`.
    pub ignored: u64,
    /// Packets that senders sent again, for whatever reason.
    pub retries: u64,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

impl Incast {
    /// Starts daemon and programs; all send when it returns.
    pub fn start(setup: Setup) -> Incast {
        let daemon = Daemon::start(&setup.config());
        let mut programs = Vec::new();
        for n in 1..=setup.senders {
            let port = free_port();
            let number = port.to_string();
            // DSCP 26, priority 3.
            let mut common = vec!["-F", "-s", "65536", "-x", "0", "--tclass=104", "-D", "300"];
            common.extend(["-p", &number]);
            let start = |name: &str, own: &[&str]| {
                let arguments: Vec<&str> = common.iter().chain(own).copied().collect();
                daemon.start_program(&format!("{name}{n}"), "ib_write_bw", &arguments)
            };
            let mut server = start("server", &["-d", "roce0"]);
            wait_for("listening server", PATIENCE, || {
                listening(port) || !server.is_running()
            });
            let client = start("client", &["-d", &format!("roce{n}"), "127.0.0.1"]);
            programs.extend([server, client]);
        }
        let mut incast = Incast {
            daemon,
            setup,
            programs,
            began: Instant::now(),
        };
        wait_for("traffic of all", PATIENCE, || {
            incast.look().bytes.iter().all(|b| *b > 100_000)
        });
        incast.began = Instant::now();
        incast
    }

    /// Ends the programs, waits until nothing is under way, and looks for the last time.
    pub fn end(mut self) -> (Look, Daemon) {
        for program in &mut self.programs {
            program.signal(libc::SIGKILL);
        }
        self.programs.clear();
        let mut last = self.look();
        wait_for("the end of all packets", PATIENCE, || {
            std::thread::sleep(Duration::from_millis(200));
            let look = self.look();
            let quiet = look.bytes == last.bytes && look.cnps == last.cnps && look.depth == 0;
            last = look;
            quiet
        });
        (last, self.daemon)
    }

    /// What is counted until now.
    pub fn look(&self) -> Look {
        let fabric = self.daemon.json(&["show", "fabric"]);
        let at = self.began.elapsed();
        let stat = self.daemon.json(&["stat"]);
        let mut look = Look {
            at,
            bytes: vec![0; self.setup.senders],
            ..Look::default()
        };
        for port in list(&fabric["switches"]).flat_map(|s| list(&s["ports"])) {
            let peer = port["peer"].as_str().unwrap_or_default();
            let nic: usize = peer.trim_start_matches("roce").parse().unwrap_or(0);
            for queue in list(&port["queues"]) {
                look.marked += number(queue, "ce_marked");
                look.pauses += number(&queue["pause_tx"], "frames");
                look.lost += number(queue, "dropped") + number(queue, "rx_dropped");
                if queue["priority"] != 3 {
                    continue;
                }
                if nic == 0 {
                    look.depth = number(queue, "depth");
                    let pair = |pair: &Value| Some((pair[0].as_u64()?, pair[1].as_u64()?));
                    look.depths = list(&queue["depths"]).filter_map(pair).collect();
                } else if let Some(bytes) = look.bytes.get_mut(nic - 1) {
                    *bytes = number(queue, "rx_bytes");
                }
            }
        }
        for device in list(&stat["devices"]) {
            let counters = &device["hw_counters"];
            look.seen += number(counters, "np_ecn_marked_roce_packets");
            look.cnps += number(counters, "np_cnp_sent");
            look.handled += number(counters, "rp_cnp_handled");
            look.ignored += number(counters, "rp_cnp_ignored");
            look.retries += number(counters, "packet_seq_err");
            look.retries += number(counters, "local_ack_timeout_err");
        }
        look
    }
}

/// What happened between two looks.
#[derive(Clone, Debug)]
pub struct Window {
    /// Bits per second of each sender.
    pub rates: Vec<f64>,
    /// Of the depths that frames found, the one below which so many were.
    pub depths: Vec<(u64, u64)>,
    /// Pause frames.
    pub pauses: u64,
    /// CE marks.
    pub marked: u64,
}

impl Window {
    pub fn between(earlier: &Look, later: &Look) -> Window {
        let seconds = (later.at - earlier.at).as_secs_f64();
        let bytes = later.bytes.iter().zip(&earlier.bytes);
        Window {
            rates: bytes.map(|(l, e)| (l - e) as f64 * 8.0 / seconds).collect(),
            depths: roceline::fabric::depths::since(&later.depths, &earlier.depths),
            pauses: later.pauses - earlier.pauses,
            marked: later.marked - earlier.marked,
        }
    }

    /// How far the rates are from their mean, as a part of it.
    pub fn unfairness(&self) -> f64 {
        let mean = self.rates.iter().sum::<f64>() / self.rates.len() as f64;
        let far = self.rates.iter().map(|r| (r - mean).abs() / mean);
        far.fold(0.0, f64::max)
    }

    pub fn depth(&self, share: f64) -> u64 {
        roceline::fabric::depths::quantile(&self.depths, share).unwrap_or(0)
    }
}
