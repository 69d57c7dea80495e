//! What a capture says of packets that impairment rules hit: names, and what became of them.

use roceline_engine::wire::{Opcode, parse};

use super::support::alone;
use super::support::capture::{Capture, Packet};
use super::support::daemon::Daemon;
use super::{path, pingpong, start};
use crate::support::PATIENCE;

#[track_caller]
fn add(daemon: &Daemon, rule: &str) {
    let mut all = vec!["impair", "add"];
    all.extend(rule.split_ascii_whitespace());
    daemon.roceline("rule", &all).expect_ok();
}

/// What a capture has of a pingpong.
#[track_caller]
fn captured(daemon: &Daemon, options: &[&str]) -> Capture {
    let file = path(daemon, "impaired.pcapng");
    let process = start(daemon, "impaired", &["-w", &file]);
    pingpong(daemon, options);
    process.signal(libc::SIGINT);
    process.finish(PATIENCE).expect_ok();
    Capture::open(file.as_ref())
}

fn commented(capture: &Capture) -> Vec<&Packet> {
    let all = capture.packets.iter();
    all.filter(|p| !p.comment.is_empty()).collect()
}

#[test]
fn a_packet_names_the_rules_that_hit_it() {
    let _alone = alone();
    let daemon = Daemon::pair();
    add(
        &daemon,
        "--nic roce0 --rx --class ack --drop --count 3 --name lossy",
    );
    let capture = captured(&daemon, &["-g", "0", "-n", "50", "-s", "20000"]);
    let hit = commented(&capture);
    assert_eq!(hit.len(), 3);
    for packet in hit {
        assert_eq!(packet.comment, "dropped by lossy (rule 1, drop)");
        assert_eq!((packet.nic.as_str(), packet.outbound), ("roce0", false));
        assert_eq!(parse(&packet.data).unwrap().packet.opcode, Opcode::RC_ACK);
    }
    // As it arrived, so also what was dropped then.
    assert_eq!(capture.of("roce1", true), capture.of("roce0", false));
}

#[test]
fn a_packet_that_was_changed_on_its_way_out_says_by_which_rules() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for rule in [
        "--nic roce0 --tx --class send --skip 4 --count 2 --mark-ce --name mymark",
        "--nic roce0 --tx --class send --skip 5 --count 1 --duplicate 1",
        "--link link0 --from roce0 --class send --skip 5 --count 1 --delay 1ms",
    ] {
        add(&daemon, rule);
    }
    let capture = captured(&daemon, &["-g", "0", "-n", "20", "-s", "64"]);
    let mut comments: Vec<(&str, bool, &str)> = commented(&capture)
        .into_iter()
        .map(|p| (p.nic.as_str(), p.outbound, p.comment.as_str()))
        .collect();
    comments.sort_unstable();
    let marked = "impaired: mymark (rule 1, mark-ce)";
    let twice = "impaired: mymark (rule 1, mark-ce), rule2 (duplicate)";
    let late = "impaired: mymark (rule 1, mark-ce), rule2 (duplicate), rule3 (delay)";
    // The copy goes first, and so is the one that the link delays.
    let expected = [marked, twice, late].map(|comment| ("roce0", true, comment));
    assert_eq!(comments, expected);
}

#[test]
fn what_is_dropped_on_its_way_out_is_recorded_in_its_place() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for rule in [
        "--nic roce0 --tx --class send --skip 10 --count 1 --drop --name here",
        "--nic roce0 --tx --class send --skip 40 --count 1 --mark-ce --name mark",
        "--link link0 --from roce0 --class send --skip 40 --count 1 --drop --name there",
    ] {
        add(&daemon, rule);
    }
    // Messages of 20 packets, which go out in bursts.
    let options = ["-g", "0", "-n", "20", "-s", "20000", "-m", "1024"];
    let capture = captured(&daemon, &options);
    let dropped = |p: &&Packet| p.comment.starts_with("dropped by ");
    let comments: Vec<&str> = capture
        .packets
        .iter()
        .filter(dropped)
        .map(|p| p.comment.as_str())
        .collect();
    // What the first rule drops neither the second one nor the link sees.
    assert_eq!(
        comments,
        [
            "dropped by here (rule 1, drop)",
            "dropped by there (rule 3, drop); impaired before: mark (rule 2, mark-ce)"
        ]
    );
    // The rest is what arrived.
    let sent: Vec<&[u8]> = capture
        .packets
        .iter()
        .filter(|p| p.nic == "roce0" && p.outbound && !dropped(p))
        .map(|p| p.data.as_slice())
        .collect();
    assert_eq!(sent, capture.of("roce1", false));
    // Each stands where it would have been on the wire: behind the packet with the PSN before its own.
    let requests: Vec<(u32, bool)> = capture
        .packets
        .iter()
        .filter(|p| p.nic == "roce0" && p.outbound)
        .map(|p| (parse(&p.data).unwrap().packet, dropped(&p)))
        .filter(|(packet, _)| packet.opcode.info().is_request())
        .map(|(packet, dropped)| (packet.psn.get(), dropped))
        .collect();
    for (at, (psn, _)) in requests.iter().enumerate().filter(|(_, (_, d))| *d) {
        assert_eq!(requests[at - 1].0, psn.wrapping_sub(1) & 0xff_ffff, "{at}");
    }
}

#[test]
fn a_rule_keeps_its_name_for_captures_when_it_is_gone() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let file = path(&daemon, "gone.pcapng");
    // The ring is read out long after.
    let process = start(&daemon, "gone", &["-w", &file, "--last", "4000"]);
    add(
        &daemon,
        "--nic roce0 --tx --class send --count 1 --drop --name shortlived",
    );
    pingpong(&daemon, &["-g", "0", "-n", "20"]);
    daemon.roceline("clear", &["impair", "clear"]).expect_ok();
    process.signal(libc::SIGINT);
    process.finish(PATIENCE).expect_ok();
    let capture = Capture::open(file.as_ref());
    let comments: Vec<&str> = commented(&capture)
        .iter()
        .map(|p| p.comment.as_str())
        .collect();
    assert_eq!(comments, ["dropped by shortlived (rule 1, drop)"]);
}
