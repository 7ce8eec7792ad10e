//! The fast lane: writes of bytes that a client sends to all members at once (High Speed Replication, rules 1 to 12 of
//! `docs/fast-lane.md`). Here is what a member does with one; `fast/lane.rs`, `fast/closing.rs`, `fast/loose.rs` and
//! `fast/times.rs` are the leader's.
//!
//! A member takes a write only if the shard's last one has exactly the stamp that it follows, and lists it, in one journal
//! record: until it is known that every member has it, it is *unsettled*. A leader *opens* a shard for a session when it
//! answers a write of its, and tells its *term* with it; whatever else is done to the shard, it *closes* it first.

pub(crate) mod closing;
pub(crate) mod lane;
mod lender;
pub(crate) mod loose;
pub(crate) mod raw;
pub(crate) mod times;
mod uneven;

use crate::context::Context;
use crate::log::follower::append;
use crate::membership::Membership;
use crate::message::{FastList, Message};
use crate::ops::data::{block_change, whole_blocks};
use crate::ops::step::{Ask, Stop};
use hekate_brick::{Brick, LogEntry};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;

/// Bytes of the greatest fast write. Greater ones are better sent once, and on from the leader.
pub const FAST_BYTES_MAX: usize = 64 << 10;
/// Writes to one shard that its member does not know to be settled.
const UNSETTLED_MAX: usize = 32;
/// Entries of one scan.
const SCAN_AT_ONCE: usize = 512;

/// Unsettled writes, by shard.
pub(crate) type Lists = BTreeMap<ShardId, Vec<FastWrite>>;

/// A member's part.
#[derive(Debug, Default)]
pub(crate) struct FastMember {
    /// Of the leader that it follows, once it has heard from it; what another one allowed counts no more.
    term: Option<u64>,
    lists: Lists,
    /// What the leader wants to know once it has this record.
    questions: Vec<(Sequence, Vec<ShardId>)>,
}

impl FastMember {
    pub fn read(at: &Membership, brick: &Brick) -> Result<Self> {
        Ok(Self { lists: read_lists(at, brick)?, ..Self::default() })
    }

    /// The leader begins anew, or another leads. What it takes under the old term before it hears the new one, it lists then.
    pub fn forget(&mut self) {
        self.questions.clear();
    }

    pub fn hear(&mut self, term: u64) {
        self.term = Some(term);
    }

    /// A record of the leader's was taken.
    pub fn took(&mut self, record: &Record) -> Result<()> {
        for change in &record.changes {
            let (Change::Put { key, .. } | Change::Delete { key }) = change else { continue };
            let Some(shard) = key.as_unsettled() else { continue };
            self.lists.remove(&shard);
            if let Change::Put { value, .. } = change {
                self.lists.insert(shard, UnsettledRecord::from_bytes(value.clone()).map_err(Error::from)?.writes);
            }
        }
        Ok(())
    }

    /// For one who learns: what it has is compared, and listed no more.
    pub fn deletes(&self, ring: RingId) -> impl Iterator<Item = Change> {
        self.lists.keys().map(move |shard| Change::Delete { key: Key::unsettled(ring, *shard) })
    }

    /// All that it lists.
    pub fn listed(&self) -> Vec<FastList> {
        self.lists.iter().map(|(shard, writes)| FastList { shard: *shard, writes: writes.clone() }).collect()
    }

    pub fn ask(&mut self, sequence: Sequence, shards: Vec<ShardId>) {
        self.questions.push((sequence, shards));
    }

    /// What it has of what was asked for, now that it has the record that keeps more from coming.
    pub fn answer(&mut self, cx: &mut Context, last: Sequence) {
        for (sequence, shards) in self.questions.extract_if(.., |(sequence, _)| *sequence <= last) {
            let list = |shard| FastList { shard, writes: self.lists.get(&shard).cloned().unwrap_or_default() };
            let lists = shards.into_iter().map(list).filter(|list| !list.writes.is_empty()).collect();
            cx.send_member(cx.at.view.leader, Message::FastListed { sequence, lists });
        }
    }

