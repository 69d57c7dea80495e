//! The daemon's side of the queues in a context file. Sizes, masks and the daemon's own indices are private
//! copies; what the program writes is read once, masked or checked, and then used.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use roceline_abi::queue::{
    CQE_NUMBER, Cqe, DmaInfo, MAX_SGE, Origin, Q_CONSUMER, Q_DATA, Q_PRODUCER, RECV_WQE_SGES,
    RecvWqe, SEND_WQE_SGES, SendWqe, SendWr as Words, Sge,
};
use roceline_engine::verbs::{RecvWr, SendWr, WrOpcode};

use super::message::QueueLoc;
use crate::memory::ContextFile;
use crate::port::{prefetch_line, prefetch_line_to_write};

const SEND_SIGNALED: u32 = 1 << 1;
const SEND_FENCE: u32 = 1 << 0;
const SEND_SOLICITED: u32 = 1 << 2;
const SEND_INLINE: u32 = 1 << 3;

/// A queue in a context file.
#[derive(Debug)]
struct Ring {
    file: Arc<ContextFile>,
    loc: QueueLoc,
}

impl Ring {
    fn slot(&self, index: u32) -> u64 {
        self.loc.offset + Q_DATA + (u64::from(index & self.loc.mask) << self.loc.log2_elem)
    }

    fn elem_bytes(&self) -> u64 {
        1 << self.loc.log2_elem
    }

    fn next(&self, index: u32) -> u32 {
        (index + 1) & self.loc.mask
    }

    /// The program's producer index; work before it is readable.
    fn producer(&self) -> u32 {
        self.raw_producer() & self.loc.mask
    }

    /// The index as the program wrote it.
    fn raw_producer(&self) -> u32 {
        self.file
            .atomic_u32(self.loc.offset + Q_PRODUCER)
            .load(Ordering::Acquire)
    }

    fn consumer(&self) -> u32 {
        self.file
            .atomic_u32(self.loc.offset + Q_CONSUMER)
            .load(Ordering::Acquire)
            & self.loc.mask
    }

    /// Stores a header's index together with the count beside it, at once: whoever reads the queue when this process is
    /// dead finds the two in step.
    fn store(&self, at: u64, index: u32, count: u32) {
        self.file
            .atomic_u64(self.loc.offset + at)
            .store(u64::from(index) | u64::from(count) << 32, Ordering::Release);
    }

    /// Asks the cache for the lines of a send request that [`SendQueue::take`] reads.
    #[inline]
    fn prefetch(&self, index: u32) {
        let at = self.file.at(self.slot(index), self.elem_bytes()).as_ptr();
        for line in [0, 128, 192] {
            prefetch_line(at.wrapping_add(line));
        }
    }

    /// Asks the cache for the line of the header that has the index `at`.
    #[inline]
    fn prefetch_index(&self, at: u64) {
        prefetch_line(self.file.at(self.loc.offset + at, 4).as_ptr());
    }

    /// Copies a `repr(C)` integer struct out of slot `index`, at `at` bytes into it.
    fn copy<T: Copy>(&self, index: u32, at: u64) -> T {
        let from = self.file.at(self.slot(index) + at, size_of::<T>() as u64);
        // SAFETY: in bounds (checked by `at`), 8-byte aligned since slots and `at` are, and T is an integer
        // struct. Volatile: the program may write it at the same moment; any mix of bytes is a valid T.
        unsafe { from.cast::<T>().as_ptr().read_volatile() }
    }
}

/// The start of a send request, as far as it means something to the daemon: one cache line at most.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    wr_id: u64,
    reserved: u32,
    opcode: u32,
    send_flags: u32,
    imm_or_rkey: u32,
    union: [u64; 4],
}

impl Request {
    /// With the names of its parts.
    #[inline(always)]
    fn words(&self) -> Words {
        let mut words = Words::default();
        words.union[..4].copy_from_slice(&self.union);
        words.imm_or_rkey = self.imm_or_rkey;
        words
    }
}

