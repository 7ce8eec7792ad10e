//! The checker's model of a file: cells with contents, a size, and whether the file is gone.
//!
//! After a power cut, a tail of the changes that were not secured may be lost. A small file is stored in one place, so
//! its state is that after some operation. A larger file is stored in shards on several bricks, each of which may lose
//! a tail of its own: each cell, and the size, has one of the values since the last secured write to its shard, or the
//! last secured truncate that cut it. Blocks of a write that bypassed the journal may be holes.

use super::cells::{Content, Grid, Known, Palette, ZEROS};
use crate::checkers::linearize::Model;
use crate::history::{CallNumber, Moment};
use hekate_proto::{INLINE_MAX, SHARD_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Largest write whose fresh bytes go through the journal, in bytes; those of larger writes are written directly to
/// data files.
pub const JOURNALED_BYTES_MAX: usize = 32 << 10;

/// The effect or the observation of a call.
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
    /// An answer showed the file's size.
    Size(u64),
    /// An answer showed that the file is gone.
    Gone {
        call: CallNumber,
    },
    /// The power failed while the answer was on its way: the effect may be lost by then.
    Maybe(Box<Action>),
}

/// The part of a write in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WritePart {
    pub cells: Range<usize>,
    pub contents: Vec<Content>,
    /// The file's least size after the write, in bytes.
    pub end: u64,
    /// The end that the inode's leader receives after the last shard, in bytes.
    pub size_end: u64,
    /// The bytes may bypass the journal.
    pub large: bool,
    /// Each byte may or may not be lost by now.
    pub unsure: bool,
}

/// The part of a read in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPart {
    pub cells: Range<usize>,
    pub contents: Vec<Content>,
    pub size: SizeSeen,
}

/// The size that a read implies.
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
    /// Power cuts so far.
    cuts: usize,
    undo: Undo,
}

/// Changes that the next power cut may undo.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Undo {
    /// A file in one place: its changes, oldest first; empty if no power cut follows.
    Log(Vec<Rc<Change>>),
    /// A file in several places: other possible values of each place after the next power cut.
    Else(Rc<Else>),
}

/// Possible values without the order of the changes that led to them, so that two orders with the same result are one
/// state. A value stays until its successor in the same place is secured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Else {
    cells: BTreeMap<(usize, Content), Moment>,
    sizes: BTreeMap<u64, Moment>,
    was_there: Moment,
}

/// One part of an operation, and the values that it replaced.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Change {
    call: CallNumber,
    cells: Vec<(usize, Known<Content>)>,
    size: Known<u64>,
    gone: bool,
    effect: Effect,
}

/// What a change does to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Effect {
    /// `large`: the bytes may bypass the journal.
    Write {
        large: bool,
    },
    Truncate,
    Removal,
}

impl State {
    /// A state without changes that could be lost.
    fn new(cells: Vec<Known<Content>>, size: Known<u64>, in_one_place: bool) -> Self {
        let undo = if in_one_place { Undo::Log(Vec::new()) } else { Undo::Else(Rc::default()) };
        Self { cells, size, gone: false, cuts: 0, undo }
    }

    /// Undoes the last change.
    fn take_back(&mut self, change: &Change) {
        for (cell, before) in &change.cells {
            self.cells[*cell] = before.clone();
        }
        self.size = change.size.clone();
        self.gone = change.gone;
    }
}

fn later(until: &mut Moment, other: Moment) {
    *until = other.max(*until);
}

/// A file and the times that decide what a power cut may take.
pub struct File {
    pub grid: Grid,
    pub palette: Palette,
    /// For each call the moment from which its change is on stable storage.
    pub secured_at: BTreeMap<CallNumber, Moment>,
    /// Moments of power cuts; nothing is lost after the last one.
    pub power_cuts: Vec<Moment>,
    /// The greatest size that any operation may give the file, in bytes.
    pub end_max: u64,
}

impl File {
    /// The state of a new file.
    pub fn empty(&self) -> State {
        State::new(vec![Known::Is(ZEROS); self.grid.len()], Known::Is(0), self.end_max <= INLINE_MAX)
    }

