//! The types of an op's steps. Ops are pure functions of the partition's state and of the answers to their legs.
//!
//! An op over several partitions is called again after each answer, with all answers so far. So nothing that it read
//! before it waited is relied upon, and its progress is plain data.

use crate::log::number_allocator::Numbers;
use crate::message::Fresh;
use crate::ops::recent_truncates::Cut;
use crate::ops::tree::{Owner, Tree};

use hekate_brick::Brick;
use hekate_proto::*;

/// The context of an op: its volume, session and id, and the requirements of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The ring.
    pub ring: RingId,
    /// The number of partitions of the ring.
    pub count: u32,
    /// The volume.
    pub volume: VolumeId,
    /// The session.
    pub session: SessionId,
    /// The op's id in its session.
    pub op_id: OpId,
    /// The server's clock, in ns.
    pub now: Time,
    /// The answer waits until the change is on stable storage of every member.
    pub durable: bool,
    /// The change need never be on stable storage. (A change that the last op of a batch makes durable is neither
    /// `loose` nor `durable`.)
    pub loose: bool,
    /// The answer waits for the leader only. Unsafe: modes `async` and `bypass`.
    pub early: bool,
    /// No other session uses the volume, so no other session has an inode open.
    pub alone: bool,
    /// The number of partitions that share the names of a directory that this op makes.
    pub spread: u32,
    /// The session asks for pledges with the answer.
    pub pledge: bool,
    /// The session has just renamed something to the name that it looks up. It is pledged also if it was recalled a
    /// moment ago.
    pub moved: bool,
}

impl Ask {
    /// The context of an op that is answered once all members have its change. The fields say more.
    pub fn new(ring: RingId, count: u32, volume: VolumeId, (session, op_id): (SessionId, OpId), now: Time) -> Self {
        let (durable, loose, early, alone, spread, pledge, moved) = (false, false, false, false, 1, false, false);
        Self { ring, count, volume, session, op_id, now, durable, loose, early, alone, spread, pledge, moved }
    }

    /// The partition that owns a position.
    pub fn partition(&self, position: Position) -> PartitionNumber {
        position.partition(self.count)
    }

    /// The prefix of the keys of a directory's names in partition `at`.
    pub fn names_prefix(&self, at: PartitionNumber, dir: InodeId) -> KeyPrefix {
        KeyPrefix { ring: self.ring, position: at.names_position(dir, self.count), volume: self.volume }
    }

    /// The key of the hold on a name.
    pub fn hold_key(&self, at: PartitionNumber, dir: InodeId, name: &Name) -> Key {
        Key::hold(self.names_prefix(at, dir), dir, name.as_bytes())
    }
}

/// Why an op takes no step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Another op holds what this one needs: this one begins again once that one has ended.
    Wait,
    /// The leg must be taken first. Then the op is called again.
    Leg(Box<Before>),
    /// The op failed.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Error(error)
    }
}

impl From<Malformed> for Stop {
    fn from(error: Malformed) -> Self {
        Stop::Error(Error::Damaged { what: format!("a stored value: {}", error.0) })
    }
}

/// The result of a step.
pub type Stepped<T> = std::result::Result<T, Stop>;

/// The contents of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    /// The changes.
    pub changes: Vec<Change>,
    /// Bytes that are written to data files before the record is appended.
    pub fresh: Vec<Fresh>,
    /// The answer to the session, kept for retries. `None` for records that are not the commit point.
    pub reply: Option<Reply>,
    /// The file of which only times change, after a write within its size, and when that was.
    pub times_of: Option<(InodeId, Time)>,
    /// The truncate that the record makes.
    pub cut: Option<Cut>,
    /// What the record has to do with the end of a file that sessions write.
    pub end: Option<Box<EndChange>>,
}

/// What a record has to do with the end of a file that sessions write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndChange {
    /// The file.
    pub file: (VolumeId, InodeId),
    /// Where the end comes from.
    pub by: EndBy,
}

/// Where the end of a file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndBy {
    /// The session that wrote the file has moved it.
    Session {
        /// The session may move it further by itself, up to here.
        limit: Option<u64>,
    },
    /// The shards have told how long they are.
    Shards,
}

impl Commit {
    /// The grants that are recalled before the record is made.
    pub fn recalled_grants(&self) -> RecalledGrants {
        match (self.times_of, self.end_by()) {
            (Some(_), _) => RecalledGrants::None,
            (None, Some(EndBy::Session { .. })) => RecalledGrants::OfOthers,
            (None, _) => RecalledGrants::All,
        }
    }

