//! Which packets a capture keeps, or a replay sends: the conditions of impairment rules ([`crate::impair::MatchArgs`]).
//!
//! The conditions are a rule that does nothing but count, so a filter knows packets as rules do, numbers of messages
//! included. What it needs is allocated when it is made.

use std::fmt;

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::{
    Action, Direction, Matcher, PacketView, Rule, RuleId, RuleSet, When,
};

use crate::impair::{Spec, SpecError};

/// A filter with what it remembers of each NIC's messages.
pub struct Filter {
    by_nic: Box<[RuleSet]>,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({} NICs)", self.by_nic.len())
    }
}

impl Filter {
    /// The filter of these conditions for `nics` NICs, and ports of switches; `None` if all packets pass.
    ///
    /// # Errors
    /// When a condition is none; names the key, the value and the remedy.
    pub fn new(spec: &Spec, nics: usize) -> Result<Option<Filter>, SpecError> {
        let matcher = spec.matcher()?;
        if matcher == Matcher::default() {
            return Ok(None);
        }
        let rule = Rule {
            id: RuleId(0),
            name: String::new(),
            matcher,
            when: When::default(),
            action: Action::Count,
            seed: 0,
        };
        let set = || {
            let mut set = RuleSet::new();
            set.add(rule.clone())
                .map(|()| set)
                .map_err(|error| SpecError::Whole(error.to_string()))
        };
        let by_nic = (0..nics).map(|_| set()).collect::<Result<_, _>>()?;
        Ok(Some(Filter { by_nic }))
    }

    /// Whether a packet of a NIC passes. Packets must come in their order.
    #[inline]
    pub fn accepts(&mut self, nic: usize, outbound: bool, frame: &[u8]) -> bool {
        let Some(rules) = self.by_nic.get_mut(nic) else {
            return false;
        };
        let direction = match outbound {
            true => Direction::Tx,
            false => Direction::Rx,
        };
        let view = PacketView::parse(direction, frame);
        rules.offer(&view, Nanos::ZERO).hits > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::impair::MatchArgs;

    fn filter(args: MatchArgs) -> Result<Option<Filter>, SpecError> {
        Filter::new(&args.spec(), 2)
    }

    #[test]
    fn no_condition_is_no_filter_and_a_bad_one_is_told() {
        assert!(filter(MatchArgs::default()).unwrap().is_none());
        let args = MatchArgs {
            class: Some("midle".into()),
            ..MatchArgs::default()
        };
        assert!(filter(args).unwrap_err().to_string().contains("middle"));
        let args = MatchArgs {
            class: Some("first,last".into()),
            ..MatchArgs::default()
        };
        assert!(filter(args).is_err(), "no packet is both");
    }

    #[test]
    fn frames_pass_by_what_they_are() {
        let args = MatchArgs {
            class: Some("other".into()),
            length: Some("3..5".into()),
            ..MatchArgs::default()
        };
        let mut filter = filter(args).unwrap().unwrap();
        assert!(filter.accepts(0, true, &[0; 4]) && filter.accepts(1, false, &[0; 5]));
        assert!(!filter.accepts(0, true, &[0; 6]));
        assert!(!filter.accepts(2, true, &[0; 4]), "no such NIC");
    }
}
