//! What a leader does before it serves: it asks every member for the end of its log, brings all to the longest one, has
//! them reconcile the blocks that power cuts took, and undoes or finishes ops that a crash interrupted.
//!
//! The member with the greatest (epoch, sequence) has everything that was acknowledged. Journals are discarded only up
//! to what all members have on stable storage, so another member has the records that one lacks, unless its journal is
//! damaged (`feed.rs`).

use crate::context::{Around, Context};
use crate::invariants::require;
use crate::leader::{Leader, Member};
use crate::log::append::{Appended, Draft};
use crate::log::follower::append_if_room;
use crate::log::settle::Then;
use crate::message::{Address, BlockAt, FastList, Message};
use crate::ops::step::Commit;
use crate::pledges::Recalls;
use crate::view_start::compare::Comparison;
use crate::view_start::feed::lacks_released_records;
use bytes::Bytes;
use hekate_brick::{Amount, LogPosition, block_checksum};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Entries that one scan of the index returns at most.
const SCAN_AT_ONCE: usize = 512;

/// Session slots that one record clears. Each takes some 100 bytes, so the record stays small.
const FORGOTTEN_AT_ONCE: usize = 1024;

/// The phases between the start of a view and serving.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The leader was not started.
    #[default]
    Silent,
    /// The leader asks the members for the ends of their logs.
    Asking,
    /// The leader reads the records that it lacks from a member, and appends each as it arrives.
    Fetching {
        from: BrickId,
        /// Members whose journals are damaged where those records are.
        unreadable: Vec<BrickId>,
    },
    /// Only this member has some of the records, and cannot send them: it is to lead.
    Yielding {
        to: BrickId,
    },
    /// The leader sends the members the records that they lack.
    Feeding,
    /// All members have all records, and the view is about to open. No op begins before it has. An op under way may make
    /// a record, which is not acknowledged before the view has opened.
    Opening,
    /// All members have the same records, and the leader compares their data with its own.
    Comparing(Box<Comparison>),
    /// The members reconcile the blocks that power cuts took.
    Settling {
        blocks: BTreeMap<BlockAt, Lost>,
    },
    /// Ops that a crash interrupted are undone or finished. Legs of other partitions are taken.
    Recovering,
    Serving,
}

/// A lost block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Members that lost the block.
    by: BTreeSet<BrickId>,
    /// This leader has read its own copy of the block, or has requested a member's.
    asked: bool,
}

impl Leader {
    pub fn serves(&self) -> bool {
        self.start.phase == Phase::Serving
    }

    /// True if legs of other partitions' ops are taken.
    pub fn takes_legs(&self) -> bool {
        matches!(self.start.phase, Phase::Serving | Phase::Recovering)
    }

    /// Begins the view, after the replica started or its view changed.
    pub fn begin(&mut self, cx: &mut Context) -> Result<()> {
        self.start.phase = Phase::Asking;
        self.locking.begin_view(cx.at.view.epoch)?;
        // A member may have lost what it held in the last view.
        self.log.restart();
        self.start.lost_on.clear();
        self.lost_by(cx.at.own.brick, &cx.at.lacking(cx.around.brick)?);
        self.members = cx.at.others().map(|brick| (brick, Member::default())).collect();
        self.healing.restart(cx.at.learners());
        self.start.may_open = false;
        // Files with a writing marker get new times before the leader serves.
        self.times.forget();
        self.begin_fast_lane(cx)?;
        let mut recalls = Recalls::default();
        self.pledges.begin(self.fast.term, cx.around.elapsed, &mut recalls);
        recalls.send(cx.at.own.partition, self.pledges.term(), cx.out);
        if cx.at.view.forgetful {
            self.pledges.note_loss();
        }
        self.ask_members_only(cx);
        self.ask_positions(cx);
        self.decide(cx)
    }

