//! Raw writes: a durable overwrite that the client takes to all members itself, past the log and without stamps. For measuring only:
//! `fast-path` is the bytes alone, `afr` what GlusterFS's AFR does for each write: lock, changelog +1, write, changelog -1, unlock, each a
//! round trip to all members. With `eager-lock` a shard's lock stays for the next write, until it was idle for a second or another
//! session wants it; with `piggyback` writes at the same time share a changelog entry, under an eager lock later ones too.
//!
//! What cannot go this way (a shard that is not there, a view that lacks a member) takes the leader's lane. Nothing of it outlives a crash
//! as AFR's self-heal would have it; nobody is told times of such writes.

use super::{Replicate, servers_of};
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::map::{Mode, VolumeMap};
use hekate_proto::*;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Bytes of the greatest raw write.
const RAW_BYTES_MAX: usize = 64 << 10;
/// How long an eager lock stays unused, as GlusterFS's post-op-delay-secs.
const IDLE: Duration = Duration::from_secs(1);
/// Before a lock is tried again that another has; it doubles up to 16 of them.
const LOCK_PAUSE: Duration = Duration::from_micros(250);
/// The slot of raw ops' ids: none of those that servers remember.
const NO_SLOT: u8 = u8::MAX;

/// What writes of this session share.
#[derive(Debug, Default)]
pub(super) struct RawLanes {
    shards: Mutex<HashMap<ShardId, Shared>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Shared {
    lock: Piece,
    mark: Piece,
}

impl Shared {
    fn piece(&mut self, which: Which) -> &mut Piece {
        match which {
            Which::Lock => &mut self.lock,
            Which::Mark => &mut self.mark,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Which {
    Lock,
    Mark,
}

/// A lock or a changelog entry at all members.
#[derive(Debug)]
struct Piece {
    state: State,
    op: OpId,
    users: u32,
    used: Instant,
}

impl Default for Piece {
    fn default() -> Self {
        Self { state: State::Gone, op: OpId(0), users: 0, used: Instant::now() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Gone,
    /// Somebody makes it, or lets it go.
    Moving,
    There,
    /// There, and to go when nobody uses it.
    Leaving,
}

/// What members said to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Done,
    /// Done, and another session waits for the lock.
    Wanted,
    /// Another has the lock.
    Busy,
    /// Not by all.
    Refused,
}

/// Where a shard's writes go.
struct Lane<'a> {
    replicate: &'a Replicate,
    map: &'a VolumeMap,
    shard: ShardId,
    epoch: Epoch,
    servers: Vec<(ServerId, Vec<BrickId>)>,
}

impl Replicate {
    /// Writes past the log, if the volume is for that. -> whether it was written.
    pub(crate) fn write_raw(&self, context: &Context, shard: ShardId, offset: u32, bytes: &Bytes) -> Result<bool> {
        let map = self.map();
        if !map.mode.is_raw() || !context.durable || bytes.len() > RAW_BYTES_MAX {
            return Ok(false);
        }
        let Some(lane) = self.raw_lane(&map, shard) else { return Ok(false) };
        let write = RawStep::Write { offset, bytes: bytes.clone() };
        match map.mode {
            Mode::Afr { eager_lock, piggyback } => {
                let range = (offset, bytes.len() as u32);
                lane.write_afr(context, (eager_lock, piggyback), range, write)
            }
            _ => Ok(lane.tell(context, self.raw_id(), &write)? == Told::Done),
        }
    }

    fn raw_lane<'a>(&'a self, map: &'a VolumeMap, shard: ShardId) -> Option<Lane<'a>> {
        let partition = map.partition_of(shard.position());
        let servers = servers_of(map, partition)?;
        let epoch = map.view(partition)?.epoch;
        Some(Lane { replicate: self, map, shard, epoch, servers })
    }

    fn raw_id(&self) -> OpId {
        self.op_id(NO_SLOT)
    }

    /// Eager locks that nobody uses any more go; `all`: whatever their age.
    pub(crate) fn let_go_of_raw_locks(&self, context: &Context, all: bool) {
        let is_idle =
            |piece: &Piece| piece.users == 0 && piece.state == State::There && (all || piece.used.elapsed() > IDLE);
        let idle: Vec<ShardId> = {
            let shards = self.raw.shards.lock();
            shards.iter().filter(|(_, shared)| is_idle(&shared.lock)).map(|(shard, _)| *shard).collect()
        };
        let map = self.map();
        for lane in idle.into_iter().filter_map(|shard| self.raw_lane(&map, shard)) {
            // What cannot be let go now ends with the session.
            let _ = lane.let_go(context, Which::Mark, &RawStep::Clear);
            let _ = lane.let_go(context, Which::Lock, &RawStep::Unlock);
        }
    }
}

impl Lane<'_> {
    fn write_afr(
        &self,
        context: &Context,
        (eager_lock, piggyback): (bool, bool),
        (offset, length): (u32, u32),
        write: RawStep,
    ) -> Result<bool> {
        let whole = SHARD_BYTES as u32;
        let own = self.replicate.raw_id();
        let lock = |(offset, length)| move |op| self.lock(context, op, &RawStep::Lock { offset, length });
        let mark =
            |(offset, length)| move |op| Ok(self.tell(context, op, &RawStep::Mark { offset, length })? == Told::Done);
        let is_locked = match eager_lock {
            true => self.share(Which::Lock, lock((0, whole)))?,
            false => lock((offset, length))(own)?,
        };
        if !is_locked {
            return Ok(false);
        }
        let is_marked = match piggyback {
            true => self.share(Which::Mark, mark((0, whole)))?,
            false => mark((offset, length))(own)?,
        };
        let told = if is_marked { self.tell(context, own, &write)? } else { Told::Refused };
        let (is_done, is_wanted) = (matches!(told, Told::Done | Told::Wanted), told == Told::Wanted);
        // A write that not all have stays in the changelog of those that have it.
        let stays = eager_lock && !is_wanted;
        match (piggyback, is_marked && is_done) {
            (true, true) => self.leave(context, Which::Mark, &RawStep::Clear, stays)?,
            (false, true) => drop(self.tell(context, own, &RawStep::Clear)?),
            (_, false) => {}
        }
        match eager_lock {
            true => self.leave(context, Which::Lock, &RawStep::Unlock, stays)?,
            false => drop(self.tell(context, own, &RawStep::Unlock)?),
        }
        Ok(is_done)
    }

    /// At all members, or at none.
    fn lock(&self, context: &Context, op: OpId, step: &RawStep) -> Result<bool> {
        let mut tries = 0;
        loop {
            match self.tell(context, op, step)? {
                Told::Done | Told::Wanted => return Ok(true),
                told => {
                    self.tell(context, op, &RawStep::Unlock)?;
                    if told == Told::Refused || self.replicate.gave_up(context) {
                        return Ok(false);
                    }
                    // Whoever waits for the same must not come back at the same time.
                    let apart = 1 + op.0 % 3;
                    std::thread::sleep(LOCK_PAUSE * (apart as u32) * (1 << tries));
                    tries = (tries + 1).min(4);
                }
            }
        }
    }

    /// Uses what other writes of the session have made, or makes it. -> whether it is there.
    fn share(&self, which: Which, make: impl FnOnce(OpId) -> Result<bool>) -> Result<bool> {
        let raw = &self.replicate.raw;
        let mut shards = raw.shards.lock();
        loop {
            let piece = shards.entry(self.shard).or_default().piece(which);
            match piece.state {
                State::There => {
                    piece.users += 1;
                    return Ok(true);
                }
                State::Gone => {
                    piece.state = State::Moving;
                    break;
                }
                State::Moving | State::Leaving => raw.changed.wait(&mut shards),
            }
        }
        drop(shards);
        let op = self.replicate.raw_id();
        let made = make(op);
        let is_made = matches!(made, Ok(true));
        let state = if is_made { State::There } else { State::Gone };
        self.set(which, Piece { state, op, users: u32::from(is_made), used: Instant::now() });
        made
    }

    /// Uses it no more; the last one lets it go, unless it `stays`.
    fn leave(&self, context: &Context, which: Which, undo: &RawStep, stays: bool) -> Result<()> {
        {
            let mut shards = self.replicate.raw.shards.lock();
            let piece = shards.entry(self.shard).or_default().piece(which);
            (piece.users, piece.used) = (piece.users.saturating_sub(1), Instant::now());
            if !stays {
                piece.state = State::Leaving;
            }
            if piece.users > 0 || piece.state != State::Leaving {
                return Ok(());
            }
            // Seen as there by who lets it go.
            piece.state = State::There;
        }
        self.let_go(context, which, undo)
    }

    fn let_go(&self, context: &Context, which: Which, undo: &RawStep) -> Result<()> {
        let op = {
            let mut shards = self.replicate.raw.shards.lock();
            let piece = shards.entry(self.shard).or_default().piece(which);
            if piece.users > 0 || piece.state != State::There {
                return Ok(());
            }
            piece.state = State::Moving;
            piece.op
        };
        let told = self.tell(context, op, undo);
        self.set(which, Piece::default());
        told.map(drop)
    }

    fn set(&self, which: Which, piece: Piece) {
        let raw = &self.replicate.raw;
        let mut shards = raw.shards.lock();
        let shared = shards.entry(self.shard).or_default();
        *shared.piece(which) = piece;
        if shared.lock.state == State::Gone && shared.mark.state == State::Gone {
            shards.remove(&self.shard);
        }
        drop(shards);
        raw.changed.notify_all();
    }

    /// One step at all members side by side: a round trip.
    fn tell(&self, context: &Context, op_id: OpId, step: &RawStep) -> Result<Told> {
        let Self { replicate, map, shard, epoch, servers } = self;
        let gave_up = || replicate.gave_up(context);
        // What came before it is in the same journal.
        let is_durable = matches!(step, RawStep::Write { .. });
        let request = |brick: BrickId| {
            let partition = map.partition_of(shard.position());
            let target = Target::Replica { ring: map.ring, partition, epoch: *epoch, brick };
            let (volume, session) = (map.volume, replicate.session);
            let op = Op::Data { op: DataOp::RawWrite { data: shard.data, index: shard.index, step: step.clone() } };
            Request { volume, target, session, op_id, durable: is_durable, retry: false, op }
        };
        let (mut sent, mut told) = (Vec::with_capacity(servers.len()), Told::Done);
        for (server, bricks) in servers {
            let requests: Vec<Request> = bricks.iter().copied().map(request).collect();
            match replicate.servers.begin(*server, &requests, &gave_up) {
                Ok(batch) => sent.push(batch),
                Err(_) => told = Told::Refused,
            }
        }
        for batch in sent {
            let replies = match batch.finish(&gave_up) {
                Ok(replies) => replies,
                Err(_) => vec![Err(Error::Unavailable { what: "a member".into() })],
            };
            for reply in replies {
                told = match (told, reply) {
                    (Told::Refused, _) => Told::Refused,
                    (told, Ok(Reply::Done)) => told,
                    (Told::Done, Ok(Reply::Waiting { .. })) => Told::Wanted,
                    (told, Ok(Reply::Waiting { .. })) => told,
                    (_, Err(Error::WouldBlock | Error::Skipped)) => Told::Busy,
                    _ => Told::Refused,
                };
            }
        }
        Ok(told)
    }
}
