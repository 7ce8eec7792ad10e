//! Where recovery ends the log after a power cut, and which records behind that place it ignores.

use super::support::*;
use crate::journal::format::RECORD_HEADER_BYTES;
use crate::storage::Storage;
use crate::*;
use bytes::Bytes;
use hekate_proto::*;

#[test]
fn a_torn_tail_is_cut_and_reported() {
    let torn_at = |byte: usize| {
        let storage = new_storage();
        let (brick, _) = open(&storage, false);
        let first = put(&brick, "first", "1").0;
        let second = put(&brick, "second", "1").0;
        put(&brick, "third", "1");
        drop(brick);
        // Segment 1 begins at position 256 KiB.
        storage.flip_bit("journal/segment-001", first as usize - (256 << 10) + byte);
        let (brick, report) = open(&storage, true);
        assert_eq!((names(&brick, 9).join(" "), report.records, report.end), ("first".into(), 1, Lsn(first)));
        put(&brick, "again", "1");
        drop(brick);
        let (brick, after) = open(&storage, true);
        assert_eq!((names(&brick, 9).join(" "), after.torn), ("again first".into(), None), "and it takes records");
        let torn = report.torn.unwrap();
        assert_eq!((torn.path.as_str(), torn.offset), ("journal/segment-001", first - (256 << 10)));
        assert!(second > first);
        (torn.why, torn.records_behind)
    };
    let body = "its body does not match its checksum";
    assert_eq!(torn_at(40), (body, 2), "the torn one and the one behind it");
    assert_eq!(torn_at(33), ("its header does not match its checksum", 1));
    assert_eq!(torn_at(0), ("there is no record", 1), "the header with its length is gone");
    let storage = new_storage();
    let (brick, report) = open(&storage, false);
    assert_eq!(report.torn, None, "a new brick");
    put(&brick, "whole", "1");
    drop(brick);
    assert_eq!(open(&storage, true).1.torn, None, "a log that ends where it ends");
}

#[test]
fn a_record_of_an_earlier_generation_behind_the_end_is_neither_replayed_nor_reported() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let first = put(&brick, "first", "1").0;
    put(&brick, "other", "1");
    put(&brick, "third", "1");
    drop(brick);
    storage.flip_bit("journal/segment-001", first as usize - (256 << 10) + RECORD_HEADER_BYTES);
    let (brick, report) = open(&storage, true);
    assert!(report.torn.is_some());
    // The record is as long as the torn one, so that the third record, which is whole, follows it.
    put(&brick, "again", "1");
    drop(brick);
    let (brick, report) = open(&storage, true);
    assert_eq!((names(&brick, 9).join(" "), report.torn), ("again first".into(), None));
}

/// A record that a power cut tore off may lie exactly where the log ends at a later checkpoint.
#[test]
fn a_record_torn_off_by_a_power_cut_is_not_replayed_behind_a_checkpoint() {
    let storage = new_storage();
    let put = |brick: &Brick, name: &str, fill: u8| {
        append(brick, vec![Change::Put { key: key(name), value: Bytes::from(vec![fill; 999]) }])
    };
    let (brick, _) = open(&storage, true);
    let kept = put(&brick, "a", 1);
    brick.sync(kept).unwrap();
    put(&brick, "b", 2);
    put(&brick, "c", 3);
    drop(brick);
    // The power cut loses a part of b; c is on the disk behind it.
    let lost_at = |path: &String| {
        let mut journal = vec![0; 300 << 10];
        let count = storage.open(path, false).unwrap().read_at(&mut journal, 0).unwrap();
        journal[..count].windows(99).position(|bytes| bytes == [2; 99])
    };
    let (path, lost) = storage.paths().into_iter().find_map(|path| Some((path.clone(), lost_at(&path)?))).unwrap();
    storage.flip_bit(&path, lost);
    let (brick, report) = open(&storage, true);
    assert!(report.torn.is_some() && brick.get(&key("b")).unwrap().is_none());
    // d is as long as b: the log continues to where c begins, and a checkpoint ends there.
    let end = put(&brick, "d", 4);
    brick.sync(end).unwrap();
    brick.checkpoint().unwrap();
    drop(brick);
    let (brick, _) = open(&storage, false);
    assert_eq!(brick.get(&key("c")).unwrap(), None, "it was not acknowledged, and the log went on without it");
    assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(2));
}

/// A record that a power cut tore off may lie at the beginning of the segment that the log goes on to.
#[test]
fn a_record_torn_off_by_a_power_cut_is_not_replayed_from_the_next_segment() {
    let storage = new_storage();
    let key = |name: u8| {
        let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
        Key::name(place, ROOT, &[name])
    };
    let put = |brick: &Brick, name: u8| {
        append(brick, vec![Change::Put { key: key(name), value: Bytes::from(vec![name; 60 << 10]) }])
    };
    let (brick, _) = open(&storage, false);
    // Four fill a segment.
    let ends: Vec<Lsn> = (1..=5).map(|name| put(&brick, name)).collect();
    drop(brick);
    let first = storage.open("journal/segment-001", false).unwrap();
    let second = storage.open("journal/segment-002", false).unwrap();
    let mut left = vec![0; 64 << 10];
    second.read_at(&mut left, 4096).unwrap();
    first.write_at(&[&[9]], ends[2].0 % (256 << 10) + 100).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!((report.end, report.torn.unwrap().records_behind), (ends[2], 3), "with the mark of the end");
    put(&brick, 6);
    put(&brick, 7);
    drop(brick);
    // This power cut takes the last record; a record that an earlier one left is in its place.
    second.write_at(&[&left], 4096).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!(report.end, Lsn(2 * (256 << 10) + 4096));
    brick.checkpoint().unwrap();
    drop(brick);
    let (brick, _) = open(&storage, false);
    assert!(brick.get(&key(5)).unwrap().is_none(), "it was not acknowledged, and the log went on without it");
    assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(4));
}

/// A power cut leaves the first half of a record. The next generation writes another record there, which ends with the
/// bytes that were lost, and the next power cut leaves that half alone: both halves match the checksums of a record
/// that was never whole.
#[test]
fn a_record_assembled_by_two_power_cuts_is_not_replayed() {
    let storage = new_storage();
    let name = |letter: &str| {
        let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
        Key::name(place, ROOT, letter.as_bytes())
    };
    let put = |letter| vec![Change::Put { key: name(letter), value: Bytes::from(vec![9; 1500]) }];
    let (brick, _) = open(&storage, false);
    let begin = brick.end();
    let end = append(&brick, put("a"));
    drop(brick);
    let geometry = crate::opening::geometry(&identity()).unwrap();
    let file = storage.open(&geometry.path_of(geometry.number_of(begin)), false).unwrap();
    let (from, to) = (geometry.offset_of(begin), geometry.offset_of(end));
    let half = (from / 512 + 1) * 512;
    let mut first_half = vec![0; (half - from) as usize];
    file.read_at(&mut first_half, from).unwrap();
    file.write_at(&[&vec![0; (to - half) as usize]], half).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!((report.records, report.end), (0, begin));
    append(&brick, put("b"));
    append(&brick, put("c"));
    drop(brick);
    file.write_at(&[&first_half], from).unwrap();
    let (brick, report) = open(&storage, true);
    assert_eq!((report.records, report.end), (0, begin));
    assert!(["a", "b", "c"].into_iter().all(|letter| brick.get(&name(letter)).unwrap().is_none()));
}
