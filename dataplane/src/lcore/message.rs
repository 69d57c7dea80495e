//! Messages from control threads to the lcore that owns a context. The owner serves them between
//! bursts; the control thread waits for the reply and never touches a live object itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use roceline_engine::fabric::impair::{Counts, Rule};
use roceline_engine::memory::{Access, WindowType};
use roceline_engine::verbs::{Path, QpAttr, QpInit};
use roceline_engine::wire::Gid;
use roceline_engine::{Counters, Nanos, PostMortem};
use serde::Serialize;

use super::pause::PauseReport;
use super::tap::{Tap, TapId};
use super::usage::LoopUse;
use crate::congestion::Settings;
use crate::fabric::report::FabricReport;
use crate::impair::Place;
use crate::memory::helper::MemHelper;
use crate::memory::{ContextFile, ProgramLock, Reach};
use crate::neighbour::{Moved, Network};

/// Names a context for the life of the daemon; never reused. The upper byte says which lcore it belongs to, so that
/// nobody has to remember that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u64);

impl ContextId {
    /// No context: that of commands which need none.
    pub const NONE: ContextId = ContextId(0);
    const LCORE: u32 = 56;

    /// The `number`th context, from 1, on lcore `lcore`.
    pub fn new(number: u64, lcore: u32) -> ContextId {
        ContextId(u64::from(lcore) << ContextId::LCORE | number)
    }

    /// The lcore that it belongs to.
    pub fn lcore(self) -> u32 {
        (self.0 >> ContextId::LCORE) as u32
    }

    /// Its number among all.
    pub fn number(self) -> u64 {
        self.0 & ((1 << ContextId::LCORE) - 1)
    }
}

/// Where a queue lies in its context file. The header was written and the pages touched by the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoc {
    /// Offset of the queue header in the context file.
    pub offset: u64,
    /// log2 of the element size.
    pub log2_elem: u32,
    /// Number of elements minus one; elements are a power of two.
    pub mask: u32,
}

/// Where a shared receive queue is to go on, with slots of the same size. The control thread has copied the requests from the old
/// place to its front; some of them may have been taken since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqPlace {
    /// The place.
    pub loc: QueueLoc,
    /// Index in the old place of the first request that was copied.
    pub first: u32,
    /// Requests copied.
    pub count: u32,
}

/// A pipe over which events reach the program. The lcore counts what it writes; to know what the program has
/// read it can take unread records back through `drain`, a second, non-blocking reader.
#[derive(Debug)]
pub struct EventPipe {
    /// Write end, non-blocking.
    pub write: OwnedFd,
    /// A read end of the daemon's own (a separate open file description), non-blocking.
    pub drain: OwnedFd,
}

/// What a new context brings.
#[derive(Debug)]
pub struct NewContext {
    /// Index of the NIC that was opened.
    pub nic: u32,
    /// The context file.
    pub file: Arc<ContextFile>,
    /// The program's `/proc/self/mem`.
    pub mem: OwnedFd,
    /// Taken for atomics through it: that of its program.
    pub lock: Arc<ProgramLock>,
    /// The thread that uses it. The mailbox starts it, in the control thread: that takes longer than a poll should.
    pub helper: Option<MemHelper>,
    /// The eventfd that the program writes to wake the lcore.
    pub wake: OwnedFd,
    /// Asynchronous events.
    pub async_events: EventPipe,
    /// Number of the program among those that have this NIC open: its contexts share one turn.
    pub program: u32,
    /// For messages only.
    pub pid: u32,
    /// Name of its program as the kernel gives it, padded with zeros; for messages only.
    pub comm: [u8; 16],
}

