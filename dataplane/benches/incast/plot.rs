//! The figure, as SVG and as PNG: rates of the senders and depth of the queue over time, without and with congestion control.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use roceline::palette::COLORS;

use super::support::incast::Window;
use super::{Run, figure};

const SIZE: (u32, u32) = (1100, 760);
/// Looks that one point of a curve spans.
const SPAN: usize = 3;

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn color(index: usize) -> RGBColor {
    let (r, g, b) = COLORS[index % COLORS.len()];
    RGBColor(r, g, b)
}

/// Writes `path` with `.svg` and with `.png`.
pub fn draw(path: &Path, runs: &[Run; 2]) -> Result<(), String> {
    figure::take_font()?;
    let (svg, png) = (path.with_extension("svg"), path.with_extension("png"));
    on(SVGBackend::new(&svg, SIZE).into_drawing_area(), runs)?;
    on(BitMapBackend::new(&png, SIZE).into_drawing_area(), runs)?;
    eprintln!("drawn: {}, {}", svg.display(), png.display());
    Ok(())
}

fn on<B: DrawingBackend>(area: DrawingArea<B, Shift>, runs: &[Run; 2]) -> Result<(), String> {
    panels(&area, runs)
        .and_then(|()| area.present())
        .map_err(|error| format!("drawing: {error}"))
}

fn panels<B: DrawingBackend>(area: &DrawingArea<B, Shift>, runs: &[Run; 2]) -> Drawn<B> {
    area.fill(&WHITE)?;
    let parts = area.split_evenly((2, 2));
    // The same axes on both sides.
    let times = runs
        .iter()
        .flat_map(|run| run.looks.iter().map(|look| look.at.as_secs_f64()));
    let length = times.fold(1.0, f64::max);
    let deepest = runs.iter().flat_map(windows).map(|(_, w)| w.depth(0.99));
    let deepest = deepest.max().unwrap_or(1) as f64 / 1e3 * 1.1 + 1.0;
    for (side, run) in runs.iter().enumerate() {
        let name = if run.setup.control {
            "DCQCN"
        } else {
            "no congestion control"
        };
        rates(&parts[side], run, name, length)?;
        depths(&parts[side + 2], run, length, deepest)?;
    }
    Ok(())
}

/// What happened around each look.
fn windows(run: &Run) -> Vec<(f64, Window)> {
    let pairs = run.looks.iter().zip(run.looks.iter().skip(SPAN));
    let at = |a: f64, b: f64| (a + b) / 2.0;
    pairs
        .map(|(a, b)| {
            (
                at(a.at.as_secs_f64(), b.at.as_secs_f64()),
                Window::between(a, b),
            )
        })
        .collect()
}

fn rates<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    run: &Run,
    name: &str,
    length: f64,
) -> Drawn<B> {
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..length, 0.0..run.setup.rate as f64 / 1e6)?;
    chart
        .configure_mesh()
        .y_desc("Mb/s of each sender")
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .draw()?;
    for sender in 0..run.setup.senders {
        let color = color(sender);
        let points = windows(run).into_iter();
        let points = points.map(|(at, w)| (at, w.rates[sender] / 1e6));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(format!("roce{}", sender + 1))
            .legend(move |at| sample(at, color.stroke_width(2)));
    }
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn depths<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    run: &Run,
    length: f64,
    deepest: f64,
) -> Drawn<B> {
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..length, 0.0..deepest)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("queue to the receiver, kB")
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .draw()?;
    for (share, color, label) in [
        (0.99, color(0), "99th percentile"),
        (0.5, color(1), "median"),
    ] {
        let points = windows(run).into_iter();
        let points = points.map(|(at, w)| (at, w.depth(share) as f64 / 1e3));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(label)
            .legend(move |at| sample(at, color.stroke_width(2)));
    }
    for (mark, label) in [(run.setup.marks.0, "Kmin"), (run.setup.marks.1, "Kmax")] {
        let kb = f64::from(mark) * 1.024;
        let line = [(0.0, kb), (length, kb)];
        chart
            .draw_series(LineSeries::new(line, BLACK.mix(0.5)))?
            .label(format!("{label} {kb:.0} kB"))
            .legend(|at| sample(at, BLACK.mix(0.5).stroke_width(1)));
    }
    // Where neither queue is: without congestion control it is at the top, with it below Kmax.
    legend(&mut chart, SeriesLabelPosition::MiddleRight)
}

fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

/// A piece of a line for the legend.
fn sample((x, y): (i32, i32), style: ShapeStyle) -> PathElement<(i32, i32)> {
    PathElement::new([(x, y), (x + 20, y)], style)
}

fn legend<'a, B: DrawingBackend + 'a>(
    chart: &mut ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    position: SeriesLabelPosition,
) -> Drawn<B> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 12))
        .draw()
}
