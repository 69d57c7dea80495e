//! What was measured, as tables and as JSON.

use std::fmt::Write;
use std::fs;

use roceline_engine::wire::icrc::{self, Kernel};

use super::{ROUNDS, UNIT};

/// Kernels that are held against each other in one run.
pub const WIDE: &str = "vpclmulqdq-512";
pub const NARROW: &str = "vpclmulqdq-256";

/// Cost of one packet.
pub struct Figure {
    name: String,
    median: f64,
    low: f64,
}

impl Figure {
    pub fn of(name: &str, mut runs: Vec<f64>) -> Figure {
        runs.sort_by(f64::total_cmp);
        Figure {
            name: name.into(),
            median: runs[runs.len() / 2],
            low: runs[runs.len() / 10],
        }
    }
}

/// Where it was measured.
pub struct Machine {
    cpu: String,
    /// Family and model, as CPUID has them.
    model: String,
    caches: [String; 2],
    set: usize,
}

impl Machine {
    pub fn here(set: usize) -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split(':').nth(1));
            value.map_or("?", str::trim).to_owned()
        };
        let cache = |index: usize| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
            fs::read_to_string(path).map_or("?".into(), |size| size.trim().to_owned())
        };
        let (family, model) = (field("cpu family"), field("model\t"));
        Machine {
            cpu: format!("{}, family {family} model {model}", field("model name")),
            model: format!("{family}/{model}"),
            caches: [cache(0), cache(2)],
            set,
        }
    }

    pub fn model(&self) -> &str {
        &self.model
    }
}

pub struct Report {
    machine: Machine,
    proof: f64,
    kernels: Vec<(usize, Vec<Figure>)>,
    packets: Vec<(String, usize, Vec<Figure>)>,
}

impl Report {
    /// `proof`: microseconds of trying out the kernel that is used.
    pub fn new(machine: Machine, proof: f64) -> Report {
        Report {
            machine,
            proof,
            kernels: Vec::new(),
            packets: Vec::new(),
        }
    }

    /// The first of `figures` is memcpy, the second what kernels are held against.
    pub fn kernels(&mut self, len: usize, figures: Vec<Figure>) {
        self.kernels.push((len, figures));
    }

    /// How many times faster the widest kernel is than that of half its width, by length and way of call; or why that is not known.
    fn wide(&self) -> Result<Vec<(usize, &'static str, f64)>, String> {
        for name in [WIDE, NARROW] {
            Kernel::named(name).map_err(|why| why.to_string())?;
        }
        let mut ratios = Vec::new();
        for (len, figures) in &self.kernels {
            for how in ["in bursts", "one by one"] {
                let of = |kernel: &str| {
                    let name = format!("{kernel}, {how}");
                    let figure = figures.iter().find(|figure| figure.name == name);
                    figure.map_or(f64::NAN, |figure| figure.median)
                };
                ratios.push((*len, how, of(NARROW) / of(WIDE)));
            }
        }
        Ok(ratios)
    }

    pub fn packets(&mut self, family: &str, len: usize, figures: Vec<Figure>) {
        self.packets.push((family.into(), len, figures));
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        let machine = &self.machine;
        let [l1, l2] = &machine.caches;
        let _ = writeln!(out, "{}; L1d {l1}, L2 {l2}", machine.cpu);
        let _ = writeln!(
            out,
            "ICRC kernel {:?}, tried out in {:.0} us; {UNIT} per packet, median of {ROUNDS} (10th percentile)\n",
            icrc::current(),
            self.proof
        );
        let _ = writeln!(
            out,
            "copy and CRC, {} KiB copied from and to; times as fast as memcpy then crc32fast; share of memcpy's rate",
            machine.set
        );
        for (len, figures) in &self.kernels {
            let (memcpy, both) = (figures[0].median, figures[1].median);
            for figure in figures {
                let _ = writeln!(
                    out,
                    "{len:>6} {:32} {:>8.1} ({:>7.1}) {:>6.2}x {:>4.0} %",
                    figure.name,
                    figure.median,
                    figure.low,
                    both / figure.median,
                    100.0 * memcpy / figure.median,
                );
            }
        }
        let _ = match self.wide() {
            Err(why) => writeln!(out, "\n{WIDE} is not held against {NARROW}: {why}"),
            Ok(ratios) => {
                let each = ratios
                    .iter()
                    .map(|(len, how, ratio)| format!("{len} {how} {ratio:.2}x"));
                let each = each.collect::<Vec<_>>().join(", ");
                writeln!(out, "\n{WIDE} is faster than {NARROW}: {each}")
            }
        };
        let _ = writeln!(out, "\nwhole packets, RC WRITE only, bursts of 32");
        for (family, len, figures) in &self.packets {
            for figure in figures {
                let _ = writeln!(
                    out,
                    "{family} {len:>6} {:34} {:>8.1} ({:>7.1})",
                    figure.name, figure.median, figure.low
                );
            }
        }
        out
    }

    pub fn json(&self) -> String {
        let figures = |figures: &[Figure]| {
            let each = figures.iter().map(|figure| {
                let (name, median, low) = (&figure.name, figure.median, figure.low);
                format!(r#"{{"name":"{name}","median":{median:.2},"p10":{low:.2}}}"#)
            });
            each.collect::<Vec<_>>().join(",")
        };
        let kernels = self
            .kernels
            .iter()
            .map(|(len, all)| format!(r#"{{"bytes":{len},"ways":[{}]}}"#, figures(all)));
        let packets = self.packets.iter().map(|(family, len, all)| {
            format!(
                r#"{{"family":"{family}","payload":{len},"ways":[{}]}}"#,
                figures(all)
            )
        });
        let wide = match self.wide() {
            Err(why) => format!(r#"{{"skipped":"{why}"}}"#),
            Ok(ratios) => {
                let each = ratios.iter().map(|(len, how, ratio)| {
                    format!(r#"{{"bytes":{len},"how":"{how}","ratio":{ratio:.3}}}"#)
                });
                format!("[{}]", each.collect::<Vec<_>>().join(","))
            }
        };
        let machine = &self.machine;
        let [l1, l2] = &machine.caches;
        format!(
            r#"{{"cpu":"{}","l1d":"{l1}","l2":"{l2}","set_kib":{},"kernel":"{:?}","proof_us":{:.1},"unit":"{UNIT}","rounds":{ROUNDS},"copy_and_crc":[{}],"avx512_to_avx2":{wide},"packets":[{}]}}"#,
            machine.cpu.replace('"', "'"),
            machine.set,
            icrc::current(),
            self.proof,
            kernels.collect::<Vec<_>>().join(","),
            packets.collect::<Vec<_>>().join(",")
        )
    }
}
