//! Each key of the objects' directory is a linearizable register of ETags: a put, a removal and a fetch see what came
//! before, and conditions are decided by it, whether or not a directory has the key's name. After a power cut a tail of
//! the changes that were not secured may be lost.

use super::Complaint;
use super::linearize::{Model, Operation, linearize};
use super::windows::windows;
use crate::history::{CallNumber, History, Moment};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// A directory and a key in it.
type Object = (InodeId, Bytes);
/// The answer of a call, if it is known.
type Outcome<'a> = Option<std::result::Result<&'a Reply, &'a Error>>;

/// What was under a key before an op.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Before {
    Anything,
    Holds(Condition),
    /// The condition did not hold.
    Fails(Condition),
}

#[derive(Debug, Clone)]
enum Action {
    /// `after`: the ETag, `None` for a removal.
    Change {
        call: CallNumber,
        before: Vec<Before>,
        after: Option<Bytes>,
    },
    Look(Vec<Before>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    etag: Option<Bytes>,
    /// The ETags before each change that a power cut may undo.
    log: Vec<(CallNumber, Option<Bytes>)>,
}

struct Register {
    secured_at: BTreeMap<CallNumber, Moment>,
    keeps_log: bool,
}

/// Checks every key; at most one complaint for each, and one for each answer that no register gives.
pub fn check(history: &History) -> Vec<Complaint> {
    let (keys, mut complaints) = operations(history);
    for ((dir, key), operations) in keys {
        let calls: BTreeSet<CallNumber> = operations.iter().map(|operation| operation.call).collect();
        let secured_at = calls.into_iter().filter_map(|call| Some((call, history.secured_at(call)?))).collect();
        let register = Register { secured_at, keeps_log: !history.power_cuts().is_empty() };
        if let Err(stuck) = linearize(&register, State::default(), &operations, history.power_cuts()) {
            complaints.push(Complaint::stuck(format!("the object {key:?} in {dir:?}"), history, &stuck));
        }
    }
    complaints
}

/// True for an op on a name of the objects' directory, or that makes a file which will be put there. No other checker
/// judges it.
pub fn is_of_objects(op: &Op) -> bool {
    matches!(op, Op::Name { op } if op.dir() == SYSTEM || matches!(op, NameOp::CreateUnnamed { .. }))
}

/// The key of a name: an escaped name is that of the segment that it stands for.
fn key_of(name: &Name) -> Bytes {
    let bytes = name.bytes();
    if bytes.starts_with(ESCAPED_NAME) { bytes.slice(ESCAPED_NAME.len()..) } else { bytes }
}

fn operations(history: &History) -> (BTreeMap<Object, Vec<Operation<Action>>>, Vec<Complaint>) {
    let mut all: BTreeMap<Object, Vec<Operation<Action>>> = BTreeMap::new();
    let mut wrong = Vec::new();
    let named = |op: &Op| match op {
        Op::Name {
            op: NameOp::Put { dir, name, .. } | NameOp::Remove { dir, name, .. } | NameOp::Fetch { dir, name, .. },
        } => Some((*dir, name.bytes())),
        _ => None,
    };
    let keys: BTreeSet<Object> = history.calls().filter_map(|(_, call)| named(&call.op)).collect();
    for (number, call) in history.calls() {
        let Op::Name { op } = &call.op else { continue };
        let actions = match (op, named(&call.op)) {
            (NameOp::ListKeys { dir, .. }, _) => listed(*dir, call.settled(), &keys),
            (_, Some(key)) => match action(number, op, call.settled()) {
                Ok(action) => action.map(|action| (key, action)).into_iter().collect(),
                Err(what) => {
                    wrong.push(Complaint::new(
                        "an answer about an object",
                        format!("{what}: {}", history.describe(number)),
                    ));
                    continue;
                }
            },
            _ => continue,
        };
        for (key, action) in actions {
            let mut placed = windows(history, number, || action.clone());
            if matches!(action, Action::Look(_)) {
                placed.truncate(1);
            } else if placed.len() > 1 && !call.durable {
                // The answer may have been under way when the power failed, which took the change.
                placed.truncate(placed.len() - 1);
                let (opens, closes, required) = (call.invoked, None, false);
                placed.push(Operation { call: number, action, opens, closes, required });
            }
            all.entry(key).or_default().extend(placed);
        }
    }
    (all, wrong)
}

/// The effect of an op and its answer on its key. `None` if the answer says nothing.
fn action(call: CallNumber, op: &NameOp, outcome: Outcome<'_>) -> std::result::Result<Option<Action>, String> {
    let asked = |condition: &Condition| Before::Holds(condition.clone());
    let exists = |exists: bool| Before::Holds(if exists { Condition::Exists } else { Condition::Absent });
    Ok(Some(match (op, outcome) {
        (NameOp::Put { etag, condition, .. }, None) => {
            Action::Change { call, before: vec![asked(condition)], after: Some(etag.clone()) }
        }
        (NameOp::Put { etag, condition, .. }, Some(Ok(Reply::Node { attr, created }))) => {
            if attr.etag != etag {
                return Err(format!("a put of {etag:?} is answered {:?}", attr.etag));
            }
            let before = vec![asked(condition), exists(!created)];
            Action::Change { call, before, after: Some(etag.clone()) }
        }
        (NameOp::Remove { condition, .. }, None) => {
            Action::Change { call, before: vec![asked(condition), exists(true)], after: None }
        }
        (NameOp::Remove { condition, .. }, Some(Ok(_))) => {
            Action::Change { call, before: vec![asked(condition), exists(true)], after: None }
        }
        (NameOp::Put { condition, .. } | NameOp::Remove { condition, .. }, Some(Err(Error::ConditionFailed))) => {
            Action::Look(vec![Before::Fails(condition.clone())])
        }
        (NameOp::Remove { .. } | NameOp::Fetch { .. }, Some(Err(Error::NotFound))) => Action::Look(vec![exists(false)]),
        (NameOp::Fetch { .. }, Some(Ok(Reply::Fetched { object }))) => {
            let Fetched { attr, content, .. } = &**object;
            let whole = content_of(&attr.etag);
            if content.as_ref().is_some_and(|content| !content.is_empty() && *content != whole) {
                return Err(format!("the bytes of {:?} are {content:?}", attr.etag));
            }
            Action::Look(vec![Before::Holds(Condition::Matches { etag: attr.etag.clone() })])
        }
        _ => return Ok(None),
    }))
}

/// The content of the object with this ETag, if it has one.
pub fn content_of(etag: &Bytes) -> Bytes {
    etag.iter().copied().cycle().take(etag.len() * 40).collect()
}

/// What a list of all keys shows of each key.
fn listed(dir: InodeId, outcome: Outcome<'_>, keys: &BTreeSet<Object>) -> Vec<(Object, Action)> {
    let Some(Ok(Reply::Keys { entries, end: true, .. })) = outcome else { return Vec::new() };
    let files = entries.iter().filter(|entry| entry.kind == NodeKind::File);
    let shown: BTreeMap<Bytes, Option<Bytes>> =
        files.map(|entry| (key_of(&entry.name), entry.attr.as_ref().map(|attr| attr.etag.clone()))).collect();
    let of_dir = keys.iter().filter(|(of, _)| *of == dir);
    let look = |key: &Object| {
        let before = match shown.get(&key.1) {
            Some(Some(etag)) => Before::Holds(Condition::Matches { etag: etag.clone() }),
            Some(None) => Before::Anything,
            None => Before::Holds(Condition::Absent),
        };
        (key.clone(), Action::Look(vec![before]))
    };
    of_dir.map(look).collect()
}

fn holds(etag: Option<&Bytes>, condition: &Condition) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Absent => etag.is_none(),
        Condition::Exists => etag.is_some(),
        Condition::Matches { etag: asked } => etag == Some(asked),
    }
}

