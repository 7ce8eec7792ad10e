//! Replicas are brought into step after kills and power cuts; sessions, bounds, full journals and stopped bricks.

mod damage;
mod deletion;

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::own_bricks::OwnBricks;
use crate::{Node, NodeSettings};
use bytes::Bytes;
use hekate_brick::storage::MemoryStorage;
use hekate_brick::{Brick, BrickSettings, Identity, LogEntry, Lsn};
use hekate_cluster::{BrickInfo, Domain, EmbeddedCoordinator, FIRST_SERVER, Registry, RingInfo};
use hekate_control::VolumeCreate;
use hekate_proto::map::{Member, View};
use hekate_proto::*;
use hekate_replica::{Address, Ask, BlockAt, Commit, Event};
use hekate_threads::{HashMap, elapsed, now};
use hekate_transport::{Peer, Service};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const RING: RingId = RingId(1);
fn identity(n: u128) -> Identity {
    let settings =
        BrickSettings { journal_segments: 4, segment_bytes: 256 << 10, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    Identity::new(BrickId(n), "c", settings)
}
fn made(n: u128) -> MemoryStorage {
    let s = MemoryStorage::new();
    Brick::create_on(&s, &identity(n)).unwrap();
    s
}
fn open(s: &MemoryStorage, n: u128, reborn: bool) -> Arc<Brick> {
    Arc::new(Brick::open_on(Arc::new(s.clone()), &identity(n), Incarnation(1), reborn).unwrap().0)
}
fn ring(views: &[&[u128]]) -> RingInfo {
    let member = |b: &u128| Member { brick: BrickId(*b), incarnation: Incarnation(1) };
    let view = |m: &&[u128]| View::new(Epoch(1), BrickId(m[0]), m.iter().map(member).collect());
    RingInfo::new(RING, "p", 2, Domain::Disk, views.iter().map(view).collect())
}
fn entry(brick: &Brick, p: u32, changes: Vec<Change>) -> LogEntry {
    let partition = PartitionNumber(p);
    let sequence = Sequence(brick.position(RING, partition).sequence.0 + 1);
    LogEntry::new(Record {
        ring: RING,
        partition,
        epoch: Epoch(1),
        sequence,
        session: SessionId(1),
        op_id: OpId(1),
        changes,
    })
}
fn put(brick: &Brick, p: u32, bytes: usize) -> Lsn {
    let n = brick.position(RING, PartitionNumber(p)).sequence.0;
    let place = KeyPrefix { ring: RING, position: Position(p << 31), volume: VolumeId(1) };
    let key = Key::name(place, ROOT, format!("{p}-{n}").as_bytes());
    brick.append(&entry(brick, p, vec![Change::Put { key, value: Bytes::from(vec![1; bytes]) }])).unwrap()
}
fn bricks(all: &[&Arc<Brick>]) -> HashMap<BrickId, Arc<Brick>> {
    all.iter().map(|b| (b.id(), (*b).clone())).collect()
}

fn own(open: &HashMap<BrickId, Arc<Brick>>) -> OwnBricks {
    OwnBricks::of(open.clone())
}

/// Brings replicas into step as a start does, without a server around them.
fn level(rings: &[RingInfo], bricks: &HashMap<BrickId, Arc<Brick>>) -> Result<()> {
    let none = |_, _| Vec::<BlockAt>::new();
    let all: Vec<BrickId> = bricks.keys().copied().collect();
    for info in rings {
        let ring = HostedRing::new(info, &own(bricks), HashMap::default(), none)?;
        let addresses: Vec<Address> = ring.replicas().map(|(address, _)| *address).collect();
        let to_all = |event: Event| addresses.iter().map(move |address| (*address, event.clone()));
        let mut queue: std::collections::VecDeque<(Address, Event)> =
            to_all(Event::Start).chain(to_all(Event::Up { bricks: all.clone() })).collect();
        while !ring.leaders().iter().all(|leader| ring.replica(*leader).unwrap().partition.read().serves()) {
            while let Some((to, event)) = queue.pop_front() {
                ring.deliver(to, event);
                let (mut sends, mut syncs) = (Vec::new(), Vec::new());
                ring.work(to, Time(0), |out| {
                    sends.extend(out.sends);
                    syncs.extend(out.syncs);
                });
                queue.extend(sends.into_iter().map(|envelope| (envelope.to, Event::Message(envelope))));
                for job in syncs {
                    let brick = &bricks[&job.replica.brick];
                    let outcome = brick.sync(brick.end());
                    queue.push_back((job.replica, Event::Synced { ticket: job.ticket, outcome }));
                }
            }
            for hosted in ring.replicas().map(|(_, hosted)| hosted) {
                if let Some(error) = hosted.partition.read().failure() {
                    return Err(error.clone());
                }
                hosted.brick.checkpoint()?;
            }
            queue.extend(to_all(Event::Room).chain(to_all(Event::Tick)));
        }
    }
    Ok(())
}

#[test]
fn levelling_a_brick_whose_journal_is_full_ends() {
    let (sa, sb) = (made(1), made(2));
    let (a, b) = (open(&sa, 1, false), open(&sb, 2, false));
    (0..8).for_each(|_| _ = put(&b, 1, 100 << 10));
    put(&a, 0, 100 << 10); // A process that is killed while B's append waits for room.
    drop((a, b));
    let (a, b) = (open(&sa, 1, false), open(&sb, 2, false));
    let t = std::thread::spawn(move || level(&[ring(&[&[1, 2], &[2]])], &bricks(&[&a, &b])));
    let begun = now();
    while !t.is_finished() && elapsed(begun) < Duration::from_secs(5) {
        hekate_threads::sleep(Duration::from_millis(20));
    }
    assert!(t.is_finished(), "the server never starts");
}

#[test]
fn a_replica_that_is_busy_when_views_change_handles_them_afterwards() {
    let (sa, sb) = (made(1), made(2));
    let all = bricks(&[&open(&sa, 1, false), &open(&sb, 2, false)]);
    let before = ring(&[&[1, 2], &[2]]);
    let mut after = before.clone();
    after.views[0].epoch = Epoch(2);
    let hosted = HostedRing::new(&before, &own(&all), HashMap::default(), |_, _| Vec::new()).unwrap();
    let to = Address { partition: PartitionNumber(0), brick: BrickId(1) };
    hosted.deliver(to, Event::Start);
    let mut is_busy = true;
    hosted.work(to, Time(0), |_| {
        // Another thread does this while the first event is being handled.
        if std::mem::take(&mut is_busy) {
            assert!(hosted.take_views(&after, |_, _| ()));
            hosted.deliver(to, Event::View);
        }
    });
    assert_eq!(hosted.replica(to).unwrap().partition.read().view().epoch, Epoch(2));
}

#[test]
fn numbers_that_another_member_knows_to_be_reserved_are_not_handed_out_again() {
    let (sa, sb) = (made(1), made(2));
    let (a, b) = (open(&sa, 1, false), open(&sb, 2, false));
    // An earlier leader reserved them, and the present leader has not received that record.
    let key = Key::partition(RING, Position(0));
    let value = PartitionRecord { numbers_reserved: 100_000 }.to_bytes();
    b.append(&entry(&b, 0, vec![Change::Put { key: key.clone(), value }])).unwrap();
    level(&[ring(&[&[1, 2], &[2]])], &bricks(&[&a, &b])).unwrap();
    for brick in [&a, &b] {
        let record = PartitionRecord::from_bytes(brick.get(&key).unwrap().unwrap()).unwrap();
        assert!(record.numbers_reserved > 100_000, "{record:?}");
    }
}

#[test]
fn a_power_cut_between_two_checkpoints_leaves_what_levels() {
    let (sa, sb) = (made(1), made(2));
    let (a, b) = (open(&sa, 1, false), open(&sb, 2, false));
    let both = |n: u32| {
        (0..n).for_each(|_| {
            put(&a, 0, 100 << 10);
            put(&b, 0, 100 << 10);
        })
    };
    both(1);
    // The steps of `Node::checkpoint_all`, with appends between them.
    let begun = a.begin_checkpoint();
    b.sync(b.end()).unwrap();
    both(3);
    begun.finish(&mut || false).unwrap();
    // A power cut before b's checkpoint.
    let (a, b) = (open(&sa.after_power_cut(), 1, true), open(&sb.after_power_cut(), 2, true));
    level(&[ring(&[&[1, 2]])], &bricks(&[&a, &b])).unwrap();
}

/// A server of three bricks in a directory of its own, with a volume `v`.
pub struct Served {
    pub directory: PathBuf,
    pub node: Arc<Node>,
    stays: bool,
}

impl Served {
    pub fn new(name: &str) -> Self {
        Self::with_journals(name, 4, 8 << 20)
    }

    fn with_journals(name: &str, journal_segments: u64, segment_bytes: u64) -> Self {
        let directory = std::env::temp_dir().join(format!("hekate-server-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let registry =
            Registry::new(Arc::new(EmbeddedCoordinator::create(&directory.join("coordinator.redb")).unwrap()));
        registry.create_cluster("c").unwrap();
        let settings =
            BrickSettings { journal_segments, segment_bytes, index_cache_bytes: 4 << 20, reserve_bytes: 1 << 20 };
        let make = |number: u128| {
            let path = directory.join(format!("b{number}"));
            Brick::create(&path, BrickId(number), "c", settings).unwrap();
            let directory = path.to_string_lossy().into_owned();
            BrickInfo {
                brick: BrickId(number),
                directory,
                pool: "p".into(),
                weight: 1,
                server: FIRST_SERVER,
                incarnation: Incarnation(0),
                openings: 0,
                begun: 0,
                restored: false,
                unopened: false,
            }
        };
        registry.create_pool("p", &[make(1), make(2), make(3)]).unwrap();
        drop(registry);
        let node = start(&directory);
        let wanted = VolumeCreate {
            name: "v".into(),
            pool: "p".into(),
            copies: 2,
            domain: None,
            min_replicas: None,
            allowed_uids: vec![4242],
            owner_uid: Some(0),
            spread: 1,
            mode: Default::default(),
            led_by: None,
        };
        node.make_volume(wanted).unwrap();
        Self { directory, node, stays: false }
    }
}

impl Served {
    /// The process ends, and another one is started in its place.
    pub fn restart(self) -> Self {
        let directory = self.stopped();
        let node = start(&directory);
        Self { directory, node, stays: false }
    }

    /// The process ends. Returns its directory, which stays.
    pub fn stopped(mut self) -> PathBuf {
        self.stays = true;
        self.directory.clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.node.stop_housekeeping();
        // Its files are locked until the last thread has dropped the server.
        let patience = now();
        while Arc::strong_count(&self.node) > 1 && elapsed(patience) < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        if !self.stays {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

pub fn start(directory: &std::path::Path) -> Arc<Node> {
    Node::start(&NodeSettings { state: directory.into(), without: Vec::new() }, &|_| ()).unwrap()
}

fn execute(served: &Served, ring: &Arc<HostedRing>, at: PartitionNumber, op: Op) {
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap().volume;
    let ask = Ask::new(ring.ring, ring.count(), volume, (SYSTEM_SESSION, OpId(0)), Time(1));
    let (to, _) = ring.leader(at).unwrap();
    served.node.ask(ring, to, |token| Event::Request { token, ask, op }).unwrap().unwrap();
}

#[test]
fn another_user_cannot_take_over_a_session() {
    let served = Served::new("takeover");
    let own = rustix::process::geteuid().as_raw();
    let (_, session, _) = served.node.open(&Peer::Local { uid: own }, "v", None).unwrap();
    let other = served.node.open(&Peer::Local { uid: 4242 }, "v", Some(session));
    assert!(matches!(other, Err(Error::Denied { .. })));
    assert!(served.node.open(&Peer::Local { uid: own }, "v", Some(session)).is_ok());
}

#[test]
fn a_user_who_was_not_named_may_not_use_a_volume() {
    let served = Served::new("denied");
    let refused = served.node.open(&Peer::Local { uid: 4343 }, "v", None).unwrap_err();
    assert!(refused.to_string().contains("4343"), "{refused}");
    assert!(served.node.open(&Peer::Local { uid: 4242 }, "v", None).is_ok());
}

#[test]
fn a_stopped_brick_does_not_keep_the_others_from_their_checkpoints() {
    let served = Served::new("poisoned");
    served.node.bricks.get(&BrickId(1)).unwrap().poison(&Error::Poisoned { what: "test".into() });
    assert!(served.node.checkpoint_all().is_err());
    for brick in served.node.bricks.values().filter(|brick| brick.id().0 != 1) {
        assert_eq!(brick.status().unwrap().overlay_bytes, 0, "{:?}", brick.id());
    }
}

#[test]
fn partitions_go_on_without_a_brick_that_has_stopped() {
    let served = Served::new("stopped-brick");
    let ring = served.node.ring(served.node.cluster.registry().volume("v").unwrap().unwrap().ring).unwrap();
    let stopped = BrickId(1);
    let had: Vec<PartitionNumber> = (0..ring.count())
        .map(PartitionNumber)
        .filter(|number| ring.view(*number).unwrap().has_member(stopped))
        .collect();
    assert!(!had.is_empty());
    served.node.bricks.get(&stopped).unwrap().poison(&Error::Poisoned { what: "test".into() });
    let begun = now();
    let can_go_on = |number: &PartitionNumber| {
        let view = ring.view(*number).unwrap();
        !view.has_member(stopped) && view.opened && ring.leader(*number).unwrap().1.partition.read().serves()
    };
    while !had.iter().all(can_go_on) {
        assert!(elapsed(begun) < Duration::from_secs(30), "{:?}", ring.views());
        hekate_threads::sleep(Duration::from_millis(20));
    }
    for number in had {
        let data = (0..).map(DataId).find(|data| {
            ShardId { volume: VolumeId(1), data: *data, index: 0 }.position().partition(ring.count()) == number
        });
        let op = DataOp::WriteShard {
            data: data.unwrap(),
            index: 0,
            offset: 0,
            bytes: "x".into(),
            follow: None,
            fast: false,
        };
        execute(&served, &ring, number, Op::Data { op });
    }
}

#[test]
fn the_answers_of_a_batch_are_bounded_before_they_are_made() {
    let served = Served::new("bounded");
    let (volume, session, map) = served.node.open(&Peer::Local { uid: 0 }, "v", None).unwrap();
    let map: map::VolumeMap = serde_json::from_str(&map).unwrap();
    let shard = ShardId { volume, data: DataId(1), index: 0 };
    let partition = shard.position().partition(map.partitions());
    let target = Target::Partition { ring: map.ring, partition, epoch: map.view(partition).unwrap().epoch };
    let op = Op::Data { op: DataOp::ReadShard { data: DataId(1), index: 0, offset: 0, length: 4 << 20 } };
    let request = Request { volume, target, session, op_id: OpId(0), durable: false, retry: false, pledge: false, op };
    let replies = served.node.call(session, vec![request; 64]);
    assert_eq!(replies.iter().filter(|reply| reply.is_ok()).count(), 3);
    assert!(matches!(replies[3], Err(Error::Invalid { .. })));
}

#[test]
fn what_rests_in_another_partition_is_refused() {
    let served = Served::new("stray");
    let (volume, session, map) = served.node.open(&Peer::Local { uid: 0 }, "v", None).unwrap();
    let map: map::VolumeMap = serde_json::from_str(&map).unwrap();
    let inode = InodeId::new(0x5555_5555, 1, 7);
    let shard = ShardId { volume, data: DataId(7779), index: 3 };
    let (data, index, bytes) = (shard.data, shard.index, Bytes::from_static(b"x"));
    let from = ShardRange { data, index, offset: 0, length: 1 };
    let of_shard = [
        DataOp::ReadShard { data, index, offset: 0, length: 1 },
        DataOp::WriteShard { data, index, offset: 0, bytes: bytes.clone(), follow: None, fast: false },
        DataOp::AllocateShard { data, index, offset: 0, length: 1, fill: Fill::Zeros },
        DataOp::SeekShard { data, index, offset: 0, hole: false },
        DataOp::CopyShard { from, data, index, offset: 0 },
    ];
    let of_inode = [
        Op::Inode { op: InodeOp::GetAttr { inode } },
        Op::Inode { op: InodeOp::RemoveXattr { inode, name: bytes.clone() } },
        Op::Data { op: DataOp::Read { inode, offset: 0, length: 1, touch: false } },
        Op::Data { op: DataOp::Write { inode, offset: 0, data: bytes.clone(), drop_set_id: false } },
        Op::Data { op: DataOp::Append { inode, data: bytes, drop_set_id: false } },
        Op::Data { op: DataOp::Spill { inode } },
        Op::Lock { op: LockOp::Release { inode, owner: LockOwner(1) } },
    ];
    let placed = of_shard.map(|op| (Op::Data { op }, shard.position())).into_iter();
    let placed = placed.chain(of_inode.map(|op| (op, inode.position())));
    for (number, (op, position)) in placed.enumerate() {
        for partition in (0..map.partitions()).map(PartitionNumber) {
            let target = Target::Partition { ring: map.ring, partition, epoch: map.view(partition).unwrap().epoch };
            let op_id = OpId(((number as u64 * 100 + u64::from(partition.0) + 1) << 8) | 1);
            let request =
                Request { volume, target, session, op_id, durable: false, retry: false, pledge: false, op: op.clone() };
            let reply = served.node.call(session, vec![request]).pop().unwrap();
            let is_stray = partition != position.partition(map.partitions());
            assert_eq!(matches!(reply, Err(Error::Protocol { .. })), is_stray, "{op:?} of {partition}: {reply:?}");
        }
    }
}

#[test]
fn a_change_that_no_journal_takes_leaves_its_partition_serving() {
    let served = Served::new("toolarge");
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap();
    let ring = served.node.ring(volume.ring).unwrap();
    let at = PartitionNumber(0);
    let put = |bytes: usize| {
        let key = Key::inode(volume.ring, volume.volume, InodeId::new(1, 1, 1), Kind::Content);
        let changes = vec![Change::Put { key, value: Bytes::from(vec![1; bytes]) }];
        served.node.change(&ring, at, Commit { changes, ..Commit::default() })
    };
    assert!(matches!(put(9 << 20), Err(Error::Invalid { .. })));
    assert_eq!(put(100), Ok(()));
}

/// A replica that was given room may wait in its append all the same, when others have taken the room; the checkpoint
/// that makes room does not wait for that replica.
#[test]
fn writers_of_all_partitions_go_on_though_the_journals_are_full() {
    let served = Served::with_journals("crowded", 16, 256 << 10);
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap();
    let ring = served.node.ring(volume.ring).unwrap();
    let (ring_id, id) = (volume.ring, volume.volume);
    let write = move |node: &Node, ring: &Arc<HostedRing>, partition: u32| {
        for number in 0..100u32 {
            let inode = InodeId::new(0, 1, u64::from(number % 4) + 1);
            let key = Key::inode(ring_id, id, inode, Kind::Content);
            let value = Bytes::from(vec![number as u8; 20_000 + 3_000 * (partition as usize % 7)]);
            let commit = || Commit {
                changes: vec![Change::Put { key: key.clone(), value: value.clone() }],
                ..Commit::default()
            };
            // A writer that waits long gets `Unavailable` and tries again.
            while let Err(error) = node.change(ring, PartitionNumber(partition), commit()) {
                assert!(matches!(error, Error::Unavailable { .. }), "{error}");
            }
        }
    };
    let writers: Vec<_> = (0..ring.count().min(16))
        .map(|partition| {
            let (node, ring, write) = (served.node.clone(), ring.clone(), write);
            std::thread::spawn(move || write(&node, &ring, partition))
        })
        .collect();
    let begun = now();
    while writers.iter().any(|writer| !writer.is_finished()) && elapsed(begun) < Duration::from_secs(180) {
        hekate_threads::sleep(Duration::from_millis(20));
    }
    assert!(writers.iter().all(|writer| writer.is_finished()), "writers wait for ever");
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

/// Writes 16 blocks of a shard.
fn write_shard(served: &Served) -> (Arc<HostedRing>, ShardId, Bytes) {
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap();
    let shard = ShardId { volume: volume.volume, data: DataId(3), index: 0 };
    let ring = served.node.ring(volume.ring).unwrap();
    let (bytes, index) = (Bytes::from(vec![7; 16 * BLOCK_BYTES]), 0);
    let write =
        DataOp::WriteShard { data: shard.data, index, offset: 0, bytes: bytes.clone(), follow: None, fast: false };
    execute(served, &ring, shard.position().partition(ring.count()), Op::Data { op: write });
    (ring, shard, bytes)
}

#[test]
fn what_a_power_cut_took_from_one_replica_comes_from_the_other() {
    let mut served = Served::new("lost");
    let (ring, shard, bytes) = write_shard(&served);
    let at = shard.position().partition(ring.count());
    ring.bricks().iter().for_each(|brick| brick.sync(brick.end()).unwrap());
    let members: Vec<BrickId> = ring.members(at).unwrap().iter().map(|member| member.id()).collect();
    // A power cut before the data file of the first member was written back: the brick has another incarnation, and the
    // file is missing.
    let victim = served.directory.join(format!("b{}", members[0].0));
    let fresh = Served::new("lost-placeholder");
    let old = std::mem::replace(&mut served.node, fresh.node.clone());
    old.stop_housekeeping();
    let ring_id = ring.ring;
    drop((old, ring));
    let life = std::fs::read_to_string(victim.join("life.toml")).unwrap();
    std::fs::write(victim.join("life.toml"), life.replace("boot = \"", "boot = \"an earlier one ")).unwrap();
    std::fs::remove_file(victim.join(hekate_brick::data_file_path(shard))).unwrap();
    served.node = start(&served.directory);
    assert_eq!(served.node.bricks.recovery(members[0]).unwrap().lost.len(), 16);
    // The member learns what it lacks while the other one serves.
    let read = |member: &BrickId| served.node.bricks.get(member).unwrap().read_shard(ring_id, shard, 0, 1 << 20);
    let is_whole = || members.iter().all(|member| read(member).is_ok_and(|found| found == bytes));
    let is_settled = || served.node.cluster.registry().lost_blocks::<serde_json::Value>().unwrap().is_empty();
    let begun = now();
    while !(is_whole() && is_settled()) {
        assert!(elapsed(begun) < Duration::from_secs(30), "whole: {}, settled: {}", is_whole(), is_settled());
        hekate_threads::sleep(Duration::from_millis(20));
    }
}

/// A power cut that takes more fresh blocks than a journal has room for; no housekeeping runs while a server starts.
#[test]
fn settling_many_lost_blocks_ends() {
    use crate::hosting::start::bring_into_step;
    use hekate_brick::LostBlock;
    use hekate_replica::Fresh;
    let served = Served::new("fearlost");
    let node = served.node.clone();
    let volume = node.cluster.registry().volume("v").unwrap().unwrap();
    let ring = node.ring(volume.ring).unwrap();
    let mut lost = std::collections::BTreeSet::new();
    // 40 MiB of fresh data in one partition.
    let shards: Vec<ShardId> = (0..)
        .map(|index| ShardId { volume: volume.volume, data: DataId(9), index })
        .filter(|shard| shard.position().partition(ring.count()) == PartitionNumber(0))
        .take(10)
        .collect();
    let leader = ring.leader(PartitionNumber(0)).unwrap().0.brick;
    for shard in &shards {
        let bytes = Bytes::from(vec![7; 4 << 20]);
        let sums = (0..).zip(bytes.chunks(4096)).map(|(b, c)| hekate_brick::block_checksum(*shard, b, c)).collect();
        let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
        let record = ShardRecord { stamp, length: 4 << 20, home_blocks: 1024, reserved_blocks: 0 };
        let run = BlockRun { first: 0, checksums: sums };
        let fresh = vec![Fresh { shard: *shard, first_block: 0, bytes }];
        let changes = vec![Change::FreshBlocks { shard: *shard, record, run }];
        node.change(&ring, PartitionNumber(0), Commit { changes, fresh, reply: None, ..Commit::default() }).unwrap();
        let block = |block| (LostBlock { ring: volume.ring, shard: *shard, block }, leader);
        lost.extend((0..1024).map(block));
    }
    // As in `Node::load`: a checkpoint of all bricks, and no housekeeping yet.
    node.stop_housekeeping();
    node.checkpoint_all().unwrap();
    let info = node.cluster.registry().rings().unwrap().into_iter().find(|info| info.ring == volume.ring).unwrap();
    let ring = node.put_ring(&info, &lost).unwrap();
    let settling = node.clone();
    let thread = std::thread::spawn(move || bring_into_step(&settling, &[ring]));
    let begun = now();
    while !thread.is_finished() && elapsed(begun) < Duration::from_secs(180) {
        hekate_threads::sleep(Duration::from_millis(50));
    }
    assert!(
        thread.is_finished(),
        "the server never starts: {:?}",
        node.bricks.values().map(|b| b.status().unwrap().journal).collect::<Vec<_>>()
    );
    thread.join().unwrap().unwrap();
}

/// A disk whose fsync fails does not prevent the checkpoint of the other brick.
#[test]
fn a_brick_that_stopped_in_a_sync_can_be_levelled_again() {
    let (sa, sb) = (made(1), made(2));
    let (a, b) = (open(&sa, 1, false), open(&sb, 2, false));
    for _ in 0..6 {
        put(&a, 0, 100 << 10);
        put(&b, 0, 100 << 10);
    }
    sb.fail_syncs_after(0);
    // The steps of `Node::checkpoint_all_paced`.
    let all = [&a, &b];
    let begun: Vec<_> = all.iter().map(|brick| brick.begin_checkpoint()).collect();
    let synced: Vec<Result<()>> = all.iter().map(|brick| brick.sync(brick.end())).collect();
    let finished: Vec<Result<()>> = begun.into_iter().map(|checkpoint| checkpoint.finish(&mut || false)).collect();
    assert!(synced[1].is_err() && finished[0].is_ok());
    // Of a stopped brick only what was synced is trusted.
    let (a, b) = (open(&sa.copy(), 1, false), open(&sb.after_power_cut(), 2, true));
    let levelled = level(&[ring(&[&[1, 2]])], &bricks(&[&a, &b]));
    assert!(levelled.is_ok(), "the server never starts: {levelled:?}");
}

/// fsync(2) answers EIO only if all replicas have lost something: a database that gets EIO stops.
#[test]
fn a_sync_of_a_brick_that_has_stopped_is_asked_of_others() {
    let served = Served::new("stopped-sync");
    let (volume, session, _) = served.node.open(&Peer::Local { uid: 0 }, "v", None).unwrap();
    let ring = served.node.ring(served.node.volume(volume).unwrap().ring).unwrap();
    let all: Vec<BrickId> = served.node.bricks.ids().collect();
    let sync = |brick: BrickId| {
        let incarnation = served.node.bricks.get(&brick).unwrap().incarnation();
        let op = Op::Data { op: DataOp::Sync { incarnation, shards: Vec::new(), all: true } };
        let target = Target::Brick { brick };
        let request =
            Request { volume, target, session, op_id: OpId(0), durable: false, retry: false, pledge: false, op };
        served.node.call(session, vec![request]).remove(0)
    };
    let (stopped, others) = all.split_first().unwrap();
    assert_eq!(sync(*stopped), Ok(Reply::Done));
    served.node.bricks.get(stopped).unwrap().poison(&Error::Poisoned { what: "test".into() });
    assert!(sync(*stopped).unwrap_err().is_passing(), "the views still have the brick");
    let begun = now();
    while ring.views().iter().any(|view| view.has_member(*stopped)) {
        assert!(elapsed(begun) < Duration::from_secs(30), "{:?}", ring.views());
        hekate_threads::sleep(Duration::from_millis(20));
    }
    assert!(sync(*stopped).unwrap_err().is_passing(), "the client's map is older than the views");
    for brick in others {
        assert_eq!(sync(*brick), Ok(Reply::Done));
    }
    others.iter().for_each(|brick| {
        drop(served.node.bricks.get(brick).unwrap().poison(&Error::Poisoned { what: "test".into() }))
    });
    for brick in others.iter().filter(|brick| ring.views().iter().any(|view| view.has_member(**brick))) {
        assert!(matches!(sync(*brick), Err(Error::Poisoned { .. })), "no other member has what it had");
    }
}
