//! What of a poll may be chosen: how much it takes at once, and how far ahead it asks the cache.

use serde::{Deserialize, Serialize};

use super::Lcore;
use crate::port::{Burst, RX_BURST};

/// Sizes of bursts, and distances of prefetching. What is best depends on CPU and load; `roceline tune` measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Packets that a NIC receives at once, 1 to [`RX_BURST`].
    pub rx_burst: u32,
    /// Packets that its transport sends before they go to the port, 1 to [`RX_BURST`].
    pub tx_burst: u32,
    /// Frames of a burst of which headers are fetched ahead of the one that is parsed, 0 to [`RX_BURST`].
    pub rx_prefetch: u32,
    /// Send queues whose turn is to come of which requests and state are fetched ahead, 0 to [`Tuning::MAX_TX_PREFETCH`].
    pub tx_prefetch: u32,
}

impl Tuning {
    /// More send queues ahead than this would drive each other out of the nearest cache: each takes a dozen lines.
    pub const MAX_TX_PREFETCH: u32 = 16;

    /// Steps of prefetching go this far in a list of what comes next: the first step, which brings what the second reads, and the
    /// second. None: nothing is fetched.
    #[inline(always)]
    pub(super) fn ahead(distance: usize) -> Option<(usize, usize)> {
        let far = distance.checked_sub(1)?;
        Some((far, far / 2))
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            rx_burst: RX_BURST as u32,
            tx_burst: RX_BURST as u32,
            rx_prefetch: RX_BURST as u32,
            tx_prefetch: 2,
        }
    }
}

impl Lcore {
    /// Goes by other sizes and distances. Only before the first poll: what a burst holds would be lost.
    pub fn tune(&mut self, tuning: Tuning) {
        self.shared.tuning = tuning;
        for nic in &mut self.nics {
            nic.rx_burst = Burst::of(tuning.rx_burst as usize);
            nic.tx_burst = Burst::of(tuning.tx_burst as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_step_is_half_way_to_the_first() {
        let steps = [0, 1, 2, 4, 8].map(Tuning::ahead);
        assert_eq!(steps[0], None);
        assert_eq!(steps[1..], [(0, 0), (1, 0), (3, 1), (7, 3)].map(Some));
        let default = Tuning::default().tx_prefetch as usize;
        assert_eq!(Tuning::ahead(default), Some((1, 0)));
    }

    #[test]
    fn a_burst_wants_what_it_was_made_for() {
        let wanted = [0, 1, 8, 32, 64].map(|n| Burst::of(n).wanted());
        assert_eq!(wanted, [1, 1, 8, 32, 32]);
        assert_eq!(Burst::new().wanted(), RX_BURST);
        assert_eq!(Burst::of(8).room(), Burst::CAPACITY);
    }
}
