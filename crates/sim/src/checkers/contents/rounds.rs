//! A search in rounds: the first one leaves out operations that no answer shows, and takes writes as one step.
//!
//! An operation with an unknown outcome doubles the number of orders of the others; a hundred of them make a search
//! endless. An order of a subset is a valid order: the operations left out did not happen. So the first round has only
//! those operations that a read or a size shows. A file without an order gets more of them in each next round.

use super::cells::{Content, ZEROS};
use super::model::{Action, File, SizeSeen};
use crate::checkers::linearize::{Operation, Stuck, linearize};
use crate::history::Moment;
use std::collections::BTreeSet;

/// The rounds that an operation takes part in: first, last.
pub type Rounds = (u8, u8);

/// All rounds.
pub const ALL: Rounds = (0, LAST);
/// Rounds in which writes to shards are one step.
pub const WHOLE: Rounds = (0, 0);
/// Rounds in which bytes may be visible before the size.
pub const SPLIT: Rounds = (1, LAST);
/// Rounds in which bytes may be visible of writes that are repeated.
pub const EARLY: Rounds = (2, LAST);
/// Rounds in which bytes of such writes may be visible, be hidden by a truncate, and be visible again when the file
/// grows over them.
pub const AGAIN: Rounds = (3, LAST);
/// The round in which no operation is left out.
const LAST: u8 = 4;

/// An operation that takes part in some rounds.
pub struct Candidate {
    pub operation: Operation<Action>,
    pub rounds: Rounds,
}

impl Candidate {
    /// The same operation, which may or may not have happened.
    pub fn optional(self) -> Self {
        Self { operation: Operation { required: false, ..self.operation }, ..self }
    }
}

/// The contents and sizes that answers show.
#[derive(Default)]
struct Shown {
    contents: BTreeSet<(usize, Content)>,
    sizes: BTreeSet<u64>,
}

impl Shown {
    fn by(candidates: &[Candidate]) -> Self {
        let mut shown = Self::default();
        for candidate in candidates {
            match &candidate.operation.action {
                Action::Size(size) => drop(shown.sizes.insert(*size)),
                Action::Read { parts } => {
                    for part in parts {
                        shown.contents.extend(part.cells.clone().zip(part.contents.iter().copied()));
                        if let SizeSeen::Exactly(size) = part.size {
                            shown.sizes.insert(size);
                        }
                    }
                }
                Action::Write { .. } | Action::Truncate { .. } | Action::Gone { .. } | Action::Maybe(_) => {}
            }
        }
        shown
    }

    /// True if an answer may show the effect of the action.
    fn tells_of(&self, action: &Action) -> bool {
        match action {
            Action::Write { parts, .. } => parts.iter().any(|part| {
                let mut cells = part.cells.clone().zip(part.contents.iter().copied());
                self.sizes.contains(&part.size_end) || cells.any(|one| one.1 != ZEROS && self.contents.contains(&one))
            }),
            _ => true,
        }
    }
}

/// Looks for an order of the operations of a file that begins empty.
///
/// # Errors
///
/// No round has an order; the last round's search is returned.
pub fn order(file: &File, candidates: &[Candidate], power_cuts: &[Moment]) -> Result<(), Stuck> {
    let shown = Shown::by(candidates);
    let search = |round: u8| {
        let is_in = |one: &&Candidate| (one.rounds.0..=one.rounds.1).contains(&round);
        let seen = |one: &&Candidate| round == LAST || one.operation.required || shown.tells_of(&one.operation.action);
        let chosen: Vec<_> = candidates.iter().filter(is_in).filter(seen).map(|one| one.operation.clone()).collect();
        linearize(file, file.empty(), &chosen, power_cuts).map(drop)
    };
    (0..LAST).find_map(|round| search(round).ok()).map_or_else(|| search(LAST), Ok)
}
