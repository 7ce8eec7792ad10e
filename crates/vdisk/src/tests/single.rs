//! What one vDisk does, step by step.

use super::*;
use crate::Extent;
use crate::scrub::{Throttle, scrub, scrub_layer};
use hekate_proto::Error;
use hekate_threads::{Mutex, spawn_joined};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_new_vdisk_reads_zeros_and_what_is_written_comes_back() {
    let (_, disk) = made(&Memory::default(), 10 * MIB + 512);
    assert_eq!(disk.read(0, 8192).unwrap(), bytes(0, 8192));
    disk.write(4096, bytes(1, 4096), false).unwrap();
    disk.write(1000, bytes(2, 7000), false).unwrap();
    let mut expected = vec![0; 1000];
    expected.resize(8000, 2);
    expected.resize(8192, 1);
    assert_eq!(disk.read(0, 8192).unwrap(), expected);
    disk.write(10 * MIB, bytes(3, 512), true).unwrap();
    assert_eq!(disk.read(10 * MIB, 512).unwrap(), bytes(3, 512));
    assert!(matches!(disk.read(10 * MIB, 513), Err(Error::Invalid { .. })));
    assert!(matches!(disk.write(u64::MAX, bytes(3, 512), true), Err(Error::Invalid { .. })));
}

#[test]
fn zeros_free_space_and_are_extents_without_data() {
    let memory = Memory::default();
    let (_, disk) = made(&memory, 4 * MIB);
    (0..256).for_each(|block| disk.write(block * 4096, bytes(block as u8 | 1, 4096), false).unwrap());
    disk.zero(4096 * 10 + 100, 4096 * 100, false).unwrap();
    assert_eq!(disk.read(4096 * 10, 4096).unwrap()[..101], [&[11; 100][..], &[0]].concat());
    let extents = disk.extents(0, MIB, 10).unwrap();
    let extent = |blocks: u64, is_hole| Extent { length: blocks * 4096, is_hole };
    assert_eq!(extents, [extent(11, false), extent(99, true), extent(146, false)]);
    disk.zero(0, 4 * MIB, false).unwrap();
    assert_eq!(disk.extents(0, 4 * MIB, 10).unwrap(), [extent(1024, true)]);
    let before = memory.bytes();
    disk.close().unwrap();
    assert!(memory.bytes() < before / 2, "segments without data are removed");
}

#[test]
fn a_snapshot_stays_and_a_clone_of_it_differs() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 8192), false).unwrap();
    disk.snapshot("first", Vec::new()).unwrap();
    disk.write(0, bytes(2, 4096), false).unwrap();
    disk.zero(4096, 4096, false).unwrap();
    assert_eq!(disk.read(0, 8192).unwrap(), [[2; 4096], [0; 4096]].concat());
    assert!(matches!(disk.snapshot("first", Vec::new()), Err(Error::Invalid { .. })));
    let snapshot = Disk::open_snapshot(&catalogue, "d", "first", SMALL).unwrap();
    assert_eq!(snapshot.read(0, 8192).unwrap(), bytes(1, 8192));
    assert!(matches!(snapshot.write(0, bytes(9, 512), false), Err(Error::Denied { .. })));
    catalogue.clone_disk("d", Some("first"), "copy", Vec::new()).unwrap();
    let copy = Disk::open(&catalogue, "copy", "test", SMALL).unwrap();
    copy.write(4096, bytes(5, 512), false).unwrap();
    assert_eq!(copy.read(0, 8192).unwrap(), [&[1; 4096][..], &[5; 512], &[1; 3584]].concat());
    disk.roll_back(&catalogue, "first").unwrap();
    assert_eq!(disk.read(0, 8192).unwrap(), bytes(1, 8192));
    assert!(catalogue.clone_disk("d", None, "other", Vec::new()).is_err());
    copy.make_template().unwrap();
    copy.close().unwrap();
    catalogue.clone_disk("copy", None, "other", Vec::new()).unwrap();
    let other = Disk::open(&catalogue, "other", "test", SMALL).unwrap();
    assert_eq!(other.read(4096, 512).unwrap(), bytes(5, 512));
    let template = Disk::open_template(&catalogue, "copy", SMALL).unwrap();
    assert!(template.write(0, bytes(1, 512), false).is_err());
}

