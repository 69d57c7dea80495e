//! Programs that share the polling thread. Each has one turn in a poll, however many contexts it has, and its part of the
//! packet buffers that wait for programs' memory, however slow that is.
//!
//! A program here is what the control threads say is one ([`NewContext::program`](super::message::NewContext)), on one NIC.

use slab::Slab;

use super::context::{Context, ContextKey, ROOM};

/// Contexts of a program that one poll looks at; those beyond are looked at in the next.
const CONTEXTS_PER_POLL: usize = 8;
/// Packet buffers that may wait for the memory of all programs together: half of the lcore's.
const BUFFERS: usize = 4096;
/// Buffers that a context may always have waiting.
const LEAST: usize = 8;

/// A program.
#[derive(Debug)]
struct Program {
    nic: usize,
    number: u32,
    contexts: Vec<ContextKey>,
    /// The one to be looked at first.
    next: usize,
    /// Operations of its contexts under way, each with a buffer at most.
    waiting: usize,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Programs {
    all: Slab<Program>,
    /// Their keys, in the order of their turns.
    order: Vec<usize>,
    waiting: usize,
}

impl Programs {
    /// Notes a new context; gives the key of its program.
    pub fn enter(&mut self, nic: usize, number: u32, key: ContextKey) -> usize {
        let known = self
            .all
            .iter()
            .find(|(_, p)| p.nic == nic && p.number == number);
        match known.map(|(at, _)| at) {
            Some(at) => {
                self.all[at].contexts.push(key);
                at
            }
            None => {
                let at = self.all.insert(Program {
                    nic,
                    number,
                    contexts: vec![key],
                    next: 0,
                    waiting: 0,
                });
                self.order.push(at);
                at
            }
        }
    }

    /// A context is gone, and with it its operations.
    pub fn leave(&mut self, context: &Context, key: ContextKey) {
        let at = context.program;
        let Some(program) = self.all.get_mut(at) else {
            return;
        };
        program.contexts.retain(|&k| k != key);
        program.waiting = program.waiting.saturating_sub(context.counted);
        self.waiting = self.waiting.saturating_sub(context.counted);
        if program.contexts.is_empty() {
            self.all.remove(at);
            self.order.retain(|&k| k != at);
        }
    }

    /// Whether any has operations under way, as far as they are counted.
    #[inline]
    pub fn wait(&self) -> bool {
        self.waiting > 0
    }

    /// The key of the `n`th program, if there are so many.
    #[inline]
    pub fn nth(&self, n: usize) -> Option<usize> {
        self.order.get(n).copied()
    }

    /// How many contexts of a program a poll looks at.
    #[inline]
    pub fn turn(&self, at: usize) -> usize {
        self.all[at].contexts.len().min(CONTEXTS_PER_POLL)
    }

    /// The next context of a program.
    #[inline]
    pub fn next(&mut self, at: usize) -> ContextKey {
        let program = &mut self.all[at];
        if program.next >= program.contexts.len() {
            program.next = 0;
        }
        let key = program.contexts[program.next];
        program.next += 1;
        key
    }

