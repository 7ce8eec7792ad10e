//! Raw writes: durable overwrites that the client sends to all members, outside of the log and without stamps. They
//! serve measurements only. Mode `fast-path` sends the bytes alone. Mode `afr` does what GlusterFS's AFR does for
//! each write: lock, changelog +1, write, changelog -1, unlock, each a round trip to all members. With `eager-lock`
//! the lock of a shard is kept for the next write, until it was idle for 1 s or another session wants it. With
//! `piggyback` concurrent writes share a changelog entry, and under an eager lock later ones do too.
//!
//! A write that cannot go this way (the shard does not exist, the view lacks a member) takes the leader's path.
//! Unlike AFR's self-heal, nothing repairs such writes after a crash, and the inode's times do not change.
//!
//! Only with the cargo feature `measuring`; without it `raw_absent.rs` is in the place of this file.

use super::{Replicate, servers_of};
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::map::{Mode, VolumeMap};
use hekate_proto::*;
use hekate_threads::{Condvar, HashMap, Mutex, elapsed, now};

use std::time::{Duration, Instant};

/// Longest raw write, in bytes, as for fast writes.
const RAW_BYTES_MAX: usize = 64 << 10;
/// Idle time after which an eager lock is released, as GlusterFS's post-op-delay-secs.
const IDLE: Duration = Duration::from_secs(1);
/// First pause before a lock that another session holds is requested again. It doubles with each attempt, to at most 16
/// times its length.
const LOCK_PAUSE: Duration = Duration::from_micros(250);
/// Slot in the ids of raw ops. Servers remember no results for it.
const NO_SLOT: u8 = u8::MAX;

