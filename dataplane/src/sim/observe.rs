//! What is looked at while time goes on: values at equal intervals, as series. A sample costs no event: it is taken when time passes it,
//! and says how things were just before.

use roceline_engine::Nanos;

use super::{FlowId, NodeId, Point, Sim, SwitchId};

/// A value that changes with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Payload of a flow that was sent, retransmissions included, bits per second since the sample before.
    Sent(FlowId),
    /// Payload of a flow that has arrived, duplicates included, bits per second since the sample before.
    Received(FlowId),
    /// What congestion control allows the sender of a flow's data, bits per second; 0 while the flow has no QP.
    Allowed(FlowId),
    /// Use of the link that somebody sends on, FCS and gaps included, bits per second since the sample before.
    Link(Point),
    /// Bytes that wait in one priority of an egress port.
    Queue(SwitchId, u16, u8),
    /// Bytes that wait in all priorities of an egress port.
    Port(SwitchId, u16),
    /// Bytes of the shared buffer of a switch in use.
    Buffer(SwitchId),
    /// Marks that a switch has set since the sample before.
    Marks(SwitchId),
    /// Pause frames that a switch has sent since the sample before.
    Pauses(SwitchId),
    /// CNPs that a NIC has sent since the sample before.
    CnpsSent(NodeId),
    /// CNPs that a NIC has acted on since the sample before.
    CnpsHandled(NodeId),
    /// Nanoseconds that a NIC was paused since the sample before, summed over priorities.
    Paused(NodeId),
}

/// How a value becomes a sample.
enum Kind {
    /// As it is.
    Now,
    /// What it has grown by.
    Growth,
    /// Bytes that it has grown by, as bits per second.
    Rate,
}

impl Watch {
    fn kind(self) -> Kind {
        match self {
            Watch::Sent(_) | Watch::Received(_) | Watch::Link(_) => Kind::Rate,
            Watch::Marks(_) | Watch::Pauses(_) | Watch::Paused(_) => Kind::Growth,
            Watch::CnpsSent(_) | Watch::CnpsHandled(_) => Kind::Growth,
            Watch::Queue(..) | Watch::Port(..) | Watch::Buffer(_) | Watch::Allowed(_) => Kind::Now,
        }
    }
}

/// Values of one thing.
#[derive(Clone, Debug)]
pub struct Series {
    /// What.
    pub watch: Watch,
    /// One for each of [`Samples::times`] from `begins` on.
    pub values: Vec<u64>,
    /// Index of the first sample that it is in.
    pub begins: usize,
    before: u64,
}

/// All series.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Time between samples.
    pub every: Nanos,
    /// When they were taken.
    pub times: Vec<Nanos>,
    /// In the order of [`Sim::watch`].
    pub series: Vec<Series>,
    next: Nanos,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples {
            every: Nanos::ZERO,
            times: Vec::new(),
            series: Vec::new(),
            next: Nanos(u64::MAX),
        }
    }
}

impl Samples {
    /// Whether one is due before what happens at `at`.
    #[inline]
    pub(super) fn is_due(&self, at: Nanos) -> bool {
        self.next <= at
    }
}

impl Sim {
    /// From now on samples are taken at equal intervals; an interval of zero ends it.
    pub fn sample_every(&mut self, interval: Nanos) {
        self.samples.every = interval;
        self.samples.next = match interval {
            Nanos::ZERO => Nanos(u64::MAX),
            _ => self.now + interval,
        };
    }

    /// Adds a series. Its number, for [`Samples::series`].
    pub fn watch(&mut self, watch: Watch) -> usize {
        let series = Series {
            watch,
            values: Vec::new(),
            begins: self.samples.times.len(),
            before: self.value(watch),
        };
        self.samples.series.push(series);
        self.samples.series.len() - 1
    }

    /// What was sampled.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Takes all samples up to a moment.
    #[cold]
    pub(super) fn sample(&mut self, until: Nanos) {
        let mut samples = std::mem::take(&mut self.samples);
        while samples.next <= until {
            let at = samples.next;
            self.now = at;
            for series in &mut samples.series {
                let value = self.value(series.watch);
                let growth = value.saturating_sub(series.before);
                series.before = value;
                series.values.push(match series.watch.kind() {
                    Kind::Now => value,
                    Kind::Growth => growth,
                    Kind::Rate => rate(growth, samples.every),
                });
            }
            samples.times.push(at);
            samples.next = at + samples.every;
        }
        self.samples = samples;
    }

    /// A value as it is now, or what it has grown to.
    fn value(&self, watch: Watch) -> u64 {
        match watch {
            Watch::Sent(flow) => self.shared.flows[flow].sent,
            Watch::Received(flow) => self.shared.flows[flow].received,
            Watch::Allowed(flow) => self.allowed(flow).map_or(0, |rate| rate.0),
            Watch::CnpsSent(node) => self.nodes[node].counters().np_cnp_sent,
            Watch::CnpsHandled(node) => self.nodes[node].counters().rp_cnp_handled,
            Watch::Link(from) => match self.link_at(from) {
                Some(link) => self.links[link].bytes,
                None => 0,
            },
            Watch::Queue(switch, port, priority) => self.switches[switch].depth(port, priority),
            Watch::Port(switch, port) => self.switches[switch].port_depth(port),
            Watch::Buffer(switch) => self.switches[switch].shared().0,
            Watch::Marks(switch) => self.switches[switch].sum(|queue| queue.ce_marked),
            Watch::Pauses(switch) => self.switches[switch].pauses_sent(self.now),
            Watch::Paused(node) => self.nodes[node].all_pauses(self.now).duration.0,
        }
    }
}

fn rate(bytes: u64, time: Nanos) -> u64 {
    let bits = u128::from(bytes) * 8 * 1_000_000_000;
    (bits / u128::from(time.0.max(1))) as u64
}
