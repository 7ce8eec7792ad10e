//! Orders to scrub: all bricks of the cluster or one, all volumes or one.

use super::bricks::called;
use super::servers::ask;
use crate::hosting::node::Node;
use hekate_cluster::BrickInfo;
use hekate_control::brick::ScrubBegun;
use hekate_control::peer::{Begun, ScrubHere};
use hekate_proto::*;

/// Has the servers of the chosen bricks begin. Returns a row for each brick, in the order of the servers.
///
/// # Errors
///
/// `Invalid`: no brick or volume has that name; errors of the coordinator.
pub fn start(node: &Node, brick: Option<&str>, volume: Option<&str>) -> Result<Vec<ScrubBegun>> {
    let volume = volume.map(|name| volume_called(node, name)).transpose()?;
    let chosen = chosen(node, brick)?;
    let mut rows = Vec::new();
    for info in node.cluster.registry().servers()? {
        let own: Vec<&BrickInfo> = chosen.iter().filter(|brick| brick.server == info.server).collect();
        if own.is_empty() {
            continue;
        }
        let bricks: Vec<BrickId> = own.iter().map(|brick| brick.brick).collect();
        let begun = match info.server == node.cluster.server() {
            true => Ok(start_here(node, &bricks, volume)),
            false => ask(node, &info, ScrubHere { bricks, volume }),
        };
        let why_not = begun.err().map(|why| format!("server {} does not answer: {why}", info.server));
        rows.extend(own.into_iter().map(|brick| ScrubBegun {
            brick: brick.brick,
            directory: brick.directory.clone(),
            why_not: why_not.clone(),
        }));
    }
    Ok(rows)
}

/// Has bricks of this server begin.
pub fn start_here(node: &Node, bricks: &[BrickId], volume: Option<VolumeId>) -> Begun {
    for brick in bricks {
        node.maintenance.scrubs().ask(*brick, volume);
    }
    Begun {}
}

fn volume_called(node: &Node, name: &str) -> Result<VolumeId> {
    let found = node.cluster.registry().volume(name)?;
    Ok(found.ok_or_else(|| node.no_volume(name))?.volume)
}

/// The brick of that name. Without one: all that hold replicas, which a replaced brick does not.
fn chosen(node: &Node, name: Option<&str>) -> Result<Vec<BrickInfo>> {
    let all = node.cluster.registry().bricks()?;
    if let Some(name) = name {
        return Ok(vec![called(&all, name, "the cluster")?]);
    }
    let rings = node.cluster.registry().rings()?;
    Ok(all.into_iter().filter(|info| rings.iter().any(|ring| ring.replicas_on(info.brick) > 0)).collect())
}
