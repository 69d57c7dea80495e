//! Switches of the daemon with real programs.

mod support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use support::capture::Capture;
use support::daemon::Daemon;
use support::pair::{End, Pair, endless};
use support::{PATIENCE, alone, compile, wait_for};

/// NICs roce0 and on, each on the switch named.
fn nics(switches: &[&str]) -> String {
    let nic = |(n, switch): (usize, &&str)| {
        format!(
            "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.78.0.{}/24\", \"fd78::{}/64\"]\nport = \"fabric:{switch}\"\n",
            n + 1,
            n + 1
        )
    };
    switches.iter().enumerate().map(nic).collect()
}

#[track_caller]
fn run(daemon: &Daemon, server: &str, client: &str, program: &str, arguments: &[&str]) {
    let end = |device| End { daemon, device };
    let run = Pair::run(end(server), end(client), program, arguments, PATIENCE);
    assert!(run.ok(), "{arguments:?}: {}{}", run.report(), daemon.log());
}

/// The sum of a number of all queues, or those of one switch and its port to `peer`.
fn sum(fabric: &Value, switch: &str, peer: &str, name: &str) -> u64 {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let matches = |value: &Value, wanted: &str| wanted.is_empty() || *value == wanted;
    let switches = list(&fabric["switches"]).into_iter();
    let ports = switches
        .filter(|s| matches(&s["name"], switch))
        .flat_map(|s| list(&s["ports"]));
    let queues = ports
        .filter(|p| matches(&p["peer"], peer))
        .flat_map(|p| list(&p["queues"]));
    queues.map(|q| q[name].as_u64().expect(name)).sum()
}

/// What a switch counts of what it has not sent.
const LOST: [&str; 5] = [
    "dropped",
    "rx_dropped",
    "unroutable",
    "dropped_not_ect",
    "dropped_storm",
];

/// The fabric once all is quiet: whatever came has left or was dropped.
#[track_caller]
fn expect_conserved(daemon: &Daemon) -> Value {
    let mut fabric = Value::Null;
    // The switches of several lcores are not asked at the same moment.
    wait_for("a quiet fabric", PATIENCE, || {
        fabric = daemon.json(&["show", "fabric"]);
        let all = |name| sum(&fabric, "", "", name);
        let lost: u64 = LOST.into_iter().map(all).sum();
        all("depth") == 0 && all("rx_frames") == all("tx_frames") + lost
    });
    assert_eq!(sum(&fabric, "", "", "held"), 0, "{fabric:#}");
    fabric
}

/// The same, and nothing was dropped: nothing is where one thread polls all NICs and switches, as it cannot fall behind itself.
#[track_caller]
fn expect_nothing_lost(daemon: &Daemon) {
    let fabric = expect_conserved(daemon);
    for lost in LOST {
        assert_eq!(sum(&fabric, "", "", lost), 0, "{lost} {fabric:#}");
    }
}

#[test]
fn a_star_joins_any_number_of_nics() {
    let _alone = alone();
    let mut daemon = Daemon::start(&(nics(&["tor"; 3]) + "[[fabric.switch]]\nname = \"tor\"\n"));
    daemon.quicken();
    for (server, client) in [
        ("roce0", "roce1"),
        ("roce1", "roce2"),
        ("roce2", "roce0"),
        ("roce1", "roce1"),
    ] {
        let options = ["-g", "0", "-n", "200"];
        run(&daemon, server, client, "ibv_rc_pingpong", &options);
        let options = ["-x", "1", "-F", "-n", "200", "-s", "65536"];
        run(&daemon, server, client, "ib_write_bw", &options);
    }
    expect_nothing_lost(&daemon);
    let fabric = daemon.json(&["show", "fabric"]);
    for peer in ["roce0", "roce1", "roce2"] {
        assert!(sum(&fabric, "tor", peer, "tx_frames") > 400, "{fabric:#}");
    }
    let shown = daemon.roceline("show", &["show", "fabric"]);
    shown.expect_ok();
}

