//! Records of the journal for a replica that lacks them, also of a journal with damage.

use super::support::*;
use crate::journal::format::RECORD_HEADER_BYTES;
use crate::storage::{CallKind, Fault, FaultError, FaultyStorage, MemoryStorage, Storage};
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use std::sync::Arc;

#[test]
fn records_for_a_replica_that_lacks_them_come_from_the_journal() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for name in ["a", "b", "c"] {
        put(&brick, name, "1");
    }
    assert_eq!(sequences(&brick, 1), [2, 3]);
}

/// A damaged record in a part of the journal that a checkpoint covers hides itself and the records in front of it, not
/// those behind it.
#[test]
fn records_behind_a_damaged_one_can_be_read() {
    // Damage in the body, and in the header, which says where the next record begins.
    for (byte, next) in [(RECORD_HEADER_BYTES + 3, 3), (9, 5)] {
        let storage = new_storage();
        let (brick, _) = open(&storage, false);
        brick.retain_from(Lsn(0));
        let first = put(&brick, "1", "x").0;
        for name in ["2", "3", "4"] {
            put(&brick, name, "x");
        }
        brick.checkpoint().unwrap();
        storage.flip_bit("journal/segment-001", first as usize - (256 << 10) + byte);
        drop(brick);
        let (brick, _) = open(&storage, false);
        brick.retain_from(Lsn(0));
        for name in ["5", "6"] {
            put(&brick, name, "x");
        }
        drop(brick);
        let (brick, _) = open(&storage, false);
        brick.retain_from(Lsn(0));
        put(&brick, "7", "x");
        brick.checkpoint().unwrap();
        assert_eq!(sequences(&brick, next - 1), (next..=7).collect::<Vec<_>>(), "byte {byte}");
        let hidden = brick.records_since(RING, PARTITION, Sequence(next - 2)).unwrap();
        assert!(matches!(hidden, Since::Hidden(place) if place.starts_with("journal/segment-001 at offset 4")));
    }
}

/// Fast writes are in no log and have no number.
#[test]
fn fast_writes_between_records_hide_none() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    put(&brick, "a", "1");
    let (record, run, bytes) = blocks(0, 7, 1, 1);
    let changes = vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }];
    let (session, op_id, sequence, epoch) = (SessionId(1), OpId(1), Sequence(0), Epoch(1));
    let fast = Record { ring: RING, partition: PARTITION, epoch, sequence, session, op_id, changes };
    brick.append(&LogEntry::new(fast)).unwrap();
    put(&brick, "b", "1");
    assert_eq!(sequences(&brick, 0), [1, 2]);
}

/// An open brick finds damage in a header that it has just written, and so does not know where the next record begins:
/// appends continue in the next segment.
#[test]
fn records_appended_after_damage_was_found_can_be_read() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    brick.retain_from(Lsn(0));
    put(&brick, "1", "x");
    let second = brick.end().0;
    put(&brick, "2", "x");
    put(&brick, "3", "x");
    storage.flip_bit("journal/segment-001", second as usize - (256 << 10) + 9);
    assert!(matches!(brick.records_since(RING, PARTITION, Sequence(0)), Ok(Since::Hidden(_))));
    put(&brick, "4", "x");
    put(&brick, "5", "x");
    assert_eq!((sequences(&brick, 3), brick.end().0 >> 18), (vec![4, 5], 2));
    drop(brick);
    let (brick, _) = open(&storage, false);
    assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(1), "not covered by a checkpoint, and not synced");
}

#[test]
fn released_records_are_distinguished_from_damaged_ones() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for sequence in 0..12 {
        // Four fill a segment.
        append(&brick, vec![Change::Put { key: key("a"), value: Bytes::from(vec![7; 60_000]) }]);
        if sequence % 4 == 3 {
            brick.checkpoint().unwrap();
        }
    }
    let begins = (0..12).find(|after| !sequences(&brick, *after).is_empty()).unwrap();
    assert!(begins > 1);
    let since = |after: u64| brick.records_since(RING, PARTITION, Sequence(after)).unwrap();
    assert!(matches!(since(begins - 1), Since::GivenBack));
    let segment = brick.kept_journal().remove(0).0;
    storage.flip_bit(&segment, (4096 + 2 * 60_500) as usize);
    assert!(matches!(since(begins - 1), Since::GivenBack), "its first record says so");
    assert!(matches!(since(begins), Since::Hidden(_)));
}

