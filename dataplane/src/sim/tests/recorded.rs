//! Recordings.

use std::io;
use std::process::Command;

use pcap_file::pcapng::{Block, PcapNgReader};
use roceline_engine::Nanos;
use roceline_engine::wire::pause::PauseFrame;
use roceline_engine::wire::{icrc, parse};

use super::super::topology::Fabric;
use super::super::*;

#[path = "../../../tests/support/shared_bytes.rs"]
mod shared_bytes;

use shared_bytes::SharedBytes;

fn incast() -> Sim {
    let fabric = Fabric {
        shared_bytes: 128 << 10,
        ..Fabric::new(100_000_000_000)
    };
    let mut sim = fabric.star(5).expect("a switch");
    for from in 1..5 {
        sim.add_flow(&FlowConfig {
            start: Nanos(u64::from(from as u32) * 10_000),
            ..FlowConfig::new(from, 0)
        });
    }
    sim
}

/// Frames of a link as others read them: whole ones with right ICRCs, pauses among them, both ways.
#[test]
fn a_recording_of_a_link_is_what_passed_there() {
    let mut sim = incast();
    let [whole, cut] = [0; 2].map(|_| SharedBytes::default());
    sim.record(1, Box::new(whole.clone()), 65_535)
        .expect("memory");
    sim.record((0, 0), Box::new(cut.clone()), 96)
        .expect("memory");
    sim.run_until(Nanos::from_micros(300));
    sim.finish_records().expect("memory");
    let sent = sim.link(1).sent;
    let file = whole.now();
    let (mut out, mut packets, mut pauses, mut last) = (0, 0, 0, Nanos::ZERO);
    for_each(&file, |at, data, original| {
        assert_eq!(data.len() as u32, original);
        assert!(at >= last);
        last = at;
        if let Some(frame) = PauseFrame::parse(data, &[0; 6]) {
            assert!(matches!(frame, PauseFrame::Priority { enabled: 8, .. }));
            pauses += 1;
            return;
        }
        let parsed = parse(data).expect("a RoCE packet");
        assert!(icrc::verify(data, &parsed), "packet {packets}");
        out += u64::from(parsed.packet.src == sim.node(1).gid());
        packets += 1;
    });
    // One may be on its way out at the end.
    assert!((0..=1).contains(&(sent - out)), "{sent} {out}");
    assert!(packets > out && pauses > 0);

    let file = cut.now();
    let mut longest = 0;
    for_each(&file, |_, data, original| {
        assert_eq!(data.len() as u32, original.min(96));
        longest = longest.max(original);
    });
    assert_eq!(longest, 14 + 20 + 8 + 12 + 16 + 4096 + 4);
}

fn for_each(file: &[u8], mut look: impl FnMut(Nanos, &[u8], u32)) {
    let mut reader = PcapNgReader::new(file).expect("a pcapng file");
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a block") {
            let at = Nanos(packet.timestamp.as_nanos() as u64);
            look(at, &packet.data, packet.original_len);
        }
    }
}

/// `scripts/test` installs tshark.
#[test]
fn tshark_reads_a_recording() {
    let mut sim = incast();
    let path = std::env::temp_dir().join(format!("roceline-sim-{}.pcapng", std::process::id()));
    let file = std::fs::File::create(&path).expect("a temporary file");
    sim.record(1, Box::new(io::BufWriter::new(file)), 96)
        .expect("a file");
    sim.run_until(Nanos::from_micros(100));
    sim.finish_records().expect("a file");
    let output = Command::new("tshark")
        .args(["-r"])
        .arg(&path)
        .args([
            "-T",
            "fields",
            "-e",
            "frame.protocols",
            "-e",
            "infiniband.bth.psn",
            "-e",
            "ip.src",
        ])
        .output()
        .expect("tshark is installed");
    std::fs::remove_file(&path).expect("it was there");
    let text = String::from_utf8_lossy(&output.stdout);
    let roce: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(":infiniband"))
        .collect();
    assert!(roce.len() > 100, "{text}");
    let sent = roce.iter().filter(|line| line.ends_with("\t10.0.0.2"));
    for (psn, line) in sent.take(50).enumerate() {
        let field = line.split('\t').nth(1);
        assert_eq!(field.map(str::parse), Some(Ok(psn)), "{line}");
    }
    assert!(
        text.lines().any(|line| line.contains("macc")),
        "pause frames: {text}"
    );
}
