//! ICMP echo (RFC 792) and ICMPv6 echo (RFC 4443 section 4): only what it takes to answer.

use core::net::Ipv6Addr;

use super::checksum;
use super::icmpv6;

/// Protocol number of ICMP in IPv4.
pub const PROTOCOL: u8 = 1;
/// Bytes of an echo message without data.
pub const LEN: usize = 8;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// Makes the ICMP echo request in `message` (all that the IPv4 header counts as payload) the reply to it. False, and
/// nothing changed, if it is none or its checksum is wrong.
pub fn answer_echo(message: &mut [u8]) -> bool {
    let good = message.len() >= LEN
        && message[..2] == [ECHO_REQUEST, 0]
        && checksum::finish(checksum::add(0, message)) == 0;
    if good {
        message[0] = ECHO_REPLY;
        set_checksum(message, 0);
    }
    good
}

/// The same for an ICMPv6 echo request from `src` to `dst`; the reply goes the other way.
pub fn answer_echo_v6(message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) -> bool {
    let pseudo = checksum::pseudo_header(src, dst, message.len(), icmpv6::NEXT_HEADER);
    let good = message.len() >= LEN
        && message[..2] == [icmpv6::ECHO_REQUEST, 0]
        && checksum::finish(checksum::add(pseudo, message)) == 0;
    if good {
        message[0] = icmpv6::ECHO_REPLY;
        // The pseudo-header's sum is the same with the addresses swapped.
        set_checksum(message, pseudo);
    }
    good
}

/// Writes the checksum of a message of at least four bytes.
fn set_checksum(message: &mut [u8], pseudo: u32) {
    message[2..4].fill(0);
    let sum = checksum::finish(checksum::add(pseudo, message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_request_becomes_its_reply() {
        let mut message = [8, 0, 0, 0, 0x12, 0x34, 0, 1, b'a', b'b', b'c'];
        set_checksum(&mut message, 0);
        let request = message;
        assert!(answer_echo(&mut message));
        assert_eq!((message[0], &message[4..]), (0, &request[4..]));
        assert_eq!(checksum::finish(checksum::add(0, &message)), 0);
        // A reply is not answered again.
        assert!(!answer_echo(&mut message));
    }

    #[test]
    fn one_over_ipv6_too() {
        let (a, b): (Ipv6Addr, Ipv6Addr) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let mut message = [128, 0, 0, 0, 1, 2, 3, 4, 5];
        let pseudo = checksum::pseudo_header(a, b, message.len(), 58);
        set_checksum(&mut message, pseudo);
        let elsewhere = "fd00::3".parse().unwrap();
        assert!(!answer_echo_v6(&mut message, a, elsewhere), "checksum");
        assert!(answer_echo_v6(&mut message, a, b));
        assert_eq!(message[0], 129);
        let back = checksum::pseudo_header(b, a, message.len(), 58);
        assert_eq!(checksum::finish(checksum::add(back, &message)), 0);
    }

    #[test]
    fn what_is_wrong_stays_as_it_is() {
        let mut good = [8, 0, 0, 0, 0, 0, 0, 1];
        set_checksum(&mut good, 0);
        for bit in 0..64 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            let before = bad;
            assert!(!answer_echo(&mut bad), "bit {bit}");
            assert_eq!(bad, before);
        }
        for short in 0..LEN {
            assert!(!answer_echo(&mut good[..short]));
        }
    }
}
