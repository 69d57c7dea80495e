//! Real programs that take all they can, lie and break what they share, beside one that wants only its share
//! (`hostile_probe.c` has them): its bytes stay right, it goes on, and the daemon is there afterwards with nothing left over.
//!
//! `ROCELINE_HOSTILE_SECONDS` prolongs the lies (4 s unless set).

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use roceline_abi::PROTOCOL_VERSION;
use support::daemon::{Daemon, PAIR};
use support::process::Process;
use support::{PATIENCE, alone, wait_for};

struct Bench {
    daemon: Daemon,
    program: String,
}

impl Bench {
    fn new(config: &str) -> Bench {
        let daemon = Daemon::start(config);
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let program = daemon.dir().join("hostile_probe");
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-o"])
            .arg(&program)
            .arg(tests.join("hostile_probe.c"))
            .arg(tests.join("../../verbs-shim/tests/verbs_end.c"))
            .args(["-libverbs", "-lpthread"])
            .status()
            .expect("a C compiler is installed");
        assert!(compiled.success(), "hostile_probe.c does not compile");
        let program = program.to_str().expect("plain names").to_owned();
        Bench { daemon, program }
    }

    fn start(&self, name: &str, arguments: &[&str]) -> Process {
        self.daemon.start_program(name, &self.program, arguments)
    }

    /// One that speaks the protocol of the control socket itself.
    fn attacker(&self, mode: &str, seed: u64) -> Process {
        let (seed, version) = (seed.to_string(), PROTOCOL_VERSION.to_string());
        self.start(&format!("{mode}-{seed}"), &[mode, &seed, &version])
    }

    fn victim(&self) -> Victim {
        let path = self.daemon.dir().join("count");
        let name = path.to_str().expect("plain names");
        let process = self.start("victim", &["victim", name]);
        let mut victim = Victim {
            process,
            count: None,
        };
        wait_for("the victim's first message", PATIENCE, || {
            victim.count = victim.count.take().or_else(|| fs::File::open(&path).ok());
            victim.messages() > 0
        });
        victim
    }
}

/// The program that wants only its share.
struct Victim {
    process: Process,
    count: Option<fs::File>,
}

impl Victim {
    /// Messages whose every byte was right.
    fn messages(&self) -> u64 {
        let mut bytes = [0; 8];
        let count = self.count.as_ref();
        let read = count.is_some_and(|file| file.read_exact_at(&mut bytes, 0).is_ok());
        if read { u64::from_ne_bytes(bytes) } else { 0 }
    }

    #[track_caller]
    fn expect_alive(&mut self, what: &str) {
        if !self.process.is_running() {
            let (out, err) = self.process.output();
            panic!("the victim ended beside {what}: {out}{err}");
        }
    }

    /// Messages a second for a while.
    fn rate(&self, time: Duration) -> f64 {
        let (begin, before) = (Instant::now(), self.messages());
        thread::sleep(time);
        (self.messages() - before) as f64 / begin.elapsed().as_secs_f64()
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Attackers leave the CPU to the victim, but not the control threads that work for them: with one CPU for all of these,
/// the victim is left a fraction of it anyway.
const LEAST: f64 = 0.1;

/// Each beside the victim, which is alone and beside it by turns: so that whatever else the machine does hits both alike.
#[test]
fn greedy_programs_take_their_share_and_no_more() {
    let _alone = alone();
    let mut bench = Bench::new(PAIR);
    let worker = bench.daemon.worker();
    let mut victim = bench.victim();
    let window = Duration::from_millis(150);
    for mode in [
        "bells",
        "reregister",
        "opens",
        "flood",
        "deaf",
        "wrong",
        "stopped",
    ] {
        let attacker = bench.attacker(mode, 1);
        wait_for("the attack", PATIENCE, || {
            attacker.output().0.contains("begun")
        });
        let mut ratio = 0.0;
        // A machine that does something else at the wrong moment is measured again; a program that takes too much does so
        // each time.
        for _ in 0..3 {
            let (mut alone, mut beside) = (0.0, 0.0);
            for _ in 0..3 {
                attacker.signal(libc::SIGSTOP);
                alone += victim.rate(window);
                // The one that stops itself stays so.
                if mode != "stopped" {
                    attacker.signal(libc::SIGCONT);
                }
                beside += victim.rate(window);
            }
            victim.expect_alive(mode);
            ratio = beside / f64::max(alone, 1.0);
            println!(
                "{mode}: {ratio:.2} of what it has alone ({:.0} of {:.0} messages/s)",
                beside / 3.0,
                alone / 3.0
            );
            if ratio > LEAST {
                break;
            }
        }
        assert!(ratio > LEAST, "{mode} leaves {ratio:.3}");
    }
    assert_eq!(bench.daemon.worker(), worker, "{}", bench.daemon.log());
    drop(victim);
    bench.daemon.expect_empty();
}

#[test]
fn lies_and_scribbles_hurt_only_who_tells_them() {
    let _alone = alone();
    let seconds = number("ROCELINE_HOSTILE_SECONDS", 4);
    let seed = number("ROCELINE_SEED", u64::from(std::process::id()));
    println!("seed {seed}: replay with ROCELINE_SEED={seed}");
    let mut bench = Bench::new(PAIR);
    let worker = bench.daemon.worker();
    let mut victim = bench.victim();
    let alone = victim.rate(Duration::from_millis(300));
    let mut attackers: Vec<Process> = ["garbage", "messages", "messages"]
        .iter()
        .zip(seed..)
        .map(|(mode, seed)| bench.attacker(mode, seed))
        .collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut last, mut since, mut longest) = (victim.messages(), Instant::now(), Duration::ZERO);
    let before = last;
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
        victim.expect_alive("lies");
        if victim.messages() != last {
            (last, since) = (victim.messages(), Instant::now());
        }
        longest = longest.max(since.elapsed());
        // Nothing but a stall takes so long, also where others want the CPUs.
        assert!(longest < PATIENCE / 4, "the victim stands still");
        for attacker in &mut attackers {
            assert!(attacker.is_running(), "{:?}", attacker.output());
        }
    }
    println!(
        "{} messages in {seconds} s; {alone:.0}/s alone; longest time without one: {longest:?}",
        last - before
    );
    drop(attackers);
    assert_eq!(bench.daemon.worker(), worker, "{}", bench.daemon.log());
    victim.expect_alive("the end of lies");
    drop(victim);
    bench.daemon.expect_empty();
    let programs = bench.daemon.json(&["show", "programs"]);
    assert_eq!(programs["programs"].as_array().map(Vec::len), Some(0));
    for device in programs["devices"].as_array().expect("a list") {
        let used = device["used"].as_object().expect("a table");
        assert!(used.values().all(|n| n.as_u64() == Some(0)), "{device}");
    }
}

