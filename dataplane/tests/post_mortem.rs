//! Why queue pairs of real programs failed: each cause that users report from the field is brought about, and the
//! daemon's sentence about it is read as a user reads it, after the program has gone.

mod support;

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use support::daemon::{Daemon, PAIR};
use support::process::Ended;
use support::{TempDir, alone};

/// A daemon and the program that fails on purpose.
struct Bench {
    daemon: Daemon,
    program: PathBuf,
}

/// How one connection failed.
struct Failure {
    /// Records of the two ends, if they have one.
    records: [Option<Value>; 2],
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Daemon::pair())
    }

    fn with(daemon: Daemon) -> Bench {
        let program = daemon.dir().join("verbs_fail");
        let source =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../verbs-shim/tests/verbs_fail.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-Wall", "-o"])
            .args([&program, &source])
            .arg("-libverbs")
            .status()
            .expect("a C compiler is installed");
        assert!(compiled.success(), "verbs_fail.c does not compile");
        Bench { daemon, program }
    }

    #[track_caller]
    fn impair(&self, rule: &[&str]) {
        let added = self
            .daemon
            .roceline("impair", &[&["impair", "add"], rule].concat());
        assert!(added.ok(), "{}", added.report());
    }

    fn start(&self, arguments: &[&str]) -> Ended {
        let all = [&["roce0", "roce1"], arguments].concat();
        let program = self
            .program
            .to_str()
            .expect("temporary directories have plain names");
        self.daemon.run_program("fail", program, &all)
    }

    /// Runs it; `status` is how its request must end (nothing: it posts none). The numbers of its queue pairs.
    #[track_caller]
    fn run(&self, arguments: &[&str], status: &str) -> Vec<u64> {
        let ended = self.start(arguments);
        assert!(
            ended.ok(),
            "{arguments:?}: {}{}",
            ended.report(),
            self.daemon.log()
        );
        let mut lines = ended.stdout.lines();
        let qpns: Vec<u64> = lines
            .next()
            .expect("two numbers")
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        assert_eq!(lines.next().unwrap_or_default(), status, "{arguments:?}");
        self.daemon.expect_empty();
        qpns
    }

    /// Runs it, and what the command line says of the end A, with single spaces.
    #[track_caller]
    fn told(&self, arguments: &[&str], status: &str) -> String {
        let qpn = self.run(arguments, status)[0].to_string();
        self.text(&["show", "qp", "--post-mortem", &qpn])
    }

    #[track_caller]
    fn text(&self, arguments: &[&str]) -> String {
        let said = self.daemon.roceline("text", arguments).expect_ok().stdout;
        said.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Runs it, takes all rules away, and looks at the records.
    #[track_caller]
    fn fail(&self, arguments: &[&str], status: &str) -> Failure {
        let qpns = self.run(arguments, status);
        let cleared = self.daemon.roceline("clear", &["impair", "clear"]);
        assert!(cleared.ok(), "{}", cleared.report());
        let all = self.daemon.json(&["show", "qp", "--post-mortem"]);
        let of = |device: &str, qpn: u64| {
            let records = all["post_mortems"].as_array().expect("a list").iter().rev();
            let mut own = records.filter(|r| r["device"] == device && r["qpn"] == qpn);
            own.next().cloned()
        };
        Failure {
            records: [of("roce0", qpns[0]), of("roce1", qpns[1])],
        }
    }
}

impl Failure {
    /// The record of one end has this cause, and its sentence these pieces in their order.
    #[track_caller]
    fn expect(&self, end: usize, name: &str, pieces: &[&str]) -> &Failure {
        let record = self.records[end].as_ref().expect("a record");
        let cause = &record["cause"];
        assert_eq!(cause["name"], name, "{record:#}");
        let sentence = cause["sentence"].as_str().expect("a text");
        let mut rest = sentence;
        for piece in pieces {
            let Some(at) = rest.find(piece) else {
                panic!("no \"{piece}\" in its place in: {sentence}");
            };
            rest = &rest[at + piece.len()..];
        }
        assert_ne!(cause["remedy"], "");
        assert_eq!(record["program"], "verbs_fail", "{record:#}");
        self
    }
}

const RETRIES: &str = "transport retry counter exceeded";
const INVALID: &str = "remote invalid request error";
const ACCESS: &str = "remote access error";

