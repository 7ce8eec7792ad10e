//! Before a leader serves: it asks every member where its log ends, brings all to the longest, lets them agree on the
//! blocks that power cuts took, and undoes or finishes ops that a crash cut short.
//!
//! The member with the greatest (epoch, sequence) has everything that was acknowledged. A journal is given back only up
//! to what all members have on stable storage, so what one lacks another still has, unless its journal has rotted (`feed.rs`).

use crate::context::{Around, Context};
use crate::invariants::require;
use crate::leader::{Leader, Member};
use crate::log::append::{Appended, Draft};
use crate::log::follower::append_if_room;
use crate::log::settle::Then;
use crate::message::{Address, BlockAt, FastList, Message};
use crate::ops::step::Commit;
use crate::view_start::compare::Comparison;
use crate::view_start::feed::has_lost_records;
use bytes::Bytes;
use hekate_brick::{Amount, LogPosition, block_checksum};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Entries of one scan.
const SCAN_AT_ONCE: usize = 512;

/// Writes that one record forgets.
const DOUBTED_AT_ONCE: usize = 1024;

/// How far a leader is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It was not started.
    #[default]
    Silent,
    /// It asks the members for their positions.
    Asking,
    /// It takes the records that it lacks from another member; those are gathered as they come.
    Fetching {
        from: BrickId,
        /// Who cannot give them.
        mute: Vec<BrickId>,
    },
    /// It lacks records that this member has and cannot give it: that is to lead.
    Yielding {
        to: BrickId,
    },
    /// The members take the records that they lack.
    Feeding,
    /// They have them; the view has yet to begin. No record is made before that: a view that did not begin leaves nothing.
    Opening,
    /// The members hold the same records; what they hold is compared.
    Comparing(Box<Comparison>),
    /// The members agree on blocks that power cuts took: of each its content, as far as it is known.
    Settling {
        blocks: BTreeMap<BlockAt, Lost>,
    },
    /// Ops that a crash cut short are undone or finished; legs of others are taken.
    Recovering,
    Serving,
}

/// A block that some members lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Members that lost it.
    by: BTreeSet<BrickId>,
    /// Who was asked for it.
    asked: bool,
}

impl Leader {
    pub fn serves(&self) -> bool {
        self.start.phase == Phase::Serving
    }

    /// Whether legs of other partitions' ops are taken.
    pub fn takes_legs(&self) -> bool {
        matches!(self.start.phase, Phase::Serving | Phase::Recovering)
    }

    /// In a new life, or a new view.
    pub fn begin(&mut self, cx: &mut Context) -> Result<()> {
        self.start.phase = Phase::Asking;
        // A member may have lost what it held.
        self.log.restart();
        self.start.lost_on = cx.at.lost.iter().map(|block| (*block, BTreeSet::from([cx.at.own.brick]))).collect();
        self.members = cx.at.others().map(|brick| (brick, Member::default())).collect();
        self.healing.restart(cx.at.learners());
        self.start.may_open = false;
        // The note of a file says that its times are to be renewed.
        self.times.forget();
        self.begin_fast_lane(cx)?;
        self.ask_members_only(cx);
        self.ask_positions(cx);
        self.decide(cx)
    }

    /// Also now and then: who has not answered is asked again.
    pub fn ask_positions(&self, cx: &mut Context) {
        let away = self.members.iter().filter(|(_, member)| member.position.is_none()).map(|(brick, _)| *brick);
        let unheard = self.healing.unheard();
        away.chain(unheard).for_each(|brick| cx.send_member(brick, Message::Ask { term: self.fast.term }));
    }

    /// The view has begun.
    pub fn opened(&mut self, cx: &mut Context) -> Result<()> {
        self.start.may_open = false;
        if self.start.phase == Phase::Opening {
            self.start.phase = Phase::Feeding;
        }
        self.settle(cx)
    }

