//! The fast lane as `crates/replica` does it (`docs/adr/0022-fast-lane-in-code.md`): a leader opens a shard for a session
//! under its term, closes it in steps before it changes it, and all that is evened is a record of its log.
//!
//! One shard. An answer is known at once to who asked, who acts on it at any later moment. Healing is one step. `power.rs` has
//! what a power cut leaves of a journal, `loose.rs` fast writes that are answered before they are on stable storage.

mod client;
mod closing;
mod leader;
mod loose;
mod power;
pub mod scopes;
mod steps;
mod views;

use crate::ghost::Ghost;
use crate::rules::rules;
use crate::scope::{Scope, bit};
use crate::state::{Budget, CELLS, Mask};
use std::rc::Rc;
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
    "L17" partial_lists "a record that evens a part of a shard strikes from all lists what not all members have";
    "17" lives "who lost power is no member any more";
    "19" losses_told "an fsync fails if memory was lost since the view in which the write was answered";
    "D6" one_view_syncs "an fsync is of one view: a new one begins it anew";
    "23" opened_synced "all members have synced what they have before a view opens";
    "L18" closing_syncs "closing a shard that was written loosely begins with a round of syncs";
    "L18" due_refuses "from when it is due, its leader takes no fast write for it";
    "L18" found_syncs "and so does evening what a leader finds";
    "L19" learners_compared "while the note is there a learner is compared, whatever its log";
    "L20" alone "a leader that finds the note in a view without memory goes on alone";
    "L20" alone_first "that is settled before a view opens: one of several members does not open";
    "L21" note_settled "the note is on all members before the first loose write";
    "L22" note_closed "the note is taken away only when nothing is open";
    "L22" note_whole "and only when nobody is missing";
}

/// A configuration. Each line of a script is a write: on the fast lane if a leader has allowed it, otherwise on its own.
#[derive(Debug, Clone)]
pub struct Lane {
    pub scope: Scope,
    pub rules: Rules,
    /// Fast writes are answered once they are in a member's journal, but for these ops; else once they are on stable storage.
    pub loose: bool,
    pub durable: Mask,
    /// It begins with the first write of client 0 done, and synced by all.
    pub warm: bool,
    /// And so.
    pub after: Vec<Action>,
}

impl Lane {
    pub fn is_loose(&self, op: u8) -> bool {
        self.loose && self.durable & bit(op) == 0
    }
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
    /// Some of the leader's bytes; `own`: writes that go into the slots. Of the writes `listed` the lists have `rest` from
    /// then on, which is nothing with the last one of a closing.
    Even {
        cells: Mask,
        bytes: [u8; CELLS],
        own: Mask,
        listed: Mask,
        rest: List,
    },
    /// Some shard of the partition may be written loosely; or none any more.
    Note {
        there: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    pub epoch: u8,
    pub change: Change,
}

/// What a replica does not know to be settled: cells that may differ, and writes that it has. A session sends one only when all have
/// the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct List {
    pub cells: Mask,
    pub ops: Mask,
}

