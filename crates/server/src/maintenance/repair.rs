//! Repairs a damaged block or entry of one replica by the copy of another, of this server or of another one.
//!
//! The server that leads the partition does it: the right bytes are a record in the partition's log, like any change,
//! with a stamp of its own. The copy of another server's replica counts only if that replica was at the leader's last
//! record, and the leader is still at this record when it makes its own.

mod elsewhere;

pub use elsewhere::{copy_item, repair_item};

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::maintenance::damage::DamagedAt;
use crate::request::turn::{ANSWER_LIMIT, Turn};
use elsewhere::{FoundCopy, copied_from_others, repair_elsewhere};
use hekate_brick::{Brick, Finding, LogPosition, block_checksum};
use hekate_control::peer::Repaired;
use hekate_proto::*;
use hekate_replica::{Around, Commit, Event, Out};
use std::sync::Arc;
use std::time::Duration;

/// A damaged block or entry of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DamagedPart {
    Block { ring: RingId, shard: ShardId, block: u32 },
    Entry { ring: RingId, position: Position, key: Key },
}

/// A readable copy of a damaged part.
struct Good {
    /// The shard's record; `None` for an entry.
    record: Option<ShardRecord>,
    /// The block, or the entry's value; `None` for a hole, or if there is no such entry.
    bytes: Option<bytes::Bytes>,
}

impl DamagedPart {
    /// The part to repair for a finding. A shard's record is repaired by a write of its first block. Checksums are not
    /// repaired as an entry: each block that they covered is a finding of its own.
    fn of(finding: &Finding) -> Option<Self> {
        match finding {
            Finding::Block { ring, shard, block } => Some(Self::Block { ring: *ring, shard: *shard, block: *block }),
            Finding::Entry { key } => match (key.prefix()?, key.kind()?, key.as_shard()) {
                (place, Kind::Shard, Some(shard)) => Some(Self::Block { ring: place.ring, shard, block: 0 }),
                (_, Kind::Checksums, _) => None,
                (place, ..) => Some(Self::Entry { ring: place.ring, position: place.position, key: key.clone() }),
            },
            Finding::Stray { .. } => None,
        }
    }

    fn ring(&self) -> RingId {
        match self {
            Self::Block { ring, .. } | Self::Entry { ring, .. } => *ring,
        }
    }

    fn position(&self) -> Position {
        match self {
            Self::Block { shard, .. } => shard.position(),
            Self::Entry { position, .. } => *position,
        }
    }

    /// Reads the part from a replica.
    fn read(&self, brick: &Brick) -> Result<Good> {
        Ok(match self {
            Self::Block { ring, shard, block } => {
                let record = brick.shard(*ring, *shard)?;
                let bytes = if record.is_some() { brick.read_block(*ring, *shard, *block)? } else { None };
                Good { record, bytes }
            }
            Self::Entry { key, .. } => Good { record: None, bytes: brick.get(key)? },
        })
    }

    /// The change that repairs the part on all members; `None` if the replica does not have it.
    fn repairing_change(&self, good: Good, stamp: impl FnOnce(u64) -> Stamp) -> Option<Change> {
        match self {
            Self::Block { shard, block, .. } => {
                let record = good.record?;
                // The checksum of a hole was lost with its group: the hole becomes zeros.
                let bytes = good.bytes.unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
                let run = BlockRun { first: *block, checksums: vec![block_checksum(*shard, *block, &bytes)] };
                let record = ShardRecord { stamp: stamp(record.stamp.count + 1), ..record };
                Some(Change::WriteBlocks { shard: *shard, record, run, bytes })
            }
            Self::Entry { key, .. } => Some(Change::Put { key: key.clone(), value: good.bytes? }),
        }
    }
}

/// Repairs what was found damaged on `brick`, a brick of this server, and records the outcome.
///
/// # Errors
///
/// `Unavailable` if the leader or its server does not answer, or the partition stays busy.
pub fn repair(node: &Node, brick: &Brick, finding: &Finding) -> Result<Repaired> {
    let outcome = repair_finding(node, brick, finding);
    if !matches!(finding, Finding::Stray { .. }) {
        node.maintenance.damages.note(&DamagedAt::new(node, brick, finding), finding, &outcome);
    }
    outcome
}

fn repair_finding(node: &Node, brick: &Brick, finding: &Finding) -> Result<Repaired> {
    match (finding, DamagedPart::of(finding)) {
        (Finding::Stray { .. }, _) => Ok(Repaired::Yes),
        // Each block under an entry of checksums is a finding of its own.
        (Finding::Entry { key }, None) if key.kind() == Some(Kind::Checksums) => Ok(Repaired::NotNeeded),
        (_, None) => Ok(Repaired::No),
        (_, Some(damaged)) => repair_here_or_there(node, brick.id(), &damaged),
    }
}

