//! The last answer of each slot of a session. An op that is sent again gets it again. An op that arrives after a later
//! op of its slot is refused.

use super::Ticket;
use hekate_proto::*;
use std::collections::BTreeMap;

/// Op and answer, by session and slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers(BTreeMap<(SessionId, u64), (OpId, Result<Reply>)>);

impl Ticket {
    pub(super) fn slot(&self) -> u64 {
        self.op_id.0 % SESSION_SLOTS as u64
    }
}

impl Answers {
    /// The answer of an op that was answered. `None` for a new op.
    pub(super) fn of(&self, ticket: Ticket) -> Option<Result<Reply>> {
        let (last, answer) = self.0.get(&(ticket.session, ticket.slot()))?;
        match ticket.op_id.cmp(last) {
            std::cmp::Ordering::Greater => None,
            std::cmp::Ordering::Equal => Some(answer.clone()),
            std::cmp::Ordering::Less => {
                Some(Err(Error::Protocol { what: "an op that arrives after a later op of its slot".into() }))
            }
        }
    }

    pub(super) fn keep(&mut self, ticket: Ticket, answer: Result<Reply>) {
        self.0.insert((ticket.session, ticket.slot()), (ticket.op_id, answer));
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.0.retain(|(of, _), _| *of != session);
    }
}
