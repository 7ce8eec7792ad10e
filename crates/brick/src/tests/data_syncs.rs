//! Syncs of data files, and the marks in the journal that say what they covered.

use super::support::*;
use crate::storage::MemoryStorage;
use crate::*;
use hekate_proto::*;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn rot_in_what_the_last_of_several_syncs_covered_is_damage_and_no_hole() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for (first, writes) in [(0, 1), (2, 2)] {
        write_fresh(&brick, first, 1, 2, writes);
        let upto = brick.sync_shards(&[shard(0)]).unwrap();
        brick.sync(upto).unwrap();
    }
    let cut = storage.after_power_cut();
    let path = data_file(&cut);
    cut.flip_bit(&path, 2 * BLOCK_BYTES);
    let (brick, report) = open(&cut, true);
    assert_eq!(report.lost, []);
    assert!(matches!(brick.read_shard(RING, shard(0), 2 * BLOCK_BYTES as u32, 1), Err(Error::Damaged { .. })));
}

#[test]
fn a_sync_of_more_files_than_a_mark_names_covers_all_of_them() {
    let storage = MemoryStorage::new();
    let settings =
        BrickSettings { journal_segments: 16, segment_bytes: 64 << 10, index_cache_bytes: 1 << 20, reserve_bytes: 0 };
    let identity = Identity::new(BrickId(7), "c", settings);
    Brick::create_on(&storage, &identity).unwrap();
    let open = |storage: &MemoryStorage, after_power_cut| {
        Brick::open_on(Arc::new(storage.clone()), &identity, Incarnation(1), after_power_cut).unwrap()
    };
    let (brick, _) = open(&storage, false);
    let shards: Vec<ShardId> = (0..2300).map(shard).collect();
    let bytes = vec![7; BLOCK_BYTES];
    for id in &shards {
        brick.write_fresh(RING, *id, 0, &[&bytes]).unwrap();
        let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
        let record = ShardRecord { stamp, length: BLOCK_BYTES as u32, home_blocks: 1, reserved_blocks: 0 };
        let run = BlockRun { first: 0, checksums: vec![block_checksum(*id, 0, &bytes)] };
        append(&brick, vec![Change::FreshBlocks { shard: *id, record, run }]);
    }
    let upto = brick.sync_shards(&shards).unwrap();
    brick.sync(upto).unwrap();
    let (brick, report) = open(&storage.after_power_cut(), true);
    assert_eq!(report.lost, []);
    assert!(shards.iter().all(|id| brick.read_shard(RING, *id, 0, 1 << 20).unwrap() == bytes));
}

#[test]
fn a_mark_of_more_shards_than_a_segment_holds_is_split() {
    let segment = 64 << 10;
    let brick = open_on(new_storage_with(segment), &identity_with(segment), false).0;
    let mut all = Vec::new();
    for round in 0..14u64 {
        let mut changes = Vec::new();
        for index in round * 100..(round + 1) * 100 {
            let s = shard(index);
            let bytes = vec![1u8; BLOCK_BYTES];
            brick.write_fresh(RING, s, 0, &[&bytes]).unwrap();
            let record = ShardRecord {
                stamp: Stamp { count: 1, session: SessionId(1), op: OpId(1) },
                length: BLOCK,
                home_blocks: 1,
                reserved_blocks: 0,
            };
            let run = BlockRun { first: 0, checksums: vec![block_checksum(s, 0, &bytes)] };
            changes.push(Change::FreshBlocks { shard: s, record, run });
            all.push(s);
        }
        append(&brick, changes);
    }
    let synced = brick.sync_shards(&all);
    assert!(synced.is_ok(), "{synced:?}");
}