#[test]
fn layers_are_removed_when_nothing_leads_to_them() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 65536), false).unwrap();
    disk.snapshot("a", Vec::new()).unwrap();
    disk.write(0, bytes(2, 65536), false).unwrap();
    catalogue.clone_disk("d", Some("a"), "copy", Vec::new()).unwrap();
    assert!(matches!(catalogue.delete("d", "test"), Err(Error::Unavailable { .. })), "it is open");
    disk.close().unwrap();
    catalogue.delete("d", "test").unwrap();
    assert_eq!(catalogue.collect().unwrap(), 1, "the clone keeps the layer of the snapshot");
    let copy = Disk::open(&catalogue, "copy", "test", SMALL).unwrap();
    assert_eq!(copy.read(0, 65536).unwrap(), bytes(1, 65536));
    copy.close().unwrap();
    catalogue.delete("copy", "test").unwrap();
    assert_eq!(catalogue.collect().unwrap(), 2);
    drop((disk, copy));
    assert_eq!(memory.files(), 1, "the lock of the tree is left");
}

#[test]
fn one_session_has_a_vdisk_and_another_takes_it_when_it_has_ended() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 4096), false).unwrap();
    let other = super::catalogue(&memory, 9);
    let refused = Disk::open(&other, "d", "other", SMALL).err().unwrap().to_string();
    assert!(refused.contains("open at test"), "{refused}");
    let holder = other.info("d").unwrap().holder.unwrap();
    memory.end(holder.session);
    let taken = Disk::open(&other, "d", "other", SMALL).unwrap();
    assert_eq!(taken.read(0, 4096).unwrap(), bytes(1, 4096));
    assert_eq!(disk.write(0, bytes(3, 4096), false), Err(Error::SessionEnded));
    assert!(disk.has_ended() && !taken.has_ended());
    drop(catalogue);
}

#[test]
fn a_smaller_size_forgets_what_was_beyond() {
    let (_, disk) = made(&Memory::default(), 4 * MIB);
    disk.write(MIB - 100, bytes(1, 5000), false).unwrap();
    disk.resize(MIB + 512).unwrap();
    assert!(disk.read(MIB + 512, 512).is_err());
    disk.resize(2 * MIB).unwrap();
    assert_eq!(disk.read(MIB, 8192).unwrap(), [&[1; 512][..], &[0; 7680]].concat());
    assert!(disk.resize(100).is_err() && disk.resize(0).is_err() && disk.resize(1 << 60).is_err());
}

#[test]
fn orders_reach_the_owner_and_are_carried_out_here_without_one() {
    use crate::orders::{Order, Orders, carry_out, order};
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 4096), false).unwrap();
    let others = super::catalogue(&memory, 5);
    let snapshot = Order::Snapshot { name: "s".into(), labels: Vec::new() };
    let answers = Arc::new(Mutex::new(Vec::new()));
    let (giving, got) = (others.clone(), answers.clone());
    let give = move || {
        for _ in 0..2 {
            let answer = order(&giving, "d", "other", &snapshot);
            got.lock().push(answer);
        }
    };
    let giver = hekate_threads::spawn_joined("giver", give).unwrap();
    let mut orders = Orders::of(&catalogue, &disk).unwrap();
    while answers.lock().len() < 2 {
        for taken in orders.take(&**catalogue.store()).unwrap() {
            let outcome = carry_out(&catalogue, &disk, &taken.order);
            taken.answer(&**catalogue.store(), outcome).unwrap();
        }
        hekate_threads::sleep(std::time::Duration::from_millis(5));
    }
    giver.join();
    let answers = std::mem::take(&mut *answers.lock());
    let [first, second] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*first, Ok(Default::default()));
    assert!(matches!(second, Err(Error::Invalid { .. })), "there is one of this name: {second:?}");
    assert_eq!(catalogue.snapshots("d").unwrap().len(), 1);
    disk.close().unwrap();
    order(&others, "d", "other", &Order::Resize { size: 8 * MIB }).unwrap();
    assert_eq!(catalogue.info("d").unwrap().record.size, 8 * MIB);
}

