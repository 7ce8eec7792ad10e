//! A follower: appends the leader's records in order, and acknowledges them to the leader.

use crate::context::{Around, Context, SyncJob};
use crate::fast::FastMember;
use crate::heal::learner::{Learning, block_hashes};
use crate::heal::proof::Question;
use crate::invariants::require;
use crate::membership::Membership;
use crate::message::{Address, Fresh, HealStep, Message};
use crate::partition::Event;
use crate::view_start::compare::{digest, list};
use crate::view_start::feed::answer_fetch;
use hekate_brick::{Amount, Brick, LogEntry};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;

/// A record that was received and is not appended yet.
#[derive(Debug)]
struct Arrived {
    entry: LogEntry,
    fresh: Vec<Fresh>,
    copied: bool,
    step: Option<HealStep>,
}

/// A sync that the leader requested.
#[derive(Debug)]
struct Asked {
    ticket: u64,
    sequence: Sequence,
    shards: Vec<ShardId>,
}

/// A member that follows, or a learner.
#[derive(Debug)]
pub(crate) struct Follower {
    last: Sequence,
    /// All members have the records up to this one on stable storage.
    pub stable: Sequence,
    /// Records that were received before those that they follow.
    early: BTreeMap<Sequence, Arrived>,
    /// The brick was notified that this replica has no room for its next record.
    starves: bool,
    /// Syncs that the leader requested and whose records have not all been received.
    waiting: Vec<Asked>,
    /// Sync jobs of the host, with the tickets of the leader's requests. Those of an earlier leader are dropped.
    jobs: BTreeMap<u64, u64>,
    pub tickets: u64,
    /// Once this replica has this record, the blocks that members lost in power cuts are reconciled.
    settled: Option<Sequence>,
    /// The room that was last reported to the leader.
    reported_room: Option<Amount>,
    /// The state of healing, if this replica is a learner.
    learning: Learning,
    fast: FastMember,
    proofs: Vec<Question>,
}

impl Follower {
    pub fn new(at: &Membership, brick: &Brick) -> Result<Self> {
        let last = brick.position(at.ring, at.own.partition).sequence;
        let (early, waiting, jobs) = Default::default();
        Ok(Self {
            last,
            stable: Sequence(0),
            early,
            starves: false,
            waiting,
            jobs,
            tickets: 0,
            settled: None,
            reported_room: None,
            learning: Learning::read(at, brick)?,
            fast: FastMember::read(at, brick)?,
            proofs: Vec::new(),
        })
    }

    /// Notifies the brick whether the next record waits for room. Until it has room, members behind it in the brick's
    /// queue append nothing.
    fn note_starving(&mut self, cx: &mut Context, starves: bool) {
        // No record is settled later because a learner lacks room.
        let starves = starves && cx.at.view.has_member(cx.at.own.brick);
        if starves != self.starves {
            self.starves = starves;
            cx.around.brick.note_starving(cx.at.ring, cx.at.own.partition, starves);
            cx.out.wants_room = true;
        }
    }

    /// Drops what an earlier leader, or an earlier process of the leader, has sent. What still counts is sent again.
    pub fn forget(&mut self, cx: &mut Context) {
        self.note_starving(cx, false);
        self.early.clear();
        self.waiting.clear();
        self.jobs.clear();
        self.settled = None;
        self.reported_room = None;
        self.learning.forget();
        self.fast.forget();
        self.proofs.clear();
    }

    pub fn is_being_healed(&self) -> bool {
        self.learning.record.is_some()
    }

    pub fn is_idle(&self) -> bool {
        self.early.is_empty() && self.waiting.is_empty() && self.learning.restart.is_none()
    }

    pub fn handle(&mut self, cx: &mut Context, event: Event) -> Result<()> {
        match event {
            Event::Up { bricks } | Event::Down { bricks } if bricks.contains(&cx.at.view.leader) => self.forget(cx),
            Event::Room | Event::Tick if !self.is_idle() => self.take(cx)?,
            Event::Tick => self.report_new_room(cx),
            Event::Stabilize => cx.send_member(cx.at.view.leader, Message::WantStable),
            Event::Synced { ticket, outcome } => {
                outcome?;
                if let Some(ticket) = self.jobs.remove(&ticket) {
                    cx.send_member(cx.at.view.leader, Message::Synced { ticket });
                }
            }
            Event::Request { token, ask, op: Op::Data { op: op @ DataOp::FastWrite { .. } } }
                if !self.is_being_healed() =>
            {
                cx.out.answers.push((token, self.fast.write(cx, &ask, &op)?));
            }
            Event::Request { token, ask, op: Op::Data { op: op @ DataOp::RawWrite { .. } } }
                if !self.is_being_healed() =>
            {
                cx.out.answers.push((token, crate::fast::raw::take(cx, &ask, &op)?));
            }
            Event::Request { token, .. }
            | Event::Change { token, .. }
            | Event::ChangeNow { token, .. }
            | Event::Accessed { token, .. }
            | Event::Sync { token, .. } => {
                cx.out.answers.push((token, Err(Error::StaleView { epoch: cx.at.view.epoch })));
            }
            _ => {}
        }
        Ok(())
    }

