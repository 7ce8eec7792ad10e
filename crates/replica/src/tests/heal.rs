//! View changes during changes of names and bytes: replicas are left out, come back as learners, heal and become
//! members.

use super::model::{Model, Step, run, step};
use super::*;
use proptest::prelude::*;

/// Forms and begins a view of the partition with this leader and these members and learners.
pub(super) fn form(ring: &mut TestRing, number: u32, leader: u128, members: &[u128], learners: &[u128]) {
    let of = |bricks: &[u128]| -> Vec<Member> {
        let incarnation = |brick: u128| ring.bricks[brick as usize].incarnation();
        bricks.iter().map(|brick| Member { brick: BrickId(*brick), incarnation: incarnation(*brick) }).collect()
    };
    let epoch = Epoch(ring.views[number as usize].epoch.0 + 1);
    let view = View { learners: of(learners), opened: false, ..View::new(epoch, BrickId(leader), of(members)) };
    set_view(ring, number, view.clone());
    for _ in 0..50 {
        if ring.opens.contains(&(PartitionNumber(number), epoch)) {
            set_view(ring, number, View { opened: true, ..view });
            return (0..5).for_each(|_| ring.tick());
        }
        ring.tick();
    }
    panic!("partition {number} does not come to a new view: {:?}", ring.partitions);
}

pub(super) fn set_view(ring: &mut TestRing, number: u32, view: View) {
    ring.views[number as usize] = view;
    ring.host_all();
    let addresses: Vec<Address> = ring.partitions.keys().copied().collect();
    addresses.into_iter().for_each(|address| ring.tell(address, Event::View));
}

pub(super) fn healing(ring: &TestRing, number: u32) -> Vec<Healing> {
    let (partition, brick) = (PartitionNumber(number), ring.views[number as usize].leader);
    ring.partitions[&Address { partition, brick }].healing()
}

pub(super) fn heal(ring: &mut TestRing, number: u32) {
    for _ in 0..500 {
        if healing(ring, number).iter().all(|one| one.whole) {
            return;
        }
        ring.tick();
    }
    panic!("partition {number} does not heal: {:?}", healing(ring, number));
}

pub(super) fn write(ring: &mut TestRing, data: u128, offset: u32, bytes: Vec<u8>) -> Result<Reply> {
    let op =
        DataOp::WriteShard { data: DataId(data), index: 0, offset, bytes: bytes.into(), follow: None, fast: false };
    ring.execute(Op::Data { op })
}

pub(super) fn allocate(ring: &mut TestRing, data: u128, offset: u32, length: u32, fill: Fill) -> Result<Reply> {
    let shard = ShardId { volume: VOLUME, data: DataId(data), index: 0 };
    let op = DataOp::AllocateShard { data: shard.data, index: 0, offset, length, fill };
    ring.execute_at(ring.leader(shard.position()), Op::Data { op })
}

/// What a brick holds of a partition, with the bytes of its shards.
fn all_of(ring: &TestRing, brick: BrickId, number: u32) -> Vec<(String, u128)> {
    let (held, number) = (&ring.bricks[brick.0 as usize], PartitionNumber(number));
    let is_shards = |key: &Key| matches!(key.kind(), Some(Kind::Shard | Kind::Checksums));
    let entries = ring.held(brick, number).into_iter().filter(|(key, _)| !is_shards(key));
    let hash = |bytes: &[u8]| bytes.iter().fold(7u128, |sum, byte| sum.wrapping_mul(1_000_003) ^ u128::from(*byte));
    let mut all: Vec<(String, u128)> = entries.map(|(key, value)| (format!("{key:?}"), hash(&value))).collect();
    for shard in held.shards(RING, number, COUNT).unwrap() {
        all.push((format!("{shard:?} {:?}", held.shard(RING, shard).unwrap().unwrap()), 0));
        for (block, sum) in held.block_hashes(RING, shard).unwrap() {
            all.push((format!("{shard:?} block {block}"), sum));
        }
    }
    all
}

fn are_equal(ring: &TestRing) {
    for (number, view) in ring.views.iter().enumerate() {
        let held = view.members.iter().map(|member| all_of(ring, member.brick, number as u32));
        let held: Vec<_> = held.collect();
        assert!(held.iter().all(|one| *one == held[0]), "partition {number}: {held:#?}");
    }
    ring.check();
}

