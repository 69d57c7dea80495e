//! Congestion control of running NICs from outside: `roceline congestion`, and the files that programs find.

mod support;

use std::fs;

use serde_json::Value;
use support::daemon::{Daemon, PAIR};
use support::installed::{Installed, NOBODY, STRANGER, own_by};
use support::pair::{End, Pair, rows};
use support::process::{Ended, Process};
use support::{PATIENCE, alone, free_port, listening, wait_for};

const RP: &str = "/sys/class/infiniband/roce0/ecn/roce_rp";
const NP: &str = "/sys/class/infiniband/roce0/ecn/roce_np";

fn shell(daemon: &Daemon, script: &str) -> Ended {
    daemon.run_program("shell", "bash", &["-c", script])
}

#[track_caller]
fn reads(daemon: &Daemon, path: &str) -> String {
    let ended = shell(daemon, &format!("cat {path}"));
    assert!(ended.ok(), "{}", ended.report());
    ended.stdout.trim_end().into()
}

/// A key of a device, its value and who set it.
fn setting(daemon: &Daemon, device: usize, key: &str) -> (String, String) {
    let reply = daemon.json(&["congestion", "show"]);
    let settings = reply["devices"][device]["settings"].as_array();
    let found = settings.and_then(|all| all.iter().find(|line| line["key"] == key));
    let found = found.unwrap_or_else(|| panic!("no {key} in {reply}"));
    let text = |key: &str| found[key].as_str().map(String::from).unwrap_or_default();
    (text("value"), text("from"))
}

#[test]
fn the_configuration_is_what_commands_and_files_show() {
    let _alone = alone();
    let config = PAIR.replacen(
        "\n[[nic]]\nname = \"roce1\"",
        "congestion = \"fixed-rate\"\nfixed_rate = \"2Gb/s\"\n[nic.dcqcn]\nprofile = \"paper\"\nrpg_ai_rate = 7\n\
         [nic.np]\ncnp_dscp = 46\nnp_enable = 0xf7\n\n[[nic]]\nname = \"roce1\"",
        1,
    );
    assert_ne!(config, PAIR);
    let daemon = Daemon::start(&config);
    assert_eq!(reads(&daemon, &format!("{RP}/rpg_ai_rate")), "7");
    assert_eq!(reads(&daemon, &format!("{RP}/rpg_threshold")), "5");
    assert_eq!(reads(&daemon, &format!("{NP}/cnp_dscp")), "46");
    assert_eq!(
        reads(&daemon, &format!("{NP}/enable/[0-7] | tr -d '\\n'")),
        "11101111"
    );
    let from = |key| setting(&daemon, 0, key);
    assert_eq!(
        from("algorithm"),
        ("fixed-rate".into(), "configuration".into())
    );
    assert_eq!(from("rpg_ai_rate"), ("7".into(), "configuration".into()));
    assert_eq!(from("rpg_threshold"), ("5".into(), "default".into()));
    assert_eq!(
        setting(&daemon, 1, "profile"),
        ("connectx".into(), "default".into())
    );
    let shown = daemon.roceline("show", &["congestion", "show"]);
    assert!(
        shown.ok() && shown.stdout.contains("rpg_ai_rate"),
        "{}",
        shown.report()
    );
    let explained = daemon.roceline("explain", &["congestion", "explain", "rpg_gd"]);
    assert!(
        explained.stdout.contains("1 to 11"),
        "{}",
        explained.report()
    );
}