/// The groups of `datagram_check` are on two NICs; the third one gets the copies and has no use for them.
#[test]
fn what_is_for_a_group_goes_to_all_and_round_no_circle() {
    let _alone = alone();
    let daemon = Daemon::start(
        &(nics(&["leaf0", "leaf1", "leaf1"])
            + "[[fabric.switch]]\nname = [\"leaf0\", \"leaf1\"]\nuplinks = [\"spine0\", \"spine1\"]\n\
               [[fabric.switch]]\nname = [\"spine0\", \"spine1\"]\n"),
    );
    let sources = ["datagram_check.c", "../../verbs-shim/tests/verbs_end.c"];
    let program = compile(daemon.dir(), "datagram_check", &sources);
    let arguments = ["roce0", "roce1", "group", "0", "::ffff:239.1.2.3"];
    let ended = daemon.run_program("datagram_check", &program, &arguments);
    ended.expect_ok();
    wait_for("copies", PATIENCE, || {
        let fabric = daemon.json(&["show", "fabric"]);
        let sent = |peer| sum(&fabric, "leaf1", peer, "tx_frames");
        sent("roce2") > 0 && sent("roce2") == sent("roce1")
    });
}

#[test]
fn leaves_and_spines_share_flows_among_equal_ways() {
    let _alone = alone();
    let mut daemon = Daemon::start(
        &(nics(&["leaf0", "leaf1"])
            + "[fabric]\nrate = \"2Gb/s\"\ndelay = \"2us\"\n\
               [[fabric.switch]]\nname = [\"leaf0\", \"leaf1\"]\nuplinks = [\"spine0\", \"spine1\"]\n\
               [[fabric.switch]]\nname = [\"spine0\", \"spine1\"]\n"),
    );
    daemon.quicken();
    for _ in 0..6 {
        let options = ["-x", "0", "-F", "-n", "100", "-s", "65536", "-q", "4"];
        run(&daemon, "roce0", "roce1", "ib_write_bw", &options);
        let fabric = daemon.json(&["show", "fabric"]);
        let by = |spine| sum(&fabric, spine, "leaf0", "tx_bytes");
        if by("spine0") > 100_000 && by("spine1") > 100_000 {
            expect_nothing_lost(&daemon);
            return;
        }
    }
    panic!(
        "six times four flows took one way: {:#}",
        daemon.json(&["show", "fabric"])
    );
}

/// No faster than the rate, over any time; how much slower is up to the machine.
#[test]
fn a_shaped_port_has_its_rate() {
    let _alone = alone();
    let daemon = Daemon::start(
        &(nics(&["tor", "tor"]) + "[fabric]\nrate = \"200Mb/s\"\nswitch = [{ name = \"tor\" }]\n"),
    );
    let _ends = endless(&daemon, "ib_write_bw", &["-x", "0"]);
    let look = || {
        let fabric = daemon.json(&["show", "fabric"]);
        let (bytes, frames) = (
            sum(&fabric, "tor", "roce0", "tx_bytes"),
            sum(&fabric, "tor", "roce0", "tx_frames"),
        );
        // Preamble and gap; FCS is in the bytes.
        bytes + 20 * frames
    };
    wait_for("traffic", PATIENCE, || look() > 100_000);
    let before = Instant::now();
    let first = look();
    let between = Instant::now();
    wait_for("20 MB of it", PATIENCE * 4, || {
        sleep(Duration::from_millis(100));
        look() > first + 20_000_000
    });
    let sent = (look() - first) as f64 * 8.0;
    let rate = sent / before.elapsed().as_secs_f64();
    // What was asked for first was seen between `before` and `between`; a frame may be under way.
    let slack = 1.01 + 2.0 * (between - before).as_secs_f64() / before.elapsed().as_secs_f64();
    assert!(rate < 200e6 * slack, "{rate} b/s");
    let fabric = daemon.json(&["show", "fabric"]);
    for lost in ["dropped", "rx_dropped", "unroutable"] {
        assert_eq!(sum(&fabric, "", "", lost), 0, "{lost} {fabric:#}");
    }
}

