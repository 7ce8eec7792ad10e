//! Plans for a thousand machines from a million samples, and prints the time and memory that it takes: cargo run
//! --release -p hekate-variation --example big

use hekate_variation::plan::outcome::{Beside, outcome};
use hekate_variation::plan::{Conditions, Kind, Question};
use hekate_variation::random::Random;
use hekate_variation::series::{Series, Unit};
use std::time::Instant;

const SAMPLES: usize = 1_000_000;

fn main() -> Result<(), hekate_variation::error::Error> {
    for (name, is_whole) in [("whole numbers", true), ("any numbers", false)] {
        let mut random = Random::seeded(1);
        let mut rate = || {
            let rate = 6_000.0 + 10_200.0 * random.fraction();
            if is_whole { rate.round() } else { rate }
        };
        let rates: Vec<f64> = (0..SAMPLES).map(|_| rate()).collect();
        let series = Series::new(name, Unit::Iops, rates, (0..SAMPLES).map(|at| at as f64).collect())?;
        let conditions = Conditions::default();
        let began = Instant::now();
        let kind = Kind::new(&series, &conditions)?;
        let question = Question { kind: &kind, have: Vec::new(), target: 11e6, confidence: 0.99, conditions };
        let found = outcome(&question, None, Beside { replicates: 200, seed: 1 })?;
        println!(
            "{name}: {SAMPLES} samples, {} machines, everything in {:.0} ms",
            found.count,
            began.elapsed().as_secs_f64() * 1e3
        );
        found.lines().iter().for_each(|line| println!("  {line}"));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown");
    println!("memory at most ({peak}), the samples twice (8 MB each) and their times included");
    Ok(())
}
