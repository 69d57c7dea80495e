//! The packets of one receive burst on their way through the stages: parsed, their ICRCs checked, sorted out, judged.
//!
//! In flow frames with what was parsed of them, in arrays of the same order; the transport knows each by its place. A packet that
//! waits for its placement leaves with its buffer; the buffers of all others go back in bulk ([`Received::clear`]).

use roceline_engine::wire::icrc::{self, Check};
use roceline_engine::wire::{self, Packet, ParseError, ParsedFrame};

use super::few::Few;
use crate::port::{Burst, Mbuf, RX_BURST};

/// Packets of a burst, in order.
pub struct Received {
    /// By place; as many mean something as there are mbufs.
    frames: Box<[ParsedFrame; Burst::CAPACITY]>,
    mbufs: Vec<Option<Mbuf>>,
    /// Buffers of which nobody wants anything any more.
    spent: Burst,
}

const _: () = assert!(RX_BURST <= Burst::CAPACITY && Burst::CAPACITY <= u64::BITS as usize);

impl Received {
    /// Room for a burst.
    pub fn new() -> Received {
        Received {
            frames: Box::new([ParsedFrame::blank(); Burst::CAPACITY]),
            mbufs: Vec::with_capacity(Burst::CAPACITY),
            spent: Burst::new(),
        }
    }

    /// Packets in it, those included that have left.
    #[inline]
    pub fn len(&self) -> usize {
        self.mbufs.len()
    }

    /// Parses a frame and adds it, if it is a packet.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<&Packet, (Mbuf, ParseError)> {
        let Some(frame) = self.frames.get_mut(self.mbufs.len()) else {
            // No burst has so many.
            return Err((mbuf, ParseError::NotRoce));
        };
        match wire::parse_into(mbuf.data(), frame) {
            Ok(()) => {
                self.mbufs.push(Some(mbuf));
                Ok(&frame.packet)
            }
            Err(error) => Err((mbuf, error)),
        }
    }

    /// Adds a packet of which it is known already what is in it.
    pub fn push_parsed(&mut self, mbuf: Mbuf, parsed: ParsedFrame) {
        if let Some(frame) = self.frames.get_mut(self.mbufs.len()) {
            *frame = parsed;
            self.mbufs.push(Some(mbuf));
        }
    }

    /// A buffer that is no longer wanted goes back with the others.
    #[inline]
    pub fn spend(&mut self, mbuf: Mbuf) {
        // Never more than a burst; one beyond would go back by itself.
        let _ = self.spent.push(mbuf);
    }

    /// Which of the packets have the ICRC that they should have, a bit each. All are still there.
    pub fn intact(&self) -> u64 {
        let mut checks = Few::<Check<'_>, { Burst::CAPACITY }>::new();
        for (mbuf, parsed) in self.mbufs.iter().flatten().zip(&*self.frames) {
            let Some(check) = Check::new(mbuf.data(), parsed) else {
                // The parser said where everything is, so this cannot be. One by one, then.
                return (0..self.len())
                    .map(|at| u64::from(icrc::verify(self.frame(at), self.parsed(at))) << at)
                    .sum();
            };
            checks.push(check);
        }
        icrc::verify_burst(checks.as_slice())
    }

    /// What was parsed of packet `at`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn parsed(&self, at: usize) -> &ParsedFrame {
        &self.frames[at]
    }

    /// The frame of packet `at`; empty if it has left.
    #[inline]
    pub fn frame(&self, at: usize) -> &[u8] {
        self.mbufs
            .get(at)
            .and_then(Option::as_ref)
            .map_or(&[], Mbuf::data)
    }

    /// Packet `tag`, if it has not left.
    #[inline]
    pub fn get_mut(&mut self, tag: u32) -> Option<(&mut Mbuf, &Packet)> {
        let mbuf = self.mbufs.get_mut(tag as usize)?.as_mut()?;
        Some((mbuf, &self.frames[tag as usize].packet))
    }

    /// Takes the buffer of packet `tag`, if it has not left.
    #[inline]
    pub fn take(&mut self, tag: u32) -> Option<Mbuf> {
        self.mbufs.get_mut(tag as usize)?.take()
    }

    /// The end of a burst: all buffers that are left go back.
    #[inline]
    pub fn clear(&mut self) {
        for mbuf in self.mbufs.drain(..).flatten() {
            let _ = self.spent.push(mbuf);
        }
        self.spent.clear();
    }
}
