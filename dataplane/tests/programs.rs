//! The distribution's own verbs programs, unmodified, over a real daemon.
//!
//! `ROCELINE_MATRIX=full` runs the full product of perftest's options (`scripts/matrix`); otherwise a set that holds
//! every pair of them runs; `ROCELINE_MATRIX=short` leaves out of that set what runs over all sizes, where perftest
//! measures the CPU's frequency for most of the time (`scripts/soak-programs`).

mod support;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::daemon::{Daemon, Objects, PAIR};
use support::matrix::{self, Case};
use support::pair::{End, Pair, rows};
use support::process::Process;
use support::{PATIENCE, alone, wait_for};

/// The two ends of the preset: two devices, or one as its own peer.
fn ends(daemon: &Daemon, loopback: bool) -> (End<'_>, End<'_>) {
    let client = if loopback { "roce0" } else { "roce1" };
    (
        End {
            daemon,
            device: "roce0",
        },
        End {
            daemon,
            device: client,
        },
    )
}

#[test]
fn devices_are_listed() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let listed = daemon
        .run_program("devices", "ibv_devices", &[])
        .expect_ok();
    let line = |name: &str| {
        listed
            .stdout
            .lines()
            .find(|line| line.split_ascii_whitespace().next() == Some(name))
            .unwrap_or_else(|| panic!("no {name} in {}", listed.report()))
            .to_owned()
    };
    // The node GUIDs come from the derived MAC addresses 02:52:4c:4d:00:01 and :02.
    assert!(
        line("roce0").ends_with("00524cfffe4d0001"),
        "{}",
        listed.report()
    );
    assert!(
        line("roce1").ends_with("00524cfffe4d0002"),
        "{}",
        listed.report()
    );
}

#[test]
fn a_limited_program_sees_one_device() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let mut command = daemon.run(&["--device", "roce1"], "ibv_devices", &[]);
    let listed = Process::start(daemon.dir(), "limited", &mut command)
        .finish(PATIENCE)
        .expect_ok();
    assert!(listed.stdout.contains("roce1"), "{}", listed.report());
    assert!(!listed.stdout.contains("roce0"), "{}", listed.report());
}

/// Compiles something of the shim's tests, where these programs are explained.
fn compile(daemon: &Daemon, name: &str, flags: &[&str]) -> String {
    let out = daemon.dir().join(name);
    let compiled = Command::new("cc")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-shim/tests"))
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .arg(&out)
        .args(flags)
        .status()
        .expect("a C compiler is installed");
    assert!(compiled.success(), "{name} does not compile");
    out.to_str().expect("a plain path").to_owned()
}

#[test]
fn libraries_loaded_at_run_time_open_a_device() {
    let _alone = alone();
    let daemon = Daemon::pair();
    const BUNDLED: &str = "libibverbs-0a1b2c3d.so.1.14.41.0";
    let versions = daemon.dir().join("versions");
    fs::write(&versions, "IBVERBS_1.1 { global: ibv_*; local: *; };").expect("a file");
    let linker = format!(
        "-Wl,-soname,{BUNDLED},--version-script,{}",
        versions.display()
    );
    let shared = ["-shared", "-fPIC", "wheel_bundled.c", &linker];
    let bundled = compile(&daemon, BUNDLED, &shared);
    let shared = ["-shared", "-fPIC", "wheel_extension.c", &bundled];
    let shared = [&shared[..], &["-Wl,-rpath,$ORIGIN"]].concat();
    let extension = compile(&daemon, "extension.so", &shared);
    let probe = compile(&daemon, "dlopen_probe", &["dlopen_probe.c"]);
    let python = format!("import ctypes; ctypes.CDLL({extension:?}).devices()");
    for (name, program, arguments) in [
        ("plain", probe.as_str(), &["plain"][..]),
        ("deepbind", &probe, &["deepbind"]),
        ("extension", &probe, &["extension", &extension]),
        ("python", "python3", &["-c", &python]),
    ] {
        let ended = daemon.run_program(name, program, arguments).expect_ok();
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(
            lines.len() == 2 && lines[0].starts_with("2: roce") && lines[1] == "opened",
            "{name}: {}",
            ended.report()
        );
    }
}

