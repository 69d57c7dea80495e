//! Fields of the shared send request that mean something else for some operations: the union of `struct rxe_send_wr`.

use roceline_abi::queue::SendWqe;
use roceline_engine::verbs::{SendWr, WrOpcode};
use roceline_engine::wire::Feth;

/// Fills in what is particular to an operation that is answered, or carried out here.
pub fn fill(wr: &mut SendWr, wqe: &SendWqe, op: WrOpcode) {
    let w = &wqe.wr;
    match op {
        WrOpcode::CmpSwap | WrOpcode::FetchAdd => wr.rkey = w.atomic_rkey(),
        // The provider puts the 8 bytes where inline bytes are, and sets no flag.
        WrOpcode::AtomicWrite if wqe.dma.num_sge == 0 => {
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
