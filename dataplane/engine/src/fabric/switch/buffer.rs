//! The shared buffer as accounts: who holds how many bytes of which part. No frame is here.
//!
//! A frame's bytes come from what is reserved for its account, then from the shared part as far as the dynamic threshold
//! allows, and else, of a lossless class, from its headroom. They go back in the reverse order, so an account leaves
//! its headroom as soon as it shrinks.

use super::config::Alpha;

/// What the accounts share.
#[derive(Debug)]
pub(super) struct Pool {
    size: u64,
    used: u64,
    most: u64,
}

/// What one ingress port holds of a lossless class, or one egress queue of a lossy one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// Bytes only for it, and those in use.
    pub reserved_limit: u32,
    pub reserved: u32,
    /// Bytes of the shared part.
    pub shared: u64,
    /// Bytes for what comes after a pause, and those in use.
    pub headroom_limit: u32,
    pub headroom: u32,
}

/// Where bytes come from that are more than what is reserved, and how many these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Reserved,
    Shared(u32),
    Headroom(u32),
}

impl Account {
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.reserved) + self.shared + u64::from(self.headroom)
    }
}

impl Pool {
    pub(super) fn new(size: u64) -> Pool {
        Pool {
            size,
            used: 0,
            most: 0,
        }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// The most that were in use.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// The dynamic threshold now.
    #[inline]
    pub(super) fn threshold(&self, alpha: Alpha) -> u64 {
        alpha.of(self.size - self.used)
    }

    /// Where `bytes` for an account come from, if there is room for them.
    #[inline]
    pub(super) fn fits(&self, account: &Account, alpha: Alpha, bytes: u32) -> Option<Part> {
        let rest = bytes - bytes.min(account.reserved_limit - account.reserved);
        let free = self.size - self.used;
        let shared = account.shared + u64::from(rest);
        // Once in its headroom, an account stays there until it shrinks: the upstream is to stop.
        if rest == 0 {
            Some(Part::Reserved)
        } else if account.headroom == 0 && u64::from(rest) <= free && shared <= alpha.of(free) {
            Some(Part::Shared(rest))
        } else if rest <= account.headroom_limit - account.headroom {
            Some(Part::Headroom(rest))
        } else {
            None
        }
    }

    /// Whether there is room for `bytes` for an account when nobody has anything.
    pub(super) fn can_ever_fit(&self, account: &Account, alpha: Alpha, bytes: u32) -> bool {
        let idle = Account {
            reserved_limit: account.reserved_limit,
            headroom_limit: account.headroom_limit,
            ..Account::default()
        };
        Pool::new(self.size).fits(&idle, alpha, bytes).is_some()
    }

    /// Takes `bytes` for an account; false if there is no room for them.
    #[inline]
    pub(super) fn take(&mut self, account: &mut Account, alpha: Alpha, bytes: u32) -> bool {
        let rest = match self.fits(account, alpha, bytes) {
            None => return false,
            Some(Part::Reserved) => 0,
            Some(Part::Shared(rest)) => {
                account.shared += u64::from(rest);
                self.used += u64::from(rest);
                self.most = self.most.max(self.used);
                rest
            }
            Some(Part::Headroom(rest)) => {
                account.headroom += rest;
                rest
            }
        };
        account.reserved += bytes - rest;
        true
    }

    /// Gives back `bytes` that were taken.
    #[inline]
    pub(super) fn give_back(&mut self, account: &mut Account, bytes: u32) {
        let headroom = bytes.min(account.headroom);
        account.headroom -= headroom;
        let rest = bytes - headroom;
        let shared = account.shared.min(rest.into());
        account.shared -= shared;
        self.used -= shared;
        // What is left is less than 2^32.
        account.reserved -= rest - shared as u32;
    }

    /// Whether an account's upstream is to stop.
    #[inline]
    pub(super) fn is_over(&self, account: &Account, alpha: Alpha) -> bool {
        account.headroom > 0 || (account.shared > 0 && account.shared >= self.threshold(alpha))
    }

    /// Whether an account's upstream that was stopped may go on.
    #[inline]
    pub(super) fn is_under(&self, account: &Account, alpha: Alpha, offset: u32) -> bool {
        account.headroom == 0
            && (account.shared == 0 || account.shared + u64::from(offset) <= self.threshold(alpha))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Alpha = Alpha::ratio(1, 2);

    fn account() -> Account {
        Account {
            reserved_limit: 100,
            headroom_limit: 200,
            ..Account::default()
        }
    }

    #[test]
    fn bytes_come_from_reserved_then_shared_then_headroom_and_go_back_in_reverse() {
        let mut pool = Pool::new(1_000);
        let mut a = account();
        assert!(pool.take(&mut a, HALF, 150));
        assert_eq!((a.reserved, a.shared, a.headroom), (100, 50, 0));
        assert!(!pool.is_over(&a, HALF));
        // 50 + 283 is within half of the 950 that are free; then it is as much as half of what is left.
        assert!(pool.take(&mut a, HALF, 283));
        assert!(pool.is_over(&a, HALF));
        assert!(pool.take(&mut a, HALF, 200));
        assert_eq!((a.reserved, a.shared, a.headroom), (100, 333, 200));
        assert!(!pool.take(&mut a, HALF, 1), "the headroom is full");
        assert_eq!(a.bytes(), 633);
        pool.give_back(&mut a, 250);
        assert_eq!((a.reserved, a.shared, a.headroom), (100, 283, 0));
        assert!(pool.is_under(&a, HALF, 0) && !pool.is_under(&a, HALF, 100));
        pool.give_back(&mut a, 383);
        assert_eq!((a.bytes(), pool.used(), pool.most()), (0, 0, 333));
    }

    #[test]
    fn what_never_fits_is_told_from_what_does_not_fit_now() {
        let mut pool = Pool::new(1_000);
        let mut a = account();
        assert!(pool.take(&mut a, HALF, 433) && pool.take(&mut a, HALF, 200));
        for (bytes, ever) in [(1, true), (600, true), (601, false)] {
            assert_eq!(pool.fits(&a, HALF, bytes), None, "{bytes}");
            assert_eq!(pool.can_ever_fit(&a, HALF, bytes), ever, "{bytes}");
        }
    }

    /// The fixed point of n busy queues is alpha B / (1 + n alpha) each (Choudhury and Hahne, equation 3).
    #[test]
    fn busy_queues_share_alike_and_leave_some_free() {
        for (alpha, n) in [(Alpha::ratio(1, 1), 3), (Alpha::ratio(1, 8), 8)] {
            let mut pool = Pool::new(1_000_000);
            let mut accounts = vec![Account::default(); n];
            let mut refused = 0;
            while refused < n {
                refused = 0;
                for a in &mut accounts {
                    refused += usize::from(!pool.take(a, alpha, 100));
                }
            }
            let alpha = f64::from(alpha.parts()) / 1024.0;
            let each = alpha * 1e6 / (1.0 + n as f64 * alpha);
            for a in &accounts {
                assert!((a.shared as f64 - each).abs() < 500.0, "{a:?}, not {each}");
            }
        }
    }
}
