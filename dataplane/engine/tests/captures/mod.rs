//! Reads the captures beside this file.

#![allow(dead_code)] // no test uses all of it

use std::fs::File;
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use roceline_engine::time::Nanos;

/// One packet of a capture.
pub struct Captured {
    /// Its number in the file, from 1, as packet viewers count.
    pub number: usize,
    /// When, since the first packet of the file.
    pub time: Nanos,
    /// The frame without FCS.
    pub frame: Vec<u8>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// The packets of `NAME.pcap`.
pub fn read(name: &str) -> Vec<Captured> {
    let path = folder().join(format!("{name}.pcap"));
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = PcapReader::new(file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut packets = Vec::new();
    let mut start = None;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let start = *start.get_or_insert(packet.timestamp);
        packets.push(Captured {
            number: packets.len() + 1,
            time: Nanos((packet.timestamp - start).as_nanos() as u64),
            frame: packet.data.into_owned(),
        });
    }
    packets
}

/// Names of all captures, sorted.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder of the captures")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}
