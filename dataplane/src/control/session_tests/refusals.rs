//! Commands that fail, each with its errno, and nothing else happens.

use super::*;
use crate::control::seqpacket;
use crate::control::server::start_session;
use crate::control::testing::own_peer;

#[test]
fn paths_are_resolved_or_refused_with_the_right_errno() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce1");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    let qp = u32_at(&program.ok(&create_qp(pd, cq, 2)), 0);
    let good = Modify::rtr(qp, "10.77.0.1");
    let v6 = Modify {
        sgid_index: 1,
        ..Modify::rtr(qp, "fd77::1")
    };
    let own = Modify::rtr(qp, "10.77.0.2");
    for (command, dmac) in [(&good, 1), (&v6, 1), (&own, 2)] {
        program.ok(&command.plain());
        assert_eq!(lcore.state().qps[&qp].0.path.dmac, [2, 0, 0, 0, 0, dmac]);
    }
    for (what, command, errno) in [
        (
            "unknown neighbour",
            Modify::rtr(qp, "10.77.0.9"),
            libc::ETIMEDOUT,
        ),
        ("family", Modify::rtr(qp, "fd77::1"), libc::EINVAL),
        (
            "family",
            Modify {
                sgid_index: 1,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "GID index",
            Modify {
                sgid_index: 2,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "no GID",
            Modify {
                is_global: 0,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        ("zero GID", Modify::rtr(qp, "::"), libc::EINVAL),
        ("multicast", Modify::rtr(qp, "224.0.0.1"), libc::EINVAL),
        (
            "AV port",
            Modify {
                av_port: 2,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "path MTU above active",
            Modify {
                mtu: 4,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "path MTU number",
            Modify {
                mtu: 0,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "QPN",
            Modify {
                dest_qpn: 1 << 24,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "state",
            Modify {
                state: 7,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "port",
            Modify {
                mask: 1 << 5,
                port: 0,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "P_Key",
            Modify {
                mask: 1 << 4,
                pkey: 1,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "alternate path",
            Modify {
                mask: 1 << 14,
                ..good.clone()
            },
            libc::EOPNOTSUPP,
        ),
        (
            "unknown bits",
            Modify {
                mask: 1 << 22,
                ..good.clone()
            },
            libc::EOPNOTSUPP,
        ),
        (
            "QP",
            Modify {
                qp: qp + 1,
                ..good.clone()
            },
            libc::EINVAL,
        ),
    ] {
        let before = lcore.state().commands.len();
        assert_eq!(program.errno(&command.plain()), errno, "{what}");
        assert_eq!(
            lcore.state().commands.len(),
            before,
            "{what}: the owner was asked"
        );
    }
    // The QP is in RTR: whoever believes so may go on.
    let rts = Modify {
        mask: 3,
        state: 3,
        current: 2,
        ..good.clone()
    };
    program.ok(&rts.plain());
    assert_eq!(
        program.errno(&rts.plain()),
        libc::EINVAL,
        "it is in RTS by now"
    );
    assert_eq!(
        program.errno(&Modify { current: 9, ..rts }.plain()),
        libc::EINVAL
    );
}

#[test]
fn a_missing_feature_is_news_once_for_a_process() {
    let Bench { shared, .. } = bench();
    // Only a process that is connected is remembered.
    let (_connection, theirs) = seqpacket::both_ends();
    start_session(&shared, theirs, own_peer()).unwrap();
    let pid = own_peer().pid;
    assert!(shared.first_refusal(pid, "CREATE_SRQ", "not here"));
    assert!(!shared.first_refusal(pid, "CREATE_SRQ", "not here"));
    assert!(shared.first_refusal(pid, "ALLOC_MW", "not here"));
    assert!(shared.first_refusal(pid + 1, "CREATE_SRQ", "not here"));
    let news = (0..1000).filter(|n| shared.first_refusal(pid, "unknown", &n.to_string()));
    assert!(
        news.count() < 100,
        "made-up commands fill neither log nor memory"
    );
}

#[test]
fn what_is_not_supported_says_so_and_changes_nothing() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    let before = lcore.state().commands.len();
    for kind in [8, 9, 10] {
        assert_eq!(program.errno(&create_qp(pd, cq, kind)), libc::EOPNOTSUPP);
    }
    // Changing and asking about address handles and regions, windows by command, XRC.
    for number in [6, 7, 11, 15, 28, 36, 37, 40] {
        let command = Bytes::default().bytes(&[0; 64]).plain(number, 64);
        assert_eq!(program.errno(&command), libc::EOPNOTSUPP, "{number}");
    }
    assert_eq!(program.errno(&Bytes::default().plain(41, 8)), libc::EINVAL);
    assert_eq!(program.errno(&Bytes::default().plain(255, 8)), libc::EINVAL);
    assert_eq!(
        program.errno(&Bytes::default().plain(0x100, 8)),
        libc::EINVAL
    );
    assert_eq!(
        program.errno(&Bytes::default().extended(50, 8, 0)),
        libc::EOPNOTSUPP
    );
    assert_eq!(lcore.state().commands.len(), before);
}

#[test]
fn objects_of_nobody_are_refused_before_the_owner_is_asked() {
    let Bench { lcore, shared, .. } = bench();
    let other = Program::with_context(&shared, "roce0");
    let theirs_pd = u32_at(&other.ok(&alloc_pd()), 0);
    let theirs_cq = u32_at(&other.ok(&create_cq(10, -1)), 0);
    let theirs_srq = u32_at(&other.ok(&super::srq::create(theirs_pd, 10, 1)), 0);
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let before = lcore.state().commands.len();
    let page = vec![0u8; 4096];
    for command in [
        create_qp(theirs_pd, theirs_cq, 2),
        create_qp(pd, theirs_cq, 2),
        reg_mr(page.as_ptr() as u64, 16, theirs_pd, 1),
        create_cq(10, 12345),
        Bytes::default().u32(theirs_pd).plain(4, 0),
        Bytes::default().u32(theirs_pd).u32(1).plain(14, 8),
        destroy(20, theirs_cq, 8),
        Bytes::default().u32(theirs_cq).u32(0).plain(23, 0),
        super::srq::create(theirs_pd, 10, 1),
        super::srq::modify(theirs_srq, 2, 0, 1, 0),
        super::srq::query(theirs_srq),
        destroy(35, theirs_srq, 4),
    ] {
        assert_eq!(program.errno(&command), libc::EINVAL);
    }
    let close = program.request(Kind::CloseChannel as u32, &7u32.to_ne_bytes(), &[]);
    assert_eq!(close.header.error, libc::EINVAL);
    assert_eq!(lcore.state().commands.len(), before);
}

#[test]
fn regions_are_checked_before_they_are_registered() {
    let Bench { shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let memory = vec![0u8; 4096];
    let addr = memory.as_ptr() as u64;
    let code = regions_are_checked_before_they_are_registered as fn() as usize as u64;
    program.ok(&reg_mr(addr, 4096, pd, 1));
    program.ok(&reg_mr(code, 1, pd, 0));
    for (what, command, errno) in [
        ("empty", reg_mr(addr, 0, pd, 1), libc::EINVAL),
        ("wraps", reg_mr(u64::MAX - 10, 100, pd, 1), libc::EINVAL),
        ("too long", reg_mr(addr, 1 << 48, pd, 1), libc::EINVAL),
        (
            "remote without local write",
            reg_mr(addr, 8, pd, 2),
            libc::EINVAL,
        ),
        (
            "on demand",
            reg_mr(addr, 8, pd, 1 | 1 << 6),
            libc::EOPNOTSUPP,
        ),
        ("read-only", reg_mr(code, 1, pd, 1), libc::EFAULT),
        ("unmapped", reg_mr(4096, 8, pd, 0), libc::EFAULT),
        (
            "the kernel's",
            reg_mr(0xffff_8000_0000_0000, 8, pd, 0),
            libc::EFAULT,
        ),
    ] {
        assert_eq!(program.errno(&command), errno, "{what}");
    }
    // An iova of one's own choice, as long as it has the same offset in its page and an end.
    let with_iova = |iova: u64, len| {
        Bytes::default()
            .u64(addr)
            .u64(len)
            .u64(iova)
            .u32(pd)
            .u32(1)
            .plain(9, 12)
    };
    program.ok(&with_iova(addr & 0xfff, 8));
    assert_eq!(
        program.errno(&with_iova((addr & 0xfff) ^ 8, 8)),
        libc::EINVAL
    );
    assert_eq!(
        program.errno(&with_iova(!0xfff | (addr & 0xfff), 4096)),
        libc::EINVAL
    );
}

#[test]
fn an_owner_that_refuses_is_heard_and_costs_no_memory() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    lcore.state().next = Some(Reply::Failed {
        errno: libc::EBUSY,
        reason: "busy".into(),
    });
    assert_eq!(program.errno(&create_cq(10, -1)), libc::EBUSY);
    assert_eq!(
        u64_at(&program.ok(&create_cq(10, -1)), 8),
        FILE_BYTES - 4096
    );
    // An answer that does not fit is EIO; the queue may then be in use, so it is not given away.
    lcore.state().next = Some(Reply::Done);
    assert_eq!(program.errno(&create_cq(10, -1)), libc::EIO);
    assert_eq!(
        u64_at(&program.ok(&create_cq(10, -1)), 8),
        FILE_BYTES - 3 * 4096
    );
}
