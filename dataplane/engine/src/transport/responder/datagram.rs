//! Datagrams in: each fills a receive request, behind the 40 bytes that tell where it came from, or is dropped without a word
//! (IBTA 9.8.3). Neither PSNs nor order matter.

use super::effects::{Effect, Kind, Received, Sender, drain};
use crate::descriptor::{Place, PlaceKind, Side};
use crate::memory::Access;
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::transport::sge::Cursor;
use crate::verbs::{MAX_SGE, RecvQueues, WcOpcode};
use crate::wire::{HeaderSet, Packet, Psn, grh};

/// Bytes in front of the payload.
const GRH: u32 = grh::LEN as u32;

/// A datagram arrived. `tag` names the packet to whoever places its payload.
///
/// What cannot be taken is dropped without a word, and costs no receive request (IBTA 9.8.3 and table 60, class D).
/// Only a receive request that is no good ends the QP (class A).
pub(crate) fn on_datagram<Q: RecvQueues>(
    qp: &mut Qp,
    packet: &Packet,
    tag: u32,
    queues: &mut Q,
    env: &mut Env<'_>,
) {
    if packet.ext.qkey != qp.qkey {
        count!(qp, env, rx_qkey_violations);
        return;
    }
    if qp.resp.dead || !qp.resp.effects.has_room() {
        count!(qp, env, rx_dropped);
        return;
    }
    // A request that an earlier datagram did not fit into is still the next one.
    if !qp.resp.recv_taken && !queues.take(qp.id, &mut qp.resp.recv) {
        count!(qp, env, out_of_buffer);
        return;
    }
    let r = &mut qp.resp;
    r.recv_taken = true;
    if r.recv.num_sge as usize > MAX_SGE {
        let cause = Cause::ReceiveEntries(r.recv.num_sge);
        return refuse(qp, packet.psn, cause, env);
    }
    let sges = &r.recv.sges[..r.recv.num_sge as usize];
    r.recv_space = sges.iter().map(|s| u64::from(s.length)).sum();
    let len = GRH + packet.payload_len;
    if u64::from(len) > r.recv_space {
        count!(qp, env, resp_local_length_error);
        return;
    }
    let (pd, slices) = (qp.recv_pd, &mut env.out.slices);
    let sliced = Cursor::default().slice(sges, len, Access::LOCAL_WRITE, pd, &env.nic.mrs, slices);
    let (first, slices) = match sliced {
        Ok(sliced) => sliced,
        Err(error) => {
            return refuse(qp, packet.psn, Cause::ReceiveKey(error), env);
        }
    };
    env.out.place.push(Place {
        qp: qp.id,
        epoch: qp.place_epoch,
        side: Side::Responder,
        kind: PlaceKind::Datagram,
        packet: tag,
        len,
        first,
        count: slices,
    });
    r.recv_taken = false;
    let headers = packet.opcode.info().headers;
    let imm = packet.ext.imm_or_rkey;
    let received = Received {
        wr_id: r.recv.wr_id,
        byte_len: len,
        imm: headers.has(HeaderSet::IMM).then_some(imm),
        invalidate: None,
        opcode: WcOpcode::Recv,
        solicited: packet.solicited,
        from: Some(Sender {
            qpn: packet.ext.src_qpn,
            ipv4: packet.src.ipv4().is_some(),
        }),
    };
    let effect = Effect {
        placing: true,
        ends: true,
        ..Effect::new(packet.psn, Kind::Send)
    };
    r.effects.push_received(effect, received);
}

/// The receive request itself is no good: it completes with an error behind what arrived before, and the QP goes to ERR.
fn refuse(qp: &mut Qp, psn: Psn, cause: Cause, env: &mut Env<'_>) {
    qp.resp.dead = true;
    qp.journal.rest.refusal = Some(cause);
    qp.resp.effects.push_nak(psn, Kind::FatalNak(cause.fault()));
    drain(qp, env);
}
