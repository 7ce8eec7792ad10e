//! Before a server serves: it reconciles its replicas, and undoes or finishes ops that a crash interrupted, unless that
//! has to wait for its clients.

#[cfg(test)]
mod tests;

use crate::hosting::hosted_ring::{Hosted, HostedRing};
use crate::hosting::node::Node;
use hekate_brick::{Brick, LostBlock};
use hekate_cluster::{Registry, RingInfo, older_records};
use hekate_proto::*;
use hekate_replica::{BlockAt, Event};
use hekate_threads::{elapsed, now};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Log target of lines about the progress of a start; `hekate serve` passes them to systemd.
pub const PROGRESS: &str = "progress";
/// Time between two lines about the comparison of replicas.
pub const COMPARISON_LINE_PAUSE: Duration = Duration::from_secs(2);
/// Time between two checks whether all partitions serve, and between two renewals of the lease meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
const KEEP_PAUSE: Duration = Duration::from_millis(20);

/// A lost block as the coordinator records it: ring, volume, data id in hexadecimal, shard, block, brick.
type LostRow = (u16, u32, String, u64, u32, BrickId);
/// A block, and the brick that lost it in a power cut.
pub type LostOn = (LostBlock, BrickId);

/// Lost blocks that earlier starts recorded and did not settle.
///
/// # Errors
///
/// `Damaged` if the record cannot be read; those of the coordinator.
pub fn read_lost(registry: &Registry) -> Result<BTreeSet<LostOn>> {
    let rows: Vec<LostRow> = registry.lost_blocks()?;
    let row = |(ring, volume, data, index, block, brick): LostRow| {
        let data = u128::from_str_radix(&data, 16)
            .map_err(|_| Error::Damaged { what: "the coordinator's list of lost blocks".into() })?;
        let shard = ShardId { volume: VolumeId(volume), data: DataId(data), index };
        Ok((LostBlock { ring: RingId(ring), shard, block }, brick))
    };
    rows.into_iter().map(row).collect()
}

/// Records the lost blocks; an empty list if they are settled.
///
/// # Errors
///
/// Those of the coordinator.
pub fn record_lost(registry: &Registry, lost: &BTreeSet<LostOn>) -> Result<()> {
    let row = |(lost, brick): &LostOn| -> LostRow {
        let shard = lost.shard;
        (lost.ring.0, shard.volume.0, format!("{:032x}", shard.data.0), shard.index, lost.block, *brick)
    };
    registry.put_lost_blocks(&lost.iter().map(row).collect::<Vec<_>>())
}

/// Blocks of a partition that a brick lost.
pub fn lost_of(lost: &BTreeSet<LostOn>, ring: &RingInfo, brick: BrickId, partition: PartitionNumber) -> Vec<BlockAt> {
    let count = ring.views.len() as u32;
    let own = |(block, on): &&LostOn| {
        *on == brick && block.ring == ring.ring && block.shard.position().partition(count) == partition
    };
    lost.iter().filter(own).map(|(block, _)| BlockAt { shard: block.shard, block: block.block }).collect()
}

impl Node {
    /// Reads the rings, volumes and sessions, reconciles the replicas, and settles the blocks that power cuts took.
    ///
    /// # Errors
    ///
    /// Those of the coordinator and of the bricks, and the failure of the first replica that cannot be reconciled.
    pub(crate) fn load(&self, progress: &dyn Fn(&str)) -> Result<()> {
        self.load_all(progress).map_err(|error| self.bricks.hinted(error))
    }

