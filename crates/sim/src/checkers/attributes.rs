//! Attributes: an inode's change counter and times never go back.
//!
//! For two answers about an inode, of which the first returned before the second was asked for, without a power cut
//! between them:
//!
//! - the change counter and ctime do not go back; mtime goes back only if a call set it;
//! - an acknowledged change that was asked for between them has increased the counter, of a directory also if a name
//!   was made or removed in it; each change of several in a row has, except writes;
//! - birth time and kind are the same.
//!
//! For two answers about a file at any time: with the same change counter they are equal.

use crate::checkers::Complaint;
use crate::history::{Call, CallNumber, ChangedPlaces, History, Moment};
use hekate_proto::{Attr, AttrChanges, DataOp, InodeId, InodeOp, NameOp, NodeKind, Op, RenameMode, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// Attributes in an answer.
struct Seen<'a> {
    call: CallNumber,
    invoked: Moment,
    returned: Moment,
    attr: &'a Attr,
}

/// An acknowledged change.
struct Changed {
    call: CallNumber,
    invoked: Moment,
    returned: Moment,
    /// The new size, if the change set nothing else.
    only_size: Option<u64>,
    /// A name was made or removed in the directory. Where several partitions share its names, each counts its own.
    is_of_name: bool,
    /// It increases the counter by itself: writes may do so together.
    is_counted: bool,
}

/// The least change counter after a change.
struct Least {
    change: u64,
    /// The answer that it follows from, and when that was asked for.
    seen: CallNumber,
    since: Moment,
    by: CallNumber,
    returned: Moment,
    is_of_name: bool,
}

/// Checks all inodes of the history; at most one complaint for each.
pub fn check(history: &History) -> Vec<Complaint> {
    let changes = changes(history);
    let times_set = times_set(history);
    let none = Vec::new();
    let judge = |(inode, seen): (InodeId, Vec<Seen>)| {
        let changed = changes.get(&inode).unwrap_or(&none);
        let rules = Rules { history, times_are_set: times_set.contains(&inode) };
        let found = rules.in_order(&seen).or_else(|| rules.moved_on(&seen, changed)).or_else(|| rules.same(&seen));
        let found = found.or_else(|| rules.counted(&seen, changed));
        found.map(|what| Complaint::new(format!("attributes of {inode:?}"), what))
    };
    seen(history).into_iter().filter_map(judge).collect()
}

fn seen(history: &History) -> BTreeMap<InodeId, Vec<Seen<'_>>> {
    let mut all: BTreeMap<InodeId, Vec<Seen>> = BTreeMap::new();
    for (number, call) in history.calls() {
        let (Some(Ok(reply)), Some(returned)) = (call.settled(), call.returned()) else { continue };
        let attrs: Vec<&Attr> = match reply {
            Reply::Node { attr, .. } | Reply::FileData { attr, .. } => vec![attr],
            Reply::List { entries, .. } => entries.iter().filter_map(|entry| entry.attr.as_ref()).collect(),
            _ => Vec::new(),
        };
        for attr in attrs {
            let seen = Seen { call: number, invoked: call.invoked, returned, attr };
            all.entry(attr.id).or_default().push(seen);
        }
    }
    all
}

fn changes(history: &History) -> BTreeMap<InodeId, Vec<Changed>> {
    let mut all: BTreeMap<InodeId, Vec<Changed>> = BTreeMap::new();
    for (number, call) in history.calls() {
        let (Some(Ok(_)), Some(returned)) = (call.settled(), call.returned()) else { continue };
        let is_change = match &call.op {
            Op::Data { op: DataOp::Write { data, .. } } => !data.is_empty(),
            Op::Inode { .. } => true,
            Op::Name { op } => changes_names(op, call),
            _ => false,
        };
        for inode in call.op.changed_places().into_iter().filter(|_| is_change) {
            let (only_size, is_of_name) = (only_size(&call.op), matches!(call.op, Op::Name { .. }));
            let is_counted = only_size.is_none() && !matches!(call.op, Op::Data { .. });
            let changed = Changed { call: number, invoked: call.invoked, returned, only_size, is_of_name, is_counted };
            all.entry(inode).or_default().push(changed);
        }
    }
    all
}

