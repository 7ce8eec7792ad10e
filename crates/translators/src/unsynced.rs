//! The changes of this client that are not on stable storage: what an fsync must ask for, and whether it still
//! exists.
//!
//! A sync of a brick covers all metadata that the brick acknowledged, so metadata is tracked by partition. Data files
//! are synced one by one, so shards are tracked by file. Each change is stored with the loss counter of the view that
//! acknowledged it ([`View::losses`](hekate_proto::map::View::losses)). If the counter has increased by the time of
//! the sync, the change may be lost, and the next fsync of the inode reports that. A forgotten change would be lost
//! data, so the lists are exact up to a limit, at which everything is synced.

use hekate_proto::map::VolumeMap;
use hekate_proto::{BrickId, InodeId, PartitionNumber, ShardId};
use hekate_threads::{HashMap, HashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Most shards tracked; at the limit everything is synced. 65,536 shards of 4 MiB hold 256 GiB.
const SHARDS_MAX: usize = 65_536;
/// Most inodes with changed metadata tracked; at the limit everything is synced.
const INODES_MAX: usize = 16_384;

/// The unsynced changes of a session.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    /// Counts changes. The times below are values of this counter.
    clock: u64,
    /// Time of the last change in each partition.
    changed_at: HashMap<PartitionNumber, u64>,
    /// Each brick has synced all changes up to this time.
    synced_at: HashMap<BrickId, u64>,
    /// Inodes with changed metadata, and the partitions of the changes.
    inodes: HashMap<InodeId, Vec<(PartitionNumber, Change)>>,
    /// Index of `inodes` by partition. An entry may lack its counterpart in `inodes`.
    changed_in: HashMap<PartitionNumber, HashSet<InodeId>>,
    shards: HashMap<InodeId, BTreeMap<ShardId, Change>>,
    shard_count: usize,
    /// Inodes with lost changes that no fsync has reported yet.
    lost: HashSet<InodeId>,
}

/// Time of the last change, and the loss counter of the view at the first unsynced one.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: u64,
    losses: u32,
}

impl Change {
    fn update(&mut self, now: Change) {
        self.at = now.at;
        // The counter at the first unsynced change is kept: a loss after it may have taken that change.
        self.losses = self.losses.min(now.losses);
    }
}

impl Unsynced {
    /// The time of the last change. A sync that begins now covers all changes up to it.
    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    /// A change of these inodes' metadata in a partition was acknowledged. `losses`: the loss counter of its view, or
    /// an earlier value.
    pub(crate) fn changed(
        &mut self,
        partition: PartitionNumber,
        inodes: impl IntoIterator<Item = InodeId>,
        losses: u32,
    ) {
        self.clock += 1;
        self.changed_at.insert(partition, self.clock);
        let now = Change { at: self.clock, losses };
        for inode in inodes {
            let places = self.inodes.entry(inode).or_default();
            match places.iter_mut().find(|(known, _)| *known == partition) {
                Some((_, change)) => change.update(now),
                None => {
                    places.push((partition, now));
                    self.changed_in.entry(partition).or_default().insert(inode);
                }
            }
        }
    }

    /// A write of a shard was acknowledged.
    pub(crate) fn wrote(&mut self, inode: InodeId, shard: ShardId, losses: u32) {
        self.clock += 1;
        let now = Change { at: self.clock, losses };
        let shards = self.shards.entry(inode).or_default();
        match shards.get_mut(&shard) {
            Some(change) => change.update(now),
            None => {
                shards.insert(shard, now);
                self.shard_count += 1;
            }
        }
    }

    /// True if the limit is reached, so that everything must be synced.
    pub(crate) fn is_full(&self) -> bool {
        self.shard_count > SHARDS_MAX || self.inodes.len() > INODES_MAX
    }