    fn load_all(&self, progress: &dyn Fn(&str)) -> Result<()> {
        // A brick's own list of lost blocks ends with its next checkpoint. The coordinator keeps the list until all
        // replicas agree on these blocks.
        let mut lost: BTreeSet<LostOn> = read_lost(self.cluster.registry())?;
        lost.retain(|(block, brick)| !self.has_block(block, *brick));
        lost.extend(self.bricks.lost_blocks());
        if !lost.is_empty() {
            record_lost(self.cluster.registry(), &lost)?;
        }
        // Before the first replica exists, which could have a data file synced: a block that a power cut took must not
        // be marked as synced.
        for brick in self.bricks.values().filter(|brick| !brick.has_covered_recovery()) {
            progress(&format!("writing the journal of brick {:032x} home", brick.id().0));
            match brick.checkpoint() {
                // The brick serves reads and deletes meanwhile, and delays syncs of data files.
                Err(Error::NoSpace { what }) => {
                    progress(&format!("brick {:032x} cannot write home: {what}", brick.id().0))
                }
                written => written?,
            }
        }
        for ring in self.cluster.registry().rings()? {
            self.put_ring(&ring, &lost)?;
        }
        for volume in self.cluster.registry().volumes()? {
            self.volumes.put(volume);
        }
        self.sessions.load(self.cluster.registry())?;
        progress("reconciling the replicas");
        let rings = self.rings.all();
        self.begin_links()?;
        bring_into_step(self, &rings)?;
        self.send_sessions()?;
        match self.make_missing_roots() {
            // The root's record may have to wait until sessions have forgotten pledges of an earlier leader, and they
            // connect once the server has started. The thread that reads the records tries again.
            Err(error @ Error::Unavailable { .. }) => log::warn!("a volume has no root yet: {error}"),
            made => made?,
        }
        self.checkpoint_all()?;
        self.settle_lives()
    }

    /// True if the brick has a block that an earlier start listed as lost: the replicas have agreed on it since, and the
    /// list had yet to be cleared. A block that is lost is a hole.
    fn has_block(&self, lost: &LostBlock, brick: BrickId) -> bool {
        let block = |brick: &Arc<Brick>| brick.read_block(lost.ring, lost.shard, lost.block);
        matches!(self.bricks.get(&brick).map(block), Some(Ok(Some(_))))
    }

    /// Clears the list of lost blocks once all replicas here agree on them and a checkpoint has written the result
    /// home: the next start then does not compare replicas because of them. Does nothing before, or while a brick is
    /// stalled.
    ///
    /// # Errors
    ///
    /// Those of a checkpoint and of the coordinator; the next call tries again.
    pub(crate) fn settle_lives(&self) -> Result<()> {
        if self.bricks.are_lives_settled() {
            return Ok(());
        }
        // Housekeeping calls this function again.
        if !self.bricks.stalled().is_empty() {
            return Ok(());
        }
        let rings = self.rings.all();
        let is_settled = |hosted: &Hosted| hosted.partition.read().has_settled_lost();
        if !rings.iter().flat_map(|ring| ring.replicas()).all(|(_, hosted)| is_settled(hosted)) {
            return Ok(());
        }
        self.checkpoint_all()?;
        if !self.bricks.stalled().is_empty() {
            return Ok(());
        }
        if !read_lost(self.cluster.registry())?.is_empty() {
            record_lost(self.cluster.registry(), &BTreeSet::new())?;
        }
        self.bricks.settle_lives()
    }

    /// Makes the replicas of a ring that are placed on bricks here; an earlier ring of this number is replaced. `lost`
    /// are the blocks that power cuts took.
    ///
    /// # Errors
    ///
    /// Those of the coordinator and of reading a replica's state from its brick.
    pub(crate) fn put_ring(&self, info: &RingInfo, lost: &BTreeSet<LostOn>) -> Result<Arc<HostedRing>> {
        self.check_epochs(info)?;
        let lost_of = |brick, partition| lost_of(lost, info, brick, partition);
        let servers = self.cluster.registry().bricks()?.into_iter().map(|info| (info.brick, info.server)).collect();
        let ring = Arc::new(HostedRing::new(info, &self.bricks, servers, lost_of)?);
        // The new ring's replicas get `Up` of each server whose link is up, and no link goes up or down meanwhile: a
        // replica that missed an `Up` would take the server's next messages for those of an earlier link and drop them.
        let linked = self.links.up();
        let local: Vec<BrickId> = self.bricks.ids().collect();
        let reachable = linked.iter().map(|server| ring.bricks_of(*server)).chain([local]);
        let events: Vec<Event> =
            std::iter::once(Event::Start).chain(reachable.map(|bricks| Event::Up { bricks })).collect();
        for (address, _) in ring.replicas() {
            events.iter().for_each(|event| ring.deliver(*address, event.clone()));
        }
        self.rings.put(ring.clone());
        drop(linked);
        Ok(ring)
    }