/// Repairs the part here if the partition is led here, otherwise on the leader's server.
fn repair_here_or_there(node: &Node, on: BrickId, damaged: &DamagedPart) -> Result<Repaired> {
    // A scrub reads what the last checkpoint wrote home: it may have been repaired since.
    if node.bricks.get(&on).is_some_and(|brick| damaged.read(brick).is_ok()) {
        return Ok(Repaired::NotNeeded);
    }
    let ring = node.ring(damaged.ring())?;
    let outcome = match ring.leader(damaged.position().partition(ring.count())) {
        Ok(_) => repair_led(node, &ring, on, damaged),
        Err(Error::OtherServer { server }) => repair_elsewhere(node, server, on, damaged),
        Err(error) => Err(error),
    }?;
    match (outcome, node.bricks.get(&on)) {
        (Repaired::Yes, _) => node.maintenance.scrubs.note_repaired(on),
        (Repaired::KeyLost, Some(brick)) => return Ok(lose(brick, damaged)),
        _ => {}
    }
    Ok(outcome)
}

/// Handles a damaged part that no other replica has. It may have been overwritten or removed meanwhile. If the shard's
/// record can be read, its key is right, and the block alone is lost. Otherwise the key is damaged, and the server
/// would report an existing item as missing: the brick stops, and other members serve its partitions.
fn lose(brick: &Brick, damaged: &DamagedPart) -> Repaired {
    match damaged {
        _ if damaged.read(brick).is_ok() => return Repaired::NotNeeded,
        DamagedPart::Block { ring, shard, .. } if brick.shard(*ring, *shard).is_ok() => return Repaired::No,
        _ => {}
    }
    let id = brick.id().text();
    let what = format!("a key in the index of brick {id} is damaged and may hide entries; replace the brick");
    log::error!("no other replica has {damaged:?}: {what}");
    brick.poison(&Error::Damaged { what });
    Repaired::KeyLost
}

/// Repairs the blocks of a range, in bytes of the shard, that the leader cannot read. True if a block was repaired.
///
/// # Errors
///
/// `OtherServer` if the partition is not led here; those of `repair`.
pub fn repair_range(node: &Node, ring_id: RingId, shard: ShardId, offset: u32, length: u32) -> Result<bool> {
    let ring = node.ring(ring_id)?;
    let leader = ring.leader(shard.position().partition(ring.count()))?.1.brick.clone();
    let block = BLOCK_BYTES as u32;
    let mut repaired = false;
    let repair_block = |block| repair(node, &leader, &Finding::Block { ring: ring_id, shard, block });
    if matches!(leader.shard(ring_id, shard), Err(Error::Damaged { .. })) {
        repaired |= repair_block(0)? == Repaired::Yes;
    }
    for number in offset / block..offset.saturating_add(length).div_ceil(block) {
        if matches!(leader.read_block(ring_id, shard, number), Err(Error::Damaged { .. } | Error::Io { .. })) {
            repaired |= repair_block(number)? == Repaired::Yes;
        }
    }
    Ok(repaired)
}

/// Repairs the entries of a partition that its leader cannot read. True if an entry was repaired.
///
/// # Errors
///
/// `OtherServer` if the partition is not led here; those of `repair`.
pub fn repair_entries(node: &Node, ring_id: RingId, at: PartitionNumber) -> Result<bool> {
    let ring = node.ring(ring_id)?;
    let leader = ring.leader(at)?.1.brick.clone();
    let mut repaired = false;
    for (from, to) in [Key::object_range(ring_id, at, ring.count()), Key::work_range(ring_id, at, ring.count())] {
        for key in leader.damaged_entries(&from, &to)? {
            repaired |= repair(node, &leader, &Finding::Entry { key: key.clone() })? == Repaired::Yes;
        }
    }
    Ok(repaired)
}

/// The outcome, for the log.
pub fn outcome_text(outcome: Repaired) -> &'static str {
    match outcome {
        Repaired::Yes => "damaged; repaired from another replica",
        Repaired::NotNeeded => "was damaged; by now it is readable or removed",
        Repaired::No => "damaged, and no other replica has it",
        Repaired::KeyLost => "damaged, and so is its key: the brick stops",
    }
}

/// How often another server's replica is read again because the leader has made records meanwhile.
const COPIES_MAX: u32 = 50;

