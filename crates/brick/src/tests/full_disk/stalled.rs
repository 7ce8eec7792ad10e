//! Checkpoints for which another user of the file system has left no room: they stall, and continue when there is room.

use super::*;
use crate::storage::{CallKind, Fault, FaultError, FaultyStorage};

/// Another user takes all bytes, and all that are freed later.
fn take_all(pages: &Mutex<Pages>) -> u64 {
    let mut pages = pages.lock();
    let free = pages.free();
    (pages.greedy, pages.used) = (true, pages.all);
    free
}

/// Checkpoints stall at data files and at the index.
#[test]
fn a_checkpoint_without_room_stalls_and_the_brick_reads_and_deletes() {
    let entry = |number| vec![Change::Put { key: key(number), value: Bytes::from(vec![1; 3000]) }];
    for what in ["blocks", "entries"] {
        let one = |number| if what == "blocks" { blocks(number, 8) } else { entry(number) };
        let (pages, bricks) = bricks(64 << 20);
        for number in 0..100 {
            commit(&bricks, true, one(number)).unwrap();
        }
        let taken_pages = take_all(&pages);
        for brick in &bricks {
            let error = brick.checkpoint().unwrap_err();
            assert!(matches!(error, Error::NoSpace { .. }), "{what}: {error}");
            let status = brick.status().unwrap();
            assert_eq!((status.poisoned, status.reserve.bytes), (None, 0), "{what}");
            assert!(status.stalled.unwrap().contains(&brick.id().text()), "{what}: it says which brick");
            assert!(brick.get(&key(5)).unwrap().is_some(), "{what}: it reads");
        }
        let refused = commit(&bricks, true, one(200)).unwrap_err();
        assert!(matches!(&refused, Error::NoSpace { .. }), "{what}: {refused}");
        commit(&bricks, false, vec![Change::Delete { key: key(5) }]).unwrap();
        assert!(bricks[0].checkpoint().is_err(), "{what}: there is no room yet");
        {
            let mut pages = pages.lock();
            (pages.greedy, pages.used) = (false, pages.used - taken_pages);
        }
        settle(&bricks);
        settle(&bricks);
        for brick in &bricks {
            assert_eq!(brick.stalled(), None, "{what}");
            assert_eq!(brick.get(&key(5)).unwrap(), None, "{what}");
            assert!(brick.get(&key(6)).unwrap().is_some(), "{what}");
        }
        commit(&bricks, true, one(200)).unwrap();
    }
}

/// As btrfs with a quota: what is removed counts until a transaction ends.
#[test]
fn the_released_reserve_is_room_once_the_file_system_has_settled_it() {
    let (pages, bricks) = bricks(64 << 20);
    for number in 0..100 {
        commit(&bricks, true, blocks(number, 8)).unwrap();
    }
    {
        let mut pages = pages.lock();
        (pages.late, pages.used) = (Some(0), pages.all);
    }
    bricks.iter().for_each(|brick| brick.checkpoint().unwrap());
    for brick in &bricks {
        let status = brick.status().unwrap();
        assert_eq!((status.poisoned, status.stalled), (None, None));
    }
}

#[test]
fn a_brick_opens_on_a_full_disk() {
    for is_greedy in [false, true] {
        let (pages, bricks) = bricks(64 << 20);
        for number in 0..100 {
            commit(&bricks, true, blocks(number, 8)).unwrap();
        }
        let storage = bricks[0].disk.storage.clone();
        drop(bricks);
        take_all(&pages);
        pages.lock().greedy = is_greedy;
        for count in 0..20 {
            let (brick, _) = Brick::open_on(storage.clone(), &identity(1), Incarnation(1), false).unwrap();
            assert_eq!(brick.checkpoint().is_err(), is_greedy, "opening {count}");
            assert_eq!(brick.status().unwrap().poisoned, None, "opening {count}");
            assert_eq!(brick.read_shard(RING, shard(7), 0, 9).unwrap(), vec![7; 9], "opening {count}");
        }
    }
}

#[test]
fn a_checkpoint_and_a_read_wait_for_file_descriptors() {
    let storage = FaultyStorage::new(MemoryStorage::new());
    Brick::create_on(&storage, &identity(1)).unwrap();
    let open = || Brick::open_on(Arc::new(storage.clone()), &identity(1), Incarnation(1), false).unwrap().0;
    let bricks = [open()];
    commit(&bricks, true, blocks(1, 8)).unwrap();
    let fault = |kind, after| Fault { kind: Some(kind), after, error: FaultError::NoDescriptor, forever: false };
    // First when the data file is made, then when it is opened for a read.
    storage.fail(fault(CallKind::Create, 0));
    bricks[0].checkpoint().unwrap();
    assert!(storage.struck().is_some_and(|struck| struck.contains("data/")), "{:?}", storage.struck());
    drop(bricks);
    let brick = open();
    storage.fail(fault(CallKind::Open, 0));
    assert_eq!(brick.read_shard(RING, shard(1), 0, 9).unwrap(), vec![1; 9]);
    assert_eq!(brick.status().unwrap().poisoned, None);
}

