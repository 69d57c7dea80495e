//! Impairments: rules that drop, double, delay, reorder, spoil, cut, mark or slow packets down, the same way
//! each time for the same seed and the same packets.
//!
//! **In** flows what a rule may look at of each packet ([`PacketView`]) and the time; **out** comes a
//! [`Verdict`]: what is to be done with the packet. The caller does it: it frees dropped packets, makes copies,
//! changes bytes by [`Verdict::apply`], and gives the packet to a [`Line`], which keeps back what is late.
//! A [`RuleSet`] belongs to one place (one side of a NIC, one direction of a link) and to one lcore; nothing is
//! shared, and after construction nothing is allocated.
//!
//! The poll loop uses it with packet buffers, virtual time with frames or with descriptors alone.
//!
//! The rules of a set are boxes in series, in their order. A packet reaches a rule later by the
//! delays of the rules before it; a rule sees the packet as it was offered, not as earlier rules changed it.
//! A rule that drops ends the evaluation: later rules do not see the packet. Everything else composes: delays
//! add up, copies add up (each copy is delayed and changed like the packet), changes are applied in order.

mod action;
mod apply;
mod class;
mod delay;
mod error;
mod field;
pub mod fuzz;
mod line;
mod matcher;
mod messages;
mod random;
mod rate;
mod rule;
mod set;
mod verdict;
mod view;
mod when;

pub use action::{Action, ActionKind, Change, Corruption, Region, Reorder, Where};
pub use apply::{Edit, mark_ce};
pub use class::{Class, ClassSet, UnknownClass};
pub use delay::{Delay, MAX_DELAY};
pub use error::RuleError;
pub use field::{Field, FieldChange, Span, UnknownField};
pub use line::{Line, Pushed};
pub use matcher::{Matcher, Modulo, Range};
pub use random::Random;
pub use rate::RateLimit;
pub use rule::{Counts, Rule, RuleId};
pub use set::{MAX_RULES, RuleSet};
pub use verdict::{Hold, MAX_COPIES, MAX_EDITS, MAX_NOTES, Note, Verdict};
pub use view::{Direction, Layout, PacketView, PathView, RoceView};
pub use when::{Chance, GilbertElliott, Probability, ProbabilityError, When};
