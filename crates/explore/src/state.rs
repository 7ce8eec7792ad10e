//! What the model's world consists of. All of it is plain data that is compared and hashed whole.

use crate::ghost::Ghost;
use std::rc::Rc;

/// A set of replicas, cells or ops, a bit each.
pub type Mask = u8;

/// Who gave a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum By {
    /// Nobody: the shard as it was in the beginning.
    Start,
    Client(u8),
    /// The leader of this epoch.
    Leader(u8),
}

/// (count, session, op id) of a shard's last write. A leader's session is its epoch, its op its place in the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    pub count: u8,
    pub by: By,
    pub op: u8,
}

pub const START: Stamp = Stamp { count: 0, by: By::Start, op: 0 };

/// A change that is not known to be on every member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unsettled {
    pub stamp: Stamp,
    pub cells: Mask,
    pub ops: Mask,
    /// Members that are known to have it; only the leader's counts, and only in memory.
    pub held: Mask,
}

/// Cells of a shard. Two are enough: writes touch one, and must not harm the other.
pub const CELLS: usize = 2;
pub const ALL_CELLS: Mask = 3;

/// A replica's copy of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shard {
    pub stamp: Stamp,
    /// The op that wrote each last.
    pub cells: [u8; CELLS],
    pub list: Vec<Unsettled>,
    /// Not known to be synced by every member.
    pub unstable: bool,
    /// Replicas outside of the view for which it is listed as changed.
    pub missing: Mask,
}

/// What is in a replica's journal: it outlives the process, and once synced the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Content {
    pub shards: Vec<Shard>,
    /// Ops that were done.
    pub ids: Mask,
    /// Epoch and sequence of the last record.
    pub position: (u8, u8),
    /// Nothing of an earlier epoch is taken.
    pub epoch: u8,
}

/// See the design.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    pub epoch: u8,
    pub leader: Option<u8>,
    pub members: Mask,
    pub learners: Mask,
    /// Views of this partition that began without any member's memory.
    pub losses: u8,
    pub open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub up: bool,
    /// By its own clock.
    pub lease: bool,
    /// It lost its machine's memory since it was last a member of a view that opened.
    pub lost: bool,
    /// It began a new life and was not taken into a view since.
    pub outside: bool,
    pub view: View,
    pub now: Content,
    /// Shared: it changes seldom.
    pub synced: Rc<Content>,
    /// Ops to be answered once they are settled; leader's memory.
    pub pending: Mask,
}

/// What the coordinator has recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Coordinator {
    pub opened: View,
    pub forming: Option<Forming>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Forming {
    pub view: View,
    pub fenced: Mask,
    /// Members that lost power since it was formed.
    pub void: Mask,
}

/// How far an op is at its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Fast {
        follow: Stamp,
        stamp: Stamp,
        done: Mask,
        conflict: bool,
    },
    Led,
    /// The leader's answer is on its way.
    Answered {
        stamp: Stamp,
        losses: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub up: bool,
    pub view: View,
    /// The last stamp of each shard that it heard of.
    pub knows: Vec<Stamp>,
    /// The next line of its script.
    pub next: u8,
    pub works: Vec<(u8, Work)>,
    /// Replicas that have synced for it, while an fsync is under way.
    pub syncing: Option<Mask>,
    /// Writes that were acknowledged and not synced since.
    pub unsynced: Mask,
    /// Losses in the view in which the first of these was answered.
    pub losses: u8,
}

/// Client to replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    Fast {
        epoch: u8,
        op: u8,
        follow: Stamp,
        stamp: Stamp,
    },
    Led {
        epoch: u8,
        op: u8,
    },
    /// On all members; and on all learners, or not.
    Settled {
        epoch: u8,
        op: u8,
        stamp: Stamp,
        on_learners: bool,
    },
    Sync {
        epoch: u8,
    },
}

/// Leader to another replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    Append {
        epoch: u8,
        op: u8,
        follow: Stamp,
        stamp: Stamp,
        position: (u8, u8),
    },
    Even {
        epoch: u8,
        shard: u8,
        stamp: Stamp,
        covers: Mask,
        cells: [u8; CELLS],
        ops: Mask,
        whole: bool,
        position: (u8, u8),
    },
    Settled {
        epoch: u8,
        shard: u8,
        stamp: Stamp,
    },
}

/// Faults that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Clients that die.
    pub deaths: u8,
    /// Processes of replicas that are killed.
    pub kills: u8,
    /// Machines of replicas that lose power.
    pub cuts: u8,
    /// Power cuts that take all machines at once.
    pub blackouts: u8,
    /// Live replicas that the others believe dead.
    pub suspicions: u8,
    /// Clients that do not wait for an answer that is only late.
    pub timeouts: u8,
    /// Reads that do not wait for a write that is under way, but have the leader settle it. (No fault, but bounded.)
    pub hasty_reads: u8,
}

impl Budget {
    pub const NONE: Self =
        Self { deaths: 0, kills: 0, cuts: 0, blackouts: 0, suspicions: 0, timeouts: 0, hasty_reads: 0 };

    pub fn faults(&self) -> u8 {
        self.deaths + self.kills + self.cuts + self.blackouts + self.suspicions + self.timeouts
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub replicas: Vec<Replica>,
    pub clients: Vec<Client>,
    pub coordinator: Coordinator,
    /// Client after client, replica after replica, in order within each.
    pub front: Vec<Vec<Request>>,
    /// Sender after sender, receiver after receiver, in order within each.
    pub back: Vec<Vec<Message>>,
    pub ghosts: Vec<Ghost>,
    pub budget: Budget,
    /// What was observed from outside that must not be.
    pub broken: Option<&'static str>,
}
