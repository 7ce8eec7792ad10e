//! What this client changed and has not yet put on stable storage: what an fsync must ask for.
//!
//! Metadata is remembered a partition (a sync of a brick covers all that it acknowledged), shards a file, since their
//! data files are synced one by one. Forgetting would lose data, so the lists are exact up to a limit, beyond which the
//! oldest files are to be synced early.

use hekate_proto::{BrickId, InodeId, PartitionNumber, ShardId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Shards remembered before files are synced early: 256 GiB of file.
const SHARDS_MAX: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    clock: u64,
    changed_at: HashMap<PartitionNumber, u64>,
    synced_at: HashMap<BrickId, u64>,
    shards: HashMap<InodeId, BTreeSet<ShardId>>,
    shard_count: usize,
}

impl Unsynced {
    /// A change of metadata in a partition was acknowledged.
    pub(crate) fn changed(&mut self, partition: PartitionNumber) {
        self.clock += 1;
        self.changed_at.insert(partition, self.clock);
    }

    /// A write of a shard was acknowledged.
    pub(crate) fn wrote(&mut self, inode: InodeId, shard: ShardId) {
        if self.shards.entry(inode).or_default().insert(shard) {
            self.shard_count += 1;
        }
    }

    /// A file to sync now, if there are too many shards to remember.
    pub(crate) fn overflow(&self) -> Option<InodeId> {
        if self.shard_count <= SHARDS_MAX {
            return None;
        }
        self.shards.iter().max_by_key(|(_, shards)| shards.len()).map(|(inode, _)| *inode)
    }

    /// The bricks to sync for this inode, each with the shards to name to it, and the moment that the sync covers.
    pub(crate) fn begin_sync(
        &mut self,
        inode: InodeId,
        home: PartitionNumber,
        place: impl Fn(ShardId) -> PartitionNumber,
        bricks: impl Fn(PartitionNumber) -> Vec<BrickId>,
    ) -> SyncPlan {
        let shards = self.shards.remove(&inode).unwrap_or_default();
        self.shard_count -= shards.len();
        let mut targets: BTreeMap<BrickId, Vec<ShardId>> = BTreeMap::new();
        let changed = self.changed_at.get(&home).copied().unwrap_or(0);
        for brick in bricks(home) {
            if self.synced_at.get(&brick).copied().unwrap_or(0) < changed {
                targets.entry(brick).or_default();
            }
        }
        for shard in &shards {
            for brick in bricks(place(*shard)) {
                targets.entry(brick).or_default().push(*shard);
            }
        }
        SyncPlan { inode, covers: self.clock, targets, shards }
    }

    /// The sync succeeded.
    pub(crate) fn synced(&mut self, plan: &SyncPlan) {
        for brick in plan.targets.keys() {
            let at = self.synced_at.entry(*brick).or_default();
            *at = (*at).max(plan.covers);
        }
    }

    /// The sync failed: what it was to cover is unsynced still.
    pub(crate) fn not_synced(&mut self, plan: SyncPlan) {
        for shard in plan.shards {
            self.wrote(plan.inode, shard);
        }
    }
}

/// One fsync.
#[derive(Debug)]
pub(crate) struct SyncPlan {
    inode: InodeId,
    covers: u64,
    pub(crate) targets: BTreeMap<BrickId, Vec<ShardId>>,
    shards: BTreeSet<ShardId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::{DataId, VolumeId};

    const HOME: PartitionNumber = PartitionNumber(0);
    const INODE: InodeId = InodeId::new(1, 1, 1);

    fn shard(index: u64) -> ShardId {
        ShardId { volume: VolumeId(1), data: DataId(5), index }
    }

    fn plan(unsynced: &mut Unsynced) -> SyncPlan {
        let bricks = |p: PartitionNumber| vec![BrickId(p.0.into()), BrickId(u128::from(p.0) + 1)];
        unsynced.begin_sync(INODE, HOME, |s| PartitionNumber(s.index as u32 + 10), bricks)
    }

    #[test]
    fn nothing_changed_means_nothing_to_send() {
        let mut unsynced = Unsynced::default();
        assert!(plan(&mut unsynced).targets.is_empty());
        unsynced.changed(HOME);
        let first = plan(&mut unsynced);
        assert_eq!(first.targets.len(), 2);
        unsynced.synced(&first);
        assert!(plan(&mut unsynced).targets.is_empty());
    }

    #[test]
    fn a_change_during_a_sync_is_not_taken_as_covered() {
        let mut unsynced = Unsynced::default();
        unsynced.changed(HOME);
        let running = plan(&mut unsynced);
        unsynced.changed(HOME);
        unsynced.synced(&running);
        assert_eq!(plan(&mut unsynced).targets.len(), 2);
    }

    #[test]
    fn shards_go_to_the_bricks_that_hold_them_and_come_back_if_the_sync_fails() {
        let mut unsynced = Unsynced::default();
        unsynced.wrote(INODE, shard(0));
        unsynced.wrote(INODE, shard(0));
        let failed = plan(&mut unsynced);
        assert_eq!(failed.targets.keys().map(|b| b.0).collect::<Vec<_>>(), [10, 11]);
        unsynced.not_synced(failed);
        assert_eq!(plan(&mut unsynced).targets[&BrickId(10)], [shard(0)]);
    }
}
