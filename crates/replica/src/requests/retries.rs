//! Retries: the last answer of each slot of a session.

use crate::context::{Context, Token};
use crate::invariants::require;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::ops::step::Ask;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

impl Leader {
    /// The change that keeps an op's answer for a retry. `None` for ops of the server itself.
    pub fn session_change(&self, at: &Membership, ask: &Ask, reply: &Reply) -> Option<Change> {
        if ask.session == SYSTEM_SESSION {
            return None;
        }
        let slot = (ask.op_id.0 % SESSION_SLOTS as u64) as u16;
        let key = Key::session(at.ring, at.own.partition.first_position(at.count), ask.session, slot);
        let record = SessionRecord { op_id: ask.op_id, reply: reply.to_bytes() };
        Some(Change::Put { key, value: record.to_bytes() })
    }

    pub fn remember_slot(&mut self, ask: &Ask) {
        if ask.session != SYSTEM_SESSION {
            self.requests.slots.insert((ask.session, slot_of(ask.op_id)), ask.op_id);
        }
    }

    /// The answer of an op that was done before. `None` if the op is new.
    pub fn remembered(&mut self, cx: &Context, ask: &Ask) -> Result<Option<Result<Reply>>> {
        if ask.session == SYSTEM_SESSION || is_planted(Bug::RetryExecuted) {
            return Ok(None);
        }
        let slot = slot_of(ask.op_id);
        match self.requests.kept.get(&(ask.session, slot)) {
            Some((kept, reply)) if *kept == ask.op_id => return Ok(Some(reply.clone())),
            Some((kept, _)) if *kept > ask.op_id => return Ok(Some(Err(answered_long_ago()))),
            _ => {}
        }
        let known = self.requests.slots.get(&(ask.session, slot)).copied();
        if known.is_some_and(|known| known < ask.op_id) {
            return Ok(None);
        }
        let key =
            Key::session(cx.at.ring, cx.at.own.partition.first_position(cx.at.count), ask.session, u16::from(slot));
        let Some(value) = cx.around.brick.get(&key)? else {
            self.requests.slots.insert((ask.session, slot), OpId(0));
            return Ok(None);
        };
        let record = SessionRecord::from_bytes(value)?;
        self.requests.slots.insert((ask.session, slot), record.op_id);
        Ok(match record.op_id.cmp(&ask.op_id) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(Ok(Reply::from_bytes(record.reply)?)),
            std::cmp::Ordering::Greater if is_planted(Bug::SupersededOpExecuted) => None,
            // The op arrives after its retry was answered and its slot was used again: no client waits for it.
            std::cmp::Ordering::Greater => Some(Err(answered_long_ago())),
        })
    }

    /// R5: an op whose record is about to be made is not older than the last one of its slot.
    ///
    /// # Errors
    ///
    /// `Error::Bug` if it is.
    pub fn check_slot(&self, ask: &Ask) -> Result<()> {
        let known = self.requests.slots.get(&(ask.session, slot_of(ask.op_id)));
        let is_newest = known.is_none_or(|known| *known <= ask.op_id)
            || is_planted(Bug::RetryExecuted)
            || is_planted(Bug::SupersededOpExecuted);
        require(is_newest, "R5", || format!("op {:?} is executed, its slot has {known:?}", ask.op_id))
    }

    /// Forgets the ops and answers of a session.
    pub fn forget_session(&mut self, session: SessionId) {
        self.requests.slots.retain(|(known, _), _| *known != session);
        self.requests.kept.retain(|(known, _), _| *known != session);
    }

    /// Keeps an answer that no record has. A copy of the op that waits here or arrives late must not be done, even if
    /// it could be by then: the client has its answer (rule 5 of `docs/replication.md`).
    pub fn keep_answer(&mut self, ask: &Ask, reply: &Result<Reply>) {
        // The op is sent again with the same id once the host has made room or repaired the damage, or once another
        // replica leads the partition of a leg whose brick has stopped.
        let is_helped = match reply {
            Err(Error::NoSpace { .. } | Error::Damaged { .. } | Error::Io { .. } | Error::Poisoned { .. }) => true,
            Ok(_) | Err(_) => false,
        };
        let is_final = !is_helped && !reply.as_ref().is_err_and(Error::is_passing);
        if is_final && ask.session != SYSTEM_SESSION {
            self.requests.kept.insert((ask.session, slot_of(ask.op_id)), (ask.op_id, reply.clone()));
        }
    }

    /// Answers an op that makes no record, once all records that its answer depends on are settled.
    pub fn answer_op(&mut self, token: Token, ask: &Ask, reply: Result<Reply>) {
        self.keep_answer(ask, &reply);
        self.answer(token, reply);
    }
}

fn answered_long_ago() -> Error {
    Error::Protocol { what: "an op that arrives after a later op of its slot was answered".into() }
}

fn slot_of(op_id: OpId) -> u8 {
    (op_id.0 % SESSION_SLOTS as u64) as u8
}
