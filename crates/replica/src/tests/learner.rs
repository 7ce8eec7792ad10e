//! Learners: which records are retained for them and how long, and which of them are compared.

use super::closing::{beside, fill, fill_journal};
use super::fast::{BLOCK, DATA, FIRST, Lane, bytes, make_anew, shard};
use super::heal::{allocate, form, heal, healing, outgrow_journals, set_view, write};
use super::*;
use hekate_brick::storage::Storage;

/// A learner that is whole may be a member of the next view, and must find the records that it lacks in the members'
/// journals. Records must not be retained for a learner that has fallen behind, or the journals fill up.
#[test]
fn what_a_whole_learner_lacks_is_kept_as_long_as_it_keeps_up() {
    let mut ring = open(&storages());
    let number = ShardId { volume: VOLUME, data: DataId(1), index: 0 }.position().partition(COUNT).0;
    let [first, second, third] = [0, 1, 2].map(|further| u128::from((number + further) % BRICKS));
    form(&mut ring, number, first, &[first, second], &[third]);
    heal(&mut ring, number);
    let [leader, learner] =
        [first, third].map(|brick| Address { partition: PartitionNumber(number), brick: BrickId(brick) });
    let has = ring.bricks[third as usize].position(RING, leader.partition).sequence;
    ring.held_back = Some((learner, Vec::new()));
    let write_and_sync = |ring: &mut TestRing| {
        write(ring, 1, 0, vec![1; 5000]).unwrap();
        ring.tell(leader, Event::Sync { token: Token(3), shards: Vec::new(), own: false });
        assert_eq!(ring.answers.remove(&Token(3)), Some(Ok(Reply::Done)));
        ring.partitions[&leader].stable()
    };
    let stable = write_and_sync(&mut ring);
    assert!(healing(&ring, number)[0].whole && stable <= has, "{stable:?} may go, and the learner has up to {has:?}");
    (0..5).for_each(|_| ring.tick());
    assert!(healing(&ring, number)[0].whole, "half a second is not too late");
    (0..20).for_each(|_| ring.tick());
    assert!(!healing(&ring, number)[0].whole);
    assert!(write_and_sync(&mut ring) > has);
    let (_, held) = ring.held_back.take().unwrap();
    ring.queue.extend(held);
    heal(&mut ring, number);
    form(&mut ring, number, third, &[third, first, second], &[]);
    ring.rest();
    ring.check();
}

/// The follower loses the block in a power cut.
fn lose_block(lane: &mut Lane) {
    lane.ring.write_home();
    let path = hekate_brick::data_file_path(shard());
    let file = lane.storages[lane.follower.brick.0 as usize].open(&path, false).unwrap();
    file.write_at(&[&[9; 100]], 0).unwrap();
    let around = TestRing::around(&lane.ring.bricks, &lane.ring.views, lane.follower, 0);
    let lost = vec![BlockAt { shard: shard(), block: 0 }];
    let follower = Partition::new(RING, lane.follower, &around, lost).unwrap();
    lane.ring.partitions.insert(lane.follower, follower);
}

/// The learner's log has the records about these blocks, and no later record brings their bytes. Stamps do not show the
/// loss either.
#[test]
fn who_lost_blocks_with_its_power_is_compared() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    form(&mut lane.ring, number, first, &[first], &[]);
    let data = beside(&lane);
    let op = DataOp::WriteShard { data, index: 0, offset: 0, bytes: bytes(2, 10), follow: None, fast: false };
    assert!(lane.request(lane.leader, FIRST, 513, op).is_ok());
    lose_block(&mut lane);
    form(&mut lane.ring, number, first, &[first], &[second]);
    heal(&mut lane.ring, number);
    assert!(lane.ring.branches.contains("a learner is compared from the beginning"));
    form(&mut lane.ring, number, first, &[first, second], &[]);
    lane.check_even([1; 4]);
}

/// Otherwise, if it led alone, the block would count as lost everywhere and become zeros.
#[test]
fn a_member_that_got_its_lost_block_back_says_no_more_that_it_lacks_it() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    lose_block(&mut lane);
    form(&mut lane.ring, number, first, &[first, second], &[]);
    lane.ring.rest();
    form(&mut lane.ring, number, second, &[second], &[]);
    lane.ring.rest();
    assert!(lane.held(lane.follower).1 == bytes(1, 4 * BLOCK_BYTES));
}

