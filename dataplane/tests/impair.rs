//! Real programs over NICs and links that misbehave: no byte is wrong, and what the NICs count is what the rules did.

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use support::daemon::{Daemon, Objects, PAIR};
use support::pair::{End, Pair, rows};
use support::process::Ended;
use support::{PATIENCE, alone, wait_for};

/// ACK timeout of 4.2 ms (4.096 us * 2^10): a lost tail is sent again soon.
const SOON: [&str; 2] = ["-u", "10"];
/// ACK timeout of 4.3 s: nothing is sent again by mere slowness of the machine.
const LATE: [&str; 2] = ["-u", "20"];

/// A rule at work, as `roceline impair list` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    id: u64,
    place: String,
    seen: u64,
    matched: u64,
    hit: u64,
    dropped: u64,
}

#[track_caller]
fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {key} in {value}"))
}

#[track_caller]
fn lines(daemon: &Daemon, name: &str) -> Vec<Line> {
    let listed = daemon.json(&["impair", "list"]);
    let rules = listed["rules"].as_array().expect("`rules` is a list");
    let line = |rule: &Value| Line {
        id: number(rule, "id"),
        place: rule["place"].as_str().unwrap_or_default().into(),
        seen: number(rule, "seen"),
        matched: number(rule, "matched"),
        hit: number(rule, "hit"),
        dropped: number(rule, "dropped"),
    };
    let named = rules.iter().filter(|rule| rule["name"] == name);
    named.map(line).collect()
}

/// A rule that stands at one place.
#[track_caller]
fn line(daemon: &Daemon, name: &str) -> Line {
    let mut lines = lines(daemon, name);
    assert_eq!(lines.len(), 1, "{name}: {lines:?}");
    lines.remove(0)
}

#[track_caller]
fn add(daemon: &Daemon, name: &str, options: &str) {
    let mut arguments = vec!["impair", "add", "--name", name];
    arguments.extend(options.split_ascii_whitespace());
    daemon.roceline("add", &arguments).expect_ok();
}

#[track_caller]
fn clear(daemon: &Daemon) {
    daemon.roceline("clear", &["impair", "clear"]).expect_ok();
}

#[track_caller]
fn counter(daemon: &Daemon, device: &str, name: &str) -> u64 {
    let stat = daemon.json(&["stat"]);
    let devices = stat["devices"].as_array().expect("`devices` is a list");
    let of_device = devices.iter().find(|d| d["name"] == device);
    let of_device = of_device.unwrap_or_else(|| panic!("no {device} in {stat}"));
    let groups = ["hw_counters", "counters", "port"];
    let value = groups.iter().find_map(|g| of_device[g][name].as_u64());
    value.unwrap_or_else(|| panic!("no {name} in {of_device}"))
}

/// A perftest with its server on roce0 and its client, which sends requests, on roce1.
#[track_caller]
fn perftest(daemon: &Daemon, tool: &str, options: &[&str]) -> Pair {
    let end = |device| End { daemon, device };
    let run = Pair::run(end("roce0"), end("roce1"), tool, options, PATIENCE);
    assert!(
        run.ok(),
        "{tool} {options:?}\n{}{}",
        run.report(),
        daemon.log()
    );
    run
}

/// The program of ours that compares every byte.
#[track_caller]
fn verbs_check(daemon: &Daemon, arguments: &[&str]) -> Ended {
    let program = daemon.dir().join("verbs_check");
    if !program.exists() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-shim/tests");
        let compiled = Command::new("cc")
            .args(["-O1", "-o"])
            .arg(&program)
            .args(["verbs_check.c", "verbs_end.c"].map(|source| sources.join(source)))
            .arg("-libverbs")
            .status()
            .expect("a C compiler is installed");
        assert!(compiled.success(), "verbs_check.c does not compile");
    }
    let program = program
        .to_str()
        .expect("temporary directories have plain names");
    let checked = daemon.run_program("check", program, arguments);
    assert!(checked.ok(), "{}{}", checked.report(), daemon.log());
    checked
}

/// What ibv_rc_pingpong says at its end: `20 iters in 0.13 seconds = 6500.00 usec/iter`.
#[track_caller]
fn usec_per_iteration(output: &str) -> f64 {
    let said = output
        .lines()
        .find_map(|line| line.strip_suffix(" usec/iter")?.rsplit(' ').next());
    let number = said.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no time in {output}"))
}

