//! What may be changed: keys of the configuration with the values that are worth a try.
//!
//! A [`Space`] has those that bear on the workloads and that the configuration sets alike wherever it sets them: of two NICs
//! with different values nobody knows which one to improve.

use std::fmt;

use roceline_engine::AckPolicy;
use roceline_engine::verbs::Mtu;
use serde::Serialize;

use super::search::Setting;
use super::workload::Workload;
use crate::config::{Config, Idle, NicConfig, PortSpec};
use crate::lcore::Tuning;

/// A key that is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Key {
    /// Packets received at once
    RxBurst,
    /// Packets sent at once
    TxBurst,
    /// Frames fetched ahead
    RxPrefetch,
    /// Send queues fetched ahead
    TxPrefetch,
    /// Packets that an emulated link holds
    TxRing,
    /// When to acknowledge
    AckPolicy,
    /// Bytes of the largest packet
    Mtu,
    /// What to do without work
    Idle,
}

impl Key {
    /// All, in the order of the file.
    pub const ALL: [Key; 8] = [
        Key::Idle,
        Key::RxBurst,
        Key::TxBurst,
        Key::RxPrefetch,
        Key::TxPrefetch,
        Key::Mtu,
        Key::TxRing,
        Key::AckPolicy,
    ];

    /// As the file has it.
    pub fn name(self) -> &'static str {
        match self {
            Key::RxBurst => "rx_burst",
            Key::TxBurst => "tx_burst",
            Key::RxPrefetch => "rx_prefetch",
            Key::TxPrefetch => "tx_prefetch",
            Key::TxRing => "tx_ring",
            Key::AckPolicy => "ack_policy",
            Key::Mtu => "mtu",
            Key::Idle => "idle",
        }
    }

    /// The section that it stands in.
    pub fn section(self) -> &'static str {
        match self {
            Key::TxRing | Key::AckPolicy | Key::Mtu => "nic",
            _ => "lcore",
        }
    }

    /// Whether a NIC has it.
    pub fn applies_to(self, config: &Config, nic: &NicConfig) -> bool {
        let PortSpec::Fabric(name) = &nic.port else {
            return self == Key::AckPolicy;
        };
        match self {
            // The rings of a switch are its own.
            Key::TxRing => config.fabric.switch(name).is_none(),
            _ => true,
        }
    }
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(u32),
    /// A word, in quotes in the file.
    Word(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => f.pad(&number.to_string()),
            Value::Word(word) => f.pad(&format!("\"{word}\"")),
        }
    }
}

/// All that may be changed, as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Bursts and prefetching.
    pub tuning: Tuning,
    /// Packets of a direction of a link.
    pub tx_ring: u32,
    /// When responders acknowledge.
    pub ack_policy: AckPolicy,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Without work.
    pub idle: Idle,
}

const PER_MESSAGE: Value = Value::Word("per-message");
const COALESCED: Value = Value::Word("coalesced");
const SPIN: Value = Value::Word("spin");
const ADAPTIVE: Value = Value::Word("adaptive");

impl Choice {
    /// The value of a key.
    pub fn get(&self, key: Key) -> Value {
        match key {
            Key::RxBurst => Value::Number(self.tuning.rx_burst),
            Key::TxBurst => Value::Number(self.tuning.tx_burst),
            Key::RxPrefetch => Value::Number(self.tuning.rx_prefetch),
            Key::TxPrefetch => Value::Number(self.tuning.tx_prefetch),
            Key::TxRing => Value::Number(self.tx_ring),
            Key::Mtu => Value::Number(self.mtu),
            Key::AckPolicy => match self.ack_policy {
                AckPolicy::PerMessage => PER_MESSAGE,
                AckPolicy::Coalesced => COALESCED,
            },
            Key::Idle => match self.idle {
                Idle::Spin => SPIN,
                Idle::Adaptive => ADAPTIVE,
            },
        }
    }

