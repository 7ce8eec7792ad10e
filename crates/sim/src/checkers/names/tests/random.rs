//! Random runs of the tree with sequential steps, each with a window drawn wide around its moment.

use super::{create, list, lookup};
use crate::checkers::names::change::Change;
use crate::checkers::names::check;
use crate::checkers::names::tree::{Ends, Tree};
use crate::checkers::scenario::*;
use crate::history::{History, Moment};
use hekate_proto::*;
use proptest::prelude::*;

/// A client's request; directories and names by number.
#[derive(Debug, Clone)]
enum Step {
    Create(usize, usize, bool),
    Remove(usize, usize),
    Link(usize, usize, usize),
    Rename((usize, usize), (usize, usize), RenameMode),
    Lookup(usize, usize),
    List(usize),
    GetAttr(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0usize..4, 0usize..4);
    let mode = prop_oneof![Just(RenameMode::Replace), Just(RenameMode::NoReplace), Just(RenameMode::Exchange)];
    prop_oneof![
        4 => (place(), any::<bool>()).prop_map(|((dir, name), deep)| Step::Create(dir, name, deep)),
        3 => place().prop_map(|(dir, name)| Step::Remove(dir, name)),
        1 => (place(), 0usize..9).prop_map(|((dir, name), inode)| Step::Link(dir, name, inode)),
        4 => (place(), place(), mode).prop_map(|(from, to, mode)| Step::Rename(from, to, mode)),
        4 => place().prop_map(|(dir, name)| Step::Lookup(dir, name)),
        2 => (0usize..4).prop_map(Step::List),
        2 => (0usize..9).prop_map(Step::GetAttr),
    ]
}

/// A world in which each call takes effect at one moment.
struct World {
    tree: Tree,
    /// All inodes that were ever made, the root first.
    inodes: Vec<InodeId>,
    directories: Vec<InodeId>,
    seeds: u64,
}

fn text(number: usize) -> &'static str {
    ["a", "b", "c", "d"][number]
}

impl World {
    fn new() -> Self {
        Self { tree: Tree::default(), inodes: vec![ROOT], directories: vec![ROOT], seeds: 0 }
    }

    fn dir(&self, number: usize) -> InodeId {
        self.directories[number % self.directories.len()]
    }

    fn attr(&self, inode: InodeId) -> Result<Attr> {
        let (kind, nlink) = self.tree.inode(inode).ok_or(Error::Stale)?;
        Ok(Attr { nlink, ..attr(inode, kind) })
    }

    fn take(&mut self, step: &Step) -> (Op, Result<Reply>) {
        match step {
            Step::Create(dir, name, deep) => self.create(self.dir(*dir), *name, *deep),
            Step::Remove(dir, number) => self.remove(self.dir(*dir), name(text(*number))),
            Step::Link(dir, number, inode) => {
                let (dir, name, inode) = (self.dir(*dir), name(text(*number)), self.inodes[inode % self.inodes.len()]);
                let change = Change::Link { dir, name: name.clone(), inode, links_answered: None };
                let taken = change.take(&mut self.tree).and_then(|_| self.attr(inode));
                let op = NameOp::Link { dir, name, inode };
                (Op::Name { op }, taken.map(|attr| Reply::Node { attr, created: true }))
            }
            Step::Rename(from, to, mode) => {
                let ends = Ends {
                    dir: self.dir(from.0),
                    name: name(text(from.1)),
                    to_dir: self.dir(to.0),
                    to_name: name(text(to.1)),
                    mode: *mode,
                };
                let Ends { dir, name, to_dir, to_name, mode } = ends.clone();
                let op = NameOp::Rename { dir, name, to_dir, to_name, mode, open_here: None };
                (Op::Name { op }, self.done(Change::Rename(ends)))
            }
            Step::Lookup(dir, number) => self.look_up(self.dir(*dir), name(text(*number))),
            Step::List(dir) => self.list(self.dir(*dir)),
            Step::GetAttr(inode) => {
                let inode = self.inodes[inode % self.inodes.len()];
                let attr = self.attr(inode).map(|attr| Reply::Node { attr, created: false });
                (Op::Inode { op: InodeOp::GetAttr { inode } }, attr)
            }
        }
    }

    fn look_up(&self, dir: InodeId, name: Name) -> (Op, Result<Reply>) {
        let found = self.tree.look_up(dir, &name).and_then(|(inode, _)| self.attr(inode));
        (Op::Name { op: NameOp::Lookup { dir, name } }, found.map(|attr| Reply::Node { attr, created: false }))
    }

    fn create(&mut self, dir: InodeId, number: usize, deep: bool) -> (Op, Result<Reply>) {
        self.seeds += 1;
        let seed = self.seeds;
        let (node, kind) =
            if deep { (NewNode::Directory, NodeKind::Directory) } else { (NewNode::File, NodeKind::File) };
        let inode = InodeId::new(0, seed as u32, 1 + seed);
        let change = Change::Make { dir, name: name(text(number)), node: (inode, kind), exclusive: true };
        let taken = change.take(&mut self.tree);
        if taken.is_ok() {
            self.inodes.push(inode);
            self.directories.extend(deep.then_some(inode));
        }
        let reply = Reply::Node { attr: attr(inode, kind), created: true };
        (create(dir, text(number), node, true, seed), taken.map(|_| reply))
    }