#[test]
fn control_is_quick_under_load_and_a_large_registration_stalls_nobody() {
    let _alone = alone();
    let bench = Bench::new(PAIR);
    let mut victim = bench.victim();
    let alone = bench
        .start("control", &["control", "1500"])
        .finish(PATIENCE);
    print!("beside one transfer: {}", alone.expect_ok().stdout);
    for (bytes, how) in [("10737418240", "sparse"), ("536870912", "touched")] {
        let control = bench.start("control", &["control", "1500"]);
        let register = bench.start("register", &["register", bytes, how]);
        let mut longest = Duration::ZERO;
        let (mut since, mut seen) = (Instant::now(), victim.messages());
        let mut register = Some(register);
        while let Some(process) = &mut register {
            thread::sleep(Duration::from_millis(1));
            let now = victim.messages();
            if now != seen {
                (since, seen) = (Instant::now(), now);
            }
            longest = longest.max(since.elapsed());
            if !process.is_running() {
                register = None;
                let registered = bench.daemon.dir().join("register.out");
                print!(
                    "{how}: {}",
                    fs::read_to_string(registered).unwrap_or_default()
                );
            }
        }
        victim.expect_alive("a registration");
        let control = control.finish(PATIENCE).expect_ok();
        print!("beside it: {}", control.stdout);
        println!("longest time without a message: {longest:?}");
        // The least that is no scheduler's doing on a crowded machine.
        assert!(longest < Duration::from_secs(5), "stalled for {longest:?}");
    }
    drop(victim);
    bench.daemon.expect_empty();
}

#[test]
fn a_limit_that_is_set_is_met_shown_and_said_once() {
    let _alone = alone();
    let bench = Bench::new(&format!("{PAIR}\n[limits.program]\nqps = 2\n"));
    let victim = bench.victim();
    let shown = bench.daemon.json(&["show", "programs"]);
    assert_eq!(shown["program_limits"]["qps"], 2);
    let program = &shown["programs"][0];
    assert_eq!(program["name"], "hostile_probe");
    assert_eq!(
        program["pid"].as_u64(),
        Some(u64::from(victim.process.id()))
    );
    assert_eq!(
        (&program["used"]["qps"], &program["used"]["contexts"]),
        (&1.into(), &1.into())
    );
    let table = bench.daemon.roceline("programs", &["show", "programs"]);
    assert!(table.stdout.contains("hostile_probe"), "{}", table.report());
    // 500 queue pairs are what it wants.
    let greedy = bench.attacker("bells", 1).finish(PATIENCE);
    assert!(greedy.failed());
    assert!(
        greedy.stderr.contains("Resource temporarily unavailable"),
        "{}",
        greedy.report()
    );
    let log = bench.daemon.log();
    let said = log.matches("raise `qps` in [limits.program]").count();
    assert_eq!(said, 1, "{log}");
}
