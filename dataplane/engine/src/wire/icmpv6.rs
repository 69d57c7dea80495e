//! Neighbour solicitations and advertisements (RFC 4861 sections 4.3, 4.4, 4.6.1), checked as its section 7.1 asks.
//! Echo is [`super::icmp`]'s.

use core::net::Ipv6Addr;

use super::checksum;
use super::ethernet::Mac;
use super::ipv6;

mod field {
    pub const TYPE: usize = 0;
    pub const CODE: usize = 1;
    pub const CHECKSUM: usize = 2;
    pub const FLAGS: usize = 4;
    pub const TARGET: usize = 8;
    pub const OPTIONS: usize = 24;
}

/// Next header of ICMPv6 in IPv6.
pub const NEXT_HEADER: u8 = 58;
/// Bytes of a solicitation or advertisement with one link-layer address option, as [`Repr::emit`] writes it.
pub const LEN: usize = field::OPTIONS + OPTION_LEN;
/// Type of an echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Type of an echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Hop limit of neighbour discovery: proof that no router passed the packet on (RFC 4861 section 11.2).
pub const HOP_LIMIT: u8 = 255;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
const OPTION_LEN: usize = 8;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    /// Who has `target`?
    Solicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// MAC address of who asks; absent when it looks for a duplicate of its own address.
        source_mac: Option<Mac>,
    },
    /// The sender has `target`.
    Advertisement {
        /// The sender's address.
        target: Ipv6Addr,
        /// Its MAC address.
        target_mac: Option<Mac>,
        /// The sender is a router.
        router: bool,
        /// It answers a solicitation that was sent to it.
        solicited: bool,
        /// It replaces what the receiver knew.
        overrides: bool,
    },
}

/// Why a message is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another type of message, which is no fault.
    #[error("ICMPv6 type {0}")]
    OtherType(u8),
    /// It breaks a rule of RFC 4861 section 7.1.
    #[error("malformed neighbour discovery: {0}")]
    Malformed(&'static str),
}

impl Repr {
    /// The message in `message`, all that the IPv6 header `ip` counts as its payload.
    ///
    /// # Errors
    ///
    /// [`Refused`], for another message and for one that must be dropped in silence.
    pub fn parse(ip: &ipv6::Header<'_>, message: &[u8]) -> Result<Repr, Refused> {
        let bad = |what| Err(Refused::Malformed(what));
        let Some(fixed) = message.first_chunk::<{ field::OPTIONS }>() else {
            return match message.first() {
                Some(&kind) if kind != SOLICITATION && kind != ADVERTISEMENT => {
                    Err(Refused::OtherType(kind))
                }
                _ => bad("shorter than 24 bytes"),
            };
        };
        let kind = fixed[field::TYPE];
        if kind != SOLICITATION && kind != ADVERTISEMENT {
            return Err(Refused::OtherType(kind));
        }
        if ip.hop_limit() != HOP_LIMIT {
            return bad("the hop limit is not 255");
        }
        if fixed[field::CODE] != 0 {
            return bad("the code is not 0");
        }
        let (src, dst) = (Ipv6Addr::from(ip.src()), Ipv6Addr::from(ip.dst()));
        let sum = checksum::pseudo_header(src, dst, message.len(), NEXT_HEADER);
        if checksum::finish(checksum::add(sum, message)) != 0 {
            return bad("wrong checksum");
        }
        let mut target = [0; 16];
        target.copy_from_slice(&fixed[field::TARGET..field::OPTIONS]);
        let target = Ipv6Addr::from(target);
        if target.is_multicast() {
            return bad("the target is a multicast address");
        }
        let wanted = match kind {
            SOLICITATION => SOURCE_MAC,
            _ => TARGET_MAC,
        };
        let Some(mac) = find_mac(&message[field::OPTIONS..], wanted) else {
            return bad("an option without length, or beyond the end");
        };
        if kind == SOLICITATION {
            if src.is_unspecified() {
                if dst != solicited_node(target) {
                    return bad("from no address, but not to the solicited-node address");
                }
                if mac.is_some() {
                    return bad("from no address, but with a MAC address");
                }
            }
            return Ok(Repr::Solicitation {
                target,
                source_mac: mac,
            });
        }
        let flags = fixed[field::FLAGS];
        let solicited = flags & SOLICITED != 0;
        if solicited && dst.is_multicast() {
            return bad("solicited, but to a multicast address");
        }
        Ok(Repr::Advertisement {
            target,
            target_mac: mac,
            router: flags & ROUTER != 0,
            solicited,
            overrides: flags & OVERRIDE != 0,
        })
    }

