//! Recovery: replays the journal from the last checkpoint on, and distinguishes a tail that a power cut tore off from
//! damage.

use crate::brick::merged_index::MergedIndex;
use crate::checksum::{CRC_BLOCKS, block_checksum};
use crate::disk::Disk;
use crate::index::meta::Meta;
use crate::journal::format::EntryKind;
use crate::journal::read::Reader;
use crate::journal::{Geometry, Lsn};
use crate::machine::{Machine, follows};
use hekate_proto::*;
use std::collections::HashMap;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Records that were replayed.
    pub records: u64,
    /// The log's end.
    pub end: Lsn,
    /// What lies behind the log's end: a record that was begun and never synced, and that a power cut tore.
    pub torn: Option<TornTail>,
    /// Why the brick had stopped itself, if it had.
    pub stopped: Option<String>,
    /// Fresh blocks that a power cut lost before they were on the disk. They read as holes until the replicas are
    /// reconciled.
    pub lost: Vec<LostBlock>,
}

/// Bytes behind the log's end that look like a record and are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The segment's file, relative to the brick's directory.
    pub path: String,
    /// Bytes from the beginning of that file.
    pub offset: u64,
    /// The check that failed, in words for people.
    pub why: &'static str,
    /// Headers of records from there on, none of which was ever synced: all are dropped.
    pub records_behind: u64,
}

/// A fresh block that a power cut lost before it was on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LostBlock {
    /// The shard's ring.
    pub ring: RingId,
    /// The shard that has the block.
    pub shard: ShardId,
    /// Its number in the shard.
    pub block: u32,
}

/// Replays the log behind the last checkpoint, for an opening with this generation. `after_power_cut`: what was not
/// synced may be lost.
///
/// # Errors
/// `Damaged`: a record that was on stable storage is unreadable, or a record with a right checksum breaks an invariant.
/// `Unavailable`, `Io`: a file cannot be read.
pub fn recover(
    disk: &Disk,
    geometry: Geometry,
    (meta, generation): (&Meta, u32),
    after_power_cut: bool,
) -> Result<(Machine, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let mut machine = Machine::new(geometry, meta, generation);
    let start = Lsn(meta.applied);
    let reader = || Reader::new(&*disk.storage, geometry, start).ignoring_stale(meta);
    let mut reader_of_marks = reader();
    let mut reader = reader().for_opening(meta.generation + 1).ignoring_older_than_predecessor()?;
    reader.check_start()?;
    let marks = find_marks(&mut reader_of_marks)?;
    while let Some(found) = reader.next()? {
        if found.kind == EntryKind::Change {
            let at = reader.place();
            let mut record = Record::from_bytes(found.body.clone()).map_err(|error| undecodable(&at, &error))?;
            Machine::check_form(&record).map_err(|error| undecodable(&at, &error))?;
            check_sequence(&machine, &record, &at)?;
            if after_power_cut {
                drop_lost(disk, &mut record, &marks, &mut report.lost)?;
            }
            supply_shards(&mut machine, disk, &record)?;
            machine.replay(&record, found.end);
            report.records += 1;
        }
    }
    report.end = reader.position();
    retain_holes(&machine, disk, &mut report.lost)?;
    let (path, offset) = reader.place();
    let behind = reader.search_behind_end()?;
    if let Some(proof) = behind.proof {
        return Err(Error::Damaged {
            what: format!(
                "{path} at offset {offset}: a record is unreadable that was on stable storage (the log goes on at {}); \
                 rebuild this brick from its replicas",
                proof.0
            ),
        });
    }
    let why = behind.torn.or((behind.dropped > 0).then_some("there is no record"));
    report.torn = why.map(|why| TornTail { path, offset, why, records_behind: behind.dropped });
    Ok((machine, report))
}

fn undecodable((path, offset): &(String, u64), error: &dyn std::fmt::Display) -> Error {
    let what = format!(
        "{path} before offset {offset}: a record with a right checksum cannot be taken: {error}; rebuild \
                        this brick from its replicas, and report a bug"
    );
    Error::Damaged { what }
}

