//! A brick has lost records that others gave back since: nobody goes by it, and what the others have stays.

use super::heal::{form, outgrow_journals, write};
use super::*;

const DATA: std::ops::Range<u128> = 10..18;

/// The brick that has lost records; not the first, which is what a list says that is made up.
const OLDER: u32 = 1;

/// Brick `OLDER` is as it was before the others' journals went on.
fn ring_with_an_older_brick() -> TestRing {
    let mut storages = storages();
    let mut ring = open(&storages);
    let older = storages[OLDER as usize].copy();
    outgrow_journals(&mut ring);
    DATA.for_each(|data| drop(write(&mut ring, data, 0, vec![7; 100]).unwrap()));
    ring.rest();
    ring.write_home();
    drop(ring);
    storages[OLDER as usize] = older;
    let mut ring = unstarted(bricks_on(&storages, 512 << 10));
    ring.start_all();
    ring
}

fn partition(ring: &TestRing, number: u32) -> &Partition {
    let (partition, brick) = (PartitionNumber(number), ring.views[number as usize].leader);
    &ring.partitions[&Address { partition, brick }]
}

#[test]
fn who_has_lost_records_does_not_lead_though_the_others_no_longer_have_them() {
    let mut ring = ring_with_an_older_brick();
    assert!(ring.branches.contains("levelling: a member has lost records"));
    let older = BrickId(u128::from(OLDER));
    for number in 0..COUNT {
        let (view, replica) = (ring.views[number as usize].clone(), partition(&ring, number));
        let first = PartitionNumber(number);
        match view.leader {
            // It has stopped, with words that name it.
            leader if leader == older => {
                assert!(!replica.serves() && replica.failure().is_some(), "partition {number}")
            }
            leader if view.has_member(older) => {
                assert_eq!(replica.failed_members(), [older], "partition {number}");
                let position = |brick: BrickId| ring.bricks[brick.0 as usize].position(RING, first);
                assert!(position(leader) >= position(older));
            }
            _ => assert!(replica.serves()),
        }
    }
    assert!(ring.notes.iter().any(|note| note.contains("has lost records of partition")), "{:?}", ring.notes);
    assert!(ring.bricks[OLDER as usize].sync(ring.bricks[OLDER as usize].end()).is_err(), "the brick has stopped");
    // The views that servers form then.
    for number in 0..COUNT {
        let stays: Vec<u128> = [number, number + 1]
            .map(|brick| u128::from(brick % BRICKS))
            .into_iter()
            .filter(|brick| *brick != older.0)
            .collect();
        form(&mut ring, number, stays[0], &stays, &[]);
    }
    for data in DATA {
        let op = DataOp::ReadShard { data: DataId(data), index: 0, offset: 0, length: 100 };
        assert_eq!(ring.read(Op::Data { op }), Ok(Reply::Data { bytes: vec![7; 100].into() }));
    }
}
