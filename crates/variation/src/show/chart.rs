//! A chart as SVG or PNG: the same drawing for both. Lines differ by dashes and width as well as by colour, so that
//! they are distinct in black and white; the legend is above the plot, where no line runs.

use crate::error::{Error, Kind, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::sync::OnceLock;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 500;
/// Scale of a PNG's pixels, for paper and dense screens.
const PNG_SCALE: u32 = 2;
const FONT: &str = "sans-serif";
const LEGEND_ROW: u32 = 22;
const LEGEND_LEFT: i32 = 104;
/// Approximate width of a letter over its height.
const LETTER: f64 = 0.6;
const LABEL_LETTERS_MAX: usize = 40;

/// Blue, vermilion, green, purple, orange, black (Okabe and Ito, Color Universal Design, 2008): distinct for
/// colour-blind people as well, and of different lightness.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 90, 160),
    RGBColor(213, 94, 0),
    RGBColor(0, 120, 90),
    RGBColor(170, 70, 130),
    RGBColor(180, 120, 0),
    RGBColor(0, 0, 0),
];
/// Dash and gap in pixels; no gap: a solid line.
const DASHES: [(i32, i32); 5] = [(1, 0), (10, 5), (2, 4), (18, 5), (6, 3)];
const STROKES: [u32; 2] = [2, 3];

/// One axis with its title, unit included.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    pub label: String,
    pub from: f64,
    pub to: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

type Drawn = std::result::Result<(), String>;
/// In pixels.
type Point = (i32, i32);

/// A document of its own, which can be embedded in a page as well.
///
/// # Errors
///
/// The chart cannot be drawn.
pub fn svg(chart: &Chart) -> Result<String> {
    has_font()?;
    let mut text = String::new();
    draw(&SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area(), chart, 1).map_err(failed)?;
    Ok(text)
}

/// A bitmap.
///
/// # Errors
///
/// The chart cannot be drawn or encoded.
pub fn png(chart: &Chart) -> Result<Vec<u8>> {
    has_font()?;
    let (width, height) = (WIDTH * PNG_SCALE, HEIGHT * PNG_SCALE);
    let mut pixels = vec![0; (width * height * 3) as usize];
    draw(&BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area(), chart, PNG_SCALE)
        .map_err(failed)?;
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    written.map_err(|error| failed(error.to_string()))?;
    Ok(bytes)
}

fn failed(why: String) -> Error {
    Error::new(Kind::Ours, format!("cannot draw: {why}"))
}

/// The font is part of the program: a server has no fonts.
fn has_font() -> Result<()> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let bytes = include_bytes!("../../fonts/plot.ttf");
    let found = FOUND.get_or_init(|| plotters::style::register_font(FONT, FontStyle::Normal, bytes).is_ok());
    found.then_some(()).ok_or_else(|| failed("the letters do not load".into()))
}

/// The style of line number `index`.
fn style(index: usize, scale: u32) -> (ShapeStyle, (i32, i32)) {
    let width = STROKES[usize::from(index >= DASHES.len())] * scale;
    let (dash, gap) = DASHES[index % DASHES.len()];
    (COLOURS[index % COLOURS.len()].stroke_width(width), (dash * scale as i32, gap * scale as i32))
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, chart: &Chart, scale: u32) -> Drawn {
    let text = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
    area.fill(&WHITE).map_err(text)?;
    let places = legend_places(chart, scale);
    let rows = places.iter().map(|(_, row)| row + 1).max().unwrap_or(0) as u32;
    let (head, body) = area.split_vertically((34 + rows * LEGEND_ROW) * scale);
    let title = (FONT, 19 * scale).into_text_style(&head);
    head.draw_text(&chart.title, &title, (LEGEND_LEFT * scale as i32, 8 * scale as i32)).map_err(text)?;
    for (index, (line, place)) in chart.lines.iter().zip(&places).enumerate() {
        legend(&head, line, index, *place, scale)?;
    }
    let (x, y) = (&chart.x, &chart.y);
    let mut context = ChartBuilder::on(&body)
        .margin(8 * scale)
        .margin_right(28 * scale)
        .x_label_area_size(50 * scale)
        .y_label_area_size(96 * scale)
        .build_cartesian_2d(x.from..x.to, y.from..y.to)
        .map_err(text)?;
    context
        .configure_mesh()
        .x_desc(&x.label)
        .y_desc(&y.label)
        .x_labels(11)
        .y_labels(9)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(215, 215, 215).stroke_width(scale))
        .axis_style(BLACK.stroke_width(scale))
        .set_all_tick_mark_size(4 * scale)
        .label_style((FONT, 15 * scale))
        .axis_desc_style((FONT, 16 * scale))
        .draw()
        .map_err(text)?;
    for (index, line) in chart.lines.iter().enumerate() {
        let (style, (dash, gap)) = style(index, scale);
        let places: Vec<Point> =
            line.points.iter().map(|point| context.plotting_area().map_coordinate(point)).collect();
        for stroke in strokes(&places, dash, gap) {
            area.draw(&PathElement::new(stroke.to_vec(), style)).map_err(text)?;
        }
    }
    area.present().map_err(text)
}

