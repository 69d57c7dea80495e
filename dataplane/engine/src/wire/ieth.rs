//! Invalidate extended transport header (IBTA section 9.3.7): the key that a SEND with invalidate
//! takes out of use.

use super::be::{put_u32, u32_at};

/// Bytes of the header.
pub const LEN: usize = 4;

/// Reads the key.
#[inline]
pub fn parse(b: &[u8; LEN]) -> u32 {
    u32_at(b, 0)
}

/// Writes the key.
#[inline]
pub fn emit(rkey: u32, out: &mut [u8; LEN]) {
    put_u32(out, 0, rkey);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut out = [0; LEN];
        emit(0x1234_5678, &mut out);
        assert_eq!(out, [0x12, 0x34, 0x56, 0x78]);
        assert_eq!(parse(&out), 0x1234_5678);
    }
}