/// A machine with a device `real0` that is made of files. Its `modalias` is one for which every test machine has a provider.
fn machine(daemon: &Daemon) -> PathBuf {
    let root = daemon.dir().join("machine");
    for (path, content) in [
        ("sys/class/infiniband_verbs/abi_version", "6\n"),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", "real0\n"),
        ("sys/class/infiniband_verbs/uverbs0/abi_version", "2\n"),
        ("sys/class/infiniband_verbs/uverbs0/dev", "231:192\n"),
        ("sys/class/infiniband/real0/node_type", "1: CA\n"),
        (
            "sys/class/infiniband/real0/node_guid",
            "0000:00ff:fe00:0abc\n",
        ),
        (
            "sys/class/infiniband/real0/device/modalias",
            "rdma_device:Nrxe\n",
        ),
        ("dev/infiniband/uverbs0", "a node of the kernel's\n"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, content).expect("a file");
    }
    root
}

#[test]
fn devices_of_the_machine_are_seen_beside_ours() {
    let _alone = alone();
    let mut daemon = Daemon::prepare(PAIR);
    let mut command = daemon.command();
    command.env("ROCELINE_MACHINE_ROOT", machine(&daemon));
    daemon.launch_by(command);
    daemon.expect_ready();

    let listed = |options: &[&str]| {
        let mut command = daemon.run(options, "ibv_devices", &[]);
        let ended = Process::start(daemon.dir(), "list", &mut command)
            .finish(PATIENCE)
            .expect_ok();
        let names = ended.stdout.lines().skip(2);
        let names = names.filter_map(|line| line.split_ascii_whitespace().next());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names
    };
    assert_eq!(listed(&[]), ["real0", "roce0", "roce1"]);
    assert_eq!(listed(&["--device", "roce1"]), ["roce1"]);

    let devices = daemon.json(&["show", "devices"]);
    let uverbs = |i: usize| devices["devices"][i]["uverbs"].as_str();
    assert_eq!(
        (uverbs(0), uverbs(1)),
        (Some("uverbs512"), Some("uverbs513"))
    );
    let node = daemon
        .run_program("node", "cat", &["/dev/infiniband/uverbs0"])
        .expect_ok();
    assert_eq!(node.stdout, "a node of the kernel's\n");
    for device in ["roce0", "roce1"] {
        daemon
            .run_program("open", "ibv_devinfo", &["-d", device])
            .expect_ok();
    }

    let class = daemon.dir().join("machine/sys/class");
    fs::remove_dir_all(class.join("infiniband/real0")).expect("a directory of ours");
    fs::remove_dir_all(class.join("infiniband_verbs/uverbs0")).expect("a directory of ours");
    wait_for("the links to go", PATIENCE, || {
        listed(&[]) == ["roce0", "roce1"]
    });
}

#[test]
fn devinfo_tells_what_is_configured() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let info = daemon
        .run_program("devinfo", "ibv_devinfo", &["-v", "-d", "roce0"])
        .expect_ok();
    let value = |key: &str| {
        info.stdout
            .lines()
            .find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(':'))
            .map(str::trim)
            .unwrap_or_else(|| panic!("no {key} in {}", info.report()))
            .to_owned()
    };
    assert!(value("state").starts_with("PORT_ACTIVE"));
    assert!(value("active_mtu").starts_with("4096"));
    assert!(value("transport").starts_with("InfiniBand"));
    assert_eq!(value("link_layer"), "Ethernet");
    assert_eq!(value("node_guid"), "0052:4cff:fe4d:0001");
    assert!(
        value("GID[  0]").starts_with("::ffff:10.77.0.1, RoCE v2"),
        "{}",
        info.report()
    );
    assert!(value("GID[  1]").contains("fd77::1"), "{}", info.report());
    assert!(value("GID[  2]").contains("fe80::"), "{}", info.report());
}

