//! Fast writes as `crates/replica` implements them (`docs/adr/0022-fast-lane-in-code.md`): a leader opens a shard for a
//! session under its term, and closes it in steps before it changes it. Every reconciliation is a record of its log.
//!
//! One shard. An answer is known at once to the process that asked, which may act on it at any later moment. Healing is
//! one step. `power.rs` models what a power cut leaves of a journal, `loose.rs` fast writes that are answered before
//! they are on stable storage.

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
    "7" reads_ask "a read of an unsettled write asks the members for its stamp";
    "L1" closed_first "a record about an open shard waits until the shard is closed";
    "L2" restamped "closing begins with a record that gives the shard another stamp";
    "L3" members_asked "the writes that members list are reconciled too, not only those that the leader lists";
    "L4" asked_behind "a member reports its list once it has that record";
    "L5" ids_in_slots "the ids of writes that the leader has enter their sessions' slots with the last record";
    "L6" own_ids "the ids of writes that only members list do not";
    "L7" lists_end "the last record removes the lists";
    "L8" closing_reads "a read does not ask for the stamp of a shard that is being closed: its holder may lack the bytes";
    "L9" terms_hold "a member accepts fast writes of the term that it learned last";
    "L10" terms_differ "no two leaders use one term: a client may note a permission under a later epoch";
    "L11" found_evened "a new leader reconciles the writes that members list before it serves";
    "L12" own_found "and the writes that it lists itself";
    "L13" fetched_lists "its own list counts as it is after it has fetched the records that it lacks";
    "L14" learner_lists "the writes that a learner lists are reconciled with its log";
    "L15" listed_ends "a record removes no list of writes that the leader has not received";
    "L16" whole_views "shards are opened only in views in which no replica is missing";
    "L17" partial_lists "a record that reconciles a part of a shard removes it from the lists, unless a member lacks it";
    "L25" length_kept "the record with which closing begins leaves each copy its length";
    "L26" length_even "a record that reconciles gives all copies the length of the one whose bytes count";
    "17" lives "a replica that lost power is not a member any more";
    "19" losses_reported "an fsync fails if memory was lost since the view in which the write was answered";
    "D6" one_view_syncs "an fsync is of one view: in a new view it begins again";
    "23" opened_synced "all members have synced their data before a view opens";
    "L18" closing_syncs "closing a shard that was written loosely begins with a round of syncs";
    "L18" due_refuses "from the moment at which it is due, its leader accepts no fast write for it";
    "L18" found_syncs "so does reconciling the lists that a new leader finds";
    "L19" learners_compared "while the marker exists a learner is compared, whatever its log is";
    "L20" alone "a leader that finds the marker in a view without memory continues as the only member";
    "L20" alone_first "that is decided before a view opens: one of several members does not open";
    "L21" note_settled "all members have the marker before the first loose write";
    "L22" note_closed "the marker is removed only when no shard is open";
    "L22" note_whole "and only when no replica is missing";
}

/// A configuration. Each line of a script is a write: a fast write if a leader has permitted it, otherwise one through
/// the leader.
#[derive(Debug, Clone)]
pub struct Lane {
    pub scope: Scope,
    pub rules: Rules,
    /// Fast writes are answered once they are in a member's journal, except these ops; they are answered once they are
    /// on stable storage.
    pub loose: bool,
    pub durable: Mask,
    /// The shard is empty at the start, and each write makes it as long as it needs.
    pub grows: bool,
    /// The first write of client 0 is done, and synced by all, at the start.
    pub warm: bool,
    /// Steps that are taken at the start.
    pub after: Vec<Action>,
}

impl Lane {
    pub fn is_loose(&self, op: u8) -> bool {
        self.loose && self.durable & bit(op) == 0
    }
}

/// Every write has a stamp of its own.
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
    /// The leader's length goes along, and is not taken.
    Restamp {
        length: u8,
    },
    /// Some of the leader's bytes, and its length; `own`: writes whose ids enter the slots. Of the writes `listed`, `rest` stays in the
    /// lists; it is empty in the last record of a closing.
    Reconcile {
        cells: Mask,
        bytes: [u8; CELLS],
        length: u8,
        own: Mask,
        listed: Mask,
        rest: List,
    },
    /// The marker that a shard of the partition may be written loosely is set, or removed.
    Note {
        there: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    pub epoch: u8,
    pub change: Change,
}

/// Writes of a replica that are not known to be settled: cells that may differ, and ops that it has. A session sends a
/// fast write only after all members have accepted the previous one.
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

