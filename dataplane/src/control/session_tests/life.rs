//! What a program does from open to close.

use std::sync::mpsc::channel;
use std::thread;

use super::*;

#[test]
fn a_program_opens_uses_and_leaves_a_device() {
    let Bench {
        lcore,
        closed,
        shared,
    } = bench();
    let program = Program::start(&shared);
    let opened = program.open("roce1");
    assert_eq!(opened.header.error, 0);
    assert_eq!(opened.header.version, u32::from(PROTOCOL_VERSION));
    assert_eq!(opened.header.fd_at, NO_FD);
    let reply = OpenReply::from_bytes(&opened.payload).unwrap();
    assert_eq!(
        reply,
        OpenReply {
            memory: 0,
            reserved: 0,
            file_bytes: FILE_BYTES,
            device_index: 1,
            lcore_slots: 1
        }
    );
    let [file, wake] = <[_; 2]>::try_from(opened.fds).unwrap();

    // Before GET_CONTEXT nothing works, and it works once.
    assert_eq!(program.errno(&alloc_pd()), libc::EINVAL);
    let context = program.uverbs(&Bytes::default().plain(0, 8));
    assert_eq!(
        (
            context.header.error,
            context.header.fd_at,
            context.fds.len()
        ),
        (0, 0, 1)
    );
    assert_eq!(u32_at(&context.payload, 4), 1, "completion vectors");
    assert_eq!(program.errno(&Bytes::default().plain(0, 8)), libc::EINVAL);

    // The file and the eventfd are those that the owner has.
    let id = *lcore.state().contexts.keys().next().unwrap();
    {
        let state = lcore.state();
        let owner = &state.contexts[&id];
        assert_eq!(
            (owner.nic, owner.program, owner.pid),
            (1, 0, std::process::id())
        );
        owner.file.store_u32(0x10_0000, 0xabcd);
        let mut word = [0u8; 4];
        // SAFETY: reads four bytes into a live array; writes eight bytes of a live array.
        unsafe {
            assert_eq!(
                libc::pread(file.as_raw_fd(), word.as_mut_ptr().cast(), 4, 0x10_0000),
                4
            );
            let one = 1u64.to_ne_bytes();
            assert_eq!(libc::write(wake.as_raw_fd(), one.as_ptr().cast(), 8), 8);
        }
        assert_eq!(u32::from_ne_bytes(word), 0xabcd);
        assert_eq!(read_now(&owner.wake, &mut [0; 8]).unwrap(), 8);
    }

    // Objects.
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let channel = program.uverbs(&create_channel());
    assert_eq!(
        (
            channel.header.fd_at,
            channel.fds.len(),
            channel.payload.len()
        ),
        (0, 1, 4)
    );
    let channel_handle = u32_at(&channel.payload, 0);
    {
        // An event of the owner arrives at the program, as eight bytes.
        let state = lcore.state();
        let event = 0xc0ffee_u64.to_ne_bytes();
        let write = state.channels[&channel_handle].write.as_raw_fd();
        // SAFETY: writes eight bytes of a live array.
        assert_eq!(unsafe { libc::write(write, event.as_ptr().cast(), 8) }, 8);
        let mut got = [0; 16];
        assert_eq!(read_now(&channel.fds[0], &mut got).unwrap(), 8);
        assert_eq!(got[..8], event);
    }
    let cq = program.ok(&create_cq(100, channel_handle as i32));
    assert_eq!(cq.len(), 24);
    let (cq_handle, cqe) = (u32_at(&cq, 0), u32_at(&cq, 4));
    assert_eq!(cqe, 127);
    let (offset, size) = (u64_at(&cq, 8), u32_at(&cq, 16));
    assert_eq!(u64::from(size), (384 + 128 * 64_u64).next_multiple_of(4096));
    assert_eq!(offset + u64::from(size), FILE_BYTES);
    assert!(lcore.last().contains("mask: 127"), "{}", lcore.last());
    {
        let state = lcore.state();
        let word = |at| {
            state.contexts[&id]
                .file
                .atomic_u32(at)
                .load(std::sync::atomic::Ordering::Relaxed)
        };
        assert_eq!(
            (word(offset + Q_LOG2_ELEM_SIZE), word(offset + Q_INDEX_MASK)),
            (6, 127)
        );
    }
    // Arming by command: "next" is not weakened by "solicited".
    for (solicited_only, armed) in [(1, 1), (0, 2), (1, 2)] {
        program.ok(&Bytes::default()
            .u32(cq_handle)
            .u32(solicited_only)
            .plain(23, 0));
        let state = lcore.state();
        let word = state.contexts[&id]
            .file
            .atomic_u32(ARM_OFFSET + 4 * u64::from(cq_handle));
        assert_eq!(word.load(std::sync::atomic::Ordering::SeqCst), armed);
    }

    let memory = vec![0u8; 10_000];
    let mr = program.ok(&reg_mr(memory.as_ptr() as u64, 10_000, pd, 0b111));
    let mr_handle = u32_at(&mr, 0);
    assert_eq!(
        (u32_at(&mr, 4), u32_at(&mr, 8)),
        (mr_handle << 8, mr_handle << 8 | 1)
    );

    let alloc_mw = |kind| Bytes::default().u32(pd).u32(kind).plain(14, 8);
    let mw = program.ok(&alloc_mw(2));
    let mw_handle = u32_at(&mw, 0);
    assert_eq!((mw.len(), u32_at(&mw, 4)), (8, mw_handle << 8));
    assert_eq!(program.errno(&alloc_mw(3)), libc::EINVAL, "no such type");
    let dealloc_mw = Bytes::default().u32(mw_handle).plain(16, 0);
    program.ok(&dealloc_mw);
    assert_eq!(program.errno(&dealloc_mw), libc::EINVAL, "it is gone");

    let qp = program.ok(&create_qp(pd, cq_handle, 2));
    assert_eq!(qp.len(), 64);
    let qp_handle = u32_at(&qp, 0);
    assert_eq!(u32_at(&qp, 4), 0x1000 + qp_handle);
    // 100 and 500 work requests, 1 and 2 SGEs, 40 inline bytes.
    let caps: Vec<u32> = (2..7).map(|i| u32_at(&qp, 4 * i)).collect();
    assert_eq!(caps, [127, 511, 2, 2, 40]);
    // The receive queue comes first; 2 SGEs behind 40 bytes need 128.
    let (rq, sq) = (u64_at(&qp, 32), u64_at(&qp, 48));
    assert_eq!(
        u64::from(u32_at(&qp, 40)),
        (384 + 512 * 128_u64).next_multiple_of(4096)
    );
    assert_eq!(
        u64::from(u32_at(&qp, 56)),
        (384 + 128 * 256_u64).next_multiple_of(4096)
    );
    assert!(sq < rq && rq < offset);

    let init = Modify {
        mask: 1 | 1 << 3 | 1 << 4 | 1 << 5,
        state: 1,
        ..Modify::rtr(qp_handle, "::")
    };
    program.ok(&init.plain());
    program.ok(&Modify::rtr(qp_handle, "10.77.0.1").plain());
    {
        let attr = lcore.state().qps[&qp_handle].0;
        assert_eq!(
            (attr.state, attr.path_mtu, attr.dest_qpn),
            (QpState::Rtr, Mtu::M1024, 0x11)
        );
        assert_eq!(attr.rq_psn, Psn::new(5), "24 bits");
        assert_eq!((attr.max_dest_rd_atomic, attr.min_rnr_timer), (5, 12));
        let path = attr.path;
        assert_eq!(path.smac, [2, 0, 0, 0, 0, 2]);
        assert_eq!(path.dmac, [2, 0, 0, 0, 0, 1]);
        assert_eq!(path.sgid, Gid::from_ip("10.77.0.2".parse().unwrap()));
        assert_eq!(
            (path.flow_label, path.traffic_class, path.sl),
            (0x12345, 0x20, 3)
        );
        assert_eq!(path.hop_limit, 64, "the route's, not the program's");
    }
    let state = program.ok(&Bytes::default().u32(qp_handle).u32(1).plain(25, 128));
    assert_eq!(state.len(), 128);
    assert_eq!(state[..16], Gid::from_ip("10.77.0.1".parse().unwrap()).0);
    assert_eq!(state[30], 1, "is_global");
    assert_eq!(
        (u32_at(&state, 64), u32_at(&state, 68), u32_at(&state, 96)),
        (127, 511, 0x11)
    );
    assert_eq!(
        (state[108], state[109], state[110]),
        (2, 2, 3),
        "states and MTU"
    );
    assert_eq!(state[122], 1, "sq_sig_all");

    // And back.
    assert_eq!(u32_at(&program.ok(&destroy(27, qp_handle, 4)), 0), 5);
    let events = program.ok(&destroy(20, cq_handle, 8));
    assert_eq!((u32_at(&events, 0), u32_at(&events, 4)), (7, 3));
    let close = program.request(
        Kind::CloseChannel as u32,
        &channel_handle.to_ne_bytes(),
        &[],
    );
    assert_eq!(close.header.error, 0);
    program.ok(&Bytes::default().u32(mr_handle).plain(13, 0));
    program.ok(&Bytes::default().u32(pd).plain(4, 0));
    for (command, errno) in [
        (destroy(27, qp_handle, 4), libc::EINVAL),
        (destroy(20, cq_handle, 8), libc::EINVAL),
        (Bytes::default().u32(mr_handle).plain(13, 0), libc::EINVAL),
        (Bytes::default().u32(pd).plain(4, 0), libc::EINVAL),
    ] {
        assert_eq!(program.errno(&command), errno);
    }
    // The memory of the queues is free again: a new CQ lies where the first one lay.
    assert_eq!(u64_at(&program.ok(&create_cq(100, -1)), 8), offset);

    drop(program);
    assert_eq!(closed.recv_timeout(GRACE).unwrap(), id);
    assert!(lcore.state().contexts.is_empty());
}

