//! What cannot be read on the leader is made even as another member has it. Any member's copy will do (rule 8): each has all that was
//! acknowledged or shown. But it has to be one copy, for all that is listed of a shard: of a write that one replica has and another
//! has not, half would be seen.

use super::uneven::Uneven;
use crate::context::Context;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{BlockAt, Message};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::BTreeMap;

/// Whose bytes count.
#[derive(Debug, Default)]
pub(crate) enum Source {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    Leader,
    /// This member was asked for all of them; none: that one has not come.
    Asked(BrickId, BTreeMap<u32, Option<Bytes>>),
    Member(BTreeMap<u32, Bytes>),
}

impl Uneven {
    /// What the member has of a block.
    pub fn lent(&self, block: u32) -> Option<&Bytes> {
        match &self.source {
            Source::Member(blocks) => blocks.get(&block),
            _ => None,
        }
    }

    /// A member has sent a block; without bytes: it cannot read it either.
    fn lends(&mut self, own: BrickId, from: BrickId, block: u32, bytes: Option<Bytes>) {
        let Source::Asked(lender, blocks) = &mut self.source else { return };
        let Some(place) = blocks.get_mut(&block).filter(|_| *lender == from) else { return };
        match bytes {
            Some(bytes) if bytes.len() == BLOCK_BYTES => *place = Some(bytes),
            _ => return self.source = Source::Leader,
        }
        if blocks.values().any(Option::is_none) {
            return;
        }
        let came = std::mem::take(blocks).into_iter().filter_map(|(block, bytes)| Some((block, bytes?))).collect();
        self.source = Source::Member(came);
        let mut theirs = self.theirs.remove(&from).unwrap_or_default();
        theirs.retain(|write| write.stamp.session != SYSTEM_SESSION);
        let ours = std::mem::replace(&mut self.own, theirs);
        self.theirs.insert(own, ours);
    }
}

impl Leader {
    /// Looks once whether all that is listed of a shard can be read here. -> whether a member's bytes have to come first.
    pub fn waits_for_lender(&self, cx: &mut Context, shard: ShardId, uneven: &mut Uneven) -> Result<bool> {
        if let Source::Unknown = uneven.source {
            let listed = uneven.ranges.iter().flat_map(|(first, count)| *first..first + count);
            let end = cx.around.brick.shard(cx.at.ring, shard)?.map_or(0, |record| record.home_blocks);
            let blocks: Vec<u32> = listed.filter(|block| *block < end).collect();
            uneven.source = match cx.at.others().next() {
                Some(lender) if self.has_damage(cx, shard, &blocks)? => {
                    cx.out.branches.push("what is damaged is made even as a member has it");
                    Source::Asked(lender, blocks.into_iter().map(|block| (block, None)).collect())
                }
                _ => Source::Leader,
            };
            ask_lender(cx, shard, uneven);
        }
        Ok(matches!(uneven.source, Source::Asked(..)))
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

    /// See [`Uneven::lends`].
    pub fn block_lent(&mut self, at: &Membership, from: BrickId, block: BlockAt, bytes: Option<&Bytes>) {
        if let Some(uneven) = self.fast.uneven_of(block.shard) {
            uneven.lends(at.own.brick, from, block.block, bytes.cloned());
        }
    }
}

/// Also when it comes back.
pub(super) fn ask_lender(cx: &mut Context, shard: ShardId, uneven: &Uneven) {
    let Source::Asked(lender, blocks) = &uneven.source else { return };
    for block in blocks.iter().filter(|(_, bytes)| bytes.is_none()).map(|(block, _)| *block) {
        cx.send_member(*lender, Message::ReadBlock { at: BlockAt { shard, block } });
    }
}
