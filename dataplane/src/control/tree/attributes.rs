//! Files of a device that can be written: the settings of its congestion control ([`crate::congestion::files`]).
//!
//! In: settings. Out: files, each replaced at once, so that readers see the old text or the new one. Whoever writes to them by
//! way of the shim asks the daemon, which changes the setting and then the file.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::content::{make_dir, put};
use crate::congestion::{Settings, files};

/// Writes all files of a NIC in a view.
pub(super) fn create(view: &Path, nic: &str, settings: &Settings) -> io::Result<()> {
    let device = device_dir(view, nic);
    for (path, text) in files(settings) {
        let path = device.join(path);
        if let (Some(dir), Some(name)) = (path.parent(), path.file_name()) {
            make_dir(dir)?;
            put(dir, &name.to_string_lossy(), text)?;
        }
    }
    // Where OFED has the folder: at the network interface.
    let interface = view.join("sys/class/net").join(nic);
    make_dir(&interface)?;
    symlink(
        Path::new("../../infiniband").join(nic).join("ecn"),
        interface.join("ecn"),
    )
}

/// Brings those files of a NIC up to date, in the tree at `root`, which say something else for `now` than for `before`.
pub fn update(root: &Path, nic: &str, before: &Settings, now: &Settings) -> io::Result<()> {
    let changed = files(now).into_iter().zip(files(before));
    for ((path, text), _) in changed.filter(|(now, before)| now != before) {
        replace(root, nic, &path, &text)?;
    }
    Ok(())
}

/// Replaces a file of a NIC, named from its device, in all views.
pub fn replace(root: &Path, nic: &str, path: &str, text: &str) -> io::Result<()> {
    for view in [root.join("all"), root.join("only").join(nic)] {
        let path = device_dir(&view, nic).join(path);
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            continue;
        };
        let new = format!(".{}.new", name.to_string_lossy());
        let _ = fs::remove_file(dir.join(&new));
        put(dir, &new, text)?;
        fs::rename(dir.join(&new), &path)?;
    }
    Ok(())
}

fn device_dir(view: &Path, nic: &str) -> PathBuf {
    view.join("sys/class/infiniband").join(nic)
}