/// Leaves one of the two bricks out of each partition: the leader or the other.
fn leave_out(ring: &mut TestRing, leaders: bool) {
    for number in 0..COUNT {
        let (first, second) = (u128::from(number % BRICKS), u128::from((number + 1) % BRICKS));
        let stays = if leaders { second } else { first };
        form(ring, number, stays, &[stays], &[]);
    }
}

fn bring_back(ring: &mut TestRing) {
    for number in 0..COUNT {
        let stays = ring.views[number as usize].leader.0;
        let (first, second) = (u128::from(number % BRICKS), u128::from((number + 1) % BRICKS));
        let returns = if stays == first { second } else { first };
        form(ring, number, stays, &[stays], &[returns]);
        heal(ring, number);
        form(ring, number, first, &[first, second], &[]);
    }
}

fn some_work(ring: &mut TestRing, model: &mut Model, salt: u64) {
    for number in 0..12 {
        run(ring, model, &Step::Create((number + salt as usize) % 20, number % 3 == 0), salt * 100 + number as u64);
    }
    run(ring, model, &Step::Rename(5, 9, RenameMode::Replace), salt);
    run(ring, model, &Step::Remove(7), salt);
    for data in 1..6 {
        write(ring, data, (salt as u32 * 5000) % 60_000, vec![salt as u8; 9000]).unwrap();
        write(ring, data, 100_000, vec![salt as u8 ^ 0xff; 40_000 + 100 * salt as usize]).unwrap();
    }
}

#[test]
fn who_was_left_out_takes_the_records_that_it_lacks() {
    for leaders in [false, true] {
        let (mut ring, mut model) = (open(&storages()), Model::new());
        some_work(&mut ring, &mut model, 1);
        leave_out(&mut ring, leaders);
        some_work(&mut ring, &mut model, 2);
        bring_back(&mut ring);
        some_work(&mut ring, &mut model, 3);
        ring.rest();
        are_equal(&ring);
        assert!(ring.branches.contains("a learner goes on with its log"));
        assert!(!ring.branches.contains("a learner is compared from the beginning"));
    }
}

#[test]
fn records_that_a_learner_lacks_go_by_and_by_and_new_ones_behind_them() {
    let mut ring = open(&storages());
    leave_out(&mut ring, false);
    let shard = ShardId { volume: VOLUME, data: DataId(1), index: 0 };
    let number = shard.position().partition(COUNT).0;
    for turn in 0..60 {
        write(&mut ring, 1, 5000 * turn, vec![turn as u8; 9000]).unwrap();
    }
    let (first, second) = (u128::from(number % BRICKS), u128::from((number + 1) % BRICKS));
    let leader = Address { partition: PartitionNumber(number), brick: BrickId(first) };
    ring.partitions.get_mut(&leader).unwrap().limit_healing(1);
    form(&mut ring, number, first, &[first], &[second]);
    let mut shares = Vec::new();
    while !healing(&ring, number).iter().all(|one| one.whole) {
        shares.push(healing(&ring, number)[0].done);
        if shares.len() % 4 == 0 {
            write(&mut ring, 1, 777, vec![shares.len() as u8; 3000]).unwrap();
        }
        ring.partitions.get_mut(&leader).unwrap().limit_healing(1);
        ring.tick();
        assert!(shares.len() < 500, "it has no end: {:?}", healing(&ring, number));
    }
    let between = shares.iter().filter(|share| (1..10_000).contains(*share)).count();
    assert!(between > 20, "with so many ticks it was partly healed: {between}, {shares:?}");
    form(&mut ring, number, first, &[first, second], &[]);
    bring_back(&mut ring);
    ring.rest();
    are_equal(&ring);
}

/// Each tick sends more records than are made.
#[test]
fn a_learner_comes_to_its_end_though_clients_go_on() {
    let mut ring = open(&storages());
    let number = ShardId { volume: VOLUME, data: DataId(1), index: 0 }.position().partition(COUNT).0;
    let [first, second, _] = bricks_of(number);
    form(&mut ring, number, first, &[first], &[]);
    (0..20).for_each(|turn| drop(write(&mut ring, 1, 5000 * turn, vec![turn as u8; 9000]).unwrap()));
    let leader = Address { partition: PartitionNumber(number), brick: BrickId(first) };
    ring.partitions.get_mut(&leader).unwrap().limit_healing(1);
    form(&mut ring, number, first, &[first], &[second]);
    let is_feeding = |ring: &TestRing| !healing(ring, number)[0].whole;
    for tick in 0.. {
        if !is_feeding(&ring) {
            break;
        }
        assert!(tick < 60, "it has no end: {:?}", healing(&ring, number));
        (0..2).for_each(|_| drop(write(&mut ring, 1, 777, vec![tick; 3000]).unwrap()));
        ring.tick();
    }
    form(&mut ring, number, first, &[first, second], &[]);
    are_equal(&ring);
}