impl Model for Register {
    type State = State;
    type Action = Action;

    fn only_looks(&self, action: &Action) -> bool {
        matches!(action, Action::Look(_))
    }

    fn steps(&self, state: &State, action: &Action, _part: usize) -> Vec<State> {
        let (Action::Change { before, .. } | Action::Look(before)) = action;
        let fits = |before: &Before| match before {
            Before::Anything => true,
            Before::Holds(condition) => holds(state.etag.as_ref(), condition),
            Before::Fails(condition) => !holds(state.etag.as_ref(), condition),
        };
        if !before.iter().all(fits) {
            return Vec::new();
        }
        let mut next = state.clone();
        if let Action::Change { call, after, .. } = action {
            if self.keeps_log {
                next.log.push((*call, state.etag.clone()));
            }
            next.etag = after.clone();
        }
        vec![next]
    }

    fn explain(&self, state: &State, action: &Action, _part: usize) -> String {
        format!("the ETag is {:?} then, which does not allow {action:?}", state.etag)
    }

    fn power_cut(&self, state: &State, at: Moment) -> Vec<State> {
        // The power may have failed where another partition was, so a later failure may take the same changes.
        let mut all = vec![state.clone()];
        for (number, (call, before)) in state.log.iter().enumerate().rev() {
            if self.secured_at.get(call).is_some_and(|secured| *secured <= at) {
                break;
            }
            all.push(State { etag: before.clone(), log: state.log[..number].to_vec() });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::scenario::*;

    fn name() -> Name {
        Name::new(Bytes::from_static(b"o")).unwrap()
    }

    fn put(etag: &'static str, condition: Condition, created: bool) -> (Op, Result<Reply>) {
        let etag = Bytes::from_static(etag.as_bytes());
        let (content, attributes) = (content_of(&etag), Vec::new());
        let source = PutSource::Bytes { content, mode: 0o600, uid: 1, gid: 1, attributes };
        let (alternate, keep) = (None, false);
        let op =
            NameOp::Put { dir: SYSTEM, name: name(), alternate, source, etag: etag.clone(), condition, keep, seed: 1 };
        let reply = Reply::Node { attr: Attr { etag, ..attr(FILE, NodeKind::File) }, created };
        (Op::Name { op }, Ok(reply))
    }

    fn fetch(etag: Option<&'static str>) -> (Op, Result<Reply>) {
        let op = NameOp::Fetch { dir: SYSTEM, name: name(), alternate: None, attribute: Bytes::new(), content: true };
        let reply = etag.map(|etag| {
            let etag = Bytes::from_static(etag.as_bytes());
            let content = Some(content_of(&etag));
            let attr = Attr { etag, ..attr(FILE, NodeKind::File) };
            Reply::Fetched { object: Box::new(Fetched { attr, attribute: None, content, alternate: false }) }
        });
        (Op::Name { op }, reply.ok_or(Error::NotFound))
    }

    fn one_by_one(calls: Vec<(Op, Result<Reply>)>) -> usize {
        let mut scenario = Scenario::default();
        for (at, (op, outcome)) in (0..).step_by(2).zip(calls) {
            scenario.did(at, at + 1, op, outcome);
        }
        check(&scenario.history).len()
    }

    fn matches(etag: &'static str) -> Condition {
        Condition::Matches { etag: Bytes::from_static(etag.as_bytes()) }
    }

    #[test]
    fn a_register_returns_the_last_put() {
        let first = || put("1", Condition::Absent, true);
        assert_eq!(one_by_one(vec![fetch(None), first(), fetch(Some("1")), put("2", matches("1"), false)]), 0);
        assert_eq!(one_by_one(vec![first(), fetch(None)]), 1);
        assert_eq!(one_by_one(vec![first(), put("2", Condition::Always, false), fetch(Some("1"))]), 1);
    }

    #[test]
    fn a_condition_that_did_not_hold_is_noticed() {
        let first = || put("1", Condition::Absent, true);
        assert_eq!(one_by_one(vec![first(), put("2", Condition::Absent, false)]), 1);
        assert_eq!(one_by_one(vec![first(), put("2", matches("3"), false)]), 1);
        assert_eq!(one_by_one(vec![put("1", Condition::Exists, false)]), 1);
        let refused = |condition| (put("2", condition, true).0, Err(Error::ConditionFailed));
        assert_eq!(one_by_one(vec![first(), refused(Condition::Absent), refused(matches("2"))]), 0);
        assert_eq!(one_by_one(vec![first(), refused(matches("1"))]), 1);
    }

    #[test]
    fn bytes_of_another_object_are_noticed() {
        let (op, _) = fetch(Some("1"));
        let attr = Attr { etag: Bytes::from_static(b"1"), ..attr(FILE, NodeKind::File) };
        let content = Some(Bytes::from_static(b"2"));
        let wrong =
            (op, Ok(Reply::Fetched { object: Box::new(Fetched { attr, attribute: None, content, alternate: false }) }));
        assert_eq!(one_by_one(vec![put("1", Condition::Always, true), wrong]), 1);
    }
}
