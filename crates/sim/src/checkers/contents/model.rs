//! What a file is to the checker: cells with contents, a size, and whether it is gone.
//!
//! After a power cut, of what was not secured a tail may be lost. A small file rests in one place, so it is as it was
//! after some operation. A greater one rests in shards on several bricks, each with a tail of its own: there each cell
//! and the size are one of what they were since the last secured operation of their shard; of what was written straight
//! home, blocks may be holes.

use super::cells::{Content, Grid, Known, Palette, ZEROS};
use crate::checkers::linearize::Model;
use crate::history::{CallNumber, Moment};
use hekate_proto::{INLINE_MAX, SHARD_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Bytes of the greatest write that goes through the journal; fresh bytes of greater ones go straight home (DESIGN 5).
pub const JOURNALED_BYTES_MAX: usize = 32 << 10;

/// What a call did or saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Write {
        call: CallNumber,
        parts: Vec<WritePart>,
    },
    Truncate {
        call: CallNumber,
        size: u64,
    },
    Read {
        parts: Vec<ReadPart>,
    },
    /// An answer said how long the file is.
    Size(u64),
    /// An answer said that it is gone.
    Gone {
        call: CallNumber,
    },
}

/// The part of a write in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WritePart {
    pub cells: Range<usize>,
    pub contents: Vec<Content>,
    /// The file reaches at least to here.
    pub end: u64,
    /// It may go straight home.
    pub large: bool,
}

/// The part of a read in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPart {
    pub cells: Range<usize>,
    pub contents: Vec<Content>,
    pub size: SizeSeen,
}

/// What a read says about the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeSeen {
    AtLeast(u64),
    Exactly(u64),
    AtMost(u64),
}

impl SizeSeen {
    fn fits(self, size: u64) -> bool {
        match self {
            SizeSeen::AtLeast(least) => size >= least,
            SizeSeen::Exactly(exact) => size == exact,
            SizeSeen::AtMost(most) => size <= most,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    cells: Vec<Known<Content>>,
    size: Known<u64>,
    gone: bool,
    /// What a power cut may take back, oldest first; empty if none is to come.
    log: Vec<Rc<Change>>,
}

/// One part of an operation, and what was there before it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Change {
    call: CallNumber,
    cells: Vec<(usize, Known<Content>)>,
    size: Known<u64>,
    gone: bool,
    large: bool,
}

impl State {
    /// An empty file.
    pub fn empty(grid: &Grid) -> Self {
        Self { cells: vec![Known::Is(ZEROS); grid.len()], size: Known::Is(0), gone: false, log: Vec::new() }
    }

    fn undo(&mut self) -> bool {
        let Some(change) = self.log.pop() else { return false };
        for (cell, before) in &change.cells {
            self.cells[*cell] = before.clone();
        }
        self.size = change.size.clone();
        self.gone = change.gone;
        true
    }
}

/// A file.
pub struct File {
    pub grid: Grid,
    pub palette: Palette,
    /// From when on each call's change is on stable storage.
    pub secured_at: BTreeMap<CallNumber, Moment>,
    /// Whether a power cut is to come that may take changes back.
    pub keeps_log: bool,
    /// The greatest end that any operation may give the file.
    pub end_max: u64,
}

impl File {
    fn write(&self, state: &State, call: CallNumber, part: &WritePart) -> State {
        let size = match &state.size {
            Known::Is(size) => Known::Is(part.end.max(*size)),
            Known::OneOf(sizes) => {
                Known::one_of(sizes.iter().map(|size| part.end.max(*size)).collect()).unwrap_or(Known::Is(part.end))
            }
        };
        self.changed(state, call, part.cells.clone().zip(part.contents.iter().copied()), size, false, part.large)
    }

    fn truncate(&self, state: &State, call: CallNumber, size: u64) -> State {
        let cleared = self.grid.from(size).map(|cell| (cell, ZEROS));
        self.changed(state, call, cleared, Known::Is(size), false, false)
    }

    fn changed(
        &self,
        state: &State,
        call: CallNumber,
        contents: impl Iterator<Item = (usize, Content)>,
        size: Known<u64>,
        gone: bool,
        large: bool,
    ) -> State {
        let mut next = state.clone();
        let mut before = Vec::new();
        for (cell, content) in contents {
            before.push((cell, std::mem::replace(&mut next.cells[cell], Known::Is(content))));
        }
        let size_before = std::mem::replace(&mut next.size, size);
        next.gone = gone;
        if self.keeps_log {
            next.log.push(Rc::new(Change { call, cells: before, size: size_before, gone: state.gone, large }));
        }
        next
    }

    fn read(&self, state: &State, part: &ReadPart) -> Option<State> {
        let mut next = state.clone();
        next.size = state.size.that(|size| part.size.fits(*size))?;
        for (cell, content) in part.cells.clone().zip(&part.contents) {
            next.cells[cell] = state.cells[cell].that(|known| known == content)?;
        }
        Some(next)
    }

