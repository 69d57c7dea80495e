//! Immediate data (IBTA section 9.3.6): four bytes that belong to the program. They are handed on in
//! memory order, as verbs has them in `imm_data`.

/// Bytes of the header.
pub const LEN: usize = 4;

/// Reads it.
#[inline]
pub fn parse(b: &[u8; LEN]) -> u32 {
    u32::from_ne_bytes(*b)
}

/// Writes it.
#[inline]
pub fn emit(imm: u32, out: &mut [u8; LEN]) {
    *out = imm.to_ne_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_memory_order() {
        let mut out = [0; LEN];
        emit(parse(&[0xca, 0xfe, 0, 1]), &mut out);
        assert_eq!(out, [0xca, 0xfe, 0, 1]);
        assert_eq!(parse(&out).to_ne_bytes(), [0xca, 0xfe, 0, 1]);
    }
}
