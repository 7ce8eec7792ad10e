//! The control interface: what the command line (and the console) ask of a server, JSON to JSON.

pub(crate) mod coordinator;
mod heal;
mod partitions;
mod scrub;
mod servers;

pub use coordinator::CoordinatorRequest;

use crate::hosting::bricks;
use crate::hosting::node::Node;
use crate::maintenance::repair::{self, RepairRequest};
use crate::reports::heal_files::{self, NameRequest};
use crate::reports::metrics;
use crate::reports::where_is::{HeldRequest, WhereRequest, held_here, where_is};
use hekate_cluster::{BrickInfo, Domain, RingWish, VolumeInfo};
use hekate_proto::map::Mode;
use hekate_proto::*;
use hekate_transport::Peer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use servers::Reports;
use std::collections::BTreeMap;

pub(crate) use heal::prove_here;
pub(crate) use servers::{ask as ask_server, own_report};
use std::sync::atomic::Ordering;

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum ControlRequest {
    /// How the cluster is, with all of its servers.
    Status,
    /// How this one server is.
    ServerStatus,
    /// Who answers: server, cluster, where it listens, and where the coordinator is.
    Identify,
    /// The coordinator, which the first server or a process of its own holds.
    Coordinator {
        /// The cluster of the server that asks; none while it does not know it yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// What of it.
        #[serde(flatten)]
        asked: CoordinatorRequest,
    },
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
    /// All partitions: their views, and what they wait for.
    PartitionList,
    /// One, with how far each of its replicas is.
    PartitionShow {
        /// Of which ring.
        ring: RingId,
        /// Which.
        partition: PartitionNumber,
    },
    /// What this one server has of it.
    ReplicasHere {
        /// So.
        ring: RingId,
        /// So.
        partition: PartitionNumber,
    },
    /// What is being healed, what waits, and how far proofs are that all replicas hold the same.
    HealStatus,
    /// What replicas lack that are away or being healed, file by file.
    Missing,
    /// What the journals of this one server tell of that.
    MissingHere,
    /// The name that leads to an inode, as far as this one server knows.
    NamesHere(NameRequest),
    /// Begins such a proof of all partitions of which none was begun in this run.
    Prove {
        /// A number of who asks.
        run: u64,
    },
    /// Of those that this one server leads.
    ProveHere {
        /// So.
        run: u64,
    },
    /// Lets a replica of this one server lead a partition whose members are gone for good.
    PartitionForce {
        /// So.
        ring: RingId,
        /// So.
        partition: PartitionNumber,
        /// Its directory or the first digits of its id.
        brick: String,
    },
    /// All bricks, with what rests on them.
    BrickList,
    /// Makes a brick on this one server.
    BrickAdd {
        /// An empty directory there, as an absolute path.
        directory: String,
        /// The pool that it is for.
        pool: String,
        /// The size of its journal.
        journal_mib: u64,
    },
    /// Takes a brick of this one server out of the cluster.
    BrickRemove {
        /// Its directory or the first digits of its id.
        brick: String,
    },
    /// Moves what rests on a brick to others.
    BrickDrain {
        /// So.
        brick: String,
    },
    /// Makes a brick on this one server that takes the place of one, of any server.
    BrickReplace {
        /// So.
        brick: String,
        /// As of `BrickAdd`.
        directory: String,
        /// So.
        journal_mib: u64,
    },
    /// Begins to scrub a brick, or all.
    ScrubStart {
        /// Its directory or the first digits of its id; none: all, of all servers.
        brick: Option<String>,
        /// Only what is of this volume.
        #[serde(default)]
        volume: Option<String>,
    },
    /// Begins to scrub bricks of this one server.
    ScrubHere {
        /// Which.
        bricks: Vec<BrickId>,
        /// So.
        volume: Option<VolumeId>,
    },
    /// Another server has found damage.
    Repair(RepairRequest),
    /// Where a file or directory rests, and the stamps of each replica.
    Where(WhereRequest),
    /// What the replicas on this one server have of something.
    Held(HeldRequest),
    /// Ops at work on this one server, and the last that were slow.
    SlowOps,
    /// Counters of this one server as Prometheus reads them.
    Metrics,
    /// Ends the server in order.
    Stop,
}