    /// Writes the message as the payload of an IPv6 packet from `src` to `dst`; returns how many bytes it has.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8; LEN]) -> usize {
        *out = [0; LEN];
        let (kind, target, option, mac) = match *self {
            Repr::Solicitation { target, source_mac } => {
                (SOLICITATION, target, SOURCE_MAC, source_mac)
            }
            Repr::Advertisement {
                target,
                target_mac,
                router,
                solicited,
                overrides,
            } => {
                let flag = |set, bit| if set { bit } else { 0 };
                out[field::FLAGS] =
                    flag(router, ROUTER) | flag(solicited, SOLICITED) | flag(overrides, OVERRIDE);
                (ADVERTISEMENT, target, TARGET_MAC, target_mac)
            }
        };
        out[field::TYPE] = kind;
        out[field::TARGET..field::OPTIONS].copy_from_slice(&target.octets());
        let mut len = field::OPTIONS;
        if let Some(mac) = mac {
            out[len] = option;
            // In units of eight bytes.
            out[len + 1] = 1;
            out[len + 2..len + OPTION_LEN].copy_from_slice(&mac);
            len += OPTION_LEN;
        }
        let sum = checksum::pseudo_header(src, dst, len, NEXT_HEADER);
        let sum = checksum::finish(checksum::add(sum, &out[..len]));
        out[field::CHECKSUM..field::FLAGS].copy_from_slice(&sum.to_be_bytes());
        len
    }

    /// Writes an IPv6 packet from `src` to `dst` that is this message; returns how many bytes it has.
    pub fn emit_packet(
        &self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        out: &mut [u8; ipv6::LEN + LEN],
    ) -> usize {
        let mut message = [0; LEN];
        let len = self.emit(src, dst, &mut message);
        let mut header = [0; ipv6::LEN];
        let ip = ipv6::Repr {
            src,
            dst,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
        };
        ip.emit_of(NEXT_HEADER, len as u16, &mut header);
        out[..ipv6::LEN].copy_from_slice(&header);
        out[ipv6::LEN..].copy_from_slice(&message);
        ipv6::LEN + len
    }
}

/// The MAC address in the first option of this type, if there is one; `None` if the options are malformed. Unknown ones
/// are skipped (RFC 4861 section 7.1).
fn find_mac(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while !options.is_empty() {
        let (&kind, &units) = (options.first()?, options.get(1)?);
        let len = usize::from(units) * 8;
        if len == 0 {
            return None;
        }
        let option = options.get(..len)?;
        if kind == wanted && found.is_none() && len == OPTION_LEN {
            let mut mac = [0; 6];
            mac.copy_from_slice(&option[2..OPTION_LEN]);
            found = Some(mac);
        }
        options = &options[len..];
    }
    Some(found)
}

/// The solicited-node multicast address of an address (RFC 4291 section 2.7.1).
pub fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let mut octets = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    octets[13..].copy_from_slice(&ip.octets()[13..]);
    octets.into()
}

