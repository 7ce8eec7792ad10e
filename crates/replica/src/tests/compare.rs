//! Replicas with equal logs and different data, which are detected after a restart of a machine, before clients are
//! served.

use super::*;
use hekate_brick::{LogEntry, block_checksum};

const NUMBER: PartitionNumber = PartitionNumber(0);

fn put_in(number: PartitionNumber, name: &str, value: &str) -> Change {
    let position = number.first_position(COUNT);
    let id = InodeId::new(position.0, 5, 77);
    let key = Key::name(hekate_proto::KeyPrefix { ring: RING, position, volume: VOLUME }, id, name.as_bytes());
    Change::Put { key, value: Bytes::copy_from_slice(value.as_bytes()) }
}

fn put(name: &str, value: &str) -> Change {
    put_in(NUMBER, name, value)
}

/// Appends the same record to the logs of both members, with different changes.
fn append_in(ring: &TestRing, number: PartitionNumber, leaders: Vec<Change>, members: Vec<Change>) {
    let view = &ring.views[number.0 as usize];
    for (member, changes) in view.members.iter().zip([leaders, members]) {
        let brick = &ring.bricks[member.brick.0 as usize];
        let sequence = Sequence(brick.position(RING, number).sequence.0 + 1);
        let (session, op_id, epoch) = (SYSTEM_SESSION, OpId(0), view.epoch);
        let record = Record { ring: RING, partition: number, epoch, sequence, session, op_id, changes };
        brick.append(&LogEntry::new(record)).unwrap();
    }
}

fn append(ring: &TestRing, leaders: Vec<Change>, members: Vec<Change>) {
    append_in(ring, NUMBER, leaders, members);
}

fn held_in(ring: &TestRing, number: PartitionNumber) -> [Vec<(Key, Bytes)>; 2] {
    let members = &ring.views[number.0 as usize].members;
    // A leader that starts reserves numbers.
    let counts = |entry: &(Key, Bytes)| entry.0.kind() != Some(Kind::Partition);
    [0, 1].map(|index: usize| ring.held(members[index].brick, number).into_iter().filter(counts).collect())
}

fn held_by_both(ring: &TestRing) -> [Vec<(Key, Bytes)>; 2] {
    held_in(ring, NUMBER)
}

fn ring_at_rest() -> TestRing {
    let mut ring = open(&storages());
    create_file(&mut ring);
    ring.rest();
    ring
}

fn restart_machines(ring: &mut TestRing) {
    ring.views.iter_mut().for_each(|view| {
        view.epoch.0 += 1;
        view.forgetful = true;
    });
    ring.start_all();
}

fn failure(ring: &TestRing) -> String {
    let leader = Address { partition: NUMBER, brick: ring.views[NUMBER.0 as usize].leader };
    ring.partitions[&leader].failure().expect("it is served").to_string()
}

#[test]
fn members_take_the_few_entries_that_differ_from_the_leader() {
    let mut ring = ring_at_rest();
    let same = |some: u32| (0..1500).map(|number| put(&format!("n{some}-{number:05}"), "same")).collect::<Vec<_>>();
    (0..4).for_each(|some| append(&ring, same(some), same(some)));
    let leaders = vec![put("n0-00001", "flipped"), put("only the leader has it", "x"), put("z", "behind")];
    append(&ring, leaders, vec![put("n0-00001", "flippee"), put("only the member has it", "x")]);
    let [wanted, other] = held_by_both(&ring);
    assert_ne!(wanted, other);
    restart_machines(&mut ring);
    let [leader, member] = held_by_both(&ring);
    assert!(leader == wanted && member == wanted, "as the leader had it");
    let (first, second) = (BrickId(0).text(), BrickId(1).text());
    assert_eq!(ring.notes.len(), 1, "{:?}", ring.notes);
    for word in ["partition 0 of ring 1", "4 entries", &first, &second, "brick scrub"] {
        assert!(ring.notes[0].contains(word), "{word}: {:?}", ring.notes);
    }
    ring.start();
    assert_eq!(ring.notes.len(), 1, "compared once");
}

#[test]
fn replicas_are_compared_once_in_a_view_that_is_new() {
    let mut ring = ring_at_rest();
    ring.start();
    assert_eq!(ring.compared, 0, "a process that was killed alone");
    restart_machines(&mut ring);
    let compared = ring.compared;
    assert!(compared > 0);
    // The record that ended the comparison is of this view.
    ring.start();
    assert_eq!(ring.compared, compared);
    assert_eq!(ring.notes, Vec::<String>::new());
    ring.rest();
    ring.check();
}

#[test]
fn more_entries_than_damage_explains_are_not_served() {
    let mut ring = ring_at_rest();
    append(&ring, (0..300).map(|number| put(&format!("n{number}"), "x")).collect(), Vec::new());
    restart_machines(&mut ring);
    let why = failure(&ring);
    let (first, second) = (BrickId(0).text(), BrickId(1).text());
    for word in ["partition 0 of ring 1", &first, &second, "many entries", "hekate debug compare"] {
        assert!(why.contains(word), "{word} is missing in: {why}");
    }
    let [leader, member] = held_by_both(&ring);
    assert_ne!(leader, member, "neither brick has changed");
}