impl ControlRequest {
    /// Whether any local user may ask it: it changes nothing, and names no files, sessions or secrets.
    fn is_for_all(&self) -> bool {
        use ControlRequest::*;
        matches!(
            self,
            Status
                | ServerStatus
                | Identify
                | PoolList
                | VolumeList
                | VolumeShow { .. }
                | PartitionList
                | PartitionShow { .. }
                | ReplicasHere { .. }
                | HealStatus
                | BrickList
                | Metrics
        )
    }
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
    /// What no two copies share; none: servers if there are enough of them, else disks.
    #[serde(default)]
    pub domain: Option<Domain>,
    /// So many copies must be there for it to be served; none: all but one.
    #[serde(default)]
    pub min_replicas: Option<u32>,
    /// Who may use it beside root, the server's user and the owner.
    pub allowed_uids: Vec<u32>,
    /// Who owns its root directory; the caller, if none is named.
    pub owner_uid: Option<u32>,
    /// Partitions that share the names of a directory made in its root: a power of two, at most those of its ring.
    #[serde(default = "one")]
    pub spread: u32,
    /// How its bytes are replicated.
    #[serde(default)]
    pub mode: Mode,
    /// The server that leads all of it, as long as it is there.
    #[serde(default)]
    pub led_by: Option<ServerId>,
}

fn one() -> u32 {
    1
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
    reply(allowed(peer, request).and_then(|request| act(node, peer, request)))
}

/// What is asked, if that peer may.
pub(crate) fn allowed(peer: Peer, request: &str) -> Result<ControlRequest> {
    let request: ControlRequest =
        serde_json::from_str(request).map_err(|e| Error::invalid(format!("a control request: {e}")))?;
    if !request.is_for_all() {
        administrator(peer)?;
    }
    Ok(request)
}

/// The text of an answer.
pub(crate) fn reply(outcome: Result<Value>) -> String {
    let reply = match outcome {
        Ok(value) => ControlReply::Ok(value),
        Err(error) => ControlReply::Error { text: error.to_string(), exit: error.entry().exit },
    };
    serde_json::to_string(&reply).unwrap_or_else(|error| format!("{{\"error\":{{\"text\":\"{error}\",\"exit\":70}}}}"))
}

fn act(node: &Node, peer: Peer, request: ControlRequest) -> Result<Value> {
    match request {
        ControlRequest::Status => status(node),
        ControlRequest::ServerStatus => servers::own_report(node),
        ControlRequest::Identify => identify(node),
        ControlRequest::Coordinator { cluster, asked } => coordinator::answer(node, cluster.as_deref(), asked),
        ControlRequest::PoolList => pools(node),
        ControlRequest::VolumeList => volume_rows(node, &Reports::gather(node)?).map(Value::from),
        ControlRequest::VolumeShow { name } => {
            let volume = node.registry.volume(&name)?;
            let volume = volume.ok_or_else(|| node.no_volume(&name))?;
            let mut row = volume_row(node, &volume, &Reports::gather(node)?)?;
            let map = node.registry.map(&volume)?;
            (row["views"], row["bricks"]) = (json(&map.views)?, json(&map.bricks)?);
            Ok(row)
        }
        ControlRequest::VolumeCreate(wanted) => {
            node.make_volume(VolumeRequest { owner_uid: wanted.owner_uid.or(Some(uid_of(peer))), ..wanted })
        }
        ControlRequest::VolumeDelete { name } => {
            node.delete_volume(&name)?;
            Ok(json!({ "name": name, "state": "deleting" }))
        }
        ControlRequest::PartitionList => partitions::list(node),
        ControlRequest::PartitionShow { ring, partition } => partitions::show(node, ring, partition),
        ControlRequest::ReplicasHere { ring, partition } => partitions::here(node, ring, partition),
        ControlRequest::PartitionForce { ring, partition, brick } => partitions::force(node, ring, partition, &brick),
        ControlRequest::HealStatus => heal::status(node),
        ControlRequest::Missing => heal_files::missing(node),
        ControlRequest::MissingHere => heal_files::missing_here(node),
        ControlRequest::NamesHere(wanted) => heal_files::names_here(node, &wanted),
        ControlRequest::Prove { run } => heal::prove(node, run),
        ControlRequest::ProveHere { run } => heal::prove_here(node, run),
        ControlRequest::BrickList => bricks(node, &Reports::gather(node)?).map(Value::from),
        ControlRequest::BrickAdd { directory, pool, journal_mib } => bricks::add(node, &directory, &pool, journal_mib),
        ControlRequest::BrickRemove { brick } => bricks::remove(node, &one_brick(node, &brick)?),
        ControlRequest::BrickDrain { brick } => bricks::refuse_to_move(node, &one_brick(node, &brick)?, "drained"),
        ControlRequest::BrickReplace { brick, directory, journal_mib } => {
            bricks::replace(node, &brick, &directory, journal_mib)
        }
        ControlRequest::ScrubStart { brick, volume } => scrub::start(node, brick.as_deref(), volume.as_deref()),
        ControlRequest::ScrubHere { bricks, volume } => scrub::start_here(node, &bricks, volume),
        ControlRequest::Repair(request) => repair::answer(node, request),
        ControlRequest::Where(wanted) => where_is(node, &wanted),
        ControlRequest::Held(wanted) => {
            let held = held_here(node, &wanted)?;
            Ok(json!({ "cluster": node.cluster, "server": node.registry.server(), "held": json(&held)? }))
        }
        ControlRequest::SlowOps => {
            let mut slow = node.slow_ops.to_json();
            slow["at_work"] = node.at_work.to_json();
            Ok(slow)
        }
        ControlRequest::Metrics => Ok(json!({ "text": metrics::page(node)? })),
        ControlRequest::Stop => {
            node.stop_asked.store(true, Ordering::Relaxed);
            Ok(json!({ "pid": std::process::id() }))
        }
    }
}