/// A send queue.
#[derive(Debug)]
pub struct SendQueue {
    ring: Ring,
    /// Next slot to copy.
    head: u32,
    /// Oldest slot not yet free: the shared consumer index.
    tail: u32,
    /// Requests ever taken off, wrapping.
    retired: u32,
    max_sge: u32,
    max_inline: u32,
}

impl SendQueue {
    /// A new, empty queue.
    pub fn new(file: Arc<ContextFile>, loc: QueueLoc, max_sge: u32, max_inline: u32) -> SendQueue {
        SendQueue {
            ring: Ring { file, loc },
            head: 0,
            tail: 0,
            retired: 0,
            max_sge,
            max_inline,
        }
    }

    /// Requests posted and not taken.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.ring.producer().wrapping_sub(self.head) & self.ring.loc.mask
    }

    /// Asks the cache for the next request.
    #[inline]
    pub fn prefetch(&self) {
        self.ring.prefetch(self.head);
    }

    /// Asks the cache for the next request and the program's index: of one that has rung.
    #[inline]
    pub fn prefetch_posted(&self) {
        self.ring.prefetch_index(Q_PRODUCER);
        self.ring.prefetch(self.head);
    }

    /// Asks the cache for the place where the program sees what is free.
    #[inline]
    pub fn prefetch_shown(&self) {
        self.ring.prefetch_index(Q_CONSUMER);
    }

    /// Copies the next request and its entries, and steps over it. There is one: see [`SendQueue::posted`]. Where more follow they
    /// are fetched: not before the program has written them, or it has to take the lines back first.
    #[inline]
    pub fn take(&mut self, sges: &mut [Sge; MAX_SGE], more: bool) -> SendWr {
        let slot = self.head;
        // Each word once. What lies between is not for the daemon: state of the kernel's driver, and the address vector of
        // datagrams, in whose place it uses its address handles.
        let request: Request = self.ring.copy(slot, 0);
        let dma: DmaInfo = self.ring.copy(slot, offset_of!(SendWqe, dma) as u64);
        let flags = request.send_flags;
        let opcode = WrOpcode::from_raw(request.opcode);
        let inline = flags & SEND_INLINE != 0 || is_inline_without_flag(opcode, &dma);
        let (num_sge, length) = if inline {
            // Inline bytes must lie in the slot; a longer length makes the request fail in its turn.
            let fits = u64::from(dma.length) <= self.ring.elem_bytes() - SEND_WQE_SGES
                && dma.length <= self.max_inline;
            (
                0,
                if fits {
                    u64::from(dma.length)
                } else {
                    u64::MAX
                },
            )
        } else {
            (
                dma.num_sge,
                self.copy_sges(slot, SEND_WQE_SGES, dma.num_sge.min(self.max_sge), sges),
            )
        };
        self.head = self.ring.next(slot);
        if more {
            self.ring.prefetch(self.head);
        }
        let words = request.words();
        let mut wr = SendWr {
            wr_id: request.wr_id,
            opcode,
            signaled: flags & SEND_SIGNALED != 0,
            solicited: flags & SEND_SOLICITED != 0,
            fence: flags & SEND_FENCE != 0,
            inline,
            num_sge,
            slot,
            length,
            imm_or_rkey: request.imm_or_rkey,
            rkey: words.rdma_rkey(),
            remote_addr: words.remote_addr(),
            compare_add: words.compare_add(),
            swap: words.swap(),
            ah: words.ud_ah_num(),
            dest_qpn: words.ud_remote_qpn(),
            qkey: words.ud_remote_qkey(),
        };
        if let Some(op) = opcode.filter(|op| op.is_answered() || op.is_local()) {
            super::wqe::fill(&mut wr, &words, dma.num_sge, op);
        }
        wr
    }

    fn copy_sges(&self, slot: u32, at: u64, count: u32, sges: &mut [Sge; MAX_SGE]) -> u64 {
        copy_sges(&self.ring, slot, at, count, sges)
    }

    /// Frees `count` slots, oldest first. The program sees it after [`SendQueue::show`].
    #[inline]
    pub fn retire(&mut self, count: u32) {
        self.tail = self.tail.wrapping_add(count) & self.ring.loc.mask;
        self.retired = self.retired.wrapping_add(count);
    }

    /// Shows the program what is free.
    #[inline]
    pub fn show(&self) {
        self.ring.store(Q_CONSUMER, self.tail, self.retired);
    }

    /// Requests taken off once `count` more are.
    pub fn retired_after(&self, count: u32) -> u32 {
        self.retired.wrapping_add(count)
    }

    /// Forgets everything in the queue (QP to RESET).
    pub fn reset(&mut self) {
        self.head = self.ring.producer();
        self.tail = self.head;
        self.ring.store(Q_CONSUMER, self.tail, self.retired);
    }

    /// Where `len` inline bytes of `slot` are, from `offset` of them on; `None` if the slot does not have them. They are the program's
    /// to write: each is to be read once, and any value will do.
    #[inline]
    pub fn inline(&self, slot: u32, offset: u32, len: usize) -> Option<*const u8> {
        let end = u64::from(offset) + len as u64;
        if end > self.ring.elem_bytes() - SEND_WQE_SGES {
            return None;
        }
        let at = self.ring.slot(slot) + SEND_WQE_SGES + u64::from(offset);
        Some(self.ring.file.at(at, len as u64).as_ptr())
    }

    /// Copies inline bytes of `slot` into a packet.
    pub fn copy_inline(&self, slot: u32, offset: u32, into: &mut [u8]) -> bool {
        let Some(from) = self.inline(slot, offset, into.len()) else {
            return false;
        };
        // SAFETY: both ranges are in bounds and distinct. The program may write meanwhile: the bytes are
        // payload, any value will do, and they are only ever read once.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        true
    }
}

