//! Rules that make packets misbehave, as people write them. A [`Spec`] holds keys and values from the command line
//! ([`RuleArgs`]), from a `[[impair]]` of the configuration or from the control socket; [`Spec::compile`] makes of it a
//! [`Rule`](roceline_engine::fabric::impair::Rule) that the lcore applies, and [`Wiring::places`] says where.
//!
//! What rules mean is in `roceline_engine::fabric::impair`; `docs/impairments.md` is the reference for people.

mod args;
mod effects;
mod matching;
mod place;
mod rule;
mod spec;
mod trace;
pub(crate) mod units;

pub use args::{EffectArgs, MatchArgs, PlaceArgs, RuleArgs};
pub use place::{Place, Point, Wiring};
pub use rule::KEYS;
pub use spec::{Names, Spec, SpecError, Text, shortened};
pub(crate) use units::number_in;
