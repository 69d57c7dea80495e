//! The thread behind [`Neighbours`]: it takes in the frames that lcores hand over, fires timers, sends through the lcore's
//! mailbox, moves queue pairs to changed MAC addresses, and wakes those who wait.
//!
//! It sleeps until one of them, or a timer, needs it; link states it looks at four times a second, as often as the lcore
//! does. However much comes from the wire, it handles [`BATCH`] frames of a NIC in [`PAUSE`].

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use roceline_engine::Nanos;
use roceline_engine::wire::ethernet::Mac;

use super::Neighbours;
use super::cache::LIMIT;
use super::network::Network;
use super::node::{Moved, Outbox};
use super::pipe::Pipe;
use crate::control::LcorePort;
use crate::lcore::message::{Command, ContextId, Request};

/// Frames of a NIC handled at once.
const BATCH: usize = 64;
/// What follows a full batch: a flood gets no more of the machine than 64 frames in this time.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two looks at link states.
const TICK: Duration = Duration::from_millis(250);

/// The running thread. Dropping it ends it; those who wait for an answer get none.
#[derive(Debug)]
pub struct NeighbourThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    neighbours: Arc<Neighbours>,
}

impl NeighbourThread {
    /// Starts it. `pipes` bring the frames of NICs by index; it sends through `lcores`.
    ///
    /// # Errors
    ///
    /// When no thread can be made.
    pub fn start(
        neighbours: Arc<Neighbours>,
        pipes: Vec<Arc<Pipe>>,
        lcores: Arc<dyn LcorePort>,
    ) -> io::Result<NeighbourThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (neighbours, stop) = (Arc::clone(&neighbours), Arc::clone(&stop));
            thread::Builder::new()
                .name("neighbours".into())
                .spawn(move || {
                    let mut unsent = Unsent::default();
                    while !stop.load(Ordering::Acquire) {
                        match turn(&neighbours, &pipes, &*lcores, &mut unsent) {
                            Rest::Busy => thread::sleep(PAUSE),
                            Rest::For(time) => thread::park_timeout(time),
                        }
                    }
                })?
        };
        neighbours.lock().thread = Some(thread.thread().clone());
        Ok(NeighbourThread {
            stop,
            thread: Some(thread),
            neighbours,
        })
    }

    /// What the lcore wakes when it has put frames into pipes.
    pub fn thread(&self) -> Option<Thread> {
        self.thread.as_ref().map(|t| t.thread().clone())
    }
}

impl Drop for NeighbourThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.neighbours.lock().thread = None;
        self.neighbours.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its panic would have been logged; there is nothing left to do about it here.
            let _ = thread.join();
        }
    }
}

/// What the thread does next.
enum Rest {
    /// It goes on soon.
    Busy,
    /// It sleeps that long, unless it is woken.
    For(Duration),
}

/// Changed MAC addresses that an lcore does not know yet, since its mailbox was full, by NIC, lcore and address. The cache has
/// the new one already, so nothing else would tell it. Each lcore moves what has the old address that it is told of, so what one
/// has not heard is kept apart from what others have.
#[derive(Debug, Default)]
struct Unsent(BTreeMap<(usize, u32, IpAddr), Moved>);

impl Unsent {
    /// Sends one to all lcores of the NIC, or keeps it for them.
    fn send(&mut self, network: &Arc<Network>, index: usize, moved: Moved, lcores: &dyn LcorePort) {
        for &lcore in lcores.serving(index as u32) {
            self.send_to(lcore, network, index, moved, lcores);
        }
    }

    /// Sends one, or keeps it. What is kept for the address becomes one with it.
    fn send_to(
        &mut self,
        lcore: u32,
        network: &Arc<Network>,
        index: usize,
        moved: Moved,
        lcores: &dyn LcorePort,
    ) {
        let key = (index, lcore, moved.address);
        let moved = Moved {
            old: self.0.get(&key).map_or(moved.old, |kept| kept.old),
            ..moved
        };
        let command = Command::PeerMoved {
            nic: index as u32,
            moved,
            network: Arc::clone(network),
        };
        if tell(lcores, lcore, command) {
            self.0.remove(&key);
        } else if self.0.len() < LIMIT || self.0.contains_key(&key) {
            self.0.insert(key, moved);
        } else {
            let (device, address) = (&network.name, moved.address);
            tracing::warn!(%device, %address, "the lcore was not told of a peer's new MAC address: reconnect to it");
        }
    }

    /// Tries again.
    fn retry(&mut self, network: impl Fn(usize) -> Option<Arc<Network>>, lcores: &dyn LcorePort) {
        let kept: Vec<_> = self
            .0
            .iter()
            .map(|(&(nic, lcore, _), &moved)| (nic, lcore, moved))
            .collect();
        for (index, lcore, moved) in kept {
            if let Some(network) = network(index) {
                self.send_to(lcore, &network, index, moved, lcores);
            }
        }
    }
}