/// Whether the payload is inline though the flag says nothing: what `ibv_wr_set_inline_data` of the rxe provider
/// leaves behind is bytes, their length and no entries. `ibv_wr_post(3)` asks for no flag there.
fn is_inline_without_flag(opcode: Option<WrOpcode>, dma: &DmaInfo) -> bool {
    use WrOpcode::{Send, SendImm, SendInv, Write, WriteImm};
    dma.num_sge == 0
        && dma.length > 0
        && matches!(opcode, Some(Send | SendImm | SendInv | Write | WriteImm))
}

/// A receive queue.
#[derive(Debug)]
pub struct RecvQueue {
    ring: Ring,
    head: u32,
    tail: u32,
    retired: u32,
    max_sge: u32,
}

impl RecvQueue {
    /// A new, empty queue.
    pub fn new(file: Arc<ContextFile>, loc: QueueLoc, max_sge: u32) -> RecvQueue {
        RecvQueue {
            ring: Ring { file, loc },
            head: 0,
            tail: 0,
            retired: 0,
            max_sge,
        }
    }

    /// Asks the cache for the program's index, the next request, and the place where the program sees what is free.
    #[inline]
    pub fn prefetch(&self) {
        self.ring.prefetch_index(Q_PRODUCER);
        self.ring.prefetch_index(Q_CONSUMER);
        let slot = self.ring.slot(self.head);
        let at = self.ring.file.at(slot, self.ring.elem_bytes()).as_ptr();
        // As far as an entry or two reach.
        prefetch_line(at);
        prefetch_line(at.wrapping_add(64));
    }

