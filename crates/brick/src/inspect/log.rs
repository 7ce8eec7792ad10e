//! The journal on the disk: its segments, the records of its log, and why the log ends where it does.

use super::Problem;
use crate::index::meta::Meta;
use crate::journal::format::{EntryKind, RECORD_HEADER_BYTES, RecordHeader, SegmentHeader};
use crate::journal::read::{Found, Reader};
use crate::journal::{Geometry, Lsn};
use crate::storage::Storage;
use hekate_proto::{Record, Result, ShardId, Stamp, Wire};

/// A file of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Path of the file, relative to the brick's directory.
    pub file: String,
    /// The segment number in its header.
    pub number: Option<u64>,
    /// What the log uses it for.
    pub used: SegmentUse,
}

/// What the log uses a file of the journal for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentUse {
    /// It is a segment of the log that is kept.
    InUse,
    /// A checkpoint has covered it, and the log may reuse the file.
    Recyclable,
    /// It was never used.
    Zero,
    /// It is behind the log's end: a power cut took the records that led to it.
    Stale,
    /// Its header cannot be read, or does not belong into this file: why.
    Unreadable(String),
}

/// A record of the log.
#[derive(Debug, Clone)]
pub struct LogRecord {
    /// Position of the record.
    pub lsn: Lsn,
    /// The file that has it.
    pub file: String,
    /// Offset in that file, in bytes.
    pub offset: u64,
    /// Number of the opening of the brick that appended it.
    pub generation: u32,
    /// The log was on stable storage up to here when it was appended.
    pub stable: Lsn,
    /// Whether the index holds it.
    pub applied: bool,
    /// Its body.
    pub body: LogBody,
}

/// The body of a record.
#[derive(Debug, Clone)]
pub enum LogBody {
    /// A record of a partition.
    Change(Record),
    /// A mark: data files that were on stable storage up to these stamps.
    Mark(Vec<(ShardId, Stamp)>),
    /// Its checksum is right, and it is neither.
    Malformed(String),
}

/// Where the log ends.
#[derive(Debug, Clone)]
pub struct LogEnd {
    /// The position.
    pub at: Lsn,
    /// The file.
    pub file: String,
    /// Offset in that file, in bytes.
    pub offset: u64,
    /// Why the bytes there are not the next record.
    pub why: String,
    /// Whether a record was begun there that did not reach the disk whole.
    pub torn: bool,
    /// The damage, if the log was on stable storage beyond its end: something that was synced cannot be read.
    pub damage: Option<Problem>,
}

/// Reads the log from `from` on, as recovery does. `meta`: the meta record of the index, if it can be read. Returns
/// where the log ends.
pub(super) fn walk(
    storage: &dyn Storage,
    geometry: Geometry,
    (from, applied): (Lsn, Lsn),
    meta: Option<&Meta>,
    visit: &mut dyn FnMut(LogRecord),
) -> Result<LogEnd> {
    let mut reader = Reader::new(storage, geometry, from);
    if let Some(meta) = meta {
        reader = reader.ignoring_stale(meta);
    }
    let mut generation = 0;
    let mut refused = None;
    loop {
        match reader.next() {
            Ok(Some(found)) => {
                generation = found.generation;
                visit(record_of(storage, geometry, applied, found));
            }
            Ok(None) => break,
            // The header of another brick, or a file that cannot be read.
            Err(error) => {
                refused = Some(error.to_string());
                break;
            }
        }
    }
    let at = reader.position();
    let (file, offset) = (geometry.path_of(geometry.number_of(at)), geometry.offset_of(at));
    let oldest = meta.filter(|meta| at >= Lsn(meta.resumed)).map_or(generation, |meta| generation.max(meta.generation));
    let (why, torn) = why_it_ends(storage, geometry, at, oldest);
    let damage = match refused {
        Some(why) => Some(Problem::new(&file, Some(offset), why)),
        None => match reader.search_behind_end().map(|behind| behind.proof) {
            Ok(None) => None,
            Ok(Some(proof)) => {
                let proof_file = geometry.path_of(geometry.number_of(proof));
                let proof = geometry.offset_of(proof);
                let what = format!(
                    "a record that was on stable storage is unreadable ({why}); the record in {proof_file} at offset \
                     {proof} proves it"
                );
                Some(Problem::new(&file, Some(offset), what))
            }
            Err(error) => Some(Problem::new(&file, Some(offset), error.to_string())),
        },
    };
    Ok(LogEnd { at, file, offset, why, torn, damage })
}

fn record_of(storage: &dyn Storage, geometry: Geometry, applied: Lsn, found: Found) -> LogRecord {
    let lsn = Lsn(found.end.0 - (RECORD_HEADER_BYTES + found.body.len()) as u64);
    let header = header_at(storage, geometry, lsn);
    let body = match found.kind {
        EntryKind::Change => Record::from_bytes(found.body).map(LogBody::Change),
        EntryKind::Mark => {
            found.mark().map(|mark| LogBody::Mark(mark.shards)).map_err(|_| hekate_proto::Malformed("no mark"))
        }
        EntryKind::End => Err(hekate_proto::Malformed("an end that is a record")),
    };
    LogRecord {
        lsn,
        file: geometry.path_of(geometry.number_of(lsn)),
        offset: geometry.offset_of(lsn),
        generation: found.generation,
        stable: header.map_or(Lsn(0), |header| header.stable),
        applied: lsn < applied,
        body: body.unwrap_or_else(|error| LogBody::Malformed(error.to_string())),
    }
}

