//! The QPs of a NIC on this lcore, found by their numbers, which every packet does.

use roceline_engine::verbs::{QpId, RecvQueues, RecvWr};
use roceline_engine::wire::{Operation, Packet};

use super::context::Qp;
use super::srq::{Receives, Srqs};
use crate::port::prefetch_line;

/// The QPs of a NIC on this lcore by number.
#[derive(Debug)]
pub struct QpTable {
    entries: Vec<Option<Box<Qp>>>,
    /// Shared receive queues.
    pub srqs: Srqs,
    shift: u32,
    mask: u32,
}

impl QpTable {
    /// A table for numbers with `owner_bits` at the bottom and `index_bits` above them.
    pub fn new((owner_bits, index_bits): (u32, u32)) -> QpTable {
        let size = 1u32 << index_bits;
        let mut entries = Vec::new();
        entries.resize_with(size as usize, || None);
        QpTable {
            entries,
            srqs: Srqs::default(),
            shift: owner_bits,
            mask: size - 1,
        }
    }

    fn index(&self, id: QpId) -> usize {
        ((id.0 >> self.shift) & self.mask) as usize
    }

    /// The QP with this number.
    #[inline]
    pub fn get(&self, id: QpId) -> Option<&Qp> {
        self.entries[self.index(id)]
            .as_deref()
            .filter(|qp| qp.id == id)
    }

    /// The QP with this number.
    #[inline]
    pub fn get_mut(&mut self, id: QpId) -> Option<&mut Qp> {
        let index = self.index(id);
        self.entries[index].as_deref_mut().filter(|qp| qp.id == id)
    }

    /// Asks the cache for what a received packet needs of its QP, if there is one.
    #[inline]
    pub fn prefetch(&self, packet: &Packet) {
        if let Some(qp) = &self.entries[self.index(QpId(packet.dest_qpn))] {
            prefetch_line(std::ptr::from_ref::<Qp>(qp).cast());
            let info = packet.opcode.info();
            if !info.is_request() {
                prefetch_line(std::ptr::from_ref(&qp.sq).cast());
            } else if info.operation == Operation::Send {
                prefetch_line(std::ptr::from_ref(&qp.rq).cast());
            }
        }
    }

    /// The same for what is taken from its send queue.
    #[inline]
    pub fn prefetch_sends(&self, id: QpId) {
        if let Some(qp) = &self.entries[self.index(id)] {
            prefetch_line(std::ptr::from_ref::<Qp>(qp).cast());
            prefetch_line(std::ptr::from_ref(&qp.sq).cast());
        }
    }

    /// The same for a packet that it is to send.
    #[inline]
    pub fn prefetch_packet(&self, id: QpId) {
        if let Some(qp) = &self.entries[self.index(id)] {
            let template = std::ptr::from_ref(&qp.template).cast::<u8>();
            prefetch_line(std::ptr::from_ref::<Qp>(qp).cast());
            prefetch_line(template);
            prefetch_line(template.wrapping_add(64));
        }
    }

    /// Adds a QP under its number.
    pub fn insert(&mut self, qp: Box<Qp>) {
        let index = self.index(qp.id);
        self.entries[index] = Some(qp);
    }

    /// Takes a QP out.
    pub fn remove(&mut self, id: QpId) -> Option<Box<Qp>> {
        self.get(id)?;
        let index = self.index(id);
        self.entries[index].take()
    }

    /// All QPs.
    pub fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.entries.iter().filter_map(|e| e.as_deref())
    }
}

impl RecvQueues for QpTable {
    fn take(&mut self, qp: QpId, wr: &mut RecvWr) -> bool {
        let index = self.index(qp);
        let found = self.entries[index].as_deref_mut().filter(|q| q.id == qp);
        match found.map(|qp| &mut qp.rq) {
            Some(Receives::Own(queue)) => queue.take(wr),
            Some(Receives::Shared(srq)) => self.srqs.take(*srq, wr),
            None => false,
        }
    }
}
