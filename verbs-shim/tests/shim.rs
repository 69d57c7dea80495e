//! The shim against a stub daemon: what a program sees of paths, fds and commands (`shim_probe.c` looks from inside).

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use roceline_abi::PROTOCOL_VERSION;
use support::{
    Manner, Scratch, Seen, Stub, add_device, compile, library, shimmed, text, write_tree,
};

struct Bench {
    scratch: Scratch,
    stub: Stub,
}

impl Bench {
    fn new(name: &str, manner: Manner) -> Bench {
        let scratch = Scratch::new(name);
        let stub = Stub::start(&scratch.socket(), manner);
        Bench { scratch, stub }
    }

    fn probe(&self, case: &str) -> Command {
        let program = compile(&self.scratch, "probe", &["shim_probe.c"], &[]);
        let mut command = shimmed(program, &self.scratch.socket());
        command.arg(case);
        command
    }
}

fn passes(case: &str) -> Vec<Seen> {
    let bench = Bench::new(case, Manner::default());
    let output = bench.probe(case).output().expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    bench.stub.seen.try_iter().collect()
}

#[test]
fn paths_lead_to_the_tree_and_back() {
    passes("paths");
}

/// Links as the daemon makes them, to a device `mlx5_0` of the kernel's that is made of files.
fn add_machine(scratch: &Scratch) {
    let real = scratch.0.join("real");
    let view = scratch.0.join("r.sock.d/all");
    let put = |path: &str, content: &str| {
        let path = real.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, content).expect("a file");
    };
    put("verbs/ibdev", "mlx5_0\n");
    put("verbs/abi_version", "2\n");
    put("verbs/dev", "231:195\n");
    put("device/node_type", "1: CA\n");
    put("device/node_guid", "0000:00ff:fe00:0abc\n");
    // A provider that a test machine has.
    put("device/device/modalias", "rdma_device:Nrxe\n");
    put("node", "node\n");
    for (target, link) in [
        ("verbs", "sys/class/infiniband_verbs/uverbs3"),
        ("device", "sys/class/infiniband/mlx5_0"),
        ("node", "dev/infiniband/uverbs3"),
    ] {
        symlink(real.join(target), view.join(link)).expect("a link");
    }
}

#[test]
fn the_machines_own_devices_are_passed_through() {
    let bench = Bench::new("machine", Manner::default());
    add_machine(&bench.scratch);
    let output = bench.probe("machine").output().expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    let opened = bench.stub.seen.try_iter().filter(|s| *s != Seen::Closed);
    assert_eq!(opened.count(), 1, "only ours is the daemon's");
}

#[test]
fn devices_of_the_daemon_and_the_machine_are_listed() {
    let scratch = Scratch::new("both");
    write_tree(&scratch.socket());
    add_machine(&scratch);
    let said = text(&ibv_devices(&scratch, None));
    assert!(said.contains("roce0") && said.contains("mlx5_0"), "{said}");
}

/// In whichever order a file system lists what was made in this one.
const OUT_OF_ORDER: [u32; 11] = [5, 11, 2, 8, 1, 10, 3, 9, 4, 7, 6];

#[test]
fn devices_come_in_the_order_of_their_numbers() {
    let bench = Bench::new("order", Manner::default());
    for n in OUT_OF_ORDER {
        add_device(&bench.scratch.socket(), n);
    }
    let output = bench.probe("order").output().expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    // The same where places are not names' for good.
    let counted = compile(
        &bench.scratch,
        "counted_places.so",
        &["counted_places.c"],
        &["-shared", "-fPIC", "-ldl"],
    );
    let mut probe = bench.probe("order");
    let mut preloaded = library().into_os_string();
    preloaded.push(":");
    preloaded.push(counted);
    let output = probe.env("LD_PRELOAD", preloaded).output();
    let output = output.expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    let said = text(&ibv_devices(&bench.scratch, None));
    let devices: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| word.starts_with("roce"))
        .collect();
    let expected: Vec<String> = (0..=11).map(|n| format!("roce{n}")).collect();
    assert_eq!(devices, expected, "{said}");
}

#[test]
fn an_opened_device_looks_like_one() {
    let seen = passes("open");
    let Some(Seen::Opened {
        device,
        program,
        has_memory: true,
    }) = seen.first()
    else {
        panic!("{seen:?}");
    };
    assert_eq!(device, "roce0");
    // All contexts of a program carry the same number.
    let programs: Vec<_> = seen
        .iter()
        .filter_map(|s| match s {
            Seen::Opened { program, .. } => Some(program),
            Seen::Closed | Seen::Attribute { .. } => None,
        })
        .collect();
    assert!(
        programs.len() == 3 && programs.iter().all(|p| *p == program),
        "{programs:?}"
    );
}