    pub fn message(&mut self, cx: &mut Context, from: Address, message: Message) -> Result<()> {
        if from.brick != cx.at.view.leader || from.partition != cx.at.own.partition {
            return Ok(());
        }
        match message {
            Message::Append { entry, fresh, copied } => {
                self.arrive(cx, Arrived { entry, fresh, copied, step: None })?;
            }
            // Only a learner is healed.
            Message::Heal { .. } | Message::Restart { .. } if !cx.at.view.has_learner(cx.at.own.brick) => {}
            Message::Heal { entry, fresh, step } => {
                self.arrive(cx, Arrived { entry, fresh, copied: false, step: Some(step) })?;
            }
            Message::Restart { sequence } => {
                self.learning.restart = Some(sequence);
                self.take(cx)?;
            }
            Message::HashBlocks { sequence, shard } => {
                self.learning.questions.push((sequence, shard));
                self.take(cx)?;
            }
            Message::Settled { sequence } => {
                self.settled = Some(sequence);
                self.settle(cx.at);
            }
            Message::Stable { sequence } => self.stable = self.stable.max(sequence),
            Message::Ask { term } => {
                self.fast.set_term(term);
                self.send_position(cx)?;
            }
            Message::Fetch { after } => answer_fetch(cx, from.brick, after)?,
            Message::ReadBlock { at: block } => {
                let bytes = crate::view_start::level::read_block(cx.around, cx.at.ring, block)?;
                let length = cx.around.brick.shard(cx.at.ring, block.shard)?.map_or(0, |record| record.length);
                cx.send_member(from.brick, Message::Block { at: block, bytes, length });
            }
            Message::Compare { portion } => {
                let (sum, count) = digest(cx.at, cx.around.brick, &portion)?;
                cx.send_member(from.brick, Message::Compared { portion, sum, count });
            }
            Message::List { portion } => {
                let entries = list(cx.at, cx.around.brick, &portion)?;
                cx.send_member(from.brick, Message::Listed { portion, entries });
            }
            Message::Sync { ticket, sequence, shards } => {
                self.waiting.push(Asked { ticket, sequence, shards });
                self.sync(cx, cx.around.brick);
            }
            other => self.asked(cx, other)?,
        }
        Ok(())
    }

    /// Handles requests of a leader that closes shards, answers a read, or proves that all members are equal.
    fn asked(&mut self, cx: &mut Context, message: Message) -> Result<()> {
        match message {
            Message::ListFast { sequence, shards } => {
                self.fast.ask(sequence, shards);
                self.fast.answer(cx, self.last);
            }
            Message::Prove { sequence, from, to, left_out } => {
                self.proofs.push(Question { sequence, from, to, left_out });
                self.prove(cx)?;
            }
            Message::AskFast { shard, stamp } => {
                let held = self.fast.holds(cx.at, cx.around.brick, shard, stamp)?;
                cx.send_member(cx.at.view.leader, Message::FastHeld { shard, stamp, held });
            }
            _ => {}
        }
        Ok(())
    }

    fn room(&mut self, around: &Around) -> Amount {
        *self.reported_room.insert(around.brick.room_left())
    }

    /// Reports more room to the leader once it has doubled. The leader refuses records that would not fit here, so none
    /// arrives whose answer could report the room.
    fn report_new_room(&mut self, cx: &mut Context) {
        let left = cx.around.brick.room_left();
        if self
            .reported_room
            .is_some_and(|known| left.bytes / 2 > known.bytes || left.files > known.files.saturating_mul(2))
        {
            let held = Message::Held { sequence: Sequence(0), room: self.room(cx.around) };
            cx.send_member(cx.at.view.leader, held);
            cx.out.branches.push("a member has room again");
        }
    }