#[test]
fn an_order_that_the_owner_closed_before_taking_is_carried_out_here() {
    use crate::orders::{Order, order};
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    let (others, answer) = (super::catalogue(&memory, 5), Arc::new(Mutex::new(None)));
    let got = answer.clone();
    let snapshot = Order::Snapshot { name: "s".into(), labels: Vec::new() };
    let give = move || *got.lock() = Some(order(&others, "d", "other", &snapshot));
    let giver = spawn_joined("giver", give).unwrap();
    let store = catalogue.store();
    let orders = store.find(disk.directory(), crate::catalogue::ORDERS).unwrap();
    while store.list(orders).unwrap().is_empty() {
        hekate_threads::sleep(std::time::Duration::from_millis(5));
    }
    disk.close().unwrap();
    giver.join();
    assert_eq!(*answer.lock(), Some(Ok(Default::default())));
    assert_eq!(catalogue.snapshots("d").unwrap().len(), 1);
}

/// The owner before is alive, and goes on with whatever it was doing.
#[test]
fn whoever_lost_a_vdisk_changes_no_byte_of_it_and_flushes_nothing() {
    for moment in 0..60 {
        let memory = Memory::default();
        let (catalogue, old) = made(&memory, 4 * MIB);
        for block in 0..moment * 3 {
            old.write(block % 700 * 4096, bytes(1, 4096), false).unwrap();
        }
        old.flush().unwrap();
        let before = old.read(0, 4 * MIB as u32).unwrap();
        let others = super::catalogue(&memory, moment + 99);
        let new = Disk::steal(&others, "d", "other", SMALL).unwrap();
        assert_eq!(new.read(0, 4 * MIB as u32).unwrap(), before);
        new.write(0, bytes(2, 8192), false).unwrap();
        let mut failed = false;
        for block in 0..90 {
            let (offset, data) = (block * 5 % 1000 * 4096, bytes(3, 4096));
            let done = match block % 30 {
                13 => old.flush(),
                14 => old.snapshot(&format!("late{block}"), Vec::new()),
                15 => old.write(offset, data, true),
                16 => old.resize(3 * MIB),
                17 => old.clean(100, &crate::scrub::Throttle::new(0)).map(|_| ()),
                _ => old.write(offset, data, false),
            };
            assert!(block % 30 < 13 || block % 30 > 15 || done.is_err(), "{moment}: step {block} of the old owner");
            failed |= done.is_err();
            new.write(block * 4096, bytes(4, 4096), false).unwrap();
        }
        assert!(failed && old.has_ended() && old.close().is_err());
        let expected = [&vec![4; 90 * 4096][..], &before[90 * 4096..]].concat();
        assert_eq!(new.read(0, 4 * MIB as u32).unwrap(), expected, "{moment}");
        new.close().unwrap();
        let again = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
        assert_eq!(again.read(0, 4 * MIB as u32).unwrap(), expected, "{moment}");
        assert!(catalogue.snapshots("d").unwrap().is_empty());
    }
}

#[test]
fn a_flush_beside_a_write_does_not_count_as_one_of_it() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 4096), false).unwrap();
    let flushing = disk.clone();
    memory.beside_write(move || flushing.flush().unwrap());
    disk.write(0, bytes(2, 4096), false).unwrap();
    disk.flush().unwrap();
    memory.end(catalogue.info("d").unwrap().holder.unwrap().session);
    memory.lose_unsynced(|| false);
    let disk = Disk::open(&super::catalogue(&memory, 3), "d", "test", SMALL).unwrap();
    assert_eq!(disk.read(0, 4096).unwrap(), bytes(2, 4096));
}

#[test]
fn whoever_lost_a_vdisk_reads_no_map_of_the_next_owner() {
    let memory = Memory::default();
    let (_, disk) = made(&memory, 80 * MIB);
    // More pages of the map than are kept.
    (0..40).for_each(|page| disk.write(page * 2 * MIB, bytes(1, 4096), false).unwrap());
    disk.flush().unwrap();
    let taken = Disk::steal(&super::catalogue(&memory, 3), "d", "test", SMALL).unwrap();
    taken.write(0, bytes(2, 4096), false).unwrap();
    taken.close().unwrap();
    assert_eq!(disk.read(0, 4096), Err(Error::SessionEnded));
}

