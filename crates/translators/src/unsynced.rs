//! What this client changed and has not yet put on stable storage: what an fsync must ask for.
//!
//! Metadata is remembered a partition (a sync of a brick covers all that it acknowledged), shards a file, since their
//! data files are synced one by one. Forgetting would lose data, so the list is exact up to a limit, beyond which
//! everything is synced at once.

use hekate_proto::{BrickId, InodeId, PartitionNumber, ShardId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Shards remembered before everything is synced: 256 GiB of great files.
const SHARDS_MAX: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    clock: u64,
    changed_at: HashMap<PartitionNumber, u64>,
    synced_at: HashMap<BrickId, u64>,
    /// When each shard was last written.
    shards: HashMap<InodeId, BTreeMap<ShardId, u64>>,
    shard_count: usize,
}

impl Unsynced {
    /// The moment that a sync which begins now covers.
    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    /// A change of metadata in a partition was acknowledged.
    pub(crate) fn changed(&mut self, partition: PartitionNumber) {
        self.clock += 1;
        self.changed_at.insert(partition, self.clock);
    }

    /// A write of a shard was acknowledged.
    pub(crate) fn wrote(&mut self, inode: InodeId, shard: ShardId) {
        self.clock += 1;
        if self.shards.entry(inode).or_default().insert(shard, self.clock).is_none() {
            self.shard_count += 1;
        }
    }

    /// Whether there are too many shards to remember: it is time to sync everything.
    pub(crate) fn is_full(&self) -> bool {
        self.shard_count > SHARDS_MAX
    }

    /// The bricks to sync for this inode, each with the shards to name to it. `homes`: where its metadata is, of a
    /// directory its names as well.
    pub(crate) fn begin_sync(
        &self,
        inode: InodeId,
        homes: &[PartitionNumber],
        place: impl Fn(ShardId) -> PartitionNumber,
        bricks: impl Fn(PartitionNumber) -> Vec<BrickId>,
    ) -> SyncPlan {
        let mut targets: BTreeMap<BrickId, Vec<ShardId>> = BTreeMap::new();
        for home in homes {
            let changed = self.changed_at.get(home).copied().unwrap_or(0);
            for brick in bricks(*home) {
                if self.synced_at.get(&brick).copied().unwrap_or(0) < changed {
                    targets.entry(brick).or_default();
                }
            }
        }
        for shard in self.shards.get(&inode).into_iter().flat_map(BTreeMap::keys) {
            for brick in bricks(place(*shard)) {
                targets.entry(brick).or_default().push(*shard);
            }
        }
        SyncPlan { inode, covers: self.clock, targets }
    }

    /// The sync succeeded: what was changed after it began is unsynced still.
    pub(crate) fn synced(&mut self, plan: &SyncPlan) {
        for brick in plan.targets.keys() {
            let at = self.synced_at.entry(*brick).or_default();
            *at = (*at).max(plan.covers);
        }
        self.forget_until(plan.inode, plan.covers);
    }

    /// All bricks synced all that they had at that moment.
    pub(crate) fn synced_everything(&mut self, covers: u64, bricks: &BTreeSet<BrickId>) {
        for brick in bricks {
            let at = self.synced_at.entry(*brick).or_default();
            *at = (*at).max(covers);
        }
        let inodes: Vec<InodeId> = self.shards.keys().copied().collect();
        inodes.into_iter().for_each(|inode| self.forget_until(inode, covers));
    }

    fn forget_until(&mut self, inode: InodeId, covers: u64) {
        let Some(shards) = self.shards.get_mut(&inode) else { return };
        let before = shards.len();
        shards.retain(|_, at| *at > covers);
        self.shard_count -= before - shards.len();
        if shards.is_empty() {
            self.shards.remove(&inode);
        }
    }
}

/// One fsync.
#[derive(Debug)]
pub(crate) struct SyncPlan {
    inode: InodeId,
    covers: u64,
    pub(crate) targets: BTreeMap<BrickId, Vec<ShardId>>,
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
        unsynced.begin_sync(INODE, &[HOME], |s| PartitionNumber(s.index as u32 + 10), bricks)
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
    fn shards_go_to_the_bricks_that_hold_them_until_a_sync_has_succeeded() {
        let mut unsynced = Unsynced::default();
        unsynced.wrote(INODE, shard(0));
        unsynced.wrote(INODE, shard(0));
        let first = plan(&mut unsynced);
        assert_eq!(first.targets.keys().map(|b| b.0).collect::<Vec<_>>(), [10, 11]);
        let meanwhile = plan(&mut unsynced);
        assert_eq!(meanwhile.targets, first.targets, "another fsync does not rely on one that may fail");
        unsynced.wrote(INODE, shard(1));
        unsynced.synced(&first);
        assert_eq!(plan(&mut unsynced).targets[&BrickId(11)], [shard(1)], "written during the sync");
        unsynced.synced_everything(unsynced.now(), &BTreeSet::new());
        assert!(plan(&mut unsynced).targets.is_empty());
    }
}
