//! The daemon as a process: several programs at once, programs that die, its own end, its neighbours.

mod support;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use support::daemon::{Daemon, Objects, PAIR};
use support::pair::{End, Pair, endless, wait_for_traffic};
use support::process::Process;
use support::{PATIENCE, TempDir, alone, wait_for};

fn tree_of(daemon: &Daemon) -> PathBuf {
    let mut path = daemon.socket().as_os_str().to_owned();
    path.push(".d");
    path.into()
}

#[test]
fn several_programs_at_once() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let ends = (
        End {
            daemon: &daemon,
            device: "roce0",
        },
        End {
            daemon: &daemon,
            device: "roce1",
        },
    );
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|i| {
                scope.spawn(move || {
                    // Half of them poll and half sleep on events; they cross in both directions.
                    let (server, client) = if i % 2 == 0 { ends } else { (ends.1, ends.0) };
                    let options: &[&str] = if i < 2 {
                        &["-g", "0", "-c"]
                    } else {
                        &["-g", "0", "-c", "-e"]
                    };
                    Pair::run(server, client, "ibv_rc_pingpong", options, 2 * PATIENCE)
                })
            })
            .collect();
        for run in runs {
            let run = run.join().expect("the run does not panic");
            assert!(run.ok(), "{}{}", run.report(), daemon.log());
        }
    });
    assert_eq!(daemon.objects(), Objects::default());
}

#[test]
fn what_a_program_has_is_counted() {
    let _alone = alone();
    let daemon = Daemon::pair();
    assert_eq!(daemon.objects(), Objects::default());
    let (server, client) = endless(&daemon, "ib_write_bw", &[]);
    wait_for_traffic(&daemon);
    let objects = daemon.objects();
    assert!(objects.contexts >= 2 && objects.qps >= 2, "{objects:?}");
    assert!(
        objects.mrs >= 2 && objects.cqs >= 2 && objects.pds >= 2,
        "{objects:?}"
    );
    let pids: Vec<u64> = daemon.json(&["show", "qps"])["qps"]
        .as_array()
        .expect("`qps` is a list")
        .iter()
        .filter_map(|qp| qp["pid"].as_u64())
        .collect();
    for process in [&server, &client] {
        assert!(pids.contains(&u64::from(process.id())), "{pids:?}");
    }
    drop((server, client));
    daemon.expect_empty();
}

#[test]
fn a_program_killed_in_mid_transfer_leaves_nothing() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    for tool in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        for kill_server in [true, false] {
            let (server, client) = endless(&daemon, tool, &[]);
            wait_for_traffic(&daemon);
            let (victim, other) = if kill_server {
                (server, client)
            } else {
                (client, server)
            };
            victim.signal(libc::SIGKILL);
            victim.finish(PATIENCE);
            // The other learns of it by its retries and its TCP connection, or is ended here.
            drop(other);
            daemon.expect_empty();
        }
    }
    assert!(daemon.process().is_running(), "{}", daemon.log());
    let ends = (
        End {
            daemon: &daemon,
            device: "roce0",
        },
        End {
            daemon: &daemon,
            device: "roce1",
        },
    );
    let run = Pair::run(
        ends.0,
        ends.1,
        "ibv_rc_pingpong",
        &["-g", "0", "-c"],
        PATIENCE,
    );
    assert!(run.ok(), "{}{}", run.report(), daemon.log());
}

#[test]
fn sigterm_leaves_neither_socket_nor_tree() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let tree = tree_of(&daemon);
    assert!(daemon.socket().exists() && tree.exists());
    let ended = daemon.stop();
    assert!(ended.ok(), "{}", ended.report());
    assert!(!daemon.socket().exists() && !tree.exists());
}

#[test]
fn sigterm_while_it_starts_ends_it_at_once() {
    let _alone = alone();
    // A driver that never comes back from its start: it opens a pipe that nobody writes to.
    let mut daemon = Daemon::prepare("");
    let pipe = daemon.dir().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    let config = format!(
        "[[nic]]\nname = \"roce0\"\naddresses = [\"10.78.0.1/24\"]\nport = \"vdev:net_pcap0,rx_pcap={},tx_pcap=/dev/null\"\n",
        pipe.display()
    );
    fs::write(daemon.dir().join("config.toml"), config).expect("the directory is ours");
    for signal in [libc::SIGTERM, libc::SIGINT] {
        daemon.launch();
        wait_for("socket", PATIENCE, || daemon.socket().exists());
        daemon.process().signal(signal);
        let ended = daemon.take_process().finish(PATIENCE);
        assert!(ended.ok(), "{}", ended.report());
        let entries = fs::read_dir(daemon.dir()).expect("the directory is ours");
        let left = entries
            .map(|entry| entry.expect("an entry").file_name())
            .filter(|name| name.to_string_lossy().starts_with("roceline.sock"))
            .collect::<Vec<_>>();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn sigterm_under_traffic_ends_it_too() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let programs = endless(&daemon, "ib_write_bw", &[]);
    wait_for_traffic(&daemon);
    let ended = daemon.stop();
    assert!(ended.ok(), "{}", ended.report());
    assert!(!daemon.socket().exists());
    drop(programs);
}

#[test]
fn a_second_daemon_on_the_socket_is_refused() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let second = Process::start(daemon.dir(), "second", &mut daemon.command()).finish(PATIENCE);
    assert_eq!(second.status.code(), Some(1), "{}", second.report());
    let socket = daemon.socket().to_str().expect("a plain path").to_owned();
    assert!(
        second
            .stderr
            .contains("roceline: another daemon answers on"),
        "{}",
        second.report()
    );
    assert!(second.stderr.contains(&socket), "{}", second.report());
    // The first one has not noticed.
    assert!(daemon.process().is_running());
    daemon
        .run_program("devices", "ibv_devices", &[])
        .expect_ok();
}

