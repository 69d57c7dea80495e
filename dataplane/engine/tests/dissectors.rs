//! What others read in our packets: a packet of every opcode, IPv4 and IPv6, with every header it can have, is dissected by
//! tshark and by scapy, and both must find what we wrote; scapy also computes the ICRC.
//!
//! Needs Debian's `tshark` and `python3-scapy` (`scripts/test` installs them).

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness};
use roceline_engine::descriptor::{Payload, Side, TxDesc};
use roceline_engine::verbs::{Path, QpId};
use roceline_engine::wire::{
    Aeth, ExtHeaders, Gid, HeaderSet, HeaderTemplate, NakCode, Opcode, Psn, Syndrome, icrc, parse,
};

/// A packet as we sent it: the frame, and each field under its name in tshark.
struct Sent {
    frame: Vec<u8>,
    fields: BTreeMap<&'static str, u64>,
}

/// Numbers without a pattern that a wrong offset could hide in (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bits: u32) -> u32 {
        (self.next() >> (64 - bits)) as u32
    }
}

const SYNDROMES: [Syndrome; 8] = [
    Syndrome::ACK,
    Syndrome::Ack { credit: 9 },
    Syndrome::Rnr { timer: 0 },
    Syndrome::Rnr { timer: 17 },
    Syndrome::Nak(NakCode::PsnSequence),
    Syndrome::Nak(NakCode::InvalidRequest),
    Syndrome::Nak(NakCode::RemoteAccess),
    Syndrome::Nak(NakCode::RemoteOperational),
];

/// A packet of each opcode, for each number of pad bytes, syndrome and address family.
fn packets() -> Vec<Sent> {
    let mut numbers = Numbers(1);
    let mut all = Vec::new();
    for (src, dst) in [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77:0:0:1::2")] {
        for &opcode in Opcode::ALL {
            let info = opcode.info();
            let lens: &[u32] = if info.payload {
                &[0, 1, 2, 3, 4, 1024]
            } else {
                &[0]
            };
            for &len in lens {
                let has_aeth = info.headers.has(HeaderSet::AETH);
                let syndromes = if has_aeth {
                    &SYNDROMES[..]
                } else {
                    &SYNDROMES[..1]
                };
                for &syndrome in syndromes {
                    all.push(packet(&mut numbers, (src, dst), opcode, len, syndrome));
                }
            }
        }
    }
    all
}

