//! Times of a file that is written on the fast lane (rule 27): its leader answers them before the other members have them.
//!
//! One inode. A member's log is a beginning of its leader's; who comes back is given the leader's in one step. Bytes are the other models'; here a write is done when its times are answered.

mod leader;
pub mod scopes;
mod steps;
mod views;

use crate::rules::rules;
use crate::scope::bit;
use crate::state::{Budget, Mask};
pub use steps::Action;

rules! {
    "27" noted "times are answered at once only if every member has the note";
    "27" note_synced "on stable storage";
    "27" idle_in_log "when nobody writes any more the note goes as a record behind all times";
    "27" ends_with_change "and in the record of any other change of the inode";
    "27a" renewed "who leads next or anew gives a noted file this moment's times";
    "27a" renewed_first "before it serves";
    "27a" note_taken "and takes the note away";
    "27b" settled_reads "a read shows no times that some member lacks";
    "14" early_leased "who has no lease any more answers no times";
    "14" renewed_late "times are renewed once who was left out has no lease any more";
}

/// A line of a client's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    Write,
    /// utimensat: to [`SET`].
    Set,
    /// Anything else about the inode, as chmod is.
    Change,
}

/// What somebody sets times to: long ago.
pub const SET: u8 = 1;
/// When it begins.
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

/// The inode as a record leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    /// Client and line that it was made for.
    pub op: Option<(u8, u8)>,
    pub mtime: u8,
    pub noted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub up: bool,
    pub log: Vec<Record>,
    /// Records that it has on stable storage.
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

/// Who led before and does not know that it was left out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stale {
    pub replica: u8,
    /// It may answer times at once.
    pub is_safe: bool,
    /// What it may show.
    pub shows: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub next: u8,
    pub works: bool,
    /// The leader has a record for it, and answers when all have that.
    pub waits: Option<u8>,
}

/// What clients have seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Seen {
    /// The latest times since somebody set some.
    pub latest: u8,
    /// Of each client's write under way: the latest times that were seen before it began.
    pub before: Vec<u8>,
    /// Times must be later than this: writes that were acknowledged came after it was seen.
    pub floor: u8,
    /// Somebody sets times at this moment.
    pub setting: bool,
    /// Somebody has, and nobody began to write since.
    pub set: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub replicas: Vec<Replica>,
    pub view: View,
    /// Members of the view that opened last.
    pub opened: Mask,
    pub serves: bool,
    /// The record that noted the file; leader's memory.
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
