//! How the leader makes a record: it collects the changes, appends them to its own journal and sends them to all
//! members.

use crate::context::{Context, Out};
use crate::fast::times::Times;
use crate::invariants::require;
use crate::leader::Leader;
use crate::log::follower::append;
use crate::log::room;
use crate::log::settle::Then;
use crate::message::{HealStep, Message};
use crate::ops::step::Commit;
use hekate_brick::LogEntry;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// The contents of a record that is to be made.
pub(crate) struct Draft<'a> {
    pub session: SessionId,
    pub op_id: OpId,
    /// The session that has given up its own pledges about what the record changes. `None`: the record waits for no
    /// pledges, as what it changes is not shown while a session has one.
    pub by: Option<SessionId>,
    pub commit: &'a Commit,
    /// More changes of the record.
    pub also: Vec<Change>,
    /// The record finishes an op or a reconciliation that has begun: it is not refused if a member lacks room.
    pub must: bool,
    /// A step of healing that belongs to the record, and the learner that takes it.
    pub step: Option<(BrickId, HealStep)>,
    /// The record closes shards, so it need not wait until they are closed.
    pub closes: bool,
}

/// The result of making a record.
pub(crate) enum Appended {
    /// The record was appended with this sequence.
    Made(Sequence),
    /// The journal has no room before a checkpoint, a shard must be closed first, or pledges are recalled. The caller
    /// tries again.
    NoRoom,
    /// The record was refused, and no replica has it.
    Refused(Error),
}

impl Appended {
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Made(_))
    }
}

impl Leader {
    /// Makes a record: appends it to the leader's journal and sends it to the members. It is settled once every member
    /// has it.
    ///
    /// # Errors
    ///
    /// The brick's error, or `Error::Bug` if a rule does not hold. Either stops the replica.
    pub fn append(&mut self, cx: &mut Context, draft: Draft) -> Result<Appended> {
        let (session, op_id, commit) = (draft.session, draft.op_id, draft.commit);
        let mut changes = commit.changes.clone();
        changes.extend_from_slice(&draft.also);
        let mut unmarked = if commit.times_of.is_none() { self.changes_times(cx, &changes) } else { Vec::new() };
        unmarked.retain(|file| !self.keeps_marker(&draft, *file));
        if self.must_record_times(cx, &unmarked)? {
            return Ok(Appended::NoRoom);
        }
        changes.extend(Times::ends(cx.at.ring, &unmarked));
        if draft.by.is_some_and(|by| self.is_pledged(cx, by, &changes, commit.recalled_grants())) {
            return Ok(Appended::NoRoom);
        }
        let reservation = self.numbers.reservation();
        changes.extend(reservation.iter().map(|(_, change)| change.clone()));
        if !draft.closes && self.must_close(&changes, cx.out) {
            return Ok(Appended::NoRoom);
        }
        let grows = room::takes_room(&changes) && !draft.must;
        let sequence = Sequence(self.log.last.0 + 1);
        self.check_record(cx, &changes, &draft)?;
        let (ring, partition, epoch) = (cx.at.ring, cx.at.own.partition, cx.at.view.epoch);
        set_stamps(&mut changes, epoch, sequence);
        let entry = LogEntry::new(Record { ring, partition, epoch, sequence, session, op_id, changes });
        if grows && let Err(error) = self.check_room(&entry, cx.around.brick) {
            // An error means that it is unknown whether the blocks have their room.
            if !room::has_its_room(cx.around.brick, cx.at.ring, &entry.record.changes).unwrap_or(false) {
                cx.out.branches.push("a record is refused for want of room");
                return Ok(Appended::Refused(error));
            }
        }
        let takes_now = (!grows || cx.around.brick.has_room_for_new()) && cx.around.brick.takes_now(&entry);
        let taken =
            if takes_now { append(cx.around.brick, cx.at.ring, &entry, &commit.fresh, false) } else { Ok(false) };
        if !matches!(taken, Ok(true)) {
            room::fresh_shards(&entry).for_each(|shard| cx.around.brick.forget_fresh(shard));
        }
        match taken {
            Ok(true) => {}
            // There may have been room when it was checked. Or no file descriptor is free.
            Ok(false) | Err(Error::Unavailable { .. }) => {
                cx.out.wants_room = true;
                cx.out.branches.push("the leader's journal has no room");
                return Ok(Appended::NoRoom);
            }
            // The record itself was refused, and no replica has it.
            Err(error @ (Error::Invalid { .. } | Error::Bug { .. } | Error::NoSpace { .. })) => {
                self.check_order(cx, sequence)?;
                return Ok(Appended::Refused(error));
            }
            Err(error) => return Err(error),
        }
        if let Some((upto, _)) = reservation {
            self.numbers.reserved(upto);
            self.when(sequence, true, Then::Reserved(upto));
        }
        draft.by.into_iter().for_each(|by| self.pledges.changed(by, &entry.record.changes));
        self.times.unmark(&unmarked);
        self.note_ends(commit);
        self.log.last = sequence;
        self.note(&entry, cx.out);
        commit.cut.into_iter().for_each(|cut| self.discarded.note_cut(cut));
        for brick in self.members.keys() {
            let message = Message::Append { entry: entry.clone(), fresh: commit.fresh.clone(), copied: false };
            cx.send_member(*brick, message);
        }
        self.stream(cx, &entry, commit, draft.step);
        self.log.window.push_back((entry, commit.fresh.clone()));
        Ok(Appended::Made(sequence))
    }

