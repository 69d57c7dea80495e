//! RDMA extended transport header (IBTA section 9.3.3): in the first packet of a WRITE and in READ
//! requests.

use super::be::{put_u32, put_u64, u32_at, u64_at};

mod field {
    pub const VA: usize = 0;
    pub const RKEY: usize = 8;
    pub const DMA_LEN: usize = 12;
}

/// Bytes of the header.
pub const LEN: usize = 16;

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Address in the responder's region.
    pub va: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Length of the whole message.
    pub dma_len: u32,
}

impl Repr {
    /// Reads it.
    #[inline]
    pub fn parse(b: &[u8; LEN]) -> Repr {
        Repr {
            va: u64_at(b, field::VA),
            rkey: u32_at(b, field::RKEY),
            dma_len: u32_at(b, field::DMA_LEN),
        }
    }

    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put_u64(out, field::VA, self.va);
        put_u32(out, field::RKEY, self.rkey);
        put_u32(out, field::DMA_LEN, self.dma_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let bytes = [
            0, 0, 0x55, 0xd2, 0x13, 0xa2, 0x20, 0, 0, 0, 0x14, 0x44, 0, 0, 0x13, 0x89,
        ];
        let repr = Repr::parse(&bytes);
        assert_eq!(
            repr,
            Repr {
                va: 0x55d2_13a2_2000,
                rkey: 0x1444,
                dma_len: 5001
            }
        );
        let mut out = [0; LEN];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
