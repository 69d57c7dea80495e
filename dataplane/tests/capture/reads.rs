//! What a queue pair's `max_rd_atomic` means on the wire.

use roceline_engine::wire::{Operation, Position, Psn, parse};

use super::support::capture::Capture;
use super::support::daemon::Daemon;
use super::support::pair::{End, Pair};
use super::support::{PATIENCE, alone};
use super::{path, start};

/// The most READs of one packet that roce1 had out at once, by what went through its port. Sent again they are the same READs
/// (a longer one would go on in its middle), and an answer answers for all before it.
fn most_outstanding(capture: &Capture) -> usize {
    let mut out: Vec<Psn> = Vec::new();
    let mut most = 0;
    for packet in capture.packets.iter().filter(|p| p.nic == "roce1") {
        let parsed = parse(&packet.data).expect("only RoCE is on this wire");
        let (opcode, psn) = (parsed.packet.opcode.info(), parsed.packet.psn);
        match (packet.outbound, opcode.operation) {
            (true, Operation::ReadRequest) => {
                if !out.contains(&psn) {
                    out.push(psn);
                }
                most = most.max(out.len());
            }
            (false, Operation::ReadResponse) => {
                assert_eq!(opcode.position, Position::Only);
                out.retain(|request| psn.before(*request));
            }
            _ => {}
        }
    }
    assert!(out.is_empty(), "never answered: {out:?}");
    most
}

/// IBTA 9.7.7.1. perftest's `-o` becomes `max_rd_atomic`, its `-t` keeps more posted than that; with the long way between
/// the NICs, a requester that may have more out has.
#[test]
fn as_many_reads_are_out_as_the_program_asked_for() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let rule = ["impair", "add", "--link", "link0", "--delay", "3ms"];
    daemon.roceline("rule", &rule).expect_ok();
    let end = |device| End {
        daemon: &daemon,
        device,
    };
    for allowed in ["1", "3", "16"] {
        let file = path(&daemon, &format!("reads-{allowed}.pcapng"));
        let capture = start(&daemon, "reads", &["-w", &file]);
        let options = [
            "-F", "-o", allowed, "-s", "4096", "-m", "4096", "-n", "100", "-t", "64",
        ];
        let run = Pair::run(end("roce0"), end("roce1"), "ib_read_bw", &options, PATIENCE);
        assert!(run.ok(), "{}{}", run.report(), daemon.log());
        capture.signal(libc::SIGINT);
        capture.finish(PATIENCE).expect_ok();
        let most = most_outstanding(&Capture::open(file.as_ref()));
        assert_eq!(most.to_string(), allowed);
    }
}
