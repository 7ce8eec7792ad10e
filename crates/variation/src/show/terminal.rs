//! A chart as letters in a terminal: each line has a letter of its own.

use super::chart::{Chart, number};

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
    let mut labels = vec![String::new(); height];
    for tick in ticks(chart.y.from, chart.y.to) {
        let row = ((tick - chart.y.from) / (chart.y.to - chart.y.from) * (height - 1) as f64).round() as usize;
        labels[row.min(height - 1)] = number(tick);
    }
    let mut lines = vec![format!("{}; {}", chart.title, chart.y.label)];
    for (row, cells) in field.iter().enumerate() {
        let label = &labels[height - 1 - row];
        lines.push(format!("{label:>LEFT$} |{}", cells.iter().collect::<String>()).trim_end().to_owned());
    }
    lines.push(format!("{:LEFT$} +{}", "", "-".repeat(columns)));
    let (from, to) = (number(chart.x.from), number(chart.x.to));
    let gap = columns.saturating_sub(from.len() + to.len() + chart.x.label.chars().count());
    let (before, after) = (gap / 2, gap - gap / 2);
    lines.push(format!("{:LEFT$}  {from}{}{}{}{to}", "", " ".repeat(before), chart.x.label, " ".repeat(after)));
    for (index, line) in chart.lines.iter().enumerate() {
        lines.push(format!("{:LEFT$}  {} {}", "", char::from(LETTERS[index % LETTERS.len()]), line.label));
    }
    lines.iter().map(|line| line.chars().take(width).collect()).collect()
}

/// At most five round numbers between both.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    const COUNT_MAX: f64 = 5.0;
    let power = 10f64.powf(((to - from) / COUNT_MAX).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * power).into_iter().find(|step| (to - from) / step <= COUNT_MAX);
    let step = step.unwrap_or(to - from);
    let first = (from / step).ceil() as i64;
    (first..).map(|at| at as f64 * step).take_while(|tick| *tick <= to).take(COUNT_MAX as usize + 1).collect()
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
