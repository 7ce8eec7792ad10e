//! What a vDisk does when all replicas have lost what was not flushed.

use super::*;
use hekate_proto::Error;
use hekate_threads::Mutex;
use std::sync::Arc;

#[test]
fn a_loss_fails_one_flush_and_makes_the_vdisk_read_only_until_it_is_resumed() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 4096), false).unwrap();
    disk.flush().unwrap();
    disk.write(4096, bytes(2, 4096), false).unwrap();
    memory.lose_unsynced(|| false);
    assert!(matches!(disk.flush(), Err(Error::Lost { .. })));
    assert_eq!(disk.flush(), Ok(()), "it is reported once");
    assert!(matches!(disk.write(0, bytes(3, 4096), false), Err(Error::Denied { .. })));
    disk.close().unwrap();
    let disk = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
    assert!(disk.is_read_only());
    assert_eq!(disk.read(0, 8192).unwrap(), [[1; 4096], [0; 4096]].concat());
    disk.resume().unwrap();
    disk.write(4096, bytes(3, 4096), true).unwrap();
    assert!(disk.resume().is_err());
}

/// The owner before is alive: it notes another loss, or resumes the vDisk, after that was taken.
#[test]
fn a_vdisk_that_has_lost_changes_is_taken_from_its_owner() {
    for resumes in [false, true] {
        let memory = Memory::default();
        let (_, old) = made(&memory, 4 * MIB);
        old.write(0, bytes(1, 4096), true).unwrap();
        old.write(0, bytes(2, 4096), false).unwrap();
        let (other, taken) = (super::catalogue(&memory, 3), Arc::new(Mutex::new(None)));
        let (flushing, loses, takes) = (old.clone(), memory.clone(), taken.clone());
        memory.beside_write(move || {
            loses.lose_unsynced(|| false);
            assert!(matches!(flushing.flush(), Err(Error::Lost { .. })));
            *takes.lock() = Some(Disk::steal(&other, "d", "next", SMALL).unwrap());
        });
        assert!(matches!(old.write(4096, bytes(3, 4096), false), Err(Error::Lost { .. })));
        if resumes {
            assert_eq!(old.resume(), Err(Error::SessionEnded));
        } else {
            memory.lose_unsynced(|| false);
            assert!(matches!(old.flush(), Err(Error::Lost { .. })));
        }
        assert!(old.has_ended());
        let next = taken.lock().take().unwrap();
        assert!(next.is_read_only());
        next.resume().unwrap();
        next.write(4096, bytes(4, 4096), true).unwrap();
        assert_eq!(next.read(0, 8192).unwrap(), [[1; 4096], [4; 4096]].concat());
    }
}

#[test]
fn pages_that_come_late_are_in_no_map_of_a_vdisk_that_was_taken_and_resumed() {
    let memory = Memory::default();
    let (_, old) = made(&memory, 4 * MIB);
    old.write(0, bytes(1, 4096), true).unwrap();
    let (other, writing, loses) = (super::catalogue(&memory, 3), old.clone(), memory.clone());
    // The next write is of a page, by the checkpoint.
    memory.beside_write(move || {
        writing.write(4096, bytes(2, 4096), false).unwrap();
        loses.lose_unsynced(|| false);
        assert!(matches!(writing.flush(), Err(Error::Lost { .. })));
        let next = Disk::steal(&other, "d", "next", SMALL).unwrap();
        next.resume().unwrap();
        next.write(0, bytes(3, 4096), true).unwrap();
        next.close().unwrap();
    });
    assert!(old.close().is_err());
    let last = Disk::open(&super::catalogue(&memory, 5), "d", "last", SMALL).unwrap();
    assert_eq!(last.read(0, 8192).unwrap(), [[3; 4096], [0; 4096]].concat());
}

#[test]
fn a_snapshot_beside_a_flush_that_reports_a_loss_does_not_keep_it() {
    let memory = Memory::default();
    let (_, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 4096), true).unwrap();
    disk.write(0, bytes(2, 4096), false).unwrap();
    memory.lose_unsynced(|| false);
    let other = disk.clone();
    // After the snapshot has seen that the vDisk may be written.
    memory.beside_call(0, move || assert!(matches!(other.flush(), Err(Error::Lost { .. }))));
    assert!(matches!(disk.snapshot("s", Vec::new()), Err(Error::Lost { .. })));
    disk.resume().unwrap();
    assert_eq!(disk.read(0, 4096).unwrap(), bytes(1, 4096));
}

#[test]
fn a_durable_change_makes_everything_before_it_durable() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    // Several segments.
    (0..30).for_each(|block| disk.write(block * 4096, bytes(1, 4096), false).unwrap());
    disk.write(30 * 4096, bytes(2, 4096), true).unwrap();
    memory.end(catalogue.info("d").unwrap().holder.unwrap().session);
    memory.lose_unsynced(|| false);
    let disk = Disk::open(&super::catalogue(&memory, 3), "d", "test", SMALL).unwrap();
    assert_eq!(disk.read(0, 31 * 4096).unwrap(), [&[1; 30 * 4096][..], &[2; 4096]].concat());
}

#[test]
fn what_is_lost_while_a_vdisk_is_opened_is_the_end_of_its_log() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 4096), true).unwrap();
    (1..30).for_each(|block| disk.write(block * 4096, bytes(2, 4096), false).unwrap());
    memory.end(catalogue.info("d").unwrap().holder.unwrap().session);
    // The first write of an opening names its owner; the second one is of an append that it has read.
    let (later, last) = (memory.clone(), memory.clone());
    memory.beside_write(move || later.beside_write(move || last.lose_untold(|| false)));
    let disk = Disk::open(&super::catalogue(&memory, 3), "d", "test", SMALL).unwrap();
    let read = disk.read(0, 30 * 4096).unwrap();
    assert_eq!(read[..4096], [1; 4096]);
    let first_lost = read.chunks(4096).skip(1).position(|block| block == [0; 4096]).unwrap();
    assert!(read.chunks(4096).skip(1 + first_lost).all(|block| block == [0; 4096]), "it is as it was at one moment");
}

#[test]
fn what_is_lost_while_a_vdisk_is_resumed_is_the_end_of_its_log() {
    let memory = Memory::default();
    let (catalogue, disk) = made(&memory, 4 * MIB);
    disk.write(0, bytes(1, 20 * 4096), true).unwrap();
    disk.close().unwrap();
    let old = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
    (0..4).for_each(|block| old.write(block * 4096, bytes(2, 4096), false).unwrap());
    memory.lose_unsynced(|| true);
    // Two segments, of which the flush syncs only the one with a loss.
    (4..20).for_each(|block| old.write(block * 4096, bytes(2, 4096), false).unwrap());
    assert!(matches!(old.flush(), Err(Error::Lost { .. })));
    let next = Disk::steal(&super::catalogue(&memory, 3), "d", "next", SMALL).unwrap();
    assert_eq!(next.read(0, 20 * 4096).unwrap(), bytes(2, 20 * 4096));
    // The next write is of an append that the resume has read.
    let loses = memory.clone();
    memory.beside_write(move || loses.lose_untold(|| false));
    next.resume().unwrap();
    assert_eq!(next.read(0, 20 * 4096).unwrap(), [[2; 10 * 4096], [1; 10 * 4096]].concat());
}
