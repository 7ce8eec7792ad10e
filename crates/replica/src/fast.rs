//! The fast lane: short writes that a client sends to all members at once (High Speed Replication, rules 1 to 12 of
//! `docs/fast-lane.md`). This file is the member's part. The leader's parts are `fast/lane.rs`, `fast/closing.rs`,
//! `fast/loose.rs` and `fast/times.rs`.
//!
//! A member takes a fast write only if the shard's last write has exactly the stamp that the fast write follows. One
//! journal record applies the write and lists it: until it is known that every member has it, it is *unsettled*. A
//! leader *opens* a shard for a session when it answers a write of that session, and names its *term* in the answer.
//! The leader *closes* the shard before any other change of it: no session can send fast writes to it from then on.

pub(crate) mod closing;
pub(crate) mod ends;
pub(crate) mod lane;
pub(crate) mod loose;
mod member_copy;
#[cfg(feature = "measuring")]
pub(crate) mod raw;
#[cfg(not(feature = "measuring"))]
#[path = "fast/raw_absent.rs"]
pub(crate) mod raw;
mod reconciliation;
pub(crate) mod times;

use crate::context::Context;
use crate::invariants::require;
use crate::log::follower::append;
use crate::membership::Membership;
use crate::message::{FastList, Message};
use crate::ops::data::{block_change, whole_blocks};
use crate::ops::step::{Ask, Stop};
use hekate_brick::{Brick, LogEntry};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;

/// Bytes of the largest fast write. Larger writes are sent to the leader, which replicates them: the client's network
/// link then carries their bytes once.
pub const FAST_BYTES_MAX: usize = 64 << 10;
/// Writes to one shard that a member lists at most.
const UNSETTLED_MAX: usize = 32;
/// Entries that one scan returns at most.
const SCAN_AT_ONCE: usize = 512;

/// Unsettled writes by shard, in the order in which they were taken.
pub(crate) type Lists = BTreeMap<ShardId, Vec<FastWrite>>;

/// A member's part of the fast lane.
#[derive(Debug, Default)]
pub(crate) struct FastMember {
    /// The term of the leader that the member follows. `None` before the leader has sent it. Writes that name another
    /// term are refused.
    term: Option<u64>,
    lists: Lists,
    /// Lists that the leader has requested. The member sends them once it has the record.
    questions: Vec<(Sequence, Vec<ShardId>)>,
}

impl FastMember {
    pub fn read(at: &Membership, brick: &Brick) -> Result<Self> {
        Ok(Self { lists: read_lists(at, brick)?, ..Self::default() })
    }

    /// Drops the term and the requests of an earlier leader. Writes that the member takes under the old term, before it
    /// receives the new one, are in the lists that it sends with `Position`.
    pub fn forget(&mut self) {
        self.questions.clear();
    }

    pub fn set_term(&mut self, term: u64) {
        self.term = Some(term);
    }

    /// Applies a record of the leader's to the lists.
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

    /// Changes that delete all lists, for a learner whose data is compared.
    pub fn deletes(&self, ring: RingId) -> impl Iterator<Item = Change> {
        self.lists.keys().map(move |shard| Change::Delete { key: Key::unsettled(ring, *shard) })
    }

    /// All lists of this member.
    pub fn listed(&self) -> Vec<FastList> {
        self.lists.iter().map(|(shard, writes)| FastList { shard: *shard, writes: writes.clone() }).collect()
    }

    pub fn ask(&mut self, sequence: Sequence, shards: Vec<ShardId>) {
        self.questions.push((sequence, shards));
    }

    /// Sends the lists that the leader requested, if the member has the record after which it takes no fast write to
    /// those shards.
    pub fn answer(&mut self, cx: &mut Context, last: Sequence) {
        for (sequence, shards) in self.questions.extract_if(.., |(sequence, _)| *sequence <= last) {
            let list = |shard| FastList { shard, writes: self.lists.get(&shard).cloned().unwrap_or_default() };
            let lists = shards.into_iter().map(list).filter(|list| !list.writes.is_empty()).collect();
            cx.send_member(cx.at.view.leader, Message::FastListed { sequence, lists });
        }
    }

    /// True if the member has the write: it is the last one of the shard, or a listed write followed it.
    pub fn holds(&self, at: &Membership, brick: &Brick, shard: ShardId, stamp: Stamp) -> Result<bool> {
        if brick.shard(at.ring, shard)?.is_some_and(|record| record.stamp == stamp) {
            return Ok(true);
        }
        Ok(self.lists.get(&shard).is_some_and(|list| holds(list, stamp)))
    }

