//! The options of the command line that make a rule. Their names are the keys of a [`Spec`].

use clap::Args;
use serde::Serialize;

use super::spec::{Spec, Text};

const WHERE: &str = "Where (one of)";
const WHICH: &str = "Which packets (all that are given must hold; none: every packet)";
const WHEN: &str = "Which of those (none: each)";
const WHAT: &str = "What happens to them (one of)";

/// Where a rule stands.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct PlaceArgs {
    /// At this NIC, with --tx or --rx
    #[arg(long, value_name = "NIC", help_heading = WHERE, conflicts_with = "link")]
    pub nic: Option<String>,

    /// What the NIC sends: packets are complete, with their ICRC
    #[arg(long, help_heading = WHERE, requires = "nic", conflicts_with = "rx")]
    #[serde(skip)]
    pub tx: bool,

    /// What the NIC receives, before it looks at it
    #[arg(long, help_heading = WHERE, requires = "nic")]
    #[serde(skip)]
    pub rx: bool,

    /// On this link of the emulated fabric (`port = "fabric:LINK"`), in both directions, each for itself
    #[arg(long, value_name = "LINK", help_heading = WHERE)]
    pub link: Option<String>,

    /// Only in the direction from this NIC
    #[arg(long, value_name = "NIC", help_heading = WHERE, requires = "link")]
    pub from: Option<String>,
}

/// Which packets a rule, or a capture, is about.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct MatchArgs {
    /// Kinds of packet, all of them with commas (write,middle): any, first, middle, last, only, send, write, read-request,
    /// read-response, ack, nak, rnr-nak, atomic, atomic-ack, atomic-write, flush, cnp, data, request, response, immediate,
    /// roce, other (not RoCE)
    #[arg(long, value_name = "CLASS", help_heading = WHICH)]
    pub class: Option<String>,

    /// Opcode of the BTH: a number (0x07) or a name (rc-write-middle)
    #[arg(long, value_name = "OPCODE", help_heading = WHICH)]
    pub opcode: Option<String>,

    /// Destination QP number
    #[arg(long, value_name = "QPN", help_heading = WHICH)]
    pub qpn: Option<String>,

    /// PSN, or a range such as 100..200 (both ends included; it may wrap around)
    #[arg(long, value_name = "PSN", help_heading = WHICH)]
    pub psn: Option<String>,

    /// Every M-th PSN: those with PSN mod M = R [default of R: 0]
    #[arg(long, value_name = "M:R", help_heading = WHICH)]
    pub psn_modulo: Option<String>,

    /// Message, or range of messages, of its flow (requests to a QP, or answers to it), counted from 1
    #[arg(long, value_name = "N", help_heading = WHICH)]
    pub message: Option<String>,

    /// AckReq bit of the BTH: true or false
    #[arg(long, value_name = "BOOL", help_heading = WHICH)]
    pub ack_req: Option<String>,

    /// Syndrome of the AETH, 0 to 0xff: 0x60 is the NAK for a sequence error
    #[arg(long, value_name = "SYNDROME", help_heading = WHICH)]
    pub syndrome: Option<String>,

    /// DSCP of the IP header, 0 to 63
    #[arg(long, value_name = "DSCP", help_heading = WHICH)]
    pub dscp: Option<String>,

    /// ECN of the IP header: not-ect, ect0, ect1 or ce
    #[arg(long, value_name = "ECN", help_heading = WHICH)]
    pub ecn: Option<String>,

    /// Priority, 0 to 7: that of the 802.1Q tag, else the upper three bits of the DSCP
    #[arg(long, value_name = "PRIORITY", help_heading = WHICH)]
    pub priority: Option<String>,

    /// UDP source port
    #[arg(long, value_name = "PORT", help_heading = WHICH)]
    pub sport: Option<String>,

    /// Bytes of the frame from Ethernet header to ICRC, or a range
    #[arg(long, value_name = "BYTES", help_heading = WHICH)]
    pub length: Option<String>,
}