/// What a control thread asks of a context's owner. Handles are the numbers that rdma-core sees.
#[derive(Debug)]
pub enum Command {
    /// Take over a new context.
    Open(Box<NewContext>),
    /// Free the context with all it has. Replied to when no memory operation of it is left.
    Close,
    /// New protection domain. -> `Handle`
    AllocPd,
    /// -> `Done`
    DeallocPd {
        /// PD handle.
        pd: u32,
    },
    /// Register memory. -> `Mr`
    RegMr {
        /// PD handle.
        pd: u32,
        /// First byte in the program.
        addr: u64,
        /// The name of that byte for work requests and peers.
        iova: u64,
        /// Bytes.
        len: u64,
        /// Rights.
        access: Access,
        /// How its bytes are reached.
        reach: Reach,
    },
    /// -> `Done`, once no memory operation uses the region.
    DeregMr {
        /// MR handle.
        mr: u32,
    },
    /// New memory window. -> `Mw`
    AllocMw {
        /// PD handle.
        pd: u32,
        /// Type.
        kind: WindowType,
    },
    /// -> `Done`
    DeallocMw {
        /// MW handle.
        mw: u32,
    },
    /// From now on the region's bytes are reached this way. -> `Done`
    SetReach {
        /// MR handle.
        mr: u32,
        /// The way.
        reach: Reach,
    },
    /// New completion channel. -> `Handle`
    AddChannel(EventPipe),
    /// The program closed the channel's fd. -> `Done`
    RemoveChannel {
        /// Channel handle.
        channel: u32,
    },
    /// -> `Handle`
    CreateCq {
        /// The queue.
        queue: QueueLoc,
        /// Channel handle.
        channel: Option<u32>,
        /// What events name it by.
        user_handle: u64,
        /// A completion that finds it full is lost, and nobody is told.
        ignore_overrun: bool,
    },
    /// Completions go to another queue from now on, behind room for those that the program has not polled. -> `Resized`
    ResizeCq {
        /// CQ handle.
        cq: u32,
        /// The new queue.
        queue: QueueLoc,
        /// Completions that it must hold, as asked for.
        entries: u32,
    },
    /// -> `Events`
    DestroyCq {
        /// CQ handle.
        cq: u32,
    },
    /// `init`'s pd and CQs are handles. -> `Qp`
    CreateQp {
        /// Fixed properties.
        init: QpInit,
        /// Send queue.
        sq: QueueLoc,
        /// Receive queue; none if `init` names a shared one, by its handle.
        rq: Option<QueueLoc>,
        /// Receive requests at most.
        max_recv_wr: u32,
        /// What events name it by.
        user_handle: u64,
    },
    /// -> `Done`
    ModifyQp {
        /// QP handle.
        qp: u32,
        /// Values; the path is resolved.
        attr: Box<QpAttr>,
        /// Which of them are set.
        mask: u32,
    },
    /// -> `QpState`
    QueryQp {
        /// QP handle.
        qp: u32,
    },
    /// -> `Events`
    DestroyQp {
        /// QP handle.
        qp: u32,
    },
    /// New shared receive queue. -> `Handle`
    CreateSrq {
        /// PD handle.
        pd: u32,
        /// The queue.
        queue: QueueLoc,
        /// Entries of a request at most.
        max_sge: u32,
        /// What events name it by.
        user_handle: u64,
    },
    /// All or nothing of it. -> `Done`
    ModifySrq {
        /// SRQ handle.
        srq: u32,
        /// An event once fewer requests are left; 0: none.
        limit: Option<u32>,
        /// Another place, and the requests that lie there already.
        resize: Option<SrqPlace>,
    },
    /// -> `SrqLimit`
    QuerySrq {
        /// SRQ handle.
        srq: u32,
    },
    /// -> `Events`
    DestroySrq {
        /// SRQ handle.
        srq: u32,
    },
    /// New address handle. -> `Handle`, which is its number in send requests
    CreateAh {
        /// PD handle.
        pd: u32,
        /// The way there, resolved.
        path: Box<Path>,
    },
    /// -> `Done`
    DestroyAh {
        /// AH handle.
        ah: u32,
    },
    /// Attach a UD QP to a multicast group; nothing happens if it is attached. -> `Done`
    AttachMcast {
        /// QP handle.
        qp: u32,
        /// The group.
        group: Gid,
        /// How much there may be.
        limits: MulticastLimits,
    },
    /// -> `Done`
    DetachMcast {
        /// QP handle.
        qp: u32,
        /// The group.
        group: Gid,
    },
    /// What is there, for the command line: so much of it as a poll has time for, from here on. No context needed. ->
    /// `Snapshot`
    Snapshot(Cursor),
    /// What NICs have counted, and nothing of single objects, so that it costs little. No context needed. ->
    /// `Snapshot`
    Counters,
    /// What the loop does with its time: it is counted from now on, for so long. No context needed. -> `Usage`
    Usage {
        /// How long somebody looks at least.
        how_long: Nanos,
    },
    /// What the switches that this lcore owns have done. No context needed. -> `Fabric`
    Fabric,
    /// Rules that impair packets. No context needed. -> `Done`, or `Impair` for a report
    Impair(ImpairCommand),
    /// Records of queue pairs that failed. No context needed. -> `PostMortems`
    PostMortems,
    /// Put a capture's tap in place. No context needed. -> `Done`
    AddTap(Box<Tap>),
    /// Take it out again. No context needed. -> `Tap`
    RemoveTap(TapId),
    /// The devices end: flush all that is posted and say so to every program. No context needed. -> `Done`
    Fatal,
    /// Take a NIC's link down, or up again. No context needed. -> `Done`
    SetLink {
        /// Its index.
        nic: u32,
        /// Up.
        up: bool,
    },
    /// Go by other settings from now on. No context needed. -> `Done`
    SetCongestion {
        /// Index of the NIC.
        nic: u32,
        /// All of them.
        settings: Box<Settings>,
    },
    /// Take packets for these addresses, and for no others, from now on. No context needed. -> `Done`
    SetGids {
        /// Index of the NIC.
        nic: u32,
        /// All that it has.
        gids: Arc<[Gid]>,
    },
    /// Tell the programs of a NIC that its GID table has changed. No context needed. -> `Done`
    GidsChanged {
        /// Its index.
        nic: u32,
    },
    /// Which indices of the GID table do queue pairs and address handles hold? No context needed. -> `GidsHeld`
    GidsHeld {
        /// Index of the NIC.
        nic: u32,
    },
    /// Let a NIC receive frames. No context needed. -> `Injected`
    Inject {
        /// Its index.
        nic: u32,
        /// From their Ethernet headers on.
        frames: Vec<Box<[u8]>>,
    },
    /// Let a NIC send frames that are not RoCE. No context needed. -> `Done`
    Transmit {
        /// Its index.
        nic: u32,
        /// From their Ethernet headers on.
        frames: Vec<Vec<u8>>,
    },
    /// A peer's MAC address changed: queue pairs that send to it go on with the new one. No context needed. -> `Done`
    PeerMoved {
        /// Index of the NIC that reaches it.
        nic: u32,
        /// What changed.
        moved: Moved,
        /// Says which destinations are reached through it.
        network: Arc<Network>,
    },
}

