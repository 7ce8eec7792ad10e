//! Directories that a session made, and names that are missing from them.

use super::support::*;
use crate::pledges::cache::{Cache, Change, DoorForgets};
use crate::pledges::made::Naming;
use crate::pledges::touched::touched_by;
use hekate_proto::*;
use std::time::Duration;

const PARTITION: PartitionNumber = PartitionNumber(0);
const TERM: u64 = 9;
const PARENT: InodeId = inode(0, 4);
const DIR: InodeId = inode(0, 5);
const FILE: InodeId = inode(0, 6);
const OTHER: InodeId = inode(0, 7);
const FAR: InodeId = inode(0, 8);
const START: Duration = Duration::from_secs(100);
/// The change count of a new directory.
const NEW: u64 = 7;

fn directory(change: u64) -> Attr {
    Attr { change, spread: 1, ..attr(DIR, NodeKind::Directory) }
}

fn create(dir: InodeId, text: &str, node: NewNode) -> Op {
    let (mode, uid, gid, umask, exclusive, seed) = (0o644, 0, 0, 0, true, 1);
    Op::Name { op: NameOp::Create { dir, name: name(text), node, mode, uid, gid, umask, exclusive, seed } }
}

fn file(text: &str) -> Op {
    create(DIR, text, NewNode::File)
}

fn unlink(text: &str) -> Op {
    Op::Name { op: NameOp::Unlink { dir: DIR, name: name(text), open_here: None } }
}

fn rename(from: &str, to_dir: InodeId, to: &str, mode: RenameMode) -> Op {
    let (name, to_name) = (name(from), name(to));
    Op::Name { op: NameOp::Rename { dir: DIR, name, to_dir, to_name, mode, open_here: None } }
}

fn made_file() -> Result<Reply> {
    Ok(Reply::Node { attr: attr(FILE, NodeKind::File), created: true })
}

/// The directory's attributes are pledged with this change count.
fn pledge(cache: &mut Cache, change: u64) {
    let op = get_attr(DIR);
    let given = GivenPledges { partition: PARTITION, term: TERM, number: change, given_for: GivenFor::Attributes };
    let asked = cache.ask(&op).unwrap();
    cache.take(asked, &op, &Found::Node { attr: Box::new(directory(change)) }, &[given], START);
}

/// A session that has made the directory.
fn made() -> Cache {
    let mut cache = Cache::default();
    cache.renew(START, START, &[(PARTITION, TERM)]);
    let op = create(PARENT, "d", NewNode::Directory);
    done(&mut cache, &op, Ok(Reply::Node { attr: directory(NEW), created: true }));
    pledge(&mut cache, NEW);
    assert!(is_missing(&mut cache, "first"));
    cache
}

fn done(cache: &mut Cache, op: &Op, reply: Result<Reply>) {
    let naming = cache.made.begin(op);
    cache.made.end(naming, op, &reply);
}

/// True if a look-up is answered that there is no such name.
fn is_missing(cache: &mut Cache, text: &str) -> bool {
    let reply = cache.answer(&Op::Name { op: NameOp::Lookup { dir: DIR, name: name(text) } }, START);
    assert!(matches!(reply, None | Some(Err(Error::NotFound))), "{reply:?}");
    reply.is_some()
}

#[test]
fn names_are_missing_from_a_directory_that_the_session_made_but_for_those_that_it_made_there() {
    let mut cache = made();
    done(&mut cache, &file("a"), made_file());
    assert!(!is_missing(&mut cache, "a") && !is_missing(&mut cache, "b"), "the new count is not pledged");
    pledge(&mut cache, NEW + 1);
    assert!(!is_missing(&mut cache, "a") && is_missing(&mut cache, "b"));
    done(&mut cache, &unlink("a"), Ok(Reply::Done));
    pledge(&mut cache, NEW + 2);
    assert!(is_missing(&mut cache, "a") && is_missing(&mut cache, "b"));
}

#[test]
fn a_name_that_is_looked_up_again_and_again_is_asked_for() {
    let mut cache = made();
    let answered = (0..99).filter(|_| is_missing(&mut cache, "a")).count();
    assert_eq!(answered, 16);
    assert!(is_missing(&mut cache, "b"));
}

