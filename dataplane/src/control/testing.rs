//! For the tests of this module: an lcore that answers at once and remembers what it was asked, and a program
//! that speaks the protocol of the hidden socket.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use roceline_abi::PROTOCOL_VERSION;
use roceline_abi::control::{
    Kind, MAGIC, MAX_PAYLOAD, NAME_BYTES, OpenDevice, Plain, ReplyHeader, RequestHeader,
};
use roceline_engine::verbs::{Mtu, QpAttr, QpInit, mask};

use super::seqpacket::{self, Peer};
use super::server::{Shared, start_session};
use super::{ControlConfig, LcorePort, SendError};
use roceline_engine::fabric::impair::Counts;

use crate::addresses::{Address, Addresses};
use crate::impair::Place;
use crate::lcore::message::{
    Command, ContextId, EventPipe, ImpairCommand, NewContext, PlaceReport, Reply, Request, Snapshot,
};
use crate::lcore::tap::Tap;
use crate::neighbour::{Known, Neighbours, Network};
use crate::nic::{LinkState, NicInfo};

/// A NIC `roceN` with 10.77.0.N+1 and fd77::N+1.
pub fn nic(index: u32, active_mtu: Mtu) -> NicInfo {
    let last = index as u8 + 1;
    let v4 = format!("10.77.0.{last}").parse().unwrap();
    let v6 = format!("fd77::{last}").parse().unwrap();
    let addresses = [(v4, 24), (v6, 64)].map(|(ip, prefix)| Address::configured(ip, prefix));
    NicInfo {
        index,
        uverbs: index,
        name: format!("roce{index}"),
        mac: [2, 0, 0, 0, 0, last],
        addresses: Addresses::new(addresses.into_iter().collect()),
        port_mtu: 4200,
        active_mtu,
        memory: roceline_abi::control::MemoryPolicy::Auto,
        node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, last],
        lid: 0,
        link: LinkState::default(),
        congestion: Default::default(),
    }
}

/// Two NICs that know each other; the second one's path MTU is 1024.
pub fn config(socket: PathBuf) -> ControlConfig {
    let nics = [nic(0, Mtu::M4096), nic(1, Mtu::M1024)];
    let with_prefix = |nic: &NicInfo| -> Vec<(IpAddr, u8)> {
        let table = nic.addresses.now();
        let all = table.iter().map(|(_, own)| (own.ip, own.prefix));
        all.collect()
    };
    let all = nics.iter().flat_map(|nic| {
        let addresses = with_prefix(nic).into_iter();
        addresses.map(|(ip, _)| (ip, nic.mac))
    });
    let known = all.map(|(ip, mac)| {
        let known = Known {
            mac,
            configured: false,
        };
        (ip, known)
    });
    let networks = nics.iter().map(|nic| Network {
        name: nic.name.clone(),
        mac: nic.mac,
        addrs: with_prefix(nic),
        gateways: Vec::new(),
        wired: false,
        known: known.clone().collect(),
        peers: vec![0, 1],
    });
    let neighbours = Neighbours::new(networks.collect(), vec![LinkState::default(); 2]);
    ControlConfig::new(socket, nics.into(), neighbours.into())
}

/// What the fake lcore knows.
#[derive(Default)]
pub struct State {
    /// All commands but snapshots, in order, as `{:?}` shows them.
    pub commands: Vec<(ContextId, String)>,
    /// Open contexts.
    pub contexts: HashMap<ContextId, Box<NewContext>>,
    /// Completion channels.
    pub channels: HashMap<u32, EventPipe>,
    /// Taps of captures.
    pub taps: Vec<Tap>,
    /// Attributes of QPs.
    pub qps: HashMap<u32, (QpAttr, QpInit, u32)>,
    /// Answers the next command with this instead.
    pub next: Option<Reply>,
    /// Panics (in the caller's thread) at a command whose text begins so.
    pub panic_at: Option<&'static str>,
    /// Takes the way back of each `Close` instead of an answer: the program's memory takes its time.
    pub close_later: Option<Sender<SyncSender<Reply>>>,
    /// Answer to snapshots.
    pub snapshot: Snapshot,
    /// Indices of GIDs that queue pairs hold, a bit each.
    pub gids_held: u32,
    /// Rules that impair packets, with their places.
    pub rules: Vec<(Place, u32)>,
    last_handle: u32,
}

