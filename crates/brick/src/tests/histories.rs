//! Histories of a small brick, with a power cut at each of their calls, a fault at each of them, or damage.
//!
//! A history is a list of [`steps`]. [`run`] runs them on a brick and keeps in a [`model`] what was promised. [`cuts`]
//! opens what a power cut leaves after each call of the storage, and [`check`] compares. One seed is one history:
//! `HEKATE_HISTORIES=100000` runs 100,000 of them, `HEKATE_HISTORY=17` runs that one alone and prints its steps.
//! `HEKATE_ALL=1` tries all short histories, and damages every block of an index, instead of a sample.

mod check;
mod cuts;
mod directed;
mod faults;
mod model;
mod rot;
mod run;
mod small;
mod steps;

use cuts::{Thoroughness, Tried, cut_everywhere, describe, shrink};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Histories that `cargo test` runs. `HEKATE_HISTORIES` overrides it; `HEKATE_HISTORIES_FROM` is the first seed, 0 by
/// default.
const HISTORIES: u64 = 250;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// The distance between the samples of a test that can try everything: 1 with `HEKATE_ALL=1`.
pub fn sample_every(distance: u64) -> u64 {
    if setting("HEKATE_ALL").is_some_and(|all| all > 0) { 1 } else { distance }
}

/// Calls `one` for each number below `count` on all processors, until one fails. Returns the sum, or the first failure.
fn on_all_processors(count: u64, one: impl Fn(u64) -> Result<Tried, String> + Sync) -> Result<Tried, (u64, String)> {
    let (next, failure, sum) = (AtomicU64::new(0), Mutex::new(None), Mutex::new(Tried::default()));
    let work = || {
        while failure.lock().unwrap().is_none() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            match one(number) {
                Ok(tried) => sum.lock().unwrap().add(tried),
                Err(what) => *failure.lock().unwrap() = Some((number, what)),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    match failure.into_inner().unwrap() {
        Some(failure) => Err(failure),
        None => Ok(sum.into_inner().unwrap()),
    }
}

fn report(what: &str, tried: Tried) {
    let Tried { cuts, used_further, nested } = tried;
    println!("{what}: {cuts} power cuts, {used_further} of them with further use, {nested} of those with another cut");
}

fn one_history(seed: u64) -> Result<Tried, String> {
    cut_everywhere(&[], &steps::history(seed), Thoroughness::Random(seed), seed.is_multiple_of(16))
}

#[test]
fn whatever_happened_a_power_cut_leaves_what_was_synced() {
    if let Some(seed) = setting("HEKATE_HISTORY") {
        println!("history {seed}:\n{}", describe(&steps::history(seed)));
        let tried = one_history(seed).unwrap_or_else(|what| panic!("{what}"));
        return report("one history", tried);
    }
    let (from, count) =
        (setting("HEKATE_HISTORIES_FROM").unwrap_or(0), setting("HEKATE_HISTORIES").unwrap_or(HISTORIES));
    match on_all_processors(count, |number| one_history(from + number)) {
        Ok(tried) => report(&format!("histories {from} to {}", from + count - 1), tried),
        Err((number, what)) => {
            let seed = from + number;
            let fails = |steps: &[steps::Step]| {
                cut_everywhere(&[], steps, Thoroughness::Random(seed), seed.is_multiple_of(16)).err()
            };
            let (fewest, why) = shrink(steps::history(seed), fails);
            panic!(
                "HEKATE_HISTORY={seed} fails: {what}\nFewer steps that fail too, with {}:\n{}",
                why.unwrap_or_else(|| "the same error".into()),
                describe(&fewest)
            );
        }
    }
}
