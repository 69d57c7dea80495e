//! Fields of the shared send request that mean something else for some operations: the union of `struct rxe_send_wr`.

use roceline_abi::queue::SendWr as Words;
use roceline_engine::verbs::{SendWr, WrOpcode};
use roceline_engine::wire::Feth;

/// Fills in what is particular to an operation that is answered, or carried out here.
#[inline]
pub fn fill(wr: &mut SendWr, w: &Words, num_sge: u32, op: WrOpcode) {
    match op {
        WrOpcode::CmpSwap | WrOpcode::FetchAdd => wr.rkey = w.atomic_rkey(),
        // The provider puts the 8 bytes where inline bytes are, and sets no flag.
        WrOpcode::AtomicWrite if num_sge == 0 => {
            wr.inline = true;
            wr.length = 8;
        }
        WrOpcode::Flush => {
            wr.length = w.flush_length().into();
            wr.rkey = w.flush_rkey();
            wr.imm_or_rkey = Feth {
                placement: w.flush_type(),
                selectivity: w.flush_level(),
            }
            .raw();
        }
        WrOpcode::BindMw => {
            wr.length = 0;
            wr.compare_add = w.mw_length();
            wr.imm_or_rkey = w.mw_rkey();
            wr.rkey = w.mw_new_rkey();
            wr.swap = u64::from(w.mw_region()) | u64::from(w.mw_access()) << 32;
        }
        WrOpcode::LocalInv => wr.length = 0,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with these words in its union, as `struct rxe_send_wr` has them.
    fn filled(op: WrOpcode, union: [u64; 4], imm: u32, num_sge: u32) -> SendWr {
        let mut words = Words::default();
        words.union[..4].copy_from_slice(&union);
        words.imm_or_rkey = imm;
        let mut wr = SendWr {
            remote_addr: union[0],
            imm_or_rkey: imm,
            rkey: union[1] as u32,
            compare_add: union[1],
            swap: union[2],
            num_sge,
            length: 77,
            ..SendWr::default()
        };
        fill(&mut wr, &words, num_sge, op);
        wr
    }

    #[test]
    fn atomics_have_their_key_last() {
        let wr = filled(WrOpcode::CmpSwap, [8, 1, 2, 0xffff_0000_1234], 0, 1);
        assert_eq!((wr.remote_addr, wr.compare_add, wr.swap), (8, 1, 2));
        assert_eq!(wr.rkey, 0x1234);
    }

    /// Address, length and key, then type and level, a byte each.
    #[test]
    fn a_flush_names_a_range_and_what_it_asks_for() {
        let union = [0x7000, 0x55 << 32 | 4096, 1 << 8 | 3, 0];
        let wr = filled(WrOpcode::Flush, union, 9, 0);
        assert_eq!((wr.remote_addr, wr.length, wr.rkey), (0x7000, 4096, 0x55));
        let feth = Feth::from_raw(wr.imm_or_rkey);
        assert_eq!((feth.placement, feth.selectivity), (3, Feth::REGION));
    }

    /// Address, length, the region's lkey and the window's key, the new key and the rights.
    #[test]
    fn a_bind_names_window_region_and_rights() {
        let union = [0x7000, 1 << 40, 0x22 << 32 | 0x11, 0xe << 32 | 0x23];
        let wr = filled(WrOpcode::BindMw, union, 0, 0);
        assert_eq!((wr.remote_addr, wr.compare_add), (0x7000, 1 << 40));
        assert_eq!((wr.imm_or_rkey, wr.rkey), (0x22, 0x23));
        assert_eq!(wr.swap, 0xe << 32 | 0x11);
        assert_eq!(wr.length, 0);
    }

    #[test]
    fn an_atomic_write_has_its_bytes_in_the_slot_unless_it_has_entries() {
        let wr = filled(WrOpcode::AtomicWrite, [8, 7, 0, 0], 0, 0);
        assert_eq!((wr.inline, wr.length, wr.rkey), (true, 8, 7));
        let wr = filled(WrOpcode::AtomicWrite, [8, 7, 0, 0], 0, 1);
        assert_eq!((wr.inline, wr.length), (false, 77));
    }
}
