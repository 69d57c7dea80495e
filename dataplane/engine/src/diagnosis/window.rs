//! A memory window could not be bound, or not be invalidated.

use super::{Diagnosis, operation, peer};
use crate::memory::WindowError;
use crate::transport::journal::PostMortem;

/// Why, in words, and what helps.
pub(super) fn refused(record: &PostMortem, error: WindowError) -> Diagnosis {
    let request = record.request;
    let wr_id = request.map_or(0, |r| r.wr_id);
    let remedy = match error {
        WindowError::UnknownWindow(_) => {
            "name the window by its newest key: each bind changes it (ibv_inc_rkey)"
        }
        WindowError::UnknownRegion(_) => "bind to a region that is registered",
        WindowError::WrongPd(_) => {
            "create queue pair, region and window with one protection domain"
        }
        WindowError::Access(_) => {
            "give windows remote read, write and atomic access, and zero base, only"
        }
        WindowError::ZeroBased => "take a window of type 2, or leave IBV_ACCESS_ZERO_BASED out",
        WindowError::ZeroBasedRegion(_) => "register the region without IBV_ACCESS_ZERO_BASED",
        WindowError::Bound(_) => {
            "invalidate the window (IBV_WR_LOCAL_INV) before it is bound again"
        }
        WindowError::Empty => "invalidate the window with IBV_WR_LOCAL_INV",
        WindowError::NoBind(_) => "register the region with IBV_ACCESS_MW_BIND too",
        WindowError::NoLocalWrite => "register the region with IBV_ACCESS_LOCAL_WRITE too",
        WindowError::Range { .. } => "compare address and length with those of the region",
        WindowError::NotInvalidatable(_) => {
            "invalidate the newest key of a bound window of type 2 only; a window of type 1 is unbound by binding it with \
             length 0"
        }
        WindowError::WrongQp(_) => "invalidate a window through the queue pair that bound it",
    };
    let whose = match request.and_then(|r| r.op) {
        Some(op) => format!("the {} with wr_id {wr_id:#x}", operation(Some(op))),
        None => format!("a SEND with invalidate of {}", peer(record)),
    };
    Diagnosis::certain("memory-window", format!("{whose}: {error}"), remedy)
}
