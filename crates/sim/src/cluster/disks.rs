//! Disks whose content changes: an older copy in a disk's place, an empty disk, damaged blocks; and the reactions of
//! servers and operators (`server/hosting/bricks.rs`, `hekate brick replace`, `server/maintenance/repair.rs`).

use super::coordinator::RING;
use super::disk::{Disk, SECTOR};
use super::servers::server_of;
use super::settings::Micros;
use super::world::{Event, REPLACED, World, trace};
use hekate_brick::{Finding, Identity, ScrubCursor, block_checksum};
use hekate_proto::*;
use hekate_replica::Commit;
use std::collections::BTreeSet;

/// Longest time from damage to a scrub, and between scrubs.
const SCRUB_MAX: Micros = 200_000;
const SCRUB_AGAIN: Micros = 20_000;

/// Bits that flip in a journal at once, within this many bytes of the end of its kept part: in the last records, or
/// somewhere before.
const JOURNAL_FLIPS: u64 = 3;
const ROTTEN_TAIL: [u64; 2] = [300, 8 << 10];

impl World {
    /// Copies a disk, or puts the copy in its place.
    pub fn older_copy(&mut self, brick: BrickId) {
        let seed = self.random.number();
        let Some(server) = server_of(&self.servers, brick) else { return };
        if !self.disk(brick).has_copy() {
            trace!(self, "the disk of brick {} is copied", brick.0);
            return self.disk(brick).copy(seed);
        }
        if !self.disk(brick).is_copy_older() {
            return;
        }
        self.kill(server);
        trace!(self, "the disk of brick {} is put back as it was when it was copied", brick.0);
        self.report.count("fault: an older copy of a disk");
        self.disk(brick).put_back_older();
    }

    /// An operator reads why a server does not start, and puts the newer disk back. Returns true if that was the cause.
    pub fn put_back_newer(&mut self, server: u32) -> bool {
        let bricks = self.servers[server as usize].bricks.clone();
        let put_back = bricks.into_iter().filter(|brick| self.disk(*brick).put_back_newer()).count();
        self.report.add("bricks that were refused as older copies", put_back as u64);
        put_back > 0
    }

    /// Kills a server and keeps it down until views exclude it. If no view needs one of its disks by then, that disk is
    /// found empty.
    pub fn wipe(&mut self, brick: BrickId) {
        let Some(server) = server_of(&self.servers, brick).filter(|_| self.settings.lease > 0) else { return };
        if self.servers[server as usize].starting {
            return;
        }
        self.servers[server as usize].starting = true;
        self.kill(server);
        self.wiped.insert(server, brick);
        let delay = self.delay(4 * self.settings.lease) + 3 * self.settings.lease;
        self.after(delay, Event::Start { server });
    }

    /// Puts a new brick into the place of one that is gone.
    ///
    /// # Errors
    ///
    /// The new brick cannot be created.
    pub fn replace_wiped(&mut self, server: u32) -> Result<()> {
        let Some(old) = self.wiped.remove(&server) else { return Ok(()) };
        let ring = &self.coordinator.ring;
        let is_needed = |number: u32| {
            let partition = PartitionNumber(number);
            ring.view(partition)
                .into_iter()
                .chain(ring.opened(partition))
                .any(|view| view.all().any(|one| one.brick == old))
        };
        if (0..self.settings.partitions).any(is_needed) {
            return Ok(());
        }
        let new = BrickId(old.0 + REPLACED);
        trace!(self, "the disk of brick {} is gone, brick {} takes its place", old.0, new.0);
        self.report.count("fault: a disk that is gone");
        self.lose_memory(&BTreeSet::from([old]));
        self.disks.remove(&old);
        self.disks.insert(new, Disk::new(Identity::new(new, "c", self.settings.brick))?);
        let place = |brick: &mut BrickId| *brick = if *brick == old { new } else { *brick };
        self.servers[server as usize].bricks.iter_mut().for_each(place);
        self.coordinator.replace(old, new);
        for other in &mut self.servers {
            other.process.iter_mut().for_each(|process| process.replace_brick(old, new, ServerId(server + 1)));
        }
        Ok(())
    }

