//! After a kill all that was written is there; after a power cut all that was synced.

use super::support::*;
use crate::storage::Storage;
use hekate_proto::*;

#[test]
fn a_killed_process_loses_nothing_and_a_power_cut_nothing_that_was_synced() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let synced = put(&brick, "synced", "1");
    brick.sync(synced).unwrap();
    put(&brick, "unsynced", "1");
    drop(brick);
    let (brick, report) = open(&storage, false);
    assert_eq!(names(&brick, 9), ["synced", "unsynced"]);
    assert_eq!((report.records, brick.position(RING, PARTITION).sequence), (2, Sequence(2)));
    drop(brick);
    // The opening synced what recovery found. Later records are at risk again.
    let (brick, _) = open(&storage, false);
    put(&brick, "late", "1");
    drop(brick);
    let (brick, _) = open(&storage.after_power_cut(), true);
    assert_eq!(names(&brick, 9), ["synced", "unsynced"]);
    put(&brick, "again", "1");
    assert_eq!(names(&brick, 9), ["again", "synced", "unsynced"]);
}

#[test]
fn a_power_cut_takes_only_fresh_blocks_that_no_sync_covered() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_fresh(&brick, 0, 1, 2, 1);
    let upto = brick.sync_shards(&[shard(0)]).unwrap();
    brick.sync(upto).unwrap();
    write_fresh(&brick, 2, 2, 2, 2);
    // The journal reaches the disk, the data file does not.
    brick.sync(brick.end()).unwrap();
    let (cut, report) = open(&storage.after_power_cut(), true);
    assert_eq!(report.lost.len(), 2, "two blocks");
    let kept = cut.read_shard(RING, shard(0), 0, 1 << 22).unwrap();
    assert_eq!(kept[..2 * BLOCK_BYTES], vec![1u8; 2 * BLOCK_BYTES]);
    assert!(kept[2 * BLOCK_BYTES..].iter().all(|byte| *byte == 0), "never happened");
    drop(brick);
    let (killed, report) = open(&storage, false);
    assert_eq!((report.lost.len(), killed.read_shard(RING, shard(0), 0, 1 << 22).unwrap().len()), (0, 4 * BLOCK_BYTES));
}

#[test]
fn a_lost_block_is_reported_unless_it_was_overwritten_or_cut_off() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_fresh(&brick, 70, 1, 6, 1);
    write_blocks(&brick, 71, 2, 1, 2);
    let stamp = Stamp { count: 3, session: SessionId(1), op: OpId(3) };
    let record = ShardRecord { stamp, length: 74 * BLOCK_BYTES as u32, home_blocks: 76, reserved_blocks: 0 };
    append(&brick, vec![Change::CutShard { shard: shard(0), record }]);
    brick.sync(brick.end()).unwrap();
    let (_, report) = open(&storage.after_power_cut(), true);
    let lost: Vec<u32> = report.lost.iter().map(|lost| lost.block).collect();
    assert_eq!(lost, [70, 72, 73], "71 was written again, 74 and 75 were cut off");
}

#[test]
fn a_synced_overwrite_survives_though_an_older_extent_was_lost() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write(&brick, 0, 1, 4);
    brick.checkpoint().unwrap();
    write(&brick, 4, 2, 16); // Fresh and unsynced.
    let upto = write(&brick, 0, 9, 1); // A durable write syncs the journal alone.
    brick.sync(upto).unwrap();
    let (after, _) = open(&storage.after_power_cut(), true);
    assert_eq!(fills(&after).unwrap()[0], 9);
}

#[test]
fn a_synced_drop_survives_though_an_older_extent_was_lost() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write(&brick, 0, 1, 4);
    brick.checkpoint().unwrap();
    write(&brick, 4, 2, 16);
    let upto = drop_shard(&brick);
    brick.sync(upto).unwrap();
    let (after, _) = open(&storage.after_power_cut(), true);
    assert_eq!(fills(&after).unwrap(), Vec::<u8>::new());
}

#[test]
fn blocks_lost_to_a_power_cut_stay_holes_after_a_kill() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write(&brick, 0, 1, 4);
    brick.checkpoint().unwrap();
    write(&brick, 4, 2, 16);
    brick.sync(brick.end()).unwrap();
    let cut = storage.after_power_cut();
    let (after, _) = open(&cut, true);
    let first = fills(&after);
    assert_eq!(first.as_ref().unwrap()[..5], [1, 1, 1, 1, 0]);
    after.checkpoint().unwrap(); // A server does this before it settles the incarnation.
    drop(after);
    let (again, _) = open(&cut, false); // A kill, in the same boot.
    assert_eq!(fills(&again), first);
}

#[test]
fn a_fresh_block_overwritten_by_a_lost_checkpoint_leaves_its_neighbours() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write(&brick, 0, 1, 16); // Fresh and unsynced, but it reaches the disk.
    let upto = write(&brick, 3, 2, 1);
    brick.sync(upto).unwrap();
    // The checkpoint wrote this before the power failed.
    let path = data_file(&storage);
    let file = storage.open(&path, false).unwrap();
    file.write_at(&[&run_of(shard(0), 3, 2, 1).1], 3 * u64::from(BLOCK)).unwrap();
    file.sync().unwrap();
    let (after, report) = open(&storage.after_power_cut(), true);
    assert_eq!(report.lost, []);
    assert_eq!(fills(&after).unwrap(), [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
}
