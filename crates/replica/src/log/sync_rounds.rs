//! Rounds: everything up to a record, and some shards, on stable storage of all members.

use crate::context::{Context, SyncJob, Token};
use crate::leader::Leader;
use crate::log::settle::Then;
use crate::message::Message;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;

/// Everything that is settled put on stable storage of all members.
#[derive(Debug)]
pub(crate) struct Round {
    pub missing: BTreeSet<BrickId>,
    pub sequence: Sequence,
    pub shards: Vec<ShardId>,
    pub then: Vec<Then>,
    /// Only the leader's own stable storage, and who is answered then.
    pub alone: Option<(Token, Result<Reply>)>,
}

/// Records that some member lacks, with which a leader still answers alone.
const EARLY_MAX: usize = 128;

impl Leader {
    /// What every member has, and no more: one whose journal is full takes nothing before what it has is stable. Members
    /// ask again and again; what is known is said again, what is under way is not begun again. A sync of shards is no help:
    /// it waits for room in journals that wait for this. Nor is one of a record that some member has no room for.
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

    /// Begins to put everything up to a record, and these shards, on stable storage of all members.
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

    /// What this leader has, on its own stable storage, for who takes that for enough (modes `async` and `bypass`).
    pub fn round_alone(&mut self, cx: &mut Context, shards: Vec<ShardId>, answer: (Token, Result<Reply>)) {
        let ticket = self.log.next_ticket();
        cx.out.syncs.push(SyncJob { replica: cx.at.own, ticket, shards: shards.clone() });
        let (missing, sequence) = (BTreeSet::from([cx.at.own.brick]), Sequence(0));
        self.log.rounds.insert(ticket, Round { missing, sequence, shards, then: Vec::new(), alone: Some(answer) });
    }

    /// Whether the others are near enough for the leader to answer alone.
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

    /// What was asked of those who are members no more is asked of nobody.
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

    /// A member that came back is asked again for the syncs that it owes.
    pub fn sync_again(&self, cx: &mut Context, brick: BrickId) {
        for (ticket, round) in self.log.rounds.iter().filter(|(_, round)| round.missing.contains(&brick)) {
            let (ticket, sequence, shards) = (*ticket, round.sequence, round.shards.clone());
            cx.send_member(brick, Message::Sync { ticket, sequence, shards });
        }
    }
}
