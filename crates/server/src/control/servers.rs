//! How all servers are: each says how it is itself, and one of them puts it together.

use super::{ControlReply, ControlRequest};
use crate::hosting::node::Node;
use crate::maintenance::damage;
use crate::reports::mapping;
use hekate_cluster::ServerInfo;
use hekate_proto::*;
use hekate_transport::{Control, Endpoint};
use serde_json::{Value, json};
use std::time::Duration;

/// A server that takes longer than this to say how it is counts as away.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// What each server said of itself; of one that is away, why.
pub struct Reports(Vec<(ServerInfo, std::result::Result<Value, String>)>);

impl Reports {
    /// Asks all servers side by side.
    pub fn gather(node: &Node) -> Result<Self> {
        let own = node.registry.server();
        let infos = node.registry.servers()?;
        let ask = |info: &ServerInfo| match info.server == own {
            true => own_report(node).map_err(|error| error.to_string()),
            false => ask(node, info, &ControlRequest::ServerStatus),
        };
        let reports = std::thread::scope(|scope| {
            let asked: Vec<_> = infos.iter().map(|info| scope.spawn(move || ask(info))).collect();
            let failed = |_| Err("the question met a bug".to_string());
            asked.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect::<Vec<_>>()
        });
        Ok(Self(infos.into_iter().zip(reports).collect()))
    }

    /// A row a server.
    pub fn rows(&self) -> Vec<Value> {
        let row = |(info, report): &(ServerInfo, std::result::Result<Value, String>)| {
            let mut row = json!({
                "server": info.server,
                "name": info.name,
                "endpoints": info.endpoints,
                "state": if report.is_ok() { "online" } else { "away" },
            });
            match report {
                Ok(said) => {
                    row["pid"] = said["pid"].clone();
                    for name in ["version", "uptime_seconds", "ops_at_work", "oldest_op_milliseconds", "slow_ops"] {
                        row[name] = said[name].clone();
                    }
                }
                Err(reason) => row["reason"] = reason.as_str().into(),
            }
            row
        };
        self.0.iter().map(row).collect()
    }

    /// Whether all servers answer.
    pub fn all_online(&self) -> bool {
        self.0.iter().all(|(_, report)| report.is_ok())
    }

    /// What a server said of one of its bricks.
    pub fn brick(&self, brick: BrickId) -> Option<Value> {
        let id = brick.text();
        self.lists("bricks").find(|row| row["brick"] == id.as_str()).cloned()
    }

    /// Bytes in all and free of a volume, on the servers that answer.
    pub fn space(&self, volume: VolumeId) -> (u64, u64) {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let own = self.lists("spaces").filter(|row| row["volume"] == volume.0);
        own.fold((0, 0), |sum, row| (sum.0 + number(&row["bytes_total"]), sum.1 + number(&row["bytes_free"])))
    }