    fn write(&self, state: &State, call: CallNumber, part: &WritePart) -> State {
        let size = match &state.size {
            Known::Is(size) => Known::Is(part.end.max(*size)),
            Known::OneOf(sizes) => {
                Known::one_of(sizes.iter().map(|size| part.end.max(*size)).collect()).unwrap_or(Known::Is(part.end))
            }
        };
        let cells = part.cells.clone().zip(part.contents.iter().copied());
        let mut next = self.changed(state, call, cells, size, Effect::Write { large: part.large });
        for cell in part.cells.clone().filter(|_| part.unsure) {
            next.cells[cell] = next.cells[cell].or(&state.cells[cell].values().into_iter().collect());
        }
        next
    }

    fn truncate(&self, state: &State, call: CallNumber, size: u64) -> State {
        // A truncate that extends the file cuts no shards: bytes of a write whose end the leader has not received yet
        // stay.
        let is_cut = state.size.values().iter().any(|before| *before > size);
        let cleared = self.grid.from(size).filter(|_| is_cut).map(|cell| (cell, ZEROS));
        let mut next = self.changed(state, call, cleared, Known::Is(size), Effect::Truncate);
        // A power cut may have taken the size that a write had set, but not its bytes.
        if state.size.values().iter().any(|before| *before <= size) {
            let unsure = self.grid.from(size).filter(|cell| matches!(state.cells[*cell], Known::OneOf(_)));
            for cell in unsure {
                next.cells[cell] = next.cells[cell].or(&state.cells[cell].values().into_iter().collect());
            }
        }
        next
    }

    fn changed(
        &self,
        state: &State,
        call: CallNumber,
        contents: impl Iterator<Item = (usize, Content)>,
        size: Known<u64>,
        effect: Effect,
    ) -> State {
        let mut next = state.clone();
        let mut before = Vec::new();
        for (cell, content) in contents {
            before.push((cell, std::mem::replace(&mut next.cells[cell], Known::Is(content))));
        }
        let size_before = std::mem::replace(&mut next.size, size);
        next.gone = effect == Effect::Removal;
        if let Some(cut) = self.power_cuts.get(state.cuts) {
            let change = Change { call, cells: before, size: size_before, gone: state.gone, effect };
            match &mut next.undo {
                Undo::Log(log) => log.push(Rc::new(change)),
                Undo::Else(other) => self.note(Rc::make_mut(other), &change, *cut),
            }
        }
        next
    }

    /// Adds a change to the possible values after the power cut: it may be lost, or it is secured. A secured write has
    /// its shards synced with all that is in them. A secured truncate is stable with the inode, so what it cut stays
    /// cut. No shard is synced for it: what others wrote below the new size is theirs to sync (contract, section 1).
    fn note(&self, other: &mut Else, change: &Change, cut: Moment) {
        if self.is_secured(change, cut) {
            let cells: BTreeSet<usize> = change.cells.iter().map(|(cell, _)| *cell).collect();
            let shards: BTreeSet<u64> = cells.iter().map(|cell| self.shard(*cell)).collect();
            other.cells.retain(|(cell, _), _| match change.effect {
                Effect::Write { .. } => !shards.contains(&self.shard(*cell)),
                Effect::Truncate | Effect::Removal => !cells.contains(cell),
            });
            (other.sizes, other.was_there) = (BTreeMap::new(), 0);
            return;
        }
        let until = self.secured_at.get(&change.call).copied().unwrap_or(Moment::MAX);
        let hole = (change.effect == Effect::Write { large: true }).then_some(ZEROS);
        for (cell, before) in &change.cells {
            for content in before.values().into_iter().chain(hole) {
                later(other.cells.entry((*cell, content)).or_default(), until);
            }
        }
        for size in change.size.values() {
            later(other.sizes.entry(size).or_default(), until);
        }
        if !change.gone {
            later(&mut other.was_there, until);
        }
    }

