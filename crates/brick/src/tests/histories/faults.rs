//! Each call of some histories fails once: the brick stops or reports the error, and keeps what it acknowledged.

use super::check::{Expect, check};
use super::cuts::describe;
use super::run::{Runner, new_machine, open};
use super::steps::Step;
use super::{Tried, on_all_processors};
use crate::storage::{Fault, FaultError, FaultyStorage, PowerCutStorage, Survivors};
use hekate_proto::Error;
use std::sync::Arc;

/// Histories without a reopening. Together they make every kind of call.
fn histories() -> Vec<Vec<Step>> {
    let put = |name| Step::Put { partition: 1, name, bytes: 30 };
    let fresh = |shard| Step::Fresh { shard, gap: 1, count: 3, short: 7 };
    let write = |first| Step::Write { shard: 0, first, count: 2, short: 0 };
    let sync_all = Step::SyncShards { shards: 7 };
    let kinds = vec![
        put(0),
        Step::Sync,
        fresh(0),
        sync_all.clone(),
        write(1),
        Step::Checkpoint,
        Step::Cut { shard: 0, bytes: 4100 },
        fresh(1),
        Step::Checkpoint,
        fresh(1),
        Step::Drop { shard: 0 },
        sync_all.clone(),
        Step::Checkpoint,
        write(0),
        Step::Sync,
    ];
    let around = vec![
        fresh(0),
        Step::CheckpointAround(vec![put(1), fresh(0), write(0), sync_all.clone()]),
        put(2),
        sync_all,
        Step::Checkpoint,
    ];
    let large = |name| Step::Put { partition: 2, name, bytes: 20_000 };
    let segments = (0..9).flat_map(|name| [large(name), Step::Sync]).collect();
    vec![kinds, around, segments]
}

const ERRORS: [FaultError; 3] = [FaultError::Io, FaultError::NoSpace, FaultError::ShortWrite];

/// Runs the history with one failing call. Returns false if there was no such call.
fn with_fault(steps: &[Step], fault: Fault) -> Result<bool, String> {
    let faulty = FaultyStorage::new(new_machine());
    faulty.fail(fault);
    let machine = faulty.inner().clone();
    let storage = faulty.clone();
    let mut runner = Runner::new(machine.clone(), Box::new(move |_| Arc::new(storage.clone())));
    let opened = runner.open();
    if opened.is_ok() {
        for step in steps {
            // A server still calls sync and checkpoint on a brick that has stopped.
            let stopped = is_poisoned(&runner)?;
            if stopped && !matches!(step, Step::Sync | Step::SyncShards { .. } | Step::Checkpoint) {
                continue;
            }
            if let Err(error) = runner.try_step(step) {
                must_be_reported(&runner, &faulty, step, error)?;
            }
        }
    } else if let Err(error @ Error::Bug { .. }) = opened {
        return Err(format!("opening: {error}"));
    }
    runner.brick = None;
    let Some(struck) = faulty.struck() else { return Ok(false) };
    let failed = |what: String| format!("{struck}: {what}");
    if !faulty.retried_syncs().is_empty() {
        return Err(failed(format!("synced again after a failed sync: {:?}", faulty.retried_syncs())));
    }
    for survivors in [Survivors::Nothing, Survivors::Everything, Survivors::Seeded(fault.after)] {
        after_power_cut(&machine, &runner, survivors).map_err(|what| failed(format!("{survivors:?}: {what}")))?;
    }
    runner.wrap = Box::new(|machine| Arc::new(machine));
    runner.restart(false).map_err(|error| failed(error.to_string()))?;
    Ok(true)
}

fn is_poisoned(runner: &Runner) -> Result<bool, String> {
    let brick = runner.brick.as_ref().ok_or("there is no brick")?;
    Ok(brick.status().map_err(|error| error.to_string())?.poisoned.is_some())
}

/// After a step that failed: the brick has stopped, or nothing has changed and it continues.
fn must_be_reported(
    runner: &Runner,
    faulty: &FaultyStorage<PowerCutStorage>,
    step: &Step,
    error: Error,
) -> Result<(), String> {
    let failed = |what: &str| Err(format!("{step:?} fails with {error}, and {what}"));
    if faulty.struck().is_none() {
        return failed("no call had failed");
    }
    let Some(brick) = &runner.brick else { return failed("there is no brick") };
    let promised = runner.model.promised(usize::MAX).records;
    let poisoned = is_poisoned(runner)?;
    match (&error, poisoned) {
        (Error::Bug { .. }, _) => failed("that is a bug"),
        (_, true) if runner.model.appended > promised && brick.sync(runner.end).is_ok() => {
            failed("a sync is acknowledged after it")
        }
        (_, true) if runner.takes_a_record(brick) => failed("a record is taken after it"),
        (_, true) => Ok(()),
        (Error::NoSpace { .. }, false) if runner.model.appended == runner.model.records() => Ok(()),
        (_, false) => failed("the brick continues"),
    }
}

fn after_power_cut(machine: &PowerCutStorage, runner: &Runner, survivors: Survivors) -> Result<(), String> {
    let promise = runner.model.promised(usize::MAX);
    let expect = Expect {
        states: &runner.model.states,
        low: promise.records,
        high: runner.model.records(),
        covered: promise.covered,
        marked: promise.covered,
        holes: &Default::default(),
    };
    let image = Arc::new(machine.after_power_cut(survivors));
    let (brick, report) = open(image, true).map_err(|error| format!("opening: {error}"))?;
    check(&brick, &report, &expect).map(|_| ())
}

#[test]
fn whichever_call_fails_nothing_acknowledged_is_lost() {
    let histories = histories();
    let kinds = ERRORS.len() as u64 * 2;
    let one = |number: u64| {
        let steps = &histories[(number / kinds) as usize];
        let (error, forever) = (ERRORS[(number % kinds / 2) as usize], number % 2 == 1);
        let mut tried = Tried::default();
        for after in 0.. {
            let fault = Fault { kind: None, after, error, forever };
            match with_fault(steps, fault) {
                Ok(true) => tried.cuts += 1,
                Ok(false) => break,
                Err(what) => return Err(format!("{fault:?}: {what}\n{}", describe(steps))),
            }
        }
        Ok(tried)
    };
    match on_all_processors(histories.len() as u64 * kinds, one) {
        Ok(tried) => println!("{} faults", tried.cuts),
        Err((_, what)) => panic!("{what}"),
    }
}
