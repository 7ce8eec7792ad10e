//! A run: a cluster is made, clients work while faults occur, then faults end and the cluster must become whole.

use super::coordinator::{RING, VOLUME};
use super::report::Report;
use super::settings::{Micros, Settings};
use super::workload::list;
use super::world::{Event, World};
use hekate_proto::*;
use hekate_replica::{Ask, Commit, root_directory};

/// Longest simulated time in which a cluster starts, or becomes whole again, in µs.
const WHOLE_MAX: Micros = 30_000_000;
/// Faults end after this time, if clients have not finished before, in µs.
const FAULTS_MAX: Micros = 8_000_000;

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub report: Report,
    /// Equal for equal seeds.
    pub digest: u64,
    /// Complaints.
    pub wrong: Vec<String>,
}

/// Runs the cluster of these settings.
///
/// # Errors
///
/// The cluster cannot be made. Violations are in the outcome.
pub fn run(settings: Settings, trace: bool) -> Result<Outcome> {
    if trace {
        println!("{settings:#?}");
    }
    let mut world = World::new(settings, trace)?;
    let ended = whole_run(&mut world);
    let mut wrong = std::mem::take(&mut world.wrong);
    wrong.extend(ended.err());
    if wrong.is_empty() {
        wrong = world.judge();
    }
    world.report.add("simulated milliseconds", world.now / 1000);
    Ok(Outcome { digest: world.digest(), report: std::mem::take(&mut world.report), wrong })
}

fn whole_run(world: &mut World) -> std::result::Result<(), String> {
    begin(world)?;
    for client in 0..world.settings.clients {
        let is_visitor = world.settings.visitors && client > 0;
        let calls = world.settings.calls_per_client / if is_visitor { 8 } else { 1 };
        world.join(calls, false);
    }
    world.faults_on = world.settings.faults.every > 0;
    if world.faults_on {
        let delay = world.delay(world.settings.faults.every);
        world.after(delay, Event::Fault);
    }
    let end = world.now + FAULTS_MAX;
    while world.now < end && !world.is_quiet() {
        next(world)?;
    }
    world.heal();
    become_whole(world)?;
    examine(world)
}

/// A client reads the whole volume.
pub(super) fn examine(world: &mut World) -> std::result::Result<(), String> {
    let examiner = world.join(0, true);
    world.people[examiner as usize].script.push_back(list(ROOT));
    become_whole(world)
}

fn next(world: &mut World) -> std::result::Result<(), String> {
    match world.step() {
        true => Ok(()),
        false => Err("it ended early".into()),
    }
}

/// Servers start, and the volume gets its root.
pub(super) fn begin(world: &mut World) -> std::result::Result<(), String> {
    (0..world.settings.servers).for_each(|server| world.after(0, Event::Start { server }));
    next(world)?;
    become_whole(world)?;
    let ask = Ask::new(RING, world.settings.partitions, VOLUME, (SYSTEM_SESSION, OpId(0)), Time(0));
    let commit = Commit { changes: root_directory(&ask, 0, 0), ..Commit::default() };
    let root = ROOT.position().partition(world.settings.partitions);
    let Some((server, at)) = world.leader_of(root) else { return Err("the root has no leader".into()) };
    world.act_in(server, None, |process, now| process.change(at, commit, now));
    become_whole(world)?;
    for server in 0..world.settings.servers {
        world.act_in(server, None, |process, _| process.bricks.values().try_for_each(|brick| brick.sync(brick.end())));
    }
    Ok(())
}

pub(super) fn become_whole(world: &mut World) -> std::result::Result<(), String> {
    let end = world.now + WHOLE_MAX;
    let mut looked = world.now;
    loop {
        next(world)?;
        if world.now < looked + world.settings.tick {
            continue;
        }
        looked = world.now;
        if world.is_quiet() && world.is_whole() {
            return Ok(());
        }
        if world.now > end {
            return Err(format!("it does not become whole: {:#?}", world.what_is_left()));
        }
    }
}
