//! The stages of one poll of one NIC: receive, finished memory operations, doorbells, timers, transmit.
//! Each gives the number of things it did; a poll in which all give 0 was empty.

use roceline_abi::queue::{MAX_SGE, Sge};
use roceline_engine::verbs::QpId;
use roceline_engine::wire::{ParseError, Transport};
use roceline_engine::{Nanos, Outcome};

use super::atomic;
use super::build::finish;
use super::context::{Context, ContextKey, Mr, Then, side_index};
use super::drain::drain;
use super::nic::{Fetched, LOOPBACK_LIMIT, Nic, Shared, TX_HIGH};
use super::overflow::fail_overflowed;
use super::tap::Taps;
use super::tuning::Tuning;
use super::{dropped, impair, multicast, pause};
use crate::memory::helper::Moved;
use crate::port::{Mbuf, prefetch_line};

/// Send queues of one context that are looked at in one poll.
const TURNS: usize = 256;
/// Requests of one send queue that are read before another's turn.
const REQUESTS_PER_TURN: u32 = 16;
/// Ended operations handled for one program in one poll.
const ENDS_PER_POLL: usize = 64;
/// How often receive queues of failed QPs are looked at: they have no doorbell.
const ERRORED_SCAN: Nanos = Nanos::from_micros(50);

/// Receives a burst.
pub fn receive(nic: &mut Nic, shared: &mut Shared, now: Nanos) -> usize {
    let hold = std::mem::take(&mut nic.hold_receive);
    // Each time it is what the NIC sends to itself that has to wait, if the port has more than a poll takes.
    let own_first = std::mem::take(&mut nic.own_first) && !nic.loopback.is_empty();
    let mut arrived = 0;
    if nic.pause.is_some() {
        arrived = pause::receive(nic, shared, hold || own_first, now);
        if hold {
            return arrived;
        }
    } else if hold {
        // The port's queue, and then the peer, wait: the emulated link loses nothing.
        return 0;
    } else if nic.rx_burst.is_empty() && !own_first {
        // Else it came at a look.
        nic.port.rx_burst(&mut nic.rx_burst);
    }
    let from_port = nic.rx_burst.len();
    nic.own_first = from_port >= nic.rx_burst.wanted();
    nic.rx_burst.refill(&mut nic.loopback);
    let own = nic.rx_burst.len() - from_port;
    nic.rx_burst.refill(&mut nic.injected);
    if nic.tapped && !nic.rx_burst.is_empty() {
        let index = nic.info.index as usize;
        // What a NIC sends to itself passes no port: it is seen to leave and to arrive here. What it sends to a group it
        // was seen to send at the port.
        let looped = nic.rx_burst.iter().skip(from_port).take(own);
        let looped = looped.filter(|mbuf| !multicast::is_for_group(mbuf));
        sent(&mut shared.taps, index, looped, nic.impair.sending);
        if !nic.impair.receiving {
            let all = nic.rx_burst.iter().map(Mbuf::data);
            shared.taps.record(index, false, all);
        }
    }
    if nic.impair.receiving {
        arrived = arrived.max(impair::receive(nic, shared, now));
    }
    let count = nic.rx_burst.len();
    if count == 0 {
        return arrived;
    }
    let ahead = shared.tuning.rx_prefetch as usize;
    for mbuf in nic.rx_burst.iter().take(ahead) {
        mbuf.prefetch();
    }
    parse(nic, ahead);
    prefetch_named(nic);
    let good = check(nic, shared);
    let mut left = good;
    while left != 0 {
        let at = left.trailing_zeros() as usize;
        left &= left - 1;
        let packet = &nic.received.parsed(at).packet;
        let (qps, out) = (&mut nic.qps, &mut shared.out);
        nic.engine.rx(packet, at as u32, now, qps, out);
        if !shared.out.has_room() {
            drain(nic, shared);
        }
    }
    // What can be placed at once is placed before ACKs are due, so that they cover it.
    drain(nic, shared);
    nic.engine.rx_end(now, &mut shared.out);
    drain(nic, shared);
    nic.received.clear();
    if nic.groups.has_copies() {
        multicast::deliver(nic, shared, now);
    }
    count
}

