//! Checks that a brick that was opened holds what it has to hold, by the rules of `docs/format/journal.md`, "Recovery".

use super::model::*;
use crate::{Brick, RecoveryReport};
use hekate_proto::{BLOCK_BYTES, Error, Key, Kind, PartitionNumber};
use std::collections::BTreeSet;

/// Blocks that are holes though a record wrote them: the shard's partition, and the block's number.
pub type Holes = BTreeSet<(usize, u32)>;

/// What an opened brick may hold.
pub struct Expect<'a> {
    /// The states after 0, 1, … records of the log.
    pub states: &'a [State],
    /// Records that it holds at least: they were acknowledged as durable, or nothing could take them.
    pub low: usize,
    /// Records that it holds at most.
    pub high: usize,
    /// For each shard: the fresh blocks of all records before this one are there.
    pub covered: [usize; PARTITIONS],
    /// For each shard: none of the fresh blocks of all records before this one is reported lost. A block that was cut
    /// off, and is a hole, may be reported before its mark.
    pub marked: [usize; PARTITIONS],
    /// Blocks that an earlier recovery reported lost: they may be missing without a report.
    pub holes: &'a Holes,
}

/// What the brick holds.
#[derive(Debug)]
pub struct Found {
    /// Number of records of the log.
    pub records: usize,
    /// Fresh blocks that are lost, by this recovery or an earlier one.
    pub holes: Holes,
}

pub fn check(brick: &Brick, report: &RecoveryReport, expect: &Expect<'_>) -> Result<Found, String> {
    let sequences: [u64; PARTITIONS] =
        std::array::from_fn(|partition| brick.position(RING, PartitionNumber(partition as u32)).sequence.0);
    let records = sequences.iter().sum::<u64>() as usize;
    if records < expect.low || records > expect.high {
        let (low, high) = (expect.low, expect.high);
        return Err(format!("{records} records are there, there have to be {low} to {high}"));
    }
    let state = &expect.states[records];
    if sequences != state.sequences {
        return Err(format!("partitions are at {sequences:?}, no prefix of the log gives that: {:?}", state.sequences));
    }
    let mut lost = Holes::new();
    for run in &report.lost {
        if shard_of(partition_of(run.shard)) != run.shard || run.ring != RING {
            return Err(format!("lost blocks of a shard that never was: {run:?}"));
        }
        lost.insert((partition_of(run.shard), run.block));
    }
    for partition in 0..PARTITIONS {
        entries(brick, partition, state)?;
        shard(brick, partition, state)?;
        lost_blocks(partition, state, &lost, expect)?;
    }
    let mut holes = Holes::new();
    for partition in 0..PARTITIONS {
        content(brick, partition, state, &lost, expect, &mut holes)?;
    }
    Ok(Found { records, holes })
}

fn entries(brick: &Brick, partition: usize, state: &State) -> Result<(), String> {
    let (from, to) = Key::object_range(RING, PartitionNumber(partition as u32), PARTITION_COUNT);
    let found = brick.scan(&from, &to, 1000).map_err(|error| format!("scan: {error}"))?;
    // Shards and checksums are stored among the names.
    let found: Vec<_> = found.into_iter().filter(|(key, _)| key.kind() == Some(Kind::Name)).collect();
    let here = state.entries.range(from..to);
    let expected: Vec<_> = here.map(|(key, value)| (key.clone(), value.clone())).collect();
    if found != expected {
        return Err(format!("partition {partition} has the entries {found:?}, not {expected:?}"));
    }
    Ok(())
}

fn shard(brick: &Brick, partition: usize, state: &State) -> Result<(), String> {
    let failed = |error: Error| format!("shard {partition}: {error}");
    let expected = state.shards[partition].as_ref().map(|shard| shard.record);
    let found = brick.shard(RING, shard_of(partition)).map_err(failed)?;
    if found != expected {
        return Err(format!("shard {partition} is {found:?}, not {expected:?}"));
    }
    let all = brick.shards(RING, PartitionNumber(partition as u32), PARTITION_COUNT).map_err(failed)?;
    if all != expected.map(|_| shard_of(partition)).into_iter().collect::<Vec<_>>() {
        return Err(format!("partition {partition} lists the shards {all:?}"));
    }
    Ok(())
}

/// A block may be lost only if it was written fresh, no sync covered it, and the shard still reaches to it.
fn lost_blocks(partition: usize, state: &State, lost: &Holes, expect: &Expect<'_>) -> Result<(), String> {
    for (_, block) in lost.range((partition, 0)..(partition + 1, 0)) {
        let shard = state.shards[partition].as_ref().filter(|shard| *block < shard.record.length.div_ceil(B));
        let by = shard.and_then(|shard| shard.fresh.get(block));
        let covered = expect.marked[partition];
        if !expect.holes.contains(&(partition, *block)) && by.is_none_or(|by| *by < covered) {
            return Err(format!(
                "block {block} of shard {partition} is reported lost; it was written fresh by record {by:?}, and \
                 everything before record {covered} was covered"
            ));
        }
    }
    Ok(())
}

fn content(
    brick: &Brick,
    partition: usize,
    state: &State,
    lost: &Holes,
    expect: &Expect<'_>,
    holes: &mut Holes,
) -> Result<(), String> {
    let Some(shard) = &state.shards[partition] else { return Ok(()) };
    let length = shard.record.length;
    let bytes = brick.read_shard(RING, shard_of(partition), 0, length);
    let bytes = bytes.map_err(|error| format!("shard {partition}: {error}"))?;
    if bytes.len() != length as usize {
        return Err(format!("shard {partition} reads {} of its {length} bytes", bytes.len()));
    }
    for (number, found) in (0..).zip(bytes.chunks(BLOCK_BYTES)) {
        let is_zero = found.iter().all(|byte| *byte == 0);
        let is_lost = lost.contains(&(partition, number));
        if is_lost && is_zero {
            holes.insert((partition, number));
        }
        let right = match shard.blocks.get(&number) {
            None => is_zero,
            Some(written) if *found == written.block.bytes()[..found.len()] => !is_lost || is_zero,
            Some(written) if is_zero && written.fresh => {
                let lost_earlier = expect.holes.contains(&(partition, number));
                lost_earlier || is_lost && written.by >= expect.covered[partition]
            }
            Some(_) => false,
        };
        if !right {
            let expected = shard.blocks.get(&number);
            let seen = if is_zero { "zeros".into() } else { format!("{:02x?}…", &found[..found.len().min(16)]) };
            return Err(format!(
                "block {number} of shard {partition} reads {seen}, {}reported lost; it has to be {expected:?}, and \
                 everything before record {} was covered",
                if is_lost { "" } else { "not " },
                expect.covered[partition]
            ));
        }
        if is_zero && shard.blocks.get(&number).is_some_and(|written| written.fresh) {
            holes.insert((partition, number));
        }
    }
    Ok(())
}