/// What was overwritten since comes with later records. The rest of the record's blocks comes with no other.
#[test]
fn a_learner_gets_what_is_left_of_a_record_that_was_written_over_in_part() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    form(&mut lane.ring, number, first, &[first], &[]);
    lane.ring.op_id = 600 * 256;
    // So many bytes are written to a data file, and the record has checksums only.
    let blocks = (10..26).flat_map(|byte| vec![byte; BLOCK_BYTES]).collect();
    drop(write(&mut lane.ring, DATA.0, 4 * BLOCK, blocks).unwrap());
    for block in [4, 9, 10] {
        drop(write(&mut lane.ring, DATA.0, block * BLOCK, vec![99; BLOCK_BYTES]).unwrap());
    }
    lane.ring.write_home();
    form(&mut lane.ring, number, first, &[first], &[second]);
    becomes_equal(&mut lane);
    assert!(!lane.ring.branches.contains("a learner is compared from the beginning"));
}

/// The learner lists its entries in several portions.
#[test]
fn what_a_learner_has_far_more_than_the_leader_goes() {
    let mut ring = open(&storages());
    let number = ROOT.position().partition(COUNT);
    let [first, second, third] = [0, 1, 2].map(|further| u128::from((number.0 + further) % BRICKS));
    outgrow_journals(&mut ring);
    let brick = &ring.bricks[third as usize];
    for part in 0..9u64 {
        let put = |session: u64| {
            let key = Key::session(RING, number.first_position(COUNT), SessionId(part * 1000 + session + 7), 1);
            Change::Put { key, value: bytes(1, 10) }
        };
        let (partition, epoch, sequence, session, op_id) = (number, Epoch(1), Sequence(0), SYSTEM_SESSION, OpId(0));
        let changes = (0..1000).map(put).collect();
        let record = Record { ring: RING, partition, epoch, sequence, session, op_id, changes };
        brick.append(&hekate_brick::LogEntry::new(record)).unwrap();
    }
    form(&mut ring, number.0, first, &[first, second], &[third]);
    heal(&mut ring, number.0);
    form(&mut ring, number.0, third, &[third, first, second], &[]);
    ring.rest();
    ring.check();
}

/// A shard of so many blocks on both replicas, which differs in all blocks but one. The follower is left out.
fn left_out(blocks: u32) -> Lane {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    lane.ring.op_id = 600 * 256;
    for (byte, members) in [(1, [first, second].as_slice()), (2, &[first])] {
        form(&mut lane.ring, number, first, members, &[]);
        (0..blocks / 8).for_each(|part| {
            let bytes = vec![byte; 8 * BLOCK_BYTES];
            drop(write(&mut lane.ring, DATA.0, part * 8 * BLOCK, bytes).unwrap());
        });
    }
    // A hole between other blocks.
    allocate(&mut lane.ring, DATA.0, 3 * BLOCK, BLOCK, Fill::Nothing).unwrap();
    outgrow_journals(&mut lane.ring);
    lane
}

/// The follower learns, and is to be compared as soon as healing is allowed. Also returns the count of the leader's
/// stamp before.
fn differing(blocks: u32) -> (Lane, u64) {
    let mut lane = left_out(blocks);
    let before = lane.held(lane.leader).0.count;
    learns(&mut lane);
    (lane, before)
}

fn learns(lane: &mut Lane) {
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(0);
    form(&mut lane.ring, number, first, &[first], &[second]);
}

/// Allows healing without limit. The learner becomes a member, and both replicas hold the same.
fn becomes_equal(lane: &mut Lane) {
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1 << 20);
    heal(&mut lane.ring, number);
    form(&mut lane.ring, number, first, &[first, second], &[]);
    lane.ring.rest();
    let (ours, theirs) = (lane.held(lane.leader), lane.held(lane.follower));
    assert!(ours == theirs, "{:?} {:?}", ours.0, theirs.0);
}