/// Writes until the journals no longer have the earlier records.
pub(super) fn outgrow_journals(ring: &mut TestRing) {
    for round in 0..120u32 {
        for data in 10..18 {
            write(ring, data, round % 7 * 4096, vec![round as u8; 20_000]).unwrap();
        }
        let ends: Vec<_> = ring.bricks.iter().map(Brick::end).collect();
        ring.bricks.iter().zip(ends).for_each(|(brick, end)| {
            brick.retain_from(end);
            brick.checkpoint().unwrap();
        });
    }
}

#[test]
fn who_lacks_more_than_journals_have_is_compared() {
    for leaders in [false, true] {
        let (mut ring, mut model) = (open(&storages()), Model::new());
        some_work(&mut ring, &mut model, 1);
        allocate(&mut ring, 3, 300_000, 50_000, Fill::Holes).unwrap();
        leave_out(&mut ring, leaders);
        some_work(&mut ring, &mut model, 2);
        allocate(&mut ring, 4, 300_000, 50_000, Fill::Holes).unwrap();
        outgrow_journals(&mut ring);
        bring_back(&mut ring);
        some_work(&mut ring, &mut model, 3);
        ring.rest();
        are_equal(&ring);
        assert!(ring.branches.contains("a learner is compared from the beginning"));
        let sent = ring.sent_to_learners;
        assert!(sent > 100_000, "{sent} bytes");
    }
}

#[test]
fn one_changed_block_moves_as_one_block() {
    let mut ring = open(&storages());
    let data = 77;
    let number = ShardId { volume: VOLUME, data: DataId(data), index: 0 }.position().partition(COUNT).0;
    (0..30).for_each(|part| drop(write(&mut ring, data, part * 100_000, vec![part as u8 + 1; 100_000]).unwrap()));
    let (first, second) = (u128::from(number % BRICKS), u128::from((number + 1) % BRICKS));
    form(&mut ring, number, first, &[first], &[]);
    write(&mut ring, data, 4096 * 100, vec![0xee; 4096]).unwrap();
    outgrow_journals(&mut ring);
    form(&mut ring, number, first, &[first], &[second]);
    heal(&mut ring, number);
    let sent = healing(&ring, number)[0].sent;
    form(&mut ring, number, first, &[first, second], &[]);
    are_equal(&ring);
    // Without the shards that filled the journals.
    let grown = (10..18).filter(|data| {
        let shard = ShardId { volume: VOLUME, data: DataId(*data), index: 0 };
        shard.position().partition(COUNT).0 == number
    });
    let most = 4096 + grown.count() as u64 * 60_000 + 4096;
    assert!(sent <= most, "{sent} bytes for one block; at most {most}");
}

/// The learner has the leader's stamp of a shard that is being healed, and not yet its bytes.
#[test]
fn a_healing_that_begins_anew_trusts_no_stamps_of_the_one_before() {
    let mut ring = open(&storages());
    let (data, parts) = (77, 20);
    let number = ShardId { volume: VOLUME, data: DataId(data), index: 0 }.position().partition(COUNT).0;
    let [first, second, _] = bricks_of(number);
    for (round, members) in [(1, [first, second].as_slice()), (2, &[first])] {
        form(&mut ring, number, first, members, &[]);
        (0..parts).for_each(|part| drop(write(&mut ring, data, part * 100_000, vec![round; 100_000]).unwrap()));
    }
    outgrow_journals(&mut ring);
    let learner = Address { partition: PartitionNumber(number), brick: BrickId(second) };
    ring.held_back = Some((learner, Vec::new()));
    form(&mut ring, number, first, &[first], &[second]);
    while healing(&ring, number)[0].sent < 1_000_000 {
        let (_, held) = ring.held_back.replace((learner, Vec::new())).unwrap();
        held.into_iter().for_each(|envelope| ring.handle(learner, Event::Message(envelope)));
        ring.tick();
    }
    ring.held_back = None;
    form(&mut ring, number, first, &[first], &[]);
    outgrow_journals(&mut ring);
    form(&mut ring, number, first, &[first], &[second]);
    heal(&mut ring, number);
    form(&mut ring, number, first, &[first, second], &[]);
    are_equal(&ring);
}

