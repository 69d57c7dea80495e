//! Who has which MAC address: ARP and IPv6 neighbour discovery for NICs on real ports, and answers to ping.
//!
//! **In** flow frames that are not RoCE, which the lcore hands over ([`pipe`]), and questions of control threads that connect
//! a queue pair or make an address handle ([`Neighbours::resolve`]). **Out** flow frames to send and changed MAC
//! addresses of peers, both as messages to the lcore, and the answers. One thread ([`service`]) does all of it, so neither
//! the lcore nor a program that is not concerned ever waits.
//!
//! ```text
//! network   what a NIC knows without asking: its addresses and subnets, gateways, static neighbours
//! cache     MAC addresses of peers, with their states and timers (RFC 826, RFC 4861)
//! own       its own addresses: looked for on the network, announced, defended (RFC 5227, RFC 4862)
//! node      one NIC: frames in, frames out, and the two above; no clock, no thread
//! frame     bytes
//! ```

mod cache;
mod frame;
mod network;
mod node;
mod own;
pub mod pipe;
mod rate;
pub mod service;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use roceline_engine::Nanos;
use roceline_engine::wire::Gid;
use roceline_engine::wire::ethernet::Mac;

pub use cache::{PROBE_INTERVAL, PROBES, State as EntryState};
pub use network::{Known, Network, NextHop, same_subnet};
pub use node::{Counts, Moved, Node};
pub use own::Claim;

use crate::nic::LinkState;
use node::Lookup;

/// Longest wait for the thread to give an answer, should it not run: it gives one after [`PROBES`] probes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no MAC address for a destination.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    #[error(
        "{device} has no route to {address}: it is in none of its subnets ({subnets}), and there is no gateway for it. \
         Use addresses of one subnet, or give the NIC a `gateway`"
    )]
    NoRoute {
        device: String,
        address: IpAddr,
        subnets: String,
    },
    #[error(
        "{device} does not know the MAC of {address}: nobody on its emulated link has that address. `roceline show \
         devices` lists those that exist"
    )]
    NotOnLink { device: String, address: IpAddr },
    #[error(
        "{device} does not know the MAC of {address}: it is {peer}'s, which is on another emulated link. Where both are on \
         switches, a cable is missing between these: name one in the `uplinks` of the other"
    )]
    OtherLink {
        device: String,
        address: IpAddr,
        peer: String,
    },
    #[error(
        "{device} does not know the MAC of {address}: no answer from {hop} to {probes} {protocol} requests within \
         {millis} ms on its port{link}. Is the peer up, with that address, and on the same network? If it does not \
         answer {protocol}, name it with a `[[nic.neighbor]]` in the configuration"
    )]
    NoAnswer {
        device: String,
        address: IpAddr,
        hop: String,
        protocol: &'static str,
        probes: u32,
        millis: u64,
        link: &'static str,
    },
    #[error(
        "{device} cannot ask for the MAC of {address}: {limit} addresses are being asked for already"
    )]
    Busy {
        device: String,
        address: IpAddr,
        limit: usize,
    },
    #[error(
        "{device} does not ask for the MAC of {address} now: user {user} waits for {limit} addresses already. Try again \
         when some have answered, or have not within a second"
    )]
    TooMany {
        device: String,
        address: IpAddr,
        user: u32,
        limit: usize,
    },
}

impl Unresolved {
    /// What the kernel's `modify_qp` and `create_ah` fail with in the same case.
    pub fn errno(&self) -> i32 {
        match self {
            Unresolved::NoRoute { .. } => libc::ENETUNREACH,
            Unresolved::NotOnLink { .. }
            | Unresolved::OtherLink { .. }
            | Unresolved::NoAnswer { .. } => libc::ETIMEDOUT,
            Unresolved::Busy { .. } => libc::ENOBUFS,
            Unresolved::TooMany { .. } => libc::EAGAIN,
        }
    }
}

/// An address that a NIC knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the NIC.
    pub nic: u32,
    /// The address.
    pub address: IpAddr,
    /// Its MAC address, once known.
    pub mac: Option<Mac>,
    /// How it is known: `static` (configuration), `link` (a NIC of this daemon), or a state of RFC 4861.
    pub state: &'static str,
    /// Since it was last confirmed, for those that are learned.
    pub age: Option<Nanos>,
}

/// Another station with an address of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Index of the NIC.
    pub nic: u32,
    /// The address.
    pub address: IpAddr,
    /// Who has it too; our own MAC address where it has that as well.
    pub mac: Mac,
    /// How often that was seen.
    pub seen: u64,
    /// Since it was seen last.
    pub age: Nanos,
}

