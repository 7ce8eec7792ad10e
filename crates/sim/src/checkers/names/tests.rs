//! Histories of a namespace, written by hand and at random.

mod random;

use super::check;
use crate::checkers::scenario::*;
use crate::history::Moment;
use hekate_proto::*;

const OTHER: InodeId = InodeId::new(1, 1, 3);
const DIR: InodeId = InodeId::new(1, 1, 4);

fn create(dir: InodeId, text: &str, node: NewNode, exclusive: bool, seed: u64) -> Op {
    let (mode, uid, gid) = (0o644, 0, 0);
    Op::Name { op: NameOp::Create { dir, name: name(text), node, mode, uid, gid, umask: 0, exclusive, seed } }
}

fn lookup(text: &str) -> Op {
    Op::Name { op: NameOp::Lookup { dir: ROOT, name: name(text) } }
}

fn unlink(text: &str) -> Op {
    Op::Name { op: NameOp::Unlink { dir: ROOT, name: name(text), open_here: None } }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Op {
    let op = NameOp::Rename { dir: ROOT, name: name(from), to_dir: ROOT, to_name: name(to), mode, open_here: None };
    Op::Name { op }
}

fn link(text: &str, inode: InodeId) -> Op {
    Op::Name { op: NameOp::Link { dir: ROOT, name: name(text), inode } }
}

fn list() -> Op {
    Op::Name { op: NameOp::List { dir: ROOT, after: None, limit: 100, attributes: false, touch: false } }
}

fn listed(names: &[(&str, InodeId)]) -> Result<Reply> {
    let entry =
        |(text, inode): &(&str, InodeId)| Entry { name: name(text), inode: *inode, kind: NodeKind::File, attr: None };
    Ok(Reply::List { entries: names.iter().map(entry).collect(), end: true })
}

fn file(inode: InodeId) -> Result<Reply> {
    node(attr(inode, NodeKind::File))
}

fn made(inode: InodeId, kind: NodeKind) -> Result<Reply> {
    Ok(Reply::Node { attr: attr(inode, kind), created: true })
}

/// A root with the file `a`.
fn with_a() -> Scenario {
    let mut scenario = Scenario::default();
    scenario.did(0, 1, create(ROOT, "a", NewNode::File, true, 0), made(FILE, NodeKind::File));
    scenario
}

fn assert_right(scenario: &Scenario) {
    let complaints = check(&scenario.history);
    assert!(complaints.is_empty(), "{}", complaints[0]);
}

fn complaint(scenario: &Scenario) -> String {
    check(&scenario.history).first().expect("the history is wrong").to_string()
}

/// After `a` was made: these calls one after the other.
fn then(calls: Vec<(Op, Result<Reply>)>) -> Scenario {
    let mut scenario = with_a();
    for (at, (op, outcome)) in (10..).step_by(2).zip(calls) {
        scenario.did(at, at + 1, op, outcome);
    }
    scenario
}

#[test]
fn a_name_is_found_from_its_making_to_its_end() {
    let unlinked = (unlink("a"), Ok(Reply::Done));
    assert_right(&then(vec![(lookup("a"), file(FILE)), unlinked.clone(), (lookup("a"), Err(Error::NotFound))]));
    let why = complaint(&then(vec![(lookup("a"), Err(Error::NotFound))]));
    assert!(why.contains("the tree answers Ok("), "{why}");
    let why = complaint(&then(vec![unlinked, (lookup("a"), file(FILE))]));
    assert!(why.contains("the tree answers Err(NotFound) then"), "{why}");
    assert!(!check(&then(vec![(lookup("a"), file(OTHER))]).history).is_empty(), "another inode");
}

#[test]
fn each_refusal_is_the_one_that_the_tree_gives() {
    let refusals = [
        (create(ROOT, "a", NewNode::File, true, 1), Error::Exists),
        (create(ROOT, "a", NewNode::Directory, true, 1), Error::Exists),
        (create(FILE, "b", NewNode::File, true, 1), Error::NotDirectory),
        (create(OTHER, "b", NewNode::File, true, 1), Error::NotFound),
        (Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name("a") } }, Error::NotDirectory),
        (unlink("b"), Error::NotFound),
        (link("b", ROOT), Error::Denied { what: "directories".into() }),
        (link("a", FILE), Error::Exists),
        (link("b", OTHER), Error::Stale),
        (rename("a", "b", RenameMode::Exchange), Error::NotFound),
        (rename("a", "a", RenameMode::NoReplace), Error::Exists),
    ];
    for (op, right) in refusals {
        assert_right(&then(vec![(op.clone(), Err(right))]));
        let why = complaint(&then(vec![(op, Err(Error::NotEmpty))]));
        assert!(why.contains("the tree answers"), "{why}");
    }
}

