//! Every kernel that this CPU can run, and the algorithm with emulated vectors, against the definition.

use proptest::prelude::*;

use super::{crc32_bitwise, emulated, icrc_bitwise};
use crate::descriptor::TxDesc;
use crate::verbs::Path;
use crate::wire::icrc::*;
use crate::wire::{Gid, HeaderTemplate, Opcode, parse};

const HALF: usize = BATCH / 2;

/// What can be tested here; the names of what cannot go to the test's output.
fn kernels() -> Vec<&'static Kernel> {
    for name in NAMES {
        if let Err(why) = Kernel::named(name) {
            eprintln!("not tested: {why}");
        }
    }
    let emulated = [&emulated::LANES_1, &emulated::LANES_2, &emulated::LANES_4];
    Kernel::all().chain(emulated).collect()
}

fn bytes(len: usize) -> Vec<u8> {
    let byte = |i: u32| (i.wrapping_mul(2_654_435_761) >> 21) as u8;
    (0..len as u32).map(byte).collect()
}

fn crc32(bytes: &[u8]) -> [u8; LEN] {
    (!crc32_bitwise(!0, bytes.iter().copied())).to_le_bytes()
}

/// Starts with some bytes of the CRC taken, and goes on with `rest` both ways.
fn both_ways(kernel: &Kernel, before: &[u8], rest: &[u8], offset: usize) -> [[u8; LEN]; 2] {
    let mut summed = IcrcState::crc32();
    kernel.update(&mut summed, before);
    let mut copied = summed;
    kernel.update(&mut summed, rest);
    let mut out = vec![0xee; offset + rest.len() + 16];
    let into = &mut out[offset..offset + rest.len()];
    // SAFETY: a slice of the same length, and another one.
    unsafe { kernel.copy_from(&mut copied, into, rest.as_ptr()) };
    assert_eq!(into, rest, "{kernel:?}: copy of {}", rest.len());
    let (start, end) = (&out[..offset], &out[offset + rest.len()..]);
    assert!(
        start.iter().chain(end).all(|b| *b == 0xee),
        "{kernel:?}: beyond the copy"
    );
    let both = kernel.finish_batch(&[summed, copied]);
    let mut begun = IcrcState::crc32();
    kernel.update(&mut begun, before);
    // The pad of a last piece is summed too.
    let pad = rest.len().next_multiple_of(4) - rest.len();
    let mut padded = summed;
    kernel.update(&mut padded, &[0; 3][..pad]);
    let want = [rest, &[0; 3][..pad], &kernel.finish_batch(&[padded])[0]].concat();
    for count in [1, HALF, BATCH, BATCH + HALF + 2] {
        let mut out = vec![0xee; want.len() * count];
        let mut seals = Vec::new();
        for into in out.chunks_exact_mut(want.len()) {
            // SAFETY: another slice, that lives longer.
            let seal = unsafe { Seal::behind(begun, into, rest.as_ptr(), rest.len()) };
            seals.push(seal.expect("lengths that add up"));
        }
        kernel.seal_burst(&mut seals);
        assert_eq!(
            out,
            want.repeat(count),
            "{kernel:?}: {count} of {}",
            rest.len()
        );
    }
    assert_eq!(both[..1], kernel.finish_batch(&[summed])[..1]);
    [both[0], both[1]]
}

#[test]
fn every_length_to_600() {
    let data = bytes(700);
    for kernel in kernels() {
        for len in 0..=600 {
            let (before, offset) = (len * 7 % 37, len % 64);
            let all = &data[offset..offset + before + len];
            let (first, rest) = all.split_at(before);
            let want = crc32(all);
            let got = both_ways(kernel, first, rest, (len * 5) % 64);
            assert_eq!(got, [want; 2], "{kernel:?}: {before} and {len} bytes");
        }
    }
}

#[test]
fn every_alignment() {
    let data = bytes(1200);
    for kernel in kernels() {
        for from in 0..64 {
            for len in [64, 100, 1024, 1031] {
                let rest = &data[from..from + len];
                let got = both_ways(kernel, b"RoCE", rest, 63 - from);
                let want = crc32(&[b"RoCE", rest].concat());
                assert_eq!(got, [want; 2], "{kernel:?}: {len} bytes at {from}");
            }
        }
    }
}

#[test]
fn all_places_of_a_batch() {
    let data = bytes(2000);
    for kernel in kernels() {
        for count in 1..=BATCH {
            let part = |i: usize| &data[i * 200..i * 200 + 150 + i * 9];
            let states: Vec<IcrcState> = (0..count)
                .map(|i| {
                    let mut state = IcrcState::crc32();
                    kernel.update(&mut state, part(i));
                    state
                })
                .collect();
            let got = kernel.finish_batch(&states);
            for (i, &got) in got.iter().enumerate().take(count) {
                assert_eq!(got, crc32(part(i)), "{kernel:?}: {i} of {count}");
            }
        }
    }
}

