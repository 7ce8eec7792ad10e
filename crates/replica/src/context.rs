//! What a replica's host passes in with each event, what it gets back, and the context that carries both through a call.

use crate::locks::Ticket;
use crate::membership::Membership;
use crate::message::{Address, Envelope, Message};
use hekate_brick::Brick;
use hekate_proto::map::View;
use hekate_proto::*;

/// Names a request until it is answered; given by who hosts the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What the host passes to a replica with each event.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// The brick that stores the replica.
    pub brick: &'a Brick,
    /// The ring's views, by partition.
    pub views: &'a [View],
    /// The server's clock.
    pub now: Time,
}

/// Work that a replica asks its host for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncJob {
    /// Whose brick: all of its journal, and these shards' data files, on stable storage.
    pub replica: Address,
    /// To be given back when it is done.
    pub ticket: u64,
    /// Data files to be synced first.
    pub shards: Vec<ShardId>,
}

/// What came of an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Out {
    /// To other replicas, in this order.
    pub sends: Vec<Envelope>,
    /// To who asked.
    pub answers: Vec<(Token, Result<Reply>)>,
    /// To be synced; answered with [`Event::Synced`].
    pub syncs: Vec<SyncJob>,
    /// The brick must write home before this replica can go on: [`Event::Room`] when it has.
    pub wants_room: bool,
    /// Inodes that lost their last name and may be open.
    pub orphans: Vec<(VolumeId, InodeId)>,
    /// Lock ops that waited and have their answers now.
    pub told: Vec<Ticket>,
    /// The view may begin: the coordinator is to record that, and [`Event::View`] says when it has.
    pub open: Option<(PartitionNumber, Epoch)>,
    /// For the operator.
    pub notes: Vec<String>,
    /// Ways that are seldom taken, for counters.
    pub branches: Vec<&'static str>,
}

/// What every call inside a replica takes.
pub(crate) struct Context<'a> {
    /// Which replica this is, and the view that it is in.
    pub at: &'a mut Membership,
    /// Its brick, the ring's views, the clock.
    pub around: &'a Around<'a>,
    /// Messages, answers and work for the host.
    pub out: &'a mut Out,
}

impl Context<'_> {
    /// Sends a message to a replica of any partition.
    pub fn send(&mut self, to: Address, message: Message) {
        self.at.send(self.out, to, message);
    }

    /// Sends a message to another member or learner of this partition.
    pub fn send_member(&mut self, brick: BrickId, message: Message) {
        self.at.send_member(self.out, brick, message);
    }

    /// The leader of a partition of this ring.
    pub fn leader_of(&self, partition: PartitionNumber) -> Option<Address> {
        let view = self.around.views.get(partition.0 as usize)?;
        Some(Address { partition, brick: view.leader })
    }

    /// Whether a partition of this ring has the same members as this one.
    pub fn has_same_bricks(&self, partition: PartitionNumber) -> bool {
        let bricks = |view: &View| {
            let mut bricks: Vec<BrickId> = view.members.iter().map(|member| member.brick).collect();
            bricks.sort_unstable();
            bricks
        };
        self.around.views.get(partition.0 as usize).is_some_and(|view| bricks(view) == bricks(&self.at.view))
    }
}
