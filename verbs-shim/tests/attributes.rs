//! Files of a device that change it when they are written: what shells and programs write reaches the daemon, and what it
//! refuses fails where the program looks (`attribute_probe.c` does what shells do not).

mod support;

use std::process::Output;

use support::{Manner, Scratch, Seen, Stub, compile, shimmed, text};

const FILE: &str = "/sys/class/infiniband/roce0/ecn/roce_rp/rpg_ai_rate";

fn run(stub: &Scratch, program: &str, arguments: &[&str]) -> Output {
    let mut command = shimmed(program, &stub.socket());
    command.args(arguments);
    command.output().expect("the program is installed")
}

fn bench(name: &str) -> (Scratch, Stub) {
    let scratch = Scratch::new(name);
    let stub = Stub::start(&scratch.socket(), Manner::default());
    (scratch, stub)
}

/// The next write that the daemon saw.
fn written(stub: &Stub) -> (String, String) {
    loop {
        match stub.next() {
            Seen::Closed => {}
            Seen::Attribute { path, text } => return (path, text),
            other => panic!("{other:?}"),
        }
    }
}

/// Ways to write: the shells' own `echo` (`write` in dash, stdio in bash), a program whose output it is, `tee`, and what has a
/// stream of its own.
const WAYS: [(&str, &[&str]); 6] = [
    ("dash", &["-c", "echo $VALUE > $FILE"]),
    ("bash", &["-c", "echo $VALUE > $FILE"]),
    ("bash", &["-c", "printf '%s\\n' $VALUE > $FILE"]),
    ("sh", &["-c", "echo $VALUE | cat > $FILE"]),
    ("sh", &["-c", "echo $VALUE | sed p -n > $FILE"]),
    ("sh", &["-c", "echo $VALUE | tee $FILE > /dev/null"]),
];

fn script(way: &[&str], value: &str, file: &str) -> Vec<String> {
    let with = |text: &&str| text.replace("$VALUE", value).replace("$FILE", file);
    way.iter().map(with).collect()
}

#[test]
fn what_is_written_reaches_the_daemon_once() {
    let (scratch, stub) = bench("attribute-writes");
    for (program, way) in WAYS {
        let arguments = script(way, "17", FILE);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&scratch, program, &arguments);
        assert!(output.status.success(), "{way:?}: {}", text(&output));
        assert_eq!(written(&stub), (FILE.into(), "17\n".into()), "{way:?}");
    }
    // Nothing else was written in between, nor by the last of them.
    let arguments = script(WAYS[0].1, "18", FILE);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert!(run(&scratch, "dash", &arguments).status.success());
    assert_eq!(written(&stub).1, "18\n");
}

#[test]
fn a_value_that_is_refused_fails_as_in_the_kernel() {
    let (scratch, stub) = bench("attribute-refusals");
    for (program, way) in WAYS {
        let arguments = script(way, "nonsense", FILE);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&scratch, program, &arguments);
        let said = text(&output);
        assert!(!output.status.success(), "{way:?}: {said}");
        assert!(said.contains("the reason"), "{way:?}: {said}");
        assert!(
            said.contains("Invalid argument") || said.contains("I/O error"),
            "{way:?}: {said}"
        );
        assert_eq!(written(&stub).1, "nonsense\n", "{way:?}");
    }
}

#[test]
fn who_may_not_write_cannot_open() {
    let (scratch, stub) = bench("attribute-denied");
    let file = "/sys/class/infiniband/roce0/cc_params/rp_max_rate";
    for (program, way) in WAYS {
        let arguments = script(way, "17", file);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&scratch, program, &arguments);
        let said = text(&output).to_lowercase();
        assert!(said.contains("permission denied"), "{way:?}: {said}");
    }
    // What does not exist is not created, and who only reads asks nobody.
    let output = run(&scratch, "sh", &["-c", &format!("echo 1 > {FILE}x")]);
    assert!(!output.status.success(), "{}", text(&output));
    let output = run(&scratch, "cat", &[FILE]);
    assert_eq!(output.stdout, b"5\n", "{}", text(&output));
    for seen in stub.seen.try_iter() {
        assert_eq!(seen, Seen::Closed);
    }
}

#[test]
fn the_folder_is_found_where_other_drivers_have_it() {
    let (scratch, stub) = bench("attribute-net");
    let file = FILE.replace("infiniband", "net");
    let both = format!("cat {file} && echo 9 > {file}");
    let output = run(&scratch, "sh", &["-c", &both]);
    assert_eq!(output.stdout, b"5\n", "{}", text(&output));
    assert_eq!(written(&stub), (file, "9\n".into()));
    // What else is below `net` is the kernel's.
    let output = run(&scratch, "sh", &["-c", "cat /sys/class/net/lo/mtu"]);
    assert!(output.status.success(), "{}", text(&output));
    let output = run(&scratch, "ls", &["/sys/class/net/lo/ecn"]);
    assert!(!output.status.success(), "{}", text(&output));
}

/// What the daemon saw of a case of the probe.
fn probed(case: &str) -> Vec<String> {
    let (scratch, stub) = bench(&format!("attribute-{case}"));
    let program = compile(&scratch, "probe", &["attribute_probe.c"], &["-pthread"]);
    let output = run(&scratch, program.to_str().expect("text"), &[case]);
    assert!(output.status.success(), "{}", text(&output));
    let seen = stub.seen.try_iter();
    seen.filter_map(|seen| match seen {
        Seen::Attribute { text, .. } => Some(text),
        Seen::Opened { .. } | Seen::Closed => None,
    })
    .collect()
}

#[test]
fn a_duplicate_in_place_of_a_hidden_fd_costs_no_device() {
    assert_eq!(probed("hidden"), ["1\n"]);
}

#[test]
fn devices_and_their_files_take_the_place_of_each_other() {
    assert_eq!(probed("places"), ["1\n", "2\n"]);
}

#[test]
fn what_is_not_flushed_by_the_end_of_the_program_is_written_then() {
    assert_eq!(probed("exit"), ["1\n"]);
}

#[test]
fn ranges_of_fds_are_closed_with_what_lies_in_them_written() {
    assert_eq!(probed("ranges"), ["1\n", "2\n"]);
}

#[test]
fn a_flush_of_all_streams_tells_what_was_refused() {
    assert_eq!(probed("flush"), ["nonsense\n"]);
}

#[test]
fn a_stream_that_is_opened_anew_is_written_before() {
    assert_eq!(probed("reopen"), ["1\n"]);
}

#[test]
fn the_child_of_a_vfork_closes_its_own() {
    assert_eq!(probed("vfork"), ["1\n"]);
}
