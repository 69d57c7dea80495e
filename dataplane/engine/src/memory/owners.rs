//! Which windows a QP has bound: lists, so that the end of a QP looks at its own windows and not at all there are.
//!
//! A list is threaded through the windows in it: `windows` of such a [`super::table::Region`] is the index of the next, `prev`
//! that of the one before, 0 for none. QPs are spread over a fixed number of lists, by their mixed numbers, so a few share
//! one. Binding and unbinding, which happen in the hot loop, put in and take out without a search or an allocation.

use super::MrTable;
use super::table::mix;
use crate::verbs::QpId;

/// Lists; a power of two.
const LISTS: usize = 1 << 12;

/// The first window of each list, 0 for none.
pub(super) struct Owners(Box<[u32]>);

impl Default for Owners {
    fn default() -> Owners {
        Owners(vec![0; LISTS].into_boxed_slice())
    }
}

impl MrTable {
    fn list_of(&mut self, qp: u32) -> &mut u32 {
        let list = mix(self.seed, qp) as usize & (LISTS - 1);
        &mut self.owners.0[list]
    }

    /// The first window of the list that a QP is in; 0 if there is none.
    pub(super) fn first_owned(&mut self, qp: QpId) -> u32 {
        *self.list_of(qp.0)
    }

    /// Owner of a window in a list, and the window behind it.
    pub(super) fn owned(&mut self, index: u32) -> (QpId, u32) {
        let window = self.at_mut(index);
        (QpId(window.qp), window.windows)
    }

    /// Puts a window into its QP's list.
    pub(super) fn own(&mut self, index: u32) {
        let qp = self.at_mut(index).qp;
        let next = core::mem::replace(self.list_of(qp), index);
        let window = self.at_mut(index);
        window.windows = next;
        window.prev = 0;
        if next != 0 {
            self.at_mut(next).prev = index;
        }
    }

    /// Takes a window out of its QP's list.
    pub(super) fn disown(&mut self, index: u32) {
        let window = self.at_mut(index);
        let (qp, prev) = (window.qp, window.prev);
        let next = core::mem::take(&mut window.windows);
        match prev {
            0 => *self.list_of(qp) = next,
            _ => self.at_mut(prev).windows = next,
        }
        if next != 0 {
            self.at_mut(next).prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, Binding, MrAttr, WindowType};

    /// More QPs than lists, so that some share one; every third window is taken out before the QPs end, in another order than
    /// they came.
    #[test]
    fn the_end_of_a_qp_unbinds_its_windows_and_no_others() {
        const QPS: u32 = 2 * LISTS as u32;
        let mut t = MrTable::new(2 * QPS, 5);
        let attr = MrAttr {
            pd: 1,
            addr: 0x1000,
            iova: 0x1000,
            len: 0x1000,
            access: Access::MW_BIND,
        };
        let region = t.register(attr).unwrap().lkey;
        let windows: Vec<(QpId, u32)> = (0..2 * QPS)
            .map(|n| {
                let qp = QpId(n % QPS);
                let window = t.alloc_window(1, WindowType::Two).unwrap().rkey;
                let binding = Binding {
                    window,
                    new_key: window,
                    region,
                    addr: 0x1000,
                    len: 1,
                    access: Access::REMOTE_READ,
                };
                t.bind(&binding, (1, qp)).unwrap();
                (qp, window)
            })
            .collect();
        let bound = |t: &MrTable, (qp, key): (QpId, u32)| {
            t.check_remote(key, (1, qp), 0x1000, 1, Access::REMOTE_READ)
                .is_ok()
        };
        for &(qp, key) in windows.iter().step_by(3) {
            t.invalidate(key, (1, qp)).unwrap();
        }
        // Its own list is all that the end of a QP looks at.
        for n in 0..QPS {
            let mut listed = 0;
            let mut index = t.first_owned(QpId(n));
            while index != 0 {
                index = t.owned(index).1;
                listed += 1;
            }
            assert!(listed < 40, "{listed} windows in the list of QP {n}");
        }
        for n in (0..QPS).rev().step_by(2) {
            t.unbind_all_of(QpId(n));
        }
        for (n, &window) in windows.iter().enumerate() {
            let lives = n % 3 != 0 && window.0.0 % 2 == 0;
            assert_eq!(bound(&t, window), lives, "window {n}");
        }
        for n in 0..QPS {
            t.unbind_all_of(QpId(n));
        }
        assert!(windows.iter().all(|&window| !bound(&t, window)));
        assert!(t.deregister(region).is_ok(), "nothing is bound to it");
    }
}
