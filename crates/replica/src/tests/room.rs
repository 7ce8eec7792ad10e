//! Bricks that are full and get room again.

use super::drive::{begin, deliver_but, fill_for_new, fill_journals};
use super::*;
use hekate_brick::storage::{Space, Storage, StorageFile};
use std::io::Result as IoResult;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bricks in memory whose room the test sets.
struct Roomy {
    files: MemoryStorage,
    free: Arc<AtomicU64>,
    inodes: Arc<AtomicU64>,
}

impl Storage for Roomy {
    fn open(&self, path: &str, create: bool) -> IoResult<Arc<dyn StorageFile>> {
        self.files.open(path, create)
    }
    fn create_directory(&self, path: &str) -> IoResult<()> {
        self.files.create_directory(path)
    }
    fn remove(&self, path: &str) -> IoResult<()> {
        self.files.remove(path)
    }
    fn list(&self, path: &str) -> IoResult<Vec<String>> {
        self.files.list(path)
    }
    fn sync_directory(&self, path: &str) -> IoResult<()> {
        self.files.sync_directory(path)
    }
    fn space(&self) -> IoResult<Space> {
        let bytes = Space::of_bytes(1 << 40, self.free.load(Ordering::Relaxed));
        Ok(Space { files: 1 << 20, files_available: self.inodes.load(Ordering::Relaxed), ..bytes })
    }
}

pub(super) fn brick(number: u32, free: &Arc<AtomicU64>) -> Brick {
    brick_with(number, free, &Arc::new(AtomicU64::new(1 << 20)))
}

/// A brick with this room, on a file system with this number of inodes.
fn brick_with(number: u32, free: &Arc<AtomicU64>, inodes: &Arc<AtomicU64>) -> Brick {
    let settings = BrickSettings {
        journal_segments: 4,
        segment_bytes: 512 << 10,
        index_cache_bytes: 1 << 20,
        reserve_bytes: 1 << 20,
    };
    let identity = Identity::new(BrickId(u128::from(number)), "c", settings);
    let storage = Roomy { files: MemoryStorage::new(), free: free.clone(), inodes: inodes.clone() };
    Brick::create_on(&storage, &identity).unwrap();
    Brick::open_on(Arc::new(storage), &identity, Incarnation(1), false).unwrap().0
}

#[test]
fn a_leader_that_refuses_for_want_of_room_learns_that_there_is_some_again() {
    let free: Vec<_> = (0..BRICKS).map(|_| Arc::new(AtomicU64::new(1 << 30))).collect();
    let mut ring = ring_of((0..BRICKS).map(|number| brick(number, &free[number as usize])).collect(), true);
    let has = |ring: &mut TestRing, member: usize, bytes| {
        free[member].store(bytes, Ordering::Relaxed);
        ring.bricks[member].refresh_room().unwrap();
    };
    let at = ring.leader(ROOT.position());
    let other = ring.views[at.partition.0 as usize].members[1].brick.0 as usize;
    let mut number = 0;
    let mut create = |ring: &mut TestRing| {
        number += 1;
        let name = Name::new(Bytes::from(format!("n{number}"))).unwrap();
        let (node, mode, seed) = (NewNode::File, 0o644, number);
        ring.name_op(NameOp::Create { dir: ROOT, name, node, mode, uid: 1, gid: 1, umask: 0, exclusive: true, seed })
    };
    create(&mut ring).unwrap();
    has(&mut ring, other, 0);
    let refused = (0..20).filter(|_| matches!(create(&mut ring), Err(Error::NoSpace { .. }))).count();
    assert!(refused > 10, "{refused} of 20 refused");
    has(&mut ring, other, 1 << 30);
    ring.tick();
    (0..20).for_each(|_| drop(create(&mut ring).unwrap()));
}

/// The host makes room and sends the op again with the same id, so the refusal must not be kept as the op's answer
/// (rule 5).
#[test]
fn what_found_no_room_is_done_when_it_is_asked_again() {
    let free = Arc::new(AtomicU64::new(1 << 30));
    let mut ring = ring_of((0..BRICKS).map(|number| brick(number, &free)).collect(), true);
    let has = |ring: &TestRing, bytes| {
        free.store(bytes, Ordering::Relaxed);
        ring.bricks.iter().for_each(|brick| brick.refresh_room().unwrap());
    };
    ring.rest();
    has(&ring, 0);
    let op = make_directory(ROOT, b"d", 1);
    let (at, ask) = (ring.place(&op), Ask { op_id: OpId(1), ..ring.ask() });
    for (token, bytes, is_made) in [(1, 0, false), (2, 1 << 30, true)] {
        has(&ring, bytes);
        ring.tell(at, Event::Request { token: Token(token), ask, op: op.clone() });
        (0..5).for_each(|_| ring.tick());
        let answer = ring.answers.remove(&Token(token));
        match is_made {
            true => assert!(matches!(answer, Some(Ok(Reply::Node { .. }))), "{answer:?}"),
            false => assert!(matches!(answer, Some(Err(Error::NoSpace { .. }))), "{answer:?}"),
        }
    }
}

