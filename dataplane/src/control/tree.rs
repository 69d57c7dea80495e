//! What a program sees of the NICs before it opens one: a real directory tree beside the control socket that looks
//! like the kernel's `/sys/class/infiniband*` and `/dev/infiniband`. The shim redirects those paths here, so that
//! readdir, openat and friends work natively.
//!
//! In: the NICs as configured, once, changes of their addresses, their counters and what other devices there are (`machine`) from time to time. Out:
//! files and links. The control thread owns the tree; it appears as a whole by one rename and goes when the value is dropped.
//!
//! ```text
//! <socket>.d/all/                  every NIC, and links to the machine's own RDMA devices
//! <socket>.d/only/<device>/        one NIC, for programs that are limited to it
//!     sys/class/infiniband_verbs/uverbsN/...
//!     sys/class/infiniband/<device>/...
//!     dev/infiniband/uverbsN
//! ```

pub mod attributes;
mod content;
pub mod gids;

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::machine::{self, Links, Machine};
use crate::nic::NicInfo;
use content::{build, link_files, port_dir, put};

pub(super) use content::make_dir;
pub use content::{
    CounterFile, DEFAULT_PKEY, PKEY_TABLE_LEN, PORT_CAP_FLAGS, UVERBS_MAJOR, UVERBS_MINOR,
    counter_files,
};

/// The least that `lifespan` may be, so that nobody makes the daemon write files all the time, and the most.
const LIFESPANS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(60)];

/// The tree of one daemon. Dropping it removes it from disk.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// Device and inode of `root`: whether it is still ours.
    identity: (u64, u64),
    machine: Machine,
    /// The links to the devices of `machine`, below the view of all devices.
    links: Links,
    /// Stays on disk when the value goes.
    stays: bool,
}

impl Tree {
    /// Where the tree of the daemon at `socket` lies.
    pub fn path(socket: &Path) -> PathBuf {
        suffixed(socket, ".d")
    }

    /// Writes the tree for `nics` beside `socket`. A stale one is replaced, and anything else of that name an error.
    pub fn create(socket: &Path, nics: &[NicInfo]) -> io::Result<Tree> {
        Tree::create_beside(Machine::without_devices(), socket, nics)
    }

    /// The same with links to the devices of `machine`.
    pub fn create_beside(machine: Machine, socket: &Path, nics: &[NicInfo]) -> io::Result<Tree> {
        Draft::write(machine, socket, nics)?.publish(nics)
    }

    /// From now on the tree outlives the value: the supervisor removes it, or the next worker replaces it.
    pub fn stay(&mut self) {
        self.stays = true;
    }

    /// Looks again for devices of the machine.
    pub fn follow_machine(&mut self) -> io::Result<()> {
        let wanted = self.machine.links();
        machine::relink(&self.root.join("all"), &mut self.links, &wanted)
    }

    /// Removes the tree beside `socket`, whichever daemon wrote it.
    pub fn remove(socket: &Path) {
        let root = Tree::path(socket);
        if let Err(error) = check_ours(&root).and_then(|()| remove(&root)) {
            tracing::warn!(%error, "device tree not removed");
        }
    }

    /// Removes what process `pid`, which is dead, was writing beside `socket`.
    pub fn discard_drafts(socket: &Path, pid: u32) {
        for path in [draft_of(socket, pid), old_of(socket, pid)] {
            if let Err(error) = remove(&path) {
                tracing::warn!(%error, path = %path.display(), "unfinished device tree not removed");
            }
        }
    }

