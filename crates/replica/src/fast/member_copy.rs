//! Reconciliation with a member's copy, for shards of which the leader cannot read a listed block. Any member's copy
//! will do (rule 8): each has all that was acknowledged or shown. All that is listed of the shard is taken from one
//! copy: otherwise a read could show half of a write that one replica has and another does not have.

use super::reconciliation::Reconciliation;
use crate::context::Context;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{BlockAt, Message};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::BTreeMap;

/// The replica whose bytes all members get.
#[derive(Debug, Default)]
pub(crate) enum Source {
    /// It was not checked yet whether the leader can read all listed blocks.
    #[default]
    Unknown,
    Leader,
    /// The blocks were requested from this member. `None`: not received yet.
    Asked(BrickId, BTreeMap<u32, Option<Bytes>>),
    /// The blocks, and the length of the shard there.
    Member(BTreeMap<u32, Bytes>, u32),
}

impl Reconciliation {
    /// The member's copy of a block, if the member's bytes count.
    pub fn member_block(&self, block: u32) -> Option<&Bytes> {
        match &self.source {
            Source::Member(blocks, _) => blocks.get(&block),
            _ => None,
        }
    }

    /// The length that all members' copies get. `own`: that of the leader's.
    pub fn length(&self, own: u32) -> u32 {
        if let Source::Member(_, length) = &self.source { *length } else { own }
    }

    /// True if the leader's bytes count.
    pub fn is_as_leader(&self) -> bool {
        matches!(self.source, Source::Leader)
    }

    /// Takes a block that was requested. Without bytes the member cannot read it either, and the leader's copy counts.
    fn receive(&mut self, own: BrickId, from: BrickId, block: u32, (bytes, length): (Option<Bytes>, u32)) {
        let Source::Asked(member, blocks) = &mut self.source else { return };
        let Some(place) = blocks.get_mut(&block).filter(|_| *member == from) else { return };
        // The member lacks the write that made the shard longer. A hole in front of its end may be a block that it has
        // lost, so it does not count as zeros.
        let is_behind = u64::from(block) * BLOCK_BYTES as u64 >= u64::from(length);
        match if is_behind { Some(vec![0; BLOCK_BYTES].into()) } else { bytes } {
            Some(bytes) if bytes.len() == BLOCK_BYTES => *place = Some(bytes),
            _ => return self.source = Source::Leader,
        }
        if blocks.values().any(Option::is_none) {
            return;
        }
        let came = std::mem::take(blocks).into_iter().filter_map(|(block, bytes)| Some((block, bytes?))).collect();
        self.source = Source::Member(came, length);
        let mut theirs = self.theirs.remove(&from).unwrap_or_default();
        theirs.retain(|write| write.stamp.session != SYSTEM_SESSION);
        let ours = std::mem::replace(&mut self.own, theirs);
        self.theirs.insert(own, ours);
    }
}

impl Leader {
    /// Checks once whether the leader can read all that is listed of a shard. Returns true if blocks of a member must
    /// be received first.
    pub fn waits_for_member_copy(
        &self,
        cx: &mut Context,
        shard: ShardId,
        reconciliation: &mut Reconciliation,
    ) -> Result<bool> {
        if let Source::Unknown = reconciliation.source {
            let listed = reconciliation.ranges.iter().flat_map(|(first, count)| *first..first + count);
            let end = cx.around.brick.shard(cx.at.ring, shard)?.map_or(0, |record| record.home_blocks);
            let blocks: Vec<u32> = listed.filter(|block| *block < end).collect();
            reconciliation.source = match cx.at.others().next() {
                Some(member) if self.has_damage(cx, shard, &blocks)? => {
                    cx.out.branches.push("a damaged shard is reconciled with a copy of a member");
                    Source::Asked(member, blocks.into_iter().map(|block| (block, None)).collect())
                }
                _ => Source::Leader,
            };
            request_blocks(cx, shard, reconciliation);
        }
        Ok(matches!(reconciliation.source, Source::Asked(..)))
    }

    fn has_damage(&self, cx: &Context, shard: ShardId, blocks: &[u32]) -> Result<bool> {
        for block in blocks {
            match cx.around.brick.read_block(cx.at.ring, shard, *block) {
                Err(Error::Damaged { .. } | Error::Io { .. }) => return Ok(true),
                read => drop(read?),
            }
        }
        Ok(false)
    }

    /// Takes a block that a member has sent.
    pub fn receive_block(
        &mut self,
        at: &Membership,
        from: BrickId,
        block: BlockAt,
        (bytes, length): (Option<&Bytes>, u32),
    ) {
        if let Some(reconciliation) = self.fast.reconciliation_of(block.shard) {
            reconciliation.receive(at.own.brick, from, block.block, (bytes.cloned(), length));
        }
    }
}

/// Requests the blocks that were not received yet. Repeated when the member is connected again.
pub(super) fn request_blocks(cx: &mut Context, shard: ShardId, reconciliation: &Reconciliation) {
    let Source::Asked(member, blocks) = &reconciliation.source else { return };
    for block in blocks.iter().filter(|(_, bytes)| bytes.is_none()).map(|(block, _)| *block) {
        cx.send_member(*member, Message::ReadBlock { at: BlockAt { shard, block } });
    }
}
