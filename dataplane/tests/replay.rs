//! `roceline replay` with the distribution's programs: what a NIC is given again it treats as what it is, and the
//! programs notice nothing.

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use serde_json::Value;
use support::capture::Capture;
use support::daemon::Daemon;
use support::process::Process;
use support::{PATIENCE, alone, free_port, listening, wait_for};

/// A pingpong that goes on until it is dropped; its messages are of one packet.
struct Traffic {
    server: Process,
    client: Process,
}

impl Traffic {
    #[track_caller]
    fn start(daemon: &Daemon) -> Traffic {
        Traffic::of(daemon, "ibv_rc_pingpong", &["-c"])
    }

    #[track_caller]
    fn of(daemon: &Daemon, program: &str, options: &[&str]) -> Traffic {
        let port = free_port().to_string();
        let common = ["-g", "0", "-s", "64", "-n", "1000000000", "-p", &port];
        let common = [&common[..], options].concat();
        let own = [&common[..], &["-d", "roce0"]].concat();
        let server = daemon.start_program("server", program, &own);
        wait_for("listening server", PATIENCE, || {
            listening(port.parse().expect("a number"))
        });
        let own = [&common[..], &["-d", "roce1", "127.0.0.1"]].concat();
        let client = daemon.start_program("client", program, &own);
        let traffic = Traffic { server, client };
        traffic.expect_progress(daemon);
        traffic
    }

    /// Stops the programs; their queue pairs stay. Returns once their NICs have nothing more to say to each other.
    #[track_caller]
    fn pause(&self, daemon: &Daemon) {
        for process in [&self.server, &self.client] {
            process.signal(libc::SIGSTOP);
        }
        // A NIC that waits for an acknowledgement sends again after 67 ms (timeout 14), or four times that at most.
        const QUIET: Duration = Duration::from_millis(500);
        let packets = || daemon.json(&["stat"])["devices"].to_string();
        let (mut last, mut since) = (packets(), Instant::now());
        wait_for("quiet NICs", PATIENCE, || {
            let now = packets();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() > QUIET
        });
    }

    fn resume(&self) {
        for process in [&self.server, &self.client] {
            process.signal(libc::SIGCONT);
        }
    }

    #[track_caller]
    fn expect_progress(&self, daemon: &Daemon) {
        let packets = || {
            let stat = daemon.json(&["stat"]);
            stat["devices"][0]["counters"]["port_rcv_packets"]
                .as_u64()
                .expect("a number")
        };
        let before = packets();
        wait_for("traffic", PATIENCE, || packets() > before + 200);
    }
}

#[track_caller]
fn capture(daemon: &Daemon, name: &str, arguments: &[&str]) -> PathBuf {
    let file = daemon.dir().join(name);
    let all = [&["capture", "-w", file.to_str().expect("UTF-8")], arguments].concat();
    daemon.roceline("capture", &all).expect_ok();
    file
}

#[track_caller]
fn replay(daemon: &Daemon, file: &Path, arguments: &[&str]) -> Value {
    let all = [&["replay", "-r", file.to_str().expect("UTF-8")], arguments].concat();
    daemon.json(&all)
}

/// The same file with a bit of each packet's last byte in front of the ICRC turned over.
fn spoiled(file: &Path) -> PathBuf {
    let mut reader = PcapNgReader::new(File::open(file).unwrap()).unwrap();
    let path = file.with_extension("spoiled.pcapng");
    let section = reader.section().clone();
    let out = File::create(&path).unwrap();
    let mut writer = PcapNgWriter::with_section_header(out, section).unwrap();
    while let Some(block) = reader.next_block() {
        let mut block = block.unwrap().into_owned();
        if let Block::EnhancedPacket(packet) = &mut block {
            let data = packet.data.to_mut();
            let at = data.len() - 5;
            data[at] ^= 1;
        }
        writer.write_block(&block).unwrap();
    }
    path
}

