//! The search in rounds: first without what nobody saw, and with writes as one step.
//!
//! An operation that may have happened (its client was told nothing) doubles the ways to order the others; some hundred
//! of them make a search that never ends. An order of fewer such operations is as good an order: those left out just
//! did not happen. So the first round has only those of which a read or a size tells; a file for which that is not
//! enough gets the others in the next rounds.

use super::cells::{Content, ZEROS};
use super::model::{Action, File, SizeSeen};
use crate::checkers::linearize::{Operation, Stuck, linearize};
use crate::history::Moment;
use std::collections::BTreeSet;

/// In which rounds an operation takes part: from, to.
pub type Rounds = (u8, u8);

/// In all.
pub const ALL: Rounds = (0, LAST);
/// As long as writes to shards are taken as one step.
pub const WHOLE: Rounds = (0, 0);
/// Once bytes may be seen before the size is.
pub const SPLIT: Rounds = (1, LAST);
/// Once bytes may be seen of writes that have to be done again.
pub const EARLY: Rounds = (2, LAST);
/// Once bytes of such writes may be seen, be covered by a truncate, and be seen again when the file grows over them.
pub const AGAIN: Rounds = (3, LAST);
/// The round in which nothing is left out.
const LAST: u8 = 4;

/// An operation that some rounds have.
pub struct Candidate {
    pub operation: Operation<Action>,
    pub rounds: Rounds,
}

impl Candidate {
    /// It may have happened, or not.
    pub fn optional(self) -> Self {
        Self { operation: Operation { required: false, ..self.operation }, ..self }
    }
}

/// What the answers show.
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

    /// Whether somebody may have seen what it does.
    fn tells_of(&self, action: &Action) -> bool {
        match action {
            Action::Write { parts, .. } => parts.iter().any(|part| {
                let mut cells = part.cells.clone().zip(part.contents.iter().copied());
                self.sizes.contains(&part.told) || cells.any(|one| one.1 != ZEROS && self.contents.contains(&one))
            }),
            _ => true,
        }
    }
}

/// An order of the operations of a file that begins empty.
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