/// What members take from the leader is in one record: its bytes are limited as well as its entries.
#[test]
fn few_long_entries_are_taken_over_and_too_many_bytes_are_not() {
    for (count, bytes, is_taken) in [(3, 10_000, true), (200, 2000, true), (100, 30_000, false)] {
        let mut ring = ring_at_rest();
        for number in 0..count {
            append(&ring, vec![put(&format!("n{number}"), &"x".repeat(bytes))], vec![put(&format!("n{number}"), "y")]);
            ring.write_home();
        }
        restart_machines(&mut ring);
        let [leader, member] = held_by_both(&ring);
        assert_eq!(leader == member, is_taken, "{count} of {bytes} bytes");
        assert!(is_taken || failure(&ring).contains("many entries"));
    }
}

/// The partition is empty otherwise: the root is in the first one.
#[test]
fn what_only_a_member_has_is_found_where_the_leader_has_nothing() {
    let mut ring = open(&storages());
    ring.rest();
    let number = PartitionNumber(1);
    append_in(&ring, number, Vec::new(), vec![put_in(number, "only the member has it", "x")]);
    assert!(held_in(&ring, number)[0].is_empty());
    restart_machines(&mut ring);
    assert_eq!(held_in(&ring, number), [vec![], vec![]]);
    assert_eq!(ring.notes.len(), 1, "{:?}", ring.notes);
}

#[test]
fn what_failed_stays_so_in_its_view_and_is_served_in_the_next() {
    let mut ring = ring_at_rest();
    append(&ring, (0..300).map(|number| put(&format!("n{number}"), "x")).collect(), Vec::new());
    restart_machines(&mut ring);
    let (why, compared) = (failure(&ring), ring.compared);
    let addresses: Vec<Address> = ring.partitions.keys().copied().collect();
    for address in addresses {
        ring.tell(address, Event::View);
        ring.tick();
    }
    assert_eq!((failure(&ring), ring.compared), (why, compared));
    let before = ring.views[NUMBER.0 as usize].clone();
    let (leader, epoch) = (before.leader, Epoch(before.epoch.0 + 1));
    let members = before.members.into_iter().filter(|member| member.brick == leader).collect();
    super::heal::set_view(&mut ring, NUMBER.0, View::new(epoch, leader, members));
    let replica = &ring.partitions[&Address { partition: NUMBER, brick: leader }];
    assert!(replica.failure().is_none(), "the next request is answered");
    super::heal::form(&mut ring, NUMBER.0, leader.0, &[leader.0], &[]);
    let replica = &ring.partitions[&Address { partition: NUMBER, brick: leader }];
    assert!(replica.serves() && replica.failure().is_none(), "{:?}", replica.failure());
}

#[test]
fn a_member_with_far_more_than_the_leader_is_not_served() {
    let mut ring = ring_at_rest();
    for some in 0..5 {
        append(&ring, Vec::new(), (0..2000).map(|number| put(&format!("n{some}-{number}"), "x")).collect());
    }
    restart_machines(&mut ring);
    assert!(failure(&ring).contains("many entries"));
}

#[test]
fn shards_of_other_stamps_are_not_served() {
    let mut ring = ring_at_rest();
    let shard = |data| ShardId { volume: VOLUME, data, index: 0 };
    let data =
        (0..).map(|high: u128| DataId(high << 100)).find(|data| shard(*data).position().partition(COUNT) == NUMBER);
    let shard = shard(data.unwrap());
    let write = |count: u64| {
        let bytes = Bytes::from(vec![count as u8; BLOCK_BYTES]);
        let run = BlockRun { first: 0, checksums: vec![block_checksum(shard, 0, &bytes)] };
        let stamp = Stamp { count, session: SessionId(1), op: OpId(1) };
        let record = ShardRecord { stamp, length: BLOCK_BYTES as u32, home_blocks: 1, reserved_blocks: 0 };
        vec![Change::WriteBlocks { shard, record, run, bytes }]
    };
    append(&ring, write(1), write(1));
    restart_machines(&mut ring);
    ring.start();
    append(&ring, write(2), write(3));
    restart_machines(&mut ring);
    assert!(failure(&ring).contains("shards"), "{}", failure(&ring));
}

#[test]
fn a_member_that_restarts_meanwhile_is_compared_all_the_same() {
    let mut ring = ring_at_rest();
    let leader = Address { partition: NUMBER, brick: BrickId(0) };
    for messages in 0..60 {
        append(&ring, vec![put("a", "leader")], vec![put("a", &messages.to_string())]);
        ring.views.iter_mut().for_each(|view| {
            view.epoch.0 += 1;
            view.forgetful = true;
        });
        // Messages that are in flight then are lost, and the member's server comes back.
        ring.messages_left = messages;
        ring.start_all();
        ring.messages_left = u64::MAX;
        let bricks: Vec<BrickId> = (0..BRICKS).map(|brick| BrickId(brick.into())).collect();
        for address in ring.partitions.keys().copied().collect::<Vec<_>>() {
            ring.tell(address, Event::Down { bricks: bricks.clone() });
            ring.tell(address, Event::Up { bricks: bricks.clone() });
        }
        (0..20).for_each(|_| ring.tick());
        let [leads, follows] = held_by_both(&ring);
        assert!(leads == follows && ring.partitions[&leader].serves(), "after {messages} messages");
    }
}
