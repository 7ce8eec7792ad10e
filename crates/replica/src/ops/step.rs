//! One op, one step further: ops are pure functions of what the partition holds and of what has come of their legs.
//!
//! An op that spans partitions is asked for its next step again after each, with the answers so far; so nothing that it
//! read before it waited is trusted afterwards, and what it is at is data that can be shown.

use crate::log::number_allocator::Numbers;
use crate::message::Fresh;
use crate::ops::recent_truncates::Cut;
use crate::ops::tree::{Owner, Tree};

use hekate_brick::Brick;
use hekate_proto::*;

/// Who asks what, when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Ring.
    pub ring: RingId,
    /// Partitions of the ring.
    pub count: u32,
    /// Volume.
    pub volume: VolumeId,
    /// Session.
    pub session: SessionId,
    /// Op in the session.
    pub op_id: OpId,
    /// The server's clock.
    pub now: Time,
    /// Answered once it is on stable storage of every member.
    pub durable: bool,
    /// It need never be on stable storage. (What is made so behind the last op of a batch is neither this nor `durable`.)
    pub loose: bool,
    /// Answered once the leader alone has it (unsafe: modes `async` and `bypass`).
    pub early: bool,
    /// No other session uses the volume, so nobody else can have an inode open.
    pub alone: bool,
    /// Partitions that share the names of a directory that this op makes.
    pub spread: u32,
}

impl Ask {
    /// One that is answered once all members have it; more is said in its fields.
    pub fn new(ring: RingId, count: u32, volume: VolumeId, (session, op_id): (SessionId, OpId), now: Time) -> Self {
        let (durable, loose, early, alone, spread) = (false, false, false, false, 1);
        Self { ring, count, volume, session, op_id, now, durable, loose, early, alone, spread }
    }

    /// The partition that owns a position.
    pub fn partition(&self, position: Position) -> PartitionNumber {
        position.partition(self.count)
    }

    /// Where a partition has its share of a directory's names.
    pub fn names_prefix(&self, at: PartitionNumber, dir: InodeId) -> KeyPrefix {
        KeyPrefix { ring: self.ring, position: at.names_position(dir, self.count), volume: self.volume }
    }

    /// What holds a name in its partition.
    pub fn hold_key(&self, at: PartitionNumber, dir: InodeId, name: &Name) -> Key {
        Key::hold(self.names_prefix(at, dir), dir, name.as_bytes())
    }
}

/// Why an op did not take its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Another op has hold of what it needs: it begins again when that one is done.
    Wait,
    /// This leg must be taken first; then it is asked again.
    Leg(Box<Before>),
    /// It failed.
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

/// What a step comes to.
pub type Stepped<T> = std::result::Result<T, Stop>;

/// A record to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    /// What changes.
    pub changes: Vec<Change>,
    /// Bytes that go home first.
    pub fresh: Vec<Fresh>,
    /// The answer to the session, kept for retries; none for steps that are not the commit point.
    pub reply: Option<Reply>,
    /// Of this file only times change, for a write of bytes on the fast lane.
    pub times_of: Option<InodeId>,
    /// It makes a file shorter.
    pub cut: Option<Cut>,
}

/// A leg before the commit point, and the one that undoes it; none for legs that only look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// Its partition owns this position.
    pub position: Position,
    /// What to do.
    pub leg: Leg,
    /// What undoes it.
    pub undo: Option<Leg>,
}

/// What an op does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It is answered; nothing changes.
    Reply(Reply),
    /// Its record, the commit point, and the legs that come after it.
    Commit(Commit, Vec<(Position, Leg)>),
}

impl Next {
    /// One record, and that is all.
    pub fn record(commit: Commit) -> Self {
        Next::Commit(commit, Vec::new())
    }
}

/// How far an op has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpProgress {
    /// What its legs have answered, in their order.
    pub answers: Vec<Reply>,
    /// Numbers that it drew: the same ones each time that it is asked.
    numbers: Vec<u64>,
    /// Whom its legs have made the owner of what it makes.
    owner: Option<Owner>,
}

/// What an op sees: its partition, as the leader has it.
pub struct Here<'a> {
    /// The leader's copy.
    pub brick: &'a Brick,
    /// Who asks.
    pub ask: &'a Ask,
    /// Which partition this is.
    pub at: PartitionNumber,
    /// The time of what it changes.
    pub now: Time,
    /// Where its numbers come from.
    pub numbers: &'a mut Numbers,
    /// How far it has come.
    pub progress: &'a mut OpProgress,
    /// Answers that it has read since it was asked.
    pub read: usize,
    /// Its client knows an earlier layout of the file, and is to learn the one of now (`recent_truncates.rs`).
    pub carried: bool,
}

impl<'a> Here<'a> {
    /// The entries of its volume.
    pub fn tree(&self) -> Tree<'a> {
        Tree::new(self.brick, self.ask, self.at)
    }

    /// Whether this partition owns the position.
    pub fn owns(&self, position: Position) -> bool {
        self.ask.partition(position) == self.at
    }

    /// The op's `slot`th number of its own.
    pub fn number(&mut self, slot: usize) -> u64 {
        while self.progress.numbers.len() <= slot {
            self.progress.numbers.push(self.numbers.next());
        }
        self.progress.numbers[slot]
    }

    /// What a leg before the commit point answered; it is sent if it was not yet.
    pub fn leg(&mut self, position: Position, leg: Leg, undo: Option<Leg>) -> Stepped<Reply> {
        self.read += 1;
        match self.progress.answers.get(self.read - 1) {
            Some(answer) => Ok(answer.clone()),
            None => Err(Stop::Leg(Box::new(Before { position, leg, undo }))),
        }
    }

    /// What it makes belongs to one owner in all partitions: if what it inherits has changed since its first leg, it begins
    /// again.
    pub fn one_owner(&mut self, owner: Owner) -> Stepped<Owner> {
        match self.progress.owner.get_or_insert_with(|| owner.clone()) {
            known if *known == owner => Ok(owner),
            _ => Err(Stop::Wait),
        }
    }

    /// The stamp of the next write to a shard.
    pub fn next_stamp(&self, before: Option<ShardRecord>) -> Stamp {
        let count = before.map_or(1, |before| before.stamp.count + 1);
        Stamp { count, session: self.ask.session, op: self.ask.op_id }
    }

    /// What tells a layout from all that the file had before, those included that a power cut took and some client knows.
    pub fn new_layout_version(&mut self) -> u32 {
        self.number(1) as u32
    }

    /// A new data id, of the partition of an inode.
    pub fn new_data_id(&mut self, inode: InodeId) -> DataId {
        DataId((inode.bits() >> 64 << 64) | u128::from(self.number(0)))
    }
}