/// Several times the data that may be in flight, by records and by comparison.
#[test]
fn a_learner_that_answers_late_is_sent_no_more_than_a_window_and_becomes_whole() {
    for compared in [false, true] {
        // The journals retain all of it.
        let mut ring = open_with(&storages(), 4 << 20);
        let number = ShardId { volume: VOLUME, data: DataId(77), index: 0 }.position().partition(COUNT).0;
        let [first, second, _] = bricks_of(number);
        form(&mut ring, number, first, &[first], &[]);
        (0..60).for_each(|part| drop(write(&mut ring, 77, part * 60_000, vec![part as u8 + 1; 60_000]).unwrap()));
        if compared {
            (0..8).for_each(|_| outgrow_journals(&mut ring));
        }
        let [leader, learner] =
            [first, second].map(|brick| Address { partition: PartitionNumber(number), brick: BrickId(brick) });
        ring.partitions.get_mut(&leader).unwrap().limit_healing(1);
        form(&mut ring, number, first, &[first], &[second]);
        while healing(&ring, number)[0].sent == 0 {
            ring.tick();
        }
        ring.partitions.get_mut(&leader).unwrap().limit_healing(1 << 20);
        ring.held_back = Some((learner, Vec::new()));
        let before = healing(&ring, number)[0].sent;
        (0..20).for_each(|_| ring.tick());
        let sent = healing(&ring, number)[0].sent - before;
        assert!(sent < (2 << 20) + 100_000, "{sent} bytes that the learner has not received");
        let (_, held) = ring.held_back.take().unwrap();
        ring.queue.extend(held);
        heal(&mut ring, number);
        assert!(healing(&ring, number)[0].sent > 3 << 20, "{compared}: {:?}", healing(&ring, number));
        form(&mut ring, number, first, &[first, second], &[]);
        are_equal(&ring);
    }
}

/// Makes a change of the host's.
fn change(ring: &mut TestRing, of: InodeId, change: Change) {
    let (token, at) = (Token(1), ring.leader(of.position()));
    let commit = Box::new(Commit { changes: vec![change], ..Commit::default() });
    ring.tell(at, Event::Change { token, commit });
    assert_eq!(ring.answers.remove(&token), Some(Ok(Reply::Done)));
}

/// Puts the root's partition on the first two bricks, with the third as a learner that is being compared. Returns its
/// number.
fn third_learns(ring: &mut TestRing) -> u32 {
    let number = ROOT.position().partition(COUNT).0;
    outgrow_journals(ring);
    let [first, second, third] = bricks_of(number);
    let leader = Address { partition: PartitionNumber(number), brick: BrickId(first) };
    ring.partitions.get_mut(&leader).unwrap().limit_healing(1);
    form(ring, number, first, &[first, second], &[third]);
    while healing(ring, number)[0].from.is_none() {
        ring.tick();
    }
    number
}

fn bricks_of(number: u32) -> [u128; 3] {
    [0, 1, 2].map(|further| u128::from((number + further) % BRICKS))
}

#[test]
fn who_was_compared_is_no_member_before_the_members_have_what_came_meanwhile() {
    let mut ring = open(&storages());
    let number = third_learns(&mut ring);
    let [first, second, third] = bricks_of(number);
    let second_at = Address { partition: PartitionNumber(number), brick: BrickId(second) };
    ring.held_back = Some((second_at, Vec::new()));
    for _ in 0..200 {
        ring.tick();
        assert!(!healing(&ring, number)[0].whole);
    }
    assert_eq!(healing(&ring, number)[0].done, 10_000, "the learner has everything");
    let (_, held) = ring.held_back.take().unwrap();
    assert!(held.len() > 3, "the learner lacks steps");
    ring.queue.extend(held);
    heal(&mut ring, number);
    form(&mut ring, number, third, &[third, first, second], &[]);
    are_equal(&ring);
}

/// The records of a replica's healing are not what other replicas lack.
#[test]
fn who_was_compared_gives_nobody_the_records_of_its_healing() {
    let mut ring = open(&storages());
    let key = Key::session(RING, ROOT.position(), SessionId(77), 3);
    let record = SessionRecord { op_id: OpId(3), reply: Reply::Done.to_bytes() };
    change(&mut ring, ROOT, Change::Put { key: key.clone(), value: record.to_bytes() });
    let number = third_learns(&mut ring);
    let [first, second, third] = bricks_of(number);
    form(&mut ring, number, first, &[first], &[third]);
    // The third replica does not get this record.
    change(&mut ring, ROOT, Change::Delete { key });
    heal(&mut ring, number);
    form(&mut ring, number, third, &[third, first], &[]);
    form(&mut ring, number, third, &[third, first], &[second]);
    heal(&mut ring, number);
    form(&mut ring, number, third, &[third, first, second], &[]);
    ring.rest();
    are_equal(&ring);
}

