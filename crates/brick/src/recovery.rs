//! Recovery: the journal from the last checkpoint on is taken again, and what a power cut tore is told from damage.

use crate::checksum::{CRC_BLOCKS, block_checksum};
use crate::disk::Disk;
use crate::journal::format::EntryKind;
use crate::journal::read::Reader;
use crate::journal::{Geometry, Lsn};
use crate::machine::Machine;
use crate::meta::Meta;
use crate::view::View;
use hekate_proto::*;
use std::collections::HashMap;

/// What recovery found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Records taken again.
    pub records: u64,
    /// Where the log ended.
    pub end: Lsn,
    /// Something was begun behind it and never synced: a power cut tore it off.
    pub torn: Option<TornTail>,
    /// Why the brick had stopped itself, if it had.
    pub stopped: Option<String>,
    /// Fresh blocks that a power cut kept from the disk: they read as holes until replicas are made even.
    pub lost: Vec<LostBlocks>,
}

/// Bytes behind the log's end that look like a record and are not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// File in the brick.
    pub path: String,
    /// Where in it.
    pub offset: u64,
    /// What does not fit.
    pub why: &'static str,
    /// Records at and behind it that were given up; none of them was ever synced.
    pub records_behind: u64,
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

/// Takes the log again. `reborn`: the machine may have lost what was not synced.
pub fn recover(disk: &Disk, geometry: Geometry, meta: &Meta, reborn: bool) -> Result<(Machine, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let mut machine = Machine::new(geometry, meta);
    let start = Lsn(meta.applied);
    let mut reader = Reader::new(&*disk.storage, geometry, start).of_opening(meta.generation);
    reader.check_start()?;
    let marks = find_marks(disk, geometry, start)?;
    while let Some(found) = reader.next()? {
        if found.kind == EntryKind::Change {
            let at = reader.place();
            let mut record = Record::from_bytes(found.body.clone()).map_err(|error| undecodable(&at, &error))?;
            Machine::check_form(&record).map_err(|error| undecodable(&at, &error))?;
            check_sequence(&machine, &record, &at)?;
            if reborn {
                drop_lost(disk, &mut record, &marks, &mut report.lost)?;
            }
            learn(&mut machine, disk, &record)?;
            machine.replay(&record, found.end);
            report.records += 1;
        }
    }
    report.end = reader.position();
    keep_holes(&machine, disk, &mut report.lost)?;
    let (path, offset) = reader.place();
    let behind = reader.look_behind()?;
    if let Some(proof) = behind.proof {
        return Err(Error::Damaged {
            what: format!(
                "{path} at offset {offset}: a record is unreadable that was on stable storage (the log goes on at {}); \
                 rebuild this brick from its replicas",
                proof.0
            ),
        });
    }
    let why = behind.torn.or((behind.given_up > 0).then_some("there is no record"));
    report.torn = why.map(|why| TornTail { path, offset, why, records_behind: behind.given_up });
    Ok((machine, report))
}

fn undecodable((path, offset): &(String, u64), error: &dyn std::fmt::Display) -> Error {
    let what = format!(
        "{path} before offset {offset}: a record with a right checksum cannot be taken: {error}; rebuild \
                        this brick from its replicas, and report a bug"
    );
    Error::Damaged { what }
}

/// Records of one partition follow each other without gaps.
fn check_sequence(machine: &Machine, record: &Record, (path, offset): &(String, u64)) -> Result<()> {
    let at = machine.state().position(record.ring, record.partition);
    if at.sequence.0.checked_add(1) == Some(record.sequence.0) && record.epoch >= at.epoch {
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

fn learn(machine: &mut Machine, disk: &Disk, record: &Record) -> Result<()> {
    for (ring, shard) in machine.shards_to_learn(record) {
        let view = View { state: machine.state(), index: &*disk.index };
        let durable = view.durable_shard(ring, shard)?;
        machine.learn(shard, durable);
    }
    Ok(())
}

/// Takes from the record what a power cut kept from the disk: fresh blocks above their shard's last mark that do not
/// match their checksums never happened. What came later was written without them, or synced them.
fn drop_lost(
    disk: &Disk,
    record: &mut Record,
    marks: &HashMap<ShardId, Stamp>,
    lost: &mut Vec<LostBlocks>,
) -> Result<()> {
    let ring = record.ring;
    for change in &mut record.changes {
        if let Change::FreshBlocks { shard, record, run } = change
            && marks.get(shard).is_none_or(|mark| mark.count < record.stamp.count)
        {
            drop_absent(disk, ring, *shard, run, lost)?;
        }
    }
    Ok(())
}

/// Blocks that are not at home as the record says become holes; a later record may say what is there instead.
fn drop_absent(
    disk: &Disk,
    ring: RingId,
    shard: ShardId,
    run: &mut BlockRun,
    lost: &mut Vec<LostBlocks>,
) -> Result<()> {
    let mut bytes = vec![0; run.checksums.len() * BLOCK_BYTES];
    disk.home.read(shard, run.first, &mut bytes)?;
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
fn keep_holes(machine: &Machine, disk: &Disk, lost: &mut Vec<LostBlocks>) -> Result<()> {
    let view = View { state: machine.state(), index: &*disk.index };
    let mut kept = Vec::new();
    for run in lost.drain(..) {
        let Some(record) = view.shard(run.ring, run.shard)? else { continue };
        let end = (run.first + run.count).min(record.length.div_ceil(BLOCK_BYTES as u32));
        for block in run.first..end {
            let group = view.group(run.ring, run.shard, (block / CRC_BLOCKS) as u16)?;
            if group.sums()[(block % CRC_BLOCKS) as usize] == 0 {
                kept.push(LostBlocks { first: block, count: 1, ..run });
            }
        }
    }
    kept.sort();
    kept.dedup();
    *lost = kept;
    Ok(())
}

fn find_marks(disk: &Disk, geometry: Geometry, start: Lsn) -> Result<HashMap<ShardId, Stamp>> {
    let mut marks = HashMap::new();
    let mut reader = Reader::new(&*disk.storage, geometry, start);
    while let Some(found) = reader.next()? {
        if found.kind == EntryKind::Mark {
            let mark = found.mark().map_err(|error| undecodable(&reader.place(), &error))?;
            marks.extend(mark.shards);
        }
    }
    Ok(marks)
}
