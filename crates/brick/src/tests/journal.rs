//! Where the log ends, and where it does not: the rules of `docs/format/journal.md`.

use super::support::{identity_with, new_storage_with};
use crate::journal::format::{EntryKind, RECORD_HEADER_BYTES, RecordHeader, SegmentHeader};
use crate::journal::{Geometry, Lsn};
use crate::storage::{MemoryStorage, Storage};
use crate::{Brick, LogEntry, RecoveryReport};
use bytes::Bytes;
use hekate_proto::*;
use std::sync::Arc;

const SEGMENT: u64 = 64 << 10;
const GEOMETRY: Geometry = Geometry { brick: BrickId(7), segments: 4, segment_bytes: SEGMENT };

fn new() -> (MemoryStorage, Brick) {
    let storage = new_storage_with(SEGMENT);
    let brick = open(&storage).unwrap().0;
    (storage, brick)
}

fn open(storage: &MemoryStorage) -> Result<(Brick, RecoveryReport)> {
    Brick::open_on(Arc::new(storage.clone()), &identity_with(SEGMENT), Incarnation(1), true)
}

fn key(number: u64) -> Key {
    let place = KeyPrefix { ring: RingId(1), position: Position(0), volume: VolumeId(1) };
    Key::name(place, ROOT, format!("{number:04}").as_bytes())
}

fn record(sequence: u64, value_bytes: usize) -> Record {
    let changes = vec![Change::Put { key: key(sequence), value: Bytes::from(vec![1; value_bytes]) }];
    let (ring, partition, epoch) = (RingId(1), PartitionNumber(0), Epoch(1));
    Record { ring, partition, epoch, sequence: Sequence(sequence), session: SessionId(1), op_id: OpId(1), changes }
}

/// Appends a record with a value of this length. Returns the position of the record.
fn append(brick: &Brick, value_bytes: usize) -> Lsn {
    let sequence = brick.position(RingId(1), PartitionNumber(0)).sequence.0 + 1;
    let entry = LogEntry::new(record(sequence, value_bytes));
    let end = brick.append(&entry).unwrap();
    Lsn(end.0 - (RECORD_HEADER_BYTES + entry.body.len()) as u64)
}

/// Bytes of a record without its value.
fn overhead() -> usize {
    RECORD_HEADER_BYTES + LogEntry::new(record(1, 0)).body.len()
}

fn names(brick: &Brick) -> usize {
    brick.scan(&key(0), &key(9999), 9999).unwrap().len()
}

fn damage(storage: &MemoryStorage, at: Lsn) {
    storage.flip_bit(&GEOMETRY.path_of(GEOMETRY.number_of(at)), GEOMETRY.offset_of(at) as usize);
}

fn write(storage: &MemoryStorage, path: &str, bytes: &[u8], offset: u64) {
    storage.open(path, false).unwrap().write_at(&[bytes], offset).unwrap();
}

#[test]
fn a_segment_may_be_full_to_its_last_byte() {
    let (storage, brick) = new();
    let start = GEOMETRY.offset_of(brick.end()) as usize;
    // The record, and the end record behind it, which ends where the segment does.
    let first = append(&brick, SEGMENT as usize - start - overhead() - RECORD_HEADER_BYTES);
    let second = append(&brick, 10);
    assert_eq!((GEOMETRY.number_of(first), second), (1, GEOMETRY.start_of(2)));
    append(&brick, SEGMENT as usize - 4096 - 3 * overhead());
    append(&brick, 10);
    assert_eq!(GEOMETRY.number_of(brick.end()), 3, "one byte too many goes to the next segment");
    drop(brick);
    assert_eq!(names(&open(&storage).unwrap().0), 4);
}

#[test]
fn a_record_that_no_segment_takes_is_refused_and_stops_nothing() {
    let (storage, brick) = new();
    let most = SEGMENT as usize - 4096 - overhead() - RECORD_HEADER_BYTES;
    let refused = brick.append(&LogEntry::new(record(1, most + 1)));
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    append(&brick, most);
    drop(brick);
    assert_eq!(names(&open(&storage).unwrap().0), 1);
}

#[test]
fn the_status_says_how_full_the_journal_is() {
    let (_, brick) = new();
    append(&brick, 30_000);
    let bytes = 4096 + 30_000 + overhead() as u64;
    assert_eq!(brick.status().unwrap().journal, (bytes, 4 * SEGMENT));
}

