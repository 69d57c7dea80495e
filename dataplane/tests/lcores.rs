//! A daemon of several polling threads with real programs: NICs on different ones, switches on one of their own, and all that is
//! asked of an lcore asked of each.

mod support;

use std::time::{Duration, Instant};

use serde_json::Value;

use roceline::control::client::Client;
use support::capture::Capture;
use support::daemon::Daemon;
use support::pair::{End, Pair, endless, wait_for_traffic};
use support::process::Process;
use support::{PATIENCE, TempDir, alone, compile, roceline, wait_for};

/// The two NICs of a link on two lcores.
fn pair(lcores: &str) -> String {
    let nic = |n: usize| {
        format!(
            "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.79.0.{}/24\", \"fd79::{}/64\"]\nport = \"fabric:cable\"\n",
            n + 1,
            n + 1
        )
    };
    format!("{lcores}{}{}", nic(0), nic(1))
}

/// Each lcore wherever the scheduler puts it.
const TWO: &str = "[[lcore]]\n[[lcore]]\ncpu = \"any\"\n";

#[track_caller]
fn run(daemon: &Daemon, server: &str, client: &str, program: &str, arguments: &[&str]) {
    let end = |device| End { daemon, device };
    let run = Pair::run(end(server), end(client), program, arguments, PATIENCE);
    assert!(
        run.ok(),
        "{program} {arguments:?}: {}{}",
        run.report(),
        daemon.log()
    );
}

/// By number: the devices of each lcore, its sleeps and its polls.
fn lcores(daemon: &Daemon) -> Vec<(Vec<String>, u64, u64)> {
    let client = Client::connect(daemon.socket()).expect("the daemon runs");
    let lcores = client.status().expect("the daemon answers").lcores;
    let numbers: Vec<u32> = lcores.iter().map(|lcore| lcore.lcore).collect();
    assert_eq!(numbers, (0..lcores.len() as u32).collect::<Vec<_>>());
    let seen = lcores.into_iter().map(|l| (l.devices, l.sleeps, l.polls));
    seen.collect()
}

fn counter(daemon: &Daemon, device: &str, name: &str) -> u64 {
    let stat = daemon.json(&["stat"]);
    let devices = stat["devices"].as_array().expect("`devices` is a list");
    let found = devices.iter().find(|d| d["name"] == device);
    found.expect("the device is there")["counters"][name]
        .as_u64()
        .expect(name)
}

/// Some of every kind: streams, answers, events, datagrams.
fn programs(daemon: &Daemon, server: &str, client: &str) {
    run(
        daemon,
        server,
        client,
        "ibv_rc_pingpong",
        &["-g", "0", "-n", "200"],
    );
    run(
        daemon,
        server,
        client,
        "ibv_rc_pingpong",
        &["-g", "0", "-n", "200", "-e"],
    );
    run(
        daemon,
        server,
        client,
        "ibv_ud_pingpong",
        &["-g", "0", "-n", "200"],
    );
    let bandwidth = ["-x", "0", "-F", "-n", "300", "-s", "65536", "-q", "2"];
    run(daemon, server, client, "ib_write_bw", &bandwidth);
    run(daemon, server, client, "ib_read_bw", &bandwidth);
    let latency = ["-x", "0", "-F", "-n", "300", "-e"];
    run(daemon, server, client, "ib_send_lat", &latency);
}

#[test]
fn nics_of_different_lcores_talk_and_idle_ones_sleep() {
    let _alone = alone();
    let cpu = roceline::config::allowed_cpus()[0];
    let same = format!("[[lcore]]\ncpu = {cpu}\n[[lcore]]\ncpu = {cpu}\n");
    for text in [TWO, &same] {
        let mut daemon = Daemon::start(&pair(text));
        daemon.quicken();
        let devices: Vec<_> = lcores(&daemon).into_iter().map(|l| l.0).collect();
        assert_eq!(devices, [["roce0"], ["roce1"]]);
        programs(&daemon, "roce0", "roce1");
        programs(&daemon, "roce1", "roce0");
        daemon.expect_empty();
        for device in ["roce0", "roce1"] {
            let sent = counter(&daemon, device, "port_xmit_packets");
            let got = counter(&daemon, device, "port_rcv_packets");
            assert!(sent > 1000 && got > 1000, "{device} {sent} {got}");
        }
        // What another lcore sends wakes a sleeper, so nobody has to look: ten looks in a second besides what asks.
        let before = lcores(&daemon);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let after = lcores(&daemon);
        let passed = begin.elapsed().as_secs() + 1;
        for (before, after) in before.iter().zip(&after) {
            let sleeps = after.1 - before.1;
            assert!(sleeps < 500 * passed, "{before:?} {after:?}");
            assert!(sleeps > 0, "{before:?} {after:?}");
        }
        let ended = daemon.stop();
        ended.expect_ok();
    }
}