#[test]
fn a_directory_goes_when_it_is_empty_and_is_never_moved_below_itself() {
    let mkdir = (create(ROOT, "d", NewNode::Directory, true, 1), made(DIR, NodeKind::Directory));
    let inside = (create(DIR, "f", NewNode::File, true, 2), made(OTHER, NodeKind::File));
    let rmdir = |outcome| (Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name("d") } }, outcome);
    assert_right(&then(vec![mkdir.clone(), inside.clone(), rmdir(Err(Error::NotEmpty))]));
    assert!(!check(&then(vec![mkdir.clone(), inside.clone(), rmdir(Ok(Reply::Done))]).history).is_empty());
    assert_right(&then(vec![mkdir.clone(), rmdir(Ok(Reply::Done)), (inside.0, Err(Error::NotFound))]));
    let below = |outcome| {
        let (mode, open_here) = (RenameMode::Replace, None);
        let op = NameOp::Rename { dir: ROOT, name: name("d"), to_dir: DIR, to_name: name("x"), mode, open_here };
        then(vec![mkdir.clone(), (Op::Name { op }, outcome)])
    };
    assert_right(&below(Err(Error::Loop)));
    assert!(complaint(&below(Ok(Reply::Done))).contains("the tree answers Loop"));
}

#[test]
fn a_rename_shows_one_name_or_the_other_never_both_or_none() {
    let during = |first: (Op, Result<Reply>), second: (Op, Result<Reply>)| {
        let mut scenario = with_a();
        scenario.did(10, 90, rename("a", "b", RenameMode::Replace), Ok(Reply::Done));
        scenario.did(20, 21, first.0, first.1);
        scenario.did(30, 31, second.0, second.1);
        check(&scenario.history).is_empty()
    };
    let missing = |text| (lookup(text), Err(Error::NotFound));
    assert!(during((lookup("a"), file(FILE)), (lookup("b"), file(FILE))), "it came between");
    assert!(!during((lookup("b"), file(FILE)), (lookup("a"), file(FILE))));
    assert!(!during(missing("a"), missing("b")));
}

#[test]
fn a_list_has_what_is_there_all_the_time_and_nothing_that_is_absent_all_the_time() {
    let list_during = |moving: (Moment, Moment), names: &[(&str, InodeId)]| {
        let mut scenario = with_a();
        scenario.did(2, 3, create(ROOT, "c", NewNode::File, true, 1), made(OTHER, NodeKind::File));
        scenario.did(moving.0, moving.1, rename("a", "b", RenameMode::Replace), Ok(Reply::Done));
        scenario.did(20, 30, list(), listed(names));
        check(&scenario.history).is_empty()
    };
    let (a, b, c) = (("a", FILE), ("b", FILE), ("c", OTHER));
    for right in [&[a, c][..], &[b, c], &[a, b, c], &[c]] {
        assert!(list_during((19, 31), right), "{right:?}");
    }
    assert!(!list_during((19, 31), &[a, b]), "c is there all the time");
    assert!(list_during((10, 11), &[b, c]) && !list_during((10, 11), &[a, c]) && !list_during((10, 11), &[c]));
}

#[test]
fn a_list_is_in_order_and_within_its_limit() {
    let (a, twice) = (("a", FILE), [("a", FILE), ("a", FILE)]);
    assert!(complaint(&then(vec![(list(), listed(&twice))])).contains("names are out of order, repeated"));
    let after =
        Op::Name { op: NameOp::List { dir: ROOT, after: Some(name("a")), limit: 1, attributes: false, touch: false } };
    assert!(complaint(&then(vec![(after.clone(), listed(&[a]))])).contains("before the start of the list"));
    assert_right(&then(vec![(after.clone(), listed(&[]))]));
    let many = listed(&[("b", FILE), ("c", FILE)]);
    assert!(complaint(&then(vec![(after, many)])).contains("more names than were asked for"));
}

