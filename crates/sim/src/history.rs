//! The history of a run: the calls of clients and their answers, in simulated time. It is the input of the checkers.
//!
//! A call with an unknown outcome (its client died, or got an answer to try again later) may have happened, may happen at
//! any later moment, or never. Times are steps of the simulator. If one call returned before another was invoked, it
//! came first; all other calls overlap.

pub mod disks;

use hekate_proto::{DataOp, Error, InodeId, InodeOp, NameOp, Op, Reply, Result, SessionId, error::Advice};
use std::collections::BTreeMap;
use std::fmt;

/// A step of the simulator.
pub type Moment = u64;

/// A call's place in its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNumber(pub usize);

/// One op of one client, as its gateway saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Number of the client in the simulation.
    pub client: u32,
    /// Its session; a client that was started again has another one.
    pub session: SessionId,
    /// The request.
    pub op: Op,
    /// True if it asked for stable storage (O_SYNC).
    pub durable: bool,
    /// When the call began.
    pub invoked: Moment,
    /// The answer; none if the client died first, or still waits.
    pub answer: Option<Answer>,
}

/// The answer of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// When it arrived.
    pub at: Moment,
    /// The reply or error.
    pub outcome: Result<Reply>,
}

/// All calls of a run, in the order of their beginnings, and the moments of power cuts.
#[derive(Debug, Clone, Default)]
pub struct History {
    calls: Vec<Call>,
    power_cuts: Vec<Moment>,
    /// The last power cut comes a second time: clients showed what it takes after it.
    is_repeated: bool,
    /// When the clients of sessions died.
    deaths: BTreeMap<SessionId, Moment>,
    /// Moments at which another leader may have begun; None: any moment.
    new_leaders: Option<Vec<Moment>>,
}

impl History {
    /// Adds a call.
    pub fn invoke(&mut self, client: u32, session: SessionId, op: Op, durable: bool, at: Moment) -> CallNumber {
        self.calls.push(Call { client, session, op, durable, invoked: at, answer: None });
        CallNumber(self.calls.len() - 1)
    }

    /// Adds the answer of a call.
    pub fn answer(&mut self, call: CallNumber, at: Moment, outcome: Result<Reply>) {
        let call = &mut self.calls[call.0];
        assert!(call.answer.is_none(), "a call is answered once: {call}");
        assert!(call.invoked <= at, "an answer comes after its call: {call}");
        call.answer = Some(Answer { at, outcome });
    }

    /// Adds a power cut: changes that are not on stable storage may be lost.
    pub fn power_cut(&mut self, at: Moment) {
        assert!(self.power_cuts.last().is_none_or(|last| *last <= at), "power cuts come in order");
        self.power_cuts.push(at);
        self.is_repeated = false;
    }

    /// A client has answered by a pledge after the last power cut, and no leader has shown what that left: it may take
    /// the same later.
    pub fn power_cut_may_come_later(&mut self, at: Moment) {
        if std::mem::replace(&mut self.is_repeated, true) {
            self.power_cuts.pop();
        }
        assert!(self.power_cuts.last().is_some_and(|last| *last <= at), "a power cut comes before its repetition");
        self.power_cuts.push(at);
    }

    /// The moments of power cuts, in order.
    pub fn power_cuts(&self) -> &[Moment] {
        &self.power_cuts
    }

    /// Adds a moment from which other replicas may lead that lack everything that was not in a record.
    pub fn new_leaders(&mut self, at: Moment) {
        self.new_leaders.get_or_insert_default().push(at);
    }

    /// True if another leader may have begun between two moments, both included.
    pub fn has_new_leaders(&self, from: Moment, to: Moment) -> bool {
        self.new_leaders.as_ref().is_none_or(|all| all.iter().any(|at| (from..=to).contains(at)))
    }

    /// Notes that the client of a session has died, for the first time: its session ends later, and with it its locks.
    pub fn client_died(&mut self, session: SessionId, at: Moment) {
        self.deaths.entry(session).or_insert(at);
    }

    /// When the client of a session died.
    pub fn death_of(&self, session: SessionId) -> Option<Moment> {
        self.deaths.get(&session).copied()
    }

    /// True if any client died before a moment.
    pub fn has_death_before(&self, moment: Moment) -> bool {
        self.deaths.values().any(|at| *at < moment)
    }

    /// All calls with their numbers.
    pub fn calls(&self) -> impl Iterator<Item = (CallNumber, &Call)> {
        self.calls.iter().enumerate().map(|(number, call)| (CallNumber(number), call))
    }

    /// The call that was made last.
    pub fn last(&self) -> Option<CallNumber> {
        self.calls().last().map(|(number, _)| number)
    }