#[test]
fn nothing_is_known_any_more_once_another_session_has_changed_a_name() {
    for own in [0, 1] {
        let mut cache = made();
        (0..own).for_each(|_| done(&mut cache, &file("a"), made_file()));
        pledge(&mut cache, NEW + own + 1);
        assert!(!is_missing(&mut cache, "b"));
        done(&mut cache, &file("c"), made_file());
        pledge(&mut cache, NEW + own + 1);
        assert!(!is_missing(&mut cache, "b"), "for good");
    }
}

/// The leader that takes over may have lost the last changes, so that its count is that of others.
#[test]
fn nothing_is_known_under_another_lease() {
    let mut cache = made();
    cache.renew(START, START, &[(PARTITION, TERM + 1)]);
    assert!(!is_missing(&mut cache, "b"));
    let op = get_attr(DIR);
    let given = GivenPledges { partition: PARTITION, term: TERM + 1, number: 1, given_for: GivenFor::Attributes };
    let asked = cache.ask(&op).unwrap();
    cache.take(asked, &op, &Found::Node { attr: Box::new(directory(NEW)) }, &[given], START);
    assert!(cache.has_attributes(DIR, START) && !is_missing(&mut cache, "b"));
}

#[test]
fn nothing_is_answered_while_an_own_op_changes_names_or_after_one_whose_outcome_is_unknown() {
    let mut cache = made();
    let (first, second) = (file("a"), file("b"));
    let under_way: Vec<Naming> = [&first, &second].map(|op| cache.made.begin(op)).into();
    for (naming, op) in under_way.into_iter().zip([&first, &second]) {
        assert!(!is_missing(&mut cache, "c"));
        cache.made.end(naming, op, &made_file());
    }
    pledge(&mut cache, NEW + 2);
    assert!(is_missing(&mut cache, "c"));
    done(&mut cache, &file("d"), Err(Error::Unavailable { what: "a test".into() }));
    pledge(&mut cache, NEW + 2);
    assert!(!is_missing(&mut cache, "c"));
}

/// Which of the two was executed first is not known.
#[test]
fn a_name_that_is_removed_and_made_side_by_side_may_be_there() {
    for order in [[0, 1], [1, 0]] {
        let mut cache = made();
        done(&mut cache, &file("a"), made_file());
        let ops = [(unlink("a"), Ok(Reply::Done)), (file("a"), made_file())];
        let mut under_way = ops.each_ref().map(|(op, _)| Some(cache.made.begin(op)));
        for number in order {
            let (op, reply) = &ops[number];
            cache.made.end(under_way[number].take().unwrap(), op, reply);
        }
        pledge(&mut cache, NEW + 3);
        assert!(is_missing(&mut cache, "b") && !is_missing(&mut cache, "a"), "{order:?}");
        done(&mut cache, &unlink("a"), Ok(Reply::Done));
        pledge(&mut cache, NEW + 4);
        assert!(is_missing(&mut cache, "a"), "alone again");
    }
}

#[test]
fn an_op_that_has_changed_nothing_does_not_count() {
    let mut cache = made();
    let exists = Ok(Reply::Node { attr: attr(FILE, NodeKind::File), created: false });
    for (op, reply) in [(file("a"), Err(Error::Exists)), (unlink("b"), Err(Error::NotFound)), (file("c"), exists)] {
        done(&mut cache, &op, reply);
    }
    assert!(is_missing(&mut cache, "d"));
    assert!(!is_missing(&mut cache, "a") && !is_missing(&mut cache, "c"), "others may have made them meanwhile");
}