    /// The bricks to sync for an inode, and the shards to name to each. `homes`: the partitions of its metadata and,
    /// for a directory, its names.
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
        SyncPlan { inode, homes: homes.to_vec(), covers: self.clock, targets }
    }

    /// The sync succeeded. Changes that were made after it began remain unsynced.
    pub(crate) fn synced(&mut self, plan: &SyncPlan, losses: &Losses) {
        for brick in plan.targets.keys() {
            let at = self.synced_at.entry(*brick).or_default();
            *at = (*at).max(plan.covers);
        }
        for home in &plan.homes {
            self.forget_changes(*home, plan.covers, losses);
        }
        self.forget_shards(plan.inode, plan.covers, losses, |_| true);
    }

    /// All bricks synced everything up to `covers`. Partitions that are not `covered` remain unsynced.
    pub(crate) fn synced_everything(
        &mut self,
        covers: u64,
        bricks: &BTreeSet<BrickId>,
        losses: &Losses,
        covered: impl Fn(PartitionNumber) -> bool,
    ) {
        for brick in bricks {
            let at = self.synced_at.entry(*brick).or_default();
            *at = (*at).max(covers);
        }
        // A brick of a partition that is not covered confirmed another incarnation, so its changes stay unsynced.
        self.clock += 1;
        let uncovered = self.changed_at.iter_mut().filter(|(partition, _)| !covered(**partition));
        uncovered.for_each(|(_, changed)| *changed = self.clock);
        let partitions: Vec<PartitionNumber> = self.changed_in.keys().copied().filter(|at| covered(*at)).collect();
        partitions.into_iter().for_each(|partition| self.forget_changes(partition, covers, losses));
        let inodes: Vec<InodeId> = self.shards.keys().copied().collect();
        inodes.into_iter().for_each(|inode| self.forget_shards(inode, covers, losses, &covered));
    }

    /// True if changes of the inode were lost before they were synced. Each loss is reported once.
    pub(crate) fn is_lost(&mut self, inode: InodeId, losses: &Losses) -> bool {
        let mut found = self.lost.remove(&inode);
        let mut look = |change: &mut Change, partition| {
            let now = losses.of(partition);
            found |= change.losses < now;
            change.losses = change.losses.max(now);
        };
        self.inodes.get_mut(&inode).into_iter().flatten().for_each(|(partition, change)| look(change, *partition));
        let shards = self.shards.get_mut(&inode);
        shards.into_iter().flatten().for_each(|(shard, change)| look(change, losses.place(*shard)));
        found
    }

    /// Removes the metadata changes of a partition that a sync covers, and notes those that were lost.
    fn forget_changes(&mut self, partition: PartitionNumber, covers: u64, losses: &Losses) {
        let Some(changed) = self.changed_in.get_mut(&partition) else { return };
        let (inodes, lost, now) = (&mut self.inodes, &mut self.lost, losses.of(partition));
        changed.retain(|inode| {
            let Some(places) = inodes.get_mut(inode) else { return false };
            let Some(found) = places.iter().position(|(known, _)| *known == partition) else { return false };
            if places[found].1.at > covers {
                return true;
            }
            if places.swap_remove(found).1.losses < now {
                lost.insert(*inode);
            }
            if places.is_empty() {
                inodes.remove(inode);
            }
            false
        });
        if changed.is_empty() {
            self.changed_in.remove(&partition);
        }
    }

    /// Removes the shard writes of an inode that a sync covers, and notes those that were lost.
    fn forget_shards(
        &mut self,
        inode: InodeId,
        covers: u64,
        losses: &Losses,
        covered: impl Fn(PartitionNumber) -> bool,
    ) {
        let Some(shards) = self.shards.get_mut(&inode) else { return };
        let before = shards.len();
        let mut is_lost = false;
        shards.retain(|shard, change| {
            let at = losses.place(*shard);
            let goes = change.at <= covers && covered(at);
            is_lost |= goes && change.losses < losses.of(at);
            !goes
        });
        if is_lost {
            self.lost.insert(inode);
        }
        self.shard_count -= before - shards.len();
        if shards.is_empty() {
            self.shards.remove(&inode);
        }
    }
}

/// Loss counters of the views of a map.
pub(crate) struct Losses<'a>(pub(crate) &'a VolumeMap);

impl Losses<'_> {
    pub(crate) fn of(&self, partition: PartitionNumber) -> u32 {
        self.0.view(partition).map_or(0, |view| view.losses)
    }

    /// Partition of a shard.
    pub(crate) fn place(&self, shard: ShardId) -> PartitionNumber {
        self.0.partition_of(shard.position())
    }
}

/// Plan of one fsync.
#[derive(Debug)]
pub(crate) struct SyncPlan {
    inode: InodeId,
    homes: Vec<PartitionNumber>,
    covers: u64,
    pub(crate) targets: BTreeMap<BrickId, Vec<ShardId>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::map::{Member, View};
    use hekate_proto::{DataId, Epoch, Incarnation, RingId, ServerId, VolumeId};

    const HOME: PartitionNumber = PartitionNumber(0);
    const INODE: InodeId = InodeId::new(1, 1, 1);
    const OTHER: InodeId = InodeId::new(1, 1, 2);

    fn shard(index: u64) -> ShardId {
        ShardId { volume: VolumeId(1), data: DataId(5), index }
    }

