//! The answer by simulation (Monte Carlo): machines are added, a random sample each, until the target is reached; the
//! counts of many such games are the distribution of the answer.

use super::fleet::{Kind, Question};
use crate::random::Random;
use serde::Serialize;

/// Draws in all. A draw from a million samples, which no near cache holds, takes 25 ns, so all of them take an eighth
/// of a second.
const DRAWS: usize = 5_000_000;
/// Two-sided 99 % of the normal distribution.
const Z: f64 = 2.576;

/// Counts that games needed, ascending.
#[derive(Debug, Clone, PartialEq)]
pub struct Games {
    counts: Vec<u32>,
}

/// The result of the games.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Said {
    pub games: usize,
    pub count: usize,
    /// The count lies between these with 99 %.
    pub count_low: usize,
    pub count_high: usize,
}

/// Plays the games. `expected` is the approximate number of machines that a game needs.
pub fn play(question: &Question, expected: usize, seed: u64) -> Games {
    let games = (DRAWS / expected.max(1)).clamp(1_000, 200_000);
    let mut random = Random::seeded(seed);
    let end = expected.saturating_mul(2).saturating_add(1_000);
    let mut counts: Vec<u32> = (0..games).map(|_| game(question, end, &mut random)).collect();
    counts.sort_unstable();
    Games { counts }
}

/// The machines that one game needs; at most about `end`.
fn game(question: &Question, end: usize, random: &mut Random) -> u32 {
    let conditions = &question.conditions;
    let place = (random.fraction() < conditions.together).then(|| random.fraction());
    let mut draw = |kind: &Kind| match place {
        Some(place) => kind.distribution.at(place),
        None => {
            let distribution = &kind.distribution;
            let is_down = distribution.outage() > 0.0 && random.fraction() < distribution.outage();
            if is_down { 0.0 } else { distribution.sorted()[random.below(distribution.sorted().len())] }
        }
    };
    let mut sum = 0.0;
    for (kind, count) in &question.have {
        (0..conditions.up(*count)).for_each(|_| sum += draw(kind));
    }
    let (demand, mut up) = (question.demand() * (1.0 - 1e-12), 0);
    while sum < demand && up < end {
        sum += draw(question.kind);
        up += 1;
    }
    conditions.count_for(up).try_into().unwrap_or(u32::MAX)
}

impl Games {
    /// The share of the games for which `count` machines were enough, and the interval in which its true value lies
    /// with 99 % (Wilson, Probable inference, the law of succession, and statistical inference, 1927).
    pub fn probability(&self, count: usize) -> (f64, f64, f64) {
        let games = self.counts.len() as f64;
        let share = self.counts.partition_point(|needed| *needed as usize <= count) as f64 / games;
        let (square, scale) = (Z * Z / games, 1.0 + Z * Z / games);
        let middle = (share + square / 2.0) / scale;
        let half = Z / scale * (share * (1.0 - share) / games + square / (4.0 * games)).sqrt();
        (share, (middle - half).max(0.0), (middle + half).min(1.0))
    }

    /// The count for a confidence, and its bounds (order statistics of the games).
    pub fn said(&self, confidence: f64) -> Said {
        let games = self.counts.len() as f64;
        let half = Z * (games * confidence * (1.0 - confidence)).sqrt();
        let at = |rank: f64| self.counts[(rank.ceil() as usize).clamp(1, self.counts.len()) - 1] as usize;
        let rank = games * confidence;
        Said {
            games: self.counts.len(),
            count: at(rank),
            count_low: at(rank - half),
            count_high: at(rank + half + 1.0),
        }
    }
}
