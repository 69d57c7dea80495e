//! `roceline capture` with the distribution's programs: what one NIC sent is what the other received, byte for byte, and
//! whoever looks on costs the programs nothing.

mod impaired;
mod reads;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use roceline_engine::wire::{Opcode, icrc, parse};
use support::capture::Capture;
use support::daemon::Daemon;
use support::pair::{End, Pair};
use support::process::Process;
use support::{PATIENCE, alone, roceline, wait_for};

/// Starts a capture and waits until the tap is in place.
#[track_caller]
fn start(daemon: &Daemon, name: &str, arguments: &[&str]) -> Process {
    let mut command = Command::new(roceline());
    command.arg("capture").args(arguments);
    command.arg("--socket").arg(daemon.socket());
    let mut process = Process::start(daemon.dir(), name, &mut command);
    wait_for("running capture", PATIENCE, || {
        process.output().1.contains("capturing") || !process.is_running()
    });
    process
}

fn path(daemon: &Daemon, name: &str) -> String {
    let path = daemon.dir().join(name);
    path.to_str().expect("temporary paths are UTF-8").into()
}

/// A pingpong between the two NICs, with the bytes checked.
#[track_caller]
fn pingpong(daemon: &Daemon, options: &[&str]) {
    let end = |device| End { daemon, device };
    let mut all = vec!["-c"];
    all.extend(options);
    let run = Pair::run(
        end("roce0"),
        end("roce1"),
        "ibv_rc_pingpong",
        &all,
        PATIENCE,
    );
    assert!(run.ok(), "{}{}", run.report(), daemon.log());
}

/// A transport counter of a NIC.
#[track_caller]
fn counter(daemon: &Daemon, nic: usize, name: &str) -> u64 {
    let stat = daemon.json(&["stat"]);
    let device = &stat["devices"][nic];
    let value = &device["hw_counters"][name];
    let value = if value.is_null() {
        &device["counters"][name]
    } else {
        value
    };
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no counter {name} in {stat}"))
}

#[track_caller]
fn expect_no_loss(daemon: &Daemon) {
    for nic in 0..2 {
        for name in [
            "out_of_sequence",
            "packet_seq_err",
            "local_ack_timeout_err",
            "implied_nak_seq_err",
            "rx_icrc_encapsulated",
        ] {
            assert_eq!(counter(daemon, nic, name), 0, "{name} of roce{nic}");
        }
    }
}

#[test]
fn what_one_nic_sends_the_other_receives() {
    let _alone = alone();
    let daemon = Daemon::pair();
    // Beside the capture of all there is one of a NIC's sent heads.
    let all = path(&daemon, "all.pcapng");
    let heads = path(&daemon, "heads.pcapng");
    let whole = start(&daemon, "whole", &["-w", &all]);
    let options = ["-w", &heads, "--nic", "roce1", "--tx", "--snaplen", "64"];
    let part = start(&daemon, "part", &options);
    pingpong(&daemon, &["-g", "0", "-n", "200"]);
    pingpong(
        &daemon,
        &["-g", "1", "-n", "50", "-s", "9000", "-m", "4096"],
    );
    for process in [whole, part] {
        process.signal(libc::SIGINT);
        process.finish(PATIENCE).expect_ok();
    }

    let capture = Capture::open(Path::new(&all));
    for (from, to) in [("roce0", "roce1"), ("roce1", "roce0")] {
        let sent = capture.of(from, true);
        // 200 messages of 4 packets, 50 of 3, and ACKs.
        assert!(sent.len() > 950, "{}", sent.len());
        assert_eq!(sent, capture.of(to, false));
        let (seen, lost, delivered) = capture.counts[from];
        assert_eq!((seen, lost), (delivered, 0));
    }
    let mut versions = [0, 0];
    for packet in &capture.packets {
        assert_eq!(packet.original_len as usize, packet.data.len());
        let parsed = parse(&packet.data).expect("only RoCE is on this wire");
        assert!(icrc::verify(&packet.data, &parsed));
        versions[usize::from(parsed.packet.src.ipv4().is_none())] += 1;
    }
    assert!(versions[0] > 0 && versions[1] > 0);
    assert!(capture.packets.is_sorted_by_key(|packet| packet.time));
    let age = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH + capture.packets[0].time)
        .expect("the first packet is not of the future");
    assert!(age < 10 * PATIENCE, "{age:?}");

    let capture_of_heads = Capture::open(Path::new(&heads));
    let sent: Vec<&[u8]> = capture.of("roce1", true);
    let cut: Vec<&[u8]> = sent
        .iter()
        .map(|data| &data[..data.len().min(64)])
        .collect();
    assert_eq!(capture_of_heads.of("roce1", true), cut);
    assert_eq!(capture_of_heads.packets.len(), cut.len());
    for (packet, data) in capture_of_heads.packets.iter().zip(&sent) {
        assert_eq!(packet.original_len as usize, data.len());
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(&all).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "payload is for the owner only");
}

