//! What records change: the overlays, and how far each partition's log has come.

use super::{Amount, Before, Learned, Overlay, ShardOverlay, invariant};
use crate::checksum::CRC_BLOCKS;
use crate::index::meta::Meta;
use crate::journal::Lsn;
use hekate_proto::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How far a partition's log has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    /// View of the last record.
    pub epoch: Epoch,
    /// Its number.
    pub sequence: Sequence,
}

/// What the journal says beyond the index.
#[derive(Debug, Default)]
pub struct State {
    /// Changes since the last checkpoint began.
    pub active: Overlay,
    /// How many overlays there were before it.
    pub active_number: u64,
    /// Changes that the running checkpoint writes home.
    pub frozen: Option<Arc<Overlay>>,
    /// Each partition's log.
    pub positions: BTreeMap<(RingId, PartitionNumber), LogPosition>,
    /// End of the last record that was taken.
    pub(super) taken: Lsn,
}

impl State {
    pub fn new(meta: &Meta) -> Self {
        let position = |log: &crate::index::meta::PartitionLog| {
            ((log.ring, log.partition), LogPosition { epoch: log.epoch, sequence: log.sequence })
        };
        Self { positions: meta.logs.iter().map(position).collect(), ..Self::default() }
    }

    /// Newest first.
    pub fn layers(&self) -> impl Iterator<Item = &Overlay> {
        std::iter::once(&self.active).chain(self.frozen.as_deref())
    }

    /// What was changed last overrides.
    pub fn layers_oldest_first(&self) -> impl Iterator<Item = &Overlay> {
        self.frozen.as_deref().into_iter().chain(std::iter::once(&self.active))
    }

    /// A shard's changes, newest first.
    pub fn shard_layers(&self, shard: ShardId) -> impl Iterator<Item = &ShardOverlay> {
        self.layers().filter_map(move |overlay| overlay.shards.get(&shard))
    }

    /// The shard as the overlays have it; `None` if none of them has it, or it was dropped.
    pub fn newest(&self, shard: ShardId) -> Option<ShardRecord> {
        self.shard_layers(shard).next().and_then(|overlay| overlay.record)
    }

    /// Whether the shard was given up and a checkpoint has yet to remove its file.
    pub fn is_dropped(&self, shard: ShardId) -> bool {
        self.shard_layers(shard).any(|overlay| overlay.record.is_none())
    }

    /// Where a partition's log is.
    pub fn position(&self, ring: RingId, partition: PartitionNumber) -> LogPosition {
        self.positions.get(&(ring, partition)).copied().unwrap_or_default()
    }

    /// Bytes of memory that changes take.
    pub fn bytes(&self) -> usize {
        self.layers().map(|overlay| overlay.bytes).sum()
    }

    /// What checkpoints may take at home, at most.
    pub fn promised(&self) -> Amount {
        self.layers().fold(Amount::default(), |sum, overlay| sum.plus(overlay.promised))
    }

    /// Takes a record's changes. It was checked before; this cannot fail.
    pub fn apply(&mut self, record: &Record, end: Lsn) {
        invariant!("journal invariant 7", end > self.taken, "a record up to {end:?} after one up to {:?}", self.taken);
        self.taken = end;
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
                // A sync covers the room as well.
                overlay.home_writes += 1;
            }
            Change::Restamp { shard, record } => self.shard(ring, *shard).record = Some(*record),
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

    /// What the index says of shards that the next record changes.
    pub fn learn(&mut self, ring: RingId, learned: Learned) {
        for (shard, before) in learned {
            self.active.shard(ring, shard, before);
        }
    }

    /// The active overlay's changes of a shard, made if missing.
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
        // Whole groups, also the blocks behind the last: a checkpoint punches by what it finds here.
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

    /// If the shard's data file has bytes that no sync has covered: its last stamp, and what to tell `home_synced`.
    pub fn unsynced(&self, shard: ShardId) -> Option<(Stamp, u64, u64)> {
        let unsynced = self.shard_layers(shard).any(|overlay| overlay.home_synced < overlay.home_writes);
        let stamp = self.newest(shard)?.stamp;
        let writes = self.active.shards.get(&shard).map_or(0, |overlay| overlay.home_writes);
        unsynced.then_some((stamp, self.active_number, writes))
    }

    /// Shards with bytes at home that no sync has covered.
    pub fn unsynced_shards(&self) -> Vec<ShardId> {
        let unsynced = |overlay: &ShardOverlay| overlay.home_synced < overlay.home_writes;
        let all = self.layers().flat_map(|layer| layer.shards.iter());
        all.filter(|(_, overlay)| unsynced(overlay)).map(|(shard, _)| *shard).collect()
    }

    /// The data file was synced after these home writes. Nothing, if a checkpoint has begun since: it syncs them.
    pub fn home_synced(&mut self, shard: ShardId, overlay: u64, writes: u64) {
        if self.active_number != overlay {
            return;
        }
        if let Some(overlay) = self.active.shards.get_mut(&shard) {
            overlay.home_synced = overlay.home_synced.max(writes);
        }
    }
}
