//! Names that a power cut took, decided as late as possible.
//!
//! Of the changes that were not secured, each directory may lose a tail; a change of two directories is lost in both or
//! in neither. An observation shows which tail: until then the changes are *open*, and an observation of a directory
//! decides that directory only. A lost directory takes its names with it.

use super::change::Change;
use super::tree::{Node, Tree};
use crate::history::CallNumber;
use hekate_proto::{InodeId, NodeKind, RenameMode};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// A change that was made, and what it concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    call: CallNumber,
    change: Change,
    /// Directories whose names it changed, or that had to be empty for it.
    dirs: Vec<InodeId>,
    /// Inodes that it made or removed, or whose names it changed.
    inodes: Vec<InodeId>,
    /// The moved node of a rename.
    moved: Option<Node>,
}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A call has one change.
        self.call.hash(state);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    /// No power cut since.
    Fresh,
    /// A power cut may have taken it.
    Open,
    Kept,
    Lost,
}

/// The changes since a tree that no power cut can undo.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Log {
    base: Tree,
    entries: Vec<(Rc<Entry>, Fate)>,
}

/// Links that are counted while their names do not exist, or the reverse, because a call is in progress.
pub struct Between<'a> {
    pub owed: &'a BTreeMap<CallNumber, InodeId>,
    pub adding: &'a BTreeMap<CallNumber, InodeId>,
}

impl Entry {
    /// The entry of a change that the tree allowed; `before`: the tree before it.
    pub fn new(call: CallNumber, change: &Change, before: &Tree) -> Self {
        let (mut dirs, mut inodes) = (change.directories(), Vec::new());
        let mut moved = None;
        match change {
            Change::Make { node, .. } => inodes.push(node.0),
            Change::Link { inode, .. } => inodes.push(*inode),
            Change::Unlink { dir, name } => inodes.extend(before.look_up(*dir, name).map(|node| node.0)),
            Change::Rmdir { dir, name } => {
                inodes.extend(before.look_up(*dir, name).map(|node| node.0));
                dirs.extend(&inodes);
            }
            Change::Rename(ends) => {
                moved = before.look_up(ends.dir, &ends.name).ok();
                let there = before.look_up(ends.to_dir, &ends.to_name).ok();
                let emptied = there.filter(|node| ends.mode == RenameMode::Replace && node.1 == NodeKind::Directory);
                dirs.extend(emptied.map(|node| node.0));
                inodes.extend(moved.into_iter().chain(there).map(|node| node.0));
            }
        }
        Self { call, change: change.clone(), dirs, inodes, moved }
    }

    /// Repeats the change on the tree, as far as its directories exist; false if that is impossible.
    fn replay(&self, tree: &mut Tree, between: &Between) -> bool {
        if let Change::Link { dir, name, inode, .. } = &self.change {
            // The directory of the inode's first name may be lost.
            let Some(kind) = tree.kind(*inode) else { return false };
            if tree.directory(*dir).is_ok() {
                tree.count_links(*inode, 1);
                tree.put(*dir, name, (*inode, kind));
            }
            return true;
        }
        match self.change.take(tree) {
            Ok(None) => return true,
            Ok(Some(owed)) => {
                if !between.owed.contains_key(&self.call) {
                    tree.count_links(owed, -1);
                }
                return true;
            }
            Err(_) if self.change.directories().iter().all(|dir| tree.directory(*dir).is_ok()) => return false,
            Err(_) => {}
        }
        match (&self.change, self.moved) {
            (Change::Make { node, .. }, _) if node.1 != NodeKind::Directory => tree.make_nameless(*node),
            (Change::Rename(ends), Some(moved)) => tree.put(ends.to_dir, &ends.to_name, moved),
            _ => {}
        }
        true
    }
}

