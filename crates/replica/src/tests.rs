//! A ring of partitions on three bricks in memory, with a checker of what they hold. Tests that belong to no other file
//! are here too.
//!
//! The checker reads what the bricks hold and knows nothing of the ops that led there: every name leads to an inode,
//! link counts equal the number of names, a directory's counts equal its names, no inode is without a name, and both
//! replicas of every partition hold the same data.

mod attributes;
mod clocks;
mod closing;
mod compare;
mod drive;
mod ends;
mod fast;
mod feed;
mod growing;
mod heal;
mod invariants;
mod lane;
mod learner;
mod legs;
mod level;
mod log_progress;
mod loose;
mod lost_blocks;
mod lost_records;
mod mappings;
mod member_copy;
mod model;
mod names;
mod objects;
mod proof;
mod raw;
mod reads;
mod retries;
mod room;
mod serve;
mod space;
mod starving;
mod stuck;
mod times;
mod truncate;

use crate::*;
use bytes::Bytes;
use hekate_brick::storage::MemoryStorage;
use hekate_brick::{Brick, BrickSettings, Identity};
use hekate_proto::map::{Member, View};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const RING: RingId = RingId(1);
const VOLUME: VolumeId = VolumeId(1);
const COUNT: u32 = 8;
const BRICKS: u32 = 3;

/// All partitions, each on two of the bricks, in one process. Messages from one replica to another arrive in order.
struct TestRing {
    bricks: Vec<Brick>,
    views: Vec<View>,
    partitions: BTreeMap<Address, Partition>,
    queue: VecDeque<Envelope>,
    /// Messages to this replica are held back.
    held_back: Option<(Address, Vec<Envelope>)>,
    answers: BTreeMap<Token, Result<Reply>>,
    notes: Vec<String>,
    /// Views that may begin.
    opens: BTreeSet<(PartitionNumber, Epoch)>,
    /// Replicas whose brick has to write a checkpoint.
    wanting: BTreeSet<Address>,
    branches: BTreeSet<&'static str>,
    sent_to_learners: u64,
    /// The number of comparisons that leaders have begun.
    compared: usize,
    /// Messages that are delivered before the process dies.
    messages_left: u64,
    op_id: u64,
    /// Sessions that were there before leaders begin.
    sessions: Vec<SessionId>,
    clock: i64,
    /// The spread of directories that are made next.
    spread: u32,
    /// The spreads that a client knows. It takes an unknown one for 1.
    spreads: HashMap<InodeId, u32>,
}

fn views() -> Vec<View> {
    let member = |brick: u32| Member { brick: BrickId(u128::from(brick % BRICKS)), incarnation: Incarnation(1) };
    let view =
        |number| View::new(Epoch(1), BrickId(u128::from(number % BRICKS)), vec![member(number), member(number + 1)]);
    (0..COUNT).map(view).collect()
}

fn storages() -> Vec<MemoryStorage> {
    (0..BRICKS).map(|_| MemoryStorage::new()).collect()
}

fn open(storages: &[MemoryStorage]) -> TestRing {
    open_with(storages, 512 << 10)
}

fn open_with(storages: &[MemoryStorage], segment_bytes: u64) -> TestRing {
    let fresh = storages[0].paths().is_empty();
    ring_of(bricks_on(storages, segment_bytes), fresh)
}

fn bricks_on(storages: &[MemoryStorage], segment_bytes: u64) -> Vec<Brick> {
    let fresh = storages[0].paths().is_empty();
    let brick = |(number, storage): (usize, &MemoryStorage)| brick_on(number, storage, segment_bytes, fresh);
    storages.iter().enumerate().map(brick).collect()
}