/// A record that only its leader has is undone when that leader comes back.
#[test]
fn what_only_the_old_leader_had_is_undone() {
    for compared in [false, true] {
        let (mut ring, mut model) = (open(&storages()), Model::new());
        some_work(&mut ring, &mut model, 1);
        for number in 0..COUNT {
            let (first, second) = (u128::from(number % BRICKS), u128::from((number + 1) % BRICKS));
            let partition = PartitionNumber(number);
            let data = (100..).find(|data| {
                ShardId { volume: VOLUME, data: DataId(*data), index: 0 }.position().partition(COUNT) == partition
            });
            let data = data.unwrap();
            write(&mut ring, data, 0, vec![1; 30_000]).unwrap();
            // Their records reach no other replica.
            for (offset, bytes) in [(8192, vec![2; 5000]), (60_000, vec![3; 50_000]), (0, vec![4; 10])] {
                ring.op_id += 256;
                let op = DataOp::WriteShard {
                    data: DataId(data),
                    index: 0,
                    offset,
                    bytes: bytes.into(),
                    follow: None,
                    fast: false,
                };
                let (token, ask) = (Token(ring.op_id), ring.ask());
                let at = Address { partition, brick: BrickId(first) };
                ring.handle(at, Event::Request { token, ask, op: Op::Data { op } });
                ring.queue.clear();
            }
            form(&mut ring, number, second, &[second], &[]);
            write(&mut ring, data, 4096, vec![5; 4096]).unwrap();
            if compared {
                outgrow_journals(&mut ring);
            }
            form(&mut ring, number, second, &[second], &[first]);
            heal(&mut ring, number);
            form(&mut ring, number, first, &[first, second], &[]);
            let op = DataOp::ReadShard { data: DataId(data), index: 0, offset: 0, length: 200_000 };
            let Reply::Data { bytes } = ring.read(Op::Data { op }).unwrap() else { panic!("no data") };
            let wanted = [vec![1; 4096], vec![5; 4096], vec![1; 30_000 - 8192]].concat();
            assert!(bytes == wanted, "{} bytes", bytes.len());
        }
        ring.rest();
        are_equal(&ring);
    }
}

/// A step of a random run.
#[derive(Debug, Clone)]
enum Act {
    Name(Step),
    Write(u128, u32, u8, u16),
    Allocate(u128, u32, u16, Fill),
    /// The partition forms its next view: a replica is left out, comes back, or is a member again.
    View(u32, bool),
    Tick,
    /// This many messages are delivered, and then all processes die.
    Die(u64),
    Home,
}

fn fill() -> impl Strategy<Value = Fill> {
    prop_oneof![Just(Fill::Holes), Just(Fill::Zeros), Just(Fill::Nothing)]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => step().prop_map(Act::Name),
        4 => (1u128..9, 0u32..90_000, any::<u8>(), 1u16..50_000).prop_map(|(a, b, c, d)| Act::Write(a, b, c, d)),
        2 => (1u128..9, 0u32..200_000, 1u16..50_000, fill()).prop_map(|(a, b, c, d)| Act::Allocate(a, b, c, d)),
        6 => (0..COUNT, any::<bool>()).prop_map(|(number, first)| Act::View(number, first)),
        2 => Just(Act::Tick),
        1 => (0u64..60).prop_map(Act::Die),
        1 => Just(Act::Home),
    ]
}

