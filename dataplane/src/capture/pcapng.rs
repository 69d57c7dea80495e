//! Records as a pcapng file (draft-ietf-opsawg-pcapng): one interface for each NIC, with its name, times in nanoseconds,
//! the direction in each packet's flags, and in its comment the impairments that hit it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};

use super::Hit;
use super::record::Decoded;
use super::request::{Counts, Interface};

/// Times are in units of 10^-9 s (option `if_tsresol`).
const NANOSECONDS: u8 = 9;
/// Direction bits of the option `epb_flags`.
const INBOUND: u32 = 0b01;
const OUTBOUND: u32 = 0b10;

/// Begins the comment of a packet that a rule dropped. A replay knows by it what never was on the wire.
pub(super) const DROPPED: &str = "dropped by ";

/// Writes a capture.
pub struct Writer<W: Write> {
    /// Names of impairment rules by number, for comments.
    pub rules: BTreeMap<u32, String>,
    file: PcapNgWriter<W>,
    /// NIC indices by interface id.
    nics: Vec<u16>,
    /// Time of the newest packet.
    newest: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a file. `comments` go to the section.
    pub fn new(
        out: W,
        interfaces: &[Interface],
        snaplen: u32,
        comments: &[String],
    ) -> io::Result<Writer<W>> {
        let mut options: Vec<_> = comments
            .iter()
            .map(|comment| SectionHeaderOption::Comment(Cow::Owned(comment.clone())))
            .collect();
        let application = concat!("roceline ", env!("CARGO_PKG_VERSION"));
        options.push(SectionHeaderOption::UserApplication(Cow::Borrowed(
            application,
        )));
        let section = SectionHeaderBlock {
            // The crate writes the two words of a statistics block's times as one u64; only in this order are they right.
            endianness: Endianness::Big,
            options,
            ..SectionHeaderBlock::default()
        };
        let mut file = PcapNgWriter::with_section_header(out, section).map_err(io_error)?;
        for interface in interfaces {
            let mut options = vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(interface.name.clone())),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                InterfaceDescriptionOption::IfMacAddr(Cow::Owned(interface.mac.to_vec())),
            ];
            if !interface.addrs.is_empty() {
                options.push(InterfaceDescriptionOption::IfDescription(Cow::Owned(
                    interface.addrs.join(" "),
                )));
            }
            file.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen,
                options,
            })
            .map_err(io_error)?;
        }
        Ok(Writer {
            rules: BTreeMap::new(),
            file,
            nics: interfaces.iter().map(|interface| interface.index).collect(),
            newest: 0,
        })
    }

    /// Adds a packet. One of a NIC that is not among the interfaces is an error.
    pub fn packet(&mut self, record: &Decoded<'_>) -> io::Result<()> {
        let Some(id) = self.nics.iter().position(|&nic| nic == record.nic) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a packet of NIC {}, which is not captured", record.nic),
            ));
        };
        let direction = if record.outbound { OUTBOUND } else { INBOUND };
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        if let Some(comment) = comment(record, &self.rules) {
            options.push(EnhancedPacketOption::Comment(Cow::Owned(comment)));
        }
        self.newest = self.newest.max(record.stamp);
        self.file
            .write_pcapng_block(EnhancedPacketBlock {
                interface_id: id as u32,
                timestamp: Duration::from_nanos(record.stamp),
                original_len: record.original_len,
                data: Cow::Borrowed(record.data),
                options,
            })
            .map_err(io_error)?;
        Ok(())
    }

    /// Ends the file with what was seen of each interface, in their order, and gives back where it went.
    pub fn finish(mut self, counts: &[Counts]) -> io::Result<W> {
        for (id, counts) in (0..).zip(counts) {
            self.file
                .write_pcapng_block(InterfaceStatisticsBlock {
                    interface_id: id,
                    timestamp: self.newest,
                    options: vec![
                        InterfaceStatisticsOption::IsbIfRecv(counts.seen),
                        InterfaceStatisticsOption::IsbFilterAccept(counts.accepted),
                        InterfaceStatisticsOption::IsbOsDrop(counts.lost),
                        InterfaceStatisticsOption::IsbUsrDeliv(
                            counts.accepted.saturating_sub(counts.lost),
                        ),
                    ],
                })
                .map_err(io_error)?;
        }
        self.flush()?;
        Ok(self.file.into_inner())
    }

    /// Hands on what was written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.get_mut().flush()
    }
}

