//! Appends that wait for room: they go on after a checkpoint, and nothing else holds them up.

use super::support::*;
use crate::storage::{MemoryStorage, Space};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_full_journal_makes_writers_wait_until_a_checkpoint() {
    let storage = new_storage();
    let brick = Arc::new(open(&storage, false).0);
    let writer = brick.clone();
    let thread = std::thread::spawn(move || (0..64).for_each(|i| _ = write_blocks(&writer, 0, 1, 8, i + 1)));
    while !thread.is_finished() {
        brick.checkpoint().unwrap();
        std::thread::yield_now();
    }
    thread.join().unwrap();
    assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(64));
}

#[test]
fn waiters_for_room_do_not_write_over_the_segments_end() {
    let storage = new_storage();
    let brick = Arc::new(open(&storage, false).0);
    let threads: Vec<_> = (0..12u32)
        .map(|p| {
            let brick = brick.clone();
            std::thread::spawn(move || {
                for round in 0..12u32 {
                    let place = KeyPrefix { ring: RING, position: Position(p), volume: VolumeId(1) };
                    let key = Key::name(place, ROOT, format!("{p}-{round}").as_bytes());
                    append_to(
                        &brick,
                        PartitionNumber(p),
                        vec![Change::Put { key, value: Bytes::from(vec![p as u8; 100 << 10]) }],
                    )
                    .unwrap();
                }
            })
        })
        .collect();
    let mut lost = Vec::new();
    while threads.iter().any(|t| !t.is_finished()) {
        std::thread::sleep(std::time::Duration::from_millis(20)); // By now all wait for room.
        let want: Vec<_> = (0..12).map(|p| brick.position(RING, PartitionNumber(p)).sequence.0).collect();
        brick.sync(brick.end()).unwrap();
        // What a power cut leaves now.
        match Brick::open_on(Arc::new(storage.after_power_cut()), &identity(), Incarnation(1), true) {
            Ok((copy, _)) => {
                let have: Vec<_> = (0..12).map(|p| copy.position(RING, PartitionNumber(p)).sequence.0).collect();
                if have.iter().zip(&want).any(|(h, w)| h < w) {
                    lost.push(format!("acknowledged {want:?}, recovered {have:?}"))
                }
            }
            Err(e) => lost.push(e.to_string()),
        }
        brick.checkpoint().unwrap();
    }
    assert!(lost.is_empty(), "{} of the cuts lost: {}", lost.len(), lost[0]);
}

#[test]
fn an_append_without_room_requests_a_checkpoint() {
    let mut storage = HookedStorage::new(new_storage_with(1 << 20), |_, _| Ok(()));
    // 10 MiB are free, and the reserve has been used up.
    storage.space = Some(Space::of_bytes(1 << 40, 10 << 20));
    let brick = Arc::new(open_on(storage, &identity_with(1 << 20), false).0);
    put(&brick, "0", "x");
    // 512 deletes are what the removal of a partition makes at once.
    let sweeper = brick.clone();
    let thread = std::thread::spawn(move || {
        append(&sweeper, (0..512).map(|n| Change::Delete { key: key(&n.to_string()) }).collect())
    });
    for _ in 0..120 {
        if thread.is_finished() {
            break;
        }
        // A server does this every 25 ms.
        if brick.wants_checkpoint() || brick.could_free_space() {
            brick.checkpoint().unwrap();
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    assert!(thread.is_finished(), "waits for ever, with its partition locked");
}

/// A server reads the status of a brick while another thread writes the reserve.
#[test]
fn nothing_waits_for_the_reserve_to_be_written() {
    let mut identity = identity_with(1 << 20);
    identity.settings.reserve_bytes = 1 << 20;
    let is_held = Arc::new(AtomicBool::new(false));
    let held = is_held.clone();
    let storage = HookedStorage::new(MemoryStorage::new(), move |call, path| {
        while (call, path) == (Call::Write, "reserve") && held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    Brick::create_on(&storage, &identity).unwrap();
    let brick = Arc::new(open_on(storage, &identity, false).0);
    brick.disk.reserve.release_bytes().unwrap();
    is_held.store(true, Ordering::SeqCst);
    let (a, b, c) = (brick.clone(), brick.clone(), brick.clone());
    std::thread::spawn(move || a.refresh_room());
    std::thread::sleep(Duration::from_millis(100));
    std::thread::spawn(move || b.status());
    std::thread::sleep(Duration::from_millis(100));
    let append = std::thread::spawn(move || put(&c, "0", ""));
    std::thread::sleep(Duration::from_secs(1));
    let ended = append.is_finished();
    is_held.store(false, Ordering::SeqCst);
    assert!(ended, "an append waits for the reserve's zeros");
}