    /// Elements of a list that each server has.
    pub fn lists<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.said().filter_map(move |said| said[name].as_array()).flatten()
    }

    /// Partitions that take no changes now: what their leaders say, and those with a replica on a server that is away.
    pub fn waiting(&self, node: &Node) -> Vec<Value> {
        let away: Vec<ServerId> =
            self.0.iter().filter(|(_, report)| report.is_err()).map(|(info, _)| info.server).collect();
        let mut rows: Vec<Value> = self.lists("waiting_partitions").cloned().collect();
        for ring in node.rings.read().values() {
            for (number, view) in ring.views().iter().enumerate() {
                let is_away = |brick: &BrickId| ring.server_of(*brick).is_some_and(|server| away.contains(&server));
                let known = |row: &Value| row["ring"] == ring.ring.0 && row["partition"] == number;
                let missing = view.members.iter().map(|member| member.brick).find(is_away);
                if let Some(brick) = missing.filter(|_| !rows.iter().any(known)) {
                    let waits_for = format!("brick {}", ring.name(brick));
                    rows.push(json!({ "ring": ring.ring, "partition": number, "waits_for": waits_for }));
                }
            }
        }
        rows
    }

    /// What the leader of a partition says of it.
    pub fn led(&self, ring: RingId, partition: PartitionNumber) -> Option<&Value> {
        self.lists("led").find(|row| row["ring"] == ring.0 && row["partition"] == partition.0)
    }

    /// Writes of bytes by lane, a row for each lane of each server that has had some.
    pub fn lanes(&self) -> Vec<Value> {
        let of_server = |(info, report): &(ServerInfo, std::result::Result<Value, String>)| {
            let lanes = report.as_ref().ok().and_then(|said| said["lanes"].as_array().cloned()).unwrap_or_default();
            let name = info.name.clone();
            lanes.into_iter().map(move |mut row| {
                row["server"] = name.clone().into();
                row
            })
        };
        self.0.iter().flat_map(of_server).collect()
    }

    /// How much of a partition a brick that learns has gone through, of 1.
    pub fn healed(&self, ring: RingId, partition: PartitionNumber, brick: BrickId) -> f64 {
        let is_it = |row: &&Value| {
            row["ring"] == ring.0 && row["partition"] == partition.0 && row["brick"] == brick.text().as_str()
        };
        self.lists("healing").find(is_it).and_then(|row| row["healed"].as_f64()).unwrap_or(0.0)
    }

    /// The sum of a number that each server has.
    pub fn sum(&self, name: &str) -> u64 {
        self.said().filter_map(|said| said[name].as_u64()).sum()
    }

    fn said(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().filter_map(|(_, report)| report.as_ref().ok())
    }
}

