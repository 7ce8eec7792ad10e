//! One server process: it hosts the replicas of its bricks as the real server does, but without threads, sockets and
//! clocks. Its requests to the world are collected in `effects`.

use super::clock::Clock;
use super::coordinator::{RING, VOLUME};
use super::keeper::Lease;
use super::threads::MessageNumber;
use hekate_brick::Brick;
use hekate_proto::map::View;
use hekate_proto::*;
use hekate_replica::{Address, Ask, Envelope, Event, Message, Out, Partition, Retention, SyncJob, Token};
use hekate_transport::link::{self, Boot, Generation, Link, LinkSettings, Output, Packet};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A client's batch: its requests are carried out in order.
struct Batch {
    left: VecDeque<Request>,
    replies: Vec<Result<Reply>>,
}

/// A request of a process to the world.
#[derive(Debug)]
pub enum Effect {
    Transmit(ServerId, Packet),
    /// A message that arrived, or was sent within the process, to be delivered after a delay.
    Deliver(Option<(ServerId, Generation)>, Envelope),
    Sync(SyncJob),
    /// A sync of a whole brick for a client, which is answered afterwards.
    SyncAll {
        brick: BrickId,
        batch: MessageNumber,
        reply: Reply,
    },
    Checkpoint(BrickId),
    Answer(MessageNumber, Vec<Result<Reply>>),
    Orphan(VolumeId, InodeId),
    /// A rarely taken branch.
    Branch(&'static str),
}

/// A request in progress in a partition.
struct Pending {
    batch: Option<MessageNumber>,
    /// It must be on stable storage before the answer: these shards, by this replica.
    durable: Option<(Address, Vec<ShardId>)>,
    /// The answer to send then.
    reply: Option<Result<Reply>>,
    /// It must be on stable storage of this brick only.
    alone: Option<BrickId>,
}

struct Peer {
    link: Link,
    generation: Option<Generation>,
    bricks: Vec<BrickId>,
}

/// A server process.
pub struct Process {
    pub boot: Boot,
    pub bricks: BTreeMap<BrickId, Arc<Brick>>,
    pub partitions: BTreeMap<Address, Partition>,
    pub views: Vec<View>,
    peers: BTreeMap<ServerId, Peer>,
    /// The server of each brick.
    places: BTreeMap<BrickId, ServerId>,
    pending: BTreeMap<Token, Pending>,
    tokens: u64,
    retention: BTreeMap<BrickId, Retention>,
    checkpointing: BTreeMap<BrickId, bool>,
    batches: BTreeMap<MessageNumber, Batch>,
    pub clock: Clock,
    spread_max: u32,
    pub lease: Lease,
    /// Time of the last leg sent to another server.
    pub leg_sent: Option<u64>,
    pub effects: Vec<Effect>,
}

/// The parts of a process.
pub struct Parts {
    pub server: ServerId,
    pub boot: Boot,
    pub bricks: BTreeMap<BrickId, Arc<Brick>>,
    pub retention: BTreeMap<BrickId, Retention>,
    pub views: Vec<View>,
    pub places: BTreeMap<BrickId, ServerId>,
    pub link: LinkSettings,
    pub clock: Clock,
    pub spread_max: u32,
    pub lease: Lease,
}

impl Process {
    /// A process whose replicas are not started yet.
    pub fn new(parts: Parts) -> Self {
        let Parts { server, boot, bricks, retention, views, places, link, clock, spread_max, lease } = parts;
        let mut peers = BTreeMap::new();
        for (brick, at) in places.iter().filter(|(_, at)| **at != server) {
            let new =
                || Peer { link: Link::new((server, boot), *at, link.clone()), generation: None, bricks: Vec::new() };
            peers.entry(*at).or_insert_with(new).bricks.push(*brick);
        }
        Self {
            boot,
            bricks,
            partitions: BTreeMap::new(),
            views,
            peers,
            places,
            pending: BTreeMap::new(),
            tokens: 0,
            retention,
            checkpointing: BTreeMap::new(),
            batches: BTreeMap::new(),
            clock,
            spread_max,
            lease,
            leg_sent: None,
            effects: Vec::new(),
        }
    }