fn bytes_at(storage: &dyn Storage, path: &str, offset: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let read = storage.open(path, false).and_then(|file| file.read_at(&mut bytes, offset));
    bytes.truncate(read.unwrap_or(0));
    bytes
}

fn header_at(storage: &dyn Storage, geometry: Geometry, lsn: Lsn) -> Option<RecordHeader> {
    let path = geometry.path_of(geometry.number_of(lsn));
    RecordHeader::decode(&bytes_at(storage, &path, geometry.offset_of(lsn), RECORD_HEADER_BYTES)).ok()
}

/// Which rule of `docs/format/journal.md` ("Where the log ends") ends the log there, and whether a record is torn
/// there.
fn why_it_ends(storage: &dyn Storage, geometry: Geometry, at: Lsn, generation: u32) -> (String, bool) {
    let (number, offset) = (geometry.number_of(at), geometry.offset_of(at));
    let path = geometry.path_of(number);
    if segment_header(storage, &path).ok().flatten().is_none_or(|header| header.number != number) {
        return (format!("the file has no header of segment {number}"), false);
    }
    let bytes = bytes_at(storage, &path, offset, RECORD_HEADER_BYTES);
    if bytes.iter().all(|byte| *byte == 0) {
        return ("nothing was written there yet".into(), false);
    }
    let header = match RecordHeader::decode(&bytes) {
        Ok(header) => header,
        Err(error) => return (format!("the {} bytes there are no record header: {}", bytes.len(), error.0), true),
    };
    if header.lsn != at {
        return (
            format!("the record there is that of position {}, from an earlier use of the file", header.lsn.0),
            false,
        );
    }
    if header.generation < generation {
        let older = header.generation;
        return (
            format!(
                "the record there has generation {older}, older than {generation}: it is behind an earlier end of \
                 the log"
            ),
            false,
        );
    }
    let end = offset + RECORD_HEADER_BYTES as u64 + u64::from(header.body_bytes);
    if end > geometry.segment_bytes {
        return (
            format!("the record there has a length of {} bytes, more than its segment holds", header.body_bytes),
            true,
        );
    }
    let body = bytes_at(storage, &path, offset + RECORD_HEADER_BYTES as u64, header.body_bytes as usize);
    let sum = crc32c::crc32c(&body);
    if sum != header.body_checksum || body.len() < header.body_bytes as usize {
        let (wanted, bytes) = (header.body_checksum, header.body_bytes);
        return (
            format!("the {bytes} bytes of the record there have checksum {sum:08x}, its header says {wanted:08x}"),
            true,
        );
    }
    if header.kind == EntryKind::End {
        return (format!("the segment ends there and segment {} was not begun", number + 1), false);
    }
    ("the record there cannot be decoded".into(), true)
}

/// The header of a segment's file. `None`: it is all zeros.
fn segment_header(storage: &dyn Storage, path: &str) -> std::result::Result<Option<SegmentHeader>, String> {
    let bytes = bytes_at(storage, path, 0, 64);
    if bytes.len() < 64 {
        return Err("the file is missing or too short".into());
    }
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    SegmentHeader::decode(&bytes).map(Some).map_err(|error| error.0.into())
}

/// All files of the journal.
pub(super) fn segments(storage: &dyn Storage, geometry: Geometry, applied: Lsn, end: Lsn) -> Vec<Segment> {
    // A checkpoint keeps the segment before that of `applied`, for replicas that lack its last records.
    let kept = geometry.number_of(applied).saturating_sub(1);
    let last = geometry.number_of(end);
    let state = |header: &SegmentHeader, index: u64| {
        if header.brick != geometry.brick {
            return SegmentUse::Unreadable(format!("it belongs to brick {}", header.brick.text()));
        }
        if header.segment_bytes != geometry.segment_bytes || header.number % geometry.segments != index {
            return SegmentUse::Unreadable(format!(
                "segment {} of {} bytes does not belong into this file",
                header.number, header.segment_bytes
            ));
        }
        match header.number {
            number if number > last => SegmentUse::Stale,
            number if number < kept => SegmentUse::Recyclable,
            _ => SegmentUse::InUse,
        }
    };
    let segment = |index| {
        let file = geometry.path_of(index);
        match segment_header(storage, &file) {
            Ok(None) => Segment { file, number: None, used: SegmentUse::Zero },
            Ok(Some(header)) => Segment { file, number: Some(header.number), used: state(&header, index) },
            Err(why) => Segment { file, number: None, used: SegmentUse::Unreadable(why) },
        }
    };
    (0..geometry.segments).map(segment).collect()
}

/// The position of the oldest records from which the log can be read up to `applied`.
pub(super) fn oldest(storage: &dyn Storage, geometry: Geometry, applied: Lsn) -> Lsn {
    let number = geometry.number_of(applied);
    let before = number.saturating_sub(1);
    match segment_header(storage, &geometry.path_of(before)) {
        Ok(Some(header)) if header.number == before && before > 0 => geometry.start_of(before),
        _ => geometry.start_of(number),
    }
}

/// The start of the oldest segment in the files: where to begin if the index does not say.
pub(super) fn oldest_of_all(storage: &dyn Storage, geometry: Geometry) -> Lsn {
    let numbers = (0..geometry.segments).filter_map(|index| {
        let header = segment_header(storage, &geometry.path_of(index)).ok().flatten()?;
        (header.brick == geometry.brick && header.number % geometry.segments == index).then_some(header.number)
    });
    geometry.start_of(numbers.min().unwrap_or(1))
}
