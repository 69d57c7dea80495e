//! Packet buffers. An [`Mbuf`] owns one DPDK mbuf (a single segment) and gives it back to its mempool when
//! dropped; a [`Burst`] owns up to 64 and gives them back in bulk. Ports fill and empty bursts; the stages of the
//! poll loop own what is in between.
//!
//! A mempool outlives its mbufs: [`super::Mempool`] checks on drop that all came home, and otherwise leaves
//! its memory in place for the life of the process.

use std::collections::VecDeque;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{self, NonNull};
use std::slice;

use dpdk_sys as sys;

/// One packet: bytes of a frame in a buffer with room in front and behind.
#[repr(transparent)]
#[derive(Debug)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf belongs to nobody but this handle; mempools accept frees from any thread.
unsafe impl Send for Mbuf {}

/// Bytes of one; buffers begin at one.
const CACHE_LINE: usize = 64;

impl Mbuf {
    /// Bytes of [`Mbuf::scratch`]: half of the headroom, so that drivers keep the other half for headers of their own.
    pub const SCRATCH: usize = sys::RTE_PKTMBUF_HEADROOM as usize / 2;

    /// Takes over a raw mbuf.
    ///
    /// # Safety
    ///
    /// `raw` is a valid mbuf of one segment with a reference count of 1 that nobody else uses.
    #[inline(always)]
    pub unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Mbuf {
        Mbuf(raw)
    }

