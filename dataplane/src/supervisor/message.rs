//! What the worker tells the supervisor, over a socket pair (`SOCK_SEQPACKET`): one fixed struct a packet, descriptors
//! beside it. One way only, no replies: a packet that was sent is read even if the sender dies right after, and so the
//! worker never waits for the supervisor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use roceline_abi::control::Plain;

use crate::control::seqpacket::{self, Peer};
use crate::lcore::message::ContextId;

/// "RSV1": first word of every packet.
const MAGIC: u32 = u32::from_le_bytes(*b"RSV1");
/// Version of this protocol. Both ends are one binary, so a difference means that something is badly wrong.
const VERSION: u32 = 1;

/// A packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Packet {
    magic: u32,
    version: u32,
    kind: u32,
    /// A completion channel's handle, or a process.
    number: u32,
    context: u64,
    /// The program as the kernel saw it.
    peer_pid: i32,
    peer_uid: u32,
}

// SAFETY: repr(C), only integers, no padding.
unsafe impl Plain for Packet {}

const _: () = assert!(size_of::<Packet>() == 32);

const READY: u32 = 1;
const CONTEXT: u32 = 2;
const CONTEXT_GONE: u32 = 3;
const CHANNEL: u32 = 4;
const CHANNEL_GONE: u32 = 5;
const STOPPED: u32 = 6;

/// News from the worker.
#[derive(Debug)]
pub enum News {
    /// Programs can use the devices.
    Ready,
    /// A device was opened.
    Context {
        /// Its name in this worker.
        id: ContextId,
        /// The program, for messages only.
        pid: u32,
        /// The program as the kernel saw it.
        peer: Peer,
        /// The context file.
        file: OwnedFd,
        /// Write end of the asynchronous events.
        events: OwnedFd,
    },
    /// The program closed it, or ended.
    ContextGone(ContextId),
    /// A completion channel was made.
    Channel {
        /// Of this context.
        id: ContextId,
        /// Its handle.
        handle: u32,
        /// Write end.
        events: OwnedFd,
    },
    /// The program closed it.
    ChannelGone {
        /// Of this context.
        id: ContextId,
        /// Its handle.
        handle: u32,
    },
    /// Nothing touches the programs' queues any more; what follows is the worker's own tidying up.
    Stopped,
}