/// Marks may be appended in another order than their syncs began.
#[test]
fn a_later_mark_of_an_earlier_stamp_does_not_lower_the_newer_one() {
    let storage = new_storage_with(1 << 20);
    let brick = open_on(storage.clone(), &identity_with(1 << 20), false).0;
    write_via(Via::Home, &brick, shard(0), 0, 1, 4);
    let early = brick.machine.write().sync_shards(&[shard(0)]).unwrap();
    write_via(Via::Home, &brick, shard(0), 4, 2, 4);
    let upto = brick.sync_shards(&[shard(0)]).unwrap();
    brick.sync(upto).unwrap(); // The mark of stamp 2 is stable.
    for (id, io) in early {
        brick.perform(id, &io, &[]).unwrap(); // The sync that began first ends last.
    }
    let upto = brick.sync_shards(&[]).unwrap();
    brick.sync(upto).unwrap();
    let cut = storage.after_power_cut();
    let path = crate::disk::home::Home::path(shard(0));
    cut.flip_bit(&path, 5 * BLOCK_BYTES); // Damage in what the mark covered.
    let (_, report) = Brick::open_on(Arc::new(cut), &identity_with(1 << 20), Incarnation(2), true).unwrap();
    assert_eq!(report.lost, [], "damage to bytes that a mark covers is not a lost block");
}

#[test]
fn a_sync_that_began_before_a_checkpoint_does_not_cover_later_writes() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write(&brick, 0, 1, 16);
    // The steps of sync_shards, with a checkpoint and a fresh write in between.
    let mut begun = brick.machine.write().sync_shards(&[shard(0)]).unwrap();
    let (id, io) = begun.pop().unwrap();
    let outcome = brick.disk.perform(&io, &[]);
    brick.checkpoint().unwrap();
    write(&brick, 16, 2, 16);
    brick.machine.write().done(id, outcome).unwrap();
    let upto = brick.sync_shards(&[shard(0)]).unwrap(); // Syncs the second write.
    brick.sync(upto).unwrap();
    let (after, report) = open(&storage.after_power_cut(), true);
    assert_eq!(report.lost, []);
    assert_eq!(fills(&after).unwrap().len(), 32);
}

/// The progress of a directory sync that the test holds up.
#[derive(Default)]
struct Progress {
    has_begun: bool,
    may_end: bool,
}

/// Two threads sync data files of one directory: neither is done before the sync of the directory has ended.
#[test]
fn a_shard_is_synced_only_once_its_name_is() {
    let (is_armed, state) =
        (Arc::new(AtomicBool::new(false)), Arc::new((Mutex::new(Progress::default()), Condvar::new())));
    let (armed, progress) = (is_armed.clone(), state.clone());
    let storage = HookedStorage::new(new_storage_with(1 << 20), move |call, path| {
        if call == Call::SyncDirectory && path.starts_with("data/") && armed.load(Ordering::SeqCst) {
            let mut state = progress.0.lock();
            state.has_begun = true;
            progress.1.notify_all();
            while !state.may_end {
                progress.1.wait(&mut state);
            }
        }
        Ok(())
    });
    let brick = Arc::new(open_on(storage, &identity_with(1 << 20), false).0);
    let directory = |s: ShardId| s.position().0 % 256;
    let other = (1..).map(shard).find(|s| directory(*s) == directory(shard(0))).unwrap();
    write_via(Via::Home, &brick, shard(0), 0, 1, 1);
    write_via(Via::Home, &brick, other, 0, 1, 1);
    is_armed.store(true, Ordering::SeqCst);
    let syncing = brick.clone();
    let thread = std::thread::spawn(move || syncing.sync_shards(&[other]));
    {
        let mut progress = state.0.lock();
        while !progress.has_begun {
            state.1.wait(&mut progress);
        }
    }
    let (second, is_durable) = (brick.clone(), Arc::new(AtomicBool::new(false)));
    let flag = is_durable.clone();
    let second = std::thread::spawn(move || {
        let upto = second.sync_shards(&[shard(0)]).unwrap();
        second.sync(upto).unwrap();
        flag.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(500));
    let early = is_durable.load(Ordering::SeqCst);
    state.0.lock().may_end = true;
    state.1.notify_all();
    thread.join().unwrap().unwrap();
    second.join().unwrap();
    assert!(!early, "a mark was stable before the directory was synced");
}
