//! Requests between servers about damage, over the control interface: to repair an item, and to read a replica's copy
//! of it.

use super::{DamagedPart, Good, repair_led};
use crate::control::ask_server;
use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use hekate_brick::{Brick, LogPosition};
use hekate_cluster::ServerInfo;
use hekate_control::peer::{Copied, CopyItem, EncodedPart, PeerCall, RepairItem, Repaired, Said};
use hekate_proto::*;
use hekate_replica::Address;
use std::sync::Arc;

/// A copy of an item, of a replica that may be on another server.
pub struct FoundCopy {
    copied: Copied,
    /// The replica is a learner: it may be at any record, and have only a part of a shard.
    is_learner: bool,
}

impl FoundCopy {
    /// The copy, if the replica was at the leader's record and, as far as members here can read it, at the same write
    /// to the shard.
    pub fn good_at(self, damaged: &DamagedPart, members: &[Arc<Brick>], position: LogPosition) -> Option<Good> {
        if self.is_learner {
            return self.meant_by(damaged, members);
        }
        let Copied { epoch, sequence, record, has } = self.copied;
        let record = record.map(|record| ShardRecord::from_bytes(record.into())).transpose().ok()?;
        let is_same = match damaged {
            DamagedPart::Block { ring, shard, .. } => {
                members.iter().filter_map(|member| member.shard(*ring, *shard).ok()).all(|own| own == record)
            }
            DamagedPart::Entry { .. } => true,
        };
        let is_there = (epoch, sequence) == (position.epoch, position.sequence);
        (is_there && is_same).then_some(Good { record, bytes: has.map(bytes::Bytes::from) })
    }

    /// A learner's copy of a block, if its checksum is the one that a member's index has for the block.
    fn meant_by(self, damaged: &DamagedPart, members: &[Arc<Brick>]) -> Option<Good> {
        let DamagedPart::Block { ring, shard, block } = damaged else { return None };
        let bytes = bytes::Bytes::from(self.copied.has?);
        let record = |member: &Arc<Brick>| {
            let is_meant = member.is_meant(*ring, *shard, *block, &bytes).unwrap_or(false);
            if is_meant { member.shard(*ring, *shard).ok()? } else { None }
        };
        let record = members.iter().find_map(record)?;
        Some(Good { record: Some(record), bytes: Some(bytes) })
    }
}

fn encoded(damaged: &DamagedPart) -> EncodedPart {
    match damaged {
        DamagedPart::Block { ring, shard, block } => {
            EncodedPart::Block { ring: *ring, shard: shard.to_bytes().to_vec(), block: *block }
        }
        DamagedPart::Entry { key, .. } => EncodedPart::Entry { key: key.as_bytes().to_vec() },
    }
}

fn decoded(part: EncodedPart) -> Result<DamagedPart> {
    match part {
        EncodedPart::Block { ring, shard, block } => {
            Ok(DamagedPart::Block { ring, shard: ShardId::from_bytes(shard.into())?, block })
        }
        EncodedPart::Entry { key } => {
            let key = Key::from_bytes(key.into());
            let place = key.prefix().filter(|_| key.is_well_formed());
            let place = place.ok_or_else(|| Error::invalid("the key of an item to repair cannot be decoded"))?;
            Ok(DamagedPart::Entry { ring: place.ring, position: place.position, key })
        }
    }
}

/// Repairs an item of a partition that this server leads, for another server.
///
/// # Errors
///
/// `Invalid` if the item cannot be decoded; those of repairing it.
pub fn repair_item(node: &Node, RepairItem { brick, what }: RepairItem) -> Result<Said<Repaired>> {
    let damaged = decoded(what)?;
    Ok(Said { said: repair_led(node, &node.ring(damaged.ring())?, brick, &damaged)? })
}

/// Reads an item on a brick of this server, for another server.
///
/// # Errors
///
/// `Invalid` if the item cannot be decoded; those of reading it.
pub fn copy_item(node: &Node, CopyItem { brick, what }: CopyItem) -> Result<Said<Copied>> {
    Ok(Said { said: copy(node, brick, &decoded(what)?)? })
}

/// Reads under the replica's lock, so that the copy is as of the replica's last record.
fn copy(node: &Node, brick: BrickId, damaged: &DamagedPart) -> Result<Copied> {
    let ring = node.ring(damaged.ring())?;
    let partition = damaged.position().partition(ring.count());
    let hosted = ring.replica(Address { partition, brick });
    let hosted = hosted
        .ok_or_else(|| Error::Unavailable { what: format!("brick {} is not open at this server", brick.text()) })?;
    let _still = hosted.partition.read();
    let position = hosted.brick.position(ring.ring, partition);
    let Good { record, bytes } = damaged.read(&hosted.brick)?;
    let record = record.map(|record| record.to_bytes().to_vec());
    let (epoch, sequence, has) = (position.epoch, position.sequence, bytes.map(|has| has.to_vec()));
    Ok(Copied { epoch, sequence, record, has })
}

/// Asks the server of the leader to repair an item.
///
/// # Errors
///
/// `Unavailable` if that server does not answer or cannot repair it.
pub fn repair_elsewhere(node: &Node, server: ServerId, on: BrickId, damaged: &DamagedPart) -> Result<Repaired> {
    ask(node, server, RepairItem { brick: on, what: encoded(damaged) })
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
) -> Result<Option<FoundCopy>> {
    let (view, here) = (ring.view(at)?, node.cluster.server());
    let members = view.members.iter().map(|member| (member.brick, false));
    let learners = view.learners.iter().map(|learner| (learner.brick, true));
    let learners = learners.filter(|_| matches!(damaged, DamagedPart::Block { .. }));
    for (brick, is_learner) in members.chain(learners).filter(|(brick, _)| *brick != on) {
        let copied = match ring.server_of(brick) {
            Some(server) if server != here => ask(node, server, CopyItem { brick, what: encoded(damaged) }),
            Some(_) if is_learner => copy(node, brick, damaged),
            // Members here have been read already.
            _ => continue,
        };
        match copied {
            Ok(copied) => return Ok(Some(FoundCopy { copied, is_learner })),
            Err(error) => log::warn!("cannot read a copy for a repair from brick {}: {error}", brick.text()),
        }
    }
    Ok(None)
}

fn ask<C: PeerCall<Reply = Said<T>>, T>(node: &Node, server: ServerId, call: C) -> Result<T> {
    let unavailable = |what: String| Error::Unavailable { what: format!("server {server}: {what}") };
    let infos: Vec<ServerInfo> = node.cluster.registry().servers()?;
    let info = infos.iter().find(|info| info.server == server);
    let info = info.ok_or_else(|| unavailable("it is not recorded".into()))?;
    Ok(ask_server(node, info, call).map_err(unavailable)?.said)
}