#[test]
fn switches_have_an_lcore_of_their_own() {
    let _alone = alone();
    let nic = |n: usize| {
        format!(
            "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.79.0.{}/24\", \"fd79::{}/64\"]\nport = \"fabric:leaf{n}\"\n",
            n + 1,
            n + 1
        )
    };
    let text = format!(
        "[[lcore]]\ncpu = \"any\"\n[[lcore]]\ncpu = \"any\"\n[[lcore]]\ncpu = \"any\"\n{}{}\
         [fabric]\nlcore = 1\nrate = \"10Gb/s\"\ndelay = \"1us\"\n\
         [[fabric.switch]]\nname = [\"leaf0\", \"leaf1\"]\nuplinks = [\"spine\"]\n[[fabric.switch]]\nname = \"spine\"\n",
        nic(0),
        nic(1)
    );
    let mut daemon = Daemon::start(&text);
    daemon.quicken();
    let devices: Vec<_> = lcores(&daemon).into_iter().map(|l| l.0).collect();
    assert_eq!(
        devices,
        [vec!["roce0".to_owned()], vec![], vec!["roce1".into()]]
    );
    programs(&daemon, "roce0", "roce1");
    let fabric = daemon.json(&["show", "fabric"]);
    let switches = fabric["switches"].as_array().expect("`switches` is a list");
    assert_eq!(switches.len(), 3, "{fabric:#}");
    for switch in switches {
        let ports = switch["ports"].as_array().expect("`ports` is a list");
        let queues = ports.iter().flat_map(|p| p["queues"].as_array().unwrap());
        let sent: u64 = queues.map(|q| q["tx_frames"].as_u64().unwrap()).sum();
        assert!(sent > 1000, "{switch:#}");
    }
    // The lcore of the switches sleeps, too, and is woken by what NICs send.
    let before = lcores(&daemon)[1].1;
    wait_for("sleep of the switches", PATIENCE, || {
        lcores(&daemon)[1].1 > before
    });
    run(
        &daemon,
        "roce1",
        "roce0",
        "ibv_rc_pingpong",
        &["-g", "0", "-n", "10"],
    );
}

/// Rules, links, settings, captures and records of failures are with the lcore that has the NIC.
#[test]
fn whatever_is_about_a_nic_reaches_its_lcore() {
    let _alone = alone();
    let daemon = Daemon::start(&pair(TWO));
    let add = |options: &str| {
        let mut arguments = vec!["impair", "add"];
        arguments.extend(options.split(' '));
        daemon.roceline("add", &arguments).expect_ok();
    };
    for nic in ["roce0", "roce1"] {
        add(&format!("--name {nic} --nic {nic} --tx --observe"));
    }
    let file = daemon.dir().join("wire.pcapng");
    let mut capture = std::process::Command::new(roceline());
    capture.args(["capture", "--socket"]).arg(daemon.socket());
    capture.arg("-w").arg(&file);
    let mut capture = Process::start(daemon.dir(), "capture", &mut capture);
    wait_for("capture", PATIENCE, || {
        file.exists() || !capture.is_running()
    });
    let set = ["congestion", "set", "--nic", "roce1", "algorithm=none"];
    daemon.roceline("set", &set).expect_ok();
    run(
        &daemon,
        "roce0",
        "roce1",
        "ibv_rc_pingpong",
        &["-g", "0", "-n", "50"],
    );
    capture.signal(libc::SIGINT);
    capture.finish(PATIENCE).expect_ok();
    let capture = Capture::read(std::fs::File::open(&file).expect("it was written"));
    let listed = daemon.json(&["impair", "list"]);
    for nic in ["roce0", "roce1"] {
        let rules = listed["rules"].as_array().expect("`rules` is a list");
        let rule = rules.iter().find(|rule| rule["name"] == nic).expect(nic);
        assert!(rule["seen"].as_u64() > Some(100), "{listed:#}");
        let packets = capture.packets.iter().filter(|p| p.nic == nic);
        let (sent, got): (Vec<_>, Vec<_>) = packets.partition(|p| p.outbound);
        assert!(sent.len() > 100 && got.len() > 100, "{nic}");
    }
    daemon.roceline("clear", &["impair", "clear"]).expect_ok();

    // A link that goes down at one end is down at the other.
    let ports = daemon.json(&["link", "down", "roce1"]);
    assert_eq!(ports["ports"].as_array().map(Vec::len), Some(2));
    let up = |device: &str| {
        let ports = daemon.json(&["show", "ports"]);
        let ports = ports["ports"].as_array().cloned().unwrap_or_default();
        let port = ports.into_iter().find(|p| p["device"] == device);
        port.expect("the port is there")["state"] == "ACTIVE"
    };
    let all_up = |wanted: bool| {
        let ends = ["roce0", "roce1"].map(up);
        ends.iter().all(|&up| up == wanted)
    };
    wait_for("both ends down", PATIENCE, || all_up(false));
    daemon
        .roceline("link", &["link", "up", "roce1"])
        .expect_ok();
    wait_for("both ends up", PATIENCE, || all_up(true));

    // The end of a queue pair of the second lcore is told, and logged.
    add("--nic roce0 --tx --drop");
    let end = |device| End {
        daemon: &daemon,
        device,
    };
    let options = ["-g", "0", "-n", "50"];
    let failed = Pair::run(
        end("roce0"),
        end("roce1"),
        "ibv_rc_pingpong",
        &options,
        PATIENCE,
    );
    assert!(!failed.ok());
    let mut told = Value::Null;
    wait_for("a record", PATIENCE, || {
        told = daemon.json(&["show", "qp", "--post-mortem"]);
        let records = told["post_mortems"].as_array();
        records.is_some_and(|all| all.iter().any(|record| record["device"] == "roce1"))
    });
    wait_for("a line of the log", PATIENCE, || {
        daemon.log().contains("queue pair failed")
    });
}