#[test]
fn a_nic_that_talks_to_itself_is_seen_both_ways() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let file = path(&daemon, "self.pcapng");
    let process = start(&daemon, "self", &["-w", &file, "--nic", "roce0"]);
    let end = End {
        daemon: &daemon,
        device: "roce0",
    };
    let options = ["-g", "0", "-c", "-n", "50"];
    let run = Pair::run(end, end, "ibv_rc_pingpong", &options, PATIENCE);
    assert!(run.ok(), "{}", run.report());
    process.signal(libc::SIGTERM);
    process.finish(PATIENCE).expect_ok();
    let capture = Capture::open(Path::new(&file));
    let (sent, received) = (capture.of("roce0", true), capture.of("roce0", false));
    assert!(sent.len() >= 2 * 50 * 4);
    assert_eq!(sent, received);
}

#[test]
fn a_count_and_a_duration_end_it() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let file = path(&daemon, "ten.pcapng");
    let mut process = start(&daemon, "ten", &["-w", &file, "--count", "10", "--rx"]);
    assert!(process.is_running());
    pingpong(&daemon, &["-g", "0", "-n", "50"]);
    process.finish(PATIENCE).expect_ok();
    let capture = Capture::open(Path::new(&file));
    assert_eq!(capture.packets.len(), 10);
    assert!(capture.packets.iter().all(|packet| !packet.outbound));

    let none = path(&daemon, "none.pcapng");
    let ended = daemon.roceline("short", &["capture", "-w", &none, "--duration", "0.1"]);
    assert!(ended.expect_ok().stderr.contains("0 packets written"));
    let capture = Capture::open(Path::new(&none));
    assert_eq!(capture.counts.len(), 2, "a file without packets is whole");
}

#[test]
fn what_is_refused_says_why_and_leaves_no_file() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let file = path(&daemon, "refused.pcapng");
    for (arguments, reason) in [
        (&["--nic", "mlx5_0"][..], "roceline show devices"),
        (&["--snaplen", "10"], "snaplen 10 is out of range"),
        (&["--last", "100000000"], "keep fewer packets"),
    ] {
        let all = [&["capture", "-w", &file], arguments].concat();
        let ended = daemon.roceline("refused", &all);
        assert_eq!(ended.status.code(), Some(1));
        assert!(ended.stderr.contains(reason), "{}", ended.report());
        assert!(!Path::new(&file).exists());
    }
    let taps: Vec<Process> = (0..4)
        .map(|n| {
            let own = path(&daemon, &format!("{n}.pcapng"));
            start(&daemon, &format!("tap{n}"), &["-w", &own])
        })
        .collect();
    let fifth = daemon.roceline("fifth", &["capture", "-w", &file, "--duration", "1"]);
    assert!(
        fifth.stderr.contains("4 captures are running already"),
        "{}",
        fifth.report()
    );
    // One that is killed gives its place back.
    taps[0].signal(libc::SIGKILL);
    wait_for("free place", PATIENCE, || {
        daemon
            .roceline("again", &["capture", "-w", &file, "--duration", "0.01"])
            .ok()
    });
    let missing = daemon.dir().join("no/such/dir.pcapng");
    let arguments = [
        "capture",
        "-w",
        missing.to_str().unwrap(),
        "--duration",
        "1",
    ];
    drop(taps);
    wait_for("free place", PATIENCE, || {
        let ended = daemon.roceline("missing", &arguments);
        assert!(!ended.stderr.contains("capturing"), "{}", ended.report());
        ended.stderr.contains("No such file or directory")
    });
    // Not when the queue pair that is waited for has failed, and its packets are lost.
    let waiting = ["capture", "-w", arguments[2], "--last", "10"];
    let ended = daemon.roceline("waiting", &waiting);
    assert!(
        ended.stderr.contains("No such file or directory"),
        "{}",
        ended.report()
    );
}

