//! Learners that fall behind or are stuck: how long records are retained for them, and when healing is tried again.

use super::{Learner, Stage};
use crate::context::{Context, Out};
use crate::leader::Leader;
use crate::message::Message;
use hekate_proto::*;

/// Time after which a learner that is stuck is tried again, in ns: 10 s.
const STUCK_PAUSE_NS: u64 = 10_000_000_000;

/// Time within which a whole learner has to have the records that were settled at its beginning, in ns: 1 s.
const BEHIND_NS: u64 = 1_000_000_000;

impl Leader {
    /// Tries stuck learners again, as what could not be read may be repaired.
    pub fn ask_stuck(&mut self, cx: &mut Context) {
        let is_stuck = |(_, learner): &(&BrickId, &mut Learner)| matches!(learner.stage, Stage::Stuck);
        for (brick, learner) in self.healing.learners.iter_mut().filter(is_stuck) {
            *learner = Learner { sent: learner.sent, ..Learner::default() };
            cx.send_member(*brick, Message::Ask { term: self.fast.term });
        }
    }

    /// Tries stuck learners again after a pause: a client may have overwritten what could not be read, which the leader
    /// does not notice.
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

    /// The last record that all whole learners have. Later ones are retained, as these learners may become members.
    /// `None` if no learner is whole.
    pub fn kept_by_learners(&self) -> Option<Sequence> {
        self.healing
            .learners
            .values()
            .filter(|learner| matches!(learner.stage, Stage::Whole))
            .map(|whole| whole.held)
            .min()
    }

    /// Ends the retention of records for learners that have fallen behind.
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
