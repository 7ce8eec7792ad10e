//! The model of the namespace: the tree as calls change and observe it.
//!
//! While a power cut follows, the state also has the changes that it may undo ([`super::loss`]).

use super::change::Change;
use super::look::Look;
use super::loss::{Between, Entry, Log};
use super::tree::Tree;
use crate::checkers::linearize::Model;
use crate::history::{CallNumber, Moment};
use hekate_proto::{Error, InodeId, NodeKind};
use std::collections::BTreeMap;

/// The effect or observation of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A change that was made; or its outcome is unknown.
    Change {
        call: CallNumber,
        change: Change,
        known: bool,
    },
    /// A change that was refused.
    Refused {
        asked: Change,
        error: Error,
    },
    Look(Look),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    pub tree: Tree,
    /// Links of names that calls removed and that are still counted.
    owed: BTreeMap<CallNumber, InodeId>,
    /// Calls that have counted a link whose name does not exist yet.
    adding: BTreeMap<CallNumber, InodeId>,
    /// Changes that a power cut may take, or has perhaps taken.
    log: Log,
    /// Power cuts so far.
    cuts: usize,
}

/// The namespace of a volume.
pub struct Namespace {
    /// For each call the moment from which its change is on stable storage.
    pub secured_at: BTreeMap<CallNumber, Moment>,
    /// Power cuts of the whole history.
    pub cuts: usize,
}

impl State {
    fn between(&self) -> Between<'_> {
        Between { owed: &self.owed, adding: &self.adding }
    }

    /// All ways to decide which changes, among those that this action depends on, a power cut took.
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
        // A directory exists only if those above it do.
        inodes.extend(dirs.iter().flat_map(|dir| tree.way_up(*dir)));
        state.log.last_open(&dirs, &inodes)
    }
}

impl Namespace {
    fn change(&self, state: &State, call: CallNumber, change: &Change, known: bool, part: usize) -> Vec<State> {
        let mut next = state.clone();
        if let Change::Link { links_answered, .. } = change {
            return self.link(state, call, change, *links_answered, known, part);
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

    /// The inode counts the link before the name exists; if the driver dies between the two, recovery undoes the count.
    fn link(
        &self,
        state: &State,
        call: CallNumber,
        change: &Change,
        links_answered: Option<u32>,
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
            return if links_answered.is_none_or(|links_answered| links_answered == links) {
                vec![next]
            } else {
                Vec::new()
            };
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
        // Recovery finishes or undoes the ops that were in progress.
        let mut next = State { owed: BTreeMap::new(), adding: BTreeMap::new(), cuts: state.cuts + 1, ..state.clone() };
        next.log.power_cut(|call| self.secured_at.get(&call).is_some_and(|secured| *secured <= at));
        let tree = next.log.tree(&next.between());
        next.log.forget(next.cuts == self.cuts);
        tree.map(|tree| State { tree, ..next }).into_iter().collect()
    }

    fn explain(&self, state: &State, action: &Action, _part: usize) -> String {
        match action {
            Action::Change { change: Change::Link { links_answered: Some(links_answered), inode, .. }, .. } => {
                let there = state.tree.inode(*inode);
                format!("{inode:?} has {there:?} (kind, links) before, and it answers {links_answered} links after")
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
