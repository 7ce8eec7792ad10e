//! Three sample series, made from published descriptions of cloud instances only.
//!
//! Of each instance only the shape is published: in words, and as its curve "this rate or better". A shape here is that
//! curve inverted: the rate that is reached or exceeded in a given share of the time. A series is the curve read at
//! evenly spaced shares, so that it has the shape exactly and no seed can favour an answer; random numbers decide the
//! order of the samples only. Where a description is incomplete, the simplest choice is taken, and named beside it.

use crate::random::Random;

/// An hour with a sample every ten seconds, the default of `hekate variation measure`.
pub const SAMPLE_COUNT: usize = 360;
/// Time between two samples.
pub const INTERVAL_S: u64 = 10;

/// A shape with its name and the text that it was made from.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    /// The published description.
    pub published: &'static str,
    /// Choices where the description is incomplete.
    pub chosen: &'static str,
    /// The rate (IOPS) that is reached or exceeded in this share of the time.
    rate: fn(f64) -> f64,
    /// Correlation of a sample's place with that of the next one.
    memory: f64,
    seed: u64,
}

/// The shapes whose series are in `crates/variation/data`.
pub const SHAPES: [Shape; 3] = [
    Shape {
        name: "steep",
        published: "samples run from a peak over 16,000 IOPS down to about 6,000, little correlation between neighbours",
        chosen: "a straight line from 16,200 to 6,000; the order is random",
        rate: |share| line(share, (0.0, 16_200.0), (1.0, 6_000.0)),
        memory: 0.0,
        seed: 1,
    },
    Shape {
        name: "narrow",
        published: "97 % of samples lie between just over 4,000 and just under 6,000 IOPS",
        chosen: "a straight line from 5,950 to 4,050 for 97 %; of the rest half lies above and half below, each spread \
                 evenly over half the band's width (950); neighbours are alike (0.9)",
        rate: |share| match share {
            ..0.015 => line(share, (0.0, 6_900.0), (0.015, 5_950.0)),
            ..0.985 => line(share, (0.015, 5_950.0), (0.985, 4_050.0)),
            _ => line(share, (0.985, 4_050.0), (1.0, 3_100.0)),
        },
        memory: 0.9,
        seed: 2,
    },
    Shape {
        name: "cliff",
        published: "flat from 13,500 to 12,000 IOPS for 70 % of the time, then falling off steeply",
        chosen: "straight lines, the second one down to a third of where it begins (4,000); neighbours are alike (0.9)",
        rate: |share| match share {
            ..0.7 => line(share, (0.0, 13_500.0), (0.7, 12_000.0)),
            _ => line(share, (0.7, 12_000.0), (1.0, 4_000.0)),
        },
        memory: 0.9,
        seed: 3,
    },
];

/// The height at `x` of the line through two points.
fn line(x: f64, (left, from): (f64, f64), (right, to): (f64, f64)) -> f64 {
    from + (x - left) / (right - left) * (to - from)
}

impl Shape {
    /// The samples in IOPS, whole numbers, in the order of time.
    pub fn samples(&self) -> Vec<u64> {
        let places = self.places();
        places.iter().map(|place| (self.rate)((*place as f64 + 0.5) / SAMPLE_COUNT as f64).round() as u64).collect()
    }

    /// A permutation of the numbers below SAMPLE_COUNT: the rank of the sample at each time.
    ///
    /// An autoregressive process of the first order decides the order; only its ranks are used.
    fn places(&self) -> Vec<usize> {
        let mut random = Random::seeded(self.seed);
        let mut level = 0.0;
        let mut step = || {
            level = self.memory * level + random.fraction() - 0.5;
            level
        };
        let levels: Vec<f64> = (0..SAMPLE_COUNT).map(|_| step()).collect();
        let mut order: Vec<usize> = (0..SAMPLE_COUNT).collect();
        order.sort_by(|one, other| levels[*one].total_cmp(&levels[*other]));
        let mut places = vec![0; SAMPLE_COUNT];
        order.iter().enumerate().for_each(|(place, time)| places[*time] = place);
        places
    }

    /// The series as the file in `crates/variation/data`.
    pub fn csv(&self) -> String {
        let mut text = format!(
            "# A sample series made by crates/variation/src/shapes.rs; no machine was measured.\n# Published: {}.\n# Chosen: {}.\n",
            self.published, self.chosen
        );
        text.push_str("time_s,iops\n");
        for (index, rate) in self.samples().iter().enumerate() {
            text.push_str(&format!("{},{rate}\n", index as u64 * INTERVAL_S));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn sorted(name: &str) -> Vec<u64> {
        let shape = SHAPES.iter().find(|shape| shape.name == name).unwrap();
        let mut samples = shape.samples();
        samples.sort_unstable_by(|one, other| other.cmp(one));
        samples
    }

    fn share(samples: &[u64], range: std::ops::RangeInclusive<u64>) -> f64 {
        samples.iter().filter(|rate| range.contains(rate)).count() as f64 / samples.len() as f64
    }

    #[test]
    fn shapes_are_as_published() {
        let steep = sorted("steep");
        assert!(steep[0] > 16_000 && (5_900..6_100).contains(&steep[SAMPLE_COUNT - 1]));
        assert!((share(&sorted("narrow"), 4_000..=6_000) - 0.97).abs() < 0.02);
        let cliff = sorted("cliff");
        assert!((share(&cliff, 12_000..=13_500) - 0.70).abs() < 0.005);
        assert!(cliff[SAMPLE_COUNT - 1] < 6_000);
    }

    #[test]
    fn neighbours_are_alike_only_where_it_says_so() {
        for shape in SHAPES {
            let samples: Vec<f64> = shape.samples().iter().map(|rate| *rate as f64).collect();
            let mean = samples.iter().sum::<f64>() / samples.len() as f64;
            let spread: f64 = samples.iter().map(|rate| (rate - mean).powi(2)).sum();
            let alike: f64 = samples.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum::<f64>() / spread;
            let expected = if shape.memory == 0.0 { -0.15..0.15 } else { 0.6..0.98 };
            assert!(expected.contains(&alike), "{}: {alike}", shape.name);
        }
    }

    #[test]
    fn the_files_are_what_the_generators_make() {
        for shape in SHAPES {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/{}.csv", shape.name));
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            let line = "cargo run -p hekate-variation --example shapes";
            assert!(there == shape.csv(), "{} is not the output of shapes.rs; run: {line}", path.display());
        }
    }
}
