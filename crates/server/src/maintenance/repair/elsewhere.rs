//! What servers ask each other about damage, over the control interface: to repair an item, and for a replica's copy of
//! it.

use super::{DamagedPart, Good, Repaired, repair_led};
use crate::control::{ControlRequest, ask_server};
use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use hekate_brick::{Brick, LogPosition};
use hekate_cluster::ServerInfo;
use hekate_proto::*;
use hekate_replica::Address;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// A request of one server to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "repair", rename_all = "kebab-case")]
pub enum RepairRequest {
    /// To the server of the partition's leader: repair this item, which is damaged on that brick.
    Mend { brick: BrickId, what: What },
    /// To the server of that brick: what does the replica have of this item?
    Copy { brick: BrickId, what: What },
}

/// A damaged item, in its encoding on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    Block { ring: RingId, shard: Vec<u8>, block: u32 },
    Entry { key: Vec<u8> },
}

/// What a replica of another server has of an item, and at which record.
#[derive(Debug, Serialize, Deserialize)]
pub struct Copied {
    epoch: Epoch,
    sequence: Sequence,
    record: Option<Vec<u8>>,
    has: Option<Vec<u8>>,
    /// The replica is a learner: it may be at any record, and have only a part of a shard.
    #[serde(skip)]
    learns: bool,
}

impl Copied {
    /// The copy, if the replica was at the leader's record and, as far as members here can read it, at the same write
    /// to the shard.
    pub fn good_at(self, damaged: &DamagedPart, members: &[Arc<Brick>], position: LogPosition) -> Option<Good> {
        if self.learns {
            return self.meant_by(damaged, members);
        }
        let record = self.record.map(|record| ShardRecord::from_bytes(record.into())).transpose().ok()?;
        let is_same = match damaged {
            DamagedPart::Block { ring, shard, .. } => {
                members.iter().filter_map(|member| member.shard(*ring, *shard).ok()).all(|own| own == record)
            }
            DamagedPart::Entry { .. } => true,
        };
        let is_there = (self.epoch, self.sequence) == (position.epoch, position.sequence);
        (is_there && is_same).then_some(Good { record, bytes: self.has.map(bytes::Bytes::from) })
    }

    /// A learner's copy of a block, if it has the checksum that a member knows for the block.
    fn meant_by(self, damaged: &DamagedPart, members: &[Arc<Brick>]) -> Option<Good> {
        let DamagedPart::Block { ring, shard, block } = damaged else { return None };
        let bytes = bytes::Bytes::from(self.has?);
        let record = |member: &Arc<Brick>| {
            let is_meant = member.is_meant(*ring, *shard, *block, &bytes).unwrap_or(false);
            if is_meant { member.shard(*ring, *shard).ok()? } else { None }
        };
        let record = members.iter().find_map(record)?;
        Some(Good { record: Some(record), bytes: Some(bytes) })
    }
}

impl What {
    fn of(damaged: &DamagedPart) -> Self {
        match damaged {
            DamagedPart::Block { ring, shard, block } => {
                Self::Block { ring: *ring, shard: shard.to_bytes().to_vec(), block: *block }
            }
            DamagedPart::Entry { key, .. } => Self::Entry { key: key.as_bytes().to_vec() },
        }
    }

    fn damaged(self) -> Result<DamagedPart> {
        match self {
            Self::Block { ring, shard, block } => {
                Ok(DamagedPart::Block { ring, shard: ShardId::from_bytes(shard.into())?, block })
            }
            Self::Entry { key } => {
                let key = Key::from_bytes(key.into());
                let place = key.prefix().filter(|_| key.is_well_formed());
                let place = place.ok_or_else(|| Error::invalid("a repair of something that is no key"))?;
                Ok(DamagedPart::Entry { ring: place.ring, position: place.position, key })
            }
        }
    }
}

/// Answers another server.
///
/// # Errors
///
/// `Invalid` if the item cannot be decoded; those of reading or repairing it.
pub fn answer(node: &Node, request: RepairRequest) -> Result<Value> {
    let said = match request {
        RepairRequest::Mend { brick, what } => {
            let damaged = what.damaged()?;
            crate::control::json(&repair_led(node, &node.ring(damaged.ring())?, brick, &damaged)?)?
        }
        RepairRequest::Copy { brick, what } => crate::control::json(&copy(node, brick, &what.damaged()?)?)?,
    };
    Ok(json!({ "cluster": node.cluster, "server": node.registry.server(), "said": said }))
}

/// Reads under the replica's lock, so that the copy is as of the replica's last record.
fn copy(node: &Node, brick: BrickId, damaged: &DamagedPart) -> Result<Copied> {
    let ring = node.ring(damaged.ring())?;
    let partition = damaged.position().partition(ring.count());
    let hosted = ring.replica(Address { partition, brick });
    let hosted = hosted.ok_or_else(|| Error::Unavailable { what: format!("brick {} is not here", brick.text()) })?;
    let _still = hosted.partition.read();
    let position = hosted.brick.position(ring.ring, partition);
    let Good { record, bytes } = damaged.read(&hosted.brick)?;
    let record = record.map(|record| record.to_bytes().to_vec());
    let (epoch, sequence, has) = (position.epoch, position.sequence, bytes.map(|has| has.to_vec()));
    Ok(Copied { epoch, sequence, record, has, learns: false })
}

/// Asks the server of the leader to repair an item.
///
/// # Errors
///
/// `Unavailable` if that server does not answer or cannot repair it.
pub fn repair_elsewhere(node: &Node, server: ServerId, on: BrickId, damaged: &DamagedPart) -> Result<Repaired> {
    let request = RepairRequest::Mend { brick: on, what: What::of(damaged) };
    ask(node, server, request)
}

/// The copy of the first replica elsewhere that can read the item: members first, then, for a block, learners. `None`
/// if there is none.
///
/// # Errors
///
/// `Protocol` if the ring has no such partition; a replica that cannot be read is logged and passed over.
pub fn copied_from_others(
    node: &Node,
    ring: &HostedRing,
    at: PartitionNumber,
    on: BrickId,
    damaged: &DamagedPart,
) -> Result<Option<Copied>> {
    let (view, here) = (ring.view(at)?, node.registry.server());
    let members = view.members.iter().map(|member| (member.brick, false));
    let learners = view.learners.iter().map(|learner| (learner.brick, true));
    let learners = learners.filter(|_| matches!(damaged, DamagedPart::Block { .. }));
    for (brick, learns) in members.chain(learners).filter(|(brick, _)| *brick != on) {
        let copied = match ring.server_of(brick) {
            Some(server) if server != here => ask(node, server, RepairRequest::Copy { brick, what: What::of(damaged) }),
            Some(_) if learns => copy(node, brick, damaged),
            // Members here have been read already.
            _ => continue,
        };
        match copied {
            Ok(copied) => return Ok(Some(Copied { learns, ..copied })),
            Err(error) => log::warn!("cannot read a copy for a repair from brick {}: {error}", brick.text()),
        }
    }
    Ok(None)
}

fn ask<T: serde::de::DeserializeOwned>(node: &Node, server: ServerId, request: RepairRequest) -> Result<T> {
    let unavailable = |what: String| Error::Unavailable { what: format!("server {server}: {what}") };
    let infos: Vec<ServerInfo> = node.registry.servers()?;
    let info = infos.iter().find(|info| info.server == server);
    let info = info.ok_or_else(|| unavailable("it is not recorded".into()))?;
    let said = ask_server(node, info, &ControlRequest::Repair(request)).map_err(unavailable)?;
    serde_json::from_value(said["said"].clone()).map_err(|error| unavailable(error.to_string()))
}