    /// Changes it; what does not fit the key is left.
    fn set(&mut self, key: Key, value: Value) {
        match (key, value) {
            (Key::RxBurst, Value::Number(n)) => self.tuning.rx_burst = n,
            (Key::TxBurst, Value::Number(n)) => self.tuning.tx_burst = n,
            (Key::RxPrefetch, Value::Number(n)) => self.tuning.rx_prefetch = n,
            (Key::TxPrefetch, Value::Number(n)) => self.tuning.tx_prefetch = n,
            (Key::TxRing, Value::Number(n)) => self.tx_ring = n,
            (Key::Mtu, Value::Number(n)) => self.mtu = n,
            (Key::AckPolicy, PER_MESSAGE) => self.ack_policy = AckPolicy::PerMessage,
            (Key::AckPolicy, COALESCED) => self.ack_policy = AckPolicy::Coalesced,
            (Key::Idle, SPIN) => self.idle = Idle::Spin,
            (Key::Idle, ADAPTIVE) => self.idle = Idle::Adaptive,
            _ => {}
        }
    }

    /// The path MTU that a NIC with it has.
    pub fn path_mtu(&self) -> Mtu {
        Mtu::for_port(self.mtu).unwrap_or(Mtu::M256)
    }
}

/// A key with the values that are tried; the first one is what the configuration has.
#[derive(Clone, Debug, Serialize)]
pub struct Knob {
    /// The key.
    pub key: Key,
    /// Its values.
    pub values: Vec<Value>,
}

/// All that is tried.
#[derive(Clone, Debug)]
pub struct Space {
    /// What the configuration has.
    pub start: Choice,
    /// Keys.
    pub knobs: Vec<Knob>,
    /// Keys that are left as they are, with the reason.
    pub left: Vec<(Key, &'static str)>,
}

impl Space {
    /// Of a configuration. `only`: no other keys; all if empty. `cpus`: how many this process has.
    pub fn of(config: &Config, workloads: &[Workload], only: &[Key], cpus: usize) -> Space {
        let start = choice(config);
        let mut space = Space {
            start,
            knobs: Vec::new(),
            left: Vec::new(),
        };
        for key in Key::ALL {
            if !only.is_empty() && !only.contains(&key) {
                continue;
            }
            match reason_to_leave(config, workloads, key, cpus) {
                Some(reason) => space.left.push((key, reason)),
                None => {
                    let now = start.get(key);
                    let others = candidates(key)
                        .iter()
                        .copied()
                        .filter(|value| *value != now);
                    let values = std::iter::once(now).chain(others).collect();
                    space.knobs.push(Knob { key, values });
                }
            }
        }
        space
    }

    /// How many values each knob has.
    pub fn sizes(&self) -> Vec<usize> {
        self.knobs.iter().map(|knob| knob.values.len()).collect()
    }

    /// Where the search begins.
    pub fn default(&self) -> Setting {
        vec![0; self.knobs.len()]
    }

    /// What a setting means.
    pub fn choice(&self, setting: &Setting) -> Choice {
        let mut choice = self.start;
        for (key, value) in self.values(setting) {
            choice.set(key, value);
        }
        choice
    }

    /// What it changes.
    pub fn changes(&self, setting: &Setting) -> Vec<(Key, Value)> {
        let values = self.values(setting);
        values
            .filter(|&(key, value)| self.start.get(key) != value)
            .collect()
    }

