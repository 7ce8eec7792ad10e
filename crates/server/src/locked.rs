//! The partitions that an op has locked: `replica`'s view of this server.

use crate::partition::{Hosted, HostedRing};
use crate::syncer::{Needs, Syncers};
use hekate_brick::{Brick, LogEntry, Lsn, Reservation};
use hekate_proto::*;
use hekate_replica::{Ask, Commit, Leader, Partitions, Stop};
use parking_lot::{Mutex, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Entries to remove once they have served, and inodes and data ids to collect.
#[derive(Default)]
pub struct Chores {
    /// Of finished ops: intents, and marks of legs.
    pub swept: Vec<(RingId, PartitionNumber, Key)>,
    /// Inodes without names.
    pub orphans: Vec<(RingId, VolumeId, InodeId)>,
    /// Data ids that were given up.
    pub garbage: Vec<(RingId, Key, GarbageRecord)>,
}

/// See the module.
pub struct Locked<'a> {
    ring: &'a HostedRing,
    ask: Ask,
    chores: &'a Mutex<Chores>,
    syncers: &'a Syncers,
    guards: BTreeMap<PartitionNumber, RwLockWriteGuard<'a, Hosted>>,
    /// Where each member's journal was after what this op appended; with the shards that it wrote.
    appended: Vec<(Arc<Brick>, Lsn)>,
    written: Vec<ShardId>,
    /// Half of the op is done: the rest is not refused for want of room.
    must_finish: bool,
    /// To be removed once the op is done: the mark of a leg must outlive the intent that would take it again.
    swept: Vec<(RingId, PartitionNumber, Key)>,
}

impl<'a> Locked<'a> {
    /// Locks these partitions, in order.
    pub fn lock(
        ring: &'a HostedRing,
        ask: &Ask,
        numbers: &std::collections::BTreeSet<PartitionNumber>,
        chores: &'a Mutex<Chores>,
        syncers: &'a Syncers,
    ) -> Result<Self> {
        let mut guards = BTreeMap::new();
        for number in numbers {
            guards.insert(*number, ring.write(*number)?);
        }
        Ok(Self {
            ring,
            ask: *ask,
            chores,
            syncers,
            guards,
            appended: Vec::new(),
            written: Vec::new(),
            must_finish: false,
            swept: Vec::new(),
        })
    }

    /// The op is done: what has served is removed some time later. Of an op that failed on its way all stays, and the
    /// next start sees to it.
    pub fn finish(mut self) {
        self.chores.lock().swept.append(&mut self.swept);
    }

    /// What must be synced for everything that was done to be durable.
    pub fn add_needs(&self, needs: &mut Needs) {
        for (brick, upto) in &self.appended {
            needs.journal(brick, *upto);
            // Earlier bytes of the shard that only a sync of its data file covers are not to be lost below later ones.
            if !self.written.is_empty() {
                needs.shards(brick, &self.written);
            }
        }
    }

    /// A locked partition's epoch.
    pub fn hosted(&self, at: PartitionNumber) -> std::result::Result<&Hosted, Stop> {
        self.guards.get(&at).map(|guard| &**guard).ok_or(Stop::Lock(at))
    }

