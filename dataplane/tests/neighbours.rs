//! Who is where, without being told: ARP and neighbour discovery between two daemons over memif, and between a NIC and
//! Linux over af_packet on a veth pair (root only); peers that do not answer, and addresses that two have.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use support::daemon::Daemon;
use support::namespace::{Namespace, expect, installed, ip};
use support::pair::{End, Pair};
use support::{PATIENCE, TempDir, alone, is_root, wait_for};

const UNREACHED: i32 = libc::ETIMEDOUT;

/// A NIC of one of two daemons that are joined by memif, with what else its section has.
fn memif(dir: &TempDir, role: &str, last: u8, more: &str) -> String {
    format!(
        "[[nic]]\nname = \"roce0\"\naddresses = [\"10.78.0.{last}/24\", \"fd78::{last}/64\"]\nmtu = 4200\n\
         port = \"vdev:net_memif0,role={role},socket={}/memif.sock,socket-abstract=no,bsize=4352\"\n{more}",
        dir.path().display()
    )
}

/// Compiles the program that says whom a device reaches.
fn reach_probe(dir: &TempDir) -> PathBuf {
    let program = dir.path().join("reach_probe");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reach_probe.c"))
        .arg("-libverbs")
        .status()
        .expect("a C compiler runs");
    assert!(compiled.success(), "reach_probe.c does not compile");
    program
}

/// Errno and milliseconds of a queue pair's way to RTR, for each address.
#[track_caller]
fn reach(daemon: &Daemon, probe: &Path, gid_index: &str, addresses: &[&str]) -> Vec<(i32, u64)> {
    let mut arguments = vec!["roce0", gid_index];
    arguments.extend(addresses);
    let program = probe.to_str().expect("a plain path");
    let ended = daemon.run_program("reach", program, &arguments).expect_ok();
    let lines: Vec<(i32, u64)> = ended
        .stdout
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[1].parse().unwrap(), words[2].parse().unwrap())
        })
        .collect();
    assert_eq!(lines.len(), addresses.len(), "{}", ended.report());
    lines
}

/// What `show neighbours` has of an address.
fn neighbour(daemon: &Daemon, address: &str) -> Option<Value> {
    let shown = daemon.json(&["show", "neighbours"]);
    let all = shown["neighbours"].as_array().expect("a list");
    all.iter().find(|n| n["address"] == address).cloned()
}

fn wait_for_link(daemon: &Daemon) {
    wait_for("link", PATIENCE, || {
        daemon.json(&["show", "ports"])["ports"][0]["state"] == "ACTIVE"
    });
}

#[test]
fn two_daemons_find_each_other_over_memif() {
    let _alone = alone();
    let dir = TempDir::new();
    let left = Daemon::start(&memif(&dir, "server", 1, ""));
    let right = Daemon::start(&memif(&dir, "client", 2, ""));
    wait_for_link(&left);
    wait_for_link(&right);
    let ends = (
        End {
            daemon: &left,
            device: "roce0",
        },
        End {
            daemon: &right,
            device: "roce0",
        },
    );
    // IPv4, global IPv6, link-local.
    for gid in ["0", "1", "2"] {
        let run = Pair::run(
            ends.0,
            ends.1,
            "ibv_rc_pingpong",
            &["-g", gid, "-c", "-n", "100"],
            2 * PATIENCE,
        );
        assert!(
            run.ok(),
            "GID {gid}\n{}{}{}",
            run.report(),
            left.log(),
            right.log()
        );
    }
    for address in ["10.78.0.2", "fd78::2", "fe80::52:4cff:fe4e:2"] {
        let found = neighbour(&left, address).unwrap_or_else(|| panic!("no {address}"));
        assert_eq!(found["mac"], "02:52:4c:4e:00:02", "{found}");
    }
    // Nobody claims what is another's.
    for daemon in [&left, &right] {
        assert_eq!(
            daemon.json(&["show", "neighbours"])["conflicts"],
            Value::Array(vec![])
        );
        assert!(!daemon.log().contains("WARN"), "{}", daemon.log());
    }
}

