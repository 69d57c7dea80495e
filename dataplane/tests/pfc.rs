//! Pauses between two NICs of a daemon, with the distribution's programs: one that is fed a pause frame stops for as long as the
//! frame says; one whose program's memory does not keep up stops the other, and nothing is lost.

mod support;

use std::fs;
use std::thread;
use std::time::Duration;

use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause::LEN;
use serde_json::Value;
use support::daemon::{Daemon, PAIR};
use support::pair::{End, Pair, endless};
use support::{PATIENCE, alone, wait_for};

/// The preset `pair` with these keys for each NIC, and these for its pauses.
fn config(keys: &str, pfc: &str) -> String {
    let parts: Vec<&str> = PAIR.split("[[nic]]").collect();
    let [lcore, first, second] = parts[..] else {
        panic!("the preset has two NICs");
    };
    let nic = |own: &str| format!("[[nic]]{own}\n{keys}\n[nic.pfc]\n{pfc}\n");
    format!("{lcore}{}{}", nic(first), nic(second))
}

/// Likewise, with two polling threads that both serve each NIC.
fn served_by_two(keys: &str, pfc: &str) -> String {
    let text = config(&format!("{keys}\nlcore = [0, 1]"), pfc);
    "[[lcore]]\n".to_owned() + &text
}

/// A counter of NIC `nic`.
#[track_caller]
fn count(daemon: &Daemon, nic: usize, group: &str, name: &str) -> u64 {
    let stat: Value = daemon.json(&["stat"]);
    let value = &stat["devices"][nic][group][name];
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {stat}"))
}

/// A capture file of one frame, made by hand: classic pcap, Ethernet.
fn pcap(frame: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4u32.to_le_bytes());
    file.extend([2, 0, 4, 0]);
    for word in [0, 0, 65535, 1, 0, 0, frame.len() as u32, frame.len() as u32] {
        file.extend(word.to_le_bytes());
    }
    file.extend(frame);
    file
}

#[test]
fn a_pause_that_is_replayed_stops_the_sender_for_its_time() {
    let _alone = alone();
    let daemon = Daemon::start(&config("", "mode = \"pfc\"\npriorities = \"0\""));
    let mut frame = [0; LEN];
    PauseFrame::Priority {
        enabled: 1,
        quanta: [u16::MAX, 0, 0, 0, 0, 0, 0, 0],
    }
    .emit(&[2, 0, 0, 0, 0, 9], &mut frame);
    let file = daemon.dir().join("pause.pcap");
    fs::write(&file, pcap(&frame)).expect("the directory is ours");
    let file = file.to_str().expect("UTF-8");
    let (mut server, mut client) = endless(&daemon, "ib_write_bw", &["-u", "20"]);
    let sent = || count(&daemon, 1, "counters", "port_xmit_packets");
    for round in 1..=3u64 {
        let before = sent();
        wait_for("traffic", PATIENCE, || sent() > before + 1000);
        daemon
            .roceline("replay", &["replay", "-r", file, "--nic", "roce1"])
            .expect_ok();
        let ended = || count(&daemon, 1, "ethtool", "rx_prio0_pause_transition");
        wait_for("end of the pause", PATIENCE, || ended() == round);
        assert_eq!(count(&daemon, 1, "ethtool", "rx_prio0_pause"), round);
        // 65535 quanta of 512 bits at 100 Gb/s, in whole microseconds.
        let time = count(&daemon, 1, "ethtool", "rx_prio0_pause_duration");
        assert_eq!(time, round * 335_540 / 1000);
    }
    let before = sent();
    wait_for("traffic", PATIENCE, || sent() > before + 1000);
    assert!(server.is_running() && client.is_running());
    // The receiver of the transfer was not paused, and nobody lost anything.
    assert_eq!(count(&daemon, 0, "ethtool", "rx_prio0_pause"), 0);
    for nic in 0..2 {
        for name in ["out_of_sequence", "packet_seq_err", "local_ack_timeout_err"] {
            assert_eq!(count(&daemon, nic, "hw_counters", name), 0, "{name}");
        }
    }
    // Where a program looks, and how a person does.
    let path = "/sys/class/infiniband/roce1/ports/1/ethtool/rx_prio0_pause";
    let read = || {
        daemon
            .run_program("cat", "cat", &[path])
            .expect_ok()
            .stdout
            .trim()
            .to_string()
    };
    wait_for("the file", PATIENCE, || read() == "3");
}

