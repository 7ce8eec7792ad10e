//! Bricks of a cluster that runs: made, added, replaced and removed by the operator. `own_bricks.rs` opens and holds
//! them.
//!
//! A new brick can take another brick's place: it becomes a learner of all that the other one holds, and the other one
//! leaves its views when the new one is healed. Moving the replicas of a brick to several others is not
//! supported.

use crate::control::bricks::record;
use crate::hosting::node::Node;
use hekate_brick::{Brick, BrickSettings};
use hekate_cluster::{BrickInfo, RingInfo};
use hekate_control::brick::{BrickRecord, BrickRemoved, BrickReplaced};
use hekate_proto::*;
use std::path::Path;

/// Sizes of a journal, in MiB.
const JOURNAL_MIB: std::ops::RangeInclusive<u64> = 32..=65_536;

/// What a new brick is for.
#[derive(Debug, Clone, Copy)]
pub struct NewBrick<'a> {
    /// The cluster's id: 32 hex digits.
    pub cluster: &'a str,
    /// The server that the brick belongs to.
    pub server: ServerId,
    pub pool: &'a str,
    /// The size of its journal, in MiB.
    pub journal_mib: u64,
}

/// Makes a brick in an empty directory, and returns its record for the coordinator.
///
/// # Errors
///
/// `Invalid` if the journal's size is out of bounds or the directory is not empty, `Io` if the directory cannot be
/// written.
pub fn make_brick(directory: &Path, wanted: &NewBrick) -> Result<BrickInfo> {
    if !JOURNAL_MIB.contains(&wanted.journal_mib) {
        return Err(Error::invalid(format!(
            "a journal of {} MiB is too small or too large; choose {} to {} MiB",
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
    // A small journal gets smaller segments, of at least 8 MiB, so that the largest op fits into one.
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
        openings: 0,
        begun: 0,
        restored: false,
        unopened: false,
    })
}

/// Makes a brick on this server and records it. The server opens it at its next start.
///
/// # Errors
///
/// `Invalid` if there is no such pool or the directory cannot be a brick; those of the coordinator.
pub fn add(node: &Node, directory: &str, pool: &str, journal_mib: u64) -> Result<BrickRecord> {
    let pools: Vec<String> = node.cluster.registry().pools()?.into_iter().map(|pool| pool.name).collect();
    if !pools.iter().any(|known| known == pool) {
        return Err(Error::invalid(format!("there is no pool called {pool}; there are: {}", pools.join(", "))));
    }
    check_new(node, directory, None)?;
    let wanted = NewBrick { cluster: node.cluster.id(), server: node.cluster.server(), pool, journal_mib };
    let info = BrickInfo { unopened: true, ..node.surroundings.make_brick(Path::new(directory), &wanted)? };
    node.cluster.registry().add_brick(&info).map_err(|error| not_recorded(directory, error))?;
    Ok(record(info))
}

/// Makes a brick on this server that takes the place of another brick, of any server.
///
/// # Errors
///
/// `Invalid` if the other brick is unknown or holds nothing, or the directory cannot be a brick; those of the
/// coordinator.
pub fn replace(node: &Node, called: &str, directory: &str, journal_mib: u64) -> Result<BrickReplaced> {
    let old = any_brick(node, called)?;
    if !node.cluster.registry().rings()?.iter().any(|ring| ring.is_placed(old.brick)) {
        let what = format!("brick {} holds no replica, or was replaced already", old.directory);
        return Err(Error::invalid(format!("{what}; `hekate brick remove {}` removes it", old.directory)));
    }
    check_new(node, directory, Some(old.brick))?;
    let (cluster, server, pool) = (node.cluster.id(), node.cluster.server(), &old.pool);
    let wanted = NewBrick { cluster, server, pool, journal_mib };
    let made = node.surroundings.make_brick(Path::new(directory), &wanted)?;
    let info = BrickInfo { unopened: true, ..made };
    let replicas =
        node.cluster.registry().replace_brick(&old, &info).map_err(|error| not_recorded(directory, error))?;
    Ok(BrickReplaced {
        brick: info.brick,
        directory: directory.into(),
        replaces: old.brick,
        old_directory: old.directory,
        replicas,
    })
}

/// The error for a brick that was made and whose recording failed: it says what the operator has to do.
fn not_recorded(directory: &str, error: Error) -> Error {
    let error = match error {
        Error::Unavailable { what } => Error::Unavailable {
            what: format!(
                "{what}; the brick in {directory} was made, and the coordinator may record it yet: if `hekate brick \
                 list` does not show it in a minute, empty the directory and try again"
            ),
        },
        Error::Invalid { what } => Error::Invalid {
            what: format!("{what}; the brick in {directory} was made and is not recorded: empty the directory"),
        },
        other => other,
    };
    log::warn!("the brick in {directory} was made, but not recorded: {error}");
    error
}

/// A brick of the cluster by its directory or the first digits of its id.
fn any_brick(node: &Node, called: &str) -> Result<BrickInfo> {
    let all = node.cluster.registry().bricks()?;
    let directory = called.trim_end_matches('/');
    let is_called =
        |info: &&BrickInfo| info.directory == directory || (called.len() >= 4 && info.brick.text().starts_with(called));
    let mut found: Vec<BrickInfo> = all.iter().filter(is_called).cloned().collect();
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (one, _) => {
            let known: Vec<String> =
                all.iter().map(|info| format!("{} ({})", info.directory, info.brick.text())).collect();
            let what = if one.is_some() { "there are several bricks" } else { "there is no brick" };
            Err(Error::invalid(format!("{what} called {called}; the bricks are {}", known.join(", "))))
        }
    }
}

/// Checks that a brick can be made in the directory. It may be the directory of the brick that is `replaced`.
///
/// # Errors
///
/// `Invalid`, with the reason.
fn check_new(node: &Node, directory: &str, replaced: Option<BrickId>) -> Result<()> {
    let path = Path::new(directory);
    if !path.is_absolute() {
        return Err(Error::invalid(format!(
            "{directory} is not an absolute path; name the brick's directory from the root on"
        )));
    }
    let mut own = node.cluster.registry().own_bricks()?;
    own.retain(|info| Some(info.brick) != replaced || node.bricks.get(&info.brick).is_some());
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
    node.surroundings.check_new_brick(path)
}

/// Removes a brick that holds no replica from the cluster; its directory stays as it is.
///
/// # Errors
///
/// `NotSupported` if it holds replicas; those of the coordinator.
pub fn remove(node: &Node, info: &BrickInfo) -> Result<BrickRemoved> {
    let rings = node.cluster.registry().remove_brick(info.brick)?;
    if !rings.is_empty() {
        let why = volumes_on(node, info, &rings)?;
        return Err(Error::NotSupported {
            what: format!("brick {} cannot be removed: {why}. Nothing was changed", info.directory),
        });
    }
    Ok(BrickRemoved { brick: info.brick, directory: info.directory.clone(), state: "removed".into() })
}

/// The error for an order to move the replicas of a brick to other bricks.
///
/// # Errors
///
/// Always: `NotSupported`, or `Invalid` if the brick holds no replica; those of the coordinator.
pub fn refuse_to_move(node: &Node, info: &BrickInfo, what: &str) -> Result<()> {
    let rings: Vec<RingInfo> =
        node.cluster.registry().rings()?.into_iter().filter(|ring| ring.has(info.brick)).collect();
    if rings.is_empty() {
        return Err(Error::invalid(format!(
            "brick {} holds no replica; `hekate brick remove {0}` removes it from the cluster",
            info.directory
        )));
    }
    let why = volumes_on(node, info, &rings)?;
    Err(Error::NotSupported { what: format!("brick {} cannot be {what} in this version: {why}", info.directory) })
}

fn volumes_on(node: &Node, info: &BrickInfo, rings: &[RingInfo]) -> Result<String> {
    let partitions: usize = rings.iter().map(|ring| ring.replicas_on(info.brick)).sum();
    let is_there = |volume: &hekate_cluster::VolumeInfo| rings.iter().any(|ring| ring.ring == volume.ring);
    let volumes: Vec<String> =
        node.cluster.registry().volumes()?.into_iter().filter(is_there).map(|volume| volume.name).collect();
    let volumes = match volumes.is_empty() {
        true => "of a ring that no volume uses yet".into(),
        false => format!("of volume {}", volumes.join(", ")),
    };
    Ok(format!(
        "it holds {partitions} replicas, {volumes}. `hekate brick replace {} DIR` replaces it by a new brick; this \
         version cannot move replicas to several other bricks",
        info.directory
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_orders_a_brick_learns_what_is_left_of_it() {
        let away = not_recorded("/srv/new", Error::Unavailable { what: "the coordinator does not answer".into() });
        assert!(matches!(away, Error::Unavailable { .. }), "{away:?}");
        for word in ["the coordinator does not answer", "/srv/new", "hekate brick list", "in a minute"] {
            assert!(away.to_string().contains(word), "{away}");
        }
        let refused = not_recorded("/srv/new", Error::invalid("there is no pool called fast"));
        assert!(refused.to_string().contains("no pool called fast; the brick in /srv/new"), "{refused}");
    }
}