#[test]
fn a_name_may_move_within_the_directory_to_one_that_is_new() {
    let moved = |to_dir: InodeId, to: &str, mode: RenameMode| {
        let mut cache = made();
        done(&mut cache, &file("a"), made_file());
        done(&mut cache, &file("b"), made_file());
        done(&mut cache, &rename("a", to_dir, to, mode), Ok(Reply::Done));
        pledge(&mut cache, NEW + 3);
        // The old name is still there if both are of one inode.
        is_missing(&mut cache, "x") && !is_missing(&mut cache, "a") && !is_missing(&mut cache, to)
    };
    assert!(moved(DIR, "c", RenameMode::Replace) && moved(DIR, "c", RenameMode::NoReplace));
    assert!(!moved(DIR, "b", RenameMode::Replace), "both may be names of one inode, which stay");
    assert!(!moved(PARENT, "c", RenameMode::Replace) && !moved(DIR, "b", RenameMode::Exchange));
}

#[test]
fn the_directories_that_were_made_first_are_forgotten_for_want_of_room() {
    let mut cache = made();
    for number in 0..4096 {
        let op = create(PARENT, "d", NewNode::Directory);
        let attr = Attr { id: inode(0, 1000 + number), ..directory(NEW) };
        done(&mut cache, &op, Ok(Reply::Node { attr, created: true }));
        assert_eq!(cache.made.has(DIR), number < 4095);
    }
}

#[test]
fn directories_with_more_names_than_are_remembered_are_forgotten() {
    let mut cache = made();
    for number in 1..=131_072 {
        done(&mut cache, &file(&number.to_string()), made_file());
    }
    pledge(&mut cache, NEW + 131_072);
    assert!(is_missing(&mut cache, "b"));
    done(&mut cache, &file("a"), made_file());
    assert!(!cache.made.has(DIR));
    // None of these names counts any more.
    let (parent, others) = (create(PARENT, "d", NewNode::Directory), 100_000);
    done(&mut cache, &parent, Ok(Reply::Node { attr: directory(NEW), created: true }));
    pledge(&mut cache, NEW);
    assert!(is_missing(&mut cache, "b"));
    for number in 1..=others {
        done(&mut cache, &file(&number.to_string()), made_file());
    }
    assert!(cache.made.has(DIR));
}

#[test]
fn names_that_were_removed_need_no_room() {
    let mut cache = made();
    for number in 1..=140_000 {
        let text = number.to_string();
        done(&mut cache, &file(&text), made_file());
        done(&mut cache, &unlink(&text), Ok(Reply::Done));
    }
    pledge(&mut cache, NEW + 280_000);
    assert!(is_missing(&mut cache, "b"));
}

/// Each part of a directory's names has a change count of its own.
#[test]
fn of_a_directory_in_several_parts_no_names_are_known() {
    for attr in [Attr { spread: 2, ..directory(NEW) }, attr(DIR, NodeKind::File)] {
        let mut cache = Cache::default();
        done(&mut cache, &create(PARENT, "d", NewNode::Directory), Ok(Reply::Node { attr, created: true }));
        assert!(!cache.made.has(DIR));
    }
}

/// A session that has made the directory, has the attributes of another file, and renames a file to a name that is
/// missing by the count.
fn renaming() -> (Cache, Change) {
    let mut cache = made();
    pledge_files(&mut cache);
    let (change, forgets) = begin(&mut cache, &rename_from_parent());
    assert_eq!(forgets, DoorForgets::These(vec![PARENT, DIR, FILE]));
    assert!(cache.has_attributes(OTHER, START) && !cache.has_attributes(FILE, START));
    (cache, change)
}

/// The file that is renamed, with its name, and another one are pledged.
fn pledge_files(cache: &mut Cache) {
    let lookup = Op::Name { op: NameOp::Lookup { dir: PARENT, name: name("from") } };
    let given = [(1, GivenFor::Name), (2, GivenFor::Attributes)];
    let given = given.map(|(number, given_for)| GivenPledges { partition: PARTITION, term: TERM, number, given_for });
    let asked = cache.ask(&lookup).unwrap();
    cache.take(asked, &lookup, &Found::Node { attr: Box::new(attr(FILE, NodeKind::File)) }, &given, START);
    let op = get_attr(OTHER);
    let asked = cache.ask(&op).unwrap();
    cache.take(asked, &op, &Found::Node { attr: Box::new(attr(OTHER, NodeKind::File)) }, &given[1..], START);
}

