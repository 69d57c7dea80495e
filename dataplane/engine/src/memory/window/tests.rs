//! Rules one by one, then random programs against a model that holds each window as a few plain values.

use proptest::prelude::*;

use super::*;
use crate::memory::MrAttr;

const PD: u32 = 3;
const QP: QpId = QpId(0x11);
const OTHER_QP: QpId = QpId(0x12);
const ALL: Access = Access(0xf);
const BIND: u32 = 1 << 4;

fn table() -> MrTable {
    MrTable::new(16, 9)
}

fn region(t: &mut MrTable, access: u32) -> u32 {
    let attr = MrAttr {
        pd: PD,
        addr: 0x7000_0000,
        iova: 0x1000,
        len: 0x1000,
        access: Access(access),
    };
    t.register(attr).unwrap().lkey
}

fn binding(window: u32, region: u32) -> Binding {
    Binding {
        window,
        new_key: window.wrapping_add(1),
        region,
        addr: 0x1100,
        len: 0x200,
        access: ALL,
    }
}

fn reach(t: &MrTable, key: u32, qp: QpId, addr: u64, len: u32) -> Result<u64, AccessError> {
    let slice = t.check_remote(key, (PD, qp), addr, len, Access::REMOTE_WRITE);
    slice.map(|s| s.addr)
}

#[test]
fn a_bound_window_is_part_of_its_region_under_a_new_key() {
    for kind in [WindowType::One, WindowType::Two] {
        let mut t = table();
        let mr = region(&mut t, 1 | BIND);
        let mw = t.alloc_window(PD, kind).unwrap();
        assert!(reach(&t, mw.rkey, QP, 0x1100, 1).is_err(), "not bound");
        t.bind(&binding(mw.rkey, mr), (PD, QP)).unwrap();
        let key = mw.rkey & !0xff | (mw.rkey.wrapping_add(1) & 0xff);
        assert_eq!(reach(&t, key, QP, 0x1100, 0x200), Ok(0x7000_0100));
        let slice = t.check_remote(key, (PD, QP), 0x1100, 1, Access::REMOTE_READ);
        assert_eq!(slice.unwrap().mr, mr >> 8, "the memory is the region's");
        assert!(reach(&t, key, QP, 0x10ff, 1).is_err());
        assert!(reach(&t, key, QP, 0x1100, 0x201).is_err());
        assert!(reach(&t, mw.rkey, QP, 0x1100, 1).is_err(), "the old key");
        let local = t.check(key, PD, 0x1100, 1, Access::LOCAL_READ);
        assert_eq!(local, Err(AccessError::UnknownKey(key)), "no lkey");
        // A window of type 2 serves its QP only.
        let other = reach(&t, key, OTHER_QP, 0x1100, 1);
        match kind {
            WindowType::One => assert!(other.is_ok()),
            WindowType::Two => assert_eq!(other, Err(AccessError::WrongQp(key))),
        }
        let foreign = t.check_remote(key, (PD + 1, QP), 0x1100, 1, Access::REMOTE_READ);
        assert_eq!(foreign, Err(AccessError::WrongPd(key)));
    }
}

