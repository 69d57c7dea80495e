//! The messages around the commands: opening, versions, broken packets, broken sessions, quotas.

use super::*;
use crate::control::quota::Resource;

#[test]
fn opening_is_refused_for_cause() {
    let Bench {
        lcore,
        closed,
        shared,
    } = bench();
    let program = Program::start(&shared);
    assert_eq!(program.errno(&alloc_pd()), libc::EINVAL, "no device yet");
    assert_eq!(program.open("roce7").header.error, libc::ENODEV);
    let request = open_request("roce0");
    let open = |fds: &[_]| program.request(Kind::OpenDevice as u32, request.as_bytes(), fds);
    assert_eq!(open(&[]).header.error, libc::EINVAL, "no memory");
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(
        open(&[null.as_fd()]).header.error,
        libc::EINVAL,
        "not memory"
    );
    let memory = own_memory();
    let short = &request.as_bytes()[1..];
    let answer = program.request(Kind::OpenDevice as u32, short, &[memory.as_fd()]);
    assert_eq!(answer.header.error, libc::EINVAL);
    assert_eq!(program.request(77, &[], &[]).header.error, libc::EINVAL);
    lcore.state().next = Some(Reply::Failed {
        errno: libc::ENOMEM,
        reason: "full".into(),
    });
    assert_eq!(program.open("roce0").header.error, libc::ENOMEM);
    assert_eq!(program.open("roce0").header.error, 0);
    assert_eq!(
        program.open("roce0").header.error,
        libc::EINVAL,
        "one context a connection"
    );
    drop(program);
    closed.recv_timeout(GRACE).unwrap();
}

#[test]
fn another_protocol_version_is_said_with_our_own() {
    let Bench { shared, .. } = bench();
    let program = Program::start(&shared);
    let header = RequestHeader {
        magic: MAGIC,
        version: 1000,
        kind: 1,
        len: 0,
    };
    program.send(header.as_bytes(), &[]);
    let ReplyHeader { error, version, .. } = program.receive().unwrap().header;
    assert_eq!(
        (error, version),
        (libc::EPROTO, u32::from(PROTOCOL_VERSION))
    );
    assert!(program.receive().is_none());
}

#[test]
fn what_is_not_our_protocol_ends_the_connection() {
    let Bench { shared, .. } = bench();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"RCL1", &[0; 70_000]] {
        let program = Program::start(&shared);
        program.send(bytes, &[]);
        assert!(program.receive().is_none());
    }
    // A length that lies is an error, and the connection goes on.
    let program = Program::start(&shared);
    let header = RequestHeader {
        magic: MAGIC,
        version: PROTOCOL_VERSION.into(),
        kind: 2,
        len: 100,
    };
    program.send(header.as_bytes(), &[]);
    assert_eq!(program.receive().unwrap().header.error, libc::EINVAL);
    assert_eq!(program.open("roce0").header.error, 0);
}

#[test]
fn a_bug_in_a_session_ends_its_context_and_no_other() {
    let Bench {
        lcore,
        closed,
        shared,
    } = bench();
    let (victim, other) = (
        Program::with_context(&shared, "roce0"),
        Program::with_context(&shared, "roce0"),
    );
    lcore.state().panic_at = Some("AllocPd");
    let header = RequestHeader {
        magic: MAGIC,
        version: PROTOCOL_VERSION.into(),
        kind: Kind::Uverbs as u32,
        len: alloc_pd().len() as u32,
    };
    victim.send(&[header.as_bytes(), &alloc_pd()].concat(), &[]);
    assert!(victim.receive().is_none());
    closed.recv_timeout(GRACE).unwrap();
    assert_eq!(lcore.state().contexts.len(), 1);
    other.ok(&alloc_pd());
}

#[test]
fn quotas_hold() {
    let (lcore, _closed) = FakeLcore::new();
    let mut config = config(PathBuf::from("unused"));
    config.limits.max_pd = 2;
    config.limits.max_channels = 1;
    config.limits.max_connections_per_process = 1;
    let shared = Arc::new(Shared::new(config, lcore));
    let program = Program::with_context(&shared, "roce0");
    let first = u32_at(&program.ok(&alloc_pd()), 0);
    program.ok(&alloc_pd());
    assert_eq!(program.errno(&alloc_pd()), libc::ENOMEM);
    program.ok(&Bytes::default().u32(first).plain(4, 0));
    program.ok(&alloc_pd());
    assert_eq!(program.uverbs(&create_channel()).fds.len(), 1);
    assert_eq!(program.errno(&create_channel()), libc::ENOMEM);
}

