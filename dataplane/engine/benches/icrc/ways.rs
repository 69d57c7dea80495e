//! What is measured. Memory is leaked: it is needed to the end, and each way has its own.

use std::hint::black_box;

use roceline_engine::descriptor::{Payload, Side, TxDesc};
use roceline_engine::verbs::{Path, QpId};
use roceline_engine::wire::icrc::{Check, IcrcState, Kernel, LEN, Seal, seal_burst, verify_burst};
use roceline_engine::wire::{
    ExtHeaders, Gid, HeaderTemplate, Opcode, ParsedFrame, Psn, icrc, parse,
};

use super::Way;

/// Frames of a burst.
const BURST: usize = 32;

/// Bytes that begin a page: no allocator aligns large blocks of bytes to more than 16 by itself, and vectors that cross
/// cache lines cost twice.
fn aligned(len: usize, value: u8) -> &'static mut [u8] {
    #[repr(C, align(4096))]
    #[derive(Clone, Copy)]
    struct Page([u8; 4096]);
    let pages = vec![Page([value; 4096]); len.div_ceil(4096)].leak();
    // SAFETY: pages are bytes without padding, and never freed; there are `len` of them at least.
    unsafe { core::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), len) }
}

/// Pieces to be copied, and where to: each destination is aligned to 64 bytes and has room for an ICRC.
fn places(set: usize, len: usize) -> Vec<(&'static mut [u8], &'static [u8])> {
    // Source and destination together make the set.
    let count = (set / (2 * len)).next_multiple_of(BURST);
    let from: &'static [u8] = aligned(count * len, 0xa5);
    let to = aligned(count * (len + 64), 0);
    let from = from.chunks_exact(len);
    let to = to.chunks_exact_mut(len + 64);
    to.zip(from)
        .map(|(to, from)| (&mut to[..len + LEN], from))
        .collect()
}

/// All pieces of a set, to be copied and summed.
pub fn seals(set: usize, len: usize) -> Vec<Seal<'static>> {
    let seal = |(to, from): (&'static mut [u8], &'static [u8])| {
        // SAFETY: the source is a slice of `len` bytes that is never freed.
        let seal = unsafe { Seal::behind(IcrcState::new(&[]), to, from.as_ptr(), len) };
        seal.expect("the lengths add up")
    };
    places(set, len).into_iter().map(seal).collect()
}

/// Copying and summing `len` bytes, behind headers that were summed.
pub fn kernels(set: usize, len: usize) -> Vec<Way> {
    let mut memcpy = places(set, len);
    let mut crc32fast = places(set, len);
    let mut ways = vec![
        Way::new("memcpy", memcpy.len(), move || {
            for (to, from) in &mut memcpy {
                to[..black_box(len)].copy_from_slice(from);
            }
        }),
        Way::new("memcpy, then crc32fast", crc32fast.len(), move || {
            for (to, from) in &mut crc32fast {
                let (to, icrc) = to.split_at_mut(black_box(len));
                to.copy_from_slice(from);
                let mut hasher = crc32fast::Hasher::new_with_initial(0x2144_df1c);
                hasher.update(to);
                icrc.copy_from_slice(&hasher.finalize().to_le_bytes());
            }
        }),
    ];
    for kernel in Kernel::all() {
        for (burst, how) in [(BURST, "in bursts"), (1, "one by one")] {
            let mut seals = seals(set, len);
            let name = format!("{}, {how}", kernel.name());
            ways.push(Way::new(name, seals.len(), move || {
                for seals in seals.chunks_mut(burst) {
                    kernel.seal_burst(seals);
                }
            }));
        }
    }
    ways
}

fn template(family: &str) -> HeaderTemplate {
    let (src, dst) = match family {
        "v4" => ("10.0.0.1", "10.0.0.2"),
        _ => ("fd00::1", "fd00::2"),
    };
    let gid = |a: &str| Gid::from_ip(a.parse().expect("an address"));
    let path = Path {
        sgid: gid(src),
        dgid: gid(dst),
        ..Path::default()
    };
    HeaderTemplate::new(&path, 0xc000, 0x11, 0xffff)
}

fn desc(len: usize) -> TxDesc {
    TxDesc {
        qp: QpId(1),
        epoch: 0,
        side: Side::Requester,
        opcode: Opcode::RC_WRITE_ONLY,
        ack_req: true,
        solicited: false,
        psn: Psn::new(0x123456),
        ext: ExtHeaders {
            va: 1 << 40,
            rkey: 7,
            dma_len: len as u32,
            ..ExtHeaders::default()
        },
        len: len as u32,
        payload: Payload::None,
        ..TxDesc::default()
    }
}

/// A burst of frames as mbufs have them, apart and 128 bytes behind a multiple of 64.
fn frames(len: usize) -> Vec<&'static mut [u8]> {
    let stride = (len + 512).next_multiple_of(64) + 64;
    let all: &'static mut [[u8; 64]] = vec![[0; 64]; BURST * stride / 64].leak();
    let all = all.as_flattened_mut().chunks_exact_mut(stride);
    all.map(|place| &mut place[128..][..len]).collect()
}

