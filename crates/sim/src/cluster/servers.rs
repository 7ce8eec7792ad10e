//! Server processes in the world: they start, act and die.

use super::coordinator::RING;
use super::host::{Effect, Parts, Process};
use super::keeper::Lease;
use super::threads::{Answer, MessageNumber};
use super::world::{Event, World, trace};
use hekate_brick::Brick;
use hekate_brick::storage::Survivors;
use hekate_proto::*;
use hekate_replica::{Address, Around, BlockAt, Partition, Retention, SyncJob};
use hekate_transport::link::{Boot, LinkSettings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest time that a server is down, in µs.
const DOWN_MAX: u64 = 100_000;
/// Longest time until the other servers know a change of the coordinator, in µs.
const LEARN_MAX: u64 = 20_000;

impl World {
    /// Starts a process.
    pub fn start(&mut self, server: u32) {
        self.servers[server as usize].starting = false;
        if self.servers[server as usize].process.is_some() {
            return;
        }
        self.boots += 1;
        let boot = Boot(self.boots);
        trace!(self, "server {server} starts, boot {}", boot.0);
        self.new_leaders();
        let opened = self.replace_wiped(server).and_then(|()| self.open_server(server, boot));
        match opened {
            Ok(()) => {
                let delay = self.delay(self.settings.tick);
                self.after(delay, Event::Tick { server, boot });
                if self.settings.lease > 0 {
                    self.after(0, Event::Keep { server, boot });
                }
            }
            Err(error) => self.start_failed(server, error),
        }
    }

    fn start_failed(&mut self, server: u32, error: Error) {
        trace!(self, "server {server} does not start: {error}");
        let bricks = self.servers[server as usize].bricks.clone();
        let dead = bricks.iter().any(|brick| self.disks[brick].is_dead());
        let failed = bricks.iter().any(|brick| self.disks[brick].take_failed());
        let refused = matches!(error, Error::Damaged { .. }) && self.put_back_newer(server);
        let has_no_room =
            matches!(error, Error::NoSpace { .. }) && bricks.iter().any(|brick| self.disks[brick].is_taken());
        if has_no_room {
            // The reserve for openings is used up. An operator makes room.
            self.report.count("starts that found no room at all");
            bricks.iter().for_each(|brick| self.disks[brick].empty());
        }
        if !dead && !failed && !refused && !has_no_room {
            self.wrong.push(format!("server {server} does not start: {error}"));
        }
        self.report.count("fault: a start that failed");
        self.kill(server);
    }

    fn open_server(&mut self, server: u32, boot: Boot) -> Result<()> {
        let (mut bricks, mut retention, mut lives) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for id in self.servers[server as usize].bricks.clone() {
            let seed = self.random.number();
            let seen = self.coordinator.openings.get(&id).copied().unwrap_or_default();
            let (brick, report) = self.disk(id).open(seed, seen)?;
            if self.disk(id).is_older_copy() {
                self.wrong.push(format!("an older copy of brick {} is served", id.0));
            }
            self.coordinator.openings.insert(id, brick.generation());
            retention.insert(id, Retention::of(&brick)?);
            if report.stopped.is_some() {
                self.lose_memory(&BTreeSet::from([id]));
            }
            self.report.add("blocks that a power cut took", report.lost.len() as u64);
            self.report.add("journal tails torn off", u64::from(report.torn.is_some()));
            let block = |lost: &hekate_brick::LostBlock| BlockAt { shard: lost.shard, block: lost.block };
            self.coordinator.add_lost(id, report.lost.iter().map(block));
            // As in the server's `Node::load`.
            if !brick.has_covered_recovery() {
                match brick.checkpoint() {
                    Err(Error::NoSpace { .. }) => self.report.count("bricks that open without room for a checkpoint"),
                    written => written?,
                }
            }
            lives.insert(id, brick.incarnation());
            bricks.insert(id, Arc::new(brick));
        }
        self.coordinator.lives.extend(&lives);
        if self.settings.lease == 0 && self.coordinator.renew_incarnations(&lives) {
            self.report.count("new views");
            for other in 0..self.settings.servers {
                let delay = self.delay(LEARN_MAX);
                self.after(delay, Event::LearnViews { server: other });
            }
        }
        let mut process = self.new_process(server, boot, bricks, retention);
        let partitions = self.partitions(&process)?;
        process.start(partitions, self.now);
        self.servers[server as usize].process = Some(process);
        self.act_in(server, None, |_, _| {});
        Ok(())
    }

    fn new_process(
        &mut self,
        server: u32,
        boot: Boot,
        bricks: BTreeMap<BrickId, Arc<Brick>>,
        retention: BTreeMap<BrickId, Retention>,
    ) -> Process {
        let mut places = BTreeMap::new();
        for (number, server) in self.servers.iter().enumerate() {
            places.extend(server.bricks.iter().map(|brick| (*brick, ServerId(number as u32 + 1))));
        }
        let link = LinkSettings {
            resend_after: Some(Duration::from_micros(self.settings.network.delay_max * 3 + 5_000)),
            give_up_after: Duration::from_millis(400),
            ..LinkSettings::default()
        };
        let views = self.coordinator.ring.views.clone();
        let clock = self.clocks[server as usize];
        let (server, spread_max) = (ServerId(server + 1), self.settings.spread_max);
        let lease = if self.settings.lease == 0 { Lease::endless() } else { Lease::new(self.now) };
        Process::new(Parts { server, boot, bricks, retention, views, places, link, clock, spread_max, lease })
    }

    fn partitions(&self, process: &Process) -> Result<Vec<Partition>> {
        let mut partitions = Vec::new();
        let count = process.views.len() as u32;
        for partition in (0..count).map(PartitionNumber) {
            for id in self.coordinator.ring.placed(partition) {
                let Some(brick) = process.bricks.get(&id) else { continue };
                let own = Address { partition, brick: id };
                let around = Around { brick, views: &process.views, now: Time(0) };
                partitions.push(Partition::new(RING, own, &around, self.coordinator.lost_of(own, count))?);
            }
        }
        Ok(partitions)
    }

    pub fn disk(&mut self, id: BrickId) -> &mut super::disk::Disk {
        match self.disks.get_mut(&id) {
            Some(disk) => disk,
            None => unreachable!("every brick has a disk"),
        }
    }

    /// Runs an action in a process, if it is still that one; then carries out its effects. If a disk has killed the
    /// process meanwhile, there are none.
    pub fn act_in<T>(
        &mut self,
        server: u32,
        boot: Option<Boot>,
        act: impl FnOnce(&mut Process, u64) -> T,
    ) -> Option<T> {
        let mut process = self.servers[server as usize].process.take()?;
        if boot.is_some_and(|boot| process.boot != boot) {
            self.servers[server as usize].process = Some(process);
            return None;
        }
        let outcome = act(&mut process, self.now);
        let effects = std::mem::take(&mut process.effects);
        let boot = process.boot;
        self.servers[server as usize].process = Some(process);
        if self.servers[server as usize].bricks.iter().any(|brick| self.disks[brick].is_dead()) {
            trace!(self, "server {server} dies in the middle of it");
            self.kill(server);
            return None;
        }
        effects.into_iter().for_each(|effect| self.effect(server, boot, effect));
        Some(outcome)
    }

    fn effect(&mut self, server: u32, boot: Boot, effect: Effect) {
        match effect {
            Effect::Transmit(to, packet) => self.transmit(server, to.0 - 1, packet),
            Effect::Deliver(from, envelope) => {
                let mut delay = self.delay(self.settings.inside_max);
                let last = self.delivered.entry((envelope.from, envelope.to)).or_default();
                delay = delay.max(last.saturating_sub(self.now));
                *last = self.now + delay;
                self.after(delay, Event::Deliver { server, boot, from, envelope: Box::new(envelope) });
            }
            Effect::Sync(job) => {
                let delay = self.delay(self.settings.sync_max);
                self.after(delay, Event::Sync { server, boot, job });
            }
            Effect::SyncAll { brick, batch, reply } => {
                let delay = self.delay(self.settings.sync_max);
                self.after(delay, Event::SyncAll { server, boot, brick, batch, reply });
            }
            Effect::Checkpoint(brick) => {
                let delay = self.delay(self.settings.checkpoint_max);
                self.after(delay, Event::Checkpoint { server, boot, brick });
            }
            Effect::Answer(message, replies) => self.send_answer(message, Answer::Replies(replies)),
            Effect::Branch(branch) => self.report.count(format!("branch: {branch}")),
            Effect::Orphan(volume, inode) => {
                let delay = self.delay(DOWN_MAX);
                self.after(delay, Event::Collect { volume, inode });
            }
        }
    }

    /// Advances time for a process.
    pub fn tick(&mut self, server: u32, boot: Boot) {
        if self.act_in(server, Some(boot), |process, now| process.tick(now)).is_none() {
            return;
        }
        self.after(self.settings.tick, Event::Tick { server, boot });
        self.note_complete(server);
        self.settle_lives(server);
        let bricks = self.servers[server as usize].bricks.clone();
        let Some(process) = &self.servers[server as usize].process else { return };
        let poisoned: Vec<String> = process.bricks.values().filter_map(|brick| brick.status().ok()?.poisoned).collect();
        if poisoned.is_empty() {
            return;
        }
        let injected = bricks.iter().any(|brick| self.disks[brick].take_failed());
        if !injected {
            self.wrong.push(format!("a brick of server {server} stopped, and nothing had failed: {poisoned:?}"));
        }
        trace!(self, "server {server} ends, its brick has stopped: {poisoned:?}");
        self.report.count("bricks that stopped");
        self.kill(server);
    }

    /// Notes the bricks that have all records of the partitions that this server leads.
    fn note_complete(&mut self, server: u32) {
        let Some(process) = &self.servers[server as usize].process else { return };
        for (at, partition) in &process.partitions {
            let number = at.partition.0 as usize;
            let current = *partition.view() == self.coordinator.ring.views[number];
            if current && partition.serves() && partition.waits_for().is_empty() {
                let members = partition.view().members.iter().map(|member| member.brick);
                self.complete[number] = members.filter(|brick| server_of(&self.servers, *brick).is_some()).collect();
            }
        }
    }

    /// Once all members have agreed on the losses of a power cut and that is checkpointed, the next start need not ask
    /// again.
    fn settle_lives(&mut self, server: u32) {
        for id in self.servers[server as usize].bricks.clone() {
            let Some(process) = &self.servers[server as usize].process else { return };
            let Some(brick) = process.bricks.get(&id).cloned() else { return };
            let own = process.partitions.values().filter(|partition| partition.address().brick == id);
            let mut settled = own.map(|one| one.failure().is_none() && one.has_settled_lost());
            if !self.disks[&id].is_new_life() || !settled.all(|settled| settled) {
                continue;
            }
            let done = self.act_in(server, None, |_, _| brick.checkpoint().and_then(|()| brick.settle_life()));
            if let Some(Ok(())) = done {
                trace!(self, "brick {} is settled in its new life", id.0);
                self.report.count("lives settled");
                self.disk(id).record_life();
                self.coordinator.clear_lost(id);
            }
        }
    }

    /// Syncs a journal, and data files.
    pub fn sync(&mut self, server: u32, boot: Boot, job: SyncJob) {
        let outcome = self.act_in(server, Some(boot), |process, _| {
            let brick = process.bricks.get(&job.replica.brick)?;
            let takes = job.shards.is_empty() || brick.has_covered_recovery() && brick.takes_mark();
            takes.then(|| brick.sync_shards(&job.shards).and_then(|_| brick.sync(brick.end())))
        });
        match outcome {
            None => {}
            Some(None) => self.after(self.settings.tick, Event::Sync { server, boot, job }),
            Some(Some(outcome)) => {
                let delay = self.delay(self.settings.sync_max);
                self.after(delay, Event::Synced { server, boot, job, outcome });
            }
        }
    }

    /// Syncs all data of a brick for a client, which is answered afterwards.
    pub fn sync_all(&mut self, server: u32, boot: Boot, id: BrickId, batch: MessageNumber, reply: Reply) {
        let outcome = self.act_in(server, Some(boot), |process, _| {
            let brick = process.bricks.get(&id)?;
            let shards = brick.unsynced_shards();
            (brick.has_covered_recovery() && brick.takes_mark())
                .then(|| brick.sync_shards(&shards).and_then(|_| brick.sync(brick.end())))
        });
        match outcome {
            None => {}
            Some(None) => self.after(self.settings.tick, Event::SyncAll { server, boot, brick: id, batch, reply }),
            Some(Some(outcome)) => {
                let delay = self.delay(self.settings.sync_max);
                self.after(delay, Event::Replied { server, boot, batch, reply: outcome.map(|()| reply) });
            }
        }
    }

    pub fn checkpoint(&mut self, server: u32, boot: Boot, brick: BrickId) {
        self.report.count("checkpoints");
        // An error means that the brick has failed, which the next tick sees.
        let _ = self.act_in(server, Some(boot), |process, now| process.checkpoint(brick, now));
    }

    /// Collects an orphan that no client has open.
    pub fn collect(&mut self, volume: VolumeId, inode: InodeId) {
        let partition = inode.position().partition(self.settings.partitions);
        let brick = self.coordinator.ring.views[partition.0 as usize].leader;
        let Some(server) = server_of(&self.servers, brick) else { return };
        let (at, event) = (Address { partition, brick }, hekate_replica::Event::Collect { volume, inode });
        self.act_in(server, None, |process, now| process.event(at, event, now));
    }

    /// Kills a process; another one starts a little later.
    pub fn kill(&mut self, server: u32) {
        self.servers[server as usize].process = None;
        self.paused.remove(&server);
        for id in self.servers[server as usize].bricks.clone() {
            self.disk(id).kill();
        }
        self.lose_connections(server);
        if !self.servers[server as usize].starting {
            self.servers[server as usize].starting = true;
            let delay = self.delay(DOWN_MAX);
            self.after(delay, Event::Start { server });
        }
    }

    /// A machine loses power: its processes, and data of its disks that is not on stable storage.
    pub fn cut_power(&mut self, machine: u32) {
        let servers = (0..self.settings.servers).filter(|server| self.servers[*server as usize].machine == machine);
        for server in servers.collect::<Vec<_>>() {
            self.kill(server);
            for id in self.servers[server as usize].bricks.clone() {
                let seed = self.random.number();
                let survivors = if seed.is_multiple_of(4) { Survivors::Nothing } else { Survivors::Seeded(seed) };
                self.disk(id).cut_power(survivors);
            }
        }
    }

    /// Notes that another leader may have begun, or the same one again.
    pub fn new_leaders(&mut self) {
        let at = self.moment();
        self.history.new_leaders(at);
    }

    /// These bricks keep only data on stable storage. If no other brick has everything, acknowledged changes may be
    /// lost. The set of bricks that have everything is updated with each tick: an answer since then is lost with any
    /// member, and a view that has begun since may have answered for changes that only its members have.
    pub fn lose_memory(&mut self, bricks: &BTreeSet<BrickId>) {
        let (mut lost, ring) = (false, &self.coordinator.ring);
        for ((complete, view), number) in self.complete.iter_mut().zip(&ring.views).zip((0..).map(PartitionNumber)) {
            let is_member = |brick: &BrickId| ring.opened(number).is_none_or(|opened| opened.has_member(*brick));
            complete.retain(|brick| !bricks.contains(brick) && is_member(brick));
            lost |= complete.is_empty() && view.members.iter().any(|member| bricks.contains(&member.brick));
        }
        if lost {
            let at = self.moment();
            trace!(self, "what was not synced may be lost, moment {at}");
            self.report.count("power cuts after which no replica had its memory");
            self.history.power_cut(at);
        }
    }
}

/// The server of a brick, if its process runs.
pub fn server_of(servers: &[super::world::Server], brick: BrickId) -> Option<u32> {
    let found = servers.iter().position(|server| server.bricks.contains(&brick) && server.process.is_some());
    found.map(|server| server as u32)
}