/// The operator must not make it lead before (`hekate partition force`).
#[test]
fn who_is_being_compared_is_said_not_to_be_whole() {
    let (mut lane, _) = differing(64);
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    while healing(&lane.ring, number)[0].sent == 0 {
        lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1);
        lane.ring.tick();
    }
    assert!(lane.ring.partitions[&lane.follower].is_being_healed());
    assert!(!lane.ring.partitions[&lane.leader].is_being_healed());
    lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1 << 20);
    (0..50).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, first, &[first, second], &[]);
    assert!(!lane.ring.partitions[&lane.follower].is_being_healed());
}

/// What is sent of the shard is what the leader has when it is sent.
#[test]
fn blocks_that_become_holes_while_a_shard_is_healed_are_holes_on_all() {
    let (mut lane, _) = differing(64);
    let number = lane.leader.partition.0;
    // Until it is known which blocks differ.
    while lane.held(lane.leader).0 != lane.held(lane.follower).0 || healing(&lane.ring, number)[0].sent == 0 {
        lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1);
        lane.ring.tick();
    }
    for block in (6..64).step_by(8) {
        allocate(&mut lane.ring, DATA.0, block * BLOCK, BLOCK, Fill::Nothing).unwrap();
    }
    becomes_equal(&mut lane);
}

#[test]
fn holes_that_are_written_while_a_shard_is_healed_are_written_on_all() {
    for blocks in [1, 2] {
        let (mut lane, _) = differing(64);
        let number = lane.leader.partition.0;
        allocate(&mut lane.ring, DATA.0, 3 * BLOCK, 2 * BLOCK, Fill::Nothing).unwrap();
        // Until it is known which blocks differ, and the first have been sent.
        while lane.held(lane.leader).0 != lane.held(lane.follower).0 || healing(&lane.ring, number)[0].sent == 0 {
            lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1);
            lane.ring.tick();
        }
        let bytes = vec![9; blocks as usize * BLOCK_BYTES];
        write(&mut lane.ring, DATA.0, 3 * BLOCK, bytes).unwrap();
        becomes_equal(&mut lane);
        let read = DataOp::ReadShard { data: DATA, index: 0, offset: 3 * BLOCK, length: 2 * BLOCK };
        let Ok(Reply::Data { bytes }) = lane.ring.read(Op::Data { op: read }) else { panic!("not read") };
        let there = bytes.iter().filter(|byte| **byte == 9).count();
        assert_eq!(there, blocks as usize * BLOCK_BYTES);
    }
}

/// Bricks rely on the counts of stamps: a count that is not above the last synced one counts as synced.
#[test]
fn healing_gives_a_shard_a_greater_count_than_anybody_had() {
    let (mut lane, before) = differing(8);
    let number = lane.leader.partition.0;
    lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1 << 20);
    heal(&mut lane.ring, number);
    let after = [lane.leader, lane.follower].map(|at| lane.held(at).0.count);
    assert!(after.iter().all(|count| *count > before), "{after:?} {before}");
}

/// Shards that were being healed have the leader's stamps and not all of its bytes.
#[test]
fn a_learner_that_dies_while_a_shard_is_healed_trusts_no_stamps_of_it() {
    let (mut lane, _) = differing(64);
    let number = lane.leader.partition.0;
    while lane.held(lane.leader).0 != lane.held(lane.follower).0 {
        lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1);
        lane.ring.tick();
        assert!(!healing(&lane.ring, number)[0].whole);
    }
    assert!(lane.held(lane.leader).1 != lane.held(lane.follower).1);
    lane.ring.partitions.remove(&lane.follower);
    lane.ring.host_all();
    lane.ring.tell(lane.follower, Event::Start);
    lane.ring.tell(lane.leader, Event::Up { bricks: vec![lane.follower.brick] });
    becomes_equal(&mut lane);
}

/// The learner's log is as long as the leader's was then, and not a beginning of it.
#[test]
fn a_record_that_only_the_old_leader_had_is_undone_though_others_have_come_since() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let (number, first, second) = (leader.partition.0, leader.brick.0, follower.brick.0);
    let data = beside(&lane);
    let op = DataOp::WriteShard { data, index: 0, offset: 0, bytes: bytes(2, 10), follow: None, fast: false };
    let ask = Lane::ask(FIRST, 513);
    lane.ring.handle(leader, Event::Request { token: Token(1), ask, op: Op::Data { op } });
    lane.ring.queue.clear();
    form(&mut lane.ring, number, second, &[second], &[]);
    lane.leader = follower;
    (2..6).for_each(|turn| drop(lane.slow(FIRST, turn * 256, 0, bytes(turn as u8, BLOCK_BYTES)).unwrap()));
    form(&mut lane.ring, number, second, &[second], &[first]);
    heal(&mut lane.ring, number);
    form(&mut lane.ring, number, second, &[second, first], &[]);
    lane.follower = leader;
    lane.check_even([5, 1, 1, 1]);
    let left = ShardId { data, ..shard() };
    let left = [leader, follower].map(|at| lane.ring.bricks[at.brick.0 as usize].shard(RING, left).unwrap());
    assert_eq!(left, [None, None], "no client got an answer about it");
}

