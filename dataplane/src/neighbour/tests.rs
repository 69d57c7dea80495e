use super::*;

const GREEDY: u32 = 1001;
const OTHER: u32 = 1002;

/// With nobody who asks or answers: what is unknown stays so, at once.
fn neighbours() -> Neighbours {
    let network = Network {
        name: "roce0".into(),
        mac: [2, 0x52, 0x4c, 0, 0, 1],
        addrs: vec![(IpAddr::from([10, 0, 0, 1]), 16)],
        gateways: vec![],
        wired: true,
        known: Default::default(),
        peers: vec![],
    };
    Neighbours::new(vec![network], vec![])
}

#[test]
fn questions_of_one_user_leave_room_for_others() {
    let neighbours = neighbours();
    let gid = Gid::from_ip(IpAddr::from([10, 0, 1, 1]));
    let errno = |user| neighbours.resolve(0, gid, user).unwrap_err().errno();
    let waiting = |count| neighbours.lock().questions.insert((0, GREEDY), count);

    waiting(cache::QUESTIONS);
    let refused = neighbours.resolve(0, gid, GREEDY).unwrap_err();
    assert_eq!(refused.errno(), libc::EAGAIN, "{refused}");
    assert!(refused.to_string().contains("user 1001"), "{refused}");
    assert!(neighbours.list().is_empty(), "nobody was asked for");
    assert_eq!(errno(OTHER), libc::ETIMEDOUT, "the other may ask");

    // One was answered, so there is room for one, which ends as well.
    waiting(cache::QUESTIONS - 1);
    assert_eq!(errno(GREEDY), libc::ETIMEDOUT);
    assert_eq!(waiting(0), Some(cache::QUESTIONS - 1));
}

/// Two links that nothing joins: what is missing is said, and not that nobody has the address.
#[test]
fn an_address_on_another_emulated_link_is_named_with_its_nic() {
    let network = |n: u8| Network {
        name: format!("roce{n}"),
        mac: [2, 0x52, 0x4c, 0, 0, n],
        addrs: vec![(IpAddr::from([10, 0, 0, n]), 16)],
        gateways: vec![],
        wired: false,
        known: Default::default(),
        peers: vec![u32::from(n)],
    };
    let neighbours = Neighbours::new(vec![network(0), network(1)], vec![]);
    let says = |n: u8| {
        let gid = Gid::from_ip(IpAddr::from([10, 0, 0, n]));
        let error = neighbours.resolve(0, gid, GREEDY).unwrap_err();
        assert_eq!(error.errno(), libc::ETIMEDOUT);
        error.to_string()
    };
    assert!(says(1).contains("it is roce1's"), "{}", says(1));
    assert!(says(1).contains("`uplinks`"), "{}", says(1));
    assert!(
        says(9).contains("nobody on its emulated link"),
        "{}",
        says(9)
    );
}
