//! Before a server serves: it brings its replicas into step, and undoes or finishes ops that a crash interrupted.

#[cfg(test)]
mod tests;

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use hekate_brick::LostBlock;
use hekate_cluster::{Registry, RingInfo};
use hekate_proto::*;
use hekate_replica::BlockAt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Log target of lines about the progress of a start; `hekate serve` passes them to systemd.
pub const PROGRESS: &str = "progress";
/// Time between two lines about the comparison of replicas.
pub const TELL_PAUSE: Duration = Duration::from_secs(2);
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
        let data =
            u128::from_str_radix(&data, 16).map_err(|_| Error::Damaged { what: "the list of lost blocks".into() })?;
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
    /// Logs how far replicas are compared. They are compared after a restart of the machine, which can take minutes.
    pub(crate) fn tell_comparing(&self) {
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

/// Starts the replicas of the rings, and returns when those rings serve whose bricks are all here. Other rings may need
/// servers that wait for this one.
///
/// # Errors
///
/// The failure of the first replica that cannot be brought into step; those of the coordinator and of a checkpoint.
pub fn bring_into_step(node: &Node, rings: &[Arc<HostedRing>]) -> Result<()> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let teller = scope.spawn(|| {
            std::thread::park_timeout(TELL_PAUSE);
            while !done.load(Ordering::Acquire) {
                node.tell_comparing();
                std::thread::park_timeout(TELL_PAUSE);
            }
        });
        let outcome = start_replicas(node, rings);
        done.store(true, Ordering::Release);
        teller.thread().unpark();
        outcome
    })
}

fn start_replicas(node: &Node, rings: &[Arc<HostedRing>]) -> Result<()> {
    rings.iter().for_each(|ring| node.tick(ring));
    let mut kept = None::<Instant>;
    loop {
        // The thread that renews the lease and forms views starts later, so this one does it.
        if kept.is_none_or(|kept| kept.elapsed() >= KEEP_PAUSE) {
            node.keep_views()?;
            kept = Some(Instant::now());
        }
        let mut waiting = false;
        for ring in rings.iter().filter(|ring| ring.is_placed_here()) {
            for address in ring.leaders() {
                let Some(hosted) = ring.replica(address) else { continue };
                let partition = hosted.partition.read();
                if let Some(error) = partition.failure() {
                    return Err(error.clone());
                }
                waiting |= !partition.serves();
            }
        }
        if !waiting {
            return Ok(());
        }
        std::thread::sleep(LOOK_PAUSE);
        node.checkpoint_if_wanted()?;
        rings.iter().for_each(|ring| node.tick(ring));
    }
}