    /// Asks members and learners that have not answered for the ends of their logs. Repeated with each tick.
    pub fn ask_positions(&self, cx: &mut Context) {
        let away = self.members.iter().filter(|(_, member)| member.position.is_none()).map(|(brick, _)| *brick);
        let learners = self.healing.without_position();
        away.chain(learners).for_each(|brick| cx.send_member(brick, Message::Ask { term: self.fast.term }));
    }

    /// Continues after the coordinator has recorded that the view has begun.
    pub fn opened(&mut self, cx: &mut Context) -> Result<()> {
        self.start.may_open = false;
        if self.start.phase == Phase::Opening {
            self.start.phase = Phase::Feeding;
        }
        self.settle(cx)
    }

    /// The servers of these bricks are connected in a new generation of their links. Requests to their replicas may
    /// have been lost, so they are sent again.
    pub fn up(&mut self, cx: &mut Context, bricks: &[BrickId]) {
        let term = self.fast.term;
        self.end_proof();
        for brick in bricks {
            if let Some(member) = self.members.get_mut(brick) {
                member.position = None;
                cx.send_member(*brick, Message::Ask { term });
            } else if self.healing.has_learner(*brick) {
                self.learner_away(*brick);
                cx.send_member(*brick, Message::Ask { term });
            }
        }
        if let Phase::Settling { blocks } = &mut self.start.phase {
            blocks.values_mut().for_each(|lost| lost.asked = false);
        }
        self.send_again(cx, bricks);
    }

    pub fn level_message(&mut self, cx: &mut Context, from: Address, message: Message) -> Result<()> {
        match message {
            Message::Position { epoch, sequence, lost, heal, lists, .. } if self.healing.has_learner(from.brick) => {
                self.learner_position(from.brick, LogPosition { epoch, sequence }, (&lost, lists), heal);
                self.lost_with_learner(cx, &lost)?;
                self.heal(cx)
            }
            Message::Position { epoch, sequence, room, lost, lists, .. } => {
                let position = (LogPosition { epoch, sequence }, room, lost, lists);
                self.learn_position(cx, from.brick, position)
            }
            Message::Append { entry, fresh, .. } if self.fetches_from(from.brick) => {
                if entry.record.sequence.0 == self.log.last().0 + 1 {
                    if !append_if_room(cx.around.brick, cx.at.ring, &entry, &fresh)? {
                        // Fetched again once the journal has room.
                        cx.out.branches.push("levelling: no room for what is fetched");
                        (cx.out.wants_room, self.start.phase) = (true, Phase::Asking);
                        return Ok(());
                    }
                    cx.at.without_bytes.took(&entry.record, &fresh, true);
                    self.log.set_last(entry.record.sequence);
                }
                Ok(())
            }
            Message::FetchEnd { after } if self.fetches_from(from.brick) => {
                let own = cx.around.brick.position(cx.at.ring, cx.at.own.partition).sequence;
                if after <= own {
                    return self.decide(cx);
                }
                // The member discarded those records, as all members had them on stable storage.
                let error = lacks_released_records(cx.at, cx.at.own.brick, own);
                if !cx.at.view.forgetful && !cx.at.joins {
                    return Err(cx.around.brick.poison(&error));
                }
                // In a forgetful view, which continues with one member, the member with more records is to lead, and
                // this replica learns from it. The same if this one was a learner, and has fallen behind before the view
                // that makes it a member was recorded.
                cx.out.notes.push(error.to_string());
                self.start.phase = Phase::Yielding { to: from.brick };
                Ok(())
            }
            Message::Unreadable if self.fetches_from(from.brick) => {
                if let Phase::Fetching { unreadable, .. } = &mut self.start.phase {
                    unreadable.push(from.brick);
                }
                self.decide(cx)
            }
            Message::Block { at: block, bytes, length } => {
                self.receive_block(cx.at, from.brick, block, (bytes.as_ref(), length));
                self.settle_block(cx, from.brick, block, bytes)
            }
            Message::Compared { portion, sum, count } => self.compared(cx, from.brick, portion, (sum, count)),
            Message::Listed { portion, entries } => self.listed(cx, from.brick, portion, entries),
            _ => Ok(()),
        }
    }

