//! Pools and volumes.

use super::bricks;
use super::servers::Reports;
use crate::hosting::node::Node;
use crate::request::raw;
use hekate_cluster::{RingWish, VolumeInfo};
use hekate_control::volume::{PoolStatus, RingStatus, VolumeDeleted, VolumeDetails, VolumeState, VolumeStatus};
use hekate_control::{VolumeCreate, VolumeSetGraph};
use hekate_proto::map::{LAYERS_MAX, Mode};
use hekate_proto::{Error, Result, RingId, VolumeId};

/// Most bytes of the options of a volume's translators together.
const OPTION_BYTES_MAX: usize = 16 << 10;

impl Node {
    /// Makes a volume.
    ///
    /// # Errors
    ///
    /// `Invalid`: no `owner_uid`, a name or pool that cannot be used, or a mode without the leader that it needs.
    /// `NotSupported`: a mode for measuring, which this program does not have.
    pub fn make_volume(&self, wanted: VolumeCreate) -> Result<VolumeStatus> {
        let owner_uid = wanted.owner_uid.ok_or_else(|| {
            Error::invalid("the request to make a volume has no owner_uid; name the user that owns it")
        })?;
        if wanted.mode == Mode::Bypass && wanted.led_by.is_none() {
            return Err(Error::invalid("mode bypass needs a server that leads all partitions: add --leader SERVER"));
        }
        let wish = RingWish { domain: wanted.domain, min_replicas: wanted.min_replicas, led_by: wanted.led_by };
        let volume = VolumeInfo {
            volume: VolumeId(0),
            name: wanted.name,
            pool: wanted.pool,
            ring: RingId(0),
            copies: wanted.copies,
            owner_uid,
            allowed_uids: wanted.allowed_uids,
            graph: Default::default(),
            deleting: false,
            spread: wanted.spread,
            mode: wanted.mode,
            creation: 0,
        };
        raw::check_mode(&volume)?;
        let made = self.create_volume(volume, wish, owner_uid)?;
        row(self, made, &Reports::gather(self)?)
    }
}

/// Gives a volume other translators.
///
/// # Errors
///
/// `Invalid`: no volume has that name, or the list is too long; errors of the coordinator.
pub fn set_graph(node: &Node, call: VolumeSetGraph) -> Result<VolumeStatus> {
    let length: usize =
        call.layers.iter().flat_map(|layer| &layer.options).map(|(name, value)| name.len() + value.len()).sum();
    if call.layers.len() > LAYERS_MAX || length > OPTION_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a graph has at most {LAYERS_MAX} translators, whose options have at most {OPTION_BYTES_MAX} bytes"
        )));
    }
    let registry = node.cluster.registry();
    let volume = registry.volume(&call.name)?.ok_or_else(|| node.no_volume(&call.name))?;
    let volume = registry.set_graph(&volume, &call.layers)?.ok_or_else(|| node.no_volume(&call.name))?;
    node.volumes.put(volume.clone());
    row(node, volume, &Reports::gather(node)?)
}

/// Marks a volume as being deleted.
///
/// # Errors
///
/// `Invalid`: no volume has that name; `Unavailable`: a session uses it; errors of the coordinator.
pub fn delete(node: &Node, name: String) -> Result<VolumeDeleted> {
    let registry = node.cluster.registry();
    let number = registry.volume(&name)?.ok_or_else(|| node.no_volume(&name))?.volume.0;
    node.check_doors_closed(VolumeId(number), &name)?;
    node.delete_volume(&name)?;
    for key in registry.s3_keys()?.into_iter().filter(|key| key.volume == number) {
        registry.delete_s3_key(&key.id)?;
    }
    Ok(VolumeDeleted { name, state: VolumeState::Deleting })
}

/// A volume, with the views of its partitions.
///
/// # Errors
///
/// `Invalid`: no volume has that name; errors of the coordinator.
pub fn show(node: &Node, name: &str) -> Result<VolumeDetails> {
    let volume = node.cluster.registry().volume(name)?.ok_or_else(|| node.no_volume(name))?;
    let map = node.cluster.registry().map(&volume)?;
    Ok(VolumeDetails { volume: row(node, volume, &Reports::gather(node)?)?, views: map.views, bricks: map.bricks })
}

/// All volumes.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn list(node: &Node) -> Result<Vec<VolumeStatus>> {
    rows(node, &Reports::gather(node)?)
}

/// All volumes, with the space that these reports have of each.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn rows(node: &Node, reports: &Reports) -> Result<Vec<VolumeStatus>> {
    node.cluster.registry().volumes()?.into_iter().map(|volume| row(node, volume, reports)).collect()
}

fn row(node: &Node, volume: VolumeInfo, reports: &Reports) -> Result<VolumeStatus> {
    let ring = node.cluster.registry().ring(volume.ring)?;
    let (bytes_total, bytes_free) = reports.space(volume.volume);
    Ok(VolumeStatus {
        domain: ring.as_ref().map(|ring| ring.domain),
        min_replicas: ring.as_ref().map(|ring| ring.members_min()),
        led_by: ring.and_then(|ring| ring.led_by),
        sessions: node.cluster.registry().session_count(volume.volume)?,
        state: if volume.deleting { VolumeState::Deleting } else { VolumeState::Online },
        made: reports.is_made(volume.volume),
        bytes_total,
        bytes_free,
        weaker: volume.mode.weaker().iter().map(|what| (*what).into()).collect(),
        volume: volume.volume,
        name: volume.name,
        pool: volume.pool,
        ring: volume.ring,
        copies: volume.copies,
        owner_uid: volume.owner_uid,
        allowed_uids: volume.allowed_uids,
        sessions_on_graph: node.sessions.on_graph(volume.volume, volume.graph.change),
        graph: volume.graph,
        deleting: volume.deleting,
        spread: volume.spread,
        mode: volume.mode,
    })
}

/// All pools, with their bricks and rings.
///
/// # Errors
///
/// Errors of the coordinator.
pub fn pools(node: &Node) -> Result<Vec<PoolStatus>> {
    let bricks = bricks::list(node)?;
    let rings = node.cluster.registry().rings()?;
    let pool = |name: String| PoolStatus {
        bricks: bricks.iter().filter(|brick| brick.pool == name).cloned().collect(),
        rings: rings
            .iter()
            .filter(|ring| ring.pool == name)
            .map(|ring| RingStatus {
                ring: ring.ring,
                copies: ring.copies,
                domain: ring.domain,
                partitions: ring.views.len(),
            })
            .collect(),
        name,
    };
    Ok(node.cluster.registry().pools()?.into_iter().map(|info| pool(info.name)).collect())
}
