//! A member that follows: takes the leader's records in order, and says how far it is.

use crate::fast::FastMember;
use crate::heal::learner::{Learning, block_hashes};
use crate::heal::proof::Question;
use crate::message::{Address, Fresh, HealStep, Message};
use crate::partition::{Around, Event, Membership, Out, SyncJob};
use crate::view_start::compare::{digest, list};
use crate::view_start::feed::answer_fetch;
use hekate_brick::{Amount, Brick, LogEntry};
use hekate_proto::planted::is_planted;
use hekate_proto::*;
use std::collections::BTreeMap;

/// A record that has arrived.
#[derive(Debug)]
struct Arrived {
    entry: LogEntry,
    fresh: Vec<Fresh>,
    copied: bool,
    step: Option<HealStep>,
}

/// A sync that the leader asked for.
#[derive(Debug)]
struct Asked {
    ticket: u64,
    sequence: Sequence,
    shards: Vec<ShardId>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Follower {
    last: Sequence,
    /// All members have on stable storage what comes up to here.
    pub stable: Sequence,
    /// Records that came before those that they follow.
    early: BTreeMap<Sequence, Arrived>,
    /// The brick knows that there is no room for the next of them.
    starves: bool,
    /// Syncs whose records have not all come yet.
    waiting: Vec<Asked>,
    /// Syncs that the host was asked for, with the leader's tickets; what an earlier life of the leader asked for counts
    /// for nothing in this one.
    jobs: BTreeMap<u64, u64>,
    pub tickets: u64,
    /// Once it has this record, what power cuts took is agreed on.
    settled: Option<Sequence>,
    /// What the leader was told last that there is room for.
    told_room: Option<Amount>,
    /// What it does not have yet, if it learns.
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
            told_room: None,
            learning: Learning::read(at, brick)?,
            fast: FastMember::read(at, brick)?,
            proofs: Vec::new(),
        })
    }

    /// Whether the next record waits for room. Who has it lets others have their turn.
    fn note_starving(&mut self, at: &Membership, around: &Around, starves: bool, out: &mut Out) {
        // For who learns nobody waits.
        let starves = starves && at.view.has_member(at.own.brick);
        if starves != self.starves {
            self.starves = starves;
            around.brick.note_starving(at.ring, at.own.partition, starves);
            out.wants_room = true;
        }
    }

    /// In a new view, or a new life of the leader: it says again what still counts.
    pub fn forget(&mut self, at: &Membership, around: &Around, out: &mut Out) {
        self.note_starving(at, around, false, out);
        self.early.clear();
        self.waiting.clear();
        self.jobs.clear();
        self.settled = None;
        self.told_room = None;
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

    pub fn handle(&mut self, at: &Membership, event: Event, around: &Around, out: &mut Out) -> Result<()> {
        match event {
            Event::Up { bricks } | Event::Down { bricks } if bricks.contains(&at.view.leader) => {
                self.forget(at, around, out)
            }
            Event::Room | Event::Tick if !self.is_idle() => self.take(at, around, out)?,
            Event::Tick => self.tell_new_room(at, around, out),
            Event::Stabilize => at.send_member(out, at.view.leader, Message::WantStable),
            Event::Synced { ticket, outcome } => {
                outcome?;
                if let Some(ticket) = self.jobs.remove(&ticket) {
                    at.send_member(out, at.view.leader, Message::Synced { ticket });
                }
            }
            Event::Request { token, ask, op: Op::Data { op: op @ DataOp::FastWrite { .. } } }
                if !self.is_being_healed() =>
            {
                out.answers.push((token, self.fast.write(at, around, &ask, &op)?));
            }
            Event::Request { token, ask, op: Op::Data { op: op @ DataOp::RawWrite { .. } } }
                if !self.is_being_healed() =>
            {
                out.answers.push((token, crate::fast::raw::take(at, around, &ask, &op)?));
            }
            Event::Request { token, .. }
            | Event::Change { token, .. }
            | Event::ChangeNow { token, .. }
            | Event::Sync { token, .. } => {
                out.answers.push((token, Err(Error::StaleView { epoch: at.view.epoch })));
            }
            _ => {}
        }
        Ok(())
    }

    pub fn message(
        &mut self,
        at: &mut Membership,
        from: Address,
        message: Message,
        around: &Around,
        out: &mut Out,
    ) -> Result<()> {
        if from.brick != at.view.leader || from.partition != at.own.partition {
            return Ok(());
        }
        match message {
            Message::Append { entry, fresh, copied } => {
                self.arrive(at, Arrived { entry, fresh, copied, step: None }, around, out)?;
            }
            // Only one who learns is healed.
            Message::Heal { .. } | Message::Restart { .. } if !at.view.has_learner(at.own.brick) => {}
            Message::Heal { entry, fresh, step } => {
                self.arrive(at, Arrived { entry, fresh, copied: false, step: Some(step) }, around, out)?;
            }
            Message::Restart { sequence } => {
                self.learning.restart = Some(sequence);
                self.take(at, around, out)?;
            }
            Message::HashBlocks { sequence, shard } => {
                self.learning.questions.push((sequence, shard));
                self.take(at, around, out)?;
            }
            Message::Settled { sequence } => {
                self.settled = Some(sequence);
                self.settle(at);
            }
            Message::Stable { sequence } => self.stable = self.stable.max(sequence),
            Message::Ask { term } => {
                self.fast.hear(term);
                self.tell_position(at, around, out)?;
            }
            Message::Fetch { after } => answer_fetch(at, from.brick, after, around, out)?,
            Message::ReadBlock { at: block } => {
                let bytes = crate::view_start::level::read_block(around, at.ring, block)?;
                at.send_member(out, from.brick, Message::Block { at: block, bytes });
            }
            Message::Compare { portion } => {
                let (sum, count) = digest(at, around.brick, &portion)?;
                at.send_member(out, from.brick, Message::Compared { portion, sum, count });
            }
            Message::List { portion } => {
                let entries = list(at, around.brick, &portion)?;
                at.send_member(out, from.brick, Message::Listed { portion, entries });
            }
            Message::Sync { ticket, sequence, shards } => {
                self.waiting.push(Asked { ticket, sequence, shards });
                self.sync(at, around.brick, out);
            }
            other => self.asked(at, other, around, out)?,
        }
        Ok(())
    }

    /// What it holds, for a leader that closes shards, answers a read, or proves that all hold the same.
    fn asked(&mut self, at: &Membership, message: Message, around: &Around, out: &mut Out) -> Result<()> {
        match message {
            Message::ListFast { sequence, shards } => {
                self.fast.ask(sequence, shards);
                self.fast.answer(at, self.last, out);
            }
            Message::Prove { sequence, from, to, left_out } => {
                self.proofs.push(Question { sequence, from, to, left_out });
                self.prove(at, around, out)?;
            }
            Message::AskFast { shard, stamp } => {
                let held = self.fast.holds(at, around.brick, shard, stamp)?;
                at.send_member(out, at.view.leader, Message::FastHeld { shard, stamp, held });
            }
            _ => {}
        }
        Ok(())
    }

    fn room(&mut self, around: &Around) -> Amount {
        *self.told_room.insert(around.brick.room_left())
    }

    /// The leader refuses what would not fit here, so nothing comes by which it could be told that there is room again.
    fn tell_new_room(&mut self, at: &Membership, around: &Around, out: &mut Out) {
        let left = around.brick.room_left();
        if self.told_room.is_some_and(|told| left.bytes / 2 > told.bytes || left.files > told.files.saturating_mul(2)) {
            let held = Message::Held { sequence: Sequence(0), room: self.room(around) };
            at.send_member(out, at.view.leader, held);
            out.branches.push("a member has room again");
        }
    }

    fn tell_position(&mut self, at: &Membership, around: &Around, out: &mut Out) -> Result<()> {
        if self.learning.record.is_some() && !at.view.has_learner(at.own.brick) {
            return Err(Error::bug(format!("brick {} has not healed and is a member", at.own.brick.text())));
        }
        let position = around.brick.position(at.ring, at.own.partition);
        let (room, lost, heal) = (self.room(around), at.lost.clone(), self.learning.record.clone());
        let (epoch, sequence, lists) = (position.epoch, position.sequence, self.fast.listed());
        let message = Message::Position { epoch, sequence, room, lost, heal, lists };
        at.send_member(out, at.view.leader, message);
        Ok(())
    }

    fn arrive(&mut self, at: &mut Membership, arrived: Arrived, around: &Around, out: &mut Out) -> Result<()> {
        let sequence = arrived.entry.record.sequence;
        if sequence > self.last || self.learning.restart.is_some() {
            if sequence.0 > self.last.0 + 1 {
                out.branches.push("a record comes early");
            }
            self.early.insert(sequence, arrived);
        }
        self.take(at, around, out)?;
        self.settle(at);
        Ok(())
    }

    /// Its log goes on elsewhere, if the leader wants that. -> whether that is done.
    fn begin_log(&mut self, at: &Membership, around: &Around, out: &mut Out) -> Result<bool> {
        let Some(sequence) = self.learning.restart else { return Ok(true) };
        let before = self.learning.record.clone();
        let also = self.fast.deletes(at.ring).chain(self.learning.doubts(at, around.brick)?);
        let entry = self.learning.restarted(at, sequence, also);
        let takes_now = around.brick.is_next(at.ring, at.own.partition) && around.brick.takes_now(&entry);
        if !takes_now || !append(around.brick, at.ring, &entry, &[], false)? {
            (self.learning.record, out.wants_room) = (before, true);
            return Ok(false);
        }
        out.branches.push("a learner's log goes on elsewhere");
        self.fast.took(&entry.record)?;
        self.learning.restart = None;
        self.last = sequence;
        self.early = self.early.split_off(&Sequence(sequence.0 + 1));
        Ok(true)
    }

    /// -> whether there was room for it.
    fn take_one(
        &mut self,
        at: &Membership,
        sequence: Sequence,
        arrived: &Arrived,
        around: &Around,
        out: &mut Out,
    ) -> Result<bool> {
        let (brick, copied) = (around.brick, arrived.copied);
        if self.learning.record.is_none() {
            let takes_now = brick.takes_now(&arrived.entry);
            let taken = takes_now && append_taken(brick, at.ring, &arrived.entry, &arrived.fresh, copied)?;
            if taken {
                self.fast.took(&arrived.entry.record)?;
            }
            return Ok(taken);
        }
        let taken = (&arrived.entry, &arrived.fresh[..]);
        let Some(own) = self.learning.own(at, brick, taken, arrived.step.as_ref())? else { return Ok(false) };
        if !brick.takes_now(&own.entry) || !append_taken(brick, at.ring, &own.entry, &own.fresh, copied)? {
            return Ok(false);
        }
        if own.ends {
            // What power cuts took was healed with the rest.
            self.settled = Some(sequence);
            out.branches.push("a learner has healed");
        }
        let tell = self.learning.took(own);
        tell.into_iter().for_each(|message| at.send_member(out, at.view.leader, message));
        Ok(true)
    }

    /// Answers what was asked of the record that it has just taken.
    fn prove(&mut self, at: &Membership, around: &Around, out: &mut Out) -> Result<()> {
        let last = self.last;
        let mut due = self.proofs.extract_if(.., |question| question.sequence == last);
        due.try_for_each(|question| question.answer(at, around.brick, out))
    }

    fn answer_questions(&mut self, at: &Membership, around: &Around, out: &mut Out) -> Result<()> {
        let last = self.last;
        for (_, shard) in self.learning.questions.extract_if(.., |(sequence, _)| *sequence <= last) {
            let hashes = block_hashes(at, around.brick, shard)?;
            at.send_member(out, at.view.leader, Message::BlockHashes { shard, hashes });
        }
        Ok(())
    }

    /// Takes what is next, as far as there is room.
    fn take(&mut self, at: &Membership, around: &Around, out: &mut Out) -> Result<()> {
        if !self.begin_log(at, around, out)? {
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
                let is_next = around.brick.is_next(at.ring, at.own.partition);
                let taken = if is_next { self.take_one(at, sequence, &arrived, around, out) } else { Ok(false) };
                if !matches!(taken, Ok(true)) {
                    self.early.insert(sequence, arrived);
                }
                match taken {
                    Ok(true) => {
                        self.last = sequence;
                        self.prove(at, around, out)?;
                    }
                    // It is taken when there is room; what there was when it was asked for another replica may have taken.
                    Ok(false) => {
                        out.branches.push("a member's journal has no room");
                        out.wants_room = true;
                        starves = true;
                        break;
                    }
                    // The disk is full: that may last, and what others bring may be what empties it. Or no file descriptor is free.
                    Err(Error::NoSpace { .. } | Error::Unavailable { .. }) => {
                        out.wants_room = true;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.note_starving(at, around, starves, out);
        let early = self.early.keys().next_back().copied().filter(|_| is_planted(5));
        let held = Message::Held { sequence: early.unwrap_or(self.last), room: self.room(around) };
        at.send_member(out, at.view.leader, held);
        self.answer_questions(at, around, out)?;
        self.fast.answer(at, self.last, out);
        self.sync(at, around.brick, out);
        Ok(())
    }

    fn settle(&mut self, at: &mut Membership) {
        if self.settled.is_some_and(|sequence| sequence <= self.last) {
            at.lost.clear();
        }
    }

    fn sync(&mut self, at: &Membership, brick: &Brick, out: &mut Out) {
        let last = self.last;
        for asked in self.waiting.extract_if(.., |asked| asked.sequence <= last) {
            self.tickets += 1;
            self.jobs.insert(self.tickets, asked.ticket);
            let mut shards = asked.shards;
            shards.extend(at.unsynced(brick));
            out.syncs.push(SyncJob { replica: at.own, ticket: self.tickets, shards });
        }
    }
}

/// Puts a record into the brick's journal, its fresh blocks, or room for such, home before it. False: the journal is
/// full, and has not taken it. To wait here would be for ever: a checkpoint asks this replica what may go.
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

/// The same with a record that another replica has taken. The leader has asked for room before, but a quota may leave less
/// than the file system says: then the reserve is given up for it.
fn append_taken(brick: &Brick, ring: RingId, entry: &LogEntry, fresh: &[Fresh], copied: bool) -> Result<bool> {
    loop {
        match append(brick, ring, entry, fresh, copied) {
            Err(Error::NoSpace { .. }) if brick.give_up_reserve()? => {}
            settled => return settled,
        }
    }
}

/// The same with a record of another replica's journal, that of a full disk being no room either: it may last, but what others let go
/// may be what empties it.
pub(crate) fn append_if_room(brick: &Brick, ring: RingId, entry: &LogEntry, fresh: &[Fresh]) -> Result<bool> {
    match brick.takes_now(entry) {
        true => append_taken(brick, ring, entry, fresh, true),
        false => Ok(false),
    }
    .or_else(|error| if matches!(error, Error::NoSpace { .. }) { Ok(false) } else { Err(error) })
}
