//! Members of partitions that have a record to take and no room for it, in the order in which it came.

use crate::brick::Brick;
use hekate_proto::*;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// See the module.
#[derive(Default)]
pub(crate) struct Starving(Mutex<VecDeque<(RingId, PartitionNumber)>>);

impl Brick {
    /// A member of the partition has, or has no longer, a record to take for which there is no room.
    pub fn note_starving(&self, ring: RingId, partition: PartitionNumber, starves: bool) {
        let mut starving = self.starving.0.lock();
        match starves {
            true => starving.push_back((ring, partition)),
            false => starving.retain(|known| *known != (ring, partition)),
        }
    }

    /// Whether any member waits for room. Leaders take nothing new before it has what others have: room that they took
    /// first would let all journals fill with records that another brick has no room for, for ever.
    pub fn has_starving(&self) -> bool {
        !self.starving.0.lock().is_empty()
    }

    /// Whether it is a member's turn to take: small records must not always come before great ones.
    pub fn is_next(&self, ring: RingId, partition: PartitionNumber) -> bool {
        self.starving.0.lock().front().is_none_or(|next| *next == (ring, partition))
    }
}