fn turn(
    neighbours: &Neighbours,
    pipes: &[Arc<Pipe>],
    lcores: &dyn LcorePort,
    unsent: &mut Unsent,
) -> Rest {
    let mut busy = false;
    unsent.retry(|index| neighbours.network(index), lcores);
    let mut next: Option<Nanos> = None;
    for (index, pipe) in pipes.iter().enumerate() {
        let mut out = Outbox::default();
        let now;
        {
            let mut inner = neighbours.lock();
            now = neighbours.now();
            let Some(Some(node)) = inner.nodes.get_mut(index) else {
                continue;
            };
            if let Some(link) = neighbours.links.get(index) {
                node.link(link.is_up(), now);
            }
            let taken = (0..BATCH)
                .take_while(|_| pipe.take(|frame| node.frame(frame, now, &mut out)))
                .count();
            busy |= taken == BATCH;
            node.timers(now, &mut out);
            next = [next, node.next_deadline()].into_iter().flatten().min();
            neighbours.publish(index, node.counts());
        }
        act(neighbours, index, out, lcores, unsent);
    }
    if busy {
        return Rest::Busy;
    }
    let until = next.map_or(TICK, |at| {
        Duration::from_nanos(at.saturating_sub(neighbours.now()).0)
    });
    Rest::For(until.min(TICK))
}

fn act(
    neighbours: &Neighbours,
    index: usize,
    out: Outbox,
    lcores: &dyn LcorePort,
    unsent: &mut Unsent,
) {
    if out.is_empty() {
        return;
    }
    let nic = index as u32;
    let Some(network) = neighbours.network(index) else {
        return;
    };
    if !out.frames.is_empty() {
        let frames = out.frames;
        // One of them will do.
        if let Some(&lcore) = lcores.serving(nic).first() {
            tell(lcores, lcore, Command::Transmit { nic, frames });
        }
    }
    for Moved { address, old, new } in out.moved {
        let (device, was, is) = (&network.name, text(old), text(new));
        tracing::info!(%device, %address, %was, %is, "a peer's MAC address changed");
        unsent.send(&network, index, Moved { address, old, new }, lcores);
    }
    for (address, mac) in out.conflicts {
        let (device, other) = (&network.name, text(mac));
        match mac == network.mac {
            true => tracing::warn!(
                %device, %address, mac = %other,
                "another station on the network has this NIC's IP address and its MAC address too: is the same \
                 configuration used twice? Change `addresses` (and `mac`, if it is given) of one"
            ),
            false => tracing::warn!(
                %device, %address, mac = %other,
                "another station on the network has this NIC's IP address: packets may go to either of them. Change the \
                 address of one; `roceline show neighbours` tells whether it is still there"
            ),
        }
    }
    if out.changed {
        neighbours.changed.notify_all();
    }
}

/// Sends a command to an lcore, and waits for nothing. False if it takes none now: requests for addresses are
/// sent again by their timers, and replies are asked for again by those who miss them.
fn tell(lcores: &dyn LcorePort, lcore: u32, command: Command) -> bool {
    let (reply, _) = sync_channel(1);
    let request = Request {
        context: ContextId::NONE,
        command,
        reply,
    };
    let taken = lcores.send(lcore, request).is_ok();
    if !taken {
        tracing::debug!(lcore, "the lcore takes nothing of neighbour resolution now");
    }
    taken
}

/// A MAC address as people write it.
pub fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Mutex;

    use super::*;
    use crate::control::SendError;

    /// Two lcores; the mailbox of the second may be full.
    #[derive(Default)]
    struct Port {
        full: AtomicBool,
        moves: [Mutex<Vec<Moved>>; 2],
    }

    impl LcorePort for Port {
        fn send(&self, lcore: u32, request: Request) -> Result<(), SendError> {
            if lcore == 1 && self.full.load(Ordering::Relaxed) {
                return Err(SendError);
            }
            if let Command::PeerMoved { moved, .. } = request.command {
                self.moves[lcore as usize].lock().unwrap().push(moved);
            }
            Ok(())
        }

        fn serving(&self, _nic: u32) -> &[u32] {
            &[0, 1]
        }
    }

    #[test]
    fn a_moved_peer_is_told_when_the_lcore_takes_it() {
        let network = Arc::new(Network {
            name: "roce0".into(),
            mac: [2, 0, 0, 0, 0, 1],
            addrs: vec![],
            gateways: vec![],
            wired: true,
            known: Default::default(),
            peers: vec![],
        });
        let (port, mut unsent, last) = (Port::default(), Unsent::default(), Cell::new(1));
        let moves = |unsent: &mut Unsent, host: u8| {
            let (old, new) = (last.get(), last.get() + 1);
            last.set(new);
            let moved = Moved {
                address: IpAddr::from([10, 0, 0, host]),
                old: [2, 0, 0, 0, 1, old],
                new: [2, 0, 0, 0, 1, new],
            };
            unsent.send(&network, 0, moved, &port);
        };
        moves(&mut unsent, 2);
        port.full.store(true, Ordering::Relaxed);
        moves(&mut unsent, 3);
        moves(&mut unsent, 3);
        unsent.retry(|_| Some(Arc::clone(&network)), &port);
        port.full.store(false, Ordering::Relaxed);
        unsent.retry(|_| Some(Arc::clone(&network)), &port);
        unsent.retry(|_| Some(Arc::clone(&network)), &port);
        let [first, second] = port.moves.map(|told| {
            let told = told.into_inner().unwrap();
            let ends = told.iter().map(|m| (m.old[5], m.new[5]));
            ends.collect::<Vec<_>>()
        });
        assert_eq!(second, [(1, 2), (2, 4)], "both changes of the peer are one");
        // Queue pairs of the other lcore have the address between by then, and follow from there.
        assert_eq!(first, [(1, 2), (2, 3), (3, 4)]);
    }
}
