//! The rules of one place, in their order.

use crate::Nanos;

use super::messages::Messages;
use super::rule::Active;
use super::{Counts, PacketView, Rule, RuleError, RuleId, Verdict};

/// The most rules at one place.
pub const MAX_RULES: usize = 64;

/// An ordered set of rules with their state.
pub struct RuleSet {
    rules: Vec<Active>,
    messages: Messages,
    /// Some rule asks for numbers of messages.
    numbered: bool,
}

impl RuleSet {
    /// Without rules. What it will need is allocated here.
    pub fn new() -> RuleSet {
        RuleSet {
            rules: Vec::with_capacity(MAX_RULES),
            messages: Messages::new(),
            numbered: false,
        }
    }

    /// Adds a rule behind the others. It counts from now on. The others keep their state.
    pub fn add(&mut self, rule: Rule) -> Result<(), RuleError> {
        rule.check()?;
        if self.rules.iter().any(|r| r.rule.id == rule.id) {
            return Err(RuleError::Exists(rule.id));
        }
        if self.rules.len() >= MAX_RULES {
            return Err(RuleError::TooMany);
        }
        self.rules.push(Active::new(rule));
        self.update_numbered();
        Ok(())
    }

    /// Takes a rule out and returns it with its counts; `None` if there is none with that number.
    pub fn remove(&mut self, id: RuleId) -> Option<(Rule, Counts)> {
        let at = self.rules.iter().position(|r| r.rule.id == id)?;
        let removed = self.rules.remove(at);
        self.update_numbered();
        Some((removed.rule, removed.counts))
    }

    /// Takes all rules out.
    pub fn clear(&mut self) {
        self.rules.clear();
        self.update_numbered();
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is none, so that packets need not be offered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules in their order, with what they have counted.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, &Counts)> {
        self.rules.iter().map(|r| (&r.rule, &r.counts))
    }

    /// What is to be done with a packet. Packets are offered in their order, and `now` does not go back.
    #[inline]
    pub fn offer(&mut self, view: &PacketView, now: Nanos) -> Verdict {
        let mut verdict = Verdict::pass(view.flow());
        let message = match self.numbered {
            true => self.messages.number(view),
            false => None,
        };
        for rule in &mut self.rules {
            rule.offer(view, message, now, &mut verdict);
            if verdict.drop {
                break;
            }
        }
        verdict
    }

    /// Messages are counted from when the first rule asks for them.
    fn update_numbered(&mut self) {
        let numbered = self.rules.iter().any(|r| r.rule.matcher.message.is_some());
        if numbered && !self.numbered {
            self.messages.clear();
        }
        self.numbered = numbered;
    }
}

impl Default for RuleSet {
    fn default() -> RuleSet {
        RuleSet::new()
    }
}