    fn shard(&self, cell: usize) -> u64 {
        self.grid.bytes(cell).start / SHARD_BYTES
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

    /// A file in one place: some tail of the changes that were not secured is lost. The rest may be lost in the next
    /// power cut, because this one may have been another machine's.
    fn lose_a_tail(&self, state: &State, log: &[Rc<Change>], at: Moment) -> Vec<State> {
        let unsecured = log.iter().rev().take_while(|change| !self.is_secured(change, at)).count();
        let mut log = log[log.len() - unsecured..].to_vec();
        let mut left = State { cuts: state.cuts + 1, undo: Undo::Log(log.clone()), ..state.clone() };
        let mut all = vec![left.clone()];
        while let Some(change) = log.pop() {
            left.take_back(&change);
            left.undo = Undo::Log(log.clone());
            if !all.contains(&left) {
                all.push(left.clone());
            }
        }
        all
    }

    /// A file in several places: the possible values of each cell and of the size; they stay possible after the next
    /// power cut.
    fn lose_tails(&self, state: &State, other: &Else, at: Moment) -> Vec<State> {
        let mut other = other.clone();
        other.cells.retain(|_, until| *until > at);
        other.sizes.retain(|_, until| *until > at);
        let (was_there, sizes) = (other.was_there > at, other.sizes.keys().copied().collect());
        let mut kept = state.clone();
        for (cell, content) in other.cells.keys() {
            kept.cells[*cell] = kept.cells[*cell].or(&BTreeSet::from([*content]));
        }
        kept.size = kept.size.or(&sizes);
        (kept.cuts, kept.undo) = (state.cuts + 1, Undo::Else(Rc::new(other)));
        let back = (state.gone && was_there).then(|| State { gone: false, ..kept.clone() });
        std::iter::once(kept).chain(back).collect()
    }

    /// The bytes that a read returned, run by run.
    fn describe(&self, part: &ReadPart) -> String {
        let mut runs: Vec<(u64, u64, Content)> = Vec::new();
        for (cell, content) in part.cells.clone().zip(&part.contents) {
            let Range { start, end } = self.grid.bytes(cell);
            match runs.last_mut() {
                Some(run) if self.palette.is_same_writer(run.2, *content) => run.1 = end,
                _ => runs.push((start, end, *content)),
            }
        }
        let run =
            |(start, end, content): &(u64, u64, Content)| format!("{start}..{end} {}", self.palette.describe(*content));
        runs.iter().map(run).collect::<Vec<_>>().join(", ")
    }

    fn explain_read(&self, state: &State, part: &ReadPart) -> String {
        if state.size.that(|size| part.size.fits(*size)).is_none() {
            let (sizes, all) = (state.size.values(), self.describe(part));
            return format!(
                "the file has {sizes:?} bytes then, but the answer needs {:?}; all of it: {all}",
                part.size
            );
        }
        for (cell, seen) in part.cells.clone().zip(&part.contents) {
            if state.cells[cell].that(|known| known == seen).is_none() {
                let Range { start, end } = self.grid.bytes(cell);
                let there: Vec<_> = state.cells[cell].values().into_iter().map(|c| self.palette.describe(c)).collect();
                let (there, seen) = (there.join(" or "), self.palette.describe(*seen));
                let all = self.describe(part);
                return format!("bytes {start}..{end} are {there} then, but it was given {seen}; all of it: {all}");
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
            Action::Maybe(action) => self.parts(action),
        }
    }

    fn only_looks(&self, action: &Action) -> bool {
        matches!(action, Action::Read { .. } | Action::Size(_))
    }

    fn steps(&self, state: &State, action: &Action, part: usize) -> Vec<State> {
        if let Action::Maybe(action) = action {
            let mut all = self.steps(state, action, part);
            all.push(state.clone());
            return all;
        }
        if let Action::Gone { call } = action {
            return match state.gone {
                true => vec![state.clone()],
                false => {
                    vec![self.changed(state, *call, std::iter::empty(), state.size.clone(), Effect::Removal)]
                }
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
            Action::Gone { .. } | Action::Maybe(_) => Vec::new(),
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
        match &state.undo {
            Undo::Log(log) => self.lose_a_tail(state, log, at),
            Undo::Else(other) => self.lose_tails(state, other, at),
        }
    }
}
