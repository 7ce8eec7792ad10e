//! A client: the work of `translators/distribute.rs` and `replicate.rs` for a call, as a state machine with one request
//! in flight. Its input is requests with their replies; its output is the next request or the call's answer.

#![allow(clippy::result_large_err, reason = "an answer ends the op, and is passed on as it is")]

mod flight;

use super::coordinator::{RING, VOLUME};
use super::wide::{self, Parts};
use bytes::{Bytes, BytesMut};
use flight::{Allowed, Flight};
use hekate_proto::map::View;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Times that a call follows a name to an inode that is gone, before it fails.
const STALE_MAX: usize = 16;

/// The next step of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A request to the server that has this brick.
    Send(BrickId, Box<Request>),
    /// A write to all members, and the request to the inode's leader beside it.
    SendAll(Vec<(BrickId, Request)>, BrickId, Box<Request>),
    /// Repeats the request to the inode's leader while its write is still in flight.
    WroteAgain(BrickId, Box<Request>),
    Finished(Result<Reply>),
}

/// The replica that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Leader(Position),
    Brick(BrickId),
}

/// Known facts about a file with shards: its least size, as long as the layout is current.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    layout: Layout,
    size: u64,
}

impl From<Attr> for Shape {
    fn from(attr: Attr) -> Self {
        Self { layout: attr.layout, size: attr.size }
    }
}

/// The progress of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// The answer is the call's answer.
    Only,
    /// The attributes of the inode that a name leads to are requested.
    Elsewhere {
        tries: usize,
    },
    /// The bytes stored beside the inode.
    ReadHome,
    ReadShards {
        shape: Shape,
        parts: Vec<Bytes>,
    },
    /// The layout, requested after the shards.
    ReadLayout {
        shape: Shape,
        parts: Vec<Bytes>,
    },
    WriteHome,
    WriteShards {
        layout: Layout,
        next: usize,
    },
    WroteSent,
    WriteLayout,
    Fsync {
        left: Vec<BrickId>,
    },
    /// The parts of a directory.
    Parts(Parts),
}

#[derive(Debug)]
struct Call {
    op: Op,
    durable: bool,
    stage: Stage,
    receiver: Receiver,
    request: Request,
    flight: Option<Flight>,
}

/// A client with its session, known layouts and the call in progress.
#[derive(Debug)]
pub struct Client {
    pub session: SessionId,
    pub views: Vec<View>,
    shapes: BTreeMap<InodeId, Shape>,
    spreads: BTreeMap<InodeId, u32>,
    op_count: u64,
    call: Option<Call>,
    /// The loss counter of each partition's view when the first change was sent that no fsync has covered.
    losses: BTreeMap<u32, u32>,
    allowed: BTreeMap<ShardId, Allowed>,
    /// Writes that need not be durable are sent to all members too.
    pub loose: bool,
}

type Sent = (Stage, Receiver, Op);

impl Client {
    pub fn new(session: SessionId, views: Vec<View>) -> Self {
        Self {
            session,
            views,
            shapes: BTreeMap::new(),
            spreads: BTreeMap::new(),
            op_count: 0,
            call: None,
            losses: BTreeMap::new(),
            allowed: BTreeMap::new(),
            loose: false,
        }
    }

    /// Begins a call. `slot`: the session slot of its first change.
    pub fn begin(&mut self, op: Op, durable: bool) -> Step {
        let (stage, receiver, first) = match &op {
            Op::Name { op: name_op } => (Stage::Only, Receiver::Leader(place_of(name_op, &self.spreads)), op.clone()),
            Op::Inode { op: inode_op } => (Stage::Only, Receiver::Leader(inode_op.inode().position()), op.clone()),
            Op::Data { op: DataOp::Read { inode, .. } } => self.begin_read(&op, *inode),
            Op::Data { op: DataOp::Write { inode, .. } } => match self.shapes.get(inode).cloned() {
                Some(shape) => write_shard(&op, shape.layout, 0),
                None => write_home(&op),
            },
            Op::Data { op: DataOp::Fsync { .. } } => self.begin_fsync(),
            other => return Step::Finished(Err(Error::invalid(format!("{} is no call of a door", other.label())))),
        };
        self.send(op, durable, (stage, receiver, first))
    }