    /// One call.
    pub fn call(&self, number: CallNumber) -> &Call {
        &self.calls[number.0]
    }

    /// A moment after all calls.
    pub fn end(&self) -> Moment {
        let answered = self.calls.iter().filter_map(|call| call.answer.as_ref().map(|answer| answer.at));
        let invoked = self.calls.iter().map(|call| call.invoked);
        answered.chain(invoked).chain(self.power_cuts.iter().copied()).max().map_or(0, |last| last + 1)
    }

    /// The moment from which no power cut takes a change: its acknowledgement, if it was durable, or the end of a
    /// successful fsync of the same session that covers it and began after it. A successful fsync also shows that no
    /// earlier change was lost. `None`: a power cut may take the change, or the session was informed of a loss before.
    pub fn secured_at(&self, number: CallNumber) -> Option<Moment> {
        let call = self.call(number);
        let returned = call.settled()?.ok().and(call.returned())?;
        if call.durable {
            return Some(returned);
        }
        let covers = call.op.changed_places();
        let syncs = self.calls.iter().filter(|sync| sync.session == call.session && sync.invoked >= returned);
        let covering = syncs.filter(|sync| match &sync.op {
            Op::Data { op: DataOp::Fsync { inode } } => covers.contains(inode),
            _ => false,
        });
        let first = covering.filter(|sync| matches!(sync.settled(), Some(Ok(_)))).map(|sync| sync.invoked).min()?;
        let tells_of_loss = |other: &Call| {
            let answer = other.answer.as_ref().filter(|answer| matches!(answer.outcome, Err(Error::Lost { .. })));
            let is_of_it = matches!(&other.op, Op::Data { op: DataOp::Fsync { inode } } if covers.contains(inode));
            let is_between = answer.is_some_and(|answer| (returned..=first).contains(&answer.at));
            other.session == call.session && is_of_it && is_between
        };
        (!self.calls.iter().any(tells_of_loss)).then_some(returned)
    }

    /// A call as text.
    pub fn describe(&self, number: CallNumber) -> String {
        format!("#{} {}", number.0, self.call(number))
    }
}

impl Call {
    /// When the client received an answer that shows the outcome of the call.
    pub fn returned(&self) -> Option<Moment> {
        self.settled().and(self.answer.as_ref()).map(|answer| answer.at)
    }

