//! Cuts the power of a recorded history at each of its calls, and checks what recovery finds.

use super::check::{Expect, Found, check};
use super::model::*;
use super::run::{Runner, new_machine, open};
use super::steps::Step;
use crate::storage::{PowerCutStorage, Random, Survivors};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Counts of what was tried.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tried {
    pub cuts: u64,
    /// Power cuts after which the brick was used further.
    pub used_further: u64,
    /// Power cuts during the recovery from an earlier one, or during the use after it.
    pub nested: u64,
}

impl Tried {
    pub fn add(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.used_further += other.used_further;
        self.nested += other.nested;
    }
}

/// The choice of cuts at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoroughness {
    /// All and none of the unsynced changes, and one random choice; some bricks are used further.
    Random(u64),
    /// All and none of the unsynced changes, each alone, and all but each; without what was tried at the call before.
    Each,
}

/// Runs the steps, and cuts the power at each call of `steps`, not at those of the steps in `before`.
pub fn cut_everywhere(before: &[Step], steps: &[Step], how: Thoroughness, with_opening: bool) -> Result<Tried, String> {
    let run = || -> Result<Tried, String> {
        let mut runner = Runner::new(new_machine(), Box::new(|machine| Arc::new(machine)));
        if with_opening {
            runner.machine.record();
        }
        runner.open().map_err(|error| format!("opening a new brick: {error}"))?;
        let step = |runner: &mut Runner, step: &Step| {
            runner.step(step).map_err(|error| format!("{step:?}, without any power cut: {error}"))
        };
        before.iter().try_for_each(|one| step(&mut runner, one))?;
        if !with_opening {
            runner.record();
        }
        steps.iter().try_for_each(|one| step(&mut runner, one))?;
        runner.restart(false).map_err(|error| format!("opening after the last step: {error}"))?;
        cut_recording(&runner, how)
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("of an unknown kind")))
    })
}

fn cut_recording(runner: &Runner, how: Thoroughness) -> Result<Tried, String> {
    let recording = runner.machine.take_recording();
    let mut cuts = recording.cuts();
    let mut tried = Tried::default();
    let mut random = Random::new(if let Thoroughness::Random(seed) = how { seed ^ 0xcc } else { 0 });
    loop {
        let unsynced = cuts.unsynced();
        let mut choices = Vec::new();
        // Only a sync changes what is durable; only another call changes what is visible.
        if cuts.done() == 0 || cuts.was_sync() {
            choices.push(Survivors::Nothing);
        } else {
            choices.push(Survivors::Everything);
        }
        match how {
            Thoroughness::Random(_) if unsynced.is_empty() => {}
            Thoroughness::Random(_) => choices.push(Survivors::Seeded(random.number())),
            // With a single change these two are all and none.
            Thoroughness::Each if unsynced.len() == 1 => {}
            Thoroughness::Each => {
                choices.extend(unsynced.iter().flat_map(|call| [Survivors::Only(*call), Survivors::AllBut(*call)]));
            }
        }
        for survivors in choices {
            let seed = (how != Thoroughness::Each).then(|| random.number());
            let outcome = cut_once(cuts.cut(survivors), runner, cuts.done(), seed);
            let outcome = outcome.map_err(|what| {
                format!("power cut after call {} ({}), {survivors:?}: {what}", cuts.done(), cuts.describe_last())
            });
            tried.add(outcome?);
        }
        if !cuts.step() {
            return Ok(tried);
        }
    }
}

/// Opens the brick after a power cut behind so many calls of the history. With a seed, sometimes uses it further.
fn cut_once(image: PowerCutStorage, runner: &Runner, calls: usize, seed: Option<u64>) -> Result<Tried, String> {
    let mut tried = Tried { cuts: 1, ..Tried::default() };
    let promise = runner.model.promised(calls);
    let expect = Expect {
        states: &runner.model.states,
        low: promise.records,
        high: runner.model.possible(calls).max(promise.records),
        covered: promise.covered,
        marked: promise.covered,
        holes: &Default::default(),
    };
    let goes_on = seed.is_some_and(|seed| seed.is_multiple_of(16));
    let again = seed.filter(|seed| seed.is_multiple_of(48));
    if again.is_some() {
        image.record();
    }
    let (brick, report) = open(Arc::new(image.clone()), true).map_err(|error| format!("opening: {error}"))?;
    let found = check(&brick, &report, &expect)?;
    let opened = image.recorded_calls();
    if goes_on {
        tried.used_further += 1;
        let mut next = Runner::use_further(image, brick, &expect, &found);
        next.model.promise(opened, |_| ());
        use_further(&mut next).map_err(|error| format!("going on with {} records: {error}", found.records))?;
        if let Some(seed) = again {
            tried.nested += 1;
            cut_again(&next, &found, seed).map_err(|what| format!("{} records, and then: {what}", found.records))?;
        }
    }
    Ok(tried)
}

/// A recovered brick takes records of each kind and keeps them. As a server does, it makes a checkpoint before any
/// mark: a mark would also cover the blocks that the power cut took.
fn use_further(runner: &mut Runner) -> hekate_proto::Result<()> {
    let put = Step::Put { partition: 0, name: 9, bytes: 9 };
    let steps = [
        put.clone(),
        Step::Sync,
        Step::Write { shard: 0, first: 1, count: 1, short: 9 },
        Step::Fresh { shard: 1, gap: 1, count: 2, short: 9 },
        Step::Checkpoint,
        Step::Fresh { shard: 1, gap: 0, count: 1, short: 0 },
        Step::SyncShards { shards: 2 },
        put,
        Step::Reopen { clean: false },
    ];
    steps.iter().try_for_each(|step| runner.step(step))
}

/// Cuts the power again, at any call of the recovery or of the use after it.
fn cut_again(runner: &Runner, first: &Found, seed: u64) -> Result<(), String> {
    let recording = runner.machine.take_recording();
    let mut random = Random::new(seed);
    let calls = 1 + random.below(recording.len() as u64) as usize;
    let mut cuts = recording.cuts();
    while cuts.done() < calls && cuts.step() {}
    let survivors = Survivors::Seeded(random.number());
    let image = cuts.cut(survivors);
    let what = |what: String| format!("cut again after call {calls} ({}), {survivors:?}: {what}", cuts.describe_last());
    let promise = runner.model.promised(calls);
    let expect = Expect {
        states: &runner.model.states,
        low: promise.records.max(first.records),
        high: runner.model.possible(calls).max(first.records).max(promise.records),
        covered: promise.covered.map(|covered| covered.max(first.records)),
        marked: promise.covered,
        holes: &first.holes,
    };
    let (brick, report) = open(Arc::new(image), true).map_err(|error| what(format!("opening: {error}")))?;
    check(&brick, &report, &expect).map_err(what)?;
    Ok(())
}

/// A shorter history that fails too.
pub fn shrink(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> Option<String>) -> (Vec<Step>, Option<String>) {
    let mut why = None;
    loop {
        let without = |at: usize| [&steps[..at], &steps[at + 1..]].concat();
        let shorter = (0..steps.len()).rev().find_map(|at| fails(&without(at)).map(|what| (without(at), what)));
        match shorter {
            Some((fewer, what)) => (steps, why) = (fewer, Some(what)),
            None => return (steps, why),
        }
    }
}

/// The steps as text, one a line.
pub fn describe(steps: &[Step]) -> String {
    steps.iter().enumerate().map(|(number, step)| format!("  {number}: {step:?}\n")).collect()
}

const _: () = assert!(PARTITIONS <= 8, "a step names shards by the bits of a byte");