/// The packets of one or both directions do not pass, or the peer's queue pair is not there.
#[test]
fn silent_peers() {
    let _alone = alone();
    let bench = Bench::new();
    let nothing = [
        "no packet ever came back from 10.77.0.2 QP 0x",
        "(4 packets sent, 3 of them again)",
        "cannot be reached",
        "UDP port 4791 is filtered",
        "over TCP pass",
        "not yet in RTR",
    ];
    // A firewall: the set-up, which goes another way, passes, and data does not. In both directions:
    bench.impair(&["--link", "link0", "--drop"]);
    bench.fail(&[], RETRIES).expect(0, "peer-silent", &nothing);
    // Only on the way there: the peer speaks, so the port is open from there.
    bench.impair(&["--nic", "roce0", "--tx", "--drop"]);
    bench.fail(&["op=write", "answer=1"], RETRIES).expect(
        0,
        "one-way",
        &[
            "packets of 10.77.0.2 QP 0x",
            "arrive, but none",
            "UDP port 4791 is filtered",
        ],
    );
    // The peer's queue pair is not in RTR, or destroyed.
    bench
        .fail(&["init-b=1", "receive=0"], RETRIES)
        .expect(0, "peer-silent", &nothing);
    bench
        .fail(&["gone-b=1", "receive=0"], RETRIES)
        .expect(0, "peer-silent", &nothing);
    // It was there before.
    bench
        .fail(&["warm=1", "gone-b=1", "receive=0"], RETRIES)
        .expect(
            0,
            "peer-went-silent",
            &[
                "10.77.0.2 QP 0x",
                "answered until",
                "3 retries with timeout 10 = 4.19 ms",
                "its program ended or destroyed the queue pair",
            ],
        );
}

/// A neighbour is written down, and nobody is there: the other end of the port's link does not run.
#[test]
fn a_neighbour_who_is_not_there() {
    let _alone = alone();
    let dir = TempDir::new();
    let nic = |n: u32, peer: u32| {
        format!(
            "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.77.0.{own}/24\"]\nmtu = 4200\n\
             port = \"vdev:net_memif{n},role=server,id={n},socket={socket},socket-abstract=no,bsize=4352\"\n\
             [[nic.neighbor]]\nip = \"10.77.0.{peer}\"\nmac = \"02:00:00:00:00:0{peer}\"\n",
            own = n + 1,
            socket = dir.path().join(format!("memif{n}.sock")).display()
        )
    };
    let bench = Bench::with(Daemon::start(&(nic(0, 2) + &nic(1, 1))));
    bench.fail(&[], RETRIES).expect(
        0,
        "peer-silent",
        &[
            "no packet ever came back from 10.77.0.2 QP 0x",
            "cannot be reached at that address",
        ],
    );
}

/// Packets that are changed, lost or too big on the way.
#[test]
fn bad_paths() {
    let _alone = alone();
    let bench = Bench::new();
    bench.impair(&["--nic", "roce0", "--rx", "--corrupt", "byte"]);
    bench.fail(&[], RETRIES).expect(
        0,
        "icrc-changed",
        &[
            "10.77.0.2 QP 0x",
            "was not heard, this port dropped",
            "wrong ICRC",
            "something on the way changes packets",
        ],
    );
    bench.impair(&["--link", "link0", "--length", "1000..9000", "--drop"]);
    bench
        .fail(&["op=write", "warm=1", "length=9000"], RETRIES)
        .expect(
            0,
            "packet-too-big",
            &[
                "packets of up to 64 bytes passed",
                "the first WRITE with 1024 bytes in a packet",
                "a link on the way",
            ],
        );
    bench.impair(&["--nic", "roce0", "--tx", "--class", "first", "--drop"]);
    bench.fail(&["op=write", "length=3000"], RETRIES).expect(
        0,
        "loss",
        &[
            "answered meanwhile, but 3 retries in a row brought nothing through",
            "heavy loss",
        ],
    );
}

