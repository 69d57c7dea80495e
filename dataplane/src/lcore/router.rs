//! Which lcore serves what: the way of control threads to the lcores of a daemon.
//!
//! A NIC is served by one lcore, or by several: then each context of it belongs to one of them, from its opening to its end,
//! and its name says which ([`super::message::ContextId::lcore`]). So nothing has to be remembered here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mailbox::Mailbox;
use super::message::Request;
use crate::control::{LcorePort, SendError};

/// The mailboxes of all lcores, and who serves which NIC.
#[derive(Debug)]
pub struct Lcores {
    /// By number.
    mailboxes: Vec<Arc<Mailbox>>,
    /// By NIC index. Never empty; the first one has the port.
    serving: Vec<Vec<u32>>,
    /// Contexts placed: of lcores that have as much to do, each gets its turn.
    placed: AtomicU32,
}

impl Lcores {
    /// Lcores by number, and those that serve each NIC by its index.
    pub fn new(mailboxes: Vec<Arc<Mailbox>>, serving: Vec<Vec<u32>>) -> Lcores {
        Lcores {
            mailboxes,
            serving,
            placed: AtomicU32::new(0),
        }
    }
}

impl LcorePort for Lcores {
    fn send(&self, lcore: u32, request: Request) -> Result<(), SendError> {
        let mailbox = self.mailboxes.get(lcore as usize).ok_or(SendError)?;
        mailbox.send(lcore, request)
    }

    fn count(&self) -> u32 {
        self.mailboxes.len() as u32
    }

    fn serving(&self, nic: u32) -> &[u32] {
        self.serving.get(nic as usize).map_or(&[], Vec::as_slice)
    }

    fn place(&self, nic: u32) -> u32 {
        let serving = self.serving(nic);
        if let [only] = serving {
            return *only;
        }
        let first = self.placed.fetch_add(1, Ordering::Relaxed) as usize % serving.len().max(1);
        let (before, after) = serving.split_at(first);
        let load = |lcore: &&u32| self.mailboxes.get(**lcore as usize).map(|m| m.load().key());
        let least = after.iter().chain(before).min_by_key(load);
        least.copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::lcore::message::ContextId;
    use crate::memory::helper::{HelperCpus, LcoreWake};

    fn mailbox() -> Arc<Mailbox> {
        let wake = LcoreWake {
            sleeping: AtomicU32::new(0),
            eventfd: File::open("/dev/null").unwrap().into(),
        };
        let helpers = HelperCpus {
            cpus: Arc::new([]),
            shared: true,
        };
        Arc::new(Mailbox::new(Arc::new(wake), helpers))
    }

    #[test]
    fn a_context_goes_to_the_lcore_that_has_least_to_do() {
        let lcores = Lcores::new(
            (0..4).map(|_| mailbox()).collect(),
            vec![vec![3], vec![2, 0, 1]],
        );
        assert_eq!((lcores.count(), lcores.serving(0)), (4, &[3][..]));
        assert_eq!([0, 0].map(|nic| lcores.place(nic)), [3, 3]);
        // As much to do: in turn.
        assert_eq!([1; 6].map(|nic| lcores.place(nic)), [2, 0, 1, 2, 0, 1]);
        let load = |lcore: usize| lcores.mailboxes[lcore].load();
        load(2).set(3, 100);
        load(0).set(1, 100);
        load(1).set(2, 100);
        assert_eq!(
            [1; 4].map(|nic| lcores.place(nic)),
            [0; 4],
            "fewest contexts"
        );
        load(0).set(1, 1 << 20);
        assert_eq!(
            [1; 4].map(|nic| lcores.place(nic)),
            [1; 4],
            "it has little time"
        );
        load(1).set_contexts(3);
        load(2).set_contexts(2);
        assert_eq!(lcores.place(1), 2);
        let id = ContextId::new(77, 3);
        assert_eq!((id.number(), id.lcore()), (77, 3));
    }
}
