//! qperf, which names its peer by LID and by nothing else: on NICs with `lids = true`.

use super::*;

/// Tests by what they need. Each line is one client, which runs its tests one after the other.
const TESTS: [&str; 6] = [
    "rc_bw rc_bi_bw rc_lat",
    "rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat",
    "rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add",
    "uc_bw uc_bi_bw uc_lat",
    "uc_rdma_write_bw uc_rdma_write_lat uc_rdma_write_poll_lat",
    "ud_bw ud_bi_bw ud_lat",
];

/// The preset with LIDs.
fn with_lids() -> Daemon {
    let config = support::daemon::PAIR.replace("port = ", "lids = true\nport = ");
    Daemon::start(&config)
}

/// A server, which serves any number of clients.
fn serve(daemon: &Daemon) -> (Process, String) {
    let port = free_port();
    let number = port.to_string();
    let mut server = daemon.start_program("qperf-server", "qperf", &["-lp", &number]);
    wait_for("listening server", PATIENCE, || {
        listening(port) || !server.is_running()
    });
    (server, number)
}

/// A client on that device; the server is told to use `roce0`.
fn client(daemon: &Daemon, port: &str, device: &str, rest: &str) -> Result<String, String> {
    let mut arguments = vec!["-lp", port, "-ri", "roce0", "-li", device, "127.0.0.1"];
    arguments.extend(rest.split(' '));
    let ended = daemon.run_program("qperf-client", "qperf", &arguments);
    // It ends well after errors too.
    let tests = rest.split(' ').filter(|word| word.contains('_')).count();
    let results = ended.stdout.lines().filter(|line| line.contains(" = "));
    if !ended.ok() || !ended.stderr.is_empty() || results.count() < tests {
        return Err(ended.report());
    }
    Ok(ended.stdout)
}

#[test]
fn qperf_on_every_transport() {
    let _alone = alone();
    let mut daemon = with_lids();
    let full = env::var("ROCELINE_MATRIX").as_deref() == Ok("full");
    let mut runs: Vec<String> = Vec::new();
    for tests in TESTS {
        if full {
            for options in ["-t 1", "-t 1 -m 1", "-t 1 -m 2000", "-t 1 -cp1"] {
                runs.push(format!("qperf {options} {tests}"));
            }
        } else {
            let first = tests.split(' ').next().unwrap_or_default();
            runs.push(format!("qperf -t 1 {first}"));
        }
    }
    filter(&mut runs);
    for loopback in if full { &[false, true][..] } else { &[false] } {
        let device = if *loopback { "roce0" } else { "roce1" };
        run_all(&mut daemon, &runs, |daemon, run| {
            let (server, port) = serve(daemon);
            let result = client(daemon, &port, device, run.trim_start_matches("qperf "));
            server.signal(libc::SIGTERM);
            let server = server.finish(PATIENCE);
            result
                .map(|_| ())
                .map_err(|report| format!("{}{report}", server.report()))
        });
    }
}

/// On a NIC as it is: the log says what helps.
#[test]
fn without_lids_qperf_is_told_why() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let (_server, port) = serve(&daemon);
    let refused = client(&daemon, &port, "roce1", "-t 1 rc_bw").expect_err("a NIC without LIDs");
    assert!(refused.contains("RTR"), "{refused}");
    assert!(daemon.log().contains("lids = true"), "{}", daemon.log());
}
