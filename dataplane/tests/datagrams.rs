//! Datagrams and multicast with real programs over a daemon.

mod support;

use support::daemon::Daemon;
use support::namespace::{Namespace, expect, installed, ip};
use support::pair::{End, Pair};
use support::{PATIENCE, TempDir, alone, compile, is_root, wait_for};

/// The two ends: two devices, or one as its own peer.
fn ends<'a>(daemon: &'a Daemon, client: &'static str) -> (End<'a>, End<'a>) {
    let end = |device| End { daemon, device };
    (end("roce0"), end(client))
}

#[track_caller]
fn run(daemon: &Daemon, client: &'static str, program: &str, arguments: &[&str]) {
    let (server, client) = ends(daemon, client);
    let run = Pair::run(server, client, program, arguments, PATIENCE);
    assert!(run.ok(), "{arguments:?}: {}{}", run.report(), daemon.log());
}

#[test]
fn ud_pingpong_by_polling_and_by_events_over_both_families() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for client in ["roce1", "roce0"] {
        for options in [
            &["-g", "0", "-n", "300"][..],
            &["-g", "1", "-n", "300", "-e"],
            &["-g", "0", "-n", "300", "-s", "4096", "-e"],
            &["-g", "1", "-n", "300", "-s", "1", "-r", "10"],
        ] {
            run(&daemon, client, "ibv_ud_pingpong", options);
        }
    }
}

#[test]
fn perftest_by_datagrams_and_by_multicast() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let group = "0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3";
    for (program, options) in [
        ("ib_send_lat", &["-x", "0", "-s", "4096"][..]),
        ("ib_send_lat", &["-x", "1", "-g"]),
        ("ib_send_bw", &["-x", "0", "-e", "-s", "1024"]),
        ("ib_send_bw", &["-x", "0", "-g", "-M", group]),
    ] {
        let mut all = vec!["-c", "UD", "-F", "-n", "200"];
        all.extend(options);
        run(&daemon, "roce1", program, &all);
    }
}

fn counter(daemon: &Daemon, device: &str, name: &str) -> u64 {
    let stat = daemon.json(&["stat"]);
    let devices = stat["devices"].as_array().expect("`devices` is a list");
    let found = devices.iter().find(|d| d["name"] == device);
    let counters = &found.expect("the device")["counters"];
    counters[name].as_u64().expect("a counter")
}

/// Runs `datagram_check`, where what must hold is explained.
#[track_caller]
fn check(daemon: &Daemon, program: &str, arguments: &[&str]) {
    daemon
        .run_program("datagram_check", program, arguments)
        .expect_ok();
}

#[test]
fn a_receiver_finds_the_way_back_in_the_first_40_bytes() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = compile(daemon.dir(), "datagram_check", &SOURCES);
    for client in ["roce1", "roce0"] {
        for gid_index in ["0", "1", "2"] {
            check(&daemon, &program, &["roce0", client, "grh", gid_index]);
        }
    }
}

#[test]
fn a_group_gets_a_copy_each_on_both_nics() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = compile(daemon.dir(), "datagram_check", &SOURCES);
    for (gid_index, group) in [
        ("0", "::ffff:239.1.2.3"),
        ("0", "ff0e::ffff:239.1.2.3"),
        ("1", "ff0e::ffff:239.1.2.3"),
        ("1", "ff12::1234:5678"),
        ("0", "ff12::1234:5678"),
    ] {
        let arguments = ["roce0", "roce1", "group", gid_index, group];
        check(&daemon, &program, &arguments);
    }
    // Two messages each time; the sender's NIC has members both times.
    let counted = |device, name| counter(&daemon, device, name);
    assert_eq!(counted("roce0", "multicast_xmit_packets"), 10);
    assert_eq!(counted("roce0", "multicast_rcv_packets"), 10);
    assert_eq!(counted("roce1", "multicast_rcv_packets"), 10);
    assert_eq!(counted("roce0", "unicast_xmit_packets"), 0);
    // With rules on the way out packets go another way through the daemon.
    let rule = ["impair", "add", "--nic", "roce0", "--tx", "--observe"];
    daemon.roceline("impair", &rule).expect_ok();
    let arguments = ["roce0", "roce1", "group", "0", "::ffff:239.1.2.3"];
    check(&daemon, &program, &arguments);
}

