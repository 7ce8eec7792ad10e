//! Runs of many seeds.

use super::judge::UNDECIDED;
use super::*;

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a seed; complaints include a panic.
pub(crate) fn try_run(settings: Settings, trace: bool) -> (Option<Outcome>, Vec<String>) {
    let ran = std::panic::catch_unwind(|| run(settings, trace));
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
        let once = || try_run(Settings::of(seed), false).0.unwrap();
        let (first, second) = (once(), once());
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.report, second.report, "seed {seed}");
    }
}

/// Events that the default seeds must reach, each. Rarer branches of replicas are below. Five branches are not for
/// runs: locks are not simulated (`replica/locks/locking/tests.rs`); replicas that differ with equal logs need a
/// damaged disk (`replica/tests/compare.rs`); a member that lost records, a learner that cannot keep up and one that is
/// tried again come once or never in 10,000 runs (`replica/tests/lost_records.rs`, `stuck.rs`, `learner.rs`).
const REACHED: [&str; 76] = [
    "branch: times are answered before all have them",
    "branch: times of files that were being written are renewed",
    "fault: kill",
    "fault: power cut",
    "fault: power cut of all",
    "fault: network cut",
    "fault: network cut one way",
    "fault: pause",
    "fault: link reset",
    "fault: full disk",
    "fault: failed sync",
    "fault: client death",
    "fault: connection cut",
    "fault: coordinator cut",
    "fault: a clock is set",
    "fault: a flipped bit",
    "fault: a journal that rots",
    "fault: all are killed",
    "fault: a misdirected write",
    "fault: an older copy of a disk",
    "fault: a disk that is gone",
    "bricks that were refused as older copies",
    "damaged blocks that were repaired",
    "branch: a damaged block is asked for",
    "fault: a packet lost",
    "fault: a packet doubled",
    "fault: a slow packet",
    "blocks that a power cut took",
    "bricks that stopped",
    "checkpoints",
    "journal tails torn off",
    "lives settled",
    "new views",
    "power cuts after which no replica had its memory",
    "branch: an fsync reports a loss",
    "branch: levelling: the leader fetches",
    "branch: levelling: a member is fed",
    "branch: levelling: a lost block is settled",
    "branch: recovery: an intent is undone",
    "branch: recovery: an intent is finished",
    "branch: a retry is answered from its slot",
    "branch: an op waits for what another holds",
    "branch: a leg meets a busy op",
    "branch: a leg meets a hold",
    "branch: legs are sent again",
    "branch: an op is undone and begins again",
    "branch: an op is undone and answered",
    "branch: an op has legs after its commit point",
    "branch: a member's journal has no room",
    "branch: a record comes early",
    "branch: a record is refused for want of room",
    "branch: a retry joins what it repeats",
    "branch: levelling: replicas are compared",
    "branch: levelling: writes whose bytes are lost are forgotten",
    "branch: the leader's journal has no room",
    "branch: a write to all members at once",
    "branch: a fast write",
    "branch: a fast write is refused by the leader",
    "branch: a read asks whether a fast write is everywhere",
    "branch: a record waits for a shard to be closed",
    "branch: shards are closed",
    "branch: a loose fast write",
    "branch: shards are synced before they are closed",
    "branch: nothing is loose any more",
    "branch: a shard is reconciled",
    "branch: a learner goes on with its log",
    "branch: a learner has healed",
    "branch: a learner is compared from the beginning",
    "branch: a learner's log goes on elsewhere",
    "branch: a member has room again",
    "branch: a view with learners",
    "branch: a view that is forgetful",
    "branch: a view without memory is to have one member",
    "branch: another leader",
    "branch: levelling: a view is to begin",
    "branch: levelling: a journal that has rotted hides records",
];

/// Events that only 1,000 seeds have to reach. Members use up their room before leaders do where room is scarce, so
/// journals are seldom full when a view begins.
const REACHED_IN_1000: [&str; 3] = [
    "branch: levelling: no room for what is fetched",
    "branch: levelling: another one is to lead",
    "branch: a read closes a shard",
];

/// Events that only 10,000 seeds have to reach.
const REACHED_IN_10_000: [&str; 2] =
    ["branch: an op ends before any leg", "branch: a damaged shard is reconciled with a copy of a member"];

/// Seeds of a test, wide and narrow.
const SEEDS: u64 = 300;
const NARROW_SEEDS: u64 = 300;

#[test]
fn faults_stop_and_it_becomes_whole() {
    let Some((sum, count)) = try_seeds(Settings::of, SEEDS) else { return };
    let rare = REACHED_IN_1000.into_iter().filter(|_| count >= 1000);
    let rare = rare.chain(REACHED_IN_10_000.into_iter().filter(|_| count >= 10_000));
    let missed: Vec<&str> = REACHED.into_iter().chain(rare).filter(|what| sum.of(what) == 0).collect();
    assert!(count < 300 || missed.is_empty(), "never reached: {missed:?}");
}

#[test]
fn narrow_runs_become_whole() {
    try_seeds(Settings::narrow, NARROW_SEEDS);
}

#[test]
fn narrow_names_become_whole() {
    try_seeds(Settings::narrow_names, NARROW_SEEDS);
}

#[test]
fn narrow_rivals_become_whole() {
    try_seeds(Settings::narrow_rivals, NARROW_SEEDS);
}

#[test]
fn narrow_late_become_whole() {
    try_seeds(Settings::narrow_late, NARROW_SEEDS);
}

#[test]
fn narrow_legs_become_whole() {
    try_seeds(Settings::narrow_legs, NARROW_SEEDS);
}

#[test]
fn narrow_splits_become_whole() {
    let Some((sum, _)) = try_seeds(Settings::narrow_splits, NARROW_SEEDS) else { return };
    assert!(sum.of("fault: a server is split off") > 0, "no server was split off");
}

#[test]
fn narrow_journals_become_whole() {
    let Some((sum, _)) = try_seeds(Settings::narrow_journals, NARROW_SEEDS) else { return };
    assert!(sum.of("fault: a journal that rots") > 0, "no journal rotted");
}

/// Tries seeds. `HEKATE_SEEDS=n`: this many; `HEKATE_FIRST=n`: beginning with this one; `HEKATE_SEED=n`: this one only,
/// with a trace. Returns the counters and the number of seeds; none if it was a single one.
fn try_seeds(settings: fn(u64) -> Settings, count: u64) -> Option<(Report, u64)> {
    if let Some(seed) = number("HEKATE_SEED") {
        let (outcome, wrong) = try_run(settings(seed), true);
        if let Some(outcome) = &outcome {
            println!("digest {:016x}\n{}", outcome.digest, outcome.report);
        }
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        return None;
    }
    let (first, count) = (number("HEKATE_FIRST").unwrap_or(0), number("HEKATE_SEEDS").unwrap_or(count));
    let (mut sum, mut failed) = (Report::default(), Vec::new());
    for seed in first..first + count {
        let (outcome, wrong) = try_run(settings(seed), false);
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
    let undecided = sum.of(UNDECIDED);
    assert!(undecided <= 2 + count / 25, "{undecided} searches gave up in {count} seeds");
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
    Some((sum, count))
}