/// What one thread hears holds for both, and is counted once.
#[test]
fn a_pause_holds_for_all_threads_of_a_nic() {
    let _alone = alone();
    // 65535 quanta of 512 bits are 33 s then.
    let keys = "line_rate = \"1Mb/s\"\ncongestion = \"none\"";
    let pfc =
        "mode = \"pfc\"\npriorities = \"0\"\nwatchdog_rx_limit = \"0\"\nwatchdog_tx_limit = \"0\"";
    let daemon = Daemon::start(&served_by_two(keys, pfc));
    let frame = |name: &str, time: u16| {
        let mut frame = [0; LEN];
        PauseFrame::Priority {
            enabled: 1,
            quanta: [time, 0, 0, 0, 0, 0, 0, 0],
        }
        .emit(&[2, 0, 0, 0, 0, 9], &mut frame);
        let file = daemon.dir().join(name);
        fs::write(&file, pcap(&frame)).expect("the directory is ours");
        file
    };
    let [stop, go] =
        [("stop.pcap", u16::MAX), ("go.pcap", 0)].map(|(name, time)| frame(name, time));
    let replay = |file: &std::path::Path| {
        let file = file.to_str().expect("UTF-8");
        let arguments = ["replay", "-r", file, "--nic", "roce1"];
        daemon.roceline("replay", &arguments).expect_ok();
    };
    // Of two clients of a NIC each is with another thread.
    let options = ["-u", "20", "-s", "4096"];
    let _ends = [(); 2].map(|()| endless(&daemon, "ib_write_bw", &options));
    let sent = || count(&daemon, 1, "counters", "port_xmit_packets");
    let before = sent();
    wait_for("traffic", PATIENCE, || sent() > before + 1000);
    replay(&stop);
    wait_for("silence", PATIENCE, || {
        let before = sent();
        thread::sleep(Duration::from_millis(300));
        sent() == before
    });
    assert_eq!(count(&daemon, 1, "ethtool", "rx_prio0_pause"), 1);
    assert_eq!(count(&daemon, 1, "ethtool", "rx_prio0_pause_transition"), 0);
    let before = sent();
    replay(&go);
    wait_for("traffic", PATIENCE, || sent() > before + 1000);
    assert_eq!(count(&daemon, 1, "ethtool", "rx_prio0_pause_transition"), 1);
    assert_eq!(count(&daemon, 1, "ethtool", "rx_prio0_pause"), 2);
}

/// A thread of a process that the test started, which stands still as long as this lives.
struct Still(libc::pid_t);

