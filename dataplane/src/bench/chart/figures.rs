//! What each figure shows of the results.

use serde_json::Value;

use super::super::results::Results;
use super::{Bar, Bars, Curve, Figure};

/// Points of the cases of a result that `pick` has.
fn points(
    results: &Results,
    name: &str,
    pick: impl Fn(&Value) -> Option<(f64, f64)>,
) -> Vec<(f64, f64)> {
    let cases = results.get(name).and_then(|file| file["cases"].as_array());
    let mut points: Vec<(f64, f64)> = cases.into_iter().flatten().filter_map(pick).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.retain(|point| point.0 > 0.0 && point.1 > 0.0);
    points
}

fn gbps(case: &Value, op: &str, pointer: &str) -> Option<(f64, f64)> {
    let is = case["op"] == op && case["qps"].as_u64().unwrap_or(1) == 1;
    is.then_some(())?;
    Some((case["bytes"].as_f64()?, case.pointer(pointer)?.as_f64()?))
}

pub(super) fn by_size(results: &Results) -> Figure {
    let mut curves = Vec::new();
    for op in ["write", "send", "read"] {
        for (side, does) in [("requester", "requester"), ("responder", "responder")] {
            let pointer = format!("/{side}/gbps/median");
            curves.push(Curve {
                name: format!("{}, {does}", op.to_uppercase()),
                points: points(results, "datapath", |case| gbps(case, op, &pointer)),
            });
        }
    }
    Figure {
        name: "datapath",
        title: "Payload that one core moves, fabric link".into(),
        x: "bytes of a message",
        y: "Gb/s",
        curves,
    }
}

pub(super) fn by_port(results: &Results) -> Figure {
    let ports = [
        ("datapath-2-cores", "fabric link"),
        ("datapath-vhost", "virtio-user to vhost"),
        ("datapath-memif", "memif"),
    ];
    let curves = ports.map(|(file, name)| Curve {
        name: format!("WRITE over {name}"),
        points: points(results, file, |case| gbps(case, "write", "/gbps/median")),
    });
    Figure {
        name: "ports",
        title: "Payload from one core to another".into(),
        x: "bytes of a message",
        y: "Gb/s",
        curves: curves.into(),
    }
}

pub(super) fn by_count(results: &Results) -> Figure {
    let of = |list: &str, count: &str, value: &str| {
        let cases = results.get("scale").and_then(|file| file[list].as_array());
        let point = |case: &Value| Some((case[count].as_f64()?, case.pointer(value)?.as_f64()?));
        cases.into_iter().flatten().filter_map(point).collect()
    };
    let curve = |name: &str, points| Curve {
        name: name.into(),
        points,
    };
    Figure {
        name: "scale",
        title: "WRITE 64 B: cycles of a message by what there is".into(),
        x: "QPs that take turns, or regions of which one is named at random",
        y: "TSC cycles",
        curves: vec![
            curve("sender, QPs", of("qps", "qps", "/requester_cycles/median")),
            curve(
                "receiver, QPs",
                of("qps", "qps", "/responder_cycles/median"),
            ),
            curve(
                "receiver, regions",
                of("mrs", "mrs", "/responder_cycles/median"),
            ),
        ],
    }
}

/// Half round trips by how rare they are.
pub(super) fn tails(results: &Results) -> Figure {
    const RARE: [(&str, f64); 5] = [
        ("p50", 2.0),
        ("p90", 10.0),
        ("p99", 100.0),
        ("p999", 1000.0),
        ("p9999", 10_000.0),
    ];
    let cases = results
        .get("latency")
        .and_then(|file| file["cases"].as_array());
    let curves = cases.into_iter().flatten().map(|case| Curve {
        name: format!("WRITE {} B", case["bytes"]),
        points: RARE
            .iter()
            .filter_map(|(name, of)| Some((*of, case["nanoseconds"][name].as_f64()? / 1e3)))
            .collect(),
    });
    Figure {
        name: "latency",
        title: "Half round trips, two cores".into(),
        x: "one in so many takes longer",
        y: "us",
        curves: curves.collect(),
    }
}