    fn begin_read(&self, op: &Op, inode: InodeId) -> Sent {
        match self.shapes.get(&inode).cloned() {
            Some(shape) => read_shard(op, shape, Vec::new()),
            None => (Stage::ReadHome, Receiver::Leader(inode.position()), op.clone()),
        }
    }

    fn begin_fsync(&self) -> Sent {
        let members = self.views.iter().flat_map(|view| view.members.iter().map(|member| member.brick));
        let left: Vec<BrickId> = members.collect::<BTreeSet<_>>().into_iter().collect();
        self.sync_next(left)
    }

    /// The next brick to sync, in the incarnation that the views name. If views name two incarnations, the earlier one
    /// is used: it gets no answer until all views have changed.
    fn sync_next(&self, mut left: Vec<BrickId>) -> Sent {
        let brick = left.pop().unwrap_or_default();
        let members = self.views.iter().flat_map(|view| &view.members).filter(|member| member.brick == brick);
        let incarnation = members.map(|member| member.incarnation).min().unwrap_or_default();
        let sync = DataOp::Sync { incarnation, shards: Vec::new(), all: true };
        (Stage::Fsync { left }, Receiver::Brick(brick), Op::Data { op: sync })
    }

    /// Rule 19: acknowledged changes are on stable storage, unless a view's loss counter has increased since. The loss
    /// is reported once.
    fn fsync_ends(&mut self) -> Step {
        let now = |partition: u32| self.views.get(partition as usize).map_or(0, |view| view.losses);
        let is_lost = self.losses.iter().any(|(partition, before)| *before < now(*partition));
        self.losses.clear();
        Step::Finished(if is_lost { Err(Error::Lost { what: "before it was synced".into() }) } else { Ok(Reply::Done) })
    }

    fn send(&mut self, op: Op, durable: bool, (stage, receiver, inner): Sent) -> Step {
        if let Receiver::Leader(position) = receiver
            && !durable
            && !inner.is_read()
        {
            self.changes(position);
        }
        let op_id = if inner.is_read() { OpId(0) } else { self.next_op() };
        let (volume, session, retry) = (VOLUME, self.session, false);
        let request = Request { volume, target: Target::Server, session, op_id, durable, retry, op: inner };
        self.call = Some(Call { op, durable, stage, receiver, request, flight: None });
        self.wish_for_fast_lane();
        self.begin_flight().unwrap_or_else(|| self.outstanding())
    }

    /// Notes that a partition has a change that is not synced.
    fn changes(&mut self, position: Position) {
        let partition = position.partition(self.views.len() as u32);
        self.losses.entry(partition.0).or_insert(self.views[partition.0 as usize].losses);
    }

    /// Four slots, so that they are reused soon.
    fn next_op(&mut self) -> OpId {
        self.op_count += 1;
        OpId((self.op_count << 8) | (self.op_count % 4))
    }

    /// The request in flight, with the epochs known now.
    fn outstanding(&mut self) -> Step {
        let count = self.views.len() as u32;
        let Some(call) = &mut self.call else { return Step::Finished(Err(Error::bug("no call is under way"))) };
        let brick = match call.receiver {
            Receiver::Brick(brick) => {
                call.request.target = Target::Brick { brick };
                brick
            }
            Receiver::Leader(position) => {
                let partition = position.partition(count);
                let View { epoch, leader, .. } = &self.views[partition.0 as usize];
                call.request.target = Target::Partition { ring: RING, partition, epoch: *epoch };
                *leader
            }
        };
        Step::Send(brick, Box::new(call.request.clone()))
    }

    /// Sends the request again: its answer did not arrive, or came from another view.
    pub fn again(&mut self) -> Step {
        if let Some(Call { op, durable, .. }) = self.call.take_if(|call| matches!(call.stage, Stage::Fsync { .. })) {
            // The bricks to sync, or their incarnations, may have changed.
            let first = self.begin_fsync();
            return self.send(op, durable, first);
        }
        if let Some(call) = &mut self.call {
            call.request.retry = true;
        }
        if self.is_fast() {
            return self.tell_again();
        }
        self.outstanding()
    }

