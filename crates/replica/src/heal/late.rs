//! Learners that are late: what they lack is kept for them, up to a point, and who is stuck is tried again.

use super::{Learner, Stage};
use crate::context::{Context, Out};
use crate::leader::Leader;
use crate::message::Message;
use hekate_proto::*;

/// After so long a learner that could not be healed is tried again: 10 s.
const STUCK_PAUSE_NS: u64 = 10_000_000_000;

/// A learner that was whole, and is further behind than that, is so no more: 1 s.
const BEHIND_NS: u64 = 1_000_000_000;

impl Leader {
    /// What could not be read may be mended by now.
    pub fn ask_stuck(&mut self, cx: &mut Context) {
        let is_stuck = |(_, learner): &(&BrickId, &mut Learner)| matches!(learner.stage, Stage::Stuck);
        for (brick, learner) in self.healing.learners.iter_mut().filter(is_stuck) {
            *learner = Learner { sent: learner.sent, ..Learner::default() };
            cx.send_member(*brick, Message::Ask { term: self.fast.term });
        }
    }

    /// Nobody is told when a client writes over what could not be read: so it is tried again now and then.
    pub fn ask_stuck_again(&mut self, cx: &mut Context, now: Time) {
        let is_stuck = self.healing.learners.values().any(|learner| matches!(learner.stage, Stage::Stuck));
        if is_stuck && now.0.abs_diff(self.healing.stuck_at.0) >= STUCK_PAUSE_NS {
            cx.out.branches.push("a learner that cannot be healed is tried again");
            self.ask_stuck(cx);
        } else if is_stuck {
            return;
        }
        self.healing.stuck_at = now;
    }

    /// What all have that are members, or may become that: what they lack must stay in the others' journals.
    pub fn kept_by_learners(&self) -> Option<Sequence> {
        self.healing
            .learners
            .values()
            .filter(|learner| matches!(learner.stage, Stage::Whole))
            .map(|whole| whole.held)
            .min()
    }

    /// For one who does not keep up nobody keeps records.
    pub fn leave_behind(&mut self, now: Time, out: &mut Out) {
        if now.0.abs_diff(self.healing.looked_behind_at.0) < BEHIND_NS {
            return;
        }
        self.healing.looked_behind_at = now;
        for learner in self.healing.learners.values_mut() {
            if matches!(learner.stage, Stage::Whole) && learner.held < learner.due {
                out.branches.push("a learner does not keep up");
                learner.stage = Stage::Following;
            }
            learner.due = self.log.settled();
        }
    }
}
