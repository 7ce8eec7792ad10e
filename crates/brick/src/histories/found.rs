//! What the histories found in the brick and is not repaired yet, each as the shortest history. `Runner::hides_found`
//! keeps it from hiding everything else; both go with the repair.

use super::check::{Expect, check};
use super::model::key;
use super::run::{Runner, new_machine, open};
use super::steps::Step;
use crate::storage::{CallKind, Fault, FaultError, FaultyStorage, Survivors};
use std::sync::Arc;

/// `Home` syncs a directory only if this process made the file, or a `FreshBlocks` of the log names it. A file that a
/// killed process made for something else is taken as named: a mark or a checkpoint covers it, and a power cut takes it.
fn names_that_a_killed_process_made(steps: &[Step]) {
    let mut runner = Runner::new(new_machine(), Box::new(|machine| Arc::new(machine)));
    runner.hides_found = false;
    runner.open().unwrap();
    steps.iter().for_each(|step| runner.step(step).unwrap());
    let promise = runner.model.promised(usize::MAX);
    let expect = Expect {
        states: &runner.model.states,
        low: promise.records,
        high: runner.model.records(),
        covered: promise.covered,
        marked: promise.covered,
        holes: &Default::default(),
    };
    let (brick, report) = open(Arc::new(runner.machine.after_power_cut(Survivors::Nothing)), true).unwrap();
    check(&brick, &report, &expect).unwrap();
}

#[test]
#[ignore = "found: a mark covers a file whose name is not on stable storage"]
fn a_name_that_a_killed_process_made_before_its_record_is_covered_by_a_mark() {
    names_that_a_killed_process_made(&[
        Step::FreshUntold { shard: 0, gap: 0, count: 1 },
        Step::Reopen { clean: false },
        Step::Fresh { shard: 0, gap: 0, count: 1, short: 0 },
        Step::SyncShards { shards: 1 },
    ]);
}

#[test]
#[ignore = "found: a checkpoint covers a file whose name is not on stable storage"]
fn a_name_that_a_killed_checkpoint_made_is_covered_by_the_next() {
    names_that_a_killed_process_made(&[
        Step::Write { shard: 0, first: 0, count: 1, short: 0 },
        // The sync of the journal, the file, its bytes, and no more.
        Step::Die { calls: 3 },
        Step::Checkpoint,
        Step::Checkpoint,
    ]);
}

/// `Brick::checkpoint` freezes what is active though an earlier checkpoint failed: the changes that this one had frozen
/// vanish from what the brick reads, and with nothing active left it answers that all is well.
#[test]
#[ignore = "found: a second checkpoint of a brick that has stopped answers Ok, and forgets what the first had frozen"]
fn a_second_checkpoint_of_a_brick_that_stopped_says_so() {
    let faulty = FaultyStorage::new(new_machine());
    let storage = faulty.clone();
    let mut runner = Runner::new(faulty.inner().clone(), Box::new(move |_| Arc::new(storage.clone())));
    runner.open().unwrap();
    runner.step(&Step::Put { partition: 0, name: 1, bytes: 3 }).unwrap();
    let brick = runner.brick.clone().unwrap();
    faulty.fail(Fault { kind: Some(CallKind::Sync), after: 0, error: FaultError::Io, forever: false });
    brick.checkpoint().unwrap_err();
    let second = brick.checkpoint();
    assert!(brick.get(&key(0, "n1")).unwrap().is_some(), "a change that was taken is gone from memory");
    second.unwrap_err();
}

/// `Brick::sync_shards` does not ask whether the brick has stopped before it syncs data files. Nothing is acknowledged,
/// since the mark is refused.
#[test]
#[ignore = "found: a brick that has stopped syncs a data file again whose sync failed"]
fn a_failed_sync_of_a_data_file_is_not_tried_again() {
    let faulty = FaultyStorage::new(new_machine());
    let storage = faulty.clone();
    let mut runner = Runner::new(faulty.inner().clone(), Box::new(move |_| Arc::new(storage.clone())));
    runner.open().unwrap();
    runner.step(&Step::Fresh { shard: 0, gap: 0, count: 1, short: 0 }).unwrap();
    faulty.fail(Fault { kind: Some(CallKind::Sync), after: 0, error: FaultError::Io, forever: false });
    runner.try_step(&Step::SyncShards { shards: 1 }).unwrap_err();
    runner.try_step(&Step::SyncShards { shards: 1 }).unwrap_err();
    assert_eq!(faulty.retried_syncs(), Vec::<String>::new());
}

/// `Journal::next_segment` answers `Poisoned` if the next segment's header cannot be written, and does not stop: the
/// next append tries again.
#[test]
#[ignore = "found: a brick says that it has stopped, and goes on"]
fn a_segment_that_cannot_be_begun_poisons_the_brick() {
    let faulty = FaultyStorage::new(new_machine());
    let storage = faulty.clone();
    let mut runner = Runner::new(faulty.inner().clone(), Box::new(move |_| Arc::new(storage.clone())));
    runner.open().unwrap();
    runner.step(&Step::Put { partition: 0, name: 1, bytes: 40_000 }).unwrap();
    faulty.fail(Fault { kind: Some(CallKind::Write), after: 0, error: FaultError::Io, forever: false });
    runner.try_step(&Step::Put { partition: 0, name: 2, bytes: 40_000 }).unwrap_err();
    assert!(runner.brick.as_ref().unwrap().status().unwrap().poisoned.is_some());
}
