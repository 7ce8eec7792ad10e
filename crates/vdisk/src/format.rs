//! Records of vDisks, as `docs/format/vdisk.md` describes them.
//!
//! Each record fills one file, which is replaced as a whole: magic, version, kind, length, the encoded value, and a
//! CRC32C of all that.

pub mod append;

use bytes::Bytes;
use hekate_proto::codec::Wire;
use hekate_proto::{Error, Result, wire_enum, wire_newtype, wire_struct};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;
/// Blocks of a segment at most, and if nothing else is said: 16 MiB.
pub const SEGMENT_BLOCKS_MAX: u32 = 4096;
/// Largest vDisk in bytes.
pub const SIZE_MAX: u64 = 64 << 40;
/// Layers of a stack: snapshots in a row that are not merged.
pub const DEPTH_MAX: usize = 1 << 20;
/// Entries of a page of the map.
pub const PAGE_ENTRIES: u64 = BLOCK_BYTES / 8;

const MAGIC: [u8; 4] = *b"HKVR";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 10;
const SUM_BYTES: usize = 4;

wire_newtype! {
    /// Identifies a vDisk, whatever its name.
    pub struct DiskId(u128);
    /// Identifies a layer.
    pub struct LayerId(u128);
}

impl LayerId {
    /// The name of the layer's directory: 32 hex digits.
    pub fn text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// From the name of a directory.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

wire_enum! {
    /// What a vDisk is for.
    #[derive(Copy)]
    pub enum DiskKind {
        1 = Disk,
        /// Never written again; clones are made of it.
        2 = Template,
    }

    /// When a write is acknowledged.
    #[derive(Copy)]
    pub enum Durability {
        /// All replicas have it.
        1 = Replicated,
        /// This process has it. A limited number of bytes waits to be written.
        2 = Async,
    }

    /// Whether a vDisk can be written.
    #[derive(Copy)]
    pub enum Health {
        1 = Good,
        /// Changes were lost that had been acknowledged and not flushed: read-only until an operator resumes it.
        2 = Lost { since: u64 },
    }
}

wire_struct! {
    /// File `disk` of a vDisk.
    pub struct DiskRecord {
        pub id: DiskId,
        /// Bytes.
        pub size: u64,
        /// The layer that is written.
        pub head: LayerId,
        pub kind: DiskKind,
        pub durability: Durability,
        pub health: Health,
        /// When it was made, in seconds since 1970.
        pub created: u64,
        pub labels: Vec<(String, String)>,
    }

    /// A file in `snapshots` of a vDisk. Its name is that of the snapshot.
    pub struct SnapshotRecord {
        pub layer: LayerId,
        /// Size of the vDisk in bytes when the snapshot was made.
        pub size: u64,
        pub created: u64,
        pub labels: Vec<(String, String)>,
    }

    /// File `state` of a layer: its log up to a position, and what lies below it.
    pub struct LayerState {
        pub layer: LayerId,
        /// The layer whose blocks are seen where this one has none.
        pub parent: Option<LayerId>,
        /// The map may have pages that are newer than `log`, and some may still be written.
        pub writing: bool,
        /// No append follows `log`.
        pub sealed: bool,
        /// Blocks of each segment.
        pub segment_blocks: u32,
        /// Number of the map's file.
        pub map: u32,
        /// Number of the next segment.
        pub next_segment: u32,
        /// Where the log goes on. Everything before it is in the map.
        pub log: LogPosition,
        /// The segments that have been written.
        pub segments: Vec<SegmentUse>,
        /// A bit for each page of the map, the lowest bit of a byte first: the page exists.
        pub pages: Bytes,
    }

    /// A place in a layer's log.
    #[derive(Copy)]
    pub struct LogPosition {
        /// A random number of the opening that made the appends from here on.
        pub opening: u64,
        /// Number of the next append in the layer.
        pub sequence: u64,
        /// Its segment; 0 if there is none yet.
        pub segment: u32,
        /// Its block in that segment.
        pub block: u32,
    }

    /// A segment of a layer.
    #[derive(Copy)]
    pub struct SegmentUse {
        pub number: u32,
        /// Blocks that the layer's map leads to.
        pub live: u32,
        /// Blocks with data that were written.
        pub written: u32,
    }
}

/// A record that fills a file.
pub trait Record: Wire {
    /// The number of its type.
    const KIND: u8;
    /// The type in words.
    const NAME: &'static str;