    /// Counts anew what a context has under way, and says how much it may have: a part of what others leave, so that some is
    /// left for those who come. With one slow program that is [`ROOM`]; with N of them, each has an (N + 2)th of all.
    #[inline]
    pub fn count(&mut self, context: &mut Context) {
        let Some(program) = self.all.get_mut(context.program) else {
            return;
        };
        let (own, before) = (context.ops.len(), context.counted);
        program.waiting = program.waiting + own - before;
        self.waiting = self.waiting + own - before;
        context.counted = own;
        let share = BUFFERS.saturating_sub(self.waiting) / 2;
        let others = program.waiting - own;
        context.room = share.saturating_sub(others).clamp(LEAST, ROOM);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use roceline_engine::Nanos;

    use super::*;
    use crate::control::event_pipe;
    use crate::lcore::context::Op;
    use crate::lcore::doorbell::Doorbells;
    use crate::lcore::message::NewContext;
    use crate::memory::ContextFile;
    use crate::memory::helper::{CAPACITY, Direction, HelperCpus, LcoreWake, MemHelper, Piece};

    /// A context of program `number`, entered as `key`.
    fn context(programs: &mut Programs, number: u32, key: ContextKey) -> Context {
        let file = Arc::new(ContextFile::create().unwrap());
        let mem = || -> OwnedFd {
            let mem = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/proc/self/mem");
            mem.unwrap().into()
        };
        let wake = Arc::new(LcoreWake {
            sleeping: 0.into(),
            eventfd: mem(),
        });
        let cpus = HelperCpus {
            cpus: Arc::new([]),
            shared: true,
        };
        let helper = MemHelper::start(mem(), Arc::default(), wake, cpus, 1).unwrap();
        let new = NewContext {
            nic: 0,
            file: Arc::clone(&file),
            mem: mem(),
            lock: Arc::default(),
            helper: None,
            wake: mem(),
            async_events: event_pipe().unwrap().0,
            program: number,
            pid: 1,
            comm: [0; 16],
        };
        let at = programs.enter(0, number, key);
        Context::new(new, 0, helper, Doorbells::new(file, 0), at)
    }

    /// Fills it as far as it may.
    fn fill(programs: &mut Programs, context: &mut Context) {
        programs.count(context);
        while context.ops.len() < context.room {
            context.ops.push_back(Op {
                mr: None,
                refused: false,
                end: None,
            });
            programs.count(context);
        }
    }

    #[test]
    fn slow_programs_leave_buffers_for_others() {
        let mut programs = Programs::default();
        let mut first = context(&mut programs, 0, 0);
        fill(&mut programs, &mut first);
        assert_eq!(first.ops.len(), ROOM, "alone");
        let mut slow: Vec<Context> = (1..20)
            .map(|n| context(&mut programs, n, n as usize))
            .collect();
        for context in &mut slow {
            fill(&mut programs, context);
        }
        let held = |all: &[Context]| all.iter().map(|c| c.ops.len()).sum::<usize>();
        let most = BUFFERS + 20 * LEAST;
        assert!(held(&slow) + ROOM <= most, "{}", held(&slow));
        // A program gets no more by further contexts.
        let before = programs.waiting;
        let mut again: Vec<Context> = (20..40).map(|key| context(&mut programs, 0, key)).collect();
        for context in &mut again {
            fill(&mut programs, context);
        }
        assert!(held(&again) <= 20 * LEAST, "{}", held(&again));
        assert_eq!(programs.waiting, before + held(&again));
        // What is over is given back.
        for (key, context) in (20..).zip(&again) {
            programs.leave(context, key);
        }
        assert_eq!(programs.waiting, before);
        first.ops.clear();
        programs.count(&mut first);
        assert_eq!(programs.waiting, before - ROOM);
    }

    #[test]
    fn what_the_memory_thread_cannot_take_is_no_operation() {
        let mut programs = Programs::default();
        let mut slow = context(&mut programs, 0, 0);
        slow.helper = MemHelper::stopped();
        let piece = Piece {
            direction: Direction::Fetch,
            len: 0,
            addr: 0,
            buf: std::ptr::null_mut(),
        };
        assert!(slow.has_room());
        for _ in 0..CAPACITY {
            assert!(slow.hand_over(&mut [], 0, piece));
        }
        assert!(!slow.has_room() && !slow.hand_over(&mut [], 0, piece));
        // Each outcome is the oldest operation's, so there is one for each piece.
        assert_eq!(slow.ops.len(), CAPACITY);
    }

    #[test]
    fn contexts_of_a_program_take_turns_within_its_turn() {
        let mut programs = Programs::default();
        let many: Vec<Context> = (0..20).map(|key| context(&mut programs, 7, key)).collect();
        let other = context(&mut programs, 8, 20);
        let (busy, single) = (programs.nth(0).unwrap(), programs.nth(1).unwrap());
        assert_eq!(
            (programs.turn(busy), programs.turn(single)),
            (CONTEXTS_PER_POLL, 1)
        );
        let keys: Vec<ContextKey> = (0..25).map(|_| programs.next(busy)).collect();
        assert!(keys[..20].iter().copied().eq(0..20) && keys[20..].iter().copied().eq(0..5));
        for (key, context) in many.iter().enumerate() {
            programs.leave(context, key);
        }
        assert_eq!((programs.nth(0), programs.nth(1)), (Some(single), None));
        programs.leave(&other, 20);
        assert_eq!(programs.nth(0), None);
    }

    #[test]
    fn a_program_pays_for_the_time_that_others_wait() {
        let mut programs = Programs::default();
        let mut slow = context(&mut programs, 0, 0);
        programs.count(&mut slow);
        for _ in 0..=slow.room {
            slow.ops.push_back(Op {
                mr: None,
                refused: false,
                end: None,
            });
        }
        // Looked at every 10 us; an operation ends each millisecond: its NIC waits 20 ms for it and then little, however long it
        // goes on.
        let at = |look: u64| Nanos::from_micros(1_000_000 + 10 * look);
        let held = (0..100_000u64)
            .filter(|&look| slow.holds_receive(at(look), usize::from(look % 100 == 0)))
            .count();
        assert!((2_000..6_000).contains(&held), "{held} of 100,000 looks");
        // One that is only busy is waited for all the time.
        slow.is_at_rest();
        let held = (0..1000u64)
            .filter(|ms| slow.holds_receive(Nanos::from_millis(3000 + ms), 100))
            .count();
        assert_eq!(held, 1000);
    }
}
