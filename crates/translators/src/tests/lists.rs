//! Lists of directories that are answered from memory.

use super::support::*;
use crate::pledges::cache::Cache;
use hekate_proto::*;
use std::time::Duration;

const PARTITION: PartitionNumber = PartitionNumber(0);
const TERM: u64 = 9;
const DIR: InodeId = inode(0, 5);
const START: Duration = Duration::from_secs(100);
/// The change count of the directory when it is listed.
const CHANGE: u64 = 7;

fn directory(change: u64) -> Attr {
    Attr { change, spread: 1, atime: Time(2), mtime: Time(1), ..attr(DIR, NodeKind::Directory) }
}

fn given(number: u64, given_for: GivenFor) -> GivenPledges {
    GivenPledges { partition: PARTITION, term: TERM, number, given_for }
}

/// The directory's attributes are pledged with this change count.
fn pledge(cache: &mut Cache, change: u64) {
    let op = get_attr(DIR);
    let asked = cache.ask(&op).unwrap();
    let found = Found::Node { attr: Box::new(directory(change)) };
    cache.take(asked, &op, &found, &[given(change, GivenFor::Attributes)], START);
}

fn list(after: Option<&str>, attributes: bool, touch: bool) -> Op {
    Op::Name { op: NameOp::List { dir: DIR, after: after.map(name), limit: 2, attributes, touch } }
}

fn entry(text: &str, with_attr: bool) -> Entry {
    let inode = inode(0, u64::from(text.as_bytes()[0]));
    Entry { name: name(text), inode, kind: NodeKind::File, attr: with_attr.then(|| attr(inode, NodeKind::File)) }
}

/// The leader's answer to a list of these names, with pledges on the attributes.
fn listed(cache: &mut Cache, op: &Op, names: &[&str], end: bool) {
    let asked = cache.ask(op).unwrap();
    let attributes = matches!(op, Op::Name { op: NameOp::List { attributes: true, .. } });
    let entries: Vec<Entry> = names.iter().map(|name| entry(name, attributes)).collect();
    let mut pledges = vec![given(0, GivenFor::Listed { change: CHANGE })];
    if attributes {
        pledges.push(given(20, GivenFor::Entries { except: Vec::new() }));
    }
    cache.take(asked, op, &Found::List { entries, end }, &pledges, START);
}

/// A session that has listed the directory, and was pledged its attributes.
fn with_list(op: &Op, names: &[&str]) -> Cache {
    let mut cache = Cache::default();
    cache.renew(START, START, &[(PARTITION, TERM)]);
    listed(&mut cache, op, names, true);
    pledge(&mut cache, CHANGE);
    cache
}

/// The names and attributes with which a list is answered.
fn answer(cache: &mut Cache, op: &Op) -> Option<Vec<Entry>> {
    match cache.answer(op, START)? {
        Ok(Reply::List { entries, .. }) => Some(entries),
        other => panic!("{other:?}"),
    }
}

fn is_missing(cache: &mut Cache, text: &str) -> bool {
    let reply = cache.answer(&Op::Name { op: NameOp::Lookup { dir: DIR, name: name(text) } }, START);
    assert!(matches!(reply, None | Some(Err(Error::NotFound))), "{reply:?}");
    reply.is_some()
}

#[test]
fn a_list_is_answered_while_the_directory_is_pledged_with_the_same_change_count() {
    let op = list(None, false, false);
    let mut cache = with_list(&op, &["a", "c"]);
    assert_eq!(answer(&mut cache, &op), Some(vec![entry("a", false), entry("c", false)]));
    cache.drop_recalled(PARTITION, &[Pledge { about: Pledged::Attributes { inode: DIR }, number: CHANGE }]);
    assert_eq!(answer(&mut cache, &op), None);
    pledge(&mut cache, CHANGE + 1);
    assert_eq!(answer(&mut cache, &op), None, "its names have changed");
    let mut cache = with_list(&op, &["a"]);
    pledge(&mut cache, CHANGE + 1);
    assert_eq!(answer(&mut cache, &op), None);
}

#[test]
fn a_list_with_attributes_needs_the_attributes_of_each_entry() {
    let (with, without) = (list(None, true, false), list(None, false, false));
    let mut cache = with_list(&with, &["a", "c"]);
    assert_eq!(answer(&mut cache, &with), Some(vec![entry("a", true), entry("c", true)]));
    assert_eq!(answer(&mut cache, &without), Some(vec![entry("a", false), entry("c", false)]));
    let about = Pledged::Attributes { inode: entry("c", false).inode };
    cache.drop_recalled(PARTITION, &[Pledge { about, number: 99 }]);
    assert_eq!(answer(&mut cache, &with), None);
    assert!(answer(&mut cache, &without).is_some());
}

/// A leader that has lost the last changes may count others to the same number.
#[test]
fn a_list_is_not_answered_under_another_lease() {
    let op = list(None, false, false);
    let mut cache = with_list(&op, &["a"]);
    cache.renew(START, START, &[(PARTITION, TERM + 1)]);
    let (get, found) = (get_attr(DIR), Found::Node { attr: Box::new(directory(CHANGE)) });
    let asked = cache.ask(&get).unwrap();
    let later = GivenPledges { term: TERM + 1, ..given(1, GivenFor::Attributes) };
    cache.take(asked, &get, &found, &[later], START);
    assert!(cache.has_attributes(DIR, START));
    assert_eq!(answer(&mut cache, &op), None);
    assert!(!is_missing(&mut cache, "b"));
}

