//! The tree as calls change it and answers show it.

use super::tree::{Ends, Node, Tree};
use crate::checkers::linearize::Model;
use crate::history::CallNumber;
use hekate_proto::{Error, InodeId, Name, NodeKind, RenameMode};
use std::collections::{BTreeMap, BTreeSet};

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

/// What changes the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Make {
        dir: InodeId,
        name: Name,
        node: Node,
        exclusive: bool,
    },
    /// `told`: the links that it answered.
    Link {
        dir: InodeId,
        name: Name,
        inode: InodeId,
        told: Option<u32>,
    },
    Unlink {
        dir: InodeId,
        name: Name,
    },
    Rmdir {
        dir: InodeId,
        name: Name,
    },
    Rename(Ends),
}

/// What shows a bit of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// A name led here; or to nothing, in a directory that may be gone.
    Name { dir: InodeId, name: Name, node: Option<Node> },
    /// Looking up this name was refused.
    NotFound { dir: InodeId, name: Name, error: Error },
    /// The directory could be listed, or not.
    Listed { dir: InodeId, alive: bool },
    /// So many links; none: it is gone, or open somewhere.
    Links { inode: InodeId, kind: NodeKind, links: u32 },
    /// There is no such inode.
    Missing { inode: InodeId },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    pub tree: Tree,
    /// Links of names that calls took away and that are counted still.
    owed: BTreeMap<CallNumber, InodeId>,
    /// Calls that have counted a link whose name is to come.
    adding: BTreeSet<CallNumber>,
}

/// The namespace of a volume.
pub struct Namespace;

impl Change {
    /// Changes the tree at once; the inode whose link is to be dropped.
    pub fn take(&self, tree: &mut Tree) -> Result<Option<InodeId>, Error> {
        match self {
            Change::Make { dir, name, node, .. } => tree.make(*dir, name, *node).map(|()| None),
            Change::Link { dir, name, inode, .. } => {
                let kind = tree.may_link(*dir, name, *inode)?;
                tree.count_links(*inode, 1);
                tree.put(*dir, name, (*inode, kind));
                Ok(None)
            }
            Change::Unlink { dir, name } => tree.unlink(*dir, name).map(Some),
            Change::Rmdir { dir, name } => tree.rmdir(*dir, name).map(|()| None),
            Change::Rename(ends) => tree.rename(ends),
        }
    }

    /// Whether the tree refuses it with this error.
    fn is_refused(&self, tree: &Tree, error: &Error) -> bool {
        let answer = self.refusal(tree);
        match (&answer, error) {
            // What was refused says why in words of its own.
            (Some(Error::Denied { .. }), Error::Denied { .. }) => true,
            // An inode without a name may be there still for who has it open.
            (Some(Error::Stale), Error::NotFound) => matches!(self, Change::Link { .. }),
            // Both are true of a directory that is to replace one below itself.
            (Some(Error::Loop), Error::NotEmpty) => matches!(self, Change::Rename(_)),
            // A directory that is gone: ESTALE as NFS has it, or ENOENT.
            (Some(Error::NotFound), Error::Stale) => self.directories().any(|dir| tree.directory(dir).is_err()),
            (Some(answer), error) => answer == error,
            (None, _) => false,
        }
    }

    /// How the tree refuses it.
    fn refusal(&self, tree: &Tree) -> Option<Error> {
        match self {
            Change::Make { dir, name, node, exclusive } => match tree.look_up(*dir, name) {
                Ok((_, NodeKind::Directory)) if !exclusive && node.1 != NodeKind::Directory => Some(Error::IsDirectory),
                Ok(_) if !exclusive && node.1 != NodeKind::Directory => None,
                Ok(_) => Some(Error::Exists),
                Err(_) => tree.directory(*dir).err(),
            },
            other => other.take(&mut tree.clone()).err(),
        }
    }

    fn directories(&self) -> impl Iterator<Item = InodeId> {
        let (one, other) = match self {
            Change::Make { dir, .. } | Change::Link { dir, .. } => (*dir, None),
            Change::Unlink { dir, .. } | Change::Rmdir { dir, .. } => (*dir, None),
            Change::Rename(ends) => (ends.dir, Some(ends.to_dir)),
        };
        std::iter::once(one).chain(other)
    }

