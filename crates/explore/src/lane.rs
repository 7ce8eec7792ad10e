//! The fast lane as `crates/replica` does it (`docs/adr/0022-fast-lane-in-code.md`): a leader opens a shard for a session
//! under its term, closes it in steps before it changes it, and all that is evened is a record of its log.
//!
//! One shard, whose writes are durable at once: power cuts are of the other model, and so is what a view is for. An answer is
//! known at once to who asked, who acts on it at any later moment. Healing is one step.

mod client;
mod closing;
mod leader;
pub mod scopes;
mod steps;
mod views;

use crate::ghost::Ghost;
use crate::rules::rules;
use crate::scope::{Scope, bit};
use crate::state::{Budget, CELLS, Mask};
pub use steps::Action;

rules! {
    "1" listed "a member lists a fast write in the record that applies it";
    "7" reads_ask "a read of what is unsettled asks the members for that stamp";
    "L1" closed_first "a record about an open shard waits until that is closed";
    "L2" restamped "closing begins with a record that gives the shard another stamp";
    "L3" members_asked "what members list is evened too, not what the leader lists alone";
    "L4" asked_behind "a member says what it lists once it has that record";
    "L5" ids_in_slots "the ids of writes that the leader has go into their sessions' slots with the last record";
    "L6" own_ids "the ids of writes that only members list do not";
    "L7" lists_end "the last record takes the lists away";
    "L8" closing_reads "a read does not ask for the stamp of a shard that is being closed: who has that need not have the bytes";
    "L9" terms_hold "a member takes fast writes of the term that it heard last";
    "L10" terms_differ "no two leaders give one term: a client may note under a later epoch what it was allowed before";
    "L11" found_evened "a leader that begins evens what members list before it serves";
    "L12" own_found "and what it lists itself";
    "L13" fetched_lists "what it lists itself counts as it is once it has fetched the records that it lacks";
    "L14" learner_lists "what a learner lists is evened with its log";
    "L15" listed_ends "it takes away no list of writes that the leader was not told of";
    "L16" whole_views "shards are opened only in views in which nobody is missing";
}

/// A configuration. Each line of a script is a write: on the fast lane if a leader has allowed it, otherwise on its own.
#[derive(Debug, Clone)]
pub struct Lane {
    pub scope: Scope,
    pub rules: Rules,
}

/// Every write has one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stamp {
    Start,
    /// The op of a fast write.
    Fast(u8),
    /// Epoch and sequence of a leader's record.
    Led(u8, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    Write {
        op: u8,
    },
    Restamp,
    /// Some of the leader's bytes; `own`: writes that go into the slots. The last one of a closing ends the lists of
    /// the writes `listed`.
    Even {
        cells: Mask,
        bytes: [u8; CELLS],
        own: Mask,
        last: bool,
        listed: Mask,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    pub epoch: u8,
    pub change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub up: bool,
    /// Of the view that it knows.
    pub epoch: u8,
    pub log: Vec<Record>,
    pub stamp: Stamp,
    pub cells: [u8; CELLS],
    /// The fast write that it does not know to be settled. A session sends one only when all have the one before.
    pub list: Option<u8>,
    /// Writes that the sessions' slots have.
    pub ids: Mask,
    /// That it heard last; memory.
    pub term: u8,
    /// How often it began to lead.
    pub lives: u8,
    pub lead: Option<Box<Lead>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Asking,
    Feeding,
    Serving,
}

/// A leader's memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lead {
    pub phase: Phase,
    pub term: u8,
    /// Members and learners that have said where their logs end.
    pub known: Mask,
    /// Learners that have had everything.
    pub whole: Mask,
    pub held: [u8; 3],
    /// The session for which the shard is open.
    pub open: Option<u8>,
    /// Its last write is not known to be everywhere.
    pub unsettled: bool,
    pub due: bool,
    pub closing: Option<Closing>,
    pub found: Option<Uneven>,
    /// Ops that are answered when all have the record with this number; and whether it opens the shard.
    pub pending: Vec<(u8, u8, bool)>,
    pub reading: Option<Reading>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Closing {
    /// With this record the shard has another stamp.
    pub sequence: u8,
    /// Members that have not said what they list.
    pub missing: Mask,
    pub uneven: Uneven,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uneven {
    pub cells: Mask,
    /// Writes that some replica lists.
    pub listed: Mask,
    /// Writes that the leader has.
    pub own: Mask,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reading {
    pub cells: [u8; CELLS],
    pub stamp: Stamp,
    /// Ops that were done before it began, as clients could see.
    pub done: Mask,
    pub missing: Mask,
    /// All members have it: it is answered when they have this record.
    pub upto: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    pub epoch: u8,
    pub leader: u8,
    pub members: Mask,
    pub learners: Mask,
    pub open: bool,
}

/// What the coordinator has recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Views {
    pub now: View,
    /// The one that opened last.
    pub opened: View,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Fast { members: Mask, done: Mask, failed: bool },
    Led,
    Answered { allows: Option<(u8, Stamp)> },
}

/// What a leader has allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allowed {
    pub epoch: u8,
    pub term: u8,
    pub stamp: Stamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub up: bool,
    /// Of the view that it knows.
    pub epoch: u8,
    pub allowed: Option<Allowed>,
    pub next: u8,
    /// One at a time, as for each shard of a session.
    pub work: Option<(u8, Work)>,
}

/// A fast write on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fast {
    pub op: u8,
    pub allowed: Allowed,
}

