//! Members of partitions that have a record to take and no room for it, in the order in which it came.

use crate::brick::Brick;
use hekate_proto::*;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// See the module.
#[derive(Default)]
pub(crate) struct Starving(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(RingId, PartitionNumber)>,
    /// Who was first has gone since it was last asked.
    turn_passed: bool,
}

impl Brick {
    /// A member of the partition has, or has no longer, a record to take for which there is no room.
    pub fn note_starving(&self, ring: RingId, partition: PartitionNumber, starves: bool) {
        let mut queue = self.starving.0.lock();
        let member = (ring, partition);
        if starves {
            return queue.waiting.push_back(member);
        }
        queue.turn_passed |= queue.waiting.front() == Some(&member);
        queue.waiting.retain(|waiting| *waiting != member);
    }

    /// Whether any member waits for room. Leaders take nothing new before it has what others have: room that they took
    /// first would let all journals fill with records that another brick has no room for, for ever.
    pub fn has_starving(&self) -> bool {
        !self.starving.0.lock().waiting.is_empty()
    }

    /// Whether it is a member's turn to take: small records must not always come before great ones.
    pub fn is_next(&self, ring: RingId, partition: PartitionNumber) -> bool {
        self.starving.0.lock().waiting.front().is_none_or(|next| *next == (ring, partition))
    }

    /// Whether who comes next, or leaders, should be told since this was last asked: what they wait for may be there already.
    pub fn take_passed_turn(&self) -> bool {
        std::mem::take(&mut self.starving.0.lock().turn_passed)
    }
}