    fn is_secured(&self, change: &Change, at: Moment) -> bool {
        self.secured_at.get(&change.call).is_some_and(|secured| *secured <= at)
    }

    /// A file in one place: some tail of what was not secured is gone.
    fn lose_a_tail(&self, state: &State, at: Moment) -> Vec<State> {
        let mut all = Vec::new();
        let mut left = state.clone();
        loop {
            let after = State { log: Vec::new(), ..left.clone() };
            if !all.contains(&after) {
                all.push(after);
            }
            if left.log.last().is_none_or(|change| self.is_secured(change, at)) || !left.undo() {
                return all;
            }
        }
    }

    /// A file in several places: what each cell, and the size, may be.
    fn lose_tails(&self, state: &State, at: Moment) -> Vec<State> {
        let mut cells: Vec<BTreeSet<Content>> =
            state.cells.iter().map(|known| known.values().into_iter().collect()).collect();
        let mut sizes: BTreeSet<u64> = state.size.values().into_iter().collect();
        let mut secured_shards = BTreeSet::new();
        let mut inode_is_secured = false;
        let mut was_there = !state.gone;
        for change in state.log.iter().rev() {
            let secured = self.is_secured(change, at);
            for (cell, before) in &change.cells {
                let shard = self.grid.bytes(*cell).start / SHARD_BYTES;
                if secured {
                    secured_shards.insert(shard);
                }
                if !secured_shards.contains(&shard) {
                    cells[*cell].extend(before.values());
                    cells[*cell].extend(change.large.then_some(ZEROS));
                }
            }
            inode_is_secured |= secured;
            if !inode_is_secured {
                sizes.extend(change.size.values());
                was_there |= !change.gone;
            }
        }
        let cells = cells.into_iter().map(|values| Known::one_of(values).unwrap_or(Known::Is(ZEROS))).collect();
        let size = Known::one_of(sizes).unwrap_or(Known::Is(0));
        let kept = State { cells, size, gone: state.gone, log: Vec::new() };
        let back = (state.gone && was_there).then(|| State { gone: false, ..kept.clone() });
        std::iter::once(kept).chain(back).collect()
    }

    fn explain_read(&self, state: &State, part: &ReadPart) -> String {
        if state.size.that(|size| part.size.fits(*size)).is_none() {
            return format!("the file has {:?} bytes then, but the answer needs {:?}", state.size.values(), part.size);
        }
        for (cell, seen) in part.cells.clone().zip(&part.contents) {
            if state.cells[cell].that(|known| known == seen).is_none() {
                let Range { start, end } = self.grid.bytes(cell);
                let there: Vec<_> = state.cells[cell].values().into_iter().map(|c| self.palette.describe(c)).collect();
                let (there, seen) = (there.join(" or "), self.palette.describe(*seen));
                return format!("bytes {start}..{end} are {there} then, but it was given {seen}");
            }
        }
        "it fits".into()
    }
}

impl Model for File {
    type State = State;
    type Action = Action;

    fn parts(&self, action: &Action) -> usize {
        match action {
            Action::Write { parts, .. } => parts.len(),
            Action::Read { parts } => parts.len(),
            Action::Truncate { .. } | Action::Size(_) | Action::Gone { .. } => 1,
        }
    }

    fn only_looks(&self, action: &Action) -> bool {
        matches!(action, Action::Read { .. } | Action::Size(_))
    }

    fn steps(&self, state: &State, action: &Action, part: usize) -> Vec<State> {
        if let Action::Gone { call } = action {
            return match state.gone {
                true => vec![state.clone()],
                false => vec![self.changed(state, *call, std::iter::empty(), state.size.clone(), true, false)],
            };
        }
        if state.gone {
            return Vec::new();
        }
        match action {
            Action::Write { call, parts } => vec![self.write(state, *call, &parts[part])],
            Action::Truncate { call, size } => vec![self.truncate(state, *call, *size)],
            Action::Read { parts } => self.read(state, &parts[part]).into_iter().collect(),
            Action::Size(seen) => {
                let size = state.size.that(|size| size == seen);
                size.map(|size| State { size, ..state.clone() }).into_iter().collect()
            }
            Action::Gone { .. } => Vec::new(),
        }
    }

    fn explain(&self, state: &State, action: &Action, part: usize) -> String {
        match action {
            _ if state.gone => "the file is gone then".into(),
            Action::Read { parts } => self.explain_read(state, &parts[part]),
            Action::Size(seen) => format!("the file has {:?} bytes then, not {seen}", state.size.values()),
            _ => "it fits".into(),
        }
    }

    fn power_cut(&self, state: &State, at: Moment) -> Vec<State> {
        match self.end_max <= INLINE_MAX {
            true => self.lose_a_tail(state, at),
            false => self.lose_tails(state, at),
        }
    }
}