#[test]
fn no_byte_is_wrong_over_a_link_that_loses_doubles_swaps_and_spoils() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    daemon.quicken();
    let loss = ("loss", "--drop --probability 1%");
    let doubles = ("doubles", "--duplicate --probability 1%");
    let swaps = ("swaps", "--reorder 3 --probability 5%");
    let spoils = ("spoils", "--corrupt bit --probability 1%");
    for rules in [
        &[loss][..],
        &[doubles],
        &[swaps],
        &[spoils],
        &[loss, doubles, swaps, spoils],
    ] {
        for (name, options) in rules {
            add(&daemon, name, &format!("--link link0 --seed 11 {options}"));
        }
        for tool in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            let options = [&SOON[..], &["-s", "65536", "-n", "100", "-m", "4096"]].concat();
            perftest(&daemon, tool, &options);
        }
        // 16 MiB of each operation in the largest messages, checked byte by byte.
        verbs_check(
            &daemon,
            &["-m", "4096", "-t", "60", "roce0", "roce1", "bytes"],
        );
        for (name, _) in rules {
            for line in lines(&daemon, name) {
                assert!(line.hit > 0, "{rules:?}: {line:?}");
            }
        }
        clear(&daemon);
    }
    assert_eq!(daemon.objects(), Objects::default());
}

#[test]
fn one_lost_packet_is_one_gap_and_one_nak() {
    let _alone = alone();
    let daemon = Daemon::pair();
    // Messages of two packets, one at a time: the packet behind the gap is the only one that comes too early.
    add(
        &daemon,
        "once",
        "--nic roce1 --tx --class write,first --message 5 --drop --count 1",
    );
    add(
        &daemon,
        "fifth",
        "--nic roce1 --tx --class write --message 5 --observe",
    );
    add(
        &daemon,
        "naks",
        "--nic roce0 --tx --class nak --syndrome 0x60 --observe",
    );
    let options = [&LATE[..], &["-s", "8192", "-n", "20", "-m", "4096"]].concat();
    perftest(&daemon, "ib_write_lat", &options);
    let once = line(&daemon, "once");
    assert_eq!((once.hit, once.dropped), (1, 1), "{once:?}");
    for (device, counted, expected) in [
        ("roce0", "out_of_sequence", 1),
        ("roce1", "packet_seq_err", 1),
        ("roce0", "duplicate_request", 0),
        ("roce1", "local_ack_timeout_err", 0),
        ("roce0", "rx_icrc_encapsulated", 0),
    ] {
        assert_eq!(
            counter(&daemon, device, counted),
            expected,
            "{device} {counted}"
        );
    }
    // Both packets of the message were sent twice; this rule stands behind the one that dropped the first.
    assert_eq!(line(&daemon, "fifth").matched, 3);
    assert_eq!(line(&daemon, "naks").matched, 1);
}

#[test]
fn what_is_dropped_and_spoiled_is_what_the_counters_miss_and_refuse() {
    let _alone = alone();
    let daemon = Daemon::pair();
    add(&daemon, "sent", "--nic roce1 --tx --observe");
    add(
        &daemon,
        "lost",
        "--link link0 --from roce1 --drop --probability 2% --seed 3",
    );
    add(
        &daemon,
        "spoiled",
        "--link link0 --from roce1 --corrupt icrc --probability 2% --seed 4",
    );
    add(
        &daemon,
        "twice",
        "--link link0 --from roce1 --duplicate 2 --probability 2% --seed 5",
    );
    add(&daemon, "came", "--nic roce0 --rx --observe");
    let options = [&SOON[..], &["-s", "65536", "-n", "200", "-m", "4096"]].concat();
    perftest(&daemon, "ib_write_bw", &options);
    let [sent, lost, spoiled, twice, came] =
        ["sent", "lost", "spoiled", "twice", "came"].map(|name| line(&daemon, name));
    assert!(
        lost.hit > 0 && spoiled.hit > 0 && twice.hit > 0,
        "{lost:?} {spoiled:?} {twice:?}"
    );
    // 200 messages of 16 packets; what is beyond was sent again.
    assert!(sent.seen > 3200 + lost.hit, "{sent:?}");
    assert_eq!(sent.seen, counter(&daemon, "roce1", "port_xmit_packets"));
    assert_eq!(lost.seen, sent.seen);
    assert_eq!(lost.dropped, lost.hit);
    assert_eq!(spoiled.seen, lost.seen - lost.dropped);
    assert_eq!(came.seen, twice.seen + 2 * twice.hit);
    // A spoiled packet that was doubled is refused three times, so the rules behind tell how many came spoiled.
    let refused = counter(&daemon, "roce0", "rx_icrc_encapsulated");
    let extra = refused - spoiled.hit;
    assert!(
        extra % 2 == 0 && extra <= 2 * twice.hit,
        "{refused} {spoiled:?} {twice:?}"
    );
    assert_eq!(
        counter(&daemon, "roce0", "port_rcv_packets"),
        came.seen - refused
    );
    assert!(counter(&daemon, "roce1", "packet_seq_err") > 0);
}