/// Leader to another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// How far are you, and what do you list? From now on this term counts.
    Ask {
        term: u8,
    },
    Append {
        sequence: u8,
        record: Record,
    },
    /// What do you list, once you have this record?
    List {
        sequence: u8,
    },
    /// Do you have it?
    AskFast {
        stamp: Stamp,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub replicas: Vec<Replica>,
    pub clients: Vec<Client>,
    pub views: Views,
    /// To each replica; they come in any order.
    pub front: Vec<Vec<Fast>>,
    /// With its epoch; sender after sender, receiver after receiver, in order within each.
    pub back: Vec<Vec<(u8, Message)>>,
    pub ghost: Ghost,
    pub budget: Budget,
    pub broken: Option<&'static str>,
}

impl World {
    pub fn first(lane: &Lane) -> Self {
        let count = lane.scope.replicas as usize;
        let view = View { epoch: 1, leader: 0, members: bit(count as u8) - 1, learners: 0, open: true };
        let replica = Replica {
            up: true,
            epoch: 1,
            log: Vec::new(),
            stamp: Stamp::Start,
            cells: [0; CELLS],
            list: None,
            ids: 0,
            term: 0,
            lives: 0,
            lead: None,
        };
        let client = Client { up: true, epoch: 1, allowed: None, next: 0, work: None };
        let mut world = Self {
            replicas: vec![replica; count],
            clients: vec![client; lane.scope.scripts.len()],
            views: Views { now: view, opened: view },
            front: vec![Vec::new(); count],
            back: vec![Vec::new(); count * count],
            ghost: Ghost::new(),
            budget: lane.scope.faults,
            broken: None,
        };
        world.begin_to_lead(lane, 0);
        for to in 1..count as u8 {
            let (_, ask) = world.back(0, to).remove(0);
            world.hear(lane, 0, to, ask);
        }
        world
    }

    pub fn back(&mut self, from: u8, to: u8) -> &mut Vec<(u8, Message)> {
        let at = from as usize * self.replicas.len() + to as usize;
        &mut self.back[at]
    }

    pub fn at(&mut self, replica: u8) -> &mut Replica {
        &mut self.replicas[replica as usize]
    }

    pub fn all(&self) -> Mask {
        bit(self.replicas.len() as u8) - 1
    }
}

impl Replica {
    /// A record is taken, by its leader or by another.
    pub fn take(&mut self, lane: &Lane, record: Record) {
        self.log.push(record);
        self.stamp = Stamp::Led(record.epoch, self.log.len() as u8);
        match record.change {
            Change::Restamp => {}
            Change::Write { op } => {
                self.cells[lane.scope.target(op).1] = op;
                self.ids |= bit(op);
            }
            Change::Even { cells, bytes, own, last, listed } => {
                crate::scope::numbers(cells).for_each(|cell| self.cells[cell as usize] = bytes[cell as usize]);
                self.ids |= own;
                let is_ended = |op: &u8| listed & bit(*op) != 0 || !lane.rules.listed_ends;
                self.list = self.list.filter(|op| !(last && lane.rules.lists_end && is_ended(op)));
            }
        }
    }

    /// Epoch and sequence of its last record.
    pub fn position(&self) -> (u8, u8) {
        (self.log.last().map_or(0, |record| record.epoch), self.log.len() as u8)
    }

    pub fn serves(&self) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.phase == Phase::Serving)
    }
}