fn template(v6: bool) -> HeaderTemplate {
    let gid = |a: &str| Gid::from_ip(a.parse().expect("an address"));
    let (sgid, dgid) = match v6 {
        true => (gid("fd00::1:2:3"), gid("fd00::4:5:6")),
        false => (gid("10.1.2.3"), gid("10.4.5.6")),
    };
    let path = Path {
        sgid,
        dgid,
        smac: [2, 3, 4, 5, 6, 7],
        traffic_class: 0x6a,
        flow_label: 0x1_2345,
        ..Path::default()
    };
    HeaderTemplate::new(&path, 0xc123, 0x12_3456, 0xffff)
}

fn desc(opcode: Opcode, len: usize) -> TxDesc {
    TxDesc {
        opcode,
        ack_req: true,
        len: len as u32,
        ..TxDesc::default()
    }
}

/// A burst of frames, built and verified by each kernel: bytes and bits are those of the definition.
fn burst(kernel: &Kernel, packets: &[(bool, Opcode, usize)]) {
    let data = bytes(5000);
    let written: Vec<(Vec<u8>, usize, &[u8])> = packets
        .iter()
        .enumerate()
        .map(|(i, &(v6, opcode, len))| {
            let (template, desc) = (template(v6), desc(opcode, len));
            let mut frame = vec![0xee; template.frame_len(opcode, len as u32)];
            let header_len = template.write(&desc, i as u16, &mut frame).expect("room");
            (frame, header_len, &data[i..i + len])
        })
        .collect();
    let want: Vec<Vec<u8>> = written
        .iter()
        .map(|(frame, header_len, payload)| {
            let mut frame = frame.clone();
            let icrc_at = frame.len() - LEN;
            frame[*header_len..icrc_at].fill(0);
            frame[*header_len..][..payload.len()].copy_from_slice(payload);
            let icrc = icrc_bitwise(&frame[14..icrc_at]);
            frame[icrc_at..].copy_from_slice(&icrc);
            frame
        })
        .collect();

    let mut frames: Vec<Vec<u8>> = written.iter().map(|(frame, ..)| frame.clone()).collect();
    let mut seals: Vec<Seal<'_>> = frames
        .iter_mut()
        .zip(&written)
        .map(|(frame, (_, header_len, payload))| {
            Seal::copy(frame, *header_len, payload).expect("lengths that add up")
        })
        .collect();
    kernel.seal_burst(&mut seals);
    assert_eq!(frames, want, "{kernel:?}: {packets:?}");

    let clear = |frame: &mut Vec<u8>| frame.iter_mut().rev().take(LEN).for_each(|b| *b = 0);
    frames.iter_mut().for_each(clear);
    let in_place = |frame| Seal::in_place(frame).expect("long enough");
    let mut seals: Vec<Seal<'_>> = frames.iter_mut().map(|f| in_place(f)).collect();
    kernel.seal_burst(&mut seals);
    assert_eq!(frames, want, "{kernel:?}: {packets:?} in place");

    // The third of every five is damaged.
    let mut good = 0;
    for (i, frame) in frames.iter_mut().enumerate() {
        let at = frame.len() - 1 - i % 5;
        match i % 5 == 2 {
            true => frame[at] ^= 0x10,
            false => good |= 1 << i,
        }
    }
    let parsed: Vec<_> = frames
        .iter()
        .map(|f| parse(f).expect("well formed"))
        .collect();
    let checks: Vec<Check<'_>> = frames
        .iter()
        .zip(&parsed)
        .map(|(frame, parsed)| Check::new(frame, parsed).expect("as parsed"))
        .collect();
    assert_eq!(
        kernel.verify_burst(&checks),
        good,
        "{kernel:?}: {packets:?}"
    );
}

#[test]
fn bursts_of_all_sizes() {
    for kernel in kernels() {
        assert_eq!(kernel.verify_burst(&[]), 0);
        for count in 1..=64 {
            let packet = |i: usize| (i % 3 == 1, Opcode::RC_WRITE_ONLY, (i + count) * 5 % 97);
            burst(kernel, &(0..count).map(packet).collect::<Vec<_>>());
        }
    }
}

/// Packets that go side by side, and a few that do not.
#[test]
fn bursts_of_one_length() {
    for kernel in kernels() {
        for len in (0..600).step_by(7).chain([64, 511, 512, 1024]) {
            for (v6, opcode) in [
                (len % 2 == 0, Opcode::RC_WRITE_ONLY),
                (len % 2 == 1, Opcode::RC_SEND_LAST),
            ] {
                let mut packets = vec![(v6, opcode, len); 8 + 4 + 3];
                packets[13].2 += 1;
                burst(kernel, &packets);
            }
        }
    }
}

