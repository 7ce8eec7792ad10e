//! What servers ask each other about damage, over the control interface: to mend something, and for a good copy of it.

use super::{Good, Mended, Rotten, mend_led};
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

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "repair", rename_all = "kebab-case")]
pub enum RepairRequest {
    /// To who leads its partition: this is damaged on that brick.
    Mend { brick: BrickId, what: What },
    /// To who has that brick: what does it hold of it?
    Copy { brick: BrickId, what: What },
}

/// Something damaged, in the bytes that the wire has for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    Block { ring: RingId, shard: Vec<u8>, block: u32 },
    Entry { key: Vec<u8> },
}

/// What a replica of another server holds of something, and at which record.
#[derive(Debug, Serialize, Deserialize)]
pub struct Copied {
    epoch: Epoch,
    sequence: Sequence,
    record: Option<Vec<u8>>,
    has: Option<Vec<u8>>,
    /// It is of one who learns: it may be at any record, and have some of a shard only.
    #[serde(skip)]
    learns: bool,
}

impl Copied {
    /// What it says, if the leader is at the same record, and at the same write to the shard as far as that can be read here.
    pub fn good_at(self, rotten: &Rotten, members: &[Arc<Brick>], position: LogPosition) -> Option<Good> {
        if self.learns {
            return self.meant_by(rotten, members);
        }
        let record = self.record.map(|record| ShardRecord::from_bytes(record.into())).transpose().ok()?;
        let is_same = match rotten {
            Rotten::Block { ring, shard, .. } => {
                members.iter().filter_map(|member| member.shard(*ring, *shard).ok()).all(|own| own == record)
            }
            Rotten::Entry { .. } => true,
        };
        let is_there = (self.epoch, self.sequence) == (position.epoch, position.sequence);
        (is_there && is_same).then_some(Good { record, bytes: self.has.map(bytes::Bytes::from) })
    }

    /// A block of who learns is right if it has the checksum that a member knows for it.
    fn meant_by(self, rotten: &Rotten, members: &[Arc<Brick>]) -> Option<Good> {
        let Rotten::Block { ring, shard, block } = rotten else { return None };
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
    fn of(rotten: &Rotten) -> Self {
        match rotten {
            Rotten::Block { ring, shard, block } => {
                Self::Block { ring: *ring, shard: shard.to_bytes().to_vec(), block: *block }
            }
            Rotten::Entry { key, .. } => Self::Entry { key: key.as_bytes().to_vec() },
        }
    }

    fn rotten(self) -> Result<Rotten> {
        match self {
            Self::Block { ring, shard, block } => {
                Ok(Rotten::Block { ring, shard: ShardId::from_bytes(shard.into())?, block })
            }
            Self::Entry { key } => {
                let key = Key::from_bytes(key.into());
                let place = key.prefix().filter(|_| key.is_well_formed());
                let place = place.ok_or_else(|| Error::invalid("a repair of something that is no key"))?;
                Ok(Rotten::Entry { ring: place.ring, position: place.position, key })
            }
        }
    }
}

/// Answers another server.
pub fn answer(node: &Node, request: RepairRequest) -> Result<Value> {
    let said = match request {
        RepairRequest::Mend { brick, what } => {
            let rotten = what.rotten()?;
            crate::control::json(&mend_led(node, &node.ring(rotten.ring())?, brick, &rotten)?)?
        }
        RepairRequest::Copy { brick, what } => crate::control::json(&copy(node, brick, &what.rotten()?)?)?,
    };
    Ok(json!({ "cluster": node.cluster, "server": node.registry.server(), "said": said }))
}

/// Under the replica's lock, so that it is as its last record says.
fn copy(node: &Node, brick: BrickId, rotten: &Rotten) -> Result<Copied> {
    let ring = node.ring(rotten.ring())?;
    let partition = rotten.position().partition(ring.count());
    let hosted = ring.replica(Address { partition, brick });
    let hosted = hosted.ok_or_else(|| Error::Unavailable { what: format!("brick {} is not here", brick.text()) })?;
    let _still = hosted.partition.read();
    let position = hosted.brick.position(ring.ring, partition);
    let Good { record, bytes } = rotten.read(&hosted.brick)?;
    let record = record.map(|record| record.to_bytes().to_vec());
    let (epoch, sequence, has) = (position.epoch, position.sequence, bytes.map(|has| has.to_vec()));
    Ok(Copied { epoch, sequence, record, has, learns: false })
}

/// Has the leader's server mend it.
pub fn mend_elsewhere(node: &Node, server: ServerId, on: BrickId, rotten: &Rotten) -> Result<Mended> {
    let request = RepairRequest::Mend { brick: on, what: What::of(rotten) };
    ask(node, server, request)
}

/// From the first that can read it: members of other servers, then, of a block, those who learn.
pub fn copied_from_others(
    node: &Node,
    ring: &HostedRing,
    at: PartitionNumber,
    on: BrickId,
    rotten: &Rotten,
) -> Result<Option<Copied>> {
    let (view, here) = (ring.view(at)?, node.registry.server());
    let members = view.members.iter().map(|member| (member.brick, false));
    let learners = view.learners.iter().map(|learner| (learner.brick, true));
    let learners = learners.filter(|_| matches!(rotten, Rotten::Block { .. }));
    for (brick, learns) in members.chain(learners).filter(|(brick, _)| *brick != on) {
        let copied = match ring.server_of(brick) {
            Some(server) if server != here => ask(node, server, RepairRequest::Copy { brick, what: What::of(rotten) }),
            Some(_) if learns => copy(node, brick, rotten),
            // A member that is here was looked at.
            _ => continue,
        };
        match copied {
            Ok(copied) => return Ok(Some(Copied { learns, ..copied })),
            Err(error) => log::warn!("brick {} has no copy to mend with: {error}", brick.text()),
        }
    }
    Ok(None)
}

fn ask<T: serde::de::DeserializeOwned>(node: &Node, server: ServerId, request: RepairRequest) -> Result<T> {
    let unavailable = |what: String| Error::Unavailable { what: format!("server {server}: {what}") };
    let infos: Vec<ServerInfo> = node.registry.servers()?;
    let info = infos.iter().find(|info| info.server == server);
    let info = info.ok_or_else(|| unavailable("nobody knows it".into()))?;
    let said = ask_server(node, info, &ControlRequest::Repair(request)).map_err(unavailable)?;
    serde_json::from_value(said["said"].clone()).map_err(|error| unavailable(error.to_string()))
}