impl Command {
    /// Whether it reads counters and changes nothing that a program sees.
    pub fn only_counts(&self) -> bool {
        matches!(self, Command::Counters | Command::Usage { .. })
    }

    /// Whether an object of a program's is made or becomes larger.
    pub fn makes_something(&self) -> bool {
        matches!(
            self,
            Command::Open(_)
                | Command::AllocPd
                | Command::RegMr { .. }
                | Command::AllocMw { .. }
                | Command::SetReach { .. }
                | Command::AddChannel(_)
                | Command::CreateCq { .. }
                | Command::ResizeCq { .. }
                | Command::CreateQp { .. }
                | Command::CreateSrq { .. }
                | Command::ModifySrq { .. }
                | Command::CreateAh { .. }
                | Command::AttachMcast { .. }
        )
    }
}

/// How many multicast groups a device has.
#[derive(Clone, Copy, Debug)]
pub struct MulticastLimits {
    /// Groups.
    pub groups: u32,
    /// QPs of a group.
    pub members: u32,
}

/// What to do about rules.
#[derive(Debug)]
pub enum ImpairCommand {
    /// Put a rule behind those that the place has.
    Add {
        /// Where.
        place: Place,
        /// Its number and what it says.
        rule: Box<Rule>,
    },
    /// Take it away. What it holds back goes on when its time has come.
    Remove {
        /// Where.
        place: Place,
        /// Its number.
        id: u32,
    },
    /// Count what the rules did.
    Report,
}

/// A place with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceReport {
    /// Which.
    pub place: Place,
    /// Packets held back now.
    pub held: u64,
    /// Packets dropped since no more could be held back.
    pub overflow: u64,
    /// Copies not made for want of a packet buffer.
    pub no_buffer: u64,
    /// In the order in which packets meet them.
    pub rules: Vec<(u32, Counts)>,
}

/// What comes back.
#[derive(Debug)]
pub enum Reply {
    /// Done.
    Done,
    /// The context is gone; to free what is left of it is the receiver's.
    Gone(Remains),
    /// It failed with this errno; the sentence goes to the log.
    Failed {
        /// errno.
        errno: i32,
        /// Names the value and the remedy.
        reason: String,
    },
    /// A new handle.
    Handle(u32),
    /// A new region.
    Mr {
        /// MR handle.
        handle: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    },
    /// A new memory window.
    Mw {
        /// MW handle.
        handle: u32,
        /// Its key.
        rkey: u32,
    },
    /// A new QP.
    Qp {
        /// QP handle: `lcore slot << 20 | doorbell index`.
        handle: u32,
        /// QP number.
        qpn: u32,
    },
    /// Attributes of a QP.
    QpState {
        /// Attributes.
        attr: Box<QpAttr>,
        /// Fixed properties.
        init: Box<QpInit>,
        /// Receive requests at most.
        max_recv_wr: u32,
    },
    /// A CQ goes on in its new queue. What the program has not polled is to be copied there, to the front.
    Resized {
        /// Index in the old queue of the oldest completion.
        first: u32,
        /// How many there are.
        count: u32,
    },
    /// The limit that is armed on a shared receive queue.
    SrqLimit(u32),
    /// Events of a destroyed object that the program has *read* and must acknowledge.
    Events {
        /// Completion events (CQ).
        comp: u32,
        /// Asynchronous events.
        asynchronous: u32,
    },
    /// What is there.
    Snapshot(Box<Snapshot>),
    /// What the rules did.
    Impair(Vec<PlaceReport>),
    /// What switches have done; none if the lcore owns none.
    Fabric(Box<FabricReport>),
    /// What the loop did.
    Usage(Box<LoopUse>),
    /// Indices of a GID table that are held, a bit each.
    GidsHeld(u32),
    /// Records of all NICs.
    PostMortems(Vec<PostMortemReport>),
    /// The tap that was removed.
    Tap(Box<Tap>),
    /// Frames that a NIC is to receive.
    Injected {
        /// How many it took, from the first on.
        taken: u32,
        /// How many it has not looked at yet.
        waiting: u32,
    },
}