#[test]
fn what_cannot_be_bound_is_told_why() {
    let mut t = table();
    let mr = region(&mut t, 1 | BIND);
    let no_bind = region(&mut t, 1);
    let read_only = region(&mut t, BIND);
    let zero_based = region(&mut t, 1 | BIND | Access::ZERO_BASED.0);
    let attr = MrAttr {
        pd: PD + 1,
        addr: 0,
        iova: 0,
        len: 0x2000,
        access: Access(1 | BIND),
    };
    let foreign = t.register(attr).unwrap().lkey;
    let [one, two] =
        [WindowType::One, WindowType::Two].map(|k| t.alloc_window(PD, k).unwrap().rkey);
    let gone = t.alloc_window(PD, WindowType::One).unwrap();
    assert!(t.dealloc_window(gone.index) && !t.dealloc_window(gone.index));
    let refused = |t: &mut MrTable, b: Binding| t.bind(&b, (PD, QP)).unwrap_err();
    let b = |window, region| binding(window, region);
    use WindowError as E;
    assert_eq!(
        refused(&mut t, b(gone.rkey, mr)),
        E::UnknownWindow(gone.rkey)
    );
    assert_eq!(refused(&mut t, b(one ^ 1, mr)), E::UnknownWindow(one ^ 1));
    assert_eq!(refused(&mut t, b(mr, mr)), E::UnknownWindow(mr));
    assert_eq!(refused(&mut t, b(one, two)), E::UnknownRegion(two));
    assert_eq!(refused(&mut t, b(one, 0)), E::UnknownRegion(0));
    assert_eq!(refused(&mut t, b(one, foreign)), E::WrongPd(one));
    assert_eq!(t.bind(&b(one, mr), (PD + 1, QP)), Err(E::WrongPd(one)));
    assert_eq!(refused(&mut t, b(one, no_bind)), E::NoBind(no_bind));
    assert_eq!(refused(&mut t, b(one, read_only)), E::NoLocalWrite);
    assert_eq!(
        refused(&mut t, b(one, zero_based)),
        E::ZeroBasedRegion(zero_based)
    );
    let with = |access| Binding {
        access: Access(access),
        ..b(one, mr)
    };
    assert_eq!(refused(&mut t, with(BIND)), E::Access(BIND));
    assert_eq!(refused(&mut t, with(1 << 5)), E::ZeroBased);
    let empty = Binding {
        len: 0,
        ..b(two, mr)
    };
    assert_eq!(refused(&mut t, empty), E::Empty);
    for (addr, len) in [
        (0xfff, 1),
        (0x1000, 0x1001),
        (0x2000, 1),
        (u64::MAX, 2),
        (0x1000, u64::MAX),
    ] {
        let outside = Binding {
            addr,
            len,
            ..b(two, mr)
        };
        assert_eq!(refused(&mut t, outside), E::Range { addr, len });
    }
    // Reading needs no local write access; the last byte may be bound; nothing of all this has bound anything.
    let read = Binding {
        access: Access::REMOTE_READ,
        addr: 0x1fff,
        len: 1,
        ..b(two, read_only)
    };
    t.bind(&read, (PD, QP)).unwrap();
    assert_eq!(refused(&mut t, b(two + 1, mr)), E::Bound(two + 1));
    assert_eq!(t.deregister(read_only), Err(AccessError::WindowsBound(1)));
    assert!(t.deregister(mr).is_ok());
}

#[test]
fn a_zero_based_window_names_its_first_byte_0() {
    let mut t = table();
    let mr = region(&mut t, 1 | BIND);
    let mw = t.alloc_window(PD, WindowType::Two).unwrap().rkey;
    let zero_based = Binding {
        access: Access(ALL.0 | Access::ZERO_BASED.0),
        new_key: 0x55,
        ..binding(mw, mr)
    };
    t.bind(&zero_based, (PD, QP)).unwrap();
    let key = mw & !0xff | 0x55;
    assert_eq!(reach(&t, key, QP, 0, 0x200), Ok(0x7000_0100));
    assert_eq!(reach(&t, key, QP, 0x1ff, 1), Ok(0x7000_02ff));
    assert!(reach(&t, key, QP, 0x200, 1).is_err() && reach(&t, key, QP, 0x1100, 1).is_err());
}

#[test]
fn a_window_of_type_1_is_bound_again_and_unbound_by_length_0() {
    let mut t = table();
    let (a, b) = (region(&mut t, 1 | BIND), region(&mut t, 1 | BIND));
    let mw = t.alloc_window(PD, WindowType::One).unwrap().rkey;
    t.bind(&binding(mw, a), (PD, QP)).unwrap();
    let key = |n: u32| mw & !0xff | (mw.wrapping_add(n) & 0xff);
    assert_eq!(t.deregister(a), Err(AccessError::WindowsBound(1)));
    t.bind(&binding(key(1), b), (PD, OTHER_QP)).unwrap();
    assert!(reach(&t, key(1), QP, 0x1100, 1).is_err() && reach(&t, key(2), QP, 0x1100, 1).is_ok());
    assert!(t.deregister(a).is_ok());
    // o10-37.2.26
    assert_eq!(
        t.invalidate(key(2), (PD, QP)),
        Err(WindowError::NotInvalidatable(key(2)))
    );
    let nothing = Binding {
        len: 0,
        ..binding(key(2), 0xdead)
    };
    t.bind(&nothing, (PD, QP)).unwrap();
    assert!(reach(&t, key(2), QP, 0x1100, 1).is_err() && reach(&t, key(3), QP, 0x1100, 1).is_err());
    assert!(t.deregister(b).is_ok());
}

