//! Which replica of which partition this is, and the view that it is in.

use crate::context::Out;
use crate::message::{Address, BlockAt, Envelope, Message};
use hekate_brick::Brick;
use hekate_proto::map::View;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// Which replica of which partition this is.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub ring: RingId,
    pub own: Address,
    pub count: u32,
    pub view: View,
    /// In which life its brick is. What the view says of another one is not said of this.
    pub life: Incarnation,
    /// Blocks that a power cut took from this brick, until the members have agreed on them.
    pub lost: Vec<BlockAt>,
    /// It was no member before: what it was given is to be on stable storage before the view begins (rule 23).
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

    /// Those who learn.
    pub fn learners(&self) -> impl Iterator<Item = BrickId> + '_ {
        self.view.learners.iter().map(|learner| learner.brick)
    }

    pub fn leads(&self) -> bool {
        self.view.leader == self.own.brick && self.is_meant()
    }

    /// Shards of which a new member may have bytes that no sync has covered. Others have synced what was asked of them.
    pub fn unsynced(&self, brick: &Brick) -> Vec<ShardId> {
        if !self.joins || is_planted(Bug::LearnerNotSynced) {
            return Vec::new();
        }
        let mut shards = brick.unsynced_shards();
        shards.retain(|shard| shard.position().partition(self.count) == self.own.partition);
        shards
    }

    /// Whether the view means this life of its brick, if it names the brick at all: who lost power is no member (rule 17).
    pub fn is_meant(&self) -> bool {
        self.view.all().all(|one| one.brick != self.own.brick || one.incarnation == self.life)
    }
}
