//! Memory windows: keys of their own for a part of a region, with rights of their own.
//!
//! A window is made by a command and bound by a send request ([`MrTable::bind`]), which gives it a new key. Rules and
//! their numbers are those of IBTA 10.6.7 and of its compliance statements C10-72 to C10-75 and o10-36.2.2 to o10-37.2.40.
//!
//! A window of type 1 is bound to a region and may be used by every QP of its protection domain; a zero length unbinds it. A
//! window of type 2 (2B) is bound by a QP, serves that QP only, and is unbound by invalidation: a local request, a SEND with
//! invalidate of the QP's peer, or the end of the QP.

use super::table::{ANY_QP, MrTable, Region, slot_of};
use super::{Access, AccessError};
use crate::verbs::QpId;

/// `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WindowType {
    /// Of a protection domain.
    One = 1,
    /// Of a QP (2B).
    Two = 2,
}

impl WindowType {
    /// The type with this number.
    pub const fn from_raw(v: u8) -> Option<WindowType> {
        match v {
            1 => Some(WindowType::One),
            2 => Some(WindowType::Two),
            _ => None,
        }
    }
}

/// A window that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwInfo {
    /// Dense index, from the same space as those of regions.
    pub index: u32,
    /// Its key; each binding changes the lowest 8 bits to those that it names.
    pub rkey: u32,
}

/// What a bind request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window's present key.
    pub window: u32,
    /// Its new key, of which the lowest 8 bits count.
    pub new_key: u32,
    /// The region's lkey; not looked at if `len` is 0.
    pub region: u32,
    /// First byte, as the region names it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Rights of peers; with [`Access::ZERO_BASED`] the first byte is named 0.
    pub access: Access,
}

/// Rights that a window can have. Local write means nothing for it, but programs ask for it.
const WINDOW_ACCESS: u32 =
    0xf | Access::ZERO_BASED.0 | Access::FLUSH_GLOBAL.0 | Access::FLUSH_PERSISTENT.0;

/// Why a window cannot be bound or invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// No such window, or it has another key by now.
    #[error("key {0:#x} names no memory window")]
    UnknownWindow(u32),
    /// No such region.
    #[error("lkey {0:#x} names no memory region")]
    UnknownRegion(u32),
    /// Window, region and QP must be of one protection domain.
    #[error(
        "window {0:#x}, its memory region and the queue pair belong to different protection domains"
    )]
    WrongPd(u32),
    /// Rights that a window cannot have.
    #[error("a memory window cannot have access {0:#x}")]
    Access(u32),
    /// A window of type 1 has the addresses of its region.
    #[error("a memory window of type 1 cannot be zero based")]
    ZeroBased,
    /// Regions whose first byte is named 0 take no windows.
    #[error("the memory region {0:#x} is zero based: no window can be bound to it")]
    ZeroBasedRegion(u32),
    /// A window of type 2 is bound already.
    #[error("memory window {0:#x} of type 2 is bound: invalidate it first")]
    Bound(u32),
    /// A window of type 2 is unbound by invalidation.
    #[error("a memory window of type 2 cannot be bound to nothing: invalidate it")]
    Empty,
    /// The region was not registered for windows.
    #[error("memory region {0:#x} was registered without IBV_ACCESS_MW_BIND")]
    NoBind(u32),
    /// The window would allow more than the region.
    #[error(
        "a window with remote write or atomic access needs a memory region with local write access"
    )]
    NoLocalWrite,
    /// Outside the region.
    #[error("range {addr:#x}+{len:#x} is outside the memory region")]
    Range {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Only windows of type 2 can be invalidated.
    #[error("key {0:#x} is no bound memory window of type 2: nothing else can be invalidated")]
    NotInvalidatable(u32),
    /// Another QP has bound it.
    #[error("memory window {0:#x} was bound by another queue pair")]
    WrongQp(u32),
}

impl MrTable {
    /// Windows that exist.
    pub fn windows(&self) -> u32 {
        self.live_windows
    }

    /// Makes a window of `pd`, bound to nothing.
    pub fn alloc_window(&mut self, pd: u32, kind: WindowType) -> Result<MwInfo, AccessError> {
        if self.live_windows == self.max() {
            return Err(AccessError::Full(self.live_windows));
        }
        let (index, key) = self.take_place();
        let window = self.at_mut(index);
        *window = Region {
            lkey: 0,
            rkey: 0,
            pd,
            qp: ANY_QP,
            iova: 0,
            len: 0,
            delta: 0,
            access: Access(0),
            mr: 0,
            key,
            windows: 0,
            prev: 0,
            window: Some(kind),
            variant: window.variant,
        };
        self.live_windows += 1;
        Ok(MwInfo { index, rkey: key })
    }

    /// Frees the window at `index`; its key names nothing from now on. False if there is none.
    pub fn dealloc_window(&mut self, index: u32) -> bool {
        let window = self.regions.get(slot_of(index << 8));
        if window.is_none_or(|w| w.window.is_none()) {
            return false;
        }
        self.unbind(index);
        self.give_back(index);
        self.live_windows -= 1;
        true
    }