fn payloads(len: usize) -> &'static [u8] {
    vec![0xa5; BURST * len].leak()
}

/// A burst of whole frames.
fn built(template: &HeaderTemplate, desc: &TxDesc, payload: &[u8]) -> Vec<&'static mut [u8]> {
    let len = desc.len as usize;
    let mut frames = frames(template.frame_len(desc.opcode, desc.len));
    for (i, frame) in frames.iter_mut().enumerate() {
        let seal = template.build(desc, i as u16, frame, &payload[i * len..][..len]);
        seal_burst(&mut [seal.expect("the lengths add up")]);
    }
    frames
}

/// A burst of them as they are received, which were found right.
pub fn received(family: &str, len: usize) -> Vec<(&'static [u8], ParsedFrame)> {
    let built = built(&template(family), &desc(len), payloads(len));
    let parsed = |frame: &'static mut [u8]| {
        let parsed = parse(frame).expect("as built");
        assert!(icrc::verify(frame, &parsed));
        (&*frame, parsed)
    };
    built.into_iter().map(parsed).collect()
}

/// The steps of a packet (RC WRITE only), each for a burst.
pub fn packets(family: &str, len: usize) -> Vec<Way> {
    let (template, desc, payload) = (template(family), desc(len), payloads(len));
    let part = move |i: usize| &payload[i * len..][..len];
    let (received, parsed): (Vec<&'static [u8]>, Vec<ParsedFrame>) =
        received(family, len).into_iter().unzip();
    let to_parse = received.clone();
    let (one_by_one, parsed_too) = (received.clone(), parsed.clone());
    let [mut to_write, mut to_build, mut to_build_alone] =
        [(); 3].map(|()| built(&template, &desc, payload));
    let (writer, builder, alone) = (template.clone(), template.clone(), template.clone());
    // The difference of these two is the most that a state with the headers' sum, kept for each queue pair, could save.
    let header_len = template.frame_len(desc.opcode, desc.len) - len - LEN;
    let mut with_headers: Vec<Seal<'static>> = built(&template, &desc, payload)
        .into_iter()
        .enumerate()
        .map(|(i, frame)| Seal::copy(frame, header_len, part(i)).expect("the lengths add up"))
        .collect();
    let mut behind_headers: Vec<Seal<'static>> = built(&template, &desc, payload)
        .into_iter()
        .enumerate()
        .map(|(i, frame)| {
            let (headers, rest) = frame.split_at_mut(header_len);
            // SAFETY: the payload is a slice of `len` bytes that is never freed.
            let seal =
                unsafe { Seal::behind(IcrcState::new(headers), rest, part(i).as_ptr(), len) };
            seal.expect("the lengths add up")
        })
        .collect();
    let mut checks: Vec<Check<'static>> = Vec::with_capacity(BURST);
    let mut seals: Vec<Seal<'static>> = Vec::with_capacity(BURST);
    vec![
        Way::new("parse", BURST, move || {
            for frame in &to_parse {
                let _ = black_box(parse(black_box(frame)));
            }
        }),
        Way::new("ICRC check, burst", BURST, move || {
            checks.clear();
            for (frame, parsed) in received.iter().zip(&parsed) {
                checks.extend(Check::new(frame, black_box(parsed)));
            }
            assert_eq!(verify_burst(&checks), u64::MAX >> (64 - BURST));
        }),
        Way::new("ICRC check, one by one", BURST, move || {
            for (frame, parsed) in one_by_one.iter().zip(&parsed_too) {
                black_box(icrc::verify(frame, black_box(parsed)));
            }
        }),
        Way::new("headers", BURST, move || {
            for (i, frame) in to_write.iter_mut().enumerate() {
                black_box(writer.write(black_box(&desc), i as u16, frame));
            }
        }),
        Way::new("copy, ICRC, burst", BURST, move || {
            seal_burst(&mut with_headers);
        }),
        Way::new("copy, ICRC, headers summed, burst", BURST, move || {
            seal_burst(&mut behind_headers);
        }),
        Way::new("headers, copy, ICRC, burst", BURST, move || {
            seals.clear();
            for (i, frame) in to_build.iter_mut().enumerate() {
                let bytes: *mut [u8] = &raw mut **frame;
                // SAFETY: the frame is never freed, and `seals` is cleared before it is borrowed again.
                let frame: &'static mut [u8] = unsafe { &mut *bytes };
                seals.extend(builder.build(black_box(&desc), i as u16, frame, part(i)));
            }
            seal_burst(&mut seals);
        }),
        Way::new("headers, copy, ICRC, one by one", BURST, move || {
            for (i, frame) in to_build_alone.iter_mut().enumerate() {
                let seal = alone.build(black_box(&desc), i as u16, frame, part(i));
                if let Some(seal) = seal {
                    seal_burst(&mut [seal]);
                }
            }
        }),
    ]
}
