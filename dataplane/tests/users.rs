//! Ordinary users: nothing needs privilege, and the configuration says who may come. Run by root; anybody else shows the
//! first point with every other test, and cannot become the users that the rest needs.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use support::daemon::{Daemon, PAIR};
use support::installed::{Installed, NOBODY, STRANGER, own_by};
use support::process::Process;
use support::{PATIENCE, alone, free_port, listening, wait_for};

/// As an ordinary user without capabilities: the daemon, its second life, the shim and the programs.
#[test]
fn no_privilege_is_needed() {
    let _alone = alone();
    if !support::is_root("becomes other users") {
        return;
    }
    let installed = Installed::new();
    let mut daemon = Daemon::prepare(PAIR);
    own_by(NOBODY, &daemon);
    let command = installed.by(NOBODY, &daemon.command());
    daemon.launch_by(command);
    daemon.expect_ready();
    for round in ["first", "second"] {
        let port = free_port();
        let number = port.to_string();
        let arguments = ["-g", "0", "-c", "-p", &number, "-d"];
        let start = |name: &str, more: &[&str]| {
            let all: Vec<&str> = arguments.iter().chain(more).copied().collect();
            let mut command = installed.by(NOBODY, &daemon.program("ibv_rc_pingpong", &all));
            Process::start(daemon.dir(), &format!("{name}-{round}"), &mut command)
        };
        let mut server = start("server", &["roce0"]);
        wait_for("listening server", PATIENCE, || {
            listening(port) || !server.is_running()
        });
        let client = start("client", &["roce1", "127.0.0.1"]).finish(PATIENCE);
        let server = server.finish(PATIENCE);
        assert!(
            client.ok() && server.ok(),
            "{round}: {}{}{}",
            client.report(),
            server.report(),
            daemon.log()
        );
        daemon.kill_worker(libc::SIGKILL);
        daemon.expect_ready();
    }
}

#[test]
fn users_are_let_in_or_refused_as_configured() {
    let _alone = alone();
    if !support::is_root("becomes other users") {
        return;
    }
    let installed = Installed::new();
    let daemon = Daemon::start(&format!("{PAIR}\n[control]\nusers = [{NOBODY}]\n"));
    let open = |user: &str| {
        let program = daemon.program("ibv_devinfo", &["-d", "roce0"]);
        let mut command = installed.by(user, &program);
        Process::start(daemon.dir(), &format!("open-{user}"), &mut command).finish(PATIENCE)
    };
    let allowed = open(NOBODY);
    assert!(allowed.ok(), "{}{}", allowed.report(), daemon.log());
    let refused = open(STRANGER);
    let said = "the daemon refuses to open roce0 (errno 13): user ";
    assert!(
        refused.failed() && refused.stderr.contains(said),
        "{}",
        refused.report()
    );
    let log = daemon.log();
    assert!(log.contains(STRANGER) && log.contains("users"), "{log}");
    for (user, refused) in [(NOBODY, false), (STRANGER, true)] {
        let mut doctor = Command::new("roceline");
        doctor.args(["doctor", "--socket"]).arg(daemon.socket());
        let mut command = installed.by(user, &doctor);
        let ended = Process::start(daemon.dir(), "doctor", &mut command).finish(PATIENCE);
        let said = ended.stdout.contains("may not open devices");
        assert_eq!(said, refused, "{}", ended.report());
    }
    // Whom the permission bits keep out is told before the program starts.
    let closed = Daemon::start(&format!("{PAIR}\n[control]\nmode = \"0600\"\n"));
    let program = closed.program("ibv_devinfo", &["-d", "roce0"]);
    let mut command = installed.by(NOBODY, &program);
    let refused = Process::start(closed.dir(), "closed", &mut command).finish(PATIENCE);
    let said = "this user may not connect to";
    assert!(
        refused.failed() && refused.stderr.contains(said),
        "{}",
        refused.report()
    );
}

/// In a mount namespace of its own, as /run is a fixed place.
#[test]
fn roots_daemon_is_found_by_users_with_a_runtime_directory() {
    let _alone = alone();
    let may_mount = || {
        let mut probe = Command::new("unshare");
        probe.args(["--mount", "mount", "-t", "tmpfs", "none", "/run"]);
        probe.status().is_ok_and(|status| status.success())
    };
    if !support::is_root("has a /run of its own") {
        return;
    }
    if !may_mount() {
        eprintln!(
            "skipped: no mount namespace can be made here, which it takes to have a /run of one's own"
        );
        return;
    }
    let installed = Installed::new();
    let directory = installed.dir().join("runtime");
    fs::create_dir(&directory).expect("a new directory");
    // Their own daemon of yesterday was killed and has left its socket.
    let stale = directory.join("roceline.sock");
    drop(UnixListener::bind(&stale).expect("a socket"));
    fs::set_permissions(&stale, fs::Permissions::from_mode(0o666)).expect("ours");
    let script = "mount -t tmpfs none /run && mkdir -p /run/user && \
         \"$1\" nic & daemon=$!; \
         for i in $(seq 300); do [ -S /run/roceline.sock ] && break; sleep 0.1; done; \
         env XDG_RUNTIME_DIR=\"$2\" setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \
         sh -c '\"$0\" wait --timeout 60 && \"$0\" run -- ibv_devinfo -d roce1 && \
         LD_PRELOAD=\"${0%/*}/libroceline_shim.so\" ibv_devinfo -d roce0' \"$1\"; \
         result=$?; kill $daemon; wait $daemon; exit $result";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&installed.program)
        .arg(&directory)
        .env_remove("ROCELINE_SOCKET");
    let ended = Process::start(installed.dir(), "run", &mut command).finish(2 * PATIENCE);
    assert!(
        ended.ok() && ended.stdout.contains("roce1") && ended.stdout.contains("roce0"),
        "{}",
        ended.report()
    );
}