    /// The file's bytes.
    fn seal(&self) -> Bytes {
        let value = self.to_bytes();
        let mut out = Vec::with_capacity(HEAD_BYTES + value.len() + SUM_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, Self::KIND]);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(&value);
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out.into()
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// `Damaged` if they are not such a record, `NotSupported` if a newer program wrote them.
    fn unseal(bytes: &Bytes) -> Result<Self> {
        let damaged = |why: &str| Error::Damaged { what: format!("a record of {}: {why}", Self::NAME) };
        let end = bytes.len().checked_sub(SUM_BYTES).filter(|end| *end >= HEAD_BYTES);
        let end = end.ok_or_else(|| damaged("it is too short"))?;
        let (head, sum) = (&bytes[..HEAD_BYTES], &bytes[end..]);
        if head[..4] != MAGIC || crc32c::crc32c(&bytes[..end]).to_le_bytes() != *sum {
            return Err(damaged("its checksum is wrong"));
        }
        if head[4] != VERSION {
            let what = format!("a record of {} has version {}; this program knows {VERSION}", Self::NAME, head[4]);
            return Err(Error::NotSupported { what });
        }
        if head[5] != Self::KIND || head[6..HEAD_BYTES] != ((end - HEAD_BYTES) as u32).to_le_bytes() {
            return Err(damaged("it is of another kind or length"));
        }
        Self::from_bytes(bytes.slice(HEAD_BYTES..end)).map_err(|malformed| damaged(malformed.0))
    }
}

impl Record for DiskRecord {
    const KIND: u8 = 1;
    const NAME: &'static str = "a vDisk";
}

impl Record for SnapshotRecord {
    const KIND: u8 = 2;
    const NAME: &'static str = "a snapshot";
}

impl Record for LayerState {
    const KIND: u8 = 3;
    const NAME: &'static str = "a layer";
}

impl LayerState {
    /// A layer without an append.
    pub fn empty(layer: LayerId, parent: Option<LayerId>, segment_blocks: u32, opening: u64) -> Self {
        let log = LogPosition { opening, sequence: 0, segment: 0, block: 0 };
        let (segments, pages) = (Vec::new(), Bytes::new());
        Self {
            layer,
            parent,
            writing: false,
            sealed: false,
            segment_blocks,
            map: 1,
            next_segment: 1,
            log,
            segments,
            pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> DiskRecord {
        DiskRecord {
            id: DiskId(7),
            size: 1 << 30,
            head: LayerId(9),
            kind: DiskKind::Disk,
            durability: Durability::Replicated,
            health: Health::Lost { since: 5 },
            created: 3,
            labels: vec![("owner".into(), "ann".into())],
        }
    }

    #[test]
    fn records_come_back_and_damage_is_refused() {
        let sealed = record().seal();
        assert_eq!(DiskRecord::unseal(&sealed), Ok(record()));
        assert!(matches!(SnapshotRecord::unseal(&sealed), Err(Error::Damaged { .. })));
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert!(DiskRecord::unseal(&changed.into()).is_err(), "byte {at}");
            assert!(DiskRecord::unseal(&sealed.slice(..at)).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_layer_is_named_by_its_id() {
        assert_eq!(LayerId::parse(&LayerId(255).text()), Some(LayerId(255)));
        assert_eq!(LayerId::parse("lock"), None);
    }
}
