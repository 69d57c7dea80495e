//! A test for each rule: figures that it is for, and what it says of them.

use super::*;
use crate::cli::top::figures::{Both, BothMeasured};

/// A device that sends and receives full packets, on one polling thread that has time.
fn flowing() -> Figures {
    let device = Device {
        name: "roce0".into(),
        lcores: vec![0],
        gbps: Both {
            received: 10.0,
            sent: 22.8,
        },
        messages_per_s: Both {
            received: 1e3,
            sent: 1e3,
        },
        packets_per_s: Both {
            received: 300e3,
            sent: 700e3,
        },
        cycles_per_packet: BothMeasured::default(),
        ..Device::default()
    };
    let lcore = Lcore {
        busy: 0.2,
        polling: 0.8,
        cpu: Some(1),
        cycles_per_packet: [("receive", 300.0), ("transmit", 700.0)]
            .map(|(stage, cycles)| (stage.to_string(), cycles))
            .into(),
        devices: vec!["roce0".into()],
        ..Lcore::default()
    };
    Figures {
        seconds: 1.0,
        lcores: vec![lcore],
        devices: vec![device],
    }
}

/// The words for the rules that applied, and the first sentence.
fn said(figures: &Figures) -> (Vec<&'static str>, String) {
    let all = findings(figures);
    let first = all.first().map(|found| found.text.clone());
    (
        all.iter().map(|found| found.what).collect(),
        first.unwrap_or_default(),
    )
}

/// Queue pairs of the device wait for `what` in such a share of the looks.
fn waiting(what: &str, share: f64) -> Figures {
    let mut figures = flowing();
    figures.devices[0].waiting.insert(what.into(), share);
    figures
}

#[track_caller]
fn says(figures: &Figures, rule: &str, parts: &[&str]) {
    let (rules, first) = said(figures);
    assert_eq!(rules, [rule], "{first}");
    for part in parts {
        assert!(first.contains(part), "{part}: {first}");
    }
}

#[test]
fn without_a_cause_nothing_is_said() {
    assert_eq!(said(&flowing()).0, [""; 0]);
    assert_eq!(nothing(&flowing()), "nothing stands out");
    assert_eq!(nothing(&Figures::default()), "no traffic");
}

#[test]
fn a_busy_thread_is_named_with_its_main_stage_and_a_remedy() {
    let mut figures = flowing();
    figures.lcores[0].busy = 0.97;
    let parts = [
        "lcore 0 is 97 % busy, most in transmit (70 % of its cycles: copying payload and its checksum): ",
        "a second lcore for the NIC",
    ];
    says(&figures, "lcore-busy", &parts);
    let (_, text) = said(&figures);
    assert!(
        !text.contains("MTU"),
        "packets and ACKs together do not tell: {text}"
    );

    figures.lcores[0].devices.push("roce1".into());
    figures.devices[0].gbps.sent = 2.0;
    says(&figures, "lcore-busy", &["each NIC has its own"]);

    figures.devices[0].gbps = Both {
        received: 0.2,
        sent: 0.4,
    };
    says(
        &figures,
        "lcore-busy",
        &["building packets", "larger messages"],
    );
}

#[test]
fn what_a_thread_is_busy_with_decides_what_helps() {
    for (stage, helps) in [
        ("memory", "roceline doctor"),
        ("fabric", "`[fabric] lcore`"),
        ("messages", "made and destroyed"),
        ("receive", "checking payload"),
        ("doorbells", "reading requests"),
        ("timers", "timeouts"),
    ] {
        let mut figures = flowing();
        figures.lcores[0].busy = 0.91;
        figures.lcores[0]
            .cycles_per_packet
            .insert(stage.into(), 9e3);
        says(&figures, "lcore-busy", &[stage, helps]);
    }
}

#[test]
fn two_threads_on_one_cpu_are_named() {
    let mut figures = waiting("receiver", 1.0);
    figures.lcores[0].lost = 0.4;
    let mut other = figures.lcores[0].clone();
    (other.lcore, other.lost) = (7, 0.0);
    figures.lcores.push(other);
    let (rules, first) = said(&figures);
    assert_eq!(rules[0], "lcore-lost");
    assert!(
        first.contains("40 %") && first.contains("lcore 7 polls on the same CPU 1"),
        "{first}"
    );
    // Of those that run anywhere nobody knows.
    for lcore in &mut figures.lcores {
        lcore.cpu = None;
    }
    assert!(said(&figures).1.contains("by other threads"));
}

