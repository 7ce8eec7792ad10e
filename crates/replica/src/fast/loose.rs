//! Fast writes that need not be on stable storage: *loose* ones (rules L18 to L22 of `docs/fast-lane.md`).
//!
//! A member that loses its power may lack them, and no log says so. So while there may be such, a *note* in the log says it: whoever
//! learns is compared from the beginning, and a view that began without memory has one member, who decides what is kept. And the log
//! never goes on over what may be lost: before a shard is closed all members have on stable storage what they took. Then a record about
//! a shard follows, on every disk, the writes that it followed at the leader.

use super::lane::FastLane;
use crate::context::Context;
use crate::leader::Leader;
use crate::log::append::Appended;
use crate::log::settle::Then;
use crate::membership::Membership;
use crate::ops::step::{Ask, Commit};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;

/// The note goes when nobody has written so for so long: 500 ms.
const IDLE_NS: u64 = 500_000_000;

/// What a leader knows of them.
#[derive(Debug, Default)]
pub(crate) struct Loose {
    /// With this record the note is there; none: there is no note.
    noted: Option<Sequence>,
    used_at: Time,
    /// What all members took before this leader began is on their stable storage.
    synced: bool,
    /// Shards that are to be closed, once that is true of what was taken since.
    syncing: Option<BTreeSet<ShardId>>,
    /// The view began without memory, and is to have one member.
    pub wants_alone: bool,
}

impl Loose {
    /// Whether a member that lost its power may lack writes that no log has.
    pub fn is_noted(&self) -> bool {
        self.noted.is_some()
    }

    /// Whether every member has the note, so that whoever leads next has it (rule L21).
    fn is_allowed(&self, settled: Sequence) -> bool {
        self.noted.is_some_and(|noted| noted <= settled) || is_planted(Bug::LooseWritesUnmarked)
    }

    /// The view has begun: all that its members had before is on their stable storage.
    pub fn view_begins(&mut self) {
        self.synced = true;
    }
}

fn key(at: &Membership) -> Key {
    Key::loose(at.ring, at.own.partition.first_position(at.count))
}

impl Leader {
    /// Once a leader has all records.
    pub fn find_loose_note(&mut self, cx: &Context) -> Result<()> {
        let is_noted = cx.around.brick.get(&key(cx.at))?.is_some();
        (self.fast.loose.noted, self.fast.loose.used_at) = (is_noted.then_some(self.log.last()), cx.around.now);
        Ok(())
    }

    /// What a record of a write has in it as well, so that a later one may be loose.
    pub fn loose_note(&self, at: &Membership, ask: &Ask, op: &Op) -> Option<Change> {
        let is_wanted = matches!(op, Op::Data { op: DataOp::WriteShard { fast: true, .. } }) && ask.loose;
        let is_new = is_wanted && !self.fast.loose.is_noted() && self.opens_shards(at);
        is_new.then(|| Change::Put { key: key(at), value: bytes::Bytes::from_static(&[0]) })
    }

    /// That record was made.
    pub fn loosely_noted(&mut self, sequence: Sequence, now: Time) {
        (self.fast.loose.noted, self.fast.loose.used_at) = (Some(sequence), now);
    }

    /// Whether a write may be taken, or a shard be opened, for who asks so.
    pub fn may_be_loose(&self, ask: &Ask) -> bool {
        !ask.loose || self.fast.loose.is_allowed(self.log.settled())
    }

    /// A loose write was taken.
    pub fn used_loosely(&mut self, now: Time) {
        self.fast.loose.used_at = now;
    }

    /// Rule L18, of shards that are to be closed: from the moment at which they are due this leader takes no write to them. So what is
    /// settled, and listed no more, is at all members by now; what is still listed is made even by the records that follow. -> those
    /// that may be closed; the others are synced meanwhile.
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

    /// The same, of what members list when a leader begins. -> whether it is awaited.
    pub fn syncs_found(&mut self, cx: &mut Context) -> bool {
        let loose = &self.fast.loose;
        if loose.synced || !loose.is_noted() || !self.fast.has_found() || is_planted(Bug::ClosedBeforeSync) {
            return false;
        }
        if self.fast.loose.syncing.is_none() {
            self.sync_loose(cx, BTreeSet::new());
        }
        true
    }

    fn sync_loose(&mut self, cx: &mut Context, shards: BTreeSet<ShardId>) {
        self.fast.loose.syncing = Some(shards);
        // Overwrites rest in journals until a checkpoint, which syncs what it writes home.
        let (sequence, term) = (self.log.settled().min(self.log.last()), self.fast.term);
        self.round(cx, sequence, Vec::new(), vec![Then::LooseSynced(term)]);
    }

    /// They are on stable storage of every member.
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

    /// Rule L20: what members lost with their power differs, and no list says how. One decides; the others learn from it.
    pub fn goes_on_alone(&mut self, cx: &mut Context) -> bool {
        let alone = cx.at.view.forgetful
            && self.fast.loose.is_noted()
            && !self.members.is_empty()
            && !is_planted(Bug::ForgetfulViewKeepsMembers);
        if alone && !self.fast.loose.wants_alone {
            cx.out.branches.push("a view without memory is to have one member");
            cx.out.notes.push(format!(
                "partition {} of ring {}: all replicas lost their memory amid writes that were not synced; brick {} decides what is \
                 kept, and the others are compared with it",
                cx.at.own.partition,
                cx.at.ring,
                cx.at.own.brick.text()
            ));
            self.fast.loose.wants_alone = true;
        }
        alone
    }

    /// With each tick: all that is closed is stable, so without open shards there is nothing left that could be lost (rule L22).
    pub fn end_loose_note(&mut self, cx: &mut Context) -> Result<()> {
        let is_over = self.fast.loose.is_noted() && self.opens_shards(cx.at) && self.serves() && self.all_present();
        let is_idle = self.fast.is_idle() && cx.around.now.0.abs_diff(self.fast.loose.used_at.0) > IDLE_NS;
        if !is_over || !is_idle {
            return Ok(());
        }
        let commit = Commit { changes: vec![Change::Delete { key: key(cx.at) }], ..Commit::default() };
        match self.append_own(cx, commit)? {
            Appended::Made(_) => {
                cx.out.branches.push("nothing is loose any more");
                self.fast.loose.noted = None;
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
