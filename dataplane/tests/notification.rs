//! Marks, CNPs and slower senders with the distribution's programs: what the rules mark, the receiver notes, the sender heeds, and
//! the packets that say so.

mod support;

use std::path::Path;
use std::process::Command;

use roceline_engine::wire::{Opcode, icrc, parse};
use support::capture::Capture;
use support::daemon::Daemon;
use support::pair::{End, Pair, rows};
use support::process::Process;
use support::{PATIENCE, alone, roceline, wait_for};

/// ACK timeout of 4.3 s: nothing is sent again by mere slowness of the machine.
const LATE: [&str; 2] = ["-u", "20"];
/// 100 messages of 64 KiB: 256 packets, the window, may be under way before the first CNP comes.
const TRANSFER: [&str; 6] = ["-s", "65536", "-n", "100", "-m", "4096"];

#[track_caller]
fn counter(daemon: &Daemon, device: &str, name: &str) -> u64 {
    let stat = daemon.json(&["stat"]);
    let devices = stat["devices"].as_array().expect("`devices` is a list");
    let of_device = devices.iter().find(|d| d["name"] == device);
    let of_device = of_device.unwrap_or_else(|| panic!("no {device} in {stat}"));
    let value = ["hw_counters", "counters", "port"]
        .iter()
        .find_map(|group| of_device[group][name].as_u64());
    value.unwrap_or_else(|| panic!("no {name} in {of_device}"))
}

/// Packets that the one rule has marked.
#[track_caller]
fn marks(daemon: &Daemon) -> u64 {
    let listed = daemon.json(&["impair", "list"]);
    listed["rules"][0]["hit"]
        .as_u64()
        .expect("a number of hits")
}

/// A perftest with its server on roce0 and its client on roce1; megabytes per second.
#[track_caller]
fn perftest(daemon: &Daemon, tool: &str, options: &[&str]) -> f64 {
    let end = |device| End { daemon, device };
    let options = [&TRANSFER[..], options].concat();
    let run = Pair::run(end("roce0"), end("roce1"), tool, &options, PATIENCE);
    assert!(
        run.ok(),
        "{tool} {options:?}\n{}{}",
        run.report(),
        daemon.log()
    );
    let rows = rows(&run.client.stdout);
    rows.first().unwrap_or_else(|| panic!("{}", run.report()))[3]
}

/// The first CNP sets the rate to 100 Mb/s, that is 12 MB/s, and with every packet marked it rises slowly, however fast the machine
/// is.
#[test]
fn marked_packets_slow_down_whoever_sends_them_and_the_counters_say_so() {
    let _alone = alone();
    for (tool, sender, receiver, options) in [
        ("ib_write_bw", "roce1", "roce0", &LATE[..]),
        ("ib_write_bw", "roce1", "roce0", &["-u", "20", "-x", "1"]),
        ("ib_write_bw", "roce1", "roce0", &["-c", "UC"]),
        ("ib_read_bw", "roce0", "roce1", &LATE),
        (
            "ib_send_bw",
            "roce1",
            "roce0",
            &["-c", "UD", "-s", "2048", "-n", "2000"],
        ),
    ] {
        let daemon = Daemon::pair();
        let rule = format!("impair add --link link0 --from {sender} --class data --mark-ce");
        let words: Vec<&str> = rule.split_ascii_whitespace().collect();
        daemon.roceline("add", &words).expect_ok();
        let first = "rate_to_set_on_first_cnp=100Mb/s";
        daemon
            .roceline("set", &["congestion", "set", first])
            .expect_ok();
        let rate = perftest(&daemon, tool, options);
        assert!(rate < 60.0, "{tool} {options:?}: {rate} MB/s");
        let marks = marks(&daemon);
        assert!(marks > 100, "{marks}");
        let of = |device, name| counter(&daemon, device, name);
        assert_eq!(of(receiver, "np_ecn_marked_roce_packets"), marks);
        let sent = of(receiver, "np_cnp_sent");
        assert!(sent > 10 && sent <= marks, "{sent} of {marks}");
        let handled = of(sender, "rp_cnp_handled");
        let ignored = of(sender, "rp_cnp_ignored");
        assert_eq!(handled + ignored, sent, "{tool} {options:?}");
        // Without acknowledgements a sender is done, and its queue pair gone, before the CNP for its last packets comes.
        let unheard = options.contains(&"UC") || options.contains(&"UD");
        assert!(
            ignored <= u64::from(unheard),
            "{tool} {options:?}: {ignored}"
        );
        for (device, name) in [
            (receiver, "np_cnp_dropped"),
            (receiver, "tx_no_way"),
            (receiver, "rp_cnp_handled"),
            (sender, "np_cnp_sent"),
            ("roce1", "local_ack_timeout_err"),
            ("roce1", "packet_seq_err"),
        ] {
            assert_eq!(of(device, name), 0, "{name} of {device}, {tool}");
        }
        assert_eq!(of(receiver, "cc_tx_cnp_pkts"), sent);
        assert_eq!(of(sender, "cc_rx_cnp_pkts"), sent);
    }
}

