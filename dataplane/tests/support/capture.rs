//! What a capture file holds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::blocks::section_header::SectionHeaderOption;
use pcap_file::pcapng::{Block, PcapNgReader};

/// A packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet {
    pub nic: String,
    pub outbound: bool,
    pub time: Duration,
    pub original_len: u32,
    pub comment: String,
    pub data: Vec<u8>,
}

/// What a capture file holds.
#[derive(Debug, Default)]
pub struct Capture {
    pub comments: Vec<String>,
    pub packets: Vec<Packet>,
    /// By NIC: seen, lost, delivered.
    pub counts: BTreeMap<String, (u64, u64, u64)>,
}

impl Capture {
    #[track_caller]
    pub fn read(source: impl Read) -> Capture {
        let mut reader = PcapNgReader::new(source).unwrap();
        let mut all = Capture::default();
        for option in &reader.section().options {
            if let SectionHeaderOption::Comment(comment) = option {
                all.comments.push(comment.clone().into_owned());
            }
        }
        let mut names = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(idb) => {
                    let name = idb.options.iter().find_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    });
                    names.push(name.expect("an interface has a name"));
                }
                Block::EnhancedPacket(epb) => {
                    let flags = epb.options.iter().find_map(|option| match option {
                        EnhancedPacketOption::Flags(flags) => Some(*flags),
                        _ => None,
                    });
                    let comment = epb.options.iter().find_map(|option| match option {
                        EnhancedPacketOption::Comment(comment) => Some(comment.to_string()),
                        _ => None,
                    });
                    all.packets.push(Packet {
                        comment: comment.unwrap_or_default(),
                        nic: names[epb.interface_id as usize].clone(),
                        outbound: match flags {
                            Some(1) => false,
                            Some(2) => true,
                            other => panic!("flags {other:?}"),
                        },
                        time: epb.timestamp,
                        original_len: epb.original_len,
                        data: epb.data.into_owned(),
                    });
                }
                Block::InterfaceStatistics(isb) => {
                    let mut counts = (0, 0, 0);
                    for option in &isb.options {
                        match *option {
                            InterfaceStatisticsOption::IsbIfRecv(n) => counts.0 = n,
                            InterfaceStatisticsOption::IsbOsDrop(n) => counts.1 = n,
                            InterfaceStatisticsOption::IsbUsrDeliv(n) => counts.2 = n,
                            _ => {}
                        }
                    }
                    let name = names[isb.interface_id as usize].clone();
                    all.counts.insert(name, counts);
                }
                other => panic!("{other:?}"),
            }
        }
        all
    }

    #[track_caller]
    pub fn open(path: &Path) -> Capture {
        Capture::read(File::open(path).unwrap())
    }

    pub fn of(&self, nic: &str, outbound: bool) -> Vec<&[u8]> {
        let wanted = |p: &&Packet| p.nic == nic && p.outbound == outbound;
        self.packets
            .iter()
            .filter(wanted)
            .map(|p| p.data.as_slice())
            .collect()
    }
}
