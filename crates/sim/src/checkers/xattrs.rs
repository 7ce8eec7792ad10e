//! Extended attributes of each inode are linearizable: get and list return what was set, and create and replace are
//! refused when they must be. After a power cut a tail of the changes that were not secured may be lost, as of any
//! small object.

use crate::checkers::Complaint;
use crate::checkers::linearize::{Model, Operation, linearize};
use crate::checkers::windows::windows;
use crate::history::{CallNumber, History, Moment};
use bytes::Bytes;
use hekate_proto::{Error, InodeId, InodeOp, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The effect or observation of a call.
#[derive(Debug, Clone)]
enum Action {
    /// Sets (`value`) or removes an attribute; `was`: whether it existed before, if the answer depends on that.
    Set {
        call: CallNumber,
        name: Bytes,
        value: Option<Bytes>,
        was: Option<bool>,
    },
    Value {
        name: Bytes,
        value: Bytes,
    },
    Is {
        name: Bytes,
        there: bool,
    },
}

type Values = BTreeMap<Bytes, Bytes>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    values: Rc<Values>,
    /// The values before each change that a power cut may undo.
    log: Vec<(CallNumber, Rc<Values>)>,
}

struct Inode {
    secured_at: BTreeMap<CallNumber, Moment>,
    keeps_log: bool,
}

/// Checks every inode of the history, which had no attributes when it was made; at most one complaint for each.
pub fn check(history: &History) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (id, operations) in operations(history) {
        let calls: BTreeSet<CallNumber> = operations.iter().map(|operation| operation.call).collect();
        let secured_at = calls.into_iter().filter_map(|call| Some((call, history.secured_at(call)?))).collect();
        let inode = Inode { secured_at, keeps_log: !history.power_cuts().is_empty() };
        if let Err(stuck) = linearize(&inode, State::default(), &operations, history.power_cuts()) {
            complaints.push(Complaint::stuck(format!("extended attributes of {id:?}"), history, &stuck));
        }
    }
    complaints
}

fn operations(history: &History) -> BTreeMap<InodeId, Vec<Operation<Action>>> {
    let mut names: BTreeMap<InodeId, BTreeSet<Bytes>> = BTreeMap::new();
    for (_, call) in history.calls() {
        match (&call.op, call.settled()) {
            (Op::Inode { op: InodeOp::SetXattr { inode, name, .. } | InodeOp::GetXattr { inode, name } }, _) => {
                names.entry(*inode).or_default().insert(name.clone());
            }
            (Op::Inode { op: InodeOp::ListXattr { inode } }, Some(Ok(Reply::Names { names: listed }))) => {
                names.entry(*inode).or_default().extend(listed.iter().cloned());
            }
            _ => {}
        }
    }
    let mut all: BTreeMap<InodeId, Vec<Operation<Action>>> = BTreeMap::new();
    for (number, call) in history.calls() {
        let Op::Inode { op } = &call.op else { continue };
        let (inode, actions) = actions(number, op, call.settled(), &names);
        let placed = actions.iter().flat_map(|action| {
            let mut windows = windows(history, number, || action.clone());
            windows.truncate(if matches!(action, Action::Set { .. }) { usize::MAX } else { 1 });
            windows
        });
        all.entry(inode).or_default().extend(placed);
    }
    all
}

fn actions(
    call: CallNumber,
    op: &InodeOp,
    outcome: Option<Result<&Reply, &Error>>,
    known: &BTreeMap<InodeId, BTreeSet<Bytes>>,
) -> (InodeId, Vec<Action>) {
    let is = |name: &Bytes, there| vec![Action::Is { name: name.clone(), there }];
    match (op, outcome) {
        (InodeOp::SetXattr { inode, name, value, create, replace, .. }, None | Some(Ok(_))) => {
            let was = if *create { Some(false) } else { replace.then_some(true) };
            let (name, value) = (name.clone(), Some(value.clone()));
            (*inode, vec![Action::Set { call, name, value, was }])
        }
        (InodeOp::RemoveXattr { inode, name }, None | Some(Ok(_))) => {
            (*inode, vec![Action::Set { call, name: name.clone(), value: None, was: Some(true) }])
        }
        (InodeOp::SetXattr { inode, name, .. }, Some(Err(Error::Exists))) => (*inode, is(name, true)),
        (
            InodeOp::SetXattr { inode, name, .. }
            | InodeOp::RemoveXattr { inode, name }
            | InodeOp::GetXattr { inode, name },
            Some(Err(Error::NoAttribute)),
        ) => (*inode, is(name, false)),
        (InodeOp::GetXattr { inode, name }, Some(Ok(Reply::Bytes { bytes }))) => {
            (*inode, vec![Action::Value { name: name.clone(), value: bytes.clone() }])
        }
        (InodeOp::ListXattr { inode }, Some(Ok(Reply::Names { names }))) => {
            let all = known.get(inode).into_iter().flatten();
            (*inode, all.flat_map(|name| is(name, names.contains(name))).collect())
        }
        (
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
            | InodeOp::RemoveXattr { inode, .. },
            _,
        ) => (*inode, Vec::new()),
    }
}

impl Model for Inode {
    type State = State;
    type Action = Action;

    fn only_looks(&self, action: &Action) -> bool {
        !matches!(action, Action::Set { .. })
    }