#[test]
fn a_thread_without_its_cpu_is_told_before_all_else() {
    let mut figures = waiting("receiver", 1.0);
    // All of the time that it had.
    (figures.lcores[0].busy, figures.lcores[0].lost) = (0.38, 0.6);
    let (rules, first) = said(&figures);
    assert_eq!(rules, ["lcore-lost", "lcore-busy", "receiver-not-ready"]);
    assert!(first.contains("60 %") && first.contains("CPU 1"), "{first}");
    let second = &findings(&figures)[1].text;
    assert!(
        second.contains("busy 95 % of the time that it gets"),
        "{second}"
    );
}

#[test]
fn receivers_that_are_not_ready_are_told_at_both_ends() {
    let parts = ["waits for receivers", "30 % of the looks"];
    says(&waiting("receiver", 0.3), "receiver-not-ready", &parts);
    let mut figures = flowing();
    figures.devices[0].rnr_naks_per_s = 40.0;
    says(&figures, "receiver-not-ready", &["40 RNR NAKs a second"]);
    let mut figures = flowing();
    figures.devices[0].no_receive_per_s = 70.0;
    says(
        &figures,
        "no-receive",
        &["70 packets", "post more receives"],
    );
}

#[test]
fn a_rate_is_told_with_the_algorithm_and_the_marks() {
    let mut figures = waiting("rate", 0.9);
    says(&figures, "rate", &["congestion control holds roce0's"]);
    figures.devices[0].held = Some(Held {
        algorithm: "dcqcn".into(),
        queue_pairs: 8,
        rates: (3_100_000_000, 3_100_000_000),
    });
    figures.devices[0].cnps_per_s = 900.0;
    let parts = ["DCQCN holds 8 queue pairs of roce0 at 3.1", "900 CNPs"];
    says(&figures, "rate", &parts);
    figures.devices[0].held = Some(Held {
        algorithm: "fixed-rate".into(),
        queue_pairs: 1,
        rates: (1_000_000_000, 2_000_000_000),
    });
    let parts = ["control (fixed-rate) holds a queue pair of roce0", " to 2"];
    says(&figures, "rate", &parts);
}

#[test]
fn pauses_memory_and_ports_are_told() {
    let mut figures = flowing();
    figures.devices[0].paused = 0.4;
    says(&figures, "paused", &["roce0 is paused 40 % of the time"]);
    says(&waiting("pause", 0.5), "paused", &["50 %"]);

    let mut figures = flowing();
    figures.lcores[0].memory_waits = 0.7;
    says(
        &figures,
        "memory",
        &["70 % of the looks", "show mrs", "doctor"],
    );
    says(&waiting("memory", 0.5), "memory", &["50 %"]);
    // Another NIC of the thread, without traffic, waits for nothing.
    figures.devices[0].packets_per_s = Both::default();
    assert_eq!(said(&figures).0, [""; 0]);

    let mut figures = flowing();
    figures.devices[0].port_waits = 0.8;
    says(&figures, "port", &["wait for its port", "80 %"]);
}

#[test]
fn what_is_lost_and_sent_again_is_told_by_counter() {
    let mut figures = flowing();
    figures.devices[0].retries_per_s = 12.0;
    says(&figures, "retries", &["sends again 12 times a second"]);
    let mut figures = flowing();
    figures.devices[0].drops_per_s = [("rx_missed", 5.0), ("rx_malformed", 0.1)]
        .map(|(name, n)| (name.into(), n))
        .into();
    says(&figures, "drops", &["rx_missed 5 ("]);
}

#[test]
fn who_waits_for_answers_or_for_its_program_says_so_only_when_nobody_is_in_the_way() {
    let parts = ["60 % of the looks", "more queue pairs"];
    says(&waiting("peer", 0.6), "peer", &parts);
    let parts = ["its lcore is idle 80 %", "posts too slowly"];
    says(&waiting("program", 0.6), "program", &parts);
    let mut figures = waiting("peer", 0.9);
    figures.lcores[0].busy = 0.95;
    assert_eq!(said(&figures).0, ["lcore-busy"]);
    // Who only answers has no program that posts.
    let mut figures = waiting("program", 1.0);
    figures.devices[0].messages_per_s.sent = 0.0;
    assert_eq!(said(&figures).0, [""; 0]);
}