#[test]
fn config_and_command_line_give_the_same_hits() {
    let _alone = alone();
    // Without a loss, and with a timeout that no crowded machine exceeds, the packets are the same each time.
    let rule = |daemon: &Daemon| {
        let options = [&LATE[..], &["-s", "65536", "-n", "50", "-m", "4096"]].concat();
        perftest(daemon, "ib_write_bw", &options);
        let listed = daemon.json(&["impair", "list"]);
        (listed["rules"][0]["rule"].clone(), line(daemon, "ce"))
    };
    let live = Daemon::pair();
    add(
        &live,
        "ce",
        "--link link0 --from roce1 --class data --probability 10% --seed 7 --mark-ce",
    );
    let by_command = rule(&live);
    drop(live);
    let configured = Daemon::start(&format!(
        "{PAIR}\n[[impair]]\nname = \"ce\"\nlink = \"link0\"\nfrom = \"roce1\"\nclass = \"data\"\n\
         probability = 0.1\nseed = 7\nmark_ce = true\n"
    ));
    let (spec, counts) = rule(&configured);
    assert_eq!(counts, by_command.1);
    assert_eq!((counts.matched, counts.dropped), (800, 0));
    assert!(counts.hit > 50 && counts.hit < 110, "{counts:?}");
    // They differ in how the probability was written, and in nothing else.
    let (mut a, mut b) = (spec, by_command.0);
    assert_eq!(
        (&a["probability"], &b["probability"]),
        (&"0.1".into(), &"10%".into())
    );
    for rule in [&mut a, &mut b] {
        rule["probability"] = Value::Null;
    }
    assert_eq!(a, b);
}

/// The daemon may run anywhere, and its worker be started again when the file has gone.
#[test]
fn delays_of_a_file_beside_the_configuration_outlive_it() {
    let _alone = alone();
    let mut daemon = Daemon::prepare(&format!(
        "{PAIR}\n[[impair]]\nlink = \"link0\"\ndelay = \"trace:delays.txt\"\n"
    ));
    let file = daemon.dir().join("delays.txt");
    std::fs::write(&file, "10us\n20us\n").expect("the directory is ours");
    daemon.launch();
    daemon.expect_ready();
    std::fs::remove_file(&file).expect("it is ours");
    let rule = |daemon: &Daemon| daemon.json(&["impair", "list"])["rules"][0].clone();
    let first = rule(&daemon);
    assert_eq!(first["text"], "delay=trace:delays.txt (2 values)");
    assert_eq!(
        first["rule"]["delay"],
        "list:10000,20000 # trace:delays.txt"
    );
    let dead = daemon.worker();
    daemon.kill_worker(libc::SIGKILL);
    wait_for("another worker", PATIENCE, || {
        daemon.find_worker().is_some_and(|worker| worker != dead)
    });
    daemon.expect_ready();
    assert_eq!(rule(&daemon), first);
}

#[test]
fn delayed_packets_wake_the_loop_and_go_on_when_rules_go() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let pingpong = ["-g", "0", "-c", "-n", "20", "-s", "4096"];
    add(&daemon, "late", "--link link0 --class send --delay 3ms");
    let end = |device| End {
        daemon: &daemon,
        device,
    };
    let run = Pair::run(
        end("roce0"),
        end("roce1"),
        "ibv_rc_pingpong",
        &pingpong,
        PATIENCE,
    );
    assert!(run.ok(), "{}{}", run.report(), daemon.log());
    // There and back takes 6 ms. The client looks at its clock after its first message, so it may miss some of that.
    let took = usec_per_iteration(&run.client.stdout);
    assert!(took >= 5000.0, "{}", run.report());
    clear(&daemon);

    // One is held for longer than anybody waits, and sent again by its requester. When the rule goes it is let go, too late.
    let held = |daemon: &Daemon| {
        let listed = daemon.json(&["impair", "list"]);
        let places = listed["places"].as_array().expect("`places` is a list");
        places
            .iter()
            .map(|place| number(place, "held"))
            .sum::<u64>()
    };
    let stuck = "--nic roce1 --rx --class send --count 1 --delay 60s";
    let run = |daemon: &Daemon| {
        let end = |device| End { daemon, device };
        let run = Pair::run(
            end("roce0"),
            end("roce1"),
            "ibv_rc_pingpong",
            &pingpong,
            PATIENCE,
        );
        assert!(run.ok(), "{}{}", run.report(), daemon.log());
    };
    add(&daemon, "stuck", stuck);
    run(&daemon);
    assert_eq!(held(&daemon), 1);
    clear(&daemon);
    wait_for("release of what was held", PATIENCE, || held(&daemon) == 0);
    assert_eq!(counter(&daemon, "roce1", "rx_unknown_qp"), 1);

    // A daemon ends with packets held.
    add(&daemon, "stuck", stuck);
    run(&daemon);
    assert_eq!(held(&daemon), 1);
    let ended = daemon.stop();
    assert!(ended.ok(), "{}", ended.report());
}

