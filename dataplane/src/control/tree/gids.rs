//! The GID table of a port in sysfs: `gids`, and with the same indices `gid_attrs`.
//!
//! In: addresses. Out: files, one for each index, of which libibverbs reads the one that it is asked for; a changed one is replaced at
//! once, so that readers see the old text or the new one.

use std::fs;
use std::io;
use std::path::Path;

use roceline_engine::wire::Gid;

use super::content::{groups, make_dir, port_dir, put, put_bytes};
use crate::addresses::{GID_TABLE_LEN, Table};

const GIDS: &str = "gids";
const TYPES: &str = "gid_attrs/types";
const NDEVS: &str = "gid_attrs/ndevs";

/// Writes the files of a port.
pub(super) fn create(port: &Path, table: &Table) -> io::Result<()> {
    for dir in [GIDS, TYPES, NDEVS] {
        make_dir(&port.join(dir))?;
    }
    for index in 0..GID_TABLE_LEN {
        let (name, gid) = (index.to_string(), table.gid(index));
        put_bytes(&port.join(GIDS), &name, gid_text(gid).as_bytes())?;
        // The kernel answers EINVAL for an empty entry, which a file cannot; libibverbs skips zero GIDs but fails
        // where the type is missing.
        put(&port.join(TYPES), &name, "RoCE v2")?;
        put_bytes(&port.join(NDEVS), &name, ndev_text(gid).as_bytes())?;
    }
    Ok(())
}

/// Brings the files of one index of a NIC up to date, in all views of the tree at `root`.
pub fn update(root: &Path, nic: &str, index: usize, gid: Option<Gid>) -> io::Result<()> {
    for view in [root.join("all"), root.join("only").join(nic)] {
        let port = port_dir(&view, nic);
        let (gids, ndevs) = ((GIDS, gid_text(gid)), (NDEVS, ndev_text(gid).to_owned()));
        // Who sees a GID finds its interface.
        let order = match gid {
            Some(_) => [ndevs, gids],
            None => [gids, ndevs],
        };
        for (dir, text) in order {
            let (dir, new) = (port.join(dir), format!(".{index}.new"));
            let _ = fs::remove_file(dir.join(&new));
            put_bytes(&dir, &new, text.as_bytes())?;
            fs::rename(dir.join(&new), dir.join(index.to_string()))?;
        }
    }
    Ok(())
}

/// The zero GID for an empty entry.
fn gid_text(gid: Option<Gid>) -> String {
    groups(&gid.unwrap_or_default().0) + "\n"
}

/// libibverbs turns the name into an index, so it must be an interface that exists; the NIC has none.
fn ndev_text(gid: Option<Gid>) -> &'static str {
    match gid {
        Some(_) => "lo\n",
        None => "",
    }
}
