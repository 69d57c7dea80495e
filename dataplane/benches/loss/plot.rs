//! The figure, as SVG and as PNG.

use std::path::Path;

use plotters::prelude::*;
use roceline::palette::COLORS;

use super::{Curve, figure};

const SIZE: (u32, u32) = (900, 560);
/// Losses that the axis spans.
const SPAN: std::ops::Range<f64> = 1e-6..6e-2;

/// Draws the expectation as a line and each curve as points on a line of its own.
pub fn draw(path: &Path, expected: &dyn Fn(f64) -> f64, curves: &[Curve]) -> Result<(), String> {
    figure::take_font()?;
    let (svg, png) = (path.with_extension("svg"), path.with_extension("png"));
    on(
        SVGBackend::new(&svg, SIZE).into_drawing_area(),
        expected,
        curves,
    )?;
    on(
        BitMapBackend::new(&png, SIZE).into_drawing_area(),
        expected,
        curves,
    )?;
    eprintln!("drawn: {}, {}", svg.display(), png.display());
    Ok(())
}

fn on<B: DrawingBackend>(
    area: DrawingArea<B, plotters::coord::Shift>,
    expected: &dyn Fn(f64) -> f64,
    curves: &[Curve],
) -> Result<(), String> {
    chart(&area, expected, curves)
        .and_then(|()| area.present())
        .map_err(|error| format!("drawing: {error}"))
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn chart<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    expected: &dyn Fn(f64) -> f64,
    curves: &[Curve],
) -> Drawn<B> {
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption("Go-back-N: goodput against loss", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(SPAN.log_scale(), 0.0..1.05)?;
    chart
        .configure_mesh()
        .x_desc("packets lost, of those sent")
        .y_desc("goodput, of that without loss")
        .x_label_formatter(&|p| format!("{p:e}"))
        .y_label_formatter(&|part| format!("{part:.1}"))
        .label_style(("sans-serif", 14))
        .light_line_style(WHITE)
        .draw()?;
    let steps = 200;
    let (first, last) = (SPAN.start.ln(), SPAN.end.ln());
    let line = (0..=steps).map(|i| {
        let p = (first + (last - first) * f64::from(i) / f64::from(steps)).exp();
        (p, expected(p))
    });
    chart
        .draw_series(LineSeries::new(line, BLACK.stroke_width(1)))?
        .label("1 / (1 + pW + p²T/t_pkt)")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK));
    for (index, curve) in curves.iter().enumerate() {
        let (r, g, b) = COLORS[index % COLORS.len()];
        let color = RGBColor(r, g, b);
        chart
            .draw_series(LineSeries::new(
                curve.points.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        let dots = curve
            .points
            .iter()
            .map(|&at| Circle::new(at, 4, color.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()
}