    /// Takes the replicas, starts them, and opens the links.
    pub fn start(&mut self, partitions: Vec<Partition>, now: u64) {
        self.partitions = partitions.into_iter().map(|partition| (partition.address(), partition)).collect();
        self.all(&Event::Start, now);
        self.links(now, |link, now, out| link.connected(now, out));
    }

    fn all(&mut self, event: &Event, now: u64) {
        let addresses: Vec<Address> = self.partitions.keys().copied().collect();
        addresses.into_iter().for_each(|address| self.event(address, event.clone(), now));
    }

    fn time(&self, now: u64) -> Time {
        self.clock.time(now)
    }

    /// Passes an event to a replica.
    pub fn event(&mut self, address: Address, event: Event, now: u64) {
        let (time, mut out) = (self.time(now), Out::default());
        let (Some(partition), Some(brick)) = (self.partitions.get_mut(&address), self.bricks.get(&address.brick))
        else {
            return;
        };
        let around = hekate_replica::Around { brick, views: &self.views, now: time };
        partition.handle(event, &around, &mut out);
        if out.wants_room {
            self.wants_checkpoint(address.brick);
        }
        self.lease.ready.extend(out.open);
        out.sends.into_iter().for_each(|envelope| self.send(envelope, now));
        self.effects.extend(out.branches.into_iter().map(Effect::Branch));
        self.effects.extend(out.syncs.into_iter().map(Effect::Sync));
        self.effects.extend(out.orphans.into_iter().map(|(volume, inode)| Effect::Orphan(volume, inode)));
        out.answers.into_iter().for_each(|(token, reply)| self.answered(token, reply, now));
    }

    /// Sends a message to the server of its brick.
    fn send(&mut self, envelope: Envelope, now: u64) {
        let to = envelope.to.brick;
        if self.bricks.contains_key(&to) {
            return self.effects.push(Effect::Deliver(None, envelope));
        }
        if matches!(envelope.message, Message::Leg { .. }) {
            self.leg_sent = Some(now);
        }
        let Some(server) = self.places.get(&to).copied() else { return };
        let Some(peer) = self.peers.get_mut(&server) else { return };
        let mut out = Vec::new();
        // A refused message is requested again when the link is up.
        let _ = peer.link.send(envelope.to_bytes(), Duration::from_micros(now), &mut out);
        self.link_outputs(server, out, now);
    }

    fn links(&mut self, now: u64, mut act: impl FnMut(&mut Link, Duration, &mut Vec<Output>)) {
        let servers: Vec<ServerId> = self.peers.keys().copied().collect();
        for server in servers {
            let mut out = Vec::new();
            if let Some(peer) = self.peers.get_mut(&server) {
                act(&mut peer.link, Duration::from_micros(now), &mut out);
            }
            self.link_outputs(server, out, now);
        }
    }

    fn link_outputs(&mut self, server: ServerId, outputs: Vec<Output>, now: u64) {
        for output in outputs {
            match output {
                Output::Transmit(packet) => self.effects.push(Effect::Transmit(server, packet)),
                Output::Event(event) => self.link_event(server, event, now),
            }
        }
    }

    fn link_event(&mut self, server: ServerId, event: link::Event, now: u64) {
        let Some(peer) = self.peers.get_mut(&server) else { return };
        let bricks = peer.bricks.clone();
        match event {
            link::Event::Up { generation, .. } => {
                peer.generation = Some(generation);
                self.all(&Event::Up { bricks }, now);
            }
            link::Event::Down(_) => {
                peer.generation = None;
                self.all(&Event::Down { bricks }, now);
            }
            link::Event::Message(bytes) => {
                let Some(generation) = peer.generation else { return };
                if let Ok(envelope) = Envelope::from_bytes(bytes) {
                    self.effects.push(Effect::Deliver(Some((server, generation)), envelope));
                }
            }
        }
    }

