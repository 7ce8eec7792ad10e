//! The control interface: answers the requests of the command line, the console and other servers
//! (`hekate_control`; `docs/format/wire.md`, *Control*).
//!
//! | file | what it answers |
//! |---|---|
//! | `status` | the state of the cluster; the process that answers |
//! | `report` | this server's own state, which other servers ask for |
//! | `servers` | asks all servers for their reports, and puts them together |
//! | `volumes`, `bricks`, `partitions` | their rows, and changes to them |
//! | `heal`, `scrub` | progress of healing, proofs and scrubs, and orders to begin them |
//! | `access` | invitations, clients, the cluster's authority |
//! | `networks` | networks, certificates that expire soon |
//! | `coordinator` | reads and writes of the coordinator |
//! | `records` | where the coordinator is; moves, backups, members of etcd |

pub(crate) mod access;
pub(crate) mod bricks;
pub(crate) mod coordinator;
pub(crate) mod doors;
mod heal;
pub(crate) mod nbd;
mod networks;
mod partitions;
pub(crate) mod records;
mod report;
pub(crate) mod s3;
mod scrub;
mod servers;
mod status;
mod volumes;

pub(crate) use report::own_report;
pub(crate) use servers::ask as ask_server;

use crate::hosting::access::uid_of;
use crate::hosting::node::Node;
use crate::maintenance::repair;
use crate::reports::where_is::{held_here, where_is};
use crate::reports::{heal_files, metrics};
use hekate_control::peer::{self, PeerCall, PeerReply, PeerRequest};
use hekate_control::status::MetricsPage;
use hekate_control::{ControlCall, ControlReply, ControlRequest, Refusal, Request};
use hekate_proto::{Error, Result};
use hekate_transport::Peer;
use serde::Serialize;
use serde_json::Value;

/// Answers the text of a request with the text of its reply.
pub fn answer(node: &Node, peer: &Peer, request: &str) -> String {
    node.cluster.meet(peer);
    let request = parse(request).and_then(|request| node.cluster.access.may_ask(peer, &request).map(|()| request));
    reply(request.and_then(|request| match request {
        Request::Control(request) => act(node, peer, request),
        Request::Peer(request) => act_for_peer(node, request),
    }))
}

/// Parses a request.
///
/// # Errors
///
/// `Invalid`: the text is no request.
pub(crate) fn parse(request: &str) -> Result<Request> {
    Request::parse(request).map_err(|e| Error::invalid(format!("a control request: {e}")))
}

/// The text of a reply.
pub(crate) fn reply(outcome: Result<Value>) -> String {
    let reply = match outcome {
        Ok(value) => ControlReply::Ok(value),
        Err(error) => ControlReply::Error(Refusal { text: error.to_string(), exit: error.entry().exit }),
    };
    serde_json::to_string(&reply).unwrap_or_else(|error| format!("{{\"error\":{{\"text\":\"{error}\",\"exit\":70}}}}"))
}

fn act(node: &Node, peer: &Peer, request: ControlRequest) -> Result<Value> {
    use hekate_control as calls;
    match request {
        ControlRequest::Status(_) => encode::<calls::Status>(status::of_cluster(node)),
        ControlRequest::Identify(_) => encode::<calls::Identify>(status::identify(node)),
        ControlRequest::PoolList(_) => encode::<calls::PoolList>(volumes::pools(node)),
        ControlRequest::VolumeList(_) => encode::<calls::VolumeList>(volumes::list(node)),
        ControlRequest::VolumeShow(call) => encode::<calls::VolumeShow>(volumes::show(node, &call.name)),
        ControlRequest::VolumeCreate(call) => {
            let owner_uid = call.owner_uid.or(Some(uid_of(peer)));
            encode::<calls::VolumeCreate>(node.make_volume(calls::VolumeCreate { owner_uid, ..call }))
        }
        ControlRequest::VolumeSetGraph(call) => encode::<calls::VolumeSetGraph>(volumes::set_graph(node, call)),
        ControlRequest::VolumeDelete(call) => encode::<calls::VolumeDelete>(volumes::delete(node, call.name)),
        ControlRequest::PartitionList(_) => encode::<calls::PartitionList>(partitions::list(node)),
        ControlRequest::PartitionShow(call) => {
            encode::<calls::PartitionShow>(partitions::show(node, call.ring, call.partition))
        }
        ControlRequest::PartitionForce(call) => {
            encode::<calls::PartitionForce>(partitions::force(node, call.ring, call.partition, &call.brick))
        }
        ControlRequest::HealStatus(_) => encode::<calls::HealStatus>(heal::status(node)),
        ControlRequest::Missing(_) => encode::<calls::Missing>(heal_files::missing(node)),
        ControlRequest::Prove(call) => encode::<calls::Prove>(heal::prove(node, call.run)),
        ControlRequest::BrickList(_)
        | ControlRequest::BrickAdd(_)
        | ControlRequest::BrickRemove(_)
        | ControlRequest::BrickDrain(_)
        | ControlRequest::BrickReplace(_) => bricks::act(node, request),
        ControlRequest::ScrubStart(call) => {
            encode::<calls::ScrubStart>(scrub::start(node, call.brick.as_deref(), call.volume.as_deref()))
        }
        ControlRequest::Where(call) => encode::<calls::Where>(where_is(node, &call)),
        ControlRequest::SlowOps(_) => encode::<calls::SlowOps>(Ok(node.statistics.ops().slow_ops())),
        ControlRequest::Metrics(_) => encode::<calls::Metrics>(Ok(MetricsPage { text: metrics::page(node) })),
        ControlRequest::Stop(_) => {
            node.ask_to_stop();
            encode::<calls::Stop>(Ok(status::stopping()))
        }
        _ => act_on_access(node, peer, request),
    }
}

