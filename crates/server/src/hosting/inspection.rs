//! The state of a server that the simulator's checkers read. They run on no simulated thread and so must not wait for a
//! lock.

use crate::hosting::node::Node;
use hekate_brick::Brick;
use hekate_proto::{BrickId, RingId};
use hekate_replica::{Address, Partition};
use std::sync::Arc;

impl Node {
    /// Calls `look` for each replica of a ring that is here. False if one of them is locked, or the ring is not hosted.
    pub fn inspect(&self, ring: RingId, mut look: impl FnMut(&Address, &Partition)) -> bool {
        let Ok(ring) = self.rings.get(ring) else { return false };
        ring.replicas()
            .all(|(address, hosted)| hosted.partition.try_read().map(|partition| look(address, &partition)).is_some())
    }

    /// A brick that is open here.
    pub fn open_brick(&self, brick: BrickId) -> Option<Arc<Brick>> {
        self.bricks.get(&brick).cloned()
    }
}
