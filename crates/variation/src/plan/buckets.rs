//! The answer by recursive buckets: sort the samples, cut them into buckets, collapse each bucket to one value,
//! enumerate all pairs, and repeat this with the sums until there are as many machines as asked; refine until the
//! bounds agree.
//!
//! It is done three times. Collapsed to the least value of each bucket the sum is never too great, to the greatest
//! never too small, so these counts are bounds that need no grid, transform or random numbers. Collapsed to the mean it
//! is the method's own answer. Buckets hold equally many entries, not equal probability, so the tails, which decide,
//! keep as many as the middle.

use super::distribution::Distribution;
use super::exact::fewest;
use super::fleet::{Question, together};
use serde::Serialize;
use std::collections::BTreeMap;

/// Values with their probabilities, ascending.
type Points = Vec<(f64, f64)>;

/// Buckets at the start, and at the end for a few machines and for many.
const FIRST: usize = 32;
const LAST_FEW: usize = 256;
const LAST_MANY: usize = 64;
const FEW: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Found {
    pub buckets: usize,
    /// By the means of the buckets.
    pub count: usize,
    /// Bounds of the answer: by the greatest, and by the least value of each bucket.
    pub count_low: usize,
    pub count_high: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Least,
    Mean,
    Greatest,
}

/// Sums of machines of one kind, made from those of fewer.
struct Sums {
    buckets: usize,
    end: End,
    /// Of 1, 2, 4 … machines.
    powers: Vec<Points>,
}

impl Sums {
    fn new(one: &Points, buckets: usize, end: End) -> Self {
        Self { buckets, end, powers: vec![collapse(one, buckets, end)] }
    }

    /// The sum of `count` machines.
    fn of(&mut self, count: usize) -> Points {
        let mut sum = vec![(0.0, 1.0)];
        for bit in (0..usize::BITS as usize).take_while(|bit| count >> bit > 0) {
            if bit == self.powers.len() {
                let half = &self.powers[bit - 1];
                self.powers.push(collapse(&pairs(half, half), self.buckets, self.end));
            }
            if count >> bit & 1 == 1 {
                sum = collapse(&pairs(&sum, &self.powers[bit]), self.buckets, self.end);
            }
        }
        sum
    }
}

fn pairs(one: &Points, other: &Points) -> Points {
    let all = one.iter().flat_map(|(value, weight)| other.iter().map(move |(more, by)| (value + more, weight * by)));
    let mut all: Points = all.collect();
    all.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    all
}

/// Cuts sorted points into buckets of equally many, and gives each the value at its end.
fn collapse(points: &Points, buckets: usize, end: End) -> Points {
    if points.len() <= buckets {
        return points.clone();
    }
    let cut = |bucket: usize| bucket * points.len() / buckets;
    let one = |bucket: usize| {
        let inside = &points[cut(bucket)..cut(bucket + 1)];
        let weight: f64 = inside.iter().map(|(_, weight)| weight).sum();
        let value = match end {
            End::Least => inside[0].0,
            End::Greatest => inside[inside.len() - 1].0,
            // Products of small weights may underflow to 0.
            End::Mean if weight == 0.0 => inside[0].0,
            End::Mean => inside.iter().map(|(value, weight)| value * weight).sum::<f64>() / weight,
        };
        (value, weight)
    };
    (0..buckets).map(one).collect()
}

/// The count and its bounds; `from` is where the search begins.
pub fn count(question: &Question, from: usize) -> Option<Found> {
    let last = if from <= FEW { LAST_FEW } else { LAST_MANY };
    let kinds: Vec<Points> = question.distributions().into_iter().map(Distribution::points).collect();
    let bound = |buckets: usize, end: End| bound(question, &kinds, from, buckets, end);
    let mut buckets = FIRST;
    loop {
        let found = Found {
            buckets,
            count: bound(buckets, End::Mean)?,
            count_low: bound(buckets, End::Greatest)?,
            count_high: bound(buckets, End::Least)?,
        };
        if found.count_low == found.count_high || buckets >= last {
            return Some(found);
        }
        buckets *= 2;
    }
}

/// `kinds` are the points of the question's kind and of the existing kinds.
fn bound(question: &Question, kinds: &[Points], from: usize, buckets: usize, end: End) -> Option<usize> {
    let have = question
        .have
        .iter()
        .zip(&kinds[1..])
        .map(|((_, count), points)| Sums::new(points, buckets, end).of(question.conditions.up(*count)));
    let have = have.fold(vec![(0.0, 1.0)], |sum, more| collapse(&pairs(&sum, &more), buckets, end));
    let mut sums = Sums::new(&kinds[0], buckets, end);
    let (demand, share) = (question.demand() * (1.0 - 1e-12), question.conditions.together);
    let mut known = BTreeMap::new();
    let mut probability = |count: usize| {
        *known.entry(count).or_insert_with(|| {
            let all = pairs(&sums.of(question.conditions.up(count)), &have);
            let own: f64 = all.iter().rev().take_while(|(value, _)| *value >= demand).map(|(_, weight)| weight).sum();
            let moved = if share > 0.0 { together(&question.up(count), question.demand()) } else { 0.0 };
            (1.0 - share) * own + share * moved
        })
    };
    // The weights add up to 1 except for rounding.
    fewest(from, |count| probability(count) >= question.confidence - 1e-12)
}