    fn values<'a>(&'a self, setting: &'a Setting) -> impl Iterator<Item = (Key, Value)> + 'a {
        let pairs = self.knobs.iter().zip(setting);
        pairs.filter_map(|(knob, &at)| Some((knob.key, *knob.values.get(at)?)))
    }
}

/// What the first of those that have a key say.
fn choice(config: &Config) -> Choice {
    let first = |key: Key| {
        let mut nics = config.nics.iter();
        nics.find(|nic| key.applies_to(config, nic))
    };
    let lcore = config.lcores.first();
    Choice {
        tuning: lcore.map_or_else(Tuning::default, |lcore| lcore.tuning),
        idle: lcore.map_or(Idle::Adaptive, |lcore| lcore.idle),
        // The emulated link of the measurement is as the preset's where the configuration has none.
        tx_ring: first(Key::TxRing).map_or(crate::config::LINK_PACKETS, |nic| nic.rings.tx),
        mtu: first(Key::Mtu).map_or(4200, |nic| nic.mtu),
        ack_policy: first(Key::AckPolicy).map_or(AckPolicy::Coalesced, |nic| nic.ack_policy),
    }
}

/// What is tried. Of the rings no more than fit the packet buffers of a daemon beside all else.
fn candidates(key: Key) -> &'static [Value] {
    use Value::Number as N;
    match key {
        Key::RxBurst => &[N(8), N(16), N(24), N(32)],
        Key::TxBurst => &[N(4), N(8), N(16), N(32)],
        Key::RxPrefetch => &[N(0), N(2), N(4), N(8), N(32)],
        Key::TxPrefetch => &[N(0), N(1), N(2), N(4), N(8), N(16)],
        Key::TxRing => &[N(64), N(128), N(256), N(512), N(1024), N(2048)],
        // Path MTUs of 1024, 2048 and 4096.
        Key::Mtu => &[N(1500), N(2200), N(4200)],
        Key::AckPolicy => &[COALESCED, PER_MESSAGE],
        Key::Idle => &[ADAPTIVE, SPIN],
    }
}