/// The sync of a data file opens the directory that has it; the file itself is open by then.
#[test]
fn a_directory_sync_waits_for_a_file_descriptor() {
    let storage = FaultyStorage::new(MemoryStorage::new());
    Brick::create_on(&storage, &identity(1)).unwrap();
    let brick = Brick::open_on(Arc::new(storage.clone()), &identity(1), Incarnation(1), false).unwrap().0;
    let bricks = [brick];
    commit(&bricks, true, blocks(1, 8)).unwrap();
    let (kind, error) = (Some(CallKind::SyncDirectory), FaultError::NoDescriptor);
    storage.fail(Fault { kind, after: 0, error, forever: false });
    bricks[0].checkpoint().unwrap();
    assert!(storage.struck().is_some_and(|struck| struck.contains("data/")), "{:?}", storage.struck());
    assert_eq!(bricks[0].status().unwrap().poisoned, None);
}

/// A failed sync would end the replicas on the brick, though the brick itself could go on.
#[test]
fn a_sync_of_data_files_waits_for_file_descriptors_however_long_that_takes() {
    let storage = FaultyStorage::new(MemoryStorage::new());
    Brick::create_on(&storage, &identity(1)).unwrap();
    let open = || Brick::open_on(Arc::new(storage.clone()), &identity(1), Incarnation(1), false).unwrap().0;
    let bytes = vec![1; BLOCK_BYTES];
    let brick = open();
    brick.write_fresh(RING, shard(1), 0, &[&bytes]).unwrap();
    let run = BlockRun { first: 0, checksums: vec![block_checksum(shard(1), 0, &bytes)] };
    let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
    let record = ShardRecord { length: BLOCK_BYTES as u32, home_blocks: 1, ..ShardRecord::empty(stamp) };
    let bricks = [brick];
    commit(&bricks, true, vec![Change::FreshBlocks { shard: shard(1), record, run }]).unwrap();
    drop(bricks);
    // No data file is open after the opening.
    let brick = open();
    let (kind, error) = (Some(CallKind::Open), FaultError::NoDescriptor);
    storage.fail(Fault { kind, after: 0, error, forever: true });
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| brick.sync_shards(&[shard(1)]));
        std::thread::sleep(std::time::Duration::from_millis(600));
        assert!(!sync.is_finished(), "it waits");
        storage.heal();
        sync.join().unwrap().unwrap();
    });
    assert!(storage.struck().is_some_and(|struck| struck.contains("data/")), "{:?}", storage.struck());
    assert_eq!(brick.status().unwrap().poisoned, None);
}

#[test]
fn a_reserve_that_finds_no_file_descriptor_stops_no_brick() {
    let storage = FaultyStorage::new(MemoryStorage::new());
    Brick::create_on(&storage, &identity(1)).unwrap();
    let bricks = [Brick::open_on(Arc::new(storage.clone()), &identity(1), Incarnation(1), false).unwrap().0];
    let (kind, error) = (Some(CallKind::Create), FaultError::NoDescriptor);
    storage.fail(Fault { kind, after: 0, error, forever: true });
    bricks[0].disk.reserve.release_bytes().unwrap();
    commit(&bricks, true, vec![Change::Put { key: key(1), value: Bytes::from_static(b"small") }]).unwrap();
    bricks[0].checkpoint().unwrap();
    assert!(storage.struck().is_some_and(|struck| struck.contains("reserve")), "{:?}", storage.struck());
    assert_eq!(bricks[0].status().unwrap().reserve.bytes, 0);
    storage.heal();
    bricks[0].refresh_room().unwrap();
    assert_eq!(bricks[0].status().unwrap().reserve.bytes, RESERVE, "restored");
}

/// A server settles the incarnation after a checkpoint that is not stalled: by then all records are home.
#[test]
fn a_stalled_checkpoint_counts_as_stalled_until_it_has_ended() {
    let (pages, bricks) = bricks(64 << 20);
    for number in 0..100 {
        commit(&bricks, true, blocks(number, 8)).unwrap();
    }
    let taken_pages = take_all(&pages);
    let brick = &bricks[0];
    assert!(brick.checkpoint().is_err());
    commit(&bricks, false, vec![Change::Delete { key: key(5) }]).unwrap();
    let again = brick.begin_checkpoint();
    assert!(brick.stalled().is_some(), "it may meet no room again");
    assert!(again.finish(&mut || false).is_err());
    {
        let mut pages = pages.lock();
        (pages.greedy, pages.used) = (false, pages.used - taken_pages);
    }
    brick.checkpoint().unwrap();
    assert_eq!(brick.stalled(), None);
    let machine = brick.machine.read();
    assert_eq!(machine.applied(), machine.log().end(), "what was appended since is home as well");
}
