//! What a record may not say. A record that breaks a rule is refused before it is journaled, by the first replica that
//! gets it, so that no record trips an assertion on one replica after the other.

use super::overlay::{Before, SHARD_BLOCKS};
use super::{KnownShards, LogPosition, State};
use hekate_proto::*;
use std::collections::{BTreeMap, HashMap};

fn refuse(invariant: &str, what: impl std::fmt::Display) -> Error {
    Error::bug(format!("a record was refused, since {invariant} would not hold: {what}"))
}

/// Shards that the record changes and whose records only the index has.
pub fn unknown_shards(state: &State, known_shards: &KnownShards, record: &Record) -> Vec<(RingId, ShardId)> {
    let mut unknown = Vec::new();
    for shard in record.changes.iter().filter_map(Change::shard) {
        let known = known_shards.contains_key(&shard) || state.shard_layers(shard).next().is_some();
        if !known && !unknown.contains(&(record.ring, shard)) {
            unknown.push((record.ring, shard));
        }
    }
    unknown
}

/// Whether a record may follow this position: it is the next one of the same log, or the first of a newer log
/// (`BeginLog`). A fast write is in no log; its epoch is not older than the position's.
pub fn follows(at: LogPosition, record: &Record) -> bool {
    if record.is_fast() {
        return record.epoch >= at.epoch;
    }
    let here = LogPosition { epoch: record.epoch, sequence: record.sequence };
    if record.changes.contains(&Change::BeginLog) {
        return here > at;
    }
    at.sequence.0.checked_add(1) == Some(record.sequence.0) && record.epoch >= at.epoch
}

/// Checks what can be checked of the record alone.
pub fn form(record: &Record) -> Result<()> {
    for change in &record.changes {
        match change {
            Change::Put { key, .. } | Change::Delete { key } => key_form(key)?,
            Change::WriteBlocks { shard, record, run, bytes } => {
                run_form(*shard, record, run)?;
                if bytes.len() != run.checksums.len() * BLOCK_BYTES {
                    let (bytes, count) = (bytes.len(), run.checksums.len());
                    return Err(refuse(
                        "data invariant 1",
                        format_args!("{bytes} bytes for {count} blocks of {shard:?}"),
                    ));
                }
                zeros_behind_end(*shard, record, run, bytes)?;
            }
            Change::FreshBlocks { shard, record, run } => run_form(*shard, record, run)?,
            Change::CutShard { shard, record } | Change::Restamp { shard, record } => shard_form(*shard, record)?,
            Change::PunchBlocks { shard, record, first, count } => {
                holes_form(*shard, record, *first, *count, record.home_blocks, "data invariant 1")?;
            }
            Change::ReserveBlocks { shard, record, first, count } => {
                holes_form(*shard, record, *first, *count, record.reserved_blocks, "data invariant 5")?;
            }
            Change::DropShard { .. } | Change::BeginLog => {}
        }
    }
    Ok(())
}

fn key_form(key: &Key) -> Result<()> {
    if key.is_well_formed() { Ok(()) } else { Err(refuse("index invariant 4", format_args!("{key:?}"))) }
}

fn shard_form(shard: ShardId, record: &ShardRecord) -> Result<()> {
    let ShardRecord { length, home_blocks, reserved_blocks, .. } = *record;
    let in_shard = home_blocks.max(reserved_blocks) <= SHARD_BLOCKS;
    if in_shard && u64::from(length) <= u64::from(home_blocks) * BLOCK_BYTES as u64 {
        return Ok(());
    }
    Err(refuse("data invariant 5", format_args!("{length} bytes in {home_blocks} blocks of {shard:?}, {record:?}")))
}

fn run_form(shard: ShardId, record: &ShardRecord, run: &BlockRun) -> Result<()> {
    shard_form(shard, record)?;
    let end = u64::from(run.first) + run.checksums.len() as u64;
    if run.checksums.is_empty() || end > u64::from(record.home_blocks) || run.checksums.contains(&0) {
        let first = run.first;
        return Err(refuse("data invariant 1", format_args!("blocks {first} to {end} of {shard:?}, {record:?}")));
    }
    Ok(())
}

fn holes_form(shard: ShardId, record: &ShardRecord, first: u32, count: u32, limit: u32, rule: &str) -> Result<()> {
    shard_form(shard, record)?;
    let end = u64::from(first) + u64::from(count);
    if count == 0 || end > u64::from(limit) {
        return Err(refuse(rule, format_args!("blocks {first} to {end} of {shard:?}, {record:?}")));
    }
    Ok(())
}

