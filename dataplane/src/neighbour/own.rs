//! A NIC's own addresses: looked for on the network when its port gets a link, or they come while it has one, then announced,
//! and watched from then on for others who have them too.
//!
//! What RFC 5227 (IPv4) and RFC 4862 section 5.4 (IPv6) ask, with two differences. An address is used from the start,
//! as Linux does with IPv4, since programs hold indices into the GID table. And for that reason one that somebody else
//! has is kept: it is said, and defended once in a while (RFC 5227 section 2.4, b), but never given up unless by order.

use std::net::IpAddr;

use roceline_engine::Nanos;
use roceline_engine::wire::ethernet::Mac;

/// Probes for an address, and the time between them. RFC 5227 waits one to two seconds between probes, to spread those of
/// machines that boot together; one NIC does not need that.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Nanos = Nanos::from_millis(300);
/// Announcements, and the time between them (RFC 5227 section 1.1).
const ANNOUNCEMENTS: u32 = 2;
const ANNOUNCE_INTERVAL: Nanos = Nanos::from_millis(2000);
/// An address is defended at most so often (RFC 5227, DEFEND_INTERVAL), and the log is told as often.
const DEFEND_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// Another station's claim on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The MAC address it claims it for.
    pub mac: Mac,
    /// When that was seen last.
    pub at: Nanos,
    /// How often.
    pub seen: u64,
}

