//! What clients did with one vDisk: the input of the checker of vDisks.

use super::Moment;
use hekate_proto::{Error, Result};

/// Bytes of a cell, the unit in which contents are compared.
pub const CELL_BYTES: usize = 512;
/// Cells of a block, which is lost as a whole.
pub const CELLS_PER_BLOCK: Cell = 4096 / CELL_BYTES as Cell;

/// The content of a cell: its number, repeated. Every change of a run has another one; zeros are 0.
pub type Tag = u64;

/// What a cell shows of which parts differ.
pub const TORN: Tag = Tag::MAX;

/// A cell's place in the vDisk.
pub type Cell = u64;

/// A call's place in its history.
pub type DiskCallNumber = usize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskOp {
    Open {
        steals: bool,
    },
    /// Changes were lost, and the vDisk is to be written again. Begins another tenure of the same opening.
    Resume,
    /// Each change gives cells a tag. No two of them have a cell in common.
    Change {
        changes: Vec<(Vec<Cell>, Tag)>,
        durable: bool,
    },
    Read,
    Flush,
    Close,
    Scrub,
    Snapshot {
        name: String,
    },
    DeleteSnapshot {
        name: String,
    },
    ReadSnapshot {
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskAnswer {
    Done,
    Opened {
        /// When the question was sent whether this session is the owner, to which the answer was yes.
        confirmed: Moment,
        read_only: bool,
    },
    Cells(Vec<(Cell, Tag)>),
}

/// One call of one client.
#[derive(Debug, Clone)]
pub struct DiskCall {
    pub client: u32,
    /// The opening, or the resume, that the call is a part of.
    pub tenure: Option<DiskCallNumber>,
    pub op: DiskOp,
    pub invoked: Moment,
    /// When the answer arrived, or the client died.
    pub ended: Option<Moment>,
    /// None if the client died first.
    pub outcome: Option<Result<DiskAnswer>>,
    /// The client's session had ended when the answer arrived.
    pub session_ended: bool,
}

impl DiskCall {
    pub fn is_done(&self) -> bool {
        matches!(self.outcome, Some(Ok(_)))
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.outcome, Some(Err(Error::Lost { .. })))
    }

    pub fn end(&self) -> Moment {
        self.ended.unwrap_or(Moment::MAX)
    }

    /// When the tenure began that this opening, or this resume, is the begin of.
    pub fn confirmed(&self) -> Option<Moment> {
        match self.outcome {
            Some(Ok(DiskAnswer::Opened { confirmed, read_only: false })) => Some(confirmed),
            _ => None,
        }
    }
}

/// All calls of a run about its vDisk.
#[derive(Debug, Clone, Default)]
pub struct DiskHistory {
    calls: Vec<DiskCall>,
    tags: Tag,
    /// Changes are acknowledged before any replica has them.
    pub is_async: bool,
}

impl DiskHistory {
    pub fn calls(&self) -> &[DiskCall] {
        &self.calls
    }

    /// A tag that no other change has.
    pub fn new_tag(&mut self, client: u32) -> Tag {
        self.tags += 1;
        u64::from(client + 1) << 32 | self.tags
    }

    pub fn invoke(
        &mut self,
        client: u32,
        tenure: Option<DiskCallNumber>,
        op: DiskOp,
        invoked: Moment,
    ) -> DiskCallNumber {
        let (ended, outcome, session_ended) = Default::default();
        self.calls.push(DiskCall { client, tenure, op, invoked, ended, outcome, session_ended });
        self.calls.len() - 1
    }

    pub fn answer(&mut self, number: DiskCallNumber, at: Moment, outcome: Result<DiskAnswer>, session_ended: bool) {
        let call = &mut self.calls[number];
        (call.ended, call.outcome, call.session_ended) = (Some(at), Some(outcome), session_ended);
    }

    /// The client's process has ended, and its calls with it.
    pub fn client_died(&mut self, client: u32, at: Moment) {
        let open = self.calls.iter_mut().filter(|call| call.client == client && call.ended.is_none());
        open.for_each(|call| call.ended = Some(at));
    }
}
