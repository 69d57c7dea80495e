use std::collections::BTreeMap;

use crate::scenario::runs::{Request, jobs, run_all};
use crate::scenario::{Document, ScenarioError};

/// Metrics of the only run of a text.
fn metrics(text: &str) -> Result<BTreeMap<String, f64>, ScenarioError> {
    let document = Document::parse("f.toml", text)?;
    let jobs = jobs(&document, &Request::default())?;
    let mut runs = run_all(jobs, 1, &|_| {})?;
    Ok(runs.remove(0).results.metrics)
}

fn scenario(topology: &str, traffic: &str) -> String {
    format!(
        "name = 'x'\nduration = '3ms'\n[topology]\nrate = '100Gb/s'\ndelay = '2us'\n{topology}\n{traffic}\n"
    )
}

/// What the formula of the ideal says is what the simulator does.
#[test]
fn a_flow_alone_has_a_slowdown_of_one() {
    let topologies = [
        "kind = 'pair'",
        "kind = 'star'\nnodes = 2",
        "kind = 'dumbbell'\nleft = 1\nright = 1\ntrunk_rate = '25Gb/s'",
        "kind = 'parking-lot'\nswitches = 2\nnodes = 1",
        "kind = 'leaf-spine'\nleaves = 2\nspines = 1\nnodes = 1\ntrunk_delay = '7us'",
        "kind = 'fat-tree'\nk = 2",
    ];
    for topology in topologies {
        for bytes in [1u32, 4096, 100_000, 3_000_000] {
            let flow = format!("[[flow]]\nfrom = 0\nto = 1\nbytes = {bytes}");
            let all = metrics(&scenario(topology, &flow)).unwrap();
            let slowdown = all["slowdown.max"];
            assert!(
                (0.995..1.01).contains(&slowdown),
                "{topology}, {bytes}: {slowdown}"
            );
            assert_eq!(all["finished.total"], 1.0);
            assert_eq!(all["drops"], 0.0);
        }
    }
}

/// What the links hold has to fit into the buffer of a slow NIC. Others have no such buffer.
#[test]
fn a_slow_nic_whose_buffer_is_too_small_for_its_cable_is_refused() {
    let flow = "[nic.pfc]\nbuffer_bytes = '256KiB'\n[[flow]]\nfrom = 0\nto = 1\nbytes = 4096";
    let long = scenario("kind = 'star'\nnodes = 2", flow).replace("'2us'", "'50us'");
    assert_eq!(metrics(&long).unwrap()["finished.total"], 1.0);
    let slow = long.replace("[nic.pfc]", "[nic]\nreceive_rate = '5Gb/s'\n[nic.pfc]");
    let error = metrics(&slow).unwrap_err().to_string();
    assert!(
        error.contains("buffer_bytes = 262144 is too small"),
        "{error}"
    );
    let error = metrics(&slow.replace("[[flow]]", "xoff_bytes = '64KiB'\n[[flow]]"));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("lower xoff_bytes or that `delay`"),
        "{error}"
    );
    let fits = slow.replace("256KiB", "2MiB");
    assert_eq!(metrics(&fits).unwrap()["drops.nics"], 0.0);
}

#[test]
fn a_ring_takes_as_long_as_its_steps() {
    let ring = "[[traffic]]\nkind = 'ring-allreduce'\nbytes = 400000";
    let all = metrics(&scenario("kind = 'star'\nnodes = 4", ring)).unwrap();
    assert_eq!(all["finished.total"], 24.0);
    // Six steps one after the other, in each of which nobody is in another's way.
    let steps = all["done.ring-allreduce"] / all["fct.max"];
    assert!((5.9..=6.1).contains(&steps), "{steps}");
    assert!(all["slowdown.max"] < 1.01, "{all:?}");
}

#[test]
fn measuring_begins_after_the_warmup() {
    let flow = "[[flow]]\nfrom = 0\nto = 1\nstop = '1ms'";
    let text = scenario("kind = 'pair'", flow).replace("duration", "warmup = '2ms'\nduration");
    let all = metrics(&text).unwrap();
    assert_eq!(all["goodput.total"], 0.0);
    assert!(all["utilization.max"] < 0.001, "{all:?}");
}

#[test]
fn congestion_control_has_the_keys_of_a_daemon() {
    for (nic, says) in [
        ("[nic]\ncongestion = 'dcqcm'", "f.toml:8: nic.congestion"),
        (
            "[nic.dcqcn]\nrpg_ai_rate = 0",
            "f.toml:8: nic.dcqcn.rpg_ai_rate",
        ),
        ("[nic.dcqcn]\nrpg_ai_rat = 1", "did you mean `rpg_ai_rate`?"),
        (
            "[nic.dcqcn]\nrpg_min_rate = 200000",
            "rpg_min_rate = 200000 Mb/s is above",
        ),
        ("[nic.np]\ncnp_dscp = 64", "0 to 63"),
        (
            "[nic.timely]\ntimely_beta = 0",
            "f.toml:8: nic.timely.timely_beta",
        ),
        ("[nic.swift]\ndctcp_g = 1", "unknown key `dctcp_g`"),
    ] {
        let traffic = format!("{nic}\n[[flow]]\nfrom = 0\nto = 1");
        let error = metrics(&scenario("kind = 'pair'", &traffic));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// The story that the counters of congestion control tell: marks are seen, make CNPs, and these are obeyed.
#[test]
fn marks_become_cnps_and_these_lower_rates() {
    let text = scenario(
        "kind = 'star'\nnodes = 5",
        "[nic]\ncongestion = 'dcqcn'\n[nic.dcqcn]\nprofile = 'paper'\n[[flow]]\nfrom = '0..3'\nto = 4",
    );
    let with = metrics(&text).unwrap();
    assert!(
        with["marks"] > 0.0 && with["congested"] <= with["marks"],
        "{with:?}"
    );
    assert!(
        with["cnps.sent"] > 0.0 && with["cnps.sent"] <= with["congested"],
        "{with:?}"
    );
    assert!(
        with["cnps.handled"] > 0.0 && with["cnps.ignored"] == 0.0,
        "{with:?}"
    );
    let without = metrics(&text.replace("congestion = 'dcqcn'", "congestion = 'none'"));
    let without = without.unwrap();
    assert!(
        with["pauses"] < without["pauses"] / 5.0,
        "{with:?} {without:?}"
    );
}

#[test]
fn what_is_hardly_meant_is_warned_of() {
    let warnings = |more: &str| {
        let text = scenario(
            "kind = 'pair'",
            &format!("{more}[[flow]]\nfrom = 0\nto = 1"),
        );
        let document = Document::parse("f.toml", &text).unwrap();
        document.scenario(&[]).unwrap().warnings()
    };
    assert!(warnings("").is_empty());
    let late = warnings("[[flow]]\nname = 'late'\nfrom = 1\nto = 0\nstart = '3ms'\n");
    assert!(late[0].contains("`late` sends nothing"), "{late:?}");
    let dctcp = "[nic]\ncongestion = 'dctcp'\n";
    let said = warnings(dctcp);
    assert!(said[0].contains("min_time_between_cnps = 0"), "{said:?}");
    assert!(warnings(&format!("{dctcp}[nic.np]\nmin_time_between_cnps = 0\n")).is_empty());
}
