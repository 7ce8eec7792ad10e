//! The address of a replica, and its view.

use crate::context::Out;
use crate::log::without_bytes::WithoutBytes;
use crate::message::{Address, BlockAt, Envelope, Message};
use hekate_brick::Brick;
use hekate_proto::map::View;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// The address of this replica, and its view.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub ring: RingId,
    pub own: Address,
    pub count: u32,
    pub view: View,
    /// The current incarnation of the brick. A view that names another incarnation does not apply to this replica.
    pub life: Incarnation,
    /// Blocks that this brick lost in a power cut. Empty once the members have reconciled them.
    pub lost: Vec<BlockAt>,
    /// Blocks of records that came without their bytes. Empty once the members have reconciled what they lack.
    pub without_bytes: WithoutBytes,
    /// The replica was no member of the view before, or its process has started since this view was formed and cannot
    /// tell. The records and blocks that it received as a learner must be on stable storage before this view begins
    /// (rule 23 of `docs/fast-lane.md`).
    pub joins: bool,
}

impl Membership {
    pub fn send(&self, out: &mut Out, to: Address, message: Message) {
        let (ring, from, epoch) = (self.ring, self.own, self.view.epoch);
        out.sends.push(Envelope { ring, from, to, epoch, message });
    }

    pub fn send_member(&self, out: &mut Out, brick: BrickId, message: Message) {
        self.send(out, Address { partition: self.own.partition, brick }, message);
    }

    /// The other members.
    pub fn others(&self) -> impl Iterator<Item = BrickId> + '_ {
        self.view.members.iter().map(|member| member.brick).filter(|brick| *brick != self.own.brick)
    }

    /// The learners of the view.
    pub fn learners(&self) -> impl Iterator<Item = BrickId> + '_ {
        self.view.learners.iter().map(|learner| learner.brick)
    }

    pub fn leads(&self) -> bool {
        self.view.leader == self.own.brick && self.names_this_incarnation()
    }

    /// Shards of this partition of which a new member may hold bytes that no sync has covered. Empty for a replica that
    /// was a member before, as it synced what it acknowledged as synced.
    pub fn unsynced(&self, brick: &Brick) -> Vec<ShardId> {
        if !self.joins || is_planted(Bug::LearnerNotSynced) {
            return Vec::new();
        }
        let mut shards = brick.unsynced_shards();
        shards.retain(|shard| shard.position().partition(self.count) == self.own.partition);
        shards
    }

    /// Blocks that this brick lost in a power cut, and those that came without their bytes.
    ///
    /// # Errors
    ///
    /// Those of the brick, except damage.
    pub fn lacking(&self, brick: &Brick) -> Result<Vec<BlockAt>> {
        let came_without = self.without_bytes.lacking(brick, self.ring)?;
        let came_without = came_without.into_iter().map(|(shard, block)| BlockAt { shard, block });
        Ok(self.lost.iter().copied().chain(came_without).collect())
    }

    /// True if this brick may lack a block of the shard although it has the shard's last record.
    pub fn may_lack(&self, shard: ShardId) -> bool {
        self.without_bytes.has_shard(shard) || self.lost.iter().any(|block| block.shard == shard)
    }

    /// The members have reconciled the blocks that they lacked.
    pub fn reconciled(&mut self) {
        self.lost.clear();
        self.without_bytes = WithoutBytes::default();
    }

    /// True unless the view names another incarnation of this brick: a brick that lost its memory is no member (rule 17
    /// of `docs/fast-lane.md`).
    pub fn names_this_incarnation(&self) -> bool {
        self.view.all().all(|one| one.brick != self.own.brick || one.incarnation == self.life)
    }
}