fn identify(node: &Node) -> Result<Value> {
    Ok(json!({
        "cluster": node.cluster,
        "server": node.registry.server(),
        "pid": std::process::id(),
        "endpoints": node.endpoints()?,
        "coordinator": node.coordinator_addresses()?,
        "holds_coordinator": node.coordinator_address.is_none(),
    }))
}

impl Node {
    /// Where this server listens.
    fn endpoints(&self) -> Result<Vec<String>> {
        let own = self.registry.server();
        let info = self.registry.servers()?.into_iter().find(|info| info.server == own);
        Ok(info.map(|info| info.endpoints).unwrap_or_default())
    }

    /// Where the coordinator answers: here, if this server holds it.
    fn coordinator_addresses(&self) -> Result<Vec<String>> {
        self.coordinator_address.as_ref().map_or_else(|| self.endpoints(), |address| Ok(vec![address.clone()]))
    }

    /// Makes a volume; `owner_uid` must be named. -> its row.
    pub fn make_volume(&self, wanted: VolumeRequest) -> Result<Value> {
        let owner_uid = wanted.owner_uid.ok_or_else(|| Error::invalid("a volume needs an owner"))?;
        if wanted.mode == Mode::Bypass && wanted.led_by.is_none() {
            return Err(Error::invalid("mode bypass needs to know which server's copies answer: say --leader SERVER"));
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
            layers: Vec::new(),
            deleting: false,
            spread: wanted.spread,
            mode: wanted.mode,
        };
        let made = self.create_volume(volume, wish, owner_uid)?;
        volume_row(self, &made, &Reports::gather(self)?)
    }
}

/// Whoever knows the secret acts as the server's own user.
fn uid_of(peer: Peer) -> u32 {
    match peer {
        Peer::Secret => rustix::process::geteuid().as_raw(),
        Peer::Local { uid } => uid,
    }
}

/// Root and the server's own user may change the cluster.
fn administrator(peer: Peer) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    match uid_of(peer) {
        uid if uid == 0 || uid == own => Ok(()),
        uid => Err(Error::Denied {
            what: format!("user {uid} may look, but only root and user {own} may change the cluster"),
        }),
    }
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::bug(e.to_string()))
}

fn volume_rows(node: &Node, reports: &Reports) -> Result<Vec<Value>> {
    node.registry.volumes()?.iter().map(|volume| volume_row(node, volume, reports)).collect()
}

fn volume_row(node: &Node, volume: &VolumeInfo, reports: &Reports) -> Result<Value> {
    let mut row = json(volume)?;
    let ring = node.registry.ring(volume.ring)?;
    row["domain"] = json(&ring.as_ref().map(|ring| ring.domain))?;
    row["min_replicas"] = json(&ring.as_ref().map(|ring| ring.members_min()))?;
    row["led_by"] = json(&ring.and_then(|ring| ring.led_by))?;
    row["sessions"] = node.registry.session_count(volume.volume)?.into();
    row["state"] = if volume.deleting { "deleting" } else { "online" }.into();
    let (total, free) = reports.space(volume.volume);
    (row["bytes_total"], row["bytes_free"]) = (total.into(), free.into());
    // Everything that makes the promises weaker than the contract.
    row["weaker"] = json(&volume.mode.weaker())?;
    Ok(row)
}

fn pools(node: &Node) -> Result<Value> {
    let bricks = bricks(node, &Reports::gather(node)?)?;
    let rings = node.registry.rings()?;
    let pools = node.registry.pools()?.into_iter().map(|pool| {
        let own: Vec<&Value> = bricks.iter().filter(|brick| brick["pool"] == pool.name.as_str()).collect();
        let rings: Vec<Value> = rings
            .iter()
            .filter(|ring| ring.pool == pool.name)
            .map(|ring| {
                let partitions = ring.views.len();
                json!({ "ring": ring.ring, "copies": ring.copies, "domain": ring.domain, "partitions": partitions })
            })
            .collect();
        json!({ "name": pool.name, "bricks": own, "rings": rings })
    });
    Ok(Value::Array(pools.collect()))
}

