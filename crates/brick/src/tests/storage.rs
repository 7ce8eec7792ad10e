//! One suite for all storages, and the properties of those that fail or lose power.

use crate::storage::*;
use std::io::ErrorKind;
use std::sync::Arc;

fn read(file: &dyn StorageFile, offset: u64, count: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; count];
    let got = file.read_at(&mut buffer, offset).unwrap();
    buffer.truncate(got);
    buffer
}

fn conforms(storage: &dyn Storage) {
    storage.create_directory("a/b").unwrap();
    storage.create_directory("a/b").unwrap();
    let missing = storage.open("a/b/f", false).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let file = storage.open("a/b/f", true).unwrap();
    assert_eq!((file.length().unwrap(), read(&*file, 0, 10)), (0, vec![]));
    bytes_conform(&*file);
    names_conform(storage, &*file);
    let space = storage.space().unwrap();
    assert!(space.available <= space.free && space.free <= space.total);
    assert!(space.files == 0 || space.files_available <= space.files);
}

fn bytes_conform(file: &dyn StorageFile) {
    file.write_at(&[b"abc", b"", b"de"], 3).unwrap();
    assert_eq!(file.length().unwrap(), 8);
    assert_eq!(read(file, 0, 100), b"\0\0\0abcde", "zeros in between, short at the end");
    assert_eq!((read(file, 4, 2), read(file, 8, 4), read(file, 99, 4)), (b"bc".to_vec(), vec![], vec![]));
    file.write_at(&[b"XY"], 4).unwrap();
    file.write_at(&[], 1000).unwrap();
    assert_eq!(read(file, 0, 100), b"\0\0\0aXYde");
    file.set_length(5).unwrap();
    file.set_length(7).unwrap();
    assert_eq!(read(file, 0, 100), b"\0\0\0aX\0\0", "what was cut off is gone");
    file.write_at(&[&[7; 20_000]], 8000).unwrap();
    file.sync().unwrap();
    file.punch(8192, 4096).unwrap();
    file.punch(24_576, 8192).unwrap();
    assert_eq!(file.length().unwrap(), 28_000, "a punch leaves the length");
    file.allocate(0, 40_000).unwrap();
    assert_eq!(file.length().unwrap(), 28_000, "room leaves the length");
    let bytes = read(file, 0, 30_000);
    assert!(bytes[8000..8192].iter().all(|byte| *byte == 7));
    assert!(bytes[8192..12_288].iter().all(|byte| *byte == 0));
    assert!(bytes[12_288..24_576].iter().all(|byte| *byte == 7));
    assert!(bytes[24_576..].iter().all(|byte| *byte == 0));
}