    /// Handles the reply to the request in flight.
    pub fn answered(&mut self, reply: Result<Reply>) -> Step {
        debug_assert!(!self.is_fast(), "the request beside a fast write has a handler of its own");
        let reply = reply.map(without_parts);
        self.note_allowed(&reply);
        let Some(call) = self.call.take() else { return Step::Finished(Err(Error::bug("no call is under way"))) };
        if let Ok(Reply::Node { attr, .. }) = &reply {
            self.learn(attr);
        }
        let Call { op, durable, stage, .. } = call;
        if let (Stage::WroteSent, Ok(_)) = (&stage, &reply) {
            self.grow(&op);
        }
        if let (Err(Error::OtherSpread { spread }), Stage::Only, Op::Name { op: name_op }) = (&reply, &stage, &op) {
            return match self.spread_received(name_op, *spread) {
                Ok(sent) => self.send(op, durable, sent),
                Err(error) => Step::Finished(Err(error)),
            };
        }
        if let (Stage::Fsync { left }, Ok(_)) = (&stage, &reply) {
            if left.is_empty() {
                return self.fsync_ends();
            }
            let next = self.sync_next(left.clone());
            return self.send(op, durable, next);
        }
        let whole_of = match (&stage, &reply) {
            (Stage::Only | Stage::Elsewhere { .. }, Ok(Reply::Node { attr, created: false }))
                if wide::is_wide(attr) =>
            {
                Some(wide::whole(attr))
            }
            _ => None,
        };
        match whole_of.map_or_else(|| next(&op, stage, reply, &self.spreads), of_parts) {
            Ok(sent) => self.send(op, durable, sent),
            Err(answer) => Step::Finished(answer),
        }
    }

    /// True if an op lists names that several partitions share: each part is of a moment of its own.
    pub fn lists_parts(&self, op: &Op) -> bool {
        matches!(op, Op::Name { op: NameOp::List { dir, .. } } if self.spreads.contains_key(dir))
    }

    /// Handles a leader's answer that names the number of partitions that share the names.
    fn spread_received(&mut self, op: &NameOp, spread: u32) -> Result<Sent> {
        let dir = op.dir();
        if self.spreads.insert(dir, spread).is_some_and(|known| known >= spread) {
            return Err(Error::Protocol { what: format!("names in {spread} partitions, which the client knew") });
        }
        if let NameOp::List { attributes, .. } = op {
            return of_parts(wide::list(dir, spread, *attributes)).map_err(|_| Error::bug("a list without parts"));
        }
        Ok((Stage::Only, Receiver::Leader(place_of(op, &self.spreads)), Op::Name { op: op.clone() }))
    }

    /// Records the file's new least size after a write, under the layout that was used.
    fn grow(&mut self, op: &Op) {
        let Op::Data { op: DataOp::Write { inode, offset, data, .. } } = op else { return };
        if let Some(shape) = self.shapes.get_mut(inode) {
            shape.size = shape.size.max(offset + data.len() as u64);
        }
    }

    fn learn(&mut self, attr: &Attr) {
        match attr.layout.is_inline() {
            true => drop(self.shapes.remove(&attr.id)),
            false => drop(self.shapes.insert(attr.id, attr.clone().into())),
        }
    }
}