/// The one of these bricks that is meant, by directory or the beginning of its id.
fn called(all: &[BrickInfo], called: &str, whose: &str) -> Result<BrickInfo> {
    let directory = called.trim_end_matches('/');
    let is_called =
        |info: &BrickInfo| info.directory == directory || (called.len() >= 4 && info.brick.text().starts_with(called));
    let found: Vec<&BrickInfo> = all.iter().filter(|info| is_called(info)).collect();
    if let [info] = found[..] {
        return Ok(info.clone());
    }
    let known: Vec<&str> = all.iter().map(|info| info.directory.as_str()).collect();
    let what = if found.is_empty() { format!("{whose} has no brick") } else { "there are several bricks".to_string() };
    Err(Error::invalid(format!("{what} called {called}; its bricks are {}", known.join(", "))))
}

/// One of this server's.
fn one_brick(node: &Node, name: &str) -> Result<BrickInfo> {
    called(&node.registry.own_bricks()?, name, "this server")
}

/// All bricks: what is recorded of each, and what its server says of it.
fn bricks(node: &Node, reports: &Reports) -> Result<Vec<Value>> {
    let rings = node.registry.rings()?;
    let row = |info: BrickInfo| -> Result<Value> {
        let unknown = || match info.unopened {
            true => {
                json!({ "brick": info.brick, "state": "not opened yet", "reason": "its server opens it at its next start" })
            }
            false => json!({ "brick": info.brick, "state": "away", "reason": "its server does not answer" }),
        };
        let said = reports.brick(info.brick).filter(|row| !(info.unopened && row["state"] == "not opened"));
        let mut row = said.unwrap_or_else(unknown);
        (row["directory"], row["pool"], row["server"]) =
            (info.directory.into(), info.pool.into(), info.server.0.into());
        let views = rings.iter().flat_map(|ring| &ring.views);
        row["leads"] = views.filter(|view| view.leader == info.brick).count().into();
        row["replicas"] = rings.iter().map(|ring| ring.replicas_on(info.brick)).sum::<usize>().into();
        Ok(row)
    };
    node.registry.bricks()?.into_iter().map(row).collect()
}

/// Bricks that partitions lack as members: how many, and how far they are healed.
fn lacking_copies(node: &Node, reports: &Reports, bricks: &[Value]) -> Result<Vec<Value>> {
    let mut lacking: BTreeMap<BrickId, (u64, u64, f64)> = BTreeMap::new();
    for ring in node.registry.rings()? {
        for (number, view) in (0..).map(PartitionNumber).zip(&ring.views) {
            for brick in ring.placed(number).into_iter().filter(|brick| !view.has_member(*brick)) {
                let (all, learning, healed) = lacking.entry(brick).or_default();
                *all += 1;
                *learning += u64::from(view.has_learner(brick));
                *healed += reports.healed(ring.ring, number, brick);
            }
        }
    }
    let row = |(brick, (all, learning, healed)): (BrickId, (u64, u64, f64))| {
        let of_brick = |name: &str| row_of(bricks, brick).map(|row| row[name].clone());
        json!({
            "brick": brick,
            "directory": of_brick("directory"),
            "server": of_brick("server"),
            "state": of_brick("state"),
            "partitions": all,
            "learning": learning,
            "healed": healed / all as f64,
        })
    };
    Ok(lacking.into_iter().map(row).collect())
}

/// The row of a brick among those of all bricks.
fn row_of(bricks: &[Value], brick: BrickId) -> Option<&Value> {
    let id = brick.text();
    bricks.iter().find(|row| row["brick"] == id.as_str())
}

fn status(node: &Node) -> Result<Value> {
    let reports = Reports::gather(node)?;
    let waiting = reports.waiting(node);
    let bricks = bricks(node, &reports)?;
    let lacking = lacking_copies(node, &reports, &bricks)?;
    let has_failed = |row: &Value| matches!(row["state"].as_str(), Some("stopped" | "failing" | "full"));
    let is_good = waiting.is_empty()
        && lacking.is_empty()
        && reports.all_online()
        && reports.sum("damaged") == 0
        && !bricks.iter().any(has_failed);
    Ok(json!({
        "cluster": node.cluster,
        "server": node.registry.server(),
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": node.started.elapsed().as_secs(),
        "health": if is_good { "good" } else { "degraded" },
        "coordinator": node.coordinator_addresses()?,
        "waiting_partitions": waiting,
        "lacking_copies": lacking,
        "servers": reports.rows(),
        "partitions": partitions::rows(node, &reports)?,
        "lanes": reports.lanes(),
        "bricks": bricks,
        "damaged": reports.sum("damaged"),
        "damage": reports.lists("damage").collect::<Vec<_>>(),
        "mapped_by_two": reports.sum("mapped_by_two"),
        "mapped_files": reports.lists("mapped_files").collect::<Vec<_>>(),
        "volumes": volume_rows(node, &reports)?,
        "orphans": reports.sum("orphans"),
        "garbage": reports.sum("garbage"),
        "ops": node.counters.to_json(),
    }))
}