/// Repairs damage in a partition that is led here. `on` is the brick that it is on; if that brick is elsewhere, its
/// server has checked that it is still damaged.
///
/// # Errors
/// `Unavailable` if the view has left the brick out, or the partition stays busy.
fn repair_led(node: &Node, ring: &Arc<HostedRing>, on: BrickId, damaged: &DamagedPart) -> Result<Repaired> {
    let at = damaged.position().partition(ring.count());
    let mut copied: Option<FoundCopy> = None;
    let since = hekate_threads::now();
    for _ in 0..COPIES_MAX {
        if hekate_threads::elapsed(since) >= BUSY_LIMIT {
            break;
        }
        let (mut outcome, mut is_elsewhere) = (Repaired::NotNeeded, false);
        while_settled(node, ring, at, |members, end| {
            let own = members.iter().find(|member| member.id() == on);
            let is_right = own.is_some_and(|own| damaged.read(own).is_ok());
            if is_right || !ring.holders(at).contains(&on) {
                return Ok(None);
            }
            // A repair is a record, which is sure to reach members only; and healing compares stamps of shards, so a
            // block with the right stamp stays damaged until it is repaired on a member.
            if !ring.view(at)?.has_member(on) {
                let what = format!("brick {} is no member of partition {at} now; scrub it again once it is", on.text());
                return Err(Error::Unavailable { what });
            }
            let here = members.iter().filter(|member| member.id() != on).find_map(|member| damaged.read(member).ok());
            let good = here.or_else(|| copied.take()?.good_at(damaged, members, end.position));
            let Some(good) = good else {
                is_elsewhere = true;
                return Ok(None);
            };
            let stamp = |count| Stamp::of_leader(count, end.view, Sequence(end.position.sequence.0 + 1));
            let Some(change) = damaged.repairing_change(good, stamp) else {
                outcome = Repaired::KeyLost;
                return Ok(None);
            };
            outcome = Repaired::Yes;
            Ok(Some(Commit { changes: vec![change], ..Commit::default() }))
        })?;
        if !is_elsewhere {
            return Ok(outcome);
        }
        copied = copied_from_others(node, ring, at, on, damaged)?;
        if copied.is_none() {
            return Ok(Repaired::No);
        }
    }
    Err(Error::Unavailable { what: format!("partition {at} of ring {} stays busy", ring.ring) })
}

/// How long a repair waits for a partition that is busy, and how long at a time. The client whose read met the damage
/// waits as long, and gets EIO if the repair gives up.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Where a partition's log ends.
struct LogEnd {
    /// The epoch of the leader's view, in which it makes the next record.
    view: Epoch,
    /// The leader's last record.
    position: LogPosition,
}

/// Gives the members that are here to `look` while no change is in progress, and makes the record that it returns.
///
/// # Errors
///
/// `Unavailable` if the partition is busy for 5 s, or a member does not answer; those of `look`.
fn while_settled(
    node: &Node,
    ring: &Arc<HostedRing>,
    at: PartitionNumber,
    mut look: impl FnMut(&[Arc<Brick>], LogEnd) -> Result<Option<Commit>>,
) -> Result<()> {
    let members = ring.members(at)?;
    let (to, hosted) = ring.leader(at)?;
    let since = hekate_threads::now();
    while hekate_threads::elapsed(since) < BUSY_LIMIT {
        let mut partition = hosted.partition.write();
        if !partition.is_settled() {
            drop(partition);
            let mut turn = Turn::new(node, ring);
            turn.deliver(to, Event::CloseShards);
            turn.run_without_syncs();
            hekate_threads::sleep(BUSY_PAUSE);
            continue;
        }
        let end = LogEnd { view: partition.view().epoch, position: hosted.brick.position(ring.ring, at) };
        let Some(commit) = look(&members, end)? else { return Ok(()) };
        let token = node.tickets.token();
        let (mut out, views) = (Out::default(), ring.views());
        let around = Around { brick: &hosted.brick, views: &views, now: Node::clock(), elapsed: Node::elapsed() };
        partition.handle(Event::ChangeNow { token, commit: Box::new(commit) }, &around, &mut out);
        let mut turn = Turn::new(node, ring);
        turn.carry_out_request(token, out);
        drop(partition);
        turn.run();
        let at_once = turn.take(token);
        if matches!(at_once, Some(Err(Error::Unavailable { .. }))) {
            // A member does not answer. Its content may have changed when it answers again, so it is read again.
            hekate_threads::sleep(BUSY_PAUSE);
            continue;
        }
        return at_once
            .or_else(|| node.wait_for_answer(ring, to, token, ANSWER_LIMIT))
            .unwrap_or_else(|| {
                Err(Error::Unavailable { what: format!("partition {at} of ring {} does not answer", ring.ring) })
            })
            .map(|_| ());
    }
    Err(Error::Unavailable { what: format!("partition {at} of ring {} stays busy", ring.ring) })
}
