//! Shared receive queues, as the rxe provider asks for them.

use super::*;

pub(super) fn create(pd: u32, max_wr: u32, max_sge: u32) -> Vec<u8> {
    let request = Bytes::default().u64(0x5e9).u32(pd).u32(max_wr);
    request.u32(max_sge).u32(99).plain(32, 16 + 24)
}

pub(super) fn modify(srq: u32, mask: u32, max_wr: u32, limit: u32, info: u64) -> Vec<u8> {
    let request = Bytes::default().u32(srq).u32(mask).u32(max_wr).u32(limit);
    request.u64(info).plain(33, 0)
}

pub(super) fn query(srq: u32) -> Vec<u8> {
    Bytes::default().u32(srq).u32(0).plain(34, 16)
}

/// A QP on a shared queue that asks for a receive queue of its own all the same, as libibverbs does.
fn create_qp_on(pd: u32, cq: u32, srq: u32) -> Vec<u8> {
    let handles = Bytes::default()
        .u64(0xfeed)
        .u32(pd)
        .u32(cq)
        .u32(cq)
        .u32(srq);
    let caps = handles.u32(100).u32(500).u32(1).u32(2).u32(40);
    caps.u8(1).u8(2).u8(1).u8(0).plain(24, 32 + 32)
}

#[test]
fn a_shared_receive_queue_has_its_life() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let made = program.ok(&create(pd, 100, 3));
    assert_eq!(made.len(), 16 + 24);
    let srq = u32_at(&made, 0);
    // Rounded up; 3 SGEs behind 40 bytes need 128. The limit of the request is not armed.
    assert_eq!([4, 8, 12].map(|at| u32_at(&made, at)), [127, 3, srq]);
    let bytes = (384 + 128 * 128_u64).next_multiple_of(4096);
    let (offset, size) = (u64_at(&made, 16), u64::from(u32_at(&made, 24)));
    assert_eq!((size, u32_at(&made, 32)), (bytes, srq));
    assert!(offset + bytes <= FILE_BYTES);
    let last = lcore.last();
    assert!(last.starts_with("CreateSrq"), "{last}");
    assert!(last.contains("max_sge: 3, user_handle: 1513"), "{last}");

    let asked = program.ok(&query(srq));
    assert_eq!([0, 4, 8].map(|at| u32_at(&asked, at)), [127, 3, 11]);

    program.ok(&modify(srq, 2, 0, 50, 0));
    let last = lcore.last();
    assert!(last.contains("limit: Some(50), resize: None"), "{last}");

    // The answer to a resize goes to an address of the program: here of this process, whose memory it is.
    let mut info = [0u64; 2];
    program.ok(&modify(srq, 3, 1000, 7, (&raw mut info) as u64));
    let bytes = (384 + 1024 * 128_u64).next_multiple_of(4096);
    assert_eq!(info[1] & 0xffff_ffff, bytes);
    let last = lcore.last();
    let place = format!(
        "resize: Some(SrqPlace {{ loc: QueueLoc {{ offset: {}, log2_elem: 7, mask: 1023 }}, first: 0, count: 0 }})",
        info[0]
    );
    assert!(
        last.contains("limit: Some(7)") && last.contains(&place),
        "{last}"
    );
    assert_eq!(u32_at(&program.ok(&query(srq)), 0), 1023);

    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    let qp = program.ok(&create_qp_on(pd, cq, srq));
    let qp_handle = u32_at(&qp, 0);
    // No receive requests, no entries, and nothing to map for them.
    assert_eq!([12, 20].map(|at| u32_at(&qp, at)), [0, 0]);
    assert_eq!((u64_at(&qp, 32), u32_at(&qp, 40)), (0, 0));
    let last = lcore.last();
    assert!(
        last.contains(&format!("number: {srq}")) && last.contains("rq: None"),
        "{last}"
    );
    program.ok(&destroy(27, qp_handle, 4));
    // The owner says how many events the program has read.
    assert_eq!(u32_at(&program.ok(&destroy(35, srq, 4)), 0), 5);
    assert_eq!(program.errno(&query(srq)), libc::EINVAL);
}

#[test]
fn sizes_of_shared_receive_queues_have_limits() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let before = lcore.state().commands.len();
    for (max_wr, max_sge) in [(0, 1), ((1 << 15) + 1, 1), (10, 33), (u32::MAX, u32::MAX)] {
        assert_eq!(program.errno(&create(pd, max_wr, max_sge)), libc::EINVAL);
    }
    // Only the basic type; XRC and tag matching have others.
    let xrc = Bytes::default().u64(1).u32(1).u32(pd).u32(10).u32(1);
    let xrc = xrc.u32(0).u32(0).u32(0).u32(0).plain(39, 16 + 24);
    assert_eq!(program.errno(&xrc), libc::EOPNOTSUPP);
    assert_eq!(lcore.state().commands.len(), before);
    let basic = Bytes::default().u64(1).u32(0).u32(pd).u32(10).u32(0);
    let basic = basic.u32(0).u32(0).u32(0).u32(0).plain(39, 16 + 24);
    // No entry is one entry, as rxe has it.
    assert_eq!(u32_at(&program.ok(&basic), 8), 1);
    let largest = program.ok(&create(pd, 1 << 15, 32));
    assert_eq!(u32_at(&largest, 4), (1 << 16) - 1);
}

#[test]
fn a_resize_that_cannot_be_answered_changes_nothing() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let srq = u32_at(&program.ok(&create(pd, 10, 1)), 0);
    let before = lcore.state().commands.len();
    for nowhere in [0, 8, u64::MAX - 4, 1 << 63] {
        let resize = modify(srq, 1, 100, 0, nowhere);
        assert_eq!(program.errno(&resize), libc::EFAULT, "{nowhere:#x}");
    }
    assert_eq!(program.errno(&modify(srq, 1, 0, 0, 0)), libc::EINVAL);
    assert_eq!(program.errno(&modify(srq, 4, 0, 0, 0)), libc::EINVAL);
    assert_eq!(lcore.state().commands.len(), before);
    // The owner says no: the program keeps the queue that it has.
    let mut info = [0u64; 2];
    let refused = Reply::Failed {
        errno: libc::EINVAL,
        reason: "too small".into(),
    };
    lcore.state().next = Some(refused);
    let resize = modify(srq, 1, 100, 0, (&raw mut info) as u64);
    assert_eq!(program.errno(&resize), libc::EINVAL);
    assert_eq!(u32_at(&program.ok(&query(srq)), 0), 15);
}