#[test]
fn who_does_not_answer_is_told_with_the_reason_and_nobody_else_waits() {
    let _alone = alone();
    let dir = TempDir::new();
    let probe = reach_probe(&dir);
    let fixed = "[[nic.neighbor]]\nip = \"10.78.0.7\"\nmac = \"02:00:00:00:00:07\"\n";
    let left = Daemon::start(&memif(&dir, "server", 1, fixed));
    let right = Daemon::start(&memif(&dir, "client", 2, ""));
    wait_for_link(&left);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let all = [
                "10.78.0.9",
                "fd78::9",
                "10.99.0.1",
                "10.78.0.7",
                "10.78.0.2",
            ];
            let v4 = reach(&left, &probe, "0", &[all[0], all[2], all[3], all[4]]);
            let v6 = reach(&left, &probe, "1", &[all[1]]);
            (v4, v6)
        });
        // While it waits, others are served. The figure is a bound on waiting for its second, not a latency.
        while !asking.is_finished() {
            let begin = Instant::now();
            left.json(&["show", "devices"]);
            assert!(begin.elapsed().as_secs() < 30);
        }
        let (v4, v6) = asking.join().expect("the program ends");
        let errors: Vec<i32> = v4.iter().chain(&v6).map(|&(error, _)| error).collect();
        assert_eq!(
            errors,
            [UNREACHED, libc::ENETUNREACH, 0, 0, UNREACHED],
            "{}",
            left.log()
        );
        // Four requests, a quarter of a second apart.
        assert!(v4[0].1 >= 990 && v6[0].1 >= 990, "{v4:?} {v6:?}");
    });
    let log = left.log();
    for sentence in [
        "does not know the MAC of 10.78.0.9: no answer from it to 4 ARP requests",
        "does not know the MAC of fd78::9: no answer from it to 4 ND requests",
        "has no route to 10.99.0.1: it is in none of its subnets (10.78.0.1/24, fd78::1/64",
    ] {
        assert!(log.contains(sentence), "no {sentence:?} in {log}");
    }
    let state = |address| neighbour(&left, address).map(|n| n["state"].clone());
    assert_eq!(state("10.78.0.9"), Some("failed".into()));
    assert_eq!(state("10.78.0.7"), Some("static".into()));
    let doctor = left.roceline("doctor", &["doctor"]);
    assert!(
        doctor.stdout.contains("nobody answers for 10.78.0.9"),
        "{}",
        doctor.report()
    );
    drop(right);
}

#[test]
fn addresses_that_two_have_are_told_at_both_ends() {
    let _alone = alone();
    // The second has another MAC address, or the one that follows from the address.
    for (more, sentence) in [
        (
            "mac = \"02:00:00:00:00:0b\"\n",
            "has this NIC's IP address: ",
        ),
        ("", "has this NIC's IP address and its MAC address too"),
    ] {
        let dir = TempDir::new();
        let left = Daemon::start(&memif(&dir, "server", 1, ""));
        let right = Daemon::start(&memif(&dir, "client", 1, more));
        for daemon in [&left, &right] {
            wait_for("word of the duplicates", PATIENCE, || {
                let log = daemon.log();
                let told = |address: &str| {
                    let mut lines = log.lines().filter(|line| line.contains(sentence));
                    lines.any(|line| line.contains("WARN") && line.contains(address))
                };
                told("10.78.0.1") && told("fd78::1")
            });
        }
        let conflicts = left.json(&["show", "neighbours"])["conflicts"].clone();
        let mac = match more {
            "" => "02:52:4c:4e:00:01",
            _ => "02:00:00:00:00:0b",
        };
        let of_v4 = conflicts.as_array().expect("a list").iter();
        let of_v4: Vec<_> = of_v4.filter(|c| c["address"] == "10.78.0.1").collect();
        assert_eq!(of_v4.len(), 1, "{conflicts}");
        assert_eq!(of_v4[0]["mac"], mac);
        let doctor = left.roceline("doctor", &["doctor"]);
        let says = format!("10.78.0.1 of roce0 is also used by {mac}");
        assert!(doctor.stdout.contains(&says), "{}", doctor.report());
    }
}

