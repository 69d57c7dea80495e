//! Packets of a capture file, pcap or pcapng, for a replay.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};

use super::pcapng::DROPPED;

/// First bytes of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Unit of times where an interface does not say: 10^-6 s.
const MICROSECONDS: u8 = 6;

/// Why a file cannot be read.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("the file is empty")]
    Empty,
    #[error("no capture: it is neither pcap nor pcapng ({0})")]
    Format(PcapError),
    #[error("packet {number}: {error}: the file is damaged there, or was cut off")]
    Packet { number: u64, error: String },
    #[error("its packets are of link type {0:?}: only Ethernet can be replayed")]
    LinkType(DataLink),
    #[error(
        "packet {number}: only {kept} of {len} bytes were kept: capture without --snaplen to replay"
    )]
    Cut { number: u64, kept: usize, len: u32 },
    #[error("{0}")]
    Read(#[from] std::io::Error),
}

/// A packet of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number in the file, from 1, as packet viewers count.
    pub number: u64,
    /// Time, from whatever the file counts from.
    pub time: Duration,
    /// Name of its interface, if it has one.
    pub interface: Option<String>,
    /// Whether it was sent (or else received), if the file says so.
    pub outbound: Option<bool>,
    /// Whether it was sent, and an impairment rule dropped it: it never was on the wire.
    pub dropped: bool,
    /// From its Ethernet header on.
    pub data: Vec<u8>,
}

/// A file being read.
pub struct Source<R: Read> {
    reader: Reader<BufReader<R>>,
    read: u64,
    last_time: Duration,
}

enum Reader<R: Read> {
    Pcap(PcapReader<R>),
    PcapNg(PcapNgReader<R>),
}

impl<R: Read> Source<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// When it is no capture of Ethernet packets.
    pub fn new(file: R) -> Result<Source<R>, SourceError> {
        let mut file = BufReader::new(file);
        if file.fill_buf()?.is_empty() {
            return Err(SourceError::Empty);
        }
        let reader = if file.fill_buf()?.starts_with(&PCAPNG) {
            Reader::PcapNg(PcapNgReader::new(file).map_err(SourceError::Format)?)
        } else {
            let reader = PcapReader::new(file).map_err(SourceError::Format)?;
            let link = reader.header().datalink;
            if link != DataLink::ETHERNET {
                return Err(SourceError::LinkType(link));
            }
            Reader::Pcap(reader)
        };
        Ok(Source {
            reader,
            read: 0,
            last_time: Duration::ZERO,
        })
    }

    /// Names of the interfaces that were described so far.
    pub fn interfaces(&self) -> Vec<String> {
        match &self.reader {
            Reader::Pcap(_) => Vec::new(),
            Reader::PcapNg(reader) => reader.interfaces().iter().filter_map(name).collect(),
        }
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// When it cannot be read, or not all of it is in the file.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, SourceError> {
        let number = self.read + 1;
        let failed = |error: PcapError| SourceError::Packet {
            number,
            error: error.to_string(),
        };
        let (frame, len) = match &mut self.reader {
            Reader::Pcap(reader) => {
                let Some(packet) = reader.next_packet() else {
                    return Ok(None);
                };
                let packet = packet.map_err(failed)?;
                let frame = Frame {
                    number,
                    time: packet.timestamp,
                    interface: None,
                    outbound: None,
                    dropped: false,
                    data: packet.data.into_owned(),
                };
                (frame, packet.orig_len)
            }
            Reader::PcapNg(reader) => match next_of(reader, number, self.last_time)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        self.read = number;
        self.last_time = frame.time;
        if frame.data.len() < len as usize {
            let kept = frame.data.len();
            return Err(SourceError::Cut { number, kept, len });
        }
        Ok(Some(frame))
    }
}

/// The next block that is a packet, with its length on the wire.
fn next_of<R: Read>(
    reader: &mut PcapNgReader<R>,
    number: u64,
    last_time: Duration,
) -> Result<Option<(Frame, u32)>, SourceError> {
    loop {
        let Some(block) = reader.next_block() else {
            return Ok(None);
        };
        let block = block.map_err(|error| SourceError::Packet {
            number,
            error: error.to_string(),
        })?;
        let (id, units, outbound, dropped, data, len) = match block {
            Block::EnhancedPacket(packet) => {
                let outbound = packet.options.iter().find_map(|option| match option {
                    // draft-ietf-opsawg-pcapng, section 4.3.1: bits 0 and 1.
                    EnhancedPacketOption::Flags(flags) => match flags & 3 {
                        1 => Some(false),
                        2 => Some(true),
                        _ => None,
                    },
                    _ => None,
                });
                let dropped = packet.options.iter().any(|option| match option {
                    EnhancedPacketOption::Comment(comment) => comment.starts_with(DROPPED),
                    _ => false,
                });
                // The crate takes the units of the interface for nanoseconds.
                let units = Some(packet.timestamp.as_nanos() as u64);
                let id = packet.interface_id as usize;
                (
                    id,
                    units,
                    outbound,
                    // What a receiver's rules dropped had come over the wire.
                    dropped && outbound == Some(true),
                    packet.data.into_owned(),
                    packet.original_len,
                )
            }
            // Without time and options; of the first interface, padded to four bytes.
            Block::SimplePacket(packet) => {
                let mut data = packet.data.into_owned();
                data.truncate(packet.original_len as usize);
                (0, None, None, false, data, packet.original_len)
            }
            _ => continue,
        };
        let Some(interface) = reader.interfaces().get(id) else {
            return Err(SourceError::Packet {
                number,
                error: format!("its interface {id} is not described"),
            });
        };
        if interface.linktype != DataLink::ETHERNET {
            return Err(SourceError::LinkType(interface.linktype));
        }
        let frame = Frame {
            number,
            time: units.map_or(last_time, |units| time(units, interface)),
            interface: name(interface),
            outbound,
            dropped,
            data,
        };
        return Ok(Some((frame, len)));
    }
}