#[test]
fn requests_that_come_again_are_duplicates_and_change_nothing() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let mut traffic = Traffic::start(&daemon);
    let choice = ["--nic", "roce1", "--rx", "--class", "send", "--count", "20"];
    let file = capture(&daemon, "sends.pcapng", &choice);
    let to_roce1 = ["--nic", "roce1", "--speed", "max"];
    traffic.pause(&daemon);

    let outcome = replay(&daemon, &file, &to_roce1);
    assert_eq!(
        (&outcome["read"], &outcome["sent"]),
        (&20.into(), &20.into())
    );
    assert_eq!(outcome["counters"]["duplicate_request"], 20, "{outcome}");

    // The other pace, fewer of them, and by a condition.
    let outcome = replay(
        &daemon,
        &file,
        &["--nic", "roce1", "--count", "7", "--speed", "x100"],
    );
    assert_eq!(
        (&outcome["sent"], &outcome["counters"]["duplicate_request"]),
        (&7.into(), &7.into())
    );
    // Nothing that fits is no success.
    for (arguments, reason) in [
        (["--class", "ack"], "20 do not meet the conditions"),
        (["--direction", "sent"], "--direction any"),
        (
            ["--interface", "foo"],
            "no interface foo, so nothing was replayed: it has roce1",
        ),
    ] {
        let file = file.to_str().expect("UTF-8");
        let all = [&["replay", "-r", file, "--nic", "roce1"], &arguments[..]].concat();
        let ended = daemon.roceline("nothing", &all);
        assert_eq!(ended.status.code(), Some(1), "{}", ended.report());
        assert!(ended.stderr.contains(reason), "{}", ended.report());
    }

    // A wrong ICRC is not mended.
    let outcome = replay(&daemon, &spoiled(&file), &to_roce1);
    assert_eq!(outcome["counters"]["rx_icrc_encapsulated"], 20, "{outcome}");
    assert!(
        outcome["counters"]["duplicate_request"].is_null(),
        "{outcome}"
    );

    // They are not roce0's: neither its address nor its QP.
    let wrong = ["--nic", "roce0", "--speed", "max", "--direction", "any"];
    let outcome = replay(&daemon, &file, &wrong);
    assert_eq!(outcome["counters"]["rx_not_ours"], 20, "{outcome}");

    // With other names they are, but come from nobody whom its QP knows.
    let names = ["--map-ip", "10.77.0.2=10.77.0.1"];
    let outcome = replay(&daemon, &file, &[&wrong[..], &names].concat());
    assert_eq!(outcome["changed"], 20);
    assert!(outcome["counters"]["rx_not_ours"].is_null(), "{outcome}");
    assert!(
        outcome["counters"]["rx_icrc_encapsulated"].is_null(),
        "sealed anew: {outcome}"
    );

    traffic.resume();
    traffic.expect_progress(&daemon);
    assert!(traffic.client.is_running());
}

/// A datagram has no number that would tell it from its copy: what comes again is delivered again.
#[test]
fn datagrams_that_come_again_are_delivered_again() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let received = || {
        let stat = daemon.json(&["stat"]);
        let counters = &stat["devices"][1]["counters"];
        counters["unicast_rcv_packets"].as_u64().expect("a counter")
    };
    let again = |n| {
        let traffic = Traffic::of(&daemon, "ibv_ud_pingpong", &[]);
        let choice = ["--nic", "roce1", "--rx", "--class", "send", "--count", "20"];
        let file = capture(&daemon, &format!("datagrams-{n}.pcapng"), &choice);
        traffic.pause(&daemon);
        let before = received();
        let outcome = replay(&daemon, &file, &["--nic", "roce1", "--speed", "max"]);
        (traffic, file, before, outcome)
    };
    // The program posts its 500 receives anew when there is one left, and may have been stopped with fewer than these take: then
    // another one is.
    let (mut traffic, file, before, outcome) = {
        let mut attempts = (0..5).map(again);
        let enough = attempts.find(|(.., outcome)| outcome["counters"]["out_of_buffer"].is_null());
        enough.expect("one of five programs has 20 receives left when it is stopped")
    };
    assert_eq!(outcome["sent"], 20, "{outcome}");
    for wrong in [
        "rx_qkey_violations",
        "rx_unknown_qp",
        "rx_icrc_encapsulated",
    ] {
        assert!(outcome["counters"][wrong].is_null(), "{outcome}");
    }
    assert_eq!(received(), before + 20);
    // One that was changed on its way is not.
    let outcome = replay(
        &daemon,
        &spoiled(&file),
        &["--nic", "roce1", "--speed", "max"],
    );
    assert_eq!(outcome["counters"]["rx_icrc_encapsulated"], 20, "{outcome}");
    traffic.resume();
    traffic.expect_progress(&daemon);
    assert!(traffic.client.is_running());
}

#[test]
fn a_replay_is_seen_by_captures_and_impairments() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let traffic = Traffic::start(&daemon);
    let choice = ["--nic", "roce1", "--rx", "--count", "10"];
    let file = capture(&daemon, "ten.pcapng", &choice);
    drop(traffic);
    daemon.expect_empty();
    let rule = [
        "impair", "add", "--nic", "roce1", "--rx", "--drop", "--skip", "4",
    ];
    daemon.roceline("rule", &rule).expect_ok();
    let again = daemon.dir().join("again.pcapng");
    let arguments = [
        "capture",
        "-w",
        again.to_str().expect("UTF-8"),
        "--count",
        "10",
    ];
    let mut command = std::process::Command::new(support::roceline());
    command.args(arguments).arg("--socket").arg(daemon.socket());
    let process = Process::start(daemon.dir(), "again", &mut command);
    wait_for("running capture", PATIENCE, || {
        process.output().1.contains("capturing")
    });
    let outcome = replay(&daemon, &file, &["--nic", "roce1", "--speed", "max"]);
    assert_eq!(outcome["sent"], 10);
    assert_eq!(
        outcome["counters"]["port_rcv_packets"], 4,
        "the rule drops the others: {outcome}"
    );
    process.finish(PATIENCE).expect_ok();
    let packets = |path: &Path| {
        let packets = Capture::open(path).packets.into_iter();
        packets.map(|packet| packet.data).collect::<Vec<_>>()
    };
    assert_eq!(packets(&again), packets(&file));
}