    fn learn_position(
        &mut self,
        cx: &mut Context,
        brick: BrickId,
        (position, room, lost, lists): (LogPosition, Amount, Vec<BlockAt>, Vec<FastList>),
    ) -> Result<()> {
        let Some(member) = self.members.get_mut(&brick) else { return Ok(()) };
        let known = member.position.replace(position).is_some();
        member.room = room;
        if known {
            return Ok(());
        }
        // Also what the leader has yet to fetch: once fetched it is settled, so that it can leave a full journal.
        member.held = position.sequence;
        self.lost_by(brick, &lost);
        if !self.takes_legs() && !is_planted(Bug::ListedWritesIgnored) {
            self.fast.add_lists_of_member(brick, lists);
        }
        match self.start.phase {
            Phase::Silent => Ok(()),
            Phase::Asking | Phase::Fetching { .. } | Phase::Yielding { .. } => self.decide(cx),
            _ => {
                if position.sequence > self.log.last() {
                    let what = format!("brick {} has records that its leader never made", brick.text());
                    return Err(Error::Bug { what });
                }
                if matches!(self.start.phase, Phase::Comparing(_)) {
                    // The comparison begins again once all members have all records.
                    self.start.phase = Phase::Feeding;
                }
                self.feed(cx, brick, position.sequence)?;
                self.sync_again(cx, brick);
                self.list_again(cx, brick);
                self.read_again(brick);
                self.settle_again()
            }
        }
    }

    /// Begins to reconcile blocks that a member reports as lost when it is connected again. A leader that served stops
    /// serving until they are reconciled.
    fn settle_again(&mut self) -> Result<()> {
        if self.start.phase == Phase::Feeding || self.start.lost_on.is_empty() {
            return Ok(());
        }
        let lost = std::mem::take(&mut self.start.lost_on);
        let mut blocks = match std::mem::replace(&mut self.start.phase, Phase::Feeding) {
            Phase::Settling { blocks } => blocks,
            _ => BTreeMap::new(),
        };
        for (block, by) in lost {
            blocks.entry(block).or_default().by.extend(by);
        }
        self.start.phase = Phase::Settling { blocks };
        self.start.lost_writes = Some(false);
        Ok(())
    }

    /// Reconciles blocks that a learner has lost and that the leader cannot read either. Before the view was reduced to
    /// one member (rule L20) the leader may have been sent a record by a replica that had lost the record's bytes. No
    /// learner is healed before the leader can read such blocks.
    fn lost_with_learner(&mut self, cx: &Context, lost: &[BlockAt]) -> Result<()> {
        for block in lost {
            if let Err(Error::Damaged { .. }) = cx.around.brick.read_block(cx.at.ring, block.shard, block.block) {
                self.lost_by(cx.at.own.brick, &[*block]);
            }
        }
        if self.takes_legs() || matches!(self.start.phase, Phase::Settling { .. }) {
            self.settle_again()
        } else {
            Ok(())
        }
    }

    fn lost_by(&mut self, brick: BrickId, lost: &[BlockAt]) {
        for block in lost {
            self.start.lost_on.entry(*block).or_default().insert(brick);
        }
    }