/// The two ends were told different things.
#[test]
fn ends_that_disagree() {
    let _alone = alone();
    let bench = Bench::new();
    bench
        .fail(
            &[
                "mtu-a=1024",
                "mtu-b=512",
                "op=write",
                "warm=1",
                "length=5000",
            ],
            INVALID,
        )
        .expect(
            0,
            "path-mtu-mismatch",
            &[
                "WRITE of 5000 bytes",
                "path MTU of 1024",
                "up to 64 bytes passed",
                "path MTUs of the two queue pairs differ",
            ],
        )
        .expect(
            1,
            "path-mtu-mismatch",
            &[
                "10.77.0.1 QP 0x",
                "sent RC_WRITE_FIRST with 1024 bytes",
                "path MTU of this queue pair is 512",
            ],
        );
    bench
        .fail(&["mtu-b=512", "op=read", "length=5000"], RETRIES)
        .expect(
            0,
            "path-mtu-mismatch",
            &[
                "READ responses of 10.77.0.2",
                "carry 512 bytes",
                "(1024) makes it 1024",
            ],
        );
    // Index 0 is the IPv4 address, 1 the IPv6 address: B says that it has the one, and uses the other.
    bench
        .fail(
            &["gid-b=1", "tell-b=0", "tell-a=1", "op=write", "answer=1"],
            RETRIES,
        )
        .expect(
            0,
            "wrong-gid",
            &[
                "came from fd77::2 to fd77::1",
                "told to talk from 10.77.0.1 to 10.77.0.2",
                "another GID index",
            ],
        );
    // Link-local addresses, over which the peer is not reached.
    bench.impair(&["--link", "link0", "--drop"]);
    bench.fail(&["gid-a=2", "gid-b=2"], RETRIES).expect(
        0,
        "link-local-gid",
        &[
            "no packet ever came back",
            "link-local addresses (fe80::",
            "wrong GID index",
        ],
    );
}

#[test]
fn receives_that_are_missing_or_wrong() {
    let _alone = alone();
    let bench = Bench::new();
    let rnr = "RNR retry counter exceeded";
    bench.fail(&["receive=0", "rnr=0"], rnr).expect(
        0,
        "rnr-retry-0",
        &[
            "10.77.0.2 QP 0x",
            "had no receive request posted, and rnr_retry of this queue pair is 0",
        ],
    );
    bench.fail(&["receive=0", "rnr=2"], rnr).expect(
        0,
        "rnr-exhausted",
        &["answered RNR NAK 3 times without progress, and rnr_retry allows 2 retries"],
    );
    bench
        .fail(&["receive=50", "length=100"], INVALID)
        .expect(
            0,
            "receive-too-short",
            &[
                "refused a SEND of 100 bytes as invalid",
                "receive request is shorter",
            ],
        )
        .expect(
            1,
            "receive-too-short",
            &["sent at least 100 bytes", "wr_id 0x4d holds 50"],
        );
    bench
        .fail(&["lkey-b=0x5a00"], "remote operation error")
        .expect(
            0,
            "remote-operational",
            &[
                "could not carry out the SEND of 64 bytes",
                "receive request names memory",
            ],
        )
        .expect(
            1,
            "receive-key",
            &["wr_id 0x4d names lkey", "no memory region here"],
        );
}

#[test]
fn keys_ranges_domains_and_rights() {
    let _alone = alone();
    let bench = Bench::new();
    let here = |sentence| ["a WRITE of 10.77.0.1 QP 0x", sentence];
    for (arguments, sentence) in [
        (
            &["rkey=0x5a5a00"][..],
            "is no memory region here: it is wrong, or",
        ),
        (
            &["dereg-b=1", "receive=0"],
            "or the region was deregistered",
        ),
        (
            &["shift=65500"],
            "reaches beyond its memory region: 64 bytes",
        ),
        (
            &["pd-b=1", "receive=0"],
            "belongs to another protection domain",
        ),
        (
            &["mr-b=1"],
            "needs IBV_ACCESS_REMOTE_WRITE, which its memory region does not have",
        ),
    ] {
        bench
            .fail(&[&["op=write"], arguments].concat(), ACCESS)
            .expect(
                0,
                "remote-access",
                &[
                    "10.77.0.2 QP 0x",
                    "refused rkey 0x",
                    "WRITE of 64 bytes",
                    "the key is wrong or stale",
                ],
            )
            .expect(1, "remote-key", &here(sentence));
    }
    bench
        .fail(&["op=write", "access-b=1"], INVALID)
        .expect(
            0,
            "write-not-allowed",
            &[
                "refused a WRITE of 64 bytes",
                "lack IBV_ACCESS_REMOTE_WRITE",
            ],
        )
        .expect(1, "qp-access-flags", &["asked for a WRITE", "do not allow"]);
    bench
        .fail(&["op=read", "access-b=1"], INVALID)
        .expect(
            0,
            "read-not-allowed",
            &["refused a READ of 64 bytes", "lack IBV_ACCESS_REMOTE_READ"],
        )
        .expect(1, "qp-access-flags", &["asked for a READ", "do not allow"]);
    bench
        .fail(&["lkey=0x5a00"], "local protection error")
        .expect(
            0,
            "local-protection",
            &[
                "the SEND with wr_id 0x2a names lkey",
                "no memory region here",
            ],
        );
}

