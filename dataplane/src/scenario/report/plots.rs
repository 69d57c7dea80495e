//! Curves as SVG: a file for each quantity with a panel for each run, and completion times by size. Text keeps its own
//! fonts in an SVG, so nothing of the machine goes into a file.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::palette::COLORS;
use crate::scenario::ScenarioError;
use crate::scenario::outcome::Quantity;
use crate::scenario::runs::Run;
use crate::scenario::units;

const WIDTH: u32 = 960;
/// Height of a panel, and of what is around all.
const PANEL: u32 = 300;
const HEAD: u32 = 40;
/// Runs that a file shows.
const MOST_PANELS: usize = 8;
/// Curves of a panel: those with the largest values.
const MOST_CURVES: usize = 10;

/// A curve of a panel.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A panel.
struct Panel {
    title: String,
    curves: Vec<Curve>,
}

/// What the axes of all panels of a file are.
struct Axes {
    title: String,
    x: &'static str,
    y: &'static str,
    logarithmic: bool,
}

/// Draws what the runs have into a directory; the files, by name.
pub fn write(directory: &Path, runs: &[Run]) -> Result<Vec<PathBuf>, ScenarioError> {
    fs::create_dir_all(directory).map_err(|source| ScenarioError::File {
        file: directory.display().to_string(),
        source,
    })?;
    let mut files = Vec::new();
    let Some(first) = runs.first() else {
        return Ok(files);
    };
    let name = &first.job.scenario.name;
    let title = match first.job.scenario.title.as_str() {
        "" => name,
        title => title,
    };
    let several = super::several_seeds(runs);
    let shown = &runs[..runs.len().min(MOST_PANELS)];
    for quantity in Quantity::ALL {
        let panels: Vec<Panel> = shown
            .iter()
            .map(|run| over_time(run, quantity, several))
            .collect();
        let axes = Axes {
            title: format!("{title}: {}", quantity.title()),
            x: "time (ms)",
            y: unit(quantity),
            logarithmic: false,
        };
        files.extend(draw(directory, name, quantity.name(), &axes, &panels)?);
    }
    let panels: Vec<Panel> = shown.iter().map(|run| by_size(run, several)).collect();
    let axes = Axes {
        title: format!("{title}: slowdown of flows by size"),
        x: "flow size (bytes)",
        y: "completion time / that alone",
        logarithmic: true,
    };
    files.extend(draw(directory, name, "slowdown", &axes, &panels)?);
    Ok(files)
}

fn unit(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Throughput | Quantity::Rate => "Gb/s",
        Quantity::Queue => "KB",
        Quantity::Cnps => "CNPs",
        Quantity::Pauses => "pause frames",
    }
}

fn over_time(run: &Run, quantity: Quantity, several: bool) -> Panel {
    let scale = match quantity {
        Quantity::Throughput | Quantity::Rate => 1e-9,
        Quantity::Queue => 1e-3,
        Quantity::Cnps | Quantity::Pauses => 1.0,
    };
    let own = |series: &&crate::scenario::outcome::Series| {
        series.quantity == quantity && series.values.iter().any(|&value| value > 0)
    };
    let mut series: Vec<_> = run.outcome.series.iter().filter(own).collect();
    if series.len() > MOST_CURVES {
        // A stable order: of equal ones the first.
        series.sort_by_key(|series| std::cmp::Reverse(series.values.iter().sum::<u64>()));
        series.truncate(MOST_CURVES);
    }
    let curves = series.into_iter().map(|series| {
        let times = run.outcome.times.iter().map(|time| time.0 as f64 / 1e6);
        let values = series.values.iter().map(|&value| value as f64 * scale);
        Curve {
            name: series.name.clone(),
            points: times.zip(values).collect(),
        }
    });
    Panel {
        title: run.job.label(several),
        curves: curves.collect(),
    }
}

fn by_size(run: &Run, several: bool) -> Panel {
    let bins = &run.results.sizes;
    let curves = ["p50", "p95", "p99"]
        .into_iter()
        .enumerate()
        .map(|(at, name)| Curve {
            name: name.into(),
            points: bins
                .iter()
                .map(|bin| (bin.up_to as f64, bin.percentiles[at]))
                .collect(),
        });
    Panel {
        title: run.job.label(several),
        // A single size has no curve.
        curves: if bins.len() > 1 {
            curves.collect()
        } else {
            Vec::new()
        },
    }
}

