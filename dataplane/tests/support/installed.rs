//! The programs where every user may look, and other users who run them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::daemon::Daemon;
use super::{TempDir, roceline};

/// Two users without rights.
pub const NOBODY: &str = "65534";
pub const STRANGER: &str = "65533";

/// Copies, as the target directory is often below /root.
pub struct Installed {
    place: TempDir,
    pub program: PathBuf,
}

impl Installed {
    pub fn new() -> Installed {
        let place = TempDir::new();
        let built = roceline();
        for name in ["roceline", "libroceline_shim.so"] {
            let to = place.path().join(name);
            fs::copy(built.with_file_name(name), &to).expect("the copy fits");
        }
        Installed {
            program: place.path().join("roceline"),
            place,
        }
    }

    pub fn dir(&self) -> &Path {
        self.place.path()
    }

    /// `command`, a `roceline`, as a user without capabilities.
    pub fn by(&self, user: &str, command: &Command) -> Command {
        let mut dropped = Command::new("setpriv");
        dropped.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        dropped.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]);
        dropped.arg(&self.program).args(command.get_args());
        dropped
    }

    /// `command`, a `roceline`, started by the program and arguments `by`.
    pub fn under(&self, by: &[&str], command: &Command) -> Command {
        let mut under = Command::new(by[0]);
        under.args(&by[1..]);
        under.arg(&self.program).args(command.get_args());
        under
    }
}

/// Gives the daemon's directory to a user.
pub fn own_by(user: &str, daemon: &Daemon) {
    let owned = Command::new("chown")
        .arg("-R")
        .arg(user)
        .arg(daemon.dir())
        .status();
    assert!(owned.is_ok_and(|status| status.success()));
}
