//! What net_memif leaves to its user: to read its role from the device arguments, to clear away the socket of a
//! server that was killed, and to know when a client has somebody to connect to. What it gets wrong when a
//! peer goes is put right in `dpdk-sys/memif_guard.c`.
//!
//! A memif peer is trusted: the driver believes the descriptors that it finds in the shared rings.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Which side of a net_memif connection a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Listens on the socket.
    Server,
    /// Connects to it.
    Client,
}

/// Value of `key` in `name,key=value,…`.
fn argument<'a>(device: &'a str, key: &str) -> Option<&'a str> {
    device
        .split(',')
        .skip(1)
        .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

/// The role of a device, if it is a net_memif one.
pub(super) fn role(device: &str) -> Option<Role> {
    device
        .starts_with("net_memif")
        .then(|| match argument(device, "role") {
            // The driver's own default is client.
            Some("server" | "master") => Role::Server,
            _ => Role::Client,
        })
}

/// The socket of a net_memif device if it is a file. The driver's default is an abstract name.
fn socket_file(device: &str) -> Option<&Path> {
    (argument(device, "socket-abstract") == Some("no"))
        .then(|| argument(device, "socket").map(Path::new))
        .flatten()
}

/// What is behind the name of a net_memif socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    /// Nothing.
    None,
    /// A file whose server is gone.
    Stale,
    /// A server.
    Live,
}

impl Listener {
    /// Looks without connecting: memif sockets are SOCK_SEQPACKET, so that a stream socket is refused with
    /// EPROTOTYPE by a live one (unix(7)) and with ECONNREFUSED by a dead one.
    fn at(path: &Path) -> Listener {
        match UnixStream::connect(path).map_err(|e| e.raw_os_error()) {
            Ok(_) | Err(Some(libc::EPROTOTYPE)) => Listener::Live,
            Err(Some(libc::ECONNREFUSED)) => Listener::Stale,
            Err(_) => Listener::None,
        }
    }
}

/// A server that was killed leaves its socket file, on which the driver cannot listen again. One that nobody
/// listens on is removed.
pub(super) fn remove_stale_socket(device: &str) {
    let stale = socket_file(device).filter(|path| Listener::at(path) == Listener::Stale);
    if let Some(path) = stale {
        if fs::remove_file(path).is_ok() {
            tracing::debug!(socket = %path.display(), "removed a memif socket without a server");
        }
    }
}

/// Whether a client has somebody to connect to. Starting without makes the driver log an error each time.
pub(super) fn server_listens(device: &str) -> bool {
    if let Some(path) = socket_file(device) {
        return Listener::at(path) == Listener::Live;
    }
    // An abstract name is in this list of the network namespace's sockets, with `@` for its first byte.
    let name = argument(device, "socket").unwrap_or("/run/memif.sock");
    fs::read_to_string("/proc/net/unix").map_or(true, |sockets| {
        sockets.lines().any(|line| {
            line.rsplit_once(' ')
                .is_some_and(|(_, at)| at.strip_prefix('@') == Some(name))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn devargs_are_read_by_key() {
        let device = "net_memif0,role=server,socket=/run/x,socket-abstract=no";
        assert_eq!(role(device), Some(Role::Server));
        assert_eq!(socket_file(device), Some(Path::new("/run/x")));
        assert_eq!(role("net_memif1,id=3"), Some(Role::Client));
        assert_eq!(
            socket_file("net_memif1,socket=/run/x"),
            None,
            "abstract by default"
        );
        assert_eq!(role("net_null0"), None);
    }

    #[test]
    fn only_dead_sockets_are_removed() {
        let path = std::env::temp_dir().join(format!("roceline-stale-{}", std::process::id()));
        let device = format!(
            "net_memif0,role=server,socket-abstract=no,socket={}",
            path.display()
        );
        assert_eq!(Listener::at(&path), Listener::None);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(Listener::at(&path), Listener::Live);
        remove_stale_socket(&device);
        assert!(path.exists());
        drop(listener);
        assert_eq!(Listener::at(&path), Listener::Stale);
        remove_stale_socket(&device);
        assert!(!path.exists());
    }
}
