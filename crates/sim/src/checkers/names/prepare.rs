//! Turns the calls of a history into changes and observations of a tree.

use super::change::Change;
use super::look::Look;
use super::model::Action;
use super::tree::{Ends, Node};
use crate::checkers::linearize::Operation;
use crate::checkers::objects::is_of_objects;
use crate::checkers::windows::windows;
use crate::history::{Call, CallNumber, History};
use hekate_proto::{Attr, DataOp, Entry, Error, InodeId, InodeOp, Name, NameOp, NewNode, NodeKind, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// An answer that no tree gives.
pub type Wrong = (CallNumber, String);

type Prepared = Result<Vec<Action>, String>;

/// The changes and observations of all calls, and the answers that are wrong whatever the tree is.
pub fn operations(history: &History) -> (Vec<Operation<Action>>, Vec<Wrong>) {
    let known = Known::of(history);
    let mut operations = Vec::new();
    let mut wrong = known.given_twice(history);
    for (number, call) in history.calls().filter(|(_, call)| !is_of_objects(&call.op)) {
        let actions = match call.settled() {
            None => Ok(known.change(number, &call.op, None).into_iter().collect()),
            Some(Ok(reply)) => known.answered(number, call, reply),
            Some(Err(error)) => Ok(refused(call, error)),
        };
        match actions {
            Ok(actions) => {
                let judged = actions.into_iter().filter_map(|action| judged(history, (number, call), action));
                operations.extend(judged.flat_map(|action| place(history, number, action)));
            }
            Err(why) => wrong.push((number, why)),
        }
    }
    (operations, wrong)
}

/// The action without the link count in its answer, if another link of the inode was in progress: the inode counts a
/// link before its name is made, and undoes that if the name exists by then or the driver dies.
fn judged(history: &History, (number, look): (CallNumber, &Call), action: Action) -> Option<Action> {
    let linked = |shown: InodeId| {
        history.calls().filter(|(other, _)| *other != number).any(|(_, call)| {
            let overlaps = look.returned().is_none_or(|returned| call.invoked <= returned)
                && call.answer.as_ref().is_none_or(|answer| answer.at >= look.invoked);
            matches!(&call.op, Op::Name { op: NameOp::Link { inode, .. } } if *inode == shown) && overlaps
        })
    };
    match action {
        Action::Look(Look::Links { inode, kind: NodeKind::File, .. }) if linked(inode) => None,
        Action::Change { call, change: Change::Link { dir, name, inode, .. }, known } if linked(inode) => {
            Some(Action::Change { call, change: Change::Link { dir, name, inode, links_answered: None }, known })
        }
        other => Some(other),
    }
}

fn place(history: &History, number: CallNumber, action: Action) -> Vec<Operation<Action>> {
    let mut all = windows(history, number, || action.clone());
    if !matches!(action, Action::Change { .. }) {
        all.truncate(1);
    }
    all
}

/// Facts from the history as a whole.
struct Known {
    /// Names that were ever asked for or shown, by directory.
    names: BTreeMap<InodeId, BTreeSet<Name>>,
    /// Inodes in answers, with their kinds.
    shown: BTreeMap<InodeId, NodeKind>,
    /// Inodes that were made, by their answers.
    made: BTreeSet<InodeId>,
}

impl Known {
    fn of(history: &History) -> Self {
        let mut known = Self { names: BTreeMap::new(), shown: BTreeMap::new(), made: BTreeSet::new() };
        for (_, call) in history.calls() {
            if let Op::Name { op } = &call.op {
                for (dir, name) in names_of(op) {
                    known.names.entry(dir).or_default().insert(name.clone());
                }
            }
            match (&call.op, call.settled()) {
                (Op::Name { op: NameOp::List { dir, .. } }, Some(Ok(Reply::List { entries, .. }))) => {
                    known.shown.extend(entries.iter().map(|entry| (entry.inode, entry.kind)));
                    known.names.entry(*dir).or_default().extend(entries.iter().map(|entry| entry.name.clone()));
                }
                (_, Some(Ok(Reply::Node { attr, .. }))) => {
                    known.shown.insert(attr.id, attr.kind);
                    known.made.extend(is_made(call).then_some(attr.id));
                }
                _ => {}
            }
        }
        known
    }

    fn given_twice(&self, history: &History) -> Vec<Wrong> {
        let mut seen = BTreeSet::new();
        let mut wrong = Vec::new();
        for (number, call) in history.calls().filter(|(_, call)| is_made(call)) {
            if let Some(Ok(Reply::Node { attr, .. })) = call.settled()
                && !seen.insert(attr.id)
            {
                wrong.push((number, format!("the inode id {:?} was given out before", attr.id)));
            }
        }
        wrong
    }

    /// The change that an op makes, if any. `attr`: the attributes in its answer.
    fn change(&self, call: CallNumber, op: &Op, attr: Option<&Attr>) -> Option<Action> {
        let Op::Name { op } = op else { return None };
        let change = match op {
            NameOp::Create { dir, name, node, exclusive, seed, .. } => {
                let inode = attr.map(|attr| attr.id).or_else(|| self.born_of(*seed, node));
                let inode = inode.unwrap_or(InodeId::from_bits(u128::MAX - call.0 as u128));
                Change::Make { dir: *dir, name: name.clone(), node: (inode, node.kind()), exclusive: *exclusive }
            }
            NameOp::Link { dir, name, inode } => {
                let links_answered = attr.map(|attr| attr.nlink);
                Change::Link { dir: *dir, name: name.clone(), inode: *inode, links_answered }
            }
            other => asked(other)?,
        };
        Some(Action::Change { call, change, known: attr.is_some() })
    }

    /// The inode that a call without an answer made, if it was ever shown: its random part is the seed's.
    fn born_of(&self, seed: u64, node: &NewNode) -> Option<InodeId> {
        let is_its = |id: &InodeId| (id.bits() >> 64) as u32 == seed as u32 && !self.made.contains(id);
        self.shown.iter().find(|(id, kind)| **kind == node.kind() && is_its(id)).map(|(id, _)| *id)
    }

    fn answered(&self, number: CallNumber, call: &Call, reply: &Reply) -> Prepared {
        match (&call.op, reply) {
            (Op::Name { op: NameOp::List { dir, after, limit, .. } }, Reply::List { entries, end }) => {
                self.listed(*dir, after.as_ref(), *limit, entries, *end)
            }
            (Op::Name { op: NameOp::Create { node, .. } }, Reply::Node { attr, created: true }) => {
                let new = if attr.kind == NodeKind::Directory { 2 } else { 1 };
                match (attr.kind, attr.nlink) == (node.kind(), new) {
                    true => Ok(self.change(number, &call.op, Some(attr)).into_iter().collect()),
                    false => Err("what it made is not what was asked for".into()),
                }
            }
            (Op::Name { op: NameOp::Create { exclusive: true, .. } }, Reply::Node { .. }) => {
                Err("the op makes a new inode, but its answer names an old one".into())
            }
            (
                Op::Name { op: NameOp::Create { dir, name, .. } | NameOp::Lookup { dir, name } },
                Reply::Node { attr, .. },
            ) => Ok(vec![leads(*dir, name, Some((attr.id, attr.kind))), links(attr)]),
            (Op::Name { op: NameOp::Link { inode, .. } }, Reply::Node { attr, .. }) if attr.id == *inode => {
                Ok(self.change(number, &call.op, Some(attr)).into_iter().collect())
            }
            (Op::Name { op }, Reply::Done) => match asked(op) {
                Some(change) => Ok(vec![Action::Change { call: number, change, known: true }]),
                None => Err("an answer of another kind than the op's".into()),
            },
            (Op::Name { .. }, _) => Err("an answer of another kind than the op's".into()),
            (
                Op::Inode { op: InodeOp::GetAttr { inode } | InodeOp::SetAttr { inode, .. } },
                Reply::Node { attr, .. },
            ) => match attr.id == *inode {
                true => Ok(vec![links(attr)]),
                false => Err("an answer about another inode".into()),
            },
            _ => Ok(Vec::new()),
        }
    }

    /// Each name of the listed range is an observation of its own, so that they may be of different moments.
    fn listed(&self, dir: InodeId, after: Option<&Name>, limit: u32, entries: &[Entry], end: bool) -> Prepared {
        let names: Vec<&Name> = entries.iter().map(|entry| &entry.name).collect();
        if !after.into_iter().chain(names.iter().copied()).is_sorted_by(|one, next| one < next) {
            return Err("names are out of order, repeated, or before the start of the list".into());
        }
        if names.len() > limit.max(1) as usize || (names.is_empty() && !end) {
            return Err("more names than were asked for, or none and yet no end".into());
        }
        let last = names.last().copied().filter(|_| !end);
        let covered = |name: &Name| after.is_none_or(|after| name > after) && last.is_none_or(|last| name <= last);
        let shown: BTreeMap<&Name, Node> = entries.iter().map(|e| (&e.name, (e.inode, e.kind))).collect();
        let all = self.names.get(&dir).into_iter().flatten().filter(|name| covered(name));
        let mut actions = vec![Action::Look(Look::Listed { dir, alive: true })];
        actions.extend(all.map(|name| leads(dir, name, shown.get(name).copied())));
        actions.extend(entries.iter().filter_map(|entry| entry.attr.as_ref()).map(links));
        Ok(actions)
    }
}

/// True if the call's answer names an inode that it made.
fn is_made(call: &Call) -> bool {
    let creates = matches!(call.op, Op::Name { op: NameOp::Create { .. } });
    creates && matches!(call.settled(), Some(Ok(Reply::Node { created: true, .. })))
}

fn names_of(op: &NameOp) -> Vec<(InodeId, &Name)> {
    match op {
        NameOp::Lookup { dir, name }
        | NameOp::Create { dir, name, .. }
        | NameOp::Link { dir, name, .. }
        | NameOp::Unlink { dir, name, .. }
        | NameOp::Rmdir { dir, name } => vec![(*dir, name)],
        NameOp::Rename { dir, name, to_dir, to_name, .. } => vec![(*dir, name), (*to_dir, to_name)],
        NameOp::Put { .. }
        | NameOp::Remove { .. }
        | NameOp::MakePrefix { .. }
        | NameOp::RemovePrefix { .. }
        | NameOp::Join { .. }
        | NameOp::Fetch { .. }
        | NameOp::ListKeys { .. }
        | NameOp::List { .. }
        | NameOp::ListPart { .. }
        | NameOp::Stub { .. }
        | NameOp::CreateUnnamed { .. } => Vec::new(),
    }
}

/// The requested change, whatever its outcome; a create has an inode with number 0.
fn asked(op: &NameOp) -> Option<Change> {
    Some(match op {
        NameOp::Lookup { .. }
        | NameOp::List { .. }
        | NameOp::ListPart { .. }
        | NameOp::Stub { .. }
        | NameOp::Put { .. }
        | NameOp::Remove { .. }
        | NameOp::MakePrefix { .. }
        | NameOp::RemovePrefix { .. }
        | NameOp::Join { .. }
        | NameOp::Fetch { .. }
        | NameOp::ListKeys { .. }
        | NameOp::CreateUnnamed { .. } => return None,
        NameOp::Create { dir, name, node, exclusive, .. } => {
            let node = (InodeId::from_bits(0), node.kind());
            Change::Make { dir: *dir, name: name.clone(), node, exclusive: *exclusive }
        }
        NameOp::Link { dir, name, inode } => {
            Change::Link { dir: *dir, name: name.clone(), inode: *inode, links_answered: None }
        }
        NameOp::Unlink { dir, name, .. } => Change::Unlink { dir: *dir, name: name.clone() },
        NameOp::Rmdir { dir, name } => Change::Rmdir { dir: *dir, name: name.clone() },
        NameOp::Rename { dir, name, to_dir, to_name, mode, .. } => Change::Rename(Ends {
            dir: *dir,
            name: name.clone(),
            to_dir: *to_dir,
            to_name: to_name.clone(),
            mode: *mode,
        }),
    })
}

fn refused(call: &Call, error: &Error) -> Vec<Action> {
    let look = match (&call.op, error) {
        (Op::Name { op: NameOp::Lookup { dir, name } }, _) => {
            Look::NotFound { dir: *dir, name: name.clone(), error: error.clone() }
        }
        (Op::Name { op: NameOp::List { dir, .. } }, Error::NotDirectory | Error::NotFound) => {
            Look::Listed { dir: *dir, alive: false }
        }
        // The limit of a target's length does not depend on the tree.
        (Op::Name { op: NameOp::Create { node: NewNode::Symlink { .. }, .. } }, Error::NameTooLong) => {
            return Vec::new();
        }
        (Op::Name { op }, _) => {
            let refused = |asked| Action::Refused { asked, error: error.clone() };
            return asked(op).map(refused).into_iter().collect();
        }
        (op, Error::Stale) => match inode_of(op) {
            Some(inode) => Look::Missing { inode },
            None => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![Action::Look(look)]
}

fn inode_of(op: &Op) -> Option<InodeId> {
    match op {
        Op::Inode { op } => match op {
            InodeOp::GetAttr { inode }
            | InodeOp::SetAttr { inode, .. }
            | InodeOp::ReadLink { inode, .. }
            | InodeOp::GetXattr { inode, .. }
            | InodeOp::SetXattr { inode, .. }
            | InodeOp::ListXattr { inode }
            | InodeOp::Accessed { inode }
            | InodeOp::Parent { inode }
            | InodeOp::Map { inode }
            | InodeOp::Fetch { inode, .. }
            | InodeOp::RemoveXattr { inode, .. } => Some(*inode),
        },
        Op::Data { op: DataOp::Read { inode, .. } | DataOp::Write { inode, .. } } => Some(*inode),
        _ => None,
    }
}

fn leads(dir: InodeId, name: &Name, node: Option<Node>) -> Action {
    Action::Look(Look::Name { dir, name: name.clone(), node })
}

fn links(attr: &Attr) -> Action {
    Action::Look(Look::Links { inode: attr.id, kind: attr.kind, links: attr.nlink })
}
