//! Ops over several partitions: `drive.rs` takes an op from leg to leg, `legs.rs` is what a leg does in its partition
//! (`taking.rs`: on its leader), `conflicts.rs` what an op under way holds against others, `recovery.rs` what a new leader finds,
//! `sweep.rs` how what ops leave behind is removed.

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

/// Ops over several partitions that this partition drives, and what legs of others hold here.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    driven: BTreeMap<IntentId, Driven>,
    /// Keys that ops under way hold against others.
    held: BTreeMap<Key, IntentId>,
    /// Names and moves that ops of other partitions hold.
    prepared: BTreeSet<Key>,
    /// Directories with the hold keys of new names in them that a power cut could still take, though what they lead to in
    /// another partition would stay: these names are not shown.
    unnamed: BTreeMap<IntentId, Vec<(InodeId, Key)>>,
    /// Directories made by legs of such intents: if a power cut took their names, the directories are removed.
    unborn: BTreeMap<IntentId, InodeId>,
    /// Intents of ops that have ended, and marks of such intents: to be removed.
    swept: Vec<IntentId>,
    forgotten: Vec<Key>,
    swept_at: Time,
    /// Intents of which marks were found: their drivers are asked whether they have ended until they answer.
    doubtful: BTreeSet<IntentId>,
    /// Ops that were undone for a hold elsewhere since one came to its commit point, up to a limit.
    collisions: u32,
}

impl Transactions {
    /// An op over several partitions begins, and holds these keys until it has ended.
    pub fn begin(&mut self, intent: IntentId, keys: Vec<Key>, driven: Driven) {
        self.held.extend(keys.into_iter().map(|key| (key, intent)));
        self.driven.insert(intent, driven);
    }

    /// The op under way of this session and op id, if a client waits for it.
    pub fn driven_for(&mut self, ask: &Ask) -> Option<&mut Driven> {
        let is_it = |driven: &&mut Driven| match &driven.aim {
            Aim::Op(known, _) => (known.session, known.op_id) == (ask.session, ask.op_id) && !driven.tokens.is_empty(),
            _ => false,
        };
        self.driven.values_mut().find(is_it)
    }

    /// Requests that wait for ops under way, which are dropped.
    pub fn abandon_all(&mut self) -> impl Iterator<Item = Token> + use<> {
        std::mem::take(&mut self.driven).into_values().flat_map(|driven| driven.tokens)
    }

    /// Whether an op under way of this partition holds the key.
    pub fn is_held(&self, key: &Key) -> bool {
        self.held.contains_key(key)
    }

    /// Whether a truncate of the inode still has shards to cut.
    pub fn is_cutting(&self, inode: InodeId) -> bool {
        self.driven.values().any(|driven| driven.cuts() == Some(inode))
    }

    /// Whether ops that an earlier leader left are still being undone or finished.
    pub fn recovers(&self) -> bool {
        self.driven.values().any(Driven::is_recovered)
    }

    /// Whether nothing is under way, and nothing is left to be removed.
    pub fn is_idle(&self) -> bool {
        self.driven.is_empty() && self.swept.is_empty() && self.forgotten.is_empty() && self.doubtful.is_empty()
    }

    /// Whether an op stands still until the next tick.
    pub fn is_stuck(&self) -> bool {
        self.driven.values().any(Driven::is_stuck)
    }

    /// Ops under way, and marks that are to be removed.
    pub fn work_left(&self) -> usize {
        self.driven.len() + self.forgotten.len() + self.doubtful.len()
    }

    /// One more op met a hold elsewhere; how many did since one came to its commit point, `max` at most.
    pub fn note_collision(&mut self, max: u32) -> u32 {
        self.collisions = (self.collisions + 1).min(max);
        self.collisions
    }
}
