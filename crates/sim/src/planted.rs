//! Whether runs find the planted bugs, and after how many seeds (docs/simulator.md, *Planted bugs*).

use crate::simulator::Kind;
use crate::simulator::tests::{number, try_run};
use hekate_proto::planted::{Bug, of_environment, plant};

/// Bugs that no run finds, or a named scenario only (docs/simulator.md says why): tried only if `HEKATE_BUG` names them.
const NOT_FOUND: [Bug; 3] = [Bug::TermIgnored, Bug::SupersededOpExecuted, Bug::SessionsNotRead];

const STARTS: [u64; 5] = [0, 1_000, 2_000, 3_000, 4_000];

const SEEDS_MAX: u64 = 1000;

/// Number of seeds until a checker complains, in a run of some kind, and the complaint. A complaint that also occurs
/// without the bug does not count.
fn seeds_until_found(bug: Bug, start: u64) -> Option<(u64, String)> {
    for tried in 1..=number("HEKATE_SEEDS").unwrap_or(SEEDS_MAX) {
        for kind in Kind::ALL.into_iter().filter(|kind| is_wanted(*kind)) {
            let (name, seed) = (kind.name(), start + tried);
            let complaints_of = |seed| try_run(kind, seed, false).2;
            plant(Some(bug));
            let wrong = complaints_of(seed);
            plant(None);
            let Some(first) = wrong.first() else { continue };
            let complaint: String = first.chars().take(90).collect();
            if complaints_of(seed).is_empty() {
                println!("bug {bug} from {start}: {name} {seed}: {complaint}");
                return Some((tried, complaint));
            }
            println!("{name} {seed} is wrong without the bug too: {complaint}");
        }
    }
    None
}

/// `HEKATE_KIND=rivals`: runs of this kind only.
fn is_wanted(kind: Kind) -> bool {
    std::env::var("HEKATE_KIND").map_or(true, |wanted| kind.name() == wanted)
}

/// `HEKATE_BUG=sync-failure-ignored`: this one only; `HEKATE_FIRST=n`: beginning at this seed only; `HEKATE_SEEDS=n`: at
/// most this many from each start.
#[test]
fn planted_bugs_are_found() {
    let (only, first) = (of_environment("HEKATE_BUG"), number("HEKATE_FIRST"));
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let starts = first.map_or(STARTS.to_vec(), |first| vec![first]);
    let is_tried = |bug: &Bug| only.map_or(!NOT_FOUND.contains(bug) && !bug.is_piece(), |only| only == *bug);
    for bug in Bug::ALL.iter().copied().filter(is_tried) {
        let found: Vec<_> = starts.iter().map(|start| seeds_until_found(bug, *start)).collect();
        let mut seeds: Vec<u64> = found.iter().flatten().map(|(seeds, _)| *seeds).collect();
        seeds.sort_unstable();
        if seeds.is_empty() {
            missed.push(bug.name());
        }
        let (median, worst) = (seeds.get(seeds.len() / 2), seeds.last());
        let by = found.iter().flatten().next().map(|(_, by)| by.as_str()).unwrap_or("no checker");
        println!("{bug}: median {median:?}, worst {worst:?} of {} starts, by: {by}", seeds.len());
    }
    assert!(missed.is_empty(), "not found within {SEEDS_MAX} seeds: {missed:?}");
}