/// Checks that the record comes next in its partition's log.
fn check_sequence(machine: &Machine, record: &Record, (path, offset): &(String, u64)) -> Result<()> {
    let at = machine.state().position(record.ring, record.partition);
    if follows(at, record) {
        return Ok(());
    }
    Err(Error::Damaged {
        what: format!(
            "{path} before offset {offset}: record {} of epoch {} of partition {} after {} of epoch {} (journal \
             invariant 6); rebuild this brick from its replicas",
            record.sequence, record.epoch, record.partition, at.sequence, at.epoch
        ),
    })
}

fn supply_shards(machine: &mut Machine, disk: &Disk, record: &Record) -> Result<()> {
    for (ring, shard) in machine.unknown_shards(record) {
        let view = MergedIndex { state: machine.state(), index: &*disk.index };
        let before = view.before(ring, shard)?;
        machine.supply_shard(shard, before);
    }
    Ok(())
}

/// Removes from the record the fresh blocks that a power cut kept from the disk: those above their shard's last mark
/// that do not match their checksums. No later record relied on them: it was written without them, or after a sync of
/// them.
fn drop_lost(
    disk: &Disk,
    record: &mut Record,
    marks: &HashMap<ShardId, Stamp>,
    lost: &mut Vec<LostBlock>,
) -> Result<()> {
    let ring = record.ring;
    for change in &mut record.changes {
        if let Change::FreshBlocks { shard, record, run } = change
            && marks.get(shard).is_none_or(|mark| mark.count < record.stamp.count)
        {
            drop_missing_blocks(disk, ring, *shard, run, lost)?;
        }
        // A lost block that a later record punches is a hole by intent.
        if let Change::PunchBlocks { shard, first, count, .. } = change {
            let punched = *first..first.saturating_add(*count);
            lost.retain(|one| one.ring != ring || one.shard != *shard || !punched.contains(&one.block));
        }
    }
    Ok(())
}

/// Blocks that do not match the record's checksums become holes. A later record may write them.
fn drop_missing_blocks(
    disk: &Disk,
    ring: RingId,
    shard: ShardId,
    run: &mut BlockRun,
    lost: &mut Vec<LostBlock>,
) -> Result<()> {
    let bytes = disk.home.readable(shard, run.first, run.checksums.len())?;
    for ((block, sum), bytes) in (run.first..).zip(&mut run.checksums).zip(bytes.chunks(BLOCK_BYTES)) {
        if block_checksum(shard, block, bytes) != *sum {
            *sum = 0;
            lost.push(LostBlock { ring, shard, block });
        }
    }
    Ok(())
}

/// Keeps of the lost blocks those that no later record wrote and that are not behind the shard's end.
fn retain_holes(machine: &Machine, disk: &Disk, lost: &mut Vec<LostBlock>) -> Result<()> {
    let view = MergedIndex { state: machine.state(), index: &*disk.index };
    let mut kept = Vec::new();
    for one in lost.drain(..) {
        let Some(record) = view.shard(one.ring, one.shard)? else { continue };
        let group = view.group(one.ring, one.shard, (one.block / CRC_BLOCKS) as u16)?;
        let is_hole = group.sums()[(one.block % CRC_BLOCKS) as usize] == 0;
        if is_hole && one.block < record.length.div_ceil(BLOCK_BYTES as u32) {
            kept.push(one);
        }
    }
    kept.sort();
    kept.dedup();
    *lost = kept;
    Ok(())
}

fn find_marks(reader: &mut Reader) -> Result<HashMap<ShardId, Stamp>> {
    let mut marks: HashMap<ShardId, Stamp> = HashMap::new();
    while let Some(found) = reader.next()? {
        if found.kind == EntryKind::Mark {
            let mark = found.mark().map_err(|error| undecodable(&reader.place(), &error))?;
            for (shard, stamp) in mark.shards {
                // Of two syncs that overlapped, the earlier may have its mark later.
                let known = marks.entry(shard).or_insert(stamp);
                if stamp.count > known.count {
                    *known = stamp;
                }
            }
        }
    }
    Ok(marks)
}