#[test]
fn extended_commands_answer_with_their_length() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let body = Bytes::default()
        .u64(1)
        .u32(1000)
        .u32(0)
        .u32(-1_i32 as u32)
        .u32(0)
        .u32(0)
        .u32(0);
    let cq = program.ok(&body.extended(18, 16, 16));
    assert_eq!((cq.len(), u32_at(&cq, 4), u32_at(&cq, 12)), (32, 1023, 16));
    assert_eq!(u64_at(&cq, 16) + u64::from(u32_at(&cq, 24)), FILE_BYTES);
    let cq = u32_at(&cq, 0);
    let body = Bytes::default()
        .u64(2)
        .u32(pd)
        .u32(cq)
        .u32(cq)
        .u32(0)
        .u32(1)
        .u32(0)
        .u32(1)
        .u32(1);
    let body = body
        .u32(0)
        .u8(0)
        .u8(2)
        .u8(0)
        .u8(0)
        .u32(0)
        .u32(0)
        .u32(0)
        .u32(0);
    let qp = program.ok(&body.extended(24, 40, 32));
    assert_eq!((qp.len(), u32_at(&qp, 36)), (72, 40));
    assert_eq!(
        u32_at(&qp, 12),
        1,
        "a receive queue of no entries can be mapped all the same"
    );
    let qp = u32_at(&qp, 0);
    let body = Modify {
        state: 1,
        mask: 1,
        ..Modify::rtr(qp, "::")
    }
    .body()
    .u32(0)
    .u32(0);
    let answer = program.ok(&body.extended(26, 8, 0));
    assert_eq!(u32_at(&answer, 4), 8);
    assert!(lcore.last().starts_with("ModifyQp"));
    // A rate limit is an extension that is not there yet.
    let body = Modify {
        mask: 1 << 25,
        ..Modify::rtr(qp, "::")
    }
    .body()
    .u32(7)
    .u32(0);
    assert_eq!(program.errno(&body.extended(26, 8, 0)), libc::EOPNOTSUPP);

    let device = program.ok(&Bytes::default().u32(0).u32(0).extended(1, 304, 0));
    assert_eq!((device.len(), u32_at(&device, 180)), (304, 304));
    // An older library asks for less and gets less.
    let device = program.ok(&Bytes::default().u32(0).u32(0).extended(1, 208, 0));
    assert_eq!((device.len(), u32_at(&device, 180)), (208, 208));
    assert_eq!(
        program.errno(&Bytes::default().u32(1).u32(0).extended(1, 304, 0)),
        libc::EINVAL
    );
}