#[test]
fn only_its_qp_invalidates_a_window_and_its_end_unbinds_it() {
    let mut t = table();
    let mr = region(&mut t, 1 | BIND);
    let mw = t.alloc_window(PD, WindowType::Two).unwrap().rkey;
    let not = |key| Err(WindowError::NotInvalidatable(key));
    assert_eq!(t.invalidate(mw, (PD, QP)), not(mw), "not bound");
    assert_eq!(t.invalidate(mr, (PD, QP)), not(mr), "a region");
    t.bind(&binding(mw, mr), (PD, QP)).unwrap();
    let key = mw & !0xff | (mw.wrapping_add(1) & 0xff);
    assert_eq!(t.invalidate(mw, (PD, QP)), not(mw), "the old key");
    assert_eq!(
        t.invalidate(key, (PD, OTHER_QP)),
        Err(WindowError::WrongQp(key))
    );
    assert_eq!(
        t.invalidate(key, (PD + 1, QP)),
        Err(WindowError::WrongPd(key))
    );
    t.unbind_all_of(OTHER_QP);
    assert!(reach(&t, key, QP, 0x1100, 1).is_ok());
    t.invalidate(key, (PD, QP)).unwrap();
    assert!(reach(&t, key, QP, 0x1100, 1).is_err());
    // It is free again, under the key that it had.
    t.bind(&binding(key, mr), (PD, QP)).unwrap();
    t.unbind_all_of(QP);
    assert!(t.deregister(mr).is_ok());
}

/// A window's last key is none that `take_place` has given out.
#[test]
fn the_last_key_of_a_freed_window_is_not_that_of_the_next_object() {
    let mut t = table();
    let mr = region(&mut t, 1 | BIND);
    let mw = t.alloc_window(PD, WindowType::Two).unwrap();
    t.bind(&binding(mw.rkey, mr), (PD, QP)).unwrap();
    let last = mw.rkey & !0xff | (mw.rkey.wrapping_add(1) & 0xff);
    assert!(reach(&t, last, QP, 0x1100, 1).is_ok());
    assert!(t.dealloc_window(mw.index));
    let back = (0..3000)
        .map(|_| {
            let key = region(&mut t, 1);
            t.deregister(key).unwrap();
            key
        })
        .find(|key| key >> 8 == mw.index)
        .expect("the index comes back");
    assert_ne!(back, last);
}

#[test]
fn windows_have_a_limit_of_their_own() {
    let mut t = MrTable::new(2, 0);
    let made = [WindowType::One, WindowType::Two].map(|k| t.alloc_window(PD, k).unwrap());
    assert_eq!(
        t.alloc_window(PD, WindowType::One),
        Err(AccessError::Full(2))
    );
    region(&mut t, 1);
    region(&mut t, 1);
    assert!(t.dealloc_window(made[0].index) && t.alloc_window(PD, WindowType::One).is_ok());
    assert_eq!((t.windows(), t.len()), (2, 2));
}

/// A window as the model has it.
#[derive(Clone, Debug)]
struct Model {
    key: u32,
    kind: WindowType,
    pd: u32,
    bound: Option<Bound>,
}