/// An op that has its room already succeeds on a full disk, but takes no room that is kept for records of other bricks:
/// otherwise all journals could fill up for ever.
#[test]
fn on_a_full_disk_too_a_part_of_the_journal_is_for_members() {
    let free = Arc::new(AtomicU64::new(1 << 30));
    let mut ring = ring_of((0..BRICKS).map(|number| brick(number, &free)).collect(), true);
    let shard = ShardId { volume: VOLUME, data: DataId(9), index: 0 };
    let write = |text: &'static [u8]| {
        let (data, index, bytes) = (shard.data, shard.index, Bytes::from_static(text));
        Op::Data { op: DataOp::WriteShard { data, index, offset: 0, bytes, follow: None, fast: false } }
    };
    ring.execute(write(b"first")).unwrap();
    let has = |ring: &TestRing, bytes| {
        free.store(bytes, Ordering::Relaxed);
        ring.bricks.iter().for_each(|brick| brick.refresh_room().unwrap());
    };
    has(&ring, 0);
    ring.execute(write(b"while it is full")).unwrap();

    let leader = ring.leader(shard.position());
    has(&ring, 1 << 30);
    fill_for_new(&ring.bricks[leader.brick.0 as usize]);
    has(&ring, 0);
    ring.op_id += 256;
    let (mut out, request) =
        (Out::default(), Event::Request { token: Token(1), ask: ring.ask(), op: write(b"behind") });
    let around = TestRing::around(&ring.bricks, &ring.views, leader, ring.clock);
    ring.partitions.get_mut(&leader).unwrap().handle(request, &around, &mut out);
    assert!(out.wants_room && out.sends.is_empty() && out.answers.is_empty(), "it waits");
    let mut others = (10..).map(|data| ShardId { data: DataId(data), ..shard });
    let other = others.find(|other| ring.leader(other.position()) == leader).unwrap();
    let (data, index, bytes) = (other.data, other.index, Bytes::from_static(b"grows"));
    let op = Op::Data { op: DataOp::WriteShard { data, index, offset: 0, bytes, follow: None, fast: false } };
    ring.op_id += 256;
    ring.handle(leader, Event::Request { token: Token(2), ask: ring.ask(), op });
    assert!(matches!(ring.answers.remove(&Token(2)), Some(Err(Error::NoSpace { .. }))), "it does not wait");
    ring.write_home();
    ring.tell(leader, Event::Room);
    assert!(matches!(ring.answers.remove(&Token(1)), Some(Ok(Reply::Written { .. }))));
}

/// A member whose journal is full asks that the records which all members have become stable, so that journal can be
/// discarded.
#[test]
fn what_all_have_is_made_stable_though_a_durable_record_waits_for_room() {
    let mut ring = open(&storages());
    let file = create_file(&mut ring).id;
    ring.execute(make_directory(ROOT, b"d", 3)).unwrap();
    let leader = ring.leader(file.position());
    let member = ring.views[leader.partition.0 as usize].members.iter().find(|one| one.brick != leader.brick).unwrap();
    let member = Address { brick: member.brick, ..leader };
    ring.op_id += 256;
    let ask = Ask { durable: true, ..ring.ask() };
    let changes = AttrChanges { mode: Some(0o600), ..Default::default() };
    let op = Op::Inode { op: InodeOp::SetAttr { inode: file, changes } };
    ring.handle(leader, Event::Request { token: Token(1), ask, op });
    let sync_upto = |envelope: &Envelope| match envelope.message {
        Message::Sync { sequence, .. } if envelope.to == member => Some(sequence),
        _ => None,
    };
    let durable = ring.queue.drain(..).find_map(|envelope| sync_upto(&envelope)).expect("it is synced with its record");
    for round in 0..3 {
        let epoch = ring.views[leader.partition.0 as usize].epoch;
        let asks = Envelope { ring: RING, from: member, to: leader, epoch, message: Message::WantStable };
        ring.handle(leader, Event::Message(asks));
        let upto: Vec<Sequence> = ring.queue.drain(..).filter_map(|envelope| sync_upto(&envelope)).collect();
        let expected = if round == 0 { vec![Sequence(durable.0 - 1)] } else { Vec::new() };
        assert_eq!(upto, expected, "asked for the {round}th time again");
    }
}