impl List {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a replica's journal makes of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Content {
    pub log: Vec<Record>,
    pub stamp: Stamp,
    pub cells: [u8; CELLS],
    pub list: List,
    /// Writes that the sessions' slots have.
    pub ids: Mask,
    pub noted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub up: bool,
    /// It lost power since it was a member of a view that opened.
    pub lost: bool,
    /// It lost power since the view was formed that knows it.
    pub outside: bool,
    /// Of the view that it knows.
    pub epoch: u8,
    pub now: Rc<Content>,
    /// What it was since it synced last, while power cuts may come: each may be what one leaves.
    pub tail: Option<Vec<Rc<Content>>>,
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
    /// It took a loose write since then.
    pub loose: bool,
    /// It wants to be the only member.
    pub alone: bool,
    /// All are to sync before something is closed: who has not.
    pub round: Option<Mask>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uneven {
    pub cells: Mask,
    /// Writes that some replica lists.
    pub listed: Mask,
    /// Writes that the leader has.
    pub own: Mask,
    /// Of these those that each member has that has told.
    pub everywhere: Mask,
    /// Who has told.
    pub told: Mask,
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
    /// Views that began without any member's memory, and whether this is one.
    pub losses: u8,
    pub forgetful: bool,
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
    Answered { allows: Option<(u8, Stamp)>, losses: u8 },
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
    pub members: Mask,
    pub losses: u8,
    /// Members that have synced for it, while an fsync is under way.
    pub syncing: Option<Mask>,
    /// Writes that were acknowledged and not synced since, and the losses of the view in which the first of them was.
    pub unsynced: (Mask, u8),
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
    /// On stable storage what you have.
    Sync,
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
        let members = bit(count as u8) - 1;
        let view = View { epoch: 1, leader: 0, members, learners: 0, losses: 0, forgetful: false, open: true };
        let now = Content {
            log: Vec::new(),
            stamp: Stamp::Start,
            cells: [0; CELLS],
            list: List::default(),
            ids: 0,
            noted: false,
        };
        let may_lose = lane.scope.faults.cuts + lane.scope.faults.blackouts > 0;
        let replica = Replica {
            up: true,
            lost: false,
            outside: false,
            epoch: 1,
            now: Rc::new(now),
            tail: may_lose.then(Vec::new),
            term: 0,
            lives: 0,
            lead: None,
        };
        let client = Client {
            up: true,
            epoch: 1,
            members,
            losses: 0,
            syncing: None,
            unsynced: (0, 0),
            allowed: None,
            next: 0,
            work: None,
        };
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
        if lane.warm {
            world.warm_up(lane);
        }
        lane.after.iter().for_each(|action| crate::search::Model::step(lane, &mut world, *action));
        world
    }

    fn warm_up(&mut self, lane: &Lane) {
        self.begin(lane, 0);
        self.order(lane, 0, lane.scope.number(0, 0));
        for to in 1..self.replicas.len() as u8 {
            for (_, message) in std::mem::take(self.back(0, to)) {
                self.hear(lane, 0, to, message);
            }
        }
        self.ack(lane, 0);
        self.replicas.iter_mut().for_each(Replica::sync);
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
    /// It runs, in the life that its view means.
    pub fn is_in(&self) -> bool {
        self.up && !self.outside
    }

    /// Something comes into its journal.
    pub fn write(&mut self) -> &mut Content {
        if let Some(tail) = &mut self.tail {
            tail.push(Rc::clone(&self.now));
        }
        Rc::make_mut(&mut self.now)
    }

    /// A record is taken, by its leader or by another.
    pub fn take(&mut self, lane: &Lane, record: Record) {
        let now = self.write();
        now.log.push(record);
        let stamp = Stamp::Led(record.epoch, now.log.len() as u8);
        match record.change {
            Change::Note { there } => now.noted = there,
            Change::Restamp => now.stamp = stamp,
            Change::Write { op } => {
                now.stamp = stamp;
                now.cells[lane.scope.target(op).1] = op;
                now.ids |= bit(op);
            }
            Change::Even { cells, bytes, own, listed, rest } => {
                now.stamp = stamp;
                crate::scope::numbers(cells).for_each(|cell| now.cells[cell as usize] = bytes[cell as usize]);
                now.ids |= own;
                let is_told = now.list.ops & !listed == 0 || !lane.rules.listed_ends;
                let ends = if rest.cells == 0 { lane.rules.lists_end } else { lane.rules.partial_lists };
                if is_told && ends {
                    now.list = rest;
                }
            }
        }
    }

    /// Epoch and sequence of its last record.
    pub fn position(&self) -> (u8, u8) {
        (self.now.log.last().map_or(0, |record| record.epoch), self.now.log.len() as u8)
    }

    pub fn serves(&self) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.phase == Phase::Serving)
    }
}