#[derive(Clone, Debug)]
struct Bound {
    region: usize,
    addr: u64,
    len: u64,
    access: u32,
    qp: QpId,
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(bool, u32),
    Dealloc(usize),
    Bind {
        window: usize,
        stale: bool,
        region: usize,
        addr: u64,
        len: u64,
        access: u32,
        key: u32,
        qp: u32,
        pd: u32,
    },
    Invalidate {
        window: usize,
        qp: u32,
    },
    EndQp(u32),
    Deregister(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bind = (
        (0..4usize, prop::bool::weighted(0.1), 0..3usize),
        (0xff0..0x1030u64, prop_oneof![Just(0), 1..0x40u64]),
        (
            prop_oneof![4 => 0..16u32, 1 => 16..64u32],
            any::<u32>(),
            0..2u32,
            0..8u32,
        ),
    );
    let bind = bind.prop_map(
        |((window, stale, region), (addr, len), (access, key, qp, pd))| Op::Bind {
            window,
            stale,
            region,
            addr,
            len,
            access,
            key,
            qp,
            pd: PD + u32::from(pd == 0),
        },
    );
    let op = prop_oneof![
        2 => (any::<bool>(), 0..8u32).prop_map(|(two, pd)| Op::Alloc(two, PD + u32::from(pd == 0))),
        1 => (0..4usize).prop_map(Op::Dealloc),
        8 => bind,
        3 => (0..4usize, 0..2u32).prop_map(|(window, qp)| Op::Invalidate { window, qp }),
        1 => (0..2u32).prop_map(Op::EndQp),
        1 => (0..3usize).prop_map(Op::Deregister),
    ];
    prop::collection::vec(op, 1..60)
}

/// What each region of the model allows.
const REGIONS: [u32; 3] = [1 | BIND, BIND, 1];

proptest! {
    /// After every step of a random program each key reaches exactly what the model says, for both QPs.
    #[test]
    fn windows_are_what_the_model_says(ops in ops()) {
        let mut t = table();
        let mut regions: Vec<Option<u32>> = REGIONS.iter().map(|&a| Some(region(&mut t, a))).collect();
        let mut windows: Vec<(u32, Model)> = Vec::new();
        let mut stale: Vec<u32> = Vec::new();
        for op in ops {
            match op {
                Op::Alloc(two, pd) if windows.len() < 4 => {
                    let kind = if two { WindowType::Two } else { WindowType::One };
                    let mw = t.alloc_window(pd, kind).unwrap();
                    windows.push((mw.index, Model { key: mw.rkey, kind, pd, bound: None }));
                }
                Op::Dealloc(w) if w < windows.len() => {
                    let (index, gone) = windows.remove(w);
                    prop_assert!(t.dealloc_window(index));
                    stale.push(gone.key);
                }
                Op::Bind { window, stale: old, region, addr, len, access, key, qp, pd } if window < windows.len() => {
                    let m = &windows[window].1;
                    let b = Binding {
                        window: if old { m.key ^ 0x80 } else { m.key },
                        new_key: key,
                        region: regions[region].unwrap_or(0x77),
                        addr,
                        len,
                        access: Access(access),
                    };
                    let writes = access & 0xa != 0;
                    let room = addr >= 0x1000 && addr + len <= 0x2000;
                    let region_ok = len == 0
                        || regions[region].is_some()
                            && pd == PD
                            && REGIONS[region] & BIND != 0
                            && (!writes || REGIONS[region] & 1 != 0)
                            && room;
                    let kind_ok = match m.kind {
                        WindowType::One => access & Access::ZERO_BASED.0 == 0,
                        WindowType::Two => m.bound.is_none() && len > 0,
                    };
                    let ok = !old && pd == m.pd && access & BIND == 0 && region_ok && kind_ok;
                    let qp = QpId(QP.0 + qp);
                    prop_assert_eq!(t.bind(&b, (pd, qp)).is_ok(), ok, "{:?} {:?}", b, m);
                    if ok {
                        let m = &mut windows[window].1;
                        stale.push(m.key);
                        m.key = m.key & !0xff | key & 0xff;
                        m.bound = (len > 0).then_some(Bound { region, addr, len, access, qp });
                    }
                }
                Op::Invalidate { window, qp } if window < windows.len() => {
                    let m = &mut windows[window].1;
                    let qp = QpId(QP.0 + qp);
                    let ok = m.kind == WindowType::Two && m.bound.as_ref().is_some_and(|b| b.qp == qp) && m.pd == PD;
                    prop_assert_eq!(t.invalidate(m.key, (PD, qp)).is_ok(), ok);
                    if ok {
                        m.bound = None;
                    }
                }
                Op::EndQp(qp) => {
                    let qp = QpId(QP.0 + qp);
                    t.unbind_all_of(qp);
                    for (_, m) in &mut windows {
                        if m.kind == WindowType::Two && m.bound.as_ref().is_some_and(|b| b.qp == qp) {
                            m.bound = None;
                        }
                    }
                }
                Op::Deregister(r) => {
                    let Some(lkey) = regions[r] else { continue };
                    let bound = windows.iter().filter(|w| w.1.bound.as_ref().is_some_and(|b| b.region == r)).count();
                    prop_assert_eq!(t.deregister(lkey).is_ok(), bound == 0);
                    if bound == 0 {
                        regions[r] = None;
                    }
                }
                _ => {}
            }
            for (_, m) in &windows {
                for qp in [QP, OTHER_QP] {
                    check_window(&t, m, qp)?;
                }
            }
            let live: Vec<u32> = windows.iter().map(|w| w.1.key).collect();
            for key in stale.iter().filter(|k| !live.contains(k)) {
                prop_assert!(t.check_whole(*key, (PD, QP), Access(0)).is_err());
            }
        }
    }
}

/// One byte before, the first, the last, one behind; each right.
fn check_window(t: &MrTable, m: &Model, qp: QpId) -> Result<(), TestCaseError> {
    let Some(b) = &m.bound else {
        prop_assert!(t.check_whole(m.key, (m.pd, qp), Access(0)).is_err());
        return Ok(());
    };
    let usable = m.kind == WindowType::One || b.qp == qp;
    let first = if b.access & Access::ZERO_BASED.0 != 0 {
        0
    } else {
        b.addr
    };
    let program = 0x7000_0000 + (b.addr - 0x1000);
    for right in [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ] {
        let allowed = usable && b.access & right.0 != 0;
        for (at, inside) in [
            (0, true),
            (b.len - 1, true),
            (b.len, false),
            (u64::MAX, false),
        ] {
            let got = t.check_remote(m.key, (m.pd, qp), first.wrapping_add(at), 1, right);
            let want = (allowed && inside).then(|| program + at);
            prop_assert_eq!(
                got.ok().map(|s| s.addr),
                want,
                "{:?} {:?} {:?} {}",
                m,
                qp,
                right,
                at
            );
        }
    }
    Ok(())
}