/// What the daemon has resident for each object of a program, by how many there are.
pub(super) fn of_an_object(results: &Results) -> Figure {
    let names = results.sample_names("memory");
    // `qp-1000-own`: kind, count, whose.
    let point = |name: &str, kind: &str, whose: &str| {
        let mut words = name.split('-');
        let (of, count, is) = (words.next()?, words.next()?, words.next()?);
        let bytes = results.samples("memory", name)?;
        let count: f64 = count.parse().ok()?;
        (of == kind && is == whose && bytes > 0.0).then_some((count, bytes))
    };
    let curve = |kind, what, whose, kept| {
        let points = names.iter().filter_map(|name| point(name, kind, whose));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve {
            name: format!("{what}, {kept}"),
            points,
        }
    };
    let kinds = [
        ("qp", "queue pair"),
        ("mr", "region"),
        ("cq", "completion queue"),
    ];
    let curves = kinds.into_iter().flat_map(|(kind, what)| {
        [
            curve(kind, what, "own", "the daemon's own"),
            curve(kind, what, "shared", "shared with the program"),
        ]
    });
    Figure {
        name: "memory",
        title: "Resident memory of the daemon for each object".into(),
        x: "objects",
        y: "bytes of each",
        curves: curves.collect(),
    }
}

/// Copying and summing by size, with each kernel.
pub(super) fn icrc(results: &Results) -> Figure {
    let sizes = results
        .get("icrc")
        .and_then(|file| file["copy_and_crc"].as_array());
    let mut curves: Vec<Curve> = Vec::new();
    for size in sizes.into_iter().flatten() {
        for way in size["ways"].as_array().into_iter().flatten() {
            let point = (size["bytes"].as_f64(), way["median"].as_f64());
            let ((Some(bytes), Some(cycles)), Some(name)) = (point, way["name"].as_str()) else {
                continue;
            };
            // One by one is another question.
            if name.ends_with("one by one") {
                continue;
            }
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push((bytes, cycles)),
                None => curves.push(Curve {
                    name: name.to_owned(),
                    points: vec![(bytes, cycles)],
                }),
            }
        }
    }
    Figure {
        name: "icrc",
        title: "Copying and summing a payload".into(),
        x: "bytes",
        y: "TSC cycles",
        curves,
    }
}

/// Whole programs beside the kernel's TCP: how many times as fast, of each round.
pub(super) fn beside_tcp(results: &Results) -> Bars {
    let best = ["tcp_1_core_veth", "tcp_1_core_lo"];
    let rows: [(&str, &[&str], &[&str]); 6] = [
        (
            "ib_write_bw 64 KiB by TCP, a core each",
            &["write_bw_64k"],
            &["tcp_2_cores"],
        ),
        (
            "ib_write_bw 64 KiB by TCP's best on one core",
            &["write_bw_64k"],
            &best,
        ),
        (
            "UCX tag_bw 64 KiB by UCX over TCP",
            &["ucx_bw_64k"],
            &["ucx_tcp_bw_64k"],
        ),
        (
            "TCP's 64 B half round trip by ib_write_lat's",
            &["tcp_lat_1_core"],
            &["write_lat"],
        ),
        (
            "TCP's 64 B half round trip by ib_send_lat's",
            &["tcp_lat_1_core"],
            &["send_lat"],
        ),
        (
            "UCX tag_lat 64 B over TCP by rc_verbs",
            &["ucx_tcp_lat"],
            &["ucx_lat"],
        ),
    ];
    let bar = |(what, over, under): (&str, &[&str], &[&str])| {
        let spread = results.ratio_of_samples("apps", over, under)?;
        Some(Bar {
            what: what.into(),
            spread,
        })
    };
    Bars {
        name: "apps",
        title: "Unmodified programs, and TCP in the same round: times as fast".into(),
        x: "times as fast: median, least and most",
        bars: rows.into_iter().filter_map(bar).collect(),
    }
}