    /// Gives up ownership; [`Mbuf::from_raw`] takes it back.
    #[inline(always)]
    pub fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        ManuallyDrop::new(self).0
    }

    /// Address of a field. The offsets are those of the headers that the bindings were made from.
    #[inline(always)]
    fn field<T>(&self, offset: u32) -> *mut T {
        // SAFETY: all offsets given are within `struct rte_mbuf`.
        unsafe { self.0.as_ptr().cast::<u8>().add(offset as usize).cast() }
    }

    #[inline(always)]
    fn data_off(&self) -> usize {
        // SAFETY: a valid mbuf, owned.
        usize::from(unsafe { self.field::<u16>(sys::RL_MBUF_DATA_OFF).read() })
    }

    #[inline(always)]
    fn buf_len(&self) -> usize {
        // SAFETY: a valid mbuf, owned.
        usize::from(unsafe { self.field::<u16>(sys::RL_MBUF_BUF_LEN).read() })
    }

    #[inline(always)]
    fn data_ptr(&self) -> *mut u8 {
        // SAFETY: a valid mbuf, owned; data_off is within its buffer.
        unsafe {
            self.field::<*mut u8>(sys::RL_MBUF_BUF_ADDR)
                .read()
                .add(self.data_off())
        }
    }

    /// Bytes of the frame.
    #[inline(always)]
    pub fn len(&self) -> usize {
        // SAFETY: a valid mbuf, owned.
        usize::from(unsafe { self.field::<u16>(sys::RL_MBUF_DATA_LEN).read() })
    }

    /// Whether the frame has no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the frame can have at most.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.buf_len().saturating_sub(self.data_off())
    }

    /// The frame.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        // SAFETY: data_len bytes from data_off lie in the buffer, which EAL mapped and zeroed.
        unsafe { slice::from_raw_parts(self.data_ptr(), self.len()) }
    }

    /// The frame, to write.
    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`; owned exclusively.
        unsafe { slice::from_raw_parts_mut(self.data_ptr(), self.len()) }
    }

    /// Moves an empty frame, so that what is behind its first `ahead` bytes begins at a cache line: vectors of payload cross none
    /// then, when they are stored and when they are read. Left where it is if `len` bytes would not fit any more.
    #[inline(always)]
    pub fn align_behind(&mut self, ahead: usize, len: usize) {
        let headroom = sys::RTE_PKTMBUF_HEADROOM as usize;
        let off = (headroom + ahead).next_multiple_of(CACHE_LINE) - ahead;
        if self.is_empty() && off + len <= self.buf_len() {
            // SAFETY: a valid mbuf, owned, and the frame has no bytes yet; `off` is within its buffer, whose length is 16 bits.
            unsafe { self.field::<u16>(sys::RL_MBUF_DATA_OFF).write(off as u16) };
        }
    }

    /// Gives the frame `len` bytes and returns them, or `None` (and changes nothing) if they do not fit. Bytes
    /// beyond the former length hold whatever an earlier packet left there.
    #[inline(always)]
    #[must_use]
    pub fn set_len(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.capacity() {
            return None;
        }
        // `capacity` is below 64 Ki.
        self.write_len(len as u16);
        Some(self.data_mut())
    }

    /// Adds `len` bytes at the end and returns just these, or `None` if they do not fit.
    #[inline(always)]
    #[must_use]
    pub fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        let old = self.len();
        let new = old.checked_add(len)?;
        self.set_len(new).map(|data| &mut data[old..])
    }

    #[inline(always)]
    fn write_len(&mut self, len: u16) {
        // SAFETY: a valid mbuf, owned.
        unsafe {
            self.field::<u16>(sys::RL_MBUF_DATA_LEN).write(len);
            self.field::<u32>(sys::RL_MBUF_PKT_LEN)
                .write(u32::from(len));
        }
    }

    /// Bytes at the start of the buffer, far in front of the frame: for whoever holds the packet to write on, and kept while
    /// it goes from queue to queue. They hold what an earlier packet left there. `None` where a driver put the frame so far
    /// to the front that they are its own.
    #[inline(always)]
    pub fn scratch(&self) -> Option<&[u8; Mbuf::SCRATCH]> {
        // SAFETY: the buffer reaches to `data_off` at least, and EAL mapped and zeroed it; no driver of a received or
        // queued packet uses what is so far in front of the frame.
        (self.data_off() >= 2 * Mbuf::SCRATCH).then(|| unsafe {
            &*self
                .field::<*const [u8; Mbuf::SCRATCH]>(sys::RL_MBUF_BUF_ADDR)
                .read()
        })
    }

    /// See [`Mbuf::scratch`].
    #[inline(always)]
    pub fn scratch_mut(&mut self) -> Option<&mut [u8; Mbuf::SCRATCH]> {
        // SAFETY: as in `scratch`; owned exclusively.
        (self.data_off() >= 2 * Mbuf::SCRATCH).then(|| unsafe {
            &mut *self
                .field::<*mut [u8; Mbuf::SCRATCH]>(sys::RL_MBUF_BUF_ADDR)
                .read()
        })
    }

    /// Tag control information (IEEE 802.1Q) that goes with the frame beside its bytes, until [`Mbuf::insert_tag`] puts it in. 0 in a new
    /// buffer.
    #[inline(always)]
    pub fn tci(&self) -> u16 {
        // SAFETY: a valid mbuf, owned.
        unsafe { self.field::<u16>(sys::RL_MBUF_VLAN_TCI).read() }
    }

    /// See [`Mbuf::tci`].
    #[inline(always)]
    pub fn set_tci(&mut self, tci: u16) {
        // SAFETY: a valid mbuf, owned.
        unsafe { self.field::<u16>(sys::RL_MBUF_VLAN_TCI).write(tci) }
    }

    /// Puts an 802.1Q tag with [`Mbuf::tci`] behind the MAC addresses. Nothing happens to a frame without them, or with no room in front.
    #[inline]
    pub fn insert_tag(&mut self) {
        const MACS: usize = 12;
        const TAG: usize = 4;
        let (len, data_off) = (self.len(), self.data_off());
        if len < MACS || data_off < TAG || len + TAG > usize::from(u16::MAX) {
            return;
        }
        let tci = self.tci();
        // SAFETY: a valid mbuf, owned; the four bytes in front of the frame are its own.
        unsafe {
            self.field::<u16>(sys::RL_MBUF_DATA_OFF)
                .write((data_off - TAG) as u16)
        };
        self.write_len((len + TAG) as u16);
        let frame = self.data_mut();
        frame.copy_within(TAG..TAG + MACS, 0);
        frame[MACS..MACS + 2].copy_from_slice(&[0x81, 0x00]);
        frame[MACS + 2..MACS + TAG].copy_from_slice(&tci.to_be_bytes());
    }

    /// Segments of a packet as a driver delivered it.
    #[inline(always)]
    pub(super) fn segments(&self) -> u16 {
        // SAFETY: a valid mbuf, owned.
        unsafe { self.field::<u16>(sys::RL_MBUF_NB_SEGS).read() }
    }

    /// Makes one segment of several, if they fit into the first.
    #[cold]
    pub(super) fn linearize(&mut self) -> bool {
        // SAFETY: a valid packet, owned.
        unsafe { sys::rl_mbuf_linearize(self.0.as_ptr()) == 0 }
    }

    /// Asks the cache for the first line of the frame, and the second if it has one.
    #[inline(always)]
    pub fn prefetch(&self) {
        let data = self.data_ptr();
        prefetch_line(data);
        prefetch_line(data.wrapping_add((self.len().saturating_sub(1)).min(64)));
    }

    /// Asks the cache for what says where the frame is.
    #[inline(always)]
    pub(super) fn prefetch_head(&self) {
        prefetch_line(self.0.as_ptr().cast());
    }
}

/// Asks the cache for the line at an address, to be written. LLVM turns the hint of the intrinsic into a fetch to read where it is
/// not promised the instruction, which CPUs without it take for a NOP.
#[inline(always)]
pub fn prefetch_line_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching has no effect on memory, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Asks the cache for the line at an address.
#[inline(always)]
pub fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect on memory, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: owned, and not used after this.
        unsafe { sys::rl_mbuf_free(self.0.as_ptr()) }
    }
}

/// Up to [`Burst::CAPACITY`] packets in order, in a fixed array.
pub struct Burst {
    /// The first `len` are initialised.
    mbufs: [MaybeUninit<Mbuf>; Burst::CAPACITY],
    len: usize,
    /// See [`Burst::wanted`].
    wanted: usize,
}

impl Burst {
    /// The most packets that a burst holds.
    pub const CAPACITY: usize = 64;

    /// An empty burst.
    pub const fn new() -> Burst {
        Burst {
            mbufs: [const { MaybeUninit::uninit() }; Burst::CAPACITY],
            len: 0,
            wanted: super::RX_BURST,
        }
    }

    /// An empty burst into which a driver receives, or a queue moves, `wanted` packets at once; 1 to
    /// [`RX_BURST`](super::RX_BURST), what is beyond is taken for the nearest of these.
    pub const fn of(wanted: usize) -> Burst {
        let mut burst = Burst::new();
        burst.wanted = match wanted {
            0 => 1,
            1..super::RX_BURST => wanted,
            _ => super::RX_BURST,
        };
        burst
    }

    /// Packets that whoever fills it should put in at once, as far as there is room.
    #[inline(always)]
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Packets in it.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more it takes.
    #[inline(always)]
    pub fn room(&self) -> usize {
        Burst::CAPACITY - self.len
    }

    /// Adds a packet at the end; a full burst hands it back.
    #[inline(always)]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        match self.mbufs.get_mut(self.len) {
            Some(slot) => {
                slot.write(mbuf);
                self.len += 1;
                Ok(())
            }
            None => Err(mbuf),
        }
    }

    /// Moves packets from the front of `queue` to the end, until there are [`Burst::wanted`] here or none there.
    #[inline]
    pub fn refill(&mut self, queue: &mut VecDeque<Mbuf>) {
        while self.len < self.wanted {
            let Some(mbuf) = queue.pop_front() else { break };
            if let Err(mbuf) = self.push(mbuf) {
                queue.push_front(mbuf);
                break;
            }
        }
    }

    /// Takes the last packet.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Mbuf> {
        let last = self.len.checked_sub(1)?;
        self.len = last;
        // SAFETY: it was initialised, and is no longer counted.
        Some(unsafe { self.mbufs[last].assume_init_read() })
    }

    /// Takes packet `index`; the later ones move up.
    #[inline]
    pub fn take(&mut self, index: usize) -> Option<Mbuf> {
        if index >= self.len {
            return None;
        }
        // SAFETY: initialised; the copy below overwrites it, and the last one is no longer counted.
        unsafe {
            let mbuf = self.mbufs[index].assume_init_read();
            let at = self.mbufs.as_mut_ptr().add(index);
            ptr::copy(at.add(1), at, self.len - index - 1);
            self.len -= 1;
            Some(mbuf)
        }
    }

    /// The packets.
    #[inline(always)]
    pub fn as_slice(&self) -> &[Mbuf] {
        // SAFETY: the first `len` are initialised.
        unsafe { slice::from_raw_parts(self.mbufs.as_ptr().cast(), self.len) }
    }

    /// The packets, to change.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [Mbuf] {
        // SAFETY: the first `len` are initialised.
        unsafe { slice::from_raw_parts_mut(self.mbufs.as_mut_ptr().cast(), self.len) }
    }

    /// Packet `index`.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&Mbuf> {
        self.as_slice().get(index)
    }

    /// Packet `index`, to change.
    #[inline(always)]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Mbuf> {
        self.as_mut_slice().get_mut(index)
    }

    /// The packets in order.
    #[inline(always)]
    pub fn iter(&self) -> slice::Iter<'_, Mbuf> {
        self.as_slice().iter()
    }

    /// The packets in order, to change.
    #[inline(always)]
    pub fn iter_mut(&mut self) -> slice::IterMut<'_, Mbuf> {
        self.as_mut_slice().iter_mut()
    }

    /// Takes all packets in order; those not taken when the iterator is dropped are freed.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        let end = self.len;
        // The iterator owns them now; if it is leaked, so are they.
        self.len = 0;
        Drain {
            burst: self,
            next: 0,
            end,
        }
    }

    /// Frees all packets in bulk.
    #[inline]
    pub fn clear(&mut self) {
        let len = self.len;
        self.len = 0;
        self.free_range(0, len);
    }

    /// Passes packets from the front to `send`, in order, until it hands one back, which stays with those
    /// behind it at the front.
    #[inline(always)]
    pub(super) fn send_front(&mut self, mut send: impl FnMut(Mbuf) -> Option<Mbuf>) {
        let len = self.len;
        // If `send` panics the packets are leaked, not freed twice.
        self.len = 0;
        let mut sent = 0;
        while sent < len {
            // SAFETY: initialised, and passed once; a packet that comes back is written back.
            let mbuf = unsafe { self.mbufs[sent].assume_init_read() };
            if let Some(mbuf) = send(mbuf) {
                self.mbufs[sent].write(mbuf);
                break;
            }
            sent += 1;
        }
        self.len = len;
        // SAFETY: `send` took over the first `sent`.
        unsafe { self.forget_front(sent) };
    }

    /// Frees slots that are initialised and no longer counted.
    #[inline]
    fn free_range(&mut self, start: usize, end: usize) {
        if start < end {
            // SAFETY: each slot of the range holds an owned mbuf (`Mbuf` is a transparent pointer), which is not
            // used again.
            unsafe {
                let first = self
                    .mbufs
                    .as_mut_ptr()
                    .add(start)
                    .cast::<*mut sys::rte_mbuf>();
                sys::rte_pktmbuf_free_bulk(first, (end - start) as u32);
            }
        }
    }

    /// Where a driver may write up to [`Burst::room`] mbuf pointers; [`Burst::grow`] then counts them.
    #[inline(always)]
    pub(super) fn spare(&mut self) -> *mut *mut sys::rte_mbuf {
        // SAFETY: `len` is at most the array's length.
        unsafe { self.mbufs.as_mut_ptr().add(self.len).cast() }
    }

    /// Counts `count` more packets.
    ///
    /// # Safety
    ///
    /// Valid, owned mbufs were written to the first `count` places of [`Burst::spare`], and `count <= room()`.
    #[inline(always)]
    pub(super) unsafe fn grow(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.len += count;
    }

    /// Where a driver finds the packets; [`Burst::forget_front`] then drops those it took over.
    #[inline(always)]
    pub(super) fn front(&mut self) -> *mut *mut sys::rte_mbuf {
        self.mbufs.as_mut_ptr().cast()
    }

    /// No longer owns the first `count` packets; the others move to the front.
    ///
    /// # Safety
    ///
    /// Somebody else owns those packets now, and `count <= len()`.
    #[inline(always)]
    pub(super) unsafe fn forget_front(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        let left = self.len - count;
        if left > 0 && count > 0 {
            let first = self.mbufs.as_mut_ptr();
            // SAFETY: both ranges lie in the array.
            unsafe { ptr::copy(first.add(count), first, left) };
        }
        self.len = left;
    }
}

impl Default for Burst {
    fn default() -> Burst {
        Burst::new()
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.clear();
    }
}

impl std::fmt::Debug for Burst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(Mbuf::len)).finish()
    }
}

impl<'a> IntoIterator for &'a Burst {
    type Item = &'a Mbuf;
    type IntoIter = slice::Iter<'a, Mbuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// See [`Burst::drain`].
#[derive(Debug)]
pub struct Drain<'a> {
    burst: &'a mut Burst,
    next: usize,
    end: usize,
}

impl Iterator for Drain<'_> {
    type Item = Mbuf;

    #[inline(always)]
    fn next(&mut self) -> Option<Mbuf> {
        if self.next == self.end {
            return None;
        }
        let at = self.next;
        self.next += 1;
        // SAFETY: initialised, uncounted, and passed once.
        Some(unsafe { self.burst.mbufs[at].assume_init_read() })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl Drain<'_> {
    /// The packet that comes after `others` more.
    #[inline(always)]
    pub fn ahead(&self, others: usize) -> Option<&Mbuf> {
        let at = self.next + others;
        // SAFETY: from `next` to `end` they are initialised, and not passed yet.
        (at < self.end).then(|| unsafe { self.burst.mbufs[at].assume_init_ref() })
    }
}

impl ExactSizeIterator for Drain<'_> {}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.burst.free_range(self.next, self.end);
    }
}
