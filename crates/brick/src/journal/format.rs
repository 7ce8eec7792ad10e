//! Encoding of the journal's headers and marks. `docs/format/journal.md` has the byte maps.

use super::Lsn;
use hekate_proto::{BrickId, Input, Malformed, ShardId, Stamp, Wire, wire_struct};

/// Bytes before the first record of a segment.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;
/// Bytes before the body of a record.
pub const RECORD_HEADER_BYTES: usize = 40;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"HEKJSEG1");
pub(super) const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"HKJR");

/// The kind of a record in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// `hekate_proto::Record`.
    Change = 1,
    /// [`Mark`].
    Mark = 2,
    /// No body: the log continues in the next segment.
    End = 3,
}

wire_struct! {
    /// A mark: the data files of these shards are on stable storage up to these stamps.
    pub struct Mark {
        /// Each shard with the stamp of the last write that is stable.
        pub shards: Vec<(ShardId, Stamp)>,
    }

    /// The header of a segment.
    pub struct SegmentHeader {
        /// The brick that the journal belongs to.
        pub brick: BrickId,
        /// Number of the segment in the log, from 1.
        pub number: u64,
        /// Bytes of each segment.
        pub segment_bytes: u64,
    }
}

impl SegmentHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        SEGMENT_MAGIC.put(&mut out);
        self.put(&mut out);
        crc32c::crc32c(&out).put(&mut out);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(bytes::Bytes::copy_from_slice(bytes));
        let total = input.remaining();
        if u64::take(&mut input)? != SEGMENT_MAGIC {
            return Err(Malformed("the segment header has no magic number"));
        }
        let header = Self::take(&mut input)?;
        let covered = total - input.remaining();
        if u32::take(&mut input)? != crc32c::crc32c(&bytes[..covered]) {
            return Err(Malformed("the segment header does not match its checksum"));
        }
        Ok(header)
    }
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    pub kind: EntryKind,
    pub body_bytes: u32,
    pub body_checksum: u32,
    /// Position of the record in the log.
    pub lsn: Lsn,
    /// The log was on stable storage up to here when the record was appended.
    pub stable: Lsn,
    /// Number of the opening of the brick that appended the record. A record that a power cut left beyond the log's end
    /// has a lower number than those that overwrite it.
    pub generation: u32,
}

impl RecordHeader {
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = Vec::with_capacity(RECORD_HEADER_BYTES);
        RECORD_MAGIC.put(&mut out);
        self.body_bytes.put(&mut out);
        self.lsn.0.put(&mut out);
        self.stable.0.put(&mut out);
        self.generation.put(&mut out);
        (self.kind as u32).put(&mut out);
        self.body_checksum.put(&mut out);
        crc32c::crc32c(&out).put(&mut out);
        let mut header = [0; RECORD_HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let whole = bytes.get(..RECORD_HEADER_BYTES).ok_or(Malformed("the record header is shorter than 40 bytes"))?;
        let mut input = Input::new(bytes::Bytes::copy_from_slice(whole));
        if u32::take(&mut input)? != RECORD_MAGIC {
            return Err(Malformed("the record header has no magic number"));
        }
        let body_bytes = u32::take(&mut input)?;
        let (lsn, stable) = (Lsn(u64::take(&mut input)?), Lsn(u64::take(&mut input)?));
        let generation = u32::take(&mut input)?;
        let kind = match u32::take(&mut input)? {
            1 => EntryKind::Change,
            2 => EntryKind::Mark,
            3 => EntryKind::End,
            _ => return Err(Malformed("an unknown kind of record")),
        };
        let body_checksum = u32::take(&mut input)?;
        if u32::take(&mut input)? != crc32c::crc32c(&whole[..RECORD_HEADER_BYTES - 4]) {
            return Err(Malformed("the record header does not match its checksum"));
        }
        Ok(Self { kind, body_bytes, body_checksum, lsn, stable, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_their_encoding_and_no_flipped_bit_passes() {
        let header = RecordHeader {
            kind: EntryKind::Change,
            body_bytes: 77,
            body_checksum: 5,
            lsn: Lsn(4096),
            stable: Lsn(9),
            generation: 3,
        };
        let bytes = header.encode();
        assert_eq!(RecordHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(RecordHeader::decode(&damaged).is_err(), "bit {bit}");
        }
        let segment = SegmentHeader { brick: BrickId(9), number: 4, segment_bytes: 1 << 24 };
        assert_eq!(SegmentHeader::decode(&segment.encode()), Ok(segment));
        assert!(SegmentHeader::decode(&[0; 64]).is_err());
    }
}
