//! Rates on a grid: each is rounded down to a whole number of cells, and the error of that is known.

use super::distribution::Distribution;

/// Most cells of a grid that is refined to hit whole numbers exactly.
const CELLS_MAX: f64 = 65_536.0;

/// Probabilities by whole numbers of cells.
#[derive(Debug, Clone, PartialEq)]
pub struct Cells {
    /// The number of cells of `weights[0]`.
    pub first: u64,
    /// They add up to 1.
    pub weights: Vec<f64>,
    /// The most that rounding took from a value, in cells.
    pub slack: f64,
    /// Mean of what rounding took, in cells.
    pub mean_rest: f64,
}

impl Cells {
    /// Cells of values between `least` and `most` with their weights.
    pub fn of(points: impl Iterator<Item = (f64, f64)>, width: f64, least: f64, most: f64) -> Self {
        let first = whole_cells(least, width);
        let count = (whole_cells(most, width) - first) as usize + 1;
        let mut cells = Self { first, weights: vec![0.0; count], slack: 0.0, mean_rest: 0.0 };
        for (value, weight) in points {
            let cell = whole_cells(value, width);
            let rest = (value / width - cell as f64).max(0.0);
            cells.weights[(cell - first) as usize] += weight;
            cells.slack = cells.slack.max(rest);
            cells.mean_rest += rest * weight;
        }
        cells
    }
}

/// The number of cells of a distribution.
pub fn cells_of(kind: &Distribution, width: f64) -> usize {
    (whole_cells(kind.most(), width) - whole_cells(kind.least(), width)) as usize + 1
}

/// Rounded down; a value within a billionth of the next cell is in it, because it is the result of a division.
fn whole_cells(value: f64, width: f64) -> u64 {
    (value / width + 1e-9).floor().max(0.0) as u64
}

/// Rounded up, with the same tolerance.
pub fn cells_to_reach(value: f64, width: f64) -> i64 {
    (value / width - 1e-9).ceil() as i64
}

/// The width on which all values fall exactly, if they are whole numbers that do not need too fine a grid, or all one
/// value.
pub fn exact_width(kinds: &[&Distribution]) -> Option<f64> {
    let (least, most) = ends(kinds);
    if least == most && most > 0.0 {
        return Some(most);
    }
    const WHOLE_MAX: f64 = 9e15;
    let mut divisor = 0u64;
    for value in kinds.iter().flat_map(|kind| kind.sorted()) {
        if value.fract() != 0.0 || *value > WHOLE_MAX {
            return None;
        }
        // Usually the divisor is 1 soon.
        if divisor != 1 {
            divisor = greatest_common_divisor(*value as u64, divisor);
        }
    }
    let width = divisor as f64;
    (divisor > 0 && (most - least) / width <= CELLS_MAX).then_some(width)
}

/// The width that cuts the widest range into this many cells.
pub fn even_width(kinds: &[&Distribution], cells: usize) -> f64 {
    let widest = kinds.iter().map(|kind| kind.most() - kind.least()).fold(0.0, f64::max);
    let (_, most) = ends(kinds);
    let range = if widest > 0.0 { widest } else { most };
    range / cells as f64
}

fn ends(kinds: &[&Distribution]) -> (f64, f64) {
    let least = kinds.iter().map(|kind| kind.least()).fold(f64::INFINITY, f64::min);
    (least, kinds.iter().map(|kind| kind.most()).fold(0.0, f64::max))
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Distribution {
        Distribution::new(values.to_vec(), 0.0)
    }

    #[test]
    fn whole_numbers_find_their_grid() {
        assert_eq!(exact_width(&[&of(&[6.0, 12.0]), &of(&[9.0])]), Some(3.0));
        assert_eq!(exact_width(&[&of(&[6.5, 12.0])]), None);
        assert_eq!(exact_width(&[&of(&[1.0, 1e6])]), None);
        assert_eq!(exact_width(&[&of(&[0.3, 0.3])]), Some(0.3));
        let cells = of(&[6.0, 12.0, 12.0]).cells(3.0);
        assert_eq!((cells.first, cells.slack), (2, 0.0));
        assert_eq!(cells.weights.len(), 3);
    }

    #[test]
    fn rounding_down_is_kept_account_of() {
        let cells = of(&[1.0, 1.75, 2.5]).cells(1.0);
        assert_eq!((cells.first, cells.weights.len(), cells.slack), (1, 2, 0.75));
        assert!((cells.mean_rest - 1.25 / 3.0).abs() < 1e-12);
    }
}