#[test]
fn links_are_counted_with_their_names() {
    let linked = |count| (link("b", FILE), node(Attr { nlink: count, ..attr(FILE, NodeKind::File) }));
    let counted = |count| {
        let op = Op::Inode { op: InodeOp::GetAttr { inode: FILE } };
        (op, node(Attr { nlink: count, ..attr(FILE, NodeKind::File) }))
    };
    let unlinked = || (unlink("a"), Ok(Reply::Done));
    assert_right(&then(vec![linked(2), counted(2), unlinked(), counted(1)]));
    assert!(complaint(&then(vec![linked(3)])).contains("it answers 3 links after"));
    let why = complaint(&then(vec![linked(2), unlinked(), counted(2)]));
    assert!(why.contains("the tree has Some((File, 1)) then (kind, links), the answer says File, 2"), "{why}");
    let gone = (Op::Inode { op: InodeOp::GetAttr { inode: FILE } }, Err(Error::Stale));
    assert_right(&then(vec![unlinked(), counted(0), gone.clone()]));
    assert!(complaint(&then(vec![gone])).contains("the tree has"), "a file that has a name is there");
}

#[test]
fn a_link_may_go_a_moment_after_its_name_but_within_the_call() {
    let mut scenario = then(vec![(link("b", FILE), node(Attr { nlink: 2, ..attr(FILE, NodeKind::File) }))]);
    scenario.did(20, 90, unlink("a"), Ok(Reply::Done));
    scenario.did(30, 31, lookup("a"), Err(Error::NotFound));
    let two = node(Attr { nlink: 2, ..attr(FILE, NodeKind::File) });
    scenario.did(40, 41, Op::Inode { op: InodeOp::GetAttr { inode: FILE } }, two);
    assert_right(&scenario);
}

#[test]
fn a_dead_clients_create_happens_late_or_never_and_its_inode_is_recognised_by_the_seed() {
    let born = InodeId::new(5, 77, 9);
    let mut scenario = with_a();
    scenario.asked(10, create(ROOT, "b", NewNode::File, true, 77));
    scenario.did(20, 21, lookup("b"), Err(Error::NotFound));
    scenario.did(30, 31, lookup("b"), file(born));
    assert_right(&scenario);
    scenario.did(40, 41, lookup("b"), Err(Error::NotFound));
    assert!(!check(&scenario.history).is_empty(), "it does not go again");
    let mut stranger = with_a();
    stranger.asked(10, create(ROOT, "b", NewNode::File, true, 78));
    stranger.did(30, 31, lookup("b"), file(born));
    assert!(!check(&stranger.history).is_empty(), "an inode that no call asked for");
}

#[test]
fn an_inode_id_is_given_out_once() {
    let again = (create(ROOT, "b", NewNode::File, true, 0), made(FILE, NodeKind::File));
    assert!(complaint(&then(vec![again])).contains("was given out before"));
}

/// `a` is secured. Then come a directory with `x` in it, and `b`, which `synced` may secure; then the power fails.
fn after_a_power_cut(synced: Option<InodeId>, looks: &[(Op, Result<Reply>)]) -> bool {
    let mut scenario = with_a();
    scenario.synced(2, 3, ROOT);
    scenario.did(10, 11, create(ROOT, "d", NewNode::Directory, true, 1), made(DIR, NodeKind::Directory));
    scenario.did(12, 13, create(DIR, "x", NewNode::File, true, 2), made(OTHER, NodeKind::File));
    scenario.did(14, 15, create(ROOT, "b", NewNode::File, true, 3), made(THIRD, NodeKind::File));
    if let Some(dir) = synced {
        scenario.synced(16, 17, dir);
    }
    scenario.history.power_cut(20);
    for (at, (op, outcome)) in (30..).step_by(2).zip(looks.iter().cloned()) {
        scenario.did(at, at + 1, op, outcome);
    }
    check(&scenario.history).is_empty()
}