fn packet(
    numbers: &mut Numbers,
    (src, dst): (&str, &str),
    opcode: Opcode,
    len: u32,
    syndrome: Syndrome,
) -> Sent {
    let path = Path {
        sgid: Gid::from_ip(src.parse().expect("an address")),
        dgid: Gid::from_ip(dst.parse().expect("an address")),
        smac: [2, 0, 0, 0, 0, 1],
        dmac: [2, 0, 0, 0, 0, 2],
        traffic_class: numbers.below(8) as u8,
        flow_label: numbers.below(20),
        hop_limit: 1 + numbers.below(7) as u8,
        ..Path::default()
    };
    // QPs 0 and 1 are special: dissectors look for management datagrams there.
    let dest_qpn = 2 + numbers.below(23);
    let pkey = numbers.below(16) as u16;
    let aeth = Aeth {
        syndrome,
        msn: numbers.below(24),
    };
    let ext = ExtHeaders {
        va: numbers.next(),
        rkey: numbers.below(32),
        dma_len: numbers.below(31),
        aeth: aeth.raw(),
        imm_or_rkey: numbers.below(32),
        qkey: numbers.below(32),
        src_qpn: 2 + numbers.below(23),
        swap_add: numbers.next(),
        compare: numbers.next(),
    };
    let desc = TxDesc {
        qp: QpId(0),
        epoch: 0,
        side: Side::Requester,
        opcode,
        ack_req: numbers.below(1) == 1,
        solicited: numbers.below(1) == 1,
        psn: Psn::new(numbers.below(24)),
        ext,
        len,
        payload: Payload::None,
        ..TxDesc::default()
    };
    let udp_sport = 0xc000 | numbers.below(14) as u16;
    let template = HeaderTemplate::new(&path, udp_sport, dest_qpn, pkey);
    let mut frame = vec![0; template.frame_len(opcode, len)];
    let ip_id = numbers.below(16) as u16;
    let head = template.write(&desc, ip_id, &mut frame).expect("room");
    for byte in &mut frame[head..head + len as usize] {
        *byte = numbers.below(8) as u8;
    }
    if len > 0 {
        // No EtherType begins so; tshark would look for its protocol.
        frame[head] = 1;
    }
    assert!(icrc::seal(&mut frame, HeaderTemplate::L3_OFFSET));
    assert!(parse(&frame).is_ok());

    let sealed: [u8; 4] = *frame.last_chunk().expect("an ICRC");
    let mut fields = BTreeMap::from([
        ("udp.srcport", u64::from(udp_sport)),
        ("udp.dstport", 4791),
        ("infiniband.bth.opcode", u64::from(opcode.raw())),
        ("infiniband.bth.se", u64::from(desc.solicited)),
        ("infiniband.bth.m", 0),
        ("infiniband.bth.padcnt", u64::from(len.wrapping_neg() & 3)),
        ("infiniband.bth.tver", 0),
        ("infiniband.bth.p_key", u64::from(pkey)),
        ("infiniband.bth.destqp", u64::from(dest_qpn)),
        ("infiniband.bth.a", u64::from(desc.ack_req)),
        ("infiniband.bth.psn", u64::from(desc.psn.get())),
        // tshark prints it as the bytes are.
        (
            "infiniband.invariant.crc",
            u64::from(u32::from_be_bytes(sealed)),
        ),
    ]);
    let set = match opcode {
        // Wireshark 4.0 does not know these two.
        Opcode::RC_FLUSH | Opcode::RC_ATOMIC_WRITE => HeaderSet::NONE,
        _ => opcode.info().headers,
    };
    if set.has(HeaderSet::DETH) {
        fields.insert("infiniband.deth.q_key", ext.qkey.into());
        fields.insert("infiniband.deth.srcqp", ext.src_qpn.into());
    }
    if set.has(HeaderSet::RETH) || set.has(HeaderSet::ATOMIC_ETH) {
        // The atomic header begins as the RETH does, and has no length.
        fields.insert("infiniband.reth.va", ext.va);
        fields.insert("infiniband.reth.r_key", ext.rkey.into());
    }
    if set.has(HeaderSet::RETH) {
        fields.insert("infiniband.reth.dmalen", ext.dma_len.into());
    }
    if set.has(HeaderSet::ATOMIC_ETH) {
        fields.insert("infiniband.atomiceth.swapdt", ext.swap_add);
        fields.insert("infiniband.atomiceth.cmpdt", ext.compare);
    }
    if set.has(HeaderSet::AETH) {
        fields.insert("infiniband.aeth.msn", aeth.msn.into());
        fields.insert("infiniband.aeth.syndrome", syndrome.raw().into());
        let (kind, name, value) = match syndrome {
            Syndrome::Ack { credit } => (0, "infiniband.aeth.syndrome.credit_count", credit),
            Syndrome::Rnr { timer } => (1, "infiniband.aeth.syndrome.timer", timer),
            Syndrome::Nak(code) => (3, "infiniband.aeth.syndrome.error_code", code as u8),
        };
        fields.insert("infiniband.aeth.syndrome.opcode", kind);
        fields.insert(name, value.into());
    }
    if set.has(HeaderSet::ATOMIC_ACK_ETH) {
        fields.insert("infiniband.atomicacketh.origremdt", ext.compare);
    }
    // Kept as the wire has them, in memory order.
    let wire_order = u32::from_be_bytes(ext.imm_or_rkey.to_ne_bytes());
    if set.has(HeaderSet::IMM) {
        fields.insert("infiniband.immdt", wire_order.into());
    }
    if set.has(HeaderSet::IETH) {
        fields.insert("infiniband.ieth", ieth(&frame, head).into());
    }
    Sent { frame, fields }
}

/// The four bytes in front of the payload.
fn ieth(frame: &[u8], head: usize) -> u32 {
    let bytes = frame[..head].last_chunk().expect("an IETH");
    u32::from_be_bytes(*bytes)
}

fn write(packets: &[Sent], path: &FilePath) {
    let file = BufWriter::new(File::create(path).expect("a temporary file"));
    let mut writer = PcapNgWriter::with_endianness(file, Endianness::Big).expect("a file");
    writer
        .write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 65_535,
            options: vec![InterfaceDescriptionOption::IfTsResol(9)],
        })
        .expect("an interface");
    for (i, packet) in packets.iter().enumerate() {
        writer
            .write_pcapng_block(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_nanos(i as u64),
                original_len: packet.frame.len() as u32,
                data: packet.frame.as_slice().into(),
                options: vec![],
            })
            .expect("a packet");
    }
}

struct TempFile(PathBuf);

