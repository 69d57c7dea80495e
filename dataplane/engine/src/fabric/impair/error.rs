//! Why a rule is refused.

use super::{MAX_COPIES, MAX_RULES, RuleId};

/// A rule that makes no sense, or for which there is no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The set is full.
    #[error("there are {MAX_RULES} rules at this place already; remove one first")]
    TooMany,
    /// Two rules of one number.
    #[error("rule {0} exists already at this place; remove it first or choose another number")]
    Exists(RuleId),
    /// A field cannot have such a value.
    #[error("{field} {value} does not exist; the largest is {max}")]
    TooLarge {
        /// Which.
        field: &'static str,
        /// The value given.
        value: u64,
        /// The largest that exists.
        max: u64,
    },
    /// A range that ends before it begins.
    #[error("{field} from {first} to {last} holds nothing; write the smaller one first")]
    EmptyRange {
        /// Of what.
        field: &'static str,
        /// From.
        first: u64,
        /// To.
        last: u64,
    },
    /// PSN modulo.
    #[error("no PSN modulo {divisor} is {remainder}; the remainder must be below the divisor")]
    Modulo {
        /// Divisor.
        divisor: u32,
        /// Remainder.
        remainder: u32,
    },
    /// Numbers of messages begin at 1.
    #[error("messages are numbered from 1; message 0 does not exist")]
    MessageZero,
    /// Classes that no packet has together.
    #[error("no packet is both `{0}` and `{1}`; use one rule for each")]
    Classes(&'static str, &'static str),
    /// A count of zero.
    #[error("a count of 0 hits nothing; leave it out for no limit, or give at least 1")]
    NoCount,
    /// Repeating without a count.
    #[error("a rule repeats after its count; give one, for example a count of 1")]
    RepeatWithoutCount,
    /// Number of copies.
    #[error("{0} copies; give 1 to {MAX_COPIES}")]
    Copies(u8),
    /// Reordering by no packets.
    #[error("a packet held back for 0 packets stays where it is; give at least 1")]
    NoHold,
    /// A delay beyond the longest.
    #[error("a delay of {0} ns; the longest is one hour (3600000000000 ns)")]
    TooLong(u64),
    /// Shape of the heavy tail.
    #[error("a Pareto shape of 0 has no distribution; 1 to 3 (1000 to 3000 thousandths) are usual")]
    Shape,
    /// A heavy tail begins above zero.
    #[error("a Pareto delay needs a least value above 0 ns")]
    Scale,
    /// A delay list without delays.
    #[error("the list of delays is empty; give at least one")]
    EmptyTrace,
    /// A rate of zero.
    #[error("a rate of 0 bit/s lets nothing pass; use a rule that drops")]
    NoRate,
    /// A change that leaves a byte or field as it is.
    #[error("the change would leave every packet as it is; flip at least one bit")]
    NoChange,
}
