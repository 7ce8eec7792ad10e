//! The control interface: what the command line (and the console) ask of a server, JSON to JSON.

use crate::node::Node;
use crate::where_is::{WhereRequest, where_is};
use hekate_cluster::{BrickInfo, VolumeInfo};
use hekate_proto::*;
use hekate_transport::Peer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum ControlRequest {
    /// How the server is.
    Status,
    /// Pools with their bricks and rings.
    PoolList,
    /// Volumes.
    VolumeList,
    /// One volume with its views.
    VolumeShow {
        /// Its name.
        name: String,
    },
    /// Makes a volume.
    VolumeCreate(VolumeRequest),
    /// Deletes a volume and everything in it.
    VolumeDelete {
        /// Its name.
        name: String,
    },
    /// Begins to scrub a brick, or all.
    BrickScrub {
        /// Its directory or the first digits of its id; none: all.
        brick: Option<String>,
    },
    /// Where a file or directory rests, and the stamps of each replica.
    Where(WhereRequest),
    /// Ends the server in order.
    Stop,
}

/// What a new volume is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeRequest {
    /// Its name.
    pub name: String,
    /// In which pool.
    pub pool: String,
    /// How many copies.
    pub copies: u32,
    /// Who may use it beside root, the server's user and the owner.
    pub allowed_uids: Vec<u32>,
    /// Who owns its root directory; the caller, if none is named.
    pub owner_uid: Option<u32>,
}

/// An answer: `ok` or `error`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlReply {
    /// What was asked for.
    Ok(Value),
    /// What went wrong.
    Error {
        /// In words.
        text: String,
        /// Exit status for the command line.
        exit: u8,
    },
}

/// Answers a request.
pub fn answer(node: &Node, peer: Peer, request: &str) -> String {
    let outcome = serde_json::from_str(request)
        .map_err(|e| Error::invalid(format!("a control request: {e}")))
        .and_then(|request| act(node, peer, request));
    let reply = match outcome {
        Ok(value) => ControlReply::Ok(value),
        Err(error) => ControlReply::Error { text: error.to_string(), exit: error.entry().exit },
    };
    serde_json::to_string(&reply).unwrap_or_else(|error| format!("{{\"error\":{{\"text\":\"{error}\",\"exit\":70}}}}"))
}

fn act(node: &Node, peer: Peer, request: ControlRequest) -> Result<Value> {
    match request {
        ControlRequest::Status => status(node),
        ControlRequest::PoolList => pools(node),
        ControlRequest::VolumeList => {
            let volumes = node.registry.volumes()?;
            volumes.iter().map(|volume| volume_row(node, volume)).collect::<Result<Vec<_>>>().map(Value::from)
        }
        ControlRequest::VolumeShow { name } => {
            let volume = node.registry.volume(&name)?;
            let volume = volume.ok_or_else(|| Error::invalid(format!("there is no volume called {name}")))?;
            let mut row = volume_row(node, &volume)?;
            row["views"] = json(&node.registry.map(&volume)?.views)?;
            Ok(row)
        }
        ControlRequest::VolumeCreate(wanted) => {
            let uid = administrator(peer)?;
            node.make_volume(VolumeRequest { owner_uid: wanted.owner_uid.or(Some(uid)), ..wanted })
        }
        ControlRequest::VolumeDelete { name } => {
            administrator(peer)?;
            node.delete_volume(&name)?;
            Ok(json!({ "name": name, "state": "deleting" }))
        }
        ControlRequest::BrickScrub { brick } => {
            administrator(peer)?;
            let found = bricks_called(node, brick.as_deref())?;
            found.iter().for_each(|info| node.scrubs.ask(info.brick));
            Ok(found.iter().map(|info| json!({ "brick": info.brick, "directory": info.directory })).collect())
        }
        ControlRequest::Where(wanted) => {
            administrator(peer)?;
            where_is(node, &wanted)
        }
        ControlRequest::Stop => {
            administrator(peer)?;
            node.stop_asked.store(true, Ordering::Relaxed);
            Ok(json!({ "pid": std::process::id() }))
        }
    }
}

impl Node {
    /// Makes a volume; `owner_uid` must be named. -> its row.
    pub fn make_volume(&self, wanted: VolumeRequest) -> Result<Value> {
        let owner_uid = wanted.owner_uid.ok_or_else(|| Error::invalid("a volume needs an owner"))?;
        let volume = VolumeInfo {
            volume: VolumeId(0),
            name: wanted.name,
            pool: wanted.pool,
            ring: RingId(0),
            copies: wanted.copies,
            owner_uid,
            allowed_uids: wanted.allowed_uids,
            layers: Vec::new(),
            deleting: false,
        };
        volume_row(self, &self.create_volume(volume, owner_uid)?)
    }
}