    /// Removes what dead processes were writing beside `socket`, which is the caller's: their supervisor died with them.
    pub fn discard_stale_drafts(socket: &Path) {
        let Some(name) = socket.file_name().and_then(|name| name.to_str()) else {
            return;
        };
        let dir = match socket.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let Ok(entries) = fs::read_dir(dir) else {
            return;
        };
        let drafts = [".d.new-", ".d.old-"].map(|kind| format!("{name}{kind}"));
        for entry in entries.flatten() {
            let found = entry.file_name();
            let found = found.to_str().unwrap_or_default();
            let number = drafts.iter().find_map(|draft| found.strip_prefix(draft));
            let Some(pid) = number.and_then(|number| number.parse::<u32>().ok()) else {
                continue;
            };
            // Somebody else may have given a directory such a name.
            let lives = Path::new("/proc").join(pid.to_string()).exists();
            if !lives && check_ours(&entry.path()).is_ok() {
                Tree::discard_drafts(socket, pid);
            }
        }
    }

    /// Its top directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How old `hw_counters` and `counters` may be: `lifespan` in them, until somebody writes another. The kernel's is 10
    /// ms, but costs something only when somebody reads.
    pub const LIFESPAN: Duration = Duration::from_millis(100);

    /// Brings those files of `nic` up to date in which `now` differs from `before`, what they say.
    pub fn update(&self, nic: &str, before: &[CounterFile], now: &[CounterFile]) -> io::Result<()> {
        // The views of a single device have the same files by another name.
        let port = port_dir(&self.root.join("all"), nic);
        for (file, _) in now.iter().zip(before).filter(|(now, before)| now != before) {
            let (group, name, value) = file;
            let file = OpenOptions::new()
                .write(true)
                .open(port.join(group).join(name))?;
            // Counts only grow, so the text never gets shorter and needs no truncation, which readers could see.
            file.write_all_at(format!("{value}\n").as_bytes(), 0)?;
        }
        Ok(())
    }

    /// What somebody wrote into `lifespan`, or `present`. A value out of range is corrected in the file, as is text
    /// that is no number.
    pub fn lifespan(&self, nic: &str, present: Duration) -> io::Result<Duration> {
        let path = port_dir(&self.root.join("all"), nic).join("hw_counters/lifespan");
        let text = fs::read_to_string(&path)?;
        let text = text.trim();
        if text.is_empty() {
            // Truncated, and about to be written.
            return Ok(present);
        }
        let asked = text.parse().map_or(present, Duration::from_millis);
        let lifespan = asked.clamp(LIFESPANS[0], LIFESPANS[1]);
        let right = lifespan.as_millis().to_string();
        if text != right {
            fs::write(&path, right + "\n")?;
        }
        Ok(lifespan)
    }

    /// Says that the port of `nic` has a link, or none any more. Files that say so are left alone; gives whether any did not.
    pub fn update_link(&self, nic: &str, up: bool) -> io::Result<bool> {
        update_link(&self.root, nic, up)
    }
}

fn update_link(root: &Path, nic: &str, up: bool) -> io::Result<bool> {
    let mut news = false;
    for view in [root.join("all"), root.join("only").join(nic)] {
        let port = port_dir(&view, nic);
        for (name, text) in link_files(up) {
            // To replace a file may wait for the disk: ext4 gives the new one its blocks at once (`auto_da_alloc`).
            let present = fs::read_to_string(port.join(name)).unwrap_or_default();
            if present.trim_end() == text {
                continue;
            }
            news = true;
            // Readers see the old text or the new one.
            let new = format!(".{name}.new");
            let _ = fs::remove_file(port.join(&new));
            put(&port, &new, text)?;
            fs::rename(port.join(&new), port.join(name))?;
        }
    }
    Ok(news)
}

/// A tree that no program sees yet, so that its hundreds of files can be written while EAL starts. Dropping it removes it.
#[derive(Debug)]
pub struct Draft {
    socket: PathBuf,
    path: PathBuf,
    machine: Machine,
    links: Links,
}

impl Draft {
    /// Writes it, for `nics` and with links to the devices of `machine`.
    pub fn write(machine: Machine, socket: &Path, nics: &[NicInfo]) -> io::Result<Draft> {
        let mut draft = Draft {
            socket: socket.to_path_buf(),
            path: draft_of(socket, std::process::id()),
            machine,
            links: Links::new(),
        };
        let written = check_ours(&Tree::path(socket)).and_then(|()| {
            remove(&draft.path)?;
            build(&draft.path, nics)?;
            let wanted = draft.machine.links();
            machine::relink(&draft.path.join("all"), &mut draft.links, &wanted)?;
            warn_of_hidden(&draft.links, &wanted);
            Ok(())
        });
        written.map_err(|e| not_written(&Tree::path(socket), &e))?;
        Ok(draft)
    }

