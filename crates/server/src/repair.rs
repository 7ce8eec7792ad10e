//! Mending what rotted on one replica with what another has.

use crate::node::Node;
use crate::partition::HostedRing;
use crate::turn::Turn;
use hekate_brick::{Brick, Finding, block_checksum, data_file_path};
use hekate_proto::*;
use hekate_replica::{Around, Commit, Event, Out};
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
    let leader = ring.leader(shard.position().partition(ring.count()))?.1.brick.clone();
    let block = BLOCK_BYTES as u32;
    let mut mended = false;
    if matches!(leader.shard(ring_id, shard), Err(Error::Damaged { .. })) {
        mended |= mend_block(node, leader.id(), ring_id, shard, 0)? == Mended::Yes;
    }
    for number in offset / block..offset.saturating_add(length).div_ceil(block) {
        if matches!(leader.read_block(ring_id, shard, number), Err(Error::Damaged { .. } | Error::Io { .. })) {
            let outcome = mend_block(node, leader.id(), ring_id, shard, number)?;
            let (file, brick) = (data_file_path(shard), leader.id().text());
            log::warn!("block {number} of {file} on brick {brick}: {}", words(outcome));
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
    while_settled(node, &ring, at, |members| {
        let Some(own) = members.iter().find(|member| member.id() == on) else { return Ok(None) };
        if own.shard(ring_id, shard).is_ok() && own.read_block(ring_id, shard, block).is_ok() {
            return Ok(None);
        }
        let Some(record) = newest_record(members, ring_id, shard) else { return Ok(None) };
        outcome = Mended::No;
        let others = members.iter().filter(|member| member.id() != on);
        let Some(good) = others.filter_map(|member| member.read_block(ring_id, shard, block).ok()).next() else {
            return Ok(None);
        };
        // Of a hole the checksum was lost with its group: it becomes zeros.
        let bytes = good.unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
        let stamp = Stamp { count: record.stamp.count + 1, session: SYSTEM_SESSION, op: OpId(0) };
        let run = BlockRun { first: block, checksums: vec![block_checksum(shard, block, &bytes)] };
        let changes = vec![Change::WriteBlocks { shard, record: ShardRecord { stamp, ..record }, run, bytes }];
        outcome = Mended::Yes;
        Ok(Some(Commit { changes, ..Commit::default() }))
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
    while_settled(node, &ring, at, |members| {
        let Some(own) = members.iter().find(|member| member.id() == on) else { return Ok(None) };
        if own.get(key).is_ok() {
            return Ok(None);
        }
        outcome = Mended::No;
        let others = members.iter().filter(|member| member.id() != on);
        let Some(value) = others.filter_map(|member| member.get(key).ok()).next() else { return Ok(None) };
        let change = match value {
            Some(value) => Change::Put { key: key.clone(), value },
            None => Change::Delete { key: key.clone() },
        };
        outcome = Mended::Yes;
        Ok(Some(Commit { changes: vec![change], ..Commit::default() }))
    })?;
    Ok(outcome)
}

/// How often a partition is found busy before it is left as it is.
const BUSY_MAX: u32 = 1000;
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// Compares the members of a partition while nothing is on its way to them, and makes the record that they need.
fn while_settled(
    node: &Node,
    ring: &Arc<HostedRing>,
    at: PartitionNumber,
    mut look: impl FnMut(&[Arc<Brick>]) -> Result<Option<Commit>>,
) -> Result<()> {
    let members = ring.members(at)?;
    let (to, hosted) = ring.leader(at)?;
    for _ in 0..BUSY_MAX {
        let mut partition = hosted.partition.write();
        if !partition.is_settled() {
            drop(partition);
            let mut turn = Turn::new(node, ring);
            turn.tell(to, Event::CloseShards);
            turn.run_without_syncs();
            std::thread::sleep(BUSY_PAUSE);
            continue;
        }
        let Some(commit) = look(&members)? else { return Ok(()) };
        let token = node.tickets.token();
        let (mut out, views) = (Out::default(), ring.views());
        let around = Around { brick: &hosted.brick, views: &views, now: Node::clock() };
        partition.handle(Event::Change { token, commit: Box::new(commit) }, &around, &mut out);
        let mut turn = Turn::new(node, ring);
        turn.go_on(token, out);
        drop(partition);
        turn.run();
        let answer = turn.take(token).or_else(|| node.patiently(ring, to, token));
        return answer
            .unwrap_or_else(|| Err(Error::Unavailable { what: "a partition that is busy".into() }))
            .map(|_| ());
    }
    Err(Error::Unavailable { what: format!("partition {at} of ring {} is busy all the time", ring.ring) })
}