#[test]
fn what_rules_hold_back_is_bounded_and_counted() {
    let _alone = alone();
    let daemon = Daemon::pair();
    // Each packet 17 times, all late: more than the place may hold.
    add(
        &daemon,
        "many",
        "--nic roce1 --tx --class write --duplicate 16",
    );
    add(
        &daemon,
        "late",
        "--nic roce1 --tx --class write --delay 30ms",
    );
    let options = [&LATE[..], &["-s", "65536", "-n", "20", "-m", "4096"]].concat();
    perftest(&daemon, "ib_write_bw", &options);
    let listed = daemon.json(&["impair", "list"]);
    let place = &listed["places"][0];
    assert_eq!(place["place"], "roce1 tx");
    assert!(number(place, "overflow") > 0, "{listed}");
    assert_eq!(counter(&daemon, "roce1", "mempool_exhausted"), 0);
    assert_eq!(daemon.objects(), Objects::default());
}

#[test]
fn a_slow_link_is_slow() {
    let _alone = alone();
    let daemon = Daemon::pair();
    add(
        &daemon,
        "slow",
        "--link link0 --from roce1 --rate 100Mb/s --queue 4MiB",
    );
    let options = [&LATE[..], &["-s", "65536", "-n", "40", "-m", "4096"]].concat();
    let run = perftest(&daemon, "ib_write_bw", &options);
    // 100 Mb/s are 11.9 MiB/s, headers included.
    let rows = rows(&run.client.stdout);
    let [.., average, _] = rows[0][..] else {
        panic!("{}", run.report());
    };
    assert!(average > 0.0 && average < 12.0, "{}", run.report());
    assert_eq!(line(&daemon, "slow").dropped, 0);
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for (arguments, said) in [
        (
            "add --nic roce0 --tx",
            "has to do something: give it one of drop",
        ),
        ("add --nic roce0 --drop", "--tx or --rx"),
        ("add --drop", "needs a place"),
        (
            "add --link link9 --drop",
            "no such link here; there is link0",
        ),
        (
            "add --nic roce0 --tx --drop --probability 200%",
            "probability = \"200%\": must be a probability",
        ),
        (
            "add --nic roce0 --tx --delay trace:/nonexistent",
            "No such file",
        ),
        ("remove lossy", "no rule \"lossy\""),
        (
            "add --nic roce0 --tx --drop --probabilty 1%",
            "--probability",
        ),
    ] {
        let mut all = vec!["impair"];
        all.extend(arguments.split_ascii_whitespace());
        let ended = daemon.roceline("mistake", &all);
        assert!(
            ended.failed() && ended.stderr.contains(said),
            "{arguments}: {}",
            ended.report()
        );
    }
    assert_eq!(
        daemon.json(&["impair", "list"])["rules"],
        Value::Array(vec![])
    );
    let listed = daemon.roceline("list", &["impair", "list"]).expect_ok();
    assert_eq!(listed.stdout, "no rules: nothing is impaired\n");
}

#[test]
fn what_a_nic_sends_to_itself_passes_its_sides_and_no_link() {
    let _alone = alone();
    let daemon = Daemon::pair();
    add(&daemon, "out", "--nic roce0 --tx --observe");
    add(&daemon, "in", "--nic roce0 --rx --observe");
    add(&daemon, "link", "--link link0 --from roce0 --observe");
    // The fifth request is sent again, and so passes both sides once more.
    add(
        &daemon,
        "fifth",
        "--nic roce0 --tx --class send --skip 4 --count 1 --drop",
    );
    let end = End {
        daemon: &daemon,
        device: "roce0",
    };
    let options = ["-g", "0", "-c", "-n", "20", "-s", "4096"];
    let run = Pair::run(end, end, "ibv_rc_pingpong", &options, PATIENCE);
    assert!(run.ok(), "{}{}", run.report(), daemon.log());
    let [out, back, link, fifth] = ["out", "in", "link", "fifth"].map(|name| line(&daemon, name));
    assert_eq!(fifth.dropped, 1);
    assert!(out.seen > 40, "{out:?}");
    assert_eq!(back.seen, out.seen - 1);
    assert_eq!(link.seen, 0);
}