/// Parses the burst, of which the first `ahead` frames are being fetched. What is no RoCE packet ends here.
fn parse(nic: &mut Nic, ahead: usize) {
    let mut burst = nic.rx_burst.drain();
    while let Some(mbuf) = burst.next() {
        // Nobody is fetched ahead of whom nothing was to be.
        if let Some(later) = ahead.checked_sub(1).and_then(|n| burst.ahead(n)) {
            later.prefetch();
        }
        if let Err((mbuf, error)) = nic.received.push(mbuf) {
            match error {
                ParseError::NotRoce => nic.others.take(mbuf.data(), &mut nic.counts),
                ParseError::Malformed(_) => nic.engine.counters_mut().rx_malformed += 1,
            }
            nic.received.spend(mbuf);
        }
    }
}

/// Asks the cache for what the packets of the burst name, in a loop of its own: where it misses the TLB, a prefetch holds up what
/// comes behind it until page tables are walked, and the CPU walks for several at once only if they are close together.
fn prefetch_named(nic: &Nic) {
    let mut last = None;
    let mut last_key = 0;
    for at in 0..nic.received.len() {
        let packet = &nic.received.parsed(at).packet;
        // Whether there is such a QP does not matter here.
        if last.replace(packet.dest_qpn) != Some(packet.dest_qpn) {
            nic.qps.prefetch(packet);
            nic.engine.prefetch_rx(packet);
        }
        // 0, which names nothing, where it names no region.
        let key = packet.ext.rkey;
        if key != std::mem::replace(&mut last_key, key) {
            nic.engine.prefetch_region(key);
            prefetch_region(&nic.mrs, key);
        }
    }
}

/// Asks the cache for what a key names. A window's is its own and not that of its region; then it is for nothing.
#[inline]
fn prefetch_region(mrs: &[Option<Mr>], key: u32) {
    if let Some(mr) = mrs.get((key >> 8) as usize) {
        let at = std::ptr::from_ref(mr).cast::<u8>();
        prefetch_line(at);
        prefetch_line(at.wrapping_add(size_of::<Option<Mr>>() - 1));
    }
}

/// Checks the ICRCs of the burst, before anything in it is believed, and whom it is for. Gives which of its packets the transport is
/// to judge, a bit each.
fn check(nic: &mut Nic, shared: &mut Shared) -> u64 {
    let intact = nic.received.intact();
    let broken = nic.received.len() as u32 - intact.count_ones();
    let (mut good, mut left) = (intact, intact);
    let (mut packets, mut bytes) = (0, 0);
    // Of nearly all packets it is the same one.
    let mut own = None;
    let mut last = None;
    let mut last_key = 0;
    while left != 0 {
        let at = left.trailing_zeros() as usize;
        left &= left - 1;
        let parsed = nic.received.parsed(at);
        let packet = &parsed.packet;
        if own != Some(packet.dst) {
            if !nic.gids.contains(&packet.dst) {
                good &= !(1 << at);
                others_group(nic, shared, at);
                continue;
            }
            own = Some(packet.dst);
        }
        if packet.ce && packet.opcode.info().transport == Transport::Ud {
            nic.senders.learn(parsed);
        }
        let len = nic.received.frame(at).len() as u64;
        if let Some(qp) = nic.qps.get_mut(QpId(packet.dest_qpn)) {
            if !shared.contexts[qp.context].has_room() {
                nic.counts.rx_memory_overrun += 1;
                good &= !(1 << at);
                continue;
            }
            qp.packets.rx += 1;
            qp.packets.rx_bytes += len;
            if last.replace(packet.dest_qpn) != Some(packet.dest_qpn) {
                qp.prefetch_effects(packet);
                if let Some(cq) = qp
                    .completes(packet)
                    .and_then(|cq| shared.cqs.get(cq as usize))
                {
                    cq.queue.prefetch();
                }
                nic.engine.prefetch_rx_behind(packet);
            }
        }
        let key = packet.ext.rkey;
        if key != std::mem::replace(&mut last_key, key) {
            if let Some(Some(mr)) = nic.mrs.get((key >> 8) as usize) {
                mr.reach.prefetch();
            }
        }
        packets += 1;
        bytes += len;
    }
    let counters = nic.engine.counters_mut();
    counters.rx_icrc_encapsulated += u64::from(broken);
    counters.rdma_rx_packets += packets;
    counters.rdma_rx_bytes += bytes;
    good
}

