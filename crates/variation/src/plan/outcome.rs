//! Everything about one question: the answer, the results of the other methods, and their cost.

use super::bootstrap::{self, Interval, joined};
use super::buckets::{self, Found};
use super::chance::{self, Said};
use super::exact::{Exactness, answer, curve};
use super::fleet::{Conditions, Question};
use crate::error::Result;
use crate::measure::cost::thread_time;
use crate::show::chart::{Axis, Chart, Line, number};
use crate::show::report::{Section, escape, figure, list, paragraph, table};
use serde::Serialize;
use std::time::Duration;

/// The result of the simulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dice {
    #[serde(flatten)]
    pub said: Said,
    /// The probability at the answer's count, and its 99 % interval.
    pub probability: f64,
    pub probability_low: f64,
    pub probability_high: f64,
    pub milliseconds: f64,
}

/// The result of the buckets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Buckets {
    #[serde(flatten)]
    pub found: Found,
    pub milliseconds: f64,
}

/// All results; milliseconds are of processor time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub kind: String,
    pub samples: usize,
    pub target: f64,
    /// The target times copies and amplification.
    pub demand: f64,
    pub confidence: f64,
    /// Machines if each always gave its best sample.
    pub best_case: Option<usize>,
    pub count: usize,
    /// The count over the best case.
    pub ratio: Option<f64>,
    pub cost: Option<f64>,
    /// Bounds of the probability of the count, and of one machine fewer.
    pub probability: (f64, f64),
    pub probability_of_one_fewer: (f64, f64),
    /// Machines if all were always at the same place of their distribution.
    pub all_together: Option<usize>,
    /// Machines if each always gave its worst sample.
    pub worst_case: Option<usize>,
    pub exactness: Exactness,
    pub milliseconds: f64,
    /// The middle 95 % of the answers of resampled series.
    pub interval: Option<Interval>,
    pub interval_milliseconds: f64,
    pub dice: Dice,
    pub buckets: Option<Buckets>,
    /// Counts with their probabilities, for a picture.
    pub curve: Vec<(usize, f64)>,
}

/// The methods to compute beside the answer.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    pub replicates: usize,
    pub seed: u64,
}

/// A result with the processor time of this thread that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = thread_time();
    let done = work();
    (done, thread_time().saturating_sub(began))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Answers a question by all methods. The convolution gives the others their start; they run side by side.
///
/// # Errors
///
/// As `exact::answer`.
pub fn outcome(question: &Question, price: Option<f64>, beside: Beside) -> Result<Outcome> {
    let found = answer(question)?;
    let count = found.count;
    let ((games, dice_time), (buckets, buckets_time), (interval, interval_time)) = std::thread::scope(|scope| {
        let dice = scope.spawn(|| timed(|| chance::play(question, count, beside.seed)));
        let buckets = scope.spawn(|| timed(|| buckets::count(question, count)));
        let interval = match beside.replicates {
            0 => (None, Duration::ZERO),
            replicates => bootstrap::interval(question, count, replicates, beside.seed),
        };
        (joined(dice), joined(buckets), interval)
    });
    let (probability, low, high) = games.probability(count);
    let best_case = question.best_case();
    Ok(Outcome {
        kind: question.kind.name.clone(),
        samples: question.kind.rates.len(),
        target: question.target,
        demand: question.demand(),
        confidence: question.confidence,
        best_case,
        count,
        ratio: best_case.filter(|best| *best > 0).map(|best| count as f64 / best as f64),
        cost: price.map(|price| price * count as f64),
        probability: (found.probability.low, found.probability.high),
        probability_of_one_fewer: (found.one_fewer.low, found.one_fewer.high),
        all_together: question.all_together(),
        worst_case: question.worst_case(),
        exactness: found.exactness,
        milliseconds: milliseconds(found.took),
        interval,
        interval_milliseconds: milliseconds(interval_time),
        dice: Dice {
            said: games.said(question.confidence),
            probability,
            probability_low: low,
            probability_high: high,
            milliseconds: milliseconds(dice_time),
        },
        buckets: buckets.map(|found| Buckets { found, milliseconds: milliseconds(buckets_time) }),
        curve: curve(question, count),
    })
}

/// A count, or a text that there is none.
pub fn count_text(count: Option<usize>) -> String {
    count.map_or("none".into(), |count| number(count as f64))
}

/// From … to …, or one number.
pub fn range_text(low: usize, high: usize) -> String {
    if low == high { number(low as f64) } else { format!("{} to {}", number(low as f64), number(high as f64)) }
}

/// A confidence in percent.
pub fn percent(share: f64) -> String {
    format!("{} %", number((share * 1e7).round() / 1e5))
}

impl Outcome {
    /// The heads of the cells of `row`.
    pub const HEADS: [&str; 9] =
        ["kind", "target", "confidence", "best case", "machines", "ratio", "cost", "95 % interval", "all as one"];

    pub fn row(&self) -> Vec<String> {
        vec![
            self.kind.clone(),
            number(self.target),
            percent(self.confidence),
            count_text(self.best_case),
            number(self.count as f64),
            self.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            self.cost.map_or("-".into(), |cost| number((cost * 100.0).round() / 100.0)),
            self.interval.map_or("-".into(), |interval| range_text(interval.low, interval.high)),
            count_text(self.all_together),
        ]
    }

