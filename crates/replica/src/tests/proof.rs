//! The proof that all members hold the same data while they serve.

use super::*;

fn prove(ring: &mut TestRing, number: u32) -> Proof {
    let (partition, brick) = (PartitionNumber(number), ring.views[number as usize].leader);
    ring.tell(Address { partition, brick }, Event::Prove { run: 1 });
    for _ in 0..20 {
        let proof = ring.partitions[&Address { partition, brick }].proof();
        match proof {
            Some(proof) if proof.ended => return proof,
            _ => ring.tick(),
        }
    }
    panic!("no proof of partition {number}");
}

/// A ring with 40 shards.
fn ring_with_shards() -> TestRing {
    let mut ring = open(&storages());
    for data in 0..40 {
        let (data, bytes) = (DataId(data), vec![7; 5000].into());
        let op = DataOp::WriteShard { data, index: 0, offset: 0, bytes, follow: None, fast: false };
        ring.execute(Op::Data { op }).unwrap();
    }
    ring
}

/// The partition's leader and follower.
fn members(ring: &TestRing, number: u32) -> (BrickId, BrickId) {
    let view = &ring.views[number as usize];
    let follower = view.members.iter().map(|member| member.brick).find(|brick| *brick != view.leader);
    (view.leader, follower.unwrap())
}

/// Makes a member differ by a change outside of the log, as damage that no checksum shows.
fn make_differ(ring: &TestRing, number: u32, brick: BrickId, change: Change) {
    let (brick, partition) = (&ring.bricks[brick.0 as usize], PartitionNumber(number));
    let record = Record {
        ring: RING,
        partition,
        epoch: brick.position(RING, partition).epoch,
        sequence: Sequence(0),
        session: SYSTEM_SESSION,
        op_id: OpId(0),
        changes: vec![change],
    };
    brick.append(&hekate_brick::LogEntry::new(record)).unwrap();
}

/// A write to one of the partition's shards that no other replica has. (Stamps are compared, not bytes.)
fn another_write(ring: &TestRing, number: u32, brick: BrickId) -> Change {
    let shards = (0..40).map(|data| ShardId { volume: VOLUME, data: DataId(data), index: 0 });
    let shard = shards.into_iter().find(|shard| shard.position().partition(COUNT).0 == number).unwrap();
    let record = ring.bricks[brick.0 as usize].shard(RING, shard).unwrap().unwrap();
    let stamp = Stamp { count: record.stamp.count + 1, ..record.stamp };
    crate::ops::data::block_change(shard, ShardRecord { stamp, ..record }, 0, vec![8; BLOCK_BYTES].into())
}

#[test]
fn equal_members_are_proved_to_be_and_one_entry_or_shard_that_differs_is_found() {
    let mut ring = ring_with_shards();
    for number in 0..COUNT {
        let proof = prove(&mut ring, number);
        assert!(proof.differing.is_empty() && proof.equal > 0 && proof.left_out == 0, "{proof:?}");
    }
    let (_, follower) = members(&ring, 0);
    let session = Key::session(RING, PartitionNumber(0).first_position(COUNT), SessionId(77), 1);
    make_differ(&ring, 0, follower, Change::Put { key: session, value: Bytes::from_static(b"other") });
    let proof = prove(&mut ring, 0);
    assert!(matches!(&proof.differing[..], [(brick, _)] if *brick == follower), "{proof:?}");
    assert!((1..COUNT).all(|number| prove(&mut ring, number).differing.is_empty()), "the others");
    let (_, follower) = members(&ring, 1);
    make_differ(&ring, 1, follower, another_write(&ring, 1, follower));
    let proof = prove(&mut ring, 1);
    assert!(matches!(&proof.differing[..], [(brick, _)] if *brick == follower), "{proof:?}");
}

