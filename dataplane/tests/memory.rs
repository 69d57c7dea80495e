//! Registered memory of every kind, with a real daemon (`verbs-shim/tests/memory_check.c` has the cases).
//!
//! `ROCELINE_STORM_SECONDS` prolongs the storm, which takes 5 s of each kind.

mod support;

use std::env;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::daemon::{Daemon, Objects, PAIR};
use support::process::{Ended, Process};
use support::{PATIENCE, TempDir, alone, roceline, wait_for};

/// A daemon and the test program.
struct Bench {
    daemon: Daemon,
    program: String,
}

impl Bench {
    fn new(config: &str) -> Bench {
        let daemon = Daemon::start(config);
        let program = support::compile(daemon.dir(), "memory_check", &support::MEMORY_CHECK);
        Bench { daemon, program }
    }

    fn command(&self, policy: Option<&str>, options: &[&str], cases: &[&str]) -> Command {
        let arguments = [options, &["roce0", "roce1"], cases].concat();
        let mut command = self.daemon.program(&self.program, &arguments);
        match policy {
            Some(policy) => command.env("ROCELINE_MEMORY", policy),
            None => command.env_remove("ROCELINE_MEMORY"),
        };
        command
    }

    #[track_caller]
    fn passes(&self, policy: Option<&str>, options: &[&str], cases: &[&str]) -> Ended {
        let mut command = self.command(policy, options, cases);
        let checked = Process::start(self.daemon.dir(), "check", &mut command).finish(4 * PATIENCE);
        assert!(
            checked.ok(),
            "{options:?} {cases:?}\n{}{}",
            checked.report(),
            self.daemon.log()
        );
        self.daemon.expect_empty();
        checked
    }
}

/// Whether this process may hold back the kernel's own writes (`docs/memory.md`), without which threads keep memory from being
/// mapped.
fn can_hold() -> bool {
    let open = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    open.is_ok() || sysctl.is_ok_and(|text| text.trim() == "1")
}

#[test]
fn memory_of_every_kind() {
    let _alone = alone();
    let bench = Bench::new(PAIR);
    bench.passes(None, &[], &[]);
    let log = bench.daemon.log();
    assert!(
        log.contains("lost its pages"),
        "a truncated object is told of: {log}"
    );
    assert_eq!(bench.daemon.objects(), Objects::default());
}

/// Its runtime wants to be the first of all libraries, and looks at each call on memory.
#[test]
fn programs_with_address_sanitizer_run() {
    let _alone = alone();
    let mut bench = Bench::new(PAIR);
    let options = ["-fsanitize=address"];
    let dir = bench.daemon.dir();
    let Some(program) = support::compile_with(&options, dir, "asan", &support::MEMORY_CHECK) else {
        eprintln!("skipped: the C compiler has no AddressSanitizer");
        return;
    };
    bench.program = program;
    let cases = ["private", "advice", "moved", "fork", "exec", "thread"];
    let mut command = bench.command(None, &[], &cases);
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    let ended = Process::start(bench.daemon.dir(), "asan", &mut command).finish(4 * PATIENCE);
    assert!(ended.ok(), "{}", ended.report());
}

/// Lets the kernel make huge pages as they are asked for, for a while: none is taken that nobody asks for.
struct HugePages(String);

impl HugePages {
    const SYSCTL: &str = "/proc/sys/vm/nr_overcommit_hugepages";

    fn allow() -> Option<HugePages> {
        let was = fs::read_to_string(HugePages::SYSCTL).ok()?;
        fs::write(HugePages::SYSCTL, "24").ok()?;
        Some(HugePages(was))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(HugePages::SYSCTL, &self.0);
    }
}

#[test]
fn huge_pages_are_mapped_whole_or_not_at_all() {
    let _alone = alone();
    let Some(_huge) = HugePages::allow() else {
        eprintln!("skipped: {} cannot be set here", HugePages::SYSCTL);
        return;
    };
    let bench = Bench::new(PAIR);
    let mut command = bench.command(None, &[], &["huge"]);
    command.env("ROCELINE_DEBUG", "1");
    let checked = Process::start(bench.daemon.dir(), "huge", &mut command).finish(PATIENCE);
    assert!(checked.ok(), "{}{}", checked.report(), bench.daemon.log());
    eprint!("{}", checked.stdout);
    // The kernel may have no huge page at all to give.
    let none = checked.stdout.contains("no free huge pages");
    let said = checked.stderr.contains("of huge pages at");
    assert!(said || none, "{}", checked.report());
    bench.passes(Some("never"), &["-n"], &["huge"]);
}

