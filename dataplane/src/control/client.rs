//! The command line's end of the control socket: questions out, JSON in.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roceline_abi::PROTOCOL_VERSION;
use roceline_abi::control::{
    ENDING, Kind, MAGIC, MAX_PAYLOAD, MORE, Plain, ReplyHeader, RequestHeader,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::query::{Device, DevicesReply, Lcore, LcoresReply, Query};
use super::seqpacket;
use crate::capture::request::{Capture, Injected};

/// The daemon itself gives an lcore 30 s.
const TIMEOUT: Duration = Duration::from_secs(35);
/// Answers longer than this are not believed.
const MAX_ANSWER: usize = 64 << 20;

/// Why a question has no answer.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "no daemon answers on {path}: start it with `roceline nic`, or name its socket with --socket"
    )]
    NoDaemon { path: PathBuf },
    #[error(
        "this user may not connect to {path}: ask the one who runs the daemon to widen the socket's mode, or run as \
         that user"
    )]
    Permission { path: PathBuf },
    #[error("the socket path {0} is too long: a Unix socket's path has at most 107 bytes")]
    PathTooLong(PathBuf),
    #[error(
        "the daemon speaks protocol version {theirs}, this command {ours}: use both from one installation, and restart \
         the daemon after an update"
    )]
    Version { theirs: u32, ours: u32 },
    #[error("the daemon refuses: {text} (errno {errno})")]
    Refused { errno: i32, text: String },
    #[error("the daemon ended the connection: it stopped, or see its log")]
    Ended,
    #[error(
        "what is asked takes {len} bytes, and the daemon reads {MAX_PAYLOAD} at a time: use shorter arguments"
    )]
    TooLong { len: usize },
    #[error("the daemon's answer is not understood: {0}")]
    Answer(String),
    #[error("the daemon did not answer in time: it is starting, stopping or stuck; see its log")]
    NoAnswer,
    #[error("a daemon is there and does not answer yet: it is starting, or stuck; see its log")]
    NotYet,
    #[error("talking to the daemon: {0}")]
    Io(#[from] io::Error),
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    ending: AtomicBool,
}

/// What a daemon has: devices, and lcores that serve them.
#[derive(Clone, Debug)]
pub struct Status {
    /// By index.
    pub devices: Vec<Device>,
    /// By number.
    pub lcores: Vec<Lcore>,
}

