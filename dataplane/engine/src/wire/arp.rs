//! ARP for IPv4 over Ethernet (RFC 826); probes and announcements are RFC 5227's.

use core::net::Ipv4Addr;

use super::be::{put_u16, put_u32, u16_at, u32_at};
use super::ethernet::Mac;
use super::ethernet::TYPE_IPV4;

mod field {
    pub const HARDWARE: usize = 0;
    pub const PROTOCOL: usize = 2;
    pub const HARDWARE_LEN: usize = 4;
    pub const PROTOCOL_LEN: usize = 5;
    pub const OPERATION: usize = 6;
    pub const SENDER_MAC: usize = 8;
    pub const SENDER_IP: usize = 14;
    pub const TARGET_MAC: usize = 18;
    pub const TARGET_IP: usize = 24;
}

/// Bytes of a packet behind the Ethernet header.
pub const LEN: usize = 28;
/// EtherType of ARP.
pub const ETHER_TYPE: u16 = 0x0806;

const HARDWARE_ETHERNET: u16 = 1;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Who has the target's address? Tell the sender.
    Request,
    /// The sender has its address.
    Reply,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Request or reply.
    pub operation: Operation,
    /// MAC address of the sender.
    pub sender_mac: Mac,
    /// IPv4 address of the sender; 0.0.0.0 in a probe (RFC 5227 section 1.1).
    pub sender_ip: Ipv4Addr,
    /// MAC address of the target; means nothing in a request.
    pub target_mac: Mac,
    /// IPv4 address of the target; the sender's own in an announcement.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// The packet at the start of `bytes`, which may be longer (Ethernet padding). `None` if it is shorter than a packet,
    /// is not about IPv4 over Ethernet, or has another operation.
    pub fn parse(bytes: &[u8]) -> Option<Repr> {
        let p = bytes.first_chunk::<LEN>()?;
        let kind = (
            u16_at(p, field::HARDWARE),
            u16_at(p, field::PROTOCOL),
            p[field::HARDWARE_LEN],
            p[field::PROTOCOL_LEN],
        );
        if kind != (HARDWARE_ETHERNET, TYPE_IPV4, 6, 4) {
            return None;
        }
        let operation = match u16_at(p, field::OPERATION) {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return None,
        };
        Some(Repr {
            operation,
            sender_mac: mac_at(p, field::SENDER_MAC),
            sender_ip: u32_at(p, field::SENDER_IP).into(),
            target_mac: mac_at(p, field::TARGET_MAC),
            target_ip: u32_at(p, field::TARGET_IP).into(),
        })
    }

    /// Writes the packet.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put_u16(out, field::HARDWARE, HARDWARE_ETHERNET);
        put_u16(out, field::PROTOCOL, TYPE_IPV4);
        out[field::HARDWARE_LEN] = 6;
        out[field::PROTOCOL_LEN] = 4;
        let operation = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        put_u16(out, field::OPERATION, operation);
        out[field::SENDER_MAC..field::SENDER_IP].copy_from_slice(&self.sender_mac);
        put_u32(out, field::SENDER_IP, self.sender_ip.into());
        out[field::TARGET_MAC..field::TARGET_IP].copy_from_slice(&self.target_mac);
        put_u32(out, field::TARGET_IP, self.target_ip.into());
    }
}

fn mac_at(p: &[u8; LEN], at: usize) -> Mac {
    let mut mac = [0; 6];
    mac.copy_from_slice(&p[at..at + 6]);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that Linux sent: who has 10.78.0.1? Tell 10.78.0.9.
    const REQUEST: [u8; LEN] = [
        0, 1, 8, 0, 6, 4, 0, 1, 0x7a, 0x10, 0x22, 0x33, 0x44, 0x55, 10, 78, 0, 9, 0, 0, 0, 0, 0, 0,
        10, 78, 0, 1,
    ];

    #[test]
    fn a_request_is_read_and_written() {
        let repr = Repr::parse(&REQUEST).expect("a good packet");
        assert_eq!(
            repr,
            Repr {
                operation: Operation::Request,
                sender_mac: [0x7a, 0x10, 0x22, 0x33, 0x44, 0x55],
                sender_ip: Ipv4Addr::new(10, 78, 0, 9),
                target_mac: [0; 6],
                target_ip: Ipv4Addr::new(10, 78, 0, 1),
            }
        );
        let mut out = [0xaa; LEN];
        repr.emit(&mut out);
        assert_eq!(out, REQUEST);
        let reply = Repr {
            operation: Operation::Reply,
            ..repr
        };
        reply.emit(&mut out);
        assert_eq!(Repr::parse(&out), Some(reply));
    }

    #[test]
    fn what_is_short_or_about_something_else_is_refused() {
        for short in 0..LEN {
            assert_eq!(Repr::parse(&REQUEST[..short]), None);
        }
        // Hardware, protocol, lengths, operation.
        for at in [0, 1, 2, 3, 4, 5, 6, 7] {
            let mut bad = REQUEST;
            bad[at] ^= 0x40;
            assert_eq!(Repr::parse(&bad), None, "byte {at}");
        }
    }
}
