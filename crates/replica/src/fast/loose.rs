//! *Loose* fast writes: they need not be on stable storage (rules L18 to L22 of `docs/fast-lane.md`).
//!
//! A member that loses power may lose loose writes, and no log shows which. While there may be any, a *loose-writes
//! marker* is in the log: learners are compared from the beginning, and a forgetful view (one in which no member had
//! its memory when it was formed) has one member, whose copy is kept. No record is made over writes that may be lost:
//! before a shard is closed, all members sync what they took. So on the disk of each member a record about a shard
//! comes after the same writes as on the leader's disk.

use super::lane::FastLane;
use crate::context::Context;
use crate::invariants::require;
use crate::leader::Leader;
use crate::log::append::Appended;
use crate::log::settle::Then;
use crate::membership::Membership;
use crate::ops::step::{Ask, Commit};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;

/// Idle time after which the leader removes the loose-writes marker, in ns: 500 ms.
const IDLE_NS: u64 = 500_000_000;

/// What the leader knows of loose writes.
#[derive(Debug, Default)]
pub(crate) struct Loose {
    /// The record that set the marker. `None`: there is no marker.
    marked: Option<Sequence>,
    used_at: Time,
    /// All members have synced what they took before this leader began.
    synced: bool,
    /// Shards that are to be closed once all members have synced what they took.
    syncing: Option<BTreeSet<ShardId>>,
    /// The view is forgetful and is to have one member (rule L20).
    pub wants_alone: bool,
}

impl Loose {
    /// True if a member that loses power may lose writes that no log has.
    pub fn is_marked(&self) -> bool {
        self.marked.is_some()
    }

    /// True if every member has the marker, so that the next leader finds it (rule L21).
    fn is_allowed(&self, settled: Sequence) -> bool {
        self.marked.is_some_and(|marked| marked <= settled) || is_planted(Bug::LooseWritesUnmarked)
    }

    /// Notes that the view is about to open: all its members have synced their journals and data files.
    pub fn view_begins(&mut self) {
        self.synced = true;
    }
}

fn key(at: &Membership) -> Key {
    Key::loose(at.ring, at.own.partition.first_position(at.count))
}

impl Leader {
    /// Looks for the marker in the brick, once the leader has all records.
    pub fn find_loose_marker(&mut self, cx: &Context) -> Result<()> {
        let is_marked = cx.around.brick.get(&key(cx.at))?.is_some();
        (self.fast.loose.marked, self.fast.loose.used_at) = (is_marked.then_some(self.log.last()), cx.around.now);
        Ok(())
    }

    /// The change that sets the marker, for the record of a write whose session wants to write loosely.
    pub fn loose_marker(&self, at: &Membership, ask: &Ask, op: &Op) -> Option<Change> {
        let is_wanted = matches!(op, Op::Data { op: DataOp::WriteShard { fast: true, .. } }) && ask.loose;
        let is_new = is_wanted && !self.fast.loose.is_marked() && self.opens_shards(at);
        is_new.then(|| Change::Put { key: key(at), value: bytes::Bytes::from_static(&[0]) })
    }

    /// Notes the record that sets the marker.
    pub fn loose_marker_set(&mut self, sequence: Sequence, now: Time) {
        (self.fast.loose.marked, self.fast.loose.used_at) = (Some(sequence), now);
    }

    /// True if this leader may accept a fast write, or open a shard, for an op that is loose if `ask.loose`.
    pub fn may_be_loose(&self, ask: &Ask) -> bool {
        !ask.loose || self.fast.loose.is_allowed(self.log.settled())
    }

    /// Notes that a loose write was taken.
    ///
    /// # Errors
    ///
    /// `Error::Bug` if some member may lack the marker (rule L21).
    pub fn note_loose_write(&mut self, now: Time) -> Result<()> {
        require(self.fast.loose.is_allowed(self.log.settled()), "L21", || {
            format!("a loose write, marked by {:?}, settled is {}", self.fast.loose.marked, self.log.settled())
        })?;
        self.fast.loose.used_at = now;
        Ok(())
    }