/// The MAC address of an IPv6 multicast address (RFC 2464 section 7).
pub fn multicast_mac(ip: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = ip.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0x52, 0x4c, 0, 0, 1];

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    fn header(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8) -> [u8; ipv6::LEN] {
        let mut out = [0; ipv6::LEN];
        ipv6::Repr {
            src,
            dst,
            traffic_class: 0,
            flow_label: 0,
            hop_limit,
        }
        .emit(&mut out);
        out
    }

    fn parse(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Result<Repr, Refused> {
        let header = header(src, dst, hop_limit);
        Repr::parse(&ipv6::Header::new_checked(&header).unwrap(), message)
    }

    fn solicitation(mac: Option<Mac>) -> Repr {
        Repr::Solicitation {
            target: ip("fd00::2"),
            source_mac: mac,
        }
    }

    fn advertisement(solicited: bool) -> Repr {
        Repr::Advertisement {
            target: ip("fd00::2"),
            target_mac: Some(MAC),
            router: false,
            solicited,
            overrides: true,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let (a, b) = (ip("fd00::1"), ip("fd00::2"));
        for (repr, src, dst, len) in [
            (solicitation(Some(MAC)), a, solicited_node(b), 32),
            (solicitation(None), ip("::"), solicited_node(b), 24),
            (advertisement(true), b, a, 32),
            (advertisement(false), b, ip("ff02::1"), 32),
        ] {
            let mut out = [0xaa; LEN];
            assert_eq!(repr.emit(src, dst, &mut out), len);
            assert_eq!(parse(src, dst, 255, &out[..len]), Ok(repr));
        }
    }

    #[test]
    fn rules_of_section_7_1() {
        let (a, b) = (ip("fd00::1"), ip("fd00::2"));
        let refused = |src, dst, hops, repr: Repr, what: &str| {
            let mut out = [0; LEN];
            let len = repr.emit(src, dst, &mut out);
            match parse(src, dst, hops, &out[..len]) {
                Err(Refused::Malformed(why)) => assert!(why.contains(what), "{why}"),
                other => panic!("{other:?}, not {what}"),
            }
        };
        let all = ip("ff02::1");
        refused(a, b, 254, solicitation(Some(MAC)), "hop limit");
        refused(ip("::"), b, 255, solicitation(None), "solicited-node");
        let node = solicited_node(b);
        refused(ip("::"), node, 255, solicitation(Some(MAC)), "with a MAC");
        refused(b, all, 255, advertisement(true), "multicast");
        let multicast = Repr::Solicitation {
            target: all,
            source_mac: None,
        };
        refused(a, b, 255, multicast, "target");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let (a, b) = (ip("fd00::1"), ip("fd00::2"));
        let mut good = [0; LEN];
        solicitation(Some(MAC)).emit(a, b, &mut good);
        for bit in 0..LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(a, b, 255, &bad).is_err(), "bit {bit}");
        }
        for len in 0..LEN {
            assert!(parse(a, b, 255, &good[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn options_are_walked_with_care() {
        let own = |bytes: &[u8]| find_mac(bytes, SOURCE_MAC);
        assert_eq!(own(&[]), Some(None));
        assert_eq!(own(&[1]), None);
        assert_eq!(own(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(own(&[1, 2, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(
            own(&[14, 1, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7]),
            Some(Some([2, 3, 4, 5, 6, 7]))
        );
        // A link-layer address of another length is no MAC address.
        let mut long = [0; 16];
        long[..2].copy_from_slice(&[1, 2]);
        assert_eq!(own(&long), Some(None));
    }

    #[test]
    fn other_types_are_no_fault() {
        let (a, b) = (ip("fd00::1"), ip("fd00::2"));
        for message in [&[134; 40][..], &[128, 0, 0, 0, 0, 0, 0, 0]] {
            let kind = message[0];
            assert_eq!(parse(a, b, 64, message), Err(Refused::OtherType(kind)));
        }
    }

    #[test]
    fn multicast_addresses() {
        let node = solicited_node(ip("fe80::2aa:ff:fe28:9c5a"));
        assert_eq!(node, ip("ff02::1:ff28:9c5a"));
        assert_eq!(multicast_mac(node), [0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a]);
    }
}
