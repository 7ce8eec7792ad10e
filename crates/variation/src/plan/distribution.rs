//! The rate of one machine as a distribution: its samples, each equally likely, and the probability that it is down.

use super::grid::Cells;

/// Values and their probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Ascending, finite, not negative, at least one.
    sorted: Vec<f64>,
    /// The probability that the machine gives nothing, whatever its samples are.
    outage: f64,
    /// Kept, because a search asks for it at each step.
    mean: f64,
    variance: f64,
}

impl Distribution {
    pub fn new(mut rates: Vec<f64>, outage: f64) -> Self {
        assert!(!rates.is_empty() && (0.0..1.0).contains(&outage), "a distribution has values, and is not always down");
        rates.sort_unstable_by(f64::total_cmp);
        let mean = (1.0 - outage) * crate::statistics::mean(&rates);
        let squares = rates.iter().map(|value| value * value).sum::<f64>() / rates.len() as f64;
        let variance = ((1.0 - outage) * squares - mean.powi(2)).max(0.0);
        Self { sorted: rates, outage, mean, variance }
    }

    pub fn sorted(&self) -> &[f64] {
        &self.sorted
    }

    pub fn outage(&self) -> f64 {
        self.outage
    }

    pub fn most(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    pub fn least(&self) -> f64 {
        if self.outage > 0.0 { 0.0 } else { self.sorted[0] }
    }

    pub fn mean(&self) -> f64 {
        self.mean
    }

    pub fn variance(&self) -> f64 {
        self.variance
    }

    /// The value at a place from 0 (the least) up to, but not including, 1.
    pub fn at(&self, place: f64) -> f64 {
        if place < self.outage {
            return 0.0;
        }
        let inside = (place - self.outage) / (1.0 - self.outage);
        self.sorted[((inside * self.sorted.len() as f64) as usize).min(self.sorted.len() - 1)]
    }

    /// Values with their probabilities, ascending, equal ones together.
    pub fn points(&self) -> Vec<(f64, f64)> {
        let each = (1.0 - self.outage) / self.sorted.len() as f64;
        let outage = (self.outage > 0.0).then_some((0.0, self.outage));
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (value, weight) in outage.into_iter().chain(self.sorted.iter().map(|value| (*value, each))) {
            match points.last_mut() {
                Some(last) if last.0 == value => last.1 += weight,
                _ => points.push((value, weight)),
            }
        }
        points
    }

    /// The distribution rounded down to a grid.
    pub fn cells(&self, width: f64) -> Cells {
        let each = (1.0 - self.outage) / self.sorted.len() as f64;
        let outage = (self.outage > 0.0).then_some((0.0, self.outage));
        Cells::of(
            outage.into_iter().chain(self.sorted.iter().map(|value| (*value, each))),
            width,
            self.least(),
            self.most(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_a_value_of_nothing() {
        let both = Distribution::new(vec![4.0, 2.0], 0.5);
        assert_eq!((both.least(), both.most(), both.mean(), both.variance()), (0.0, 4.0, 1.5, 2.75));
        assert_eq!(both.points(), [(0.0, 0.5), (2.0, 0.25), (4.0, 0.25)]);
        assert_eq!([0.0, 0.49, 0.5, 0.74, 0.75, 0.999].map(|place| both.at(place)), [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]);
    }

    #[test]
    fn order_does_not_matter() {
        assert_eq!(Distribution::new(vec![1.0, 3.0, 2.0], 0.0), Distribution::new(vec![3.0, 2.0, 1.0], 0.0));
    }
}
