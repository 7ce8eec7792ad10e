//! A partition as this server hosts it: its members, its log's end, its leader.

use hekate_brick::Brick;
use hekate_cluster::RingInfo;
use hekate_proto::*;
use hekate_replica::Leader;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// What changes with every record.
pub struct Hosted {
    /// Of the view.
    pub epoch: Epoch,
    /// The brick that answers reads first, then the others.
    pub members: Vec<Arc<Brick>>,
    /// The last record.
    pub sequence: Sequence,
    /// Numbers and clock.
    pub leader: Leader,
    /// A member did not take a record: nothing is served until the server is started anew.
    pub failed: Option<Error>,
}

impl Hosted {
    /// The leader's own copy.
    pub fn brick(&self) -> &Brick {
        &self.members[0]
    }
}

/// All partitions of a ring.
pub struct HostedRing {
    /// Which.
    pub ring: RingId,
    partitions: Vec<RwLock<Hosted>>,
}

impl HostedRing {
    /// From the record of the ring and the open bricks; logs must be level.
    pub fn new(info: &RingInfo, bricks: &HashMap<BrickId, Arc<Brick>>) -> Result<Self> {
        let count = info.views.len() as u32;
        let mut partitions = Vec::new();
        for (index, view) in info.views.iter().enumerate() {
            let number = PartitionNumber(index as u32);
            let mut members = Vec::new();
            let others = view.members.iter().map(|member| member.brick).filter(|brick| *brick != view.leader);
            for id in std::iter::once(view.leader).chain(others) {
                let brick = bricks.get(&id).ok_or_else(|| Error::Unavailable {
                    what: format!("partition {number} of ring {} waits for brick {}", info.ring, id.text()),
                })?;
                members.push(brick.clone());
            }
            let leader = Leader::new(&members[0], info.ring, number, count)?;
            let sequence = members[0].position(info.ring, number).sequence;
            partitions.push(RwLock::new(Hosted { epoch: view.epoch, members, sequence, leader, failed: None }));
        }
        Ok(Self { ring: info.ring, partitions })
    }

    /// Partitions of the ring.
    pub fn count(&self) -> u32 {
        self.partitions.len() as u32
    }

    fn at(&self, number: PartitionNumber) -> Result<&RwLock<Hosted>> {
        self.partitions
            .get(number.0 as usize)
            .ok_or_else(|| Error::Protocol { what: format!("partition {number} of ring {} does not exist", self.ring) })
    }

    /// For reading: others read too.
    pub fn read(&self, number: PartitionNumber) -> Result<RwLockReadGuard<'_, Hosted>> {
        let guard = self.at(number)?.read();
        match &guard.failed {
            Some(error) => Err(error.clone()),
            None => Ok(guard),
        }
    }

    /// For changing.
    pub fn write(&self, number: PartitionNumber) -> Result<RwLockWriteGuard<'_, Hosted>> {
        let guard = self.at(number)?.write();
        match &guard.failed {
            Some(error) => Err(error.clone()),
            None => Ok(guard),
        }
    }

    /// Why a partition is not served.
    pub fn failure(&self, number: PartitionNumber) -> Option<Error> {
        self.at(number).ok()?.read().failed.clone()
    }

    /// The bricks below, each once.
    pub fn bricks(&self) -> Vec<Arc<Brick>> {
        let mut found: HashMap<BrickId, Arc<Brick>> = HashMap::new();
        for partition in &self.partitions {
            for member in &partition.read().members {
                found.insert(member.id(), member.clone());
            }
        }
        found.into_values().collect()
    }
}
