//! What records change: the overlays, and the position of each partition's log.

use super::{Amount, Before, KnownShards, Overlay, ShardOverlay, invariant};
use crate::checksum::CRC_BLOCKS;
use crate::index::meta::Meta;
use crate::journal::Lsn;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The position of a partition's log: its last record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    /// Epoch of the last record.
    pub epoch: Epoch,
    /// Number of the last record.
    pub sequence: Sequence,
}

/// What the journal holds beyond the index.
#[derive(Debug, Default)]
pub struct State {
    /// Changes since the last checkpoint began.
    pub active: Overlay,
    /// Number of overlays before the active one.
    pub active_number: u64,
    pub frozen: Option<Arc<Overlay>>,
    /// The position of each partition's log.
    pub positions: BTreeMap<(RingId, PartitionNumber), LogPosition>,
    /// End of the last record that was applied.
    pub(super) applied_end: Lsn,
}

impl State {
    pub fn new(meta: &Meta) -> Self {
        let position = |log: &crate::index::meta::PartitionLog| {
            ((log.ring, log.partition), LogPosition { epoch: log.epoch, sequence: log.sequence })
        };
        Self { positions: meta.logs.iter().map(position).collect(), ..Self::default() }
    }

    /// The overlays, newest first.
    pub fn layers(&self) -> impl Iterator<Item = &Overlay> {
        std::iter::once(&self.active).chain(self.frozen.as_deref())
    }

    /// The overlays, oldest first: a caller that copies them lets the newer one overwrite.
    pub fn layers_oldest_first(&self) -> impl Iterator<Item = &Overlay> {
        self.frozen.as_deref().into_iter().chain(std::iter::once(&self.active))
    }

    /// A shard's changes, newest first.
    pub fn shard_layers(&self, shard: ShardId) -> impl Iterator<Item = &ShardOverlay> {
        self.layers().filter_map(move |overlay| overlay.shards.get(&shard))
    }

    /// The record of a shard in the newest overlay that has it. `None`: no overlay has it, or it was dropped.
    pub fn newest(&self, shard: ShardId) -> Option<ShardRecord> {
        self.shard_layers(shard).next().and_then(|overlay| overlay.record)
    }

    /// Whether the shard was dropped and a checkpoint has yet to remove its file.
    pub fn is_dropped(&self, shard: ShardId) -> bool {
        self.shard_layers(shard).any(|overlay| overlay.record.is_none())
    }

    /// The position of a partition's log.
    pub fn position(&self, ring: RingId, partition: PartitionNumber) -> LogPosition {
        self.positions.get(&(ring, partition)).copied().unwrap_or_default()
    }

    /// Bytes of memory that the overlays take, by estimate.
    pub fn bytes(&self) -> usize {
        self.layers().map(|overlay| overlay.bytes).sum()
    }

    /// Room that the running and the next checkpoint may need at most.
    pub fn promised(&self) -> Amount {
        self.layers().fold(Amount::default(), |sum, overlay| sum.plus(overlay.promised))
    }

    /// Applies a record that ends at `end`. The record was checked before, so this cannot fail.
    pub fn apply(&mut self, record: &Record, end: Lsn) {
        invariant!(
            "journal invariant 7",
            end > self.applied_end,
            "a record up to {end:?} after one up to {:?}",
            self.applied_end
        );
        self.applied_end = end;
        for change in &record.changes {
            self.apply_change(record.ring, change);
        }
        if record.is_fast() {
            return;
        }
        let position = LogPosition { epoch: record.epoch, sequence: record.sequence };
        self.positions.insert((record.ring, record.partition), position);
    }