    /// The shards that are due and may be closed now. Those with loose writes are synced on all members first (rule
    /// L18). The leader takes no write to a shard from the moment at which it is due: writes that are settled are on
    /// all members by then, and those that are listed are reconciled by the records that follow.
    pub fn sync_due(&mut self, cx: &mut Context) -> Vec<ShardId> {
        let is_loose = |shard: &ShardId| {
            self.fast.open.get(shard).is_some_and(|open| open.loose) && !is_planted(Bug::ClosedBeforeSync)
        };
        let (loose, synced): (Vec<ShardId>, _) = self.fast.due.iter().copied().partition(is_loose);
        if !loose.is_empty() && self.fast.loose.syncing.is_none() {
            cx.out.branches.push("shards are synced before they are closed");
            self.sync_loose(cx, loose.into_iter().collect());
        }
        synced
    }

    /// As `sync_due`, for what members listed when the leader began. Returns true if the sync has not ended.
    pub fn syncs_found_lists(&mut self, cx: &mut Context) -> bool {
        let loose = &self.fast.loose;
        if loose.synced || !loose.is_marked() || !self.fast.has_found() || is_planted(Bug::ClosedBeforeSync) {
            return false;
        }
        if self.fast.loose.syncing.is_none() {
            self.sync_loose(cx, BTreeSet::new());
        }
        true
    }

    fn sync_loose(&mut self, cx: &mut Context, shards: BTreeSet<ShardId>) {
        self.fast.loose.syncing = Some(shards);
        // Overwrites are in the journals until a checkpoint, which syncs the data files that it writes.
        let (sequence, term) = (self.log.settled().min(self.log.last()), self.fast.term);
        self.round(cx, sequence, Vec::new(), vec![Then::LooseSynced(term)]);
    }

    /// Handles the end of a sync on all members: the writes that they took before it are on stable storage.
    pub fn loose_synced(&mut self, term: u64) {
        if term != self.fast.term {
            return;
        }
        self.fast.loose.synced = true;
        for shard in self.fast.loose.syncing.take().unwrap_or_default() {
            if let Some(open) = self.fast.open.get_mut(&shard) {
                open.loose = false;
            }
        }
        self.requests.retry();
    }

    /// True if the view is to have one member (rule L20): members that lost power may have lost different writes, and
    /// no list names them. One copy is kept, and the other replicas learn from it.
    pub fn goes_on_alone(&mut self, cx: &mut Context) -> bool {
        let alone = self.is_to_be_alone(cx.at);
        if alone && !self.fast.loose.wants_alone {
            cx.out.branches.push("a view without memory is to have one member");
            cx.out.notes.push(format!(
                "partition {} of ring {}: all replicas lost their memory while writes were not synced; the copy of \
                 brick {} decides what is kept, and the others are compared with it",
                cx.at.own.partition,
                cx.at.ring,
                cx.at.own.brick.text()
            ));
            self.fast.loose.wants_alone = true;
        }
        alone
    }

    fn is_to_be_alone(&self, at: &Membership) -> bool {
        at.view.forgetful
            && self.fast.loose.is_marked()
            && !self.members.is_empty()
            && !is_planted(Bug::ForgetfulViewKeepsMembers)
    }

    /// Checks the number of members of a view that is about to open.
    ///
    /// # Errors
    ///
    /// `Error::Bug` if it is to have one member and has more (rule L20).
    pub fn check_members(&self, at: &Membership) -> Result<()> {
        require(!self.is_to_be_alone(at), "L20", || {
            format!("view {} opens without memory, with loose writes and {} members", at.view.epoch, self.members.len())
        })
    }

    /// Removes the marker once the fast lane is idle: all that was closed is stable, so without open shards nothing can
    /// be lost (rule L22). Called with each tick.
    pub fn remove_loose_marker(&mut self, cx: &mut Context) -> Result<()> {
        let is_over = self.fast.loose.is_marked() && self.opens_shards(cx.at) && self.serves() && self.all_present();
        let is_idle = self.fast.is_idle() && cx.around.now.0.abs_diff(self.fast.loose.used_at.0) > IDLE_NS;
        if !is_over || !is_idle {
            return Ok(());
        }
        let commit = Commit { changes: vec![Change::Delete { key: key(cx.at) }], ..Commit::default() };
        match self.append_own(cx, commit)? {
            Appended::Made(_) => {
                cx.out.branches.push("nothing is loose any more");
                self.fast.loose.marked = None;
            }
            Appended::NoRoom => {}
            Appended::Refused(error) => return Err(error),
        }
        Ok(())
    }
}

impl FastLane {
    fn has_found(&self) -> bool {
        !self.found.is_empty()
    }
}
