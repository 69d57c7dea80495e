//! The invariant CRC (IBTA section 7.8.1 and annex A17): CRC-32 with the Ethernet polynomial over
//! eight bytes of ones in place of an LRH, the IP, UDP and BTH headers with their variant fields set to
//! ones, the extended headers, the payload and its pad. VLAN tags and Ethernet headers are outside.
//!
//! For a poll loop, bursts:
//!
//! * received: a [`Check`] of each parsed frame, and [`verify_burst`] answers a bit for each. Frames are only read.
//! * to be sent: headers by [`super::HeaderTemplate::write`] (or headers and `Seal` at once by [`super::HeaderTemplate::build`]), a
//!   [`Seal`] of each frame that says where its payload is, and [`seal_burst`], which copies the payload while it sums, fills the pad and
//!   stores the ICRC. Write the headers of the whole burst first: what was just stored in small pieces is slow to load.
//! * payload from several places: an [`IcrcState`] for each packet, [`IcrcState::copy_from`] for each piece but the last, and a
//!   [`Seal::behind`] for that.
//!
//! [`BATCH`] packets, or half as many, cost less than so many one by one: short ones of the same lengths go side by side, and of others
//! the last step is done for several in one vector. For a single packet there are [`verify`], [`seal`] and `IcrcState`. Which instructions compute all that is chosen once
//! ([`Kernel`]; by `ROCELINE_ICRC` if it is set), after they have shown that they compute what the portable kernel does.

mod fold;
mod header;
mod kernel;
mod lockstep;
mod polynomial;
mod portable;
mod proof;
mod sparse;
#[cfg(test)]
pub(super) mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use core::marker::PhantomData;

use header::Family;
pub use kernel::{Choice, ENV, Kernel, KernelError, NAMES, current};

use super::template::pad_len;
use super::{ParsedFrame, bth, ethernet, ipv6, udp};

/// Bytes of the ICRC.
pub const LEN: usize = 4;

/// Packets that are finished together; bursts may be longer.
pub const BATCH: usize = 8;

/// Bytes before the IP header that headers under the ICRC begin with: ones in place of an LRH.
const BEFORE_L3: usize = 8;

const HEADERS_V6: usize = ipv6::LEN + udp::LEN + bth::LEN;

/// Eight bytes of ones after a register of ones, as a block of [`fold`]: the first four cancel the register.
const PREFIX: u128 = 0xffff_ffff << 96;

/// A CRC in the making: headers first, then payload in any number of pieces, then pad.
#[derive(Clone, Copy, Debug)]
pub struct IcrcState(u128);

impl IcrcState {
    /// Starts with the headers of a packet: all bytes from the IP header to before the payload (or beyond: what
    /// follows the BTH is taken as it is). Bytes too few to be IP, UDP and BTH are taken unmasked: no
    /// packet is so short, and [`super::parse`] refuses it.
    #[inline]
    pub fn new(headers: &[u8]) -> IcrcState {
        let mut state = IcrcState(PREFIX);
        let family = Family::of(headers.first().copied().unwrap_or(0));
        let len = family.span() - BEFORE_L3;
        let Some((masked, rest)) = headers.split_at_checked(len) else {
            state.update(headers);
            return state;
        };
        let mut start = [0; BEFORE_L3 + HEADERS_V6];
        start[BEFORE_L3..][..len].copy_from_slice(masked);
        state.0 = 0;
        state.update(&family.masked(&start));
        state.update(rest);
        state
    }

    /// A plain CRC-32 that has taken no byte yet.
    pub const fn crc32() -> IcrcState {
        IcrcState((polynomial::prefix_of(!0) as u128) << 96)
    }

    /// Adds payload or pad.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        current().update(self, bytes);
    }

    /// Adds the payload that is copied from `from` to all of `to`. Each byte is loaded once: even if somebody writes to `from` meanwhile,
    /// the sum is that of `to`.
    ///
    /// # Safety
    ///
    /// `from` must be good for reads of as many bytes as `to` has, and apart from it. It may be memory that others write to.
    #[inline]
    pub unsafe fn copy_from(&mut self, to: &mut [u8], from: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { current().copy_from(self, to, from) }
    }

    /// The ICRC as it goes on the wire: the CRC with its least significant byte first.
    #[inline]
    pub fn finish(self) -> [u8; LEN] {
        finish_batch(&[self])[0]
    }
}

/// [`IcrcState::finish`] of up to [`BATCH`] packets at once; what is beyond the end of `states` means nothing.
#[inline]
pub fn finish_batch(states: &[IcrcState]) -> [[u8; LEN]; BATCH] {
    current().finish_batch(states)
}

/// A received frame whose ICRC is to be verified.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// [`BEFORE_L3`] bytes before the IP header.
    start: *const u8,
    /// Bytes behind the BTH and before the ICRC.
    rest: u32,
    found: u32,
    family: Family,
    frame: PhantomData<&'a [u8]>,
}

