//! From evidence to a sentence: why a queue pair failed, and what to do about it.
//!
//! In flows a [`PostMortem`], out flows a [`Diagnosis`]. Nothing else is looked at: like a real NIC, the
//! engine knows of the peer only what its packets said. Where that leaves several explanations, the sentence
//! says "likely" and names them all. `docs/post-mortem.md` has the table.

mod local;
mod refused;
mod responder;
mod retries;
mod window;

use core::fmt;

use crate::memory::{Access, AccessError};
use crate::time::Nanos;
use crate::transport::journal::{Cause, PostMortem};
use crate::verbs::WrOpcode;

/// Why, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Short fixed name, for scripts.
    pub name: &'static str,
    /// Whether other explanations remain.
    pub likely: bool,
    /// The cause.
    pub sentence: String,
    /// What helps.
    pub remedy: String,
}

impl Diagnosis {
    fn certain(name: &'static str, sentence: String, remedy: impl Into<String>) -> Diagnosis {
        Diagnosis {
            name,
            likely: false,
            sentence,
            remedy: remedy.into(),
        }
    }

    fn likely(name: &'static str, sentence: String, remedy: impl Into<String>) -> Diagnosis {
        Diagnosis {
            likely: true,
            ..Diagnosis::certain(name, sentence, remedy)
        }
    }
}

/// The likeliest explanation.
pub fn diagnose(record: &PostMortem) -> Diagnosis {
    match record.cause {
        Cause::Modified | Cause::Closed | Cause::CqOverflow => local::ended(record),
        Cause::RetriesExceeded(_) => retries::exceeded(record),
        Cause::RnrExceeded => refused::not_ready(record),
        Cause::Refused(code) => refused::refused(record, code),
        Cause::LocalKey(_)
        | Cause::LocalMemory
        | Cause::BadRequest
        | Cause::TooLong
        | Cause::AddressHandle(_)
        | Cause::DatagramTooLong { .. }
        | Cause::NoReadCredits => local::request(record),
        Cause::Bind(error) | Cause::LocalInvalidate(error) | Cause::RemoteInvalidate(error) => {
            window::refused(record, error)
        }
        _ => responder::refusal(record),
    }
}

/// The peer as people name it.
fn peer(record: &PostMortem) -> String {
    let attr = &record.attr;
    format!("{} QP {:#08x}", attr.path.dgid.to_ip(), attr.dest_qpn)
}

/// An operation as people name it.
fn operation(op: Option<WrOpcode>) -> &'static str {
    use WrOpcode::*;
    match op {
        None => "receive request",
        Some(Send | SendImm | SendInv) => "SEND",
        Some(Write | WriteImm) => "WRITE",
        Some(Read) => "READ",
        Some(CmpSwap | FetchAdd) => "atomic",
        Some(LocalInv) => "local invalidate",
        Some(BindMw) => "memory window bind",
        Some(Flush) => "FLUSH",
        Some(AtomicWrite) => "ATOMIC WRITE",
    }
}

/// The flag of `enum ibv_access_flags` that gives a right.
fn flag(right: Access) -> &'static str {
    match right {
        Access::LOCAL_WRITE => "IBV_ACCESS_LOCAL_WRITE",
        Access::REMOTE_WRITE => "IBV_ACCESS_REMOTE_WRITE",
        Access::REMOTE_READ => "IBV_ACCESS_REMOTE_READ",
        Access::REMOTE_ATOMIC => "IBV_ACCESS_REMOTE_ATOMIC",
        Access::FLUSH_GLOBAL => "IBV_ACCESS_FLUSH_GLOBAL",
        Access::FLUSH_PERSISTENT => "IBV_ACCESS_FLUSH_PERSISTENT",
        _ => "IBV_ACCESS_*",
    }
}

/// What is wrong with a key, and what helps. `whose` says in which request it was found.
fn key(whose: &str, name: &str, error: AccessError, right: Access) -> (String, String) {
    match error {
        AccessError::UnknownKey(key) => (
            format!(
                "{whose} names {name} {key:#010x}, which is no memory region here: it is wrong, or the region \
                 was deregistered"
            ),
            format!(
                "compare the {name} with those of `roceline show mrs`; register the memory before its key is \
                 used, and deregister it after the last request that uses it is complete"
            ),
        ),
        AccessError::WrongPd(key) => (
            format!(
                "{whose} names {name} {key:#010x}, whose memory region belongs to another protection domain"
            ),
            "create the queue pair and register the memory with the same protection domain".into(),
        ),
        AccessError::Range { addr, len } => (
            format!("{whose} reaches beyond its memory region: {len} bytes at {addr:#x}"),
            format!(
                "compare address and length with the region of that {name} in `roceline show mrs`"
            ),
        ),
        AccessError::Denied(_) => (
            format!(
                "{whose} needs {}, which its memory region does not have",
                flag(right)
            ),
            format!("register the memory with {} too", flag(right)),
        ),
        AccessError::WrongQp(key) => (
            format!(
                "{whose} names {name} {key:#010x}, a memory window of type 2 that another queue pair has bound"
            ),
            "bind the window on the queue pair whose peer is to use it, or use one of type 1"
                .into(),
        ),
        AccessError::Full(_) | AccessError::WindowsBound(_) => {
            (format!("{whose}: {error}"), "register fewer regions".into())
        }
    }
}

/// A duration for people: three digits and a unit.
pub struct Duration(pub Nanos);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.0;
        // The bounds are those at which three digits round up to four.
        let (unit, per) = match ns {
            0..=999 => return write!(f, "{ns} ns"),
            1_000..=999_499 => ("us", 1_000),
            999_500..=999_499_999 => ("ms", 1_000_000),
            _ => ("s", 1_000_000_000),
        };
        let digits = match ns / (per / 1_000) {
            0..=9_994 => 2,
            9_995..=99_949 => 1,
            _ => 0,
        };
        write!(f, "{:.digits$} {unit}", ns as f64 / per as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.50 us"),
            (9_999, "10.0 us"),
            (67_108_864, "67.1 ms"),
            (999_999, "1.00 ms"),
            (123_000_000_000, "123 s"),
        ] {
            assert_eq!(Duration(Nanos(ns)).to_string(), text);
        }
    }
}
