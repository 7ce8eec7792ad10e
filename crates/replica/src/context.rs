//! What the host passes in with each event, what it gets back, and the context that carries both through a call.

use crate::locks::Ticket;
use crate::membership::Membership;
use crate::message::{Address, Envelope, Message};
use hekate_brick::Brick;
use hekate_proto::map::View;
use hekate_proto::*;
use std::time::Duration;

/// Identifies a request until it is answered. The host of the partition assigns it, and assigns it to no other request
/// meanwhile.
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
    /// The time of a clock that is never set, since some moment.
    pub elapsed: Duration,
}

/// A sync that a replica asks its host for: the brick's whole journal and some data files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncJob {
    /// The replica whose brick is synced.
    pub replica: Address,
    /// The host returns it with [`Event::Synced`](crate::Event::Synced).
    pub ticket: u64,
    /// Shards whose data files are synced before the journal.
    pub shards: Vec<ShardId>,
}

/// What a replica produced while it handled an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Out {
    /// Messages to other replicas, in the order in which they are to be sent.
    pub sends: Vec<Envelope>,
    /// Answers to requests.
    pub answers: Vec<(Token, Result<Reply>)>,
    /// Syncs for the host to run. It reports each with [`Event::Synced`](crate::Event::Synced).
    pub syncs: Vec<SyncJob>,
    /// The brick's journal is full. The host runs a checkpoint of the brick and then sends
    /// [`Event::Room`](crate::Event::Room).
    pub wants_room: bool,
    /// Inodes that lost their last name. A session may still have them open.
    pub orphans: Vec<(VolumeId, InodeId)>,
    /// Lock ops that waited and now have an answer.
    pub ended_waits: Vec<Ticket>,
    /// Recalls of pledges, each for a session.
    pub recalls: Vec<(SessionId, Notification)>,
    /// The view can begin. The host has the coordinator record it, and sends [`Event::View`](crate::Event::View) then.
    pub open: Option<(PartitionNumber, Epoch)>,
    /// Messages for the operator's log.
    pub notes: Vec<String>,
    /// Names of rarely executed branches that the event reached, for counters.
    pub branches: Vec<&'static str>,
}

/// The context of an event: it is passed through nearly every function of this crate.
pub(crate) struct Context<'a> {
    /// The address of this replica and its view.
    pub at: &'a mut Membership,
    /// The brick, the ring's views and the clock.
    pub around: &'a Around<'a>,
    /// Collects messages, answers and work for the host.
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

    /// The epoch of the view of a partition of this ring.
    pub fn epoch_of(&self, partition: PartitionNumber) -> Option<Epoch> {
        self.around.views.get(partition.0 as usize).map(|view| view.epoch)
    }

    /// The leader of a partition of this ring.
    pub fn leader_of(&self, partition: PartitionNumber) -> Option<Address> {
        let view = self.around.views.get(partition.0 as usize)?;
        Some(Address { partition, brick: view.leader })
    }

    /// True if a partition of this ring has the same members as this one.
    pub fn has_same_bricks(&self, partition: PartitionNumber) -> bool {
        let bricks = |view: &View| {
            let mut bricks: Vec<BrickId> = view.members.iter().map(|member| member.brick).collect();
            bricks.sort_unstable();
            bricks
        };
        self.around.views.get(partition.0 as usize).is_some_and(|view| bricks(view) == bricks(&self.at.view))
    }
}
