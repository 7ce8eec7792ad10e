//! Mending what rotted on one replica with what another has, on this server or on others.
//!
//! The server that leads the partition does it: what is right goes through the log to all members, like any change, with
//! a stamp of its own. What a replica of another server holds counts only if it was at the leader's last record, and the
//! leader is at it still when its own record is made.

mod elsewhere;

pub use elsewhere::{RepairRequest, answer};

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::maintenance::damage;
use crate::request::turn::Turn;
use elsewhere::{Copied, copied_from_others, mend_elsewhere};
use hekate_brick::{Brick, Finding, LogPosition, block_checksum};
use hekate_proto::*;
use hekate_replica::{Around, Commit, Event, Out};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What became of something damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mended {
    /// It is right again.
    Yes,
    /// It is right, or gone, by now.
    NotNeeded,
    /// No other replica has it, or it cannot be written now.
    No,
    /// No other replica has an entry with that key, or the block's shard: the key itself is damaged, and which entry is missing for
    /// it nobody knows.
    KeyLost,
}

/// Something damaged of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rotten {
    Block { ring: RingId, shard: ShardId, block: u32 },
    Entry { ring: RingId, position: Position, key: Key },
}

/// What a good replica has of it.
struct Good {
    /// The shard's record; of an entry none.
    record: Option<ShardRecord>,
    /// The block, or the entry's value; none: a hole, or no such entry.
    bytes: Option<bytes::Bytes>,
}

impl Rotten {
    /// What is mended for a finding. Those of shards come from writes: a write of the first block mends the record, and the
    /// blocks whose checksums are lost are found one by one.
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

    /// As a replica has it.
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

    /// What makes it right on all members. None: they do not have it.
    fn mending(&self, good: Good, stamp: impl FnOnce(u64) -> Stamp) -> Option<Change> {
        match self {
            Self::Block { shard, block, .. } => {
                let record = good.record?;
                // Of a hole the checksum was lost with its group: it becomes zeros.
                let bytes = good.bytes.unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
                let run = BlockRun { first: *block, checksums: vec![block_checksum(*shard, *block, &bytes)] };
                let record = ShardRecord { stamp: stamp(record.stamp.count + 1), ..record };
                Some(Change::WriteBlocks { shard: *shard, record, run, bytes })
            }
            Self::Entry { key, .. } => Some(Change::Put { key: key.clone(), value: good.bytes? }),
        }
    }
}

/// Mends what was found on `brick`, which is of this server, and notes what became of it.
pub fn mend(node: &Node, brick: &Brick, finding: &Finding) -> Result<Mended> {
    let outcome = mend_finding(node, brick, finding);
    if !matches!(finding, Finding::Stray { .. }) {
        damage::note(node, brick, finding, &outcome);
    }
    outcome
}

fn mend_finding(node: &Node, brick: &Brick, finding: &Finding) -> Result<Mended> {
    match (finding, Rotten::of(finding)) {
        (Finding::Stray { .. }, _) => Ok(Mended::Yes),
        // Of an entry of checksums each block is found.
        (Finding::Entry { key }, None) if key.kind() == Some(Kind::Checksums) => Ok(Mended::NotNeeded),
        (_, None) => Ok(Mended::No),
        (_, Some(rotten)) => mend_rotten(node, brick.id(), &rotten),
    }
}

/// Here if the partition is led here, else where it is.
fn mend_rotten(node: &Node, on: BrickId, rotten: &Rotten) -> Result<Mended> {
    // A scrub reads what the last checkpoint wrote: it may have been mended since.
    if node.bricks.get(&on).is_some_and(|brick| rotten.read(brick).is_ok()) {
        return Ok(Mended::NotNeeded);
    }
    let ring = node.ring(rotten.ring())?;
    let outcome = match ring.leader(rotten.position().partition(ring.count())) {
        Ok(_) => mend_led(node, &ring, on, rotten),
        Err(Error::OtherServer { server }) => mend_elsewhere(node, server, on, rotten),
        Err(error) => Err(error),
    }?;
    match (outcome, node.bricks.get(&on)) {
        (Mended::Yes, _) => node.scrubs.note_mended(on),
        (Mended::KeyLost, Some(brick)) => return Ok(lose(brick, rotten)),
        _ => {}
    }
    Ok(outcome)
}

/// No other replica has it. It may have gone while they were asked; and where the shard's own record is whole its key is too,
/// and another replica's is not. Otherwise what is missing would be answered as what does not exist: the brick stops, others go on.
fn lose(brick: &Brick, rotten: &Rotten) -> Mended {
    match rotten {
        _ if rotten.read(brick).is_ok() => return Mended::NotNeeded,
        Rotten::Block { ring, shard, .. } if brick.shard(*ring, *shard).is_ok() => return Mended::No,
        _ => {}
    }
    let id = brick.id().text();
    let what = format!("a key in the index of brick {id}, with entries that it hides; it is to be replaced");
    log::error!("{rotten:?} is of no other replica: {what}");
    brick.poison(&Error::Damaged { what });
    Mended::KeyLost
}