impl Log {
    /// Adds a change.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push((Rc::new(entry), Fate::Fresh));
    }

    /// True if a power cut may have taken a change that no call has observed since.
    pub fn is_open(&self) -> bool {
        self.entries.iter().any(|(_, fate)| *fate == Fate::Open)
    }

    /// The power fails: a change that is not secured, and precedes none that is, may be lost.
    pub fn power_cut(&mut self, is_secured: impl Fn(CallNumber) -> bool) {
        // A later sync does not bring back a change that an earlier power cut may have taken.
        let secures = |(entry, fate): &(Rc<Entry>, Fate)| *fate == Fate::Fresh && is_secured(entry.call);
        let secured: Vec<usize> = (0..self.entries.len()).filter(|at| secures(&self.entries[*at])).collect();
        for (_, fate) in self.entries.iter_mut().filter(|(_, fate)| *fate == Fate::Fresh) {
            *fate = Fate::Open;
        }
        for at in secured {
            assert!(self.keep(at), "nothing is lost yet");
        }
    }

    /// The tree with the open changes in it; none if a kept change is impossible without a lost one.
    pub fn tree(&self, between: &Between) -> Option<Tree> {
        let mut tree = self.base.clone();
        let kept = self.entries.iter().filter(|(_, fate)| *fate != Fate::Lost);
        for (entry, _) in kept {
            if !entry.replay(&mut tree, between) {
                return None;
            }
        }
        for inode in between.adding.values() {
            tree.count_links(*inode, 1);
        }
        Some(tree)
    }

    /// Drops the log once no change can be lost any more.
    pub fn forget(&mut self, no_cut_to_come: bool) {
        if no_cut_to_come && !self.is_open() {
            *self = Self::default();
        }
    }

    /// The last open change of the names of these directories, or of the existence or links of these inodes.
    pub fn last_open(&self, dirs: &[InodeId], inodes: &[InodeId]) -> Option<usize> {
        let concerns = |entry: &Entry| {
            entry.dirs.iter().any(|dir| dirs.contains(dir)) || entry.inodes.iter().any(|inode| inodes.contains(inode))
        };
        self.entries.iter().rposition(|(entry, fate)| *fate == Fate::Open && concerns(entry))
    }

    /// Both outcomes of an open change, kept or lost, as far as they agree with earlier decisions.
    pub fn decide(&self, at: usize) -> Vec<Self> {
        let (mut kept, mut lost) = (self.clone(), self.clone());
        let kept = kept.keep(at).then_some(kept);
        let mut lost = lost.lose(at).then_some(lost);
        if let Some(lost) = &mut lost {
            lost.entries.retain(|(_, fate)| *fate != Fate::Lost);
        }
        kept.into_iter().chain(lost).collect()
    }

    /// Decides that the change was kept, and so were the changes before it in its directories; false on a
    /// contradiction.
    fn keep(&mut self, at: usize) -> bool {
        match self.entries[at].1 {
            Fate::Lost => return false,
            Fate::Kept | Fate::Fresh => return true,
            Fate::Open => self.entries[at].1 = Fate::Kept,
        }
        let earlier: Vec<usize> = (0..at).filter(|other| self.share_a_directory(at, *other)).collect();
        earlier.into_iter().all(|other| self.keep(other))
    }

    /// Decides that the change was lost, and so were the changes after it in its directories; false on a contradiction.
    fn lose(&mut self, at: usize) -> bool {
        match self.entries[at].1 {
            Fate::Lost => return true,
            Fate::Kept | Fate::Fresh => return false,
            Fate::Open => self.entries[at].1 = Fate::Lost,
        }
        let later: Vec<usize> =
            (at + 1..self.entries.len()).filter(|other| self.share_a_directory(at, *other)).collect();
        later.into_iter().all(|other| self.lose(other))
    }

    fn share_a_directory(&self, one: usize, other: usize) -> bool {
        self.entries[one].0.dirs.iter().any(|dir| self.entries[other].0.dirs.contains(dir))
    }
}
