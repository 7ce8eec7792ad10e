//! An op over several partitions in flight: its stage, and the legs that it waits for.

use crate::context::Token;
use crate::ops::step::{Ask, OpProgress};
use crate::transactions::legs::by_sent_number;
use hekate_proto::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aim {
    /// A client's op.
    Op(Ask, Box<Op>),
    /// Drops the shards of a data id that was given up.
    Collect(Key, GarbageRecord),
    /// Undoes or finishes an op of a volume that an earlier leader left.
    Recovered(VolumeId),
}

/// The stage of an op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Legs before the commit point are taken.
    Before,
    /// The op failed, must begin again, or has nothing to do: its legs are undone.
    Undoing(Undone),
    /// The commit point is in the log. The legs after it are taken.
    After(Reply),
    /// The intent is being removed.
    Ending,
}

/// What follows once an op's legs were undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undone {
    Answered(Result<Reply>),
    Again,
}

/// An op in flight.
#[derive(Debug)]
pub(crate) struct Driven {
    pub aim: Aim,
    pub tokens: Vec<Token>,
    pub stage: Stage,
    pub(super) progress: OpProgress,
    /// Legs that were not answered yet, by the number that they are sent with.
    pub(super) pending: BTreeMap<u16, IntentLeg>,
    /// Legs that undo those that were taken.
    pub(super) undo: Vec<IntentLeg>,
    /// Partitions that have marks of the op.
    pub(super) marked: Vec<PartitionNumber>,
    /// The intent is in the log.
    pub(super) recorded: bool,
    /// The journal had no room for the op's next record. It continues when there is room.
    pub(super) stalled: bool,
    /// The pending legs depend on the log up to this record.
    pub(super) follow: Sequence,
    /// The tick at which unanswered legs are sent again.
    pub(super) resend_at: u64,
}

/// Ticks after which an unanswered leg is sent again: its partition's leader may not have been ready.
pub(crate) const RESEND_TICKS: u64 = 8;

/// The directory and name under which an op links an inode.
pub(crate) fn linked_name(op: &Op) -> Option<(InodeId, &Name)> {
    match op {
        Op::Name { op: NameOp::Link { dir, name, .. } } => Some((*dir, name)),
        Op::Name { op: NameOp::Put { dir, name, source: PutSource::Inode { .. }, .. } } => Some((*dir, name)),
        _ => None,
    }
}

impl Driven {
    pub fn new(aim: Aim, tokens: Vec<Token>, progress: OpProgress) -> Self {
        Self {
            aim,
            tokens,
            stage: Stage::Before,
            progress,
            pending: BTreeMap::new(),
            undo: Vec::new(),
            marked: Vec::new(),
            recorded: false,
            stalled: false,
            follow: Sequence(0),
            resend_at: 0,
        }
    }

    /// An op of an intent that was found in the log. Its legs undo or finish the op.
    pub fn recovered(record: IntentRecord, count: u32) -> Self {
        let none = Self::new(Aim::Recovered(record.volume), Vec::new(), OpProgress::default());
        Self { recorded: true, ..none.after(record.legs, count) }
    }

    /// Drops the shards of a data id. `key` is its garbage entry, which takes the place of an intent.
    pub fn collecting(key: Key, record: GarbageRecord, legs: Vec<IntentLeg>, count: u32) -> Self {
        let none = Self::new(Aim::Collect(key, record), Vec::new(), OpProgress::default());
        Self { marked: Vec::new(), ..none.after(legs, count) }
    }

    fn after(mut self, legs: Vec<IntentLeg>, count: u32) -> Self {
        self.stage = Stage::After(Reply::Done);
        self.marked = marks_of(&self, &legs, count);
        self.pending = by_sent_number(legs);
        self
    }

    /// The inode whose shards the op is cutting. The new layout is in the log already.
    pub fn cuts(&self) -> Option<InodeId> {
        match (&self.aim, &self.stage) {
            (Aim::Op(_, op), Stage::After(_)) => match &**op {
                Op::Inode { op: InodeOp::SetAttr { inode, .. } } => Some(*inode),
                _ => None,
            },
            _ => None,
        }
    }

    /// The directory and name under which the op links an inode.
    pub fn links(&self) -> Option<(InodeId, &Name)> {
        match &self.aim {
            Aim::Op(_, op) => linked_name(op),
            _ => None,
        }
    }

    pub fn is_recovered(&self) -> bool {
        matches!(self.aim, Aim::Recovered(_))
    }

    /// True for the leg that releases moves of directories while others are pending: it comes last, since the next move
    /// depends on the parents that they set.
    pub(super) fn is_early(&self, leg: &Leg) -> bool {
        *leg == Leg::ReleaseMoves && self.pending.values().any(|other| other.leg != Leg::ReleaseMoves)
    }

    /// True if the op waits for room, or for a leg that was answered `Busy`.
    pub fn is_stuck(&self) -> bool {
        self.stalled || (!self.pending.is_empty() && self.resend_at == 0)
    }

    pub(super) fn volume(&self) -> VolumeId {
        match &self.aim {
            Aim::Op(ask, _) => ask.volume,
            Aim::Collect(key, _) => key.prefix().map_or(VolumeId(0), |place| place.volume),
            Aim::Recovered(volume) => *volume,
        }
    }

    pub(super) fn what(&self) -> &'static str {
        match &self.aim {
            Aim::Op(_, op) => op.label(),
            Aim::Collect(..) => "collect",
            Aim::Recovered(_) => "recovery",
        }
    }
}

/// Partitions that took legs and have marks of them.
pub(super) fn marks_of(driven: &Driven, legs: &[IntentLeg], count: u32) -> Vec<PartitionNumber> {
    let positions = driven.undo.iter().chain(legs).map(|leg| leg.position);
    let mut partitions: Vec<PartitionNumber> = positions.map(|position| position.partition(count)).collect();
    partitions.sort_unstable();
    partitions.dedup();
    partitions
}