    /// Once all members have answered: fetches the records that the leader lacks, then sends the members those that
    /// they lack.
    fn decide(&mut self, cx: &mut Context) -> Result<()> {
        if !self.all_present() {
            return Ok(());
        }
        let own = cx.around.brick.position(cx.at.ring, cx.at.own.partition);
        let best = self.members.iter().filter_map(|(brick, member)| Some((member.position?, *brick))).max();
        if let Some((position, brick)) =
            best.filter(|(position, _)| *position > own && !is_planted(Bug::LongerLogIgnored))
        {
            if own.sequence >= position.sequence {
                let what = format!(
                    "records of partition {} of ring {} differ between bricks",
                    cx.at.own.partition, cx.at.ring
                );
                return Err(Error::Damaged { what });
            }
            self.fetch(cx, own, brick);
            return Ok(());
        }
        self.numbers.skip_reserved(cx.around.brick)?;
        self.add_own_lists(cx)?;
        self.log.set_last(own.sequence);
        // Records that follow are held by those who say so.
        self.members.values_mut().for_each(|member| member.held = member.held.min(own.sequence));
        self.find_loose_marker(cx)?;
        self.start.phase = Phase::Feeding;
        let behind: Vec<_> =
            self.members.iter().filter_map(|(brick, member)| Some((*brick, member.position?.sequence))).collect();
        for (brick, sequence) in behind {
            self.feed(cx, brick, sequence)?;
            self.sync_again(cx, brick);
        }
        Ok(())
    }

    /// R3, R13, R15, F15, F17 and F27a, for a leader that is about to serve.
    fn check_serving(&self, cx: &Context) -> Result<()> {
        let view = &cx.at.view;
        require(view.opened && cx.at.leads(), "F15", || {
            format!("view {} is not open, or another leads it", view.epoch)
        })?;
        require(cx.at.names_this_incarnation(), "F17", || {
            format!("view {} names another incarnation of this brick", view.epoch)
        })?;
        require(cx.at.lost.is_empty(), "R15", || format!("{} lost blocks are not settled", cx.at.lost.len()))?;
        require(self.is_settled(), "R3", || format!("record {} is not settled", self.log.last()))?;
        require(!self.transactions.recovers(), "R3", || "an intent is neither undone nor finished".into())?;
        require(!self.times.has_found(), "F27a", || "times of a marked file are not renewed".into())?;
        self.numbers.check()
    }

    /// Moves from phase to phase until one has to wait.
    pub fn continue_levelling(&mut self, cx: &mut Context) -> Result<()> {
        let is_level = self.start.phase == Phase::Feeding && self.all_present() && self.is_settled();
        if is_level && !cx.at.view.opened && self.goes_on_alone(cx) {
            // The host reports it to the coordinator.
        } else if is_level && !cx.at.view.opened {
            cx.out.branches.push("levelling: a view is to begin");
            self.start.phase = Phase::Opening;
            self.round(cx, self.log.last(), cx.at.unsynced(cx.around.brick), vec![Then::Open(cx.at.view.epoch)]);
        } else if is_level && self.syncs_found_lists(cx) {
            // The records that reconcile listed writes follow the sync.
        } else if is_level && self.fast.reconciles_found() {
            self.continue_closing(cx)?;
        } else if is_level && self.must_compare(cx) {
            self.begin_comparison(cx)?;
        } else if is_level {
            let blocks = std::mem::take(&mut self.start.lost_on);
            let blocks: BTreeMap<BlockAt, Lost> =
                blocks.into_iter().map(|(block, by)| (block, Lost { by, asked: false })).collect();
            self.start.phase = Phase::Settling { blocks };
            self.start.lost_writes = Some(false);
            self.settle_blocks(cx)?;
        }
        if matches!(self.start.phase, Phase::Settling { .. })
            && self.start.lost_writes == Some(true)
            && self.is_settled()
        {
            self.forget_lost_writes(cx)?;
        }
        self.end_comparison(cx)?;
        if matches!(&self.start.phase, Phase::Settling { blocks } if blocks.is_empty()) && self.is_settled() {
            cx.at.reconciled();
            for brick in self.members.keys() {
                cx.send_member(*brick, Message::Settled { sequence: self.log.last() });
            }
            self.start.phase = Phase::Recovering;
            self.find_work(cx)?;
        }
        if self.start.phase == Phase::Recovering {
            self.renew_times(cx)?;
        }
        // The numbers are reserved by a record behind all others, and are handed out once that record is on stable
        // storage. So no client sees what a power cut could take although other partitions have built on it.
        if self.start.phase == Phase::Recovering
            && self.is_settled()
            && let Some(error) = self.reserve_numbers(cx)?
        {
            return Err(error);
        }
        let recovers = self.transactions.recovers() || self.times.has_found();
        if self.start.phase == Phase::Recovering && self.numbers.has_room() && !recovers && self.is_settled() {
            self.check_serving(cx)?;
            self.start.phase = Phase::Serving;
            self.requests.retry();
        }
        Ok(())
    }