fn names_conform(storage: &dyn Storage, file: &dyn StorageFile) {
    file.set_length(0).unwrap();
    file.write_at(&[b"1"], 0).unwrap();
    let again = storage.open("a/b/f", true).unwrap();
    assert_eq!(read(&*again, 0, 9), b"1", "create opens a file that exists");
    again.write_at(&[b"2"], 1).unwrap();
    assert_eq!(read(file, 0, 9), b"12", "both handles are of the same file");
    storage.open("a/b/g", true).unwrap();
    storage.sync_directory("a/b").unwrap();
    let mut names = storage.list("a/b").unwrap();
    names.sort();
    assert_eq!(names, ["f", "g"]);
    storage.remove("a/b/f").unwrap();
    storage.remove("a/b/f").unwrap();
    assert_eq!(storage.list("a/b").unwrap(), ["g"]);
    assert_eq!(read(file, 0, 9), b"12", "a handle of a removed file stays usable");
    assert_eq!(storage.open("a/b/f", true).unwrap().length().unwrap(), 0, "a name used again is another file");
    assert_eq!(storage.open("a/b/none", false).err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn real_storage_conforms() {
    let directory = std::env::temp_dir().join(format!("hekate-storage-conforms-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    conforms(&RealStorage::new(&directory));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn memory_storage_conforms() {
    conforms(&MemoryStorage::new());
}

#[test]
fn power_cut_storage_conforms() {
    conforms(&PowerCutStorage::new());
}

#[test]
fn faulty_storage_without_faults_conforms() {
    conforms(&FaultyStorage::new(MemoryStorage::new()));
}

/// A file `d/f` with two blocks of 1; content and name are synced.
fn synced_file() -> (PowerCutStorage, Arc<dyn StorageFile>) {
    let storage = PowerCutStorage::new();
    storage.create_directory("d").unwrap();
    let file = storage.open("d/f", true).unwrap();
    file.write_at(&[&[1; 8192]], 0).unwrap();
    file.sync().unwrap();
    storage.sync_directory("d").unwrap();
    (storage, file)
}

fn content(storage: &PowerCutStorage) -> Vec<u8> {
    read(&*storage.open("d/f", false).unwrap(), 0, 1 << 20)
}

#[test]
fn a_power_cut_takes_any_part_of_what_is_unsynced_by_sectors() {
    let (storage, file) = synced_file();
    assert!(storage.unsynced().is_empty());
    file.write_at(&[&[2; 4096]], 0).unwrap();
    file.write_at(&[&[3; 600]], 100).unwrap();
    file.punch(4096, 4096).unwrap();
    let calls = storage.unsynced();
    assert_eq!(calls.len(), 3);
    assert_eq!(content(&storage.after_power_cut(Survivors::Nothing)), [1; 8192]);
    assert_eq!(content(&storage.after_power_cut(Survivors::Everything)), content(&storage));
    let only = content(&storage.after_power_cut(Survivors::Only(calls[1])));
    assert!(only[..100] == [2; 100] && only[100..700] == [3; 600] && only[700..1024] == [2; 324], "whole sectors");
    assert!(only[1024..] == [1; 7168]);
    let all_but = content(&storage.after_power_cut(Survivors::AllBut(calls[2])));
    assert!(all_but[1024..4096] == [2; 3072] && all_but[4096..] == [1; 4096]);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let cut = content(&storage.after_power_cut(Survivors::Seeded(seed)));
        assert!(cut[4096..].chunks(512).all(|sector| sector == [0; 512] || sector == [1; 512]));
        assert!(cut[1024..4096].chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
        seen.insert(cut);
    }
    assert!(seen.len() > 30, "{} of many", seen.len());
    assert_eq!(content(&storage.after_power_cut(Survivors::Seeded(5))), {
        content(&storage.after_power_cut(Survivors::Seeded(5)))
    });
}

#[test]
fn a_power_cut_leaves_any_length_that_the_file_had() {
    let (storage, file) = synced_file();
    file.set_length(100).unwrap();
    file.set_length(20_000).unwrap();
    let lengths: std::collections::BTreeSet<usize> =
        (0..200).map(|seed| content(&storage.after_power_cut(Survivors::Seeded(seed))).len()).collect();
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [100, 8192, 20_000]);
    let all = content(&storage.after_power_cut(Survivors::Everything));
    assert!(all[..100] == [1; 100] && all[100..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_power_cut_takes_names_that_no_directory_sync_covered() {
    let (storage, _) = synced_file();
    let new = storage.open("d/new", true).unwrap();
    new.write_at(&[b"content"], 0).unwrap();
    new.sync().unwrap();
    storage.remove("d/f").unwrap();
    assert_eq!(storage.after_power_cut(Survivors::Nothing).paths(), ["d/f"], "synced content under no name");
    assert_eq!(storage.after_power_cut(Survivors::Everything).paths(), ["d/new"]);
    let seen: std::collections::BTreeSet<_> =
        (0..100).map(|seed| storage.after_power_cut(Survivors::Seeded(seed)).paths()).collect();
    assert_eq!(seen.len(), 4);
    storage.sync_directory("d").unwrap();
    assert_eq!(storage.after_power_cut(Survivors::Nothing).paths(), ["d/new"]);
}

#[test]
fn a_recording_gives_the_disk_at_each_call() {
    let (storage, file) = synced_file();
    storage.record();
    for fill in 2..10 {
        file.write_at(&[&[fill; 8192]], 0).unwrap();
    }
    file.sync().unwrap();
    let recording = storage.take_recording();
    assert_eq!(recording.len(), 9);
    let mut cuts = recording.cuts();
    let mut last = Vec::new();
    loop {
        last.push(content(&cuts.cut(Survivors::Everything))[0]);
        let durable = content(&cuts.cut(Survivors::Nothing))[0];
        assert_eq!(durable, if cuts.was_sync() { 9 } else { 1 });
        if !cuts.step() {
            break;
        }
    }
    assert_eq!(last, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]);
}

#[test]
fn a_killed_process_changes_nothing_any_more() {
    let (storage, file) = synced_file();
    storage.die_after(1);
    file.write_at(&[b"x"], 0).unwrap();
    assert!(storage.is_dead());
    assert!(file.write_at(&[b"y"], 0).is_err() && file.sync().is_err() && file.length().is_err());
    let next = storage.next_process();
    assert_eq!(content(&next)[..2], [b'x', 1]);
    assert!(file.write_at(&[b"y"], 0).is_err() && !next.is_dead() && storage.is_dead());
    let copy = next.copy();
    next.open("d/f", false).unwrap().write_at(&[b"z"], 0).unwrap();
    assert_eq!((content(&copy)[0], content(&next)[0]), (b'x', b'z'));
}

#[test]
fn wild_offsets_are_errors() {
    let (_, file) = synced_file();
    assert!(file.write_at(&[b"x"], u64::MAX).is_err());
    assert!(file.set_length(u64::MAX).is_err());
    assert_eq!(file.read_at(&mut [0; 9], u64::MAX).unwrap(), 0);
    file.punch(u64::MAX, u64::MAX).unwrap();
    file.punch(9000, 1).unwrap();
}

#[test]
fn the_call_that_is_to_fail_fails_and_a_second_sync_is_reported() {
    let storage = FaultyStorage::new(MemoryStorage::new());
    let file = storage.open("f", true).unwrap();
    storage.fail(Fault { kind: Some(CallKind::Write), after: 1, error: FaultError::ShortWrite, forever: false });
    file.write_at(&[b"ab"], 0).unwrap();
    file.sync().unwrap();
    assert_eq!(file.write_at(&[b"cd", b"ef"], 2).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(read(&*file, 0, 9), b"abcd", "half of it");
    file.write_at(&[b"gh"], 2).unwrap();
    assert_eq!(storage.calls(CallKind::Write), 3);
    assert_eq!(storage.changes(), 5);
    storage.fail(Fault { kind: None, after: 0, error: FaultError::Io, forever: true });
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
    assert!(storage.retried_syncs().is_empty());
    assert!(storage.remove("f").is_err() && storage.open("f", false).is_ok(), "reads go on");
    storage.heal();
    file.sync().unwrap();
    assert_eq!((storage.failed_syncs(), storage.retried_syncs()), (vec!["f".to_string()], vec!["f".to_string()]));
    assert_eq!(storage.struck().as_deref(), Some("Write of f"));
}
