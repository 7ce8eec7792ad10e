//! Learners that cannot be healed because the leader cannot read a block.

use super::heal::{form, outgrow_journals, write};
use super::*;
use hekate_brick::storage::Storage;

#[test]
fn a_learner_that_cannot_be_healed_is_reported_and_tried_again_once_the_block_is_overwritten() {
    let storages = storages();
    let mut ring = open(&storages);
    let shard = ShardId { volume: VOLUME, data: DataId(77), index: 0 };
    let number = shard.position().partition(COUNT).0;
    let [first, second] = [0, 1].map(|further| u128::from((number + further) % BRICKS));
    form(&mut ring, number, first, &[first], &[]);
    write(&mut ring, 77, 0, vec![1; 100_000]).unwrap();
    outgrow_journals(&mut ring);
    let file = storages[first as usize].open(&hekate_brick::data_file_path(shard), false).unwrap();
    file.write_at(&[&[9; 100]], BLOCK_BYTES as u64).unwrap();
    form(&mut ring, number, first, &[first], &[second]);
    let healing = |ring: &TestRing| {
        let at = Address { partition: PartitionNumber(number), brick: BrickId(first) };
        ring.partitions[&at].healing().remove(0)
    };
    (0..20).for_each(|_| ring.tick());
    assert!(healing(&ring).stuck && ring.notes.iter().any(|note| note.contains("is not healed")), "{:?}", ring.notes);
    let before = ring.notes.len();
    (0..20).for_each(|_| ring.tick());
    assert_eq!(ring.notes.len(), before, "not with each tick");
    write(&mut ring, 77, BLOCK_BYTES as u32, vec![2; BLOCK_BYTES]).unwrap();
    (0..200).for_each(|_| ring.tick());
    assert!(healing(&ring).whole, "{:?}", healing(&ring));
    form(&mut ring, number, first, &[first, second], &[]);
    ring.rest();
    ring.check();
}
