//! Samples and recordings.

use std::io::{self, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};

use pcap_file::pcapng::{Block, PcapNgReader};
use roceline_engine::Nanos;
use roceline_engine::wire::pause::PauseFrame;
use roceline_engine::wire::{icrc, parse};

use super::super::topology::Fabric;
use super::super::*;

/// A file that is looked at afterwards.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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

#[test]
fn samples_say_what_happened_between_them() {
    let mut sim = incast();
    sim.sample_every(Nanos::from_micros(10));
    let watch = [
        Watch::Sent(0),
        Watch::Received(0),
        Watch::Link(Point::Port(0, 0)),
        Watch::Queue(0, 0, 3),
        Watch::Port(0, 0),
        Watch::Buffer(0),
        Watch::Marks(0),
        Watch::Pauses(0),
        Watch::Paused(1),
    ]
    .map(|what| sim.watch(what));
    sim.run_until(Nanos::from_micros(500));
    let samples = sim.samples();
    assert_eq!(samples.times.len(), 50);
    assert_eq!(samples.times[49], Nanos::from_micros(500));
    let all = |at: usize| -> &[u64] { &samples.series[watch[at]].values };
    let sum = |at: usize| all(at).iter().sum::<u64>();
    // The first flow begins after the first sample was taken, and then has the link for itself.
    assert_eq!(all(0)[0], 0);
    assert!((90_000_000_000..100_000_000_000).contains(&all(0)[1]));
    // 10 us of a rate are rate / 100 000 bits, rounded down.
    let flow = sim.flow(0);
    assert!(flow.sent * 8 - sum(0) / 100_000 < 50 * 8);
    assert!(flow.received * 8 - sum(1) / 100_000 < 50 * 8);
    let average = all(2)[10..].iter().sum::<u64>() / 40;
    assert!(
        (95_000_000_000..100_500_000_000).contains(&average),
        "{average}"
    );
    assert_eq!(all(3), all(4));
    let most = sim.switch(0).queue(0, 3).max_depth;
    assert!(all(3).iter().all(|&depth| depth <= most) && all(3).iter().any(|&d| d > most / 2));
    assert!(all(5).iter().any(|&bytes| bytes > 0));
    assert_eq!(sum(6), sim.switch(0).sum(|queue| queue.ce_marked));
    assert_eq!(sum(7), sim.switch(0).pauses_sent(sim.now()));
    assert_eq!(sum(8), sim.node(1).pauses(3, sim.now()).duration.0);
    assert!(sum(7) > 0 && sum(8) > 0);
}

/// Frames of a link as others read them: whole ones with right ICRCs, pauses among them, both ways.
#[test]
fn a_recording_of_a_link_is_what_passed_there() {
    let mut sim = incast();
    let [whole, cut] = [0; 2].map(|_| Memory::default());
    sim.record(1, Box::new(whole.clone()), 65_535)
        .expect("memory");
    sim.record((0, 0), Box::new(cut.clone()), 96)
        .expect("memory");
    sim.run_until(Nanos::from_micros(300));
    sim.finish_records().expect("memory");
    let sent = sim.link(1).sent;
    let file = whole.0.lock().expect("nobody panics").clone();
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

    let file = cut.0.lock().expect("nobody panics").clone();
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