/// What is to be sent about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// Has anybody this?
    Probe(IpAddr),
    /// I have this.
    Announce(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The port has no link.
    Down,
    Probing,
    Announcing,
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct Own {
    ip: IpAddr,
    phase: Phase,
    sent: u32,
    due: Nanos,
    claim: Option<Claim>,
    /// Before then it is neither defended nor told of again.
    quiet_until: Nanos,
}

impl Own {
    fn new(ip: IpAddr, up: bool, now: Nanos) -> Own {
        Own {
            ip,
            phase: if up { Phase::Probing } else { Phase::Down },
            sent: 0,
            due: now,
            claim: None,
            quiet_until: Nanos::ZERO,
        }
    }
}

/// The addresses of a NIC.
#[derive(Debug)]
pub struct OwnAddresses(Vec<Own>);

impl OwnAddresses {
    /// Addresses of a NIC whose port has no link yet.
    pub fn new(addresses: impl Iterator<Item = IpAddr>) -> OwnAddresses {
        let down = |ip| Own::new(ip, false, Nanos::ZERO);
        OwnAddresses(addresses.map(down).collect())
    }

    /// Has these from now on, on a port with a link or without: those that are new are looked for as at the start, those that are not among
    /// them are no longer spoken of.
    pub fn replace(&mut self, addresses: impl Iterator<Item = IpAddr>, up: bool, now: Nanos) {
        let before = std::mem::take(&mut self.0);
        let kept = |ip| before.iter().find(|own| own.ip == ip).copied();
        let all = addresses.map(|ip| kept(ip).unwrap_or_else(|| Own::new(ip, up, now)));
        self.0 = all.collect();
    }

    /// The port got a link, or lost it: another one may have other stations on it.
    pub fn link(&mut self, up: bool, now: Nanos) {
        for own in &mut self.0 {
            own.phase = if up { Phase::Probing } else { Phase::Down };
            (own.sent, own.due) = (0, now);
            if up {
                own.claim = None;
            }
        }
    }

    /// Whether an address is still looked for.
    pub fn is_tentative(&self, ip: IpAddr) -> bool {
        self.0
            .iter()
            .any(|own| own.ip == ip && own.phase == Phase::Probing)
    }

    /// Somebody else has an address of ours. True if it is time to defend it and to say so.
    pub fn claimed(&mut self, ip: IpAddr, mac: Mac, now: Nanos) -> bool {
        let Some(own) = self.0.iter_mut().find(|own| own.ip == ip) else {
            return false;
        };
        let seen = own.claim.map_or(0, |claim| claim.seen) + 1;
        own.claim = Some(Claim { mac, at: now, seen });
        let loud = now >= own.quiet_until;
        if loud {
            own.quiet_until = now + DEFEND_INTERVAL;
        }
        loud
    }

    /// Calls `say` for all that is due.
    pub fn timers(&mut self, now: Nanos, mut say: impl FnMut(Say)) {
        for own in self.0.iter_mut().filter(|own| own.due <= now) {
            match own.phase {
                Phase::Probing if own.sent < PROBES => {
                    say(Say::Probe(own.ip));
                    own.sent += 1;
                    own.due = now + PROBE_INTERVAL;
                }
                Phase::Probing => {
                    say(Say::Announce(own.ip));
                    (own.phase, own.sent) = (Phase::Announcing, 1);
                    own.due = now + ANNOUNCE_INTERVAL;
                }
                Phase::Announcing if own.sent < ANNOUNCEMENTS => {
                    say(Say::Announce(own.ip));
                    own.sent += 1;
                    own.due = now + ANNOUNCE_INTERVAL;
                }
                Phase::Announcing => own.phase = Phase::Settled,
                Phase::Down | Phase::Settled => {}
            }
        }
    }

    /// When something is due.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.0
            .iter()
            .filter(|own| matches!(own.phase, Phase::Probing | Phase::Announcing))
            .map(|own| own.due)
            .min()
    }

    /// Addresses that others have too.
    pub fn claims(&self) -> impl Iterator<Item = (IpAddr, Claim)> + '_ {
        self.0.iter().filter_map(|own| Some((own.ip, own.claim?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn an_address_is_looked_for_and_announced_when_there_is_a_link() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let mut own = OwnAddresses::new([ip].into_iter());
        let said = |own: &mut OwnAddresses, now| {
            let mut all = Vec::new();
            own.timers(now, |say| all.push(say));
            all
        };
        assert_eq!(said(&mut own, ms(5)), vec![]);
        assert_eq!(own.next_deadline(), None);
        for begin in [1000, 50_000] {
            own.link(true, ms(begin));
            for (at, what) in [
                (0, Say::Probe(ip)),
                (300, Say::Probe(ip)),
                (600, Say::Probe(ip)),
                (900, Say::Announce(ip)),
                (2900, Say::Announce(ip)),
            ] {
                assert_eq!(own.is_tentative(ip), at <= 900, "{at}");
                assert_eq!(own.next_deadline(), Some(ms(begin + at)));
                assert_eq!(said(&mut own, ms(begin + at)), vec![what]);
            }
            assert_eq!(said(&mut own, ms(begin + 4900)), vec![]);
            assert_eq!(own.next_deadline(), None);
            own.link(false, ms(begin + 5000));
        }
    }

    #[test]
    fn an_address_that_comes_later_is_looked_for_and_one_that_goes_is_not_spoken_of() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut own = OwnAddresses::new([ip(1), ip(2)].into_iter());
        own.link(true, ms(0));
        for at in 0..100 {
            own.timers(ms(100 * at), |_| ());
        }
        own.claimed(ip(1), [2, 0, 0, 0, 0, 9], ms(9000));
        own.claimed(ip(2), [2, 0, 0, 0, 0, 9], ms(9000));
        own.replace([ip(1), ip(3)].into_iter(), true, ms(10_000));
        let claimed: Vec<IpAddr> = own.claims().map(|(ip, _)| ip).collect();
        assert_eq!(
            claimed,
            [ip(1)],
            "what is known of the one that stays is kept"
        );
        assert!(own.is_tentative(ip(3)) && !own.is_tentative(ip(1)));
        assert_eq!(own.next_deadline(), Some(ms(10_000)));
        let mut said = Vec::new();
        own.timers(ms(10_000), |say| said.push(say));
        assert_eq!(said, [Say::Probe(ip(3))]);
        assert!(!own.claimed(ip(2), [2, 0, 0, 0, 0, 9], ms(20_000)));
        // Without a link nobody is asked.
        own.replace([ip(4)].into_iter(), false, ms(20_000));
        assert_eq!(own.next_deadline(), None);
    }

    #[test]
    fn a_claim_is_loud_once_in_ten_seconds_and_remembered() {
        let ip: IpAddr = "fd00::1".parse().unwrap();
        let mut own = OwnAddresses::new([ip].into_iter());
        own.link(true, ms(0));
        let mac = [2, 0, 0, 0, 0, 9];
        assert!(own.claimed(ip, mac, ms(0)));
        assert!(!own.claimed(ip, mac, ms(9999)));
        assert!(own.claimed(ip, mac, ms(10_000)));
        let claim = Claim {
            mac,
            at: ms(10_000),
            seen: 3,
        };
        assert_eq!(own.claims().collect::<Vec<_>>(), vec![(ip, claim)]);
        assert!(!own.claimed("fd00::2".parse().unwrap(), mac, ms(0)));
        own.link(true, ms(20_000));
        assert_eq!(own.claims().count(), 0, "another link");
    }
}