/// A hole cannot be punched beside reserved room, so the shard's healing begins again.
#[test]
fn a_shard_for_which_room_is_made_while_it_is_healed_becomes_equal() {
    let (mut lane, _) = differing(64);
    while lane.held(lane.leader).0 != lane.held(lane.follower).0 {
        lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1);
        lane.ring.tick();
    }
    allocate(&mut lane.ring, DATA.0, 64 * BLOCK, 4 * BLOCK, Fill::Holes).unwrap();
    becomes_equal(&mut lane);
}

/// After a power cut of all machines a new member may lead (rule 23).
#[test]
fn who_becomes_a_member_has_what_it_was_given_on_stable_storage() {
    for leads in [false, true] {
        let mut lane = Lane::new();
        let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
        form(&mut lane.ring, number, first, &[first], &[]);
        let data = beside(&lane);
        let written = bytes(2, 64 * BLOCK_BYTES);
        let op = DataOp::WriteShard { data, index: 0, offset: 0, bytes: written.clone(), follow: None, fast: false };
        assert!(lane.request(lane.leader, FIRST, 513, op).is_ok());
        form(&mut lane.ring, number, first, &[first], &[second]);
        heal(&mut lane.ring, number);
        form(&mut lane.ring, number, if leads { second } else { first }, &[first, second], &[]);
        let cut = brick_on(second as usize, &lane.storages[second as usize].after_power_cut(), 512 << 10, false);
        let held = cut.read_shard(RING, ShardId { data, ..shard() }, 0, written.len() as u32);
        assert!(held.as_ref().is_ok_and(|held| *held == written), "{leads}: {:?}", held.map(|held| held.len()));
    }
}

/// The next leader may need its journal.
#[test]
fn who_is_left_out_keeps_its_journal_until_that_view_has_begun() {
    let mut lane = Lane::new();
    let (number, first) = (lane.leader.partition.0, lane.leader.brick);
    let stable = |lane: &Lane| lane.ring.partitions[&lane.follower].stable();
    let last = lane.ring.bricks[lane.follower.brick.0 as usize].position(RING, lane.follower.partition).sequence;
    let epoch = Epoch(lane.ring.views[number as usize].epoch.0 + 1);
    let view = View::new(epoch, first, vec![Member { brick: first, incarnation: Incarnation(1) }]);
    set_view(&mut lane.ring, number, View { opened: false, ..view.clone() });
    assert!(stable(&lane) <= last);
    set_view(&mut lane.ring, number, view);
    assert_eq!(stable(&lane), Sequence(u64::MAX));
}

/// More entries than a portion has, with keys before the shard's.
fn entries_before(number: PartitionNumber) -> Vec<Change> {
    let position = number.first_position(COUNT);
    assert!(position.0 < shard().position().0);
    let inode = InodeId::new(position.0, 5, 77);
    let key = |entry: u32| Key::xattr(RING, VOLUME, inode, format!("user.{entry:03}").as_bytes());
    (0..600).map(|entry| Change::Put { key: key(entry), value: bytes(7, 8) }).collect()
}

/// Allows one step of healing, and no more.
fn step(lane: &mut Lane) {
    lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(1);
    lane.ring.tick();
    lane.ring.partitions.get_mut(&lane.leader).unwrap().limit_healing(0);
}