    /// Checks that no brick here has records of a later view than the coordinator knows.
    ///
    /// # Errors
    ///
    /// `Damaged` if one has: the coordinator's records are of an older copy.
    fn check_epochs(&self, info: &RingInfo) -> Result<()> {
        for (number, view) in (0..).map(PartitionNumber).zip(&info.views) {
            for brick in self.bricks.values() {
                let has = brick.position(info.ring, number).epoch;
                if has > view.epoch {
                    return Err(older_records(&format!(
                        "brick {} has view {has} of partition {number} of ring {}, and they know view {}",
                        self.bricks.name(brick.id()),
                        info.ring,
                        view.epoch
                    )));
                }
            }
        }
        Ok(())
    }

    /// Makes the replicas of a ring that is new here, and serves them.
    ///
    /// # Errors
    ///
    /// Those of `put_ring` and of `bring_into_step`.
    pub(crate) fn host(&self, info: &RingInfo) -> Result<Arc<HostedRing>> {
        assert!(self.rings.get(info.ring).is_err(), "a ring is hosted once: two machines would append to one journal");
        let ring = self.put_ring(info, &BTreeSet::new())?;
        bring_into_step(self, std::slice::from_ref(&ring))?;
        self.wake_sessions();
        Ok(ring)
    }

    /// Logs how far replicas are compared. They are compared after a restart of the machine, which can take minutes.
    pub(crate) fn log_comparison(&self) {
        let rings = self.rings.all();
        let compared = |ring: &Arc<HostedRing>| -> Vec<u64> {
            ring.replicas().filter_map(|(_, hosted)| hosted.partition.read().compared()).collect()
        };
        let entries: Vec<u64> = rings.iter().flat_map(compared).collect();
        if !entries.is_empty() {
            let (count, sum) = (entries.len(), entries.iter().sum::<u64>());
            log::info!(target: PROGRESS, "comparing the replicas of {count} partitions, {sum} of their entries so far");
        }
    }
}

/// Starts the replicas of the rings, and returns when those rings serve whose bricks are all here. Their leaders may
/// have ops left to undo or finish if a record of these waits until sessions have forgotten pledges: the sessions connect
/// once the server has started. Other rings may need servers that wait for this one.
///
/// # Errors
///
/// The failure of the first replica that cannot be reconciled; those of the coordinator and of a checkpoint.
pub fn bring_into_step(node: &Node, rings: &[Arc<HostedRing>]) -> Result<()> {
    rings.iter().for_each(|ring| node.tick(ring));
    let (mut kept, mut logged) = (None::<Instant>, now());
    loop {
        if elapsed(logged) >= COMPARISON_LINE_PAUSE {
            node.log_comparison();
            logged = now();
        }
        // The threads that renew the lease, form views and read the sessions start later, so this one does it. A leader
        // that does not know the sessions makes no record that changes a name: it could undo no op.
        if kept.is_none_or(|kept| elapsed(kept) >= KEEP_PAUSE) {
            node.keep_views()?;
            node.send_sessions()?;
            kept = Some(now());
        }
        let mut waiting = false;
        for ring in rings.iter().filter(|ring| ring.is_placed_here()) {
            waiting |= !is_in_step(ring)?;
        }
        if !waiting {
            return Ok(());
        }
        hekate_threads::sleep(LOOK_PAUSE);
        node.checkpoint_if_wanted()?;
        rings.iter().for_each(|ring| node.tick(ring));
    }
}

/// True if all leaders here serve, or those that do not only have ops to undo or finish while a record waits for sessions.
///
/// # Errors
///
/// The failure of the first replica that has failed.
fn is_in_step(ring: &HostedRing) -> Result<bool> {
    let (mut is_level, mut recovers, mut delays) = (true, false, false);
    for hosted in ring.leaders().into_iter().filter_map(|address| ring.replica(address)) {
        let partition = hosted.partition.read();
        if let Some(error) = partition.failure() {
            return Err(error.clone());
        }
        is_level &= partition.serves() || partition.recovers();
        recovers |= partition.recovers();
        delays |= partition.delays_for_forgetting();
    }
    Ok(is_level && (delays || !recovers))
}