/// Programs that end, and what the log and the command line make of failures.
#[test]
fn ends_of_programs_and_the_ways_to_learn_of_failures() {
    let _alone = alone();
    let bench = Bench::new();
    let daemon = &bench.daemon;
    let none = daemon.roceline("none", &["show", "qp", "--post-mortem", "last"]);
    assert!(
        none.failed() && none.stderr.contains("no queue pair has failed"),
        "{}",
        none.report()
    );
    bench.fail(&["to-err=1"], "").expect(
        0,
        "program-ended",
        &["the program itself moved the queue pair to ERR"],
    );
    bench
        .fail(&["die=1"], "")
        .expect(
            0,
            "program-gone",
            &[
                "closed its device, or died, while",
                "connected to 10.77.0.2 QP 0x",
            ],
        )
        .expect(1, "program-gone", &["connected to 10.77.0.1 QP 0x"]);
    let failure = bench.fail(
        &["receive=0", "rnr=0", "length=100"],
        "RNR retry counter exceeded",
    );
    let record = failure.records[0].as_ref().expect("a record");
    let qpn = record["qpn"].as_u64().expect("a number");

    // `last` is the failure, though the program went away later with its other queue pair.
    let last = daemon.roceline("last", &["show", "qp", "--post-mortem", "last"]);
    let text = last.expect_ok().stdout;
    for line in [
        &format!("queue pair {qpn:#08x} of roce0 went from RTS to ERR"),
        "  program    verbs_fail (pid ",
        "[rnr-retry-0]",
        "  remedy     set rnr_retry to 7",
        "  path       10.77.0.1 to 10.77.0.2 queue pair 0x",
        "  request    SEND of 100 bytes, wr_id 0x2a, IBV_WC_RNR_RETRY_EXC_ERR, PSN 100 to 100",
        "  PSNs       first unacknowledged 100, next 101, newest sent 100, expected from the peer 100",
        "  timers     ACK timeout 10 (4.19 ms), 3 of 3 retries left, 0 of 0 RNR retries left",
        "  packets    1 sent, 0 of them again; 0 requests and 1 responses received",
        "req_rnr_retries_exceeded 1",
        "RC_SEND_ONLY",
        "RNR NAK, timer 1",
    ] {
        assert!(text.contains(line), "no \"{line}\" in\n{text}");
    }
    let by_number = daemon.roceline(
        "number",
        &["show", "qp", "--post-mortem", &format!("{qpn:#x}")],
    );
    assert!(by_number.expect_ok().stdout.contains("[rnr-retry-0]"));
    let list = daemon
        .roceline("list", &["show", "qps", "--post-mortem"])
        .expect_ok()
        .stdout;
    for name in ["program-ended", "program-gone", "rnr-retry-0", "verbs_fail"] {
        assert!(list.contains(name), "{list}");
    }
    let unknown = daemon.roceline("unknown", &["show", "qp", "--post-mortem", "0xfffffe"]);
    assert!(unknown.failed() && unknown.stderr.contains("no record of queue pair 0xfffffe"));
    let odd = daemon.roceline("odd", &["show", "mrs", "--post-mortem"]);
    assert!(odd.failed() && odd.stderr.contains("show qp --post-mortem"));

    support::wait_for("the failure in the log", support::PATIENCE, || {
        let log = daemon.log();
        let line = log.lines().find(|l| l.contains("queue pair failed"));
        line.is_some_and(|l| {
            l.contains("WARN")
                && l.contains(&format!("qpn={qpn:#x}"))
                && l.contains("had no receive request posted")
                && l.contains(&format!("`roceline show qp --post-mortem {qpn:#x}`"))
        })
    });
    assert!(
        !daemon.log().contains("moved the queue pair to ERR"),
        "{}",
        daemon.log()
    );
}

#[track_caller]
fn contains(text: &str, pieces: &[&str]) {
    for piece in pieces {
        assert!(text.contains(piece), "no \"{piece}\" in {text}");
    }
}

