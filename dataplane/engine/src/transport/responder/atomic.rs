//! The judgement of atomics, ATOMIC WRITE and FLUSH. Each takes one of the responder's resources, as a READ does, and its
//! answer is kept there: a duplicate gets it again, and nothing is executed twice (IBTA 9.7.5.1).
//!
//! Atomics and ATOMIC WRITE are executed by the caller, as placements in the order of all of this QP. A FLUSH has nothing to
//! place: its answer waits, as every effect, for the placements before it, and what is placed is visible.

use super::effects::{Effect, Kind};
use super::invalidate;
use super::read::ReadJob;
use super::request::{Refusal, check_key, place, resource};
use crate::descriptor::PlaceKind;
use crate::memory::Access;
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::wire::{Feth, Packet};

/// Bytes that an atomic, or an ATOMIC WRITE, is about; their addresses are multiples of it.
const BYTES: u32 = 8;

/// Compare and swap, or fetch and add.
pub(super) fn atomic(
    qp: &mut Qp,
    packet: &Packet,
    tag: u32,
    env: &mut Env<'_>,
) -> Result<(), Refusal> {
    count!(qp, env, rx_atomic_requests);
    resource(qp)?;
    execute(
        qp,
        packet,
        tag,
        (PlaceKind::Atomic, Access::REMOTE_ATOMIC),
        env,
    )
}

/// ATOMIC WRITE (IBTA A19.4.5): 8 bytes, at once.
pub(super) fn write(
    qp: &mut Qp,
    packet: &Packet,
    tag: u32,
    env: &mut Env<'_>,
) -> Result<(), Refusal> {
    count!(qp, env, rx_write_requests);
    let (left, got) = (packet.ext.dma_len, packet.payload_len);
    if left != BYTES || got != BYTES {
        return Err(Refusal::Fatal(Cause::MessageLength { left, got }));
    }
    resource(qp)?;
    execute(
        qp,
        packet,
        tag,
        (PlaceKind::AtomicWrite, Access::REMOTE_WRITE),
        env,
    )
}

fn execute(
    qp: &mut Qp,
    packet: &Packet,
    tag: u32,
    (kind, right): (PlaceKind, Access),
    env: &mut Env<'_>,
) -> Result<(), Refusal> {
    if !qp.access.allows(right) {
        return Err(Refusal::Fatal(Cause::QpRight(right)));
    }
    let (va, rkey) = (packet.ext.va, packet.ext.rkey);
    let slice = check_key(qp, rkey, va, BYTES, right, env)?;
    // In a zero-based window the two differ.
    if (va | slice.addr) % u64::from(BYTES) != 0 {
        return Err(Refusal::Fatal(Cause::Misaligned(va)));
    }
    let first = env.out.slices.len() as u32;
    env.out.slices.push(slice);
    place(qp, kind, BYTES, tag, first, 1, env);
    let r = &mut qp.resp;
    let job = r.add_read(ReadJob::brief(packet));
    r.effects.push(Effect {
        placing: true,
        ..Effect::new(packet.psn, Kind::Atomic(job))
    });
    r.epsn = packet.psn.add(1);
    Ok(())
}

/// FLUSH (IBTA A19.4.4).
pub(super) fn flush(qp: &mut Qp, packet: &Packet, env: &mut Env<'_>) -> Result<(), Refusal> {
    let feth = Feth::from_raw(packet.ext.qkey);
    if !feth.is_valid() {
        return Err(Refusal::Fatal(Cause::FlushKind(packet.ext.qkey)));
    }
    resource(qp)?;
    // The rights have the order of the placement types.
    const _: () = assert!(Access::FLUSH_GLOBAL.0 == (Feth::GLOBAL as u32) << 8);
    const _: () = assert!(Access::FLUSH_PERSISTENT.0 == (Feth::PERSISTENT as u32) << 8);
    let right = Access(u32::from(feth.placement) << 8);
    if !qp.access.allows(right) {
        return Err(Refusal::Fatal(Cause::QpRight(right)));
    }
    let (va, rkey, len) = (packet.ext.va, packet.ext.rkey, packet.ext.dma_len);
    if feth.selectivity == Feth::REGION {
        let owner = (qp.pd, qp.id);
        let whole =
            invalidate::allows(qp, rkey).and_then(|()| env.nic.mrs.check_whole(rkey, owner, right));
        whole.map_err(|error| {
            let (addr, len) = (va, 0);
            let cause = Cause::RemoteKey {
                rkey,
                addr,
                len,
                right,
                error,
            };
            Refusal::access(cause, qp, env)
        })?;
    } else {
        check_key(qp, rkey, va, len, right, env)?;
    }
    let r = &mut qp.resp;
    let job = r.add_read(ReadJob::brief(packet));
    r.effects.push(Effect::new(packet.psn, Kind::Read(job)));
    r.epsn = packet.psn.add(1);
    Ok(())
}
