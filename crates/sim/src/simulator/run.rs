//! A run: a cluster is made, clients work while faults occur, then faults end and the cluster must become whole.

use crate::simulator::clients::objects::all_keys;
use crate::simulator::clients::workload::list;
use crate::simulator::report::Report;
use crate::simulator::servers::VOLUME_NAME;
use crate::simulator::servers::coordinator::AtHand;
use crate::simulator::servers::surroundings::address_of;
use crate::simulator::settings::Settings;
use crate::simulator::settings::workload::Micros;
use crate::simulator::world::{Event, Server, World};
use hekate_cluster::{BrickInfo, Coordinator, FIRST_SERVER, Registry, RingRecord, RingWish, ServerInfo, VolumeInfo};
use hekate_proto::map::Mode;
use hekate_proto::*;
use std::sync::Arc;

/// Faults end after this time, if clients have not finished before, in µs.
const FAULTS_MAX: Micros = 60_000_000;
/// Calls that a user of a vDisk makes after all faults have ended.
const CALLS_AFTER: u32 = 3;
/// Longest time in which a cluster becomes whole again, in µs.
const WHOLE_MAX: Micros = 120_000_000;
/// Time between two looks whether it is whole, in µs.
const LOOK: Micros = 200_000;

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
    let mut world = World::new(settings, trace);
    make_cluster(&mut world)?;
    let ended = whole_run(&mut world);
    let mut wrong = std::mem::take(&mut world.wrong);
    wrong.extend(ended.err());
    if wrong.is_empty() {
        wrong = world.judge();
    }
    world.report.add("simulated milliseconds", world.now / 1000);
    Ok(Outcome { digest: world.digest(), report: std::mem::take(&mut world.report), wrong })
}

/// The records of a cluster, and new disks.
pub(super) fn make_cluster(world: &mut World) -> Result<()> {
    let at_hand = Arc::new(AtHand(world.store.clone()));
    let registry = Registry::new(at_hand.clone());
    registry.create_cluster("c")?;
    let (settings, mut first) = (world.settings.clone(), Vec::new());
    for number in 0..settings.servers {
        let bricks = make_disks(world, number)?;
        let server = ServerId(number + FIRST_SERVER.0);
        if server == FIRST_SERVER {
            first = bricks;
            registry.create_pool("p", &first)?;
            continue;
        }
        let endpoints = vec![address_of(number)];
        let info = ServerInfo { endpoints, ..ServerInfo::new(server) };
        registry.join(&info, &bricks)?;
    }
    registry.announce(&[address_of(0)], &std::collections::BTreeMap::new())?;
    debug_assert!(!first.is_empty());
    let ring = registry.ring_for("p", settings.copies, RingWish::default())?;
    leave_out_partitions(&at_hand, settings.workload.partitions)?;
    registry
        .create_volume(VolumeInfo {
            volume: VolumeId(0),
            name: VOLUME_NAME.into(),
            pool: "p".into(),
            ring: ring.ring,
            copies: settings.copies,
            owner_uid: 0,
            allowed_uids: Vec::new(),
            graph: Default::default(),
            deleting: false,
            spread: settings.workload.spread_max.min(settings.workload.partitions),
            mode: Mode::Hsr,
            creation: Default::default(),
        })
        .map(|_| ())
}

/// Adds a server and its disks. Returns the records of its bricks.
fn make_disks(world: &mut World, number: u32) -> Result<Vec<BrickInfo>> {
    let (disks, links, connected, leg_sent) = Default::default();
    let machine = number % world.settings.workload.machines;
    let (boot, runs, node, is_to_restart) = (0, false, None, false);
    let server = Server { machine, disks, boot, runs, node, links, connected, leg_sent, is_to_restart };
    world.servers.push(server);
    let count = world.settings.workload.bricks_per_server;
    (0..count).map(|disk| world.make_brick(number, format!("/disk-{number}-{disk}"), "p".into())).collect()
}

/// Leaves a new ring this many partitions.
fn leave_out_partitions(coordinator: &AtHand, count: u32) -> Result<()> {
    let (ring, views) = ("/rings/00001", "/rings/00001/views/");
    let text = coordinator.get(ring)?.ok_or_else(|| Error::bug("there is no ring"))?;
    let malformed = |error: serde_json::Error| Error::bug(error.to_string());
    let mut record: RingRecord = serde_json::from_str(&text).map_err(malformed)?;
    record.placed.truncate(count as usize);
    let text = serde_json::to_string(&record).map_err(malformed)?;
    let keys = coordinator.list(views)?.pairs.into_iter().map(|(key, _)| key).skip(count as usize);
    let keys: Vec<String> = keys.collect();
    let removed = keys.iter().map(|key| (&key[..], None));
    coordinator.transact(&[], &removed.chain([(ring, Some(&text[..]))]).collect::<Vec<_>>()).map(|_| ())
}

/// Starts all servers.
pub(super) fn start(world: &mut World) -> std::result::Result<(), String> {
    (0..world.settings.servers).for_each(|server| world.after(0, Event::Start { server }));
    world.after(1, Event::Watch);
    become_whole(world)
}

fn whole_run(world: &mut World) -> std::result::Result<(), String> {
    start(world)?;
    for client in 0..world.settings.clients {
        let is_visitor = world.settings.workload.visitors && client > 0;
        world.join(world.settings.calls_per_client / if is_visitor { 8 } else { 1 }, false);
    }
    world.faults_on = world.settings.faults.every > 0;
    if world.faults_on {
        world.after(1, Event::Fault);
        // A leader refuses locks while it does not know what a session holds that it has not heard of for 3 s.
        world.lose_session();
    }
    world.disks.is_async = world.settings.disks.as_ref().is_some_and(|disks| disks.is_async);
    let end = world.now + world.settings.disks.as_ref().map_or(FAULTS_MAX, |disks| disks.faults_max);
    while world.now < end && !world.is_quiet() {
        next(world)?;
    }
    world.heal();
    if world.settings.disks.is_some() {
        world.people.iter_mut().for_each(|one| one.calls_left = one.calls_left.min(CALLS_AFTER));
    }
    become_whole(world)?;
    examine(world)
}

/// A client reads the whole volume.
pub(super) fn examine(world: &mut World) -> std::result::Result<(), String> {
    let examiner = world.join(0, true);
    world.people[examiner as usize].script.push_back(list(ROOT));
    if world.settings.disks.is_none() {
        world.people[examiner as usize].script.push_back(Op::Name { op: all_keys() });
    }
    become_whole(world)
}

fn next(world: &mut World) -> std::result::Result<(), String> {
    match world.step() {
        true => Ok(()),
        false => Err("it ended early".into()),
    }
}

pub(super) fn become_whole(world: &mut World) -> std::result::Result<(), String> {
    let (end, mut looked) = (world.now + WHOLE_MAX, world.now);
    loop {
        next(world)?;
        if world.now < looked + LOOK {
            continue;
        }
        looked = world.now;
        if world.is_quiet() && world.what_is_left().is_empty() {
            return Ok(());
        }
        if world.now > end {
            return Err(format!("it does not become whole: {:#?}", world.what_is_left()));
        }
    }
}
