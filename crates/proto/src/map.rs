//! The map: what a client must know to reach a volume's partitions. Any server hands it out, as JSON.

use crate::ids::*;
use serde::{Deserialize, Serialize};

/// A volume's map.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeMap {
    /// The volume.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its ring.
    pub ring: RingId,
    /// Copies of everything.
    pub copies: u32,
    /// A view a partition, in order; a power of two of them.
    pub views: Vec<View>,
}

/// The replicas of a partition that are in step now.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct View {
    /// Counter of this decision.
    pub epoch: Epoch,
    /// Who orders; one of the members.
    pub leader: BrickId,
    /// Who holds it, the leader included.
    pub members: Vec<Member>,
}

/// A brick in a view.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub brick: BrickId,
    /// In which life.
    pub incarnation: Incarnation,
}

impl VolumeMap {
    /// Partitions of the ring.
    pub fn partitions(&self) -> u32 {
        self.views.len() as u32
    }

    /// The partition of a position.
    pub fn partition_of(&self, position: Position) -> PartitionNumber {
        position.partition(self.partitions())
    }

    /// A partition's view.
    pub fn view(&self, partition: PartitionNumber) -> Option<&View> {
        self.views.get(partition.0 as usize)
    }
}