/// What the peer's NIC drops in silence the requester cannot see. The sentence names it, and for NICs of one daemon the
/// command line says what the other one dropped, and which rules did it.
#[test]
fn what_the_peer_drops_in_silence() {
    let _alone = alone();
    let bench = Bench::new();
    bench.impair(&[
        "--link",
        "link0",
        "--corrupt",
        "payload.bit",
        "--name",
        "spoilt",
    ]);
    let spoilt = bench.told(&[], RETRIES);
    let dropped = "has dropped, since it runs, 4 packets with a wrong ICRC";
    contains(
        &spoilt,
        &[
            "[peer-silent, likely]",
            "something on the way changes packets, so that their ICRC is wrong",
            "rx_icrc_encapsulated when packets were changed on the way",
            &format!("roce1 of this daemon, which has 10.77.0.2, {dropped}"),
            "impairment rule spoilt (corrupt=payload.bit) hit 4 packets at link0 from roce0",
        ],
    );
    // The responder has no queue pair that failed; its list of failures has the note.
    let list = bench.text(&["show", "qp", "--post-mortem"]);
    contains(&list, &[&format!("note roce1 {dropped}"), "impair list"]);
    let cleared = bench.daemon.roceline("clear", &["impair", "clear"]);
    assert!(cleared.ok(), "{}", cleared.report());

    // A uses its IPv6 address, and B was told the IPv4 address of A.
    let family = bench.told(&["gid-a=1", "tell-b=1", "gid-b=0", "tell-a=0"], RETRIES);
    contains(
        &family,
        &[
            "[peer-silent, likely]",
            "fd77::1 is not the address that it was told (another GID index, IPv4 instead of IPv6)",
            "roce1 of this daemon, which has fd77::2,",
            "4 packets that did not fit a queue pair",
        ],
    );
    assert!(!family.contains("impairment rule"), "{family}");
}

/// The two ends begin with different PSNs.
#[test]
fn first_psns_that_differ() {
    let _alone = alone();
    let bench = Bench::new();
    bench.fail(&["sq-a=5000"], RETRIES).expect(
        0,
        "psn-mismatch",
        &[
            "10.77.0.2 QP 0x",
            "expects PSN 100, but this queue pair began at 5000: sq_psn here and rq_psn there differ",
        ],
    );
    bench.fail(&["rq-b=5000"], RETRIES).expect(
        0,
        "peer-silent",
        &["its rq_psn is above sq_psn here (100)"],
    );
}

/// A queue pair that could not be connected is no failed one, and the program has an errno only.
#[test]
fn queue_pairs_that_could_not_be_connected() {
    let _alone = alone();
    let bench = Bench::new();
    bench.run(&["receive=0", "rnr=0"], "RNR retry counter exceeded");
    let ended = bench.start(&["gid-a=1", "tell-b=0"]);
    assert!(ended.failed(), "{}", ended.report());
    assert!(ended.stderr.contains("to RTR"), "{}", ended.report());
    let pieces = [
        "modify_qp of queue pair 0x",
        "of roce0 to RTR was refused",
        "program verbs_fail (pid",
        "fd77::1",
        "10.77.0.2",
        "indices of one family on both sides",
        "errno Invalid argument",
    ];
    let last = bench.text(&["show", "qp", "--post-mortem", "last"]);
    contains(&last, &pieces);
    assert!(
        !last.contains("rnr-retry-0"),
        "older, so not the last: {last}"
    );
    let list = bench.text(&["show", "qp", "--post-mortem", "all"]);
    contains(&list, &pieces);
    contains(&list, &["rnr-retry-0", "could not be connected"]);
    let json = bench.daemon.json(&["show", "qp", "--post-mortem", "last"]);
    assert_eq!(json["refused"][0]["to"], "RTR", "{json:#}");
    // A failure after that is the last again.
    bench.run(&["receive=0", "rnr=0"], "RNR retry counter exceeded");
    let last = bench.text(&["show", "qp", "--post-mortem", "last"]);
    contains(&last, &["rnr-retry-0"]);
    assert!(!last.contains("was refused"), "{last}");
}

/// With adaptive retransmission retries are not what ends a queue pair, so their number is not what is shown.
#[test]
fn adaptive_retransmission_ends_by_time() {
    let _alone = alone();
    let config = PAIR.replace("[[nic]]", "[[nic]]\nretransmission = \"adaptive\"");
    let bench = Bench::with(Daemon::start(&config));
    bench.impair(&["--nic", "roce1", "--rx", "--drop", "--name", "hole"]);
    let told = bench.told(&[], RETRIES);
    contains(
        &told,
        &[
            "ACK timeout 10 (4.19 ms), given up by adaptive retransmission after 3 times that",
            "impairment rule hole (drop) hit",
            "at roce1 rx and dropped",
        ],
    );
    assert!(!told.contains("retries left"), "{told}");
}