    /// Reads each lost block from a member that has it, and writes it on all members. A block that no member has was
    /// never durable: it becomes zeros on all.
    fn settle_blocks(&mut self, cx: &mut Context) -> Result<()> {
        let Phase::Settling { blocks } = &mut self.start.phase else { return Ok(()) };
        if self.start.lost_writes == Some(true) {
            return Ok(());
        }
        let own = cx.at.own.brick;
        let mut known = Vec::new();
        for (block, lost) in blocks.iter_mut().filter(|(_, lost)| !lost.asked) {
            lost.asked = true;
            if !lost.by.contains(&own) {
                known.push((*block, read_block(cx.around, cx.at.ring, *block)?));
            } else if let Some(other) = cx.at.others().find(|other| !lost.by.contains(other)) {
                cx.at.send_member(cx.out, other, Message::ReadBlock { at: *block });
            } else {
                known.push((*block, None));
            }
        }
        known.into_iter().try_for_each(|(block, bytes)| self.settle_block(cx, own, block, bytes))
    }

    fn settle_block(&mut self, cx: &mut Context, from: BrickId, block: BlockAt, bytes: Option<Bytes>) -> Result<()> {
        let Phase::Settling { blocks } = &mut self.start.phase else { return Ok(()) };
        let Some(mut lost) = blocks.remove(&block) else { return Ok(()) };
        if bytes.is_none() {
            // This member was sent the record by one that had lost the record's bytes, so it lacks the block without
            // having known. The answer may come twice, if the request did.
            lost.by.insert(from);
            let all_lack_it = lost.by.len() > self.members.len();
            if !all_lack_it {
                blocks.insert(block, Lost { asked: false, ..lost });
                return self.settle_blocks(cx);
            }
            if let Some(lost_writes) = &mut self.start.lost_writes {
                *lost_writes = true;
                blocks.insert(block, Lost { asked: false, ..lost });
                return Ok(());
            }
        }
        let may_be_zeros = lost.by.len() > self.members.len() && self.start.lost_writes.is_none();
        require(bytes.is_some() || may_be_zeros, "R15", || {
            format!("{block:?} becomes zeros, and a member may have it")
        })?;
        cx.out.branches.push("levelling: a lost block is settled");
        let Some(before) = cx.around.brick.shard(cx.at.ring, block.shard)? else { return Ok(()) };
        let bytes = bytes.filter(|bytes| bytes.len() == BLOCK_BYTES).unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
        let stamp = Stamp::of_leader(before.stamp.count + 1, cx.at.view.epoch, Sequence(self.log.last().0 + 1));
        let run = BlockRun { first: block.block, checksums: vec![block_checksum(block.shard, block.block, &bytes)] };
        let record = ShardRecord { stamp, ..before };
        let changes = vec![Change::WriteBlocks { shard: block.shard, record, run, bytes }];
        // It waits for no pledge: the leader has yet to serve, and learns only then who may have one. A session may answer
        // by bytes that all members have lost until its lease is over, as by names that they have lost.
        match self.append_own_for(cx, None, Commit { changes, ..Commit::default() })? {
            Appended::Made(_) => Ok(()),
            // The journal had no room: tried again with the next tick.
            Appended::NoRoom => {
                let Phase::Settling { blocks } = &mut self.start.phase else { return Ok(()) };
                blocks.insert(block, Lost { asked: false, ..lost });
                Ok(())
            }
            Appended::Refused(error) => Err(error),
        }
    }

