//! fsync: which bricks are asked to sync, and whether what they synced is what was written.
//!
//! A brick confirms a sync for the incarnation that the map names. If all members of a view confirm theirs, no
//! machine lost its memory, so everything acknowledged in that view is on stable storage. If the view has had a loss
//! since, the fsync fails (rule F19 of `docs/fast-lane.md`).

use super::Distribute;
use crate::replicate::{Recipient, Replicate};
use crate::unsynced::{Losses, Unsynced};
use hekate_graph::Context;
use hekate_proto::map::{View, VolumeMap};
use hekate_proto::*;
use hekate_threads::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Reports which inodes lost unsynced changes, without a request to a server.
pub struct LossWatch {
    replicate: Arc<Replicate>,
    unsynced: Arc<Mutex<Unsynced>>,
}

impl LossWatch {
    pub(super) fn new(replicate: Arc<Replicate>, unsynced: Arc<Mutex<Unsynced>>) -> Self {
        Self { replicate, unsynced }
    }

    /// True if changes of the inode are known to be lost. Each loss is reported once; an fsync finds more of them.
    pub fn is_lost(&self, inode: InodeId) -> bool {
        let map = self.replicate.map();
        self.unsynced.lock().is_lost(inode, &Losses(&map))
    }
}

impl Distribute {
    /// Repeats a sync when a view changes: a brick that left need not be asked, and one that joined has everything on
    /// stable storage.
    fn in_one_view<T>(sync: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            match sync() {
                Err(Error::StaleView { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    pub(super) fn fsync(&self, context: &Context, inode: InodeId) -> Result<Reply> {
        Self::in_one_view(|| self.fsync_now(context, inode))
    }

    fn fsync_now(&self, context: &Context, inode: InodeId) -> Result<Reply> {
        let (homes, map) = (self.homes(inode), self.replicate.map());
        let place = |shard: ShardId| map.partition_of(shard.position());
        let plan = self.unsynced.lock().begin_sync(inode, &homes, place, |partition| members(&map, partition));
        if !plan.targets.is_empty() {
            let shards = plan.targets.values().flatten().map(|shard| place(*shard));
            let concerned: BTreeSet<PartitionNumber> = homes.iter().copied().chain(shards).collect();
            let lives = lives(concerned.iter().filter_map(|partition| map.view(*partition)));
            let batch = plan.targets.iter().map(|(brick, shards)| sync_of(&lives, *brick, shards.clone(), false));
            let replies = self.replicate.send_all(context, batch.collect())?;
            replies.into_iter().collect::<Result<Vec<_>>>()?;
        }
        let mut unsynced = self.unsynced.lock();
        unsynced.synced(&plan, &Losses(&map));
        if unsynced.is_lost(inode, &Losses(&map)) { Err(lost(inode)) } else { Ok(Reply::Done) }
    }

    pub(super) fn sync_everything(&self, context: &Context) -> Result<()> {
        Self::in_one_view(|| self.sync_everything_now(context))
    }

    fn sync_everything_now(&self, context: &Context) -> Result<()> {
        let map = self.replicate.map();
        let covers = self.unsynced.lock().now();
        let bricks: BTreeSet<BrickId> =
            map.views.iter().flat_map(|view| view.members.iter().map(|member| member.brick)).collect();
        // The view of a partition that waits for a member may still name an earlier incarnation of a brick, which the
        // brick cannot confirm. Such a partition must not block a sync of the others: each brick is asked for its
        // latest incarnation in any view, and the changes in that partition remain unsynced.
        let mut lives: BTreeMap<BrickId, Incarnation> = BTreeMap::new();
        for member in map.views.iter().flat_map(|view| &view.members) {
            let life = lives.entry(member.brick).or_default();
            *life = (*life).max(member.incarnation);
        }
        let is_now =
            |view: &View| view.members.iter().all(|member| lives.get(&member.brick) == Some(&member.incarnation));
        let batch = bricks.iter().map(|brick| sync_of(&lives, *brick, Vec::new(), true));
        let replies = self.replicate.send_all(context, batch.collect())?;
        replies.into_iter().collect::<Result<Vec<_>>>()?;
        let covered = |partition| map.view(partition).is_some_and(is_now);
        self.unsynced.lock().synced_everything(covers, &bricks, &Losses(&map), covered);
        Ok(())
    }
}

/// The bricks whose stable storage an fsync relies on: all members of the view, or its leader in a mode that
/// acknowledges early.
fn members(map: &VolumeMap, partition: PartitionNumber) -> Vec<BrickId> {
    let view = map.view(partition);
    if map.mode.answers_early() {
        return view.map(|view| view.leader).into_iter().collect();
    }
    view.map(|view| view.members.iter().map(|member| member.brick).collect()).unwrap_or_default()
}

/// The incarnation that the views of these partitions name for each brick. After a restart the views change one by
/// one. The earliest incarnation is used, which the brick does not confirm, so the sync fails until all views have
/// changed.
fn lives<'a>(views: impl Iterator<Item = &'a View>) -> BTreeMap<BrickId, Incarnation> {
    let mut lives = BTreeMap::new();
    for member in views.flat_map(|view| &view.members) {
        let life = lives.entry(member.brick).or_insert(member.incarnation);
        *life = (*life).min(member.incarnation);
    }
    lives
}

fn sync_of(lives: &BTreeMap<BrickId, Incarnation>, brick: BrickId, shards: Vec<ShardId>, all: bool) -> (Recipient, Op) {
    let incarnation = lives.get(&brick).copied().unwrap_or_default();
    (Recipient::Brick(brick), Op::Data { op: DataOp::Sync { incarnation, shards, all } })
}

fn lost(inode: InodeId) -> Error {
    let what = format!("changes of inode {}: the machines of all replicas that had them restarted", inode.number());
    Error::Lost { what }
}

/// The inodes whose metadata an op changes. The inode that it creates is in its reply.
pub(super) fn inodes_of(op: &Op) -> [Option<InodeId>; 2] {
    match op {
        Op::Name { op } => match op {
            NameOp::Rename { dir, to_dir, .. } => [Some(*dir), Some(*to_dir)],
            NameOp::Create { dir, .. }
            | NameOp::CreateUnnamed { dir, .. }
            | NameOp::Unlink { dir, .. }
            | NameOp::Rmdir { dir, .. }
            | NameOp::Put { dir, source: PutSource::Bytes { .. }, .. }
            | NameOp::Remove { dir, .. }
            | NameOp::MakePrefix { dir, .. }
            | NameOp::RemovePrefix { dir, .. }
            | NameOp::Join { dir, .. } => [Some(*dir), None],
            NameOp::Link { dir, inode, .. } | NameOp::Put { dir, source: PutSource::Inode { inode }, .. } => {
                [Some(*dir), Some(*inode)]
            }
            NameOp::Lookup { .. }
            | NameOp::List { .. }
            | NameOp::ListPart { .. }
            | NameOp::ListKeys { .. }
            | NameOp::Fetch { .. }
            | NameOp::Stub { .. } => [None; 2],
        },
        Op::Inode { op } => [Some(op.inode()), None],
        Op::Data { op } => [op.inode(), None],
        Op::Lock { .. } | Op::Volume { .. } | Op::Leg { .. } => [None; 2],
    }
}
