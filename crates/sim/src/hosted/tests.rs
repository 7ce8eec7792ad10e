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

/// Events that 300 seeds of everything must reach, each. The branches are those that replicas name.
const REACHED: [&str; 79] = [
    "branch: a fast write",
    "branch: a fast write is refused by the leader",
    "branch: a learner goes on with its log",
    "branch: a learner has healed",
    "branch: a learner is compared from the beginning",
    "branch: a learner's log goes on elsewhere",
    "branch: a leg meets a busy op",
    "branch: a leg meets a hold",
    "branch: a leg of another view",
    "branch: a loose fast write",
    "branch: a member has room again",
    "branch: a member's journal has no room",
    "branch: a read asks whether a fast write is everywhere",
    "branch: a read closes a shard",
    "branch: a record comes early",
    "branch: a record is refused for want of room",
    "branch: a record waits for a shard to be closed",
    "branch: a retry is answered from its slot",
    "branch: a retry joins what it repeats",
    "branch: a session has yet to tell its locks",
    "branch: a shard is reconciled",
    "branch: a view without memory is to have one member",
    "branch: an fsync reports a loss",
    "branch: an op has legs after its commit point",
    "branch: an op is undone and answered",
    "branch: an op is undone and begins again",
    "branch: an op waits for what another holds",
    "branch: legs are sent again",
    "branch: levelling: a lost block is settled",
    "branch: levelling: a member is fed",
    "branch: levelling: a view is to begin",
    "branch: levelling: no room for what is fetched",
    "branch: levelling: replicas are compared",
    "branch: levelling: the leader fetches",
    "branch: nothing is loose any more",
    "branch: recovery: an intent is undone",
    "branch: shards are closed",
    "branch: shards are synced before they are closed",
    "branch: the leader's journal has no room",
    "branch: times are answered before all have them",
    "branch: times of files that were being written are renewed",
    "bricks that stopped",
    "bricks that were refused as older copies",
    "bricks that were replaced",
    "fault: a call of the coordinator is lost",
    "fault: a clock is set",
    "fault: a disk that is lost",
    "fault: a flipped bit",
    "fault: a journal that rots",
    "fault: a journal with an unreadable sector",
    "fault: a misdirected write",
    "fault: a packet doubled",
    "fault: a packet lost",
    "fault: a server is stopped",
    "fault: a slow packet",
    "fault: all are killed",
    "fault: an answer of the coordinator is lost",
    "fault: an older copy of a disk",
    "fault: client death",
    "fault: connection cut",
    "fault: coordinator cut",
    "fault: failed sync",
    "fault: full disk",
    "fault: full disk without any room",
    "fault: kill",
    "fault: link reset",
    "fault: network cut",
    "fault: network cut one way",
    "fault: pause",
    "fault: power cut",
    "fault: power cut of all",
    "fault: the coordinator answers slowly",
    "fault: the coordinator executes a call late",
    "fault: the coordinator is not reached",
    "fault: the next write is misdirected",
    "locks that were waited for",
    "notifications of locks",
    "power cuts after which each partition had its memory",
    "power cuts after which no replica had its memory",
];

#[test]
fn hosted_runs_become_whole() {
    must_reach(try_seeds(Kind::Wide), &REACHED);
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
    must_reach(try_seeds(Kind::Late), &["branch: a rival comes"]);
}

#[test]
fn hosted_legs_become_whole() {
    try_seeds(Kind::Legs);
}

#[test]
fn hosted_splits_become_whole() {
    let reached = ["fault: a server is split off", "reads at a server that is split off"];
    must_reach(try_seeds(Kind::Splits), &reached);
}

#[test]
fn hosted_journals_become_whole() {
    must_reach(try_seeds(Kind::Journals), &["fault: a journal that rots"]);
}

#[test]
fn hosted_locks_become_whole() {
    try_seeds(Kind::Locks);
}

/// Fails if 300 seeds or more have not reached one of the events.
fn must_reach(ran: Option<(Report, u64)>, events: &[&str]) {
    let Some((sum, count)) = ran else { return };
    let missed: Vec<&&str> = events.iter().filter(|what| sum.of(what) == 0).collect();
    assert!(count < 300 || missed.is_empty(), "never reached: {missed:?}");
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