#[test]
fn commands_reach_the_daemon_and_answers_are_cut_to_size() {
    passes("commands");
}

#[test]
fn doorbells_and_arm_words_are_where_the_lcore_looks() {
    passes("doorbells");
}

#[test]
fn completion_channels_go_by_handle() {
    passes("channels");
}

#[test]
fn duplicates_share_the_context() {
    passes("dup");
}

#[test]
fn hidden_fds_survive_a_program_that_closes_all() {
    passes("hidden");
}

#[test]
fn a_reused_fd_is_a_file_again() {
    passes("reuse");
}

#[test]
fn vforked_and_spawned_children_leave_the_parent_alone() {
    passes("spawn");
}

#[test]
fn many_contexts_come_and_go() {
    let seen = passes("many");
    let opened = seen.iter().filter(|s| **s != Seen::Closed).count();
    assert_eq!(opened, 220);
}

#[test]
fn a_daemon_that_goes_gives_eio() {
    passes("gone");
}

#[test]
fn the_connection_ends_with_the_parent_though_a_child_lives() {
    let bench = Bench::new("fork", Manner::default());
    let mut probe = bench
        .probe("fork")
        .stdin(Stdio::piped())
        .spawn()
        .expect("the probe");
    // Kept open: the second child lives until this is dropped.
    let _stdin = probe.stdin.take();
    let status = probe.wait().expect("its end");
    assert!(status.success(), "{status}");
    // The parent's context and the first child's, and the end of both.
    let seen: Vec<_> = (0..4).map(|_| bench.stub.next()).collect();
    let program = |s: &Seen| match s {
        Seen::Opened { program, .. } => Some(*program),
        Seen::Closed | Seen::Attribute { .. } => None,
    };
    let programs: Vec<_> = seen.iter().filter_map(program).collect();
    assert_eq!(programs.len(), 2, "{seen:?}");
    assert_ne!(
        programs[0], programs[1],
        "the child is a program of its own"
    );
}