#[test]
fn a_segment_that_is_made_while_another_takes_the_vdisk_is_not_one_of_the_next_owner() {
    let memory = Memory::default();
    let (_, disk) = made(&memory, 4 * MIB);
    let (other, taken) = (super::catalogue(&memory, 3), Arc::new(Mutex::new(None)));
    let takes = taken.clone();
    memory.beside_write(move || {
        let next = Disk::steal(&other, "d", "test", SMALL).unwrap();
        next.write(0, bytes(2, 4096), true).unwrap();
        *takes.lock() = Some(next);
    });
    let _ = disk.write(0, bytes(1, 4096), false);
    let next = taken.lock().take().unwrap();
    assert_eq!(next.read(0, 4096).unwrap(), bytes(2, 4096));
}

/// Beside each fifth call of others writes the next block, after the `written` first ones, until a write fails. Whoever
/// reads the log meanwhile comes to its end.
fn write_beside_calls(memory: &Memory, disk: Disk, written: Arc<AtomicU64>) {
    let again = memory.clone();
    memory.beside_call(4, move || {
        let block = written.load(Ordering::Relaxed);
        if disk.write(block * 4096, bytes(3, 4096), true).is_ok() {
            written.store(block + 1, Ordering::Relaxed);
            write_beside_calls(&again, disk, written);
        }
    });
}

#[test]
fn a_read_follows_its_blocks_to_a_layer_where_they_have_the_same_numbers() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, MIB);
    let write = |disk: &Disk| disk.write(0, bytes(1, 40 * 4096), false).unwrap();
    write(&disk);
    disk.close().unwrap();
    let disk = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
    // The map is in memory, and the segment not open yet.
    assert_eq!(disk.places(0, 4096), Ok(1));
    let (other, scrubbed) = (disk.clone(), Arc::new(AtomicBool::new(false)));
    let is_scrubbed = scrubbed.clone();
    memory.beside_call(0, move || {
        other.snapshot("s", Vec::new()).unwrap();
        write(&other);
        catalogue.delete_snapshot("d", "s").unwrap();
        scrub(&catalogue, &other, &Throttle::new(0)).unwrap();
        is_scrubbed.store(true, Ordering::Relaxed);
    });
    assert_eq!(disk.read(0, 4096), Ok(bytes(1, 4096)));
    assert!(scrubbed.load(Ordering::Relaxed));
}

#[test]
fn a_reader_of_before_a_merge_sees_neither_less_nor_more_than_the_layers_had() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 8192), false).unwrap();
    // Another page of the map.
    disk.write(2 * MIB, bytes(2, 4096), false).unwrap();
    disk.snapshot("a", Vec::new()).unwrap();
    disk.zero(0, 4096, false).unwrap();
    disk.snapshot("b", Vec::new()).unwrap();
    catalogue.delete_snapshot("d", "a").unwrap();
    let [first, second] = [0; 2].map(|_| Disk::open_snapshot(&catalogue, "d", "b", SMALL).unwrap());
    let upper = disk.sealed_layers()[1];
    assert_eq!(scrub_layer(&catalogue, upper, &Throttle::new(0)).unwrap().merged, 1);
    // The lower layer is there, and the hole above it is not.
    assert_eq!(first.read(0, 8192).unwrap(), [[0; 4096], [1; 4096]].concat());
    assert_eq!(catalogue.collect().unwrap(), 1);
    // The lower layer is gone, and the upper one had no such page when it was opened.
    assert_eq!(second.read(2 * MIB, 4096).unwrap(), bytes(2, 4096));
}

