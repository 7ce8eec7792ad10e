//! The map: what a client must know to reach a volume's partitions. Any server hands it out, as JSON.

use crate::codec::Malformed;
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
    /// Whether these are a ring's views; who reads a map asks before anything else, see [`check_views`].
    pub fn check(&self) -> Result<(), Malformed> {
        check_views(&self.views)
    }

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

/// Positions lead to partitions only if there is a power of two of them, and each is led by one of its members.
pub fn check_views(views: &[View]) -> Result<(), Malformed> {
    if !views.len().is_power_of_two() {
        return Err(Malformed("a ring whose partitions are not a power of two"));
    }
    if views.iter().any(|view| view.members.iter().all(|member| member.brick != view.leader)) {
        return Err(Malformed("a view whose leader is none of its members"));
    }
    Ok(())
}