    /// Flips a bit, makes a sector unreadable or misdirects a write, on a disk whose other copies are all healthy:
    /// damage to all copies is data loss.
    pub fn rot(&mut self, brick: BrickId) {
        let numbers = (0..self.settings.partitions).map(PartitionNumber);
        let is_even = |number: PartitionNumber| {
            let (placed, complete) = (self.coordinator.ring.placed(number), &self.complete[number.0 as usize]);
            !placed.contains(&brick) || placed.len() > 1 && placed.iter().all(|one| complete.contains(one))
        };
        let Some(server) = server_of(&self.servers, brick) else { return };
        // A failed sync takes data that is not on the disk yet, and a process that dies takes the other copy out of the
        // view: either would be a second fault.
        let is_second = self.rotten.is_some() || !self.wiped.is_empty() || self.disks.values().any(Disk::is_to_fail);
        if is_second || !self.is_nothing_missing() || !numbers.into_iter().all(is_even) {
            return;
        }
        let goes_astray = self.random.once_in(2);
        let Some(disk) = self.disks.get(&brick).filter(|disk| !disk.is_dead()) else { return };
        let how = if goes_astray {
            disk.misdirect();
            let boot = self.servers[server as usize].process.as_ref().map(|process| process.boot);
            let delay = self.delay(SCRUB_MAX / 4);
            boot.into_iter().for_each(|boot| self.after(delay, Event::Checkpoint { server, boot, brick }));
            "the next write is misdirected"
        } else {
            let Some((path, at)) = disk.data_byte(&mut self.random) else { return };
            let is_readable = !self.random.once_in(3);
            if is_readable {
                disk.flip_bits(&path, at, 1 << self.random.below(8));
            } else {
                disk.spoil(&path, at);
            }
            self.report.count(if is_readable { "fault: a flipped bit" } else { "fault: an unreadable sector" });
            if is_readable { "a bit flips" } else { "a sector cannot be read" }
        };
        trace!(self, "brick {} rots, {how}", brick.0);
        self.rotten = Some(brick);
        let delay = self.delay(SCRUB_MAX);
        self.after(delay, Event::Scrub { brick });
    }

    /// Flips bits in records that the brick itself no longer needs, or makes a sector of them unreadable.
    pub fn rot_journal(&mut self) {
        // Without leases views follow incarnations only, and no view is formed without a member that cannot be fed.
        if self.settings.lease == 0 {
            return;
        }
        let bricks: Vec<BrickId> = self.disks.keys().copied().collect();
        let id = bricks[self.random.below(bricks.len() as u64) as usize];
        let Some(brick) = self.brick(id).filter(|_| !self.disk(id).is_dead()) else { return };
        // Records that are read lie near the end.
        let Some((path, part)) = brick.kept_journal().pop() else { return };
        let near = ROTTEN_TAIL[self.random.below(2) as usize];
        let sectors = part.start.div_ceil(SECTOR)..part.end / SECTOR;
        if self.random.below(3) == 0 && !sectors.is_empty() {
            let back = self.random.below((sectors.end - sectors.start).min(near.div_ceil(SECTOR)));
            let at = (sectors.end - 1 - back) * SECTOR;
            trace!(self, "a sector of {path} of brick {} cannot be read, from offset {at}", id.0);
            self.report.count("fault: a journal with an unreadable sector");
            return self.disk(id).spoil(&path, at);
        }
        for _ in 0..JOURNAL_FLIPS {
            let back = self.random.below((part.end - part.start).min(near));
            let (at, mask) = (part.end - 1 - back, 1 << self.random.below(8));
            self.disk(id).flip_bits(&path, at, mask);
        }
        trace!(self, "{path} of brick {} rots before offset {}", id.0, part.end);
        self.report.count("fault: a journal that rots");
    }

    /// True if no data is written with one copy only.
    fn is_nothing_missing(&self) -> bool {
        let is_whole = |view: &hekate_proto::map::View| view.whole && view.opened && view.learners.is_empty();
        let is_away = self.servers.iter().any(|server| server.process.is_none()) || !self.paused.is_empty();
        !is_away && self.coordinator.ring.views.iter().all(is_whole)
    }

