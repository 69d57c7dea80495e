//! MAC addresses of peers that were learned, with the states of RFC 4861 section 7.3.2 (simplified: what is stale and used
//! is probed at once, without DELAY), for both families. No clock and no frames: time goes in, probes to be sent come
//! out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use roceline_engine::Nanos;
use roceline_engine::wire::ethernet::Mac;

/// Entries of one NIC. Linux's hard limit (`gc_thresh3`), so that a flood of forged requests takes no more.
pub const LIMIT: usize = 1024;
/// Questions of one user that wait for their answers, of those that a NIC has room for ([`LIMIT`]): the rest is others'.
pub const QUESTIONS: usize = LIMIT / 16;
/// Requests for an unknown address before it is given up.
pub const PROBES: u32 = 4;
/// Between them. `ib_core` waits one second for an address, so all have to be in it; RFC 4861 and Linux ask once a second,
/// which would leave one request to be lost.
pub const PROBE_INTERVAL: Nanos = Nanos::from_millis(250);
/// Unicast requests to refresh an entry, and the time between them (RFC 4861 section 10).
const REFRESHES: u32 = 3;
const REFRESH_INTERVAL: Nanos = Nanos::from_millis(1000);
/// How long an entry is believed after a confirmation (RFC 4861 section 10, REACHABLE_TIME).
const REACHABLE: Nanos = Nanos::from_millis(30_000);
/// How long one stays that nobody uses.
const UNUSED: Nanos = Nanos::from_millis(600_000);
/// How long one is shown that nobody answered for.
const FAILED: Nanos = Nanos::from_millis(30_000);
/// A MAC address changes at most so often, as in Linux (`locktime`): two stations that both claim an address would
/// otherwise move queue pairs at every frame.
const LOCKED: Nanos = Nanos::from_millis(1000);

/// What is known of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Asked for.
    Incomplete,
    /// Confirmed not long ago.
    Reachable,
    /// Known, not confirmed for a while; used all the same.
    Stale,
    /// Being confirmed; used all the same.
    Probe,
    /// Nobody answered.
    Failed,
}

impl State {
    /// Its name, as `ip neigh` prints it.
    pub fn name(self) -> &'static str {
        match self {
            State::Incomplete => "incomplete",
            State::Reachable => "reachable",
            State::Stale => "stale",
            State::Probe => "probe",
            State::Failed => "failed",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    mac: Option<Mac>,
    /// When it came into its state, or was confirmed in it.
    since: Nanos,
    /// When its MAC address was learned or changed.
    learned: Nanos,
    /// Requests sent in this state.
    probes: u32,
    /// When a timer of it fires.
    due: Nanos,
}

/// What somebody said about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its MAC address.
    pub mac: Mac,
    /// It answers a request of ours: the peer is there and hears us.
    pub confirms: bool,
    /// It may replace another MAC address (all of ARP; RFC 4861's override flag).
    pub overrides: bool,
    /// An entry may be made of it: it was sent to us, by a peer that is about to talk.
    pub creates: bool,
}

/// What came of something heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// Nothing new.
    Nothing,
    /// The address is known now.
    Found,
    /// It was known with another MAC address.
    Moved(Mac),
    /// There is no room.
    Full,
}

/// A request to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// For this address.
    pub target: IpAddr,
    /// To its last known MAC address, or to all.
    pub mac: Option<Mac>,
}

/// What asking for an address finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Its MAC address.
    Known(Mac),
    /// It is being asked for.
    Pending,
    /// Nobody answered, or nobody was asked.
    Unknown,
    /// There is no room to remember that it is asked for.
    Full,
}

/// The entries of a NIC.
#[derive(Debug, Default)]
pub struct Cache {
    entries: BTreeMap<IpAddr, Entry>,
}

impl Cache {
    /// Asks for an address that is to be used: what was not known, or failed, is asked for (anew), what is stale is probed;
    /// the requests come from [`Cache::timers`].
    pub fn ask(&mut self, target: IpAddr, now: Nanos) -> Lookup {
        let fresh = Entry {
            state: State::Incomplete,
            mac: None,
            since: now,
            learned: now,
            probes: 0,
            due: now,
        };
        match self.entries.get_mut(&target) {
            None => {
                if !self.make_room() {
                    return Lookup::Full;
                }
                self.entries.insert(target, fresh);
            }
            Some(entry) => match entry.state {
                State::Failed => *entry = fresh,
                State::Stale => {
                    entry.state = State::Probe;
                    (entry.probes, entry.due) = (0, now);
                }
                State::Incomplete | State::Reachable | State::Probe => {}
            },
        }
        self.peek(target)
    }

    /// What is known, without asking.
    pub fn peek(&self, target: IpAddr) -> Lookup {
        match self.entries.get(&target) {
            Some(entry) => match (entry.state, entry.mac) {
                (State::Incomplete, _) => Lookup::Pending,
                (State::Failed, _) | (_, None) => Lookup::Unknown,
                (_, Some(mac)) => Lookup::Known(mac),
            },
            None => Lookup::Unknown,
        }
    }