/// `impaired: slow (rule 3, delay), rule5 (mark-ce)`, or `dropped by lossy (rule 7, drop); impaired before: slow (rule 3,
/// delay)`.
fn comment(record: &Decoded<'_>, rules: &BTreeMap<u32, String>) -> Option<String> {
    let dropper = record.dropped_by.and_then(|rule| {
        let mut hits = record.hits().iter();
        let hit = hits.rfind(|hit| hit.rule == rule);
        // A packet with more hits than a record holds does not name what that rule did.
        hit.map(|hit| named(hit, rules))
            .or_else(|| Some(name(rule, rules)))
    });
    let others = record
        .hits()
        .iter()
        .filter(|hit| Some(hit.rule) != record.dropped_by);
    let others: Vec<String> = others.map(|hit| named(hit, rules)).collect();
    let others = others.join(", ");
    match (dropper, others.is_empty()) {
        (None, true) => None,
        (None, false) => Some(format!("impaired: {others}")),
        (Some(dropper), true) => Some(format!("{DROPPED}{dropper}")),
        (Some(dropper), false) => Some(format!("{DROPPED}{dropper}; impaired before: {others}")),
    }
}

fn named(hit: &Hit, rules: &BTreeMap<u32, String>) -> String {
    match rules.get(&hit.rule) {
        Some(name) => format!("{name} (rule {}, {})", hit.rule, hit.action()),
        None => format!("rule{} ({})", hit.rule, hit.action()),
    }
}

/// Rules that nobody named are called by their number, as `roceline impair list` has it.
fn name(rule: u32, rules: &BTreeMap<u32, String>) -> String {
    let name = rules.get(&rule);
    name.cloned().unwrap_or_else(|| format!("rule{rule}"))
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, decode};
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use roceline_engine::fabric::impair::{ActionKind, Note, RuleId};

    fn interface(index: u16, name: &str) -> Interface {
        Interface {
            index,
            name: name.into(),
            mac: [2, 0, 0, 0, 0, index as u8],
            addrs: vec!["10.77.0.1/24".into(), "fd77::1/64".into()],
        }
    }

    #[test]
    fn a_file_says_who_when_where_and_what_was_lost() {
        let interfaces = [interface(3, "roce3"), interface(5, "roce5")];
        let mut writer = Writer::new(Vec::new(), &interfaces, 128, &["why".into()]).unwrap();
        let note = |rule, action| Note {
            rule: RuleId(rule),
            action,
        };
        let notes = [note(4, ActionKind::Drop), note(6, ActionKind::Delay)];
        let stamp = 1_700_000_000_123_456_789;
        let mut bytes = [0; 200];
        let record = Record {
            stamp,
            nic: 5,
            outbound: false,
            original_len: 400,
            notes: &notes,
            dropped_by: None,
            data: &[0xab; 128],
        };
        record.encode(&mut bytes).unwrap();
        writer.packet(&decode(&mut &bytes[..]).unwrap()).unwrap();
        let stranger = Record { nic: 9, ..record };
        stranger.encode(&mut bytes).unwrap();
        assert!(writer.packet(&decode(&mut &bytes[..]).unwrap()).is_err());
        writer.rules = BTreeMap::from([(6, "slow".into())]);
        let dropped = Record {
            dropped_by: Some(RuleId(4)),
            ..record
        };
        dropped.encode(&mut bytes).unwrap();
        writer.packet(&decode(&mut &bytes[..]).unwrap()).unwrap();
        let counts = Counts {
            seen: 10,
            accepted: 7,
            lost: 2,
        };
        let file = writer.finish(&[counts, counts]).unwrap();

        let mut reader = PcapNgReader::new(file.as_slice()).unwrap();
        assert!(
            reader
                .section()
                .options
                .contains(&SectionHeaderOption::Comment("why".into()))
        );
        let mut seen = (0, 0, 0);
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(idb) => {
                    let name = interfaces[seen.0].name.as_str();
                    let options = &idb.options;
                    assert!(options.contains(&InterfaceDescriptionOption::IfName(name.into())));
                    assert!(options.contains(&InterfaceDescriptionOption::IfTsResol(9)));
                    assert_eq!((idb.linktype, idb.snaplen), (DataLink::ETHERNET, 128));
                    seen.0 += 1;
                }
                Block::EnhancedPacket(epb) => {
                    assert_eq!(epb.interface_id, 1);
                    assert_eq!(epb.timestamp, Duration::from_nanos(stamp));
                    assert_eq!((epb.original_len, epb.data.len()), (400, 128));
                    let comment = [
                        "impaired: rule4 (drop), rule6 (delay)",
                        "dropped by rule4 (drop); impaired before: slow (rule 6, delay)",
                    ][seen.1];
                    assert_eq!(
                        epb.options,
                        [
                            EnhancedPacketOption::Flags(1),
                            EnhancedPacketOption::Comment(comment.into())
                        ]
                    );
                    seen.1 += 1;
                }
                Block::InterfaceStatistics(isb) => {
                    assert_eq!((isb.interface_id, isb.timestamp), (seen.2, stamp));
                    for option in [
                        InterfaceStatisticsOption::IsbIfRecv(10),
                        InterfaceStatisticsOption::IsbOsDrop(2),
                        InterfaceStatisticsOption::IsbUsrDeliv(5),
                    ] {
                        assert!(isb.options.contains(&option));
                    }
                    seen.2 += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, (2, 2, 2));
    }
}