/// However many they are: more than the NIC takes in at a time.
#[test]
fn all_that_a_rule_held_back_goes_on_when_the_rule_goes() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let traffic = Traffic::start(&daemon);
    let choice = ["--nic", "roce1", "--rx", "--count", "200"];
    let file = capture(&daemon, "held.pcapng", &choice);
    drop(traffic);
    daemon.expect_empty();
    let rule = ["impair", "add", "--nic", "roce1", "--rx", "--delay", "60s"];
    daemon.roceline("rule", &rule).expect_ok();
    let strangers = || {
        let stat = daemon.json(&["stat"]);
        let counters = &stat["devices"][1]["hw_counters"];
        counters["rx_unknown_qp"].as_u64().expect("a counter")
    };
    let before = strangers();
    for _ in 0..9 {
        replay(&daemon, &file, &["--nic", "roce1", "--speed", "max"]);
    }
    let held = &daemon.json(&["impair", "list"])["places"][0]["held"];
    assert_eq!((held, strangers()), (&1800.into(), before));
    daemon.roceline("clear", &["impair", "clear"]).expect_ok();
    wait_for("release of what was held", PATIENCE, || {
        strangers() == before + 1800
    });
    let places = &daemon.json(&["impair", "list"])["places"];
    assert_eq!(places.as_array().map(Vec::len), Some(0), "{places}");
}

#[test]
fn an_interrupted_replay_says_what_it_did() {
    use std::os::unix::process::CommandExt;
    let _alone = alone();
    let daemon = Daemon::pair();
    let traffic = Traffic::start(&daemon);
    let file = capture(
        &daemon,
        "slow.pcapng",
        &["--nic", "roce1", "--rx", "--count", "10"],
    );
    drop(traffic);
    let mut command = std::process::Command::new(support::roceline());
    command.args([
        "replay",
        "--nic",
        "roce1",
        "--json",
        "--speed",
        "x0.0000001",
        "-r",
    ]);
    command.arg(&file).arg("--socket").arg(daemon.socket());
    // SAFETY: between fork and exec, and `signal` is one of the functions that may be called there.
    unsafe {
        command.pre_exec(|| {
            // As a shell does with what a script starts in the background.
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            Ok(())
        });
    }
    let received = || {
        let stat = daemon.json(&["stat"]);
        stat["devices"][1]["counters"]["port_rcv_packets"].as_u64()
    };
    let before = received();
    let process = Process::start(daemon.dir(), "slow", &mut command);
    wait_for("first packet", PATIENCE, || received() > before);
    process.signal(libc::SIGINT);
    let ended = process.finish(PATIENCE).expect_ok();
    let outcome: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(outcome["interrupted"], true);
    let sent = outcome["sent"].as_u64().expect("a number");
    assert!((1..10).contains(&sent), "{outcome}");
}

#[test]
fn what_cannot_be_replayed_is_told() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let traffic = Traffic::start(&daemon);
    let file = capture(&daemon, "whole.pcapng", &["--count", "5"]);
    let cut = capture(&daemon, "cut.pcapng", &["--count", "5", "--snaplen", "64"]);
    drop(traffic);
    let (file, cut) = (file.to_str().expect("UTF-8"), cut.to_str().expect("UTF-8"));
    let config = daemon.dir().join("config.toml");
    let empty = daemon.dir().join("empty.pcapng");
    File::create(&empty).expect("the directory is ours");
    for (arguments, reason) in [
        (&["-r", file][..], "name one of roce0, roce1 with --nic"),
        (&["-r", file, "--nic", "mlx5_0"], "there is no NIC mlx5_0"),
        (&["-r", cut, "--nic", "roce0"], "capture without --snaplen"),
        (
            &["-r", config.to_str().expect("UTF-8"), "--nic", "roce0"],
            "neither pcap nor pcapng",
        ),
        (
            &["-r", empty.to_str().expect("UTF-8"), "--nic", "roce0"],
            "the file is empty",
        ),
        (&["-r", "/no/such/file", "--nic", "roce0"], "No such file"),
        (
            &["-r", file, "--nic", "roce0", "--class", "midle"],
            "middle",
        ),
    ] {
        let ended = daemon.roceline("refused", &[&["replay"], arguments].concat());
        assert_eq!(ended.status.code(), Some(1), "{}", ended.report());
        assert!(ended.stderr.contains(reason), "{}", ended.report());
    }
}
