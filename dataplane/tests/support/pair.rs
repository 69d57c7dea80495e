//! A program run twice, as server and as client, as all verbs benchmarks are.

use std::time::Duration;

use super::daemon::Daemon;
use super::process::{Ended, Process};
use super::{PATIENCE, free_port, listening, wait_for};

/// Both ends of a run.
#[derive(Debug)]
pub struct Pair {
    pub server: Ended,
    pub client: Ended,
}

/// One end: a daemon and a device of it.
#[derive(Clone, Copy)]
pub struct End<'a> {
    pub daemon: &'a Daemon,
    pub device: &'a str,
}

impl Pair {
    /// Runs `program ARGUMENTS -d DEVICE -p PORT` on `server` and the same with the address on `client`.
    #[track_caller]
    pub fn run(
        server: End<'_>,
        client: End<'_>,
        program: &str,
        arguments: &[&str],
        patience: Duration,
    ) -> Pair {
        let port = free_port();
        let number = port.to_string();
        let mut own = arguments.to_vec();
        own.extend(["-d", server.device, "-p", &number]);
        let mut listener =
            server
                .daemon
                .start_program(&format!("{program}-{port}-server"), program, &own);
        wait_for("listening server", PATIENCE, || {
            listening(port) || !listener.is_running()
        });
        let mut own = arguments.to_vec();
        own.extend(["-d", client.device, "-p", &number, "127.0.0.1"]);
        let caller =
            client
                .daemon
                .start_program(&format!("{program}-{port}-client"), program, &own);
        Pair::finish(listener, caller, patience)
    }

    /// Waits for both. When the client fails, the server may wait for ever: it gets a moment only.
    fn finish(server: Process, client: Process, patience: Duration) -> Pair {
        let client = client.finish(patience);
        let rest = if client.ok() {
            Duration::from_secs(20)
        } else {
            Duration::from_secs(2)
        };
        Pair {
            server: server.finish(rest),
            client,
        }
    }

    pub fn ok(&self) -> bool {
        self.server.ok() && self.client.ok()
    }

    pub fn report(&self) -> String {
        format!("{}{}", self.server.report(), self.client.report())
    }
}

/// A server and a client that will transfer until somebody ends them.
pub fn endless(daemon: &Daemon, tool: &str, more: &[&str]) -> (Process, Process) {
    let port = free_port();
    let number = port.to_string();
    // By time, which does not work with events, or by a number that is never reached.
    let length = match more.contains(&"-e") {
        true => ["-n", "50000000"],
        false => ["-D", "300"],
    };
    let mut common = vec!["-F", "-s", "1048576", "-p", &number];
    common.extend(length);
    common.extend(more);
    let start = |name: &str, own: &[&str]| {
        let arguments: Vec<&str> = common.iter().chain(own).copied().collect();
        daemon.start_program(&format!("{name}-{port}"), tool, &arguments)
    };
    let mut server = start("server", &["-d", "roce0"]);
    wait_for("listening server", PATIENCE, || {
        listening(port) || !server.is_running()
    });
    let client = start("client", &["-d", "roce1", "127.0.0.1"]);
    (server, client)
}

/// Packets that the daemon's NICs have sent so far.
fn packets(daemon: &Daemon) -> u64 {
    let stat = daemon.json(&["stat"]);
    let devices = stat["devices"].as_array().expect("`devices` is a list");
    devices
        .iter()
        .map(|device| {
            device["counters"]["port_xmit_packets"]
                .as_u64()
                .expect("a counter")
        })
        .sum()
}

/// Waits until a thousand packets more have been sent.
pub fn wait_for_traffic(daemon: &Daemon) {
    let before = packets(daemon);
    wait_for("traffic", PATIENCE, || packets(daemon) > before + 1000);
}

/// The rows of numbers in a perftest's output, each beginning with the message size.
pub fn rows(output: &str) -> Vec<Vec<f64>> {
    output
        .lines()
        .filter_map(|line| {
            let fields: Result<Vec<f64>, _> =
                line.split_ascii_whitespace().map(str::parse).collect();
            fields.ok().filter(|fields| fields.len() >= 4)
        })
        .collect()
}