/// What roce0 sends and receives during a transfer.
#[track_caller]
fn captured(daemon: &Daemon, file: &str) -> Capture {
    let mut command = Command::new(roceline());
    command.args(["capture", "-w", file, "--nic", "roce0"]);
    command.arg("--socket").arg(daemon.socket());
    let mut capture = Process::start(daemon.dir(), "capture", &mut command);
    wait_for("running capture", PATIENCE, || {
        capture.output().1.contains("capturing") || !capture.is_running()
    });
    perftest(daemon, "ib_write_bw", &LATE);
    capture.signal(libc::SIGINT);
    capture.finish(PATIENCE).expect_ok();
    Capture::open(Path::new(file))
}

/// RFC 3168 section 5: who does not heed marks must not ask for them. A CNP is ignored then.
#[test]
fn without_congestion_control_packets_cannot_be_marked() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let none = ["congestion", "set", "--nic", "roce1", "algorithm=none"];
    daemon.roceline("none", &none).expect_ok();
    let file = daemon.dir().join("wire.pcapng");
    let name = file.to_str().expect("temporary paths are UTF-8");
    let capture = captured(&daemon, name);
    for packet in &capture.packets {
        let parsed = parse(&packet.data).expect("only RoCE is on this wire");
        // What roce0 sends says ECT(0).
        let ecn = if packet.outbound { 2 } else { 0 };
        assert_eq!(parsed.packet.traffic_class, ecn);
    }
    assert!(capture.packets.len() > 1600);
    // A rule marks all the same.
    let rule = "impair add --link link0 --from roce1 --class data --mark-ce --count 3";
    let words: Vec<&str> = rule.split_ascii_whitespace().collect();
    daemon.roceline("add", &words).expect_ok();
    perftest(&daemon, "ib_write_bw", &LATE);
    let sent = counter(&daemon, "roce0", "np_cnp_sent");
    assert!(sent > 0);
    assert_eq!(counter(&daemon, "roce1", "rp_cnp_ignored"), sent);
    assert_eq!(counter(&daemon, "roce1", "rp_cnp_handled"), 0);
}

/// IBTA annex A17, and the capture of a ConnectX-4 Lx that the engine's template reproduces; Wireshark agrees.
#[test]
fn a_cnp_on_the_wire_is_what_a_connectx_sends() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let rule = "impair add --link link0 --from roce1 --class data --mark-ce --count 3";
    let words: Vec<&str> = rule.split_ascii_whitespace().collect();
    daemon.roceline("add", &words).expect_ok();
    let file = daemon.dir().join("wire.pcapng");
    let name = file.to_str().expect("temporary paths are UTF-8");
    let capture = captured(&daemon, name);
    let (mut cnps, mut ect, mut marked) = (0, 0, 0);
    for packet in &capture.packets {
        let parsed = parse(&packet.data).expect("only RoCE is on this wire");
        assert!(icrc::verify(&packet.data, &parsed));
        let p = parsed.packet;
        if p.opcode != Opcode::CNP {
            // ECT(0), as the NIC's congestion control heeds marks; CE where the rule hit.
            match p.traffic_class {
                2 => ect += 1,
                3 => marked += 1,
                other => panic!("traffic class {other:#x} of {:?}", p.opcode),
            }
            continue;
        }
        cnps += 1;
        assert!(packet.outbound && packet.nic == "roce0");
        assert_eq!(packet.data.len(), 74);
        assert_eq!((p.traffic_class, parsed.udp_sport), (48 << 2 | 2, 0));
        // Opcode, no flags, P_Key, BECN alone; the QPN; no AckReq and PSN 0; nothing in 16 bytes.
        let bth = &packet.data[42..];
        assert_eq!(bth[..5], [0x81, 0, 0xff, 0xff, 0x40]);
        assert_eq!(bth[8..28], [0; 20]);
    }
    assert!(cnps > 0 && cnps <= 3, "{cnps}");
    assert_eq!(marked, 3);
    assert!(ect > 1600, "{ect}");
    let tshark = Command::new("tshark")
        .args(["-r", name, "-Y", "infiniband.bth.opcode == 0x81"])
        .args(["-T", "fields", "-e", "ip.dsfield.dscp", "-e", "udp.srcport"])
        .output()
        .expect("tshark is installed");
    let said = String::from_utf8_lossy(&tshark.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines, vec!["48\t0"; cnps], "{tshark:?}");
}
