//! A chart as letters in a terminal: each line has a letter of its own.

use super::chart::{Chart, number, thousands};

const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LEFT: usize = 10;

/// Lines of text, at most `width` letters wide, with `height` of them for the plot.
pub fn chart(chart: &Chart, width: usize, height: usize) -> Vec<String> {
    let columns = width.saturating_sub(LEFT + 2).max(10);
    let mut field = vec![vec![' '; columns]; height];
    for (index, line) in chart.lines.iter().enumerate().rev() {
        let letter = char::from(LETTERS[index % LETTERS.len()]);
        plot(&mut field, chart, &line.points, letter);
    }
    let step = (height - 1).div_ceil(4).max(1);
    let mut lines = vec![format!("{}; {}", chart.title, chart.y.label)];
    for (row, cells) in field.iter().enumerate() {
        let from_below = height - 1 - row;
        let share = from_below as f64 / (height - 1) as f64;
        let value = chart.y.from + share * (chart.y.to - chart.y.from);
        let label = if from_below.is_multiple_of(step) { value_text(value, chart.y.to) } else { String::new() };
        lines.push(format!("{label:>LEFT$} |{}", cells.iter().collect::<String>()).trim_end().to_owned());
    }
    let (from, to) = (number(chart.x.from), number(chart.x.to));
    lines.push(format!("{:LEFT$} +{}", "", "-".repeat(columns)));
    let gap = columns.saturating_sub(from.len() + to.len() + chart.x.label.chars().count());
    let (before, after) = (gap / 2, gap - gap / 2);
    lines.push(format!("{:LEFT$}  {from}{}{}{}{to}", "", " ".repeat(before), chart.x.label, " ".repeat(after)));
    for (index, line) in chart.lines.iter().enumerate() {
        lines.push(format!("{:LEFT$}  {} {}", "", char::from(LETTERS[index % LETTERS.len()]), line.label));
    }
    lines.iter().map(|line| line.chars().take(width).collect()).collect()
}

fn value_text(value: f64, most: f64) -> String {
    if most >= 10.0 { thousands(value) } else { format!("{value:.2}") }
}

/// Joins points by straight lines, column by column.
fn plot(field: &mut [Vec<char>], chart: &Chart, points: &[(f64, f64)], letter: char) {
    let (height, columns) = (field.len(), field[0].len());
    let place = |value: f64, (from, to): (f64, f64), count: usize| {
        (value - from) / (to - from).max(1e-300) * (count - 1) as f64
    };
    let at = |(x, y): (f64, f64)| {
        (place(x, (chart.x.from, chart.x.to), columns), place(y, (chart.y.from, chart.y.to), height))
    };
    let mut mark = |x: f64, y: f64| {
        let (column, row) = (x.round().max(0.0) as usize, y.round().max(0.0) as usize);
        if column < columns && row < height {
            field[height - 1 - row][column] = letter;
        }
    };
    for pair in points.windows(2) {
        let ((x, y), (to_x, to_y)) = (at(pair[0]), at(pair[1]));
        let steps = (to_x - x).abs().max((to_y - y).abs()).ceil().clamp(1.0, (columns + height) as f64);
        for step in 0..=steps as usize {
            let share = step as f64 / steps;
            mark(x + share * (to_x - x), y + share * (to_y - y));
        }
    }
    if let [only] = points {
        let (x, y) = at(*only);
        mark(x, y);
    }
}