#[test]
fn programs_and_workers_die_on_all_lcores() {
    let _alone = alone();
    let mut daemon = Daemon::start(&pair(TWO));
    daemon.quicken();
    let (server, client) = endless(&daemon, "ib_write_bw", &["-x", "0"]);
    wait_for_traffic(&daemon);
    client.signal(libc::SIGKILL);
    server.signal(libc::SIGKILL);
    client.finish(PATIENCE);
    server.finish(PATIENCE);
    daemon.expect_empty();

    let (server, client) = endless(&daemon, "ib_write_bw", &["-x", "0"]);
    wait_for_traffic(&daemon);
    daemon.kill_worker(libc::SIGKILL);
    assert!(!client.finish(PATIENCE).ok());
    assert!(!server.finish(PATIENCE).ok());
    daemon.expect_ready();
    programs(&daemon, "roce0", "roce1");

    let (server, client) = endless(&daemon, "ib_write_bw", &["-x", "0"]);
    wait_for_traffic(&daemon);
    let ended = daemon.stop();
    ended.expect_ok();
    assert!(!client.finish(PATIENCE).ok());
    assert!(!server.finish(PATIENCE).ok());
}

/// Two lcores, both of which serve each NIC of a link.
fn shared() -> String {
    let mut text = pair(TWO);
    for (nic, lcores) in [("roce0", "[0, 1]"), ("roce1", "[1, 0]")] {
        let name = format!("name = \"{nic}\"\n");
        text = text.replace(&name, &format!("{name}lcore = {lcores}\n"));
    }
    text
}

/// By device: how many queue pairs there are on its first part and on its second one.
fn parts(daemon: &Daemon, device: &str) -> [usize; 2] {
    let shown = daemon.json(&["show", "qps"]);
    let qps = shown["qps"].as_array().cloned().unwrap_or_default();
    let of_device = qps.iter().filter(|qp| qp["device"] == device);
    let numbers: Vec<u64> = of_device.filter_map(|qp| qp["qpn"].as_u64()).collect();
    [0, 1].map(|part| numbers.iter().filter(|qpn| *qpn % 2 == part).count())
}

