//! UCX over its `rc_verbs` and `ud_verbs` transports, by its own benchmark: UCP, which applications use, and UCT below it.

use std::process::Command;

use super::*;

/// Tests of UCP: each on connections, where datagrams only set them up, and on datagrams alone.
const UCP: [&str; 15] = [
    "tag_lat",
    "tag_bw",
    "tag_sync_lat",
    "tag_sync_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "ucp_add",
    "ucp_fadd",
    "ucp_swap",
    "ucp_cswap",
    "stream_lat",
    "stream_bw",
    "ucp_am_lat",
    "ucp_am_bw",
];
/// Tests of UCT on connections; on datagrams it has the messages only.
const UCT: [&str; 9] = [
    "am_lat", "am_bw", "put_lat", "put_bw", "get", "fadd", "swap", "cswap", "add_mr",
];

/// One run.
#[derive(Clone, Debug)]
struct Run {
    test: &'static str,
    /// `UCX_TLS`, or the transport of UCT.
    transport: &'static str,
    uct: bool,
    bytes: u32,
    loopback: bool,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.loopback {
            "on one device"
        } else {
            "between two devices"
        };
        let Run {
            test,
            transport,
            bytes,
            ..
        } = self;
        write!(f, "ucx_perftest {test} {transport} {bytes} {place}")
    }
}

/// All runs; `few`: a handful.
fn runs(few: bool) -> Vec<Run> {
    let mut runs = Vec::new();
    for loopback in [false, true] {
        for transport in ["rc_v", "ud_v"] {
            for test in UCP {
                let atomic = matches!(test, "ucp_add" | "ucp_fadd" | "ucp_swap" | "ucp_cswap");
                let sizes: &[u32] = if atomic { &[8] } else { &[8, 4000, 100_000] };
                for &bytes in sizes {
                    runs.push(Run {
                        test,
                        transport,
                        uct: false,
                        bytes,
                        loopback,
                    });
                }
            }
        }
        for test in UCT {
            runs.push(Run {
                test,
                transport: "rc_verbs",
                uct: true,
                bytes: 8,
                loopback,
            });
        }
        for test in ["am_lat", "am_bw"] {
            runs.push(Run {
                test,
                transport: "ud_verbs",
                uct: true,
                bytes: 8,
                loopback,
            });
        }
    }
    let chosen = [
        ("tag_lat", "rc_v", 8, false),
        ("tag_bw", "rc_v", 100_000, true),
        ("tag_bw", "ud_v", 100_000, false),
        ("ucp_am_lat", "ud_v", 8, true),
        ("ucp_put_bw", "rc_v", 4000, false),
        ("ucp_get", "rc_v", 4000, true),
        ("ucp_fadd", "rc_v", 8, false),
        ("cswap", "rc_verbs", 8, true),
    ];
    runs.retain(|run| !few || chosen.contains(&(run.test, run.transport, run.bytes, run.loopback)));
    runs
}

/// Starts one end; its transport and device are chosen by variables, as users do.
fn start(daemon: &Daemon, run: &Run, name: &str, device: &str, arguments: &[&str]) -> Process {
    let mut command: Command = daemon.program("ucx_perftest", arguments);
    command.env("UCX_NET_DEVICES", format!("{device}:1"));
    if !run.uct {
        command.env("UCX_TLS", run.transport);
    }
    Process::start(daemon.dir(), name, &mut command)
}

fn run_one(daemon: &Daemon, run: &Run) -> Result<(), String> {
    let port = free_port();
    let number = port.to_string();
    let mut server = start(
        daemon,
        run,
        &format!("ucx-{port}-server"),
        "roce0",
        &["-p", &number],
    );
    wait_for("listening server", PATIENCE, || {
        listening(port) || !server.is_running()
    });
    let device = if run.loopback { "roce0" } else { "roce1" };
    let (bytes, place) = (run.bytes.to_string(), format!("{device}:1"));
    let mut arguments = vec![
        "-p",
        &number,
        "127.0.0.1",
        "-t",
        run.test,
        "-s",
        &bytes,
        "-n",
        "500",
        "-w",
        "10",
    ];
    if run.uct {
        arguments.extend(["-x", run.transport, "-d", &place]);
    }
    let client = start(
        daemon,
        run,
        &format!("ucx-{port}-client"),
        device,
        &arguments,
    )
    .finish(PATIENCE);
    let server = server.finish(PATIENCE);
    // It ends well also after some errors, which it writes.
    let complains = |text: &str| text.contains("ERROR");
    if !client.ok() || !server.ok() || complains(&client.stdout) || complains(&client.stderr) {
        return Err(format!("{}{}", server.report(), client.report()));
    }
    Ok(())
}

#[test]
fn ucx_on_connections_and_datagrams() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let few = env::var("ROCELINE_MATRIX").as_deref() != Ok("full");
    let mut runs = runs(few);
    filter(&mut runs);
    run_all(&mut daemon, &runs, run_one);
}