/// True if an op that succeeded has certainly changed the names of all its directories: a rename may have found two names
/// of one file, or one name.
fn changes_names(op: &NameOp, call: &Call) -> bool {
    match op {
        NameOp::Create { .. } => matches!(call.settled(), Some(Ok(Reply::Node { created: true, .. }))),
        NameOp::Link { .. } | NameOp::Unlink { .. } | NameOp::Rmdir { .. } => true,
        NameOp::Rename { mode, .. } => *mode == RenameMode::NoReplace,
        _ => false,
    }
}

/// The size, if an op sets nothing else.
fn only_size(op: &Op) -> Option<u64> {
    let Op::Inode { op: InodeOp::SetAttr { changes, .. } } = op else { return None };
    let only = AttrChanges { size: changes.size, ..AttrChanges::default() };
    changes.size.filter(|_| *changes == only)
}

/// The inodes whose mtime a call set.
fn times_set(history: &History) -> BTreeSet<InodeId> {
    let sets = history.calls().filter_map(|(_, call)| match &call.op {
        Op::Inode { op: InodeOp::SetAttr { inode, changes } } => changes.mtime.map(|_| *inode),
        _ => None,
    });
    sets.collect()
}

struct Rules<'a> {
    history: &'a History,
    times_are_set: bool,
}

