//! Counters from outside: what `roceline stat` and a program's sysfs say of traffic between two NICs.

mod support;

use std::collections::BTreeMap;

use support::daemon::Daemon;
use support::pair::{End, Pair};
use support::process::Process;
use support::{PATIENCE, alone, free_port, listening, wait_for};

type Counts = BTreeMap<String, u64>;

/// `hw_counters` and `counters` of a device.
fn stat(daemon: &Daemon, device: &str) -> (Counts, Counts) {
    let stat = daemon.json(&["stat"]);
    let devices = stat["devices"].as_array().expect("`devices` is a list");
    let found = devices.iter().find(|d| d["name"] == device);
    let found = found.unwrap_or_else(|| panic!("no {device} in {stat}"));
    let group = |key: &str| serde_json::from_value(found[key].clone()).expect("numbers by name");
    (group("hw_counters"), group("counters"))
}

fn ends(daemon: &Daemon) -> (End<'_>, End<'_>) {
    let end = |device| End { daemon, device };
    (end("roce0"), end("roce1"))
}

/// A server on `roce0` and a client on `roce1` that will transfer until somebody ends them.
fn endless_write(daemon: &Daemon, options: &[&str]) -> (Process, Process) {
    let port = free_port();
    let number = port.to_string();
    let start = |name: &str, more: &[&str]| {
        let mut all = vec!["-F", "-s", "65536", "-D", "300", "-p", &number];
        all.extend(options);
        all.extend(more);
        daemon.start_program(&format!("{name}-{port}"), "ib_write_bw", &all)
    };
    let mut server = start("server", &["-d", "roce0"]);
    wait_for("listening server", PATIENCE, || {
        listening(port) || !server.is_running()
    });
    let client = start("client", &["-d", "roce1", "127.0.0.1"]);
    wait_for("traffic", PATIENCE, || {
        stat(daemon, "roce0").0["rx_write_requests"] > 100
    });
    (server, client)
}

/// What one NIC of a link has sent, the other has received, or dropped and counted. Data is in words of four bytes.
#[test]
fn packets_and_bytes_are_conserved() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    daemon.quicken();
    let (server, client) = ends(&daemon);
    let options = ["-F", "-s", "5000", "-n", "1000"];
    for tool in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        let run = Pair::run(server, client, tool, &options, PATIENCE);
        assert!(run.ok(), "{}{}", run.report(), daemon.log());
    }
    daemon.expect_empty();
    let devices = ["roce0", "roce1"].map(|device| stat(&daemon, device));
    for (from, to) in [(0, 1), (1, 0)] {
        let (sent, _) = &devices[from];
        let (received, port) = &devices[to];
        let lost = received["rx_icrc_encapsulated"] + received["rx_malformed"];
        assert_eq!(lost, 0, "{devices:?}");
        assert_eq!(sent["rdma_tx_packets"], received["rdma_rx_packets"]);
        assert_eq!(sent["rdma_tx_bytes"], received["rdma_rx_bytes"]);
        assert!(received["rdma_rx_packets"] > 100, "{received:?}");
        assert_eq!(port["port_rcv_data"], received["rdma_rx_bytes"] / 4);
        assert_eq!(port["port_rcv_packets"], port["unicast_rcv_packets"]);
        assert_eq!(port["port_xmit_discards"], 0);
    }
    let (hw, _) = &devices[0];
    // The server of each benchmark is on roce0: it was written to, and read from.
    assert!(
        hw["rx_write_requests"] >= 1000 && hw["rx_read_requests"] >= 1000,
        "{hw:?}"
    );
    for (name, value) in hw {
        let of_the_missing = ["np_", "rp_", "cc_", "roce_", "rx_dct", "rx_atomic"];
        if of_the_missing.iter().any(|start| name.starts_with(start)) {
            assert_eq!(*value, 0, "{name}");
        }
    }
}

#[test]
fn a_program_reads_counters_in_sysfs_and_sets_their_lifespan() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let (server, client) = ends(&daemon);
    let port = "/sys/class/infiniband/roce0/ports/1";
    let shell = |name: &str, script: &str| {
        let ended = daemon.run_program(name, "sh", &["-c", script]);
        assert!(ended.ok(), "{}", ended.report());
        ended.stdout
    };
    let lifespan = format!("cat {port}/hw_counters/lifespan");
    assert_eq!(shell("lifespan", &lifespan), "100\n");
    shell("set", &format!("echo 20 > {port}/hw_counters/lifespan"));

    let run = Pair::run(
        server,
        client,
        "ib_write_bw",
        &["-F", "-n", "100"],
        PATIENCE,
    );
    assert!(run.ok(), "{}{}", run.report(), daemon.log());
    daemon.expect_empty();
    let (hw, counters) = stat(&daemon, "roce0");
    let script = format!("grep . {port}/hw_counters/* {port}/counters/*");
    let mut last = String::new();
    wait_for("counter files", PATIENCE, || {
        last = shell("cat", &script);
        let files: BTreeMap<&str, &str> = last.lines().filter_map(|l| l.split_once(':')).collect();
        let says = |group: &str, all: &Counts| {
            all.iter().all(|(name, value)| {
                let path = format!("{port}/{group}/{name}");
                files.get(path.as_str()) == Some(&value.to_string().as_str())
            })
        };
        files.len() == hw.len() + counters.len() + 1
            && says("hw_counters", &hw)
            && says("counters", &counters)
    });
    assert_eq!(shell("lifespan", &lifespan), "20\n", "{last}");
    // Out of range is corrected, so that a reader sees what holds.
    shell("set", &format!("echo 0 > {port}/hw_counters/lifespan"));
    wait_for("the least lifespan", PATIENCE, || {
        shell("lifespan", &lifespan) == "10\n"
    });
}

