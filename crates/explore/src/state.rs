//! The state of the model. All of it is plain data that is compared and hashed as a whole.

use crate::ghost::Ghost;
use std::rc::Rc;

/// A set of replicas, cells or ops, a bit each.
pub type Mask = u8;

/// The source of a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum By {
    /// The initial state of the shard.
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
    /// Members that are known to have it; only the leader's is used, and it is in memory.
    pub held: Mask,
}

/// Cells of a shard. Two are enough: a write changes one, and must not change the other.
pub const CELLS: usize = 2;
pub const ALL_CELLS: Mask = 3;

/// A replica's copy of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shard {
    pub stamp: Stamp,
    /// The op that wrote each cell last.
    pub cells: [u8; CELLS],
    pub list: Vec<Unsettled>,
    /// True if it is not known to be synced by every member.
    pub unstable: bool,
    /// Replicas outside of the view for which it is listed as changed.
    pub missing: Mask,
}

/// The content of a replica's journal: it survives the process, and once synced the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Content {
    pub shards: Vec<Shard>,
    /// Ops that were done.
    pub ids: Mask,
    /// Epoch and sequence of the last record.
    pub position: (u8, u8),
    /// Messages of an earlier epoch are refused.
    pub epoch: u8,
}

/// A view of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    pub epoch: u8,
    pub leader: Option<u8>,
    pub members: Mask,
    pub learners: Mask,
    /// Number of views of this partition that began without any member's memory.
    pub losses: u8,
    pub open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub up: bool,
    /// It holds a lease by its own clock.
    pub lease: bool,
    /// It lost its machine's memory since it was last a member of an open view.
    pub lost: bool,
    /// It began a new incarnation and was in no view since.
    pub outside: bool,
    pub view: View,
    pub now: Content,
    /// Shared, because it changes seldom.
    pub synced: Rc<Content>,
    /// Ops to be answered once they are settled; leader's memory.
    pub pending: Mask,
}

/// The coordinator's records.
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

/// The progress of an op at its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Fast {
        follow: Stamp,
        stamp: Stamp,
        done: Mask,
        conflict: bool,
    },
    Led,
    /// The leader's answer is in flight.
    Answered {
        stamp: Stamp,
        losses: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub up: bool,
    pub view: View,
    /// The last stamp of each shard that it received.
    pub knows: Vec<Stamp>,
    /// The next line of its script.
    pub next: u8,
    pub works: Vec<(u8, Work)>,
    /// Replicas that have synced, while an fsync is in progress.
    pub syncing: Option<Mask>,
    /// Writes that were acknowledged and not synced since.
    pub unsynced: Mask,
    /// The loss counter of the view in which the first of these was answered.
    pub losses: u8,
}

/// A client's request to a replica.
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
    /// The write is on all members; and on all learners, or not.
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

/// A leader's message to another replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    Append {
        epoch: u8,
        op: u8,
        follow: Stamp,
        stamp: Stamp,
        position: (u8, u8),
    },
    Reconcile {
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
    /// Running replicas that the others believe dead.
    pub suspicions: u8,
    /// Clients that do not wait for a late answer.
    pub timeouts: u8,
    /// Reads that have the leader settle a write in flight instead of waiting for it. (Not a fault, but limited.)
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
    /// For each client and replica; requests arrive in order.
    pub front: Vec<Vec<Request>>,
    /// For each sender and receiver; messages arrive in order.
    pub back: Vec<Vec<Message>>,
    pub ghosts: Vec<Ghost>,
    pub budget: Budget,
    /// A promise that an observation broke.
    pub broken: Option<&'static str>,
}