/// The state of a replica according to its journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Content {
    pub log: Vec<Record>,
    pub stamp: Stamp,
    pub cells: [u8; CELLS],
    /// Cells from this one on are not shown.
    pub length: u8,
    pub list: List,
    /// Writes whose ids are in the sessions' slots.
    pub ids: Mask,
    pub noted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub up: bool,
    /// It lost power since it was a member of an open view.
    pub lost: bool,
    /// It lost power since the formation of the view that it knows.
    pub outside: bool,
    /// The epoch of the view that it knows.
    pub epoch: u8,
    pub now: Rc<Content>,
    /// Its states since its last sync, while power cuts may come: a power cut may leave any of them.
    pub tail: Option<Vec<Rc<Content>>>,
    /// The term that it learned last; in memory.
    pub term: u8,
    /// Number of times that it began to lead.
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
    /// Members and learners that have reported the ends of their logs.
    pub known: Mask,
    /// Learners that have received everything.
    pub whole: Mask,
    pub held: [u8; 3],
    /// The session for which the shard is open.
    pub open: Option<u8>,
    /// The last write is not known to be on all members.
    pub unsettled: bool,
    /// It had a loose write since it was opened.
    pub loose: bool,
    /// The leader asks to be the only member.
    pub alone: bool,
    /// Members that have not synced yet, if all must sync before a shard is closed.
    pub round: Option<Mask>,
    pub due: bool,
    pub closing: Option<Closing>,
    pub found: Option<Unreconciled>,
    /// Ops that are answered when all members have the record with this number; and whether the answer opens the shard.
    pub pending: Vec<(u8, u8, bool)>,
    pub reading: Option<Reading>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Closing {
    /// The record that gives the shard another stamp.
    pub sequence: u8,
    /// Members that have not reported their lists.
    pub missing: Mask,
    pub unreconciled: Unreconciled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unreconciled {
    pub cells: Mask,
    /// Writes that some replica lists.
    pub listed: Mask,
    /// Writes that the leader has.
    pub own: Mask,
    /// Those of them that each member has that has reported.
    pub everywhere: Mask,
    /// Members that have reported.
    pub reported: Mask,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reading {
    pub cells: [u8; CELLS],
    pub stamp: Stamp,
    /// Ops that clients could see to be done before the read began.
    pub done: Mask,
    pub missing: Mask,
    /// All members have the write: the read is answered when they have this record.
    pub upto: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    pub epoch: u8,
    pub leader: u8,
    pub members: Mask,
    pub learners: Mask,
    /// Number of views that began without any member's memory, and whether this is one.
    pub losses: u8,
    pub forgetful: bool,
    pub open: bool,
}

/// The coordinator's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Views {
    pub now: View,
    /// The view that opened last.
    pub opened: View,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Fast { members: Mask, done: Mask, failed: bool },
    Led,
    Answered { allows: Option<(u8, Stamp)>, losses: u8 },
}

/// A leader's permission for fast writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allowed {
    pub epoch: u8,
    pub term: u8,
    pub stamp: Stamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub up: bool,
    /// The epoch of the view that it knows.
    pub epoch: u8,
    pub members: Mask,
    pub losses: u8,
    /// Members that have synced, while an fsync is in progress.
    pub syncing: Option<Mask>,
    /// Writes that were acknowledged and not synced since, and the loss counter of the view in which the first of them
    /// was.
    pub unsynced: (Mask, u8),
    pub allowed: Option<Allowed>,
    pub next: u8,
    /// One at a time, as for each shard of a session.
    pub work: Option<(u8, Work)>,
}

/// A fast write in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fast {
    pub op: u8,
    pub allowed: Allowed,
}

/// A message of a leader to another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// Asks for the end of the log and the list. From now on this term is valid.
    Ask {
        term: u8,
    },
    Append {
        sequence: u8,
        record: Record,
    },
    /// Asks for the list after this record.
    List {
        sequence: u8,
    },
    /// Asks for a sync.
    Sync,
    /// Asks whether the replica has this write.
    AskFast {
        stamp: Stamp,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub replicas: Vec<Replica>,
    pub clients: Vec<Client>,
    pub views: Views,
    /// Fast writes in flight to each replica; they arrive in any order.
    pub front: Vec<Vec<Fast>>,
    /// Messages with their epochs, for each sender and receiver; they arrive in order.
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
            length: if lane.grows { 0 } else { CELLS as u8 },
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
            world.receive(lane, 0, to, ask);
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
                self.receive(lane, 0, to, message);
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

impl Content {
    /// Writes a cell.
    pub fn put(&mut self, cell: usize, op: u8) {
        self.cells[cell] = op;
        self.length = self.length.max(cell as u8 + 1);
    }

    /// True if the other copy has the same cells and the same length.
    pub fn is_equal(&self, other: &Self) -> bool {
        (self.cells, self.length) == (other.cells, other.length)
    }

    /// What a read shows.
    pub fn shown(&self) -> [u8; CELLS] {
        let mut shown = self.cells;
        shown[self.length as usize..].fill(0);
        shown
    }
}

impl Replica {
    /// True if it runs, in the incarnation that its view names.
    pub fn is_in(&self) -> bool {
        self.up && !self.outside
    }

    /// The content of its journal, to be changed.
    pub fn write(&mut self) -> &mut Content {
        if let Some(tail) = &mut self.tail {
            tail.push(Rc::clone(&self.now));
        }
        Rc::make_mut(&mut self.now)
    }

    /// Applies a record, at its leader or at another replica.
    pub fn take(&mut self, lane: &Lane, record: Record) {
        let now = self.write();
        now.log.push(record);
        let stamp = Stamp::Led(record.epoch, now.log.len() as u8);
        match record.change {
            Change::Note { there } => now.noted = there,
            Change::Restamp { length } => {
                now.stamp = stamp;
                now.length = if lane.rules.length_kept { now.length } else { length };
            }
            Change::Write { op } => {
                now.stamp = stamp;
                now.put(lane.scope.target(op).1, op);
                now.ids |= bit(op);
            }
            Change::Reconcile { cells, bytes, length, own, listed, rest } => {
                now.stamp = stamp;
                now.length = if lane.rules.length_even { length } else { now.length };
                crate::scope::numbers(cells).for_each(|cell| now.cells[cell as usize] = bytes[cell as usize]);
                now.ids |= own;
                let is_reported = now.list.ops & !listed == 0 || !lane.rules.listed_ends;
                let ends = if rest.cells == 0 { lane.rules.lists_end } else { lane.rules.partial_lists };
                if is_reported && ends {
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