#[test]
fn what_is_set_is_in_the_files_and_the_other_way_round() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let set = [
        "congestion",
        "set",
        "--nic",
        "roce0",
        "rpg_ai_rate=40Mb/s",
        "cnp_dscp=50",
    ];
    let ended = daemon.roceline("set", &set);
    assert!(
        ended.ok() && ended.stdout.contains("rpg_ai_rate"),
        "{}",
        ended.report()
    );
    // The file is written before the command ends.
    assert_eq!(
        reads(
            &daemon,
            &format!("{RP}/rpg_ai_rate {NP}/cnp_dscp | tr '\\n' ,")
        ),
        "40,50,"
    );

    let ended = shell(
        &daemon,
        &format!(
            "set -e; echo 41 > {RP}/rpg_ai_rate; cat {RP}/rpg_ai_rate; echo 0 > {NP}/enable/3; \
             printf 99 > /sys/class/infiniband/roce0/cc_params/rp_hai_rate; \
             echo 17 > /sys/class/net/roce0/ecn/roce_rp/rpg_time_reset"
        ),
    );
    assert!(ended.ok(), "{}", ended.report());
    assert_eq!(ended.stdout, "41\n");
    for (key, value) in [
        ("rpg_ai_rate", "41"),
        ("np_enable", "247"),
        ("rpg_hai_rate", "99"),
        ("rpg_time_reset", "17"),
    ] {
        assert_eq!(
            setting(&daemon, 0, key),
            (value.into(), "set".into()),
            "{key}"
        );
    }
    // The other NIC is as it was, and programs that see one NIC only see the same files.
    assert_eq!(
        setting(&daemon, 1, "rpg_ai_rate"),
        ("5".into(), "default".into())
    );
    let only = daemon
        .run(
            &["--device", "roce0"],
            "cat",
            &[&format!("{RP}/rpg_ai_rate")],
        )
        .output()
        .expect("cat");
    assert_eq!(only.stdout, b"41\n");

    for (script, says) in [
        (format!("echo 12 > {RP}/rpg_gd"), "Invalid argument"),
        (format!("echo fast > {RP}/rpg_ai_rate"), "Invalid argument"),
        (format!("echo 2 > {RP}/enable/0"), "Invalid argument"),
        (format!("echo 1 > {RP}/rpg_speed"), ""),
    ] {
        let ended = shell(&daemon, &script);
        let said = ended.report();
        assert!(ended.failed() && said.contains(says), "{script}: {said}");
    }
    // The daemon's log has the reason, the file the value that holds.
    assert!(daemon.log().contains("rpg_gd = \"12\""), "{}", daemon.log());
    assert_eq!(
        reads(
            &daemon,
            &format!("{RP}/rpg_gd {RP}/rpg_ai_rate | tr '\\n' ,")
        ),
        "11,41,"
    );
    let both = ["congestion", "set", "rpg_ai_rate=50", "rpg_gd=12"];
    let ended = daemon.roceline("refused", &both);
    assert!(
        ended.failed() && ended.stderr.contains("from 1 to 11"),
        "{}",
        ended.report()
    );
    assert_eq!(setting(&daemon, 1, "rpg_ai_rate").0, "5");
}

/// Programs of others read, and cannot write, unless the configuration names them.
#[test]
fn only_operators_change_it() {
    let _alone = alone();
    if !support::is_root("becomes other users") {
        return;
    }
    let installed = Installed::new();
    for (operators, may) in [("[]", false), ("[65533]", true)] {
        let config = format!("{PAIR}\n[control]\noperators = {operators}\n");
        let mut daemon = Daemon::prepare(&config);
        own_by(NOBODY, &daemon);
        let command = installed.by(NOBODY, &daemon.command());
        daemon.launch_by(command);
        daemon.expect_ready();
        let script = format!("cat {RP}/rpg_ai_rate; echo 44 > {RP}/rpg_ai_rate");
        let mut command = installed.by(STRANGER, &daemon.program("sh", &["-c", &script]));
        let ended = Process::start(daemon.dir(), "stranger", &mut command).finish(PATIENCE);
        assert_eq!(ended.stdout, "5\n", "{}", ended.report());
        assert_eq!(ended.ok(), may, "{}", ended.report());
        let said = ended.stderr.contains("ermission denied");
        assert_eq!(said, !may, "{}", ended.report());
        let value = if may { "44" } else { "5" };
        assert_eq!(setting(&daemon, 0, "rpg_ai_rate").0, value);
    }
}

