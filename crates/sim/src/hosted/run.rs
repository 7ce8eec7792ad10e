//! A run: a cluster is made, clients work while faults occur, then faults end and the cluster must become whole.

use super::coordinator::AtHand;
use super::servers::VOLUME_NAME;
use super::settings::Settings;
use super::world::{Event, Server, World};
use crate::cluster::Outcome;
use crate::cluster::disk::Disk;
use crate::cluster::settings::Micros;
use crate::cluster::workload::list;
use hekate_brick::Identity;
use hekate_cluster::{BrickInfo, FIRST_SERVER, Registry, RingWish, ServerInfo, VolumeInfo};
use hekate_proto::map::Mode;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Faults end after this time, if clients have not finished before, in µs.
const FAULTS_MAX: Micros = 60_000_000;
/// Longest time in which a cluster becomes whole again, in µs.
const WHOLE_MAX: Micros = 120_000_000;
/// Time between two looks whether it is whole, in µs.
const LOOK: Micros = 200_000;

/// Runs the cluster of these settings.
///
/// # Errors
///
/// The cluster cannot be made. Violations are in the outcome.
pub fn run(settings: Settings, trace: bool) -> Result<Outcome> {
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

/// The records of a cluster with a brick on each server, and new disks.
fn make_cluster(world: &mut World) -> Result<()> {
    let registry = Registry::new(Arc::new(AtHand(world.store.clone())));
    registry.create_cluster("c")?;
    let brick = |server: u32| BrickInfo {
        brick: BrickId(u128::from(server) + 1),
        directory: format!("disk-{server}"),
        pool: "p".into(),
        weight: 1 << 30,
        server: ServerId(server + 1),
        incarnation: Incarnation(1),
        openings: 0,
        unopened: false,
    };
    let servers = world.settings.servers;
    registry.create_pool("p", &[brick(0)])?;
    for server in 1..servers {
        let number = ServerId(server + FIRST_SERVER.0);
        let info = ServerInfo {
            server: number,
            name: ServerInfo::name_of(number),
            endpoints: Vec::new(),
            networks: Default::default(),
            announced: Default::default(),
        };
        registry.join(&info, &[brick(server)])?;
    }
    let (copies, spread) = (world.settings.copies, world.settings.workload.spread_max);
    let ring = registry.ring_for("p", copies, RingWish::default())?;
    registry.create_volume(VolumeInfo {
        volume: VolumeId(0),
        name: VOLUME_NAME.into(),
        pool: "p".into(),
        ring: ring.ring,
        copies,
        owner_uid: 0,
        allowed_uids: Vec::new(),
        layers: Vec::new(),
        deleting: false,
        spread,
        mode: Mode::Hsr,
        creation: Default::default(),
    })?;
    for server in 0..servers {
        let brick = brick(server).brick;
        let disk = Disk::new(Identity::new(brick, "c", world.settings.workload.brick))?;
        let (links, connected) = (BTreeMap::new(), BTreeSet::new());
        world.servers.push(Server { brick, disk, boot: 0, runs: false, node: None, links, connected });
    }
    Ok(())
}

fn whole_run(world: &mut World) -> std::result::Result<(), String> {
    (0..world.settings.servers).for_each(|server| world.after(0, Event::Start { server }));
    become_whole(world)?;
    (0..world.settings.clients).for_each(|_| _ = world.join(world.settings.calls_per_client, false));
    world.faults_on = world.settings.faults_every > 0;
    if world.faults_on {
        world.after(1, Event::Fault);
    }
    let end = world.now + FAULTS_MAX;
    while world.now < end && !world.is_quiet() {
        next(world)?;
    }
    world.heal();
    become_whole(world)?;
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

fn become_whole(world: &mut World) -> std::result::Result<(), String> {
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
