//! Figures of results as SVG. Text keeps its own fonts in an SVG, so nothing of the machine goes into a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::results::Results;
use super::stats::Spread;
use crate::palette::COLORS;
use plotters::coord::Shift;
use plotters::prelude::*;

mod figures;

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

/// A quantity with what its rounds spread.
struct Bar {
    what: String,
    spread: Spread,
}

/// A figure of bars from nothing, one below the other.
struct Bars {
    name: &'static str,
    title: String,
    x: &'static str,
    bars: Vec<Bar>,
}

/// Draws what the results have into a directory; the files.
///
/// # Errors
/// When a file cannot be written.
pub fn draw(results: &Results, directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)?;
    let figures = [
        figures::icrc(results),
        figures::by_size(results),
        figures::by_port(results),
        figures::by_count(results),
        figures::tails(results),
        figures::of_an_object(results),
    ];
    let mut files = Vec::new();
    let mut write = |name: &str, draw: &dyn for<'a> Fn(&Area<'a>) -> Drawn<SVGBackend<'a>>| {
        let path = directory.join(format!("{name}.svg"));
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            draw(&area)
                .and_then(|()| area.present())
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        }
        fs::write(&path, text)?;
        files.push(path);
        io::Result::Ok(())
    };
    for figure in figures {
        if figure.curves.iter().any(|curve| !curve.points.is_empty()) {
            write(figure.name, &|area| picture(area, &figure))?;
        }
    }
    let bars = figures::beside_tcp(results);
    if !bars.bars.is_empty() {
        write(bars.name, &|area| picture_of_bars(area, &bars))?;
    }
    Ok(files)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
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
    // Room for the names above the curves.
    let mut y = span(|p| p.1);
    y.end *= 1.0 + figure.curves.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(span(|p| p.0).log_scale(), y.log_scale())?;
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

fn picture_of_bars<B: DrawingBackend>(area: &DrawingArea<B, Shift>, figure: &Bars) -> Drawn<B> {
    area.fill(&WHITE)?;
    let most = figure.bars.iter().map(|bar| bar.spread.max);
    let most = most.fold(1.0, f64::max) * 1.1;
    let rows = figure.bars.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(42)
        .build_cartesian_2d(0.0..most, 0.0..rows)?;
    chart
        .configure_mesh()
        .x_desc(figure.x)
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(WHITE)
        .draw()?;
    for (row, bar) in figure.bars.iter().enumerate() {
        // The first on top.
        let y = rows - row as f64;
        let (r, g, b) = COLORS[row % COLORS.len()];
        let color = RGBColor(r, g, b);
        let Spread {
            median, min, max, ..
        } = bar.spread;
        let body = Rectangle::new(
            [(0.0, y - 0.85), (median, y - 0.45)],
            color.mix(0.6).filled(),
        );
        let reach = PathElement::new([(min, y - 0.65), (max, y - 0.65)], BLACK.stroke_width(2));
        let says = format!("{}: {median:.2}", bar.what);
        let says = Text::new(says, (most * 0.005, y - 0.08), ("sans-serif", 15));
        chart.draw_series([body])?;
        chart.draw_series([reach])?;
        chart.draw_series([says])?;
    }
    Ok(())
}
