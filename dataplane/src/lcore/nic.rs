//! A NIC as its lcore holds it, and what all NICs of the lcore share.

use std::collections::VecDeque;
use std::sync::Arc;

use roceline_engine::verbs::QpId;
use roceline_engine::wire::Gid;
use roceline_engine::{Engine, EngineConfig, Nanos, Outcome, Outputs, Place, Side};
use slab::Slab;

use super::ah::Ah;
use super::build::Plan;
use super::cnp::Senders;
use super::context::{Context, ContextKey, Cq, Mr, OpEnd, Pd};
use super::impair::NicImpair;
use super::multicast::Groups;
use super::mw::Windows;
use super::others::Others;
use super::pause::NicPause;
use super::program::Programs;
use super::qp_table::QpTable;
use super::received::Received;
use super::tap::Taps;
use super::tuning::Tuning;
use crate::congestion::Settings;
use crate::memory::helper::Moved;
use crate::nic::NicInfo;
use crate::port::spread::PartOf;
use crate::port::{Burst, Mbuf, Mempool, Port, RX_BURST};

/// Indices of memory regions that rest.
const QUARANTINE: usize = 1024;
/// Packets of a NIC to itself that may wait.
pub const LOOPBACK_LIMIT: usize = 1024;
/// The requester stops while this many finished packets wait for the port.
pub const TX_HIGH: usize = 64;
/// Responses are dropped, as by a full NIC queue, beyond this many.
pub const TX_LIMIT: usize = 4096;

/// A NIC.
pub struct Nic {
    /// Name, addresses, limits.
    pub info: Arc<NicInfo>,
    /// Its addresses: whatever else is received is for others.
    pub gids: Arc<[Gid]>,
    /// Transport.
    pub engine: Engine,
    /// Where packets come from and go to.
    pub port: Port,
    /// QPs.
    pub qps: QpTable,
    /// Memory regions by [`roceline_engine::memory::MrInfo::index`].
    pub mrs: Vec<Option<Mr>>,
    /// Memory windows.
    pub mws: Windows,
    /// Address handles by [`roceline_engine::transport::AhInfo::index`].
    pub ahs: Vec<Option<Ah>>,
    /// Multicast groups.
    pub groups: Groups,
    /// Packets to itself.
    pub loopback: VecDeque<Mbuf>,
    /// Packets of a replay.
    pub injected: VecDeque<Mbuf>,
    /// Finished packets that the port has not taken yet.
    pub tx: VecDeque<Mbuf>,
    /// The burst being handed to the port.
    pub tx_burst: Burst,
    /// The burst being received.
    pub rx_burst: Burst,
    /// Its packets while the transport judges them.
    pub received: Received,
    /// Its place among the NICs of its lcore.
    pub place: usize,
    /// Which part of the NIC this is, where several lcores serve it.
    pub part: PartOf,
    /// The link was up at the last look.
    pub link_up: bool,
    /// The port is outside this lcore and tells of nothing: it must be polled even when all is quiet.
    pub polled: bool,
    /// The port is outside this lcore and tells a sleeper of what comes.
    pub signalled: bool,
    /// A program's memory cannot keep up: receive nothing in the next poll.
    pub hold_receive: bool,
    /// The port filled the last burst: what the NIC sends to itself comes before more of it.
    pub own_first: bool,
    /// `advance` has more to do now.
    pub more_due: bool,
    /// When receive queues of failed QPs are looked at next.
    pub errored_scan: Nanos,
    /// A tap listens: see [`Taps::hears`].
    pub tapped: bool,
    /// What happened to packets outside the transport.
    pub counts: NicCounts,
    /// Rules that impair its packets.
    pub impair: NicImpair,
    /// Where frames go that are not RoCE.
    pub others: Others,
    /// Congestion control and pauses.
    pub settings: Settings,
    /// Pauses of its port, if they are or were on.
    pub pause: Option<Box<NicPause>>,
    /// What it sends gets an 802.1Q tag with its priority, as its pauses go by PCP.
    pub tags: bool,
    /// The port's hardware pauses and is paused by itself.
    pub port_pauses: bool,
    /// Where marked datagrams came from.
    pub senders: Senders,
}

