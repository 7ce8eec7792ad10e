//! The tree as calls change it and answers show it.
//!
//! While a power cut is to come the state also has the changes that it may take back ([`super::loss`]).

use super::change::Change;
use super::look::Look;
use super::loss::{Between, Entry, Log};
use super::tree::Tree;
use crate::checkers::linearize::Model;
use crate::history::{CallNumber, Moment};
use hekate_proto::{Error, InodeId, NodeKind};
use std::collections::BTreeMap;

/// What a call did or saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It was done; or nobody knows.
    Change {
        call: CallNumber,
        change: Change,
        known: bool,
    },
    /// It was refused.
    Refused {
        asked: Change,
        error: Error,
    },
    Look(Look),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    pub tree: Tree,
    /// Links of names that calls took away and that are counted still.
    owed: BTreeMap<CallNumber, InodeId>,
    /// Calls that have counted a link whose name is to come.
    adding: BTreeMap<CallNumber, InodeId>,
    /// What a power cut may take, or has perhaps taken.
    log: Log,
    /// Power cuts so far.
    cuts: usize,
}

/// The namespace of a volume.
pub struct Namespace {
    /// From when on each call's change is on stable storage.
    pub secured_at: BTreeMap<CallNumber, Moment>,
    /// Power cuts of the whole history.
    pub cuts: usize,
}

impl State {
    fn between(&self) -> Between<'_> {
        Between { owed: &self.owed, adding: &self.adding }
    }

    /// All ways to decide what a power cut took where this action looks.
    fn decided(&self, action: &Action, no_cut_to_come: bool) -> Vec<State> {
        let (mut all, mut left) = (Vec::new(), vec![self.clone()]);
        while let Some(state) = left.pop() {
            let open = if state.log.is_open() { action.open_change(&state) } else { None };
            let Some(open) = open else {
                all.push(state);
                continue;
            };
            left.extend(state.log.decide(open).into_iter().rev().filter_map(|mut log| {
                let tree = log.tree(&state.between())?;
                log.forget(no_cut_to_come);
                Some(State { tree, log, ..state.clone() })
            }));
        }
        all
    }
}

impl Action {
    /// A change that this action depends on, and that a power cut may have taken.
    fn open_change(&self, state: &State) -> Option<usize> {
        let tree = &state.tree;
        let (dirs, mut inodes) = match self {
            Action::Change { change, .. } | Action::Refused { asked: change, .. } => change.depends_on(tree),
            Action::Look(Look::Name { dir, .. } | Look::NotFound { dir, .. } | Look::Listed { dir, .. }) => {
                (vec![*dir], Vec::new())
            }
            Action::Look(Look::Links { inode, .. } | Look::Missing { inode }) => (vec![*inode], vec![*inode]),
        };
        // Whether a directory is there depends on those above it.
        inodes.extend(dirs.iter().flat_map(|dir| tree.way_up(*dir)));
        state.log.last_open(&dirs, &inodes)
    }
}

impl Namespace {
    fn change(&self, state: &State, call: CallNumber, change: &Change, known: bool, part: usize) -> Vec<State> {
        let mut next = state.clone();
        if let Change::Link { told, .. } = change {
            return self.link(state, call, change, *told, known, part);
        }
        if part == 0 {
            match change.take(&mut next.tree) {
                Ok(owed) => next.owed.extend(owed.map(|inode| (call, inode))),
                Err(_) => return Vec::new(),
            }
            self.keep_log(&mut next, call, change, &state.tree);
        } else if let Some(inode) = next.owed.remove(&call) {
            next.tree.count_links(inode, -1);
        }
        vec![next]
    }

    /// The inode counts the link before the name is there; if the call dies between, recovery takes it back.
    fn link(
        &self,
        state: &State,
        call: CallNumber,
        change: &Change,
        told: Option<u32>,
        known: bool,
        part: usize,
    ) -> Vec<State> {
        let Change::Link { dir, name, inode, .. } = change else { return Vec::new() };
        let mut next = state.clone();
        let Some((kind, _)) = next.tree.inode(*inode).filter(|(kind, _)| *kind != NodeKind::Directory) else {
            return Vec::new();
        };
        if part == 0 {
            let links = next.tree.count_links(*inode, 1);
            next.adding.insert(call, *inode);
            return if told.is_none_or(|told| told == links) { vec![next] } else { Vec::new() };
        }
        if next.adding.remove(&call).is_none() {
            return Vec::new();
        }
        let mut back = next.clone();
        back.tree.count_links(*inode, -1);
        let mut all = Vec::new();
        if next.tree.directory(*dir).is_ok_and(|directory| !directory.names.contains_key(name)) {
            next.tree.put(*dir, name, (*inode, kind));
            self.keep_log(&mut next, call, change, &state.tree);
            all.push(next);
        }
        all.extend((!known).then_some(back));
        all
    }

    fn keep_log(&self, next: &mut State, call: CallNumber, change: &Change, before: &Tree) {
        if next.cuts < self.cuts || next.log.is_open() {
            next.log.push(Entry::new(call, change, before));
        }
    }
}

impl Model for Namespace {
    type State = State;
    type Action = Action;

    fn parts(&self, action: &Action) -> usize {
        match action {
            Action::Change { change, .. } => change.parts(),
            Action::Refused { .. } | Action::Look(_) => 1,
        }
    }

    fn only_looks(&self, action: &Action) -> bool {
        !matches!(action, Action::Change { .. })
    }

    fn steps(&self, state: &State, action: &Action, part: usize) -> Vec<State> {
        let step = |state: State| {
            let fits = match action {
                Action::Change { call, change, known } => return self.change(&state, *call, change, *known, part),
                Action::Refused { asked, error } => asked.is_refused(&state.tree, error),
                Action::Look(look) => look.fits(&state.tree),
            };
            if fits { vec![state] } else { Vec::new() }
        };
        state.decided(action, state.cuts == self.cuts).into_iter().flat_map(step).collect()
    }

    fn power_cut(&self, state: &State, at: Moment) -> Vec<State> {
        // What was begun is finished or undone.
        let mut next = State { owed: BTreeMap::new(), adding: BTreeMap::new(), cuts: state.cuts + 1, ..state.clone() };
        next.log.power_cut(|call| self.secured_at.get(&call).is_some_and(|secured| *secured <= at));
        let tree = next.log.tree(&next.between());
        next.log.forget(next.cuts == self.cuts);
        tree.map(|tree| State { tree, ..next }).into_iter().collect()
    }

    fn explain(&self, state: &State, action: &Action, _part: usize) -> String {
        match action {
            Action::Change { change: Change::Link { told: Some(told), inode, .. }, .. } => {
                let there = state.tree.inode(*inode);
                format!("{inode:?} has {there:?} (kind, links) before, and it answers {told} links after")
            }
            Action::Change { change, .. } | Action::Refused { asked: change, .. } => {
                match change.refusal(&state.tree) {
                    Some(error) => format!("the tree answers {error:?} then"),
                    None => "the tree allows it then".into(),
                }
            }
            Action::Look(look) => look.explain(&state.tree),
        }
    }
}
