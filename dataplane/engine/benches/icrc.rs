//! What the wire code costs per packet: parsing, checking the ICRC, writing headers, and building a
//! whole packet as the transmit path does (headers, payload copied and checksummed).
//!
//! `cargo bench -p roceline-engine --bench icrc` prints time-stamp counter cycles per packet on x86-64 (at the
//! counter's constant rate, which is near the base clock), nanoseconds elsewhere. Each number is the
//! median of 41 runs over packets that lie in the first-level cache.

use std::hint::black_box;

use roceline_engine::descriptor::{Payload, Side, TxDesc};
use roceline_engine::verbs::{Path, QpId};
use roceline_engine::wire::{ExtHeaders, Gid, HeaderTemplate, IcrcState, Opcode, Psn, icrc, parse};

const RUNS: usize = 41;
const PER_RUN: u32 = 2_000;

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: RDTSC is part of x86-64; it reads a counter and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

const UNIT: &str = if cfg!(target_arch = "x86_64") {
    "TSC cycles"
} else {
    "ns"
};

/// Median of the runs, per call.
fn measure(mut work: impl FnMut()) -> f64 {
    let mut runs = [0.0; RUNS];
    for run in &mut runs {
        let start = ticks();
        for _ in 0..PER_RUN {
            work();
        }
        *run = (ticks() - start) as f64 / f64::from(PER_RUN);
    }
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}

fn desc(len: u32) -> TxDesc {
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
            dma_len: len,
            ..ExtHeaders::default()
        },
        len,
        payload: Payload::None,
        ..TxDesc::default()
    }
}

/// Headers, payload and ICRC into `out`, in the way of the transmit path.
fn build(template: &HeaderTemplate, desc: &TxDesc, payload: &[u8], out: &mut [u8]) {
    let Some(header_len) = template.write(desc, 1, out) else {
        return;
    };
    let mut state = IcrcState::new(&out[HeaderTemplate::L3_OFFSET..header_len]);
    let (body, tail) = out[header_len..].split_at_mut(payload.len());
    body.copy_from_slice(payload);
    state.update(body);
    tail[..icrc::LEN].copy_from_slice(&state.finish());
}

fn row(family: &str, path: &Path, len: u32) {
    let template = HeaderTemplate::new(path, 0xc000, 0x11, 0xffff);
    let desc = desc(len);
    let payload = vec![0xa5; len as usize];
    let mut frame = vec![0; template.frame_len(desc.opcode, len)];
    build(&template, &desc, &payload, &mut frame);
    let parsed = parse(&frame).expect("a packet as built above is well formed");
    assert!(
        icrc::verify(&frame, &parsed),
        "a packet as built above has the right ICRC"
    );

    let parse_cost = measure(|| {
        let _ = black_box(parse(black_box(&frame)));
    });
    let verify_cost = measure(|| {
        black_box(icrc::verify(black_box(&frame), black_box(&parsed)));
    });
    let mut out = frame.clone();
    let write_cost = measure(|| {
        black_box(template.write(black_box(&desc), 1, black_box(&mut out)));
    });
    let build_cost = measure(|| {
        build(
            black_box(&template),
            black_box(&desc),
            black_box(&payload),
            black_box(&mut out),
        );
    });
    println!(
        "{family:>6} {len:>8} {parse_cost:>10.0} {verify_cost:>12.0} {:>10.2} {write_cost:>16.0} {build_cost:>8.0}",
        verify_cost / frame.len() as f64,
    );
}

fn main() {
    println!("wire code per packet (RC WRITE only), {UNIT}");
    println!(
        "{:>6} {:>8} {:>10} {:>12} {:>10} {:>16} {:>8}",
        "IP", "payload", "parse", "icrc verify", "per byte", "template write", "build"
    );
    for (family, src, dst) in [("v4", "10.0.0.1", "10.0.0.2"), ("v6", "fd00::1", "fd00::2")] {
        let gid = |a: &str| Gid::from_ip(a.parse().expect("an address"));
        let path = Path {
            sgid: gid(src),
            dgid: gid(dst),
            ..Path::default()
        };
        for len in [64, 256, 1024, 4096] {
            row(family, &path, len);
        }
    }
}