#[test]
fn an_opening_that_another_overtakes_at_any_call_takes_nothing_from_it() {
    for calls in 0.. {
        let memory = Memory::default();
        let (_, first) = made(&memory, 4 * MIB);
        let second = Disk::steal(&super::catalogue(&memory, 3), "d", "second", SMALL).unwrap();
        (0..5).for_each(|block| second.write(block * 4096, bytes(2, 4096), false).unwrap());
        // The first one does not know yet that it has lost the vDisk, and leaves segments that no state names.
        (0..50).for_each(|block| drop(first.write(block * 4096, bytes(1, 4096), false)));
        let (other, taken) = (super::catalogue(&memory, 5), Arc::new(Mutex::new(None)));
        let written = Arc::new(AtomicU64::new(35));
        let (takes, goes_on, counts) = (taken.clone(), memory.clone(), written.clone());
        memory.beside_call(calls, move || {
            let next = Disk::steal(&other, "d", "overtaking", SMALL).unwrap();
            (5..35).for_each(|block| next.write(block * 4096, bytes(3, 4096), true).unwrap());
            *takes.lock() = Some(next.clone());
            write_beside_calls(&goes_on, next, counts);
        });
        let overtaken = Disk::steal(&super::catalogue(&memory, 9), "d", "overtaken", SMALL);
        let Some(next) = taken.lock().take() else {
            assert!(calls > 50, "an opening makes more calls");
            return;
        };
        let is_overtaken = overtaken.and_then(|disk| disk.confirm_owner()).is_err();
        memory.calm();
        assert_eq!(next.confirm_owner().is_ok(), is_overtaken, "one of them has it: call {calls}");
        let again = Disk::steal(&super::catalogue(&memory, 11), "d", "again", SMALL).unwrap();
        let written = written.load(Ordering::Relaxed);
        let read = again.read(0, written as u32 * 4096).unwrap();
        let is_there = |block: usize| read[block * 4096] == if block < 5 { 2 } else { 3 };
        assert_eq!((0..written as usize).find(|block| !is_there(*block)), None, "call {calls} of {written} blocks");
    }
}

#[test]
fn a_scrub_that_has_lost_its_locks_takes_nothing_from_another() {
    for calls in 0.. {
        let memory = Memory::default();
        let (catalogue, disk) = made(&memory, 4 * MIB);
        (0..30).for_each(|block| disk.write(block * 4096, bytes(1, 4096), false).unwrap());
        disk.snapshot("s", Vec::new()).unwrap();
        disk.write(0, bytes(2, 4096), true).unwrap();
        let (other, locks, has_run) = (super::catalogue(&memory, 5), memory.clone(), Arc::new(AtomicBool::new(false)));
        let runs = has_run.clone();
        memory.beside_call(calls, move || {
            locks.release_locks();
            let next = Disk::steal(&other, "d", "other", SMALL).unwrap();
            scrub(&other, &next, &Throttle::new(0)).unwrap();
            runs.store(true, Ordering::Relaxed);
        });
        let _ = scrub(&catalogue, &disk, &Throttle::new(0));
        if !has_run.load(Ordering::Relaxed) {
            assert!(calls > 50, "a scrub makes more calls");
            return;
        }
        let last = super::catalogue(&memory, 11);
        let disk = Disk::steal(&last, "d", "last", SMALL).unwrap();
        for _ in 0..2 {
            let snapshot = Disk::open_snapshot(&last, "d", "s", SMALL).unwrap();
            assert_eq!(snapshot.read(0, 30 * 4096).unwrap(), bytes(1, 30 * 4096), "call {calls}");
            let expected = [&[2; 4096][..], &[1; 29 * 4096]].concat();
            assert_eq!(disk.read(0, 30 * 4096).unwrap(), expected, "call {calls}");
            scrub(&last, &disk, &Throttle::new(0)).unwrap();
        }
    }
}