/// What all NICs know; shared by control threads and the [`service`].
#[derive(Debug)]
pub struct Neighbours {
    /// By index of the NIC. Written with `inner` held, so that a node and its network go together.
    networks: Vec<RwLock<Arc<Network>>>,
    links: Vec<LinkState>,
    counts: Vec<AtomicCounts>,
    inner: Mutex<Inner>,
    /// An entry changed.
    changed: Condvar,
    start: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    /// By index of the NIC; none for those on emulated links.
    nodes: Vec<Option<Node>>,
    /// Questions that wait for an answer, by NIC and user; no zeros.
    questions: HashMap<(usize, u32), usize>,
    /// Whom to wake when there is something to send.
    thread: Option<Thread>,
}

impl Inner {
    /// A question of this NIC and user waits no more.
    fn answered(&mut self, mine: (usize, u32)) {
        if let Some(waiting) = self.questions.get_mut(&mine) {
            *waiting -= 1;
            if *waiting == 0 {
                self.questions.remove(&mine);
            }
        }
    }
}

fn held(network: &RwLock<Arc<Network>>) -> Arc<Network> {
    // A network is stored whole, or not.
    Arc::clone(&network.read().unwrap_or_else(PoisonError::into_inner))
}

/// Counts that anybody may read without the lock.
#[derive(Debug, Default)]
struct AtomicCounts([AtomicU64; Counts::NAMES.len()]);

impl Neighbours {
    /// For NICs by index. A NIC on a real port asks nobody before the [`service`] runs.
    pub fn new(networks: Vec<Network>, links: Vec<LinkState>) -> Neighbours {
        let networks: Vec<Arc<Network>> = networks.into_iter().map(Arc::new).collect();
        let nodes = networks
            .iter()
            .map(|network| network.wired.then(|| Node::new(Arc::clone(network))))
            .collect();
        Neighbours {
            counts: networks.iter().map(|_| AtomicCounts::default()).collect(),
            networks: networks.into_iter().map(RwLock::new).collect(),
            links,
            inner: Mutex::new(Inner {
                nodes,
                questions: HashMap::new(),
                thread: None,
            }),
            changed: Condvar::new(),
            start: Instant::now(),
        }
    }

    /// Whether there is a NIC that has anybody to ask.
    pub fn any_wired(&self) -> bool {
        self.networks().any(|network| network.wired)
    }

    /// What NIC `nic` knows without asking.
    pub fn network(&self, nic: usize) -> Option<Arc<Network>> {
        self.networks.get(nic).map(held)
    }

    fn networks(&self) -> impl Iterator<Item = Arc<Network>> {
        self.networks.iter().map(held)
    }

    /// NIC `nic` has an address from now on: it answers for it and looks whether others have it too, and NICs on its emulated link
    /// know where it is.
    pub fn add_address(&self, nic: u32, ip: IpAddr, prefix: u8) {
        let Some(mac) = self.network(nic as usize).map(|network| network.mac) else {
            return;
        };
        self.change(nic, |network, own| {
            if own {
                network.addrs.push((ip, prefix));
            }
            network.learn(ip, mac);
        });
    }

    /// NIC `nic` has an address no longer.
    pub fn remove_address(&self, nic: u32, ip: IpAddr) {
        self.change(nic, |network, own| {
            if own {
                network.addrs.retain(|&(own, _)| own != ip);
            }
            network.forget(ip);
        });
    }