    fn remove(&mut self, dir: InodeId, name: Name) -> (Op, Result<Reply>) {
        match self.tree.look_up(dir, &name) {
            Ok((_, NodeKind::Directory)) => {
                let op = NameOp::Rmdir { dir, name: name.clone() };
                (Op::Name { op }, self.done(Change::Rmdir { dir, name }))
            }
            _ => {
                let op = NameOp::Unlink { dir, name: name.clone(), open_here: None };
                (Op::Name { op }, self.done(Change::Unlink { dir, name }))
            }
        }
    }

    fn done(&mut self, change: Change) -> Result<Reply> {
        if let Some(inode) = change.take(&mut self.tree)? {
            self.tree.count_links(inode, -1);
        }
        Ok(Reply::Done)
    }

    fn list(&self, dir: InodeId) -> (Op, Result<Reply>) {
        let entries = |names: &crate::checkers::names::tree::Names| {
            let entry = |(name, (inode, kind)): (&Name, &(InodeId, NodeKind))| Entry {
                name: name.clone(),
                inode: *inode,
                kind: *kind,
                attr: self.attr(*inode).ok(),
            };
            Reply::List { entries: names.iter().map(entry).collect(), end: true }
        };
        let listed = self.tree.directory(dir).map(|directory| entries(&directory.names));
        (Op::Name { op: NameOp::List { dir, after: None, limit: 100, attributes: true, touch: false } }, listed)
    }
}

type Timed = (Step, u64, u64);

fn timed() -> impl Strategy<Value = Timed> {
    (step(), 0u64..25, 0u64..25)
}

/// Every `dying`th change has no answer.
fn run(steps: &[Timed], dying: usize) -> (History, World) {
    let mut world = World::new();
    let mut history = History::default();
    for (index, (step, before, after)) in steps.iter().enumerate() {
        let at = 100 + 10 * index as Moment;
        let (op, outcome) = world.take(step);
        let call = history.invoke(index as u32 % 5, SessionId(1), op.clone(), false, at - before);
        let dies = !op.is_read() && index % dying == dying - 1;
        if !dies {
            history.answer(call, at + after, outcome);
            continue;
        }
        // Later steps use its inode, so a look-up shows it.
        if let Op::Name { op: NameOp::Create { dir, name, .. } } = op {
            let (op, outcome) = world.look_up(dir, name);
            let call = history.invoke(7, SessionId(7), op, false, at);
            history.answer(call, at + after, outcome);
        }
    }
    (history, world)
}

fn add(history: &mut History, op: Op, outcome: Result<Reply>) {
    let at = history.end() + 100;
    let call = history.invoke(9, SessionId(9), op, false, at);
    history.answer(call, at + 1, outcome);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_tree_does_is_accepted(steps in prop::collection::vec(timed(), 1..200), dying in 8usize..40) {
        let (history, _) = run(&steps, dying);
        let complaints = check(&history);
        prop_assert!(complaints.is_empty(), "{}", complaints[0]);
    }

    #[test]
    fn a_name_that_leads_to_an_inode_that_was_never_made_is_refused(steps in prop::collection::vec(timed(), 1..100)) {
        let (mut history, _) = run(&steps, usize::MAX);
        add(&mut history, lookup("a"), node(attr(InodeId::new(9, 9, 9999), NodeKind::File)));
        prop_assert!(!check(&history).is_empty());
    }

    #[test]
    fn a_name_that_was_made_last_and_is_missing_is_refused(steps in prop::collection::vec(timed(), 1..100)) {
        let (mut history, _) = run(&steps, usize::MAX);
        let made = InodeId::new(9, 9, 9999);
        let answer = Ok(Reply::Node { attr: attr(made, NodeKind::File), created: true });
        add(&mut history, create(ROOT, "e", NewNode::File, true, 9), answer);
        let mut listless = history.clone();
        add(&mut history, lookup("e"), Err(Error::NotFound));
        prop_assert!(!check(&history).is_empty());
        add(&mut listless, list(), Ok(Reply::List { entries: Vec::new(), end: true }));
        prop_assert!(!check(&listless).is_empty());
    }

    #[test]
    fn a_done_that_the_tree_refuses_is_refused(steps in prop::collection::vec(timed(), 1..100)) {
        let (mut history, world) = run(&steps, usize::MAX);
        // Concurrent ops may be placed in another order than the one that took place, so the final state is observed
        // first.
        let (seen, listed) = world.list(ROOT);
        add(&mut history, seen, listed);
        let there = world.tree.directory(ROOT).is_ok_and(|root| root.names.contains_key(&name("a")));
        let outcome = if there { Err(Error::NotFound) } else { Ok(Reply::Done) };
        let op = NameOp::Rename {
            dir: ROOT,
            name: name("a"),
            to_dir: ROOT,
            to_name: name("zz"),
            mode: RenameMode::Replace,
            open_here: None,
        };
        add(&mut history, Op::Name { op }, outcome);
        prop_assert!(!check(&history).is_empty());
    }
}