#[test]
fn a_layer_that_another_scrub_rewrites_meanwhile_is_not_absorbed() {
    for calls in 0.. {
        let memory = Memory::default();
        let (catalogue, disk) = made(&memory, 4 * MIB);
        (0..30).for_each(|block| disk.write(block * 4096, bytes(1, 4096), false).unwrap());
        disk.snapshot("s", Vec::new()).unwrap();
        disk.write(0, bytes(2, 4096), true).unwrap();
        catalogue.delete_snapshot("d", "s").unwrap();
        let (other, below) = (super::catalogue(&memory, 5), disk.sealed_layers()[0]);
        let (locks, has_run) = (memory.clone(), Arc::new(AtomicBool::new(false)));
        let runs = has_run.clone();
        memory.beside_call(calls, move || {
            locks.release_locks();
            // It may be gone.
            let _ = scrub_layer(&other, below, &Throttle::new(0));
            runs.store(true, Ordering::Relaxed);
        });
        let _ = scrub(&catalogue, &disk, &Throttle::new(0));
        if !has_run.load(Ordering::Relaxed) {
            assert!(calls > 50, "a scrub makes more calls");
            return;
        }
        let expected = [&[2; 4096][..], &[1; 29 * 4096]].concat();
        assert_eq!(disk.read(0, 30 * 4096).unwrap(), expected, "call {calls}");
        let last = super::catalogue(&memory, 11);
        let disk = Disk::steal(&last, "d", "last", SMALL).unwrap();
        scrub(&last, &disk, &Throttle::new(0)).unwrap();
        assert_eq!(disk.read(0, 30 * 4096).unwrap(), expected, "call {calls}");
    }
}

#[test]
fn a_flush_after_zeros_that_need_no_append_asks_for_the_owner() {
    let memory = Memory::default();
    let (_, disk) = made(&memory, 4 * MIB);
    let next = Disk::steal(&super::catalogue(&memory, 3), "d", "next", SMALL).unwrap();
    next.write(0, bytes(1, 8192), true).unwrap();
    disk.zero(0, 4096, false).unwrap();
    assert_eq!(disk.flush(), Err(Error::SessionEnded));
}

#[test]
fn blocks_in_more_segments_than_an_append_has_entries_become_zeros() {
    let memory = Memory::default();
    let catalogue = super::catalogue(&memory, 7).with_segments(2);
    catalogue.create("d", 4 * MIB, Durability::Replicated, Vec::new()).unwrap();
    let disk = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
    (0..600).for_each(|block| disk.write(block * 4096, bytes(1, 4096), false).unwrap());
    disk.zero(4096, 599 * 4096, false).unwrap();
    assert_eq!(disk.read(0, 600 * 4096).unwrap(), [&[1; 4096][..], &[0; 599 * 4096]].concat());
    disk.close().unwrap();
    let disk = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
    assert_eq!((disk.read(0, 8192).unwrap(), disk.fill().0), ([[1; 4096], [0; 4096]].concat().into(), 1));
}

/// An append has many blocks of data, and after them zeros that free blocks of many segments.
#[test]
fn data_and_zeros_over_many_segments_fit_into_appends() {
    let memory = Memory::default();
    let catalogue = super::catalogue(&memory, 7).with_segments(200);
    catalogue.create("d", 8 * MIB, Durability::Replicated, Vec::new()).unwrap();
    // Each opening begins a segment.
    (0..150).for_each(|block| {
        let disk = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
        disk.write(block * 4096, bytes(1, 4096), false).unwrap();
        disk.close().unwrap();
    });
    let large = Settings { append_blocks: 15, ..SMALL };
    let disk = Disk::open(&catalogue, "d", "test", large).unwrap();
    let data = crate::Change::Write { offset: 4 * MIB, data: bytes(2, 140 * 4096) };
    disk.change(&[data, crate::Change::Zero { offset: 0, length: 150 * 4096 }], false).unwrap();
    assert_eq!(disk.read(0, 150 * 4096).unwrap(), bytes(0, 150 * 4096));
    assert_eq!(disk.read(4 * MIB, 140 * 4096).unwrap(), bytes(2, 140 * 4096));
}

