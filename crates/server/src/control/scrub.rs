//! Scrubbing all bricks of the cluster, or one, for all volumes or one.

use crate::control::ControlRequest;
use crate::hosting::node::Node;
use hekate_cluster::BrickInfo;
use hekate_proto::*;
use serde_json::{Value, json};

/// Begins. -> a row a brick, with why it was not begun, if so
pub fn start(node: &Node, brick: Option<&str>, volume: Option<&str>) -> Result<Value> {
    let volume = volume.map(|name| volume_called(node, name)).transpose()?;
    let chosen = bricks_called(node, brick)?;
    let mut rows = Vec::new();
    for info in node.registry.servers()? {
        let own: Vec<&BrickInfo> = chosen.iter().filter(|brick| brick.server == info.server).collect();
        if own.is_empty() {
            continue;
        }
        let ids: Vec<BrickId> = own.iter().map(|brick| brick.brick).collect();
        let begun = match info.server == node.registry.server() {
            true => start_here(node, &ids, volume).map_err(|error| error.to_string()),
            false => super::ask_server(node, &info, &ControlRequest::ScrubHere { bricks: ids, volume }),
        };
        let why = begun.err().map(|why| format!("server {} does not answer: {why}", info.server));
        let row = |brick: &&BrickInfo| json!({ "brick": brick.brick, "directory": brick.directory, "why_not": why });
        rows.extend(own.iter().map(row));
    }
    Ok(rows.into())
}

/// Of this server.
pub fn start_here(node: &Node, bricks: &[BrickId], volume: Option<VolumeId>) -> Result<Value> {
    for brick in bricks {
        node.scrubs.ask(*brick, volume);
    }
    Ok(json!({ "cluster": node.cluster, "server": node.registry.server() }))
}

fn volume_called(node: &Node, name: &str) -> Result<VolumeId> {
    let found = node.registry.volume(name)?;
    Ok(found.ok_or_else(|| node.no_volume(name))?.volume)
}

/// Of all servers. Without a name: those on which something rests, which one that was replaced has not.
fn bricks_called(node: &Node, name: Option<&str>) -> Result<Vec<BrickInfo>> {
    let all = node.registry.bricks()?;
    if let Some(name) = name {
        return Ok(vec![super::called(&all, name, "the cluster")?]);
    }
    let rings = node.registry.rings()?;
    Ok(all.into_iter().filter(|info| rings.iter().any(|ring| ring.replicas_on(info.brick) > 0)).collect())
}