/// Packets that the transport never saw or never sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct NicCounts {
    /// Received, neither RoCE v2 nor of the next four kinds.
    pub rx_not_roce: u64,
    /// Received MAC control (pause frames) while pauses are off.
    pub rx_mac_control: u64,
    /// ARP received.
    pub rx_arp: u64,
    /// ICMP received.
    pub rx_icmp: u64,
    /// ICMPv6 received: neighbour discovery and echo.
    pub rx_icmpv6: u64,
    /// Of the last three kinds, dropped since too many came at once.
    pub rx_others_dropped: u64,
    /// Received RoCE for an address that is not ours.
    pub rx_not_ours: u64,
    /// Dropped since the program's memory stood still (a page that it withholds, say).
    pub rx_memory_overrun: u64,
    /// Messages received that took a receive request with them: SENDs.
    pub rx_sends: u64,
    /// Received RoCE for a multicast group with members here.
    pub rx_multicast: u64,
    /// Sent to multicast groups.
    pub tx_multicast: u64,
    /// Not sent for want of an mbuf; the peer sees a loss.
    pub tx_no_mbuf: u64,
    /// CNPs not sent for want of a way: that to the sender of a datagram was forgotten, as another with the same place
    /// ([`super::cnp::Senders`]) sent a marked one meanwhile, or the queue pair has none.
    pub tx_no_way: u64,
    /// Not sent since the port took none for too long.
    pub tx_queue_full: u64,
    /// Not sent since the program's memory could not keep up.
    pub tx_memory_overrun: u64,
    /// Times that the port's link went down.
    pub link_downed: u64,
}

impl Nic {
    /// A NIC on `port`, the `place`th of its lcore. `outside`: the port's other end is not on this lcore.
    pub fn new(
        info: Arc<NicInfo>,
        place: usize,
        port: Port,
        outside: bool,
        config: EngineConfig,
    ) -> Nic {
        let part = PartOf {
            number: config.owner,
            bits: config.owner_bits,
        };
        let link_up = info.link.is_up();
        let signalled = outside && port.has_rx_interrupt();
        let polled = outside && port.is_polled();
        // Room for all from the start, as growing would copy under the eyes of all programs; what was never used is
        // never touched. Windows have their indices from the same space, as many again.
        let mrs = Vec::with_capacity(2 * config.max_mrs as usize + QUARANTINE + 1);
        let settings = info.congestion.now();
        let mut engine = Engine::new(config);
        engine.set_datagram_mtu(info.active_mtu);
        engine.set_transmission_selection(&settings.ets);
        Nic {
            gids: info.addresses.now().gids().map(|(_, gid)| gid).collect(),
            info,
            qps: QpTable::new(engine.qpn_layout()),
            engine,
            port,
            mrs,
            mws: Windows::default(),
            ahs: Vec::new(),
            groups: Groups::default(),
            loopback: VecDeque::with_capacity(LOOPBACK_LIMIT + RX_BURST),
            injected: VecDeque::new(),
            tx: VecDeque::with_capacity(TX_LIMIT + RX_BURST),
            tx_burst: Burst::new(),
            rx_burst: Burst::new(),
            received: Received::new(),
            place,
            part,
            link_up,
            polled,
            signalled,
            hold_receive: false,
            own_first: false,
            more_due: false,
            errored_scan: Nanos::ZERO,
            tapped: false,
            counts: NicCounts::default(),
            impair: NicImpair::default(),
            others: Others::default(),
            settings,
            pause: None,
            tags: false,
            port_pauses: false,
            senders: Senders::default(),
        }
    }
}

impl Nic {
    /// Whether a finished packet is the next to go to the port, and nobody looks at it on its way: captures, pauses and tags see
    /// packets when they leave [`Nic::tx`].
    #[inline]
    pub fn sends_at_once(&self) -> bool {
        self.tx.is_empty() & !self.tapped & !self.tags && self.pause.is_none()
    }
}

