//! What the parts of a port ([`super::spread`]) tell each other of its pauses.
//!
//! A port has one other end, so one part speaks with it, the first: it hears its pause frames and sends ours. What it has heard is a word that the
//! other parts read once a poll; what they have too much of is a byte each of another word, which it reads. So the other end goes on when all
//! parts have room again. Who changes a word knocks at the doors of those that read it and may sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use roceline_engine::congestion::priority::PriorityMask;

use super::spread::{Door, MAX_PARTS};

/// What the first part has heard and done, by priority. With 802.3x what it has heard is of all priorities, and what it has done is in bit 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseState {
    /// May not send.
    pub paused: PriorityMask,
    /// Is to drop instead: in a storm of pauses that were received.
    pub discarding: PriorityMask,
    /// Has stopped the other end for too long: what finds no room is to be dropped.
    pub in_storm: PriorityMask,
}

impl PauseState {
    fn word(self) -> u32 {
        u32::from_le_bytes([self.paused, self.discarding, self.in_storm, 0])
    }

    fn of(word: u32) -> PauseState {
        let [paused, discarding, in_storm, _] = word.to_le_bytes();
        PauseState {
            paused,
            discarding,
            in_storm,
        }
    }
}

/// The words that all parts share.
#[derive(Debug)]
pub(super) struct Board {
    /// A [`PauseState`], by the first part.
    state: CachePadded<AtomicU32>,
    /// Byte n, by part n: what of its received packets is above XOFF.
    full: CachePadded<AtomicU64>,
    /// By part: what it has read last. Nobody else looks at it.
    seen: Box<[CachePadded<AtomicU64>]>,
    doors: Box<[Arc<Door>]>,
}

const _: () = assert!(MAX_PARTS <= 8, "a byte for each part");

impl Board {
    pub(super) fn new(doors: &[Arc<Door>]) -> Arc<Board> {
        Arc::new(Board {
            state: CachePadded::default(),
            full: CachePadded::default(),
            seen: doors.iter().map(|_| CachePadded::default()).collect(),
            doors: doors.into(),
        })
    }
}

/// A part's place at the board.
#[derive(Clone, Debug)]
pub struct PausePart {
    board: Arc<Board>,
    number: usize,
}

impl PausePart {
    pub(super) fn new(board: &Arc<Board>, number: u32) -> PausePart {
        PausePart {
            board: Arc::clone(board),
            number: number as usize,
        }
    }

    /// Whether it speaks with the other end of the port.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    /// For the first part: how it is from now on.
    #[inline]
    pub fn tell(&self, state: PauseState) {
        if self.board.state.load(Ordering::Relaxed) != state.word() {
            self.board.state.store(state.word(), Ordering::Release);
            self.board
                .doors
                .iter()
                .skip(1)
                .for_each(|door| door.knock());
        }
    }

    /// How it is.
    #[inline]
    pub fn state(&self) -> PauseState {
        let word = self.board.state.load(Ordering::Acquire);
        self.see(word.into());
        PauseState::of(word)
    }

    /// For the others: what of their packets is above XOFF, and not yet down to XON.
    #[inline]
    pub fn set_full(&self, mask: PriorityMask) {
        let shift = 8 * self.number;
        let own = self.board.full.load(Ordering::Relaxed) >> shift & 0xff;
        let changed = own ^ u64::from(mask);
        if changed != 0 {
            // Nobody else changes this byte.
            self.board
                .full
                .fetch_xor(changed << shift, Ordering::AcqRel);
            self.board.doors[0].knock();
        }
    }

    /// For the first part: what any other has too much of.
    #[inline]
    pub fn full(&self) -> PriorityMask {
        let word = self.board.full.load(Ordering::Acquire);
        self.see(word);
        word.to_le_bytes().iter().fold(0, |all, own| all | own)
    }

    #[inline]
    fn see(&self, word: u64) {
        self.board.seen[self.number].store(word, Ordering::Relaxed);
    }

    /// Whether there is nothing at the board that it has not read.
    pub(super) fn is_quiet(&self) -> bool {
        let word = match self.is_first() {
            true => self.board.full.load(Ordering::Acquire),
            false => self.board.state.load(Ordering::Acquire).into(),
        };
        word == self.board.seen[self.number].load(Ordering::Relaxed)
    }

    /// For the first part: what is not to be sent, as it said last.
    #[inline]
    pub(super) fn held(&self) -> PriorityMask {
        self.board.state.load(Ordering::Relaxed) as PriorityMask
    }
}