#[test]
fn readers_see_the_same_while_layers_are_made_and_merged() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, MIB);
    const BLOCKS: u64 = 40;
    let content = |block: u64| bytes(block as u8 + 1, 4096);
    (0..BLOCKS).for_each(|block| disk.write(block * 4096, content(block), false).unwrap());
    let (stops, wrong) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let read = |from: usize| {
        let (disk, stops, wrong) = (disk.clone(), stops.clone(), wrong.clone());
        let cycle = move || {
            for block in (0..BLOCKS).cycle().skip(from).take_while(|_| !stops.load(Ordering::Relaxed)) {
                let read = disk.read(block * 4096, 4096);
                if read.as_ref() != Ok(&content(block)) {
                    wrong.lock().push((block, read.map(|bytes| bytes[0])));
                }
            }
        };
        spawn_joined("reader", cycle).unwrap()
    };
    let readers = [0, 13, 26].map(read);
    for round in 0..150u64 {
        // Blocks are written with the content that they have.
        let write = |block: u64| disk.write(block * 4096, content(block), false).unwrap();
        (0..BLOCKS).filter(|block| (block + round) % 3 > 0).for_each(write);
        disk.snapshot("s", Vec::new()).unwrap();
        (0..BLOCKS).filter(|block| (block * 7 + round) % 5 > 1).for_each(write);
        catalogue.delete_snapshot("d", "s").unwrap();
        scrub(&catalogue, &disk, &Throttle::new(0)).unwrap();
    }
    stops.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join());
    assert_eq!(*wrong.lock(), [], "blocks that were read wrong, and their first bytes");
    disk.close().unwrap();
}

#[test]
fn an_opening_that_another_overtakes_writes_to_no_layer_that_the_other_has_sealed() {
    for calls in 0.. {
        let memory = Memory::default();
        let (_, first) = made(&memory, 4 * MIB);
        first.write(0, bytes(1, 8192), true).unwrap();
        let (other, taken) = (super::catalogue(&memory, 5), Arc::new(Mutex::new(None)));
        let takes = taken.clone();
        memory.beside_call(calls, move || {
            let next = Disk::steal(&other, "d", "overtaking", SMALL).unwrap();
            next.snapshot("s", Vec::new()).unwrap();
            next.write(0, bytes(2, 4096), true).unwrap();
            *takes.lock() = Some(next);
        });
        let last = super::catalogue(&memory, 9);
        let overtaken = Disk::steal(&last, "d", "overtaken", SMALL);
        let Some(next) = taken.lock().take() else {
            memory.calm();
            assert!(calls > 10, "{calls} calls");
            return;
        };
        let wrote = overtaken.and_then(|disk| disk.write(0, bytes(3, 4096), true)).is_ok();
        assert_eq!(next.confirm_owner().is_ok(), !wrote, "one of them has it: call {calls}");
        let snapshot = Disk::open_snapshot(&last, "d", "s", SMALL).unwrap();
        assert_eq!(snapshot.read(0, 8192).unwrap(), bytes(1, 8192), "call {calls}");
        let again = Disk::steal(&super::catalogue(&memory, 11), "d", "again", SMALL).unwrap();
        let now = if wrote { 3 } else { 2 };
        assert_eq!(again.read(0, 8192).unwrap(), [[now; 4096], [1; 4096]].concat(), "call {calls}");
    }
}

#[test]
fn a_stack_is_opened_while_its_layers_are_merged() {
    for calls in 0.. {
        let memory = Memory::default();
        let (catalogue, disk) = made(&memory, 4 * MIB);
        for block in 0..4 {
            disk.write(block * 4096, bytes(block as u8 + 1, 4096), true).unwrap();
            disk.snapshot(&format!("s{block}"), Vec::new()).unwrap();
        }
        catalogue.delete_snapshot("d", "s1").unwrap();
        catalogue.delete_snapshot("d", "s2").unwrap();
        let (scrubbing, has_run) = (disk.clone(), Arc::new(AtomicBool::new(false)));
        let runs = has_run.clone();
        let reader = super::catalogue(&memory, 5);
        memory.beside_call(calls, move || {
            scrub(&catalogue, &scrubbing, &Throttle::new(0)).unwrap();
            runs.store(true, Ordering::Relaxed);
        });
        let snapshot = Disk::open_snapshot(&reader, "d", "s3", SMALL).unwrap();
        if !has_run.load(Ordering::Relaxed) {
            memory.calm();
            assert!(calls > 10, "{calls} calls");
            return;
        }
        let expected = [bytes(1, 4096), bytes(2, 4096), bytes(3, 4096), bytes(4, 4096)].concat();
        assert_eq!(snapshot.read(0, 4 * 4096).unwrap(), expected, "call {calls}");
        disk.close().unwrap();
    }
}