#[test]
fn device_and_port_are_described_truthfully() {
    let Bench { shared, .. } = bench();
    let program = Program::with_context(&shared, "roce1");
    let device = program.ok(&Bytes::default().plain(1, 176));
    assert_eq!(
        device[8..16],
        [2, 0, 0, 0xff, 0xfe, 0, 0, 2],
        "node GUID in wire order"
    );
    let at = |i: usize| u32_at(&device, 40 + 4 * i);
    assert_eq!(
        (at(0), at(3), at(4)),
        (0xff_ffff, 1 << 16, 1 << 14),
        "vendor, max_qp, max_qp_wr"
    );
    assert_eq!(at(5) >> 10 & 1, 1, "port active event");
    assert_eq!(
        (at(6), at(7), at(8)),
        (32, 32, 1 << 16),
        "max_sge, max_sge_rd, max_cq"
    );
    assert_eq!(
        (at(12), at(15)),
        (16, 16),
        "max_qp_rd_atom, max_qp_init_rd_atom"
    );
    assert_eq!(
        (at(17), at(20)),
        (1, 1 << 16),
        "atomic_cap: the device's own, max_mw"
    );
    assert_eq!(
        (at(29), at(30), at(31)),
        (1 << 16, 1 << 15, 32),
        "max_srq, max_srq_wr, max_srq_sge"
    );
    assert_eq!(
        (at(23), at(24), at(25), at(26)),
        (8192, 56, 8192 * 56, 1 << 16),
        "multicast groups, QPs in one and in all, address handles"
    );
    assert_eq!((device[168], device[171]), (1, 1), "pkeys, ports");

    let port = program.ok(&Bytes::default().u64(1).plain(2, 40));
    assert_eq!(u32_at(&port, 4), 1 << 31);
    assert_eq!(
        (port[26], port[27], port[28]),
        (4, 5, 3),
        "active, max MTU 4096, active MTU 1024"
    );
    assert_eq!(
        (port[36], port[37], port[38]),
        (5, 2, 1),
        "link up, Ethernet, GRH required"
    );
    assert_eq!(
        program.errno(&Bytes::default().u64(2).plain(2, 40)),
        libc::EINVAL
    );
}

#[test]
fn a_device_opens_and_closes_while_another_waits_for_the_memory_of_the_program() {
    let Bench { lcore, shared, .. } = bench();
    let (later, closing) = channel();
    let stuck = Program::with_context(&shared, "roce0");
    lcore.state().close_later = Some(later);
    drop(stuck);
    let stuck = closing.recv_timeout(GRACE).expect("it is being closed");
    // Another one of the same program, one of whose threads may have to do this before that memory comes.
    let (opened, is_open) = channel();
    let to = Arc::clone(&shared);
    let other = thread::spawn(move || {
        let program = Program::with_context(&to, "roce0");
        let _ = opened.send(program);
    });
    let program = is_open.recv_timeout(GRACE).expect("it opens");
    other.join().expect("it does what it is asked for");
    drop(program);
    let other = closing
        .recv_timeout(GRACE)
        .expect("it is being closed, too");
    for reply in [other, stuck] {
        reply.send(Reply::Done).expect("the session waits");
    }
}