/// A capture to a pipe that nobody reads.
fn stalled(daemon: &Daemon, arguments: &[&str]) -> Child {
    let mut command = Command::new(roceline());
    command.args(["capture", "-w", "-"]).args(arguments);
    command.arg("--socket").arg(daemon.socket());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("roceline starts");
    // The file's head comes when the tap is in place. One byte of it.
    let mut first = [0];
    let out = child.stdout.as_mut().expect("piped");
    out.read_exact(&mut first).expect("the head of the file");
    assert_eq!(first, [0x0a]);
    child
}

#[test]
fn a_reader_that_stalls_costs_the_traffic_nothing() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let mut child = stalled(&daemon, &["--buffer", "1"]);
    // 2 x 400 messages of 64 KiB, each packet sent and received: 100 MB of records.
    pingpong(
        &daemon,
        &["-g", "0", "-n", "400", "-s", "65536", "-m", "4096"],
    );
    expect_no_loss(&daemon);
    // The reader wakes up, and is told what it missed.
    // SAFETY: no memory is involved; the pid is that of our child, which has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let mut rest = vec![0x0a];
    let mut out = child.stdout.take().expect("piped");
    out.read_to_end(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    let capture = Capture::read(rest.as_slice());
    for nic in ["roce0", "roce1"] {
        let (seen, lost, delivered) = capture.counts[nic];
        let written = capture.packets.iter().filter(|p| p.nic == nic).count() as u64;
        assert_eq!((seen - lost, delivered), (written, written));
        assert!(seen >= 2 * 16 * 400 && lost > 0 && written > 0);
    }
}

#[test]
fn a_reader_that_dies_costs_the_traffic_nothing() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        let mut child = stalled(&daemon, &["--buffer", "1"]);
        // SAFETY: no memory is involved; the pid is that of our child, which has not been waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        pingpong(
            &daemon,
            &["-g", "0", "-n", "100", "-s", "65536", "-m", "4096"],
        );
        expect_no_loss(&daemon);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // A reader that has had enough is no failure.
    let mut child = stalled(&daemon, &[]);
    drop(child.stdout.take());
    pingpong(&daemon, &["-g", "0", "-n", "100"]);
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_last_packets_are_kept_until_a_queue_pair_fails() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let file = path(&daemon, "last.pcapng");
    let quiet = path(&daemon, "quiet.pcapng");
    let last = start(
        &daemon,
        "last",
        &["-w", &file, "--last", "40", "--nic", "roce1"],
    );
    let other = start(
        &daemon,
        "quiet",
        &["-w", &quiet, "--last", "25", "--snaplen", "128"],
    );
    pingpong(&daemon, &["-g", "0", "-n", "100"]);
    // Nothing failed: the rings go on, and one is read out by hand.
    other.signal(libc::SIGINT);
    other.finish(PATIENCE).expect_ok();
    let capture = Capture::open(Path::new(&quiet));
    assert_eq!(capture.packets.len(), 25);
    assert!(capture.comments.is_empty());
    assert!(capture.packets.is_sorted_by_key(|packet| packet.time));

    // The server dies in the middle: the client's retries end in a failure.
    let port = support::free_port().to_string();
    let common = ["-F", "-n", "5000000", "-u", "8", "-p", &port];
    let own = [&common[..], &["-d", "roce0"]].concat();
    let server = daemon.start_program("server", "ib_write_bw", &own);
    wait_for("listening server", PATIENCE, || {
        support::listening(port.parse().unwrap())
    });
    let own = [&common[..], &["-d", "roce1", "127.0.0.1"]].concat();
    let before = counter(&daemon, 1, "port_xmit_packets");
    let client = daemon.start_program("client", "ib_write_bw", &own);
    wait_for("traffic", PATIENCE, || {
        counter(&daemon, 1, "port_xmit_packets") > before + 100
    });
    server.signal(libc::SIGKILL);
    let client = client.finish(PATIENCE);
    assert!(client.failed(), "{}", client.report());

    let ended = last.finish(PATIENCE).expect_ok();
    let capture = Capture::open(Path::new(&file));
    assert_eq!(capture.packets.len(), 40);
    assert!(capture.packets.iter().all(|packet| packet.nic == "roce1"));
    let comment = &capture.comments[0];
    // It says what the post-mortem says.
    let known = daemon.json(&["show", "qp", "--post-mortem"]);
    let known = known["post_mortems"].as_array().expect("a list");
    let named = |record: &serde_json::Value| {
        let sentence = record["cause"]["sentence"].as_str().expect("a text");
        record["device"] == "roce1" && comment.contains(sentence.trim_end_matches('.'))
    };
    assert!(known.iter().any(named), "{comment}: {known:#?}");
    assert!(
        ended.stderr.contains(comment.as_str()),
        "{}",
        ended.report()
    );
    // What the newest packet is depends on what the peer's NIC could still say of the program that died.
    let newest = capture.packets.last().unwrap();
    let opcode = parse(&newest.data).unwrap().packet.opcode;
    if comment.contains("of roce1 failed: transport retries exceeded") {
        assert!(newest.outbound && opcode.info().is_request(), "{opcode:?}");
    } else {
        assert!(
            comment.contains("of roce1 failed: remote operation error"),
            "{comment}"
        );
        assert!(!newest.outbound && opcode == Opcode::RC_ACK, "{opcode:?}");
    }
}