/// A sync of shards waits for room in full journals, which only a sync of their records gives.
#[test]
fn what_all_have_is_made_stable_though_it_is_being_synced_with_shards() {
    let mut ring = open(&storages());
    let file = create_file(&mut ring).id;
    let leader = ring.leader(file.position());
    let member = ring.views[leader.partition.0 as usize].members.iter().find(|one| one.brick != leader.brick).unwrap();
    let member = Address { brick: member.brick, ..leader };
    let shard = ShardId { volume: VOLUME, data: DataId(file.bits()), index: 0 };
    ring.handle(leader, Event::Sync { token: Token(1), shards: vec![shard], own: false });
    let sync_of = |envelope: Envelope| match envelope.message {
        Message::Sync { sequence, shards, .. } if envelope.to == member => Some((sequence, shards)),
        _ => None,
    };
    let (upto, shards) = ring.queue.drain(..).find_map(sync_of).expect("the member is to sync");
    assert_eq!(shards, [shard]);
    let epoch = ring.views[leader.partition.0 as usize].epoch;
    let asks = Envelope { ring: RING, from: member, to: leader, epoch, message: Message::WantStable };
    ring.handle(leader, Event::Message(asks));
    assert_eq!(ring.queue.drain(..).find_map(sync_of), Some((upto, Vec::new())));
}

/// Half of an exchange of names would remain until a client frees space. Ops that have not begun take no room from ops
/// that have.
#[test]
fn on_a_full_disk_what_has_begun_is_finished_and_what_grows_is_refused() {
    let free = Arc::new(AtomicU64::new(1 << 30));
    let mut ring = ring_of((0..BRICKS).map(|number| brick(number, &free)).collect(), true);
    let root = ring.leader(ROOT.position());
    let there = super::drive::elsewhere(&ring, root);
    let inode = create_file(&mut ring).id;
    let small = DataOp::Write { inode, offset: 0, data: vec![1; 100].into(), drop_set_id: false };
    ring.execute(Op::Data { op: small }).unwrap();
    let made = ring.execute(make_directory(ROOT, b"d", super::drive::seed_of(there.partition)));
    let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
    ring.execute(make_directory(dir, b"g", 5 << 61)).unwrap();
    ring.rest();
    free.store(0, Ordering::Relaxed);
    ring.bricks.iter().for_each(|brick| brick.refresh_room().unwrap());
    (0..5).for_each(|_| ring.tick());
    let spilt = ring.execute(Op::Data { op: DataOp::Spill { inode } });
    assert!(matches!(spilt, Err(Error::NoSpace { .. })), "{spilt:?}");
    let (mode, open_here) = (RenameMode::Exchange, None);
    let exchange = NameOp::Rename { dir: ROOT, name: name(b"f"), to_dir: dir, to_name: name(b"g"), mode, open_here };
    assert_eq!(ring.name_op(exchange), Ok(Reply::Done));
    ring.rest();
    ring.check();
}

/// The leader has much more room. A record that only the leader has would wait there for ever, with all later ones.
#[test]
fn what_a_member_has_no_room_for_is_taken_by_nobody() {
    const LENGTH: u32 = 1 << 20;
    for reserves in [false, true] {
        let free: Vec<_> = (0..BRICKS).map(|_| Arc::new(AtomicU64::new(1 << 30))).collect();
        let mut ring = ring_of((0..BRICKS).map(|number| brick(number, &free[number as usize])).collect(), true);
        let root = ring.leader(ROOT.position());
        let members = &ring.views[root.partition.0 as usize].members;
        let member = members.iter().map(|member| member.brick).find(|brick| *brick != root.brick).unwrap();
        free[member.0 as usize].store(17 << 19, Ordering::Relaxed);
        ring.bricks[member.0 as usize].refresh_room().unwrap();
        let position = |data| ShardId { volume: VOLUME, data, index: 0 }.position();
        let here = (1..).map(DataId).filter(|data| position(*data).partition(COUNT) == root.partition);
        let mut grow = |data| {
            let (index, offset, bytes) = (0, 0, vec![1; LENGTH as usize].into());
            ring.execute(Op::Data {
                op: match reserves {
                    false => DataOp::WriteShard { data, index, offset, bytes, follow: None, fast: false },
                    true => DataOp::AllocateShard { data, index, offset, length: LENGTH, fill: Fill::Holes },
                },
            })
        };
        let answers: Vec<_> = here.take(12).map(&mut grow).collect();
        let taken = answers.iter().take_while(|answer| answer.is_ok()).count();
        let is_refused = |answer: &Result<Reply>| matches!(answer, Err(Error::NoSpace { .. }));
        assert!((2..=8).contains(&taken) && answers[taken..].iter().all(is_refused), "{answers:?}");
        let [ours, theirs] =
            [root.brick, member].map(|brick| ring.bricks[brick.0 as usize].position(RING, root.partition));
        assert_eq!(ours, theirs);
    }
}

