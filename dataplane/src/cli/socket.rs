//! Which control socket, when nobody says.

use std::env;
use std::path::{Path, PathBuf};

/// Where a daemon of the machine listens.
const SYSTEM: &str = "/run/roceline.sock";

/// The socket of the daemon that a command talks to: the user's own, if there is one, else the machine's.
pub(super) fn of_daemon_in_use() -> PathBuf {
    choose(own(), Path::exists)
}

/// Where a new daemon listens: root's for the machine, anybody else's for themselves.
pub(super) fn of_new_daemon() -> PathBuf {
    // SAFETY: geteuid has no arguments, no effects and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    choose(own().filter(|_| !root), |path| {
        path.parent().is_some_and(Path::is_dir)
    })
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
    fn the_own_socket_is_preferred_where_it_can_be_used() {
        let own = || Some(PathBuf::from("/run/user/1000/roceline.sock"));
        assert_eq!(choose(own(), |_| true), own().unwrap());
        assert_eq!(choose(own(), |_| false), Path::new(SYSTEM));
        assert_eq!(choose(None, |_| true), Path::new(SYSTEM));
    }
}