    /// Changes what NIC `nic`, and those on its emulated link, know without asking; whether it is the NIC's own is told.
    fn change(&self, nic: u32, change: impl Fn(&mut Network, bool)) {
        let mut inner = self.lock();
        let now = self.now();
        for (index, network) in (0..).zip(&self.networks) {
            let before = held(network);
            let own = index == nic;
            if !own && !before.peers.contains(&nic) {
                continue;
            }
            let mut changed = Network::clone(&before);
            change(&mut changed, own);
            let changed = Arc::new(changed);
            *network.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&changed);
            if let Some(Some(node)) = inner.nodes.get_mut(index as usize) {
                if node.set_network(changed, now) {
                    self.changed.notify_all();
                }
            }
        }
        // What is new is looked for at once.
        if let Some(thread) = &inner.thread {
            thread.unpark();
        }
    }

    /// The MAC address to which NIC `nic` sends packets for `dgid`, for a program of `user`. Waits for the network if it has
    /// to: a second at most.
    ///
    /// # Errors
    ///
    /// When there is no route, or nobody answers, or the user has very many questions already.
    pub fn resolve(&self, nic: u32, dgid: Gid, user: u32) -> Result<Mac, Unresolved> {
        let address = dgid.to_ip();
        let index = nic as usize;
        let Some(network) = self.network(index) else {
            return Err(Unresolved::NotOnLink {
                device: format!("NIC {nic}"),
                address,
            });
        };
        let device = || network.name.clone();
        let hop = match network.next_hop(address) {
            NextHop::Known(mac) => return Ok(mac),
            NextHop::Ask(hop) => hop,
            NextHop::Nobody => {
                let mut others = self.networks().filter(|other| !other.wired);
                let device = device();
                return Err(match others.find(|other| other.is_own(address)) {
                    Some(other) => Unresolved::OtherLink {
                        device,
                        address,
                        peer: other.name.clone(),
                    },
                    None => Unresolved::NotOnLink { device, address },
                });
            }
            NextHop::NoRoute => {
                return Err(Unresolved::NoRoute {
                    device: device(),
                    address,
                    subnets: network.subnets(),
                });
            }
        };
        let begin = Instant::now();
        let mut inner = self.lock();
        let mut asked = false;
        let mine = (index, user);
        let found = loop {
            let now = self.now();
            let waiting = inner.questions.get(&mine).copied().unwrap_or(0);
            let Some(node) = inner.nodes.get_mut(index).and_then(Option::as_mut) else {
                break Lookup::Unknown;
            };
            let found = match asked {
                false => {
                    // What is not known makes an entry that goes when it is answered, or not, and not before.
                    let known = matches!(node.peek(hop), Lookup::Known(_));
                    if !known && waiting >= cache::QUESTIONS {
                        return Err(Unresolved::TooMany {
                            device: device(),
                            address,
                            user,
                            limit: cache::QUESTIONS,
                        });
                    }
                    node.ask(hop, now)
                }
                true => node.peek(hop),
            };
            if found != Lookup::Pending {
                break found;
            }
            if !asked {
                asked = true;
                *inner.questions.entry(mine).or_default() += 1;
                if let Some(thread) = &inner.thread {
                    thread.unpark();
                }
            }
            // Without a thread nobody asks, and nobody would tell that it failed.
            let left = PATIENCE.saturating_sub(begin.elapsed());
            if inner.thread.is_none() || left.is_zero() {
                break Lookup::Unknown;
            }
            inner = self
                .changed
                .wait_timeout(inner, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        if asked {
            inner.answered(mine);
        }
        drop(inner);
        match found {
            Lookup::Known(mac) => return Ok(mac),
            Lookup::Full => {
                return Err(Unresolved::Busy {
                    device: device(),
                    address,
                    limit: cache::LIMIT,
                });
            }
            Lookup::Unknown | Lookup::Pending => {}
        }
        let up = self.links.get(index).is_none_or(LinkState::is_up);
        let via_gateway = hop != address;
        Err(Unresolved::NoAnswer {
            device: device(),
            address,
            hop: match via_gateway {
                true => format!("the gateway {hop}"),
                false => "it".into(),
            },
            protocol: if hop.is_ipv4() { "ARP" } else { "ND" },
            probes: PROBES,
            millis: begin.elapsed().as_millis() as u64,
            link: match up {
                true => "",
                false => ", which has no link",
            },
        })
    }

    /// All that NICs know, by NIC and address.
    pub fn list(&self) -> Vec<Neighbour> {
        let mut all = Vec::new();
        let inner = self.lock();
        let now = self.now();
        for (nic, network) in (0..).zip(self.networks()) {
            for (&address, known) in &network.known {
                if network.is_own(address) {
                    continue;
                }
                all.push(Neighbour {
                    nic,
                    address,
                    mac: Some(known.mac),
                    state: known.source(),
                    age: None,
                });
            }
            if let Some(Some(node)) = inner.nodes.get(nic as usize) {
                all.extend(
                    node.entries(now)
                        .map(|(address, mac, state, age)| Neighbour {
                            nic,
                            address,
                            mac,
                            state: state.name(),
                            age: Some(age),
                        }),
                );
            }
        }
        all
    }

    /// Addresses of ours that others have too.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let inner = self.lock();
        let now = self.now();
        (0..)
            .zip(&inner.nodes)
            .filter_map(|(nic, node)| Some((nic, node.as_ref()?)))
            .flat_map(|(nic, node)| {
                node.claims().map(move |(address, claim)| Conflict {
                    nic,
                    address,
                    mac: claim.mac,
                    seen: claim.seen,
                    age: now.saturating_sub(claim.at),
                })
            })
            .collect()
    }

    /// What was counted for a NIC, by name; nothing for one on an emulated link.
    pub fn counters(&self, nic: usize) -> impl Iterator<Item = (&'static str, u64)> {
        let wired = self.network(nic).is_some_and(|network| network.wired);
        let values = self
            .counts
            .get(nic)
            .filter(|_| wired)
            .map(|counts| &counts.0);
        (0..)
            .zip(Counts::NAMES)
            .filter_map(move |(i, name): (usize, _)| {
                Some((name, values?[i].load(Ordering::Relaxed)))
            })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn publish(&self, nic: usize, counts: &Counts) {
        if let Some(shared) = self.counts.get(nic) {
            for (to, from) in shared.0.iter().zip(counts.values()) {
                to.store(from, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