/// Locks and changelog entries that concurrent writes of this session share, by shard.
#[derive(Debug, Default)]
pub(super) struct RawLanes {
    shards: Mutex<HashMap<ShardId, ShardState>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ShardState {
    lock: Shared,
    mark: Shared,
}

impl ShardState {
    fn part(&mut self, which: Which) -> &mut Shared {
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

/// A lock or a changelog entry that all members have.
#[derive(Debug)]
struct Shared {
    state: State,
    op: OpId,
    /// Writes that use it.
    users: u32,
    /// When it was last used.
    used: Instant,
}

impl Default for Shared {
    fn default() -> Self {
        Self { state: State::Absent, op: OpId(0), users: 0, used: now() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    /// A thread acquires or releases it.
    Changing,
    Held,
    /// Held, and to be released when its last user is done.
    Releasing,
}

/// What the members replied to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Done, and another session waits for the lock.
    Wanted,
    /// Another session has the lock.
    Busy,
    /// Not executed by all members.
    Refused,
}

/// The members that a shard's writes go to.
struct Lane<'a> {
    replicate: &'a Replicate,
    map: &'a VolumeMap,
    shard: ShardId,
    epoch: Epoch,
    servers: Vec<(ServerId, Vec<BrickId>)>,
}

impl Replicate {
    /// Writes outside of the log, if the volume's mode says so. True if the data was written.
    pub(crate) fn write_raw(&self, context: &Context, shard: ShardId, offset: u32, bytes: &Bytes) -> Result<bool> {
        let map = self.map();
        if !map.mode.is_raw() || !context.durable || bytes.len() > RAW_BYTES_MAX {
            return Ok(false);
        }
        let Some(lane) = self.raw_lane(&map, shard) else { return Ok(false) };
        let write = RawStep::Write { offset, bytes: bytes.clone() };
        match map.mode {
            Mode::Afr { eager_lock, piggyback } => {
                let options = AfrOptions { eager_lock, piggyback };
                let range = ShardSpan { offset, length: bytes.len() as u32 };
                lane.write_afr(context, options, range, write)
            }
            _ => Ok(lane.send_step(context, self.raw_id(), &write)? == Outcome::Done),
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

    /// Releases eager locks that were idle for 1 s, or with `all` every idle one.
    pub(crate) fn release_raw_locks(&self, context: &Context, all: bool) {
        let is_idle =
            |shared: &Shared| shared.users == 0 && shared.state == State::Held && (all || elapsed(shared.used) > IDLE);
        let idle: Vec<ShardId> = {
            let shards = self.raw.shards.lock();
            shards.iter().filter(|(_, state)| is_idle(&state.lock)).map(|(shard, _)| *shard).collect()
        };
        let map = self.map();
        for lane in idle.into_iter().filter_map(|shard| self.raw_lane(&map, shard)) {
            // A lock that cannot be released now ends with the session.
            let _ = lane.release(context, Which::Mark, &RawStep::Clear);
            let _ = lane.release(context, Which::Lock, &RawStep::Unlock);
        }
    }
}

/// This program, built with the feature `measuring`, writes to volumes of every mode.
///
/// # Errors
/// Never: `Result` is there for the function of the same name in `raw_absent.rs`.
pub fn check_mode(_: Mode) -> Result<()> {
    Ok(())
}

/// Options of mode `afr`.
#[derive(Clone, Copy)]
struct AfrOptions {
    eager_lock: bool,
    piggyback: bool,
}

/// A range of a shard, in bytes.
#[derive(Clone, Copy)]
struct ShardSpan {
    offset: u32,
    length: u32,
}

impl Lane<'_> {
    fn write_afr(&self, context: &Context, options: AfrOptions, range: ShardSpan, write: RawStep) -> Result<bool> {
        let AfrOptions { eager_lock, piggyback } = options;
        let whole = ShardSpan { offset: 0, length: SHARD_BYTES as u32 };
        let own = self.replicate.raw_id();
        let lock = |range: ShardSpan| {
            let step = RawStep::Lock { offset: range.offset, length: range.length };
            move |op| self.lock(context, op, &step)
        };
        let mark = |range: ShardSpan| {
            let step = RawStep::Mark { offset: range.offset, length: range.length };
            move |op| Ok(self.send_step(context, op, &step)? == Outcome::Done)
        };
        let is_locked = match eager_lock {
            true => self.share(Which::Lock, lock(whole))?,
            false => lock(range)(own)?,
        };
        if !is_locked {
            return Ok(false);
        }
        let is_marked = match piggyback {
            true => self.share(Which::Mark, mark(whole))?,
            false => mark(range)(own)?,
        };
        let outcome = if is_marked { self.send_step(context, own, &write)? } else { Outcome::Refused };
        let (is_done, is_wanted) = (matches!(outcome, Outcome::Done | Outcome::Wanted), outcome == Outcome::Wanted);
        // A write that some members lack stays in the changelog of the others.
        let stays = eager_lock && !is_wanted;
        match (piggyback, is_marked && is_done) {
            (true, true) => self.finish_use(context, Which::Mark, &RawStep::Clear, stays)?,
            (false, true) => drop(self.send_step(context, own, &RawStep::Clear)?),
            (_, false) => {}
        }
        match eager_lock {
            true => self.finish_use(context, Which::Lock, &RawStep::Unlock, stays)?,
            false => drop(self.send_step(context, own, &RawStep::Unlock)?),
        }
        Ok(is_done)
    }

    /// Locks at all members, or at none. True if locked.
    fn lock(&self, context: &Context, op: OpId, step: &RawStep) -> Result<bool> {
        let mut tries = 0;
        loop {
            match self.send_step(context, op, step)? {
                Outcome::Done | Outcome::Wanted => return Ok(true),
                outcome => {
                    self.send_step(context, op, &RawStep::Unlock)?;
                    if outcome == Outcome::Refused || self.replicate.gave_up(context) {
                        return Ok(false);
                    }
                    // Sessions that want the same lock must not retry at the same time.
                    let apart = 1 + op.0 % 3;
                    hekate_threads::sleep(LOCK_PAUSE * (apart as u32) * (1 << tries));
                    tries = (tries + 1).min(4);
                }
            }
        }
    }

    /// Uses a lock or entry that another write of the session holds, or acquires it. True if it is held.
    fn share(&self, which: Which, make: impl FnOnce(OpId) -> Result<bool>) -> Result<bool> {
        let raw = &self.replicate.raw;
        let mut shards = raw.shards.lock();
        loop {
            let shared = shards.entry(self.shard).or_default().part(which);
            match shared.state {
                State::Held => {
                    shared.users += 1;
                    return Ok(true);
                }
                State::Absent => {
                    shared.state = State::Changing;
                    break;
                }
                State::Changing | State::Releasing => raw.changed.wait(&mut shards),
            }
        }
        drop(shards);
        let op = self.replicate.raw_id();
        let made = make(op);
        let is_made = matches!(made, Ok(true));
        let state = if is_made { State::Held } else { State::Absent };
        self.set(which, Shared { state, op, users: u32::from(is_made), used: now() });
        made
    }

    /// Ends one use of a lock or entry. The last user releases it, unless `stays` is set: then it is kept for the next
    /// write.
    fn finish_use(&self, context: &Context, which: Which, undo: &RawStep, stays: bool) -> Result<()> {
        {
            let mut shards = self.replicate.raw.shards.lock();
            let shared = shards.entry(self.shard).or_default().part(which);
            (shared.users, shared.used) = (shared.users.saturating_sub(1), now());
            if !stays {
                shared.state = State::Releasing;
            }
            if shared.users > 0 || shared.state != State::Releasing {
                return Ok(());
            }
            // `release` expects it to be held.
            shared.state = State::Held;
        }
        self.release(context, which, undo)
    }

    /// Releases a lock or entry without users.
    fn release(&self, context: &Context, which: Which, undo: &RawStep) -> Result<()> {
        let op = {
            let mut shards = self.replicate.raw.shards.lock();
            let shared = shards.entry(self.shard).or_default().part(which);
            if shared.users > 0 || shared.state != State::Held {
                return Ok(());
            }
            shared.state = State::Changing;
            shared.op
        };
        let outcome = self.send_step(context, op, undo);
        self.set(which, Shared::default());
        outcome.map(drop)
    }

    fn set(&self, which: Which, shared: Shared) {
        let raw = &self.replicate.raw;
        let mut shards = raw.shards.lock();
        let state = shards.entry(self.shard).or_default();
        *state.part(which) = shared;
        if state.lock.state == State::Absent && state.mark.state == State::Absent {
            shards.remove(&self.shard);
        }
        drop(shards);
        raw.changed.notify_all();
    }

    /// Sends one step to all members at once and waits for their replies.
    fn send_step(&self, context: &Context, op_id: OpId, step: &RawStep) -> Result<Outcome> {
        let Self { replicate, map, shard, epoch, servers } = self;
        let gave_up = || replicate.gave_up(context);
        // The other steps are in the same journal before the write, so its sync covers them.
        let is_durable = matches!(step, RawStep::Write { .. });
        let request = |brick: BrickId| {
            let partition = map.partition_of(shard.position());
            let target = Target::Replica { ring: map.ring, partition, epoch: *epoch, brick };
            let (volume, session) = (map.volume, replicate.session);
            let op = Op::Data { op: DataOp::RawWrite { data: shard.data, index: shard.index, step: step.clone() } };
            Request { volume, target, session, op_id, durable: is_durable, retry: false, pledge: false, op }
        };
        let (mut sent, mut outcome) = (Vec::with_capacity(servers.len()), Outcome::Done);
        for (server, bricks) in servers {
            let requests: Vec<Request> = bricks.iter().copied().map(request).collect();
            match replicate.servers.begin(*server, &requests, &gave_up) {
                Ok(batch) => sent.push(batch),
                Err(_) => outcome = Outcome::Refused,
            }
        }
        for batch in sent {
            let replies = match batch.finish(&gave_up) {
                Ok(replies) => replies,
                Err(_) => vec![Err(Error::Unavailable { what: "a member did not reply".into() })],
            };
            for reply in replies {
                outcome = match (outcome, reply) {
                    (Outcome::Refused, _) => Outcome::Refused,
                    (outcome, Ok(Reply::Done)) => outcome,
                    (Outcome::Done, Ok(Reply::Waiting { .. })) => Outcome::Wanted,
                    (outcome, Ok(Reply::Waiting { .. })) => outcome,
                    (_, Err(Error::WouldBlock | Error::Skipped)) => Outcome::Busy,
                    _ => Outcome::Refused,
                };
            }
        }
        Ok(outcome)
    }
}
