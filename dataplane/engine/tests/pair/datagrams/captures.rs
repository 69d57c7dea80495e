//! The datagrams of soft-RoCE: at each packet of a capture our node at that end sends the same one, and the other takes it, or
//! not, as soft-RoCE did.

use roceline_engine::verbs::*;
use roceline_engine::wire::parse;

use super::*;
use crate::captured;
use crate::link::Faults;

/// The Q_Key that `ibv_ud_pingpong`, and whoever made the other captures, gives to QPs.
const QKEY: u32 = 0x1111_1111;

/// Plays a capture of datagrams.
pub fn play(name: &str) {
    let packets: Vec<_> = captured::read(name)
        .into_iter()
        .map(|c| {
            (
                c.number,
                parse(&c.frame).expect("well formed").packet,
                c.frame,
            )
        })
        .collect();
    let first = packets[0].1;
    let psn = |ours: bool| {
        let mut all = packets.iter().map(|c| c.1);
        let found = all.find(|p| (p.src == first.src) == ours);
        found.map_or(Psn::new(0), |p| p.psn)
    };
    let attrs = [psn(true), psn(false)].map(|sq_psn| QpAttr {
        qkey: QKEY,
        sq_psn,
        ..QpAttr::default()
    });
    let mut p = Pair::with(Faults::default(), 1, attrs);
    for (number, packet, frame) in packets {
        let context = format!("{name}, packet {number}");
        let from = usize::from(packet.src != first.src);
        let at = packet.payload_offset as usize;
        let payload = &frame[at..at + packet.payload_len as usize];
        let buffer = p.receive(1 - from, 9, packet.payload_len);
        let ours = p.node(from).memory.alloc(packet.payload_len);
        p.node(from).memory.write(ours, payload);
        let (mut wr, list) = p.wr(from, &[(ours, packet.payload_len)]);
        let imm = packet.ext.imm_or_rkey;
        if imm != 0 {
            (wr.opcode, wr.imm_or_rkey) = (Some(WrOpcode::SendImm), imm);
        }
        (wr.solicited, wr.qkey) = (packet.solicited, packet.ext.qkey);
        p.post(from, wr, &list);
        p.w.run();
        let sent = &p.w.log.last().expect("a frame").2;
        assert_eq!(
            (sent.opcode, sent.psn, sent.ack_req, sent.solicited),
            (packet.opcode, packet.psn, packet.ack_req, packet.solicited),
            "{context}"
        );
        assert_eq!(sent.payload, payload, "{context}");
        // The numbers of QPs are each NIC's own.
        let ext = ExtHeaders {
            src_qpn: sent.ext.src_qpn,
            ..packet.ext
        };
        assert_eq!(sent.ext, ext, "{context}");
        assert_eq!(p.done(from), [(wr.wr_id, WcStatus::Success)], "{context}");
        let got = p.w.completions(1 - from);
        if packet.ext.qkey != QKEY {
            assert!(got.is_empty(), "{context}");
            assert_eq!(p.counters(1 - from).rx_qkey_violations, 1, "{context}");
            continue;
        }
        let imm_flag = if imm == 0 { 0 } else { WC_WITH_IMM };
        assert_eq!(
            (got[0].status, got[0].byte_len, got[0].flags),
            (
                WcStatus::Success,
                GRH + packet.payload_len,
                WC_GRH | imm_flag
            ),
            "{context}"
        );
        let data = p
            .node(1 - from)
            .memory
            .read(buffer + u64::from(GRH), packet.payload_len);
        assert_eq!(data, payload, "{context}");
    }
}
