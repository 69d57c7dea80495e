//! Programs that load libibverbs at run time: by `dlopen` and `dlvsym`, with `RTLD_DEEPBIND`, and as a Python wheel
//! brings it, under another name.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{Manner, Scratch, Seen, Stub, compile, library, shimmed, text};

/// As auditwheel renames what it bundles.
const BUNDLED: &str = "libibverbs-0a1b2c3d.so.1.14.41.0";

/// It asks the daemon to open the device; the stub of one has no more to offer.
const FOUND: &str = "1: roce0\nnot opened\n";

struct Bench {
    scratch: Scratch,
    stub: Stub,
    program: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let scratch = Scratch::new(name);
        let stub = Stub::start(&scratch.socket(), Manner::default());
        let program = compile(&scratch, "probe", &["dlopen_probe.c"], &[]);
        Bench {
            scratch,
            stub,
            program,
        }
    }

    fn probe(&self, case: &str) -> Command {
        let mut command = shimmed(&self.program, &self.scratch.socket());
        command
            .arg(case)
            .env_remove("LD_AUDIT")
            .env_remove("ROCELINE_DEEPBIND")
            .env_remove("ROCELINE_WHEELS");
        command
    }

    fn path(&self, file: &str) -> String {
        let path = self.scratch.0.join(file).into_os_string();
        path.into_string().expect("text")
    }

    /// An extension module whose libibverbs lies beside it under a name of its own.
    fn wheel(&self) -> String {
        fs::create_dir(self.path("wheel.libs")).expect("a directory");
        let script = self.path("versions");
        let versions = "IBVERBS_1.1 { global: ibv_*; local: *; };";
        fs::write(&script, versions).expect("a version script");
        let bundled = format!("wheel.libs/{BUNDLED}");
        let soname = format!("-Wl,-soname,{BUNDLED}");
        let script = format!("-Wl,--version-script,{script}");
        let flags = ["-shared", "-fPIC", &soname, &script];
        compile(&self.scratch, &bundled, &["wheel_bundled.c"], &flags);
        let bundled = self.path(&bundled);
        let runpath = "-Wl,-rpath,$ORIGIN/wheel.libs";
        let flags = ["-shared", "-fPIC", &bundled, runpath];
        compile(
            &self.scratch,
            "extension.so",
            &["wheel_extension.c"],
            &flags,
        );
        self.path("extension.so")
    }

    fn opened(&self) -> Vec<String> {
        let seen = self.stub.seen.try_iter();
        seen.filter_map(|seen| match seen {
            Seen::Opened { device, .. } => Some(device),
            Seen::Closed | Seen::Attribute { .. } => None,
        })
        .collect()
    }
}

