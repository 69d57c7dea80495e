//! One connection, on its own thread: packets in, replies out, one at a time. When it ends, for whatever reason,
//! the context that it opened ends with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use roceline_abi::PROTOCOL_VERSION;
use roceline_abi::control::{
    ENDING, Kind, MAGIC, MAX_PAYLOAD, MORE, MemoryPolicy, NO_FD, OpenDevice, Plain, ReplyHeader,
    RequestHeader,
};

use super::context::{Context, Opened, device_name};
use super::error::CommandError;
use super::seqpacket::{self, Peer};
use super::server::Shared;
use super::{capture, congestion, inject, query, uverbs};

const HEADER: usize = size_of::<RequestHeader>();

/// Serves a connection until it ends. Never panics: a bug in a handler costs its program the context, and
/// nobody else anything. `id` is what [`Shared`] knows the session by.
pub fn serve(shared: &Arc<Shared>, socket: BorrowedFd<'_>, peer: Peer, id: u64) {
    let mut session = Session {
        shared,
        id,
        socket,
        peer,
        context: None,
        capture: None,
    };
    let run = catch_unwind(AssertUnwindSafe(|| session.run()));
    if run.is_err() {
        tracing::error!(
            pid = peer.pid,
            "a control session failed by a bug; its context is closed"
        );
    }
    if let Some(capture) = session.capture.take() {
        capture.close(shared);
    }
    if let Some(context) = session.context.take() {
        if catch_unwind(AssertUnwindSafe(|| context.close())).is_err() {
            tracing::error!(pid = peer.pid, "closing a context failed by a bug");
        }
    }
}

/// What goes back for one request.
#[derive(Default)]
struct Response {
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
    fd_at: Option<u32>,
}

struct Session<'a> {
    shared: &'a Arc<Shared>,
    id: u64,
    socket: BorrowedFd<'a>,
    peer: Peer,
    context: Option<Context>,
    capture: Option<capture::Session>,
}

