//! What a rule sees of a packet.

use super::*;
use roceline_engine::wire::parse;

#[test]
fn a_frame_and_its_descriptor_look_the_same() {
    for v6 in [false, true] {
        let p = path(v6);
        let shared = PathView {
            direction: Direction::Tx,
            dst: p.dgid,
            traffic_class: p.traffic_class,
            udp_sport: SPORT,
            dest_qpn: QPN,
        };
        for &opcode in Opcode::ALL {
            for len in [0, 1, 4, 63] {
                let mut d = desc(opcode, 0xabcdef, len);
                d.ack_req = len == 1;
                d.ext.aeth = 0x6000_0001;
                let seen = PacketView::parse(Direction::Tx, &frame_of(&d, v6));
                assert_eq!(seen, PacketView::of_desc(&d, &shared), "{opcode:?} {len}");
                assert_eq!((seen.dscp, seen.ecn, seen.priority), (26, 2, 3));
                assert_eq!(seen.opcode(), Some(opcode));
                assert_eq!(seen.payload_len(), d.len.next_multiple_of(4));
            }
        }
    }
}

#[test]
fn classes_follow_opcode_and_syndrome() {
    use Class::*;
    let classes = |v: PacketView| v.classes.iter().collect::<Vec<_>>();
    for (opcode, want) in [
        (
            Opcode::RC_SEND_FIRST,
            vec![First, Send, Data, Request, Roce],
        ),
        (
            Opcode::RC_WRITE_MIDDLE,
            vec![Middle, Write, Data, Request, Roce],
        ),
        (
            Opcode::RC_WRITE_LAST_IMM,
            vec![Last, Write, Data, Request, Immediate, Roce],
        ),
        (
            Opcode::RC_READ_REQUEST,
            vec![Only, ReadRequest, Request, Roce],
        ),
        (
            Opcode::RC_READ_RESP_ONLY,
            vec![Only, ReadResponse, Data, Response, Roce],
        ),
        (Opcode::RC_CMP_SWAP, vec![Only, Atomic, Request, Roce]),
        (Opcode::RC_ATOMIC_ACK, vec![AtomicAck, Response, Roce]),
        (
            Opcode::UC_WRITE_ONLY,
            vec![Only, Write, Data, Request, Roce],
        ),
        (Opcode::UD_SEND_ONLY, vec![Only, Send, Data, Request, Roce]),
        (Opcode::CNP, vec![Cnp, Roce]),
    ] {
        assert_eq!(classes(packet(opcode, 0)), want, "{opcode:?}");
    }
    for (syndrome, want) in [
        (0x1f, vec![Ack, Response, Roce]),
        (0x00, vec![Ack, Response, Roce]),
        (0x21, vec![RnrNak, Response, Roce]),
        (0x60, vec![Nak, Response, Roce]),
        (0x64, vec![Nak, Response, Roce]),
        (0xff, vec![Response, Roce]),
    ] {
        assert_eq!(classes(answer(syndrome, 0)), want, "{syndrome:#x}");
    }
    assert_eq!(classes(view(&arp())), [Other]);
    for class in Class::ALL {
        assert_eq!(class.name().parse(), Ok(*class));
        assert!(!class.meaning().is_empty());
    }
    let wrong = "raed".parse::<Class>().expect_err("no class");
    assert!(wrong.to_string().contains("`raed`") && wrong.to_string().contains("read-response"));
}

#[test]
fn broken_frames_are_seen_as_far_as_they_go() {
    let whole = frame(Opcode::RC_SEND_ONLY, 5, 64);
    for len in 0..whole.len() {
        let v = view(&whole[..len]);
        assert_eq!(v.len as usize, len);
        assert_eq!(v.roce.is_some(), len >= 14 + 20 + 8 + 12, "{len}");
        assert_eq!(v.dscp, if len >= 34 { 26 } else { 0 });
    }
    // Neither checksum nor ICRC nor opcode need be right.
    let mut odd = whole.clone();
    odd[42] = 0x1e;
    odd[24] ^= 1;
    let v = view(&odd);
    assert_eq!(v.roce.map(|r| (r.opcode, r.dest_qpn)), Some((0x1e, QPN)));
    assert_eq!((v.opcode(), v.classes), (None, ClassSet::of(Class::Roce)));
    // Ethernet padding is no part of the datagram.
    let mut padded = whole.clone();
    padded.extend([0; 6]);
    let l = view(&padded).layout;
    assert_eq!((l.end, l.payload), (whole.len() as u32, 54));
    // A tag moves everything and gives the priority.
    let mut tagged = whole.clone();
    tagged.splice(12..12, [0x81, 0, 5 << 5, 1]);
    let v = view(&tagged);
    assert_eq!((v.priority, v.layout.l3, v.layout.bth), (5, 18, 46));
    assert!(v.roce.is_some());
}

/// Captured frames, and what is not RoCE.
fn frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = captures::names()
        .iter()
        .flat_map(|n| captures::read(n))
        .map(|p| p.frame)
        .collect();
    assert!(frames.iter().filter(|f| parse(f).is_ok()).count() > 200);
    frames.push(arp());
    frames.push(vec![]);
    frames
}

/// Prints how to repeat a failing case.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with ROCELINE_SEED={}", self.0);
        }
    }
}

/// One of the frames as it is, cut, or with changed bytes, through the parser and random rules.
fn case(frames: &[Vec<u8>], seed: u64) {
    let _seed = Seed(seed);
    let mut random = Random::new(seed);
    let mut bytes = frames[random.below(frames.len() as u64) as usize].clone();
    let len = bytes.len() as u64;
    for _ in 0..random.below(6) {
        // Headers are where bytes matter most.
        let end = if random.below(4) == 0 {
            len
        } else {
            len.min(90)
        };
        let at = random.below(end) as usize;
        if let Some(byte) = bytes.get_mut(at) {
            *byte = random.next_u32() as u8;
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(random.below(len + 1) as usize);
    }
    roceline_engine::wire::fuzz::frame(&bytes);
    fuzz::frame(&bytes, random.next_u64());
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

#[test]
fn no_frame_upsets_parser_or_rules() {
    let frames = frames();
    match number("ROCELINE_SEED") {
        Some(seed) => case(&frames, seed),
        None => (0..5_000).for_each(|seed| case(&frames, seed)),
    }
}

/// For `ROCELINE_SECONDS` seconds, from the round `ROCELINE_ROUND` on.
#[test]
#[ignore = "scripts/fuzz runs it"]
fn long_frames() {
    let time = std::time::Duration::from_secs(number("ROCELINE_SECONDS").unwrap_or(10));
    let first = number("ROCELINE_ROUND").unwrap_or(1).max(1) << 32;
    let (frames, start) = (frames(), std::time::Instant::now());
    let mut runs = 0;
    while start.elapsed() < time {
        (0..1_000).for_each(|n| case(&frames, first + runs + n));
        runs += 1_000;
    }
    println!("{runs} frames through the parser and random rules");
}
