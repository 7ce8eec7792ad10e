//! Sync rounds: a round puts all records up to one, and some shards, on stable storage of all members.

use crate::context::{Context, SyncJob, Token};
use crate::leader::Leader;
use crate::log::settle::Then;
use crate::message::Message;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;

/// A sync that was requested from all members and has not ended on all.
#[derive(Debug)]
pub(crate) struct Round {
    pub missing: BTreeSet<BrickId>,
    pub sequence: Sequence,
    pub shards: Vec<ShardId>,
    pub then: Vec<Then>,
    /// For a round of the leader alone: the request and its answer.
    pub alone: Option<(Token, Result<Reply>)>,
}

/// Records that some member may lack, above which the leader does not answer alone any more.
const EARLY_MAX: usize = 128;

impl Leader {
    /// Begins a round for all records that every member has. Members ask repeatedly: if the records are known to be
    /// stable the answer is repeated, and a round that is under way is not begun again.
    ///
    /// The round has neither shards nor later records. A member with a full journal appends nothing until its records
    /// are stable; a sync of shards would wait for room in such journals, and a later record is one that some member
    /// may have no room for.
    pub fn stabilize(&mut self, cx: &mut Context, asked_by: BrickId) {
        let upto = self.log.settled.min(self.log.last);
        if upto <= self.log.stable {
            if asked_by != cx.at.own.brick {
                cx.send_member(asked_by, Message::Stable { sequence: self.log.stable });
            }
        } else if self.log.rounds.values().all(|round| round.sequence != upto || !round.shards.is_empty()) {
            self.round(cx, upto, Vec::new(), Vec::new());
        }
    }

    /// Begins a round for all records up to `sequence` and these shards. `then` follows once all members have synced.
    pub fn round(&mut self, cx: &mut Context, sequence: Sequence, shards: Vec<ShardId>, then: Vec<Then>) {
        let ticket = self.log.next_ticket();
        let shards = if is_planted(Bug::SyncWithoutShards) { Vec::new() } else { shards };
        cx.out.syncs.push(SyncJob { replica: cx.at.own, ticket, shards: shards.clone() });
        for brick in self.members.keys() {
            cx.send_member(*brick, Message::Sync { ticket, sequence, shards: shards.clone() });
        }
        let missing = cx.at.others().filter(|_| !is_planted(Bug::SyncOfLeaderOnly)).chain([cx.at.own.brick]).collect();
        self.log.rounds.insert(ticket, Round { missing, sequence, shards, then, alone: None });
    }

    /// Begins a sync of the leader alone, for volumes of the modes `async` and `bypass`, which ask for no more.
    pub fn round_alone(&mut self, cx: &mut Context, shards: Vec<ShardId>, answer: (Token, Result<Reply>)) {
        let ticket = self.log.next_ticket();
        cx.out.syncs.push(SyncJob { replica: cx.at.own, ticket, shards: shards.clone() });
        let (missing, sequence) = (BTreeSet::from([cx.at.own.brick]), Sequence(0));
        self.log.rounds.insert(ticket, Round { missing, sequence, shards, then: Vec::new(), alone: Some(answer) });
    }

    /// True if the members are so few records behind that the leader may answer alone.
    pub fn may_be_early(&self) -> bool {
        self.log.window.len() < EARLY_MAX
    }

    pub fn synced(&mut self, cx: &mut Context, brick: BrickId, ticket: u64) {
        let Some(round) = self.log.rounds.get_mut(&ticket) else { return };
        round.missing.remove(&brick);
        if round.missing.is_empty() {
            self.end_round(cx, ticket);
        }
    }

    /// Removes replicas that are no members any more from all rounds.
    pub fn ask_members_only(&mut self, cx: &mut Context) {
        for round in self.log.rounds.values_mut() {
            round.missing.retain(|brick| cx.at.view.has_member(*brick));
        }
        let ended: Vec<u64> =
            self.log.rounds.iter().filter(|(_, round)| round.missing.is_empty()).map(|(ticket, _)| *ticket).collect();
        ended.into_iter().for_each(|ticket| self.end_round(cx, ticket));
    }

    fn end_round(&mut self, cx: &mut Context, ticket: u64) {
        let Some(round) = self.log.rounds.remove(&ticket) else { return };
        cx.out.answers.extend(round.alone);
        let upto = self.kept_by_learners().map_or(round.sequence, |kept| kept.min(round.sequence));
        if upto > self.log.stable {
            self.log.stable = upto;
            for brick in self.members.keys() {
                cx.send_member(*brick, Message::Stable { sequence: self.log.stable });
            }
        }
        let sequence = self.log.settled.min(self.log.last);
        round.then.into_iter().for_each(|then| self.log.after.push_back((sequence, false, then)));
    }

    /// Sends the requests for syncs that a member has not reported again, after it was connected again.
    pub fn sync_again(&self, cx: &mut Context, brick: BrickId) {
        for (ticket, round) in self.log.rounds.iter().filter(|(_, round)| round.missing.contains(&brick)) {
            let (ticket, sequence, shards) = (*ticket, round.sequence, round.shards.clone());
            cx.send_member(brick, Message::Sync { ticket, sequence, shards });
        }
    }
}
