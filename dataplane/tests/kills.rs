//! Programs that are killed, at any point: nothing of them stays in the daemon, and others see what they would see of a
//! host that vanished.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use support::daemon::Daemon;
use support::process::Process;
use support::{PATIENCE, alone, free_port, listening, wait_for};

/// xorshift64*: the same points for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// What a process holds of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holds {
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

fn holds(pid: u32) -> Holds {
    let entries =
        |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    Holds {
        descriptors: entries("fd"),
        threads: entries("task"),
        // Context files and what programs passed; the allocator's own mappings come and go.
        mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
    }
}

/// KiB of memory that are its own.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    field("RssAnon:") + field("RssShmem:")
}

/// Starts a transfer and kills one end, or both, after a while.
fn kill_one(daemon: &Daemon, random: &mut Random, delay: Duration) {
    let tools = [
        "ib_write_bw",
        "ib_read_bw",
        "ib_send_bw",
        "ib_send_lat",
        "ibv_rc_pingpong",
    ];
    let tool = tools[random.below(tools.len() as u64) as usize];
    let port = free_port();
    let number = port.to_string();
    let mut common = vec!["-p", &number, "-s", "65536", "-n", "50000000"];
    if tool == "ibv_rc_pingpong" {
        common.extend(["-g", "0"]);
    } else {
        common.push("-F");
    }
    if random.below(3) == 0 {
        common.push("-e");
    }
    let start = |name: &str, own: &[&str]| {
        let arguments: Vec<&str> = common.iter().chain(own).copied().collect();
        daemon.start_program(&format!("{name}-{port}"), tool, &arguments)
    };
    let mut server = start("server", &["-d", "roce0"]);
    // Some die before the other has even come.
    let client = (random.below(8) > 0).then(|| {
        wait_for("listening server", PATIENCE, || {
            listening(port) || !server.is_running()
        });
        start("client", &["-d", "roce1", "127.0.0.1"])
    });
    thread::sleep(delay);
    // A dropped process is killed; which goes first is part of the game.
    if random.below(2) == 0 {
        drop(server);
        drop(client);
    } else {
        drop(client);
        drop(server);
    }
}

/// `ROCELINE_KILLS=200` is the full run; `ROCELINE_SEED` repeats one.
#[test]
fn programs_killed_at_any_point_leave_nothing() {
    let _alone = alone();
    let seed = number("ROCELINE_SEED", 1);
    let kills = number("ROCELINE_KILLS", 6);
    eprintln!("ROCELINE_SEED={seed} ROCELINE_KILLS={kills}");
    let mut random = Random(seed);
    let mut daemon = Daemon::pair();
    let supervisor = daemon.process().id();
    let worker = daemon.worker();
    // The first mapped region brings a thread that stays, so there must be one, however slow the machine is.
    let first = daemon.start_program(
        "first",
        "ibv_rc_pingpong",
        &["-p", &free_port().to_string(), "-d", "roce0", "-g", "0"],
    );
    wait_for("a mapped region", PATIENCE, || {
        let shown = daemon.json(&["show", "mrs"]);
        let mrs = shown["mrs"].as_array().expect("a list");
        mrs.iter().any(|mr| mr["reach"] == "mapped")
    });
    drop(first);
    // The first ones grow what is kept for later.
    for _ in 0..2 {
        kill_one(&daemon, &mut random, Duration::from_millis(400));
    }
    daemon.expect_empty();
    let settled = |what: &str, pid: u32, before: Holds| {
        let mut now = holds(pid);
        let begin = std::time::Instant::now();
        while now != before && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
            now = holds(pid);
        }
        assert_eq!(
            now,
            before,
            "the {what} holds more than before; {}",
            daemon.log()
        );
    };
    let begin = (holds(supervisor), holds(worker), memory(worker));
    for _ in 0..kills {
        let delay = Duration::from_millis(random.below(800));
        kill_one(&daemon, &mut random, delay);
    }
    daemon.expect_empty();
    settled("supervisor", supervisor, begin.0);
    settled("worker", worker, begin.1);
    let (before, after) = (begin.2, memory(worker));
    eprintln!("memory of the worker: {before} KiB before, {after} KiB after {kills} kills");
    // Allocators keep some; a context that stays costs at least a queue and a memory thread's stack for each kill.
    assert!(after < before + 8192, "{before} KiB grew to {after} KiB");
}

/// `tests/survivor_probe.c` says what it does.
fn survivor(daemon: &Daemon, role: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let program = daemon.dir().join("survivor_probe");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(tests.join("survivor_probe.c"))
        .arg(tests.join("../../verbs-shim/tests/verbs_end.c"))
        .arg("-libverbs")
        .status()
        .expect("a C compiler is installed");
    assert!(compiled.success(), "survivor_probe.c does not compile");
    let program = program.to_str().expect("a plain path");
    let run = daemon.start_program(role, program, &[role]);
    let ended = Process::finish(run, 2 * PATIENCE);
    assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
    ended.stdout
}

#[test]
fn a_requester_runs_out_of_retries_against_the_dead() {
    let _alone = alone();
    let daemon = Daemon::pair();
    // On a machine that is busy with other things once may take longer; it does not do so every time.
    let within_the_limit = (0..5).any(|_| {
        let said = survivor(&daemon, "requester");
        eprint!("{said}");
        let words: Vec<&str> = said.split_ascii_whitespace().collect();
        let ms = |before: &str| -> u64 {
            let at = words.windows(2).find(|pair| pair[0] == before);
            at.and_then(|pair| pair[1].parse().ok())
                .unwrap_or_else(|| panic!("no number behind {before:?}: {said}"))
        };
        assert!(said.contains("retries exceeded after"), "{said}");
        ms("after") <= ms("most")
    });
    assert!(within_the_limit, "never within 4 T (retry_cnt + 1)");
}

/// The memory of a program goes before its connection does, for a moment at least. Whoever has work for it meanwhile must not
/// be told of an error, which no host that vanished would send.
#[test]
fn memory_that_is_gone_answers_nothing() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let said = survivor(&daemon, "vanished");
    assert!(said.contains("retries exceeded after"), "{said}");
    daemon.expect_empty();
}

#[test]
fn a_passive_responder_sees_nothing_of_a_death() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let said = survivor(&daemon, "responder");
    assert!(said.contains("nothing noticed"), "{said}");
}
