//! The thread behind [`Neighbours`]: it takes in the frames that lcores hand over, fires timers, sends through the lcore's
//! mailbox, moves queue pairs to changed MAC addresses, and wakes those who wait.
//!
//! It sleeps until one of them, or a timer, needs it; link states it looks at four times a second, as often as the lcore
//! does. However much comes from the wire, it handles [`BATCH`] frames of a NIC in [`PAUSE`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use roceline_engine::Nanos;
use roceline_engine::wire::ethernet::Mac;

use super::Neighbours;
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
                    while !stop.load(Ordering::Acquire) {
                        match turn(&neighbours, &pipes, &*lcores) {
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

fn turn(neighbours: &Neighbours, pipes: &[Arc<Pipe>], lcores: &dyn LcorePort) -> Rest {
    let mut busy = false;
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
        act(neighbours, index, out, lcores);
    }
    if busy {
        return Rest::Busy;
    }
    let until = next.map_or(TICK, |at| {
        Duration::from_nanos(at.saturating_sub(neighbours.now()).0)
    });
    Rest::For(until.min(TICK))
}

fn act(neighbours: &Neighbours, index: usize, out: Outbox, lcores: &dyn LcorePort) {
    if out.is_empty() {
        return;
    }
    let nic = index as u32;
    let network = &neighbours.networks[index];
    if !out.frames.is_empty() {
        let frames = out.frames;
        tell(lcores, nic, Command::Transmit { nic, frames });
    }
    for Moved { address, old, new } in out.moved {
        let (device, was, is) = (&network.name, text(old), text(new));
        tracing::info!(%device, %address, %was, %is, "a peer's MAC address changed");
        let network = Arc::clone(network);
        let moved = Moved { address, old, new };
        tell(
            lcores,
            nic,
            Command::PeerMoved {
                nic,
                moved,
                network,
            },
        );
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

/// Sends a command to the owner of a NIC, and waits for nothing. What a full mailbox refuses is lost: a request for a
/// neighbour goes out again, but news of a peer's new MAC address reaches queue pairs with the peer's next announcement.
fn tell(lcores: &dyn LcorePort, nic: u32, command: Command) {
    let (reply, _) = sync_channel(1);
    let request = Request {
        context: ContextId(0),
        command,
        reply,
    };
    if lcores.send(nic, request).is_err() {
        tracing::debug!(nic, "the lcore takes no frames of neighbour resolution");
    }
}

/// A MAC address as people write it.
pub fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
