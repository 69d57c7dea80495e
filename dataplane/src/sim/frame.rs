//! Packets without their bytes, small enough to be kept by the hundred thousand. Queues and events hold their numbers.

use std::net::Ipv4Addr;

use roceline_engine::fabric::impair::{Direction, PacketView, PathView};
use roceline_engine::wire::pause::PauseFrame;
use roceline_engine::wire::{
    ExtHeaders, Gid, LINK_OVERHEAD, Opcode, Packet, Psn, bth, ethernet, icrc, ipv4, udp,
};
use roceline_engine::{NO_AH, Payload, Side, TxDesc};
use slab::Slab;

use super::NodeId;

/// The shortest frame, without FCS.
pub(super) const SHORTEST: u32 = 60;
/// Ethernet, IPv4, UDP and BTH.
const BASE: usize = ethernet::LEN + ipv4::LEN + udp::LEN + bth::LEN;

/// Number of a frame in [`Frames`].
pub(super) type FrameId = u32;

/// A RoCE packet on its way.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Extended headers.
    pub ext: ExtHeaders,
    /// The NIC that sent it.
    pub src: u32,
    /// The NIC that it is for.
    pub dst: u32,
    /// The QP that it is for.
    pub dest_qpn: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// Bytes of payload, without pad.
    pub payload: u32,
    /// Differs between flows: what equal-cost paths are chosen by.
    pub flow_hash: u32,
    /// UDP source port.
    pub udp_sport: u16,
    /// Operation.
    pub opcode: Opcode,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// BTH A bit.
    pub ack_req: bool,
    /// BTH SE bit.
    pub solicited: bool,
}

impl Frame {
    /// Bytes from the Ethernet header to the ICRC.
    pub fn bytes(&self) -> u32 {
        let headers = BASE + usize::from(self.opcode.info().ext_len) + icrc::LEN;
        (headers as u32 + self.payload.next_multiple_of(4)).max(SHORTEST)
    }

    /// Bytes of link time that it takes.
    pub fn wire_bytes(&self) -> u32 {
        self.bytes() + LINK_OVERHEAD
    }

    /// Whether the IP header says that congestion was met.
    pub fn is_marked(&self) -> bool {
        self.traffic_class & 3 == 3
    }

    /// The priority that the DSCP stands for: its class selector.
    pub fn priority(&self) -> usize {
        usize::from(self.traffic_class >> 5)
    }

    /// As its receiver parses it.
    pub(super) fn packet(&self) -> Packet {
        Packet {
            src: address(self.src as NodeId),
            dst: address(self.dst as NodeId),
            opcode: self.opcode,
            solicited: self.solicited,
            ack_req: self.ack_req,
            becn: self.opcode == Opcode::CNP,
            ce: self.is_marked(),
            pkey: 0xffff,
            dest_qpn: self.dest_qpn,
            psn: self.psn,
            ext: self.ext,
            payload_len: self.payload,
            payload_offset: 0,
            traffic_class: self.traffic_class,
        }
    }

    /// As its sender described it.
    pub(super) fn desc(&self) -> TxDesc {
        TxDesc {
            ah: NO_AH,
            dest_qpn: self.dest_qpn,
            side: Side::Requester,
            opcode: self.opcode,
            ack_req: self.ack_req,
            solicited: self.solicited,
            psn: self.psn,
            ext: self.ext,
            len: self.payload,
            payload: Payload::None,
            ..TxDesc::default()
        }
    }

    /// As impairments see it.
    pub(super) fn view(&self) -> PacketView {
        let path = PathView {
            direction: Direction::Tx,
            dst: address(self.dst as NodeId),
            traffic_class: self.traffic_class,
            udp_sport: self.udp_sport,
            dest_qpn: self.dest_qpn,
        };
        PacketView::of_desc(&self.desc(), &path)
    }
}

/// The address of a NIC: 10.0.0.1 for the first, and so on.
pub fn address(node: NodeId) -> Gid {
    let first = u32::from(Ipv4Addr::new(10, 0, 0, 1));
    Gid::from_ip(Ipv4Addr::from(first + node as u32).into())
}

/// All frames on their way. Numbers with [`PAUSE`] are those of pause frames, which are few.
#[derive(Default)]
pub(super) struct Frames {
    roce: Slab<Frame>,
    pauses: Slab<PauseFrame>,
}

/// Marks the number of a pause frame.
const PAUSE: FrameId = 1 << 31;

/// A frame that has arrived.
pub(super) enum Arrived {
    Roce(Frame),
    Pause(PauseFrame),
}

impl Frames {
    pub fn insert(&mut self, frame: Frame) -> FrameId {
        self.roce.insert(frame) as FrameId
    }

    pub fn insert_pause(&mut self, frame: PauseFrame) -> FrameId {
        self.pauses.insert(frame) as FrameId | PAUSE
    }

    pub fn is_pause(id: FrameId) -> bool {
        id & PAUSE != 0
    }

    /// Takes a frame out.
    pub fn take(&mut self, id: FrameId) -> Arrived {
        match Frames::is_pause(id) {
            true => Arrived::Pause(self.pauses.remove((id & !PAUSE) as usize)),
            false => Arrived::Roce(self.roce.remove(id as usize)),
        }
    }

    /// Forgets a frame.
    pub fn drop(&mut self, id: FrameId) {
        self.take(id);
    }

    /// A RoCE packet.
    pub fn roce(&self, id: FrameId) -> &Frame {
        &self.roce[id as usize]
    }

    pub fn pause(&self, id: FrameId) -> Option<&PauseFrame> {
        match Frames::is_pause(id) {
            true => self.pauses.get((id & !PAUSE) as usize),
            false => None,
        }
    }

    /// Bytes of link time.
    pub fn wire_bytes(&self, id: FrameId) -> u32 {
        match Frames::is_pause(id) {
            true => SHORTEST + LINK_OVERHEAD,
            false => self.roce(id).wire_bytes(),
        }
    }

    /// Its IP header says from now on that it met congestion.
    pub fn mark(&mut self, id: FrameId) {
        if let Some(frame) = self.roce.get_mut(id as usize) {
            frame.traffic_class |= 3;
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.roce.len() + self.pauses.len()
    }
}