fn next_view(ring: &mut TestRing, number: u32, choice: bool) {
    let (first, second) = (u128::from(number % BRICKS), u128::from((number + 1) % BRICKS));
    let view = ring.views[number as usize].clone();
    match (view.members.len(), view.learners.len()) {
        (2, _) => {
            let stays = if choice { first } else { second };
            form(ring, number, stays, &[stays], &[]);
        }
        (_, 0) => {
            let stays = view.leader.0;
            form(ring, number, stays, &[stays], &[if stays == first { second } else { first }]);
        }
        _ if healing(ring, number).iter().all(|one| one.whole) => {
            form(ring, number, if choice { first } else { second }, &[first, second], &[]);
        }
        // The replica is left out again, in the middle of its healing.
        _ if choice => form(ring, number, view.leader.0, &[view.leader.0], &[]),
        _ => ring.tick(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn whatever_views_come_replicas_are_equal_in_the_end(acts in prop::collection::vec((act(), any::<u64>()), 1..80)) {
        // The journals are small: a replica that comes back finds the records that it lacks in some runs.
        let mut ring = open_with(&storages(), 64 << 10);
        let mut model = Model::new();
        // After a death during an op it is unknown whether the op was done.
        let mut sure = true;
        for (act, seed) in &acts {
            match act {
                Act::Name(step) if sure => run(&mut ring, &mut model, step, *seed),
                Act::Name(_) => drop(ring.name_op(NameOp::Create {
                    dir: ROOT, name: Name::new(format!("n{seed:x}").into_bytes().into()).unwrap(),
                    node: NewNode::File, mode: 0o644, uid: 1, gid: 1, umask: 0, exclusive: true, seed: *seed,
                })),
                Act::Write(data, offset, byte, length) => {
                    write(&mut ring, *data, *offset, vec![*byte; usize::from(*length)]).unwrap();
                }
                Act::Allocate(data, offset, length, fill) => {
                    allocate(&mut ring, *data, *offset, u32::from(*length), *fill).unwrap();
                }
                Act::View(number, choice) => next_view(&mut ring, *number, *choice),
                Act::Tick => ring.tick(),
                Act::Die(messages) => {
                    sure = false;
                    ring.op_id += 256;
                    let op = DataOp::WriteShard {
                        data: DataId(u128::from(seed % 8)), index: 0, offset: (seed % 50_000) as u32,
                        bytes: vec![*seed as u8; 12_000].into(), follow: None, fast: false,
                    };
                    let (token, ask) = (Token(ring.op_id), ring.ask());
                    let at = ring.place(&Op::Data { op: op.clone() });
                    ring.messages_left = *messages;
                    ring.tell(at, Event::Request { token, ask, op: Op::Data { op } });
                    (0..2).for_each(|_| ring.tick());
                    ring.messages_left = u64::MAX;
                    ring.queue.clear();
                    ring.start_all();
                }
                Act::Home => ring.write_home(),
            }
        }
        for number in 0..COUNT {
            for _ in 0..4 {
                if ring.views[number as usize].members.len() == 2 {
                    break;
                }
                if !ring.views[number as usize].learners.is_empty() {
                    heal(&mut ring, number);
                }
                next_view(&mut ring, number, false);
            }
        }
        ring.rest();
        are_equal(&ring);
    }
}

/// A repair reads a block before it writes it, so it must not overwrite a change that was made meanwhile.
#[test]
fn what_was_just_looked_at_is_changed_at_once_or_not_at_all() {
    let mut ring = open(&storages());
    let at = ring.leader(ROOT.position());
    let member =
        ring.views[at.partition.0 as usize].members.iter().map(|member| member.brick).find(|one| *one != at.brick);
    let bricks = vec![member.unwrap()];
    let key = Key::session(RING, ROOT.position(), SYSTEM_SESSION, 9);
    let change_now = |ring: &mut TestRing, token, value: &'static [u8]| {
        let change = Change::Put { key: key.clone(), value: value.into() };
        let commit = Box::new(Commit { changes: vec![change], ..Commit::default() });
        ring.tell(at, Event::ChangeNow { token, commit });
        let value = ring.bricks[at.brick.0 as usize].get(&key).unwrap();
        (ring.answers.remove(&token), value)
    };
    ring.tell(at, Event::Down { bricks: bricks.clone() });
    let refused = change_now(&mut ring, Token(1), b"old");
    assert!(matches!(refused, (Some(Err(Error::Unavailable { .. })), None)), "{refused:?}");
    ring.tell(at, Event::Up { bricks });
    ring.rest();
    assert_eq!(change_now(&mut ring, Token(2), b"new"), (Some(Ok(Reply::Done)), Some(Bytes::from_static(b"new"))));
    let (mut out, around) = (Out::default(), TestRing::around(&ring.bricks, &ring.views, at, ring.clock));
    let event = Event::ChangeNow { token: Token(3), commit: Box::default() };
    ring.partitions.get_mut(&at).unwrap().handle(event, &around, &mut out);
    assert!(out.answers.iter().all(|(_, answer)| answer.is_ok()), "a change that was made is not refused");
}