    /// The answer, if it shows whether the call took effect.
    pub fn settled(&self) -> Option<std::result::Result<&Reply, &Error>> {
        match &self.answer.as_ref()?.outcome {
            Ok(reply) => Some(Ok(reply)),
            Err(error) if leaves_open(error) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// True if an op with this error may have happened, or may happen later: such an error is about the servers, not about
/// the op.
fn leaves_open(error: &Error) -> bool {
    match error {
        Error::SessionEnded | Error::NoSpace { .. } => true,
        other => matches!(other.entry().advice, Advice::Retry | Advice::Repair),
    }
}

/// The inodes whose fsync covers an op.
pub trait ChangedPlaces {
    /// The directories of its names, or the inode of its bytes and attributes.
    fn changed_places(&self) -> Vec<InodeId>;
}

impl ChangedPlaces for Op {
    fn changed_places(&self) -> Vec<InodeId> {
        match self {
            Op::Name { op } => match op {
                NameOp::Lookup { .. }
                | NameOp::List { .. }
                | NameOp::ListPart { .. }
                | NameOp::Stub { .. }
                | NameOp::Fetch { .. }
                | NameOp::ListKeys { .. }
                | NameOp::CreateUnnamed { .. } => Vec::new(),
                NameOp::Create { dir, .. }
                | NameOp::Link { dir, .. }
                | NameOp::Unlink { dir, .. }
                | NameOp::Put { dir, .. }
                | NameOp::Remove { dir, .. }
                | NameOp::MakePrefix { dir, .. }
                | NameOp::RemovePrefix { dir, .. }
                | NameOp::Join { dir, .. }
                | NameOp::Rmdir { dir, .. } => vec![*dir],
                NameOp::Rename { dir, to_dir, .. } => vec![*dir, *to_dir],
            },
            Op::Inode {
                op:
                    InodeOp::SetAttr { inode, .. } | InodeOp::SetXattr { inode, .. } | InodeOp::RemoveXattr { inode, .. },
            } => vec![*inode],
            Op::Data { op: DataOp::Write { inode, .. } } => vec![*inode],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} [{}..", self.client, self.invoked)?;
        match &self.answer {
            Some(answer) => write!(f, "{}] ", answer.at)?,
            None => write!(f, "] ")?,
        }
        describe_op(&self.op, f)?;
        f.write_str(if self.durable { " durably -> " } else { " -> " })?;
        match self.answer.as_ref().map(|answer| &answer.outcome) {
            None => f.write_str("no answer"),
            Some(Err(error)) => write!(f, "{error}"),
            Some(Ok(reply)) => describe_reply(reply, f),
        }
    }
}

fn describe_op(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match op {
        Op::Data { op: DataOp::Write { inode, offset, data, .. } } => {
            write!(f, "write {inode:?} bytes {offset}..{}", offset + data.len() as u64)
        }
        Op::Name { op: NameOp::Create { dir, name, node, exclusive, .. } } => {
            let only = if *exclusive { " exclusively" } else { "" };
            write!(f, "create {:?} {name:?} in {dir:?}{only}", node.kind())
        }
        Op::Name { op } => write!(f, "{op:?}"),
        Op::Inode { op } => write!(f, "{op:?}"),
        Op::Data { op } => write!(f, "{op:?}"),
        other => write!(f, "{other:?}"),
    }
}

fn describe_reply(reply: &Reply, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reply {
        Reply::Node { attr, created } => {
            let made = if *created { "made " } else { "" };
            write!(f, "{made}{:?} {:?}, size {}, nlink {}", attr.kind, attr.id, attr.size, attr.nlink)
        }
        Reply::FileData { bytes, .. } => write!(f, "{} bytes", bytes.len()),
        Reply::List { entries, end } => {
            let names: Vec<_> = entries.iter().map(|entry| &entry.name).collect();
            write!(f, "{names:?}{}", if *end { ", no more" } else { "" })
        }
        other => write!(f, "{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const FILE: InodeId = InodeId::new(1, 1, 2);
    const MINE: SessionId = SessionId(1);

    fn write() -> Op {
        Op::Data { op: DataOp::Write { inode: FILE, offset: 0, data: Bytes::from_static(b"x"), drop_set_id: false } }
    }

    fn fsync() -> Op {
        Op::Data { op: DataOp::Fsync { inode: FILE } }
    }

    fn acknowledged(history: &mut History, session: SessionId, op: Op, from: Moment, to: Moment) -> CallNumber {
        let call = history.invoke(1, session, op, false, from);
        history.answer(call, to, Ok(Reply::Done));
        call
    }

    #[test]
    fn an_fsync_secures_changes_acknowledged_to_its_session_before_it_began() {
        let mut history = History::default();
        let before = acknowledged(&mut history, MINE, write(), 0, 2);
        let other = acknowledged(&mut history, SessionId(2), write(), 0, 2);
        let during = acknowledged(&mut history, MINE, write(), 2, 6);
        acknowledged(&mut history, MINE, fsync(), 5, 9);
        assert_eq!(history.secured_at(before), Some(2));
        assert_eq!(history.secured_at(other), None);
        assert_eq!(history.secured_at(during), None, "it was not acknowledged when the fsync began");
    }

    #[test]
    fn a_loss_that_was_reported_is_not_secured_by_the_next_fsync() {
        let mut history = History::default();
        let before = acknowledged(&mut history, MINE, write(), 0, 2);
        let failed = history.invoke(1, MINE, fsync(), false, 3);
        history.answer(failed, 4, Err(Error::Lost { what: "all".into() }));
        let after = acknowledged(&mut history, MINE, write(), 5, 6);
        acknowledged(&mut history, MINE, fsync(), 7, 8);
        assert_eq!((history.secured_at(before), history.secured_at(after)), (None, Some(6)));
    }

    #[test]
    fn a_durable_call_is_secured_by_its_answer() {
        let mut history = History::default();
        let call = history.invoke(1, MINE, write(), true, 3);
        assert_eq!(history.secured_at(call), None);
        history.answer(call, 8, Ok(Reply::Done));
        assert_eq!((history.secured_at(call), history.end()), (Some(8), 9));
    }

    #[test]
    fn an_unavailable_server_leaves_open_what_happened_and_a_missing_name_does_not() {
        let mut history = History::default();
        let unavailable = history.invoke(1, MINE, write(), false, 0);
        history.answer(unavailable, 1, Err(Error::Unavailable { what: "brick".into() }));
        let refused = history.invoke(1, MINE, write(), false, 2);
        history.answer(refused, 3, Err(Error::NotFound));
        assert_eq!(history.call(unavailable).settled(), None);
        assert_eq!(history.call(unavailable).returned(), None);
        assert_eq!(history.call(refused).settled(), Some(Err(&Error::NotFound)));
        assert!(history.describe(refused).contains("no such name"), "{}", history.describe(refused));
    }
}
