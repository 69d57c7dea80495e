//! A UC request: what RC would answer with a NAK is dropped, and with it the rest of its message (IBTA 9.8.2). The next
//! message begins with its FIRST or ONLY, whatever PSN that has, so a gap costs no other message than the broken one.
//!
//! A receive request that a broken SEND had taken stays with the QP and serves the next message that needs one, also where
//! it came from a shared receive queue: nothing ever goes back into a queue.

use super::effects::drain;
use super::request::{Refusal, fail, in_sequence, listens, send, write};
use crate::transport::env::{Env, count};
use crate::transport::qp::Qp;
use crate::verbs::RecvQueues;
use crate::wire::{Operation, Packet};

/// A request arrived. `tag` names the packet to whoever places its payload.
pub(crate) fn on_unreliable<Q: RecvQueues>(
    qp: &mut Qp,
    packet: &Packet,
    tag: u32,
    queues: &mut Q,
    env: &mut Env<'_>,
) {
    if !listens(qp, env) {
        return;
    }
    let info = packet.opcode.info();
    match packet.psn.distance(qp.resp.epsn) {
        0 => {}
        1.. => {
            count!(qp, env, out_of_sequence);
            abandon(qp);
        }
        _ => {
            count!(qp, env, duplicate_request);
            abandon(qp);
        }
    }
    // The next in line is the one behind this, also where this is dropped: a gap is counted once.
    qp.resp.epsn = packet.psn.add(1);
    if info.position.starts() {
        abandon(qp);
    } else if !in_sequence(qp.resp.message, info) {
        // The rest of a message that is broken.
        abandon(qp);
        count!(qp, env, rx_dropped);
        return;
    }
    if !qp.resp.effects.has_room() {
        abandon(qp);
        count!(qp, env, rx_dropped);
        return;
    }
    let verdict = match info.operation {
        Operation::Send => send(qp, packet, info, tag, queues, env),
        _ => write(qp, packet, info, tag, queues, env),
    };
    if info.operation == Operation::Write && info.position.starts() {
        count!(qp, env, rx_write_requests);
    }
    match verdict {
        Ok(()) => {}
        Err(Refusal::NotReady) => {
            count!(qp, env, out_of_buffer);
            abandon(qp);
        }
        // A receive request that is no good is this end's fault, and the program hears of it.
        Err(Refusal::Fatal(cause)) if cause.fault().is_receivers() => {
            fail(qp, packet, cause);
        }
        Err(Refusal::Fatal(_)) => {
            count!(qp, env, rx_dropped);
            abandon(qp);
        }
    }
    drain(qp, env);
}

/// The message in progress will not be completed.
fn abandon(qp: &mut Qp) {
    qp.resp.message = None;
}