#[test]
fn a_socket_that_nobody_serves_is_replaced() {
    let _alone = alone();
    let mut daemon = Daemon::prepare(PAIR);
    drop(UnixListener::bind(daemon.socket()).expect("the directory is ours"));
    assert!(daemon.socket().exists());
    daemon.launch();
    daemon.expect_ready();
}

#[test]
fn a_daemon_that_was_killed_can_be_started_again() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    daemon.process().signal(libc::SIGKILL);
    wait_for("end of the daemon", PATIENCE, || {
        !daemon.process().is_running()
    });
    assert!(tree_of(&daemon).exists(), "a killed daemon cannot tidy up");
    daemon.launch();
    daemon.expect_ready();
    let listed = daemon
        .run_program("devices", "ibv_devices", &[])
        .expect_ok();
    assert!(listed.stdout.contains("roce1"), "{}", listed.report());
}

/// One of two daemons that are joined by memif.
fn memif(socket: &str, role: &str, own: &str) -> String {
    format!(
        "[[nic]]\nname = \"roce0\"\naddresses = [\"{own}/24\"]\nmtu = 4200\n\
         port = \"vdev:net_memif0,role={role},socket={socket},socket-abstract=no,bsize=4352\"\n"
    )
}

#[test]
fn two_daemons_over_memif() {
    let _alone = alone();
    let dir = TempDir::new();
    let socket = dir.path().join("memif.sock");
    let socket = socket.to_str().expect("a plain path");
    let (a, b) = ("10.78.0.1", "10.78.0.2");
    let left = Daemon::start(&memif(socket, "server", a));
    let right = Daemon::start(&memif(socket, "client", b));
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
    for options in [
        &["-g", "0", "-c"][..],
        &["-g", "0", "-c", "-e"],
        &["-g", "0", "-c", "-s", "65536", "-n", "100", "-m", "4096"],
    ] {
        let run = Pair::run(ends.0, ends.1, "ibv_rc_pingpong", options, 2 * PATIENCE);
        assert!(
            run.ok(),
            "{options:?}\n{}{}{}",
            run.report(),
            left.log(),
            right.log()
        );
    }
}

#[test]
fn a_port_without_a_peer_is_down_until_it_comes() {
    let _alone = alone();
    let dir = TempDir::new();
    let socket = dir.path().join("memif.sock");
    let socket = socket.to_str().expect("a plain path");
    let (a, b) = ("10.78.0.1", "10.78.0.2");
    let left = Daemon::start(&memif(socket, "server", a));
    let state = || left.json(&["show", "ports"])["ports"][0]["state"].clone();
    let file = |name: &str| {
        let path = format!("all/sys/class/infiniband/roce0/ports/1/{name}");
        fs::read_to_string(tree_of(&left).join(path)).expect("the tree is there")
    };
    assert_eq!(state(), "DOWN");
    assert_eq!(
        (file("state"), file("phys_state")),
        ("1: DOWN\n".into(), "2: Polling\n".into())
    );
    let seen = left.run_program("devinfo", "ibv_devinfo", &["-d", "roce0"]);
    assert!(seen.stdout.contains("PORT_DOWN (1)"), "{}", seen.report());

    let right = Daemon::start(&memif(socket, "client", b));
    wait_for("link", PATIENCE, || {
        state() == "ACTIVE" && file("state") == "4: ACTIVE\n"
    });
    let seen = left.run_program("devinfo", "ibv_devinfo", &["-d", "roce0"]);
    assert!(seen.stdout.contains("PORT_ACTIVE (4)"), "{}", seen.report());

    drop(right);
    wait_for("end of the link", PATIENCE, || {
        state() == "DOWN" && file("state") == "1: DOWN\n"
    });
    // It is said when the files are written.
    wait_for("word of it", PATIENCE, || left.log().contains("link down"));
    let log = left.log();
    for line in ["link up", "link down"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
}

#[test]
fn what_this_version_does_not_have_is_logged_once_for_a_program() {
    let _alone = alone();
    let daemon = Daemon::pair();
    daemon
        .run_program("devinfo", "ibv_devinfo", &["-v"])
        .expect_ok();
    assert!(
        !daemon.log().contains("WARN"),
        "probing is no fault: {}",
        daemon.log()
    );
    // It sends Ethernet frames of its own making, by a raw packet queue pair.
    let addresses = ["-B", "02:52:4c:4d:00:01", "-E", "02:52:4c:4d:00:02"];
    let flow = [
        "-J",
        "10.77.0.1",
        "-j",
        "10.77.0.2",
        "-K",
        "4000",
        "-k",
        "4000",
    ];
    let mut program = daemon.program("raw_ethernet_bw", &["--client", "-d", "roce0"]);
    program
        .args(addresses)
        .args(flow)
        .env("ROCELINE_DEBUG", "1");
    let refused = Process::start(daemon.dir(), "raw", &mut program).finish(PATIENCE);
    assert!(refused.failed(), "{}", refused.report());
    assert!(
        refused
            .stderr
            .contains("raw packet queue pairs are not supported"),
        "{}",
        refused.report()
    );
    let log = daemon.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(
        lines[0].contains("raw packet queue pairs are not supported"),
        "{log}"
    );
}
