//! Recovery: the journal from the last checkpoint on is taken again, and what a power cut tore is told from damage.

use crate::blocks::Blocks;
use crate::brick::LogPosition;
use crate::checksum::{CRC_BLOCKS, block_checksum};
use crate::index::Index;
use crate::journal::format::EntryKind;
use crate::journal::read::{Found, Reader};
use crate::journal::{Geometry, Lsn};
use crate::storage::Storage;
use hekate_proto::*;
use std::collections::HashMap;

/// What recovery found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Records taken again.
    pub records: u64,
    /// Where the log ended.
    pub end: Lsn,
    /// Fresh blocks that a power cut kept from the disk: they read as holes until replicas are made even.
    pub lost: Vec<LostBlocks>,
}

/// Fresh blocks that never reached the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LostBlocks {
    /// Ring.
    pub ring: RingId,
    /// Of which shard.
    pub shard: ShardId,
    /// The first one.
    pub first: u32,
    /// How many.
    pub count: u32,
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
        let mut reader = Reader::new(storage, geometry, start);
        reader.check_start()?;
        let marks = find_marks(storage, geometry, start)?;
        while let Some(found) = reader.next()? {
            if found.kind == EntryKind::Change {
                let record = Record::from_bytes(found.body.clone())?;
                let kept = self.without_lost(record, &marks, reborn, &mut report.lost)?;
                self.apply(&kept)?;
                report.records += 1;
            }
        }
        report.end = reader.position();
        self.keep_holes(&mut report.lost)?;
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
    /// match their checksums never happened. What came later was written without them, or synced them.
    fn without_lost(
        &self,
        mut record: Record,
        marks: &HashMap<ShardId, Stamp>,
        reborn: bool,
        lost: &mut Vec<LostBlocks>,
    ) -> Result<Record> {
        let ring = record.ring;
        let mut kept = Vec::with_capacity(record.changes.len());
        for mut change in record.changes {
            if let Change::FreshBlocks { shard, record, run } = &mut change {
                self.home.assume_unnamed(*shard);
                let marked = marks.get(shard).is_some_and(|mark| mark.count >= record.stamp.count);
                if reborn && !marked {
                    self.without_absent(ring, *shard, run, lost)?;
                }
            }
            kept.push(change);
        }
        record.changes = kept;
        Ok(record)
    }

    /// Blocks that are not at home as the record says become holes; a later record may say what is there instead.
    fn without_absent(
        &self,
        ring: RingId,
        shard: ShardId,
        run: &mut BlockRun,
        lost: &mut Vec<LostBlocks>,
    ) -> Result<()> {
        let mut bytes = vec![0; run.checksums.len() * BLOCK_BYTES];
        self.home.read(shard, run.first, &mut bytes)?;
        for ((block, sum), bytes) in (run.first..).zip(&mut run.checksums).zip(bytes.chunks(BLOCK_BYTES)) {
            if block_checksum(shard, block, bytes) == *sum {
                continue;
            }
            *sum = 0;
            match lost.last_mut() {
                Some(last) if last.shard == shard && last.first + last.count == block => last.count += 1,
                _ => lost.push(LostBlocks { ring, shard, first: block, count: 1 }),
            }
        }
        Ok(())
    }

    /// Of lost blocks, those that nothing wrote since and that the shard still reaches to.
    fn keep_holes(&self, lost: &mut Vec<LostBlocks>) -> Result<()> {
        let state = self.state.read();
        let mut kept = Vec::new();
        for run in lost.drain(..) {
            let Some(record) = self.shard_in(&state, run.ring, run.shard)? else { continue };
            let end = (run.first + run.count).min(record.length.div_ceil(BLOCK_BYTES as u32));
            for block in run.first..end {
                let group = self.group(&state, run.ring, run.shard, (block / CRC_BLOCKS) as u16)?;
                if group[(block % CRC_BLOCKS) as usize] == 0 {
                    kept.push(LostBlocks { first: block, count: 1, ..run });
                }
            }
        }
        kept.sort();
        kept.dedup();
        *lost = kept;
        Ok(())
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
