//! Recovery: the journal from the last checkpoint on is taken again, and what a power cut tore is told from damage.

use crate::blocks::Blocks;
use crate::brick::LogPosition;
use crate::checksum::block_checksum;
use crate::index::Index;
use crate::journal::format::EntryKind;
use crate::journal::read::{Found, Reader};
use crate::journal::{Geometry, Lsn};
use crate::storage::Storage;
use hekate_proto::*;
use std::collections::{HashMap, HashSet};

/// What recovery found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Records taken again.
    pub records: u64,
    /// Where the log ended.
    pub end: Lsn,
    /// Shards whose unsynced tail a power cut took.
    pub shards_cut: u64,
}

wire_struct! {
    /// One partition's log in [`Meta`].
    pub struct PartitionLog {
        /// Ring.
        pub ring: RingId,
        /// Partition.
        pub partition: PartitionNumber,
        /// Epoch of its last record.
        pub epoch: Epoch,
        /// Number of its last record.
        pub sequence: Sequence,
    }

    /// What a checkpoint says beside the entries.
    pub struct Meta {
        /// The index holds everything before this position of the log.
        pub applied: u64,
        /// Generation of the journal's writer.
        pub generation: u32,
        /// Each partition's log.
        pub logs: Vec<PartitionLog>,
    }
}

impl Meta {
    pub fn new(applied: Lsn, generation: u32, positions: &HashMap<(RingId, PartitionNumber), LogPosition>) -> Self {
        let log = |((ring, partition), at): (&(RingId, PartitionNumber), &LogPosition)| PartitionLog {
            ring: *ring,
            partition: *partition,
            epoch: at.epoch,
            sequence: at.sequence,
        };
        Self { applied: applied.0, generation, logs: positions.iter().map(log).collect() }
    }

    /// Of the last checkpoint, or of a new brick.
    pub fn read(index: &dyn Index, geometry: Geometry) -> Result<Self> {
        match index.meta()? {
            Some(bytes) => Ok(Self::from_bytes(bytes)?),
            None => Ok(Self { applied: geometry.start_of(1).0, generation: 0, logs: Vec::new() }),
        }
    }
}

impl Blocks {
    /// Takes the log again. `reborn`: the machine may have lost what was not synced.
    pub fn recover(
        &self,
        storage: &dyn Storage,
        geometry: Geometry,
        meta: &Meta,
        reborn: bool,
        report: &mut RecoveryReport,
    ) -> Result<Lsn> {
        for log in &meta.logs {
            let at = LogPosition { epoch: log.epoch, sequence: log.sequence };
            self.state.write().positions.insert((log.ring, log.partition), at);
        }
        let start = Lsn(meta.applied);
        let marks = find_marks(storage, geometry, start)?;
        let mut reader = Reader::new(storage, geometry, start);
        let mut cut = HashSet::new();
        while let Some(found) = reader.next()? {
            if found.kind == EntryKind::Change {
                let record = Record::from_bytes(found.body.clone())?;
                let kept = self.without_lost(record, &marks, reborn, &mut cut)?;
                self.apply(&kept)?;
                report.records += 1;
            }
        }
        report.end = reader.position();
        report.shards_cut = cut.len() as u64;
        if let Some(proof) = reader.evidence_of_damage(report.end)? {
            let number = geometry.number_of(report.end);
            return Err(Error::Damaged {
                what: format!(
                    "{} at offset {}: a record is unreadable that was on stable storage (the log goes on at {}); \
                     rebuild this brick from its replicas",
                    geometry.path_of(number),
                    geometry.offset_of(report.end),
                    proof.0
                ),
            });
        }
        Ok(report.end)
    }

    /// The record without what a power cut kept from the disk: fresh blocks above their shard's last mark that do not
    /// match their checksums never happened, nor did what came after them in that shard.
    fn without_lost(
        &self,
        mut record: Record,
        marks: &HashMap<ShardId, Stamp>,
        reborn: bool,
        cut: &mut HashSet<ShardId>,
    ) -> Result<Record> {
        let mut kept = Vec::with_capacity(record.changes.len());
        for change in record.changes {
            if let Change::FreshBlocks { shard, record, run } = &change {
                self.home.assume_unnamed(*shard);
                let marked = marks.get(shard).is_some_and(|mark| mark.count >= record.stamp.count);
                if reborn && !marked && !self.is_home(*shard, run)? {
                    cut.insert(*shard);
                }
            }
            if shard_of(&change).is_none_or(|shard| !cut.contains(&shard)) {
                kept.push(change);
            }
        }
        record.changes = kept;
        Ok(record)
    }

    fn is_home(&self, shard: ShardId, run: &BlockRun) -> Result<bool> {
        let mut bytes = vec![0; run.checksums.len() * BLOCK_BYTES];
        self.home.read(shard, run.first, &mut bytes)?;
        let mut blocks = run.first..;
        Ok(run
            .checksums
            .iter()
            .zip(bytes.chunks(BLOCK_BYTES))
            .all(|(sum, bytes)| blocks.next().is_some_and(|block| block_checksum(shard, block, bytes) == *sum)))
    }
}

fn shard_of(change: &Change) -> Option<ShardId> {
    match change {
        Change::Put { .. } | Change::Delete { .. } => None,
        Change::WriteBlocks { shard, .. }
        | Change::FreshBlocks { shard, .. }
        | Change::CutShard { shard, .. }
        | Change::DropShard { shard } => Some(*shard),
    }
}

fn find_marks(storage: &dyn Storage, geometry: Geometry, start: Lsn) -> Result<HashMap<ShardId, Stamp>> {
    let mut marks = HashMap::new();
    let mut reader = Reader::new(storage, geometry, start);
    let is_mark = |found: &Found| found.kind == EntryKind::Mark;
    while let Some(found) = reader.next()? {
        if is_mark(&found) {
            marks.extend(found.mark()?.shards);
        }
    }
    Ok(marks)
}