/// Requests about who may connect, and where the records are.
fn act_on_access(node: &Node, peer: &Peer, request: ControlRequest) -> Result<Value> {
    use hekate_control as calls;
    match request {
        ControlRequest::TokenCreate(_)
        | ControlRequest::Enroll(_)
        | ControlRequest::ClientCreate(_)
        | ControlRequest::ClientRenew(_)
        | ControlRequest::ClientRevoke(_)
        | ControlRequest::ClientList(_)
        | ControlRequest::CaShow(_)
        | ControlRequest::CaRotate(_)
        | ControlRequest::CaSet(_) => {
            let changes = !matches!(request, ControlRequest::ClientList(_) | ControlRequest::CaShow(_));
            let reply = node.cluster.access.logged(peer, access::act(&access::desk(node)?, peer, request, true));
            if changes {
                node.wake_records();
            }
            reply
        }
        ControlRequest::NetworkList(_) => encode::<calls::NetworkList>(networks::list(node)),
        ControlRequest::NetworkSet(call) => {
            let reply = encode::<calls::NetworkSet>(networks::set(node, &call));
            node.wake_records();
            reply
        }
        ControlRequest::CoordinatorShow(_)
        | ControlRequest::CoordinatorMove(_)
        | ControlRequest::CoordinatorBackup(_)
        | ControlRequest::EtcdPrepare(_)
        | ControlRequest::EtcdFinish(_)
        | ControlRequest::EtcdRemove(_) => records::act(node, request),
        ControlRequest::S3Enable(_)
        | ControlRequest::S3Disable(_)
        | ControlRequest::S3List(_)
        | ControlRequest::S3KeyCreate(_)
        | ControlRequest::S3KeyList(_)
        | ControlRequest::S3KeySet(_)
        | ControlRequest::S3KeyDelete(_)
        | ControlRequest::S3Secrets(_) => s3::act(node, request),
        ControlRequest::NbdEnable(_) | ControlRequest::NbdDisable(_) | ControlRequest::NbdList(_) => {
            nbd::act(node, request)
        }
        _ => Err(Error::bug("a request that nothing answers")),
    }
}

fn act_for_peer(node: &Node, request: PeerRequest) -> Result<Value> {
    match request {
        PeerRequest::ServerStatus(_) => encode_for_peer::<peer::ServerStatus>(node, Ok(own_report(node))),
        PeerRequest::ReplicasHere(call) => {
            encode_for_peer::<peer::ReplicasHere>(node, partitions::here(node, call.ring, call.partition))
        }
        PeerRequest::MissingHere(_) => encode_for_peer::<peer::MissingHere>(node, heal_files::missing_here(node)),
        PeerRequest::NamesHere(call) => encode_for_peer::<peer::NamesHere>(node, heal_files::names_here(node, &call)),
        PeerRequest::ProveHere(call) => encode_for_peer::<peer::ProveHere>(node, Ok(heal::prove_here(node, call.run))),
        PeerRequest::ScrubHere(call) => {
            encode_for_peer::<peer::ScrubHere>(node, Ok(scrub::start_here(node, &call.bricks, call.volume)))
        }
        PeerRequest::Repair(peer::Repair::Mend(call)) => {
            encode_for_peer::<peer::RepairItem>(node, repair::repair_item(node, call))
        }
        PeerRequest::Repair(peer::Repair::Copy(call)) => {
            encode_for_peer::<peer::CopyItem>(node, repair::copy_item(node, call))
        }
        PeerRequest::Held(call) => encode_for_peer::<peer::Held>(node, held_here(node, &call)),
        PeerRequest::CoordinatorPlace(_) => encode_for_peer::<peer::CoordinatorPlace>(node, records::place(node)),
        PeerRequest::Coordinator { cluster, asked } => coordinator::answer(node, cluster.as_deref(), asked),
    }
}

pub(crate) fn encode<C: ControlCall>(reply: Result<C::Reply>) -> Result<Value> {
    json(&reply?)
}

fn encode_for_peer<C: PeerCall>(node: &Node, reply: Result<C::Reply>) -> Result<Value> {
    json(&PeerReply { cluster: node.cluster.id().into(), server: node.cluster.server(), reply: reply? })
}

/// The JSON form of a reply.
///
/// # Errors
///
/// `Bug`: the value has no JSON form.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::bug(e.to_string()))
}