    /// Whether it has a write: its last one of the shard, or one that another followed.
    pub fn holds(&self, at: &Membership, brick: &Brick, shard: ShardId, stamp: Stamp) -> Result<bool> {
        if brick.shard(at.ring, shard)?.is_some_and(|record| record.stamp == stamp) {
            return Ok(true);
        }
        Ok(self.lists.get(&shard).is_some_and(|list| holds(list, stamp)))
    }

    /// A client's write.
    pub fn write(&mut self, cx: &Context, ask: &Ask, op: &DataOp) -> Result<Result<Reply>> {
        let Some(write) = FastOp::of(ask, op) else { return Ok(Err(not_fast())) };
        let is_heard = self.term == Some(write.term) || is_planted(Bug::TermIgnored);
        if !is_heard || !cx.at.names_this_incarnation() || !cx.at.view.has_member(cx.at.own.brick) {
            return Ok(Err(Error::Conflict { stamp: None }));
        }
        let mut list = self.lists.remove(&write.shard).unwrap_or_default();
        let reply = write.take(cx.at, cx.around.brick, ask, &mut list)?;
        if !list.is_empty() {
            self.lists.insert(write.shard, list);
        }
        Ok(reply)
    }
}

/// A fast write, as its client sends it.
pub(crate) struct FastOp<'a> {
    pub shard: ShardId,
    pub term: u64,
    offset: u32,
    bytes: &'a bytes::Bytes,
    follow: Stamp,
    settled: bool,
}

fn not_fast() -> Error {
    Error::Protocol { what: "a member is asked for fast writes only".into() }
}

impl<'a> FastOp<'a> {
    pub fn of(ask: &Ask, op: &'a DataOp) -> Option<Self> {
        let DataOp::FastWrite { data, index, offset, bytes, follow, settled, term } = op else { return None };
        let shard = ShardId { volume: ask.volume, data: *data, index: *index };
        Some(Self { shard, term: *term, offset: *offset, bytes, follow: *follow, settled: *settled })
    }

    /// Applies it and lists it, in one journal record (rule 1). The outer error is the replica's end; `Conflict`: it goes on
    /// the leader's lane.
    pub fn take(
        &self,
        at: &Membership,
        brick: &Brick,
        ask: &Ask,
        list: &mut Vec<FastWrite>,
    ) -> Result<std::result::Result<Reply, Error>> {
        let write = Overwrite { shard: self.shard, offset: self.offset, bytes: self.bytes };
        if let Some(refusal) = write.refusal(at, ask) {
            return Ok(Err(refusal));
        }
        let found = write.target(at, brick)?;
        let conflict = Ok(Err(Error::Conflict { stamp: found.map(|record| record.stamp) }));
        let Some(before) = found.filter(|record| self.is_next(record)) else { return conflict };
        let Some(blocks) = write.blocks(brick, ask, before.length)? else { return conflict };
        let stamp = Stamp { count: self.follow.count + 1, session: ask.session, op: ask.op_id };
        let mut writes = if self.settled { Vec::new() } else { list.clone() };
        writes.push(FastWrite { stamp, first: write.first(), blocks: write.count() });
        if writes.len() > UNSETTLED_MAX {
            return conflict;
        }
        let record = ShardRecord { stamp, ..before };
        let listed = UnsettledRecord { writes: writes.clone() }.to_bytes();
        let mut changes = vec![block_change(self.shard, record, write.first(), blocks)];
        if !is_planted(Bug::FastWriteNotListed) {
            changes.push(Change::Put { key: Key::unsettled(at.ring, self.shard), value: listed });
        }
        if !append_outside(at, brick, ask, changes)? {
            return conflict;
        }
        *list = writes;
        Ok(Ok(Reply::Written { stamp, fast: None }))
    }

    fn is_next(&self, record: &ShardRecord) -> bool {
        record.stamp == self.follow || is_planted(Bug::StampsNotCompared) && record.stamp.count >= self.follow.count
    }
}

