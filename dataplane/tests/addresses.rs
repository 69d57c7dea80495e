//! Addresses of NICs that come and go while the daemon runs, with unmodified programs. What a program of ours sees of them is in
//! `events.rs`, and what others on a real network see in `neighbours.rs`.

mod support;

use std::fs;

use serde_json::Value;

use support::daemon::Daemon;
use support::pair::{End, Pair};
use support::process::{Ended, Process};
use support::{PATIENCE, alone, free_port, listening, wait_for};

/// Gives an order, which must be carried out.
#[track_caller]
fn order(daemon: &Daemon, words: &[&str]) -> String {
    let ended = daemon.roceline("order", words);
    assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
    ended.stdout
}

/// Index, address and origin of what a NIC has.
#[track_caller]
fn list(daemon: &Daemon, nic: &str) -> Vec<(u64, String, String)> {
    let reply = daemon.json(&["address", "list", nic]);
    let lines = reply["addresses"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_string();
    let line = |line: &Value| {
        let index = line["index"].as_u64().expect("a number");
        (index, text(&line["address"]), text(&line["from"]))
    };
    lines.map(line).collect()
}

/// The lines of `ibv_devinfo -v` that are about GIDs.
#[track_caller]
fn devinfo(daemon: &Daemon) -> Vec<String> {
    let ended = daemon.run_program("devinfo", "ibv_devinfo", &["-v", "-d", "roce0"]);
    assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
    let lines = ended.stdout.lines().map(str::trim);
    let gids = lines.filter(|line| line.starts_with("GID["));
    gids.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// `ibv_rc_pingpong` between a GID index of roce0, which is the server, and the first of roce1.
#[track_caller]
fn pingpong(daemon: &Daemon, index: &str) -> (Ended, Ended) {
    let port = free_port();
    let number = port.to_string();
    let arguments = |device, index| {
        let own = ["-n", "200", "-c", "-d", device, "-g", index, "-p"];
        [&own[..], &[number.as_str()]].concat()
    };
    let mut server = daemon.start_program("server", "ibv_rc_pingpong", &arguments("roce0", index));
    wait_for("listening server", PATIENCE, || {
        listening(port) || !server.is_running()
    });
    let mut own = arguments("roce1", "0");
    own.push("127.0.0.1");
    let client = daemon.run_program("client", "ibv_rc_pingpong", &own);
    (server.finish(PATIENCE), client)
}

/// The same, which must go well.
#[track_caller]
fn expect_pingpong(daemon: &Daemon, index: &str) {
    let (server, client) = pingpong(daemon, index);
    assert!(
        server.ok() && client.ok(),
        "{}{}{}",
        server.report(),
        client.report(),
        daemon.log()
    );
}

const NINTH: &str = "GID[ 3]: ::ffff:10.77.0.9, RoCE v2";

#[test]
fn programs_see_addresses_that_come_and_go() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let before = devinfo(&daemon);
    assert_eq!(before.len(), 3, "{before:?}");
    order(&daemon, &["address", "add", "roce0", "10.77.0.9/24"]);
    let now = devinfo(&daemon);
    assert_eq!((now.len(), now[3].as_str()), (4, NINTH), "{now:?}");
    expect_pingpong(&daemon, "3");
    // What shows addresses shows it.
    let devices = daemon.json(&["show", "devices"]);
    let gids = &devices["devices"][0]["gids"];
    assert_eq!(gids[3]["address"], "10.77.0.9", "{gids}");
    let file = daemon.dir().join("all.pcapng");
    let path = file.to_str().expect("a plain path");
    order(&daemon, &["capture", "-w", path, "--duration", "0.1"]);
    let capture = fs::read(&file).expect("the capture is there");
    let named = b"10.77.0.9/24";
    assert!(capture.windows(named.len()).any(|part| part == named));

    // One of the configuration goes; the others keep their indices.
    order(&daemon, &["address", "remove", "roce0", "fd77::1"]);
    let now = devinfo(&daemon);
    assert_eq!(now, [&before[0][..], &before[2], NINTH], "{now:?}");
    let (server, _) = pingpong(&daemon, "1");
    assert!(server.failed(), "{}", server.report());
    assert!(
        daemon.log().contains("GID index 1 of roce0 is empty"),
        "{}",
        daemon.log()
    );
    let text = |text: &str| text.to_string();
    let expected = [
        (0, text("10.77.0.1"), text("configuration")),
        (2, text("fe80::52:4cff:fe4d:1"), text("mac")),
        (3, text("10.77.0.9"), text("added")),
    ];
    assert_eq!(list(&daemon, "roce0"), expected);
    let unknown = daemon.roceline("unknown", &["address", "list", "roce7"]);
    assert!(
        unknown.failed() && unknown.stderr.contains("roce7"),
        "{}",
        unknown.report()
    );

    // The next process goes by the configuration.
    let worker = daemon.worker();
    daemon.kill_worker(libc::SIGKILL);
    wait_for("another worker", PATIENCE, || {
        daemon.find_worker().is_some_and(|other| other != worker)
    });
    daemon.expect_ready();
    assert_eq!(list(&daemon, "roce0").len(), 3);
    assert_eq!(devinfo(&daemon), before);
}

/// Several programs, so that each lcore has some: all hear of it, each once.
#[test]
fn all_lcores_of_a_nic_take_part() {
    let _alone = alone();
    let nic = |n: usize| {
        format!(
            "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.79.0.{}/24\"]\nport = \"fabric:cable\"\nlcore = [0, 1]\n",
            n + 1
        )
    };
    let config = format!("[[lcore]]\n[[lcore]]\ncpu = \"any\"\n{}{}", nic(0), nic(1));
    let daemon = Daemon::start(&config);
    let mut programs: Vec<Process> = (0..4)
        .map(|n| {
            let name = format!("watch{n}");
            daemon.start_program(&name, "ibv_asyncwatch", &["-d", "roce0"])
        })
        .collect();
    for program in &mut programs {
        wait_for("an open device", PATIENCE, || {
            program.output().0.contains("async event FD") || !program.is_running()
        });
    }
    order(&daemon, &["address", "add", "roce0", "10.79.0.9"]);
    let end = |device| End {
        daemon: &daemon,
        device,
    };
    // Queue pairs of any lcore.
    for _ in 0..2 {
        expect_pingpong(&daemon, "2");
    }
    let many = Pair::run(
        end("roce1"),
        end("roce0"),
        "ib_write_bw",
        &["-x", "0", "-q", "8", "-n", "100", "-F"],
        PATIENCE,
    );
    assert!(many.ok(), "{}{}", many.report(), daemon.log());
    order(&daemon, &["address", "remove", "roce0", "10.79.0.9"]);
    for mut program in programs {
        let events = |program: &Process| program.output().0.matches("GID_CHANGE").count();
        wait_for("two events", PATIENCE, || {
            events(&program) >= 2 || !program.is_running()
        });
        assert_eq!(events(&program), 2, "{:?}", program.output());
        program.signal(libc::SIGINT);
        program.finish(PATIENCE);
    }
}
