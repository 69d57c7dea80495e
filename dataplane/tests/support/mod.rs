//! Runs daemons and unmodified programs for the tests: each daemon on its own socket in its own directory, each
//! process with a deadline, everything stopped when its owner goes.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub mod capture;
pub mod daemon;
pub mod incast;
pub mod installed;
pub mod matrix;
pub mod namespace;
pub mod pair;
pub mod process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Long enough for anything that is going to happen at all, on a crowded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// One test with daemons and busy-polling programs at a time: the machine may have two CPUs.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this is root; if not, says that a test is skipped which `does` something that takes it.
pub fn is_root(does: &str) -> bool {
    // SAFETY: no arguments, no effects, cannot fail.
    let is = unsafe { libc::geteuid() } == 0;
    if !is {
        eprintln!("skipped: only root {does}");
    }
    is
}

/// The program under test. The shim lies beside it: cargo builds it for tests only when it is asked to.
pub fn roceline() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let own = PathBuf::from(env!("CARGO_BIN_EXE_roceline"));
        let profile = own.parent().expect("the binary is in a directory");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "-p", "roceline-shim", "--target-dir"]);
        build.arg(
            profile
                .parent()
                .expect("a profile's directory is in the target directory"),
        );
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let status = build
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the shim does not build");
        assert!(
            profile.join("libroceline_shim.so").exists(),
            "no shim beside {}",
            own.display()
        );
        own
    })
}

/// Compiles C sources, named from here, to the program `name` in `into`; gives its path.
#[track_caller]
pub fn compile(into: &Path, name: &str, sources: &[&str]) -> String {
    let program = compile_with(&[], into, name, sources);
    program.unwrap_or_else(|| panic!("{name} does not compile"))
}

/// The same with more options for the compiler; none if it cannot.
pub fn compile_with(options: &[&str], into: &Path, name: &str, sources: &[&str]) -> Option<String> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let program = into.join(name);
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .args(options)
        .args(sources.iter().map(|source| tests.join(source)))
        .args(["-libverbs", "-lpthread"])
        .status()
        .expect("a C compiler is installed");
    let path = program.into_os_string().into_string();
    compiled
        .success()
        .then(|| path.expect("temporary directories have plain names"))
}

/// Sources of the checks of memory.
pub const MEMORY_CHECK: [&str; 5] = [
    "../../verbs-shim/tests/memory_check.c",
    "../../verbs-shim/tests/memory_huge.c",
    "../../verbs-shim/tests/memory_room.c",
    "../../verbs-shim/tests/memory_end.c",
    "../../verbs-shim/tests/verbs_end.c",
];

/// Sources of the checks of processes.
pub const PROCESS_CHECK: [&str; 3] = [
    "process_check.c",
    "../../verbs-shim/tests/memory_end.c",
    "../../verbs-shim/tests/verbs_end.c",
];

/// Waits for a condition that something else brings about.
#[track_caller]
pub fn wait_for(what: &str, patience: Duration, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < patience, "no {what} within {patience:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A directory that goes with its owner, unless the test fails: then it stays for whoever looks into it.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "roceline-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a temporary directory can be made");
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("files of the failed test: {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// A TCP port that nobody has at the moment.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("there is a free TCP port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}

/// Does somebody listen on that TCP port? Asks the kernel's tables, because a trial connection would be taken
/// for the client.
pub fn listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).is_ok_and(|text| {
            text.lines().any(|line| {
                let mut columns = line.split_ascii_whitespace().skip(1);
                let local = columns.next().unwrap_or_default();
                let state = columns.nth(1).unwrap_or_default();
                state == "0A" && local.ends_with(&format!(":{port:04X}"))
            })
        })
    })
}
