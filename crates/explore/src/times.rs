//! Times of a file that is written by fast writes (rule 27): its leader answers them before the other members have
//! them.
//!
//! One inode. A member's log is a prefix of its leader's; a returning replica gets the leader's in one step. Bytes are
//! modelled elsewhere; here a write is done when its times are answered.

mod leader;
pub mod scopes;
mod steps;
mod views;

use crate::rules::rules;
use crate::scope::bit;
use crate::state::{Budget, Mask};
pub use steps::Action;

rules! {
    "27" noted "times are answered at once only if every member has the marker";
    "27" note_synced "on stable storage";
    "27" idle_in_log "when there are no more writes the marker is removed by a record behind all times";
    "27" ends_with_change "and by the record of any other change of the inode";
    "27a" renewed "a new leader, or a leader in a new incarnation, sets the times of a marked file to the current time";
    "27a" renewed_first "before it serves";
    "27a" note_taken "and removes the marker";
    "27b" settled_reads "a read shows no times that a member lacks";
    "14" early_leased "a leader without a lease answers no times";
    "14" renewed_late "times are renewed once an excluded leader has no lease any more";
}

/// A line of a client's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    Write,
    /// utimensat: to [`SET`].
    Set,
    /// Any other change of the inode, such as chmod.
    Change,
}

/// The times that a client sets: long ago.
pub const SET: u8 = 1;
/// The time at the start.
const BEGIN: u8 = 10;

/// A configuration.
#[derive(Debug, Clone)]
pub struct Times {
    pub name: &'static str,
    pub replicas: u8,
    pub scripts: Vec<Vec<Line>>,
    pub faults: Budget,
    pub rules: Rules,
    pub states_max: usize,
}

/// The inode after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    /// The client and line of its op.
    pub op: Option<(u8, u8)>,
    pub mtime: u8,
    pub noted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub up: bool,
    pub log: Vec<Record>,
    /// Number of its records on stable storage.
    pub synced: u8,
    /// Its machine lost power since it was a member.
    pub lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    pub leader: u8,
    pub members: Mask,
    pub open: bool,
    /// Members that lost power since it was formed.
    pub void: Mask,
}

/// An earlier leader that does not know that it was excluded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stale {
    pub replica: u8,
    /// It may answer times at once.
    pub is_safe: bool,
    /// The times that it may show.
    pub shows: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub next: u8,
    pub works: bool,
    /// The leader has a record for it, and answers when all members have that record.
    pub waits: Option<u8>,
}

/// Observations of clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Seen {
    /// The latest times seen since a client set some.
    pub latest: u8,
    /// For each client's write in progress, the latest times seen before it began.
    pub before: Vec<u8>,
    /// Times must be later than this: writes acknowledged since were asked for after it was seen.
    pub floor: u8,
    /// A client is setting times now.
    pub setting: bool,
    /// A client has set times, and no write began since.
    pub set: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub replicas: Vec<Replica>,
    pub view: View,
    /// Members of the view that opened last.
    pub opened: Mask,
    pub serves: bool,
    /// The record that marked the file; leader's memory.
    pub noted: Option<u8>,
    pub stale: Option<Stale>,
    pub clients: Vec<Client>,
    pub now: u8,
    pub seen: Seen,
    pub budget: Budget,
    pub broken: Option<&'static str>,
}

impl World {
    pub fn first(times: &Times) -> Self {
        let all = bit(times.replicas) - 1;
        let client = Client { next: 0, works: false, waits: None };
        let replica = Replica { up: true, log: Vec::new(), synced: 0, lost: false };
        Self {
            replicas: vec![replica; times.replicas as usize],
            view: View { leader: 0, members: all, open: true, void: 0 },
            opened: all,
            serves: true,
            noted: None,
            stale: None,
            clients: vec![client; times.scripts.len()],
            now: BEGIN,
            seen: Seen { before: vec![0; times.scripts.len()], ..Seen::default() },
            budget: times.faults,
            broken: None,
        }
    }

    /// The inode as it is on the leader.
    pub fn inode(&self) -> Record {
        self.leader().log.last().copied().unwrap_or(Record { op: None, mtime: BEGIN, noted: false })
    }

    pub fn last(&self) -> u8 {
        self.leader().held()
    }

    pub fn leader(&self) -> &Replica {
        &self.replicas[self.view.leader as usize]
    }

    pub fn at(&mut self, replica: u8) -> &mut Replica {
        &mut self.replicas[replica as usize]
    }
}

impl Replica {
    pub fn held(&self) -> u8 {
        self.log.len() as u8
    }
}