/// What the program says, which must succeed.
fn says(command: &mut Command) -> String {
    let output = command.output().expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_library_opened_by_name_finds_the_device() {
    let bench = Bench::new("dlopen-plain");
    assert_eq!(says(&mut bench.probe("plain")), FOUND);
    assert_eq!(bench.opened(), ["roce0"]);
}

#[test]
fn deepbind_is_taken_out() {
    let bench = Bench::new("dlopen-deepbind");
    assert_eq!(says(&mut bench.probe("deepbind")), FOUND);
    assert_eq!(bench.opened(), ["roce0"]);
}

#[test]
fn deepbind_stays_for_who_asks() {
    let bench = Bench::new("dlopen-keep");
    let mut probe = bench.probe("deepbind");
    let said = says(probe.env("ROCELINE_DEEPBIND", "keep"));
    assert!(!said.contains("roce0"), "{said}");
}

#[test]
fn the_callers_runpath_holds() {
    let bench = Bench::new("dlopen-runpath");
    fs::create_dir(bench.path("own")).expect("a directory");
    let flags = ["-shared", "-fPIC"];
    compile(
        &bench.scratch,
        "own/libneighbour.so",
        &["wheel_bundled.c"],
        &flags,
    );
    let runpath = "-Wl,-rpath,$ORIGIN/own,--enable-new-dtags";
    let flags = ["-shared", "-fPIC", runpath];
    compile(&bench.scratch, "liblocal.so", &["dlopen_local.c"], &flags);
    let mut probe = bench.probe("runpath");
    let said = says(probe.args([&bench.path("liblocal.so"), "libneighbour.so"]));
    // Loaded, so known; a failure is the loader's own; null is the program.
    assert_eq!(said, "1\n1\n1\n");
}

#[test]
fn a_wheels_own_library_gives_way_to_the_systems() {
    let bench = Bench::new("dlopen-wheel");
    let extension = bench.wheel();
    let mut probe = bench.probe("extension");
    probe.arg(&extension);
    assert_eq!(says(&mut probe), "0:\n", "the wheel's own has no provider");
    assert_eq!(
        says(probe.env("LD_AUDIT", library())),
        FOUND,
        "the system's has"
    );
    assert_eq!(bench.opened(), ["roce0"]);
    assert_eq!(says(probe.env("ROCELINE_WHEELS", "never")), "0:\n");
}

#[test]
fn names_of_bundled_copies_are_told_from_others() {
    let bench = Bench::new("dlopen-names");
    let lib = "/lib/x86_64-linux-gnu";
    let path = format!("/site-packages/nixl.libs/{BUNDLED}");
    let verbs = format!("{lib}/libibverbs.so.1");
    let mut table = vec![
        // The loader has to remember the name as asked, so that stays until a place is looked at.
        (BUNDLED, BUNDLED, verbs.clone()),
        (&path, &verbs, verbs.clone()),
        (
            "librdmacm-90f7e1ba.so.1.3.44.0",
            "librdmacm-90f7e1ba.so.1.3.44.0",
            format!("{lib}/librdmacm.so.1"),
        ),
        (
            "libmlx5-0123abcd.so",
            "libmlx5-0123abcd.so",
            format!("{lib}/libmlx5.so.1"),
        ),
    ];
    for other in [
        "libibverbs.so.1",
        "/own/libibverbs.so.1",
        "libmlx5-rdmav34.so",
        "librxe-rdmav34.so",
        "libibverbs-0a1b2c3d",
        "libibverbs-.so.1",
        "libcrypto-0a1b2c3d.so.1",
    ] {
        table.push((other, other, other.to_owned()));
    }
    let mut probe = bench.probe("names");
    let said = says(probe.args(table.iter().map(|(asked, _, _)| asked)));
    let lines: Vec<&str> = said.lines().collect();
    for ((asked, first, place), got) in table.iter().zip(&lines) {
        assert_eq!(*got, format!("{first} {place}"), "{asked}");
    }
    assert_eq!(
        lines[table.len()..],
        ["0 2 2"],
        "a loader that makes every call pay is left alone"
    );
}

/// The loader aborts if it does not know a library by the name that symbol versions give it.
#[test]
fn a_wheel_may_come_after_the_systems_library() {
    let bench = Bench::new("dlopen-after");
    let extension = bench.wheel();
    let bundled = bench.path(&format!("wheel.libs/{BUNDLED}"));
    for first in ["libibverbs.so.1", &bundled] {
        let mut probe = bench.probe("extension");
        probe.args([&extension, first]).env("LD_AUDIT", library());
        assert_eq!(says(&mut probe), FOUND, "{first}");
    }
}

/// The exported function has no parameters as far as the compiler knows. With link-time optimisation a call of
/// `libc::dlopen` is a call of that function, and passes none: every program crashed with the release build.
#[test]
fn the_shim_itself_never_calls_dlopen_by_name() {
    fn look(directory: &std::path::Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("the sources are there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                look(&path, found);
            } else if fs::read_to_string(&path)
                .expect("text")
                .contains("libc::dlopen(")
            {
                found.push(path);
            }
        }
    }
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    look(&sources, &mut found);
    assert_eq!(found, [] as [PathBuf; 0]);
}
