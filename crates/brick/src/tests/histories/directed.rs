//! Histories written by hand: names of data files that a killed process made, and bricks that stop.

use super::check::{Expect, check};
use super::model::key;
use super::run::{Runner, new_machine, open};
use super::steps::Step;
use crate::storage::{CallKind, Fault, FaultError, FaultyStorage, Survivors};
use std::sync::Arc;

/// A killed process may leave a file whose name is not on stable storage: before a mark or a checkpoint covers the
/// file, its directory is synced, whichever process made the file.
fn names_that_a_killed_process_made(steps: &[Step]) {
    let mut runner = Runner::new(new_machine(), Box::new(|machine| Arc::new(machine)));
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
fn a_name_that_a_killed_process_made_before_its_record_is_covered_by_a_mark() {
    names_that_a_killed_process_made(&[
        Step::FreshWithoutRecord { shard: 0, gap: 0, count: 1 },
        Step::Reopen { clean: false },
        Step::Fresh { shard: 0, gap: 0, count: 1, short: 0 },
        Step::SyncShards { shards: 1 },
    ]);
}

#[test]
fn a_name_that_a_killed_checkpoint_made_is_covered_by_the_next() {
    names_that_a_killed_process_made(&[
        Step::Write { shard: 0, first: 0, count: 1, short: 0 },
        // The calls are: sync the journal, make the file, write its bytes.
        Step::Die { calls: 3 },
        Step::Checkpoint,
        Step::Checkpoint,
    ]);
}

/// A checkpoint that failed leaves its changes in the overlay. The next one fails too, since the brick has stopped.
#[test]
fn a_second_checkpoint_of_a_poisoned_brick_fails() {
    let faulty = FaultyStorage::new(new_machine());
    let storage = faulty.clone();
    let mut runner = Runner::new(faulty.inner().clone(), Box::new(move |_| Arc::new(storage.clone())));
    runner.open().unwrap();
    runner.step(&Step::Put { partition: 0, name: 1, bytes: 3 }).unwrap();
    let brick = runner.brick.clone().unwrap();
    faulty.fail(Fault { kind: Some(CallKind::Sync), after: 0, error: FaultError::Io, forever: false });
    brick.checkpoint().unwrap_err();
    let second = brick.checkpoint();
    brick.get(&key(0, "n1")).unwrap_err();
    second.unwrap_err();
}

/// A brick that has stopped syncs no data file.
#[test]
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

/// If the header of the next segment cannot be written, the brick stops, and no append tries again.
#[test]
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
