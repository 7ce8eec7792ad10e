//! The coordinator's records of volumes' names and of the partitions on the brick. Without them volumes are named by
//! their numbers, and a partition without a log on the brick may be elsewhere or empty.

use super::catalog::Catalog;
use crate::cli::Cli;
use crate::paths::Paths;
use hekate_brick::Identity;
use hekate_brick::inspect::Contents;
use hekate_proto::{BrickId, DataId, Position, RingId, ShardId, VolumeId};
use hekate_server::state_directory::records_of;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Known {
    names: BTreeMap<VolumeId, String>,
    /// For each partition of a ring: true if the brick is a member of its view.
    rings: BTreeMap<RingId, Vec<bool>>,
}

/// Whether a partition is on the brick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Yes,
    No,
    Unknown,
}

impl Known {
    /// Reads the state directory, if it belongs to the brick's cluster and no server has it open.
    pub fn of(cli: &Cli, identity: &Identity) -> Self {
        Self::read(cli, identity).unwrap_or_else(|| {
            eprintln!("this server's state has no records of the brick's cluster: volumes are named by their numbers");
            Self::default()
        })
    }

    fn read(cli: &Cli, identity: &Identity) -> Option<Self> {
        let registry = records_of(&Paths::of(cli).ok()?.state).ok()?;
        if registry.cluster().ok()? != identity.cluster {
            return None;
        }
        let brick: BrickId = identity.brick_id().ok()?;
        let names = registry.volumes().ok()?.into_iter().map(|volume| (volume.volume, volume.name)).collect();
        let here = |view: &hekate_proto::map::View| view.members.iter().any(|member| member.brick == brick);
        let rings = registry.rings().ok()?.into_iter();
        Some(Self { names, rings: rings.map(|ring| (ring.ring, ring.views.iter().map(here).collect())).collect() })
    }

    pub fn name_of(&self, volume: VolumeId) -> Option<&String> {
        self.names.get(&volume)
    }

    /// The name of the volume's directory. Names of volumes have no slash and do not begin with a dot.
    pub fn directory_of(&self, volume: VolumeId) -> String {
        let plain = |name: &&String| hekate_cluster::registry::check_name("volume", name).is_ok();
        self.name_of(volume).filter(plain).cloned().unwrap_or_else(|| format!("volume-{volume}"))
    }

    /// The volume in words.
    pub fn words_of(&self, volume: VolumeId) -> String {
        self.name_of(volume).map_or(volume.to_string(), |name| format!("{volume} ({name})"))
    }

    /// Whether the partition of a position is on the brick.
    pub fn holds(&self, contents: &Contents, catalog: &Catalog, ring: RingId, position: Position) -> Holds {
        if let Some(views) = self.rings.get(&ring).filter(|views| views.len().is_power_of_two()) {
            let here = views[position.partition(views.len() as u32).0 as usize];
            return if here { Holds::Yes } else { Holds::No };
        }
        let Some(count) = catalog.partitions_of(ring) else { return Holds::Unknown };
        match contents.has_log(ring, position.partition(count)) {
            true => Holds::Yes,
            false => Holds::Unknown,
        }
    }

    /// Whether everything of a ring is on the brick.
    pub fn holds_all(&self, ring: RingId) -> bool {
        self.rings.get(&ring).is_some_and(|views| views.iter().all(|here| *here))
    }
}

/// Shards of a piece that the brick does not have and that may hold data.
#[derive(Default)]
pub struct Holes {
    elsewhere: Vec<u64>,
    unknown: Vec<u64>,
    unchecked: u64,
}

/// Most missing shards that are looked at one by one: 256 GiB of holes.
const SHARDS_TRIED_MAX: u64 = 65_536;

impl Holes {
    /// Those among the first `count` shards of a data id. `here`: the shards on this brick, ascending.
    pub fn of(
        source: &super::Source,
        catalog: &Catalog,
        ring: RingId,
        volume: VolumeId,
        data: DataId,
        count: u64,
        here: &[u64],
    ) -> Self {
        let mut holes = Self::default();
        if source.known.holds_all(ring) || here.len() as u64 >= count {
            return holes;
        }
        for index in (0..count.min(SHARDS_TRIED_MAX)).filter(|index| here.binary_search(index).is_err()) {
            let position = ShardId { volume, data, index }.position();
            match source.known.holds(source.contents, catalog, ring, position) {
                Holds::Yes => {}
                Holds::No => holes.elsewhere.push(index),
                Holds::Unknown => holes.unknown.push(index),
            }
        }
        holes.unchecked = count.saturating_sub(SHARDS_TRIED_MAX);
        holes
    }

    /// The missing shards in words.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if !self.elsewhere.is_empty() {
            words.push(format!("shards {} are on other bricks: holes here", ranges(&self.elsewhere)));
        }
        if !self.unknown.is_empty() {
            let ranges = ranges(&self.unknown);
            words.push(format!("shards {ranges} are not here: they are holes of the file, or on other bricks"));
        }
        if self.unchecked > 0 {
            words.push(format!("{} further shards may be on other bricks", self.unchecked));
        }
        words
    }
}

/// Ascending numbers as ranges: 0, 2-5.
fn ranges(numbers: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let words =
        runs.iter().map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_that_follow_each_other_are_a_range() {
        assert_eq!(super::ranges(&[0, 2, 3, 4, 9]), "0, 2-4, 9");
        assert_eq!(super::ranges(&[]), "");
    }
}