#[test]
fn memory_that_is_not_to_be_mapped() {
    let _alone = alone();
    let bench = Bench::new(PAIR);
    bench.passes(Some("never"), &["-n"], &[]);
    let config = PAIR.replace(
        "port = \"fabric:link0\"",
        "port = \"fabric:link0\"\nmemory = \"never\"",
    );
    let bench = Bench::new(&config);
    // What the NIC says is not overruled.
    bench.passes(Some("always"), &["-n"], &["private", "objects", "fork"]);
}

#[test]
fn forks_with_ibv_fork_init() {
    let _alone = alone();
    let bench = Bench::new(PAIR);
    bench.passes(None, &["-f"], &["fork", "exec", "private"]);
}

/// Threads write, the kernel writes in `read(2)`, a peer writes and reads, regions come and go, forks happen: no word is lost
/// or torn.
#[test]
fn a_storm_loses_no_word() {
    let _alone = alone();
    let bench = Bench::new(PAIR);
    let seconds = env::var("ROCELINE_STORM_SECONDS").unwrap_or_else(|_| "5".into());
    let longer: u64 = seconds.parse().expect("ROCELINE_STORM_SECONDS is a number");
    for policy in [None, Some("never")] {
        let mut command = bench.command(policy, &["-t", &seconds], &["storm"]);
        let storm = Process::start(bench.daemon.dir(), "storm", &mut command)
            .finish(PATIENCE + Duration::from_secs(longer));
        assert!(
            storm.ok(),
            "{policy:?}\n{}{}",
            storm.report(),
            bench.daemon.log()
        );
        println!("{policy:?}: {}", storm.stdout);
    }
    if !can_hold() {
        println!("without userfaultfd for kernel faults the memory of threads was not mapped");
    }
}

/// As an ordinary user without capabilities: memory of programs with one thread is mapped, threads lose nothing.
#[test]
fn no_privilege_is_needed() {
    let _alone = alone();
    // Without root every other test has shown it already.
    if !support::is_root("becomes another user") {
        return;
    }
    let bench = Bench::new(PAIR);
    // Where that user may look: the target directory is often below /root.
    let place = TempDir::new();
    let copy = |from: &Path| {
        let to = place.path().join(from.file_name().expect("a file"));
        fs::copy(from, &to).expect("the copy fits");
        to
    };
    let program = copy(roceline());
    copy(&roceline().with_file_name("libroceline_shim.so"));
    let check = copy(Path::new(&bench.program));
    for (options, cases) in [(&[][..], &[][..]), (&["-t", "2"], &["storm"])] {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"])
            .arg(&program)
            .arg("run")
            .arg("--socket")
            .arg(bench.daemon.socket())
            .arg("--")
            .arg(&check)
            .args(options)
            .args(["roce0", "roce1"])
            .args(cases)
            .env_remove("ROCELINE_MEMORY");
        let checked =
            Process::start(bench.daemon.dir(), "nobody", &mut command).finish(4 * PATIENCE);
        assert!(
            checked.ok(),
            "{cases:?}\n{}{}",
            checked.report(),
            bench.daemon.log()
        );
    }
}

#[test]
fn show_says_how_each_region_is_reached() {
    let _alone = alone();
    let bench = Bench::new(PAIR);
    let mut command = bench.command(None, &[], &["hold"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("roceline runs");
    let mut said = String::new();
    {
        use std::io::{BufRead, BufReader};
        let stdout = child.stdout.as_mut().expect("piped");
        let mut lines = BufReader::new(stdout);
        while !said.ends_with("held\n") {
            let n = lines.read_line(&mut said).expect("text");
            assert!(n > 0, "the program ended: {said}");
        }
    }
    let address = |kind: &str| {
        let line = said.lines().find(|line| line.starts_with(kind));
        let hex = line.and_then(|line| line.split(' ').nth(1));
        u64::from_str_radix(hex.expect("an address"), 16).expect("a number")
    };
    let mrs = bench.daemon.json(&["show", "mrs"]);
    let reach = |kind: &str| {
        let mrs = mrs["mrs"].as_array().expect("a list");
        let mr = mrs
            .iter()
            .find(|mr| mr["addr"].as_u64() == Some(address(kind)));
        mr.unwrap_or_else(|| panic!("no region {kind} in {mrs:?}"))["reach"].clone()
    };
    assert_eq!(reach("private"), "mapped");
    assert_eq!(reach("object"), "mapped");
    assert_eq!(reach("stack"), "kernel");
    // The end of its input ends it.
    child.stdin.take().expect("piped").flush().expect("open");
    wait_for("the end of the program", PATIENCE, || {
        match child.try_wait().expect("our child") {
            Some(status) => {
                assert!(status.success(), "{status}");
                true
            }
            None => false,
        }
    });
    bench.daemon.expect_empty();
}