#[test]
fn a_list_is_asked_for_while_an_own_op_changes_the_directory() {
    let op = list(None, false, false);
    let mut cache = with_list(&op, &["a"]);
    let touched = crate::pledges::touched::touched_by(&chmod(DIR), |_| None).unwrap();
    let (change, _) = cache.begin_change(&touched, START);
    assert_eq!(answer(&mut cache, &op), None);
    cache.end_change(change, true, &[], START);
    assert_eq!(answer(&mut cache, &op), None);
}

#[test]
fn a_list_that_moves_the_time_of_access_is_asked_for() {
    let op = list(None, false, true);
    let mut cache = with_list(&op, &["a"]);
    assert_eq!(answer(&mut cache, &op), None, "it was read long ago");
    assert!(answer(&mut cache, &list(None, false, false)).is_some());
}

#[test]
fn pages_are_told_apart_by_where_they_begin_and_how_many_names_were_asked_for() {
    let (first, second) = (list(None, false, false), list(Some("b"), false, false));
    let mut cache = with_list(&second, &["c"]);
    listed(&mut cache, &first, &["a", "b"], false);
    assert_eq!(answer(&mut cache, &first), Some(vec![entry("a", false), entry("b", false)]));
    assert_eq!(answer(&mut cache, &second), Some(vec![entry("c", false)]));
    let longer = |mut op| {
        if let Op::Name { op: NameOp::List { limit, .. } } = &mut op {
            *limit = 3;
        }
        op
    };
    assert_eq!(answer(&mut cache, &longer(first)), None);
    assert_eq!(answer(&mut cache, &longer(second)), Some(vec![entry("c", false)]), "there are no more");
    assert!(!is_missing(&mut cache, "bb"), "the first page is not all");
}

#[test]
fn names_that_a_whole_list_does_not_have_are_missing() {
    let mut cache = with_list(&list(None, true, false), &["a", "c"]);
    assert!(is_missing(&mut cache, "b") && is_missing(&mut cache, "d"));
    let answered = (0..99).filter(|_| is_missing(&mut cache, "e")).count();
    assert_eq!(answered, 16, "then a pledge is asked for");
    pledge(&mut cache, CHANGE + 1);
    assert!(!is_missing(&mut cache, "f"));
}

#[test]
fn a_list_out_of_order_is_not_remembered() {
    let op = list(None, false, false);
    let mut cache = with_list(&op, &["c", "a"]);
    assert_eq!(answer(&mut cache, &op), None);
    let mut cache = with_list(&op, &["a", "a"]);
    assert_eq!(answer(&mut cache, &op), None);
}

/// A page of names.
fn thousand() -> Vec<String> {
    (0..1000).map(|number| format!("{number:04}")).collect()
}

fn each(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

#[test]
fn lists_that_were_not_made_lately_are_forgotten() {
    let first = list(None, false, false);
    let mut cache = with_list(&first, &["a"]);
    let names = thousand();
    (0..70).for_each(|page| listed(&mut cache, &list(Some(&format!("x{page}")), false, false), &each(&names), true));
    assert!(answer(&mut cache, &first).is_some(), "the older half");
    (70..140).for_each(|page| listed(&mut cache, &list(Some(&format!("x{page}")), false, false), &each(&names), true));
    assert_eq!(answer(&mut cache, &first), None);
    assert_eq!(answer(&mut cache, &list(Some("x139"), false, false)).map(|entries| entries.len()), Some(1000));
}

#[test]
fn a_list_that_is_made_again_takes_no_more_room() {
    let first = list(None, false, false);
    let mut cache = with_list(&first, &["a"]);
    let names = thousand();
    let again = list(Some("x"), false, false);
    (0..200).for_each(|_| listed(&mut cache, &again, &each(&names), true));
    assert!(answer(&mut cache, &first).is_some());
    for page in 0..140 {
        listed(&mut cache, &again, &each(&names), true);
        listed(&mut cache, &list(Some(&format!("x{page}")), false, false), &each(&names), true);
    }
    assert_eq!(answer(&mut cache, &first), None, "nor do the others take less");
}

#[test]
fn a_directory_is_listed_after_a_few_missing_names_and_seldom_again() {
    let mut cache = Cache::default();
    cache.renew(START, START, &[(PARTITION, TERM)]);
    assert!((0..9).all(|_| !cache.wants_list(DIR, START)), "nothing would be remembered");
    pledge(&mut cache, CHANGE);
    let touched = crate::pledges::touched::touched_by(&chmod(inode(0, 77)), |_| None).unwrap();
    let (change, _) = cache.begin_change(&touched, START);
    assert!((0..9).all(|_| !cache.wants_list(DIR, START)), "a change is under way");
    cache.end_change(change, true, &[], START);
    let asked: Vec<u32> = (1..1000).filter(|_| cache.wants_list(DIR, START)).collect();
    assert_eq!(asked, [4, 32, 256]);
    listed(&mut cache, &list(None, false, false), &["a", "b"], false);
    assert!((0..9999).all(|_| !cache.wants_list(DIR, START)), "the list is known, though not whole");
}
