//! Which packets a rule is about. Every part that is given must fit.

use crate::wire::Psn;

use super::{Class, ClassSet, PacketView, RuleError};

/// Both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<T> {
    /// First.
    pub first: T,
    /// Last.
    pub last: T,
}

impl<T: Copy> Range<T> {
    /// From `first` to `last`, both included.
    pub const fn new(first: T, last: T) -> Range<T> {
        Range { first, last }
    }

    /// Just one.
    pub const fn one(value: T) -> Range<T> {
        Range {
            first: value,
            last: value,
        }
    }

    #[inline]
    fn has(&self, value: T) -> bool
    where
        T: PartialOrd,
    {
        self.first <= value && value <= self.last
    }
}

/// PSNs that leave `remainder` when divided by `divisor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modulo {
    /// At least 1.
    pub divisor: u32,
    /// Below the divisor.
    pub remainder: u32,
}

/// Conditions on a packet; the default fits any. A condition on a transport field fits no packet that is not RoCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// It is of all these kinds.
    pub classes: ClassSet,
    /// BTH opcode.
    pub opcode: Option<u8>,
    /// Destination QPN.
    pub qpn: Option<u32>,
    /// PSN, on the circle of 24 bits: from 0xfffff0 to 0x10 holds 33 numbers.
    pub psn: Option<Range<Psn>>,
    /// PSN modulo.
    pub psn_modulo: Option<Modulo>,
    /// Number of the message in its flow, from 1. Requests and READ responses or atomic answers to one QP are two
    /// flows; acknowledgements belong to no message. A packet sent again has its message's number.
    pub message: Option<Range<u32>>,
    /// BTH A bit.
    pub ack_req: Option<bool>,
    /// AETH syndrome.
    pub syndrome: Option<u8>,
    /// DSCP, 0 to 63.
    pub dscp: Option<u8>,
    /// ECN field, 0 to 3.
    pub ecn: Option<u8>,
    /// Priority, 0 to 7.
    pub priority: Option<u8>,
    /// UDP source port.
    pub udp_sport: Option<u16>,
    /// Bytes of the frame without FCS.
    pub len: Option<Range<u32>>,
}

impl Matcher {
    /// Packets that are of all these kinds.
    pub fn of(classes: impl IntoIterator<Item = Class>) -> Matcher {
        Matcher {
            classes: classes.into_iter().collect(),
            ..Matcher::default()
        }
    }

    /// Whether a packet fits, whose message has this number.
    #[inline]
    pub fn matches(&self, view: &PacketView, message: Option<u32>) -> bool {
        view.classes.has_all(self.classes)
            && fits(self.dscp, view.dscp)
            && fits(self.ecn, view.ecn)
            && fits(self.priority, view.priority)
            && fits(self.udp_sport, view.udp_sport)
            && self.len.is_none_or(|r| r.has(view.len))
            && self
                .message
                .is_none_or(|r| message.is_some_and(|m| r.has(m)))
            && self.transport_matches(view)
    }

    #[inline]
    fn transport_matches(&self, view: &PacketView) -> bool {
        let Some(r) = &view.roce else {
            return !self.asks_transport();
        };
        fits(self.opcode, r.opcode)
            && fits(self.qpn, r.dest_qpn)
            && self.psn.is_none_or(|range| {
                // Circular: as far from the first as the last is, at most.
                let offset = |psn: Psn| psn.get().wrapping_sub(range.first.get()) & 0xff_ffff;
                offset(r.psn) <= offset(range.last)
            })
            && self
                .psn_modulo
                .is_none_or(|m| r.psn.get().checked_rem(m.divisor) == Some(m.remainder))
            && fits(self.ack_req, r.ack_req)
            && self.syndrome.is_none_or(|s| r.syndrome == Some(s))
    }

    fn asks_transport(&self) -> bool {
        self.opcode.is_some()
            || self.qpn.is_some()
            || self.psn.is_some()
            || self.psn_modulo.is_some()
            || self.ack_req.is_some()
            || self.syndrome.is_some()
    }

    pub(super) fn check(&self) -> Result<(), RuleError> {
        below("QPN", self.qpn, 0xff_ffff)?;
        below("DSCP", self.dscp, 63)?;
        below("ECN", self.ecn, 3)?;
        below("priority", self.priority, 7)?;
        order("frame length", self.len)?;
        order("message", self.message)?;
        if self.message.is_some_and(|r| r.first == 0) {
            return Err(RuleError::MessageZero);
        }
        match self.psn_modulo {
            Some(Modulo { divisor, remainder }) if remainder >= divisor => {
                return Err(RuleError::Modulo { divisor, remainder });
            }
            _ => {}
        }
        for group in EXCLUSIVE {
            let mut of_group = group.iter().filter(|c| self.classes.has(**c));
            if let (Some(a), Some(b)) = (of_group.next(), of_group.next()) {
                return Err(RuleError::Classes(a.name(), b.name()));
            }
        }
        Ok(())
    }
}

/// No packet is of two classes of one group.
const EXCLUSIVE: [&[Class]; 4] = [
    &[Class::First, Class::Middle, Class::Last, Class::Only],
    &[
        Class::Send,
        Class::Write,
        Class::ReadRequest,
        Class::ReadResponse,
        Class::Ack,
        Class::Nak,
        Class::RnrNak,
        Class::Atomic,
        Class::AtomicAck,
        Class::AtomicWrite,
        Class::Flush,
        Class::Cnp,
    ],
    &[Class::Request, Class::Response, Class::Cnp],
    &[Class::Roce, Class::Other],
];

#[inline]
fn fits<T: PartialEq + Copy>(want: Option<T>, found: T) -> bool {
    want.is_none_or(|w| w == found)
}

fn below<T: Into<u64>>(field: &'static str, value: Option<T>, max: u64) -> Result<(), RuleError> {
    match value.map(Into::into) {
        Some(value) if value > max => Err(RuleError::TooLarge { field, value, max }),
        _ => Ok(()),
    }
}

fn order(field: &'static str, range: Option<Range<u32>>) -> Result<(), RuleError> {
    match range {
        Some(r) if r.first > r.last => Err(RuleError::EmptyRange {
            field,
            first: r.first.into(),
            last: r.last.into(),
        }),
        _ => Ok(()),
    }
}
