//! After a run: checks that the cluster is whole, and runs the checkers on the disks and on the history.

use super::coordinator::{RING, VOLUME};
use super::world::World;
use crate::checkers::replicas::{Copies, Replica};
use crate::checkers::space::RingEntries;
use crate::checkers::{attributes, contents, names, replicas, space};
use hekate_brick::Brick;
use hekate_proto::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Limit for a scan of a partition's entries, above any run's count.
const SCAN_MAX: usize = 1 << 20;

/// Counter of files and trees whose search for an order exceeded its limit.
pub const UNDECIDED: &str = "not judged: searches that gave up";

impl World {
    /// Reasons why the cluster is not whole; none if it is.
    pub fn what_is_left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.rotten.iter().map(|brick| format!("brick {brick:?} is damaged")).collect();
        for (number, server) in self.servers.iter().enumerate() {
            let Some(process) = &server.process else {
                left.push(format!("server {number} does not run"));
                continue;
            };
            if process.views != self.coordinator.ring.views {
                left.push(format!("server {number} knows old views"));
            }
            left.extend(process.what_is_left());
            let is_led = |(at, partition): &(&hekate_replica::Address, &hekate_replica::Partition)| {
                partition.view().leader == at.brick && !partition.healing().is_empty()
            };
            let learning = process.partitions.iter().filter(is_led);
            left.extend(learning.map(|(at, partition)| format!("{at:?} heals {:?}", partition.healing())));
            left.extend(process.waiting_journals().into_iter().map(|id| format!("the journal of {id:?} is kept")));
        }
        for (number, person) in self.people.iter().enumerate() {
            if person.call.is_some() {
                left.push(format!("client {number} waits: {:?}", person.op));
            }
        }
        left
    }

    /// True if every server serves and nothing is in progress.
    pub fn is_whole(&self) -> bool {
        let is_complete = |(number, view): (u32, &hekate_proto::map::View)| {
            view.opened && view.members.len() == self.coordinator.ring.placed(PartitionNumber(number)).len()
        };
        if self.rotten.is_some() || !(0..).zip(&self.coordinator.ring.views).all(is_complete) {
            return false;
        }
        let idle = |server: &super::world::Server| {
            let process = server.process.as_ref();
            process.is_some_and(|process| {
                process.views == self.coordinator.ring.views
                    && process.is_idle()
                    && process.waiting_journals().is_empty()
            })
        };
        self.servers.iter().all(idle)
    }

    /// A brick of a running server.
    pub fn brick(&self, id: BrickId) -> Option<Arc<Brick>> {
        self.servers.iter().find_map(|server| server.process.as_ref()?.bricks.get(&id).cloned())
    }

    /// All copies, after a checkpoint of each brick.
    fn copies(&self) -> Result<Vec<Copies>> {
        let mut all = Vec::new();
        for (number, view) in (0..).zip(&self.coordinator.ring.views) {
            let partition = PartitionNumber(number);
            let mut replicas = Vec::new();
            for member in &view.members {
                let brick = self.brick(member.brick).ok_or_else(|| Error::bug("a brick is not open"))?;
                brick.checkpoint()?;
                replicas.push(replica(&brick, partition, self.settings.partitions)?);
            }
            all.push(Copies { ring: RING, partition, replicas });
        }
        Ok(all)
    }

    /// The complaints of all checkers.
    pub fn judge(&mut self) -> Vec<String> {
        let copies = match self.copies() {
            Ok(copies) => copies,
            Err(error) => return vec![format!("what rests on the disks cannot be read: {error}")],
        };
        self.note_copies(&copies);
        let mut complaints = replicas::check(&copies);
        let entries = copies.iter().flat_map(|copies| {
            let first = copies.replicas.first().map(|replica| &replica.entries);
            let of = |(key, value): (&Key, &bytes::Bytes)| (copies.partition, key.clone(), value.clone());
            first.into_iter().flatten().map(of)
        });
        let (ring, count) = (RING, self.settings.partitions);
        complaints.extend(space::check(&RingEntries { ring, count, entries: entries.collect() }));
        complaints.extend(contents::check(&self.history));
        complaints.extend(attributes::check(&self.history));
        if self.history.power_cuts().is_empty() {
            complaints.extend(names::check(&self.history));
        }
        // A late write to a data id that was given up, after the shards' leader restarted, leaves a shard without an
        // owner.
        let (leaked, wrong): (Vec<_>, Vec<_>) =
            complaints.into_iter().partition(|one| one.what.ends_with("belongs to no inode and is no garbage"));
        self.report.add("known: shards without an owner", leaked.len() as u64);
        // A search that gave up, after some hundred calls with unknown outcomes, has found no wrong order.
        let (undecided, wrong): (Vec<_>, Vec<_>) =
            wrong.into_iter().partition(|one| one.what.starts_with("the search for an order of the calls gave up"));
        self.report.add(UNDECIDED, undecided.len() as u64);
        wrong.into_iter().map(|complaint| complaint.to_string()).collect()
    }

    fn note_copies(&mut self, copies: &[Copies]) {
        for replica in copies.iter().flat_map(|copies| &copies.replicas) {
            for (key, value) in &replica.entries {
                self.note(key.as_bytes());
                self.note(value);
            }
            replica.shards.values().for_each(|(_, bytes)| self.note(bytes));
        }
    }
}

pub(crate) fn replica(brick: &Brick, partition: PartitionNumber, count: u32) -> Result<Replica> {
    let ranges = [Key::work_range(RING, partition, count), Key::object_range(RING, partition, count)];
    let mut entries = BTreeMap::new();
    for (from, to) in &ranges {
        let found = brick.scan(from, to, SCAN_MAX)?;
        entries.extend(found.into_iter().filter(|(key, _)| key.kind() != Some(Kind::Checksums)));
    }
    let mut shards = BTreeMap::new();
    for shard in brick.shards(RING, partition, count)? {
        let Some(record) = brick.shard(RING, shard)? else { continue };
        let bytes = brick.read_shard(RING, shard, 0, record.length)?;
        shards.insert(shard, (record.stamp, bytes));
    }
    debug_assert!(shards.keys().all(|shard| shard.volume == VOLUME));
    Ok(Replica { brick: brick.id().text(), entries, shards })
}
