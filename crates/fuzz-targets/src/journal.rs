//! The journal: its headers, and whole journals, opened as a brick opens them.
//!
//! Mutated bytes hardly ever have the right checksums. So a whole journal is built from instructions in the input:
//! append a record, continue in the next segment, damage a byte. `docs/format/journal.md` has the byte maps.

use crate::allocation::bounded;
use crate::brick::{BRICK, BRICK_BYTES, SEGMENT_BYTES, SEGMENTS, append, entries, new_brick, open};
use crate::generate::Source;
use crate::mutate::Random;
use crate::values::value;
use hekate_brick::Lsn;
use hekate_brick::fuzz::{EntryKind, Mark, RecordHeader, SegmentHeader};
use hekate_brick::storage::{MemoryStorage, Storage};
use hekate_proto::*;

const SEGMENT_HEADER_BYTES: u64 = 4096;
const RECORD_HEADER_BYTES: u64 = 40;
const END: u32 = 3;

pub fn segment_header(bytes: &[u8]) {
    if let Ok(header) = bounded(bytes.len(), 1 << 10, || SegmentHeader::decode(bytes)) {
        let again = header.encode();
        assert_eq!(again, bytes[..again.len()]);
    }
}

pub fn segment_header_seeds() -> Vec<Vec<u8>> {
    let header = |number| SegmentHeader { brick: BRICK, number, segment_bytes: SEGMENT_BYTES }.encode();
    vec![header(1), header(u64::MAX)]
}

pub fn record_header(bytes: &[u8]) {
    if let Ok(header) = bounded(bytes.len(), 1 << 10, || RecordHeader::decode(bytes)) {
        let again = header.encode();
        assert_eq!(again, bytes[..again.len()]);
    }
}

pub fn record_header_seeds() -> Vec<Vec<u8>> {
    let header = |kind, body_bytes| RecordHeader {
        kind,
        body_bytes,
        body_checksum: 7,
        lsn: Lsn(SEGMENT_BYTES + 4096),
        stable: Lsn(SEGMENT_BYTES + 4096),
        generation: 1,
    };
    let kinds = [(EntryKind::Change, 100), (EntryKind::Mark, u32::MAX), (EntryKind::End, 0)];
    kinds.iter().map(|(kind, bytes)| header(*kind, *bytes).encode().to_vec()).collect()
}

pub fn mark(bytes: &[u8]) {
    value::<Mark>(bytes);
}

pub fn mark_seeds() -> Vec<Vec<u8>> {
    crate::brick::mark_seeds()
}

/// Records as replicas make them.
pub fn of_own_records(bytes: &[u8]) {
    open_journal(bytes, true);
}

/// Records with any body.
pub fn of_any_records(bytes: &[u8]) {
    open_journal(bytes, false);
}

pub fn journal_seeds() -> Vec<Vec<u8>> {
    let random = |seed: u64| {
        let mut random = Random::new(100 + seed);
        (0..200).map(|_| random.bits() as u8 >> random.below(7)).collect()
    };
    (0..12).map(random).collect()
}

/// Opening the journal yields a brick that works, or reports damage.
fn open_journal(bytes: &[u8], own: bool) {
    bounded(bytes.len(), BRICK_BYTES, || {
        let mut source = Source::new(bytes);
        let reborn = source.byte().is_multiple_of(2);
        let storage = new_brick();
        write_journal(&storage, &mut source, own);
        let brick = match open(&storage, reborn) {
            Ok(brick) => brick,
            Err(Error::Damaged { .. }) => return,
            Err(other) => panic!("opening a journal fails with {other:?}; it may only succeed or report damage"),
        };
        let record = Source::new(&[]).record(true);
        append(&brick, record).unwrap();
        brick.sync(brick.end()).unwrap();
        let before = entries(&brick);
        drop(brick);
        let brick = open(&storage, false).unwrap();
        assert_eq!(entries(&brick), before);
        brick.checkpoint().unwrap();
    });
}

/// A journal that is being built; it knows where the next record goes.
struct Log<'a> {
    storage: &'a MemoryStorage,
    end: u64,
    stable: u64,
    generation: u32,
    sequence: u64,
}