fn draw(
    directory: &Path,
    name: &str,
    what: &str,
    axes: &Axes,
    panels: &[Panel],
) -> Result<Option<PathBuf>, ScenarioError> {
    if panels.iter().all(|panel| panel.curves.is_empty()) {
        return Ok(None);
    }
    let path = directory.join(format!("{name}-{what}.svg"));
    let wrong = |problem: String| ScenarioError::File {
        file: path.display().to_string(),
        source: std::io::Error::other(problem),
    };
    let mut text = String::new();
    {
        let size = (WIDTH, HEAD + PANEL * panels.len() as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        picture(&area, axes, panels).map_err(|error| wrong(error.to_string()))?;
        area.present().map_err(|error| wrong(error.to_string()))?;
    }
    fs::write(&path, text).map_err(|source| ScenarioError::File {
        file: path.display().to_string(),
        source,
    })?;
    Ok(Some(path))
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn picture<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    axes: &Axes,
    panels: &[Panel],
) -> Drawn<B> {
    area.fill(&WHITE)?;
    let area = area.titled(&axes.title, ("sans-serif", 20))?;
    let points = || {
        panels
            .iter()
            .flat_map(|p| &p.curves)
            .flat_map(|c| &c.points)
    };
    let span = |axis: fn(&(f64, f64)) -> f64| -> Range<f64> {
        let least = points().map(axis).fold(f64::INFINITY, f64::min);
        let most = points().map(axis).fold(0.0, f64::max);
        match axes.logarithmic {
            true => (least * 0.8).max(1e-9)..(most * 1.25).max(least * 2.0),
            false => 0.0..(most * 1.08).max(1e-9),
        }
    };
    let (x, y) = (span(|point| point.0), span(|point| point.1));
    // The legend has a place of its own, right of the curves.
    let x = match axes.logarithmic {
        true => x.start..x.end * (x.end / x.start).powf(0.18),
        false => x.start..x.end * 1.18,
    };
    for (panel, area) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
        let mut chart = ChartBuilder::on(&area);
        chart
            .caption(&panel.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(38)
            .y_label_area_size(64);
        if axes.logarithmic {
            let mut chart =
                chart.build_cartesian_2d(x.clone().log_scale(), y.clone().log_scale())?;
            chart
                .configure_mesh()
                .x_desc(axes.x)
                .y_desc(axes.y)
                .x_label_formatter(&|x| label(*x))
                .y_label_formatter(&|y| label(*y))
                .label_style(("sans-serif", 13))
                .light_line_style(WHITE)
                .draw()?;
            for (curve, color) in colored(panel) {
                let line = LineSeries::new(curve.points.iter().copied(), color.stroke_width(2));
                chart
                    .draw_series(line.point_size(3))?
                    .label(&curve.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
            }
            legend(&mut chart)?;
        } else {
            let mut chart = chart.build_cartesian_2d(x.clone(), y.clone())?;
            chart
                .configure_mesh()
                .x_desc(axes.x)
                .y_desc(axes.y)
                .x_label_formatter(&|x| label(*x))
                .y_label_formatter(&|y| label(*y))
                .label_style(("sans-serif", 13))
                .light_line_style(WHITE)
                .draw()?;
            for (curve, color) in colored(panel) {
                chart
                    .draw_series(LineSeries::new(curve.points.iter().copied(), color))?
                    .label(&curve.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
            }
            legend(&mut chart)?;
        }
    }
    Ok(())
}

/// A number at an axis.
fn label(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", units::digits(value / 1e6)),
        value if value >= 1e4 => format!("{}k", units::digits(value / 1e3)),
        value => units::digits(value),
    }
}

fn colored(panel: &Panel) -> impl Iterator<Item = (&Curve, RGBColor)> {
    panel.curves.iter().enumerate().map(|(index, curve)| {
        let (r, g, b) = COLORS[index % COLORS.len()];
        // The second round is darker.
        let dim = |part: u8| if index < COLORS.len() { part } else { part / 2 };
        (curve, RGBColor(dim(r), dim(g), dim(b)))
    })
}

fn legend<'a, B, C>(chart: &mut ChartContext<'a, B, C>) -> Drawn<B>
where
    B: DrawingBackend + 'a,
    C: CoordTranslate,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 12))
        .draw()
}
