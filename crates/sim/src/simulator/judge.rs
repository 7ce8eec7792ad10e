//! After a run: whether the cluster is whole, and what the checkers say of its disks and of the history.

use crate::checkers::replicas::{Copies, Replica};
use crate::checkers::space::RingEntries;
use crate::checkers::{Complaint, attributes, contents, disks, locks, names, objects, replicas, space, xattrs};
use crate::simulator::world::{Slot, World};
use hekate_brick::Brick;
use hekate_cluster::RingInfo;
use hekate_proto::*;
use std::collections::BTreeMap;

/// Limit for a scan of a partition's entries, above any run's count.
const SCAN_MAX: usize = 1 << 20;

/// Counter of files and trees whose search for an order exceeded its limit.
pub const UNDECIDED: &str = "not judged: searches that gave up";

/// The only ring.
pub const RING: RingId = RingId(1);

impl World {
    /// Reasons why the cluster is not whole; none if it is.
    pub fn what_is_left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.rotten.iter().map(|brick| format!("brick {brick:?} is damaged")).collect();
        left.extend(self.replacing.iter().map(|(server, how)| format!("a disk of server {server} is lost: {how:?}")));
        let Ok(ring) = self.ring() else { return vec!["the ring cannot be read".into()] };
        for (number, view) in (0..).map(PartitionNumber).zip(&ring.views) {
            if !view.opened || view.members.len() != ring.placed(number).len() {
                left.push(format!("partition {number} has {view:?}"));
            }
        }
        if !self.has_root(&ring) {
            left.push("the volume has no root".into());
        }
        for (number, server) in self.servers.iter().enumerate() {
            let Some(node) = server.node.as_ref().filter(|_| !server.is_to_restart) else {
                left.push(format!("server {number} does not serve"));
                continue;
            };
            let is_calm = node.inspect(RING, |at, partition| {
                if !partition.is_idle() || partition.failure().is_some() {
                    left.push(format!(
                        "{at:?} waits for {:?}, failed {:?}",
                        partition.waits_for(),
                        partition.failure()
                    ));
                }
            });
            if !is_calm {
                left.push(format!("server {number} is at work"));
            }
        }
        let waits = self.people.iter().enumerate().filter(|(_, one)| !one.calls.is_empty());
        left.extend(waits.map(|(number, one)| format!("client {number} waits: {:?}", one.calls)));
        let works = self.people.iter().enumerate().filter(|(_, one)| one.is_at_work);
        left.extend(works.map(|(number, _)| format!("client {number} uses the vDisk, or the mapped file")));
        left
    }

    fn has_root(&self, ring: &RingInfo) -> bool {
        let key = Key::inode(RING, VolumeId(1), ROOT, Kind::Inode);
        let leader = ring.view(ROOT.position().partition(ring.views.len() as u32)).map(|view| view.leader);
        let Some((leader, server)) = leader.and_then(|leader| Some((leader, self.server_with(leader)?))) else {
            return false;
        };
        let brick = self.servers[server as usize].node.as_ref().and_then(|node| node.open_brick(leader));
        brick.is_some_and(|brick| brick.get(&key).is_ok_and(|value| value.is_some()))
    }

    /// The complaints of all checkers.
    pub fn judge(&mut self) -> Vec<String> {
        let copies = match self.copies() {
            Ok(copies) => copies,
            Err(error) => return vec![format!("what rests on the disks cannot be read: {error}")],
        };
        let mut complaints = replicas::check(&copies);
        let entries = copies.iter().flat_map(|copies| {
            let first = copies.replicas.first().map(|replica| &replica.entries);
            let of = |(key, value): (&Key, &bytes::Bytes)| (copies.partition, key.clone(), value.clone());
            first.into_iter().flatten().map(of)
        });
        complaints.extend(space::check(&RingEntries {
            ring: RING,
            count: copies.len() as u32,
            entries: entries.collect(),
        }));
        complaints.extend(contents::check(&self.history));
        complaints.extend(attributes::check(&self.history));
        complaints.extend(xattrs::check(&self.history));
        complaints.extend(locks::check(&self.history));
        complaints.extend(objects::check(&self.history));
        complaints.extend(disks::check(&self.disks, self.history.power_cuts()));
        if self.history.power_cuts().is_empty() {
            complaints.extend(names::check(&self.history));
        }
        // A late write to a data id that was given up, after the shards' leader restarted, leaves a shard without an
        // owner (docs/limits.md).
        let is_owned = |one: &Complaint| !one.what.ends_with("belongs to no inode and is no garbage");
        let (complaints, leaked): (Vec<_>, Vec<_>) = complaints.into_iter().partition(is_owned);
        self.report.add("known: shards without an owner", leaked.len() as u64);
        let is_undecided = |what: &str| what.starts_with("the search for an order of the calls gave up");
        let (undecided, wrong): (Vec<_>, Vec<_>) = complaints.into_iter().partition(|one| is_undecided(&one.what));
        self.report.add(UNDECIDED, undecided.len() as u64);
        wrong.into_iter().map(|complaint| complaint.to_string()).chain(self.mapped.check()).collect()
    }

    /// Ends a server's process, and opens its bricks as the next one would.
    fn bricks_of_ended(&mut self, server: u32) -> Result<Vec<(BrickId, Brick)>> {
        self.end_process(server);
        let open = |slot: &mut Slot| {
            let (brick, _) = slot.disk.begin_open(0)?.open(&|_, least| Ok(least))?;
            brick.checkpoint()?;
            Ok((slot.brick, brick))
        };
        self.servers[server as usize].disks.values_mut().map(open).collect()
    }

    fn copies(&mut self) -> Result<Vec<Copies>> {
        let (ring, mut all) = (self.ring()?, Vec::new());
        let mut bricks = BTreeMap::new();
        for server in 0..self.settings.servers {
            bricks.extend(self.bricks_of_ended(server)?);
        }
        for (number, view) in (0..).map(PartitionNumber).zip(&ring.views) {
            let mut replicas = Vec::new();
            for member in &view.members {
                replicas.push(replica(&bricks[&member.brick], number, ring.views.len() as u32)?);
            }
            all.push(Copies { ring: RING, partition: number, replicas });
        }
        for one in all.iter().flat_map(|copies| &copies.replicas) {
            for (key, value) in &one.entries {
                self.note(key.as_bytes());
                self.note(value);
            }
        }
        Ok(all)
    }
}

fn replica(brick: &Brick, partition: PartitionNumber, count: u32) -> Result<Replica> {
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
    Ok(Replica { brick: brick.id().text(), entries, shards })
}