    fn note(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::WriteBlocks { shard, .. }
            | Change::FreshBlocks { shard, .. }
            | Change::CutShard { shard, .. } = change
            {
                self.written.push(*shard);
            }
            let Change::Put { key, value } = change else { continue };
            let (Some(place), Some(id)) = (key.place(), key.id()) else { continue };
            match key.kind() {
                Some(Kind::Orphan) => {
                    self.chores.lock().orphans.push((place.ring, place.volume, InodeId::from_bits(id)));
                }
                Some(Kind::Garbage) => {
                    if let Ok(record) = GarbageRecord::from_bytes(value.clone()) {
                        self.chores.lock().garbage.push((place.ring, key.clone(), record));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Whether a change takes room: a full disk still deletes.
fn takes_room(commit: &Commit) -> bool {
    let grows = |change: &Change| match change {
        Change::WriteBlocks { .. } | Change::FreshBlocks { .. } => true,
        Change::Put { key, .. } => matches!(key.kind(), Some(Kind::Content | Kind::Name | Kind::Xattr)),
        Change::Delete { .. } | Change::CutShard { .. } | Change::DropShard { .. } => false,
    };
    let frees = |change: &Change| match change {
        Change::CutShard { .. } | Change::DropShard { .. } => true,
        Change::Delete { key } => matches!(key.kind(), Some(Kind::Content | Kind::Name | Kind::Xattr | Kind::Inode)),
        Change::Put { .. } | Change::WriteBlocks { .. } | Change::FreshBlocks { .. } => false,
    };
    commit.changes.iter().any(grows) && !commit.changes.iter().any(frees)
}

impl Partitions for Locked<'_> {
    fn brick(&self, at: PartitionNumber) -> std::result::Result<&Brick, Stop> {
        Ok(self.hosted(at)?.brick())
    }

    fn leader(&mut self, at: PartitionNumber) -> std::result::Result<&mut Leader, Stop> {
        self.guards.get_mut(&at).map(|guard| &mut guard.leader).ok_or(Stop::Lock(at))
    }

    fn commit(&mut self, at: PartitionNumber, mut commit: Commit) -> Result<()> {
        let (ring, session, op_id) = (self.ring.ring, self.ask.session, self.ask.op_id);
        let count = self.ring.count();
        let guard = self.guards.get_mut(&at).ok_or_else(|| Error::bug("a commit without its lock"))?;
        // A client that does not know yet that the file gave up these bytes.
        if guard.members.iter().any(|member| member.awaits_removal(&commit.changes)) {
            return Err(Error::LayoutChanged);
        }
        // What the servers do themselves mends or finishes something, and what has begun must go through.
        let grows = takes_room(&commit) && session != SYSTEM_SESSION && !self.must_finish;
        if let Some(reply) = commit.reply.filter(|_| session != SYSTEM_SESSION) {
            let slot = (op_id.0 % SESSION_SLOTS as u64) as u16;
            let key = Key::session(ring, at.first_position(count), session, slot);
            let record = SessionRecord { op_id, reply: reply.to_bytes() };
            commit.changes.push(Change::Put { key, value: record.to_bytes() });
        }
        let sequence = Sequence(guard.sequence.0 + 1);
        let (epoch, changes) = (guard.epoch, commit.changes);
        let entry = LogEntry::new(Record { ring, partition: at, epoch, sequence, session, op_id, changes });
        // On every replica before any of them takes it: no replica is ever without room for what another has.
        let members = guard.members.clone();
        let _room: Vec<Reservation> =
            members.iter().map(|member| member.reserve(&entry, grows)).collect::<Result<_>>()?;
        for fresh in &commit.fresh {
            for member in &members {
                let written = member.write_fresh(ring, fresh.shard, fresh.first_block, &[&fresh.bytes]);
                written.inspect_err(|_| members.iter().for_each(|member| member.forget_fresh(fresh.shard)))?;
            }
        }
        for (index, member) in members.iter().enumerate() {
            match member.append(&entry) {
                Ok(upto) => self.appended.push((member.clone(), upto)),
                // Refused by the first member for what it is: nobody has it.
                Err(error @ (Error::Invalid { .. } | Error::Bug { .. })) if index == 0 => return Err(error),
                Err(error) => {
                    // Some members may have the record and others not: only a start levels them.
                    guard.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
        guard.sequence = sequence;
        guard.leader.committed(&entry.record.changes);
        self.note(&entry.record.changes);
        Ok(())
    }

    fn order(&mut self, first: PartitionNumber, then: PartitionNumber) -> Result<()> {
        let members = |at| -> Result<Vec<BrickId>> {
            let hosted = self.hosted(at).map_err(|_| Error::bug("ordering a partition that is not locked"))?;
            let mut ids: Vec<_> = hosted.members.iter().map(|member| member.id()).collect();
            ids.sort();
            Ok(ids)
        };
        let (before, after) = (members(first)?, members(then)?);
        if before == after {
            return Ok(());
        }
        let mut needs = Needs::default();
        for (brick, upto) in self.appended.iter().filter(|(brick, _)| before.contains(&brick.id())) {
            needs.journal(brick, *upto);
        }
        self.syncers.sync(needs)
    }

    fn must_finish(&mut self) {
        self.must_finish = true;
    }

    fn sweep(&mut self, at: PartitionNumber, key: Key) {
        self.swept.push((self.ring.ring, at, key));
    }
}