/// An lcore that answers at once.
pub struct FakeLcore {
    state: Mutex<State>,
    closed: Mutex<Sender<ContextId>>,
}

impl FakeLcore {
    /// The lcore, and where it says which contexts were closed.
    pub fn new() -> (Arc<FakeLcore>, Receiver<ContextId>) {
        let (sender, receiver) = channel();
        let fake = FakeLcore {
            state: Mutex::default(),
            closed: Mutex::new(sender),
        };
        (Arc::new(fake), receiver)
    }

    /// What it knows.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The last command, as `{:?}` shows it.
    pub fn last(&self) -> String {
        self.state()
            .commands
            .last()
            .map(|c| c.1.clone())
            .unwrap_or_default()
    }
}

impl State {
    fn answer(&mut self, context: ContextId, command: Command) -> Reply {
        if let Some(reply) = self.next.take() {
            return reply;
        }
        self.last_handle += 1;
        let handle = self.last_handle;
        match command {
            Command::Open(new) => {
                self.contexts.insert(context, new);
                Reply::Done
            }
            Command::Close => {
                self.contexts.remove(&context);
                Reply::Done
            }
            Command::AllocPd
            | Command::CreateCq { .. }
            | Command::CreateAh { .. }
            | Command::CreateSrq { .. } => Reply::Handle(handle),
            Command::QuerySrq { .. } => Reply::SrqLimit(11),
            Command::AddChannel(pipe) => {
                self.channels.insert(handle, pipe);
                Reply::Handle(handle)
            }
            Command::RegMr { .. } => Reply::Mr {
                handle,
                lkey: handle << 8,
                rkey: (handle << 8) | 1,
            },
            Command::AllocMw { .. } => Reply::Mw {
                handle,
                rkey: handle << 8,
            },
            Command::CreateQp {
                init, max_recv_wr, ..
            } => {
                self.qps
                    .insert(handle, (QpAttr::default(), init, max_recv_wr));
                Reply::Qp {
                    handle,
                    qpn: 0x1000 + handle,
                }
            }
            Command::ModifyQp {
                qp,
                attr,
                mask: set,
            } => {
                let entry = self.qps.get_mut(&qp).expect("the session knows its QPs");
                let state = if set & mask::STATE != 0 {
                    attr.state
                } else {
                    entry.0.state
                };
                entry.0 = QpAttr { state, ..*attr };
                Reply::Done
            }
            Command::QueryQp { qp } => {
                let (attr, init, max_recv_wr) = self.qps[&qp];
                Reply::QpState {
                    attr: Box::new(attr),
                    init: Box::new(init),
                    max_recv_wr,
                }
            }
            Command::DestroyCq { .. } => Reply::Events {
                comp: 7,
                asynchronous: 3,
            },
            Command::DestroyQp { .. } | Command::DestroySrq { .. } => Reply::Events {
                comp: 0,
                asynchronous: 5,
            },
            Command::DestroyAh { .. }
            | Command::AttachMcast { .. }
            | Command::DetachMcast { .. }
            | Command::DeallocPd { .. }
            | Command::ModifySrq { .. }
            | Command::DeregMr { .. }
            | Command::DeallocMw { .. }
            | Command::SetReach { .. }
            | Command::RemoveChannel { .. } => Reply::Done,
            Command::Snapshot(_) | Command::Counters => {
                Reply::Snapshot(Box::new(self.snapshot.clone()))
            }
            Command::AddTap(tap) => {
                self.taps.push(*tap);
                Reply::Done
            }
            Command::Inject { frames, .. } => Reply::Injected {
                taken: frames.len() as u32,
                waiting: 0,
            },
            Command::RemoveTap(id) => match self.taps.iter().position(|tap| tap.id == id) {
                Some(at) => Reply::Tap(Box::new(self.taps.remove(at))),
                None => Reply::Failed {
                    errno: libc::EINVAL,
                    reason: format!("{id:?} is not in place"),
                },
            },
            Command::Impair(command) => self.impair(command),
            Command::PostMortems => Reply::PostMortems(Vec::new()),
            Command::GidsHeld { .. } => Reply::GidsHeld(self.gids_held),
            Command::Usage { .. } => Reply::Usage(Box::default()),
            Command::Fabric => Reply::Fabric(Box::default()),
            Command::Fatal
            | Command::SetLink { .. }
            | Command::SetCongestion { .. }
            | Command::SetGids { .. }
            | Command::GidsChanged { .. }
            | Command::Transmit { .. }
            | Command::PeerMoved { .. } => Reply::Done,
            // As if nothing lay in it.
            Command::ResizeCq { .. } => Reply::Resized { first: 0, count: 0 },
        }
    }