fn write_journal(storage: &MemoryStorage, source: &mut Source<'_>, own: bool) {
    let start = SEGMENT_BYTES + SEGMENT_HEADER_BYTES;
    let mut log = Log { storage, end: start, stable: start, generation: 1, sequence: 0 };
    while !source.is_empty() && log.end < (1 + SEGMENTS) * SEGMENT_BYTES {
        match source.byte() % 12 {
            0..=4 => log.change(source, own),
            5 => log.mark(source),
            6 => log.next_segment(),
            7 => log.stable = log.end,
            8 => log.damage(source),
            9 if !own => {
                let count = usize::from(source.byte());
                let (kind, body) = (u32::from(source.byte() % 5), source.take(count).to_vec());
                log.append(kind, &body);
            }
            10 if !own => log.stable = source.number(),
            11 if !own => log.generation = source.number() as u32,
            // A generation that an earlier opening left behind the log's end.
            _ => log.generation = u32::from(!source.byte().is_multiple_of(4)),
        }
    }
}

impl Log<'_> {
    fn change(&mut self, source: &mut Source<'_>, own: bool) {
        let mut record = source.record(own);
        // One partition, so that sequence numbers have no gaps.
        self.sequence += 1;
        (record.partition, record.sequence) = (PartitionNumber(0), Sequence(self.sequence));
        self.append(1, &record.to_bytes());
    }

    fn mark(&mut self, source: &mut Source<'_>) {
        let shard = ShardId { volume: VolumeId(1), data: DataId(source.number().into()), index: source.number() };
        let stamp = Stamp { count: source.number(), session: SessionId(1), op: OpId(source.number()) };
        self.append(2, &Mark { shards: vec![(shard, stamp)] }.to_bytes());
    }

    fn append(&mut self, kind: u32, body: &[u8]) {
        let needed = 2 * RECORD_HEADER_BYTES + body.len() as u64;
        if needed > SEGMENT_BYTES - SEGMENT_HEADER_BYTES {
            return;
        }
        if self.end % SEGMENT_BYTES + needed > SEGMENT_BYTES {
            self.next_segment();
        }
        self.write(kind, body);
    }

    fn write(&mut self, kind: u32, body: &[u8]) {
        let mut header = b"HKJR".to_vec();
        (body.len() as u32).put(&mut header);
        self.end.put(&mut header);
        self.stable.put(&mut header);
        self.generation.put(&mut header);
        kind.put(&mut header);
        crc32c::crc32c(body).put(&mut header);
        crc32c::crc32c(&header).put(&mut header);
        self.put(self.end, &[&header, body]);
        self.end += (header.len() + body.len()) as u64;
    }

    fn next_segment(&mut self) {
        let next = self.end / SEGMENT_BYTES + 1;
        // The segment in which the log begins is not reused before a checkpoint.
        if next > SEGMENTS || self.end % SEGMENT_BYTES + RECORD_HEADER_BYTES > SEGMENT_BYTES {
            self.end = (1 + SEGMENTS) * SEGMENT_BYTES;
            return;
        }
        let header = SegmentHeader { brick: BRICK, number: next, segment_bytes: SEGMENT_BYTES };
        self.put(next * SEGMENT_BYTES, &[&header.encode()]);
        self.write(END, &[]);
        self.end = next * SEGMENT_BYTES + SEGMENT_HEADER_BYTES;
    }

    /// Flips bits of one byte of the journal.
    fn damage(&mut self, source: &mut Source<'_>) {
        let back = u64::from(source.word()) % (self.end - SEGMENT_BYTES);
        let at = self.end - 1 - back;
        let file = self.storage.open(&path_of(at), false).unwrap();
        let mut byte = [0];
        file.read_at(&mut byte, at % SEGMENT_BYTES).unwrap();
        byte[0] ^= source.byte();
        self.put(at, &[&byte]);
    }

    fn put(&self, lsn: u64, parts: &[&[u8]]) {
        let file = self.storage.open(&path_of(lsn), false).unwrap();
        file.write_at(parts, lsn % SEGMENT_BYTES).unwrap();
    }
}

fn path_of(lsn: u64) -> String {
    format!("journal/segment-{:03}", lsn / SEGMENT_BYTES % SEGMENTS)
}