impl Still {
    #[track_caller]
    fn hold(thread: libc::pid_t) -> Still {
        let none = std::ptr::null_mut::<libc::c_void>();
        let mut status = 0;
        // SAFETY: system calls that concern the other process, and write one local number.
        unsafe {
            let seized = libc::ptrace(libc::PTRACE_SEIZE, thread, none, none);
            assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
            let stopped = libc::waitpid(thread, &raw mut status, libc::__WALL);
            assert_eq!(stopped, thread);
        }
        Still(thread)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: as above; it is ours to let go.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

/// The thread that reaches the memory of the program that opened its device first.
fn first_memory_thread(worker: u32) -> libc::pid_t {
    let tasks = fs::read_dir(format!("/proc/{worker}/task")).expect("it runs");
    let numbered = tasks.filter_map(|task| {
        let task = task.ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let context: u64 = name.trim().strip_prefix("memory-")?.parse().ok()?;
        Some((context, task.file_name().to_str()?.parse().ok()?))
    });
    numbered.min().expect("each program has a memory thread").1
}

/// Memory that is reached through the kernel, by a thread that stands still now and then, takes longer than packets do.
#[test]
fn a_receiver_that_does_not_keep_up_stops_the_sender_and_nothing_is_lost() {
    let _alone = alone();
    let pfc = "mode = \"pfc\"\npriorities = 3\nbuffer_bytes = 40000";
    stops_the_sender(&config("memory = \"never\"", pfc));
}

/// The server's context is on either lcore: who has been served before has the first, as a rule.
#[test]
fn nor_where_two_threads_serve_each_nic() {
    let _alone = alone();
    let pfc = "mode = \"pfc\"\npriorities = 3\nbuffer_bytes = 40000";
    stops_the_sender(&served_by_two("memory = \"never\"", pfc));
}

fn stops_the_sender(config: &str) {
    let mut daemon = Daemon::start(config);
    daemon
        .run_program("devinfo", "ibv_devinfo", &["-d", "roce0"])
        .expect_ok();
    let worker = daemon.worker();
    // DSCP 26.
    let more = ["-u", "20", "-q", "8", "--tclass", "104"];
    let (mut server, mut client) = endless(&daemon, "ib_write_bw", &more);
    let sent = || count(&daemon, 1, "counters", "port_xmit_packets");
    let asked = || count(&daemon, 0, "ethtool", "tx_prio3_pause");
    let mut millis = 2;
    while asked() == 0 {
        let before = sent();
        wait_for("traffic", PATIENCE, || sent() > before + 1000);
        let still = Still::hold(first_memory_thread(worker));
        // Nobody could be asked meanwhile whether it was long enough. The NIC's patience is 20 ms.
        thread::sleep(Duration::from_millis(millis));
        drop(still);
        millis = (millis + 1).min(15);
        assert!(server.is_running() && client.is_running());
    }
    let heard = || count(&daemon, 1, "ethtool", "rx_prio3_pause");
    wait_for("all pauses at the other end", PATIENCE, || {
        heard() == asked()
    });
    let ended = || count(&daemon, 1, "ethtool", "rx_prio3_pause_transition");
    wait_for("the end of the pause", PATIENCE, || ended() > 0);
    let before = sent();
    wait_for("traffic", PATIENCE, || sent() > before + 1000);
    assert!(count(&daemon, 0, "ethtool", "tx_prio3_pause_transition") > 0);
    assert_eq!(count(&daemon, 0, "ethtool", "rx_prio3_discards"), 0);
    // On a machine that let the thread stand still for longer than the NIC's patience, that lost packets, and no pause did.
    if count(&daemon, 0, "port", "rx_memory_overrun") == 0 {
        for nic in 0..2 {
            for name in ["out_of_sequence", "packet_seq_err", "local_ack_timeout_err"] {
                assert_eq!(count(&daemon, nic, "hw_counters", name), 0, "{name}");
            }
        }
    }
}

/// Priorities by tag: packets have the service level of their queue pair in it, so that is what pauses and counts.
#[test]
fn service_levels_are_priorities_where_tags_are_trusted() {
    let _alone = alone();
    let pfc = "mode = \"pfc\"\npriorities = \"5\"\ntrust = \"pcp\"";
    let daemon = Daemon::start(&config("", pfc));
    let [server, client] = ["roce0", "roce1"].map(|device| End {
        daemon: &daemon,
        device,
    });
    let arguments = ["-F", "-s", "65536", "-n", "100", "-S", "5", "-x", "1"];
    let pair = Pair::run(server, client, "ib_send_bw", &arguments, PATIENCE);
    assert!(pair.ok(), "{}", pair.report());
    for nic in 0..2 {
        let packets = |name: &str| count(&daemon, nic, "ethtool", name);
        let all = count(&daemon, nic, "counters", "port_rcv_packets");
        assert!(all > 0);
        assert_eq!(packets("rx_prio5_packets"), all, "NIC {nic}");
        assert_eq!(packets("rx_prio0_packets"), 0, "NIC {nic}");
        let all = count(&daemon, nic, "counters", "port_xmit_packets");
        assert_eq!(packets("tx_prio5_packets"), all, "NIC {nic}");
    }
}
