//! What loss costs: one QP writes over a link that drops packets by chance, and the goodput is held against the first-order
//! expectation for go-back-N,
//!
//! ```text
//! 1 / (1 + p W + p^2 T / t_pkt)
//! ```
//!
//! with `p` the loss, `W` the packets in flight per round trip, `T` the ACK timeout and `t_pkt` a packet's time on the link. A lost
//! packet costs the round trip until its NAK is there, during which everything sent is in vain. There is one NAK for a
//! gap (IBTA 9.7.5.2.8), so when the packet that was sent again is lost too, only the timer helps.

use roceline_engine::fabric::impair::{
    Action, Chance, Class, Matcher, Probability, Rule, RuleId, When,
};
use roceline_engine::verbs::{Mtu, WcStatus};
use roceline_engine::{Counters, Nanos};

use super::{FlowConfig, FlowId, Link, LinkConfig, NodeConfig, NodeId, Sim};

/// The link and the flow on it.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Both directions of the link.
    pub link: LinkConfig,
    /// Path MTU: all packets are this long.
    pub mtu: Mtu,
    /// ACK timeout as verbs codes it, 4.096 us times two to this.
    pub timeout: u8,
    /// Packets of a message.
    pub message_packets: u32,
    /// Messages that the program keeps under way.
    pub depth: u32,
    /// Of chance.
    pub seed: u64,
}

impl Default for Setup {
    /// 100 Gb/s and 10 us each way, 4096-byte packets, messages of 64 KiB, a timeout of 1.05 ms.
    fn default() -> Setup {
        Setup {
            link: LinkConfig {
                bits_per_s: 100_000_000_000,
                delay: Nanos::from_micros(10),
                queue_bytes: 1 << 20,
            },
            mtu: Mtu::M4096,
            timeout: 8,
            message_packets: 16,
            depth: 64,
            seed: 1,
        }
    }
}

/// Which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// Those that carry data.
    Data,
    /// Those that come back: ACKs and NAKs.
    Reverse,
    /// Both, each with the same probability.
    Both,
}

/// What the formula is made of, measured on a link that loses nothing, or only what it must.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// A packet's time on the link, nanoseconds.
    pub packet_ns: f64,
    /// From the first bit of a packet to its acknowledgement.
    pub round_trip: Nanos,
    /// Packets in flight per round trip.
    pub window: f64,
    /// From sending a packet to sending it again for want of an answer.
    pub timeout: Nanos,
    /// Acknowledged bits per second without loss.
    pub goodput: f64,
}

impl Terms {
    /// The expectation: goodput with loss `p` as a part of that without.
    pub fn expected(&self, p: f64) -> f64 {
        1.0 / (1.0 + p * self.window + p * p * self.timeout.0 as f64 / self.packet_ns)
    }
}

/// A point of a curve.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Acknowledged bits per second.
    pub goodput: f64,
    /// Packets that were sent in the direction, or directions, with the loss.
    pub sent: u64,
    /// Packets that were lost of them.
    pub lost: u64,
    /// The writer's counters: `packet_seq_err` are NAKs that it heard, `local_ack_timeout_err` its timeouts.
    pub counters: Counters,
    /// How the QP failed, if it did.
    pub failed: Option<WcStatus>,
}

const A: NodeId = 0;
const B: NodeId = 1;

impl Setup {
    fn build(&self) -> Sim {
        let mut sim = Sim::new();
        let node = NodeConfig {
            seed: self.seed,
            ..NodeConfig::default()
        };
        let (a, b) = (sim.add_node(&node), sim.add_node(&node));
        sim.join(a, b, &self.link);
        sim
    }

    fn start(&self, sim: &mut Sim, len: u32, depth: u32) -> FlowId {
        let mut flow = FlowConfig::new(A, B);
        flow.attr.path_mtu = self.mtu;
        flow.attr.timeout = self.timeout;
        flow.message = len;
        flow.depth = depth;
        sim.add_flow(&flow)
    }

    /// Measures what the formula needs.
    pub fn terms(&self) -> Terms {
        let mtu = self.mtu.bytes();
        // One packet, and nothing else on the link.
        let mut sim = self.build();
        let flow = self.start(&mut sim, mtu, 1);
        sim.run(|sim| sim.flow(flow).messages == 1);
        let round_trip = sim.now();
        // The same, and the first packet is lost.
        let mut sim = self.build();
        let first = When {
            count: Some(1),
            ..When::default()
        };
        sim.link(A)
            .rules()
            .add(self.rule(Class::Data, first))
            .expect("a good rule");
        let flow = self.start(&mut sim, mtu, 1);
        sim.run(|sim| sim.flow(flow).messages == 1);
        let timeout = sim.now().saturating_sub(round_trip);

        let clean = self.measure(Where::Data, Probability::NEVER, 100_000);
        Terms {
            packet_ns: clean.packet_ns,
            round_trip,
            window: round_trip.0 as f64 / clean.packet_ns,
            timeout,
            goodput: clean.point.goodput,
        }
    }