    /// Sentences about how the answer was found and how certain it is.
    pub fn lines(&self) -> Vec<String> {
        let exactness = &self.exactness;
        let grid = match exactness.on_grid {
            true => "every sample lies on the grid".into(),
            false => format!("grid of {}", number(exactness.cell)),
        };
        let fewer = match exactness.decided {
            true => format!(
                "{} reach it with {} at most",
                self.count.saturating_sub(1),
                probability_text(self.probability_of_one_fewer.1)
            ),
            false => "the grid leaves open whether one fewer is enough".into(),
        };
        let mut lines = vec![
            format!(
                "convolution: {} machines reach it with {}; {fewer}",
                number(self.count as f64),
                probability_range(self.probability)
            ),
            format!(
                "  {grid}; rounding at most {:.1e}; transform of {} numbers, {:.1} MiB; {:.1} ms",
                exactness.rounding_error_max,
                number(exactness.transform_length as f64),
                exactness.memory_bytes as f64 / f64::from(1 << 20),
                self.milliseconds
            ),
            format!(
                "dice: {} machines (99 % of {} to {}); {} with 99 % of {} to {}; {} games, {:.1} ms",
                number(self.dice.said.count as f64),
                number(self.dice.said.count_low as f64),
                number(self.dice.said.count_high as f64),
                probability_text(self.dice.probability),
                probability_text(self.dice.probability_low),
                probability_text(self.dice.probability_high),
                number(self.dice.said.games as f64),
                self.dice.milliseconds
            ),
        ];
        if let Some(Buckets { found, milliseconds }) = &self.buckets {
            let bounds = range_text(found.count_low, found.count_high);
            let count = number(found.count as f64);
            lines.push(format!(
                "buckets: {count} machines, surely {bounds}; {} buckets, {milliseconds:.1} ms",
                found.buckets
            ));
        }
        if let Some(interval) = self.interval {
            lines.push(format!(
                "other samples: {} machines in 95 % of {} resampled series (blocks of {}; {} samples are worth {:.0} independent); {:.1} ms",
                range_text(interval.low, interval.high),
                interval.replicates,
                interval.block,
                number(self.samples as f64),
                interval.independent_samples,
                self.interval_milliseconds
            ));
        }
        lines.push(format!(
            "if all moved as one: {}; if each always gave its worst sample: {}",
            count_text(self.all_together),
            count_text(self.worst_case)
        ));
        lines
    }
}

/// As many digits as distinguish it from 100 %.
fn probability_text(probability: f64) -> String {
    let missing = 1.0 - probability;
    match missing {
        ..=1e-12 => "100 %".into(),
        ..1e-8 => format!("all but {missing:.1e}"),
        ..1e-4 => format!("{:.6} %", probability * 100.0),
        _ => format!("{:.3} %", probability * 100.0),
    }
}

fn probability_range((low, high): (f64, f64)) -> String {
    let (from, to) = (probability_text(low), probability_text(high));
    if from == to { from } else { format!("{from} to {to}") }
}

/// Machines against the probability that they are enough.
pub fn chart(outcomes: &[Outcome]) -> Chart {
    let line = |outcome: &Outcome| Line {
        label: format!("{}, {}", outcome.kind, number(outcome.target)),
        points: outcome.curve.iter().map(|(count, probability)| (*count as f64, probability * 100.0)).collect(),
    };
    let mut lines: Vec<Line> = Vec::new();
    // Confidences of one target share a curve.
    for outcome in outcomes {
        let next = line(outcome);
        if lines.iter().all(|line| line.label != next.label) {
            lines.push(next);
        }
    }
    let counts = || lines.iter().flat_map(|line| &line.points).map(|(count, _)| *count);
    let (least, most) = (counts().fold(f64::INFINITY, f64::min), counts().fold(0.0, f64::max));
    Chart {
        title: "Machines and how surely they are enough".into(),
        x: Axis { label: "machines".into(), from: (least - 1.0).max(0.0), to: most + 1.0 },
        y: Axis { label: "share of the time in which they reach the target (%)".into(), from: 0.0, to: 100.0 },
        lines,
    }
}

/// The conditions as text; empty if there are none.
pub fn conditions_text(conditions: &Conditions) -> Vec<String> {
    let mut words = Vec::new();
    if conditions.together > 0.0 {
        words.push(format!("in {} of the time all machines move as one", percent(conditions.together)));
    }
    if conditions.down > 0.0 {
        words.push(format!("{} of the machines are down", percent(conditions.down)));
    }
    if conditions.outage > 0.0 {
        words.push(format!("each machine is down {} of the time, by itself", percent(conditions.outage)));
    }
    if conditions.amplification != 1.0 {
        words.push(format!("each operation of a user is {} on machines", number(conditions.amplification)));
    }
    words
}

/// The part of a report about plans.
///
/// # Errors
///
/// The picture cannot be drawn.
pub fn section(outcomes: &[Outcome], conditions: &Conditions) -> Result<Section> {
    let rows: Vec<Vec<String>> = outcomes.iter().map(Outcome::row).collect();
    let mut body = table(&Outcome::HEADS, &rows);
    body += &paragraph(
        "Best case: if each machine always gave its best sample. Machines: the fewest that reach the target with the confidence. \
         Ratio: machines over best case. Interval: had other samples been drawn. All as one: if all machines were at the same \
         place of their distribution at every moment.",
    );
    body += &conditions_text(conditions).iter().map(|words| paragraph(words)).collect::<String>();
    body += &figure(&chart(outcomes))?;
    for outcome in outcomes {
        let asked = format!("{}, {} with {}", outcome.kind, number(outcome.target), percent(outcome.confidence));
        body += &format!("<h3>{}</h3>\n{}", escape(&asked), list(&outcome.lines()));
    }
    Ok(Section { heading: "Machines for a target".into(), body })
}
