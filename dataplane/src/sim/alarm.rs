//! When somebody's next timer event comes. A deadline moves with every packet, mostly to a later time, so an event is planned only
//! when it must come before all that are planned already; one that comes too early looks again. So there are a few events for
//! each, however often deadlines move to and fro.

use roceline_engine::Nanos;

/// The timer events of one node, switch or link.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// When they come, the earliest last.
    planned: Vec<Nanos>,
}

impl Alarm {
    /// Something is to be done at `due`. When to plan an event for it, if none comes before.
    pub fn set(&mut self, due: Option<Nanos>, now: Nanos) -> Option<Nanos> {
        let at = due?.max(now);
        if self.planned.last().is_some_and(|&earliest| earliest <= at) {
            return None;
        }
        self.planned.push(at);
        Some(at)
    }

    /// The earliest event has come.
    pub fn came(&mut self) {
        self.planned.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_planned_when_none_comes_before() {
        let mut alarm = Alarm::default();
        let mut set = |due| alarm.set(Some(Nanos(due)), Nanos(10));
        assert_eq!(set(100), Some(Nanos(100)));
        assert_eq!(set(200), None);
        assert_eq!(set(100), None);
        assert_eq!(set(50), Some(Nanos(50)));
        assert_eq!(set(5), Some(Nanos(10)));
        alarm.came();
        assert_eq!(alarm.set(Some(Nanos(70)), Nanos(10)), None);
        alarm.came();
        assert_eq!(alarm.set(Some(Nanos(70)), Nanos(50)), Some(Nanos(70)));
        assert_eq!(alarm.set(None, Nanos(50)), None);
        assert_eq!(alarm.planned, [Nanos(100), Nanos(70)]);
    }
}
