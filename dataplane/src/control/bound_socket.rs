//! The place where programs find the daemon: a listening Unix socket at a path. In flow paths, out flow sockets that listen
//! there; a file on which nobody answers any more is replaced, one on which somebody does is not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::ControlError;
use super::seqpacket;

/// A bound, listening control socket; connections wait in its queue. Its file goes when the value is dropped.
#[derive(Debug)]
pub struct BoundSocket {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file: a successor's is not ours to remove.
    identity: (u64, u64),
}

impl BoundSocket {
    /// Takes `path`, and replaces the socket there if the daemon that it belonged to is gone. `mode` are the permission
    /// bits of the file.
    pub fn bind(path: &Path, mode: u32) -> Result<BoundSocket, ControlError> {
        let failed = |what| {
            let path = path.to_owned();
            move |source| ControlError::Socket { what, path, source }
        };
        raise_limits();
        let socket = bind(path)?;
        let meta = std::fs::metadata(path).map_err(failed("looking at"))?;
        let bound = BoundSocket {
            socket,
            path: path.to_owned(),
            identity: (meta.dev(), meta.ino()),
        };
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(failed("setting permissions of"))?;
        Ok(bound)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still this socket's.
    pub fn is_ours(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity)
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        let path = &self.path;
        if self.is_ours() {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "socket file not removed");
            }
        }
    }
}

/// A socket listening at `path`. A socket file on which nobody answers is left over from a daemon that died.
fn bind(path: &Path) -> Result<OwnedFd, ControlError> {
    let address = seqpacket::address(path).ok_or_else(|| ControlError::PathTooLong(path.into()))?;
    let failed = |what| {
        move |source| ControlError::Place {
            what,
            path: path.to_path_buf(),
            source,
        }
    };
    let socket = seqpacket::socket().map_err(failed("making a socket for"))?;
    let error = match seqpacket::listen(socket.as_fd(), &address) {
        Ok(()) => return Ok(socket),
        Err(error) => error,
    };
    if error.raw_os_error() != Some(libc::EADDRINUSE) {
        return Err(failed("listening on")(error));
    }
    let kind = std::fs::symlink_metadata(path).map(|m| m.file_type());
    if !kind.map_err(failed("looking at"))?.is_socket() {
        return Err(ControlError::NotASocket(path.into()));
    }
    let probe = seqpacket::socket().map_err(failed("making a socket for"))?;
    match seqpacket::connect(probe.as_fd(), &address) {
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // The listener outlives the supervisor by the moment that its worker takes to stop.
        Ok(()) if seqpacket::peer(probe.as_fd()).is_ok_and(|peer| is_dead(peer.pid)) => {}
        // A socket of another type answers with EPROTOTYPE: somebody is there.
        _ => return Err(ControlError::InUse(path.into())),
    }
    tracing::info!(path = %path.display(), "replacing the socket of a daemon that is gone");
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("removing the stale socket")(error)),
    }
    let socket = seqpacket::socket().map_err(failed("making a socket for"))?;
    seqpacket::listen(socket.as_fd(), &address).map_err(failed("listening on"))?;
    Ok(socket)
}

/// Whether a process that we can see is none any more. The credentials of a listening socket are those of the process that
/// made it listen.
fn is_dead(pid: i32) -> bool {
    if pid <= 0 {
        // In a PID namespace that we do not see.
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state stands behind the name, which is in parentheses and may contain some.
        Ok(stat) => matches!(
            stat.rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next()),
            Some('Z' | 'X')
        ),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Raises the soft limits of this process that are meant for others. An open device costs about eight descriptors, a completion
/// channel two; the usual soft limit of 1,024 is for programs that use select(2). Memory objects count as files, and that of a
/// device's queues is as large as they may become: one beyond the hard limit is to be an error and not a signal that ends the
/// daemon.
pub(super) fn raise_limits() {
    for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE] {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: fills in one rlimit.
        if unsafe { libc::getrlimit(resource, &mut limit) } == 0 {
            limit.rlim_cur = limit.rlim_max;
            // SAFETY: reads one rlimit; raising the soft limit up to the hard one needs no privilege.
            unsafe { libc::setrlimit(resource, &limit) };
        }
    }
    // SAFETY: no handler of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
