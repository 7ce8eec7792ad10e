//! What waits until records are settled (every member has them) or stable (they are on stable storage of every member).
//! A request is answered once all records that the answer depends on are settled.

use crate::context::{Context, Out, Token};
use crate::invariants::require;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{Address, Message, Outcome};
use crate::pledges::PassedOn;
use crate::requests::Waiting;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;

/// What follows once a record is settled.
#[derive(Debug)]
pub(crate) enum Then {
    Answer(Token, Result<Reply>),
    /// Sends the legs of an op that depend on the log up to this record.
    SendLegs(IntentId, Sequence),
    EndLeg(Address, IntentId, u16, Result<Reply>),
    Ended(IntentId),
    /// The new name is stable, so it is shown: a power cut cannot remove it and keep the inode in another partition.
    Named(IntentId, Reply),
    Forget(IntentId),
    SendForget(Address, IntentId),
    /// Numbers below this may be handed out, and clients may see all records before their reservation.
    Reserved(u64),
    /// All members of the view have the same log: the view may begin.
    Open(Epoch),
    /// Loose fast writes of this term are on stable storage of all members.
    LooseSynced(u64),
    /// No later leader takes the word of these sessions for their mapping rights: others may have them.
    PassedOn(Vec<PassedOn>),
}

impl Leader {
    /// Schedules `then` for when the record is settled or, with `stable`, on stable storage of every member.
    pub fn when(&mut self, sequence: Sequence, stable: bool, then: Then) {
        self.log.after.push_back((sequence, stable, then));
    }

    /// Answers an op whose state was just read, once all records so far are settled.
    pub fn answer(&mut self, token: Token, reply: Result<Reply>) {
        self.when(self.log.last, false, Then::Answer(token, reply));
    }

    /// Handles all that has become settled, until nothing more follows from it.
    pub fn settle(&mut self, cx: &mut Context) -> Result<()> {
        loop {
            self.continue_closing(cx)?;
            self.release_settled(cx)?;
            self.continue_levelling(cx)?;
            if self.requests.take_retry() {
                self.retry(cx)?;
            } else if !self.make_durable(cx) && self.has_released_all(cx.at) {
                return Ok(());
            }
        }
    }

    fn release_settled(&mut self, cx: &mut Context) -> Result<()> {
        let mut held = self.members.values().map(|member| member.held).min();
        if is_planted(Bug::AnsweredBeforeReplication) {
            held = None;
        }
        self.log.settled = self.log.settled.max(held.unwrap_or(self.log.last).min(self.log.last));
        require(self.log.stable <= self.log.last, "R12", || {
            format!("stable up to {}, the log ends with {}", self.log.stable, self.log.last)
        })?;
        while self.log.window.front().is_some_and(|(entry, _)| entry.record.sequence <= self.log.settled) {
            self.log.window.pop_front();
        }
        while let Some(next) = self.log.after.iter().position(|waits| self.may_follow(cx.at, waits)) {
            let Some(&(sequence, ..)) = self.log.after.get(next) else { break };
            require(sequence <= self.log.settled, "R2", || {
                format!("record {sequence} is to be acknowledged, settled is {}", self.log.settled)
            })?;
            let Some((_, stable, then)) = self.log.after.remove(next) else { break };
            match stable {
                true => self.round(cx, sequence, Vec::new(), vec![then]),
                false => self.fire(cx, then)?,
            }
        }
        Ok(())
    }

    /// True if nothing waits that is settled.
    fn has_released_all(&self, at: &Membership) -> bool {
        let held = self.members.values().map(|member| member.held).min().unwrap_or(self.log.last);
        self.log.settled >= held.min(self.log.last) && !self.log.after.iter().any(|waits| self.may_follow(at, waits))
    }

    /// True if the step may follow. In a view that has not begun nothing is acknowledged, though all its members have
    /// it: if the view never begins, others may lead without these records (rule 15 of `docs/fast-lane.md`).
    fn may_follow(&self, at: &Membership, (sequence, _, then): &(Sequence, bool, Then)) -> bool {
        *sequence <= self.log.settled
            && (at.view.opened || matches!(then, Then::Open(_)) || is_planted(Bug::AnsweredBeforeOpening))
    }

    /// True if every member has all records.
    pub fn is_settled(&self) -> bool {
        self.log.settled >= self.log.last
    }

    /// Changes of records that some member may lack, newest last.
    pub fn unsettled(&self) -> impl Iterator<Item = &Change> {
        self.log.window.iter().flat_map(|(entry, _)| &entry.record.changes)
    }

    fn fire(&mut self, cx: &mut Context, then: Then) -> Result<()> {
        match then {
            Then::Answer(token, reply) => cx.out.answers.push((token, reply)),
            Then::SendLegs(intent, upto) => self.send_legs(cx, intent, upto)?,
            Then::EndLeg(to, intent, number, reply) => {
                let outcome = match reply {
                    Ok(reply) => Outcome::Taken { reply },
                    Err(error) => Outcome::Refused { error },
                };
                cx.send(to, Message::LegEnded { intent, number, outcome });
            }
            Then::Ended(intent) => self.op_ended(cx, intent),
            Then::Named(intent, reply) => self.named(cx, intent, reply),
            Then::Forget(intent) => self.send_forget(cx, intent),
            Then::Reserved(upto) => {
                self.numbers.made_safe(upto);
                self.requests.retry();
            }
            Then::SendForget(to, intent) => cx.send(to, Message::Forget { intent }),
            Then::Open(epoch) if epoch == cx.at.view.epoch && !cx.at.view.opened => {
                self.check_members(cx.at)?;
                self.start.allow_open();
                self.fast.loose.view_begins();
                cx.out.open = Some((cx.at.own.partition, epoch));
            }
            Then::Open(_) => {}
            Then::LooseSynced(term) => self.loose_synced(term),
            Then::PassedOn(rights) => self.passed_on(cx, &rights),
        }
        Ok(())
    }

    /// Answers each request that was not answered with `error`, once.
    pub fn refuse_all(&mut self, error: &Error, out: &mut Out) {
        let after = self.log.after.drain(..).map(|(_, _, then)| then);
        let rounds = std::mem::take(&mut self.log.rounds).into_values().flat_map(|round| {
            let alone = round.alone.map(|(token, reply)| Then::Answer(token, reply));
            round.then.into_iter().chain(alone)
        });
        let answers = after.chain(rounds).filter_map(|then| match then {
            Then::Answer(token, _) => Some(token),
            _ => None,
        });
        let waiting = self.requests.take_waiting().into_iter().chain(self.fast.take_reads());
        let tokens = answers.chain(self.transactions.abandon_all()).chain(waiting.filter_map(Waiting::into_token));
        // An op that stops the replica once it is in flight may also wait.
        let mut answered: BTreeSet<Token> = out.answers.iter().map(|(token, _)| *token).collect();
        out.answers.extend(tokens.filter(|token| answered.insert(*token)).map(|token| (token, Err(error.clone()))));
    }
}