#[test]
fn a_queue_pair_has_counters_of_its_own() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let running = endless_write(&daemon, &["-q", "2"]);
    let qps = daemon.json(&["show", "qps"]);
    let qps = qps["qps"].as_array().expect("`qps` is a list");
    let served: Vec<_> = qps
        .iter()
        .filter(|qp| qp["device"] == "roce0" && qp["counters"]["rx_write_requests"].is_u64())
        .collect();
    assert_eq!(served.len(), 2, "{qps:?}");
    for qp in served {
        let qpn = qp["qpn"].as_u64().expect("a number");
        let one = daemon.json(&["stat", "--qp", &format!("{qpn:#08x}")]);
        let list = one["qps"].as_array().expect("`qps` is a list");
        let mine = list.iter().find(|q| q["device"] == "roce0");
        let counters = &mine.expect("it is still there")["counters"];
        for name in ["rx_write_requests", "rdma_rx_packets", "rdma_tx_bytes"] {
            let (before, now) = (&qp["counters"][name], &counters[name]);
            assert!(now.as_u64() >= before.as_u64() && now.is_u64(), "{one}");
        }
        // A WRITE of 64 KiB is many packets.
        let value = |name: &str| counters[name].as_u64().expect("a number");
        assert!(
            value("rdma_rx_packets") > 15 * value("rx_write_requests"),
            "{one}"
        );
    }
    let table = daemon.roceline("stat", &["stat", "--qp", &qps[0]["qpn"].to_string()]);
    assert!(
        table.ok() && table.stdout.contains("rdma_tx_packets"),
        "{}",
        table.report()
    );
    let none = daemon.roceline("stat", &["stat", "--qp", "0xfffffe"]);
    assert!(
        none.failed()
            && none
                .stderr
                .contains("no queue pair has the number 0xfffffe")
    );
    drop(running);
}

/// Two NICs whose ports swallow everything, so that nobody ever answers.
const INTO_THE_VOID: &str = r#"
[[nic]]
name = "roce0"
addresses = ["10.77.0.1/24"]
port = "vdev:net_null0,no-rx=1"
[[nic.neighbor]]
ip = "10.77.0.2"
mac = "02:52:4c:4d:00:02"

[[nic]]
name = "roce1"
addresses = ["10.77.0.2/24"]
port = "vdev:net_null1,no-rx=1"
retransmission = "adaptive"
[[nic.neighbor]]
ip = "10.77.0.1"
mac = "02:52:4c:4d:00:01"
"#;

/// ibv_rc_pingpong has an ACK timeout of 67 ms and seven retries: the one profile spends them one by one, the other
/// sends again after 2, 4, 8, 16 and 33 ms, then every 67 ms, and gives up after seven times 67 ms.
#[test]
fn retransmission_is_configured_per_nic() {
    let _alone = alone();
    let daemon = Daemon::start(INTO_THE_VOID);
    for [client, server] in [["roce0", "roce1"], ["roce1", "roce0"]] {
        let port = free_port().to_string();
        let options = ["-g", "0", "-p", &port, "-d"];
        let with = |more: &[&'static str]| [&options[..], more].concat();
        let mut listener = daemon.start_program(
            &format!("{server}-server"),
            "ibv_rc_pingpong",
            &with(&[server]),
        );
        wait_for("listening server", PATIENCE, || {
            listening(port.parse().expect("a number")) || !listener.is_running()
        });
        let caller = with(&[client, "127.0.0.1"]);
        let ended = daemon.run_program(client, "ibv_rc_pingpong", &caller);
        assert!(ended.failed(), "{}", ended.report());
        assert!(
            ended.stderr.contains("transport retry counter exceeded"),
            "{}",
            ended.report()
        );
    }
    let spec = stat(&daemon, "roce0").0;
    assert_eq!(
        (spec["local_ack_timeout_err"], spec["roce_adp_retrans"]),
        (7, 0)
    );
    let adaptive = stat(&daemon, "roce1").0;
    // Five and about five. On a busy machine a wait may be longer, and it is time that counts.
    assert!(
        (1..=5).contains(&adaptive["roce_adp_retrans"]),
        "{adaptive:?}"
    );
    assert!(adaptive["local_ack_timeout_err"] <= 6, "{adaptive:?}");
    for (hw, gave_up) in [(spec, 0), (adaptive, 1)] {
        assert_eq!(hw["req_transport_retries_exceeded"], 1, "{hw:?}");
        assert_eq!(hw["roce_adp_retrans_to"], gave_up, "{hw:?}");
    }
}