impl TempFile {
    fn with(name: &str, packets: &[Sent]) -> TempFile {
        let name = format!("roceline-{}-{name}.pcapng", std::process::id());
        let path = env::temp_dir().join(name);
        write(packets, &path);
        TempFile(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the packets: {}", self.0.display());
        } else {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// The output of a command; `remedy` says what is missing when there is none.
fn output(command: &mut Command, remedy: &str) -> String {
    let out = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; {remedy}"));
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {stderr}\n{remedy}");
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// A field that tshark prints as its bytes.
fn bytes(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// Dissectors that look for their protocol in any payload, and find it in ours.
fn guessers() -> Vec<String> {
    let mut list = Command::new("tshark");
    list.args(["-G", "heuristic-decodes"]);
    let found = output(&mut list, "install Debian's tshark");
    // Columns: in what it looks, its protocol, and more. EtherTypes it must know anyway.
    let names = found
        .lines()
        .filter_map(|line| line.strip_prefix("infiniband.payload\t"))
        .filter_map(|line| line.split('\t').next());
    names
        .filter(|name| *name != "ethertype")
        .map(String::from)
        .collect()
}

#[test]
fn tshark_finds_every_field() {
    let packets = packets();
    let file = TempFile::with("tshark", &packets);
    let mut names: Vec<&str> = packets
        .iter()
        .flat_map(|p| p.fields.keys().copied())
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&file.0);
    for guesser in guessers() {
        command.args(["--disable-protocol", &guesser]);
    }
    command.args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    for name in names.iter().chain(&["_ws.malformed"]) {
        command.args(["-e", name]);
    }
    let found = output(&mut command, "install Debian's tshark");
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), packets.len());
    for (i, (line, packet)) in lines.iter().zip(&packets).enumerate() {
        let opcode = Opcode::from_raw(packet.fields["infiniband.bth.opcode"] as u8);
        let mut values: Vec<&str> = line.split('|').collect();
        let malformed = values.pop().expect("the column of malformed packets");
        assert_eq!(malformed, "", "packet {}, {opcode:?}", i + 1);
        let mut found: BTreeMap<&str, u64> = names
            .iter()
            .zip(values)
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| match *name {
                "infiniband.immdt" | "infiniband.ieth" => (*name, bytes(value)),
                _ => (*name, number(value)),
            })
            .collect();
        if matches!(
            opcode,
            Some(Opcode::CNP | Opcode::RC_FLUSH | Opcode::RC_ATOMIC_WRITE)
        ) {
            // Wireshark 4.0 does not look beyond the BTH of these. scapy does.
            let crc = packet.fields["infiniband.invariant.crc"];
            found.entry("infiniband.invariant.crc").or_insert(crc);
        }
        assert_eq!(found, packet.fields, "packet {}, {opcode:?}", i + 1);
    }
}

/// Reads a file and prints for each packet what scapy's RoCE layer finds in it, and the ICRC that it should have.
const SCAPY: &str = include_str!("dissectors.py");

/// The interpreter that has scapy: Debian's, which need not be the first in the path.
fn python() -> &'static str {
    let has_scapy = |python: &&&str| {
        let probe = Command::new(python)
            .args(["-c", "import scapy.contrib.roce"])
            .output();
        probe.is_ok_and(|out| out.status.success())
    };
    let found = ["python3", "/usr/bin/python3"];
    let found = found.iter().find(has_scapy);
    found.expect("no python3 here has scapy: install Debian's python3-scapy")
}

#[test]
fn scapy_finds_the_same_and_computes_the_same_icrc() {
    let packets = packets();
    let file = TempFile::with("scapy", &packets);
    let mut command = Command::new(python());
    command.args(["-c", SCAPY]).arg(&file.0);
    let found = output(&mut command, "install Debian's python3-scapy");
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), packets.len());
    for (i, (line, packet)) in lines.iter().zip(&packets).enumerate() {
        let found: BTreeMap<&str, u64> = line
            .split(' ')
            .map(|pair| pair.split_once('=').expect("name=value"))
            .map(|(name, value)| (name, number(value)))
            .collect();
        for (name, field) in [
            ("opcode", "infiniband.bth.opcode"),
            ("solicited", "infiniband.bth.se"),
            ("migreq", "infiniband.bth.m"),
            ("padcount", "infiniband.bth.padcnt"),
            ("version", "infiniband.bth.tver"),
            ("pkey", "infiniband.bth.p_key"),
            ("dqpn", "infiniband.bth.destqp"),
            ("ackreq", "infiniband.bth.a"),
            ("psn", "infiniband.bth.psn"),
            ("icrc", "infiniband.invariant.crc"),
            ("computed", "infiniband.invariant.crc"),
        ] {
            assert_eq!(
                found[name],
                packet.fields[field],
                "packet {}, {name}: {line}",
                i + 1
            );
        }
        let is_cnp = packet.fields["infiniband.bth.opcode"] == u64::from(Opcode::CNP.raw());
        assert_eq!(
            (found["fecn"], found["becn"]),
            (0, u64::from(is_cnp)),
            "packet {}",
            i + 1
        );
        // scapy knows the AETH of acknowledgements only.
        if packet.fields["infiniband.bth.opcode"] == u64::from(Opcode::RC_ACK.raw()) {
            assert_eq!(found["syndrome"], packet.fields["infiniband.aeth.syndrome"]);
            assert_eq!(found["msn"], packet.fields["infiniband.aeth.msn"]);
        }
    }
}