/// The proof covers changes before the request, though a proof was running that had passed their keys.
#[test]
fn a_proof_that_is_asked_for_while_one_runs_is_of_what_has_come_meanwhile() {
    let mut ring = ring_with_shards();
    let (leader, follower) = members(&ring, 0);
    let leader = Address { partition: PartitionNumber(0), brick: leader };
    ring.handle(leader, Event::Prove { run: 1 });
    let question = ring.queue.pop_front().unwrap();
    ring.handle(question.to, Event::Message(question));
    make_differ(&ring, 0, follower, another_write(&ring, 0, follower));
    ring.handle(leader, Event::Prove { run: 1 });
    ring.deliver();
    let proof = ring.partitions[&leader].proof().unwrap();
    assert!(proof.ended && matches!(&proof.differing[..], [(brick, _)] if *brick == follower), "{proof:?}");
}

/// The questions are lost with the connection.
#[test]
fn a_proof_ends_with_the_connection_and_begins_anew_with_the_next() {
    let mut ring = ring_with_shards();
    let (leader, follower) = members(&ring, 0);
    let leader = Address { partition: PartitionNumber(0), brick: leader };
    let at_follower = Address { brick: follower, ..leader };
    ring.handle(leader, Event::Prove { run: 1 });
    ring.queue.clear();
    let ended = ring.partitions[&leader].proof().unwrap();
    assert!(!ended.ended);
    for (at, other) in [(leader, follower), (at_follower, leader.brick)] {
        ring.tell(at, Event::Down { bricks: vec![other] });
    }
    assert!(ring.partitions[&leader].proof().is_none());
    assert_eq!(
        (ring.partitions[&leader].away(), ring.partitions[&leader].waits_for()),
        (vec![follower], vec![follower])
    );
    for (at, other) in [(leader, follower), (at_follower, leader.brick)] {
        ring.tell(at, Event::Up { bricks: vec![other] });
    }
    let proof = prove(&mut ring, 0);
    assert!(proof.ended && proof.differing.is_empty() && proof.equal > 0, "{proof:?}");
    assert!(ring.partitions[&leader].away().is_empty());
}

/// An answer to the first question must not be taken for an answer to the second question of the other proof.
#[test]
fn a_proof_that_is_asked_for_while_one_runs_sees_no_difference() {
    let mut ring = open(&storages());
    for number in 0..COUNT {
        let leader = Address { partition: PartitionNumber(number), brick: ring.views[number as usize].leader };
        ring.handle(leader, Event::Prove { run: 1 });
        let question = ring.queue.pop_front().unwrap();
        ring.handle(question.to, Event::Message(question));
        ring.handle(leader, Event::Prove { run: 1 });
        ring.deliver();
        let proof = ring.partitions[&leader].proof().unwrap();
        assert!(proof.ended && proof.differing.is_empty(), "{proof:?}");
    }
}

/// Fast writes that some members do not have yet are no difference.
#[test]
fn a_shard_that_is_written_on_the_fast_lane_is_left_out() {
    let mut lane = super::fast::Lane::new();
    assert!(lane.fast(lane.follower, 512, 0, vec![2; BLOCK_BYTES].into()).is_ok());
    let proof = prove(&mut lane.ring, lane.leader.partition.0);
    assert!(proof.differing.is_empty() && proof.left_out == 1, "{proof:?}");
}

/// Each of two runs sees its own proof, also if the second follows at once.
#[test]
fn a_proof_that_has_ended_is_reported_while_the_next_one_runs() {
    let mut ring = ring_with_shards();
    let (leader, _) = members(&ring, 0);
    let leader = Address { partition: PartitionNumber(0), brick: leader };
    for run in [1, 2] {
        ring.handle(leader, Event::Prove { run });
    }
    let proofs = |ring: &TestRing| -> Vec<(u64, bool)> {
        ring.partitions[&leader].proofs().iter().map(|proof| (proof.run, proof.ended)).collect()
    };
    assert_eq!(proofs(&ring), [(1, false)]);
    let mut seen = Vec::new();
    while let Some(envelope) = ring.queue.pop_front() {
        ring.handle(envelope.to, Event::Message(envelope));
        seen.extend(proofs(&ring));
    }
    assert!(seen.contains(&(1, true)) && seen.contains(&(2, false)), "{seen:?}");
    assert_eq!(proofs(&ring), [(2, true), (1, true)]);
}