/// A packet for none of the NIC's addresses: maybe for a group.
#[cold]
fn others_group(nic: &mut Nic, shared: &Shared, at: usize) {
    let frame = *nic.received.parsed(at);
    let Some(mbuf) = nic.received.take(at as u32) else {
        return;
    };
    let (groups, counters) = (&mut nic.groups, nic.engine.counters_mut());
    match multicast::arrived(groups, counters, &shared.pool, &frame, mbuf) {
        true => nic.counts.rx_multicast += 1,
        false => nic.counts.rx_not_ours += 1,
    }
}

/// Takes the outcomes of memory operations of one context.
pub fn operations(nic: &mut Nic, shared: &mut Shared, key: ContextKey, now: Nanos) -> usize {
    let context = &mut shared.contexts[key];
    if context.ops.is_empty() {
        if context.counted > 0 {
            shared.programs.count(context);
            context.is_at_rest();
        }
        return 0;
    }
    let mut count = 0;
    while shared.ends.len() < ENDS_PER_POLL {
        let Some(op) = context.ops.front() else { break };
        let op_refused = op.refused;
        if let Some(index) = op.mr {
            let Some(moved) = context.helper.outcome() else {
                break;
            };
            context.worst = context.worst.max(moved);
            release(nic, index);
        }
        if op_refused {
            context.worst = context.worst.max(Moved::Fault);
        }
        count += 1;
        if let Some(end) = context.ops.pop_front().and_then(|op| op.end) {
            if end.then != Then::Send {
                context.placing -= 1;
            }
            shared.ends.push((end, std::mem::take(&mut context.worst)));
        }
    }
    shared.programs.count(context);
    nic.hold_receive |= context.holds_receive(now, count);
    if context.ops.len() < context.room / 2 {
        while let Some(id) = context.paused.pop() {
            if let Some(qp) = nic.qps.get_mut(id) {
                qp.paused = false;
                nic.engine.pause_tx(id, false);
            }
        }
    }
    let mut ends = std::mem::take(&mut shared.ends);
    for (end, moved) in ends.drain(..) {
        let fault = moved == Moved::Fault;
        match end.then {
            // The engine never hears of it: nothing is acknowledged, refused or sent any more. `placing` keeps its count, so
            // that mapped memory of the same QP is not placed past the gap.
            Then::Placed | Then::Executed { .. } if moved == Moved::Gone => {}
            Then::Placed | Then::Executed { .. } => {
                let outcome = match end.then {
                    _ if fault => Outcome::Fault,
                    Then::Executed { at } => Outcome::Value(atomic::value(&end, at)),
                    _ => Outcome::Done,
                };
                if let Some(qp) = nic.qps.get_mut(end.qp) {
                    let placing = &mut qp.placing[side_index(end.side)];
                    *placing = placing.saturating_sub(1);
                }
                nic.engine.placed(
                    end.qp,
                    end.epoch,
                    end.side,
                    outcome,
                    now,
                    &mut nic.qps,
                    &mut shared.out,
                );
            }
            Then::Send => {
                let Some(qp) = nic.qps.get_mut(end.qp) else {
                    continue;
                };
                qp.tx_waiting = qp.tx_waiting.saturating_sub(1);
                let behind = match qp.tx_waiting {
                    0 => qp.lost_behind.take(),
                    _ => None,
                };
                if !nic.engine.is_current(end.qp, end.epoch, end.side) {
                    continue;
                }
                if moved == Moved::Gone {
                    continue;
                }
                if fault {
                    nic.engine.fetch_fault(
                        end.qp,
                        end.epoch,
                        end.side,
                        end.psn,
                        now,
                        &mut shared.out,
                    );
                } else {
                    finish(nic, &shared.pool, end.qp, end.mbuf);
                    if end.tell_fetched {
                        nic.engine.fetched(end.qp, end.epoch, now, &mut shared.out);
                        let behind = behind.map_or(0, |lost| lost.of(end.epoch));
                        let (qp, epoch) = (end.qp, end.epoch);
                        let told = Fetched { qp, epoch };
                        shared.fetched.extend(std::iter::repeat_n(told, behind));
                    }
                }
            }
        }
        if !shared.out.has_room() {
            drain(nic, shared);
        }
    }
    shared.ends = ends;
    nic.engine.rx_end(now, &mut shared.out);
    drain(nic, shared);
    count
}

