//! Our ARP and neighbour discovery as tshark reads them: fields and checksums.
//!
//! Needs Debian's `tshark` (`scripts/test` installs it).

use std::fs;
use std::net::Ipv6Addr;
use std::process::Command;

use roceline_engine::wire::{arp, ethernet, icmpv6, ipv6};

const OWN: [u8; 6] = [2, 0x52, 0x4c, 0, 0, 1];
const PEER: [u8; 6] = [2, 0x52, 0x4c, 0, 0, 2];

fn frame(ether_type: u16, body: &[u8]) -> Vec<u8> {
    let mut header = [0; ethernet::LEN];
    ethernet::Repr {
        dst: PEER,
        src: OWN,
        tci: None,
        ether_type,
    }
    .emit(&mut header);
    [&header[..], body].concat()
}

fn arp_frame(operation: arp::Operation) -> Vec<u8> {
    let mut body = [0; arp::LEN];
    arp::Repr {
        operation,
        sender_mac: OWN,
        sender_ip: [10, 78, 0, 1].into(),
        target_mac: PEER,
        target_ip: [10, 78, 0, 2].into(),
    }
    .emit(&mut body);
    frame(arp::ETHER_TYPE, &body)
}

fn nd_frame(message: &icmpv6::Repr) -> Vec<u8> {
    let (src, dst): (Ipv6Addr, Ipv6Addr) = ("fd78::1".parse().unwrap(), "fd78::2".parse().unwrap());
    let mut packet = [0; ipv6::LEN + icmpv6::LEN];
    let len = message.emit_packet(src, dst, &mut packet);
    frame(ethernet::TYPE_IPV6, &packet[..len])
}

/// A file in the classic format of libpcap: microseconds, Ethernet.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |list: &[u32]| -> Vec<u8> { list.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for frame in frames {
        let len = frame.len() as u32;
        file.extend(words(&[1, 0, len, len]));
        file.extend(frame);
    }
    file
}

#[test]
fn tshark_reads_what_we_write() {
    let target: Ipv6Addr = "fd78::1".parse().unwrap();
    let frames = [
        arp_frame(arp::Operation::Request),
        arp_frame(arp::Operation::Reply),
        nd_frame(&icmpv6::Repr::Solicitation {
            target,
            source_mac: Some(OWN),
        }),
        nd_frame(&icmpv6::Repr::Advertisement {
            target,
            target_mac: Some(OWN),
            router: false,
            solicited: true,
            overrides: true,
        }),
    ];
    let path = std::env::temp_dir().join(format!("roceline-nd-{}.pcap", std::process::id()));
    fs::write(&path, pcap(&frames)).expect("a temporary file can be written");
    let fields = [
        "arp.opcode",
        "arp.src.hw_mac",
        "arp.src.proto_ipv4",
        "arp.dst.proto_ipv4",
        "icmpv6.type",
        "icmpv6.checksum.status",
        "icmpv6.nd.ns.target_address",
        "icmpv6.nd.na.target_address",
        "icmpv6.nd.na.flag.s",
        "icmpv6.nd.na.flag.o",
        "icmpv6.opt.linkaddr",
        "_ws.malformed",
    ];
    let mut tshark = Command::new("tshark");
    tshark
        .arg("-r")
        .arg(&path)
        .args(["-T", "fields", "-E", "separator=|"]);
    fields.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let output = tshark.output().expect("tshark is installed");
    let _ = fs::remove_file(&path);
    let text = String::from_utf8(output.stdout).expect("plain text");
    let lines: Vec<&str> = text.lines().collect();
    let mac = "02:52:4c:00:00:01";
    assert_eq!(
        lines,
        [
            format!("1|{mac}|10.78.0.1|10.78.0.2||||||||"),
            format!("2|{mac}|10.78.0.1|10.78.0.2||||||||"),
            // Checksum status 1: good.
            format!("||||135|1|fd78::1||||{mac}|"),
            format!("||||136|1||fd78::1|1|1|{mac}|"),
        ],
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