fn rename_from_parent() -> Op {
    let (name, to_name, mode) = (name("from"), name("to"), RenameMode::Replace);
    Op::Name { op: NameOp::Rename { dir: PARENT, name, to_dir: DIR, to_name, mode, open_here: None } }
}

fn begin(cache: &mut Cache, op: &Op) -> (Change, DoorForgets) {
    let touched = touched_by(op, |inode| cache.attributes(inode)).unwrap();
    cache.begin_change(&touched, START)
}

#[test]
fn a_rename_to_a_name_that_is_missing_by_the_count_changes_no_other_file() {
    let (mut cache, change) = renaming();
    cache.end_change(change, true, &[], START);
    assert!(cache.has_attributes(OTHER, START));
}

/// The directory's attributes are pledged, and yet the name may be there.
#[test]
fn a_rename_may_replace_any_file_if_the_name_is_not_known_to_be_missing() {
    let mut cache = made();
    done(&mut cache, &file("to"), made_file());
    pledge(&mut cache, NEW + 1);
    pledge_files(&mut cache);
    let (_, forgets) = begin(&mut cache, &rename_from_parent());
    assert_eq!(forgets, DoorForgets::All);
}

#[test]
fn a_rename_may_replace_any_file_once_the_directory_is_recalled() {
    let (mut cache, change) = renaming();
    let about = Pledged::Attributes { inode: DIR };
    let recalled = cache.drop_recalled(PARTITION, &[Pledge { about, number: NEW }]);
    assert_eq!(recalled.attributes, DoorForgets::All);
    assert!(!cache.has_attributes(OTHER, START));
    cache.end_change(change, true, &[], START);
    assert!(!cache.has_attributes(OTHER, START), "the leader has ended the pledge without a word");
}

/// The leader ends the pledge on the directory with the other op, and tells of no name that others make afterwards.
#[test]
fn a_rename_may_replace_any_file_beside_another_own_op_on_the_directory() {
    let (mut cache, change) = renaming();
    let (other, forgets) = begin(&mut cache, &file("a"));
    assert_eq!(forgets, DoorForgets::All);
    assert!(!cache.has_attributes(OTHER, START));
    cache.end_change(other, true, &[], START);
    assert!(!cache.has_attributes(OTHER, START), "the rename is under way");
    cache.end_change(change, true, &[], START);
    assert!(!cache.has_attributes(OTHER, START));
}

/// The first op may have changed the directory, for all that is known.
#[test]
fn a_rename_may_replace_any_file_after_another_one_that_may_have_changed_its_directory() {
    let (mut cache, first) = renaming();
    let elsewhere = |text: &str| Op::Name {
        op: NameOp::Rename {
            dir: FAR,
            name: name(text),
            to_dir: FAR,
            to_name: name("to"),
            mode: RenameMode::Replace,
            open_here: None,
        },
    };
    let lookups = ["from", "to"].map(|text| Op::Name { op: NameOp::Lookup { dir: FAR, name: name(text) } });
    for lookup in &lookups {
        let given = GivenPledges { partition: PARTITION, term: TERM, number: 3, given_for: GivenFor::Name };
        let asked = cache.ask(lookup).unwrap();
        cache.take(asked, lookup, &Found::Missing, &[given], START);
    }
    let (second, _) = begin(&mut cache, &elsewhere("from"));
    cache.drop_recalled(PARTITION, &[Pledge { about: Pledged::Name { dir: FAR, name: name("to") }, number: 3 }]);
    cache.end_change(second, true, &[], START);
    let op = get_attr(OTHER);
    let given = GivenPledges { partition: PARTITION, term: TERM, number: 4, given_for: GivenFor::Attributes };
    let asked = cache.ask(&op).unwrap();
    cache.take(asked, &op, &Found::Node { attr: Box::new(attr(OTHER, NodeKind::File)) }, &[given], START);
    assert!(!cache.has_attributes(OTHER, START), "the first rename is under way");
    cache.end_change(first, true, &[], START);
    assert!(!cache.has_attributes(OTHER, START));
}