/// A command with its way back.
#[derive(Debug)]
pub struct Request {
    /// Which context.
    pub context: ContextId,
    /// What to do.
    pub command: Command,
    /// Where the one reply goes.
    pub reply: SyncSender<Reply>,
}

/// The record of a queue pair that failed.
#[derive(Clone, Debug)]
pub struct PostMortemReport {
    /// Device name.
    pub device: String,
    /// How long ago it failed.
    pub age: Nanos,
    /// The record.
    pub record: PostMortem,
}

/// What is left of a context, for its control thread to free.
pub struct Remains(#[allow(dead_code, reason = "kept to be dropped")] Box<dyn Send>);

impl Remains {
    /// Of whatever it is.
    pub fn of(what: impl Send + 'static) -> Remains {
        Remains(Box::new(what))
    }
}

impl std::fmt::Debug for Remains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remains")
    }
}

/// How far a listing has come: all objects of contexts before `context`, and those of it below the two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Key of a context.
    pub context: usize,
    /// Doorbell index of a QP.
    pub qp: usize,
    /// Handle of a memory region.
    pub mr: u32,
}

/// What an lcore owns at a moment, for `roceline show` and `roceline stat`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// NICs.
    pub nics: Vec<NicSnapshot>,
    /// QPs.
    pub qps: Vec<QpSnapshot>,
    /// Memory regions.
    pub mrs: Vec<MrSnapshot>,
    /// The loop itself.
    pub lcore: LcoreSnapshot,
    /// Where to go on, if this is not all. What is counted and not listed is whole in each part.
    #[serde(skip)]
    pub more: Option<Cursor>,
}

/// A NIC's counters and ports.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NicSnapshot {
    /// Device name.
    pub name: String,
    /// Transport counters by mlx5 name.
    #[serde(skip)]
    pub counters: Counters,
    /// Port counters by name: packets and bytes, drops and their causes, mempool exhaustion.
    pub port: Vec<(&'static str, u64)>,
    /// Pauses and priorities of the port.
    #[serde(skip)]
    pub pause: PauseReport,
    /// Which pauses are on: `off`, `pfc`, `global`, the last two `by the hardware` where the port's driver does it.
    pub pauses: &'static str,
    /// Open contexts.
    pub contexts: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Protection domains.
    pub pds: u32,
    /// Memory windows.
    pub mws: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Address handles.
    pub ahs: u32,
    /// Multicast groups with members.
    pub mcast_groups: u32,
    /// Queue pairs.
    pub qps: u32,
}

/// A QP.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QpSnapshot {
    /// Device name.
    pub device: String,
    /// Its transport: `RC`, `UC` or `UD`.
    pub transport: &'static str,
    /// QP number.
    pub qpn: u32,
    /// State name as verbs prints it.
    pub state: String,
    /// Program.
    pub pid: u32,
    /// The peer's GID as an address.
    pub remote: String,
    /// The peer's QPN.
    pub remote_qpn: u32,
    /// Next PSN to send.
    pub sq_psn: u32,
    /// Next PSN expected.
    pub rq_psn: u32,
    /// What congestion control allows it, in bits per second.
    pub rate: u64,
    /// What was counted for it; packets and bytes are those of the caller of the engine.
    #[serde(skip)]
    pub counters: Counters,
}

/// A memory region.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MrSnapshot {
    /// Device name.
    pub device: String,
    /// Key.
    pub lkey: u32,
    /// Program.
    pub pid: u32,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Rights, bits of `enum ibv_access_flags`.
    pub access: u32,
    /// How its memory is reached: `mapped`, `kernel`, both (`mixed`), or `dead` for a mapped object that lost its pages.
    pub reach: &'static str,
}

/// The loop.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LcoreSnapshot {
    /// CPU it is pinned to, if any.
    pub cpu: Option<usize>,
    /// Polls made.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Microseconds during which the kernel kept it from running, and its clock stood still.
    pub lost_us: u64,
}