    /// Puts it where programs look, in the place of a stale one if there is one. Anything else there is an error. `nics` are
    /// those that it was written for, whose links may have come meanwhile.
    pub fn publish(mut self, nics: &[NicInfo]) -> io::Result<Tree> {
        let root = Tree::path(&self.socket);
        let published = check_ours(&root).and_then(|()| {
            for nic in nics {
                update_link(&self.path, &nic.name, nic.link.is_up())?;
            }
            self.swap_in(&root)
        });
        published.map_err(|e| not_written(&root, &e))?;
        Ok(Tree {
            identity: identity(&root)?,
            root,
            machine: std::mem::replace(&mut self.machine, Machine::without_devices()),
            links: std::mem::take(&mut self.links),
            stays: false,
        })
    }

    fn swap_in(&self, root: &Path) -> io::Result<()> {
        let old = old_of(&self.socket, std::process::id());
        remove(&old)?;
        // At once where the file system can, so that programs that look meanwhile find one or the other.
        if exchange(&self.path, root).is_ok() {
            return remove(&self.path);
        }
        // A directory cannot be renamed over one that has entries.
        match fs::rename(root, &old) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        fs::rename(&self.path, root)?;
        remove(&old)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

fn not_written(root: &Path, error: &io::Error) -> io::Error {
    let text = format!("cannot write the device tree {}: {error}", root.display());
    io::Error::new(error.kind(), text)
}

fn draft_of(socket: &Path, pid: u32) -> PathBuf {
    suffixed(socket, &format!(".d.new-{pid}"))
}

fn old_of(socket: &Path, pid: u32) -> PathBuf {
    suffixed(socket, &format!(".d.old-{pid}"))
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A successor may have put its own tree in our place.
        if !self.stays && identity(&self.root).ok() == Some(self.identity) {
            let _ = remove(&self.root);
        }
    }
}

/// Says which devices of the machine cannot be seen, because ours have their names.
fn warn_of_hidden(links: &Links, wanted: &Links) {
    let class = Path::new("sys/class/infiniband");
    for path in wanted.keys().filter(|path| !links.contains_key(*path)) {
        if let (true, Some(device)) = (path.parent() == Some(class), path.file_name()) {
            tracing::warn!(
                ?device,
                "programs do not see this device of the machine, as a NIC here has its name: give the NIC another"
            );
        }
    }
}

/// Lets two directories change places.
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (a, b) = (path(a)?, path(b)?);
    let here = libc::AT_FDCWD;
    // SAFETY: two C strings.
    let result =
        unsafe { libc::renameat2(here, a.as_ptr(), here, b.as_ptr(), libc::RENAME_EXCHANGE) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut s = path.as_os_str().to_owned();
    s.push(suffix);
    PathBuf::from(s)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// An error if there is something at `root` that is no tree of a daemon's: nobody wants his `sshd_config.d` removed because he
/// named a socket `sshd_config`.
fn check_ours(root: &Path) -> io::Result<()> {
    let foreign = |path: &Path| {
        let text = format!(
            "{} is not of a device tree, and is left alone: move it away, or choose another socket with --socket",
            path.display()
        );
        Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
    };
    match fs::symlink_metadata(root) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return foreign(root),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    }
    for (dir, ours) in [
        (root.to_path_buf(), ["all", "only"]),
        (root.join("all"), ["sys", "dev"]),
    ] {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            // Whoever removed the tree was interrupted.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in entries {
            let entry = entry?;
            let known = ours.iter().any(|name| entry.file_name() == *name);
            if !known || !entry.file_type()?.is_dir() {
                return foreign(&entry.path());
            }
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