    /// An address is nobody else's any more. True if somebody may be waiting for it, who has to be told.
    pub fn forget(&mut self, address: IpAddr) -> bool {
        let gone = self.entries.remove(&address);
        gone.is_some_and(|entry| entry.state == State::Incomplete)
    }

    /// Takes in what was heard about an address.
    pub fn hear(&mut self, about: IpAddr, heard: Heard, now: Nanos) -> Learned {
        let believed = match heard.confirms {
            true => State::Reachable,
            false => State::Stale,
        };
        let Some(entry) = self.entries.get_mut(&about) else {
            if !heard.creates {
                return Learned::Nothing;
            }
            if !self.make_room() {
                return Learned::Full;
            }
            let mut entry = Entry {
                state: believed,
                mac: Some(heard.mac),
                since: now,
                learned: now,
                probes: 0,
                due: now,
            };
            entry.enter(believed, now);
            self.entries.insert(about, entry);
            return Learned::Found;
        };
        let old = match (entry.state, entry.mac) {
            (State::Incomplete | State::Failed, _) | (_, None) => {
                entry.mac = Some(heard.mac);
                entry.learned = now;
                entry.enter(believed, now);
                return Learned::Found;
            }
            (_, Some(old)) => old,
        };
        if old == heard.mac {
            // What asks for nothing and answers nothing proves nothing (RFC 4861 section 7.2.5).
            if heard.confirms {
                entry.enter(State::Reachable, now);
            }
            return Learned::Nothing;
        }
        if !heard.overrides {
            if entry.state == State::Reachable {
                entry.enter(State::Stale, now);
            }
            return Learned::Nothing;
        }
        if now.saturating_sub(entry.learned) < LOCKED {
            return Learned::Nothing;
        }
        entry.mac = Some(heard.mac);
        entry.learned = now;
        entry.enter(believed, now);
        Learned::Moved(old)
    }

    /// Fires timers: calls `probe` for each request that is due. True if somebody who waits has to be told of a failure.
    pub fn timers(&mut self, now: Nanos, mut probe: impl FnMut(Probe)) -> bool {
        let mut failed = false;
        self.entries.retain(|&target, entry| {
            if entry.due > now {
                return true;
            }
            match entry.state {
                State::Incomplete if entry.probes < PROBES => {
                    entry.probes += 1;
                    entry.due = now + PROBE_INTERVAL;
                    probe(Probe { target, mac: None });
                }
                State::Probe if entry.probes < REFRESHES => {
                    entry.probes += 1;
                    entry.due = now + REFRESH_INTERVAL;
                    let mac = entry.mac;
                    probe(Probe { target, mac });
                }
                State::Incomplete | State::Probe => {
                    failed = true;
                    entry.mac = None;
                    entry.enter(State::Failed, now);
                }
                State::Reachable => entry.enter(State::Stale, now),
                State::Stale | State::Failed => return false,
            }
            true
        });
        failed
    }

    /// When a timer fires next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.entries.values().map(|entry| entry.due).min()
    }

    /// All entries with the time since they were confirmed, or since they are asked for.
    pub fn entries(
        &self,
        now: Nanos,
    ) -> impl Iterator<Item = (IpAddr, Option<Mac>, State, Nanos)> + '_ {
        self.entries.iter().map(move |(&address, entry)| {
            let age = now.saturating_sub(entry.since);
            (address, entry.mac, entry.state, age)
        })
    }

    /// Room for one more: the oldest entry goes that nobody waits for. False if all are waited for.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < LIMIT {
            return true;
        }
        let oldest = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.state != State::Incomplete)
            .min_by_key(|(_, entry)| (entry.state == State::Reachable, entry.since))
            .map(|(&address, _)| address);
        oldest.is_some_and(|address| self.entries.remove(&address).is_some())
    }
}

impl Entry {
    /// Comes into a state that is left by time.
    fn enter(&mut self, state: State, now: Nanos) {
        self.state = state;
        self.since = now;
        self.probes = 0;
        self.due = now
            + match state {
                State::Reachable => REACHABLE,
                State::Failed => FAILED,
                State::Stale | State::Incomplete | State::Probe => UNUSED,
            };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 0xa];
    const B: Mac = [2, 0, 0, 0, 0, 0xb];
    const REPLY: Heard = Heard {
        mac: A,
        confirms: true,
        overrides: true,
        creates: false,
    };
    const ANNOUNCED: Heard = Heard {
        mac: B,
        confirms: false,
        overrides: true,
        creates: false,
    };

    fn peer() -> IpAddr {
        "10.0.0.2".parse().unwrap()
    }

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn probes(cache: &mut Cache, now: Nanos) -> Vec<Probe> {
        let mut all = Vec::new();
        cache.timers(now, |probe| all.push(probe));
        all
    }