// SAFETY: it is a borrow of bytes, as `&[u8]` is.
unsafe impl Send for Check<'_> {}
// SAFETY: as above.
unsafe impl Sync for Check<'_> {}

impl<'a> Check<'a> {
    /// `parsed` must be what [`super::parse`] said of `frame`; `None` if that cannot be.
    #[inline]
    pub fn new(frame: &'a [u8], parsed: &ParsedFrame) -> Option<Check<'a>> {
        Check::at(
            frame,
            parsed.l3_offset as usize,
            parsed.icrc_offset as usize,
        )
    }

    #[inline]
    fn at(frame: &'a [u8], l3: usize, icrc: usize) -> Option<Check<'a>> {
        let found = frame.get(icrc..)?.first_chunk::<LEN>()?;
        let family = Family::of(*frame.get(l3)?);
        let start = l3.checked_sub(BEFORE_L3)?;
        let rest = u32::try_from(icrc.checked_sub(start + family.span())?).ok()?;
        Some(Check {
            start: frame[start..].as_ptr(),
            rest,
            found: u32::from_le_bytes(*found),
            family,
            frame: PhantomData,
        })
    }
}

/// Verifies the first 64 frames. Bit i of the answer is set if `checks[i]` has the ICRC that it should have.
#[inline]
pub fn verify_burst(checks: &[Check<'_>]) -> u64 {
    current().verify_burst(checks)
}

/// What the ICRC of a frame to be sealed begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// The frame's headers.
    Headers(Family),
    /// What was summed already.
    State,
}

impl Begin {
    /// Bytes of the headers that are masked.
    #[inline(always)]
    fn span(self) -> usize {
        match self {
            Begin::Headers(family) => family.span(),
            Begin::State => 0,
        }
    }
}

/// Lengths of a frame to be sealed, in one word that is quick to compare. From the lowest bit on: two bits for the bytes of pad,
/// [`Shape::COPIES`], [`Shape::STATE`], [`Shape::V6`]; from bit 8 on the bytes behind the BTH, or behind the state, that are in
/// the frame already; in the high half those of the payload to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape(u64);

impl Shape {
    const COPIES: u64 = 1 << 2;
    const STATE: u64 = 1 << 3;
    const V6: u64 = 1 << 4;
    const READY: u32 = 8;
    const PAYLOAD: u32 = 32;

    #[inline(always)]
    fn new(begin: Begin, ready: usize, payload: usize, copies: bool) -> Option<Shape> {
        let len = u32::try_from(payload).ok()?;
        if ready >> (Shape::PAYLOAD - Shape::READY) != 0 {
            return None;
        }
        let kind = match begin {
            Begin::Headers(Family::V4) => 0,
            Begin::Headers(Family::V6) => Shape::V6,
            Begin::State => Shape::STATE,
        };
        let lengths = u64::from(len) << Shape::PAYLOAD | (ready as u64) << Shape::READY;
        let copies = u64::from(copies) * Shape::COPIES;
        Some(Shape(lengths | kind | copies | pad_len(payload) as u64))
    }

    #[inline(always)]
    fn begin(self) -> Begin {
        match self.0 {
            kind if kind & Shape::STATE != 0 => Begin::State,
            kind if kind & Shape::V6 != 0 => Begin::Headers(Family::V6),
            _ => Begin::Headers(Family::V4),
        }
    }

    #[inline(always)]
    fn ready(self) -> usize {
        (self.0 as u32 >> Shape::READY) as usize
    }

    #[inline(always)]
    fn payload(self) -> usize {
        (self.0 >> Shape::PAYLOAD) as usize
    }

    #[inline(always)]
    fn pad(self) -> usize {
        (self.0 & 3) as usize
    }

    /// Whether the payload is elsewhere yet.
    #[inline(always)]
    fn copies(self) -> bool {
        self.0 & Shape::COPIES != 0
    }

    /// Bytes from the start on.
    #[inline(always)]
    fn icrc_offset(self) -> usize {
        self.begin().span() + self.ready() + self.payload() + self.pad()
    }
}

/// A frame that lacks its ICRC, and perhaps its payload.
#[derive(Debug)]
pub struct Seal<'a> {
    /// [`BEFORE_L3`] bytes before the IP header; behind a state, where payload goes.
    start: *mut u8,
    /// Where the payload comes from, if it is to be copied.
    source: *const u8,
    /// A state to begin with.
    state: [u8; 16],
    shape: Shape,
    bytes: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is a borrow of bytes, as `&mut [u8]` is; a source is read as `&[u8]`, or as `copy_from` has it.
unsafe impl Send for Seal<'_> {}

impl<'a> Seal<'a> {
    /// Of a frame that has all but its last four bytes, the ICRC, and its IP header at [`super::HeaderTemplate::L3_OFFSET`]. `None`
    /// if it is shorter than headers and ICRC.
    #[inline]
    pub fn in_place(frame: &'a mut [u8]) -> Option<Seal<'a>> {
        Seal::in_place_at(frame, ethernet::LEN)
    }

    #[inline]
    fn in_place_at(frame: &'a mut [u8], l3: usize) -> Option<Seal<'a>> {
        let header_len = frame.len().checked_sub(LEN)?;
        // SAFETY: of no bytes none is read.
        unsafe { Seal::at(frame, l3, header_len, None, 0) }
    }

    /// Of a frame that has headers of `header_len` bytes, and its IP header at [`super::HeaderTemplate::L3_OFFSET`]; behind them
    /// belong `payload`, pad and ICRC. `None` if its length is not that of all these.
    #[inline]
    pub fn copy(frame: &'a mut [u8], header_len: usize, payload: &'a [u8]) -> Option<Seal<'a>> {
        // SAFETY: a slice is good for reads as long as it is borrowed.
        unsafe { Seal::copy_from(frame, header_len, payload.as_ptr(), payload.len()) }
    }

    /// As [`Seal::copy`], from memory that others may write to. Each byte is loaded once.
    ///
    /// # Safety
    ///
    /// `payload` must be good for reads of `len` bytes, and apart from `frame`, until the [`seal_burst`] of the answer.
    #[inline]
    pub unsafe fn copy_from(
        frame: &'a mut [u8],
        header_len: usize,
        payload: *const u8,
        len: usize,
    ) -> Option<Seal<'a>> {
        // SAFETY: the caller's promise.
        unsafe { Seal::at(frame, ethernet::LEN, header_len, Some(payload), len) }
    }

    /// Of the rest of a frame, behind what was summed in `state`: it gets `len` bytes of payload, pad and ICRC. `None` if
    /// its length is not that of all these.
    ///
    /// # Safety
    ///
    /// As for [`Seal::copy_from`].
    #[inline]
    pub unsafe fn behind(
        state: IcrcState,
        rest: &'a mut [u8],
        payload: *const u8,
        len: usize,
    ) -> Option<Seal<'a>> {
        let pad = pad_len(len);
        if rest.len() != len.checked_add(pad + LEN)? {
            return None;
        }
        Some(Seal {
            start: rest.as_mut_ptr(),
            source: payload,
            state: state.0.to_le_bytes(),
            shape: Shape::new(Begin::State, 0, len, true)?,
            bytes: PhantomData,
        })
    }

    /// # Safety
    ///
    /// As for [`Seal::copy_from`].
    #[inline]
    unsafe fn at(
        frame: &'a mut [u8],
        l3: usize,
        header_len: usize,
        payload: Option<*const u8>,
        len: usize,
    ) -> Option<Seal<'a>> {
        let family = Family::of(*frame.get(l3)?);
        let start = l3.checked_sub(BEFORE_L3)?;
        let ready = header_len.checked_sub(start + family.span())?;
        let pad = pad_len(len);
        if frame.len().checked_sub(header_len)? != len.checked_add(pad + LEN)? {
            return None;
        }
        Some(Seal {
            start: frame[start..].as_mut_ptr(),
            source: payload.unwrap_or(core::ptr::null()),
            state: [0; 16],
            shape: Shape::new(Begin::Headers(family), ready, len, payload.is_some())?,
            bytes: PhantomData,
        })
    }