fn refusal(case: &str, manner: Manner) -> String {
    let bench = Bench::new(case, manner);
    let output = bench.probe(case).output().expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn another_protocol_version_is_said_plainly() {
    let said = refusal(
        "version",
        Manner {
            version_skew: 41,
            ..Manner::default()
        },
    );
    assert!(
        said.contains(&format!("version {}", 41 + PROTOCOL_VERSION))
            && said.contains(&format!("version {PROTOCOL_VERSION}:")),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_refusal_names_the_device() {
    let said = refusal(
        "denied",
        Manner {
            open_error: libc::EACCES,
            ..Manner::default()
        },
    );
    assert!(said.contains("refuses to open roce0"), "{said}");
}

#[test]
fn why_a_command_was_refused_is_said_to_who_asks() {
    let bench = Bench::new("debug", Manner::default());
    let said = |debug: &str| {
        let mut probe = bench.probe("commands");
        let output = probe
            .env("ROCELINE_DEBUG", debug)
            .output()
            .expect("the probe");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(said(""), "", "a program's output is its own");
    assert_eq!(said("1"), "roceline: command 5000: the reason\n");
}

#[test]
fn without_a_daemon_the_socket_and_the_remedy_are_named() {
    let scratch = Scratch::new("no-daemon");
    write_tree(&scratch.socket());
    let program = compile(&scratch, "probe", &["shim_probe.c"], &[]);
    let output = shimmed(program, &scratch.socket())
        .arg("no-daemon")
        .output()
        .expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("r.sock") && said.contains("`roceline nic`"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

fn ibv_devices(scratch: &Scratch, device: Option<&str>) -> Output {
    let mut command = shimmed("ibv_devices", &scratch.socket());
    if let Some(device) = device {
        command.env("ROCELINE_DEVICE", device);
    }
    command
        .output()
        .expect("ibv_devices of the package ibverbs-utils")
}

#[test]
fn without_a_tree_there_are_no_devices_and_a_reason() {
    let scratch = Scratch::new("no-tree");
    let said = text(&ibv_devices(&scratch, None));
    assert!(
        said.contains("no daemon at") && said.contains("r.sock"),
        "{said}"
    );
    assert!(!said.contains("roce0"), "{said}");
}

#[test]
fn a_limit_to_an_unknown_device_is_named() {
    let scratch = Scratch::new("no-device");
    write_tree(&scratch.socket());
    let said = text(&ibv_devices(&scratch, Some("roce9")));
    assert!(said.contains("no device roce9"), "{said}");
}

/// Where functions are in the table of a version of rdma-core, and how many there are.
struct Table {
    ops: usize,
    attach_mcast: usize,
    create_cq_ex: usize,
    detach_mcast: usize,
    poll_cq: usize,
    req_notify_cq: usize,
}

/// Of 44 to 58.
const OLDEST: Table = Table {
    ops: 76,
    attach_mcast: 9,
    create_cq_ex: 16,
    detach_mcast: 38,
    poll_cq: 53,
    req_notify_cq: 69,
};
/// Of 59 to 61.
const OF_59: Table = Table {
    ops: 79,
    attach_mcast: 10,
    create_cq_ex: 17,
    detach_mcast: 40,
    poll_cq: 55,
    req_notify_cq: 72,
};
/// Of 62 and 63, under the symbol version of 59.
const OF_62: Table = Table {
    ops: 81,
    poll_cq: 56,
    req_notify_cq: 74,
    ..OF_59
};
/// Of 64.
const OF_64: Table = Table {
    ops: 83,
    attach_mcast: 11,
    create_cq_ex: 18,
    detach_mcast: 41,
    poll_cq: 58,
    req_notify_cq: 76,
};

/// Runs the stand-in provider `file` with a libibverbs of that table and symbol version; which functions were replaced.
fn replaced(table: &Table, file: &str, version: u32, policy: &str) -> String {
    let scratch = Scratch::new(&format!("{file}-{version}-{}-{policy}", table.ops));
    let path = |file: &str| {
        scratch
            .0
            .join(file)
            .into_os_string()
            .into_string()
            .expect("text")
    };
    let script = path("version");
    std::fs::write(
        &script,
        format!("IBVERBS_PRIVATE_{version} {{ global: *; }};"),
    )
    .expect("a version script");
    let defines = [
        format!("-DOPS={}", table.ops),
        format!("-DATTACH_MCAST={}", table.attach_mcast),
        format!("-DCREATE_CQ_EX={}", table.create_cq_ex),
        format!("-DDETACH_MCAST={}", table.detach_mcast),
        format!("-DPOLL_CQ={}", table.poll_cq),
        format!("-DREQ_NOTIFY_CQ={}", table.req_notify_cq),
    ];
    let library = path("libibverbs.so.1");
    let run = format!(
        "-Wl,-rpath,{},--version-script,{script}",
        scratch.0.display()
    );
    let build = |output: &str, source: &str, flags: &[&str]| {
        let defines = defines.iter().map(String::as_str);
        let flags: Vec<&str> = defines.chain(flags.iter().copied()).collect();
        compile(&scratch, output, &[source], &flags)
    };
    let shared = ["-shared", "-fPIC"];
    let soname = |name: &str| format!("-Wl,-soname,{name}");
    build(
        "libibverbs.so.1",
        "provider_library.c",
        &[&shared[..], &[&soname("libibverbs.so.1"), &run]].concat(),
    );
    build(
        file,
        "provider_rxe.c",
        &[&shared[..], &[&soname(file), &library]].concat(),
    );
    let search = format!("-Wl,-rpath,{}", scratch.0.display());
    let program = build(
        "probe",
        "provider_probe.c",
        &[&path(file), &library, &search],
    );
    let output = shimmed(program, &scratch.socket())
        .env("ROCELINE_YIELD", policy)
        .output()
        .expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn polls_of_the_rxe_provider_pass_through_ours() {
    // create_cq_ex and poll_cq.
    for (table, version, want) in [
        (&OLDEST, 34, "16 53"),
        (&OLDEST, 57, "16 53"),
        (&OF_59, 59, "17 55"),
        (&OF_62, 59, "17 56"),
        (&OF_64, 64, "18 58"),
    ] {
        let file = format!("librxe-rdmav{version}.so");
        assert_eq!(replaced(table, &file, version, "always"), want, "{version}");
    }
    assert_eq!(
        replaced(&OLDEST, "librxe-rdmav34.so", 34, "never"),
        "16 53",
        "for the end of the daemon"
    );
}

#[test]
fn other_providers_and_unknown_layouts_are_left_alone() {
    assert_eq!(replaced(&OLDEST, "libmlx5-rdmav34.so", 34, "always"), "");
    assert_eq!(replaced(&OF_64, "librxe-rdmav99.so", 99, "always"), "");
    let moved = Table {
        req_notify_cq: OF_64.req_notify_cq + 1,
        ..OF_64
    };
    assert_eq!(replaced(&moved, "librxe-rdmav64.so", 64, "always"), "");
}