    /// Binds a window, for a request of QP `qp` of protection domain `pd`.
    pub fn bind(&mut self, binding: &Binding, (pd, qp): (u32, QpId)) -> Result<(), WindowError> {
        let window = self.window(binding.window)?;
        let (kind, window_pd, bound) = (window.window, window.pd, window.rkey != 0);
        let b = binding;
        if b.access.0 & !WINDOW_ACCESS != 0 {
            return Err(WindowError::Access(b.access.0));
        }
        let zero_based = b.access.allows(Access::ZERO_BASED);
        match kind {
            // o10-36.2.2
            Some(WindowType::One) if zero_based => return Err(WindowError::ZeroBased),
            // o10-37.2.30
            Some(WindowType::Two) if bound => return Err(WindowError::Bound(b.window)),
            // o10-37.2.40
            Some(WindowType::Two) if b.len == 0 => return Err(WindowError::Empty),
            _ => {}
        }
        // C10-72
        if window_pd != pd {
            return Err(WindowError::WrongPd(b.window));
        }
        let target = match b.len {
            0 => None,
            _ => Some(self.target(b, pd)?),
        };
        let index = b.window >> 8;
        self.unbind(index);
        let key = index << 8 | b.new_key & 0xff;
        let window = self.at_mut(index);
        window.key = key;
        if let Some((region, delta)) = target {
            // By what name the first byte goes: as in the region, or 0.
            let base = if zero_based { b.addr } else { 0 };
            window.rkey = key;
            window.iova = b.addr.wrapping_sub(base);
            window.len = b.len;
            window.delta = delta.wrapping_add(base);
            window.access = b.access;
            window.mr = region;
            window.qp = match kind {
                Some(WindowType::Two) => qp.0,
                _ => ANY_QP,
            };
            self.at_mut(region).windows += 1;
            if kind == Some(WindowType::Two) {
                self.own(index);
            }
        }
        Ok(())
    }

    /// The region that a window is to be bound to: its index, and its delta.
    fn target(&self, b: &Binding, pd: u32) -> Result<(u32, u64), WindowError> {
        let region = match self.regions.get(slot_of(b.region)) {
            Some(r) if r.lkey == b.region && b.region != 0 => r,
            _ => return Err(WindowError::UnknownRegion(b.region)),
        };
        if region.pd != pd {
            return Err(WindowError::WrongPd(b.window));
        }
        if region.access.allows(Access::ZERO_BASED) {
            return Err(WindowError::ZeroBasedRegion(b.region));
        }
        // C10-73
        if !region.access.allows(Access::MW_BIND) {
            return Err(WindowError::NoBind(b.region));
        }
        // C10-74
        let writes = Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
        if b.access.0 & writes != 0 && !region.access.allows(Access::LOCAL_WRITE) {
            return Err(WindowError::NoLocalWrite);
        }
        // C10-75
        let offset = b.addr.wrapping_sub(region.iova);
        if offset > region.len || b.len > region.len - offset {
            let (addr, len) = (b.addr, b.len);
            return Err(WindowError::Range { addr, len });
        }
        Ok((region.mr, region.delta))
    }

    /// Unbinds a window of type 2, for a request on QP `qp` or of its peer (IBTA 10.6.7.2.6). Regions that programs
    /// register, and windows of type 1 (o10-37.2.26), cannot be invalidated.
    pub fn invalidate(&mut self, key: u32, (pd, qp): (u32, QpId)) -> Result<(), WindowError> {
        let window = match self.window(key) {
            Ok(w) if w.window == Some(WindowType::Two) && w.rkey == key => w,
            _ => return Err(WindowError::NotInvalidatable(key)),
        };
        if window.pd != pd {
            return Err(WindowError::WrongPd(key));
        }
        if window.qp != qp.0 {
            return Err(WindowError::WrongQp(key));
        }
        self.unbind(key >> 8);
        Ok(())
    }

    /// Unbinds the windows of type 2 that a QP has bound, since it is gone.
    pub fn unbind_all_of(&mut self, qp: QpId) {
        let mut index = self.first_owned(qp);
        while index != 0 {
            let (owner, next) = self.owned(index);
            if owner == qp {
                self.unbind(index);
            }
            index = next;
        }
    }

    fn window(&self, key: u32) -> Result<&Region, WindowError> {
        match self.regions.get(slot_of(key)) {
            Some(w) if w.key == key && w.window.is_some() => Ok(w),
            _ => Err(WindowError::UnknownWindow(key)),
        }
    }

    fn unbind(&mut self, index: u32) {
        let window = self.at_mut(index);
        if core::mem::take(&mut window.rkey) != 0 {
            if window.qp != ANY_QP {
                self.disown(index);
            }
            let window = self.at_mut(index);
            window.qp = ANY_QP;
            window.len = 0;
            window.access = Access(0);
            let region = window.mr;
            self.at_mut(region).windows -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