    fn apply_change(&mut self, ring: RingId, change: &Change) {
        match change {
            Change::Put { key, value } => self.active.put(key.clone(), Some(value.clone())),
            Change::Delete { key } => self.active.put(key.clone(), None),
            Change::WriteBlocks { shard, record, run, bytes } => {
                self.shard(ring, *shard).record = Some(*record);
                for (block, (index, sum)) in (run.first..).zip(run.checksums.iter().enumerate()) {
                    self.active.set_checksum(*shard, block, *sum);
                    let bytes = bytes.slice(index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES);
                    self.active.set_pending(*shard, block, bytes);
                }
            }
            Change::FreshBlocks { shard, record, run } => {
                let overlay = self.shard(ring, *shard);
                overlay.record = Some(*record);
                overlay.home_writes += 1;
                for (block, sum) in (run.first..).zip(&run.checksums) {
                    self.active.set_checksum(*shard, block, *sum);
                }
            }
            Change::CutShard { shard, record } => self.cut(ring, *shard, *record),
            Change::PunchBlocks { shard, record, first, count } => {
                self.punch(ring, *shard, *record, *first..first.saturating_add(*count));
            }
            Change::ReserveBlocks { shard, record, .. } => {
                let overlay = self.shard(ring, *shard);
                overlay.record = Some(*record);
                // A sync of the file covers the allocation too.
                overlay.home_writes += 1;
            }
            Change::Restamp { shard, record } => {
                let overlay = self.shard(ring, *shard);
                // Members' copies of a shard that is being closed may have different lengths. A record that could not be
                // read counts 0, and no length is known of it.
                let own = overlay.record.filter(|own| own.stamp.count > 0 && !is_planted(Bug::RestampCutsShard));
                let length = own.map_or(record.length, |own| own.length);
                overlay.record = Some(ShardRecord { length, ..*record });
            }
            Change::BeginLog => {}
            Change::DropShard { shard } => {
                self.active.frees_space = true;
                let overlay = self.shard(ring, *shard);
                overlay.record = None;
                overlay.pending.clear();
                overlay.checksums.clear();
            }
        }
    }

    /// Adds shards to the active overlay, with their records in the index.
    pub fn add_shards(&mut self, ring: RingId, known_shards: KnownShards) {
        for (shard, before) in known_shards {
            self.active.shard(ring, shard, before);
        }
    }

    /// The changes of a shard in the active overlay, made if missing.
    fn shard(&mut self, ring: RingId, shard: ShardId) -> &mut ShardOverlay {
        let frozen = self.frozen.as_deref().and_then(|frozen| frozen.shards.get(&shard));
        let before = frozen.and_then(|overlay| overlay.record);
        self.active.shard(ring, shard, Before::Is(before))
    }

    fn cut(&mut self, ring: RingId, shard: ShardId, record: ShardRecord) {
        let kept = record.length.div_ceil(BLOCK_BYTES as u32);
        self.active.frees_space = true;
        let overlay = self.shard(ring, shard);
        overlay.record = Some(record);
        overlay.pending.split_off(&kept);
        overlay.hole_at(kept);
        // All checksums of the last group too: a checkpoint punches the blocks whose checksum here is 0.
        for block in kept..record.home_blocks.next_multiple_of(CRC_BLOCKS) {
            self.active.set_checksum(shard, block, 0);
        }
    }

    fn punch(&mut self, ring: RingId, shard: ShardId, record: ShardRecord, blocks: Range<u32>) {
        self.active.frees_space = true;
        let overlay = self.shard(ring, shard);
        overlay.record = Some(record);
        overlay.hole_at(blocks.start);
        for block in blocks.clone() {
            overlay.pending.remove(&block);
        }
        for block in blocks {
            self.active.set_checksum(shard, block, 0);
        }
    }

    /// If the shard's data file has bytes that no sync has covered: the shard's stamp, and the two arguments for
    /// `home_synced` once it is synced.
    pub fn unsynced(&self, shard: ShardId) -> Option<(Stamp, u64, u64)> {
        let unsynced = self.shard_layers(shard).any(|overlay| overlay.home_synced < overlay.home_writes);
        let stamp = self.newest(shard)?.stamp;
        let writes = self.active.shards.get(&shard).map_or(0, |overlay| overlay.home_writes);
        unsynced.then_some((stamp, self.active_number, writes))
    }

    /// Shards whose data files have bytes that no sync has covered.
    pub fn unsynced_shards(&self) -> Vec<ShardId> {
        let unsynced = |overlay: &ShardOverlay| overlay.home_synced < overlay.home_writes;
        let all = self.layers().flat_map(|layer| layer.shards.iter());
        all.filter(|(_, overlay)| unsynced(overlay)).map(|(shard, _)| *shard).collect()
    }

    /// Records that a sync of the data file has covered this number of home writes of that overlay. If a checkpoint has
    /// begun since, this does nothing: the checkpoint syncs the file.
    pub fn home_synced(&mut self, shard: ShardId, overlay: u64, writes: u64) {
        if self.active_number != overlay {
            return;
        }
        if let Some(overlay) = self.active.shards.get_mut(&shard) {
            let made = overlay.home_writes;
            assert!(writes <= made, "a sync of {shard:?} covers {writes} home writes of {made}");
            overlay.home_synced = overlay.home_synced.max(writes);
        }
    }
}