    /// Writes at least `packets` packets' worth of messages through a link with such a loss.
    pub fn point(&self, place: Where, loss: Probability, packets: u64) -> Point {
        self.measure(place, loss, packets).point
    }

    fn measure(&self, place: Where, loss: Probability, packets: u64) -> Measured {
        let mut sim = self.build();
        let chance = When {
            chance: Chance::Each(loss),
            ..When::default()
        };
        let lossy = match place {
            Where::Data => &[(A, Class::Data)][..],
            Where::Reverse => &[(B, Class::Response)],
            Where::Both => &[(A, Class::Data), (B, Class::Response)],
        };
        if loss != Probability::NEVER {
            for &(from, class) in lossy {
                let rule = self.rule(class, chance);
                sim.link(from).rules().add(rule).expect("a good rule");
            }
        }
        let len = self.mtu.bytes() * self.message_packets;
        let flow = self.start(&mut sim, len, self.depth);
        let wanted = packets.div_ceil(u64::from(self.message_packets));
        sim.run(|sim| {
            let flow = sim.flow(flow);
            flow.messages >= wanted || flow.failed.is_some()
        });
        let data = sim.link(A);
        let packet_ns = self.link.picoseconds(data.bytes) as f64 / 1000.0 / data.sent as f64;
        let sum = |sim: &mut Sim, count: fn(&Link) -> u64| -> u64 {
            lossy.iter().map(|&(from, _)| count(sim.link(from))).sum()
        };
        let sent = sum(&mut sim, |link| link.sent);
        let lost = sum(&mut sim, |link| link.lost);
        let done = sim.flow(flow);
        Measured {
            packet_ns,
            point: Point {
                loss: loss.parts() as f64 / (1u64 << 32) as f64,
                goodput: done.goodput(),
                sent,
                lost,
                counters: *sim.node(A).counters(),
                failed: done.failed,
            },
        }
    }

    fn rule(&self, class: Class, when: When) -> Rule {
        Rule {
            id: RuleId(1),
            name: String::new(),
            matcher: Matcher::of([class]),
            when,
            action: Action::Drop,
            seed: self.seed,
        }
    }
}

struct Measured {
    /// Link time of a data packet, on average.
    packet_ns: f64,
    point: Point,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terms_are_those_of_the_link() {
        let setup = Setup::default();
        let terms = setup.terms();
        // 4096 bytes in a WRITE middle: 14 + 20 + 8 + 12 + 4 around them, and 24 of the Ethernet.
        assert!((334.0..336.0).contains(&terms.packet_ns), "{terms:?}");
        assert!((20_300..20_500).contains(&terms.round_trip.0), "{terms:?}");
        // IBTA 9.7.6.1: between T and 4T.
        let t = 4096u64 << setup.timeout;
        assert!((t..=4 * t).contains(&terms.timeout.0), "{terms:?}");
        let line = 4096.0 * 8.0 / terms.packet_ns * 1e9;
        assert!((0.99..1.001).contains(&(terms.goodput / line)), "{terms:?}");
    }

    #[test]
    fn go_back_n_loses_what_is_expected() {
        let setup = Setup::default();
        let terms = setup.terms();
        for (loss, packets) in [("1e-4", 200_000), ("1e-3", 200_000), ("1e-2", 100_000)] {
            let loss: Probability = loss.parse().expect("a probability");
            let point = setup.point(Where::Data, loss, packets);
            assert_eq!(point.failed, None, "{point:?}");
            assert!(
                point.lost > 0 && point.counters.packet_seq_err > 0,
                "{point:?}"
            );
            let part = point.goodput / terms.goodput;
            let ratio = part / terms.expected(point.loss);
            assert!(
                (0.85..=1.15).contains(&ratio),
                "loss {}: {part:.3} of the goodput without, {:.3} expected; {terms:?} {point:?}",
                point.loss,
                terms.expected(point.loss)
            );
        }
    }

    #[test]
    fn a_lost_ack_costs_nothing_and_a_lost_nak_a_timeout() {
        let setup = Setup::default();
        let terms = setup.terms();
        let loss = Probability::ratio(1, 100);
        let reverse = setup.point(Where::Reverse, loss, 50_000);
        assert!(reverse.lost > 0, "{reverse:?}");
        assert!(reverse.goodput > 0.99 * terms.goodput, "{reverse:?}");
        assert_eq!(reverse.counters.local_ack_timeout_err, 0);
        let (data, both) = (
            setup.point(Where::Data, loss, 50_000),
            setup.point(Where::Both, loss, 50_000),
        );
        let timeouts = |point: &Point| point.counters.local_ack_timeout_err;
        assert!(timeouts(&both) > timeouts(&data), "{both:?} {data:?}");
        assert!(both.goodput < data.goodput);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = |seed| {
            let setup = Setup {
                seed,
                ..Setup::default()
            };
            let point = setup.point(Where::Data, Probability::ratio(1, 100), 20_000);
            (point.goodput.to_bits(), point.sent, point.lost)
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }
}
