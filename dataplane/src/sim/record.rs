//! The traffic at one end of a link as a pcapng file. Frames get their headers back as the NIC would have written them, payload is
//! zero, the ICRC is right. In flow frames as they pass; out flow bytes, to where the caller said.

use std::io::{self, Write};

use roceline_engine::Nanos;
use roceline_engine::verbs::Path;
use roceline_engine::wire::ethernet::Mac;
use roceline_engine::wire::pause;
use roceline_engine::wire::{HeaderTemplate, icrc};

use crate::capture::pcapng::Writer;
use crate::capture::record::Decoded;
use crate::capture::request::{Counts, Interface};

use super::frame::{Frame, FrameId, Frames, SHORTEST, address};
use super::{NodeId, Point, Sim};

/// The longest frame: 4096 bytes with the longest headers, and pad.
const LONGEST: usize = 4352;

/// A file.
pub(super) struct Recorder {
    writer: Option<Writer<Box<dyn Write + Send>>>,
    /// Where it listens.
    mac: Mac,
    snaplen: usize,
    packets: u64,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
    bytes: Box<[u8; LONGEST]>,
}

impl Recorder {
    fn frame(&mut self, id: FrameId, frames: &Frames, outbound: bool, from: Mac, now: Nanos) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let len = match frames.pause(id) {
            Some(frame) => {
                let mut bytes = [0; pause::LEN];
                frame.emit(&from, &mut bytes);
                self.bytes[..pause::LEN].copy_from_slice(&bytes);
                Some(pause::LEN)
            }
            None => build(frames.roce(id), self.packets as u16, &mut self.bytes[..]),
        };
        let Some(len) = len else { return };
        self.packets += 1;
        let data = &self.bytes[..len.min(self.snaplen)];
        let record = Decoded::untouched(now.0, 0, outbound, len as u32, data);
        if let Err(error) = writer.packet(&record) {
            self.error = Some(error);
            self.writer = None;
        }
    }

    fn finish(mut self) -> io::Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let counts = Counts {
            seen: self.packets,
            accepted: self.packets,
            lost: 0,
        };
        match self.writer.take() {
            Some(writer) => writer.finish(&[counts])?.flush(),
            None => Ok(()),
        }
    }
}

impl Sim {
    /// Records what passes the beginning of the link at a NIC or a port of a switch, both ways, from now on, into a pcapng file with up to
    /// `snaplen` bytes of each frame. What impairments of the link drop is in it where it was sent. [`Sim::finish_records`] ends it.
    ///
    /// # Errors
    /// If the beginning of the file cannot be written.
    ///
    /// # Panics
    /// If there is no link.
    pub fn record(
        &mut self,
        at: impl Into<Point>,
        out: Box<dyn Write + Send>,
        snaplen: u32,
    ) -> io::Result<()> {
        let at = at.into();
        let link = self.link_at(at).expect("it was joined");
        let (name, addrs) = match at {
            Point::Node(node) => (
                format!("node{node}"),
                vec![format!("{}", address(node).to_ip())],
            ),
            Point::Port(switch, port) => (format!("switch{switch}-port{port}"), Vec::new()),
        };
        let interface = Interface {
            index: 0,
            name,
            mac: mac(at),
            addrs,
        };
        let number = Some(self.recorders.len() as u32);
        self.recorders.push(Recorder {
            writer: Some(Writer::new(out, &[interface], snaplen, &[])?),
            mac: mac(at),
            snaplen: snaplen as usize,
            packets: 0,
            error: None,
            bytes: Box::new([0; LONGEST]),
        });
        self.links[link].recorded[0] = number;
        // The other direction.
        self.links[link ^ 1].recorded[1] = number;
        Ok(())
    }

    /// Ends all recordings.
    ///
    /// # Errors
    /// What went wrong in writing the first of them that failed, which has this number in the order in which they began.
    pub fn finish_records(&mut self) -> Result<(), (usize, io::Error)> {
        for link in &mut self.links {
            link.recorded = [None; 2];
        }
        let mut all = Ok(());
        for (number, recorder) in self.recorders.drain(..).enumerate() {
            all = all.and(recorder.finish().map_err(|error| (number, error)));
        }
        all
    }

    /// A frame passes the beginning, or the end, of a link that is recorded there.
    pub(super) fn note(&mut self, recorder: u32, link: usize, frame: FrameId, outbound: bool) {
        let from = mac(self.links[link].from);
        if let Some(recorder) = self.recorders.get_mut(recorder as usize) {
            debug_assert!(!outbound || recorder.mac == from);
            recorder.frame(frame, &self.shared.frames, outbound, from, self.now);
        }
    }
}

/// A station's address: locally administered, with its number.
fn mac(at: Point) -> Mac {
    match at {
        Point::Node(node) => node_mac(node),
        Point::Port(switch, port) => {
            let ([a, b], [c, d]) = ((switch as u16).to_be_bytes(), port.to_be_bytes());
            [0x06, 0, a, b, c, d]
        }
    }
}

fn node_mac(node: NodeId) -> Mac {
    let [a, b, c, d] = (node as u32).to_be_bytes();
    [0x02, 0, a, b, c, d]
}

/// Writes the bytes of a frame; how many they are.
fn build(frame: &Frame, ip_id: u16, out: &mut [u8]) -> Option<usize> {
    let (src, dst) = (frame.src as NodeId, frame.dst as NodeId);
    let path = Path {
        sgid: address(src),
        dgid: address(dst),
        smac: node_mac(src),
        dmac: node_mac(dst),
        traffic_class: frame.traffic_class,
        ..Path::default()
    };
    let template = HeaderTemplate::new(&path, frame.udp_sport, frame.dest_qpn, 0xffff);
    let len = template.frame_len(frame.opcode, frame.payload);
    let bytes = out.get_mut(..len)?;
    bytes.fill(0);
    template.write(&frame.desc(), ip_id, bytes)?;
    icrc::seal(bytes, HeaderTemplate::L3_OFFSET);
    let padded = len.max(SHORTEST as usize);
    out.get_mut(len..padded)?.fill(0);
    Some(padded)
}
