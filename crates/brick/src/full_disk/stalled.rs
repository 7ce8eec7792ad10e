//! Checkpoints that another user of the file system leaves no room: they stall, and go on when there is some.

use super::*;
use crate::storage::{CallKind, Fault, FaultError, FaultyStorage};

/// All bytes are taken, and whatever is given back.
fn take_all(pages: &Mutex<Pages>) -> u64 {
    let mut pages = pages.lock();
    let free = pages.free();
    (pages.greedy, pages.used) = (true, pages.all);
    free
}

/// In the data files, and in the index.
#[test]
fn a_checkpoint_without_room_stalls_and_the_brick_reads_and_deletes() {
    let entry = |number| vec![Change::Put { key: key(number), value: Bytes::from(vec![1; 3000]) }];
    for what in ["blocks", "entries"] {
        let one = |number| if what == "blocks" { blocks(number, 8) } else { entry(number) };
        let (pages, bricks) = bricks(64 << 20);
        for number in 0..100 {
            commit(&bricks, true, one(number)).unwrap();
        }
        let stranger = take_all(&pages);
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
            (pages.greedy, pages.used) = (false, pages.used - stranger);
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
fn want_of_file_descriptors_is_waited_for() {
    let storage = FaultyStorage::new(MemoryStorage::new());
    Brick::create_on(&storage, &identity(1)).unwrap();
    let open = || Brick::open_on(Arc::new(storage.clone()), &identity(1), Incarnation(1), false).unwrap().0;
    let bricks = [open()];
    commit(&bricks, true, blocks(1, 8)).unwrap();
    let fault = |kind, after| Fault { kind: Some(kind), after, error: FaultError::NoDescriptor, forever: false };
    // Making the data file, then opening it for the sync.
    storage.fail(fault(CallKind::Create, 0));
    bricks[0].checkpoint().unwrap();
    assert!(storage.struck().is_some_and(|struck| struck.contains("data/")), "{:?}", storage.struck());
    drop(bricks);
    let brick = open();
    storage.fail(fault(CallKind::Open, 0));
    assert_eq!(brick.read_shard(RING, shard(1), 0, 9).unwrap(), vec![1; 9]);
    assert_eq!(brick.status().unwrap().poisoned, None);
}

/// A server that settles its brick's life after a checkpoint relies on both.
#[test]
fn a_checkpoint_that_was_stalled_counts_as_stalled_until_it_has_ended_and_then_all_is_home() {
    let (pages, bricks) = bricks(64 << 20);
    for number in 0..100 {
        commit(&bricks, true, blocks(number, 8)).unwrap();
    }
    let stranger = take_all(&pages);
    let brick = &bricks[0];
    assert!(brick.checkpoint().is_err());
    commit(&bricks, false, vec![Change::Delete { key: key(5) }]).unwrap();
    let again = brick.begin_checkpoint();
    assert!(brick.stalled().is_some(), "it may meet no room again");
    assert!(again.finish(&mut || false).is_err());
    {
        let mut pages = pages.lock();
        (pages.greedy, pages.used) = (false, pages.used - stranger);
    }
    brick.checkpoint().unwrap();
    assert_eq!(brick.stalled(), None);
    let machine = brick.machine.read();
    assert_eq!(machine.applied(), machine.log().end(), "what was appended since is home as well");
}