/// Long packets, something of which is taken before it is their turn, in one burst with others.
#[test]
fn long_ones_among_others() {
    let lens = [1024, 64, 1023, 2048, 4096, 0, 1200, 1025, 3100];
    for kernel in kernels() {
        for (v6, opcode) in [
            (false, Opcode::RC_WRITE_ONLY),
            (true, Opcode::RC_SEND_MIDDLE),
        ] {
            // Many alike, and in turns.
            burst(kernel, &[(v6, opcode, 1024); 11]);
            for step in [1, 2, 4] {
                let packet = |i: usize| (v6, opcode, lens[i * step % lens.len()]);
                burst(kernel, &(0..13).map(packet).collect::<Vec<_>>());
            }
            // Some that go side by side between them.
            let mut packets = vec![(v6, opcode, 64); 20];
            for at in [0, 6, 7, 8, 17] {
                packets[at].2 = 1024 + at;
            }
            burst(kernel, &packets);
        }
    }
}

#[test]
fn every_opcode() {
    for kernel in kernels() {
        for v6 in [false, true] {
            let len = |opcode: Opcode| if opcode.info().payload { 67 } else { 0 };
            let all = Opcode::ALL.iter().map(|&opcode| (v6, opcode, len(opcode)));
            burst(kernel, &all.collect::<Vec<_>>());
        }
    }
}

/// A frame as it may be received: behind a tag, and with bytes that routers changed.
#[test]
fn what_routers_change_changes_nothing() {
    for kernel in kernels() {
        for v6 in [false, true] {
            let template = template(v6);
            let desc = desc(Opcode::RC_SEND_ONLY, 64);
            let mut frame = vec![0x55; template.frame_len(desc.opcode, desc.len)];
            template.write(&desc, 9, &mut frame).expect("room");
            kernel.seal_burst(&mut [Seal::in_place(&mut frame).expect("long enough")]);
            frame.splice(12..12, [0x81, 0, 0x60, 5]);
            let icrc = frame.len() - LEN;
            let (ip, udp) = (18, if v6 { 58 } else { 38 });
            let changeable: &[usize] = match v6 {
                true => &[ip + 1, ip + 2, ip + 3, ip + 7, udp + 6, udp + 7, udp + 12],
                false => &[ip + 1, ip + 8, ip + 10, ip + 11, udp + 6, udp + 7, udp + 12],
            };
            for at in ip..icrc {
                let mut changed = frame.clone();
                changed[at] ^= 8;
                let check = Check::at(&changed, ip, icrc).expect("long enough");
                let good = kernel.verify_burst(&[check]) == 1;
                // The low half of the first byte of IPv6 is masked, and another version is another header.
                let masked = changeable.contains(&at) || v6 && at == ip;
                assert_eq!(good, masked, "{kernel:?}: byte {at}");
            }
        }
    }
}

#[test]
fn lengths_that_do_not_add_up() {
    let template = template(false);
    let mut frame = [0; 200];
    let desc = desc(Opcode::RC_SEND_ONLY, 10);
    assert_eq!(template.write(&desc, 0, &mut frame), Some(54));
    let payload = [0; 10];
    for len in 0..=frame.len() {
        let seal = Seal::copy(&mut frame[..len], 54, &payload);
        assert_eq!(seal.is_some(), len == 54 + 12 + 4);
        assert_eq!(Seal::in_place(&mut frame[..len]).is_some(), len >= 58);
    }
    assert!(Seal::copy(&mut frame, 53, &payload).is_none());
    assert!(Seal::copy(&mut frame, usize::MAX, &payload).is_none());
    for (l3, icrc) in [
        (7, 100),
        (14, 53),
        (14, 197),
        (200, 60),
        (usize::MAX, 60),
        (14, usize::MAX),
    ] {
        assert!(Check::at(&frame, l3, icrc).is_none(), "{l3} and {icrc}");
    }
    assert!(Check::at(&frame, 14, 54).is_some() && Check::at(&frame, 14, 196).is_some());
}

#[test]
fn names() {
    for kernel in Kernel::all() {
        let found = Kernel::named(kernel.name()).expect("it is there");
        assert_eq!(found.name(), kernel.name());
        assert!(NAMES.contains(&kernel.name()));
    }
    let unknown = Kernel::named("fast").expect_err("no such kernel");
    assert_eq!(
        unknown.to_string(),
        "there is no ICRC kernel `fast`: vpclmulqdq-512, vpclmulqdq-256, pclmulqdq, portable exist"
    );
    assert_eq!(Kernel::all().last().map(Kernel::name), Some("portable"));
}

proptest! {
    #[test]
    fn long_and_in_pieces(
        data in proptest::collection::vec(any::<u8>(), 0..9000),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        align in 0usize..64,
    ) {
        let mut placed = vec![0; align];
        placed.extend_from_slice(&data);
        let data = &placed[align..];
        let want = crc32(data);
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(data.len() + 1)).collect();
        at.extend([0, data.len()]);
        at.sort_unstable();
        for kernel in Kernel::all() {
            let mut state = IcrcState::crc32();
            for piece in at.windows(2) {
                kernel.update(&mut state, &data[piece[0]..piece[1]]);
            }
            prop_assert_eq!(kernel.finish_batch(&[state])[0], want, "{:?}", kernel);
            prop_assert_eq!(both_ways(kernel, &[], data, align), [want; 2], "{:?}", kernel);
        }
    }
}
