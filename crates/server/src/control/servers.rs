//! Reports of all servers, asked for side by side.

use super::report::own_report;
use crate::hosting::node::Node;
use hekate_cluster::ServerInfo;
use hekate_control::ControlReply;
use hekate_control::partition::WaitingPartition;
use hekate_control::peer::{HealingReplica, LedPartition, PeerCall, PeerReply, PeerRequest, ServerReport};
use hekate_control::peer::{ServerStatus as ReportCall, VolumeSpace};
use hekate_control::status::{ServerLane, ServerState, ServerStatus};
use hekate_proto::*;
use std::time::Duration;

/// Limit for the reply of one server, after which it is reported as away; so the longest delay of `hekate status`.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// A report, or why there is none.
type Report = std::result::Result<ServerReport, String>;

/// The report of each server.
pub struct Reports(Vec<(ServerInfo, Report)>);

impl Reports {
    /// Requests the reports of all servers, in parallel.
    ///
    /// # Errors
    ///
    /// Errors of the coordinator.
    pub fn gather(node: &Node) -> Result<Self> {
        let own = node.cluster.server();
        let infos = node.cluster.registry().servers()?;
        let ask = |info: &ServerInfo| match info.server == own {
            true => Ok(own_report(node)),
            false => ask(node, info, ReportCall {}),
        };
        let reports = std::thread::scope(|scope| {
            let asked: Vec<_> = infos.iter().map(|info| scope.spawn(move || ask(info))).collect();
            let failed = |_| {
                Err("the request to it panicked, which is a bug; see the log of the server that answers".to_string())
            };
            asked.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect::<Vec<_>>()
        });
        Ok(Self(infos.into_iter().zip(reports).collect()))
    }

    /// A row for each server.
    pub fn rows(&self) -> Vec<ServerStatus> {
        let row = |(info, report): &(ServerInfo, Report)| ServerStatus {
            server: info.server,
            name: info.name.clone(),
            endpoints: info.endpoints.clone(),
            state: match report {
                Ok(report) => ServerState::Online(report.vitals.clone()),
                Err(reason) => ServerState::Away { reason: reason.clone() },
            },
        };
        self.0.iter().map(row).collect()
    }

    /// The reports of the servers that answer.
    pub fn said(&self) -> impl Iterator<Item = &ServerReport> {
        self.0.iter().filter_map(|(_, report)| report.as_ref().ok())
    }

    /// True if all servers answer.
    pub fn all_online(&self) -> bool {
        self.0.iter().all(|(_, report)| report.is_ok())
    }

    /// Bytes of a volume in all, and free, on the servers that answer.
    pub fn space(&self, volume: VolumeId) -> (u64, u64) {
        let spaces = self.said().flat_map(|report| &report.spaces).filter(|space| space.volume == volume);
        spaces.fold((0, 0), |sum, space: &VolumeSpace| (sum.0 + space.bytes_total, sum.1 + space.bytes_free))
    }

    /// Partitions that take no changes now: those that their leaders report, and those with a member on a server that
    /// is away.
    pub fn waiting(&self, node: &Node) -> Vec<WaitingPartition> {
        let away: Vec<ServerId> =
            self.0.iter().filter(|(_, report)| report.is_err()).map(|(info, _)| info.server).collect();
        let mut rows: Vec<_> = self.said().flat_map(|report| report.waiting_partitions.clone()).collect();
        for ring in node.rings.all() {
            for (partition, view) in (0..).map(PartitionNumber).zip(ring.views().iter()) {
                let is_away = |brick: &BrickId| ring.server_of(*brick).is_some_and(|server| away.contains(&server));
                let is_known = rows.iter().any(|row| row.ring == ring.ring && row.partition == partition);
                let missing = view.members.iter().map(|member| member.brick).find(is_away);
                if let Some(brick) = missing.filter(|_| !is_known) {
                    let waits_for = format!("brick {}", ring.name(brick));
                    rows.push(WaitingPartition { ring: ring.ring, partition, waits_for });
                }
            }
        }
        rows
    }

    /// True if a server knows that the volume's root directory is made.
    pub fn is_made(&self, volume: VolumeId) -> bool {
        self.said().any(|report| report.roots.contains(&volume))
    }

    /// The leader's report of a partition.
    pub fn led(&self, ring: RingId, partition: PartitionNumber) -> Option<&LedPartition> {
        self.said().flat_map(|report| &report.led).find(|row| row.ring == ring && row.partition == partition)
    }

    /// The reports of the servers that answer, with their names.
    pub fn named(&self) -> impl Iterator<Item = (String, &ServerReport)> {
        self.0.iter().filter_map(|(info, report)| Some((info.name.clone(), report.as_ref().ok()?)))
    }

    /// Writes of shards, a row for each lane of each server that has had some.
    pub fn lanes(&self) -> Vec<ServerLane> {
        let of_server = |(info, report): &(ServerInfo, Report)| {
            let lanes = report.as_ref().map(|report| report.lanes.clone()).unwrap_or_default();
            let server = info.name.clone();
            lanes.into_iter().map(move |lane| ServerLane { server: server.clone(), lane })
        };
        self.0.iter().flat_map(of_server).collect()
    }

    /// The leader's report of a replica that it heals.
    pub fn healing(&self, ring: RingId, partition: PartitionNumber, brick: BrickId) -> Option<&HealingReplica> {
        let is_it = |row: &&HealingReplica| row.ring == ring && row.partition == partition && row.brick == brick;
        self.said().flat_map(|report| &report.healing).find(is_it)
    }

    /// The part of a replica that is healed, from 0 to 1.
    pub fn healed(&self, ring: RingId, partition: PartitionNumber, brick: BrickId) -> f64 {
        self.healing(ring, partition, brick).map_or(0.0, |row| row.healed)
    }
}

/// Asks another server.
///
/// # Errors
///
/// In words: the server refused, did not answer within `ANSWER_LIMIT`, or another one answered at its addresses.
pub fn ask<C: PeerCall>(node: &Node, info: &ServerInfo, call: C) -> std::result::Result<C::Reply, String> {
    let request: PeerRequest = call.into();
    let request = serde_json::to_string(&request).map_err(|e| e.to_string())?;
    let mut why = "it has recorded no address: it was never started".to_string();
    for endpoint in node.cluster.endpoints_of(info) {
        let text = endpoint.to_string();
        let asked = node.surroundings.ask(endpoint, ANSWER_LIMIT, &request);
        let answer = asked.map(|answer| serde_json::from_str::<ControlReply<PeerReply<C::Reply>>>(&answer));
        match answer {
            Ok(Ok(ControlReply::Ok(said))) if said.server == info.server && said.cluster == node.cluster.id() => {
                return Ok(said.reply);
            }
            Ok(Ok(ControlReply::Ok(_))) => why = format!("another server answers at {text}"),
            Ok(Ok(ControlReply::Error(refusal))) => why = refusal.text,
            Ok(Err(error)) => why = error.to_string(),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}
