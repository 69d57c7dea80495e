//! One rule: which packets, which of them, and what happens to them.

use core::fmt;

use crate::Nanos;

use super::action::{Action, Reorder};
use super::apply::Edit;
use super::rate::{Bucket, Passage};
use super::when::WhenState;
use super::{Hold, MAX_COPIES, Matcher, PacketView, Random, RuleError, Verdict, When};

/// Number of a rule, given by whoever adds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Number; no two rules of a set have the same.
    pub id: RuleId,
    /// Name for people; may be empty.
    pub name: String,
    /// Which packets it is about.
    pub matcher: Matcher,
    /// Which of them it hits.
    pub when: When,
    /// What it does to those.
    pub action: Action,
    /// Of its own generator: the same seed and the same packets give the same hits, whatever other rules do.
    pub seed: u64,
}

impl Rule {
    /// Whether the rule makes sense.
    pub fn check(&self) -> Result<(), RuleError> {
        self.matcher.check()?;
        self.when.check()?;
        self.action.check()
    }
}

/// What a rule has seen since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that reached it.
    pub seen: u64,
    /// Of these, packets that it is about: its matcher fits, and they have what its action changes.
    pub matched: u64,
    /// Of these, packets that it did something to.
    pub hit: u64,
    /// Of these, packets that it dropped.
    pub dropped: u64,
}

/// A rule at work.
pub(super) struct Active {
    pub rule: Rule,
    pub counts: Counts,
    random: Random,
    when: WhenState,
    /// Next delay of a list.
    turn: usize,
    /// When the last packet that it delayed goes on.
    last: Nanos,
    bucket: Bucket,
}

/// What the action needs of the packet, found out before the rule decides whether to hit.
enum Ready {
    Plain,
    Edit(Edit),
}

impl Active {
    pub fn new(rule: Rule) -> Active {
        Active {
            random: Random::new(rule.seed),
            rule,
            counts: Counts::default(),
            when: WhenState::default(),
            turn: 0,
            last: Nanos::ZERO,
            bucket: Bucket::default(),
        }
    }

    /// A packet reaches the rule, as late as `verdict` says already.
    #[inline]
    pub fn offer(
        &mut self,
        view: &PacketView,
        message: Option<u32>,
        now: Nanos,
        verdict: &mut Verdict,
    ) {
        self.counts.seen += 1;
        if self.rule.matcher.matches(view, message) {
            self.matched(view, now + verdict.delay, verdict);
        }
    }

    fn matched(&mut self, view: &PacketView, now: Nanos, verdict: &mut Verdict) {
        let Some(ready) = self.ready(view, verdict) else {
            return;
        };
        self.counts.matched += 1;
        if !self.when.due(&self.rule.when, &mut self.random) {
            return;
        }
        if !self.act(ready, view, now, verdict) {
            return;
        }
        self.when.hit(&self.rule.when);
        self.counts.hit += 1;
        self.counts.dropped += u64::from(verdict.drop);
        verdict.note(self.rule.id, self.rule.action.kind());
    }

    /// `None` if the packet does not have what the action changes.
    fn ready(&mut self, view: &PacketView, verdict: &Verdict) -> Option<Ready> {
        let edit = match &self.rule.action {
            Action::Corrupt(_) | Action::Truncate { .. } | Action::MarkCe
                if !verdict.has_edit_room() =>
            {
                None
            }
            Action::Corrupt(c) => Edit::corrupt(c, view, &mut self.random),
            Action::Truncate { len, reseal } => Edit::truncate(*len, *reseal, view),
            Action::MarkCe => Edit::mark_ce(view),
            _ => return Some(Ready::Plain),
        };
        edit.map(Ready::Edit)
    }

    /// Does it; `false` if nothing was to be done.
    fn act(&mut self, ready: Ready, view: &PacketView, now: Nanos, verdict: &mut Verdict) -> bool {
        if let Ready::Edit(edit) = ready {
            verdict.edit(edit);
            return true;
        }
        match &self.rule.action {
            Action::Drop => verdict.drop = true,
            Action::Duplicate { copies, after } => {
                verdict.copies = verdict.copies.saturating_add(*copies).min(MAX_COPIES);
                if let Some(delay) = after {
                    let by = delay.sample(&mut self.random, &mut self.turn);
                    verdict.copy_delay = verdict.copy_delay + by;
                }
            }
            Action::Reorder(Reorder::Packets { count, within }) => {
                let other = verdict.hold.unwrap_or(Hold {
                    packets: 0,
                    within: Nanos::ZERO,
                });
                verdict.hold = Some(Hold {
                    packets: other.packets.max(*count),
                    within: other.within.max(*within),
                });
            }
            Action::Reorder(Reorder::Delay(delay)) => {
                let by = delay.sample(&mut self.random, &mut self.turn);
                verdict.delay = verdict.delay + by;
            }
            Action::Delay(delay) => {
                let at = now + delay.sample(&mut self.random, &mut self.turn);
                self.last = self.last.max(at);
                verdict.delay = verdict.delay + (self.last - now);
            }
            Action::Rate(limit) => match self.bucket.pass(limit, view.len, now) {
                Passage::Now => return false,
                Passage::After(wait) => verdict.delay = verdict.delay + wait,
                Passage::QueueFull => verdict.drop = true,
            },
            Action::Count | Action::Corrupt(_) | Action::Truncate { .. } | Action::MarkCe => {}
        }
        true
    }
}