/// A packet that no worker of ours sends.
#[derive(Debug, thiserror::Error)]
#[error("a message of the NIC process is not understood ({0}); please report this")]
pub struct Garbled(&'static str);

/// The worker's end.
#[derive(Debug)]
pub struct Keeper {
    socket: OwnedFd,
}

impl Keeper {
    /// Sends over `socket`.
    pub fn new(socket: OwnedFd) -> Keeper {
        Keeper { socket }
    }

    /// See [`News::Ready`].
    pub fn ready(&self) {
        self.send(READY, ContextId(0), 0, &[]);
    }

    /// See [`News::Context`].
    pub fn context(
        &self,
        id: ContextId,
        pid: u32,
        peer: Peer,
        file: BorrowedFd<'_>,
        events: BorrowedFd<'_>,
    ) {
        self.send_of(CONTEXT, id, pid, peer, &[file, events]);
    }

    /// See [`News::ContextGone`].
    pub fn context_gone(&self, id: ContextId) {
        self.send(CONTEXT_GONE, id, 0, &[]);
    }

    /// See [`News::Channel`].
    pub fn channel(&self, id: ContextId, handle: u32, events: BorrowedFd<'_>) {
        self.send(CHANNEL, id, handle, &[events]);
    }

    /// See [`News::ChannelGone`].
    pub fn channel_gone(&self, id: ContextId, handle: u32) {
        self.send(CHANNEL_GONE, id, handle, &[]);
    }

    /// See [`News::Stopped`].
    pub fn stopped(&self) {
        self.send(STOPPED, ContextId(0), 0, &[]);
    }

    /// Whether the supervisor is dead.
    pub fn is_alone(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: polls one live entry, without waiting.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 }
    }

    fn send(&self, kind: u32, context: ContextId, number: u32, fds: &[BorrowedFd<'_>]) {
        self.send_of(kind, context, number, Peer { pid: 0, uid: 0 }, fds);
    }

    fn send_of(
        &self,
        kind: u32,
        context: ContextId,
        number: u32,
        peer: Peer,
        fds: &[BorrowedFd<'_>],
    ) {
        let packet = Packet {
            magic: MAGIC,
            version: VERSION,
            kind,
            number,
            context: context.0,
            peer_pid: peer.pid,
            peer_uid: peer.uid,
        };
        if let Err(error) = seqpacket::send(self.socket.as_fd(), &[packet.as_bytes()], fds) {
            // Its death is this process's end too (PR_SET_PDEATHSIG).
            tracing::debug!(%error, "the supervisor is not there");
        }
    }
}

/// The supervisor's end: the next packet, which must be waiting. `None` at the end of the worker.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Result<News, Garbled>>> {
    let mut bytes = [0; size_of::<Packet>()];
    let Some(received) = seqpacket::receive(socket, &mut bytes)? else {
        return Ok(None);
    };
    Ok(Some(news(&bytes[..received.len], received.fds)))
}

fn news(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<News, Garbled> {
    let packet = Packet::from_bytes(bytes).ok_or(Garbled("its length"))?;
    if packet.magic != MAGIC || packet.version != VERSION {
        return Err(Garbled("its version"));
    }
    let (id, number) = (ContextId(packet.context), packet.number);
    let mut fds = fds.into_iter();
    let mut fd = || fds.next().ok_or(Garbled("its descriptors"));
    Ok(match packet.kind {
        READY => News::Ready,
        CONTEXT => News::Context {
            id,
            pid: number,
            peer: Peer {
                pid: packet.peer_pid,
                uid: packet.peer_uid,
            },
            file: fd()?,
            events: fd()?,
        },
        CONTEXT_GONE => News::ContextGone(id),
        CHANNEL => News::Channel {
            id,
            handle: number,
            events: fd()?,
        },
        CHANNEL_GONE => News::ChannelGone { id, handle: number },
        STOPPED => News::Stopped,
        _ => return Err(Garbled("its kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_arrive_in_order_also_from_a_dead_sender() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let keeper = Keeper::new(theirs);
        let file = std::fs::File::open("/dev/null").unwrap();
        let id = ContextId(7);
        keeper.ready();
        let peer = Peer { pid: 0, uid: 1000 };
        keeper.context(id, 42, peer, file.as_fd(), file.as_fd());
        keeper.channel(id, 3, file.as_fd());
        keeper.channel_gone(id, 3);
        keeper.context_gone(id);
        keeper.stopped();
        drop(keeper);
        let next = || {
            let news = receive(ours.as_fd()).unwrap();
            news.map(|news| format!("{:?}", news.unwrap()))
        };
        assert_eq!(next().as_deref(), Some("Ready"));
        assert!(next().unwrap().starts_with(
            "Context { id: ContextId(7), pid: 42, peer: Peer { pid: 0, uid: 1000 }, file: "
        ));
        assert!(
            next()
                .unwrap()
                .starts_with("Channel { id: ContextId(7), handle: 3, events: ")
        );
        assert!(next().unwrap().starts_with("ChannelGone"));
        assert!(next().unwrap().starts_with("ContextGone"));
        assert_eq!(next().as_deref(), Some("Stopped"));
        assert_eq!(next(), None);
    }

    #[test]
    fn what_is_no_news_is_refused() {
        let good = Packet {
            magic: MAGIC,
            version: VERSION,
            kind: READY,
            ..Packet::default()
        };
        assert!(news(good.as_bytes(), Vec::new()).is_ok());
        for bad in [
            Packet { magic: 1, ..good },
            Packet { version: 9, ..good },
            Packet { kind: 99, ..good },
            // Without its descriptors.
            Packet {
                kind: CONTEXT,
                ..good
            },
        ] {
            assert!(news(bad.as_bytes(), Vec::new()).is_err());
        }
        assert!(news(&good.as_bytes()[..20], Vec::new()).is_err());
    }
}