    fn send_position(&mut self, cx: &mut Context) -> Result<()> {
        if self.learning.record.is_some() && !cx.at.view.has_learner(cx.at.own.brick) {
            return Err(Error::bug(format!("brick {} is a member before it has healed", cx.at.own.brick.text())));
        }
        let position = cx.around.brick.position(cx.at.ring, cx.at.own.partition);
        let (room, lost, heal) = (self.room(cx.around), cx.at.lacking(cx.around.brick)?, self.learning.record.clone());
        let (epoch, sequence, lists) = (position.epoch, position.sequence, self.fast.listed());
        let message = Message::Position { epoch, sequence, room, lost, heal, lists };
        cx.send_member(cx.at.view.leader, message);
        Ok(())
    }

    fn arrive(&mut self, cx: &mut Context, arrived: Arrived) -> Result<()> {
        let sequence = arrived.entry.record.sequence;
        if sequence > self.last || self.learning.restart.is_some() {
            if sequence.0 > self.last.0 + 1 {
                cx.out.branches.push("a record comes early");
            }
            self.early.insert(sequence, arrived);
        }
        self.take(cx)?;
        self.settle(cx.at);
        Ok(())
    }

    /// Restarts the log behind the record that the leader named in `Restart`. Returns false if the journal has no room.
    fn begin_log(&mut self, cx: &mut Context) -> Result<bool> {
        let Some(sequence) = self.learning.restart else { return Ok(true) };
        let before = self.learning.record.clone();
        let also = self.fast.deletes(cx.at.ring).chain(self.learning.restamp_interrupted(cx.at, cx.around.brick)?);
        let entry = self.learning.restarted(cx.at, sequence, also);
        let takes_now = cx.around.brick.is_next(cx.at.ring, cx.at.own.partition) && cx.around.brick.takes_now(&entry);
        if !takes_now || !append(cx.around.brick, cx.at.ring, &entry, &[], false)? {
            (self.learning.record, cx.out.wants_room) = (before, true);
            return Ok(false);
        }
        cx.out.branches.push("a learner's log goes on elsewhere");
        self.fast.took(&entry.record)?;
        self.learning.restart = None;
        self.last = sequence;
        self.early = self.early.split_off(&Sequence(sequence.0 + 1));
        Ok(true)
    }

    /// Appends one record. Returns false if the journal has no room for it.
    fn take_one(&mut self, cx: &mut Context, sequence: Sequence, arrived: &Arrived) -> Result<bool> {
        let (brick, copied) = (cx.around.brick, arrived.copied);
        if self.learning.record.is_none() {
            require(self.last.0 + 1 == sequence.0, "R1", || format!("record {sequence} behind record {}", self.last))?;
            let takes_now = brick.takes_now(&arrived.entry);
            let taken = takes_now && append_taken(brick, cx.at.ring, &arrived.entry, &arrived.fresh, copied)?;
            if taken {
                self.fast.took(&arrived.entry.record)?;
                // A leader feeds learners once it serves. By then it lacks only bytes that later records overwrite.
                let is_levelled = copied && cx.at.view.has_member(cx.at.own.brick);
                cx.at.without_bytes.took(&arrived.entry.record, &arrived.fresh, is_levelled);
            }
            return Ok(taken);
        }
        let taken = (&arrived.entry, &arrived.fresh[..]);
        let Some(own) = self.learning.own(cx.at, brick, taken, arrived.step.as_ref())? else { return Ok(false) };
        if !brick.takes_now(&own.entry) || !append_taken(brick, cx.at.ring, &own.entry, &own.fresh, copied)? {
            return Ok(false);
        }
        if own.ends {
            // Blocks that power cuts took were healed with the rest.
            self.settled = Some(sequence);
            cx.out.branches.push("a learner has healed");
        }
        let tell = self.learning.took(own);
        tell.into_iter().for_each(|message| cx.send_member(cx.at.view.leader, message));
        Ok(true)
    }

    /// Answers proofs that name the record which was just appended.
    fn prove(&mut self, cx: &mut Context) -> Result<()> {
        let last = self.last;
        let mut due = self.proofs.extract_if(.., |question| question.sequence == last);
        due.try_for_each(|question| question.answer(cx, cx.around.brick))
    }

