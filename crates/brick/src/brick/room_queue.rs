//! The queue for room: members of partitions that cannot append a record because the journal or the file system lacks
//! room, in the order in which they began to wait.
//!
//! Without it a large record could wait for ever behind small ones.

use crate::brick::Brick;
use hekate_proto::*;
use hekate_threads::Mutex;
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct RoomQueue(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(RingId, PartitionNumber)>,
    /// The first member has left the queue since [`Brick::take_passed_turn`] was last called.
    turn_passed: bool,
}

impl Brick {
    /// Adds a member of a partition to the queue if it `starves`, which means that it waits for room. Otherwise removes
    /// it.
    pub fn note_starving(&self, ring: RingId, partition: PartitionNumber, starves: bool) {
        let mut queue = self.room_queue.0.lock();
        let member = (ring, partition);
        if starves {
            return queue.waiting.push_back(member);
        }
        queue.turn_passed |= queue.waiting.front() == Some(&member);
        queue.waiting.retain(|waiting| *waiting != member);
    }

    /// Whether what no other brick has may be appended, if it grows the store: records of leaders, and fast writes. The
    /// last quarter of the journal is for members' records, which other bricks have in their journals until all members
    /// have them: if new records took all room, all journals could fill with what another brick has no room for. If not,
    /// a checkpoint is requested.
    pub fn has_room_for_new(&self) -> bool {
        // Most appends find room, and need no exclusive lock.
        let has_room = self.machine.read().has_room_for_new();
        if !has_room {
            self.machine.write().request_checkpoint();
        }
        has_room
    }

    /// Whether no other member is in front of this one: a small record does not overtake a large one.
    pub fn is_next(&self, ring: RingId, partition: PartitionNumber) -> bool {
        self.room_queue.0.lock().waiting.front().is_none_or(|next| *next == (ring, partition))
    }

    /// Whether the first member has left since the last call: the next one, or the leaders, may find room now.
    pub fn take_passed_turn(&self) -> bool {
        std::mem::take(&mut self.room_queue.0.lock().turn_passed)
    }
}
