//! Damage of stored bytes, in data files, the journal and the index: errors name it, and reads never return it.

use super::support::*;

use crate::brick::scrub::{Finding, ScrubCursor};
use crate::storage::Storage;
use crate::*;
use hekate_proto::*;
use std::sync::Arc;

#[test]
fn a_flipped_bit_at_home_is_damage_never_an_answer() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 0, 1, 2, 1);
    brick.checkpoint().unwrap();
    let path = data_file(&storage);
    storage.flip_bit(&path, 5000);
    assert!(brick.read_shard(RING, shard(0), 0, 4096).is_ok(), "the other block is whole");
    let error = brick.read_shard(RING, shard(0), 4096, 10).unwrap_err();
    assert!(matches!(&error, Error::Damaged { what } if what.contains(&path)), "{error}");
}

#[test]
fn a_damaged_middle_of_the_journal_is_a_refusal_that_names_the_place() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for name in ["a", "b", "c"] {
        let upto = put(&brick, name, "1");
        brick.sync(upto).unwrap();
    }
    drop(brick);
    storage.flip_bit("journal/segment-001", 4096 + 60);
    let refused = Brick::open_on(Arc::new(storage), &identity(), Incarnation(1), false).err().unwrap();
    let text = refused.to_string();
    assert!(text.contains("journal/segment-001") && text.contains("offset 4096"), "{text}");
}

#[test]
fn rot_in_a_segments_header_is_damage_not_an_empty_log() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let upto = write(&brick, 0, 1, 1);
    brick.sync(upto).unwrap();
    drop(brick);
    storage.flip_bit("journal/segment-001", 3);
    let refused = Brick::open_on(Arc::new(storage), &identity(), Incarnation(1), false).err().unwrap();
    assert!(refused.to_string().contains("segment-001"), "{refused}");
}

#[test]
fn an_empty_index_file_is_refused() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for _ in 0..30 {
        write(&brick, 0, 1, 8);
        write(&brick, 0, 1, 8);
        brick.checkpoint().unwrap();
    }
    drop(brick);
    storage.open("index/index.redb", false).unwrap().set_length(0).unwrap();
    assert!(Brick::open_on(Arc::new(storage), &identity(), Incarnation(1), false).is_err(), "opened empty");
}

/// A write in a group of checksums with a flipped bit is taken, and is home after the next checkpoint.
#[test]
fn a_write_in_a_damaged_group_of_checksums_is_taken_and_checkpointed() {
    let storage = new_storage_with(1 << 20);
    let brick = open_on(storage.clone(), &identity_with(1 << 20), false).0;
    write_via(Via::Journal, &brick, shard(0), 0, 1, 8);
    brick.checkpoint().unwrap();
    drop(brick);
    let sums = run_of(shard(0), 0, 1, 8).0.checksums;
    let value: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    // In the checksum of block 7, which is not written again.
    flip_in_index(&storage, &value, value.len() - 1);
    let brick = open_on(storage.clone(), &identity_with(1 << 20), false).0;
    assert!(matches!(brick.read_block(RING, shard(0), 2), Err(Error::Damaged { .. })));
    // A repair writes block 2 with the bytes of another replica.
    write_via(Via::Journal, &brick, shard(0), 2, 1, 1);
    let first = brick.checkpoint();
    drop(brick);
    let again = open_on(storage.clone(), &identity_with(1 << 20), false).0.checkpoint();
    assert!(first.is_ok() && again.is_ok(), "first {first:?}; after a restart {again:?}");
}

/// A member takes the record of a leader whose entry of the shard is whole, though its own is damaged.
#[test]
fn a_member_takes_a_record_of_a_shard_whose_own_entry_is_damaged() {
    let storage = new_storage_with(1 << 20);
    let brick = open_on(storage.clone(), &identity_with(1 << 20), false).0;
    write_via(Via::Journal, &brick, shard(0), 0, 1, 8);
    brick.checkpoint().unwrap();
    drop(brick);
    let value: Vec<u8> = [1u64, 1, 1].iter().flat_map(|part| part.to_le_bytes()).collect();
    flip_in_index(&storage, &value, 1);
    let follower = open_on(storage.clone(), &identity_with(1 << 20), false).0;
    let stamp = Stamp { count: 2, session: SessionId(1), op: OpId(2) };
    let record = ShardRecord { stamp, length: 8 * BLOCK, home_blocks: 8, reserved_blocks: 0 };
    let bytes = vec![2u8; BLOCK_BYTES];
    let run = BlockRun { first: 0, checksums: vec![block_checksum(shard(0), 0, &bytes)] };
    let changes = vec![Change::WriteBlocks { shard: shard(0), record, run, bytes: bytes.into() }];
    let taken = follower.append_now(&next_entry(&follower, PARTITION, changes), true);
    assert!(taken.is_ok(), "{taken:?}");
}

/// A write that another member refused for want of room leaves a data file without a record.
#[test]
fn a_scrub_removes_the_file_of_a_fresh_write_that_another_member_refused() {
    let storage = new_storage_with(1 << 20);
    let brick = open_on(storage.clone(), &identity_with(1 << 20), false).0;
    put(&brick, "0", "");
    brick.write_fresh(RING, shard(9), 0, &[&[1; BLOCK_BYTES]]).unwrap();
    brick.checkpoint().unwrap();
    // The server does this when the write has failed.
    brick.forget_fresh(shard(9));
    let mut cursor = ScrubCursor::default();
    let mut found = Vec::new();
    while !cursor.is_done() {
        found.extend(brick.scrub(&mut cursor).unwrap().findings);
    }
    assert!(found.iter().any(|f| matches!(f, Finding::Stray { .. })), "a scrub removes the file");
}
