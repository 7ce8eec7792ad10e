//! A server's bricks: made, added to a cluster that runs, and taken out of it again.
//!
//! What rests on a brick can't move to another yet: that takes new views and learners. What needs it is refused, with what
//! is in the way.

use crate::node::Node;
use hekate_brick::{Brick, BrickSettings, Identity};
use hekate_cluster::{BrickInfo, RingInfo};
use hekate_proto::*;
use serde_json::{Value, json};
use std::path::Path;

/// A journal is of this size at least and at most, in MiB.
const JOURNAL_MIB: std::ops::RangeInclusive<u64> = 32..=65_536;

/// What a brick is made for.
#[derive(Debug, Clone, Copy)]
pub struct NewBrick<'a> {
    /// The cluster's id.
    pub cluster: &'a str,
    /// The server whose it is.
    pub server: ServerId,
    /// The pool that it is for.
    pub pool: &'a str,
    /// The size of its journal.
    pub journal_mib: u64,
}

/// Makes a brick in an empty directory. -> its record.
pub fn make_brick(directory: &Path, wanted: &NewBrick) -> Result<BrickInfo> {
    if !JOURNAL_MIB.contains(&wanted.journal_mib) {
        return Err(Error::invalid(format!(
            "a journal of {} MiB: {} to {}",
            wanted.journal_mib,
            JOURNAL_MIB.start(),
            JOURNAL_MIB.end()
        )));
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| Error::bug(format!("getrandom: {e}")))?;
    let id = BrickId(u128::from_le_bytes(random));
    let defaults = BrickSettings::default();
    let segments = (wanted.journal_mib << 20) / defaults.segment_bytes;
    // A small journal gets smaller segments, of at least 8 MiB, so that the greatest op fits into one.
    let settings = if segments >= 4 {
        BrickSettings { journal_segments: segments, ..defaults }
    } else {
        BrickSettings { journal_segments: 4, segment_bytes: (wanted.journal_mib << 20) / 4, ..defaults }
    };
    Brick::create(directory, id, wanted.cluster, settings)?;
    let space =
        rustix::fs::statvfs(directory).map_err(|e| Error::io(format!("statvfs {}", directory.display()), e.into()))?;
    Ok(BrickInfo {
        brick: id,
        directory: directory.to_string_lossy().into_owned(),
        pool: wanted.pool.into(),
        weight: space.f_blocks * space.f_frsize,
        server: wanted.server,
        incarnation: Incarnation(0),
        unopened: false,
    })
}

/// Makes a brick on this server and records it.
pub fn add(node: &Node, directory: &str, pool: &str, journal_mib: u64) -> Result<Value> {
    let path = Path::new(directory);
    if !path.is_absolute() {
        return Err(Error::invalid(format!("{directory} is no absolute path")));
    }
    let pools: Vec<String> = node.registry.pools()?.into_iter().map(|pool| pool.name).collect();
    if !pools.iter().any(|known| known == pool) {
        return Err(Error::invalid(format!("there is no pool called {pool}; there are: {}", pools.join(", "))));
    }
    let own = node.registry.own_bricks()?;
    let lies_in = |info: &&BrickInfo| path.starts_with(&info.directory) || Path::new(&info.directory).starts_with(path);
    if let Some(other) = own.iter().find(lies_in) {
        let what = if other.directory == directory { "is a brick of this server already" } else { "and the brick" };
        let rest = if other.directory == directory {
            String::new()
        } else {
            format!(" {} lie in each other", other.directory)
        };
        return Err(Error::invalid(format!("{directory} {what}{rest}; a brick needs a directory of its own")));
    }
    if let Ok(other) = Identity::read(path) {
        return Err(Error::invalid(format!(
            "{directory} is not empty: it is a brick of cluster {} already; a new one needs a directory of its own",
            other.cluster
        )));
    }
    Identity::check_empty(path)?;
    let wanted = NewBrick { cluster: &node.cluster, server: node.registry.server(), pool, journal_mib };
    let info = BrickInfo { unopened: true, ..make_brick(path, &wanted)? };
    node.registry.add_brick(&info)?;
    crate::control::json(&info)
}

/// Takes a brick out of the cluster that nothing rests on; its directory is left as it is.
pub fn remove(node: &Node, info: &BrickInfo) -> Result<Value> {
    let rings = node.registry.remove_brick(info.brick)?;
    if !rings.is_empty() {
        let why = what_rests_there(node, info, &rings)?;
        return Err(Error::NotSupported {
            what: format!("brick {} cannot be removed: {why}. Nothing was changed", info.directory),
        });
    }
    Ok(json!({ "brick": info.brick, "directory": info.directory, "state": "removed" }))
}

/// Why a brick's partitions can't go elsewhere.
pub fn refuse_to_move(node: &Node, info: &BrickInfo, what: &str) -> Result<Value> {
    let rings: Vec<RingInfo> = node.registry.rings()?.into_iter().filter(|ring| ring.has(info.brick)).collect();
    if rings.is_empty() {
        return Err(Error::invalid(format!(
            "nothing rests on brick {}; `hekate brick remove {0}` takes it out of the cluster",
            info.directory
        )));
    }
    let why = what_rests_there(node, info, &rings)?;
    Err(Error::NotSupported { what: format!("brick {} cannot be {what} in this version: {why}", info.directory) })
}

fn what_rests_there(node: &Node, info: &BrickInfo, rings: &[RingInfo]) -> Result<String> {
    let partitions: usize = rings.iter().map(|ring| ring.replicas_on(info.brick)).sum();
    let is_there = |volume: &hekate_cluster::VolumeInfo| rings.iter().any(|ring| ring.ring == volume.ring);
    let volumes: Vec<String> =
        node.registry.volumes()?.into_iter().filter(is_there).map(|volume| volume.name).collect();
    let volumes = match volumes.is_empty() {
        true => "which no volume uses now, but the next of its kind will".into(),
        false => format!("of volume {}", volumes.join(", ")),
    };
    Ok(format!(
        "{partitions} replicas rest on it, {volumes}, and moving replicas to other bricks does not exist yet. To empty it, copy \
         the files to a volume on other bricks and delete that one; if the disk is dying, copy it with ddrescue(1) and put \
         the copy in its place while the server is stopped"
    ))
}
