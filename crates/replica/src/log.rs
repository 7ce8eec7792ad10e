//! The replicated log: how a leader makes records and learns that they are settled and stable, how a follower appends
//! them, and which journal records are retained.

pub(crate) mod append;
pub(crate) mod follower;
pub(crate) mod number_allocator;
pub(crate) mod progress;
pub(crate) mod retention;
pub(crate) mod room;
pub(crate) mod settle;
pub(crate) mod sync_rounds;
pub(crate) mod without_bytes;

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
    /// Records that some member may lack, oldest first, each with the fresh blocks that it refers to.
    window: VecDeque<(LogEntry, Vec<Fresh>)>,
    /// What waits for a record to settle, in the order of the records. `true`: it also waits until the record is on
    /// stable storage of all members.
    after: VecDeque<(Sequence, bool, Then)>,
    /// Sync rounds under way, by ticket.
    rounds: BTreeMap<u64, Round>,
    /// The ticket of the sync job that was made last.
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

    /// The sequence of the last record in the leader's journal.
    pub fn last(&self) -> Sequence {
        self.last
    }

    /// Begins a view: the leader does not know which records the members have until they send `Position`.
    pub fn restart(&mut self) {
        self.settled = Sequence(0);
    }

    /// Sets the end of the log, after the leader took records from a member or read the end from its brick.
    pub fn set_last(&mut self, last: Sequence) {
        self.last = last;
    }

    /// Every member has all records up to this one in its journal, synced or not.
    pub fn settled(&self) -> Sequence {
        self.settled
    }

    /// Every member has all records up to this one on stable storage.
    pub fn stable(&self) -> Sequence {
        self.stable
    }

    /// A ticket for a sync job that no job had before.
    pub fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The ticket of the sync job that was made last.
    pub fn tickets(&self) -> u64 {
        self.tickets
    }

    /// Continues after the tickets of an earlier role, since the host may still run its sync jobs.
    pub fn continue_tickets(&mut self, last: u64) {
        self.tickets = last;
    }

    /// Records that some member may lack, oldest first.
    pub fn window(&self) -> &VecDeque<(LogEntry, Vec<Fresh>)> {
        &self.window
    }

    /// True if nothing waits for a record to be settled or stable.
    pub fn is_idle(&self) -> bool {
        self.after.is_empty() && self.rounds.is_empty()
    }
}
