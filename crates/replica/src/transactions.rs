//! Ops over several partitions. `drive.rs` takes an op from leg to leg; `legs.rs` says what a leg does in its
//! partition, and `taking.rs` has the leader take it; `conflicts.rs` says what an op in flight holds against others;
//! `recovery.rs` finds what an earlier leader left; `sweep.rs` removes what ops leave behind.

pub(crate) mod conflicts;
pub(crate) mod drive;
pub(crate) mod driven;
pub(crate) mod legs;
mod recovery;
mod sweep;
mod taking;

use crate::context::Token;
use crate::ops::step::Ask;
use crate::transactions::driven::{Aim, Driven};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Ops over several partitions that this partition drives, and holds of ops that other partitions drive.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    driven: BTreeMap<IntentId, Driven>,
    /// Keys that ops in flight hold against others.
    held: BTreeMap<Key, IntentId>,
    /// Names, and moves of directories, that ops of other partitions hold.
    prepared: BTreeSet<Key>,
    /// By intent: directories, and the hold keys of new names in them. A power cut could still remove such a name, and
    /// keep what it leads to in another partition, so these names are not shown.
    unnamed: BTreeMap<IntentId, Vec<(InodeId, Key)>>,
    /// Directories that were made by legs of intents whose end is not known: if a power cut removed the name, the
    /// driver has the directory removed.
    unborn: BTreeMap<IntentId, InodeId>,
    /// Intents of ops that have ended. The next sweep removes them.
    swept: Vec<IntentId>,
    forgotten: Vec<Key>,
    swept_at: Time,
    /// Intents of which this partition has marks. Their drivers are asked whether the intents have ended, until they
    /// answer.
    doubtful: BTreeSet<IntentId>,
    /// Ops that were undone because of a hold elsewhere since the last commit point, up to a limit.
    collisions: u32,
}

impl Transactions {
    /// Begins an op over several partitions. It holds these keys until it has ended.
    pub fn begin(&mut self, intent: IntentId, keys: Vec<Key>, driven: Driven) {
        self.held.extend(keys.into_iter().map(|key| (key, intent)));
        self.driven.insert(intent, driven);
    }

    /// The files of which shards are being asked for the end.
    pub fn asked_ends(&self) -> BTreeSet<(VolumeId, InodeId)> {
        let file = |driven: &Driven| match &driven.aim {
            Aim::Op(ask, op) => match **op {
                Op::Data { op: DataOp::FindEnd { inode } } => Some((ask.volume, inode)),
                _ => None,
            },
            _ => None,
        };
        self.driven.values().filter_map(file).collect()
    }

    /// The op in flight of this session and op id, if a client waits for it.
    pub fn driven_for(&mut self, ask: &Ask) -> Option<&mut Driven> {
        let is_it = |driven: &&mut Driven| match &driven.aim {
            Aim::Op(known, _) => (known.session, known.op_id) == (ask.session, ask.op_id) && !driven.tokens.is_empty(),
            _ => false,
        };
        self.driven.values_mut().find(is_it)
    }

    /// Drops all ops in flight. Returns the requests that waited for them.
    pub fn abandon_all(&mut self) -> impl Iterator<Item = Token> + use<> {
        std::mem::take(&mut self.driven).into_values().flat_map(|driven| driven.tokens)
    }

    /// True if an op in flight of this partition holds the key.
    pub fn is_held(&self, key: &Key) -> bool {
        self.held.contains_key(key)
    }

    /// True if a truncate of the inode still has shards to cut.
    pub fn is_cutting(&self, inode: InodeId) -> bool {
        self.driven.values().any(|driven| driven.cuts() == Some(inode))
    }

    /// True while ops that an earlier leader left are being undone or finished.
    pub fn recovers(&self) -> bool {
        self.driven.values().any(Driven::is_recovered)
    }

    /// True if no op is in flight and nothing is left to be removed.
    pub fn is_idle(&self) -> bool {
        self.driven.is_empty() && self.swept.is_empty() && self.forgotten.is_empty() && self.doubtful.is_empty()
    }

    /// True if an op makes no progress before the next tick.
    pub fn is_stuck(&self) -> bool {
        self.driven.values().any(Driven::is_stuck)
    }

    /// The number of ops in flight and of marks that are to be removed.
    pub fn work_left(&self) -> usize {
        self.driven.len() + self.forgotten.len() + self.doubtful.len()
    }

    /// Counts an op that met a hold elsewhere. Returns how many did since the last commit point, `max` at most.
    pub fn note_collision(&mut self, max: u32) -> u32 {
        self.collisions = (self.collisions + 1).min(max);
        self.collisions
    }
}