/// A sector that the disk cannot read is damage, as flipped bits are: it stops no reader of records, and no opening
/// that does not need it.
#[test]
fn an_unreadable_sector_hides_records_and_stops_no_brick() {
    let storage = FaultyStorage::new(new_storage());
    let open = || Brick::open_on(Arc::new(storage.clone()), &identity(), Incarnation(1), false);
    let (brick, _) = open().unwrap();
    brick.retain_from(Lsn(0));
    for name in ["1", "2", "3"] {
        put(&brick, name, "x");
    }
    let fail = |after| storage.fail(Fault { kind: Some(CallKind::Read), after, error: FaultError::Io, forever: false });
    let reads = |act: &dyn Fn()| {
        let before = storage.calls(CallKind::Read);
        act();
        0..storage.calls(CallKind::Read) - before
    };
    for after in reads(&|| drop(sequences(&brick, 0))) {
        fail(after);
        let found = brick.records_since(RING, PARTITION, Sequence(0)).unwrap();
        assert!(
            matches!(found, Since::Hidden(place) if place.starts_with("journal/segment-001 at offset ")),
            "{after}"
        );
    }
    // An error that is no damage is returned.
    storage.fail(Fault { kind: Some(CallKind::Read), after: 1, error: FaultError::NoSpace, forever: false });
    assert!(matches!(brick.records_since(RING, PARTITION, Sequence(0)), Err(Error::Unavailable { .. })));
    storage.heal();
    assert_eq!(sequences(&brick, 0), [1, 2, 3]);
    brick.checkpoint().unwrap();
    drop(brick);
    let mut opened = 0;
    for after in reads(&|| drop(open().unwrap())) {
        fail(after);
        match open() {
            Ok((brick, _)) => {
                opened += 1;
                assert_eq!(brick.position(RING, PARTITION).sequence, Sequence(3), "{after}");
            }
            Err(error) => assert!(error.to_string().contains("Input/output error"), "{after}: {error}"),
        }
        storage.heal();
    }
    // The openings that fail read a record that recovery needs, or a segment behind the log's end.
    assert!(opened >= 5, "{opened}");
}

/// Appends records of which four fill a segment.
fn append_large(brick: &Brick, count: u64) {
    let key = Key::partition(RING, PARTITION.first_position(1));
    for sequence in 1..=count {
        append(brick, vec![Change::Put { key: key.clone(), value: Bytes::from(vec![sequence as u8; 60 << 10]) }]);
    }
}

/// Another replica may lack records that a checkpoint has covered.
#[test]
fn a_retained_journal_outlives_its_process() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    brick.retain_from(Lsn(0));
    append_large(&brick, 10);
    brick.checkpoint().unwrap();
    drop(brick);
    let (brick, report) = open(&storage, false);
    assert_eq!((report.records, sequences(&brick, 0)), (0, (1..=10).collect()));
}

/// A power cut may leave the header of a segment's earlier use in front of a record of its later use.
#[test]
fn records_behind_a_segment_with_parts_of_two_uses_are_found() {
    let storage = MemoryStorage::new();
    Brick::create_on(&storage, &identity()).unwrap();
    let brick = Brick::open_on(Arc::new(storage.clone()), &identity(), Incarnation(1), false).unwrap().0;
    brick.retain_from(Lsn(0));
    append_large(&brick, 10);
    assert_eq!(sequences(&brick, 0), (1..=10).collect::<Vec<_>>());
    let earlier = brick.earlier_ends(100 << 10).unwrap();
    let marked: Vec<u64> = earlier.iter().map(|(_, ends)| ends[0].2.sequence.0).collect();
    assert_eq!(marked, [2, 4, 6, 8, 10], "each some two records on");
    assert_eq!(earlier.last().map(|(upto, ends)| (*upto, ends.clone())), Some(brick.ends()));
    // Four records fill a segment. The second one of the first segment is overwritten.
    let first = storage.open("journal/segment-001", false).unwrap();
    first.write_at(&[&[0xab; 4096]], 80 << 10).unwrap();
    let hidden = |after: u64| matches!(brick.records_since(RING, PARTITION, Sequence(after)), Ok(Since::Hidden(_)));
    assert_eq!(sequences(&brick, 2), (3..=10).collect::<Vec<_>>());
    assert!(hidden(1) && hidden(0), "nothing before a gap");
    // Its header is overwritten too, so that the place of the third one is unknown.
    first.write_at(&[&[0xab; 32 << 10]], 48 << 10).unwrap();
    assert_eq!(sequences(&brick, 4), (5..=10).collect::<Vec<_>>());
    assert!(hidden(3));
    assert_eq!(sequences(&brick, 6), (7..=10).collect::<Vec<_>>());
}