/// Otherwise the shard would have the leader's stamp over the learner's own bytes, and would not be compared.
#[test]
fn a_write_to_a_shard_that_has_yet_to_be_compared_makes_nothing_equal_that_is_not() {
    let mut lane = left_out(64);
    let number = lane.leader.partition;
    for at in [lane.leader, lane.follower] {
        let brick = &lane.ring.bricks[at.brick.0 as usize];
        let (changes, epoch) = (entries_before(number), brick.position(RING, number).epoch);
        let (partition, sequence, session, op_id) = (number, Sequence(0), SYSTEM_SESSION, OpId(0));
        let record = Record { ring: RING, partition, epoch, sequence, session, op_id, changes };
        brick.append(&hekate_brick::LogEntry::new(record)).unwrap();
    }
    learns(&mut lane);
    step(&mut lane);
    assert!(lane.ring.partitions[&lane.follower].is_being_healed(), "the first portion");
    drop(write(&mut lane.ring, DATA.0, 5 * BLOCK, vec![3; BLOCK_BYTES]).unwrap());
    let (ours, theirs) = (lane.held(lane.leader), lane.held(lane.follower));
    assert!(ours.0 != theirs.0 && ours.1 != theirs.1, "{:?}", ours.0);
    becomes_equal(&mut lane);
}

/// Makes a change of the host's.
fn change(lane: &mut Lane, token: u64, changes: Vec<Change>) {
    let commit = Box::new(Commit { changes, ..Commit::default() });
    lane.ring.tell(lane.leader, Event::Change { token: Token(token), commit });
    assert_eq!(lane.ring.answers.get(&Token(token)), Some(&Ok(Reply::Done)));
}

/// The entries before the shard have grown since, so the portion ends earlier than the last time.
#[test]
fn a_shard_that_is_compared_once_more_takes_nothing_before_that() {
    let mut lane = left_out(64);
    // The shard has fewer blocks, so that no record about it fits what the learner has.
    make_anew(&mut lane);
    learns(&mut lane);
    step(&mut lane);
    assert!(lane.ring.partitions[&lane.follower].is_being_healed());
    lane.ring.tell(lane.leader, Event::Up { bricks: vec![lane.follower.brick] });
    let number = lane.leader.partition;
    change(&mut lane, 3, entries_before(number));
    // The learner gets the records, and is compared up to a key before the shard.
    (0..2).for_each(|_| step(&mut lane));
    let stamp = Stamp { count: 2, ..lane.held(lane.leader).0 };
    let record = ShardRecord { stamp, length: 3 * BLOCK, home_blocks: 3, reserved_blocks: 0 };
    change(&mut lane, 4, vec![crate::ops::data::block_change(shard(), record, 0, bytes(5, BLOCK_BYTES))]);
    becomes_equal(&mut lane);
}

/// The next leader does not know of the request, and assumes that the learner lacks only records.
#[test]
fn a_learner_does_in_the_next_view_nothing_that_the_last_leader_asked_for() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    let third = (0..u128::from(BRICKS)).find(|brick| ![first, second].contains(brick)).unwrap();
    lane.ring.op_id = 600 * 256;
    let one_more = |lane: &mut Lane, byte| {
        drop(write(&mut lane.ring, DATA.0, 0, vec![byte; BLOCK_BYTES]).unwrap());
    };
    form(&mut lane.ring, number, first, &[first, second], &[third]);
    heal(&mut lane.ring, number);
    one_more(&mut lane, 2);
    form(&mut lane.ring, number, first, &[first, third], &[]);
    one_more(&mut lane, 3);
    // The first replica's journal has discarded the records, the third has all of them, and the learner's journal is
    // full.
    fill(&lane.ring.bricks[first as usize], lane.leader.partition);
    for brick in [first, second].map(|brick| &lane.ring.bricks[brick as usize]) {
        brick.retain_from(brick.end());
        brick.checkpoint().unwrap();
    }
    let learner = lane.follower;
    fill_journal(&mut lane, learner);
    lane.ring.branches.clear();
    form(&mut lane.ring, number, first, &[first, third], &[second]);
    assert!(lane.ring.branches.contains("a learner is compared from the beginning"));
    form(&mut lane.ring, number, third, &[third, first], &[second]);
    lane.leader.brick = BrickId(third);
    lane.ring.messages_left = u64::MAX;
    heal(&mut lane.ring, number);
    assert!(!lane.ring.branches.contains("a learner's log goes on elsewhere"));
    form(&mut lane.ring, number, third, &[third, first, second], &[]);
    lane.check_even([3, 1, 1, 1]);
}
