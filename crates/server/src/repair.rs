//! Mending what rotted on one replica with what another has.

use crate::level::with_locks;
use crate::node::Node;
use hekate_brick::{Brick, Finding, block_checksum, data_file_path};
use hekate_proto::*;
use hekate_replica::{Commit, Partitions};
use std::sync::Arc;

/// What became of something damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mended {
    /// It is right again.
    Yes,
    /// It is right, or gone, by now.
    NotNeeded,
    /// No other replica has it, or it cannot be written now.
    No,
}

/// Mends what a scrub of `brick` found.
pub fn mend(node: &Node, brick: &Arc<Brick>, finding: &Finding) -> Result<Mended> {
    match finding {
        Finding::Block { ring, shard, block } => mend_block(node, brick.id(), *ring, *shard, *block),
        Finding::Entry { key } => mend_entry(node, brick.id(), key),
        Finding::Stray { .. } => Ok(Mended::Yes),
    }
}

/// Mends the blocks of a range that its leader cannot read. -> whether any was mended.
pub fn mend_range(node: &Node, ring_id: RingId, shard: ShardId, offset: u32, length: u32) -> Result<bool> {
    let ring = node.ring(ring_id)?;
    let leader = ring.read(shard.position().partition(ring.count()))?.members[0].clone();
    let block = BLOCK_BYTES as u32;
    let mut mended = false;
    if matches!(leader.shard(ring_id, shard), Err(Error::Damaged { .. })) {
        mended |= mend_block(node, leader.id(), ring_id, shard, 0)? == Mended::Yes;
    }
    for number in offset / block..offset.saturating_add(length).div_ceil(block) {
        if matches!(leader.read_block(ring_id, shard, number), Err(Error::Damaged { .. } | Error::Io { .. })) {
            let outcome = mend_block(node, leader.id(), ring_id, shard, number)?;
            let (file, brick) = (data_file_path(shard), leader.id().text());
            eprintln!("hekate-serve: block {number} of {file} on brick {brick}: {}", words(outcome));
            mended |= outcome == Mended::Yes;
        }
    }
    Ok(mended)
}

/// For the log.
pub fn words(outcome: Mended) -> &'static str {
    match outcome {
        Mended::Yes => "damaged, mended from another replica",
        Mended::NotNeeded => "was damaged, is right or gone by now",
        Mended::No => "damaged, and no other replica has it",
    }
}

/// The bytes go through the journal like any write, to all members, with a stamp of their own.
fn mend_block(node: &Node, on: BrickId, ring_id: RingId, shard: ShardId, block: u32) -> Result<Mended> {
    let ring = node.ring(ring_id)?;
    let at = shard.position().partition(ring.count());
    let mut outcome = Mended::NotNeeded;
    with_locks(node, &ring, shard.volume, at, |locked, ask| {
        let members = locked.hosted(at)?.members.clone();
        let Some(own) = members.iter().find(|member| member.id() == on) else { return Ok(()) };
        if own.shard(ring_id, shard).is_ok() && own.read_block(ring_id, shard, block).is_ok() {
            return Ok(());
        }
        let Some(record) = newest_record(&members, ring_id, shard) else { return Ok(()) };
        outcome = Mended::No;
        let others = members.iter().filter(|member| member.id() != on);
        let Some(good) = others.filter_map(|member| member.read_block(ring_id, shard, block).ok()).next() else {
            return Ok(());
        };
        // Of a hole the checksum was lost with its group: it becomes zeros.
        let bytes = good.unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
        let stamp = Stamp { count: record.stamp.count + 1, session: ask.session, op: ask.op_id };
        let run = BlockRun { first: block, checksums: vec![block_checksum(shard, block, &bytes)] };
        let changes = vec![Change::WriteBlocks { shard, record: ShardRecord { stamp, ..record }, run, bytes }];
        locked.commit(at, Commit { changes, ..Commit::default() })?;
        outcome = Mended::Yes;
        Ok(())
    })?;
    Ok(outcome)
}

/// The shard's record as the members that can read it have it.
fn newest_record(members: &[Arc<Brick>], ring: RingId, shard: ShardId) -> Option<ShardRecord> {
    let records = members.iter().filter_map(|member| member.shard(ring, shard).ok().flatten());
    records.max_by_key(|record| record.stamp.count)
}

/// An entry is put anew as another member has it. Those of shards come from writes: a write of the first block mends the
/// record, and the blocks whose checksums are lost are found one by one.
fn mend_entry(node: &Node, on: BrickId, key: &Key) -> Result<Mended> {
    let (Some(place), Some(kind)) = (key.place(), key.kind()) else { return Ok(Mended::No) };
    match (kind, key.as_shard()) {
        (Kind::Shard, Some(shard)) => return mend_block(node, on, place.ring, shard, 0),
        (Kind::Checksums, _) => return Ok(Mended::NotNeeded),
        _ => {}
    }
    let ring = node.ring(place.ring)?;
    let at = place.position.partition(ring.count());
    let mut outcome = Mended::NotNeeded;
    with_locks(node, &ring, place.volume, at, |locked, _| {
        let members = locked.hosted(at)?.members.clone();
        let Some(own) = members.iter().find(|member| member.id() == on) else { return Ok(()) };
        if own.get(key).is_ok() {
            return Ok(());
        }
        outcome = Mended::No;
        let others = members.iter().filter(|member| member.id() != on);
        let Some(value) = others.filter_map(|member| member.get(key).ok()).next() else { return Ok(()) };
        let change = match value {
            Some(value) => Change::Put { key: key.clone(), value },
            None => Change::Delete { key: key.clone() },
        };
        locked.commit(at, Commit { changes: vec![change], ..Commit::default() })?;
        outcome = Mended::Yes;
        Ok(())
    })?;
    Ok(outcome)
}