/// It is told, whether or not it asked before it hears of it.
#[test]
fn a_connection_too_many_hears_which_limit_it_met() {
    use crate::control::query::Query;
    use crate::control::seqpacket::{self, both_ends};
    use crate::control::server::start_session;
    use crate::control::{Client, ClientError};
    let (lcore, _closed) = FakeLcore::new();
    let mut config = config(PathBuf::from("unused"));
    config.limits.max_connections_per_process = 1;
    let shared = Arc::new(Shared::new(config, lcore));
    let _program = Program::with_context(&shared, "roce0");
    let refused = |early: bool| {
        let (ours, theirs) = both_ends();
        if early {
            seqpacket::send(ours.as_fd(), &[b"a request"], &[]).unwrap();
        }
        let client = Client::of(ours);
        let peer = crate::control::testing::own_peer();
        assert!(start_session(&shared, theirs, peer).is_err());
        client.query(&Query::Version).unwrap_err()
    };
    for early in [false, true] {
        let error = refused(early);
        let told = matches!(
            &error,
            ClientError::Refused { errno: libc::ENOMEM, text }
                if text.contains("this process has 1 connections") && text.contains("open device")
        );
        assert!(told, "{error}");
    }
}

#[test]
fn a_share_that_is_set_is_refused_with_the_errno_of_the_rdma_cgroup() {
    let (lcore, _closed) = FakeLcore::new();
    let mut config = config(PathBuf::from("unused"));
    for (resource, most) in [
        (Resource::Mrs, 2),
        (Resource::Registered, 5 << 12),
        (Resource::Cqs, 1),
        (Resource::Qps, 1),
        (Resource::Contexts, 2),
    ] {
        config.quotas.program.set(resource, Some(most));
    }
    let shared = Arc::new(Shared::new(config, lcore.clone()));
    let program = Program::with_context(&shared, "roce0");
    let also = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let memory = vec![0u8; 1 << 16];
    let addr = (memory.as_ptr() as u64).next_multiple_of(4096);
    let first = u32_at(&program.ok(&reg_mr(addr, 4 << 12, pd, 1)), 0);
    assert_eq!(
        program.errno(&reg_mr(addr, 2 << 12, pd, 1)),
        libc::ENOMEM,
        "bytes"
    );
    program.ok(&reg_mr(addr, 1 << 12, pd, 1));
    assert_eq!(
        program.errno(&reg_mr(addr, 1, pd, 1)),
        libc::EAGAIN,
        "regions"
    );
    program.ok(&Bytes::default().u32(first).plain(13, 0));
    program.ok(&reg_mr(addr, 4 << 12, pd, 1));
    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    assert_eq!(also.errno(&create_cq(10, -1)), libc::EAGAIN);
    program.ok(&create_qp(pd, cq, 2));
    assert_eq!(program.errno(&create_qp(pd, cq, 2)), libc::EAGAIN);
    let third = Program::start(&shared);
    assert_eq!(third.open("roce0").header.error, libc::EAGAIN);
    // All of it comes back with the contexts.
    let used = || shared.accounts.programs();
    assert_eq!(used()[0].used[Resource::Qps as usize], 1);
    drop((program, also, third));
    let end = std::time::Instant::now() + GRACE;
    while !used().is_empty() {
        assert!(std::time::Instant::now() < end, "{:?}", used());
        std::thread::yield_now();
    }
}

#[test]
fn objects_that_could_not_be_made_are_not_counted() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    let memory = [0u8; 64];
    let used = || shared.accounts.programs()[0].used;
    let before = used();
    for command in [
        alloc_pd(),
        create_channel(),
        create_cq(10, -1),
        reg_mr(memory.as_ptr() as u64, 64, pd, 1),
        create_qp(pd, cq, 2),
    ] {
        lcore.state().next = Some(Reply::Failed {
            errno: libc::ENOMEM,
            reason: "full".into(),
        });
        assert_eq!(program.errno(&command), libc::ENOMEM);
        assert_eq!(used(), before);
    }
}