impl Rules<'_> {
    fn power_failed(&self, from: Moment, to: Moment) -> bool {
        self.history.power_cuts().iter().any(|cut| (from..=to).contains(cut))
    }

    /// Pairs of answers of which the first returned before the second was asked for.
    fn pairs<'s>(&self, seen: &'s [Seen<'s>]) -> impl Iterator<Item = (&'s Seen<'s>, &'s Seen<'s>)> {
        seen.iter().flat_map(move |first| {
            let later = seen
                .iter()
                .filter(|second| first.returned < second.invoked && !self.power_failed(first.invoked, second.returned));
            later.map(move |second| (first, second))
        })
    }

    fn in_order(&self, seen: &[Seen]) -> Option<String> {
        for (first, second) in self.pairs(seen) {
            let (before, after) = (first.attr, second.attr);
            let rule = if after.change < before.change {
                format!("the change counter went back from {} to {}", before.change, after.change)
            } else if after.ctime < before.ctime {
                format!("ctime went back from {:?} to {:?}", before.ctime, after.ctime)
            } else if after.mtime < before.mtime && !self.times_are_set {
                format!("mtime went back from {:?} to {:?}, and no call set it", before.mtime, after.mtime)
            } else if (after.btime, after.kind) != (before.btime, before.kind) {
                "birth or kind changed".into()
            } else {
                continue;
            };
            return Some(self.both(rule, first.call, second.call));
        }
        None
    }

    fn moved_on(&self, seen: &[Seen], changes: &[Changed]) -> Option<String> {
        for change in changes {
            let counts = |seen: &&Seen| !change.is_of_name || seen.attr.spread == 1;
            let seen = || seen.iter().filter(counts);
            let before = seen().filter(|seen| seen.returned < change.invoked);
            let Some(before) = before.max_by_key(|seen| seen.attr.change) else { continue };
            let after = seen().filter(|seen| seen.invoked > change.returned);
            let mut after = after.filter(|seen| !self.power_failed(before.invoked, seen.returned));
            // A truncate to the current size changes nothing.
            let idle = |seen: &Seen| change.only_size == Some(before.attr.size) && seen.attr.size == before.attr.size;
            if let Some(after) = after.find(|after| after.attr.change <= before.attr.change && !idle(after)) {
                let change = self.history.describe(change.call);
                let rule = format!("the change counter stayed at {} over {change}", after.attr.change);
                return Some(self.both(rule, before.call, after.call));
            }
        }
        None
    }

    /// No answer may have a counter below what the changes before it must have made of one that was shown.
    fn counted(&self, seen: &[Seen], changes: &[Changed]) -> Option<String> {
        let mut all: Vec<Least> = Vec::new();
        for change in changes {
            let (by, returned, is_of_name) = (change.call, change.returned, change.is_of_name);
            let more = u64::from(change.is_counted);
            let shown =
                seen.iter().filter(|seen| seen.returned < change.invoked && (!is_of_name || seen.attr.spread == 1));
            let shown = shown.map(|seen| Least {
                // Whatever kind of change it is, one that follows an answer has another counter.
                change: seen.attr.change + u64::from(change.only_size.is_none()),
                seen: seen.call,
                since: seen.invoked,
                by,
                returned,
                is_of_name,
            });
            let earlier = all.iter().filter(|least| least.returned < change.invoked);
            let earlier = earlier.map(|least| Least {
                change: least.change + more,
                by,
                returned,
                is_of_name: is_of_name || least.is_of_name,
                ..*least
            });
            let best = shown.chain(earlier).filter(|least| !self.power_failed(least.since, returned));
            all.extend(best.max_by_key(|least| least.change));
        }
        for least in &all {
            let mut after = seen.iter().filter(|seen| seen.invoked > least.returned);
            let is_wrong = |seen: &&Seen| {
                let counts = !least.is_of_name || seen.attr.spread == 1;
                counts && seen.attr.change < least.change && !self.power_failed(least.since, seen.returned)
            };
            if let Some(after) = after.find(is_wrong) {
                let by = self.history.describe(least.by);
                let rule =
                    format!("the change counter is {}, and at least {} after {by}", after.attr.change, least.change);
                return Some(self.both(rule, least.seen, after.call));
            }
        }
        None
    }

    fn same(&self, seen: &[Seen]) -> Option<String> {
        let visible = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.mtime, attr.ctime);
        let mut known: BTreeMap<u64, &Seen> = BTreeMap::new();
        for seen in seen.iter().filter(|seen| seen.attr.kind == NodeKind::File) {
            let first = *known.entry(seen.attr.change).or_insert(seen);
            let (from, to) = (first.invoked.min(seen.invoked), first.returned.max(seen.returned));
            if visible(first.attr) != visible(seen.attr) && !self.power_failed(from, to) {
                let rule = format!("the change counter is {} in both, but they differ otherwise", seen.attr.change);
                return Some(self.both(rule, first.call, seen.call));
            }
        }
        None
    }

    fn both(&self, rule: String, first: CallNumber, second: CallNumber) -> String {
        format!("{rule}:\n    {}\n    {}", self.history.describe(first), self.history.describe(second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::scenario::*;
    use hekate_proto::{AttrChanges, ROOT, SetTime, Time};

    fn getattr(scenario: &mut Scenario, from: Moment, to: Moment, attr: Attr) {
        scenario.did(from, to, Op::Inode { op: InodeOp::GetAttr { inode: FILE } }, node(attr));
    }

    fn at(change: u64, time: i64) -> Attr {
        let time = Time(time);
        Attr { change, mtime: time, ctime: time, ..attr(FILE, NodeKind::File) }
    }

    fn complaint(scenario: &Scenario) -> String {
        check(&scenario.history).first().expect("the history is wrong").to_string()
    }

    #[test]
    fn counters_and_times_go_on() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 1, at(1, 1));
        scenario.wrote(2, 3, 0, b"abc");
        getattr(&mut scenario, 4, 5, at(2, 2));
        assert_eq!(check(&scenario.history), []);
    }

    #[test]
    fn a_counter_that_goes_back_is_named() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 1, at(5, 1));
        getattr(&mut scenario, 2, 3, at(4, 1));
        assert!(complaint(&scenario).contains("the change counter went back from 5 to 4"));
    }

    #[test]
    fn answers_that_overlap_may_come_in_any_order() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 4, at(5, 2));
        getattr(&mut scenario, 2, 6, at(4, 1));
        assert_eq!(check(&scenario.history), []);
    }

    #[test]
    fn times_go_back_only_if_a_call_set_them() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 1, at(1, 8));
        getattr(&mut scenario, 2, 3, Attr { mtime: Time(3), ..at(2, 8) });
        assert!(complaint(&scenario).contains("mtime went back"), "{}", complaint(&scenario));
        let changes = AttrChanges { mtime: Some(SetTime::At { time: Time(3) }), ..AttrChanges::default() };
        scenario.asked(0, Op::Inode { op: InodeOp::SetAttr { inode: FILE, changes } });
        assert_eq!(check(&scenario.history), []);
        getattr(&mut scenario, 4, 5, at(3, 4));
        assert!(complaint(&scenario).contains("ctime went back"), "no call sets ctime");
    }

    #[test]
    fn an_acknowledged_change_moves_the_counter() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 1, at(1, 1));
        scenario.wrote(2, 3, 0, b"abc");
        getattr(&mut scenario, 4, 5, at(1, 1));
        assert!(complaint(&scenario).contains("the change counter stayed at 1 over #1 client 1"));
    }

    #[test]
    fn each_of_several_changes_moves_the_counter() {
        let mut scenario = Scenario::default();
        let mode = |mode| AttrChanges { mode: Some(mode), ..AttrChanges::default() };
        let set = |changes| Op::Inode { op: InodeOp::SetAttr { inode: FILE, changes } };
        // An answer that is older than the first change, and arrives during it.
        getattr(&mut scenario, 0, 1, at(1, 1));
        scenario.did(2, 5, set(mode(0o600)), Ok(Reply::Done));
        getattr(&mut scenario, 3, 4, at(2, 2));
        scenario.did(6, 7, set(mode(0o700)), Ok(Reply::Done));
        getattr(&mut scenario, 8, 9, at(3, 3));
        assert_eq!(check(&scenario.history), []);
        getattr(&mut scenario, 10, 11, at(2, 2));
        assert!(complaint(&scenario).contains("went back"));
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 1, at(1, 1));
        scenario.did(2, 5, set(mode(0o600)), Ok(Reply::Done));
        scenario.did(6, 7, set(mode(0o700)), Ok(Reply::Done));
        getattr(&mut scenario, 8, 9, at(2, 2));
        assert!(complaint(&scenario).contains("is 2, and at least 3"), "{}", complaint(&scenario));
    }

    #[test]
    fn a_name_that_is_made_or_removed_moves_the_counter_of_its_directory() {
        for spread in [1, 2] {
            let mut scenario = Scenario::default();
            let dir = |change| Attr { change, spread, ..attr(ROOT, NodeKind::Directory) };
            let look = || Op::Inode { op: InodeOp::GetAttr { inode: ROOT } };
            scenario.did(0, 1, look(), node(dir(1)));
            scenario.did(2, 3, Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name("a") } }, Ok(Reply::Done));
            scenario.did(4, 5, look(), node(dir(1)));
            assert_eq!(check(&scenario.history).len(), usize::from(spread == 1));
        }
    }

    #[test]
    fn one_counter_means_one_state() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 9, at(1, 1));
        getattr(&mut scenario, 0, 9, Attr { size: 7, ..at(1, 1) });
        assert!(complaint(&scenario).contains("is 1 in both, but they differ"));
    }

    #[test]
    fn birth_and_kind_stay() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 1, at(1, 1));
        getattr(&mut scenario, 2, 3, Attr { btime: Time(7), ..at(1, 1) });
        assert!(complaint(&scenario).contains("birth or kind changed"));
    }

    #[test]
    fn a_power_cut_may_take_the_counter_back() {
        let mut scenario = Scenario::default();
        getattr(&mut scenario, 0, 1, at(5, 9));
        scenario.history.power_cut(2);
        getattr(&mut scenario, 3, 4, at(4, 8));
        assert_eq!(check(&scenario.history), []);
    }
}