/// An operation no longer uses a region; whoever waits for the last one is told.
fn release(nic: &mut Nic, index: u32) {
    let Some(slot) = nic.mrs.get_mut(index as usize) else {
        return;
    };
    let Some(mr) = slot else { return };
    mr.in_flight -= 1;
    if mr.in_flight == 0 {
        if let Some(reply) = mr.dereg.take() {
            *slot = None;
            // The control thread waits; a reply that nobody takes is no harm.
            let _ = reply.try_send(super::message::Reply::Done);
        }
    }
}

/// Reads doorbells of one context, and at most `budget` requests from its send queues.
pub fn doorbells(nic: &mut Nic, shared: &mut Shared, key: ContextKey, budget: usize) -> usize {
    let context = &mut shared.contexts[key];
    if context.closing.is_some() {
        return 0;
    }
    let (qps, sends, table) = (&context.qps, &mut context.sends, &mut nic.qps);
    if let Some(index) = context.bells.foresee(context.bell_limit) {
        if let Some(qp) = qps.get(index as usize).and_then(|&id| table.get_mut(id)) {
            qp.sq.prefetch_posted();
        }
    }
    context.bells.collect(context.bell_limit, |index| {
        let Some(qp) = qps.get(index as usize).and_then(|&id| table.get_mut(id)) else {
            return;
        };
        if !qp.in_sends {
            qp.in_sends = true;
            sends.push_back(qp.id);
        }
    });
    if sends.is_empty() {
        return 0;
    }
    let mut count = 0;
    let mut turns = sends.len().min(TURNS);
    let mut sges = [Sge::default(); MAX_SGE];
    while turns > 0 && count < budget {
        turns -= 1;
        let Some(id) = shared.contexts[key].sends.pop_front() else {
            break;
        };
        prefetch_turns(nic, &shared.contexts[key], shared.tuning.tx_prefetch);
        let Some(qp) = nic.qps.get_mut(id) else {
            continue;
        };
        // The program's index is looked at once; what it posts meanwhile rings anew.
        let mut posted = qp.sq.posted();
        let mut turns_left = REQUESTS_PER_TURN;
        while posted > 0 && turns_left > 0 && nic.engine.wants_sends(id) {
            let wr = qp.sq.take(&mut sges, posted > 1);
            posted -= 1;
            turns_left -= 1;
            count += 1;
            let used = (wr.num_sge as usize).min(MAX_SGE);
            // Never full: the engine's queue is as long as the shared one.
            let _ = nic.engine.post_send(id, &wr, &sges[..used]);
        }
        // Whether or not more are posted by now, those that rang before the index was looked at are taken.
        let more = turns_left == 0;
        qp.in_sends = more;
        if more {
            shared.contexts[key].sends.push_back(id);
        }
        if !shared.out.has_room() {
            drain(nic, shared);
        }
    }
    drain(nic, shared);
    count
}

