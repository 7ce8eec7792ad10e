//! A partition as this server hosts it: its members, its log's end, its leader.

use hekate_brick::Brick;
use hekate_cluster::RingInfo;
use hekate_proto::map::View;
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

/// All partitions of a ring: those that are served here, and of the others, why not.
pub struct HostedRing {
    /// Which.
    pub ring: RingId,
    bricks: Vec<Arc<Brick>>,
    partitions: Vec<std::result::Result<RwLock<Hosted>, Error>>,
}

impl HostedRing {
    /// From the record of the ring and the open bricks; logs must be level. `servers`: where bricks are.
    pub fn new(
        info: &RingInfo,
        bricks: &HashMap<BrickId, Arc<Brick>>,
        servers: &HashMap<BrickId, ServerId>,
    ) -> Result<Self> {
        let count = info.views.len() as u32;
        let mut partitions = Vec::new();
        let mut own: HashMap<BrickId, Arc<Brick>> = HashMap::new();
        for (index, view) in info.views.iter().enumerate() {
            let number = PartitionNumber(index as u32);
            let here = view.members.iter().filter_map(|member| bricks.get(&member.brick));
            own.extend(here.map(|brick| (brick.id(), brick.clone())));
            if let Some(elsewhere) = elsewhere(info.ring, number, view, bricks, servers) {
                partitions.push(Err(elsewhere));
                continue;
            }
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
            let hosted = Hosted { epoch: view.epoch, members, sequence, leader, failed: None };
            partitions.push(Ok(RwLock::new(hosted)));
        }
        Ok(Self { ring: info.ring, bricks: own.into_values().collect(), partitions })
    }

    /// Partitions of the ring.
    pub fn count(&self) -> u32 {
        self.partitions.len() as u32
    }

    fn at(&self, number: PartitionNumber) -> Result<&RwLock<Hosted>> {
        match self.partitions.get(number.0 as usize) {
            Some(Ok(hosted)) => Ok(hosted),
            Some(Err(elsewhere)) => Err(elsewhere.clone()),
            None => Err(Error::Protocol { what: format!("partition {number} of ring {} does not exist", self.ring) }),
        }
    }

    /// Those that are served here.
    pub fn hosted(&self) -> Vec<PartitionNumber> {
        (0..self.count()).map(PartitionNumber).filter(|number| self.at(*number).is_ok()).collect()
    }

    /// Whether all partitions are served here.
    pub fn is_whole(&self) -> bool {
        self.partitions.iter().all(|partition| partition.is_ok())
    }

    /// Whether an op that is done here may go on in that partition.
    pub fn may_go_on_in(&self, number: PartitionNumber) -> Result<()> {
        match self.at(number) {
            Err(Error::OtherServer { server }) => Err(Error::NotSupported {
                what: format!("an op over partitions that this server and server {server} lead"),
            }),
            other => other.map(|_| ()),
        }
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

    /// Why a partition that is to be served here is not.
    pub fn failure(&self, number: PartitionNumber) -> Option<Error> {
        match self.at(number) {
            Ok(hosted) => hosted.read().failed.clone(),
            Err(Error::OtherServer { .. }) => None,
            Err(error) => Some(error),
        }
    }

    /// The bricks here that hold some of the ring, each once.
    pub fn bricks(&self) -> &[Arc<Brick>] {
        &self.bricks
    }
}

/// Why a partition cannot be served here, if some of its bricks are on other servers.
fn elsewhere(
    ring: RingId,
    number: PartitionNumber,
    view: &View,
    bricks: &HashMap<BrickId, Arc<Brick>>,
    servers: &HashMap<BrickId, ServerId>,
) -> Option<Error> {
    let away = |brick: &BrickId| (!bricks.contains_key(brick)).then(|| servers.get(brick).copied()).flatten();
    if let Some(server) = away(&view.leader) {
        return Some(Error::OtherServer { server });
    }
    let server = view.members.iter().find_map(|member| away(&member.brick))?;
    let what = format!("partition {number} of ring {ring} waits for its replica on server {server}");
    Some(Error::Unavailable { what })
}