/// What the stages of a poll work on besides the NIC at hand.
#[derive(Debug)]
pub struct Shared {
    /// Open contexts.
    pub contexts: Slab<Context>,
    /// CQs by handle.
    pub cqs: Slab<Cq>,
    /// PDs by handle.
    pub pds: Slab<Pd>,
    /// Packets.
    pub pool: Arc<Mempool>,
    /// What the engine wants.
    pub out: Outputs,
    /// Buffers for the packets that are being built.
    pub fresh: Burst,
    /// Packets that were built, but for payload and ICRC.
    pub built: Burst,
    /// How each of them is finished.
    pub plans: Vec<Plan>,
    /// QPs of which requests were taken off, which their programs do not see yet.
    pub unshown: Vec<QpId>,
    /// CQs with completions that their programs do not see yet.
    pub unpublished: Vec<u32>,
    /// Operations that ended.
    pub ends: Vec<(OpEnd, Moved)>,
    /// Payloads that were placed at once, of which the engine has not heard yet.
    pub placed: Vec<Placed>,
    /// Payloads that were fetched, of which the engine wants to hear.
    pub fetched: Vec<Fetched>,
    /// The time of this poll.
    pub now: Nanos,
    /// Programs by turns.
    pub programs: Programs,
    /// Contexts whose memory threads are to be woken at the end of the poll.
    pub kicks: Vec<ContextKey>,
    /// Contexts that are being taken down.
    pub closing: Vec<ContextKey>,
    /// Contexts with events to write at the end of the poll.
    pub due_events: VecDeque<ContextKey>,
    /// Contexts that do not read their events.
    pub stuck_events: VecDeque<ContextKey>,
    /// CQs that overflowed, and whose QPs have not all been failed yet.
    pub failed_cqs: VecDeque<u32>,
    /// Packets that impairments of all NICs hold back.
    pub held: usize,
    /// And that they may.
    pub held_most: usize,
    /// Captures.
    pub taps: Taps,
    /// Send requests read for one program in one poll.
    pub requests_per_poll: usize,
    /// Sizes of bursts and distances of prefetching.
    pub tuning: Tuning,
}

/// Payloads that were placed at once, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// How it ended. Of several: [`Outcome::Done`].
    pub outcome: Outcome,
    /// How many.
    pub count: u32,
    /// Whose.
    pub qp: QpId,
    /// Its epoch.
    pub epoch: u32,
    /// Which half.
    pub side: Side,
}

impl Placed {
    /// Notes one more. A run of them is told to the engine at once.
    #[inline]
    pub fn note(all: &mut Vec<Placed>, outcome: Outcome, place: &Place) {
        if let (Some(last), Outcome::Done) = (all.last_mut(), outcome) {
            let same = last.qp == place.qp && last.epoch == place.epoch && last.side == place.side;
            // One that counts nothing was told already.
            if same && last.outcome == Outcome::Done && last.count > 0 {
                last.count += 1;
                return;
            }
        }
        all.push(Placed {
            outcome,
            count: 1,
            qp: place.qp,
            epoch: place.epoch,
            side: place.side,
        });
    }
}

/// A payload that was fetched.
#[derive(Clone, Copy, Debug)]
pub struct Fetched {
    /// Whose.
    pub qp: QpId,
    /// Its epoch.
    pub epoch: u32,
}

impl Shared {
    /// Notes that a context has events to write.
    pub fn note_events(&mut self, key: ContextKey) {
        self.contexts[key].note_events(key, &mut self.due_events);
    }

    /// Whether events wait for anything but the end of a poll.
    pub fn has_events(&self) -> bool {
        !self.due_events.is_empty() || !self.stuck_events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use roceline_engine::PlaceKind;

    use super::*;

    #[test]
    fn a_run_of_placements_of_one_qp_and_side_is_one_report() {
        let place = |qp: u32, epoch, side| Place {
            kind: PlaceKind::Payload,
            qp: QpId(qp),
            epoch,
            side,
            packet: 0,
            len: 1,
            first: 0,
            count: 1,
        };
        let mut all = Vec::new();
        let mut note = |qp, epoch, side, outcome| {
            Placed::note(&mut all, outcome, &place(qp, epoch, side));
        };
        let (done, value) = (Outcome::Done, Outcome::Value(3));
        let (ours, theirs) = (Side::Requester, Side::Responder);
        for _ in 0..3 {
            note(1, 0, theirs, done);
        }
        note(1, 0, theirs, value);
        note(1, 0, theirs, done);
        note(1, 0, ours, done);
        note(1, 1, ours, done);
        note(2, 1, ours, done);
        note(2, 1, ours, done);
        let counts: Vec<u32> = all.iter().map(|placed| placed.count).collect();
        assert_eq!(counts, [3, 1, 1, 1, 1, 2]);
        assert_eq!(all[1].outcome, value);
        // What was told is not added to.
        all[5].count = 0;
        Placed::note(&mut all, done, &place(2, 1, ours));
        assert_eq!(all.len(), 7);
        assert_eq!((all[5].count, all[6].count), (0, 1));
    }
}