    /// Receives a packet from a server.
    pub fn packet(&mut self, from: ServerId, packet: Packet, now: u64) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let mut out = Vec::new();
        peer.link.receive(packet, Duration::from_micros(now), &mut out);
        self.link_outputs(from, out, now);
    }

    /// Resets the connection to a server.
    pub fn reset_link(&mut self, server: ServerId, now: u64) {
        let Some(peer) = self.peers.get_mut(&server) else { return };
        let mut out = Vec::new();
        peer.link.disconnected();
        peer.link.connected(Duration::from_micros(now), &mut out);
        self.link_outputs(server, out, now);
    }

    /// Delivers a message, unless the link's generation that brought it is over.
    pub fn deliver(&mut self, from: Option<(ServerId, Generation)>, envelope: Envelope, now: u64) {
        if let Some((server, generation)) = from
            && self.peers.get(&server).and_then(|peer| peer.generation) != Some(generation)
        {
            return;
        }
        self.event(envelope.to, Event::Message(envelope), now);
    }

    /// Releases journal records that all members have on stable storage; asks the members about the rest.
    fn retain(&mut self, id: BrickId, now: u64) {
        let (Some(retention), Some(brick)) = (self.retention.get_mut(&id), self.bricks.get(&id)) else { return };
        let partitions = &self.partitions;
        let stable = |_, partition| partitions.get(&Address { partition, brick: id }).map(Partition::stable);
        if let Some(upto) = retention.advance(stable) {
            brick.retain_from(upto);
        }
        let behind = retention.behind(stable);
        for (_, partition) in behind {
            self.event(Address { partition, brick: id }, Event::Stabilize, now);
        }
    }

    fn room(&mut self, brick: BrickId, now: u64) {
        let addresses: Vec<Address> = self.partitions.keys().copied().filter(|at| at.brick == brick).collect();
        addresses.into_iter().for_each(|address| self.event(address, Event::Room, now));
    }

    fn wants_checkpoint(&mut self, brick: BrickId) {
        let running = self.checkpointing.entry(brick).or_insert(false);
        if !*running {
            *running = true;
            self.effects.push(Effect::Checkpoint(brick));
        }
    }

    /// Writes a checkpoint of a brick, and begins to find out which journal records can be released.
    ///
    /// # Errors
    ///
    /// The brick has failed.
    pub fn checkpoint(&mut self, id: BrickId, now: u64) -> Result<()> {
        self.checkpointing.insert(id, false);
        let Some(brick) = self.bricks.get(&id) else { return Ok(()) };
        brick.refresh_room()?;
        if let Some(retention) = self.retention.get_mut(&id) {
            retention.mark_end(brick);
        }
        match brick.checkpoint() {
            // The checkpoint is stalled, and repeated with the next tick.
            Err(Error::NoSpace { .. }) => return Ok(()),
            written => written?,
        }
        brick.refresh_room()?;
        self.retain(id, now);
        self.room(id, now);
        Ok(())
    }

    /// Advances time.
    pub fn tick(&mut self, now: u64) {
        self.links(now, |link, now, out| link.tick(now, out));
        self.all(&Event::Tick, now);
        for id in self.bricks.keys().copied().collect::<Vec<_>>() {
            self.look_after(id, now);
        }
    }

    fn look_after(&mut self, id: BrickId, now: u64) {
        let (Some(brick), Some(retention)) = (self.bricks.get(&id), self.retention.get_mut(&id)) else { return };
        retention.look(brick);
        let wants_checkpoint = brick.wants_checkpoint() || brick.stalled().is_some();
        if retention.is_waiting() {
            self.retain(id, now);
            self.room(id, now);
        }
        if wants_checkpoint {
            self.wants_checkpoint(id);
        }
    }

    /// Installs new views.
    pub fn learn_views(&mut self, views: &[View], now: u64) {
        if self.views != views {
            self.views = views.to_vec();
            self.all(&Event::View, now);
        }
    }

