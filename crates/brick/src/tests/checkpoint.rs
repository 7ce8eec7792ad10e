//! What a checkpoint frees, removes and leaves: journal, cut blocks, dropped shards.

use super::support::*;
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::Mutex;
use std::sync::Arc;

#[test]
fn checkpoints_free_the_journal_again_and_again() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for round in 0..40u64 {
        write_blocks(&brick, (round % 8) as u32, round as u8, 8, round + 1);
        if brick.wants_checkpoint() {
            brick.checkpoint().unwrap();
        }
    }
    let (before, journal) = (brick.read_shard(RING, shard(0), 0, 1 << 20).unwrap(), brick.end());
    assert!(journal.0 > 4 * (256 << 10), "every segment was reused");
    drop(brick);
    let (brick, _) = open(&storage, true);
    assert_eq!(brick.read_shard(RING, shard(0), 0, 1 << 20).unwrap(), before);
}

#[test]
fn a_checkpoint_frees_a_journal_of_records_that_change_nothing() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    while !brick.wants_checkpoint() {
        append(&brick, vec![]);
    }
    brick.checkpoint().unwrap();
    assert!(!brick.wants_checkpoint(), "writers would wait for ever");
}

#[test]
fn a_checkpoint_pauses_as_long_as_it_is_ahead_of_the_journal() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    // Three runs, so two pauses between writes and one behind them.
    let begin = || {
        (0..3).for_each(|run| _ = write_blocks(&brick, 100 * run, 1, 4, u64::from(run) + 1));
        brick.begin_checkpoint()
    };
    let mut pauses = 0;
    let few = |pauses: &mut i32| {
        *pauses += 1;
        *pauses < 5
    };
    begin().finish(&mut || few(&mut pauses)).unwrap();
    assert_eq!(pauses, 5, "nothing is appended: it may pause until it has paused enough");
    let mut pauses = 0;
    let mut write_more = || {
        pauses += 1;
        write_blocks(&brick, 500, 1, 8, 9 + pauses);
        true
    };
    begin().finish(&mut write_more).unwrap();
    assert!((2..40).contains(&pauses), "as the journal fills it hurries: {pauses}");
    assert_eq!(brick.read_shard(RING, shard(0), 0, 4).unwrap()[..], [1; 4]);
}

#[test]
fn blocks_that_were_cut_off_are_punched_unless_written_since() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 0, 5, 8, 1);
    brick.checkpoint().unwrap();
    let stamp = Stamp { count: 2, session: SessionId(1), op: OpId(2) };
    let record = ShardRecord { stamp, length: 2 * BLOCK_BYTES as u32, home_blocks: 8, reserved_blocks: 0 };
    append(&brick, vec![Change::CutShard { shard: shard(0), record }]);
    write_blocks(&brick, 2, 6, 1, 3);
    write_blocks(&brick, 5, 6, 1, 4);
    brick.checkpoint().unwrap();
    let home: Vec<u8> = (0..8).map(|block| brick.read_home(shard(0), block).unwrap()[0]).collect();
    assert_eq!(home, [5, 5, 6, 0, 0, 6, 0, 0], "punched, but for what was written since");
}

#[test]
fn punch_of_a_cut_spares_fresh_blocks() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write(&brick, 0, 1, 10);
    brick.checkpoint().unwrap();
    cut(&brick, 2);
    write(&brick, 10, 2, 16); // Fresh.
    let upto = brick.sync_shards(&[shard(0)]).unwrap();
    brick.sync(upto).unwrap();
    write(&brick, 30, 3, 1); // In the journal.
    let before = fills(&brick).unwrap();
    brick.checkpoint().unwrap();
    assert_eq!(fills(&brick), Ok(before));
}

#[test]
fn dropped_shards_leave_neither_file_nor_records() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 20, 1, 50, 1);
    brick.checkpoint().unwrap();
    assert!(storage.paths().iter().any(|path| path.starts_with("data/")));
    append(&brick, vec![Change::DropShard { shard: shard(0) }]);
    assert_eq!(brick.read_shard(RING, shard(0), 0, 100).unwrap().len(), 0);
    brick.checkpoint().unwrap();
    assert!(!storage.paths().iter().any(|path| path.starts_with("data/")));
    let all = brick.scan(&Key::from_bytes(Bytes::new()), &Key::from_bytes(Bytes::from_static(&[255; 40])), 99);
    assert_eq!(all.unwrap(), []);
}

#[test]
fn a_shard_that_was_dropped_before_a_crash_leaves_no_checksums_either() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 20, 1, 50, 1);
    brick.checkpoint().unwrap();
    append(&brick, vec![Change::DropShard { shard: shard(0) }]);
    drop(brick);
    let (brick, _) = open(&storage, false);
    brick.checkpoint().unwrap();
    let mut left = Vec::new();
    let mut visit = |key: &[u8], _: Bytes| {
        left.push(key.to_vec());
        true
    };
    brick.disk.index.scan(&[0], &[255], &mut visit).unwrap();
    assert_eq!(left, Vec::<Vec<u8>>::new());
}

type Action = Box<dyn FnOnce() + Send>;

#[test]
fn a_dropped_shard_is_not_written_before_its_file_is_removed() {
    let on_remove: Arc<Mutex<Option<Action>>> = Arc::default();
    let pending = on_remove.clone();
    let storage = HookedStorage::new(new_storage(), move |call, _| {
        let act = if call == Call::Remove { pending.lock().take() } else { None };
        act.into_iter().for_each(|act| act());
        Ok(())
    });
    let brick = Arc::new(open_on(storage, &identity(), false).0);
    write(&brick, 0, 1, 5);
    brick.checkpoint().unwrap();
    drop_shard(&brick);
    assert!(is_refused(&brick));
    let writer = brick.clone();
    *on_remove.lock() = Some(Box::new(move || assert!(is_refused(&writer), "while its file is being removed")));
    brick.checkpoint().unwrap();
    assert!(on_remove.lock().is_none());
    write(&brick, 4, 2, 1);
    assert_eq!(fills(&brick).unwrap(), [0, 0, 0, 0, 2]);
}

fn is_refused(brick: &Brick) -> bool {
    let (run, bytes) = run_of(shard(0), 0, 7, 16);
    let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
    let record = ShardRecord { stamp, length: 16 * BLOCK, home_blocks: 16, reserved_blocks: 0 };
    let change = Change::WriteBlocks { shard: shard(0), record, run, bytes };
    brick.is_dropped(shard(0)) && append_to(brick, PARTITION, vec![change]).is_err()
}