    /// Copies the next request into `wr` and steps over it.
    pub fn take(&mut self, wr: &mut RecvWr) -> bool {
        if self.ring.producer() == self.head {
            return false;
        }
        let slot = self.head;
        let wqe: RecvWqe = self.ring.copy(slot, 0);
        wr.wr_id = wqe.wr_id;
        // More entries than the slot can hold make the request fail in its turn: the number is kept.
        wr.num_sge = if wqe.dma.num_sge > self.max_sge {
            MAX_SGE as u32 + 1
        } else {
            wqe.dma.num_sge
        };
        copy_sges(
            &self.ring,
            slot,
            RECV_WQE_SGES,
            wqe.dma.num_sge.min(self.max_sge),
            &mut wr.sges,
        );
        self.head = self.ring.next(slot);
        true
    }

    /// Requests that it holds at most.
    pub fn size(&self) -> u32 {
        self.ring.loc.mask
    }

    /// Requests posted and not taken; none if the program's index is one that no provider writes.
    pub fn posted(&self) -> Option<u32> {
        let (mask, producer) = (self.ring.loc.mask, self.ring.raw_producer());
        (producer <= mask).then(|| producer.wrapping_sub(self.head) & mask)
    }

    /// Requests of those copied for [`RecvQueue::move_to`] that were taken since. `None` if they are not those that are posted
    /// and these before them: then the program wrote to the queue meanwhile.
    pub fn taken_since(&self, first: u32, count: u32) -> Option<u32> {
        let taken = self.head.wrapping_sub(first) & self.ring.loc.mask;
        let posted = self.posted()?;
        (taken + posted == count).then_some(taken)
    }

    /// Goes on at another place with slots of the same size, where `count` requests lie, of which `taken` were taken already.
    /// Places are counted from there on.
    pub fn move_to(&mut self, loc: QueueLoc, taken: u32, count: u32) {
        self.ring.loc = loc;
        self.ring
            .file
            .atomic_u32(loc.offset + Q_PRODUCER)
            .store(count & loc.mask, Ordering::Release);
        self.head = taken & loc.mask;
        self.tail = self.head;
        self.ring.store(Q_CONSUMER, self.tail, self.retired);
    }

    /// Frees the oldest slot. The program sees it after [`RecvQueue::show`].
    #[inline]
    pub fn retire(&mut self) {
        self.tail = self.ring.next(self.tail);
        self.retired = self.retired.wrapping_add(1);
    }

    /// Shows the program what is free.
    #[inline]
    pub fn show(&self) {
        self.ring.store(Q_CONSUMER, self.tail, self.retired);
    }

    /// Requests taken off once one more is.
    pub fn retired_after(&self) -> u32 {
        self.retired.wrapping_add(1)
    }

    /// Forgets everything in the queue (QP to RESET).
    pub fn reset(&mut self) {
        self.head = self.ring.producer();
        self.tail = self.head;
        self.ring.store(Q_CONSUMER, self.tail, self.retired);
    }
}

/// Copies `count` entries and gives the sum of their lengths.
fn copy_sges(ring: &Ring, slot: u32, at: u64, count: u32, sges: &mut [Sge; MAX_SGE]) -> u64 {
    let room = (ring.elem_bytes() - at) / size_of::<Sge>() as u64;
    let count = u64::from(count).min(room).min(MAX_SGE as u64) as usize;
    let mut length = 0;
    for (i, sge) in sges.iter_mut().enumerate().take(count) {
        *sge = ring.copy(slot, at + (i * size_of::<Sge>()) as u64);
        length += u64::from(sge.length);
    }
    length
}

/// A completion queue could not take another completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqFull;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: Ring,
    producer: u32,
    /// Completions ever written, wrapping; all of them are published but those since [`CompletionQueue::publish`].
    written: u32,
    /// The program's consumer index as last read; only read again when the queue looks full.
    consumer: u32,
}

/// An element as it lies in the queue; the order of the fields is that in which they are written.
#[repr(C)]
#[derive(Clone, Copy)]
struct Element {
    cqe: Cqe,
    origin: u64,
}

impl CompletionQueue {
    /// A new, empty queue.
    pub fn new(file: Arc<ContextFile>, loc: QueueLoc) -> CompletionQueue {
        CompletionQueue {
            ring: Ring { file, loc },
            producer: 0,
            written: 0,
            consumer: 0,
        }
    }

