//! The replicated log: how a leader makes records and knows them to be settled and stable, how a follower appends them,
//! and what a leader retains.

pub(crate) mod append;
pub(crate) mod follower;
pub(crate) mod number_allocator;
pub(crate) mod progress;
pub(crate) mod retention;
pub(crate) mod room;
pub(crate) mod settle;
pub(crate) mod sync_rounds;

use crate::log::settle::Then;
use crate::log::sync_rounds::Round;
use crate::message::Fresh;
use hekate_brick::LogEntry;
use hekate_proto::*;
use std::collections::{BTreeMap, VecDeque};

/// The leader's log.
#[derive(Debug)]
pub(crate) struct LeaderLog {
    last: Sequence,
    settled: Sequence,
    stable: Sequence,
    /// Records that some member may lack, with the bytes that each brings.
    window: VecDeque<(LogEntry, Vec<Fresh>)>,
    /// In the order of their records; `true`: not before the record is on stable storage of all members.
    after: VecDeque<(Sequence, bool, Then)>,
    /// Sync rounds under way, by ticket.
    rounds: BTreeMap<u64, Round>,
    /// The last ticket that was used.
    tickets: u64,
}

impl LeaderLog {
    /// The log of a leader whose brick has records up to `last`.
    pub fn new(last: Sequence) -> Self {
        Self {
            last,
            settled: Sequence(0),
            stable: Sequence(0),
            window: VecDeque::new(),
            after: VecDeque::new(),
            rounds: BTreeMap::new(),
            tickets: 0,
        }
    }

    /// The last record.
    pub fn last(&self) -> Sequence {
        self.last
    }

    /// The log begins a view: what members have is unknown until they say so.
    pub fn restart(&mut self) {
        self.settled = Sequence(0);
    }

    /// The log ends with this record now: its leader has taken records from a member, or knows its brick's end.
    pub fn set_last(&mut self, last: Sequence) {
        self.last = last;
    }

    /// Every member has all records up to this one, in memory at least.
    pub fn settled(&self) -> Sequence {
        self.settled
    }

    /// Every member has all records up to this one on stable storage.
    pub fn stable(&self) -> Sequence {
        self.stable
    }

    /// A ticket for a sync job.
    pub fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The last ticket of a sync job.
    pub fn tickets(&self) -> u64 {
        self.tickets
    }

    /// Tickets that the host still works on are not used again.
    pub fn continue_tickets(&mut self, last: u64) {
        self.tickets = last;
    }

    /// Records that some member may lack, oldest first.
    pub fn window(&self) -> &VecDeque<(LogEntry, Vec<Fresh>)> {
        &self.window
    }

    /// Whether nothing waits for a record to be settled or stable.
    pub fn is_idle(&self) -> bool {
        self.after.is_empty() && self.rounds.is_empty()
    }
}