#[test]
fn the_end_of_the_daemon_leaves_captures_whole() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let (all, last) = (path(&daemon, "all.pcapng"), path(&daemon, "last.pcapng"));
    let plain = start(&daemon, "plain", &["-w", &all]);
    let ring = start(&daemon, "ring", &["-w", &last, "--last", "30"]);
    pingpong(&daemon, &["-g", "0", "-n", "50"]);
    daemon.stop().expect_ok();
    for process in [plain, ring] {
        let ended = process.finish(PATIENCE).expect_ok();
        assert!(
            ended.stderr.contains("the daemon stops"),
            "{}",
            ended.report()
        );
    }
    let capture = Capture::open(Path::new(&all));
    for nic in ["roce0", "roce1"] {
        let written = capture.packets.iter().filter(|p| p.nic == nic).count() as u64;
        assert_eq!(capture.counts[nic], (written, 0, written));
        assert!(written > 100);
    }
    assert_eq!(Capture::open(Path::new(&last)).packets.len(), 30);
}

#[test]
fn what_the_death_of_the_daemon_costs_is_said() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let (all, last) = (path(&daemon, "all.pcapng"), path(&daemon, "last.pcapng"));
    let plain = start(&daemon, "plain", &["-w", &all]);
    let ring = start(&daemon, "ring", &["-w", &last, "--last", "30"]);
    pingpong(&daemon, &["-g", "0", "-n", "50"]);
    daemon.kill_worker(libc::SIGKILL);
    for (process, sentence) in [(plain, "is whole and has the"), (ring, "they are lost")] {
        let ended = process.finish(PATIENCE);
        assert_eq!(ended.status.code(), Some(1));
        assert!(ended.stderr.contains(sentence), "{}", ended.report());
    }
    Capture::open(Path::new(&all));
}

#[test]
fn a_filter_chooses_packets() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let file = path(&daemon, "some.pcapng");
    let options = [
        "-w",
        &file,
        "--tx",
        "--class",
        "send,last",
        "--message",
        "3..5",
    ];
    let process = start(&daemon, "some", &options);
    pingpong(&daemon, &["-g", "0", "-n", "20", "-s", "3000"]);
    process.signal(libc::SIGINT);
    process.finish(PATIENCE).expect_ok();
    let capture = Capture::open(Path::new(&file));
    for nic in ["roce0", "roce1"] {
        let sent = capture.of(nic, true);
        assert_eq!(sent.len(), 3);
        for data in sent {
            assert_eq!(parse(data).unwrap().packet.opcode, Opcode::RC_SEND_LAST);
        }
        let (seen, lost, delivered) = capture.counts[nic];
        assert!(seen > 60 && lost == 0 && delivered == 3);
    }
    let wrong = daemon.roceline("wrong", &["capture", "-w", &file, "--class", "midle"]);
    assert!(wrong.stderr.contains("middle"), "{}", wrong.report());
}