    /// Clears session slots whose last op was a write, as power cuts took bytes of writes whose records remain. A
    /// client that repeats such a write has it done again, not answered from its slot. The slots are cleared before the
    /// bytes become zeros.
    fn forget_lost_writes(&mut self, cx: &mut Context) -> Result<()> {
        let mut commit = Commit::default();
        let (mut from, to) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        while commit.changes.len() < FORGOTTEN_AT_ONCE {
            let found = cx.around.brick.scan(&from, &to, SCAN_AT_ONCE)?;
            let Some((last, _)) = found.last() else { break };
            from = last.successor();
            for (key, value) in found.into_iter().filter(|(key, _)| key.kind() == Some(Kind::Session)) {
                let record = SessionRecord::from_bytes(value).map_err(Error::from)?;
                if let Reply::Written { .. } = Reply::from_bytes(record.reply).map_err(Error::from)? {
                    // The slot's previous op becomes its last one, so older ops stay refused.
                    let op_id = OpId(record.op_id.0.saturating_sub(SESSION_SLOTS as u64));
                    commit.put(key, &SessionRecord { op_id, reply: Reply::Done.to_bytes() });
                }
            }
        }
        if commit.changes.is_empty() {
            self.start.lost_writes = None;
            return self.settle_blocks(cx);
        }
        cx.out.branches.push("levelling: writes whose bytes are lost are forgotten");
        match self.append_own(cx, commit)? {
            // Continued once the record is settled, or with the next tick if the journal had no room.
            Appended::Made(_) | Appended::NoRoom => Ok(()),
            Appended::Refused(error) => Err(error),
        }
    }

    /// Reserves numbers with a record of its own, if they run low. Other records do so in passing, but a leader that
    /// begins has none, and ops that fail draw numbers without a record. Without room in the journal it is tried again
    /// with the next tick.
    ///
    /// # Errors
    ///
    /// Outer: the brick's error. Inner, in `Ok(Some(_))`: the record was refused.
    pub fn reserve_numbers(&mut self, cx: &mut Context) -> Result<Option<Error>> {
        if self.numbers.reservation().is_none() {
            return Ok(None);
        }
        match self.append_own(cx, Commit::default())? {
            Appended::Refused(error) => Ok(Some(error)),
            Appended::Made(_) | Appended::NoRoom => Ok(None),
        }
    }

    /// Makes a record of the server's own, which is not refused for want of room on the members.
    ///
    /// # Errors
    ///
    /// As [`Leader::append`].
    pub fn append_own(&mut self, cx: &mut Context, commit: Commit) -> Result<Appended> {
        self.append_own_for(cx, Some(SYSTEM_SESSION), commit)
    }

    /// As `append_own`, for something that a session has done; with `None` the record waits for no pledges.
    ///
    /// # Errors
    ///
    /// As [`Leader::append`].
    pub fn append_own_for(&mut self, cx: &mut Context, by: Option<SessionId>, commit: Commit) -> Result<Appended> {
        let draft = Draft {
            session: SYSTEM_SESSION,
            by,
            op_id: OpId(0),
            commit: &commit,
            also: Vec::new(),
            must: true,
            step: None,
            closes: false,
        };
        self.append(cx, draft)
    }

    /// Tries again what had to wait before the leader served.
    pub fn level_again(&mut self, cx: &mut Context) -> Result<()> {
        if self.start.phase == Phase::Asking {
            self.decide(cx)?;
        }
        self.settle_blocks(cx)
    }
}

pub(crate) fn read_block(around: &Around, ring: RingId, block: BlockAt) -> Result<Option<Bytes>> {
    match around.brick.read_block(ring, block.shard, block.block) {
        Err(Error::Damaged { .. }) => Ok(None),
        other => other,
    }
}