/// Straight pieces of a line, each to be drawn separately: the corners that plotters makes of a thick line in a bitmap
/// reach far beyond a sharp angle, to rates that were never measured.
fn strokes(places: &[Point], dash: i32, gap: i32) -> Vec<[Point; 2]> {
    let (mut found, mut is_ink, mut left) = (Vec::new(), true, f64::from(dash));
    let whole = |(x, y): (f64, f64)| (x.round() as i32, y.round() as i32);
    for pair in places.windows(2) {
        let [from, to] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let at = |way: f64| (from.0 + (to.0 - from.0) * way / length, from.1 + (to.1 - from.1) * way / length);
        let mut way = 0.0;
        while way < length {
            let end = if gap == 0 { length } else { (way + left).min(length) };
            let stroke = [whole(at(way)), whole(at(end))];
            if is_ink && stroke[0] != stroke[1] {
                found.push(stroke);
            }
            left -= end - way;
            way = end;
            if gap > 0 && left <= 1e-6 {
                is_ink = !is_ink;
                left = f64::from(if is_ink { dash } else { gap });
            }
        }
    }
    found
}

/// Column in pixels and row of each entry of the legend.
fn legend_places(chart: &Chart, scale: u32) -> Vec<(i32, i32)> {
    let (mut places, mut column, mut row) = (Vec::new(), LEGEND_LEFT, 0);
    for line in &chart.lines {
        let width = 60 + (shown(&line.label).chars().count() as f64 * 15.0 * LETTER) as i32 + 16;
        if column + width > WIDTH as i32 && column > LEGEND_LEFT {
            (column, row) = (LEGEND_LEFT, row + 1);
        }
        places.push((column * scale as i32, row));
        column += width;
    }
    places
}

fn legend<B: DrawingBackend>(
    head: &DrawingArea<B, Shift>,
    line: &Line,
    index: usize,
    (left, row): (i32, i32),
    scale: u32,
) -> Drawn {
    let scaled = scale as i32;
    let middle = (34 + row * LEGEND_ROW as i32 + 11) * scaled;
    let (style, (dash, gap)) = style(index, scale);
    let end = left + 50 * scaled;
    let mut from = left;
    while from < end {
        let to = if gap == 0 { end } else { (from + dash).min(end) };
        let stroke = PathElement::new(vec![(from, middle), (to, middle)], style);
        head.draw(&stroke).map_err(|error| error.to_string())?;
        from = to + gap.max(1);
    }
    let label = (FONT, 15 * scale).into_text_style(head);
    head.draw_text(&shown(&line.label), &label, (left + 58 * scaled, middle - 7 * scaled))
        .map_err(|error| error.to_string())
}

/// A label, shortened so that there is room for others.
fn shown(label: &str) -> String {
    match label.chars().count() > LABEL_LETTERS_MAX {
        true => label.chars().take(LABEL_LETTERS_MAX - 1).chain(['…']).collect(),
        false => label.into(),
    }
}

/// A number at a tick: with separators of thousands, and no more digits than needed.
pub fn number(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    if rounded.fract() != 0.0 {
        return format!("{rounded}");
    }
    thousands(rounded)
}

/// A whole number with commas.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value.round() < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that jumps between 40 and 60 of 100 leaves no ink at other rates, whatever its dashes.
    #[test]
    fn ink_stays_where_the_rates_are() {
        let zigzag: Vec<(f64, f64)> = (0..600).map(|at| (f64::from(at) / 100.0, f64::from(40 + at % 2 * 20))).collect();
        let axis = |to: f64| Axis { label: String::new(), from: 0.0, to };
        for (dashes, colour) in COLOURS.iter().enumerate().take(DASHES.len()) {
            let empty = Line { label: String::new(), points: Vec::new() };
            let mut lines = vec![empty; dashes];
            lines.push(Line { label: String::new(), points: zigzag.clone() });
            let chart = Chart { title: String::new(), x: axis(100.0), y: axis(100.0), lines };
            let drawn = png(&chart).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(&drawn)).read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut pixels).unwrap();
            let RGBColor(red, green, blue) = *colour;
            // Below the legend.
            let rows = pixels.chunks((WIDTH * PNG_SCALE * 3) as usize).enumerate().skip(160);
            let inked = rows.filter(|(_, row)| row.chunks(3).any(|pixel| pixel == [red, green, blue]));
            let rows: Vec<usize> = inked.map(|(row, _)| row).collect();
            let height = rows[rows.len() - 1] - rows[0];
            // A fifth of the 1,000 rows minus title, legend and labels, plus the thickness of the line.
            assert!((140..170).contains(&height), "{dashes}: {height} rows from {}", rows[0]);
        }
    }

    #[test]
    fn dashes_go_on_around_corners() {
        assert_eq!(strokes(&[(0, 0), (10, 0), (10, 5)], 1, 0), [[(0, 0), (10, 0)], [(10, 0), (10, 5)]]);
        let dashed = strokes(&[(0, 0), (10, 0), (10, 5)], 4, 2);
        assert_eq!(dashed, [[(0, 0), (4, 0)], [(6, 0), (10, 0)], [(10, 2), (10, 5)]]);
        assert_eq!(strokes(&[(3, 3), (3, 3)], 4, 2), Vec::<[Point; 2]>::new());
        assert!(strokes(&[(3, 3)], 1, 0).is_empty());
    }
}
