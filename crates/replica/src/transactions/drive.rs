//! Ops over several partitions at their driver: legs before the commit point, the record, legs after it.
//!
//! Before a leg that must be undone is sent, an intent that undoes it is in the log. With the commit point the intent
//! turns from undoing to finishing. Each leg is on stable storage of all members before the next step begins, unless
//! both partitions are on the same bricks, whose journals keep the order.

use crate::context::Context;
use crate::invariants::require;
use crate::leader::Leader;
use crate::log::append::{Appended, Draft};
use crate::log::settle::Then;
use crate::membership::Membership;
use crate::message::{Message, Outcome};
use crate::ops::dispatch::step;
use crate::ops::footprint::names_of;
use crate::ops::step::{Ask, Before, Commit, Here, Next, Stop};
use crate::transactions::driven::{Aim, Driven, RESEND_TICKS, Stage, Undone, marks_of};
use crate::transactions::legs::by_sent_number;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

impl Leader {
    /// Asks an op for its next step, and takes the step.
    pub fn take_next_step(&mut self, cx: &mut Context, intent: IntentId) -> Result<()> {
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return Ok(()) };
        driven.stalled = false;
        let (ask, op) = match &driven.aim {
            Aim::Op(ask, op) => (*ask, op.clone()),
            _ => return Ok(()),
        };
        let now = self.numbers.time(cx.around.now);
        let (numbers, progress) = (&mut self.numbers, &mut driven.progress);
        let (brick, ask, read, carried) = (cx.around.brick, &ask, 0, false);
        let mut here = Here { brick, ask, at: cx.at.own.partition, now, numbers, progress, read, carried };
        match step(&mut here, &op) {
            Ok(Next::Commit(commit, legs)) => self.commit(cx, intent, ask, commit, legs),
            Ok(Next::Reply(reply)) => self.give_up(cx, intent, Undone::Answered(Ok(reply))),
            Err(Stop::Leg(before)) => self.send_before(cx, intent, *before),
            Err(Stop::Wait) => self.give_up(cx, intent, Undone::Again),
            Err(Stop::Error(error)) => self.give_up(cx, intent, Undone::Answered(Err(error))),
        }
    }

    fn send_before(&mut self, cx: &mut Context, intent: IntentId, before: Before) -> Result<()> {
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return Ok(()) };
        let (position, number) = (before.position, driven.progress.answers.len() as u16);
        let only_reads = matches!(before.leg, Leg::ReadShard { .. } | Leg::ShardEnd { .. });
        driven.pending.insert(number, IntentLeg { position, number, leg: before.leg });
        if let Some(leg) = before.undo {
            driven.undo.push(IntentLeg { position, number, leg });
            let undo = driven.undo.clone();
            let recorded = self.record_intent(cx, intent, undo)?;
            if !recorded.is_made() {
                let Some(driven) = self.transactions.driven.get_mut(&intent) else { return Ok(()) };
                driven.pending.clear();
                driven.undo.pop();
                driven.stalled = matches!(recorded, Appended::NoRoom);
            }
            match recorded {
                Appended::Made(_) => {}
                Appended::NoRoom => return Ok(()),
                Appended::Refused(error) => return self.give_up(cx, intent, Undone::Answered(Err(error))),
            }
        }
        // A leg that only reads depends on nothing that was done before it.
        let after: &[Position] = if only_reads { &[] } else { &[position] };
        self.legs_when_stable(cx, intent, after);
        Ok(())
    }

    fn record_intent(&mut self, cx: &mut Context, intent: IntentId, legs: Vec<IntentLeg>) -> Result<Appended> {
        let Some(driven) = self.transactions.driven.get(&intent) else {
            return Err(Error::bug("an intent of an op that is not in flight"));
        };
        let record = IntentRecord { what: driven.what().into(), volume: driven.volume(), legs };
        let mut commit = Commit::default();
        commit.put(self.intent_key(cx.at, intent), &record);
        let appended = self.append_own(cx, commit)?;
        if appended.is_made()
            && let Some(driven) = self.transactions.driven.get_mut(&intent)
        {
            driven.recorded = true;
        }
        Ok(appended)
    }

    pub(super) fn intent_key(&self, at: &Membership, intent: IntentId) -> Key {
        Key::intent(at.ring, at.own.partition.first_position(at.count), intent)
    }

    /// Sends the pending legs once the log so far is settled, or stable if a leg's partition is on other bricks.
    fn legs_when_stable(&mut self, cx: &Context, intent: IntentId, positions: &[Position]) {
        let elsewhere = positions.iter().any(|position| !cx.has_same_bricks(position.partition(cx.at.count)));
        if let Some(driven) = self.transactions.driven.get_mut(&intent) {
            driven.follow = self.log.last();
        }
        self.when(
            self.log.last(),
            elsewhere && !is_planted(Bug::LegsSentBeforeSync),
            Then::SendLegs(intent, self.log.last()),
        );
    }

    /// Sends the pending legs of an op, if all that they depend on is in the log up to `upto`.
    ///
    /// # Errors
    ///
    /// `Error::Bug` if a rule does not hold.
    pub fn send_legs(&mut self, cx: &mut Context, intent: IntentId, upto: Sequence) -> Result<()> {
        let ticks = self.requests.ticks();
        // A resend that was scheduled before these legs were pending does not cover what they depend on.
        let Some(driven) = self.transactions.driven.get_mut(&intent).filter(|driven| driven.follow <= upto) else {
            return Ok(());
        };
        let is_undoable = driven.undo.is_empty() || driven.recorded;
        require(is_undoable, "R6", || format!("legs of intent {intent:?} are to be sent before it is in the log"))?;
        // Legs that undo are sent at once: what they follow was settled before the legs that they undo were sent.
        let is_undoing = matches!(driven.stage, Stage::Undoing(_));
        let is_settled = upto <= self.log.settled() || is_planted(Bug::AnsweredBeforeOpening);
        require(is_undoing || is_settled, "R7", || {
            format!("legs follow record {upto}, settled is {}", self.log.settled())
        })?;
        driven.resend_at = ticks + RESEND_TICKS;
        let (session, op_id) = match &driven.aim {
            Aim::Op(ask, _) => (ask.session, ask.op_id),
            _ => (SYSTEM_SESSION, OpId(0)),
        };
        let volume = driven.volume();
        for (number, IntentLeg { position, leg, .. }) in &driven.pending {
            if driven.is_early(leg) {
                continue;
            }
            let partition = position.partition(cx.at.count);
            let Some((to, view)) = cx.leader_of(partition).zip(cx.epoch_of(partition)) else { continue };
            let (number, leg) = (*number, leg.clone());
            cx.send(to, Message::Leg { intent, number, volume, session, op_id, leg, view });
        }
        Ok(())
    }

    /// Makes the record that is the commit point of an op.
    #[allow(clippy::too_many_arguments, reason = "an op, its record and where it goes")]
    fn commit(
        &mut self,
        cx: &mut Context,
        intent: IntentId,
        ask: &Ask,
        commit: Commit,
        legs: Vec<(Position, Leg)>,
    ) -> Result<()> {
        let key = self.intent_key(cx.at, intent);
        let Some(driven) = self.transactions.driven.get(&intent) else { return Ok(()) };
        let first = driven.progress.answers.len();
        let number = |(index, (position, leg))| IntentLeg { position, number: (first + index) as u16, leg };
        let legs: Vec<IntentLeg> = legs.into_iter().enumerate().map(number).collect();
        let reply = commit.reply.clone().unwrap_or(Reply::Done);
        let mut also = Vec::new();
        if !legs.is_empty() {
            let record = IntentRecord { what: driven.what().into(), volume: ask.volume, legs: legs.clone() };
            also.push(Change::Put { key, value: record.to_bytes() });
        } else if driven.recorded {
            also.push(Change::Delete { key });
        }
        also.extend(self.session_change(cx.at, ask, &reply));
        let must = driven.recorded;
        let (session, op_id, step, closes) = (ask.session, ask.op_id, None, false);
        let draft = Draft { session, op_id, by: Some(session), commit: &commit, also, must, step, closes };
        let sequence = match self.append(cx, draft)? {
            Appended::Made(sequence) => sequence,
            Appended::NoRoom => {
                self.stall(intent);
                return Ok(());
            }
            Appended::Refused(error) => {
                return self.give_up(cx, intent, Undone::Answered(Err(error)));
            }
        };
        self.remember_slot(ask);
        self.transactions.collisions = 0;
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return Ok(()) };
        driven.marked = marks_of(driven, &legs, cx.at.count);
        driven.undo.clear();
        if legs.is_empty() {
            driven.stage = Stage::Ending;
            self.committed(cx, intent, sequence, reply);
            return Ok(());
        }
        driven.recorded = true;
        cx.out.branches.push("an op has legs after its commit point");
        driven.stage = Stage::After(reply);
        let positions: Vec<Position> = legs.iter().map(|leg| leg.position).collect();
        driven.pending = by_sent_number(legs);
        self.legs_when_stable(cx, intent, &positions);
        Ok(())
    }

    /// Ends an op without legs after its commit point. If its name's inode is on other bricks, the name is not shown
    /// before it is stable: a power cut would remove the name, the intent would remove the inode, and what clients had
    /// made in that directory meanwhile would be lost.
    fn committed(&mut self, cx: &Context, intent: IntentId, sequence: Sequence, reply: Reply) {
        let elsewhere = self.is_marked_elsewhere(cx, intent);
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return };
        if let (true, Aim::Op(ask, op)) = (elsewhere, &driven.aim) {
            let hold = |(dir, name): (InodeId, &Name)| (dir, ask.hold_key(cx.at.own.partition, dir, name));
            let names: Vec<(InodeId, Key)> = names_of(op).into_iter().flatten().map(hold).collect();
            if !names.is_empty() && !is_planted(Bug::NameShownBeforeSync) {
                self.transactions.unnamed.insert(intent, names);
                return self.when(sequence, true, Then::Named(intent, reply));
            }
        }
        let tokens = std::mem::take(&mut driven.tokens);
        tokens.into_iter().for_each(|token| self.when(sequence, false, Then::Answer(token, Ok(reply.clone()))));
        self.when(sequence, elsewhere, Then::Forget(intent));
        self.release(intent);
    }

    /// Shows the name and answers the op: the name and the inode that it leads to are on stable storage.
    pub fn named(&mut self, cx: &mut Context, intent: IntentId, reply: Reply) {
        self.transactions.unnamed.remove(&intent);
        let tokens = self
            .transactions
            .driven
            .get_mut(&intent)
            .map(|driven| std::mem::take(&mut driven.tokens))
            .unwrap_or_default();
        cx.out.answers.extend(tokens.into_iter().map(|token| (token, Ok(reply.clone()))));
        self.release(intent);
        self.send_forget(cx, intent);
    }

    fn stall(&mut self, intent: IntentId) {
        if let Some(driven) = self.transactions.driven.get_mut(&intent) {
            driven.stalled = true;
        }
    }

    /// Ends an op before its commit point. What its legs did is undone first.
    fn give_up(&mut self, cx: &mut Context, intent: IntentId, undone: Undone) -> Result<()> {
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return Ok(()) };
        driven.stage = Stage::Undoing(undone.clone());
        cx.out.branches.push(match (&undone, driven.undo.is_empty()) {
            (_, true) => "an op ends before any leg",
            (Undone::Again, _) => "an op is undone and begins again",
            (Undone::Answered(_), _) => "an op is undone and answered",
        });
        driven.pending = by_sent_number(driven.undo.clone());
        if driven.recorded {
            if driven.pending.is_empty() {
                self.end_intent(cx, intent)?;
            } else {
                self.send_legs(cx, intent, self.log.last())?;
            }
            return Ok(());
        }
        self.end_undone(intent, undone);
        Ok(())
    }

    /// Ends an op whose legs have been undone.
    fn end_undone(&mut self, intent: IntentId, undone: Undone) {
        if let Some(Driven { aim: Aim::Op(ask, op), tokens, .. }) = self.transactions.driven.remove(&intent) {
            match undone {
                Undone::Again => self.wait_again(tokens, ask, *op),
                Undone::Answered(reply) => {
                    tokens.into_iter().for_each(|token| self.answer_op(token, &ask, reply.clone()));
                }
            }
        }
        self.release(intent);
    }

    pub fn leg_ended(&mut self, cx: &mut Context, intent: IntentId, number: u16, outcome: Outcome) -> Result<()> {
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return Ok(()) };
        if !driven.pending.contains_key(&number) {
            return Ok(());
        }
        let before = driven.stage == Stage::Before;
        match outcome {
            Outcome::Taken { reply } => {
                driven.pending.remove(&number);
                match (before, driven.pending.is_empty()) {
                    (true, _) => {
                        driven.progress.answers.push(reply);
                        self.take_next_step(cx, intent)
                    }
                    (false, true) => self.end_intent(cx, intent),
                    (false, false) => {
                        if driven.pending.values().all(|left| left.leg == Leg::ReleaseMoves) {
                            self.legs_when_stable(cx, intent, &[ROOT.position()]);
                        }
                        Ok(())
                    }
                }
            }
            Outcome::Refused { error } if before => {
                driven.pending.remove(&number);
                self.give_up(cx, intent, Undone::Answered(Err(error)))
            }
            Outcome::Busy if before => {
                driven.pending.remove(&number);
                self.give_up(cx, intent, Undone::Again)
            }
            // The leg must be taken: it is sent again with the next tick.
            Outcome::Refused { .. } | Outcome::Busy => {
                driven.resend_at = 0;
                Ok(())
            }
        }
    }

    /// Removes the intent, once all legs after the commit point, or all legs that undo, were taken.
    fn end_intent(&mut self, cx: &mut Context, intent: IntentId) -> Result<()> {
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return Ok(()) };
        if let (Aim::Op(..), Stage::After(reply)) = (&driven.aim, &driven.stage) {
            let reply = reply.clone();
            driven.stage = Stage::Ending;
            cx.out
                .answers
                .extend(std::mem::take(&mut driven.tokens).into_iter().map(|token| (token, Ok(reply.clone()))));
            self.transactions.swept.push(intent);
            self.release(intent);
            return Ok(());
        }
        let mut commit = Commit::default();
        if driven.recorded {
            commit.delete(self.intent_key(cx.at, intent));
        }
        if let Some(Aim::Collect(key, _)) = self.transactions.driven.get(&intent).map(|driven| &driven.aim) {
            commit.delete(key.clone());
        }
        match self.append_own(cx, commit)? {
            Appended::Made(sequence) => {
                self.when(sequence, false, Then::Ended(intent));
                Ok(())
            }
            Appended::NoRoom => {
                self.stall(intent);
                Ok(())
            }
            Appended::Refused(error) => Err(error),
        }
    }

    /// Handles the settled removal of the intent.
    pub fn op_ended(&mut self, cx: &mut Context, intent: IntentId) {
        let Some(driven) = self.transactions.driven.get_mut(&intent) else { return };
        match std::mem::replace(&mut driven.stage, Stage::Ending) {
            Stage::Undoing(undone) => return self.end_undone(intent, undone),
            _ if self.is_marked_elsewhere(cx, intent) => self.when(self.log.last(), true, Then::Forget(intent)),
            _ => self.send_forget(cx, intent),
        }
        self.release(intent);
    }

    /// Sends the legs again that wait for answers of servers which are connected anew.
    pub fn send_again(&mut self, cx: &Context, bricks: &[BrickId]) {
        let waits = |leg: &IntentLeg| {
            cx.leader_of(leg.position.partition(cx.at.count)).is_some_and(|to| bricks.contains(&to.brick))
        };
        let waiting: Vec<IntentId> = self
            .transactions
            .driven
            .iter()
            .filter(|(_, driven)| driven.pending.values().any(waits))
            .map(|(intent, _)| *intent)
            .collect();
        // They may never have been sent, so they wait for what they depend on.
        waiting
            .into_iter()
            .for_each(|intent| self.when(self.log.last(), true, Then::SendLegs(intent, self.log.last())));
    }

    /// Continues what was put off, and sends unanswered legs again.
    pub fn drive_again(&mut self, cx: &mut Context) -> Result<()> {
        let ids: Vec<IntentId> = self.transactions.driven.keys().copied().collect();
        for intent in ids {
            let Some(driven) = self.transactions.driven.get(&intent) else { continue };
            if driven.stalled && driven.stage == Stage::Before {
                self.take_next_step(cx, intent)?;
            } else if driven.stalled && driven.pending.is_empty() {
                self.stalled_end(cx, intent)?;
            } else if !driven.pending.is_empty() && driven.resend_at <= self.requests.ticks() {
                cx.out.branches.push("legs are sent again");
                self.when(self.log.last(), true, Then::SendLegs(intent, self.log.last()));
            }
        }
        Ok(())
    }

    fn stalled_end(&mut self, cx: &mut Context, intent: IntentId) -> Result<()> {
        if let Some(driven) = self.transactions.driven.get_mut(&intent) {
            driven.stalled = false;
        }
        self.end_intent(cx, intent)
    }
}
