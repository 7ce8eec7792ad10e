//! The proof that all members hold the same, while they serve.

use super::*;

fn prove(ring: &mut TestRing, number: u32) -> Proof {
    let (partition, brick) = (PartitionNumber(number), ring.views[number as usize].leader);
    ring.tell(Address { partition, brick }, Event::Prove);
    for _ in 0..20 {
        let proof = ring.partitions[&Address { partition, brick }].proof();
        match proof {
            Some(proof) if proof.ended => return proof,
            _ => ring.tick(),
        }
    }
    panic!("no proof of partition {number}");
}

#[test]
fn equal_members_are_proved_to_be_and_one_entry_or_shard_that_differs_is_found() {
    let storages = storages();
    let mut ring = open(&storages);
    for data in 0..40 {
        let (data, bytes) = (DataId(data), vec![7; 5000].into());
        let op = DataOp::WriteShard { data, index: 0, offset: 0, bytes, follow: None, fast: false };
        ring.execute(Op::Data { op }).unwrap();
    }
    for number in 0..COUNT {
        let proof = prove(&mut ring, number);
        assert!(proof.differing.is_empty() && proof.equal > 0 && proof.left_out == 0, "{proof:?}");
    }
    let view = ring.views[0].clone();
    let follower = view.members.iter().map(|member| member.brick).find(|brick| *brick != view.leader).unwrap();
    let brick = &ring.bricks[follower.0 as usize];
    // Past the log, as rot that its checksum does not find.
    let session = Key::session(RING, PartitionNumber(0).first_position(COUNT), SessionId(77), 1);
    let record = Record {
        ring: RING,
        partition: PartitionNumber(0),
        epoch: brick.position(RING, PartitionNumber(0)).epoch,
        sequence: Sequence(0),
        session: SYSTEM_SESSION,
        op_id: OpId(0),
        changes: vec![Change::Put { key: session, value: Bytes::from_static(b"other") }],
    };
    brick.append(&hekate_brick::LogEntry::new(record)).unwrap();
    let proof = prove(&mut ring, 0);
    assert!(matches!(&proof.differing[..], [(brick, _)] if *brick == follower), "{proof:?}");
    assert!((1..COUNT).all(|number| prove(&mut ring, number).differing.is_empty()), "the others");
}

/// An answer to the first question was taken for one to the second question of the other proof.
#[test]
fn a_proof_that_is_asked_for_while_one_runs_sees_no_difference() {
    let mut ring = open(&storages());
    for number in 0..COUNT {
        let leader = Address { partition: PartitionNumber(number), brick: ring.views[number as usize].leader };
        ring.handle(leader, Event::Prove);
        let question = ring.queue.pop_front().unwrap();
        ring.handle(question.to, Event::Message(question));
        ring.handle(leader, Event::Prove);
        ring.deliver();
        let proof = ring.partitions[&leader].proof().unwrap();
        assert!(proof.ended && proof.differing.is_empty(), "{proof:?}");
    }
}

/// What some members have of a shard that is open, and others not yet, is no difference.
#[test]
fn a_shard_that_is_written_on_the_fast_lane_is_left_out() {
    let mut lane = super::fast::Lane::new();
    assert!(lane.fast(lane.follower, 512, 0, vec![2; BLOCK_BYTES].into()).is_ok());
    let proof = prove(&mut lane.ring, lane.leader.partition.0);
    assert!(proof.differing.is_empty() && proof.left_out == 1, "{proof:?}");
}
