//! What waits for records to be settled (on every member), or stable (on stable storage of every member), and what happens
//! then. Nothing is answered before all records that the answer depends on are settled.

use crate::context::{Context, Out, Token};
use crate::invariants::require;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{Address, Message, Outcome};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// What happens once a record is settled.
#[derive(Debug)]
pub(crate) enum Then {
    Answer(Token, Result<Reply>),
    /// Legs of an op that follow what is in the log up to here.
    SendLegs(IntentId, Sequence),
    EndLeg(Address, IntentId, u16, Result<Reply>),
    Ended(IntentId),
    /// What its name leads to in another partition can not lose the name any more.
    Named(IntentId, Reply),
    Forget(IntentId),
    SayGone(Address, IntentId),
    /// Numbers below this are safe, and all that was in the log before their reservation.
    Reserved(u64),
    /// The members of the view are level: it may begin.
    Open(Epoch),
    /// Fast writes of this term that were loose are on stable storage of all members.
    LooseSynced(u64),
}

impl Leader {
    /// `then`, once the record is settled, or (`stable`) on stable storage of every member.
    pub fn when(&mut self, sequence: Sequence, stable: bool, then: Then) {
        self.log.after.push_back((sequence, stable, then));
    }

    /// The answer of an op whose state was read just now.
    pub fn answer(&mut self, token: Token, reply: Result<Reply>) {
        self.when(self.log.last, false, Then::Answer(token, reply));
    }

    /// What all members have is let out, and what waited for it goes on.
    pub fn settle(&mut self, cx: &mut Context) -> Result<()> {
        loop {
            self.go_on_closing(cx)?;
            self.let_out(cx)?;
            self.go_on_levelling(cx)?;
            if self.requests.take_retry() {
                self.retry(cx)?;
            } else if !self.make_durable(cx) && self.is_let_out(cx.at) {
                return Ok(());
            }
        }
    }

    fn let_out(&mut self, cx: &mut Context) -> Result<()> {
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
        while let Some(next) = self.log.after.iter().position(|waits| self.may_go(cx.at, waits)) {
            let Some((sequence, stable, then)) = self.log.after.remove(next) else { break };
            require(sequence <= self.log.settled, "R2", || {
                format!("record {sequence} is to be acknowledged, settled is {}", self.log.settled)
            })?;
            match stable {
                true => self.round(cx, sequence, Vec::new(), vec![then]),
                false => self.fire(cx, then)?,
            }
        }
        Ok(())
    }

    /// Nothing that is settled waits any more.
    fn is_let_out(&self, at: &Membership) -> bool {
        let held = self.members.values().map(|member| member.held).min().unwrap_or(self.log.last);
        self.log.settled >= held.min(self.log.last) && !self.log.after.iter().any(|waits| self.may_go(at, waits))
    }

    /// What all members of a view have that has not begun may not be what counts: if it never begins, others may lead without
    /// it. So nobody is told before (rule 15).
    fn may_go(&self, at: &Membership, (sequence, _, then): &(Sequence, bool, Then)) -> bool {
        *sequence <= self.log.settled
            && (at.view.opened || matches!(then, Then::Open(_)) || is_planted(Bug::AnsweredBeforeOpening))
    }

    /// Whether every member has all records.
    pub fn is_settled(&self) -> bool {
        self.log.settled >= self.log.last
    }

    /// Changes that some member may lack, newest last.
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
            Then::Forget(intent) => self.tell_forget(cx, intent),
            Then::Reserved(upto) => {
                self.numbers.made_safe(upto);
                self.requests.retry();
            }
            Then::SayGone(to, intent) => cx.send(to, Message::Forget { intent }),
            Then::Open(epoch) if epoch == cx.at.view.epoch && !cx.at.view.opened => {
                require(self.all_present() && self.is_settled(), "R3", || {
                    format!("view {epoch} is to open, and members lack {:?}", self.waits_for())
                })?;
                self.start.allow_open();
                self.fast.loose.view_begins();
                cx.out.open = Some((cx.at.own.partition, epoch));
            }
            Then::Open(_) => {}
            Then::LooseSynced(term) => self.loose_synced(term),
        }
        Ok(())
    }

    pub fn refuse_all(&mut self, error: &Error, out: &mut Out) {
        let after = self.log.after.drain(..).map(|(_, _, then)| then);
        let rounds = std::mem::take(&mut self.log.rounds).into_values().flat_map(|round| {
            let alone = round.alone.map(|(token, reply)| Then::Answer(token, reply));
            round.then.into_iter().chain(alone)
        });
        for then in after.chain(rounds) {
            if let Then::Answer(token, _) = then {
                out.answers.push((token, Err(error.clone())));
            }
        }
        out.answers.extend(self.transactions.abandon_all().map(|token| (token, Err(error.clone()))));
        for waiting in self.requests.take_waiting().into_iter().chain(self.fast.take_reads()) {
            waiting.refuse(error, out);
        }
    }
}