/// Runs one combination and says what is wrong with the result.
fn perftest(daemon: &Daemon, case: &Case) -> Result<Duration, String> {
    let (server, client) = ends(daemon, case.loopback);
    let arguments = case.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let begin = Instant::now();
    let run = Pair::run(server, client, case.tool, &arguments, 4 * PATIENCE);
    let took = begin.elapsed();
    if !run.ok() {
        return Err(run.report());
    }
    // -a: one row for every power of two from 2 to 2^23; else one row.
    let sizes: Vec<f64> = rows(&run.client.stdout).iter().map(|row| row[0]).collect();
    let all: Vec<f64> = (1..=23).map(|power| f64::from(1 << power)).collect();
    let expected = if case.all_sizes {
        all
    } else if case.tool.ends_with("_bw") {
        vec![65536.0]
    } else {
        vec![2.0]
    };
    if sizes != expected {
        return Err(format!("rows of sizes {sizes:?}\n{}", run.report()));
    }
    Ok(took)
}

#[test]
fn perftest_over_its_options() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    daemon.quicken();
    let which = env::var("ROCELINE_MATRIX").unwrap_or_default();
    let filter = env::var("ROCELINE_MATRIX_FILTER").unwrap_or_default();
    let mut cases = match which.as_str() {
        "" | "short" => matrix::pairwise(),
        "full" => matrix::product(),
        other => panic!("ROCELINE_MATRIX={other}: `full`, `short` or nothing"),
    };
    if which == "short" {
        cases.retain(|case| !case.all_sizes);
    }
    cases.retain(|case| case.to_string().contains(&filter));
    let mut failures = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        match perftest(&daemon, case) {
            Ok(took) => {
                println!(
                    "{:3} of {}: {case}: {:.1} s",
                    i + 1,
                    cases.len(),
                    took.as_secs_f64()
                )
            }
            Err(report) => {
                println!("{:3} of {}: {case}: FAILED", i + 1, cases.len());
                failures.push(format!("==== {case}\n{report}"));
                if !daemon.process().is_running() {
                    failures.push("==== and the daemon has ended".into());
                    break;
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{}\n{}",
        failures.join("\n"),
        daemon.log()
    );
    assert_eq!(daemon.objects(), Objects::default());
}

#[test]
fn the_chosen_combinations_hold_every_pair() {
    let pairs = |cases: &[Case]| {
        let mut pairs = std::collections::BTreeSet::new();
        for case in cases {
            let values = [
                case.tool.to_string(),
                format!("m{}", case.mtu),
                format!("b{}", case.bidirectional),
                format!("q{}", case.many_qps),
                format!("e{}", case.events),
                format!("I{}", case.inline),
                format!("l{}", case.loopback),
                format!("a{}", case.all_sizes),
            ];
            for (i, a) in values.iter().enumerate() {
                for b in &values[..i] {
                    pairs.insert(format!("{a} {b}"));
                }
            }
        }
        pairs
    };
    assert_eq!(matrix::product().len(), 380);
    let few = matrix::pairwise();
    assert_eq!(pairs(&few), pairs(&matrix::space()));
    assert!(few.len() <= 50, "{}", few.len());
}

/// A program of our own checks every byte of SEND, WRITE and READ over sizes around the MTU and far beyond, and the
/// completion of every error.
#[test]
fn every_byte_arrives() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-shim/tests");
    let program = daemon.dir().join("verbs_check");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .arg(&program)
        .args(["verbs_check.c", "verbs_end.c"].map(|source| sources.join(source)))
        .arg("-libverbs")
        .status()
        .expect("a C compiler is installed");
    assert!(compiled.success(), "verbs_check.c does not compile");
    let program = program
        .to_str()
        .expect("temporary directories have plain names");
    for arguments in [
        &["roce0", "roce1"][..],
        &["roce0", "roce0"],
        &["-m", "256", "roce1", "roce0"],
        &["-m", "4096", "-g", "1", "roce0", "roce1"],
    ] {
        let checked = daemon.run_program("check", program, arguments);
        assert!(
            checked.ok(),
            "{arguments:?}\n{}{}",
            checked.report(),
            daemon.log()
        );
    }
    assert_eq!(daemon.objects(), Objects::default());
}
