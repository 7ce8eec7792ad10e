//! Conditions under which a read may be answered, and the answer.
//!
//! A leader answers a read from its own copy if all of this holds:
//!
//! | condition | reason | where |
//! |---|---|---|
//! | it serves: the view is open, all members have one log | another replica could lead | `view_start/level.rs` |
//! | the view has as many members as the operator demands | `--min-replicas` | `Membership::view` |
//! | no op of another partition holds what is read | the op may have been seen elsewhere | `is_prepared` |
//! | no such op holds a name of a directory that is shown | its links may have changed elsewhere | `without_moving` |
//! | no record that a member may lack changed it | a new leader would not have it | `depends_on_unsettled` |
//! | no fast write that a member may lack is in the shard | same | `FastLane`, `shows_unsettled` |
//! | no truncate still has shards of the inode to cut | a write under the new layout would be cut too | `is_hidden` |
//! | times of fast writes in the answer have been recorded | times would move backwards | `fast/times.rs` |
//! | no other session may move times in the answer under a grant | its last write would not show | `shows_granted` |
//! | no session may have what all members have lost | the session would show it afterwards | `hides_loss` |
//! | no session may have times from before a leader renewed them | the session would show them afterwards | `is_hidden` |
//!
//! A read that may not be answered at once becomes a request: it waits, or its answer waits for the records that it
//! depends on.

use crate::context::{Around, Context, Token};
use crate::leader::Leader;
use crate::membership::Membership;
use crate::ops::footprint::check_place;
use crate::ops::read::{answer, listed_change};
use crate::ops::step::{Ask, Stop};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;

impl Leader {
    /// Answers a read at once, if all that it depends on is settled and no op holds it. Not one that asks for a mapping right,
    /// which may recall it.
    pub fn read(&self, at: &Membership, around: &Around, ask: &Ask, op: &Op) -> Option<Result<Reply>> {
        if let Err(stray) = check_place(at, ask, op) {
            return Some(Err(stray));
        }
        let is_lock = matches!(op, Op::Lock { .. } | Op::Inode { op: InodeOp::Map { .. } });
        if !self.serves()
            || at.view.too_few
            || is_lock
            || self.is_prepared(at, ask, op)
            || self.shows_unsettled(ask, op)
            || self.pledges.hides_loss()
        {
            return None;
        }
        let found = match answer(around.brick, ask, at.own.partition, op) {
            Ok(reply) => Ok(reply),
            Err(Stop::Error(error)) => Err(error),
            Err(_) => return None,
        };
        let found = self.without_moving(at, ask, found);
        let is_hidden = found.as_ref().is_ok_and(|reply| {
            self.is_hidden(ask.volume, reply)
                || !self.times.unrecorded_in(ask.volume, reply).is_empty()
                || self.shows_granted(ask, reply)
        });
        if is_hidden || self.depends_on_unsettled(op, &found) {
            return None;
        }
        Some(match ask.pledge && !self.fast.may_be_changed(ask, op) && !self.shows_linking(&found) {
            true => {
                let listed = listed_change(around.brick, ask, at.own.partition, op);
                self.pledges.give(at.own.partition, ask, (op, listed), found, around.elapsed)
            }
            false => found,
        })
    }

    pub(super) fn try_read(&mut self, cx: &mut Context, (token, ask, op): (Token, &Ask, &Op)) -> Result<bool> {
        if self.is_prepared(cx.at, ask, op) || self.pledges.hides_loss() {
            return Ok(false);
        }
        let found = match answer(cx.around.brick, ask, cx.at.own.partition, op) {
            Ok(reply) => Ok(reply),
            Err(Stop::Error(error)) => Err(error),
            Err(_) => return Ok(false),
        };
        let found = self.without_moving(cx.at, ask, found);
        if let Ok(reply) = &found
            && (self.is_hidden(ask.volume, reply) || !self.shows_recorded_times(cx, ask, reply)?)
        {
            return Ok(false);
        }
        self.answer(token, found);
        Ok(true)
    }

    /// True if a truncate of the inode still has shards to cut. A client that knew the new layout could write to shards
    /// that are cut afterwards.
    pub fn is_cutting(&self, inode: InodeId) -> bool {
        self.transactions.is_cutting(inode)
    }

    /// True if the answer has to wait: it shows the layout of an inode whose shards are being cut, or times that this
    /// leader has renewed, while a session may still answer by older ones.
    pub(super) fn is_hidden(&self, volume: VolumeId, reply: &Reply) -> bool {
        let is_cut = match reply {
            Reply::Node { attr, .. } | Reply::FileData { attr, .. } => self.is_cutting(attr.id),
            Reply::Fetched { object } => self.is_cutting(object.attr.id),
            _ => false,
        };
        let renewed = if is_planted(Bug::RenewedTimesNotRecalled) { &BTreeSet::new() } else { &self.renewed };
        is_cut || !renewed.is_empty() && attributes_in(reply).any(|attr| renewed.contains(&(volume, attr.id)))
    }

    /// True if the answer could be another one if the last records were lost with this leader.
    fn depends_on_unsettled(&self, op: &Op, found: &Result<Reply>) -> bool {
        if self.log.window().is_empty() {
            return false;
        }
        let mut ids: BTreeSet<u128> = BTreeSet::new();
        match op {
            Op::Name { op: NameOp::Lookup { dir, .. } | NameOp::Stub { dir, .. } | NameOp::Fetch { dir, .. } } => {
                ids.insert(dir.bits());
            }
            Op::Data { op: DataOp::ReadShard { data, .. } | DataOp::SeekShard { data, .. } } => {
                ids.insert(data.0);
            }
            Op::Data { op: DataOp::Read { inode, .. } | DataOp::Seek { inode, .. } } => drop(ids.insert(inode.bits())),
            Op::Inode { op } => drop(ids.insert(op.inode().bits())),
            _ => return true,
        }
        match found {
            Ok(Reply::Node { attr, .. } | Reply::FileData { attr, .. }) => drop(ids.insert(attr.id.bits())),
            Ok(Reply::Fetched { object }) => drop(ids.insert(object.attr.id.bits())),
            _ => {}
        }
        self.unsettled().any(|change| match change {
            Change::Put { key, .. } | Change::Delete { key } => key.id().is_some_and(|id| ids.contains(&id)),
            of_shard => of_shard.shard().is_some_and(|shard| ids.contains(&shard.data.0)),
        })
    }
}

/// The attributes that a reply shows.
pub(crate) fn attributes_in(reply: &Reply) -> impl Iterator<Item = &Attr> {
    let (one, entries) = match reply {
        Reply::Node { attr, .. } | Reply::FileData { attr, .. } => (Some(attr), &[][..]),
        Reply::Fetched { object } => (Some(&object.attr), &[][..]),
        Reply::List { entries, .. } | Reply::Keys { entries, .. } => (None, &entries[..]),
        _ => (None, &[][..]),
    };
    one.into_iter().chain(entries.iter().filter_map(|entry| entry.attr.as_ref()))
}
