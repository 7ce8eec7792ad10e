//! Runs of many seeds.

use super::{Kind, Settings, run};
use crate::cluster::Report;
use crate::cluster::judge::UNDECIDED;
use crate::cluster::tests::number;

/// Runs a seed; complaints include a panic.
pub(crate) fn try_run(kind: Kind, seed: u64, trace: bool) -> (u64, Report, Vec<String>) {
    let ran = std::panic::catch_unwind(|| run(Settings::of(kind, seed), trace));
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
    for (seed, kind) in (1..).zip(Kind::ALL) {
        let (first, second) = (try_run(kind, seed, false), try_run(kind, seed, false));
        assert_eq!((first.0, &first.1), (second.0, &second.1), "{} {seed}", kind.name());
    }
}

/// Seeds of a test of each kind.
const SEEDS: u64 = 40;

#[test]
fn hosted_runs_become_whole() {
    try_seeds(Kind::Wide);
}

#[test]
fn hosted_narrow_runs_become_whole() {
    try_seeds(Kind::Narrow);
}

#[test]
fn hosted_names_become_whole() {
    try_seeds(Kind::Names);
}

#[test]
fn hosted_rivals_become_whole() {
    try_seeds(Kind::Rivals);
}

#[test]
fn hosted_late_become_whole() {
    try_seeds(Kind::Late);
}

#[test]
fn hosted_legs_become_whole() {
    try_seeds(Kind::Legs);
}

#[test]
fn hosted_splits_become_whole() {
    try_seeds(Kind::Splits);
}

#[test]
fn hosted_journals_become_whole() {
    try_seeds(Kind::Journals);
}

#[test]
fn hosted_locks_become_whole() {
    try_seeds(Kind::Locks);
}

/// As the runs of `cluster`: `HEKATE_SEEDS=n`, `HEKATE_FIRST=n`, and `HEKATE_SEED=n` for one with a trace.
fn try_seeds(kind: Kind) -> Option<(Report, u64)> {
    if let Some(seed) = number("HEKATE_SEED") {
        let (digest, report, wrong) = try_run(kind, seed, true);
        println!("digest {digest:016x}\n{report}");
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        return None;
    }
    let (first, count) = (number("HEKATE_FIRST").unwrap_or(0), number("HEKATE_SEEDS").unwrap_or(SEEDS));
    let (mut sum, mut failed) = (Report::default(), Vec::new());
    for seed in first..first + count {
        let (_, report, wrong) = try_run(kind, seed, false);
        sum.merge(&report);
        if !wrong.is_empty() {
            let shown: String = wrong.join("\n").chars().take(1500).collect();
            println!("{} {seed}: {shown}\n", kind.name());
            failed.push(seed);
        }
    }
    println!("{count} seeds\n{sum}");
    let undecided = sum.of(UNDECIDED);
    assert!(undecided <= 2 + count / 25, "{undecided} searches gave up in {count} seeds");
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
    Some((sum, count))
}
