//! The partitions to compare, and the bricks with their replicas: from the coordinator's records, or from the bricks'
//! logs.

use super::Source;
use crate::cli::Cli;
use crate::failure::Failure;
use crate::paths::Paths;
use hekate_brick::inspect::{Contents, PartitionAddress};
use hekate_cluster::{BrickInfo, RingInfo};
use hekate_proto::map::View;
use hekate_proto::{BrickId, Epoch, Error, PartitionNumber, RingId, Sequence, VolumeId};
use hekate_server::state_directory::records_of;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The records of this server's coordinator.
pub struct Known {
    cluster: String,
    bricks: Vec<BrickInfo>,
    rings: Vec<RingInfo>,
    /// Names of volumes.
    pub volumes: BTreeMap<VolumeId, String>,
}

/// A partition to compare.
pub struct Partition {
    pub address: PartitionAddress,
    /// Epoch of its view, if it is known.
    pub epoch: Option<Epoch>,
    pub leader: Option<BrickId>,
    /// Indexes of the bricks with its replicas.
    pub replicas: Vec<usize>,
    /// The end of each replica's log, if it has one.
    pub logs: Vec<Option<(Epoch, Sequence)>>,
    /// Members of its view whose bricks were not named.
    pub missing: Vec<String>,
    /// Bricks that have a log of it and are no members of its view.
    pub former: Vec<usize>,
}

impl Known {
    /// Reads the state directory. Unless the records are `needed`, a state that cannot be read counts as absent.
    ///
    /// # Errors
    ///
    /// The records are needed and cannot be read, or a server has them open.
    pub fn read(cli: &Cli, needed: bool) -> Result<Option<Self>, Failure> {
        match Self::open(&Paths::of(cli)?.state) {
            Ok(known) => Ok(Some(known)),
            Err(_) if !needed => Ok(None),
            Err(Error::Unavailable { what }) => {
                let words = format!("{what} Replicas are compared when no server has them open: `hekate stop` first");
                Err(Failure::new(69, words))
            }
            Err(error) => {
                let failure = Failure::from(error);
                let words = format!("{}; or name bricks: `hekate debug compare DIR DIR`", failure.text);
                Err(Failure::new(failure.exit, words))
            }
        }
    }

    fn open(state: &std::path::Path) -> hekate_proto::Result<Self> {
        let registry = records_of(state)?;
        let volumes = registry.volumes()?.into_iter().map(|volume| (volume.volume, volume.name)).collect();
        let mut bricks = registry.bricks()?;
        bricks.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(Self { cluster: registry.cluster()?, bricks, rings: registry.rings()?, volumes })
    }

    /// The directories of all bricks.
    pub fn directories(&self) -> Vec<PathBuf> {
        self.bricks.iter().map(|info| PathBuf::from(&info.directory)).collect()
    }

    /// True if these bricks belong to the cluster of the records.
    pub fn is_of(&self, sources: &[Source]) -> bool {
        sources.iter().all(|source| source.stopped.identity().cluster == self.cluster)
    }

    fn name_of(&self, brick: BrickId) -> String {
        let info = self.bricks.iter().find(|info| info.brick == brick);
        info.map_or(brick.text(), |info| info.directory.clone())
    }
}

impl Partition {
    pub fn words(&self) -> String {
        format!("ring {} partition {}", self.address.ring, self.address.number)
    }
}

/// All partitions of all rings, in ascending order.
pub fn partitions(known: Option<&Known>, sources: &[Source], contents: &[Contents]) -> Vec<Partition> {
    let mut counts: BTreeMap<RingId, u32> = BTreeMap::new();
    match known {
        Some(known) => counts.extend(known.rings.iter().map(|ring| (ring.ring, ring.views.len() as u32))),
        None => {
            for (ring, count) in contents.iter().flat_map(Contents::partitions_of_rings) {
                let most = counts.entry(ring).or_insert(count);
                *most = count.max(*most);
            }
        }
    }
    let view_of = |ring: RingId, number: u32| {
        let ring = known?.rings.iter().find(|info| info.ring == ring)?;
        ring.views.get(number as usize)
    };
    let of_ring = |(ring, count): (RingId, u32)| {
        let number = move |number: u32| (PartitionAddress { ring, number: PartitionNumber(number), count }, number);
        (0..count).map(number)
    };
    let addresses = counts.into_iter().flat_map(of_ring);
    addresses
        .map(|(address, number)| partition(address, view_of(address.ring, number).zip(known), sources, contents))
        .collect()
}

fn partition(
    address: PartitionAddress,
    view: Option<(&View, &Known)>,
    sources: &[Source],
    contents: &[Contents],
) -> Partition {
    let log_of = |index: &usize| contents[*index].log_of(address.ring, address.number);
    let with_log: Vec<usize> = (0..sources.len()).filter(|index| log_of(index).is_some()).collect();
    let Some((view, known)) = view else {
        let logs = with_log.iter().map(log_of).collect();
        let (missing, former) = (Vec::new(), Vec::new());
        return Partition { address, epoch: None, leader: None, replicas: with_log, logs, missing, former };
    };
    let member = |index: &usize| view.members.iter().any(|member| member.brick == sources[*index].id);
    let replicas: Vec<usize> = (0..sources.len()).filter(member).collect();
    let given = |brick: BrickId| sources.iter().any(|source| source.id == brick);
    let missing = view.members.iter().filter(|member| !given(member.brick)).map(|member| known.name_of(member.brick));
    Partition {
        address,
        epoch: Some(view.epoch),
        leader: Some(view.leader),
        logs: replicas.iter().map(log_of).collect(),
        former: with_log.into_iter().filter(|index| !member(index)).collect(),
        replicas,
        missing: missing.collect(),
    }
}