    /// Servers can be heard, in a new life: what their members have must be asked anew, and what they were asked for.
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
                self.learner_told(from.brick, LogPosition { epoch, sequence }, (&lost, lists), heal);
                self.lost_with_learner(cx, &lost)?;
                self.heal(cx)
            }
            Message::Position { epoch, sequence, room, lost, lists, .. } => {
                let told = (LogPosition { epoch, sequence }, room, lost, lists);
                self.learn_position(cx, from.brick, told)
            }
            Message::Append { entry, fresh, .. } if self.fetches_from(from.brick) => {
                if entry.record.sequence.0 == self.log.last().0 + 1 {
                    if !append_if_room(cx.around.brick, cx.at.ring, &entry, &fresh)? {
                        // It is fetched again when there is room.
                        cx.out.branches.push("levelling: no room for what is fetched");
                        (cx.out.wants_room, self.start.phase) = (true, Phase::Asking);
                        return Ok(());
                    }
                    self.log.set_last(entry.record.sequence);
                }
                Ok(())
            }
            Message::FetchEnd { after } if self.fetches_from(from.brick) => {
                let own = cx.around.brick.position(cx.at.ring, cx.at.own.partition).sequence;
                if after <= own {
                    return self.decide(cx);
                }
                // Who has given back what comes before that knew that all members had it, this one too.
                let error = has_lost_records(cx.at, cx.at.own.brick, own);
                if !cx.at.view.forgetful {
                    return Err(cx.around.brick.poison(&error));
                }
                // Nobody is without whom such a view cannot go on: who has more goes on alone.
                cx.out.notes.push(error.to_string());
                self.start.phase = Phase::Yielding { to: from.brick };
                Ok(())
            }
            Message::Unreadable if self.fetches_from(from.brick) => {
                if let Phase::Fetching { mute, .. } = &mut self.start.phase {
                    mute.push(from.brick);
                }
                self.decide(cx)
            }
            Message::Block { at: block, bytes } => {
                self.block_lent(cx.at, from.brick, block, bytes.as_ref());
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
        member.held = position.sequence.min(self.log.last());
        self.lost_by(brick, &lost);
        if !self.takes_legs() && !is_planted(Bug::ListedWritesIgnored) {
            self.fast.found_on(brick, lists);
        }
        match self.start.phase {
            Phase::Silent => Ok(()),
            Phase::Asking | Phase::Fetching { .. } | Phase::Yielding { .. } => self.decide(cx),
            _ => {
                if position.sequence > self.log.last() {
                    let what = format!("brick {} has records that its living leader never made", brick.text());
                    return Err(Error::Bug { what });
                }
                if matches!(self.start.phase, Phase::Comparing(_)) {
                    // From the beginning, once all have all records again.
                    self.start.phase = Phase::Feeding;
                }
                self.feed(cx, brick, position.sequence)?;
                self.sync_again(cx, brick);
                self.list_again(cx, brick);
                self.read_again(brick);
                self.settle_anew()
            }
        }
    }

    /// A member came back without some blocks while the others went on: they are agreed on as before serving.
    fn settle_anew(&mut self) -> Result<()> {
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

    /// This leader may have been fed the record by one that had lost its bytes, before the view had one member (rule L20), and lacks them
    /// too, without knowing. Nobody is healed before it can be read.
    fn lost_with_learner(&mut self, cx: &Context, lost: &[BlockAt]) -> Result<()> {
        for block in lost {
            if let Err(Error::Damaged { .. }) = cx.around.brick.read_block(cx.at.ring, block.shard, block.block) {
                self.lost_by(cx.at.own.brick, &[*block]);
            }
        }
        if self.takes_legs() || matches!(self.start.phase, Phase::Settling { .. }) {
            self.settle_anew()
        } else {
            Ok(())
        }
    }

    fn lost_by(&mut self, brick: BrickId, lost: &[BlockAt]) {
        for block in lost {
            self.start.lost_on.entry(*block).or_default().insert(brick);
        }
    }

    /// Once all have answered: what is missing here is fetched, what is missing there is given.
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
        self.find_own_lists(cx)?;
        self.log.set_last(own.sequence);
        self.find_loose_note(cx)?;
        self.start.phase = Phase::Feeding;
        let behind: Vec<_> =
            self.members.iter().filter_map(|(brick, member)| Some((*brick, member.position?.sequence))).collect();
        for (brick, sequence) in behind {
            self.feed(cx, brick, sequence)?;
            self.sync_again(cx, brick);
        }
        Ok(())
    }

    /// R3, R13, R15, F15 and F17, for a leader that is about to serve.
    fn check_serving(&self, cx: &Context) -> Result<()> {
        let view = &cx.at.view;
        require(view.opened && cx.at.leads(), "F15", || {
            format!("view {} is not open, or another leads it", view.epoch)
        })?;
        require(cx.at.is_meant(), "F17", || format!("view {} names another incarnation of this brick", view.epoch))?;
        require(self.all_present(), "R3", || format!("members are away: {:?}", self.away()))?;
        require(cx.at.lost.is_empty(), "R15", || format!("{} lost blocks are not settled", cx.at.lost.len()))?;
        require(!self.transactions.recovers(), "R3", || "an intent is neither undone nor finished".into())?;
        self.numbers.check()
    }

    /// From phase to phase, as far as it goes.
    pub fn go_on_levelling(&mut self, cx: &mut Context) -> Result<()> {
        let is_even = self.start.phase == Phase::Feeding && self.all_present() && self.is_settled();
        if is_even && !cx.at.view.opened && self.goes_on_alone(cx) {
            // The coordinator is told by who hosts it.
        } else if is_even && !cx.at.view.opened {
            cx.out.branches.push("levelling: a view is to begin");
            self.start.phase = Phase::Opening;
            self.round(cx, self.log.last(), cx.at.unsynced(cx.around.brick), vec![Then::Open(cx.at.view.epoch)]);
        } else if is_even && self.syncs_found(cx) {
            // Records about them follow.
        } else if is_even && self.fast.evens_found() {
            self.go_on_closing(cx)?;
        } else if is_even && self.is_to_compare(cx) {
            self.begin_comparison(cx)?;
        } else if is_even {
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
            self.doubt_writes(cx)?;
        }
        self.end_comparison(cx)?;
        if matches!(&self.start.phase, Phase::Settling { blocks } if blocks.is_empty()) && self.is_settled() {
            cx.at.lost.clear();
            for brick in self.members.keys() {
                cx.send_member(*brick, Message::Settled { sequence: self.log.last() });
            }
            self.start.phase = Phase::Recovering;
            self.find_work(cx)?;
        }
        if self.start.phase == Phase::Recovering {
            self.renew_times(cx)?;
        }
        // Nobody is shown what a power cut could still take from under what other partitions made of it: the numbers are
        // reserved by a record behind all of that.
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

    /// Blocks that power cuts took from some members: all get them from one that has them; what none has never happened,
    /// and is zeros on all.
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
            // A member that was fed the record by one that had lost its bytes lacks them too, and did not know. It may say so
            // twice, if it was asked twice.
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
        cx.out.branches.push("levelling: a lost block is settled");
        let Some(before) = cx.around.brick.shard(cx.at.ring, block.shard)? else { return Ok(()) };
        let bytes = bytes.filter(|bytes| bytes.len() == BLOCK_BYTES).unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
        let stamp = Stamp::of_leader(before.stamp.count + 1, cx.at.view.epoch, Sequence(self.log.last().0 + 1));
        let run = BlockRun { first: block.block, checksums: vec![block_checksum(block.shard, block.block, &bytes)] };
        let record = ShardRecord { stamp, ..before };
        let changes = vec![Change::WriteBlocks { shard: block.shard, record, run, bytes }];
        match self.append_own(cx, Commit { changes, ..Commit::default() })? {
            Appended::Made(_) => Ok(()),
            // There was no room in the journal: once more, a little later.
            Appended::NoRoom => {
                let Phase::Settling { blocks } = &mut self.start.phase else { return Ok(()) };
                blocks.insert(block, Lost { asked: false, ..lost });
                Ok(())
            }
            Appended::Refused(error) => Err(error),
        }
    }

    /// Records of writes outlived a power cut, their bytes did not: a write whose client still waits for its answer is not
    /// answered from its slot but done again. That is in the log before the bytes become zeros.
    fn doubt_writes(&mut self, cx: &mut Context) -> Result<()> {
        let mut commit = Commit::default();
        let (mut from, to) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        while commit.changes.len() < DOUBTED_AT_ONCE {
            let found = cx.around.brick.scan(&from, &to, SCAN_AT_ONCE)?;
            let Some((last, _)) = found.last() else { break };
            from = last.successor();
            for (key, value) in found.into_iter().filter(|(key, _)| key.kind() == Some(Kind::Session)) {
                let record = SessionRecord::from_bytes(value).map_err(Error::from)?;
                if let Reply::Written { .. } = Reply::from_bytes(record.reply).map_err(Error::from)? {
                    // As if the slot's op before it had been the last: what is older stays refused.
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
            // Settled, it is looked at again; without room, a little later.
            Appended::Made(_) | Appended::NoRoom => Ok(()),
            Appended::Refused(error) => Err(error),
        }
    }

    /// Numbers are reserved with records of others, but for a leader that begins, and for one that drew many for ops of which no record was
    /// made. Without room for it that is done a little later. -> why it is not.
    pub fn reserve_numbers(&mut self, cx: &mut Context) -> Result<Option<Error>> {
        if self.numbers.reservation().is_none() {
            return Ok(None);
        }
        match self.append_own(cx, Commit::default())? {
            Appended::Refused(error) => Ok(Some(error)),
            Appended::Made(_) | Appended::NoRoom => Ok(None),
        }
    }

    /// A record of the server's own.
    pub fn append_own(&mut self, cx: &mut Context, commit: Commit) -> Result<Appended> {
        let draft = Draft {
            session: SYSTEM_SESSION,
            op_id: OpId(0),
            commit: &commit,
            also: Vec::new(),
            must: true,
            step: None,
            closes: false,
        };
        self.append(cx, draft)
    }

    /// What was put off while levelling is tried again.
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