/// Why a key is not tried, if it is not.
fn reason_to_leave(
    config: &Config,
    workloads: &[Workload],
    key: Key,
    cpus: usize,
) -> Option<&'static str> {
    let any = |bears: &dyn Fn(&Workload) -> bool| workloads.iter().any(bears);
    let differs = |key: Key| {
        let nics = config.nics.iter().filter(|nic| key.applies_to(config, nic));
        let mut values = nics.map(|nic| match key {
            Key::Mtu => nic.mtu,
            Key::TxRing => nic.rings.tx,
            _ => nic.ack_policy as u32,
        });
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let lcores_differ = {
        let mut all = config.lcores.iter().map(|lcore| (lcore.tuning, lcore.idle));
        let first = all.next();
        all.any(|lcore| Some(lcore) != first)
    };
    let nobody = |key: Key| !config.nics.iter().any(|nic| key.applies_to(config, nic));
    match key {
        Key::Idle if !any(&Workload::is_latency) => {
            Some("does not bear on rates: name a latency, such as send-lat:64")
        }
        Key::Idle if cpus < 2 => Some("a polling thread that spins needs a CPU of its own"),
        Key::Idle if config.lcores.iter().any(|lcore| lcore.cpu.is_none()) => {
            Some("a polling thread is not on a CPU of its own")
        }
        Key::TxPrefetch if !any(&|workload| workload.qps > 1) => {
            Some("bears on several QPs only: name a workload such as write:64:1000")
        }
        Key::Mtu if !any(&|workload| workload.bytes() > Mtu::M1024.bytes()) => {
            Some("bears on messages of more than 1024 bytes only")
        }
        Key::Mtu
            if config
                .nics
                .iter()
                .any(|nic| !matches!(nic.port, PortSpec::Fabric(_))) =>
        {
            Some("a NIC is on a network, which has an MTU of its own")
        }
        Key::TxRing if nobody(key) => {
            Some("only rings of emulated links between two NICs are measured")
        }
        Key::TxRing | Key::Mtu | Key::AckPolicy if differs(key) => {
            Some("NICs have different values")
        }
        Key::RxBurst | Key::TxBurst | Key::RxPrefetch | Key::TxPrefetch | Key::Idle
            if lcores_differ =>
        {
            Some("polling threads have different values")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;

    fn workloads(all: &[&str]) -> Vec<Workload> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn keys(config: &Config, all: &[&str]) -> Vec<&'static str> {
        let space = Space::of(config, &workloads(all), &[], 2);
        space.knobs.iter().map(|knob| knob.key.name()).collect()
    }

    fn config(text: &str) -> Config {
        Config::parse("f.toml", text).unwrap()
    }

    fn pair() -> Config {
        Config::preset(Preset::Pair).unwrap()
    }

    #[test]
    fn only_what_bears_on_the_workloads_is_tried() {
        let always = [
            "rx_burst",
            "tx_burst",
            "rx_prefetch",
            "tx_ring",
            "ack_policy",
        ];
        assert_eq!(keys(&pair(), &["write:64"]), always);
        let all = keys(&pair(), &["write:64", "read:1M:8"]);
        assert_eq!(all.len(), always.len() + 2, "{all:?}");
        assert!(all.contains(&"mtu") && all.contains(&"tx_prefetch"));
        let only = Space::of(&pair(), &workloads(&["write:1M"]), &[Key::Mtu], 2);
        assert_eq!(only.knobs.len(), 1);
        assert_eq!(
            only.knobs[0].values[0],
            Value::Number(4200),
            "what it is comes first"
        );
    }

    #[test]
    fn idle_is_tried_where_a_cpu_can_be_spared() {
        let cpu = crate::config::allowed_cpus()[0];
        let pinned = format!("cpu = {cpu} ");
        let pinned = config(&pair().text.replace("cpu = \"auto\" ", &pinned));
        assert!(keys(&pinned, &["send-lat:64"]).contains(&"idle"));
        let space = Space::of(&pinned, &workloads(&["send-lat:64"]), &[], 1);
        let (_, reason) = space
            .left
            .iter()
            .find(|(key, _)| *key == Key::Idle)
            .unwrap();
        assert!(reason.contains("CPU of its own"));
        let free = config(&pair().text.replace("cpu = \"auto\" ", "cpu = \"any\" "));
        assert!(!keys(&free, &["send-lat:64"]).contains(&"idle"));
    }

    #[test]
    fn a_network_keeps_its_mtu_and_nics_that_differ_are_left() {
        let text =
            "[[nic]]\nname = \"a\"\naddresses = [\"10.0.0.1/24\"]\nport = \"vdev:net_null0\"\n";
        let on_network = config(text);
        assert_eq!(
            keys(&on_network, &["write:1M"]),
            ["rx_burst", "tx_burst", "rx_prefetch", "ack_policy"]
        );
        let two = format!(
            "{text}ack_policy = \"per-message\"\n{}",
            text.replace("\"a\"", "\"b\"")
                .replace("0.1/", "0.2/")
                .replace("null0", "null1")
        );
        assert!(!keys(&config(&two), &["write:1M"]).contains(&"ack_policy"));
        let lcores = "[[lcore]]\nrx_burst = 8\n[[lcore]]\n";
        assert_eq!(
            keys(&config(&format!("{lcores}{text}")), &["write:64"]),
            ["ack_policy"]
        );
    }

    #[test]
    fn a_setting_is_what_it_changes() {
        let space = Space::of(&pair(), &workloads(&["write:1M:8", "send-lat"]), &[], 1);
        assert_eq!(space.changes(&space.default()), []);
        assert_eq!(space.choice(&space.default()), space.start);
        for (at, knob) in space.knobs.iter().enumerate() {
            for (value, wanted) in knob.values.iter().enumerate().skip(1) {
                let mut setting = space.default();
                setting[at] = value;
                assert_eq!(space.changes(&setting), [(knob.key, *wanted)]);
                assert_eq!(space.choice(&setting).get(knob.key), *wanted);
            }
        }
        let mtus = [1500, 2200, 4200].map(|mtu| Choice { mtu, ..space.start }.path_mtu());
        assert_eq!(mtus, [Mtu::M1024, Mtu::M2048, Mtu::M4096]);
    }
}