    /// Names and links may rest apart, then one changes after the other.
    fn parts(&self) -> usize {
        match self {
            Change::Link { .. } | Change::Unlink { .. } => 2,
            Change::Rename(Ends { mode: RenameMode::Replace, .. }) => 2,
            Change::Make { .. } | Change::Rmdir { .. } | Change::Rename(_) => 1,
        }
    }
}

impl Look {
    /// Whether the tree shows this.
    fn fits(&self, tree: &Tree) -> bool {
        match self {
            Look::Name { dir, name, node } => tree.look_up(*dir, name).ok() == *node,
            Look::NotFound { dir, name, error } => match tree.look_up(*dir, name) {
                Ok(_) => false,
                Err(Error::NotFound) => matches!(error, Error::NotFound | Error::Stale),
                Err(answer) => answer == *error,
            },
            Look::Listed { dir, alive } => tree.directory(*dir).is_ok() == *alive,
            Look::Links { inode, kind, links } => match tree.inode(*inode) {
                Some(there) => there == (*kind, *links),
                None => *links == 0,
            },
            Look::Missing { inode } => tree.inode(*inode).is_none(),
        }
    }

    fn explain(&self, tree: &Tree) -> String {
        match self {
            Look::Name { dir, name, .. } | Look::NotFound { dir, name, .. } => {
                format!("{name:?} in {dir:?}: the tree answers {:?} then", tree.look_up(*dir, name))
            }
            Look::Listed { dir, .. } => match tree.directory(*dir) {
                Ok(_) => format!("{dir:?} is a directory then"),
                Err(error) => format!("{dir:?}: the tree answers {error} then"),
            },
            Look::Links { inode, kind, links } => {
                let there = tree.inode(*inode);
                format!("{inode:?}: the tree has {there:?} then (kind, links), the answer says {kind:?}, {links}")
            }
            Look::Missing { inode } => format!("the tree has {inode:?} then: {:?} (kind, links)", tree.inode(*inode)),
        }
    }
}

impl Namespace {
    fn change(&self, state: &State, call: CallNumber, change: &Change, known: bool, part: usize) -> Vec<State> {
        let mut next = state.clone();
        if let Change::Link { dir, name, inode, told } = change {
            return link(state, call, (*dir, name, *inode), *told, known, part);
        }
        match part {
            0 => match change.take(&mut next.tree) {
                Ok(owed) => next.owed.extend(owed.map(|inode| (call, inode))),
                Err(_) => return Vec::new(),
            },
            _ => {
                if let Some(inode) = next.owed.remove(&call) {
                    next.tree.count_links(inode, -1);
                }
            }
        }
        vec![next]
    }
}

/// The inode counts the link before the name is there; if the call dies between, recovery takes it back.
fn link(
    state: &State,
    call: CallNumber,
    (dir, name, inode): (InodeId, &Name, InodeId),
    told: Option<u32>,
    known: bool,
    part: usize,
) -> Vec<State> {
    let mut next = state.clone();
    let Some((kind, _)) = next.tree.inode(inode).filter(|(kind, _)| *kind != NodeKind::Directory) else {
        return Vec::new();
    };
    if part == 0 {
        let links = next.tree.count_links(inode, 1);
        next.adding.insert(call);
        return if told.is_none_or(|told| told == links) { vec![next] } else { Vec::new() };
    }
    if !next.adding.remove(&call) {
        return Vec::new();
    }
    let mut all = Vec::new();
    if !known {
        let mut back = next.clone();
        back.tree.count_links(inode, -1);
        all.push(back);
    }
    if next.tree.directory(dir).is_ok_and(|directory| !directory.names.contains_key(name)) {
        next.tree.put(dir, name, (inode, kind));
        all.insert(0, next);
    }
    all
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
        let fits = match action {
            Action::Change { call, change, known } => return self.change(state, *call, change, *known, part),
            Action::Refused { asked, error } => asked.is_refused(&state.tree, error),
            Action::Look(look) => look.fits(&state.tree),
        };
        if fits { vec![state.clone()] } else { Vec::new() }
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
