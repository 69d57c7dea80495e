//! Files of a device that were written without the shim: by a static program, through a descriptor that was opened to read as well, or
//! from outside of `roceline run`, by root or the daemon's own user, whom the files belong to.
//!
//! In: events of inotify, and what the files say then. Out: the same changes as by way of the shim. Nobody hears an error, so
//! what makes no sense is told to the log, and the file says again what holds. The thread that accepts connections looks after
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::congestion;
use super::server::Shared;
use super::tree::{Tree, attributes};
use crate::congestion::{Settings, files};

/// `struct inotify_event` without its name.
const EVENT: usize = 16;

/// Watches the folders of the files.
#[derive(Debug)]
pub struct Written {
    inotify: OwnedFd,
    /// The view, and the folder's path in it, by watch.
    folders: BTreeMap<i32, (PathBuf, PathBuf)>,
}

impl Written {
    /// Watches the files of all NICs.
    pub fn watch(shared: &Shared) -> io::Result<Written> {
        // SAFETY: a new descriptor that becomes ours.
        let inotify = unsafe {
            let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let tree = Tree::path(&shared.config.socket);
        let mut folders = BTreeMap::new();
        for nic in shared.config.nics.iter() {
            let device = Path::new("/sys/class/infiniband").join(&nic.name);
            let paths = files(&nic.congestion.now()).into_iter();
            let below: BTreeSet<PathBuf> = paths
                .filter_map(|(path, _)| Some(device.join(Path::new(&path).parent()?)))
                .collect();
            for view in [tree.join("all"), tree.join("only").join(&nic.name)] {
                for folder in &below {
                    let path = CString::new(inside(&view, folder).as_os_str().as_bytes())?;
                    // SAFETY: a C string.
                    let watch = unsafe {
                        libc::inotify_add_watch(
                            inotify.as_raw_fd(),
                            path.as_ptr(),
                            libc::IN_CLOSE_WRITE,
                        )
                    };
                    if watch < 0 {
                        return Err(io::Error::last_os_error());
                    }
                    folders.insert(watch, (view.clone(), folder.clone()));
                }
            }
        }
        Ok(Written { inotify, folders })
    }

    /// Takes over what was written.
    pub fn follow(&self, shared: &Shared) {
        let mut bytes = [0u8; 4096];
        loop {
            // SAFETY: the buffer is as long as said.
            let n = unsafe {
                let into = bytes.as_mut_ptr().cast();
                libc::read(self.inotify.as_raw_fd(), into, bytes.len())
            };
            let Some(mut events) = usize::try_from(n).ok().and_then(|n| bytes.get(..n)) else {
                return;
            };
            if events.is_empty() {
                return;
            }
            while let Some((watch, name, rest)) = event(events) {
                events = rest;
                // Our own, about to be renamed.
                if name.first().is_none_or(|first| *first == b'.') {
                    continue;
                }
                if let (Some((view, folder)), Ok(name)) =
                    (self.folders.get(&watch), std::str::from_utf8(name))
                {
                    take(shared, view, &folder.join(name));
                }
            }
        }
    }
}

impl AsFd for Written {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Where a path of sysfs is in a view.
fn inside(view: &Path, path: &Path) -> PathBuf {
    view.join(path.strip_prefix("/").unwrap_or(path))
}

/// Watch and name of the first event, and the events behind it.
fn event(bytes: &[u8]) -> Option<(i32, &[u8], &[u8])> {
    let word = |at: usize| bytes.get(at..at + 4)?.first_chunk::<4>().copied();
    let watch = i32::from_ne_bytes(word(0)?);
    let len = u32::from_ne_bytes(word(12)?) as usize;
    let name = bytes.get(EVENT..EVENT.checked_add(len)?)?;
    let end = name.iter().position(|b| *b == 0).unwrap_or(len);
    Some((watch, &name[..end], &bytes[EVENT + len..]))
}

/// Takes over what a file says, and lets it say what holds then.
fn take(shared: &Shared, view: &Path, path: &Path) {
    let Ok(text) = fs::read_to_string(inside(view, path)) else {
        return;
    };
    match congestion::written(shared, path, &text) {
        Ok(()) => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), "what was written there is ignored: {error}")
        }
    }
    let tree = Tree::path(&shared.config.socket);
    for nic in shared.config.nics.iter() {
        let device = Path::new("/sys/class/infiniband").join(&nic.name);
        let Ok(below) = path.strip_prefix(&device) else {
            continue;
        };
        // Held, so that nobody writes it meanwhile.
        let state = nic.congestion.hold();
        if let Err(error) = restore(&tree, &nic.name, below, &state.now) {
            tracing::warn!(%error, path = %path.display(), "cannot write");
        }
    }
}

fn restore(tree: &Path, nic: &str, below: &Path, now: &Settings) -> io::Result<()> {
    let found = files(now)
        .into_iter()
        .find(|(path, _)| Path::new(path) == below);
    found.map_or(Ok(()), |(path, text)| {
        attributes::replace(tree, nic, &path, &text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::{FakeLcore, config};

    #[test]
    fn events_are_taken_apart_within_their_bytes() {
        let mut bytes = Vec::new();
        for (watch, name) in [(7i32, &b"rpg_gd\0\0"[..]), (8, b"")] {
            bytes.extend(watch.to_ne_bytes());
            bytes.extend([0; 8]);
            bytes.extend((name.len() as u32).to_ne_bytes());
            bytes.extend(name);
        }
        let (watch, name, rest) = event(&bytes).unwrap();
        assert_eq!((watch, name), (7, &b"rpg_gd"[..]));
        assert_eq!(event(rest), Some((8, &b""[..], &b""[..])));
        for cut in 0..16 + 8 {
            assert_eq!(event(&bytes[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn what_was_written_holds_or_is_taken_back() {
        let dir = std::env::temp_dir().join(format!("roceline-written-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let socket = dir.join("r.sock");
        let (lcore, _closed) = FakeLcore::new();
        let shared = Shared::new(config(socket.clone()), lcore.clone());
        let tree = Tree::create(&socket, &shared.config.nics).unwrap();
        let written = Written::watch(&shared).unwrap();
        let file = |view: &str| {
            let view = tree.root().join(view);
            view.join("sys/class/infiniband/roce1/ecn/roce_rp/rpg_ai_rate")
        };
        let views = ["all", "only/roce1"];
        for (view, text) in views.into_iter().zip(["40", " 41\n"]) {
            fs::write(file(view), text).unwrap();
            written.follow(&shared);
            let now = text.trim();
            for view in views {
                assert_eq!(fs::read_to_string(file(view)).unwrap(), format!("{now}\n"));
            }
            let wanted = format!("ai_rate: {now}");
            assert!(lcore.last().contains(&wanted), "{}", lcore.last());
        }
        let commands = lcore.state().commands.len();
        for text in ["fast", "", "4000001"] {
            fs::write(file("all"), text).unwrap();
            written.follow(&shared);
            assert_eq!(fs::read_to_string(file("all")).unwrap(), "41\n", "{text}");
        }
        assert_eq!(lcore.state().commands.len(), commands);
        drop(tree);
        fs::remove_dir_all(dir).unwrap();
    }
}
