//! What a server does beside its requests: checkpoints, and collecting what ops left behind.

use crate::level::{remove, sync_all, with_locks};
use crate::node::Node;
use crate::scrub;
use hekate_proto::*;
use hekate_replica::{Commit, Partitions, purge_orphan};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a journal is looked at: a disk of 1 GB/s fills a fortieth of it meanwhile.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(25);
/// Between two writes of a checkpoint that is ahead of the journal; all together at most a second.
const WRITE_PAUSE: Duration = Duration::from_millis(2);
const WRITE_PAUSES_MAX: u32 = 500;
/// A volume that another server made is here this much later.
const LEARN_PAUSE: Duration = Duration::from_secs(1);
const CHORES_PAUSE: Duration = Duration::from_millis(250);
/// Space of what was deleted is back this long after at the latest, however little else happens.
const SPACE_PAUSE: Duration = Duration::from_secs(3);
/// Inodes and data ids collected before others get the lock again.
const COLLECT_AT_ONCE: usize = 1024;

/// The threads.
pub struct Housekeeping {
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Housekeeping {
    /// Starts them.
    pub fn start(node: &Arc<Node>) -> Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let checkpoints = spawn(node, &stopping, CHECKPOINT_PAUSE, |node| {
            if node.bricks.values().any(|brick| brick.wants_checkpoint()) {
                let mut pauses = 0;
                node.checkpoint_all_paced(&mut || {
                    std::thread::sleep(WRITE_PAUSE);
                    pauses += 1;
                    pauses < WRITE_PAUSES_MAX
                })?;
            }
            Ok(())
        })?;
        let chores = spawn(node, &stopping, CHORES_PAUSE, chores)?;
        let space = spawn(node, &stopping, SPACE_PAUSE, |node| {
            if node.bricks.values().any(|brick| brick.could_free_space()) {
                node.checkpoint_all()?;
            }
            Ok(())
        })?;
        let scrub = spawn(node, &stopping, scrub::ROUND_PAUSE, scrub::round)?;
        let learn = spawn(node, &stopping, LEARN_PAUSE, Node::learn)?;
        Ok(Self { stopping, threads: vec![checkpoints, chores, space, scrub, learn] })
    }

    /// Ends them.
    pub fn stop(self) {
        self.stopping.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn spawn(
    node: &Arc<Node>,
    stopping: &Arc<AtomicBool>,
    pause: Duration,
    act: fn(&Node) -> Result<()>,
) -> Result<JoinHandle<()>> {
    let (node, stopping): (Weak<Node>, _) = (Arc::downgrade(node), stopping.clone());
    let run = move || {
        let mut last_error = None;
        while !stopping.load(Ordering::Relaxed) {
            std::thread::park_timeout(pause);
            let Some(node) = node.upgrade() else { return };
            let error = act(&node).err();
            if let Some(error) = error.as_ref().filter(|_| error != last_error) {
                eprintln!("hekate-serve: housekeeping: {error}");
            }
            last_error = error;
        }
    };
    std::thread::Builder::new().name("hekate-keep".into()).spawn(run).map_err(|e| Error::io("start a thread", e))
}

/// Gives back the space of everything that was deleted, now.
pub fn free_space(node: &Node) -> Result<()> {
    collect_garbage(node)?;
    node.checkpoint_all()?;
    node.bricks.values().try_for_each(|brick| brick.refresh_room())
}

fn chores(node: &Node) -> Result<()> {
    for brick in node.bricks.values() {
        brick.refresh_room()?;
    }
    for session in node.sessions.silent() {
        node.end_session(session)?;
    }
    sweep(node)?;
    collect_orphans(node)?;
    collect_garbage(node)?;
    crate::volumes::go_on_deleting(node)
}

/// Intents of finished ops go first; once that is on stable storage, the marks of their legs.
fn sweep(node: &Node) -> Result<()> {
    let swept = std::mem::take(&mut node.chores.lock().swept);
    if swept.is_empty() {
        return Ok(());
    }
    let is_intent = |entry: &(RingId, PartitionNumber, Key)| entry.2.kind() == Some(Kind::Intent);
    let (intents, marks): (Vec<_>, Vec<_>) = swept.into_iter().partition(is_intent);
    // The legs before what would repeat them, and that before the marks that they were taken.
    sync_rings(node, &intents)?;
    remove(node, &intents)?;
    sync_rings(node, &marks)?;
    remove(node, &marks)
}

fn sync_rings(node: &Node, entries: &[(RingId, PartitionNumber, Key)]) -> Result<()> {
    let rings: BTreeSet<RingId> = entries.iter().map(|(ring, _, _)| *ring).collect();
    rings.into_iter().try_for_each(|ring| sync_all(node, &*node.ring(ring)?))
}

fn collect_orphans(node: &Node) -> Result<()> {
    let orphans = node.chores.lock().orphans.clone();
    let released = |(_, volume, inode): &(RingId, VolumeId, InodeId)| node.sessions.all_released(*volume, *inode);
    let mut collected = BTreeSet::new();
    for (ring_id, volume, inode) in orphans.into_iter().filter(released).take(COLLECT_AT_ONCE) {
        let ring = node.ring(ring_id)?;
        let at = inode.position().partition(ring.count());
        with_locks(node, &ring, volume, at, |locked, ask| match purge_orphan(locked.brick(at)?, ask, inode)? {
            Some(commit) => Ok(locked.commit(at, commit)?),
            None => Ok(()),
        })?;
        collected.insert((ring_id, volume, inode));
        node.sessions.forget(volume, inode);
    }
    node.chores.lock().orphans.retain(|orphan| !collected.contains(orphan));
    Ok(())
}

fn collect_garbage(node: &Node) -> Result<()> {
    let garbage: Vec<_> = {
        let mut chores = node.chores.lock();
        let count = chores.garbage.len().min(COLLECT_AT_ONCE);
        chores.garbage.drain(..count).collect()
    };
    for (index, (ring_id, key, record)) in garbage.iter().enumerate() {
        if let Err(error) = collect_data(node, *ring_id, key, *record) {
            // What is left waits for the next round.
            node.chores.lock().garbage.extend_from_slice(&garbage[index..]);
            return Err(error);
        }
    }
    Ok(())
}

fn collect_data(node: &Node, ring_id: RingId, key: &Key, record: GarbageRecord) -> Result<()> {
    let (Some(place), Some(data)) = (key.place(), key.id()) else { return Ok(()) };
    let ring = node.ring(ring_id)?;
    let shards = |index| ShardId { volume: place.volume, data: DataId(data), index };
    // One message a partition; a great sparse file asks each for all that it has.
    let partitions: BTreeSet<PartitionNumber> = if record.shards > 4096 {
        (0..ring.count()).map(PartitionNumber).collect()
    } else {
        (0..record.shards).map(|index| shards(index).position().partition(ring.count())).collect()
    };
    for at in partitions {
        with_locks(node, &ring, place.volume, at, |locked, ask| {
            let found = hekate_replica::shards_of(locked.brick(at)?, ask, at, DataId(data), 0, record.shards)?;
            if found.is_empty() {
                return Ok(());
            }
            for shards in found.chunks(COLLECT_AT_ONCE) {
                let changes = shards.iter().map(|shard| Change::DropShard { shard: *shard }).collect();
                locked.commit(at, Commit { changes, ..Commit::default() })?;
            }
            Ok(())
        })?;
    }
    remove(node, &[(ring_id, place.position.partition(ring.count()), key.clone())])
}
