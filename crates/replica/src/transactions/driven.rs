//! An op over several partitions on its way: its stage, and the legs that it waits for.

use crate::context::Token;
use crate::ops::step::{Ask, OpProgress};
use crate::transactions::legs::by_sent_number;
use hekate_proto::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aim {
    /// A client's op.
    Op(Ask, Box<Op>),
    /// The shards of a data id that was given up.
    Collect(Key, GarbageRecord),
    /// What a crash left in a volume.
    Recovered(VolumeId),
}

/// What an op is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its legs before the commit point.
    Before,
    /// It failed, or must begin again, or has nothing to do: what its legs did is undone.
    Undoing(Undone),
    /// The commit point is in the log; its legs after it.
    After(Reply),
    /// Its intent is being removed.
    Ending,
}

/// How an op ends whose legs were undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undone {
    Answered(Result<Reply>),
    Again,
}

/// An op on its way.
#[derive(Debug)]
pub(crate) struct Driven {
    pub aim: Aim,
    pub tokens: Vec<Token>,
    pub stage: Stage,
    pub(super) progress: OpProgress,
    /// Legs that are not answered yet.
    pub(super) pending: BTreeMap<u16, IntentLeg>,
    /// What undoes those that were taken.
    pub(super) undo: Vec<IntentLeg>,
    /// Partitions that have marks of it.
    pub(super) marked: Vec<PartitionNumber>,
    /// Its intent is in the log.
    pub(super) recorded: bool,
    /// There was no room for its next record: it goes on when there is.
    pub(super) stalled: bool,
    /// The legs follow what is in the log up to here.
    pub(super) follow: Sequence,
    /// When legs that nobody answered are sent again, in ticks.
    pub(super) resend_at: u64,
}

/// Ticks after which a leg that was not answered is sent again: whoever is to take it may not have been ready.
pub(crate) const RESEND_TICKS: u64 = 8;

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

    /// Of an intent that was found: its legs undo or finish.
    pub fn recovered(record: IntentRecord, count: u32) -> Self {
        let none = Self::new(Aim::Recovered(record.volume), Vec::new(), OpProgress::default());
        Self { recorded: true, ..none.after(record.legs, count) }
    }

    /// The shards of a data id go; what says so in the log is the key, not an intent.
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

    /// The inode whose shards it is about to cut: the new layout is in the log already.
    pub fn cuts(&self) -> Option<InodeId> {
        match (&self.aim, &self.stage) {
            (Aim::Op(_, op), Stage::After(_)) => match &**op {
                Op::Inode { op: InodeOp::SetAttr { inode, .. } } => Some(*inode),
                _ => None,
            },
            _ => None,
        }
    }

    /// The name that it gives to an inode.
    pub fn links(&self) -> Option<(InodeId, &Name)> {
        match &self.aim {
            Aim::Op(_, op) => match &**op {
                Op::Name { op: NameOp::Link { dir, name, .. } } => Some((*dir, name)),
                _ => None,
            },
            _ => None,
        }
    }

    pub fn is_recovered(&self) -> bool {
        matches!(self.aim, Aim::Recovered(_))
    }

    /// What lets others move directories comes last: they go by parents that the other legs set.
    pub(super) fn is_early(&self, leg: &Leg) -> bool {
        *leg == Leg::ReleaseMoves && self.pending.values().any(|other| other.leg != Leg::ReleaseMoves)
    }

    /// It waits for room, or for a leg that was refused as busy.
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

/// Partitions that took legs and keep marks of them.
pub(super) fn marks_of(driven: &Driven, legs: &[IntentLeg], count: u32) -> Vec<PartitionNumber> {
    let positions = driven.undo.iter().chain(legs).map(|leg| leg.position);
    let mut partitions: Vec<PartitionNumber> = positions.map(|position| position.partition(count)).collect();
    partitions.sort_unstable();
    partitions.dedup();
    partitions
}