impl Client {
    /// Connects to the daemon that listens on `path`.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let address =
            seqpacket::address(path).ok_or_else(|| ClientError::PathTooLong(path.to_path_buf()))?;
        let socket = seqpacket::socket()?;
        match seqpacket::connect(socket.as_fd(), &address) {
            Ok(()) => {
                let client = Client::of(socket);
                client.set_timeout(TIMEOUT)?;
                Ok(client)
            }
            Err(error) => {
                let path = path.to_path_buf();
                Err(match error.raw_os_error() {
                    // EPROTOTYPE: a socket of another kind, so not ours.
                    Some(libc::ENOENT | libc::ECONNREFUSED | libc::ENOTDIR | libc::EPROTOTYPE) => {
                        ClientError::NoDaemon { path }
                    }
                    Some(libc::EACCES | libc::EPERM) => ClientError::Permission { path },
                    _ => ClientError::Io(error),
                })
            }
        }
    }

    pub(super) fn of(socket: OwnedFd) -> Client {
        Client {
            socket,
            ending: AtomicBool::new(false),
        }
    }

    /// Whether the daemon said that it ends; it does so only to those that capture.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Waits at most this long for a packet of an answer (35 s unless set).
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), ClientError> {
        // Zero would mean for ever.
        seqpacket::set_receive_timeout(self.socket.as_fd(), timeout.max(Duration::from_millis(1)))?;
        Ok(())
    }

    /// Devices and lcores; only a daemon that is ready answers.
    pub fn status(&self) -> Result<Status, ClientError> {
        let DevicesReply { devices } = self.ask(&Query::Devices)?;
        let LcoresReply { lcores } = self.ask(&Query::Lcores)?;
        Ok(Status { devices, lcores })
    }

    /// Asks, and gives the answer as it came.
    pub fn query(&self, query: &Query) -> Result<serde_json::Value, ClientError> {
        self.ask(query)
    }

    /// Asks, and gives the answer as the reply that [`Query`] names.
    pub fn ask<T: DeserializeOwned>(&self, query: &Query) -> Result<T, ClientError> {
        from_json(&self.exchange(Kind::Query, &to_json(query)?)?)
    }

    /// Asks something of a capture, and gives the answer as the reply that [`Capture`] names.
    pub fn capture<T: DeserializeOwned>(&self, request: &Capture) -> Result<T, ClientError> {
        from_json(&self.exchange(Kind::Capture, &to_json(request)?)?)
    }

    /// The next records of the capture.
    pub fn records(&self) -> Result<Vec<u8>, ClientError> {
        self.exchange(Kind::Capture, &to_json(&Capture::Next)?)
    }

    /// Hands frames to the NIC with this index, which receives as many as it has room for.
    pub fn inject(&self, nic: u32, frames: &[Vec<u8>]) -> Result<Injected, ClientError> {
        let mut payload = nic.to_ne_bytes().to_vec();
        for frame in frames {
            payload.extend((frame.len() as u32).to_ne_bytes());
            payload.extend(frame);
        }
        from_json(&self.exchange(Kind::Inject, &payload)?)
    }

    fn exchange(&self, kind: Kind, question: &[u8]) -> Result<Vec<u8>, ClientError> {
        if question.len() > MAX_PAYLOAD {
            let len = question.len();
            return Err(ClientError::TooLong { len });
        }
        let header = RequestHeader {
            magic: MAGIC,
            version: PROTOCOL_VERSION.into(),
            kind: kind as u32,
            len: question.len() as u32,
        };
        let parts = [header.as_bytes(), question];
        match seqpacket::send(self.socket.as_fd(), &parts, &[]) {
            // One that takes no more connections has said so before it ended this one.
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => {
                Err(ended(error))
            }
            _ => self.receive(),
        }
    }

    fn receive(&self) -> Result<Vec<u8>, ClientError> {
        const HEADER: usize = size_of::<ReplyHeader>();
        let mut buffer = vec![0; HEADER + MAX_PAYLOAD];
        let mut answer = Vec::new();
        loop {
            let packet = seqpacket::receive(self.socket.as_fd(), &mut buffer)
                .map_err(ended)?
                .ok_or(ClientError::Ended)?;
            let bytes = &buffer[..packet.len];
            let header = ReplyHeader::from_bytes(bytes)
                .filter(|h| h.magic == MAGIC && h.len as usize == bytes.len() - HEADER)
                .ok_or_else(|| ClientError::Answer("not a reply of this protocol".into()))?;
            let ours = u32::from(PROTOCOL_VERSION);
            if header.version != ours {
                return Err(ClientError::Version {
                    theirs: header.version,
                    ours,
                });
            }
            if header.flags & ENDING != 0 {
                self.ending.store(true, Ordering::Relaxed);
            }
            let payload = &bytes[HEADER..];
            if header.error != 0 {
                let text = String::from_utf8_lossy(payload).into_owned();
                return Err(ClientError::Refused {
                    errno: header.error,
                    text,
                });
            }
            if answer.len() + payload.len() > MAX_ANSWER {
                return Err(ClientError::Answer("it is too long".into()));
            }
            answer.extend_from_slice(payload);
            if header.flags & MORE == 0 {
                return Ok(answer);
            }
        }
    }
}

fn to_json(request: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(request).map_err(|e| ClientError::Answer(e.to_string()))
}

fn from_json<T: DeserializeOwned>(answer: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(answer).map_err(|e| ClientError::Answer(e.to_string()))
}

fn ended(error: io::Error) -> ClientError {
    match error.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET) => ClientError::Ended,
        Some(libc::EAGAIN) => ClientError::NoAnswer,
        _ => ClientError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_is_said_with_its_remedy() {
        let error = Client::connect(Path::new("/nonexistent/roceline.sock")).unwrap_err();
        assert!(matches!(error, ClientError::NoDaemon { .. }));
        assert!(error.to_string().contains("roceline nic"));
        let long = "/".repeat(200);
        assert!(matches!(
            Client::connect(Path::new(&long)).unwrap_err(),
            ClientError::PathTooLong(_)
        ));
    }

    #[test]
    fn what_is_too_long_for_the_socket_is_said_with_the_limit() {
        let (socket, _other) = seqpacket::both_ends();
        let client = Client::of(socket);
        let frames = [vec![0; MAX_PAYLOAD]];
        let error = client.inject(0, &frames).unwrap_err();
        assert!(matches!(error, ClientError::TooLong { .. }), "{error}");
        assert!(error.to_string().contains(&MAX_PAYLOAD.to_string()));
    }
}