    /// R1, P11, and the rules about shards that are open: L1, L15, L16 and L22.
    fn check_record(&self, cx: &Context, changes: &[Change], draft: &Draft) -> Result<()> {
        require(cx.at.leads(), "R1", || format!("a record in view {}, which another replica leads", cx.at.view.epoch))?;
        let is_op = draft.session != SYSTEM_SESSION;
        require(!is_op || are_names_counted(changes), "P11", || {
            "a record changes a name, and not the change count of its directory".into()
        })?;
        let lane = &self.fast;
        require(!lane.awaits_lists() || !changes.iter().any(changes_list), "L15", || {
            "a record changes a list before all members have sent theirs".into()
        })?;
        if lane.open_count() == 0 {
            return Ok(());
        }
        let is_lane_whole = self.opens_shards(cx.at) || is_planted(Bug::FastWritesInPartialView);
        require(is_lane_whole, "L16", || {
            format!("{} shards are open in a view that lacks replicas", lane.open_count())
        })?;
        let changed = if draft.closes || is_planted(Bug::OpenShardChanged) { None } else { lane.first_open(changes) };
        require(changed.is_none(), "L1", || format!("a record changes {changed:?}, which is open"))?;
        require(!changes.iter().any(removes_loose_marker), "L22", || {
            format!("the loose-writes marker is removed while {} shards are open", lane.open_count())
        })
    }

    /// R1, for a record that the brick refused: the brick takes no record that does not follow its last one (`journal
    /// invariant 6`), so its position is read only then.
    fn check_order(&self, cx: &Context, sequence: Sequence) -> Result<()> {
        let last = cx.around.brick.position(cx.at.ring, cx.at.own.partition).sequence;
        require(last.0 + 1 == sequence.0, "R1", || format!("record {sequence} behind record {last} of the brick"))
    }

    /// Notes work that a record leaves for later.
    fn note(&mut self, entry: &LogEntry, out: &mut Out) {
        for change in &entry.record.changes {
            match change {
                Change::DropShard { shard } => {
                    self.discarded.note_dropped(shard.data);
                }
                Change::Put { key, value } => self.note_work(key, value, out),
                _ => {}
            }
        }
    }

    /// Notes an orphan, or a data id whose shards are to be dropped.
    pub fn note_work(&mut self, key: &Key, value: &bytes::Bytes, out: &mut Out) {
        let (Some(place), Some(id)) = (key.prefix(), key.id()) else { return };
        match key.kind() {
            Some(Kind::Orphan) => out.orphans.push((place.volume, InodeId::from_bits(id))),
            Some(Kind::Garbage) => {
                if let Ok(record) = GarbageRecord::from_bytes(value.clone()) {
                    self.discarded.collect_later(key.clone(), record);
                }
            }
            _ => {}
        }
    }
}

/// True if each name that changes has the stub of its directory beside it. The stub is never written with an older count.
fn are_names_counted(changes: &[Change]) -> bool {
    let of = |wanted: Kind| {
        changes.iter().filter_map(move |change| match change {
            Change::Put { key, .. } | Change::Delete { key } if key.kind() == Some(wanted) => key.id(),
            _ => None,
        })
    };
    let stubs: Vec<u128> = of(Kind::Stub).collect();
    of(Kind::Name).all(|dir| stubs.contains(&dir))
}

fn changes_list(change: &Change) -> bool {
    matches!(change, Change::Put { key, .. } | Change::Delete { key } if key.kind() == Some(Kind::Unsettled))
}

fn removes_loose_marker(change: &Change) -> bool {
    matches!(change, Change::Delete { key } if key.kind() == Some(Kind::Loose))
}

/// Gives the changed shards stamps of the leader's, also if a client asked for the change (rule 2 of
/// `docs/fast-lane.md`).
fn set_stamps(changes: &mut [Change], epoch: Epoch, sequence: Sequence) {
    for change in changes {
        if let Some(record) = change.shard_record_mut() {
            record.stamp = Stamp::of_leader(record.stamp.count, epoch, sequence);
        }
    }
}