/// Asks the cache for what the next turns of a context's send queues will need.
#[inline]
fn prefetch_turns(nic: &Nic, context: &Context, distance: u32) {
    let Some((far, near)) = Tuning::ahead(distance as usize) else {
        return;
    };
    if let Some(&far) = context.sends.get(far) {
        nic.qps.prefetch_sends(far);
        nic.engine.prefetch_send(far);
    }
    if let Some(&near) = context.sends.get(near) {
        nic.engine.prefetch_send_behind(near);
        if let Some(qp) = nic.qps.get(near) {
            qp.sq.prefetch();
        }
    }
}

/// Fires timers and goes on with flushes.
pub fn timers(nic: &mut Nic, shared: &mut Shared, now: Nanos) -> usize {
    // What is paced leaves in `transmit`.
    let due = nic.engine.next_timer().is_some_and(|t| t <= now);
    let scan = nic.engine.has_errored_qps() && now >= nic.errored_scan;
    if !(due || scan || nic.more_due || !shared.failed_cqs.is_empty()) {
        return 0;
    }
    nic.errored_scan = now + ERRORED_SCAN;
    nic.more_due = nic.engine.advance(now, &mut nic.qps, &mut shared.out);
    let mut count = shared.out.events.len() + shared.out.tx.len();
    drain(nic, shared);
    if !shared.failed_cqs.is_empty() {
        count += fail_overflowed(nic, shared, now);
    }
    count
}

/// Lets requesters and READ responders send, then hands packets to the port.
pub fn transmit(nic: &mut Nic, shared: &mut Shared, now: Nanos) -> usize {
    let mut count = 0;
    if nic.pause.is_some() {
        pause::obey(nic, now);
    }
    if nic.tx.len() < TX_HIGH && nic.loopback.len() < LOOPBACK_LIMIT / 2 {
        let budget = shared.tuning.tx_burst as usize;
        nic.engine.tx(budget, now, &mut shared.out);
        count += shared.out.tx.len();
        drain(nic, shared);
    }
    if nic.impair.sending {
        count += impair::transmit(nic, shared, now);
    }
    if nic.pause.is_some() {
        pause::set_aside(nic);
        count += pause::tell(nic, shared, now);
    }
    loop {
        let seen = nic.tx_burst.len();
        nic.tx_burst.refill(&mut nic.tx);
        if let Some(pause) = &mut nic.pause {
            pause.count_sent(nic.tx_burst.iter().skip(seen));
        }
        if nic.tapped {
            // Those that the port did not take last time were recorded then.
            let new = nic.tx_burst.iter().skip(seen);
            let index = nic.info.index as usize;
            let dropped = &mut nic.impair.dropped;
            if dropped.is_empty() {
                sent(&mut shared.taps, index, new, nic.impair.sending);
            } else {
                dropped.record_among(new, index, &mut shared.taps);
            }
        }
        if nic.tags {
            // Captures show packets without it, as where hardware puts it in.
            let new = nic.tx_burst.iter_mut().skip(seen);
            new.for_each(Mbuf::insert_tag);
        }
        if nic.tx_burst.is_empty() {
            return count;
        }
        if nic.pause.is_some() {
            // Pauses have taken packets out and put others back, and sent frames of their own.
            nic.port.offered_before(seen);
        }
        let sent = nic.port.tx_burst(&mut nic.tx_burst);
        count += sent;
        if !nic.tx_burst.is_empty() {
            return count;
        }
    }
}

/// Records packets that a NIC sends, with what its rules noted on them, if it has rules.
fn sent<'a>(taps: &mut Taps, nic: usize, mbufs: impl Iterator<Item = &'a Mbuf>, noted: bool) {
    if !noted {
        // Nothing to record is worth no look at the clock.
        let mut frames = mbufs.map(Mbuf::data).peekable();
        if frames.peek().is_some() {
            taps.record(nic, true, frames);
        }
        return;
    }
    mbufs.for_each(|mbuf| dropped::record_sent(taps, nic, mbuf, None));
}