/// What another server answers, which is to say who it is. `Err`: why it did not.
pub fn ask(node: &Node, info: &ServerInfo, request: &ControlRequest) -> std::result::Result<Value, String> {
    let request = serde_json::to_string(request).map_err(|e| e.to_string())?;
    let mut why = "it has never been served".to_string();
    for text in &info.endpoints {
        let asked = Endpoint::parse(text, node.secret.as_ref())
            .and_then(|endpoint| Control::new(endpoint, Some(ANSWER_LIMIT)).ask(&request));
        match asked.map(|answer| serde_json::from_str(&answer)) {
            Ok(Ok(ControlReply::Ok(said))) if said["server"] == info.server.0 && said["cluster"] == node.cluster => {
                return Ok(said);
            }
            Ok(Ok(ControlReply::Ok(_))) => why = format!("another server answers at {text}"),
            Ok(Ok(ControlReply::Error { text, .. })) => why = text,
            Ok(Err(error)) => why = error.to_string(),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

/// How this server is.
pub fn own_report(node: &Node) -> Result<Value> {
    let mut waiting = Vec::new();
    for ring in node.rings.read().values() {
        for number in (0..ring.count()).map(PartitionNumber) {
            if let Some(waits_for) = ring.waits_for(number) {
                waiting.push(json!({ "ring": ring.ring, "partition": number, "waits_for": waits_for }));
            }
        }
    }
    let mut healing = Vec::new();
    for ring in node.rings.read().values() {
        for address in ring.leaders() {
            let Some(hosted) = ring.replica(address) else { continue };
            for one in hosted.partition.read().healing() {
                let left = node.leavings.seconds_left((ring.ring, address.partition, one.brick), &one);
                healing.push(json!({
                    "ring": ring.ring, "partition": address.partition, "brick": one.brick, "heard": one.heard,
                    "healed": f64::from(one.done) / 10_000.0, "bytes_sent": one.sent, "seconds_left": left,
                }));
            }
        }
    }
    let led = own_partitions(node);
    let volumes: Vec<VolumeId> = node.volumes.read().keys().copied().collect();
    let space = |volume: VolumeId| {
        let space = node.volume_space(volume).ok()?;
        Some(json!({ "volume": volume, "bytes_total": space.total, "bytes_free": space.available }))
    };
    let at_work = node.at_work.look();
    Ok(json!({
        "cluster": node.cluster,
        "server": node.registry.server(),
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "ops_at_work": at_work.len(),
        "oldest_op_milliseconds": at_work.first().map(|(_, _, age)| age.as_millis() as u64),
        "slow_ops": node.slow_ops.count(),
        "uptime_seconds": node.started.elapsed().as_secs(),
        "waiting_partitions": waiting,
        "healing": healing,
        "led": led,
        "lanes": node.counters.lanes(),
        "proofs": super::heal::proofs_here(node),
        "damaged": node.damages.count(),
        "damage": damage::rows(node),
        "mapped_by_two": node.mappings.count(),
        "mapped_files": mapping::rows(node),
        "bricks": own_bricks(node)?,
        "spaces": volumes.into_iter().filter_map(space).collect::<Vec<_>>(),
        "orphans": node.orphans.lock().len(),
        "garbage": node.work_left(),
    }))
}

/// How far the partitions are that this server leads. A record is unsettled that some replica lacks, and unstable as long as not every
/// replica has it on stable storage.
fn own_partitions(node: &Node) -> Vec<Value> {
    let mut rows = Vec::new();
    for ring in node.rings.read().values() {
        for address in ring.leaders() {
            let Some(hosted) = ring.replica(address) else { continue };
            let Some(found) = hosted.partition.read().progress() else { continue };
            let lag = |(brick, lag): &(BrickId, Option<u64>)| json!({ "brick": brick, "records": lag });
            rows.push(json!({
                "ring": ring.ring, "partition": address.partition, "records": found.last,
                "lags": found.lags.iter().map(lag).collect::<Vec<_>>(),
                "unsettled": found.last.0.saturating_sub(found.settled.0),
                "unstable": found.last.0.saturating_sub(found.stable.0),
                "open_shards": found.open_shards, "unsettled_fast_writes": found.unsettled_writes, "loose": found.loose,
            }));
        }
    }
    rows
}

fn own_bricks(node: &Node) -> Result<Vec<Value>> {
    let absent = node.absent.iter().map(|brick| {
        let reason =
            "its server runs without it (`hekate serve --without`), or could not open it: its log names the cause";
        Ok(json!({ "brick": brick, "state": "not opened", "reason": reason }))
    });
    node.bricks.values().map(|brick| own_brick(node, brick)).chain(absent).collect()
}

fn own_brick(node: &Node, brick: &hekate_brick::Brick) -> Result<Value> {
    let stopped = brick.stopped();
    let status = match brick.status() {
        Ok(status) => status,
        // Its directory cannot be asked for its space: that is a fault of this brick, and the others are reported as usual.
        Err(error) => {
            let state = if stopped.is_some() { "stopped" } else { "failing" };
            let reason = stopped.unwrap_or_else(|| error.to_string());
            return Ok(json!({ "brick": brick.id(), "state": state, "reason": reason }));
        }
    };
    let recovery = node.recoveries.get(&brick.id());
    Ok(json!({
        "brick": brick.id(),
        "state": match (&stopped, &status.stalled) {
            (Some(_), _) => "stopped",
            (None, Some(_)) => "full",
            (None, None) => "online",
        },
        "reason": stopped.as_ref().or(status.stalled.as_ref()),
        "incarnation": brick.incarnation(),
        "stalled": status.stalled,
        "bytes_total": status.space.total,
        "bytes_free": status.space.available,
        // None: its file system does not count them.
        "inodes_total": (status.space.files > 0).then_some(status.space.files),
        "inodes_free": (status.space.files > 0).then_some(status.space.files_available),
        "journal_bytes_used": status.journal.0,
        "journal_bytes_total": status.journal.1,
        "overlay_bytes": status.overlay_bytes,
        "recovered_records": recovery.map(|report| report.records),
        "recovered_blocks_lost": recovery.map(|report| report.lost.len()),
        "recovered_after_stop": recovery.and_then(|report| report.stopped.clone()),
        "recovered_torn_tail": recovery.and_then(|report| report.torn.as_ref()).map(|torn| {
            json!({ "file": torn.path, "offset": torn.offset, "why": torn.why, "records": torn.records_behind })
        }),
        "reserve_bytes": status.reserve.bytes,
        "reserve_files": status.reserve.files,
        "scrub": node.scrubs.show(brick.id()),
    }))
}