    /// Reads all of a damaged brick, and repairs damage from another member.
    pub fn scrub(&mut self, brick: BrickId) {
        if self.rotten != Some(brick) {
            return;
        }
        if self.is_scrubbed(brick) == Some(true) {
            trace!(self, "nothing of brick {} is damaged any more", brick.0);
            (self.rotten, self.mended_at) = (None, self.now);
        } else {
            self.after(SCRUB_AGAIN, Event::Scrub { brick });
        }
    }

    /// True if the brick has no damage; none if it cannot be read now.
    fn is_scrubbed(&mut self, id: BrickId) -> Option<bool> {
        let server = server_of(&self.servers, id)
            .filter(|server| self.paused.get(server).is_none_or(|until| *until <= self.now))?;
        let brick = self.servers[server as usize].process.as_ref()?.bricks.get(&id)?.clone();
        // Data that is yet to be checkpointed hides damage below it, until a power cut takes it.
        self.act_in(server, None, |process, now| process.checkpoint(id, now))?.ok()?;
        let went_astray = self.disk(id).take_astray();
        self.report.add("fault: a misdirected write", u64::from(went_astray));
        let (mut cursor, mut findings) = (ScrubCursor::default(), Vec::new());
        while !cursor.is_done() {
            findings.extend(brick.scrub(&mut cursor).ok()?.findings);
        }
        let mut is_clean = true;
        for finding in findings {
            match finding {
                Finding::Block { shard, block, .. } => {
                    is_clean = false;
                    self.mend_block(id, shard, block);
                }
                Finding::Entry { key } => self.wrong.push(format!("entry {key:?} of brick {} is damaged", id.0)),
                Finding::Stray { .. } => {}
            }
        }
        Some(is_clean)
    }

    /// Writes the right bytes through the log to all members, once no write to the shard is in flight.
    fn mend_block(&mut self, on: BrickId, shard: ShardId, block: u32) -> Option<()> {
        let partition = shard.position().partition(self.settings.partitions);
        let (server, at) = self.leader_of(partition)?;
        let leader = self.servers[server as usize].process.as_ref()?.partitions.get(&at)?;
        if !leader.is_settled() {
            let close = hekate_replica::Event::CloseShards;
            return self.act_in(server, None, |process, now| process.event(at, close, now));
        }
        let members: Vec<BrickId> = leader.view().members.iter().map(|member| member.brick).collect();
        if !members.contains(&on) {
            return None;
        }
        let record = members
            .iter()
            .filter_map(|id| self.brick(*id)?.shard(RING, shard).ok()?)
            .max_by_key(|one| one.stamp.count)?;
        let others = members.iter().filter(|member| **member != on);
        let of_members = others.filter_map(|id| self.brick(*id)?.read_block(RING, shard, block).ok()).next();
        let good = of_members.or_else(|| self.held_by_learner(partition, at.brick, shard, block).map(Some))?;
        let bytes = good.unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
        let stamp = Stamp { count: record.stamp.count + 1, session: SYSTEM_SESSION, op: OpId(0) };
        let run = BlockRun { first: block, checksums: vec![block_checksum(shard, block, &bytes)] };
        let changes = vec![Change::WriteBlocks { shard, record: ShardRecord { stamp, ..record }, run, bytes }];
        let commit = Commit { changes, ..Commit::default() };
        trace!(self, "block {block} of {shard:?} on brick {} is repaired", on.0);
        self.report.count("damaged blocks that were repaired");
        self.act_in(server, None, |process, now| process.change_now(at, commit, now))
    }

    /// The block of a learner, if it has the checksum that the leader knows for it.
    fn held_by_learner(
        &self,
        at: PartitionNumber,
        leader: BrickId,
        shard: ShardId,
        block: u32,
    ) -> Option<bytes::Bytes> {
        let leader = self.brick(leader)?;
        self.coordinator.ring.view(at)?.learners.iter().find_map(|learner| {
            let bytes = self.brick(learner.brick)?.read_block(RING, shard, block).ok()??;
            leader.is_meant(RING, shard, block, &bytes).ok()?.then_some(bytes)
        })
    }
}