    /// Takes a client's fast write.
    ///
    /// # Errors
    ///
    /// Outer: the replica has failed. Inner: the answer to the client; after `Conflict` the client sends the write to
    /// the leader.
    pub fn write(&mut self, cx: &Context, ask: &Ask, op: &DataOp) -> Result<Result<Reply>> {
        let Some(write) = FastOp::of(ask, op) else { return Ok(Err(not_fast())) };
        let is_of_this_term = self.term == Some(write.term) || is_planted(Bug::TermIgnored);
        if !is_of_this_term || !cx.at.names_this_incarnation() || !cx.at.view.has_member(cx.at.own.brick) {
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

/// A fast write, as its client sent it.
pub(crate) struct FastOp<'a> {
    pub shard: ShardId,
    pub term: u64,
    offset: u32,
    bytes: &'a bytes::Bytes,
    follow: Stamp,
    settled: bool,
}

fn not_fast() -> Error {
    Error::Protocol { what: "a member takes only fast writes".into() }
}

impl<'a> FastOp<'a> {
    pub fn of(ask: &Ask, op: &'a DataOp) -> Option<Self> {
        let DataOp::FastWrite { data, index, offset, bytes, follow, settled, term } = op else { return None };
        let shard = ShardId { volume: ask.volume, data: *data, index: *index };
        Some(Self { shard, term: *term, offset: *offset, bytes, follow: *follow, settled: *settled })
    }

    /// Applies and lists the write with one journal record (rule 1).
    ///
    /// # Errors
    ///
    /// Outer: the replica has failed. Inner: the answer to the client; after `Conflict` the client sends the write to
    /// the leader.
    pub fn take(
        &self,
        at: &Membership,
        brick: &Brick,
        ask: &Ask,
        list: &mut Vec<FastWrite>,
    ) -> Result<std::result::Result<Reply, Error>> {
        let write = HomeWrite { shard: self.shard, offset: self.offset, bytes: self.bytes };
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
        let record = ShardRecord { stamp, length: before.length.max(write.end() as u32), ..before };
        let takes_room = write.takes_room(at, brick)?;
        let listed = UnsettledRecord { writes: writes.clone() }.to_bytes();
        let mut changes = vec![block_change(self.shard, record, write.first(), blocks)];
        if !is_planted(Bug::FastWriteNotListed) {
            changes.push(Change::Put { key: Key::unsettled(at.ring, self.shard), value: listed });
        }
        let is_exact = before.stamp == self.follow || is_planted(Bug::StampsNotCompared);
        let is_listed = changes.len() == 2 || is_planted(Bug::FastWriteNotListed);
        require(is_exact && is_listed, "F1", || format!("a write that follows {:?} at {before:?}", self.follow))?;
        if !append_outside(at, brick, ask, changes, takes_room)? {
            return conflict;
        }
        *list = writes;
        Ok(Ok(Reply::Written { stamp, fast: None }))
    }

    fn is_next(&self, record: &ShardRecord) -> bool {
        record.stamp == self.follow || is_planted(Bug::StampsNotCompared) && record.stamp.count >= self.follow.count
    }
}

/// New bytes for blocks below a shard's `home_blocks`: blocks that it has, and holes.
pub(crate) struct HomeWrite<'a> {
    pub shard: ShardId,
    pub offset: u32,
    pub bytes: &'a bytes::Bytes,
}

impl HomeWrite<'_> {
    /// The error for a write that is malformed or belongs to another partition.
    pub fn refusal(&self, at: &Membership, ask: &Ask) -> Option<Error> {
        if self.bytes.is_empty() || self.bytes.len() > FAST_BYTES_MAX || self.end() > SHARD_BYTES {
            return Some(Error::invalid("the fast write is empty, over 64 KiB or outside of its shard"));
        }
        let is_here = ask.partition(self.shard.position()) == at.own.partition;
        (!is_here).then(|| Error::Protocol { what: "a fast write to a shard of another partition".into() })
    }

    /// The shard's record, if no block of the write is fresh.
    pub fn target(&self, at: &Membership, brick: &Brick) -> Result<Option<ShardRecord>> {
        let found = if brick.is_dropped(self.shard) { None } else { brick.shard(at.ring, self.shard)? };
        Ok(found.filter(|record| self.first() + self.count() <= record.home_blocks))
    }

    /// True if some of the blocks are holes: the write takes room in the data file.
    pub fn takes_room(&self, at: &Membership, brick: &Brick) -> Result<bool> {
        let holes = brick.holes(at.ring, self.shard, self.first(), self.first() + self.count())?;
        Ok(holes.contains(&true))
    }

    /// The bytes as whole blocks. `None` if the rest of the first or last block cannot be read: the leader handles
    /// that.
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

/// Appends a record of this replica alone, which is not part of the log. `grows`: it may not take the room that is kept
/// for deletes. Returns false if it was not appended: the write goes to the leader.
pub(crate) fn append_outside(
    at: &Membership,
    brick: &Brick,
    ask: &Ask,
    changes: Vec<Change>,
    grows: bool,
) -> Result<bool> {
    let (ring, partition, epoch, session, op_id) = (at.ring, at.own.partition, at.view.epoch, ask.session, ask.op_id);
    let entry = LogEntry::new(Record { ring, partition, epoch, sequence: Sequence(0), session, op_id, changes });
    let _room = match grows.then(|| brick.reserve(&entry, true)).transpose() {
        Err(Error::NoSpace { .. }) => return Ok(false),
        room => room?,
    };
    let takes_now = brick.has_room_for_new() && brick.takes_now(&entry);
    match if takes_now { append(brick, at.ring, &entry, &[], false) } else { Ok(false) } {
        Err(Error::Invalid { .. } | Error::Bug { .. } | Error::NoSpace { .. } | Error::Unavailable { .. }) => Ok(false),
        taken => taken,
    }
}

/// True if a replica with this list has the write: it lists the write, or one that came after it.
fn holds(list: &[FastWrite], stamp: Stamp) -> bool {
    let came_before = |first: &FastWrite| first.stamp.session == stamp.session && first.stamp.count > stamp.count;
    list.iter().any(|write| write.stamp == stamp) || list.first().is_some_and(came_before)
}

/// Reads the lists of a partition from its brick.
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