    /// Stores the ICRC.
    ///
    /// # Safety
    ///
    /// `at` must be [`Shape::icrc_offset`]: `at` and `behind` saw that the frame has four bytes there.
    #[inline(always)]
    unsafe fn write(&mut self, at: usize, icrc: u32) {
        // SAFETY: the frame is borrowed, and the rest is the caller's promise.
        unsafe {
            self.start
                .add(at)
                .cast::<[u8; LEN]>()
                .write(icrc.to_le_bytes())
        };
    }
}

/// Copies the payload of frames, fills their pads and stores their ICRCs.
#[inline]
pub fn seal_burst(seals: &mut [Seal<'_>]) {
    current().seal_burst(seals);
}

/// The ICRC that belongs at `icrc_offset` of a frame whose IP header is at `l3_offset`.
#[inline]
pub fn icrc_of_frame(frame: &[u8], l3_offset: usize, icrc_offset: usize) -> [u8; LEN] {
    IcrcState::new(frame.get(l3_offset..icrc_offset).unwrap_or_default()).finish()
}

/// Whether a parsed frame has the ICRC it should have.
#[inline]
pub fn verify(frame: &[u8], parsed: &ParsedFrame) -> bool {
    Check::new(frame, parsed).is_some_and(|check| verify_burst(&[check]) == 1)
}

/// Writes the ICRC into the last four bytes of a frame whose IP header is at `l3_offset`. `false`, with nothing
/// written, if the frame is too short to have one.
#[inline]
pub fn seal(frame: &mut [u8], l3_offset: usize) -> bool {
    if let Some(seal) = Seal::in_place_at(frame, l3_offset) {
        seal_burst(&mut [seal]);
        return true;
    }
    let Some((head, tail)) = frame.split_last_chunk_mut::<LEN>() else {
        return false;
    };
    let Some(l3) = head.get(l3_offset..) else {
        return false;
    };
    *tail = IcrcState::new(l3).finish();
    true
}