    /// A map of two partitions with these loss counters.
    fn map(losses: [u32; 2]) -> VolumeMap {
        let member = Member { brick: BrickId(1), incarnation: Incarnation(1) };
        let view = |losses| View { losses, ..View::new(Epoch(1), BrickId(1), vec![member]) };
        VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            ring: RingId(1),
            copies: 1,
            mode: Default::default(),
            views: losses.map(view).into(),
            server: ServerId(1),
            servers: Vec::new(),
            graph: Default::default(),
            bricks: Vec::new(),
        }
    }

    fn plan(unsynced: &mut Unsynced) -> SyncPlan {
        let bricks = |p: PartitionNumber| vec![BrickId(p.0.into()), BrickId(u128::from(p.0) + 1)];
        unsynced.begin_sync(INODE, &[HOME], |s| PartitionNumber(s.index as u32 + 10), bricks)
    }

    fn synced(unsynced: &mut Unsynced, plan: &SyncPlan) {
        unsynced.synced(plan, &Losses(&map([0, 0])));
    }

    #[test]
    fn nothing_changed_means_nothing_to_send() {
        let mut unsynced = Unsynced::default();
        assert!(plan(&mut unsynced).targets.is_empty());
        unsynced.changed(HOME, [INODE], 0);
        let first = plan(&mut unsynced);
        assert_eq!(first.targets.len(), 2);
        synced(&mut unsynced, &first);
        assert!(plan(&mut unsynced).targets.is_empty());
        assert!(unsynced.inodes.is_empty() && unsynced.changed_in.is_empty());
    }

    #[test]
    fn a_change_during_a_sync_is_not_taken_as_covered() {
        let mut unsynced = Unsynced::default();
        unsynced.changed(HOME, [INODE], 0);
        let running = plan(&mut unsynced);
        unsynced.changed(HOME, [INODE], 0);
        synced(&mut unsynced, &running);
        assert_eq!(plan(&mut unsynced).targets.len(), 2);
        assert!(!unsynced.inodes.is_empty());
    }

    #[test]
    fn shards_go_to_the_bricks_that_hold_them_until_a_sync_has_succeeded() {
        let mut unsynced = Unsynced::default();
        unsynced.wrote(INODE, shard(0), 0);
        unsynced.wrote(INODE, shard(0), 0);
        let first = plan(&mut unsynced);
        assert_eq!(first.targets.keys().map(|b| b.0).collect::<Vec<_>>(), [10, 11]);
        let meanwhile = plan(&mut unsynced);
        assert_eq!(meanwhile.targets, first.targets, "another fsync does not rely on one that may fail");
        unsynced.wrote(INODE, shard(1), 0);
        synced(&mut unsynced, &first);
        assert_eq!(plan(&mut unsynced).targets[&BrickId(11)], [shard(1)], "written during the sync");
        let none = BTreeSet::new();
        unsynced.synced_everything(unsynced.now(), &none, &Losses(&map([0, 0])), |_| false);
        assert!(!plan(&mut unsynced).targets.is_empty(), "a partition that was not covered");
        unsynced.synced_everything(unsynced.now(), &none, &Losses(&map([0, 0])), |_| true);
        assert!(plan(&mut unsynced).targets.is_empty());
    }

    #[test]
    fn a_sync_of_everything_says_nothing_of_what_was_not_covered() {
        let mut unsynced = Unsynced::default();
        unsynced.changed(HOME, [INODE], 0);
        let all: BTreeSet<BrickId> = plan(&mut unsynced).targets.keys().copied().collect();
        unsynced.synced_everything(unsynced.now(), &all, &Losses(&map([0, 0])), |_| false);
        assert_eq!(plan(&mut unsynced).targets.len(), 2, "they are asked again");
        assert!(unsynced.is_lost(INODE, &Losses(&map([1, 0]))), "and a loss is still found");
    }

    #[test]
    fn what_was_lost_before_it_was_synced_is_said_once_and_of_its_inode_only() {
        let mut unsynced = Unsynced::default();
        let before = map([3, 0]);
        let after = map([4, 0]);
        unsynced.changed(HOME, [INODE], 3);
        unsynced.changed(PartitionNumber(1), [OTHER], 0);
        assert!(!unsynced.is_lost(INODE, &Losses(&before)));
        // A write in the view after the loss does not undo the loss.
        unsynced.changed(HOME, [INODE], 4);
        assert!(!unsynced.is_lost(OTHER, &Losses(&after)));
        assert!(unsynced.is_lost(INODE, &Losses(&after)));
        assert!(!unsynced.is_lost(INODE, &Losses(&after)), "once");
    }

    #[test]
    fn a_sync_for_another_inode_does_not_hide_a_loss() {
        let mut unsynced = Unsynced::default();
        let (first, second) = (shard(0), shard(1));
        let partition = Losses(&map([0, 0])).place(first);
        let mut losses = [0, 0];
        losses[partition.0 as usize] = 1;
        let after = map(losses);
        unsynced.wrote(OTHER, first, 0);
        unsynced.changed(partition, [OTHER, INODE], 0);
        let plan = unsynced.begin_sync(INODE, &[partition], |_| partition, |_| vec![BrickId(1)]);
        unsynced.synced(&plan, &Losses(&after));
        assert!(unsynced.is_lost(INODE, &Losses(&after)));
        assert!(unsynced.inodes.is_empty());
        unsynced.synced_everything(unsynced.now(), &BTreeSet::from([BrickId(1)]), &Losses(&after), |_| true);
        assert!(unsynced.shards.is_empty());
        assert!(unsynced.is_lost(OTHER, &Losses(&after)));
        assert!(!unsynced.is_lost(OTHER, &Losses(&after)), "once");
        unsynced.wrote(OTHER, second, 1);
        assert!(!unsynced.is_lost(OTHER, &Losses(&after)), "written after the loss");
    }
}