#[test]
fn programs_of_one_nic_are_spread_over_its_lcores() {
    let _alone = alone();
    let mut daemon = Daemon::start(&shared());
    daemon.quicken();
    let devices: Vec<_> = lcores(&daemon).into_iter().map(|l| l.0).collect();
    assert_eq!(devices, [["roce0", "roce1"], ["roce0", "roce1"]]);
    // From each part to each other, and to the NIC itself.
    for _ in 0..2 {
        programs(&daemon, "roce0", "roce1");
        run(
            &daemon,
            "roce0",
            "roce1",
            "ibv_rc_pingpong",
            &["-g", "1", "-n", "50"],
        );
        run(
            &daemon,
            "roce0",
            "roce0",
            "ibv_rc_pingpong",
            &["-g", "0", "-n", "200"],
        );
        run(
            &daemon,
            "roce1",
            "roce1",
            "ib_write_bw",
            &["-x", "0", "-F", "-n", "100"],
        );
    }
    daemon.expect_empty();
    // Nothing was lost on the way from part to part.
    let stat = daemon.json(&["stat"]);
    let mut crossed = 0;
    for device in stat["devices"].as_array().expect("`devices` is a list") {
        assert_eq!(device["port"]["lcore_lost"], 0, "{device:#}");
        assert_eq!(device["port"]["rx_not_ours"], 0, "{device:#}");
        crossed += device["port"]["lcore_crossed"].as_u64().expect("a number");
    }
    assert!(crossed > 1000, "{stat:#}");

    let sources = ["datagram_check.c", "../../verbs-shim/tests/verbs_end.c"];
    let program = compile(daemon.dir(), "datagram_check", &sources);
    for devices in [["roce0", "roce1"], ["roce0", "roce0"]] {
        let [a, b] = devices;
        let arguments = [a, b, "group", "0", "::ffff:239.1.2.3"];
        let ended = daemon.run_program("datagram_check", &program, &arguments);
        ended.expect_ok();
    }
    daemon.expect_empty();

    // Of two contexts that one program opens each lcore has one.
    let holder = daemon.start_program("hold", &program, &["roce0", "roce0", "hold"]);
    wait_for("a queue pair at each part", PATIENCE, || {
        parts(&daemon, "roce0") == [1, 1]
    });
    holder.signal(libc::SIGKILL);
    holder.finish(PATIENCE);
    daemon.expect_empty();

    let first = endless(&daemon, "ib_write_bw", &["-x", "0"]);
    let second = endless(&daemon, "ib_read_bw", &["-x", "0"]);
    wait_for_traffic(&daemon);
    let file = daemon.dir().join("wire.pcapng");
    let path = file.to_str().expect("a plain path");
    let capture = ["capture", "-w", path, "-c", "2000", "--nic", "roce0"];
    daemon.roceline("capture", &capture).expect_ok();
    for (server, client) in [first, second] {
        client.signal(libc::SIGKILL);
        server.signal(libc::SIGKILL);
        client.finish(PATIENCE);
        server.finish(PATIENCE);
    }
    daemon.expect_empty();

    // A link has two ends, however many parts each has.
    daemon
        .roceline("link", &["link", "down", "roce1"])
        .expect_ok();
    let down = |device: &str| counter(&daemon, device, "link_downed");
    wait_for("both ends down", PATIENCE, || {
        down("roce0") == 1 && down("roce1") == 1
    });
    daemon
        .roceline("link", &["link", "up", "roce1"])
        .expect_ok();
    programs(&daemon, "roce0", "roce1");
    // Its parts pause as one, tests/pfc.rs.
    daemon
        .roceline(
            "set",
            &["congestion", "set", "--nic", "roce0", "pfc.mode=pfc"],
        )
        .expect_ok();
    daemon.stop().expect_ok();
}

/// A queue of the port for each lcore: what comes by the wrong one crosses.
#[test]
fn a_port_of_several_queues_has_one_for_each_lcore() {
    let _alone = alone();
    let dir = TempDir::new();
    let socket = dir.path().join("vhost.sock");
    let path = socket.to_str().expect("a plain path");
    let nic = |own: u8, lcores: &str, port: &str| {
        format!(
            "[eal]\nhugepages = \"never\"\n{TWO}[[nic]]\nname = \"roce0\"\naddresses = [\"10.79.1.{own}/24\"]\n\
             lcore = {lcores}\nport = \"vdev:{port}\"\n"
        )
    };
    let host = format!("net_vhost0,iface={path},queues=2");
    let guest = format!(
        "net_virtio_user0,path={path},queues=2,queue_size=256,packed_vq=1,mac=02:00:00:00:00:09"
    );
    let left = Daemon::start(&nic(1, "[0, 1]", &host));
    let right = Daemon::start(&nic(2, "[1, 0]", &guest));
    for daemon in [&left, &right] {
        let log = daemon.log();
        assert!(log.contains("part 2 of 2"), "{log}");
        assert!(!log.contains("by the queue of part 1"), "{log}");
        wait_for("link", PATIENCE, || {
            daemon.json(&["show", "ports"])["ports"][0]["state"] == "ACTIVE"
        });
    }
    let end = |daemon| End {
        daemon,
        device: "roce0",
    };
    for _ in 0..2 {
        for (program, options) in [
            (
                "ibv_rc_pingpong",
                &["-g", "0", "-n", "200", "-m", "1024"][..],
            ),
            (
                "ib_write_bw",
                &["-x", "0", "-F", "-n", "200", "-s", "65536", "-m", "1024"],
            ),
        ] {
            let run = Pair::run(end(&left), end(&right), program, options, PATIENCE);
            assert!(run.ok(), "{}{}{}", run.report(), left.log(), right.log());
        }
    }
}