/// `roceline stat` has the ports of switches beside the NICs, and with `--watch` how fast queue pairs are.
#[test]
fn switch_ports_have_counters_and_queue_pairs_rates() {
    let _alone = alone();
    let daemon = Daemon::start(
        &(nics(&["tor", "tor"]) + "[fabric]\nrate = \"100Mb/s\"\nswitch = [{ name = \"tor\" }]\n"),
    );
    let _ends = endless(&daemon, "ib_write_bw", &["-x", "0", "-s", "65536"]);
    let counters = |daemon: &Daemon| {
        let stat = daemon.json(&["stat"]);
        let switches = stat["switches"].as_array().cloned().unwrap_or_default();
        let names: Vec<_> = switches.iter().map(|s| s["name"].clone()).collect();
        assert_eq!(names, ["tor:roce0", "tor:roce1"], "{stat:#}");
        let of = |n: usize, name: &str| switches[n]["port"][name].as_u64().unwrap_or(0);
        [of(0, "tx_prio0_bytes"), of(1, "rx_prio0_bytes")]
    };
    wait_for("traffic", PATIENCE, || {
        let [left, came] = counters(&daemon);
        left > 100_000 && came >= left
    });
    let table = daemon.roceline("stat", &["stat"]).expect_ok();
    assert!(table.stdout.contains("tor:roce1"), "{}", table.stdout);
    let watch = daemon.start_roceline("watch", &["stat", "--watch", "--json"]);
    let rates = || -> Option<Value> {
        let (stdout, _) = watch.output();
        let lines = stdout
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut rates =
            lines.flat_map(|line| line["qp_rates"].as_array().cloned().unwrap_or_default());
        rates.find(|rate| rate["device"] == "roce1" && rate["sent"].as_u64() > Some(1_000_000))
    };
    wait_for("a rate", PATIENCE, || rates().is_some());
    let rate = rates().expect("it was there");
    assert_eq!(rate["allowed"], 100_000_000, "{rate}");
    // A look is a second and more apart from the next; what was counted in between is not that exact.
    assert!(rate["sent"].as_u64() < Some(250_000_000), "{rate}");
}

/// Two switches that two polling threads have; captures are at ports of both.
#[test]
fn switches_of_two_lcores_forward_and_are_captured() {
    let _alone = alone();
    let daemon = Daemon::start(
        &(nics(&["leaf0", "leaf1"])
            + "[[lcore]]\n[[lcore]]\n[fabric]\nrate = \"1Gb/s\"\n\
               [[fabric.switch]]\nname = \"leaf0\"\nuplinks = \"leaf1\"\n[[fabric.switch]]\nname = \"leaf1\"\n"),
    );
    for (wrong, says) in [
        ("spine", "switch \"spine\": there is none"),
        ("leaf0.port2", "no such port of it"),
        ("leaf0.roce1", "SWITCH.PEER"),
    ] {
        let refused = daemon.roceline("capture", &["capture", "-w", "-", "--switch", wrong]);
        assert!(
            !refused.ok() && refused.report().contains(says),
            "{}",
            refused.report()
        );
    }
    let file = daemon.dir().join("switches.pcapng");
    let path = file.to_str().expect("UTF-8");
    let switches = ["--switch", "leaf0.leaf1", "--switch", "leaf1"];
    let arguments = [&["capture", "-w", path][..], &switches].concat();
    let mut capture = daemon.start_roceline("capture", &arguments);
    wait_for("capture", PATIENCE, || {
        capture
            .output()
            .1
            .contains("capturing leaf0.port1, leaf1.port0, leaf1.port1")
            || !capture.is_running()
    });
    let options = ["-x", "0", "-F", "-n", "200", "-s", "65536"];
    run(&daemon, "roce0", "roce1", "ib_write_bw", &options);
    run(
        &daemon,
        "roce1",
        "roce0",
        "ibv_rc_pingpong",
        &["-g", "0", "-n", "200"],
    );
    // A thread that stands still while the other goes on finds more frames than its buffers hold at this rate.
    expect_conserved(&daemon);
    capture.signal(libc::SIGINT);
    capture.finish(PATIENCE).expect_ok();
    let capture = Capture::read(std::fs::File::open(&file).expect("it was written"));
    let fabric = daemon.json(&["show", "fabric"]);
    let lcores: Vec<_> = (0..2)
        .map(|n| fabric["switches"][n]["lcore"].as_u64())
        .collect();
    assert_eq!(lcores, [Some(0), Some(1)], "{fabric:#}");
    for (port, switch, peer) in [
        ("leaf0.port1", "leaf0", "leaf1"),
        ("leaf1.port0", "leaf1", "roce1"),
        ("leaf1.port1", "leaf1", "leaf0"),
    ] {
        for (outbound, frames) in [(true, "tx_frames"), (false, "rx_frames")] {
            let there = capture.packets.iter().filter(|packet| {
                // Pause frames are of no queue.
                packet.nic == port
                    && packet.outbound == outbound
                    && packet.data[12..14] != [0x88, 0x08]
            });
            let counted = sum(&fabric, switch, peer, frames);
            assert!(counted > 200, "{fabric:#}");
            assert_eq!(there.count() as u64, counted, "{port} {frames}: {fabric:#}");
        }
    }
}
