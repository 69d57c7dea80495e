//! Which control socket, when nobody says.

use std::env;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Where a daemon of the machine listens.
const SYSTEM: &str = "/run/roceline.sock";

/// The socket of the daemon that a command talks to: the user's own, if there is one, else the machine's.
pub(super) fn of_daemon_in_use() -> PathBuf {
    let system_exists = Path::new(SYSTEM).exists();
    choose(own(), |path| {
        path.exists() && !(system_exists && is_stale(path))
    })
}

/// Where a new daemon listens: root's for the machine, anybody else's for themselves.
pub(super) fn of_new_daemon() -> PathBuf {
    // SAFETY: geteuid has no arguments, no effects and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    choose(own().filter(|_| !root), |path| {
        path.parent().is_some_and(Path::is_dir)
    })
}

/// Whether nobody listens at a socket any more: its daemon was killed and could not remove it. Asked with a socket of another
/// kind, so that nobody who does listen has a connection of it (`EPROTOTYPE`).
fn is_stale(path: &Path) -> bool {
    UnixDatagram::unbound()
        .and_then(|probe| probe.connect(path))
        .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn own() -> Option<PathBuf> {
    let directory = env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty())?;
    Some(Path::new(&directory).join("roceline.sock"))
}

fn choose(own: Option<PathBuf>, usable: impl Fn(&Path) -> bool) -> PathBuf {
    own.filter(|path| usable(path))
        .unwrap_or_else(|| PathBuf::from(SYSTEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_stale_when_nobody_listens() {
        let path = env::temp_dir().join(format!("roceline-stale-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        assert!(!is_stale(&path));
        drop(listener);
        assert!(is_stale(&path));
        std::fs::remove_file(&path).expect("it was there");
        assert!(!is_stale(&path), "what is not there is not stale");
    }

    #[test]
    fn the_own_socket_is_preferred_where_it_can_be_used() {
        let own = || Some(PathBuf::from("/run/user/1000/roceline.sock"));
        assert_eq!(choose(own(), |_| true), own().unwrap());
        assert_eq!(choose(own(), |_| false), Path::new(SYSTEM));
        assert_eq!(choose(None, |_| true), Path::new(SYSTEM));
    }
}