#[test]
fn a_program_that_dies_leaves_no_handle_and_no_group() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = compile(daemon.dir(), "datagram_check", &SOURCES);
    let held = daemon.start_program("held", &program, &["roce0", "roce1", "hold"]);
    wait_for("its objects", PATIENCE, || {
        let objects = daemon.objects();
        // The group is one on either device.
        objects.ahs == 300 && objects.mcast_groups == 2
    });
    held.signal(libc::SIGKILL);
    daemon.expect_empty();
    assert!(!held.finish(PATIENCE).ok());
}

#[test]
fn what_is_wrong_with_a_datagram_or_its_address_is_said_as_verbs_do() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = compile(daemon.dir(), "datagram_check", &SOURCES);
    check(&daemon, &program, &["roce0", "roce1", "errors"]);
    let told = |which| {
        let arguments = ["show", "qp", "--post-mortem", which];
        daemon.roceline("told", &arguments).expect_ok().stdout
    };
    let all = told("all");
    assert!(all.contains("datagram-too-long"), "{all}");
    let last = told("last");
    assert!(last.contains("names address handle"), "{last}");
    assert!(last.contains("went from RTS to SQE"), "{last}");
    assert!(last.contains("SEND of 10 bytes"), "{last}");
}

/// A NIC of a daemon of its own at `port`.
fn one_nic(last: u8, port: &str) -> String {
    format!(
        "[[nic]]\nname = \"roce0\"\naddresses = [\"10.78.0.{last}/24\", \"fd78::{last}/64\"]\nport = \"{port}\"\n"
    )
}

/// Datagrams, to one and to groups of both families, from one daemon to another over whatever lies between their ports.
#[track_caller]
fn over_ports(left: &Daemon, right: &Daemon) {
    for daemon in [left, right] {
        wait_for("link", PATIENCE, || {
            daemon.json(&["show", "ports"])["ports"][0]["state"] == "ACTIVE"
        });
    }
    let end = |daemon| End {
        daemon,
        device: "roce0",
    };
    let group = "0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3";
    for options in [
        &["-x", "0", "-s", "1024"][..],
        &["-x", "1", "-g"],
        &["-x", "0", "-g", "-M", group],
    ] {
        let mut all = vec!["-c", "UD", "-F", "-n", "50"];
        all.extend(options);
        let run = Pair::run(end(left), end(right), "ib_send_lat", &all, PATIENCE);
        let logs = || format!("{}{}", left.log(), right.log());
        assert!(run.ok(), "{all:?}: {}{}", run.report(), logs());
    }
    for daemon in [left, right] {
        let counted = |name| counter(daemon, "roce0", name);
        // Each end has sent to both groups and heard the other.
        assert!(counted("multicast_xmit_packets") >= 100);
        assert!(counted("multicast_rcv_packets") >= 100);
        assert_eq!(daemon.objects().mcast_groups, 0);
    }
}

#[test]
fn groups_are_reached_over_memif() {
    let _alone = alone();
    let dir = TempDir::new();
    let port = |role| {
        let socket = dir.path().join("memif.sock");
        format!(
            "vdev:net_memif0,role={role},socket={},socket-abstract=no",
            socket.display()
        )
    };
    let left = Daemon::start(&one_nic(1, &port("server")));
    let right = Daemon::start(&one_nic(2, &port("client")));
    over_ports(&left, &right);
}

#[test]
fn groups_are_reached_over_linux_interfaces() {
    if !is_root("makes network namespaces") || !installed("ip") {
        return;
    }
    let _alone = alone();
    let places = [Namespace::new("left"), Namespace::new("right")];
    expect(
        ip().args(["link", "add", "rlv0", "netns", &places[0].0, "type", "veth"])
            .args(["peer", "name", "rlv0", "netns", &places[1].0]),
    );
    for place in &places {
        place.run(&["sysctl", "-q", "-w", "net.ipv6.conf.rlv0.disable_ipv6=1"]);
        place.run(&["ip", "link", "set", "rlv0", "up"]);
    }
    let port = "vdev:net_af_packet0,iface=rlv0";
    let left = places[0].daemon(&one_nic(1, port));
    let right = places[1].daemon(&one_nic(2, port));
    over_ports(&left, &right);
}

const SOURCES: [&str; 2] = ["datagram_check.c", "../../verbs-shim/tests/verbs_end.c"];