#[test]
fn a_later_record_proves_damage_from_any_segment() {
    let (storage, brick) = new();
    append(&brick, 30_000);
    let damaged = append(&brick, 10);
    // One more in segment 1, three each in 2 and 3, one in 4, with headers that say that nothing was stable; the last
    // one says that all was.
    (0..8).for_each(|_| _ = append(&brick, 20_000));
    brick.sync(brick.end()).unwrap();
    let last = append(&brick, 20_000);
    assert!(GEOMETRY.number_of(last) == 4 && GEOMETRY.offset_of(last) < GEOMETRY.offset_of(damaged));
    drop(brick);
    let whole = storage.copy();
    assert!(open(&whole).is_ok());
    damage(&storage, damaged);
    let refused = open(&storage).err().unwrap().to_string();
    let offset = GEOMETRY.offset_of(damaged);
    assert!(refused.contains(&format!("journal/segment-001 at offset {offset}")), "{refused}");
    assert!(refused.contains(&format!("goes on at {}", last.0)), "{refused}");
}

#[test]
fn segments_of_another_brick_or_size_are_damage_and_of_another_number_the_end() {
    let header = |brick, number, segment_bytes| SegmentHeader { brick, number, segment_bytes }.encode();
    for (header, outcome) in [
        (header(GEOMETRY.brick, 2, SEGMENT * 2), Err("segments of 131072 bytes, brick.toml says 65536")),
        (header(BrickId(8), 2, SEGMENT), Err("belongs to brick")),
        // The segment was begun, and its header did not reach the disk: the file has the header of an earlier use, or
        // none.
        (header(GEOMETRY.brick, 6, SEGMENT), Ok(1)),
        (vec![0; 64], Ok(1)),
        (header(GEOMETRY.brick, 2, SEGMENT), Ok(2)),
    ] {
        let (storage, brick) = new();
        append(&brick, 40_000);
        append(&brick, 40_000);
        drop(brick);
        write(&storage, "journal/segment-002", &header, 0);
        match (open(&storage), outcome) {
            (Ok((brick, report)), Ok(count)) => {
                assert_eq!(names(&brick), count);
                let not_begun = Some("the segment that it leads to was not begun").filter(|_| count == 1);
                assert_eq!(report.torn.map(|torn| torn.why), not_begun);
            }
            (Err(error), Err(words)) => {
                assert!(matches!(&error, Error::Damaged { what } if what.contains(words)), "{error}, not {words}");
            }
            (opened, _) => panic!("{outcome:?}: {:?}", opened.map(|(brick, _)| names(&brick))),
        }
    }
}

#[test]
fn a_record_longer_than_its_segment_ends_the_log() {
    for (body_bytes, is_there) in [(SEGMENT as u32, false), (u32::MAX, false), (10, false)] {
        let (storage, brick) = new();
        let lsn = brick.end();
        drop(brick);
        let (kind, stable) = (EntryKind::Change, Lsn(0));
        let header = RecordHeader { kind, body_bytes, body_checksum: 1, lsn, stable, generation: 1 };
        write(&storage, "journal/segment-001", &header.encode(), GEOMETRY.offset_of(lsn));
        let (brick, report) = open(&storage).unwrap();
        assert_eq!((names(&brick) > 0, report.end), (is_there, lsn), "{body_bytes}");
        assert!(report.torn.is_some());
    }
}

#[test]
fn only_records_of_the_last_generation_follow_where_it_resumed() {
    for (generation, outcome) in [(0, Some(0)), (1, Some(1)), (2, None), (3, None)] {
        let (storage, brick) = new();
        let lsn = brick.end();
        drop(brick);
        let body = record(1, 5).to_bytes();
        let (kind, body_bytes, stable) = (EntryKind::Change, body.len() as u32, Lsn(0));
        let header = RecordHeader { kind, body_bytes, body_checksum: crc32c::crc32c(&body), lsn, stable, generation };
        write(&storage, "journal/segment-001", &[&header.encode()[..], &body].concat(), GEOMETRY.offset_of(lsn));
        // This is the second opening.
        let opened = open(&storage);
        assert_eq!(opened.ok().map(|(brick, _)| names(&brick)), outcome, "generation {generation}");
    }
}

#[test]
fn all_segments_but_those_that_a_checkpoint_needs_are_used_again() {
    let (storage, brick) = new();
    for _ in 0..40 {
        append(&brick, 30_000);
        if brick.wants_checkpoint() {
            brick.checkpoint().unwrap();
        }
    }
    assert!(GEOMETRY.number_of(brick.end()) > 15);
    let numbers = |storage: &MemoryStorage| -> Vec<u64> {
        let number = |slot: u64| {
            let mut header = [0; 64];
            storage.open(&GEOMETRY.path_of(slot), false).unwrap().read_at(&mut header, 0).unwrap();
            SegmentHeader::decode(&header).unwrap().number
        };
        (0..4).map(number).collect()
    };
    let mut sorted = numbers(&storage);
    sorted.sort();
    let last = GEOMETRY.number_of(brick.end());
    assert_eq!(sorted, (last - 3..=last).collect::<Vec<_>>());
    drop(brick);
    assert_eq!(names(&open(&storage).unwrap().0), 40);
}