const THIRD: InodeId = InodeId::new(1, 1, 5);

#[test]
fn a_power_cut_takes_a_tail_of_each_directory() {
    let there = |text, inode| (lookup(text), file(inode));
    let missing = |text| (lookup(text), Err(Error::NotFound));
    let dir = (lookup("d"), node(attr(DIR, NodeKind::Directory)));
    let inside = |outcome| (Op::Name { op: NameOp::Lookup { dir: DIR, name: name("x") } }, outcome);
    let x = inside(file(OTHER));
    let (a, b) = (there("a", FILE), there("b", THIRD));
    for synced in [None, Some(DIR)] {
        assert!(after_a_power_cut(synced, &[a.clone(), dir.clone(), x.clone(), b.clone()]), "nothing was lost");
        assert!(after_a_power_cut(synced, &[missing("b"), missing("d"), a.clone(), inside(Err(Error::NotFound))]));
        assert!(after_a_power_cut(synced, &[missing("b"), x.clone(), dir.clone()]));
        assert!(!after_a_power_cut(synced, &[missing("a")]), "a was secured");
        assert!(!after_a_power_cut(synced, &[missing("d"), b.clone()]), "a middle of the root is gone");
        assert!(!after_a_power_cut(synced, &[missing("b"), b.clone()]), "what is lost does not come back");
    }
    assert!(after_a_power_cut(None, &[dir.clone(), inside(Err(Error::NotFound)), b.clone()]));
    assert!(!after_a_power_cut(Some(DIR), &[dir, inside(Err(Error::NotFound))]), "x was secured");
    assert!(!after_a_power_cut(Some(ROOT), &[missing("b")]), "b was secured");
    assert!(!after_a_power_cut(Some(ROOT), &[missing("d")]), "d was secured");
}

#[test]
fn a_power_cut_takes_a_rename_from_both_directories_or_from_neither() {
    let after = |looks: &[(Op, Result<Reply>)]| {
        let mut scenario = then(vec![(create(ROOT, "d", NewNode::Directory, true, 1), made(DIR, NodeKind::Directory))]);
        scenario.synced(20, 21, ROOT);
        let (mode, open_here) = (RenameMode::Replace, None);
        let op = NameOp::Rename { dir: ROOT, name: name("a"), to_dir: DIR, to_name: name("x"), mode, open_here };
        scenario.did(22, 23, Op::Name { op }, Ok(Reply::Done));
        scenario.history.power_cut(30);
        for (at, (op, outcome)) in (40..).step_by(2).zip(looks.iter().cloned()) {
            scenario.did(at, at + 1, op, outcome);
        }
        check(&scenario.history).is_empty()
    };
    let old = |outcome| (lookup("a"), outcome);
    let new = |outcome| (Op::Name { op: NameOp::Lookup { dir: DIR, name: name("x") } }, outcome);
    let missing = || Err(Error::NotFound);
    assert!(after(&[old(file(FILE)), new(missing())]) && after(&[new(file(FILE)), old(missing())]));
    assert!(!after(&[old(file(FILE)), new(file(FILE))]) && !after(&[old(missing()), new(missing())]));
}

#[test]
fn a_sync_after_a_power_cut_says_that_nothing_was_lost() {
    let mut scenario = with_a();
    scenario.history.power_cut(10);
    scenario.did(40, 41, lookup("a"), Err(Error::NotFound));
    assert_right(&scenario);
    let mut synced = with_a();
    synced.history.power_cut(10);
    synced.synced(20, 21, ROOT);
    synced.did(40, 41, lookup("a"), Err(Error::NotFound));
    assert!(!check(&synced.history).is_empty(), "the sync should have failed");
    let mut seen = with_a();
    seen.history.power_cut(10);
    seen.did(20, 21, lookup("a"), file(FILE));
    seen.history.power_cut(30);
    seen.did(40, 41, lookup("a"), Err(Error::NotFound));
    assert!(!check(&seen.history).is_empty(), "what a power cut left is on stable storage");
}