    fn steps(&self, state: &State, action: &Action, _part: usize) -> Vec<State> {
        let fits = match action {
            Action::Value { name, value } => state.values.get(name) == Some(value),
            Action::Is { name, there } => state.values.contains_key(name) == *there,
            Action::Set { name, was, .. } => was.is_none_or(|was| state.values.contains_key(name) == was),
        };
        if !fits {
            return Vec::new();
        }
        let mut next = state.clone();
        if let Action::Set { call, name, value, .. } = action {
            if self.keeps_log {
                next.log.push((*call, state.values.clone()));
            }
            let values = Rc::make_mut(&mut next.values);
            match value {
                Some(value) => drop(values.insert(name.clone(), value.clone())),
                None => drop(values.remove(name)),
            }
        }
        vec![next]
    }

    fn explain(&self, state: &State, action: &Action, _part: usize) -> String {
        let (Action::Set { name, .. } | Action::Value { name, .. } | Action::Is { name, .. }) = action;
        match state.values.get(name) {
            Some(value) => format!("{name:?} is {value:?} then"),
            None => format!("there is no {name:?} then"),
        }
    }

    fn power_cut(&self, state: &State, at: Moment) -> Vec<State> {
        // A change that survives this power cut may be lost in the next one. That may be the same cut again: the history
        // has it a second time, after what clients have answered from memory.
        let mut all = vec![state.clone()];
        for (index, (call, before)) in state.log.iter().enumerate().rev() {
            if self.secured_at.get(call).is_some_and(|secured| *secured <= at) {
                break;
            }
            all.push(State { values: before.clone(), log: state.log[..index].to_vec() });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::scenario::*;

    const NAME: Bytes = Bytes::from_static(b"user.a");

    fn set(value: &'static str, create: bool, replace: bool) -> Op {
        let value = Bytes::from_static(value.as_bytes());
        Op::Inode { op: InodeOp::SetXattr { inode: FILE, name: NAME, value, create, replace, drop_set_group: false } }
    }

    fn get() -> Op {
        Op::Inode { op: InodeOp::GetXattr { inode: FILE, name: NAME } }
    }

    fn value(value: &'static str) -> hekate_proto::Result<Reply> {
        Ok(Reply::Bytes { bytes: Bytes::from_static(value.as_bytes()) })
    }

    fn remove() -> Op {
        Op::Inode { op: InodeOp::RemoveXattr { inode: FILE, name: NAME } }
    }

    fn list(names: &[Bytes]) -> (Op, hekate_proto::Result<Reply>) {
        (Op::Inode { op: InodeOp::ListXattr { inode: FILE } }, Ok(Reply::Names { names: names.to_vec() }))
    }

    fn one_by_one(calls: Vec<(Op, hekate_proto::Result<Reply>)>) -> Vec<Complaint> {
        let mut scenario = Scenario::default();
        for (at, (op, outcome)) in (0..).step_by(2).zip(calls) {
            scenario.did(at, at + 1, op, outcome);
        }
        check(&scenario.history)
    }

    #[test]
    fn an_attribute_is_returned_and_listed_until_it_is_removed() {
        let done = || Ok(Reply::Done);
        let gone = || (get(), Err(Error::NoAttribute));
        assert_eq!(one_by_one(vec![gone(), (set("1", true, false), done()), (get(), value("1")), list(&[NAME])]), []);
        assert_eq!(one_by_one(vec![(set("1", false, false), done()), (remove(), done()), gone(), list(&[])]), []);
        let stale =
            one_by_one(vec![(set("1", true, false), done()), (set("2", false, true), done()), (get(), value("1"))]);
        assert!(stale[0].to_string().contains("b\"user.a\" is b\"2\" then"), "{}", stale[0]);
        assert!(!one_by_one(vec![(set("1", true, false), done()), list(&[])]).is_empty());
        assert!(!one_by_one(vec![(remove(), done())]).is_empty());
    }

    #[test]
    fn create_and_replace_are_refused_when_they_must_be() {
        let done = || Ok(Reply::Done);
        let set_once = (set("1", false, false), done());
        assert_eq!(one_by_one(vec![set_once.clone(), (set("2", true, false), Err(Error::Exists))]), []);
        assert_eq!(one_by_one(vec![(set("2", false, true), Err(Error::NoAttribute))]), []);
        assert!(!one_by_one(vec![set_once.clone(), (set("2", true, false), done())]).is_empty());
        assert!(!one_by_one(vec![(set("2", false, true), done())]).is_empty());
        assert!(!one_by_one(vec![set_once, (remove(), Err(Error::NoAttribute))]).is_empty());
    }

    #[test]
    fn a_power_cut_takes_a_tail_of_what_was_not_synced() {
        let after = |got: hekate_proto::Result<Reply>| {
            let mut scenario = Scenario::default();
            scenario.did(0, 1, set("1", false, false), Ok(Reply::Done));
            scenario.synced(2, 3, FILE);
            scenario.did(4, 5, set("2", false, false), Ok(Reply::Done));
            scenario.history.power_cut(6);
            scenario.did(8, 9, get(), got);
            check(&scenario.history).is_empty()
        };
        assert!(after(value("1")) && after(value("2")) && !after(Err(Error::NoAttribute)));
    }

    /// Until their leases are over clients answer from memory, while no leader serves.
    #[test]
    fn what_clients_remember_may_be_lost_after_they_have_shown_it() {
        for remembered in [true, false] {
            let mut scenario = Scenario::default();
            scenario.did(0, 1, set("1", false, false), Ok(Reply::Done));
            scenario.synced(2, 3, FILE);
            scenario.did(4, 5, set("2", false, false), Ok(Reply::Done));
            scenario.history.power_cut(6);
            scenario.did(7, 8, get(), value("2"));
            if remembered {
                scenario.history.power_cut_may_come_later(9);
            }
            scenario.did(10, 11, get(), value("1"));
            assert_eq!(check(&scenario.history).is_empty(), remembered);
        }
    }
}