/// New bytes for blocks that a shard has.
pub(crate) struct Overwrite<'a> {
    pub shard: ShardId,
    pub offset: u32,
    pub bytes: &'a bytes::Bytes,
}

impl Overwrite<'_> {
    /// Why it cannot be asked for.
    pub fn refusal(&self, at: &Membership, ask: &Ask) -> Option<Error> {
        if self.bytes.is_empty() || self.bytes.len() > FAST_BYTES_MAX || self.end() > SHARD_BYTES {
            return Some(Error::invalid("a write past the log that does not lie in its shard, or is too long"));
        }
        let is_here = ask.partition(self.shard.position()) == at.own.partition;
        (!is_here).then(|| Error::Protocol { what: "a write past the log to another partition's shard".into() })
    }

    /// The shard, if it has all of these blocks.
    pub fn target(&self, at: &Membership, brick: &Brick) -> Result<Option<ShardRecord>> {
        let found = if brick.is_dropped(self.shard) { None } else { brick.shard(at.ring, self.shard)? };
        let after = self.first() + self.count();
        let fits = |record: &ShardRecord| self.end() <= u64::from(record.length) && after <= record.home_blocks;
        let Some(record) = found.filter(fits) else { return Ok(None) };
        let has_holes = brick.holes(at.ring, self.shard, self.first(), after)?.contains(&true);
        Ok((!has_holes).then_some(record))
    }

    /// As whole blocks. None: what is beside them there cannot be read, which is the leader's to find out.
    pub fn blocks(&self, brick: &Brick, ask: &Ask, length: u32) -> Result<Option<bytes::Bytes>> {
        match whole_blocks(brick, ask, self.shard, length, self.offset, self.bytes) {
            Ok(blocks) => Ok(Some(blocks.freeze())),
            Err(Stop::Error(Error::Damaged { .. } | Error::Io { .. })) => Ok(None),
            Err(Stop::Error(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    pub fn first(&self) -> u32 {
        self.offset / BLOCK_BYTES as u32
    }

    pub fn count(&self) -> u32 {
        self.end().div_ceil(BLOCK_BYTES as u64) as u32 - self.first()
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + self.bytes.len() as u64
    }
}

/// A record of this replica alone, past the log. -> whether it was taken; if not, the leader is to be asked.
pub(crate) fn append_outside(at: &Membership, brick: &Brick, ask: &Ask, changes: Vec<Change>) -> Result<bool> {
    let (ring, partition, epoch, session, op_id) = (at.ring, at.own.partition, at.view.epoch, ask.session, ask.op_id);
    let entry = LogEntry::new(Record { ring, partition, epoch, sequence: Sequence(0), session, op_id, changes });
    let takes_now = !brick.has_starving() && brick.takes_now(&entry);
    match if takes_now { append(brick, at.ring, &entry, &[], false) } else { Ok(false) } {
        Err(Error::Invalid { .. } | Error::Bug { .. } | Error::NoSpace { .. } | Error::Unavailable { .. }) => Ok(false),
        taken => taken,
    }
}

/// Whether who lists this has a write: it lists it, or what came after it.
fn holds(list: &[FastWrite], stamp: Stamp) -> bool {
    let came_before = |first: &FastWrite| first.stamp.session == stamp.session && first.stamp.count > stamp.count;
    list.iter().any(|write| write.stamp == stamp) || list.first().is_some_and(came_before)
}

/// What rests of a partition's unsettled writes.
pub(crate) fn read_lists(at: &Membership, brick: &Brick) -> Result<Lists> {
    let (mut from, to) = Key::own_range(at.ring, at.own.partition, at.count);
    let mut lists = Lists::new();
    loop {
        let found = brick.scan(&from, &to, SCAN_AT_ONCE)?;
        let Some((last, _)) = found.last() else { return Ok(lists) };
        from = last.successor();
        for (key, value) in found {
            if let Some(shard) = key.as_unsettled() {
                lists.insert(shard, UnsettledRecord::from_bytes(value).map_err(Error::from)?.writes);
            }
        }
    }
}