/// When a rule hits, and what it does.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct EffectArgs {
    /// Each with this probability: 1%, 0.01, 1e-6, 1/256; 2.4e-10 at least, or 0
    #[arg(long, value_name = "P", help_heading = WHEN)]
    pub probability: Option<String>,

    /// In bursts (Gilbert-Elliott): p=1%,r=30%[,bad=100%][,good=0]. p: turns bad, r: turns good again, after each packet; bad,
    /// good: a hit in that state
    #[arg(long, value_name = "P,R", help_heading = WHEN, conflicts_with = "probability")]
    pub burst: Option<String>,

    /// Not the first N
    #[arg(long, value_name = "N", help_heading = WHEN)]
    pub skip: Option<String>,

    /// Then only M of them
    #[arg(long, value_name = "M", help_heading = WHEN)]
    pub count: Option<String>,

    /// And then again: skip N, hit M, skip N, hit M, …
    #[arg(long, help_heading = WHEN, requires = "count")]
    #[serde(skip_serializing_if = "is_unset")]
    pub repeat: bool,

    /// What chance is drawn from: the same seed and the same packets give the same hits [default: the
    /// number of the rule]
    #[arg(long, value_name = "SEED", help_heading = WHEN)]
    pub seed: Option<String>,

    /// Lose them
    #[arg(long, help_heading = WHAT)]
    #[serde(skip_serializing_if = "is_unset")]
    pub drop: bool,

    /// Send N copies behind the original. N[,DELAY]: so much later, as for --delay
    #[arg(long, value_name = "N", help_heading = WHAT, num_args = 0..=1, default_missing_value = "1")]
    pub duplicate: Option<String>,

    /// Let others overtake them. N[,TIME]: each waits until N packets of its flow have gone by, or for TIME [default:
    /// 5ms]; or a delay as for --delay: each is late by itself
    #[arg(long, value_name = "N", help_heading = WHAT)]
    pub reorder: Option<String>,

    /// Delay them, in their order: 20us (constant), 10us..50us (uniform), normal:50us,10us (mean, deviation),
    /// pareto:10us,1.5,10ms (least, shape of the heavy tail, most), list:10us,20us (one after the other), trace:FILE (the
    /// same from a file, one a line). 60s at most; numbers without a unit in lists and files are nanoseconds
    #[arg(long, value_name = "TIME", help_heading = WHAT)]
    pub delay: Option<String>,

    /// Corrupt them: icrc, bit, byte (any between BTH and ICRC), bit:N, byte:N (that one), payload.bit (of the payload; or of
    /// the frame, packet, transport), or a header field: psn (to any other value), psn=5, psn+1, psn^0xff, opcode, dest-qpn,
    /// ack-req, rkey, va, syndrome, msn, …
    #[arg(long, value_name = "WHAT", help_heading = WHAT)]
    pub corrupt: Option<String>,

    /// Make checksum and ICRC fit what was corrupted (or cut off), so that the receiver believes it
    #[arg(long, help_heading = WHAT)]
    #[serde(skip_serializing_if = "is_unset")]
    pub reseal: bool,

    /// Cut them off behind N bytes of frame, 14 at least
    #[arg(long, value_name = "N", help_heading = WHAT)]
    pub truncate: Option<String>,

    /// Mark them with ECN Congestion Experienced
    #[arg(long, help_heading = WHAT)]
    #[serde(skip_serializing_if = "is_unset")]
    pub mark_ce: bool,

    /// Let them pass at this rate: 100Mb/s, 1.5Gb/s
    #[arg(long, value_name = "RATE", help_heading = WHAT)]
    pub rate: Option<String>,

    /// Bytes that may wait for the rate, less than 4GiB, or 0; what comes on top is dropped [default: 256KiB]
    #[arg(long, value_name = "BYTES", help_heading = WHAT, requires = "rate")]
    pub queue: Option<String>,

    /// Bytes that may pass at once after a pause, 1 at least [default: 8KiB]
    #[arg(long, value_name = "BYTES", help_heading = WHAT, requires = "rate")]
    pub allowance: Option<String>,

    /// Do nothing: only count them
    #[arg(long, help_heading = WHAT)]
    #[serde(skip_serializing_if = "is_unset")]
    pub observe: bool,
}

fn is_unset(flag: &bool) -> bool {
    !flag
}

/// A rule.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct RuleArgs {
    /// A name of your choice, for `list` and `remove` [default: rule and its number]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    #[allow(missing_docs)]
    #[command(flatten)]
    #[serde(flatten)]
    pub place: PlaceArgs,

    #[allow(missing_docs)]
    #[command(flatten)]
    #[serde(flatten)]
    pub packets: MatchArgs,

    #[allow(missing_docs)]
    #[command(flatten)]
    #[serde(flatten)]
    pub effect: EffectArgs,
}

/// Options that were given, by key.
fn given(options: &impl Serialize) -> Spec {
    let Ok(serde_json::Value::Object(values)) = serde_json::to_value(options) else {
        return Spec::default();
    };
    Spec::new(values.into_iter().filter_map(|(key, value)| {
        // What is not text is null (not given) or a flag, which is only there when it is set.
        match value {
            serde_json::Value::String(text) => Some((key, Text(text))),
            serde_json::Value::Bool(true) => Some((key, Text("true".into()))),
            _ => None,
        }
    }))
}

impl MatchArgs {
    /// The options as keys.
    pub fn spec(&self) -> Spec {
        given(self)
    }
}

impl RuleArgs {
    /// The options as keys.
    pub fn spec(&self) -> Spec {
        let mut spec = given(self);
        let side = [(self.place.tx, "tx"), (self.place.rx, "rx")];
        for (_, side) in side.iter().filter(|(set, _)| *set) {
            spec.set("side", *side);
        }
        spec
    }
}
