//! Whether runs find the planted bugs, and after how many seeds (docs/simulator.md, *Planted bugs*).

use crate::cluster::Settings;
use crate::cluster::tests::{number, try_run};
use crate::hosted;
use hekate_proto::planted::{Bug, of_environment, plant};

/// Bugs that no run finds (docs/simulator.md says why): tried only if `HEKATE_BUG` names them.
const NOT_FOUND: [Bug; 2] = [Bug::TermIgnored, Bug::SupersededOpExecuted];

const STARTS: [u64; 5] = [0, 1_000, 2_000, 3_000, 4_000];

const SEEDS_MAX: u64 = 1000;

/// The name of a kind of runs, and the complaints about the run of a seed.
type Kind = (&'static str, fn(u64) -> Vec<String>);

const KINDS: [Kind; 17] = [
    ("narrow seed", |seed| complaints(Settings::narrow(seed))),
    ("narrow names seed", |seed| complaints(Settings::narrow_names(seed))),
    ("narrow rivals seed", |seed| complaints(Settings::narrow_rivals(seed))),
    ("narrow late seed", |seed| complaints(Settings::narrow_late(seed))),
    ("narrow legs seed", |seed| complaints(Settings::narrow_legs(seed))),
    ("narrow splits seed", |seed| complaints(Settings::narrow_splits(seed))),
    ("narrow journals seed", |seed| complaints(Settings::narrow_journals(seed))),
    ("seed", |seed| complaints(Settings::of(seed))),
    ("hosted wide seed", |seed| hosted_complaints(hosted::Kind::Wide, seed)),
    ("hosted narrow seed", |seed| hosted_complaints(hosted::Kind::Narrow, seed)),
    ("hosted names seed", |seed| hosted_complaints(hosted::Kind::Names, seed)),
    ("hosted rivals seed", |seed| hosted_complaints(hosted::Kind::Rivals, seed)),
    ("hosted late seed", |seed| hosted_complaints(hosted::Kind::Late, seed)),
    ("hosted legs seed", |seed| hosted_complaints(hosted::Kind::Legs, seed)),
    ("hosted splits seed", |seed| hosted_complaints(hosted::Kind::Splits, seed)),
    ("hosted journals seed", |seed| hosted_complaints(hosted::Kind::Journals, seed)),
    ("hosted locks seed", |seed| hosted_complaints(hosted::Kind::Locks, seed)),
];

fn complaints(settings: Settings) -> Vec<String> {
    try_run(settings, false).1
}

fn hosted_complaints(kind: hosted::Kind, seed: u64) -> Vec<String> {
    hosted::tests::try_run(kind, seed, false).2
}

/// Number of seeds until a checker complains, in a run of some kind, and the complaint. A complaint that also occurs
/// without the bug does not count.
fn seeds_until_found(bug: Bug, start: u64) -> Option<(u64, String)> {
    for tried in 1..=number("HEKATE_SEEDS").unwrap_or(SEEDS_MAX) {
        for (kind, complaints_of) in KINDS.into_iter().filter(|(kind, _)| is_wanted(kind)) {
            let seed = start + tried;
            plant(Some(bug));
            let wrong = complaints_of(seed);
            plant(None);
            let Some(first) = wrong.first() else { continue };
            let complaint: String = first.chars().take(90).collect();
            if complaints_of(seed).is_empty() {
                println!("bug {bug} from {start}: {kind} {seed}: {complaint}");
                return Some((tried, complaint));
            }
            println!("{kind} {seed} is wrong without the bug too: {complaint}");
        }
    }
    None
}

/// `HEKATE_KIND=narrow`: kinds whose name begins so, only.
fn is_wanted(kind: &str) -> bool {
    std::env::var("HEKATE_KIND").map_or(true, |wanted| kind.starts_with(&wanted))
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