/// Mends the blocks of a range that its leader cannot read. -> whether any was mended.
pub fn mend_range(node: &Node, ring_id: RingId, shard: ShardId, offset: u32, length: u32) -> Result<bool> {
    let ring = node.ring(ring_id)?;
    let leader = ring.leader(shard.position().partition(ring.count()))?.1.brick.clone();
    let block = BLOCK_BYTES as u32;
    let mut mended = false;
    let mend = |block| mend(node, &leader, &Finding::Block { ring: ring_id, shard, block });
    if matches!(leader.shard(ring_id, shard), Err(Error::Damaged { .. })) {
        mended |= mend(0)? == Mended::Yes;
    }
    for number in offset / block..offset.saturating_add(length).div_ceil(block) {
        if matches!(leader.read_block(ring_id, shard, number), Err(Error::Damaged { .. } | Error::Io { .. })) {
            mended |= mend(number)? == Mended::Yes;
        }
    }
    Ok(mended)
}

/// Mends the entries of a partition that its leader, which is here, cannot read. -> whether any was mended.
pub fn mend_entries(node: &Node, ring_id: RingId, at: PartitionNumber) -> Result<bool> {
    let ring = node.ring(ring_id)?;
    let leader = ring.leader(at)?.1.brick.clone();
    let mut mended = false;
    for (from, to) in [Key::object_range(ring_id, at, ring.count()), Key::work_range(ring_id, at, ring.count())] {
        for key in leader.damaged_entries(&from, &to)? {
            mended |= mend(node, &leader, &Finding::Entry { key: key.clone() })? == Mended::Yes;
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
        Mended::KeyLost => "damaged, key and all: the brick stops",
    }
}

/// How often a replica of another server is asked anew, since the leader was at another record by then.
const COPIES_MAX: u32 = 50;

/// The partition is led here. Where the damage is says `on`; if that brick is elsewhere its server has looked.
fn mend_led(node: &Node, ring: &Arc<HostedRing>, on: BrickId, rotten: &Rotten) -> Result<Mended> {
    let at = rotten.position().partition(ring.count());
    let mut copied: Option<Copied> = None;
    for _ in 0..COPIES_MAX {
        let (mut outcome, mut is_elsewhere) = (Mended::NotNeeded, false);
        while_settled(node, ring, at, |members, (epoch, position)| {
            let own = members.iter().find(|member| member.id() == on);
            let is_right = own.is_some_and(|own| rotten.read(own).is_ok());
            if is_right || !ring.view(at)?.has_member(on) {
                return Ok(None);
            }
            let here = members.iter().filter(|member| member.id() != on).find_map(|member| rotten.read(member).ok());
            let good = here.or_else(|| copied.take()?.good_at(rotten, members, position));
            let Some(good) = good else {
                is_elsewhere = true;
                return Ok(None);
            };
            let stamp = |count| Stamp::of_leader(count, epoch, Sequence(position.sequence.0 + 1));
            let Some(change) = rotten.mending(good, stamp) else {
                outcome = Mended::KeyLost;
                return Ok(None);
            };
            outcome = Mended::Yes;
            Ok(Some(Commit { changes: vec![change], ..Commit::default() }))
        })?;
        if !is_elsewhere {
            return Ok(outcome);
        }
        copied = copied_from_others(node, ring, at, on, rotten)?;
        if copied.is_none() {
            return Ok(Mended::No);
        }
    }
    Err(Error::Unavailable { what: format!("partition {at} of ring {} is busy all the time", ring.ring) })
}

/// How often a partition is found busy before it is left as it is.
const BUSY_MAX: u32 = 1000;
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// Compares the members of a partition that are here while nothing is on its way to any, and makes the record that they
/// need. `look` is told the view's epoch, and where the log ends.
fn while_settled(
    node: &Node,
    ring: &Arc<HostedRing>,
    at: PartitionNumber,
    mut look: impl FnMut(&[Arc<Brick>], (Epoch, LogPosition)) -> Result<Option<Commit>>,
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
        let place = (partition.view().epoch, hosted.brick.position(ring.ring, at));
        let Some(commit) = look(&members, place)? else { return Ok(()) };
        let token = node.tickets.token();
        let (mut out, views) = (Out::default(), ring.views());
        let around = Around { brick: &hosted.brick, views: &views, now: Node::clock() };
        partition.handle(Event::ChangeNow { token, commit: Box::new(commit) }, &around, &mut out);
        let mut turn = Turn::new(node, ring);
        turn.go_on(token, out);
        drop(partition);
        turn.run();
        let at_once = turn.take(token);
        if matches!(at_once, Some(Err(Error::Unavailable { .. }))) {
            // A member is away: what was looked at may be old when it is back.
            std::thread::sleep(BUSY_PAUSE);
            continue;
        }
        return at_once
            .or_else(|| node.patiently(ring, to, token))
            .unwrap_or_else(|| Err(Error::Unavailable { what: "a partition that is busy".into() }))
            .map(|_| ());
    }
    Err(Error::Unavailable { what: format!("partition {at} of ring {} is busy all the time", ring.ring) })
}