/// A NIC process that is started anew has what the configuration says.
#[test]
fn what_was_set_ends_with_the_process() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    assert!(
        daemon
            .roceline("set", &["congestion", "set", "profile=paper"])
            .ok()
    );
    assert_eq!(reads(&daemon, &format!("{RP}/rpg_time_reset")), "55");
    daemon.kill_worker(libc::SIGKILL);
    daemon.expect_ready();
    assert_eq!(reads(&daemon, &format!("{RP}/rpg_time_reset")), "300");
    let reply: Value = daemon.json(&["congestion", "show", "--nic", "roce0"]);
    assert_eq!(reply["devices"].as_array().map(Vec::len), Some(1));
    let left: Vec<_> = fs::read_dir(daemon.dir())
        .expect("the directory")
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().contains(".d.new"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A NIC of the pair with one line more.
fn with(device: &str, line: &str) -> String {
    let name = format!("name = \"{device}\"\n");
    let config = PAIR.replacen(&name, &format!("{name}{line}\n"), 1);
    assert_ne!(config, PAIR);
    config
}

/// 200 times 64 KiB at 100 Mb/s take a second and more, on however fast a machine.
#[test]
fn a_fixed_rate_is_not_exceeded() {
    let _alone = alone();
    let line = "congestion = \"fixed-rate\"\nfixed_rate = \"100Mb/s\"";
    let daemon = Daemon::start(&with("roce1", line));
    let end = |device| End {
        daemon: &daemon,
        device,
    };
    let options = ["-F", "-s", "65536", "-n", "200"];
    let run = Pair::run(
        end("roce0"),
        end("roce1"),
        "ib_write_bw",
        &options,
        PATIENCE,
    );
    assert!(run.ok(), "{}{}", run.report(), daemon.log());
    // The average, in 2^20 bytes. How much slower is up to the machine; a burst of 64 KiB may come first, of 13 MB.
    let rate = rows(&run.client.stdout)[0][3] * f64::from(8 << 20);
    assert!(rate > 0.0 && rate < 1.02 * 100e6, "{}", run.report());
}

#[test]
fn rates_of_queue_pairs_are_shown_and_follow_what_is_set() {
    let _alone = alone();
    let line = "congestion = \"fixed-rate\"\nfixed_rate = \"50Mb/s\"\nline_rate = \"10Gb/s\"";
    let daemon = Daemon::start(&with("roce1", line));
    let port = free_port();
    let number = port.to_string();
    let start = |name: &str, more: &[&str]| {
        let mut all = vec!["-F", "-s", "65536", "-D", "300", "-p", &number];
        all.extend(more);
        daemon.start_program(&format!("{name}-{port}"), "ib_write_bw", &all)
    };
    let mut server = start("server", &["-d", "roce0"]);
    wait_for("listening server", PATIENCE, || {
        listening(port) || !server.is_running()
    });
    let _client = start("client", &["-d", "roce1", "127.0.0.1"]);
    let rate = || {
        let reply = daemon.json(&["show", "qps"]);
        let qps = reply["qps"].as_array().expect("a list");
        let sender = qps
            .iter()
            .find(|qp| qp["device"] == "roce1" && qp["state"] == "RTS");
        sender.and_then(|qp| qp["rate"].as_u64())
    };
    wait_for("the configured rate", PATIENCE, || {
        rate() == Some(50_000_000)
    });
    let shown = daemon.roceline("show", &["show", "qps"]);
    assert!(shown.stdout.contains("50Mb/s"), "{}", shown.report());
    let set = ["congestion", "set", "--nic", "roce1", "fixed_rate=2Gb/s"];
    assert!(daemon.roceline("set", &set).ok());
    // Without waiting: the command ends when the NIC goes by it.
    assert_eq!(rate(), Some(2_000_000_000));
    assert!(
        daemon
            .roceline("set", &["congestion", "set", "algorithm=none"])
            .ok()
    );
    assert_eq!(rate(), Some(10_000_000_000));
    let doctor = daemon.roceline("doctor", &["doctor"]);
    let says = "no queue pair of roce0 slows down";
    assert!(doctor.stdout.contains(says), "{}", doctor.report());
}