#[test]
fn addresses_that_come_and_go_are_answered_for_and_looked_for() {
    let _alone = alone();
    let dir = TempDir::new();
    let probe = reach_probe(&dir);
    let left = Daemon::start(&memif(&dir, "server", 1, ""));
    let right = Daemon::start(&memif(&dir, "client", 2, ""));
    wait_for_link(&left);
    wait_for_link(&right);
    let order = |daemon: &Daemon, what: &str, address: &str| {
        let ended = daemon.roceline("address", &["address", what, "roce0", address]);
        assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
    };
    for address in ["10.78.0.8", "10.78.0.9", "fd78::8", "fd78::9"] {
        order(&right, "add", address);
    }
    for address in ["10.78.0.8", "fd78::8"] {
        order(&right, "remove", address);
    }
    // In a subnet that only the new address has.
    order(&right, "add", "10.99.0.2/24");
    order(&left, "add", "10.99.0.1/24");
    let v4 = ["10.78.0.8", "10.78.0.9", "10.99.0.2"];
    let v4 = reach(&left, &probe, "0", &v4);
    let v6 = reach(&left, &probe, "1", &["fd78::8", "fd78::9"]);
    let errors: Vec<i32> = v4.iter().chain(&v6).map(|&(error, _)| error).collect();
    assert_eq!(errors, [UNREACHED, 0, 0, UNREACHED, 0], "{}", left.log());

    // One that the other has is looked for when it comes, found, and kept.
    let conflict = |daemon: &Daemon| {
        let shown = daemon.json(&["show", "neighbours"]);
        let all = shown["conflicts"].as_array().expect("a list").clone();
        all.iter().any(|c| c["address"] == "10.78.0.9")
    };
    order(&left, "add", "10.78.0.9/24");
    wait_for("word of the duplicate", PATIENCE, || {
        conflict(&left) && left.log().contains("has this NIC's IP address: ")
    });
    order(&left, "remove", "10.78.0.9");
    assert!(!conflict(&left));
}

/// A NIC on one end of a veth pair, Linux with 10.79.0.9 and fd79::9 on the other.
struct WithLinux {
    // In this order they go.
    daemon: Daemon,
    linux: Namespace,
    _ours: Namespace,
}

impl WithLinux {
    fn new(more: &str) -> WithLinux {
        let (ours, linux) = (Namespace::new("nic"), Namespace::new("linux"));
        let ends = ["rlv0", "rlv1"];
        expect(
            ip().args(["link", "add", ends[0], "netns", &ours.0, "type", "veth"])
                .args(["peer", "name", ends[1], "netns", &linux.0]),
        );
        // Linux has no address there, so that it answers for none of ours.
        let quiet = "net.ipv6.conf.rlv0.disable_ipv6=1";
        ours.run(&["sysctl", "-q", "-w", quiet]);
        ours.run(&["ip", "link", "set", ends[0], "up"]);
        linux.run(&["ip", "link", "set", ends[1], "up"]);
        linux.run(&["ip", "addr", "add", "10.79.0.9/24", "dev", ends[1]]);
        linux.run(&["ip", "addr", "add", "fd79::9/64", "dev", ends[1], "nodad"]);
        let config = format!(
            "[[nic]]\nname = \"roce0\"\naddresses = [\"10.79.0.1/24\", \"fd79::1/64\"]\n\
             port = \"vdev:net_af_packet0,iface={}\"\n{more}",
            ends[0]
        );
        let daemon = ours.daemon(&config);
        WithLinux {
            daemon,
            linux,
            _ours: ours,
        }
    }

    /// MAC address of Linux's end.
    fn mac(&self) -> String {
        let text = self.linux.run(&["cat", "/sys/class/net/rlv1/address"]);
        text.trim().to_string()
    }
}

const OUR_MAC: &str = "02:52:4c:4f:00:01";

