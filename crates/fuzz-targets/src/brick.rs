//! Targets of a brick: the bookkeeping that a checkpoint leaves, and records appended to an open brick.

use crate::allocation::bounded;
use crate::generate::{Source, one_of_each};
use crate::mutate::Random;
use crate::values::{encoded, value};
use bytes::Bytes;
use hekate_brick::fuzz::{Meta, PartitionLog, decode_group, encode_group};
use hekate_brick::storage::{MemoryStorage, Storage};
use hekate_brick::{Brick, BrickSettings, Identity, LogEntry};
use hekate_proto::*;
use std::sync::{Arc, OnceLock};

/// Segment size of the bricks in these targets, in bytes: the smallest allowed, so that logs span several segments.
pub const SEGMENT_BYTES: u64 = 64 << 10;
/// Segments of their journals.
pub const SEGMENTS: u64 = 4;
/// Their id.
pub const BRICK: BrickId = BrickId(0x0011_2233);
/// Memory that a run may take besides its records, in bytes: the brick, its index, and files of up to 4 MiB, each twice
/// (current and as last synced).
pub const BRICK_BYTES: usize = 96 << 20;

const CACHE_BYTES: usize = 1 << 20;
/// Records appended in one run.
const RECORDS_MAX: usize = 12;

pub fn meta(bytes: &[u8]) {
    value::<Meta>(bytes);
}

pub fn meta_seeds() -> Vec<Vec<u8>> {
    let log = |n| PartitionLog {
        ring: RingId(1),
        partition: PartitionNumber(n),
        epoch: Epoch(2),
        sequence: Sequence(u64::from(n) * 100),
    };
    encoded([
        Meta { applied: SEGMENT_BYTES + 4096, generation: 1, resumed: SEGMENT_BYTES + 4096, logs: Vec::new() },
        Meta {
            applied: 5 * SEGMENT_BYTES + 9000,
            generation: 7,
            resumed: 5 * SEGMENT_BYTES + 7000,
            logs: (0..3).map(log).collect(),
        },
    ])
}

pub fn checksum_group(bytes: &[u8]) {
    if let Ok(group) = bounded(bytes.len(), 1 << 10, || decode_group(bytes)) {
        assert_eq!(encode_group(&group), bytes);
    }
}

pub fn checksum_group_seeds() -> Vec<Vec<u8>> {
    vec![(0..=255).collect(), vec![0; 256]]
}

/// Records as replicas make them (`docs/format/journal.md`).
pub fn own_records(bytes: &[u8]) {
    append_all(bytes, true);
}

/// Any records that can be encoded.
pub fn any_records(bytes: &[u8]) {
    append_all(bytes, false);
}

pub fn record_seeds() -> Vec<Vec<u8>> {
    let random = |seed| {
        let mut random = Random::new(seed);
        (0..120).map(|_| random.bits() as u8 >> random.below(7)).collect()
    };
    (0..12).map(random).collect()
}

/// The storage of a new, empty brick.
pub fn new_brick() -> MemoryStorage {
    static MADE: OnceLock<MemoryStorage> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let storage = MemoryStorage::new();
        Brick::create_on(&storage, &identity()).unwrap();
        let paths = storage.paths();
        paths.iter().for_each(|path| storage.open(path, false).unwrap().sync().unwrap());
        storage
    });
    made.after_power_cut()
}

fn identity() -> Identity {
    let settings = BrickSettings {
        journal_segments: SEGMENTS,
        segment_bytes: SEGMENT_BYTES,
        index_cache_bytes: CACHE_BYTES,
        reserve_bytes: 0,
    };
    Identity::new(BRICK, "00112233445566778899aabbccddeeff", settings)
}

/// Opens the brick in `storage`.
///
/// # Errors
///
/// The brick refuses to open.
pub fn open(storage: &MemoryStorage, reborn: bool) -> Result<Brick> {
    Ok(Brick::open_on(Arc::new(storage.clone()), &identity(), Incarnation(1), reborn)?.0)
}

/// All entries: those of the index and those of the overlay above it.
pub fn entries(brick: &Brick) -> Vec<(Key, Bytes)> {
    let end = Key::from_bytes(Bytes::from_static(&[u8::MAX; 64]));
    brick.scan(&Key::from_bytes(Bytes::new()), &end, usize::MAX).unwrap()
}

/// Appends generated records. A record may be refused; the brick must keep working, and hold the same entries after it
/// was reopened.
fn append_all(bytes: &[u8], own: bool) {
    bounded(bytes.len(), BRICK_BYTES, || {
        let mut source = Source::new(bytes);
        let storage = new_brick();
        let brick = open(&storage, false).unwrap();
        let restarts = source.byte();
        for _ in 0..RECORDS_MAX {
            if source.is_empty() {
                break;
            }
            let record = source.record(own);
            let _ = append(&brick, record);
        }
        brick.sync(brick.end()).unwrap();
        if restarts.is_multiple_of(2) {
            brick.checkpoint().unwrap();
        }
        let (before, end) = (entries(&brick), brick.end());
        drop(brick);
        let reborn = restarts % 4 >= 2;
        let left = if reborn { storage.after_power_cut() } else { storage };
        let brick = open(&left, reborn).unwrap();
        // A reopened brick continues at the same end of the log with the same entries.
        assert_eq!((brick.end(), entries(&brick)), (end, before));
        brick.checkpoint().unwrap();
    });
}

/// Numbers the record, makes room in the journal and appends it.
///
/// # Errors
///
/// The brick refuses the record, or has failed.
pub fn append(brick: &Brick, mut record: Record) -> Result<()> {
    if brick.wants_checkpoint() || brick.awaits_removal(&record.changes) {
        brick.checkpoint().unwrap();
    }
    let at = brick.position(record.ring, record.partition);
    record.sequence = Sequence(at.sequence.0.saturating_add(1));
    record.epoch = at.epoch;
    brick.append(&LogEntry::new(record)).map(|_| ())
}

/// Seeds of the target `mark`.
pub fn mark_seeds() -> Vec<Vec<u8>> {
    encoded(one_of_each::<hekate_brick::fuzz::Mark>(0))
}