impl Session<'_> {
    fn run(&mut self) {
        let mut buffer = vec![0; HEADER + MAX_PAYLOAD];
        loop {
            let packet = match seqpacket::receive(self.socket, &mut buffer) {
                Ok(Some(packet)) => packet,
                Ok(None) => return,
                Err(error) => {
                    self.complain(format_args!("unreadable packet: {error}"));
                    return;
                }
            };
            let bytes = &buffer[..packet.len];
            let Some(header) = RequestHeader::from_bytes(bytes).filter(|h| h.magic == MAGIC) else {
                self.complain(format_args!("not our protocol"));
                return;
            };
            if header.version != u32::from(PROTOCOL_VERSION) {
                tracing::warn!(
                    pid = self.peer.pid,
                    theirs = header.version,
                    ours = PROTOCOL_VERSION,
                    "protocol versions differ: run the program with the `roceline run` of this daemon's installation"
                );
                self.reply_error(libc::EPROTO, &[]);
                return;
            }
            let sent = match self.request(&header, &bytes[HEADER..], packet.fds) {
                Ok(response) => self.reply(response),
                Err(error) => self.refuse(&header, &bytes[HEADER..], &error),
            };
            if !sent {
                return;
            }
        }
    }

    /// Says why a connection ends that a program of ours would not end so.
    fn complain(&self, why: std::fmt::Arguments<'_>) {
        let (pid, uid) = (self.peer.pid, self.peer.uid);
        if self.shared.may_log(uid) {
            tracing::warn!(pid, uid, "connection ends: {why}");
        }
    }

    fn request(
        &mut self,
        header: &RequestHeader,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Response, CommandError> {
        if header.len as usize != payload.len() {
            return Err(CommandError::Message("length and size differ"));
        }
        match Kind::from_u32(header.kind) {
            Some(Kind::OpenDevice) => self.open(payload, fds),
            Some(Kind::Uverbs) => {
                let context = self.context.as_mut().ok_or(CommandError::NoDevice)?;
                let answer = uverbs::execute(context, payload)?;
                let fd_at = answer.fd.as_ref().map(|_| 0);
                let fds = answer.fd.into_iter().collect();
                Ok(Response {
                    payload: answer.payload,
                    fds,
                    fd_at,
                })
            }
            Some(Kind::Query) => {
                let payload = query::answer(self.shared, self.peer, payload)?;
                Ok(Response {
                    payload,
                    ..Default::default()
                })
            }
            Some(Kind::CloseChannel) => self.close_channel(payload),
            Some(Kind::MemoryFile) => self.memory_file(fds),
            Some(Kind::Memory) => {
                let context = self.context.as_mut().ok_or(CommandError::NoDevice)?;
                context.mrs.add_pieces(payload)?;
                Ok(Response::default())
            }
            Some(Kind::Reach) => {
                let context = self.context.as_mut().ok_or(CommandError::NoDevice)?;
                context.set_reach(payload)?;
                Ok(Response::default())
            }
            Some(Kind::Capture) => {
                self.operator("capture packets")?;
                let request = serde_json::from_slice(payload)
                    .map_err(|e| CommandError::Query(e.to_string()))?;
                let payload = capture::answer(self.shared, &mut self.capture, request)?;
                self.shared.spare(self.id);
                Ok(Response {
                    payload,
                    ..Default::default()
                })
            }
            Some(Kind::Inject) => {
                self.operator("replay packets")?;
                let payload = inject::answer(self.shared, payload)?;
                Ok(Response {
                    payload,
                    ..Default::default()
                })
            }
            Some(Kind::Attribute) => {
                congestion::attribute(self.shared, self.peer, payload)?;
                Ok(Response::default())
            }
            None => Err(CommandError::Message("unknown kind of request")),
        }
    }

    /// Whether the peer may see and change what is not its own.
    fn operator(&self, what: &'static str) -> Result<(), CommandError> {
        let uid = self.peer.uid;
        if self.shared.may_operate(uid) {
            Ok(())
        } else {
            Err(CommandError::NotOperator { uid, what })
        }
    }

    fn open(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Response, CommandError> {
        if self.context.is_some() {
            return Err(CommandError::SecondContext);
        }
        let request = OpenDevice::from_bytes(payload)
            .filter(|_| payload.len() == size_of::<OpenDevice>())
            .ok_or(CommandError::Message("OpenDevice of a wrong length"))?;
        let mem = <[OwnedFd; 1]>::try_from(fds).map_err(|_| {
            CommandError::Message("OpenDevice needs one descriptor: /proc/self/mem")
        })?;
        let [mem] = mem;
        let Opened {
            context,
            reply,
            wake,
        } = Context::open(self.shared, self.peer, &request, mem)?;
        let file = context.file.fd().try_clone_to_owned();
        tracing::debug!(
            pid = self.peer.pid,
            device = context.nic().name,
            "device opened"
        );
        // From here on the session closes it.
        self.context = Some(context);
        let file = file.map_err(|source| CommandError::System {
            what: "duplicating a descriptor",
            source,
        })?;
        let payload = reply.as_bytes().to_vec();
        Ok(Response {
            payload,
            fds: vec![file, wake],
            fd_at: None,
        })
    }

    /// The device that a request to open one names, if there is one of that name.
    fn asked_for(&self, payload: &[u8]) -> &str {
        let named = OpenDevice::from_bytes(payload).map(|open| device_name(&open.device));
        let mut nics = self.shared.config.nics.iter();
        let nic = nics.find(|nic| named.as_ref() == Some(&nic.name));
        nic.map_or("", |nic| nic.name.as_str())
    }

    fn close_channel(&mut self, payload: &[u8]) -> Result<Response, CommandError> {
        let context = self.context.as_mut().ok_or(CommandError::NoDevice)?;
        let bytes = payload
            .try_into()
            .map_err(|_| CommandError::Message("CloseChannel of a wrong length"))?;
        let channel = u32::from_ne_bytes(bytes);
        context.close_channel(channel)?;
        Ok(Response::default())
    }

    fn memory_file(&mut self, fds: Vec<OwnedFd>) -> Result<Response, CommandError> {
        let context = self.context.as_mut().ok_or(CommandError::NoDevice)?;
        let [fd] = <[OwnedFd; 1]>::try_from(fds)
            .map_err(|_| CommandError::Message("MemoryFile needs one descriptor"))?;
        if context.nic().memory == MemoryPolicy::Never {
            return Err(CommandError::Unsupported(
                "mapped memory (`memory = \"never\"`)",
            ));
        }
        let number = context.mrs.add_file(fd)?;
        Ok(Response {
            payload: number.to_ne_bytes().to_vec(),
            ..Default::default()
        })
    }

    /// Sends a response, in several packets if need be. False if the connection is gone.
    fn reply(&self, response: Response) -> bool {
        let fds: Vec<BorrowedFd<'_>> = response.fds.iter().map(|fd| fd.as_fd()).collect();
        let ending = match self.capture.is_some() && self.shared.is_closing() {
            true => ENDING,
            false => 0,
        };
        let mut rest = response.payload.as_slice();
        loop {
            let (part, later) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            let header = ReplyHeader {
                flags: ending | if later.is_empty() { 0 } else { MORE },
                fd_at: response.fd_at.unwrap_or(NO_FD),
                len: part.len() as u32,
                ..header(0)
            };
            if !self.send(&header, part, &fds) {
                return false;
            }
            if later.is_empty() {
                return true;
            }
            rest = later;
        }
    }

    fn refuse(&self, header: &RequestHeader, payload: &[u8], error: &CommandError) -> bool {
        let kind = Kind::from_u32(header.kind);
        let (pid, errno) = (self.peer.pid, error.errno());
        let device = match kind {
            Some(Kind::OpenDevice) => self.asked_for(payload),
            _ => self.context.as_ref().map_or("", |c| c.nic().name.as_str()),
        };
        let command = match kind {
            Some(Kind::Uverbs) => uverbs::name(payload),
            Some(Kind::OpenDevice) => "open",
            Some(Kind::Query) => "query",
            Some(Kind::CloseChannel) => "close channel",
            Some(Kind::MemoryFile | Kind::Memory | Kind::Reach) => "memory",
            Some(Kind::Capture) => "capture",
            Some(Kind::Inject) => "replay",
            Some(Kind::Attribute) => "attribute",
            None => "unknown",
        };
        let text = error.to_string();
        let told = match error.told_once(&text) {
            Some(about) => !self.shared.first_refusal(pid, command, about),
            None => false,
        };
        if told || !self.shared.may_log(self.peer.uid) {
            tracing::debug!(pid, device, command, errno, "{text}");
        } else {
            tracing::warn!(pid, device, command, errno, "{text}");
        }
        // The sentence goes to the person who asked. A program's call has room for the errno only, but the shim shows the
        // sentence to who wants it.
        self.reply_error(errno, text.as_bytes())
    }

    fn reply_error(&self, errno: i32, payload: &[u8]) -> bool {
        let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
        self.send(
            &ReplyHeader {
                len: payload.len() as u32,
                ..header(errno)
            },
            payload,
            &[],
        )
    }

    fn send(&self, header: &ReplyHeader, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let sent = seqpacket::send(self.socket, &[header.as_bytes(), payload], fds);
        if let Err(error) = &sent {
            tracing::debug!(pid = self.peer.pid, %error, "reply not sent");
        }
        sent.is_ok()
    }
}

/// Says to the other end of a connection that there will be no session, and why.
pub fn turn_away(socket: BorrowedFd<'_>, errno: i32, why: &str) {
    let reply = ReplyHeader {
        len: why.len() as u32,
        ..header(errno)
    };
    // The first packet on a new connection finds room. One that is gone already need not know.
    let _ = seqpacket::send(socket, &[reply.as_bytes(), why.as_bytes()], &[]);
}

fn header(error: i32) -> ReplyHeader {
    ReplyHeader {
        magic: MAGIC,
        version: PROTOCOL_VERSION.into(),
        error,
        flags: 0,
        fd_at: NO_FD,
        len: 0,
    }
}