    fn impair(&mut self, command: ImpairCommand) -> Reply {
        match command {
            ImpairCommand::Add { place, rule } => self.rules.push((place, rule.id.0)),
            ImpairCommand::Remove { place, id } => self.rules.retain(|rule| *rule != (place, id)),
            ImpairCommand::Report => {
                // A report for each rule; each has seen as many packets as its number says.
                let report = |&(place, id): &(Place, u32)| PlaceReport {
                    place,
                    held: 0,
                    overflow: 0,
                    no_buffer: 0,
                    rules: vec![(
                        id,
                        Counts {
                            seen: id.into(),
                            ..Counts::default()
                        },
                    )],
                };
                return Reply::Impair(self.rules.iter().map(report).collect());
            }
        }
        Reply::Done
    }
}

impl LcorePort for FakeLcore {
    fn send(&self, _lcore: u32, request: Request) -> Result<(), SendError> {
        let Request {
            context,
            command,
            reply,
        } = request;
        let text = format!("{command:?}");
        let close = matches!(command, Command::Close);
        let mut state = self.state();
        if state.panic_at.is_some_and(|start| text.starts_with(start)) {
            state.panic_at = None;
            drop(state);
            panic!("asked for by the test");
        }
        if !matches!(command, Command::Snapshot(_) | Command::Counters) {
            state.commands.push((context, text));
        }
        if let Some(later) = state.close_later.as_ref().filter(|_| close) {
            return later.send(reply).map_err(|_| SendError);
        }
        let answer = state.answer(context, command);
        drop(state);
        reply.send(answer).map_err(|_| SendError)?;
        if close {
            let _ = self
                .closed
                .lock()
                .unwrap_or_else(|p| p.into_inner())
                .send(context);
        }
        Ok(())
    }
}

/// A byte string built field by field, in native order.
#[derive(Clone, Default)]
pub struct Bytes(pub Vec<u8>);

#[allow(missing_docs)]
impl Bytes {
    pub fn u8(mut self, v: u8) -> Bytes {
        self.0.push(v);
        self
    }
    pub fn u16(mut self, v: u16) -> Bytes {
        self.0.extend(v.to_ne_bytes());
        self
    }
    pub fn u32(mut self, v: u32) -> Bytes {
        self.0.extend(v.to_ne_bytes());
        self
    }
    pub fn u64(mut self, v: u64) -> Bytes {
        self.0.extend(v.to_ne_bytes());
        self
    }
    pub fn bytes(mut self, v: &[u8]) -> Bytes {
        self.0.extend(v);
        self
    }
    /// A plain command: the header in front, with the response address after it if there is a response.
    pub fn plain(self, number: u32, response_bytes: usize) -> Vec<u8> {
        let address = if response_bytes > 0 { 8 } else { 0 };
        let words = (8 + address + self.0.len()) / 4;
        let head = Bytes::default()
            .u32(number)
            .u16(words as u16)
            .u16((response_bytes / 4) as u16);
        let head = if address > 0 {
            head.u64(0x7fff_0000)
        } else {
            head
        };
        head.bytes(&self.0).0
    }
    /// An extended command with core and driver response sizes.
    pub fn extended(self, number: u32, core: usize, driver: usize) -> Vec<u8> {
        let address = if core + driver > 0 { 0x7fff_0000 } else { 0 };
        Bytes::default()
            .u32(0x8000_0000 | number)
            .u16((self.0.len() / 8) as u16)
            .u16((core / 8) as u16)
            .u64(address)
            .u16(0)
            .u16((driver / 8) as u16)
            .u32(0)
            .bytes(&self.0)
            .0
    }
}

/// The u32 at `offset`.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

/// The u64 at `offset`.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