fn brick_on(number: usize, storage: &MemoryStorage, segment_bytes: u64, fresh: bool) -> Brick {
    let settings = BrickSettings { journal_segments: 4, segment_bytes, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    let identity = Identity::new(BrickId(number as u128), "c", settings);
    if fresh {
        Brick::create_on(storage, &identity).unwrap();
    }
    Brick::open_on(Arc::new(storage.clone()), &identity, Incarnation(1), false).unwrap().0
}

/// A ring on these bricks. `fresh`: it gets a root directory.
fn ring_of(bricks: Vec<Brick>, fresh: bool) -> TestRing {
    let mut ring = unstarted(bricks);
    ring.start();
    if fresh {
        let changes = root_directory(&ring.ask(), 0, 0);
        let commit = Commit { changes, ..Commit::default() };
        let at = ring.leader(ROOT.position());
        ring.tell(at, Event::Change { token: Token(0), commit: Box::new(commit) });
        assert_eq!(ring.answers.remove(&Token(0)), Some(Ok(Reply::Done)));
    }
    ring
}

fn unstarted(bricks: Vec<Brick>) -> TestRing {
    let (views, partitions) = (views(), BTreeMap::new());
    let (queue, answers, notes, compared) = Default::default();
    let (opens, wanting, branches, sent_to_learners) = Default::default();
    TestRing {
        bricks,
        views,
        partitions,
        queue,
        held_back: None,
        answers,
        notes,
        opens,
        wanting,
        branches,
        sent_to_learners,
        compared,
        messages_left: u64::MAX,
        op_id: 0,
        sessions: Vec::new(),
        clock: 0,
        spread: 1,
        spreads: HashMap::new(),
    }
}

impl TestRing {
    fn around<'a>(bricks: &'a [Brick], views: &'a [View], address: Address, now: i64) -> Around<'a> {
        Around {
            brick: &bricks[address.brick.0 as usize],
            views,
            now: Time(now),
            elapsed: Duration::from_nanos(now as u64),
        }
    }

    fn start(&mut self) {
        self.start_all();
        assert!(
            self.partitions.values().filter(|one| one.address().brick == one.view().leader).all(|one| one.serves())
        );
    }

    fn start_all(&mut self) {
        let all: Vec<BrickId> = (0..BRICKS).map(|brick| BrickId(u128::from(brick))).collect();
        // The brick's record of replicas that wait for room is lost with its process.
        for address in self.partitions.keys() {
            self.bricks[address.brick.0 as usize].note_starving(RING, address.partition, false);
        }
        self.partitions.clear();
        self.host_all();
        let addresses: Vec<Address> = self.partitions.keys().copied().collect();
        addresses.iter().for_each(|address| self.tell(*address, Event::Start));
        addresses.iter().for_each(|address| self.tell(*address, Event::Up { bricks: all.clone() }));
        (0..20).for_each(|_| self.tick());
    }

    /// Makes the replicas that the views name and that do not exist yet.
    fn host_all(&mut self) {
        for (number, view) in self.views.iter().enumerate() {
            for member in view.all() {
                let address = Address { partition: PartitionNumber(number as u32), brick: member.brick };
                let around = Self::around(&self.bricks, &self.views, address, 0);
                let new = || Partition::new(RING, address, &around, Vec::new()).unwrap();
                self.partitions.entry(address).or_insert_with(new);
            }
        }
    }

    fn tick(&mut self) {
        self.clock += 100_000_000;
        if !self.wanting.is_empty() {
            self.write_home();
        }
        let addresses: Vec<Address> = self.partitions.keys().copied().collect();
        addresses.into_iter().for_each(|address| self.tell(address, Event::Tick));
    }

    /// Handles an event and all that follows from it.
    fn tell(&mut self, address: Address, event: Event) {
        self.handle(address, event);
        self.deliver();
        // A replica without room continues with a tick.
        for _ in 0..4 {
            let wanting = std::mem::take(&mut self.wanting);
            if wanting.is_empty() || self.messages_left == 0 {
                return;
            }
            self.write_home();
            wanting.into_iter().for_each(|address| self.handle(address, Event::Room));
            self.deliver();
        }
    }

    /// Writes checkpoints. No message is in flight, so the whole journal may be discarded, unless the process is about
    /// to die.
    fn write_home(&mut self) {
        for brick in &self.bricks {
            if self.messages_left == u64::MAX {
                brick.retain_from(brick.end());
            }
            brick.checkpoint().unwrap();
        }
    }

    fn deliver(&mut self) {
        while let Some(envelope) = self.queue.pop_front() {
            if self.messages_left == 0 {
                self.queue.clear();
                return;
            }
            // Without a death to come the number of messages has no limit.
            if self.messages_left != u64::MAX {
                self.messages_left -= 1;
            }
            if let Some((_, held)) = self.held_back.as_mut().filter(|(to, _)| *to == envelope.to) {
                held.push(envelope);
                continue;
            }
            // Messages between servers are encoded.
            let envelope = Envelope::from_bytes(envelope.to_bytes()).unwrap();
            self.handle(envelope.to, Event::Message(envelope));
        }
    }

    fn handle(&mut self, address: Address, event: Event) {
        let mut out = Out::default();
        let around = Self::around(&self.bricks, &self.views, address, self.clock);
        let Some(partition) = self.partitions.get_mut(&address) else { return };
        partition.handle(event, &around, &mut out);
        self.queue.extend(out.sends);
        self.answers.extend(out.answers);
        self.notes.extend(out.notes);
        self.opens.extend(out.open);
        self.branches.extend(&out.branches);
        self.sent_to_learners = self.sent_to_learners.max(partition.healing().iter().map(|one| one.sent).sum());
        self.compared += out.branches.iter().filter(|branch| branch.ends_with("replicas are compared")).count();
        for job in out.syncs {
            let brick = &self.bricks[job.replica.brick.0 as usize];
            let outcome = brick.sync_shards(&job.shards).and_then(|_| brick.sync(brick.end()));
            self.handle(job.replica, Event::Synced { ticket: job.ticket, outcome });
        }
        if out.wants_room {
            self.wanting.insert(address);
        }
        if let Some(epoch) = self.partitions.get(&address).and_then(Partition::wants_sessions) {
            self.handle(address, Event::Sessions { epoch, sessions: self.sessions.clone() });
        }
    }

    fn ask(&self) -> Ask {
        let op_id = OpId(self.op_id);
        let ask = Ask::new(RING, COUNT, VOLUME, (SessionId(1), op_id), Time(self.op_id as i64));
        Ask { alone: true, spread: self.spread, ..ask }
    }

    fn leader(&self, position: Position) -> Address {
        let partition = position.partition(COUNT);
        Address { partition, brick: self.views[partition.0 as usize].leader }
    }

    /// The leader that `distribute` would send the op to.
    fn place(&self, op: &Op) -> Address {
        let known = |dir: InodeId| self.spreads.get(&dir).copied().unwrap_or(1);
        let position = match op {
            Op::Name { op } => match op {
                NameOp::Rename { to_dir: dir, to_name: name, .. }
                | NameOp::Lookup { dir, name }
                | NameOp::Create { dir, name, .. }
                | NameOp::Link { dir, name, .. }
                | NameOp::Unlink { dir, name, .. }
                | NameOp::Put { dir, name, .. }
                | NameOp::Remove { dir, name, .. }
                | NameOp::MakePrefix { dir, name, .. }
                | NameOp::Join { dir, to: name, .. }
                | NameOp::Fetch { dir, name, .. }
                | NameOp::Rmdir { dir, name }
                | NameOp::RemovePrefix { dir, name } => name_position(*dir, name, known(*dir)),
                NameOp::List { dir, .. } | NameOp::ListKeys { dir, .. } | NameOp::CreateUnnamed { dir, .. } => {
                    dir.position()
                }
                NameOp::ListPart { .. } | NameOp::Stub { .. } => panic!("{op:?} is sent to a partition"),
            },
            Op::Inode { op } => op.inode().position(),
            Op::Data { op } => match op {
                DataOp::ReadShard { data, index, .. }
                | DataOp::WriteShard { data, index, .. }
                | DataOp::AllocateShard { data, index, .. }
                | DataOp::CopyShard { data, index, .. }
                | DataOp::SeekShard { data, index, .. } => {
                    ShardId { volume: VOLUME, data: *data, index: *index }.position()
                }
                DataOp::Write { inode, .. }
                | DataOp::Read { inode, .. }
                | DataOp::Append { inode, .. }
                | DataOp::Spill { inode }
                | DataOp::Allocate { inode, .. }
                | DataOp::Seek { inode, .. }
                | DataOp::Wrote { inode, .. } => inode.position(),
                _ => panic!("{op:?}"),
            },
            _ => panic!("{op:?}"),
        };
        self.leader(position)
    }

    fn execute(&mut self, op: Op) -> Result<Reply> {
        match (self.execute_at(self.place(&op), op.clone()), &op) {
            (Err(Error::OtherSpread { spread }), Op::Name { op: name_op }) => {
                let dir = match name_op {
                    NameOp::Rename { to_dir, .. } => *to_dir,
                    NameOp::Lookup { dir, .. }
                    | NameOp::Create { dir, .. }
                    | NameOp::Link { dir, .. }
                    | NameOp::Unlink { dir, .. }
                    | NameOp::Rmdir { dir, .. }
                    | NameOp::RemovePrefix { dir, .. } => *dir,
                    _ => panic!("{op:?}"),
                };
                assert!(self.spreads.insert(dir, spread).is_none_or(|known| known < spread), "answered twice");
                self.execute(op)
            }
            (answer, _) => answer,
        }
    }

    fn execute_at(&mut self, at: Address, op: Op) -> Result<Reply> {
        self.op_id += 256;
        let token = Token(self.op_id);
        self.tell(at, Event::Request { token, ask: self.ask(), op });
        for _ in 0..50 {
            if let Some(answer) = self.answers.remove(&token) {
                return answer;
            }
            self.tick();
        }
        Err(Error::Unavailable { what: "no replica answered".into() })
    }

    fn name_op(&mut self, op: NameOp) -> Result<Reply> {
        self.execute(Op::Name { op })
    }

    fn read(&mut self, op: Op) -> Result<Reply> {
        self.read_at(self.place(&op), op)
    }

    fn read_at(&mut self, at: Address, op: Op) -> Result<Reply> {
        self.read_as(&self.ask(), at, op)
    }

    fn read_as(&mut self, ask: &Ask, at: Address, op: Op) -> Result<Reply> {
        let around = Self::around(&self.bricks, &self.views, at, 0);
        let read = self.partitions[&at].read(&around, ask, &op);
        read.unwrap_or_else(|| self.execute_at(at, op))
    }

    /// The names of a directory, partition by partition.
    fn list(&mut self, dir: InodeId) -> Vec<Name> {
        let list = NameOp::List { dir, after: None, limit: 100, attributes: false, touch: false };
        let spread = match self.read(Op::Name { op: list }) {
            Ok(Reply::List { entries, .. }) => return entries.into_iter().map(|entry| entry.name).collect(),
            Err(Error::OtherSpread { spread }) => spread,
            other => panic!("{other:?}"),
        };
        let mut names = Vec::new();
        for position in name_positions(dir, spread) {
            let op = NameOp::ListPart { dir, spread, after: None, limit: 100, attributes: false };
            match self.read_at(self.leader(position), Op::Name { op }) {
                Ok(Reply::List { entries, .. }) => names.extend(entries.into_iter().map(|entry| entry.name)),
                other => panic!("{other:?}"),
            }
        }
        names
    }

    /// Lets everything in flight end.
    fn rest(&mut self) {
        (0..60).for_each(|_| self.tick());
        for (address, partition) in &self.partitions {
            assert!(partition.is_idle(), "{address:?} is not idle: {partition:?}");
            assert_eq!(partition.failure(), None);
        }
    }

    /// The entries that leaders' bricks hold of their partitions, without shards: a brick's index has the shards that
    /// it has written to data files.
    fn entries(&self) -> Vec<(Key, Bytes)> {
        let mut all = Vec::new();
        for (number, view) in self.views.iter().enumerate() {
            let number = PartitionNumber(number as u32);
            let held = view.members.iter().map(|member| self.held(member.brick, number));
            let is_shards = |key: &Key| matches!(key.kind(), Some(Kind::Shard | Kind::Checksums));
            let held: Vec<Vec<_>> =
                held.map(|all| all.into_iter().filter(|(key, _)| !is_shards(key)).collect()).collect();
            assert!(held.iter().all(|one| *one == held[0]), "replicas of partition {number}");
            all.extend(held.into_iter().next().unwrap());
        }
        all
    }

    fn held(&self, brick: BrickId, number: PartitionNumber) -> Vec<(Key, Bytes)> {
        let brick = &self.bricks[brick.0 as usize];
        let ranges = [Key::work_range(RING, number, COUNT), Key::object_range(RING, number, COUNT)];
        ranges.iter().flat_map(|(from, to)| brick.scan(from, to, 1 << 20).unwrap()).collect()
    }

    /// Checks what the bricks hold.
    fn check(&self) {
        let mut names: HashMap<InodeId, Vec<(InodeId, NodeKind)>> = HashMap::new();
        let (mut stubs, mut inodes) = (HashMap::new(), HashMap::new());
        let mut counts: HashMap<(InodeId, Position), (u64, u32)> = HashMap::new();
        let mut places: Vec<(InodeId, Position, Name)> = Vec::new();
        for (key, value) in self.entries() {
            let id = InodeId::from_bits(key.id().unwrap());
            let at = (id, key.prefix().unwrap().position);
            match key.kind().unwrap() {
                Kind::Name => {
                    let name = NameRecord::from_bytes(value).unwrap();
                    names.entry(name.inode).or_default().push((id, name.kind));
                    places.push((at.0, at.1, Name::new(key.rest()).unwrap()));
                    let count = counts.entry(at).or_default();
                    count.0 += 1;
                    count.1 += u32::from(name.kind == NodeKind::Directory);
                }
                Kind::Stub => drop(stubs.insert(at, StubRecord::from_bytes(value).unwrap())),
                Kind::Inode => drop(inodes.insert(id, InodeRecord::from_bytes(value).unwrap())),
                Kind::Intent | Kind::LegDone | Kind::Hold => panic!("{key:?} is left"),
                _ => {}
            }
        }
        for (inode, leading) in &names {
            let record = inodes.get(inode).unwrap_or_else(|| panic!("a name leads to {inode:?}, which is not there"));
            assert!(leading.iter().all(|(_, kind)| *kind == record.kind));
            match record.kind {
                NodeKind::Directory => {
                    assert_eq!(leading.len(), 1, "a directory with two names");
                    assert_eq!(record.parent, leading[0].0, "a directory's parent");
                }
                _ => assert_eq!(record.nlink as usize, leading.len(), "links of {inode:?}"),
            }
        }
        for inode in inodes.keys() {
            assert!([ROOT, SYSTEM].contains(inode) || names.contains_key(inode), "{inode:?} has no name");
        }
        for ((dir, position), stub) in &stubs {
            let counted = counts.get(&(*dir, *position)).copied().unwrap_or_default();
            assert_eq!((stub.entries, stub.directories), counted, "{dir:?} at {position:?}");
            let inode = inodes.get(dir).unwrap_or_else(|| panic!("a stub of {dir:?}, which was removed"));
            assert!(stub.alive, "the stub of {dir:?} at {position:?} is closed");
            let copied = (inode.spread, inode.mode, inode.uid, inode.gid);
            assert_eq!((stub.spread, stub.mode, stub.uid, stub.gid), copied, "{dir:?} at {position:?}");
        }
        for (dir, inode) in inodes.iter().filter(|(_, inode)| inode.kind == NodeKind::Directory) {
            let wanted: BTreeSet<Position> = name_positions(*dir, inode.spread).collect();
            let found = stubs.keys().filter(|(known, _)| known == dir).map(|(_, position)| *position);
            assert_eq!(found.collect::<BTreeSet<_>>(), wanted, "the stubs of {dir:?}");
        }
        for (dir, position, name) in places {
            assert_eq!(position, name_position(dir, &name, inodes[&dir].spread), "{name:?} in {dir:?}");
        }
        self.check_reachable(&names, &inodes);
    }

    fn check_reachable(
        &self,
        names: &HashMap<InodeId, Vec<(InodeId, NodeKind)>>,
        inodes: &HashMap<InodeId, InodeRecord>,
    ) {
        for start in inodes.keys() {
            let (mut at, mut steps) = (*start, 0);
            while at != ROOT && at != SYSTEM {
                at = names[&at][0].0;
                steps += 1;
                assert!(steps <= inodes.len(), "a loop of directories");
            }
        }
    }
}

fn name(path: &[u8]) -> Name {
    Name::new(Bytes::copy_from_slice(&path[path.len() - 1..])).unwrap()
}

fn make_directory(dir: InodeId, text: &[u8], seed: u64) -> Op {
    let (name, node) = (name(text), NewNode::Directory);
    Op::Name { op: NameOp::Create { dir, name, node, mode: 0o755, uid: 1, gid: 1, umask: 0, exclusive: true, seed } }
}

#[test]
fn a_directory_has_one_owner_in_all_partitions_whatever_its_parent_becomes_meanwhile() {
    for (parent_spread, seed) in [(1, 3 << 61), (8, 0)] {
        for messages in (0..).step_by(3) {
            let mut ring = open(&storages());
            ring.spread = parent_spread;
            let made = ring.execute(make_directory(ROOT, b"p", 5 << 61));
            let Ok(Reply::Node { attr: Attr { id: parent, .. }, .. }) = made else { panic!("{made:?}") };
            ring.spreads.insert(parent, parent_spread);
            ring.spread = 8;
            let op = make_directory(parent, b"d", seed);
            // The op has a slot of its own.
            let (at, ask) = (ring.place(&op), Ask { op_id: OpId(1), ..ring.ask() });
            ring.handle(at, Event::Request { token: Token(1), ask, op });
            let mut left = messages;
            while left > 0 {
                let Some(envelope) = ring.queue.pop_front() else { break };
                left -= 1;
                ring.handle(envelope.to, Event::Message(envelope));
            }
            let changes = AttrChanges { mode: Some(0o2755), gid: Some(7), ..Default::default() };
            ring.execute(Op::Inode { op: InodeOp::SetAttr { inode: parent, changes } }).unwrap();
            ring.rest();
            ring.check();
            assert!(matches!(ring.answers[&Token(1)], Ok(Reply::Node { .. })), "{:?}", ring.answers);
            if left > 0 {
                break;
            }
        }
    }
}

fn create_file(ring: &mut TestRing) -> Attr {
    let (name, node) = (name(b"f"), NewNode::File);
    let create =
        NameOp::Create { dir: ROOT, name, node, mode: 0o644, uid: 1, gid: 1, umask: 0, exclusive: true, seed: 7 };
    match ring.name_op(create).unwrap() {
        Reply::Node { attr, .. } => attr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_move_into_shards_and_back_out_of_them() {
    let mut ring = open(&storages());
    let attr = create_file(&mut ring);
    let inode = attr.id;
    let small = DataOp::Write { inode, offset: 10, data: Bytes::from_static(b"small"), drop_set_id: false };
    ring.execute(Op::Data { op: small }).unwrap();
    let Reply::Node { attr, .. } = ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap() else { panic!() };
    let (piece, version) = (attr.layout.pieces[0], attr.layout.version);
    let read = |ring: &mut TestRing| {
        let op = DataOp::ReadShard { data: piece.data, index: 0, offset: 0, length: 100 };
        let Reply::Data { bytes } = ring.read(Op::Data { op }).unwrap() else { panic!("no data") };
        bytes
    };
    assert_eq!(&read(&mut ring)[..], b"\0\0\0\0\0\0\0\0\0\0small");
    let cut = InodeOp::SetAttr { inode, changes: AttrChanges { size: Some(12), ..Default::default() } };
    let Reply::Node { attr, .. } = ring.execute(Op::Inode { op: cut }).unwrap() else { panic!("no node") };
    assert_eq!(attr.size, 12);
    assert_ne!(attr.layout.version, version);
    assert_eq!(&read(&mut ring)[10..], b"sm");
    let wrote =
        DataOp::Wrote { inode, layout_version: version, end: 50, reach: 50, drop_set_id: false, fast: false, age: 0 };
    assert_eq!(ring.execute(Op::Data { op: wrote }), Err(Error::LayoutChanged), "written before the truncate");
    let none = InodeOp::SetAttr { inode, changes: AttrChanges { size: Some(0), ..Default::default() } };
    let Reply::Node { attr, .. } = ring.execute(Op::Inode { op: none }).unwrap() else { panic!("no node") };
    assert!(attr.layout.is_inline());
    assert!(ring.entries().iter().any(|(key, _)| key.kind() == Some(Kind::Garbage)), "the shards are garbage");
    ring.rest();
    assert!(!ring.entries().iter().any(|(key, _)| key.kind() == Some(Kind::Garbage)), "the garbage is collected");
}

#[test]
fn a_conditional_write_follows_only_the_stamp_that_it_names() {
    let mut ring = open(&storages());
    let mut write = |follow| {
        let op = DataOp::WriteShard {
            data: DataId(9),
            index: 0,
            offset: 0,
            bytes: Bytes::from_static(b"x"),
            follow,
            fast: false,
        };
        ring.execute(Op::Data { op })
    };
    let Ok(Reply::Written { stamp, .. }) = write(None) else { panic!("no stamp") };
    let Ok(Reply::Written { stamp: second, .. }) = write(Some(stamp)) else { panic!("no stamp") };
    assert_eq!(write(Some(stamp)), Err(Error::Conflict { stamp: Some(second) }));
}

#[test]
fn an_inode_that_somebody_may_have_open_stays_until_it_is_collected() {
    let mut ring = open(&storages());
    let attr = create_file(&mut ring);
    ring.name_op(NameOp::Unlink { dir: ROOT, name: name(b"f"), open_here: Some(attr.id) }).unwrap();
    let getattr = Op::Inode { op: InodeOp::GetAttr { inode: attr.id } };
    let Reply::Node { attr: open, .. } = ring.read(getattr.clone()).unwrap() else { panic!("no node") };
    assert_eq!(open.nlink, 0);
    let at = ring.leader(attr.id.position());
    for _ in 0..2 {
        ring.tell(at, Event::Collect { volume: VOLUME, inode: attr.id });
        assert_eq!(ring.read(getattr.clone()), Err(Error::Stale));
    }
    ring.check();
}
