//! Requests that somebody has under way with an lcore at once. They are served in the order in which they come, so whoever has
//! many threads that ask would fill the queue: beyond a few, its own threads wait for each other instead.

use std::sync::{Condvar, Mutex, PoisonError};

/// So many turns at once.
#[derive(Debug)]
pub struct Turns {
    free: Mutex<usize>,
    given_back: Condvar,
}

impl Turns {
    /// `most` of them.
    pub fn new(most: usize) -> Turns {
        Turns {
            free: Mutex::new(most),
            given_back: Condvar::new(),
        }
    }

    /// Waits for one, which is given back when dropped.
    pub fn take(&self) -> Turn<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.given_back.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Turn(self)
    }
}

/// A turn.
#[derive(Debug)]
pub struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_than_so_many_at_once_and_everybody_in_the_end() {
        let turns = Turns::new(2);
        let counts = [const { AtomicUsize::new(0) }; 3];
        let [inside, most, done] = &counts;
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let turn = turns.take();
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 2);
        assert_eq!(done.load(Ordering::SeqCst), 300);
    }
}
