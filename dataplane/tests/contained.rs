//! Ordinary users in surroundings that take much away: a container's system call filter, other PID and user namespaces, a root
//! that cannot be written, no `/dev/shm`, no `/sys`, small limits. What was there for users outside is there for them.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use support::daemon::{Daemon, PAIR};
use support::installed::{Installed, NOBODY, own_by};
use support::process::Process;
use support::{PATIENCE, alone, compile, free_port, is_root, listening, wait_for};

const DROP: [&str; 8] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
    "--",
];

/// The daemon and the programs, each started by something.
struct Bench<'a> {
    installed: Installed,
    daemon: Daemon,
    programs_by: Vec<&'a str>,
    /// The daemon is the child of what was started.
    forked: bool,
}

/// `unshare --fork` takes no SIGTERM, and its `--kill-child` does not outlive the child's change of user: so the child is
/// told to end, and its parent ends with it.
impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // The child is the daemon here, and not a worker.
        if self.forked && self.daemon.find_worker().is_some() {
            self.daemon.kill_worker(libc::SIGTERM);
        }
    }
}

impl<'a> Bench<'a> {
    /// A daemon of `user`, started by `daemon_by`.
    #[track_caller]
    fn new(installed: Installed, daemon_by: &[&str], programs_by: &[&'a str]) -> Bench<'a> {
        let mut daemon = Daemon::prepare(PAIR);
        if is_root_now() {
            own_by(NOBODY, &daemon);
        }
        let command = match daemon_by {
            [] => daemon.command(),
            by => installed.under(by, &daemon.command()),
        };
        daemon.launch_by(command);
        daemon.expect_ready();
        Bench {
            installed,
            daemon,
            programs_by: programs_by.to_vec(),
            forked: daemon_by.contains(&"--fork"),
        }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let command = self.daemon.program(program, arguments);
        match &self.programs_by[..] {
            [] => command,
            by => self.installed.under(by, &command),
        }
    }

    /// A program alone.
    #[track_caller]
    fn runs(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = self.command(program, arguments);
        let ended = Process::start(self.daemon.dir(), "program", &mut command).finish(3 * PATIENCE);
        assert!(ended.ok(), "{}{}", ended.report(), self.daemon.log());
        ended.stdout
    }

    /// A pair of programs.
    #[track_caller]
    fn exchanges(&self, tool: &str, options: &[&str]) {
        let port = free_port();
        let number = port.to_string();
        let start = |name: &str, own: &[&str]| {
            let arguments = [&["-p", &number], options, own].concat();
            let mut command = self.command(tool, &arguments);
            Process::start(self.daemon.dir(), &format!("{tool}-{name}"), &mut command)
        };
        let mut server = start("server", &["-d", "roce0"]);
        wait_for("listening server", PATIENCE, || {
            listening(port) || !server.is_running()
        });
        let client = start("client", &["-d", "roce1", "127.0.0.1"]).finish(PATIENCE);
        let server = server.finish(PATIENCE);
        assert!(
            client.ok() && server.ok(),
            "{}{}{}",
            client.report(),
            server.report(),
            self.daemon.log()
        );
    }

    /// One of the usual programs, which sleeps and so leaves the CPU to others.
    #[track_caller]
    fn programs_run(&self) {
        self.exchanges("ibv_rc_pingpong", &["-g", "0", "-c", "-e", "-n", "200"]);
    }
}

fn is_root_now() -> bool {
    // SAFETY: no arguments, no effects, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether a command succeeds.
fn can(command: &[&str]) -> bool {
    let mut probe = Command::new(command[0]);
    probe.args(&command[1..]);
    probe
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Whether this process may start programs `by` that; if not, says that the test is skipped.
fn may(by: &[&str]) -> bool {
    let may = can(&[by, &["true"]].concat());
    if !may {
        eprintln!("skipped: `{}` is not allowed here", by.join(" "));
    }
    may
}

/// Daemon, programs and the command line, of a user without capabilities, under the filter of the Docker engine's default
/// profile (`contained.c`, which shows first that the filter is there).
#[test]
fn everything_runs_under_a_containers_filter() {
    let _alone = alone();
    let installed = Installed::new();
    let contained = compile(installed.dir(), "contained", &["contained.c"]);
    let mut by: Vec<&str> = Vec::new();
    if is_root_now() {
        by.extend(DROP);
    }
    by.push(&contained);
    let memory = compile(installed.dir(), "memory_check", &support::MEMORY_CHECK);
    let process = compile(installed.dir(), "process_check", &support::PROCESS_CHECK);
    let mut bench = Bench::new(installed, &by, &by);
    let status = fs::read_to_string(format!("/proc/{}/status", bench.daemon.worker()));
    let status = status.expect("the worker runs");
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let listed = bench.runs("ibv_devinfo", &["-d", "roce0"]);
    assert!(listed.contains("PORT_ACTIVE"), "{listed}");
    bench.programs_run();
    bench.exchanges("ib_write_bw", &["-F", "-n", "100"]);
    bench.exchanges("ib_read_bw", &["-F", "-n", "100", "-e"]);
    bench.exchanges("ib_send_lat", &["-F", "-n", "100", "-s", "64"]);
    bench.runs(&memory, &["roce0", "roce1"]);
    bench.runs(&memory, &["-t", "1", "roce0", "roce1", "storm"]);
    bench.runs(&process, &["roce0", "roce1"]);
    let tool = |arguments: &[&str]| {
        let mut command = bench.daemon.command();
        command = Command::new(command.get_program());
        command
            .args(arguments)
            .arg("--socket")
            .arg(bench.daemon.socket());
        let mut command = bench.installed.under(&by, &command);
        let ended = Process::start(bench.daemon.dir(), "tool", &mut command).finish(PATIENCE);
        assert!(ended.ok(), "{}{}", ended.report(), bench.daemon.log());
        ended.stdout
    };
    assert!(tool(&["show", "devices"]).contains("roce1"));
    assert!(tool(&["stat"]).contains("roce0"));
    tool(&["impair", "add", "--nic", "roce0", "--tx", "--drop"]);
    tool(&["impair", "clear"]);
    let doctor = tool(&["doctor"]);
    assert!(doctor.contains("ibv_devices sees all devices"), "{doctor}");
    // Another worker comes, under the same filter.
    bench.daemon.kill_worker(libc::SIGKILL);
    bench.daemon.expect_ready();
    bench.programs_run();
}

/// Programs in a PID namespace of their own, then the daemon in one.
#[test]
fn programs_and_daemon_may_be_in_different_pid_namespaces() {
    let _alone = alone();
    if !is_root("makes PID namespaces") {
        return;
    }
    let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !may(&namespace) {
        return;
    }
    let inside: Vec<&str> = [&namespace[..], &DROP[..]].concat();
    for (daemon_by, programs_by) in [(&DROP[..], &inside[..]), (&inside, &DROP)] {
        let installed = Installed::new();
        let memory = compile(installed.dir(), "memory_check", &support::MEMORY_CHECK);
        let bench = Bench::new(installed, daemon_by, programs_by);
        bench.programs_run();
        bench.runs(
            &memory,
            &["roce0", "roce1", "private", "protection", "objects", "fork"],
        );
        bench.daemon.expect_empty();
    }
}

/// A program that is root in a user namespace of its own is the user outside to the daemon.
#[test]
fn root_of_a_user_namespace_is_the_user_who_made_it() {
    let _alone = alone();
    if !is_root("becomes other users") {
        return;
    }
    let namespace = [&DROP[..], &["unshare", "--user", "--map-root-user"]].concat();
    if !may(&namespace) {
        return;
    }
    let installed = Installed::new();
    let config = |user: &str| format!("{PAIR}\n[control]\nusers = [{user}]\n");
    for (user, comes) in [(NOBODY, true), ("65533", false)] {
        let daemon = Daemon::start(&config(user));
        let devinfo = daemon.program("ibv_devinfo", &["-d", "roce0"]);
        let mut command = installed.under(&namespace, &devinfo);
        let ended = Process::start(daemon.dir(), "inside", &mut command).finish(PATIENCE);
        assert_eq!(
            ended.ok(),
            comes,
            "{user}: {}{}",
            ended.report(),
            daemon.log()
        );
    }
    let bench = Bench::new(installed, &DROP, &namespace);
    bench.programs_run();
}

/// The root cannot be written and there is no `/dev/shm`; for programs `/dev` has the least, and `/sys` nothing. (The daemon's
/// DPDK counts the CPUs in `/sys/devices/system`.)
#[test]
fn a_root_that_cannot_be_written_and_an_empty_sys_are_enough() {
    let _alone = alone();
    if !is_root("makes mount namespaces") {
        return;
    }
    let read_only =
        "mount --bind /tmp /tmp && mount -o remount,bind,ro / && ! touch /etc/.least 2>/dev/null";
    let least = format!(
        "{read_only} && mount -t tmpfs none /sys && \
         for f in null zero urandom; do touch /sys/$f && mount --bind /dev/$f /sys/$f; done && \
         mount --rbind /sys /dev && mount -t tmpfs none /sys && [ ! -e /dev/shm ] && exec \"$@\""
    );
    let no_shm = format!("{read_only} && mount -t tmpfs -o ro none /dev/shm && exec \"$@\"");
    let namespace = |script| ["unshare", "--mount", "sh", "-c", script, "sh"];
    if !may(&namespace(&least)) {
        return;
    }
    let programs_by = [&namespace(&least)[..], &DROP[..]].concat();
    let daemon_by = [&namespace(&no_shm)[..], &DROP[..]].concat();
    let installed = Installed::new();
    let memory = compile(installed.dir(), "memory_check", &support::MEMORY_CHECK);
    let bench = Bench::new(installed, &daemon_by, &programs_by);
    bench.programs_run();
    let cases = ["private", "stack", "fork", "exec"];
    bench.runs(&memory, &[&["roce0", "roce1"], &cases[..]].concat());
}

/// Few descriptors, no locked memory, little address space, for programs; the first two for the daemon.
#[test]
fn small_limits_are_enough() {
    let _alone = alone();
    let installed = Installed::new();
    let memory = compile(installed.dir(), "memory_check", &support::MEMORY_CHECK);
    let daemon_by = ["prlimit", "--nofile=128", "--memlock=0", "--"];
    // A program with both ends has two devices open.
    let programs_by = [
        "prlimit",
        "--nofile=24",
        "--memlock=0",
        "--as=1073741824",
        "--",
    ];
    let bench = Bench::new(installed, &daemon_by, &programs_by);
    bench.programs_run();
    bench.runs(
        &memory,
        &["roce0", "roce1", "private", "objects", "fork", "full"],
    );
    bench.daemon.expect_empty();
}

/// What does not fit any more is reached through the kernel, or refused, and the daemon lives on.
#[test]
fn the_address_space_may_be_limited() {
    let _alone = alone();
    let mut bench = Bench::new(Installed::new(), &[], &[]);
    let dir = bench.installed.dir().to_path_buf();
    let probe = compile(&dir, "room_probe", &["room_probe.c"]);
    let worker = bench.daemon.worker().to_string();
    for mib in ["150", "20"] {
        let arguments = ["roce0", &worker, mib];
        let mut command = bench.command(&probe, &arguments);
        let ended = Process::start(bench.daemon.dir(), "room", &mut command).finish(PATIENCE);
        // With less than the reserve nothing more is made; with more some is.
        let log = bench.daemon.log();
        let said = match mib {
            "150" => ended.ok() && !ended.stdout.contains(", 0 refused"),
            _ => ended.failed() && ended.stdout.is_empty(),
        };
        assert!(said, "{mib}: {}{log}", ended.report());
        assert!(log.contains("ulimit -v"), "{log}");
        assert_eq!(bench.daemon.worker().to_string(), worker, "{log}");
        bench.daemon.expect_empty();
    }
}

/// Memory objects count as files: a soft limit of their size is raised, and what is beyond the hard one is an error and does not
/// end the daemon.
#[test]
fn the_size_of_files_may_be_limited() {
    let _alone = alone();
    let soft = ["prlimit", "--fsize=1048576:unlimited", "--"];
    if !may(&soft) {
        return;
    }
    let bench = Bench::new(Installed::new(), &soft, &soft);
    bench.programs_run();
    drop(bench);
    let hard = ["prlimit", "--fsize=1048576:1048576", "--"];
    let bench = Bench::new(Installed::new(), &hard, &[]);
    let mut open = bench.command("ibv_devinfo", &["-d", "roce0"]);
    let refused = Process::start(bench.daemon.dir(), "open", &mut open).finish(PATIENCE);
    let log = bench.daemon.log();
    assert!(
        refused.failed() && refused.stderr.contains("ulimit -f"),
        "{}{log}",
        refused.report()
    );
    bench.daemon.expect_empty();
    assert!(!log.contains("started again"), "{log}");
}

/// Where memory objects must say that nobody executes them.
#[test]
fn memory_objects_need_not_be_executable() {
    let _alone = alone();
    const SYSCTL: &str = "/proc/sys/vm/memfd_noexec";
    if !is_root("makes PID namespaces") {
        return;
    }
    if !Path::new(SYSCTL).exists() {
        eprintln!("skipped: this kernel has no vm.memfd_noexec");
        return;
    }
    // It holds for the namespace alone.
    let strict = format!("echo 2 > {SYSCTL} && exec \"$@\"");
    let namespace = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        &strict,
        "sh",
    ];
    if !may(&namespace) {
        return;
    }
    let inside: Vec<&str> = [&namespace[..], &DROP[..]].concat();
    let installed = Installed::new();
    let memory = compile(installed.dir(), "memory_check", &support::MEMORY_CHECK);
    let bench = Bench::new(installed, &inside, &inside);
    // Those with objects of the program's own, which are not made that way, are left out.
    bench.runs(&memory, &["roce0", "roce1", "private", "small", "fork"]);
}

/// Nothing here is attached to, and `/proc/self/mem` is one's own: the rule of Yama for ordinary users changes nothing.
#[test]
fn yama_changes_nothing() {
    let _alone = alone();
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.ok().and_then(|text| text.trim().parse::<u32>().ok());
    if scope.is_none_or(|scope| scope == 0) {
        eprintln!("skipped: Yama restricts nobody here (kernel.yama.ptrace_scope is {scope:?})");
        return;
    }
    let by: &[&str] = if is_root_now() { &DROP } else { &[] };
    let installed = Installed::new();
    let memory = compile(installed.dir(), "memory_check", &support::MEMORY_CHECK);
    let bench = Bench::new(installed, by, by);
    bench.programs_run();
    bench.runs(&memory, &["roce0", "roce1"]);
}
