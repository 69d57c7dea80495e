//! Impairment rules, one kind after the other, and by chance over captures of a real peer.

#[path = "../captures/mod.rs"]
mod captures;
mod changes;
mod matching;
mod sets;
mod views;

use roceline_engine::fabric::impair::*;
use roceline_engine::verbs::{Path, QpId};
use roceline_engine::wire::{ExtHeaders, Gid, HeaderTemplate, Opcode, Psn, icrc};
use roceline_engine::{Payload, Side, TxDesc};

const QPN: u32 = 0x11;
const SPORT: u16 = 0xc0de;

fn path(v6: bool) -> Path {
    let (src, dst) = match v6 {
        true => ("fd00::1", "fd00::a00:2"),
        false => ("10.0.0.1", "10.0.0.2"),
    };
    Path {
        sgid: Gid::from_ip(src.parse().expect("address")),
        dgid: Gid::from_ip(dst.parse().expect("address")),
        smac: [2, 0, 0, 0, 0, 1],
        dmac: [2, 0, 0, 0, 0, 2],
        traffic_class: 26 << 2 | 2,
        ..Path::default()
    }
}

fn desc(opcode: Opcode, psn: u32, len: u32) -> TxDesc {
    TxDesc {
        qp: QpId(1),
        epoch: 0,
        side: Side::Requester,
        opcode,
        ack_req: false,
        solicited: false,
        psn: Psn::new(psn),
        ext: ExtHeaders::default(),
        len: if opcode.info().payload { len } else { 0 },
        payload: Payload::None,
        ..TxDesc::default()
    }
}

/// The frame of a descriptor, with payload bytes 0x5a.
fn frame_of(desc: &TxDesc, v6: bool) -> Vec<u8> {
    let template = HeaderTemplate::new(&path(v6), SPORT, QPN, 0xffff);
    let mut frame = vec![0; template.frame_len(desc.opcode, desc.len)];
    let at = template.write(desc, 7, &mut frame).expect("room");
    frame[at..at + desc.len as usize].fill(0x5a);
    assert!(icrc::seal(&mut frame, HeaderTemplate::L3_OFFSET));
    frame
}

fn frame(opcode: Opcode, psn: u32, len: u32) -> Vec<u8> {
    frame_of(&desc(opcode, psn, len), false)
}

fn view(frame: &[u8]) -> PacketView {
    PacketView::parse(Direction::Tx, frame)
}

/// The view of a packet of 64 bytes of payload where its opcode has payload.
fn packet(opcode: Opcode, psn: u32) -> PacketView {
    view(&frame(opcode, psn, 64))
}

/// An ACK, NAK or RNR NAK.
fn answer(syndrome: u8, psn: u32) -> PacketView {
    let mut d = desc(Opcode::RC_ACK, psn, 0);
    d.ext.aeth = u32::from(syndrome) << 24 | 9;
    view(&frame_of(&d, false))
}

/// Neither RoCE nor IP.
fn arp() -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 1, 8, 6]);
    f.resize(60, 0);
    f
}

fn rule(id: u32, matcher: Matcher, action: Action) -> Rule {
    Rule {
        id: RuleId(id),
        name: String::new(),
        matcher,
        when: When::default(),
        action,
        seed: 1,
    }
}

fn set(rules: impl IntoIterator<Item = Rule>) -> RuleSet {
    let mut set = RuleSet::new();
    for rule in rules {
        set.add(rule).expect("a good rule");
    }
    set
}

fn counts(set: &RuleSet) -> Vec<[u64; 4]> {
    let of = |(_, c): (&Rule, &Counts)| [c.seen, c.matched, c.hit, c.dropped];
    set.rules().map(of).collect()
}