#[test]
fn linux_finds_a_nic_and_a_nic_finds_linux() {
    if !is_root("makes network namespaces") || !installed("ip") {
        return;
    }
    let _alone = alone();
    let world = WithLinux::new("gateway = [\"10.79.0.9\", \"fd79::9\"]\n");
    let WithLinux { daemon, linux, .. } = &world;
    if installed("ping") {
        for address in ["10.79.0.1", "fd79::1"] {
            // Also one longer than the shortest frame, of an odd length.
            for size in ["56", "1001"] {
                let said = linux.run(&[
                    "ping", "-c", "3", "-i", "0.2", "-W", "10", "-s", size, address,
                ]);
                assert!(said.contains(" 3 received"), "{said}{}", daemon.log());
            }
            let known = linux.run(&["ip", "neigh", "show", "to", address]);
            assert!(known.contains(OUR_MAC), "{known}");
        }
        // One that comes, and goes: Linux knows its MAC address still.
        for address in ["10.79.0.5", "fd79::5"] {
            let order = |what: &str| {
                let ended = daemon.roceline("address", &["address", what, "roce0", address]);
                assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
            };
            let ping = ["ping", "-c", "1", "-W"];
            order("add");
            let said = linux.run(&[&ping[..], &["10", address]].concat());
            assert!(said.contains(" 1 received"), "{said}{}", daemon.log());
            order("remove");
            let none = linux
                .command(&[&ping[..], &["1", address]].concat())
                .output();
            let said = String::from_utf8_lossy(&none.expect("ping runs").stdout).into_owned();
            assert!(said.contains(" 0 received"), "{said}");
        }
    }
    if installed("arping") {
        let said = linux.run(&["arping", "-c", "2", "-w", "10", "-I", "rlv1", "10.79.0.1"]);
        assert!(said.to_lowercase().contains(OUR_MAC), "{said}");
    }
    let dir = TempDir::new();
    let probe = reach_probe(&dir);
    // Linux itself, and hosts behind it as a router.
    let v4 = reach(
        daemon,
        &probe,
        "0",
        &["10.79.0.9", "192.0.2.1", "10.79.0.77"],
    );
    let v6 = reach(daemon, &probe, "1", &["fd79::9", "2001:db8::1"]);
    let errors: Vec<i32> = v4.iter().chain(&v6).map(|&(error, _)| error).collect();
    assert_eq!(errors, [0, 0, UNREACHED, 0, 0], "{}", daemon.log());
    for address in ["10.79.0.9", "fd79::9"] {
        let found = neighbour(daemon, address).unwrap_or_else(|| panic!("no {address}"));
        assert_eq!(found["mac"], world.mac().as_str(), "{found}");
    }

    // Its MAC address changes, and it says so.
    let other = "02:00:00:00:00:63";
    linux.run(&["ip", "link", "set", "rlv1", "address", other]);
    if installed("arping") {
        wait_for("the changed MAC address", PATIENCE, || {
            linux.run(&[
                "arping",
                "-U",
                "-c",
                "1",
                "-w",
                "2",
                "-I",
                "rlv1",
                "10.79.0.9",
            ]);
            neighbour(daemon, "10.79.0.9").is_some_and(|n| n["mac"] == other)
        });
        assert!(
            daemon.log().contains("a peer's MAC address changed"),
            "{}",
            daemon.log()
        );
    }
}

#[test]
fn an_address_that_linux_has_is_told() {
    if !is_root("makes network namespaces") || !installed("ip") {
        return;
    }
    let _alone = alone();
    let world =
        WithLinux::new("[[nic.neighbor]]\nip = \"10.79.0.9\"\nmac = \"02:00:00:00:00:07\"\n");
    let WithLinux { daemon, linux, .. } = &world;
    assert!(!daemon.log().contains("WARN"), "{}", daemon.log());
    linux.run(&["ip", "addr", "add", "10.79.0.1/24", "dev", "rlv1"]);
    // Without `nodad` Linux looks for the address first, finds ours, and leaves it.
    linux.run(&["ip", "addr", "add", "fd79::1/64", "dev", "rlv1"]);
    wait_for("end of Linux's own look for duplicates", PATIENCE, || {
        linux
            .run(&["ip", "-6", "addr", "show", "dev", "rlv1"])
            .contains("dadfailed")
    });
    // Whatever Linux asks from that address shows that it has it.
    let mut ask = linux.command(&[
        "ping",
        "-c",
        "1",
        "-W",
        "1",
        "-I",
        "10.79.0.1",
        "10.79.0.50",
    ]);
    if installed("ping") {
        let _ = ask.output();
        wait_for("word of the duplicate", PATIENCE, || {
            let log = daemon.log();
            log.contains("has this NIC's IP address: ") && log.contains(&world.mac())
        });
    }
    // The configuration knows better than the network.
    assert_eq!(
        neighbour(daemon, "10.79.0.9").map(|n| n["mac"].clone()),
        Some("02:00:00:00:00:07".into())
    );
}