fn name(interface: &InterfaceDescriptionBlock<'_>) -> Option<String> {
    interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
        _ => None,
    })
}

/// A time in the units of its interface: a power of ten, or, with the high bit set, of two.
fn time(units: u64, interface: &InterfaceDescriptionBlock<'_>) -> Duration {
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(MICROSECONDS);
    let exponent = u32::from(resolution & 0x7f);
    let per_second = match resolution & 0x80 {
        0 => 10u128.checked_pow(exponent),
        _ => 1u128.checked_shl(exponent),
    };
    // Finer than any clock: as good as no time.
    let per_second = per_second.unwrap_or(u128::MAX).max(1);
    let nanos = (u128::from(units) * 1_000_000_000) / per_second;
    Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{run, run_long};
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;

    fn pcapng(
        resolution: Option<u8>,
        linktype: DataLink,
        flags: u32,
        original_len: u32,
    ) -> Vec<u8> {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let mut options = vec![InterfaceDescriptionOption::IfName("roce1".into())];
        options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
        writer
            .write_pcapng_block(InterfaceDescriptionBlock {
                linktype,
                snaplen: 0,
                options,
            })
            .unwrap();
        writer
            .write_pcapng_block(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_nanos(5_000_000),
                original_len,
                data: vec![7; 60].into(),
                options: vec![EnhancedPacketOption::Flags(flags)],
            })
            .unwrap();
        writer.into_inner()
    }

    #[test]
    fn times_are_in_the_units_of_their_interface() {
        for (resolution, time) in [
            (None, Duration::from_secs(5)),
            (Some(6), Duration::from_secs(5)),
            (Some(9), Duration::from_millis(5)),
            (
                Some(0x80 | 20),
                Duration::from_nanos(5_000_000_000_000_000 >> 20),
            ),
            (Some(0x7f), Duration::ZERO),
        ] {
            let file = pcapng(resolution, DataLink::ETHERNET, 2, 60);
            let mut source = Source::new(file.as_slice()).unwrap();
            let frame = source.next_frame().unwrap().unwrap();
            assert_eq!((frame.number, frame.time), (1, time), "{resolution:?}");
            assert_eq!(frame.outbound, Some(true));
            assert_eq!(frame.interface.as_deref(), Some("roce1"));
            assert_eq!(frame.data, [7; 60]);
            assert!(source.next_frame().unwrap().is_none());
        }
    }

    #[test]
    fn what_cannot_be_replayed_is_told() {
        let read = |file: &[u8]| {
            let mut source = Source::new(file).map_err(|error| error.to_string())?;
            source.next_frame().map_err(|error| error.to_string())
        };
        let cut = read(&pcapng(None, DataLink::ETHERNET, 0, 61)).unwrap_err();
        assert!(cut.contains("packet 1: only 60 of 61"), "{cut}");
        let link = read(&pcapng(None, DataLink::RAW, 0, 60)).unwrap_err();
        assert!(link.contains("only Ethernet"), "{link}");
        assert!(read(b"no capture at all, but long enough").is_err());
        assert_eq!(read(b"").unwrap_err(), "the file is empty");
        let whole = pcapng(None, DataLink::ETHERNET, 0, 60);
        for end in 0..whole.len() {
            // Cut off anywhere: an error, or the end where a block ends. Never a packet.
            assert!(!matches!(read(&whole[..end]), Ok(Some(_))), "{end}");
        }
    }

    #[test]
    fn old_files_have_neither_names_nor_directions() {
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        let time = Duration::new(3, 4000);
        writer
            .write_packet(&PcapPacket::new(time, 4, &[1, 2, 3, 4]))
            .unwrap();
        let file = writer.into_writer();
        let mut source = Source::new(file.as_slice()).unwrap();
        assert_eq!(
            source.next_frame().unwrap(),
            Some(Frame {
                number: 1,
                time,
                interface: None,
                outbound: None,
                dropped: false,
                data: vec![1, 2, 3, 4],
            })
        );
        assert_eq!(source.next_frame().unwrap(), None);
    }
    /// Any file has packets, each in its place and whole, and then perhaps an error; it comes to an end.
    fn any_file(bytes: &[u8]) {
        let Ok(mut source) = Source::new(bytes) else {
            return;
        };
        let mut number = 0;
        while let Ok(Some(frame)) = source.next_frame() {
            assert!(frame.number > number && frame.data.len() <= bytes.len());
            number = frame.number;
        }
        assert!(number <= bytes.len() as u64);
    }

    #[test]
    fn any_files() {
        run("capture", 2000, any_file);
    }

    #[test]
    #[ignore = "long: scripts/fuzz"]
    fn long_files() {
        run_long("capture", any_file);
    }
}
