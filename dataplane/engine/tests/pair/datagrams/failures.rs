//! What is wrong with a request: an error completion and SQE for sends, ERR for receives, and never a word to the peer.

use roceline_engine::memory::{Access, MrAttr};
use roceline_engine::verbs::*;

use super::*;

/// A request that fails, one behind it, and one after the way back to RTS.
fn fails_and_comes_back(
    change: impl FnOnce(&mut Pair, &mut SendWr, &mut Vec<Sge>),
    want: WcStatus,
) {
    let mut p = Pair::new();
    p.receive(0, 7, 64);
    p.receive(1, 8, 64);
    p.receive(1, 9, 64);
    let first = p.send(0, b"good");
    let at = p.node(0).memory.alloc(4);
    let (mut wr, mut list) = p.wr(0, &[(at, 4)]);
    change(&mut p, &mut wr, &mut list);
    p.post(0, wr, &list);
    let behind = p.send(0, b"behind");
    p.w.run();
    assert_eq!(
        p.done(0),
        [
            (first, WcStatus::Success),
            (wr.wr_id, want),
            (behind, WcStatus::WrFlushErr)
        ]
    );
    assert_eq!(p.state(0), QpState::Sqe);
    // What is posted there is flushed, too; receiving goes on.
    let late = p.send(0, b"late");
    p.send(1, b"still here");
    p.w.run();
    let events = [(late, WcStatus::WrFlushErr), (7, WcStatus::Success)];
    let mut done = p.done(0);
    done.sort_by_key(|d| d.1 as u32);
    assert_eq!(done, [events[1], events[0]]);
    let (qp, now) = (p.ids[0], p.w.now);
    let back = attr(QpState::Rts);
    p.node(0)
        .modify(qp, &back, mask::STATE | mask::CUR_STATE, now)
        .expect("SQE to RTS");
    let again = p.send(0, b"again");
    p.w.run();
    assert_eq!(p.done(0), [(again, WcStatus::Success)]);
    // Nothing of what failed was on the wire.
    let got: Vec<u64> =
        p.w.completions(1)
            .iter()
            .filter(|c| c.recv)
            .map(|c| c.wr_id)
            .collect();
    assert_eq!(got, [8, 9]);
    assert_eq!(p.w.sent_by(0).len(), 2);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_a_length_error() {
    let long = |p: &mut Pair, wr: &mut SendWr, list: &mut Vec<Sge>| {
        let at = p.node(0).memory.alloc(MTU + 1);
        wr.length = u64::from(MTU) + 1;
        *list = sges(&[(at, MTU + 1)], p.node(0).mr.lkey);
    };
    fails_and_comes_back(long, WcStatus::LocLenErr);
    // And one of just that length is none.
    let mut p = Pair::new();
    p.receive(1, 9, MTU);
    p.send(0, &[3; MTU as usize]);
    p.w.run();
    assert_eq!(p.done(1), [(9, WcStatus::Success)]);
}

#[test]
fn an_address_handle_must_exist_in_the_protection_domain() {
    let other_pd = |p: &mut Pair, wr: &mut SendWr, _: &mut Vec<Sge>| {
        wr.ah = p.node(0).engine.create_ah(PD + 1).expect("room").number;
    };
    fails_and_comes_back(other_pd, WcStatus::LocQpOpErr);
    let stale = |p: &mut Pair, wr: &mut SendWr, _: &mut Vec<Sge>| {
        wr.ah = p.node(0).engine.create_ah(PD).expect("room").number;
        p.node(0).engine.destroy_ah(wr.ah).expect("it exists");
    };
    fails_and_comes_back(stale, WcStatus::LocQpOpErr);
    fails_and_comes_back(|_, wr, _| wr.ah = 0, WcStatus::LocQpOpErr);
}

#[test]
fn operations_other_than_send_are_not_for_datagrams() {
    use WrOpcode::*;
    for op in [
        Write, WriteImm, Read, CmpSwap, FetchAdd, SendInv, LocalInv, BindMw,
    ] {
        fails_and_comes_back(|_, wr, _| wr.opcode = Some(op), WcStatus::LocQpOpErr);
    }
    fails_and_comes_back(|_, wr, _| wr.opcode = None, WcStatus::LocQpOpErr);
}

#[test]
fn local_keys_are_checked() {
    let key = |_: &mut Pair, _: &mut SendWr, list: &mut Vec<Sge>| list[0].lkey ^= 1;
    fails_and_comes_back(key, WcStatus::LocProtErr);
}

#[test]
fn memory_that_cannot_be_read_fails_the_send_and_flushes_those_behind() {
    let mut p = Pair::new();
    p.receive(1, 9, 64);
    let good = p.send(0, b"good");
    p.w.run();
    p.node(0).memory_faults.fault = 1000;
    let bad = p.send(0, b"bad");
    let behind = p.send(0, b"behind");
    p.w.run();
    let status = WcStatus::LocProtErr;
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(
        p.done(0),
        [(good, WcStatus::Success), (bad, status), (behind, flushed)]
    );
    assert_eq!((p.state(0), p.w.sent_by(0).len()), (QpState::Sqe, 1));
}

#[test]
fn memory_that_cannot_be_written_fails_the_receive_and_the_qp() {
    let mut p = Pair::new();
    p.receive(1, 9, 64);
    p.receive(1, 10, 64);
    p.node(1).memory_faults.fault = 1000;
    p.send(0, b"lost");
    p.w.run();
    assert_eq!(
        p.done(1),
        [(9, WcStatus::LocProtErr), (10, WcStatus::WrFlushErr)]
    );
    assert_eq!(p.state(1), QpState::Err);
    assert!(p.w.sent_by(1).is_empty(), "and nobody hears of it");
}

#[test]
fn a_receive_with_a_bad_key_fails_the_qp() {
    let mut p = Pair::new();
    let stranger = MrAttr {
        pd: PD + 1,
        addr: 0x1000,
        iova: 0x1000,
        len: 4096,
        access: Access::LOCAL_WRITE,
    };
    let lkey = p.node(1).engine.register(stranger).expect("room").lkey;
    p.receive(1, 8, 64);
    let qp = p.ids[1];
    let sge = Sge {
        addr: 0x1000,
        length: 4096,
        lkey,
    };
    p.node(1).post_recv(qp, 9, &[sge]);
    p.send(0, b"good");
    p.send(0, b"bad");
    p.w.run();
    assert_eq!(
        p.done(1),
        [(8, WcStatus::Success), (9, WcStatus::LocProtErr)]
    );
    assert_eq!(p.state(1), QpState::Err);
    assert!(p.w.sent_by(1).is_empty());
}

/// Back in RTS before anything of SQE was carried out: the request that failed is complete, and stops nothing any more.
#[test]
fn an_error_without_anything_behind_it_does_not_outlive_sqe() {
    let mut p = Pair::new();
    p.receive(1, 9, 64);
    let (mut wr, list) = p.wr(0, &[]);
    wr.ah = 0;
    p.post(0, wr, &list);
    // The error comes out of `tx`, behind the turn's `advance`.
    p.node(0).poll(Nanos::ZERO);
    assert_eq!(p.done(0), [(wr.wr_id, WcStatus::LocQpOpErr)]);
    assert_eq!(p.state(0), QpState::Sqe);
    let (qp, now, back) = (p.ids[0], p.w.now, attr(QpState::Rts));
    p.node(0)
        .modify(qp, &back, mask::STATE | mask::CUR_STATE, now)
        .expect("SQE to RTS");
    let again = p.send(0, b"again");
    p.w.run();
    assert_eq!(p.done(0), [(again, WcStatus::Success)]);
    assert_eq!(p.done(1), [(9, WcStatus::Success)]);
}

/// What was lost before it is complete, and its own error comes out.
#[test]
fn memory_that_cannot_be_read_fails_the_send_though_one_before_it_was_lost() {
    let mut p = Pair::new();
    p.node(0).memory_faults.pending = 1000;
    p.node(0).memory_faults.pending_ns = 1000;
    let lost = p.send(0, b"lost");
    p.node(0).poll(Nanos::ZERO);
    p.node(0).memory_faults.fault = 1000;
    let bad = p.send(0, b"bad");
    p.node(0).poll(Nanos::ZERO);
    let qp = p.ids[0];
    p.node(0).lose_outgoing(qp);
    p.w.run();
    assert_eq!(
        p.done(0),
        [(lost, WcStatus::Success), (bad, WcStatus::LocProtErr)]
    );
    assert_eq!(p.state(0), QpState::Sqe);
}