    fn answer_questions(&mut self, cx: &mut Context) -> Result<()> {
        let last = self.last;
        for (_, shard) in self.learning.questions.extract_if(.., |(sequence, _)| *sequence <= last) {
            let hashes = block_hashes(cx.at, cx.around.brick, shard)?;
            cx.send_member(cx.at.view.leader, Message::BlockHashes { shard, hashes });
        }
        Ok(())
    }

    /// Appends the records that follow, as long as the journal has room.
    fn take(&mut self, cx: &mut Context) -> Result<()> {
        if !self.begin_log(cx)? {
            return Ok(());
        }
        let mut starves = false;
        while let Some(entry) = self.early.first_entry() {
            let sequence = *entry.key();
            if sequence.0 > self.last.0 + 1 {
                break;
            }
            let arrived = entry.remove();
            if sequence.0 == self.last.0 + 1 {
                let is_next = cx.around.brick.is_next(cx.at.ring, cx.at.own.partition);
                let taken = if is_next { self.take_one(cx, sequence, &arrived) } else { Ok(false) };
                if !matches!(taken, Ok(true)) {
                    self.early.insert(sequence, arrived);
                }
                match taken {
                    Ok(true) => {
                        self.last = sequence;
                        self.prove(cx)?;
                    }
                    // The record is appended once there is room. Another replica may have used the room that was
                    // reported.
                    Ok(false) => {
                        cx.out.branches.push("a member's journal has no room");
                        cx.out.wants_room = true;
                        starves = true;
                        break;
                    }
                    // The disk is full, which may last: records of other replicas may free room. Or no file descriptor
                    // is free.
                    Err(Error::NoSpace { .. } | Error::Unavailable { .. }) => {
                        cx.out.wants_room = true;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.note_starving(cx, starves);
        let early = self.early.keys().next_back().copied().filter(|_| is_planted(Bug::GapAcknowledged));
        let held = Message::Held { sequence: early.unwrap_or(self.last), room: self.room(cx.around) };
        cx.send_member(cx.at.view.leader, held);
        self.answer_questions(cx)?;
        self.fast.answer(cx, self.last);
        self.sync(cx, cx.around.brick);
        Ok(())
    }

    fn settle(&mut self, at: &mut Membership) {
        if self.settled.is_some_and(|sequence| sequence <= self.last) {
            at.reconciled();
        }
    }

    fn sync(&mut self, cx: &mut Context, brick: &Brick) {
        let last = self.last;
        for asked in self.waiting.extract_if(.., |asked| asked.sequence <= last) {
            self.tickets += 1;
            self.jobs.insert(self.tickets, asked.ticket);
            let mut shards = asked.shards;
            shards.extend(cx.at.unsynced(brick));
            cx.out.syncs.push(SyncJob { replica: cx.at.own, ticket: self.tickets, shards });
        }
    }
}

/// Appends a record to the brick's journal. Its fresh blocks are written to data files first, or room is reserved for
/// them. Returns false if the journal is full. It does not wait for room: the checkpoint that makes room asks this
/// replica what may be discarded.
pub(crate) fn append(brick: &Brick, ring: RingId, entry: &LogEntry, fresh: &[Fresh], copied: bool) -> Result<bool> {
    for one in fresh {
        brick.write_fresh(ring, one.shard, one.first_block, &[&one.bytes])?;
    }
    for change in &entry.record.changes {
        if let Change::ReserveBlocks { shard, first, count, .. } = change {
            brick.reserve_fresh(ring, *shard, *first, *count)?;
        }
    }
    Ok(brick.append_now(entry, copied)?.is_some())
}

/// As `append`, for a record that another replica has appended. The leader has checked the room, but a quota may leave
/// less than the file system reports: then the brick's reserve is used.
fn append_taken(brick: &Brick, ring: RingId, entry: &LogEntry, fresh: &[Fresh], copied: bool) -> Result<bool> {
    loop {
        match append(brick, ring, entry, fresh, copied) {
            Err(Error::NoSpace { .. }) if brick.give_up_reserve()? => {}
            settled => return settled,
        }
    }
}

/// As `append_taken`, for a record from another replica's journal. Returns false if the disk is full too: what other
/// replicas delete may make room.
pub(crate) fn append_if_room(brick: &Brick, ring: RingId, entry: &LogEntry, fresh: &[Fresh]) -> Result<bool> {
    match brick.takes_now(entry) {
        true => append_taken(brick, ring, entry, fresh, true),
        false => Ok(false),
    }
    .or_else(|error| if matches!(error, Error::NoSpace { .. }) { Ok(false) } else { Err(error) })
}
