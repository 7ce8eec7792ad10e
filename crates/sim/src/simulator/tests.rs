//! Runs of many seeds.

use super::judge::UNDECIDED;
use super::{Kind, Report, Settings, run};

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

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

/// Events that the default seeds of everything must reach, each: they come 12 times or more. Rarer ones are below. Four
/// branches of replicas are not for runs: replicas that differ with equal logs need a damaged disk
/// (`replica/tests/compare.rs`); a member that lost records, a learner that cannot keep up and one that is tried again
/// come once or never in 10,000 runs (`replica/tests/lost_records.rs`, `stuck.rs`, `learner.rs`).
const REACHED: [&str; 26] = [
    "readings of changes of records",
    "readings of all records",
    "branch: times are answered before all have them",
    "fault: kill",
    "fault: power cut",
    "fault: network cut",
    "fault: a packet lost",
    "fault: a packet doubled",
    "fault: a slow packet",
    "new views",
    "power cuts after which no replica had its memory",
    "branch: a retry is answered from its slot",
    "branch: an op waits for what another holds",
    "branch: legs are sent again",
    "branch: an op is undone and answered",
    "branch: an op has legs after its commit point",
    "branch: a write to all members at once",
    "branch: a fast write",
    "branch: a fast write is refused by the leader",
    "branch: a record waits for a shard to be closed",
    "branch: shards are closed",
    "branch: nothing is loose any more",
    "branch: a learner goes on with its log",
    "branch: a view with learners",
    "branch: another leader",
    "branch: levelling: a view is to begin",
];

/// Events that only 300 seeds have to reach.
const REACHED_IN_300: [&str; 59] = [
    "fault: power cut of all",
    "fault: pause",
    "fault: link reset",
    "fault: failed sync",
    "fault: client death",
    "fault: connection cut",
    "fault: coordinator cut",
    "fault: a clock is set",
    "branch: levelling: a member is fed",
    "branch: a member's journal has no room",
    "branch: a record is refused for want of room",
    "branch: levelling: replicas are compared",
    "branch: a read asks whether a fast write is everywhere",
    "branch: a loose fast write",
    "branch: a shard is reconciled",
    "branch: a member has room again",
    "branch: times of files that were being written are renewed",
    "fault: network cut one way",
    "fault: full disk",
    "fault: a journal that rots",
    "fault: all are killed",
    "bricks that stopped",
    "branch: an fsync reports a loss",
    "branch: levelling: the leader fetches",
    "branch: recovery: an intent is undone",
    "branch: recovery: an intent is finished",
    "branch: an op is undone and begins again",
    "branch: a retry joins what it repeats",
    "branch: shards are synced before they are closed",
    "branch: a learner has healed",
    "branch: a learner is compared from the beginning",
    "branch: a learner's log goes on elsewhere",
    "branch: the leader's journal has no room",
    "branch: a view without memory is to have one member",
    "branch: a leg meets a busy op",
    "branch: a record comes early",
    "fault: a flipped bit",
    "fault: a misdirected write",
    "fault: an older copy of a disk",
    "bricks that were refused as older copies",
    "branch: a leg meets a hold",
    "branch: a view that is forgetful",
    "journal tails torn off",
    "fault: a disk that is lost",
    "branch: a leg of another view",
    "branch: a session has yet to tell its locks",
    "bricks that were replaced",
    "fault: a call of the coordinator is lost",
    "fault: a journal with an unreadable sector",
    "fault: a server is stopped",
    "fault: an answer of the coordinator is lost",
    "fault: full disk without any room",
    "fault: the coordinator answers slowly",
    "fault: the coordinator executes a call late",
    "fault: the coordinator is not reached",
    "fault: the next write is misdirected",
    "locks that were waited for",
    "notifications of locks",
    "power cuts after which each partition had its memory",
];

/// Events that only 1,000 seeds have to reach. Members use up their room before leaders do where room is scarce, so
/// journals are seldom full when a view begins.
const REACHED_IN_1000: [&str; 8] = [
    "blocks that a power cut took",
    "branch: levelling: a journal that has rotted hides records",
    "branch: levelling: a lost block is settled",
    "branch: a damaged block is asked for",
    "branch: levelling: writes whose bytes are lost are forgotten",
    "branch: levelling: no room for what is fetched",
    "branch: levelling: another one is to lead",
    "branch: a read closes a shard",
];