/// The next request after an answer; `Err`: the call's answer.
fn next(
    op: &Op,
    stage: Stage,
    reply: Result<Reply>,
    spreads: &BTreeMap<InodeId, u32>,
) -> std::result::Result<Sent, Result<Reply>> {
    match stage {
        Stage::Only => match reply {
            Ok(Reply::Elsewhere { inode, .. }) => Ok(elsewhere(inode, 0)),
            other => Err(other),
        },
        Stage::Elsewhere { tries } => match reply {
            Err(Error::Stale) if tries < STALE_MAX => {
                let Op::Name { op: name_op } = op else { return Err(Err(Error::Stale)) };
                let receiver = Receiver::Leader(place_of(name_op, spreads));
                Ok((Stage::Only, receiver, op.clone()))
            }
            other => Err(other),
        },
        Stage::Parts(parts) => match (reply, op) {
            (Err(Error::Stale), Op::Name { op: name_op @ NameOp::Lookup { .. } }) => {
                Ok((Stage::Only, Receiver::Leader(place_of(name_op, spreads)), op.clone()))
            }
            (reply, _) => of_parts(wide::answered(parts, got(reply)?)),
        },
        Stage::ReadHome => match reply {
            Ok(Reply::Node { attr, .. }) => Ok(read_shard(op, attr.into(), Vec::new())),
            other => Err(other),
        },
        Stage::ReadShards { shape, mut parts } => {
            parts.push(data_of(got(reply)?)?);
            Ok(read_shard(op, shape, parts))
        }
        Stage::ReadLayout { shape, parts } => read_layout(op, &shape, &parts, got(reply)?),
        Stage::WriteHome => match got(reply)? {
            Reply::Node { attr, .. } if attr.layout.is_inline() => Ok(write_home(op)),
            Reply::Node { attr, .. } => Ok(write_shard(op, attr.layout, 0)),
            done => Err(Ok(done)),
        },
        Stage::WriteShards { layout, next } => match reply {
            Err(Error::LayoutChanged) => Ok(write_layout(op)),
            reply => reply.map(|_| write_shard(op, layout, next)).map_err(Err),
        },
        Stage::WroteSent => match reply {
            Err(Error::LayoutChanged) => Ok(write_layout(op)),
            reply => Err(reply.map(|_| Reply::Done)),
        },
        Stage::WriteLayout => match got(reply)? {
            Reply::Node { attr, .. } if !attr.layout.is_inline() => Ok(write_shard(op, attr.layout, 0)),
            _ => Ok(write_home(op)),
        },
        Stage::Fsync { .. } => Err(reply),
    }
}

fn got(reply: Result<Reply>) -> std::result::Result<Reply, Result<Reply>> {
    reply.map_err(Err)
}

/// The reply of a list without the counts of its own partition, in a directory that several partitions share.
fn without_parts(mut reply: Reply) -> Reply {
    if let Reply::List { entries, .. } = &mut reply {
        entries.iter_mut().for_each(|entry| entry.attr = entry.attr.take().filter(|attr| !wide::is_wide(attr)));
    }
    reply
}

fn of_parts(then: wide::Then) -> std::result::Result<Sent, Result<Reply>> {
    match then {
        wide::Then::Ask(parts, position, op) => Ok((Stage::Parts(parts), Receiver::Leader(position), op)),
        wide::Then::Answer(answer) => Err(answer),
    }
}

/// The position at which an op on names begins, by the spreads known so far.
fn place_of(op: &NameOp, spreads: &BTreeMap<InodeId, u32>) -> Position {
    let dir = op.dir();
    match op {
        NameOp::Lookup { name, .. }
        | NameOp::Create { name, .. }
        | NameOp::Link { name, .. }
        | NameOp::Unlink { name, .. }
        | NameOp::Rmdir { name, .. }
        | NameOp::Rename { to_name: name, .. } => name_position(dir, name, spreads.get(&dir).copied().unwrap_or(1)),
        NameOp::List { .. } | NameOp::ListPart { .. } | NameOp::Stub { .. } | NameOp::CreateUnnamed { .. } => {
            dir.position()
        }
    }
}

fn getattr(inode: InodeId) -> Op {
    Op::Inode { op: InodeOp::GetAttr { inode } }
}

fn elsewhere(inode: InodeId, tries: usize) -> Sent {
    (Stage::Elsewhere { tries: tries + 1 }, Receiver::Leader(inode.position()), getattr(inode))
}

fn data_of(reply: Reply) -> std::result::Result<Bytes, Result<Reply>> {
    match reply {
        Reply::Data { bytes } => Ok(bytes),
        _ => Err(Err(Error::Protocol { what: "a reply of another kind than the op's".into() })),
    }
}

