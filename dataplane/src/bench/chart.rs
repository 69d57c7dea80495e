//! Figures of results as SVG. Text keeps its own fonts in an SVG, so nothing of the machine goes into a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

use super::goals::Results;
use crate::palette::COLORS;

const SIZE: (u32, u32) = (900, 480);

/// Points of one kind.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A figure with logarithmic axes, as sizes and counts span decades.
struct Figure {
    name: &'static str,
    title: String,
    x: &'static str,
    y: &'static str,
    curves: Vec<Curve>,
}

/// Draws what the results have into a directory; the files.
///
/// # Errors
/// When a file cannot be written.
pub fn draw(results: &Results, directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)?;
    let figures = [
        by_size(results),
        by_port(results),
        by_count(results),
        tails(results),
    ];
    let mut files = Vec::new();
    for figure in figures {
        if figure.curves.iter().all(|curve| curve.points.is_empty()) {
            continue;
        }
        let path = directory.join(format!("{}.svg", figure.name));
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            picture(&area, &figure)
                .and_then(|()| area.present())
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        }
        fs::write(&path, text)?;
        files.push(path);
    }
    Ok(files)
}

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

fn by_size(results: &Results) -> Figure {
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

fn by_port(results: &Results) -> Figure {
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

fn by_count(results: &Results) -> Figure {
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
fn tails(results: &Results) -> Figure {
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

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn picture<B: DrawingBackend>(area: &DrawingArea<B, Shift>, figure: &Figure) -> Drawn<B> {
    area.fill(&WHITE)?;
    let all = || figure.curves.iter().flat_map(|curve| &curve.points);
    let span = |of: fn(&(f64, f64)) -> f64| {
        let (low, high) = all()
            .map(of)
            .fold((f64::INFINITY, 0.0), |(low, high), value| {
                (f64::min(low, value), f64::max(high, value))
            });
        // Whatever is on the edge is seen.
        (low / 1.3)..(high * 1.3)
    };
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(span(|p| p.0).log_scale(), span(|p| p.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(figure.x)
        .y_desc(figure.y)
        .light_line_style(WHITE)
        .draw()?;
    let drawn = figure
        .curves
        .iter()
        .filter(|curve| !curve.points.is_empty());
    for (index, curve) in drawn.enumerate() {
        let (r, g, b) = COLORS[index % COLORS.len()];
        let color = RGBColor(r, g, b);
        let line = LineSeries::new(curve.points.iter().copied(), color.stroke_width(2));
        chart
            .draw_series(line)?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        let dots = curve.points.iter();
        chart.draw_series(dots.map(|&at| Circle::new(at, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .draw()
}
