//! Seeds.

use super::*;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a seed; what is wrong, a panic included.
fn try_seed(seed: u64, trace: bool) -> (Option<Outcome>, Vec<String>) {
    let ran = std::panic::catch_unwind(|| run(Settings::of(seed), trace));
    match ran {
        Ok(Ok(outcome)) => {
            let wrong = outcome.wrong.clone();
            (Some(outcome), wrong)
        }
        Ok(Err(error)) => (None, vec![error.to_string()]),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            (None, vec![format!("a panic: {}", text.unwrap_or_default())])
        }
    }
}

#[test]
fn one_seed_gives_the_same_bytes_twice() {
    for seed in [3, 17, 29] {
        let (first, second) = (try_seed(seed, false).0.unwrap(), try_seed(seed, false).0.unwrap());
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.report, second.report, "seed {seed}");
    }
}

/// `HEKATE_SEEDS=n`: so many; `HEKATE_SEED=n`: this one, with a trace; `HEKATE_FIRST=n`: beginning with this one.
#[test]
fn three_hundred_seeds() {
    if let Some(seed) = number("HEKATE_SEED") {
        let (outcome, wrong) = try_seed(seed, true);
        if let Some(outcome) = &outcome {
            println!("digest {:016x}\n{}", outcome.digest, outcome.report);
        }
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        return;
    }
    let (first, count) = (number("HEKATE_FIRST").unwrap_or(0), number("HEKATE_SEEDS").unwrap_or(300));
    let (mut sum, mut failed) = (Report::default(), Vec::new());
    for seed in first..first + count {
        let (outcome, wrong) = try_seed(seed, false);
        if let Some(outcome) = outcome {
            sum.merge(&outcome.report);
        }
        if !wrong.is_empty() {
            let shown: String = wrong.join("\n").chars().take(1500).collect();
            println!("seed {seed}: {shown}\n");
            failed.push(seed);
        }
    }
    println!("{count} seeds\n{sum}");
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}