/// Root and the server's own user may change the cluster. -> who it is.
fn administrator(peer: Peer) -> Result<u32> {
    let own = rustix::process::geteuid().as_raw();
    match peer {
        Peer::Secret => Ok(own),
        Peer::Local { uid, .. } if uid == 0 || uid == own => Ok(uid),
        Peer::Local { uid, .. } => Err(Error::Denied {
            what: format!("user {uid} may look, but only root and user {own} may change the cluster"),
        }),
    }
}

fn json<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::bug(e.to_string()))
}

fn volume_row(node: &Node, volume: &VolumeInfo) -> Result<Value> {
    let mut row = json(volume)?;
    row["sessions"] = node.sessions.count(volume.volume).into();
    row["state"] = if volume.deleting { "deleting" } else { "online" }.into();
    if let Ok(space) = node.volume_space(volume.volume) {
        row["bytes_total"] = space.total.into();
        row["bytes_free"] = space.free.into();
    }
    // Everything that makes the promises weaker than the contract would be named here.
    row["mode"] = "leader".into();
    row["weaker"] = Value::Array(Vec::new());
    Ok(row)
}

fn pools(node: &Node) -> Result<Value> {
    let bricks = bricks(node)?;
    let rings = node.registry.rings()?;
    let pools = node.registry.pools()?.into_iter().map(|pool| {
        let own: Vec<&Value> = bricks.iter().filter(|brick| brick["pool"] == pool.name.as_str()).collect();
        let rings: Vec<Value> = rings
            .iter()
            .filter(|ring| ring.pool == pool.name)
            .map(|ring| json!({ "ring": ring.ring, "copies": ring.copies, "partitions": ring.views.len() }))
            .collect();
        json!({ "name": pool.name, "bricks": own, "rings": rings })
    });
    Ok(Value::Array(pools.collect()))
}

/// Bricks by directory or the beginning of their id.
fn bricks_called(node: &Node, called: Option<&str>) -> Result<Vec<BrickInfo>> {
    let all = node.registry.bricks()?;
    let Some(called) = called else { return Ok(all) };
    let directory = called.trim_end_matches('/');
    let is_called =
        |info: &BrickInfo| info.directory == directory || (called.len() >= 4 && info.brick.text().starts_with(called));
    let found: Vec<BrickInfo> = all.iter().filter(|info| is_called(info)).cloned().collect();
    if found.len() == 1 {
        return Ok(found);
    }
    let known: Vec<&str> = all.iter().map(|info| info.directory.as_str()).collect();
    let what = if found.is_empty() { "there is no brick" } else { "there are several bricks" };
    Err(Error::invalid(format!("{what} called {called}; bricks are {}", known.join(", "))))
}

fn bricks(node: &Node) -> Result<Vec<Value>> {
    let row = |info: hekate_cluster::BrickInfo| -> Result<Value> {
        let brick = node.bricks.get(&info.brick).ok_or_else(|| Error::bug("a brick that is not open"))?;
        let status = brick.status()?;
        let recovery = node.recoveries.get(&info.brick);
        Ok(json!({
            "brick": info.brick,
            "directory": info.directory,
            "pool": info.pool,
            "state": if status.poisoned.is_some() { "poisoned" } else { "online" },
            "reason": status.poisoned,
            "incarnation": brick.incarnation(),
            "bytes_total": status.space.0,
            "bytes_free": status.space.1,
            "journal_bytes_used": status.journal.0,
            "journal_bytes_total": status.journal.1,
            "overlay_bytes": status.overlay_bytes,
            "recovered_records": recovery.map(|report| report.records),
            "recovered_blocks_lost": recovery.map(|report| report.lost.len()),
            "recovered_after_stop": recovery.and_then(|report| report.stopped.clone()),
            "recovered_torn_tail": recovery.and_then(|report| report.torn.as_ref()).map(|torn| {
                json!({ "file": torn.path, "offset": torn.offset, "why": torn.why, "records": torn.records_behind })
            }),
            "reserve_bytes": status.reserve_bytes,
            "scrub": node.scrubs.show(info.brick),
        }))
    };
    node.registry.bricks()?.into_iter().map(row).collect()
}

fn status(node: &Node) -> Result<Value> {
    let mut failed = Vec::new();
    for ring in node.rings.read().values() {
        for number in (0..ring.count()).map(PartitionNumber) {
            if let Some(error) = ring.failure(number) {
                failed.push(json!({ "ring": ring.ring, "partition": number, "waits_for": error.to_string() }));
            }
        }
    }
    let volumes = node.registry.volumes()?;
    let rows: Result<Vec<Value>> = volumes.iter().map(|volume| volume_row(node, volume)).collect();
    Ok(json!({
        "cluster": node.cluster,
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": node.started.elapsed().as_secs(),
        "health": if failed.is_empty() && node.scrubs.damaged() == 0 { "good" } else { "degraded" },
        "waiting_partitions": failed,
        "bricks": bricks(node)?,
        "volumes": rows?,
        "orphans": node.orphans.lock().len(),
        "garbage": node.work_left(),
        "ops": node.counters.to_json(),
    }))
}
