//! The Internet checksum (RFC 1071), as ICMP, ICMPv6 and IPv4 headers use it.

use core::net::Ipv6Addr;

/// Sum of the 16-bit words of `bytes`, the last one padded with zero, on top of `sum`. It cannot overflow for any
/// packet: 2^16 words of 16 bits.
pub fn add(sum: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| match word {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    fold_once(sum) + words.fold(0, |sum, word| fold_once(sum + word))
}

/// The checksum of what was summed: over bytes that hold a right checksum it is 0.
pub fn finish(sum: u32) -> u16 {
    !(fold_once(fold_once(sum)) as u16)
}

/// Sum of the pseudo-header of an upper layer's packet of `len` bytes over IPv6 (RFC 8200 section 8.1).
pub fn pseudo_header(src: Ipv6Addr, dst: Ipv6Addr, len: usize, next_header: u8) -> u32 {
    let len = (len as u32).to_be_bytes();
    let sum = add(add(0, &src.octets()), &dst.octets());
    add(add(sum, &len), &[0, next_header])
}

fn fold_once(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071 section 3.
    #[test]
    fn the_example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(finish(add(0, &bytes)), !0xddf2);
    }

    #[test]
    fn an_odd_byte_is_the_high_half_of_a_word() {
        assert_eq!(finish(add(0, &[0x12, 0x34, 0x56])), !(0x1234 + 0x5600));
    }

    #[test]
    fn the_longest_packet_does_not_overflow() {
        assert_eq!(finish(add(0, &[0xff; 65_536])), 0);
    }
}