/// This process's memory, opened as the shim opens it.
pub fn own_memory() -> OwnedFd {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .unwrap()
        .into()
}

/// The request that opens `device`.
pub fn open_request(device: &str) -> OpenDevice {
    let mut name = [0; NAME_BYTES];
    name.as_mut_slice().write_all(device.as_bytes()).unwrap();
    OpenDevice {
        device: name,
        program: 99,
        pid: std::process::id(),
        reserved: 0,
    }
}

/// Us.
pub fn own_peer() -> Peer {
    // SAFETY: a plain system call that cannot fail.
    let uid = unsafe { libc::geteuid() };
    Peer {
        pid: std::process::id() as i32,
        uid,
    }
}

/// A reply as the shim gets it.
#[derive(Debug)]
pub struct Answered {
    /// Its header.
    pub header: ReplyHeader,
    /// Its payload.
    pub payload: Vec<u8>,
    /// What came along.
    pub fds: Vec<OwnedFd>,
}

/// A program on the other end of a session.
pub struct Program {
    socket: OwnedFd,
}

impl Program {
    /// Starts a session for a new program.
    pub fn start(shared: &Arc<Shared>) -> Program {
        Program::start_as(shared, own_peer())
    }

    /// The same as another user.
    pub fn start_as(shared: &Arc<Shared>, peer: Peer) -> Program {
        let (socket, theirs) = seqpacket::both_ends();
        start_session(shared, theirs, peer).unwrap();
        Program { socket }
    }

    /// Sends raw bytes.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        seqpacket::send(self.socket.as_fd(), &[bytes], fds).unwrap();
    }

    /// The same, unless the session has ended.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        seqpacket::send(self.socket.as_fd(), &[bytes], fds).is_ok()
    }

    /// The next packet; `None` when the session has ended.
    pub fn receive(&self) -> Option<Answered> {
        let mut buffer = vec![0; size_of::<ReplyHeader>() + MAX_PAYLOAD];
        let packet = seqpacket::receive(self.socket.as_fd(), &mut buffer).unwrap()?;
        let (head, payload) = buffer[..packet.len].split_at(size_of::<ReplyHeader>());
        let header = ReplyHeader::from_bytes(head).unwrap();
        assert_eq!(header.magic, MAGIC);
        assert_eq!(header.len as usize, payload.len());
        Some(Answered {
            header,
            payload: payload.to_vec(),
            fds: packet.fds,
        })
    }

    /// One request and its reply.
    pub fn request(&self, kind: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Answered {
        let header = RequestHeader {
            magic: MAGIC,
            version: PROTOCOL_VERSION.into(),
            kind,
            len: payload.len() as u32,
        };
        self.send(&[header.as_bytes(), payload].concat(), fds);
        self.receive().expect("the session answers")
    }

    /// Opens a device.
    pub fn open(&self, device: &str) -> Answered {
        let memory = own_memory();
        let request = open_request(device);
        self.request(
            Kind::OpenDevice as u32,
            request.as_bytes(),
            &[memory.as_fd()],
        )
    }

    /// One uverbs command.
    pub fn uverbs(&self, command: &[u8]) -> Answered {
        self.request(Kind::Uverbs as u32, command, &[])
    }

    /// The same, which must succeed; gives the payload.
    pub fn ok(&self, command: &[u8]) -> Vec<u8> {
        let answer = self.uverbs(command);
        assert_eq!(answer.header.error, 0, "{command:x?}");
        answer.payload
    }

    /// The same, which must fail; gives the errno.
    pub fn errno(&self, command: &[u8]) -> i32 {
        let answer = self.uverbs(command);
        assert!(
            !answer.payload.is_empty() && answer.fds.is_empty(),
            "no reason"
        );
        answer.header.error
    }

    /// A program with an open `device` and its context.
    pub fn with_context(shared: &Arc<Shared>, device: &str) -> Program {
        let program = Program::start(shared);
        assert_eq!(program.open(device).header.error, 0);
        program.ok(&Bytes::default().plain(0, 8));
        program
    }
}

/// Reads what is there, without waiting.
pub fn read_now(fd: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: polls one live entry; reads into a live buffer.
    let n = unsafe {
        if libc::poll(&mut poll, 1, 0) == 0 {
            return Ok(0);
        }
        libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len())
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