/// The next shard of a read, or the layout after the last one.
fn read_shard(op: &Op, shape: Shape, parts: Vec<Bytes>) -> Sent {
    let Op::Data { op: DataOp::Read { inode, offset, length, .. } } = op else { return write_home(op) };
    let runs = shape.layout.shard_runs(VOLUME, *offset, *length as usize);
    match runs.get(parts.len()) {
        Some((shard, from, count)) => {
            let ShardId { data, index, .. } = *shard;
            let read = DataOp::ReadShard { data, index, offset: *from as u32, length: *count as u32 };
            (Stage::ReadShards { shape, parts }, Receiver::Leader(shard.position()), Op::Data { op: read })
        }
        None => (Stage::ReadLayout { shape, parts }, Receiver::Leader(inode.position()), getattr(*inode)),
    }
}

fn read_layout(op: &Op, shape: &Shape, parts: &[Bytes], reply: Reply) -> std::result::Result<Sent, Result<Reply>> {
    let (Op::Data { op: DataOp::Read { inode, offset, length, .. } }, Reply::Node { attr, .. }) = (op, reply) else {
        return Err(Err(Error::Protocol { what: "a reply of another kind than the op's".into() }));
    };
    if attr.layout.is_inline() {
        return Ok((Stage::ReadHome, Receiver::Leader(inode.position()), op.clone()));
    }
    // The shards may lack bytes beyond the size that was known before the read but within the new size.
    if attr.layout != shape.layout || attr.size.min(offset.saturating_add(u64::from(*length))) > shape.size {
        return Ok(read_shard(op, attr.into(), Vec::new()));
    }
    let runs = shape.layout.shard_runs(VOLUME, *offset, *length as usize);
    let (mut start, mut joined) = (0, BytesMut::new());
    for (bytes, (_, _, count)) in parts.iter().zip(&runs) {
        joined.extend_from_slice(bytes);
        start += count;
        joined.resize(start, 0);
    }
    joined.truncate(attr.size.saturating_sub(*offset).min(u64::from(*length)) as usize);
    Err(Ok(Reply::FileData { bytes: joined.freeze(), attr }))
}

fn write_home(op: &Op) -> Sent {
    let (inode, home) = match op {
        Op::Data { op: DataOp::Write { inode, offset, data, .. } } => {
            (*inode, offset.saturating_add(data.len() as u64) <= INLINE_MAX)
        }
        _ => (ROOT, false),
    };
    let inner = if home { op.clone() } else { Op::Data { op: DataOp::Spill { inode } } };
    (Stage::WriteHome, Receiver::Leader(inode.position()), inner)
}

fn write_layout(op: &Op) -> Sent {
    let Op::Data { op: DataOp::Write { inode, .. } } = op else { return write_home(op) };
    (Stage::WriteLayout, Receiver::Leader(inode.position()), getattr(*inode))
}

/// The next shard of a write in file order; after the last one, the request to the inode's leader.
fn write_shard(op: &Op, layout: Layout, next: usize) -> Sent {
    let Op::Data { op: DataOp::Write { inode, offset, data, drop_set_id } } = op else { return write_home(op) };
    let runs = layout.shard_runs(VOLUME, *offset, data.len());
    let Some((shard, from, count)) = runs.get(next) else {
        let end = offset + data.len() as u64;
        let wrote = DataOp::Wrote {
            inode: *inode,
            layout_version: layout.version,
            end,
            reach: end,
            drop_set_id: *drop_set_id,
            fast: false,
        };
        return (Stage::WroteSent, Receiver::Leader(inode.position()), Op::Data { op: wrote });
    };
    let before: usize = runs[..next].iter().map(|(_, _, count)| count).sum();
    let bytes = data.slice(before..before + count);
    let ShardId { data, index, .. } = *shard;
    let write = DataOp::WriteShard { data, index, offset: *from as u32, bytes, follow: None, fast: false };
    (Stage::WriteShards { layout, next: next + 1 }, Receiver::Leader(shard.position()), Op::Data { op: write })
}
