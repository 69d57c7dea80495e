//! Address handles and multicast groups, as rdma-core asks for them.

use super::*;

/// CREATE_AH, with what a test may change.
#[derive(Clone)]
struct Ah {
    pd: u32,
    dgid: String,
    sgid_index: u8,
    is_global: u8,
    port: u8,
}

impl Ah {
    fn to(pd: u32, dgid: &str) -> Ah {
        Ah {
            pd,
            dgid: dgid.into(),
            sgid_index: 0,
            is_global: 1,
            port: 1,
        }
    }

    fn from(self, sgid_index: u8) -> Ah {
        Ah { sgid_index, ..self }
    }

    fn plain(&self) -> Vec<u8> {
        let dgid = Gid::from_ip(self.dgid.parse().unwrap());
        let head = Bytes::default().u64(0xfeed).u32(self.pd).u32(0);
        let grh = head.bytes(&dgid.0).u32(0x12345).u8(self.sgid_index);
        let attr = grh.u8(7).u8(0x20).u8(0).u16(0).u8(3).u8(0).u8(0);
        attr.u8(self.is_global).u8(self.port).u8(0).plain(5, 4 + 8)
    }
}

fn mcast(number: u32, gid: &str, qp: u32) -> Vec<u8> {
    let gid = Gid::from_ip(gid.parse().unwrap());
    let body = Bytes::default().bytes(&gid.0).u32(qp).u16(0xffff).u16(0);
    body.plain(number, 0)
}

#[test]
fn an_address_handle_is_its_number_and_resolves_its_path() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let made = program.ok(&Ah::to(pd, "10.77.0.2").plain());
    let handle = u32_at(&made, 0);
    assert!(handle != 0);
    assert_eq!(
        (u32_at(&made, 4), u32_at(&made, 8)),
        (handle, 0),
        "ah_num, padding"
    );
    let asked = lcore.last();
    for part in [
        "dmac: [2, 0, 0, 0, 0, 2]",
        "flow_label: 74565",
        "traffic_class: 32",
        "sl: 3",
    ] {
        assert!(asked.contains(part), "{part} in {asked}");
    }
    // To itself, and by IPv6.
    program.ok(&Ah::to(pd, "10.77.0.1").plain());
    program.ok(&Ah::to(pd, "fd77::2").from(1).plain());

    program.ok(&Bytes::default().u32(handle).plain(8, 0));
    let gone = Bytes::default().u32(handle).plain(8, 0);
    assert_eq!(program.errno(&gone), libc::EINVAL);
}

#[test]
fn bad_address_handles_are_refused() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let before = lcore.state().commands.len();
    let good = Ah::to(pd, "10.77.0.2");
    for (what, bad, errno) in [
        (
            "PD",
            Ah {
                pd: pd + 1,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "port 0",
            Ah {
                port: 0,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "port 2",
            Ah {
                port: 2,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        (
            "no GRH",
            Ah {
                is_global: 0,
                ..good.clone()
            },
            libc::EINVAL,
        ),
        ("GID index", good.clone().from(2), libc::EINVAL),
        ("other family", good.clone().from(1), libc::EINVAL),
        ("no address", Ah::to(pd, "::").from(1), libc::EINVAL),
        ("nobody", Ah::to(pd, "10.77.0.99"), libc::ETIMEDOUT),
    ] {
        assert_eq!(program.errno(&bad.plain()), errno, "{what}");
    }
    assert_eq!(lcore.state().commands.len(), before);
}

#[test]
fn groups_need_no_neighbour_and_have_a_source_of_their_family() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let v4 = "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 1]";
    let v6 = "[253, 119, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]";
    for (group, sgid_index, source, mac) in [
        ("239.129.2.3", 0, v4, [1, 0, 0x5e, 1, 2, 3]),
        ("239.129.2.3", 1, v4, [1, 0, 0x5e, 1, 2, 3]),
        ("ff0e::ffff:239.129.2.3", 0, v4, [1, 0, 0x5e, 1, 2, 3]),
        (
            "ff0e::ffff:239.129.2.3",
            1,
            v6,
            [0x33, 0x33, 239, 129, 2, 3],
        ),
        ("ff0e::5", 1, v6, [0x33, 0x33, 0, 0, 0, 5]),
        ("ff0e::5", 0, v6, [0x33, 0x33, 0, 0, 0, 5]),
    ] {
        program.ok(&Ah::to(pd, group).from(sgid_index).plain());
        let asked = lcore.last();
        for part in [format!("sgid: Gid({source})"), format!("dmac: {mac:?}")] {
            assert!(asked.contains(&part), "{group} from {sgid_index}: {asked}");
        }
    }
    // A connection leads to one peer.
    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    let qp = u32_at(&program.ok(&create_qp(pd, cq, 2)), 0);
    let connect = Modify::rtr(qp, "239.129.2.3").plain();
    assert_eq!(program.errno(&connect), libc::EINVAL);
}

#[test]
fn queue_pairs_are_attached_to_multicast_addresses_only() {
    const ATTACH: u32 = 30;
    const DETACH: u32 = 31;
    let Bench { lcore, shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    let qp = u32_at(&program.ok(&create_qp(pd, cq, 4)), 0);
    program.ok(&mcast(ATTACH, "ff0e::5", qp));
    assert!(lcore.last().starts_with("AttachMcast"), "{}", lcore.last());
    program.ok(&mcast(DETACH, "ff0e::5", qp));
    assert!(lcore.last().starts_with("DetachMcast"), "{}", lcore.last());
    for (gid, qp) in [
        ("10.77.0.2", qp),
        ("fd77::2", qp),
        ("::", qp),
        ("ff0e::5", qp + 1),
    ] {
        for number in [ATTACH, DETACH] {
            assert_eq!(
                program.errno(&mcast(number, gid, qp)),
                libc::EINVAL,
                "{gid}"
            );
        }
    }
}

#[test]
fn a_program_has_its_share_of_the_multicast_groups() {
    const ATTACH: u32 = 30;
    const DETACH: u32 = 31;
    let Bench { shared, .. } = bench();
    let program = Program::with_context(&shared, "roce0");
    let pd = u32_at(&program.ok(&alloc_pd()), 0);
    let cq = u32_at(&program.ok(&create_cq(10, -1)), 0);
    let qp = u32_at(&program.ok(&create_qp(pd, cq, 4)), 0);
    for n in 1..=2048 {
        program.ok(&mcast(ATTACH, &format!("ff0e::{n:x}:5"), qp));
    }
    assert_eq!(program.errno(&mcast(ATTACH, "ff0e::5", qp)), libc::ENOMEM);
    // Where it is attached already it needs no more; where it leaves it gives back, once.
    program.ok(&mcast(ATTACH, "ff0e::1:5", qp));
    program.ok(&mcast(DETACH, "ff0e::1:5", qp));
    program.ok(&mcast(ATTACH, "ff0e::5", qp));
    assert_eq!(program.errno(&mcast(ATTACH, "ff0e::6", qp)), libc::ENOMEM);
}