fn zeros_behind_end(shard: ShardId, record: &ShardRecord, run: &BlockRun, bytes: &[u8]) -> Result<()> {
    let (last, used) = (record.length / BLOCK_BYTES as u32, record.length as usize % BLOCK_BYTES);
    if used == 0 || last < run.first || (last - run.first) as usize >= run.checksums.len() {
        return Ok(());
    }
    let at = (last - run.first) as usize * BLOCK_BYTES;
    if bytes[at + used..at + BLOCK_BYTES].iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(refuse("data invariant 6", format_args!("bytes behind {} of {shard:?}", record.length)))
}

/// Checks the record against what the brick holds.
pub fn record(state: &State, known_shards: &KnownShards, record: &Record) -> Result<()> {
    form(record)?;
    let at = state.position(record.ring, record.partition);
    if !follows(at, record) {
        let (sequence, epoch, partition) = (record.sequence, record.epoch, record.partition);
        let after = format_args!("{} of epoch {} in partition {partition}", at.sequence, at.epoch).to_string();
        return Err(refuse("journal invariant 6", format_args!("record {sequence} of epoch {epoch} after {after}")));
    }
    let mut shards: BTreeMap<ShardId, Before> = BTreeMap::new();
    for change in &record.changes {
        let Some(shard) = change.shard() else { continue };
        let before = shards.entry(shard).or_insert_with(|| match state.shard_layers(shard).next() {
            Some(overlay) => Before::Is(overlay.record),
            None => known_shards.get(&shard).copied().unwrap_or(Before::Is(None)),
        });
        *before = Before::Is(shard_change(state, change, shard, *before)?);
    }
    Ok(())
}

/// Checks a change of a shard. Returns the shard's record after the change.
fn shard_change(state: &State, change: &Change, shard: ShardId, before: Before) -> Result<Option<ShardRecord>> {
    let record = match change {
        Change::WriteBlocks { record, .. }
        | Change::FreshBlocks { record, .. }
        | Change::CutShard { record, .. }
        | Change::ReserveBlocks { record, .. }
        | Change::Restamp { record, .. }
        | Change::PunchBlocks { record, .. } => record,
        Change::DropShard { .. } | Change::Put { .. } | Change::Delete { .. } | Change::BeginLog => return Ok(None),
    };
    may_write(state, shard)?;
    let Before::Is(before) = before else { return Ok(Some(*record)) };
    let (home_blocks, reserved) = before.map_or((0, 0), |before| (before.home_blocks, before.reserved_blocks));
    let is_kept = match change {
        Change::CutShard { .. } | Change::PunchBlocks { .. } => {
            record.reserved_blocks == 0 && record.home_blocks >= home_blocks.max(reserved)
        }
        _ => record.home_blocks >= home_blocks && record.reserved_blocks >= reserved,
    };
    if !is_kept {
        return Err(refuse("data invariant 4", format_args!("{record:?} of {shard:?} after {before:?}")));
    }
    match change {
        Change::FreshBlocks { run, .. } => is_fresh(shard, home_blocks, run.first)?,
        Change::ReserveBlocks { first, .. } => is_fresh(shard, home_blocks, *first)?,
        _ => {}
    }
    Ok(Some(*record))
}

/// A shard that was dropped is not written before its data file has been removed.
pub fn may_write(state: &State, shard: ShardId) -> Result<()> {
    if state.is_dropped(shard) {
        return Err(refuse("data invariant 9", format_args!("{shard:?} was dropped and its file is not removed yet")));
    }
    Ok(())
}

/// Blocks at or behind `home_blocks` are fresh: they may be written home before a record names them.
pub fn is_fresh(shard: ShardId, home_blocks: u32, first: u32) -> Result<()> {
    if first >= home_blocks {
        return Ok(());
    }
    Err(refuse(
        "data invariant 3",
        format_args!("block {first} of {shard:?} is not fresh, it has {home_blocks} at home"),
    ))
}

/// Fresh blocks were written home before the record that names them.
pub fn fresh_blocks_are_home(fresh: &HashMap<ShardId, (u32, u32)>, record: &Record) -> Result<()> {
    for change in &record.changes {
        let Change::FreshBlocks { shard, run, .. } = change else { continue };
        let end = run.first + run.checksums.len() as u32;
        if !fresh.get(shard).is_some_and(|(from, to)| *from <= run.first && end <= *to) {
            let first = run.first;
            return Err(refuse(
                "journal invariant 8",
                format_args!("blocks {first} to {end} of {shard:?} are not home"),
            ));
        }
    }
    Ok(())
}