    #[test]
    fn an_unknown_address_is_asked_for_four_times_in_a_second() {
        let mut cache = Cache::default();
        assert_eq!(cache.peek(peer()), Lookup::Unknown);
        assert_eq!(cache.ask(peer(), ms(0)), Lookup::Pending);
        let broadcast = vec![Probe {
            target: peer(),
            mac: None,
        }];
        for at in [0, 250, 500, 750] {
            assert_eq!(probes(&mut cache, ms(at)), broadcast, "{at}");
            assert_eq!(probes(&mut cache, ms(at + 249)), vec![], "{at}");
            assert_eq!(cache.ask(peer(), ms(at + 249)), Lookup::Pending);
        }
        assert!(cache.timers(ms(1000), |_| panic!("a fifth request")));
        assert_eq!(cache.peek(peer()), Lookup::Unknown);
        // Whoever asks again asks the network again.
        assert_eq!(cache.ask(peer(), ms(1001)), Lookup::Pending);
        assert_eq!(probes(&mut cache, ms(1001)), broadcast);
    }

    #[test]
    fn an_answer_is_believed_for_thirty_seconds_and_then_probed_when_used() {
        let mut cache = Cache::default();
        cache.ask(peer(), ms(0));
        assert_eq!(cache.hear(peer(), REPLY, ms(10)), Learned::Found);
        assert_eq!(cache.ask(peer(), ms(29_000)), Lookup::Known(A));
        assert_eq!(probes(&mut cache, ms(30_009)), vec![]);
        assert_eq!(probes(&mut cache, ms(30_010)), vec![]);
        // Stale: used, and probed where it was.
        assert_eq!(cache.ask(peer(), ms(40_000)), Lookup::Known(A));
        let unicast = vec![Probe {
            target: peer(),
            mac: Some(A),
        }];
        assert_eq!(probes(&mut cache, ms(40_000)), unicast);
        assert_eq!(cache.hear(peer(), REPLY, ms(40_001)), Learned::Nothing);
        assert_eq!(probes(&mut cache, ms(41_000)), vec![]);
        // And again, but nobody answers.
        probes(&mut cache, ms(71_000));
        assert_eq!(cache.ask(peer(), ms(72_000)), Lookup::Known(A));
        for at in [72_000, 73_000, 74_000] {
            assert_eq!(probes(&mut cache, ms(at)), unicast);
            assert_eq!(cache.peek(peer()), Lookup::Known(A));
        }
        assert!(cache.timers(ms(75_000), |_| {}));
        assert_eq!(cache.peek(peer()), Lookup::Unknown);
        assert_eq!(cache.entries(ms(75_000)).count(), 1);
        cache.timers(ms(105_000), |_| {});
        assert_eq!(cache.entries(ms(105_000)).count(), 0);
    }

    #[test]
    fn what_nobody_asked_for_makes_no_entry_but_changes_one() {
        let mut cache = Cache::default();
        assert_eq!(cache.hear(peer(), ANNOUNCED, ms(0)), Learned::Nothing);
        assert_eq!(cache.entries(ms(0)).count(), 0);
        cache.ask(peer(), ms(0));
        cache.hear(peer(), REPLY, ms(1));
        assert_eq!(
            cache.hear(peer(), ANNOUNCED, ms(900)),
            Learned::Nothing,
            "too soon"
        );
        assert_eq!(cache.hear(peer(), ANNOUNCED, ms(1100)), Learned::Moved(A));
        assert_eq!(cache.peek(peer()), Lookup::Known(B));
    }

    #[test]
    fn without_override_a_change_only_casts_doubt() {
        let mut cache = Cache::default();
        cache.ask(peer(), ms(0));
        cache.hear(peer(), REPLY, ms(1));
        let other = Heard {
            overrides: false,
            confirms: true,
            ..ANNOUNCED
        };
        assert_eq!(cache.hear(peer(), other, ms(5000)), Learned::Nothing);
        let (_, mac, state, _) = cache.entries(ms(5000)).next().unwrap();
        assert_eq!((mac, state), (Some(A), State::Stale));
    }

    #[test]
    fn a_flood_of_requests_takes_no_more_than_its_room() {
        let mut cache = Cache::default();
        let address = |i: u32| IpAddr::from(i.to_be_bytes());
        cache.ask(peer(), ms(0));
        let request = Heard {
            creates: true,
            ..ANNOUNCED
        };
        for i in 1..5000 {
            assert_eq!(cache.hear(address(i), request, ms(1)), Learned::Found);
        }
        assert_eq!(cache.entries(ms(1)).count(), LIMIT);
        assert_eq!(
            cache.peek(peer()),
            Lookup::Pending,
            "who is waited for stays"
        );
        let mut cache = Cache::default();
        for i in 0..LIMIT as u32 {
            assert_eq!(cache.ask(address(i), ms(0)), Lookup::Pending);
        }
        assert_eq!(cache.ask(peer(), ms(0)), Lookup::Full);
        assert_eq!(cache.hear(peer(), request, ms(0)), Learned::Full);
    }

    #[test]
    fn unused_entries_go() {
        let mut cache = Cache::default();
        let request = Heard {
            creates: true,
            ..ANNOUNCED
        };
        cache.hear(peer(), request, ms(0));
        assert_eq!(cache.next_deadline(), Some(UNUSED));
        cache.timers(UNUSED, |_| {});
        assert_eq!(cache.next_deadline(), None);
    }
}
