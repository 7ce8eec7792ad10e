//! Runs of many seeds.

use super::{Settings, run};
use crate::cluster::Report;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a seed; complaints include a panic.
pub(crate) fn try_run(seed: u64, trace: bool) -> (u64, Report, Vec<String>) {
    let ran = std::panic::catch_unwind(|| run(Settings::of(seed), trace));
    match ran {
        Ok(Ok(outcome)) => (outcome.digest, outcome.report, outcome.wrong),
        Ok(Err(error)) => (0, Report::default(), vec![error.to_string()]),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            (0, Report::default(), vec![format!("a panic: {}", text.unwrap_or_default())])
        }
    }
}

#[test]
fn one_seed_gives_the_same_bytes_twice() {
    for seed in [1, 2, 3] {
        let (first, second) = (try_run(seed, false), try_run(seed, false));
        assert_eq!((first.0, &first.1), (second.0, &second.1), "seed {seed}");
    }
}

/// As the runs of `cluster`: `HEKATE_SEEDS=n`, `HEKATE_FIRST=n`, and `HEKATE_SEED=n` for one with a trace.
#[test]
fn hosted_runs_become_whole() {
    if let Some(seed) = number("HEKATE_SEED") {
        let (digest, report, wrong) = try_run(seed, true);
        println!("digest {digest:016x}\n{report}");
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        return;
    }
    let (first, count) = (number("HEKATE_FIRST").unwrap_or(0), number("HEKATE_SEEDS").unwrap_or(40));
    let (mut sum, mut failed) = (Report::default(), Vec::new());
    for seed in first..first + count {
        let (_, report, wrong) = try_run(seed, false);
        sum.merge(&report);
        if !wrong.is_empty() {
            let shown: String = wrong.join("\n").chars().take(1500).collect();
            println!("seed {seed}: {shown}\n");
            failed.push(seed);
        }
    }
    println!("{count} seeds\n{sum}");
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}