    fn end_by(&self) -> Option<EndBy> {
        self.end.as_ref().map(|end| end.by)
    }

    /// The file whose end a session may move from now on, and the limit.
    pub fn size_granted(&self) -> Option<((VolumeId, InodeId), u64)> {
        match self.end.as_deref() {
            Some(EndChange { file, by: EndBy::Session { limit: Some(limit) } }) => Some((*file, *limit)),
            _ => None,
        }
    }
}

/// Grants on a file that are recalled before a record changes its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecalledGrants {
    /// The record has times alone, which only grow: writers do not disturb each other.
    None,
    /// The record has what its session has written, and comes behind what that session wrote under its grant.
    OfOthers,
    All,
}

/// A leg before the commit point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// A position that the leg's partition owns.
    pub position: Position,
    /// The leg.
    pub leg: Leg,
    /// The leg that undoes it. `None` for a leg that only reads.
    pub undo: Option<Leg>,
}

/// What an op does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The op is answered without a change.
    Reply(Reply),
    /// The record that is the commit point, and the legs after it.
    Commit(Commit, Vec<(Position, Leg)>),
}

impl Next {
    /// One record without legs.
    pub fn record(commit: Commit) -> Self {
        Next::Commit(commit, Vec::new())
    }
}

/// The progress of an op.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpProgress {
    /// The answers of the op's legs, in their order.
    pub answers: Vec<Reply>,
    /// Numbers that the op drew. It gets the same ones each time it is called.
    numbers: Vec<u64>,
    /// The owner that the op's legs have given to what it makes.
    owner: Option<Owner>,
}

/// What an op sees: the leader's copy of its partition.
pub struct Here<'a> {
    /// The brick of the leader.
    pub brick: &'a Brick,
    /// The context of the op.
    pub ask: &'a Ask,
    /// The partition.
    pub at: PartitionNumber,
    /// The time of the op's changes, in ns.
    pub now: Time,
    /// The source of the op's numbers.
    pub numbers: &'a mut Numbers,
    /// The progress of the op.
    pub progress: &'a mut OpProgress,
    /// Answers of legs that were read in this call.
    pub read: usize,
    /// The client knows an earlier layout of the file, and the answer is to have the current one
    /// (`recent_truncates.rs`).
    pub carried: bool,
}

impl<'a> Here<'a> {
    /// The entries of the op's volume.
    pub fn tree(&self) -> Tree<'a> {
        Tree::new(self.brick, self.ask, self.at)
    }

    /// True if this partition owns the position.
    pub fn owns(&self, position: Position) -> bool {
        self.ask.partition(position) == self.at
    }

    /// A number of the op, by its slot.
    pub fn number(&mut self, slot: usize) -> u64 {
        while self.progress.numbers.len() <= slot {
            self.progress.numbers.push(self.numbers.next());
        }
        self.progress.numbers[slot]
    }

    /// The answer of a leg before the commit point.
    ///
    /// # Errors
    ///
    /// `Stop::Leg` if the leg has no answer yet.
    pub fn leg(&mut self, position: Position, leg: Leg, undo: Option<Leg>) -> Stepped<Reply> {
        self.read += 1;
        match self.progress.answers.get(self.read - 1) {
            Some(answer) => Ok(answer.clone()),
            None => Err(Stop::Leg(Box::new(Before { position, leg, undo }))),
        }
    }

    /// Checks that what the op makes gets the same owner in all partitions.
    ///
    /// # Errors
    ///
    /// `Stop::Wait` if the inherited owner has changed since the first leg: the op begins again.
    pub fn one_owner(&mut self, owner: Owner) -> Stepped<Owner> {
        match self.progress.owner.get_or_insert_with(|| owner.clone()) {
            known if *known == owner => Ok(owner),
            _ => Err(Stop::Wait),
        }
    }

    /// The stamp of the op's write to a shard.
    pub fn next_stamp(&self, before: Option<ShardRecord>) -> Stamp {
        let count = before.map_or(1, |before| before.stamp.count + 1);
        Stamp { count, session: self.ask.session, op: self.ask.op_id }
    }

    /// A layout version that the file never had, not even in a record that a power cut removed and a client knows.
    pub fn new_layout_version(&mut self) -> u32 {
        self.number(1) as u32
    }

    /// A new data id in the partition of an inode.
    pub fn new_data_id(&mut self, inode: InodeId) -> DataId {
        DataId((inode.bits() >> 64 << 64) | u128::from(self.number(0)))
    }
}