    /// Puts another brick into the place of one of a server.
    pub fn replace_brick(&mut self, old: BrickId, new: BrickId, server: ServerId) {
        self.places.remove(&old);
        self.places.insert(new, server);
        if let Some(peer) = self.peers.get_mut(&server) {
            peer.bricks.retain(|brick| *brick != old);
            peer.bricks.push(new);
        }
    }

    fn token(&mut self, pending: Pending) -> Token {
        self.tokens += 1;
        self.pending.insert(Token(self.tokens), pending);
        Token(self.tokens)
    }

    /// Receives a client's batch.
    pub fn batch(&mut self, batch: MessageNumber, requests: Vec<Request>, now: u64) {
        self.batches.insert(batch, Batch { left: requests.into(), replies: Vec::new() });
        self.next_request(batch, now);
    }

    fn next_request(&mut self, number: MessageNumber, now: u64) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if let Some(request) = batch.left.pop_front() {
            return self.request(number, request, now);
        }
        if let Some(batch) = self.batches.remove(&number) {
            self.effects.push(Effect::Answer(number, batch.replies));
        }
    }

    /// The reply to the request of a batch that was carried out last.
    pub fn replied(&mut self, number: MessageNumber, reply: Result<Reply>, now: u64) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if reply.is_err() {
            let skipped = batch.left.drain(..).count();
            batch.replies.push(reply);
            batch.replies.extend((0..skipped).map(|_| Err(Error::Skipped)));
        } else {
            batch.replies.push(reply);
        }
        self.next_request(number, now);
    }

    fn request(&mut self, batch: MessageNumber, request: Request, now: u64) {
        match request.target {
            Target::Replica { partition, epoch, brick, .. } => {
                self.fast_write(batch, request, (Address { partition, brick }, epoch), now)
            }
            Target::Partition { partition, epoch, .. } => self.partition_op(batch, request, partition, epoch, now),
            Target::Brick { brick } if self.bricks.contains_key(&brick) => {
                let is_it = |life: &Incarnation| self.bricks[&brick].incarnation() == *life;
                match &request.op {
                    Op::Data { op: DataOp::Sync { incarnation, .. } } if is_it(incarnation) => {
                        self.effects.push(Effect::SyncAll { brick, batch, reply: Reply::Done });
                    }
                    _ => self.replied(batch, Err(Error::StaleView { epoch: Epoch(0) }), now),
                }
            }
            Target::Brick { .. } => self.replied(batch, Err(away()), now),
            Target::Server => {
                let reply = match request.op {
                    Op::Volume { op: VolumeOp::Heartbeat { .. } } => {
                        Reply::Orphans { inodes: Vec::new(), unrestored: Vec::new() }
                    }
                    _ => Reply::Done,
                };
                self.replied(batch, Ok(reply), now);
            }
        }
    }

    fn partition_op(
        &mut self,
        batch: MessageNumber,
        request: Request,
        partition: PartitionNumber,
        epoch: Epoch,
        now: u64,
    ) {
        let led = |view: &View| Address { partition, brick: view.leader };
        let address = self.views.get(partition.0 as usize).map(led);
        let found = address.and_then(|at| Some((at, self.partitions.get(&at)?)));
        let Some((address, replica)) = found else {
            return self.replied(batch, Err(away()), now);
        };
        let known = replica.view().epoch;
        // Without a lease the answer is as for a stale view: the client asks another replica.
        if known != epoch || !self.lease.is_valid(now) {
            return self.replied(batch, Err(Error::StaleView { epoch: known }), now);
        }
        let Request { session, op_id, durable, op, .. } = request;
        let count = self.views.len() as u32;
        let ask = Ask {
            // Some requests are made durable with their record, others afterwards, as in a batch of several.
            durable: durable && batch.is_multiple_of(2),
            loose: !durable,
            spread: spread_of(&op, count.min(self.spread_max)),
            ..Ask::new(RING, count, VOLUME, (session, op_id), self.time(now))
        };
        if op.is_read() {
            let around =
                hekate_replica::Around { brick: &self.bricks[&address.brick], views: &self.views, now: ask.now };
            if let Some(reply) = replica.read(&around, &ask, &op) {
                return self.replied(batch, reply, now);
            }
        }
        let shards = match &op {
            Op::Data { op: DataOp::WriteShard { data, index, .. } } => {
                vec![ShardId { volume: VOLUME, data: *data, index: *index }]
            }
            _ => Vec::new(),
        };
        let durable = (durable && !ask.durable).then_some((address, shards));
        let token = self.token(Pending { batch: Some(batch), durable, reply: None, alone: None });
        self.event(address, Event::Request { token, ask, op }, now);
    }

    /// A member's part of a write that its client sends to all.
    fn fast_write(&mut self, batch: MessageNumber, request: Request, (to, epoch): (Address, Epoch), now: u64) {
        let known = self.partitions.get(&to).map(|replica| replica.view().epoch);
        if known != Some(epoch) {
            return self.replied(batch, Err(Error::StaleView { epoch: known.unwrap_or_default() }), now);
        }
        let Request { session, op_id, op, durable, .. } = request;
        let (count, now_there) = (self.views.len() as u32, self.time(now));
        let ask = Ask { loose: !durable, ..Ask::new(RING, count, VOLUME, (session, op_id), now_there) };
        let alone = durable.then_some(to.brick);
        let token = self.token(Pending { batch: Some(batch), durable: None, reply: None, alone });
        self.event(to, Event::Request { token, ask, op }, now);
    }

    fn answered(&mut self, token: Token, reply: Result<Reply>, now: u64) {
        let Some(pending) = self.pending.remove(&token) else { return };
        let reply = match (reply, pending.reply) {
            (Ok(_), Some(first)) => first,
            (reply, _) => reply,
        };
        let Some(batch) = pending.batch else { return };
        if let (Some(brick), Ok(reply)) = (pending.alone, &reply) {
            return self.effects.push(Effect::SyncAll { brick, batch, reply: reply.clone() });
        }
        match pending.durable {
            Some((address, shards)) if reply.is_ok() => {
                let token = self.token(Pending { batch: Some(batch), durable: None, reply: Some(reply), alone: None });
                self.event(address, Event::Sync { token, shards, own: false }, now);
            }
            _ => self.replied(batch, reply, now),
        }
    }

    /// Makes a change of the host's own.
    pub fn change(&mut self, address: Address, commit: hekate_replica::Commit, now: u64) {
        let token = self.token(Pending { batch: None, durable: None, reply: None, alone: None });
        self.event(address, Event::Change { token, commit: Box::new(commit) }, now);
    }

    /// Makes a change of the host's own whose precondition was just checked.
    pub fn change_now(&mut self, address: Address, commit: hekate_replica::Commit, now: u64) {
        let token = self.token(Pending { batch: None, durable: None, reply: None, alone: None });
        self.event(address, Event::ChangeNow { token, commit: Box::new(commit) }, now);
    }

    /// True if nothing is in progress.
    pub fn is_idle(&self) -> bool {
        self.partitions.values().all(|partition| partition.is_idle() && partition.failure().is_none())
    }

    /// Bricks whose journals wait for syncs of other members.
    pub fn waiting_journals(&self) -> Vec<BrickId> {
        self.retention.iter().filter(|(_, retention)| retention.is_waiting()).map(|(brick, _)| *brick).collect()
    }

    /// The work in progress, as text.
    pub fn what_is_left(&self) -> Vec<String> {
        let busy = self.partitions.values().filter(|one| !one.is_idle() || one.failure().is_some());
        busy.map(|one| {
            format!("{:?} waits for {:?}, failed {:?}: {one:?}", one.address(), one.waits_for(), one.failure())
        })
        .collect()
    }
}

fn away() -> Error {
    Error::Unavailable { what: "it is not here".into() }
}

/// The number of partitions that a new directory's names begin with, from the id of its inode.
fn spread_of(op: &Op, most: u32) -> u32 {
    match op {
        Op::Name { op: NameOp::Create { node: NewNode::Directory, seed, .. } } => (1 << (seed % 4)).min(most),
        _ => 1,
    }
}