/// Seeds of a test of everything, and of each narrow kind.
const SEEDS: u64 = 20;
const NARROW_SEEDS: u64 = 8;
/// The first seed of a test of everything.
const FIRST_WIDE: u64 = 100;

#[test]
fn faults_stop_and_it_becomes_whole() {
    let Some((sum, count)) = try_seeds(Kind::Wide, SEEDS) else { return };
    let rare = REACHED_IN_300.into_iter().filter(|_| count >= 300);
    let rare = rare.chain(REACHED_IN_1000.into_iter().filter(|_| count >= 1000));
    let missed: Vec<&str> = REACHED.into_iter().chain(rare).filter(|what| sum.of(what) == 0).collect();
    assert!(count < SEEDS || missed.is_empty(), "never reached: {missed:?}");
}

#[test]
fn narrow_runs_become_whole() {
    try_seeds(Kind::Narrow, NARROW_SEEDS);
}

#[test]
fn narrow_names_become_whole() {
    try_seeds(Kind::Names, NARROW_SEEDS);
}

#[test]
fn narrow_rivals_become_whole() {
    try_seeds(Kind::Rivals, NARROW_SEEDS);
}

#[test]
fn narrow_late_become_whole() {
    let Some((sum, _)) = try_seeds(Kind::Late, NARROW_SEEDS) else { return };
    assert!(sum.of("branch: a rival comes") > 0, "no rival came");
}

#[test]
fn narrow_legs_become_whole() {
    try_seeds(Kind::Legs, NARROW_SEEDS);
}

#[test]
fn narrow_splits_become_whole() {
    let Some((sum, _)) = try_seeds(Kind::Splits, NARROW_SEEDS) else { return };
    assert!(sum.of("fault: a server is split off") > 0, "no server was split off");
    assert!(sum.of("reads at a server that is split off") > 0, "no client stayed with it");
}

#[test]
fn narrow_journals_become_whole() {
    let Some((sum, _)) = try_seeds(Kind::Journals, NARROW_SEEDS) else { return };
    assert!(sum.of("fault: a journal that rots") > 0, "no journal rotted");
}

#[test]
fn narrow_locks_become_whole() {
    let Some((sum, _)) = try_seeds(Kind::Locks, NARROW_SEEDS) else { return };
    assert!(sum.of("acknowledged: set-lock") > 0, "no lock was granted");
}

#[test]
fn narrow_objects_become_whole() {
    let Some((sum, _)) = try_seeds(Kind::Objects, NARROW_SEEDS) else { return };
    assert!(sum.of("acknowledged: put") > 0, "no object was put");
    assert!(sum.of("refused: put") > 0, "no condition failed");
}

#[test]
fn narrow_disks_become_whole() {
    let Some((sum, _)) = try_seeds(Kind::Disks, NARROW_SEEDS) else { return };
    for what in ["open", "open is refused", "steal", "flush", "snapshot", "scrub", "read snapshot"] {
        assert!(sum.of(&format!("vDisk: {what}")) > 0, "{what}: never");
    }
}

#[test]
fn narrow_pledges_become_whole() {
    let Some((sum, _)) = try_seeds(Kind::Pledges, NARROW_SEEDS) else { return };
    for what in [
        "calls that a client answers from memory",
        "recalls of pledges",
        "branch: a change waits for pledges",
        "branch: pledges have expired",
        "mapping: a page is read",
        "mapping: a page is written back",
        "fault: a client is paused",
        "fault: a connection for notifications is cut",
    ] {
        assert!(sum.of(what) > 0, "{what}: never");
    }
}

/// Tries seeds. `HEKATE_SEEDS=n`: this many; `HEKATE_FIRST=n`: beginning with this one; `HEKATE_SEED=n`: this one only,
/// with a trace. Returns the counters and the number of seeds; none if it was a single one.
fn try_seeds(kind: Kind, count: u64) -> Option<(Report, u64)> {
    if let Some(seed) = number("HEKATE_SEED") {
        let (digest, report, wrong) = try_run(kind, seed, true);
        println!("digest {digest:016x}\n{report}");
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        return None;
    }
    let usual = if matches!(kind, Kind::Wide) { FIRST_WIDE } else { 0 };
    let (first, count) = (number("HEKATE_FIRST").unwrap_or(usual), number("HEKATE_SEEDS").unwrap_or(count));
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
