//! Directories that this session made and all whose names it made: other names are missing there, which is answered
//! without a question (rule C9 of `docs/coherence.md`).
//!
//! A directory's change count grows by one with each record that changes its names. While the directory's attributes are
//! pledged and the count is what this session's own ops have made of it, nobody else has changed a name.

use super::cache::LeaseOf;
use super::misses::owned;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::{HashMap, HashSet};
use std::collections::VecDeque;

/// Names in all directories together. With more the directories that were made first are forgotten.
const NAMES_MAX: usize = 131_072;
/// Directories.
const DIRECTORIES_MAX: usize = 4096;

#[derive(Debug)]
struct Made {
    /// The change count after the own ops that have ended.
    change: u64,
    /// The lease under which the count was pledged. Under another one it may count other changes: the last ones may have
    /// been lost.
    lease: Option<LeaseOf>,
    /// Own ops under way that change names.
    under_way: usize,
    /// Some of these, and of those that have ended since there was none, ran side by side.
    is_crowded: bool,
    /// Names that there may be.
    names: HashSet<Name>,
}

/// An own op under way that makes or removes names.
#[derive(Debug, Default)]
pub(crate) struct Naming {
    /// The directories that count it.
    dirs: Vec<InodeId>,
    /// The name that it removes. Not the old name of a rename, which stays if both are names of one inode.
    removed: Option<(InodeId, Name)>,
}

#[derive(Debug, Default)]
pub(crate) struct MadeDirectories {
    all: HashMap<InodeId, Made>,
    /// The directories as they were made. Some are forgotten since.
    order: VecDeque<InodeId>,
    names: usize,
}

/// How an op changes the names of a directory.
enum Effect<'a> {
    Adds(&'a Name),
    Removes(&'a Name),
    /// It moves a name within the directory, to this one, in one step.
    Moves(&'a Name),
    /// It cannot be told how often it counts.
    Other,
}

impl MadeDirectories {
    /// The session has made this directory.
    fn note(&mut self, attr: &Attr) {
        if attr.kind != NodeKind::Directory || attr.spread != 1 {
            return;
        }
        let (lease, under_way, is_crowded, names) = Default::default();
        self.all.insert(attr.id, Made { change: attr.change, lease, under_way, is_crowded, names });
        self.order.push_back(attr.id);
        self.make_room();
    }

    /// True if all names of the directory may be known.
    pub fn has(&self, dir: InodeId) -> bool {
        self.all.contains_key(&dir)
    }

    /// True if there is no such name. The directory's attributes are pledged under this lease, with this change count.
    pub fn lacks(&mut self, dir: InodeId, name: &Name, change: u64, lease: LeaseOf) -> bool {
        let Some(made) = self.all.get_mut(&dir).filter(|made| made.under_way == 0) else { return false };
        let is_newer = change > made.change && !is_planted(Bug::ForeignNameOverlooked);
        if is_newer || made.lease.is_some_and(|known| known != lease) {
            self.forget(dir);
            return false;
        }
        made.lease = Some(lease);
        change >= made.change && !made.names.contains(name)
    }

    /// The op is about to be sent.
    pub fn begin(&mut self, op: &Op) -> Naming {
        let mut naming = Naming::default();
        let Op::Name { op } = op else { return naming };
        for (dir, effect) in effects(op) {
            let Some(made) = self.all.get_mut(&dir) else { continue };
            let added = match effect {
                Effect::Adds(name) => Some(name),
                // Two names of one inode stay as they are. That is not told apart, but for a new name does not matter: who
                // has made it meanwhile has made what this op was to make, and was counted in its place.
                Effect::Moves(to) if !made.names.contains(to) => Some(to),
                Effect::Removes(_) => None,
                Effect::Moves(_) | Effect::Other => {
                    self.forget(dir);
                    continue;
                }
            };
            // Its count was not pledged yet.
            if made.lease.is_none() {
                self.forget(dir);
                continue;
            }
            made.is_crowded |= made.under_way > 0;
            made.under_way += 1;
            naming.dirs.push(dir);
            if let Some(name) = added {
                self.names += usize::from(made.names.insert(owned(name)));
            }
            if let Effect::Removes(name) = effect {
                naming.removed = Some((dir, name.clone()));
            }
        }
        self.make_room();
        naming
    }

    /// The op has ended.
    pub fn end(&mut self, naming: Naming, op: &Op, reply: &Result<Reply>) {
        if let (Op::Name { op: NameOp::Create { .. } }, Ok(Reply::Node { attr, created: true })) = (op, reply) {
            self.note(attr);
        }
        let counts = match (op, reply) {
            (Op::Name { op: NameOp::Create { .. } }, Ok(Reply::Node { created, .. })) => Some(*created),
            (Op::Name { op: NameOp::Create { .. } }, Ok(_)) => None,
            (_, Ok(_)) => Some(true),
            (_, Err(Error::Exists | Error::NotFound | Error::NotEmpty)) => Some(false),
            (_, Err(_)) => None,
        };
        for dir in naming.dirs {
            let Some(made) = self.all.get_mut(&dir) else { continue };
            let (Some(counts), Some(left)) = (counts, made.under_way.checked_sub(1)) else {
                self.forget(dir);
                continue;
            };
            made.under_way = left;
            made.change += u64::from(counts);
            // An op beside this one may have made it again.
            let removed = naming.removed.as_ref().filter(|(of, _)| counts && !made.is_crowded && *of == dir);
            if let Some((_, name)) = removed {
                self.names -= usize::from(made.names.remove(name));
            }
            made.is_crowded &= left > 0;
        }
    }

    fn forget(&mut self, dir: InodeId) {
        if let Some(made) = self.all.remove(&dir) {
            self.names -= made.names.len();
        }
    }

    fn make_room(&mut self) {
        while self.names > NAMES_MAX || self.order.len() > DIRECTORIES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(oldest);
        }
    }
}

fn effects(op: &NameOp) -> Vec<(InodeId, Effect<'_>)> {
    match op {
        NameOp::Create { dir, name, .. } | NameOp::Link { dir, name, .. } => vec![(*dir, Effect::Adds(name))],
        NameOp::Unlink { dir, name, .. } | NameOp::Rmdir { dir, name } => vec![(*dir, Effect::Removes(name))],
        NameOp::Rename { dir, to_dir, to_name, mode: RenameMode::Replace | RenameMode::NoReplace, .. }
            if dir == to_dir =>
        {
            vec![(*dir, Effect::Moves(to_name))]
        }
        NameOp::Rename { dir, to_dir, .. } => vec![(*dir, Effect::Other), (*to_dir, Effect::Other)],
        NameOp::Put { dir, .. }
        | NameOp::Remove { dir, .. }
        | NameOp::MakePrefix { dir, .. }
        | NameOp::RemovePrefix { dir, .. }
        | NameOp::Join { dir, .. } => vec![(*dir, Effect::Other)],
        NameOp::CreateUnnamed { .. }
        | NameOp::Lookup { .. }
        | NameOp::List { .. }
        | NameOp::ListPart { .. }
        | NameOp::Stub { .. }
        | NameOp::Fetch { .. }
        | NameOp::ListKeys { .. } => Vec::new(),
    }
}