/// A record that needs a data file on a member whose file system has no inode left is refused. Other records succeed.
#[test]
fn what_a_member_has_no_inode_for_is_taken_by_nobody() {
    let free = Arc::new(AtomicU64::new(1 << 30));
    let inodes: Vec<_> = (0..BRICKS).map(|_| Arc::new(AtomicU64::new(1 << 20))).collect();
    let mut ring =
        ring_of((0..BRICKS).map(|number| brick_with(number, &free, &inodes[number as usize])).collect(), true);
    let root = ring.leader(ROOT.position());
    let members = &ring.views[root.partition.0 as usize].members;
    let member = members.iter().map(|member| member.brick).find(|brick| *brick != root.brick).unwrap();
    let position = |data| ShardId { volume: VOLUME, data, index: 0 }.position();
    let here = (1..).map(DataId).filter(|data| position(*data).partition(COUNT) == root.partition);
    let shards: Vec<DataId> = here.take(20).collect();
    let write = |ring: &mut TestRing, data, offset| {
        let (index, bytes) = (0, vec![1; 4096].into());
        let op = DataOp::WriteShard { data, index, offset, bytes, follow: None, fast: false };
        ring.execute(Op::Data { op })
    };
    write(&mut ring, shards[0], 0).unwrap();
    inodes[member.0 as usize].store(24, Ordering::Relaxed);
    ring.bricks[member.0 as usize].refresh_room().unwrap();
    ring.tick();
    let answers: Vec<_> = shards[1..].iter().map(|data| write(&mut ring, *data, 0)).collect();
    let taken = answers.iter().take_while(|answer| answer.is_ok()).count();
    let is_refused = |answer: &Result<Reply>| matches!(answer, Err(Error::NoSpace { .. }));
    assert!((1..=8).contains(&taken) && answers[taken..].iter().all(is_refused), "{answers:?}");
    write(&mut ring, shards[0], 4096).unwrap();
    write(&mut ring, shards[1], 8192).unwrap();
    let [ours, theirs] = [root.brick, member].map(|brick| ring.bricks[brick.0 as usize].position(RING, root.partition));
    assert_eq!(ours, theirs);
    inodes[member.0 as usize].store(1 << 20, Ordering::Relaxed);
    ring.bricks[member.0 as usize].refresh_room().unwrap();
    ring.tick();
    write(&mut ring, shards[19], 0).unwrap();
}

/// A refused op draws a number, and no record reserves more.
#[test]
fn on_a_full_disk_names_are_removed_though_thousands_were_refused() {
    let free = Arc::new(AtomicU64::new(1 << 30));
    let mut ring = ring_of((0..BRICKS).map(|number| brick(number, &free)).collect(), true);
    create_file(&mut ring);
    ring.rest();
    free.store(0, Ordering::Relaxed);
    ring.bricks.iter().for_each(|brick| brick.refresh_room().unwrap());
    let mut refused = 0;
    for token in (1 << 20..).take(17_000) {
        begin(&mut ring, token, create(token));
        ring.deliver();
        refused += u32::from(matches!(ring.answers.remove(&Token(token)), Some(Err(Error::NoSpace { .. }))));
    }
    ring.op_id = 1 << 30;
    let unlinked = ring.name_op(NameOp::Unlink { dir: ROOT, name: name(b"f"), open_here: None });
    assert_eq!((unlinked, refused), (Ok(Reply::Done), 17_000));
}

fn create(number: u64) -> Op {
    let (dir, node, mode, exclusive, seed) = (ROOT, NewNode::File, 0o644, true, 7);
    let name = Name::new(Bytes::from(format!("n{number}"))).unwrap();
    Op::Name { op: NameOp::Create { dir, name, node, mode, uid: 1, gid: 1, umask: 0, exclusive, seed } }
}

/// The op draws a number each time it is tried, which is with each tick.
#[test]
fn what_waited_long_for_room_in_journals_is_done() {
    for ticks in [20, 80] {
        let mut ring = open(&storages());
        fill_journals(&mut ring);
        for token in 1..=250 {
            begin(&mut ring, token, create(token));
        }
        for _ in 0..ticks {
            deliver_but(&mut ring, |_| false);
            let addresses: Vec<Address> = ring.partitions.keys().copied().collect();
            addresses.into_iter().for_each(|address| ring.handle(address, Event::Tick));
        }
        assert!(ring.answers.is_empty());
        ring.messages_left = u64::MAX;
        (0..100).for_each(|_| ring.tick());
        let made = ring.answers.values().filter(|answer| answer.is_ok()).count();
        assert_eq!(made, 250, "after {ticks} ticks");
    }
}
