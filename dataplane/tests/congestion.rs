//! Congestion control of running NICs from outside: `roceline congestion`, and the files that programs find.

mod support;

use std::fs;

use serde_json::Value;
use support::daemon::{Daemon, PAIR};
use support::installed::{Installed, NOBODY, STRANGER, own_by};
use support::process::{Ended, Process};
use support::{PATIENCE, alone};

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
