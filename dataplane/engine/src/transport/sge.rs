//! Cutting scatter/gather lists: which pieces of memory a packet's payload comes from or goes to.

use crate::descriptor::{MemSlice, put};
use crate::memory::{Access, AccessError, MrTable};
use crate::verbs::Sge;

/// A place in a scatter/gather list. Packets follow one another, so the place is kept between them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Which message it is.
    message: u32,
    /// Bytes of the message before this place.
    offset: u32,
    /// Entry.
    index: u32,
    /// Bytes of that entry before this place.
    within: u32,
}

impl Cursor {
    /// Goes to byte `offset` of `message`, whose list is `sges`.
    #[inline]
    pub fn seek(&mut self, message: u32, sges: &[Sge], offset: u32) {
        if self.message == message && self.offset == offset {
            return;
        }
        let mut left = offset;
        let mut index = 0;
        for sge in sges {
            if left < sge.length {
                break;
            }
            left -= sge.length;
            index += 1;
        }
        *self = Cursor {
            message,
            offset,
            index,
            within: left,
        };
    }

    /// Appends the checked memory of the next `len` bytes to `out` and goes past them. Returns the first
    /// slice and their number; on error nothing is appended and the cursor stays.
    #[inline]
    pub fn slice(
        &mut self,
        sges: &[Sge],
        len: u32,
        access: Access,
        pd: u32,
        mrs: &MrTable,
        out: &mut Vec<MemSlice>,
    ) -> Result<(u32, u8), AccessError> {
        let first = out.len();
        let mut at = *self;
        let mut left = len;
        while left > 0 {
            let Some(sge) = sges.get(at.index as usize) else {
                out.truncate(first);
                return Err(AccessError::Range {
                    addr: 0,
                    len: u64::from(left),
                });
            };
            let n = left.min(sge.length - at.within);
            if n == 0 {
                at.index += 1;
                at.within = 0;
                continue;
            }
            let addr = sge.addr.wrapping_add(u64::from(at.within));
            match mrs.check(sge.lkey, pd, addr, n, access) {
                Ok(slice) => put(out, slice),
                Err(e) => {
                    out.truncate(first);
                    return Err(e);
                }
            }
            at.within += n;
            left -= n;
        }
        at.offset = self.offset.wrapping_add(len);
        *self = at;
        Ok((first as u32, (out.len() - first) as u8))
    }
}

/// Checks every entry of a list; empty entries need no key.
pub(crate) fn check_all(
    sges: &[Sge],
    access: Access,
    pd: u32,
    mrs: &MrTable,
) -> Result<(), AccessError> {
    for sge in sges.iter().filter(|s| s.length > 0) {
        mrs.check(sge.lkey, pd, sge.addr, sge.length, access)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::MrAttr;

    fn table() -> (MrTable, u32) {
        let mut t = MrTable::new(1, 0);
        let attr = MrAttr {
            pd: 0,
            addr: 0,
            iova: 0,
            len: 1 << 20,
            access: Access(1),
        };
        let key = t.register(attr).unwrap().lkey;
        (t, key)
    }

    proptest! {
        /// However a list is split and packets are cut, the pieces are the message's bytes in order.
        #[test]
        fn pieces_are_the_bytes_in_order(
            lens in prop::collection::vec(0..5000u32, 1..32),
            mtu in 1..4097u32,
            back in 0..20usize,
        ) {
            let (mrs, lkey) = table();
            let sges: Vec<Sge> = lens.iter().enumerate()
                .map(|(i, &length)| Sge { addr: i as u64 * 8192, length, lkey })
                .collect();
            let bytes: Vec<u64> =
                sges.iter().flat_map(|s| s.addr..s.addr + u64::from(s.length)).collect();
            let total = bytes.len() as u32;
            let mut cursor = Cursor::default();
            let mut cut = |offset: u32| {
                let n = mtu.min(total - offset);
                let mut out = Vec::new();
                cursor.seek(0, &sges, offset);
                let (first, count) = cursor.slice(&sges, n, Access(1), 0, &mrs, &mut out).unwrap();
                assert_eq!((first, count as usize), (0, out.len()));
                let got: Vec<u64> =
                    out.iter().flat_map(|s| s.addr..s.addr + u64::from(s.len)).collect();
                assert_eq!(got, &bytes[offset as usize..(offset + n) as usize]);
            };
            let offsets: Vec<u32> = (0..total).step_by(mtu as usize).collect();
            for &o in &offsets {
                cut(o);
            }
            // and again from somewhere before, as a retransmission does
            for &o in &offsets[offsets.len().saturating_sub(back)..] {
                cut(o);
            }
            let mut out = Vec::new();
            let rest = total - offsets.last().map_or(0, |o| o + mtu.min(total - o));
            prop_assert_eq!(rest, 0);
            prop_assert!(cursor.slice(&sges, 1, Access(1), 0, &mrs, &mut out).is_err());
            prop_assert!(out.is_empty());
        }
    }
}