    /// Asks the cache for what the next completion is written to, and for the program's index if that will be read. Not for the
    /// line of our own index, at which the program looks all the time.
    #[inline]
    pub fn prefetch(&self) {
        let at = self.ring.file.at(self.ring.slot(self.producer), 64);
        prefetch_line_to_write(at.as_ptr());
        if self.ring.next(self.producer) == self.consumer {
            self.ring.prefetch_index(Q_CONSUMER);
        }
    }

    /// Writes a completion that nobody is told of until [`CompletionQueue::publish`]. Between the two its request is
    /// taken off and shown to be ([`Origin`] says why).
    #[inline]
    pub fn write(&mut self, cqe: &Cqe, origin: Origin) -> Result<(), CqFull> {
        let next = self.ring.next(self.producer);
        if next == self.consumer {
            self.consumer = self.ring.consumer();
            if next == self.consumer {
                return Err(CqFull);
            }
        }
        let slot = self.ring.slot(self.producer);
        let to = self.ring.file.at(slot, size_of::<Element>() as u64);
        let to = to.cast::<Element>().as_ptr();
        // SAFETY: in bounds and aligned (64-byte slots). Volatile since the program may look at any time. Word by word: an element
        // that is put together elsewhere and then copied in large pieces waits for each of its parts.
        unsafe {
            (&raw mut (*to).cqe.wr_id).write_volatile(cqe.wr_id);
            (&raw mut (*to).cqe.status).write_volatile(cqe.status);
            (&raw mut (*to).cqe.opcode).write_volatile(cqe.opcode);
            (&raw mut (*to).cqe.vendor_err).write_volatile(cqe.vendor_err);
            (&raw mut (*to).cqe.byte_len).write_volatile(cqe.byte_len);
            (&raw mut (*to).cqe.imm_or_rkey).write_volatile(cqe.imm_or_rkey);
            (&raw mut (*to).cqe.qp_num).write_volatile(cqe.qp_num);
            (&raw mut (*to).cqe.src_qp).write_volatile(cqe.src_qp);
            (&raw mut (*to).cqe.wc_flags).write_volatile(cqe.wc_flags);
            (&raw mut (*to).cqe.pkey_index).write_volatile(cqe.pkey_index);
            (&raw mut (*to).cqe.slid).write_volatile(cqe.slid);
            (&raw mut (*to).cqe.sl).write_volatile(cqe.sl);
            (&raw mut (*to).cqe.dlid_path_bits).write_volatile(cqe.dlid_path_bits);
            (&raw mut (*to).cqe.port_num).write_volatile(cqe.port_num);
            (&raw mut (*to).cqe.reserved).write_volatile(cqe.reserved);
            (&raw mut (*to).origin).write_volatile(origin.to_word());
        }
        self.written = self.written.wrapping_add(1);
        self.ring
            .file
            .atomic_u64(slot + CQE_NUMBER)
            .store(self.written.into(), Ordering::Release);
        self.producer = next;
        Ok(())
    }

    /// Goes on in another place of the file, which must hold `entries` completions. All are published. Those that the program has not polled
    /// are the caller's to copy to its front: gives the index of the oldest in the old place, and their number. If they are more
    /// than `entries`, nothing changes and their number is the error.
    pub fn move_to(&mut self, loc: QueueLoc, entries: u32) -> Result<(u32, u32), u32> {
        let first = self.ring.consumer();
        let count = self.producer.wrapping_sub(first) & self.ring.loc.mask;
        if count > entries.min(loc.mask) {
            return Err(count);
        }
        self.ring.loc = loc;
        self.consumer = 0;
        self.producer = count;
        self.publish();
        Ok((first, count))
    }

    /// Shows the completions that were written.
    #[inline]
    pub fn publish(&self) {
        self.ring.store(Q_PRODUCER, self.producer, self.written);
    }
}

#[cfg(test)]
mod tests;
