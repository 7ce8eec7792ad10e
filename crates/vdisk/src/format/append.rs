//! An append to a layer's log: a header block, and the blocks that it names.

use super::{BLOCK_BYTES, LayerId};
use bytes::{Bytes, BytesMut};

const MAGIC: [u8; 4] = *b"HKVA";
const HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = 16;
const SUM_AT: usize = 52;
/// Entries of an append.
pub const ENTRIES_MAX: usize = (BLOCK_BYTES as usize - HEAD_BYTES) / ENTRY_BYTES;
/// Bits of a block's address; the kind of an entry is above them.
const ADDRESS_BITS: u32 = 56;

/// What an append changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The next block of the append is the content of this block of the vDisk.
    Data { block: u64, checksum: u32 },
    /// These blocks are zeros.
    Zeros { block: u64, count: u32 },
    /// The append has taken away so many live blocks of a segment.
    Freed { segment: u32, count: u32 },
}

/// The header of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub layer: LayerId,
    /// As in `LogPosition`.
    pub opening: u64,
    pub sequence: u64,
    /// All appends of the layer before this one were on stable storage when the append was made.
    pub stable: u64,
    /// The segment and block at which the header was written.
    pub segment: u32,
    pub block: u32,
    pub entries: Vec<Entry>,
}

impl Header {
    /// Number of blocks with data.
    pub fn data_blocks(&self) -> u32 {
        self.entries.iter().filter(|entry| matches!(entry, Entry::Data { .. })).count() as u32
    }

    /// Blocks of the whole append.
    pub fn blocks(&self) -> u32 {
        1 + self.data_blocks()
    }

    /// The append's bytes: this header and `data`, the content of the `Data` entries in their order.
    ///
    /// # Panics
    /// If there are more than [`ENTRIES_MAX`] entries, or `data` are not as many blocks as they name.
    pub fn seal(&self, data: &[Bytes]) -> Bytes {
        assert!(self.entries.len() <= ENTRIES_MAX, "an append has too many entries");
        assert_eq!(data.len(), self.data_blocks() as usize, "an append has a block for each entry of data");
        let mut out = BytesMut::with_capacity((data.len() + 1) * BLOCK_BYTES as usize);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&1u16.to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.layer.0.to_le_bytes());
        out.extend_from_slice(&self.opening.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&self.block.to_le_bytes());
        out.extend_from_slice(&self.data_blocks().to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.stable.to_le_bytes());
        assert_eq!(out.len(), HEAD_BYTES, "the fields fill the head");
        for entry in &self.entries {
            let (kind, address, count, checksum) = match *entry {
                Entry::Data { block, checksum } => (0u64, block, 1, checksum),
                Entry::Zeros { block, count } => (1, block, count, 0),
                Entry::Freed { segment, count } => (2, u64::from(segment), count, 0),
            };
            out.extend_from_slice(&(kind << ADDRESS_BITS | address).to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
            out.extend_from_slice(&checksum.to_le_bytes());
        }
        out.resize(BLOCK_BYTES as usize, 0);
        let sum = crc32c::crc32c(&out);
        out[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        for block in data {
            assert_eq!(block.len() as u64, BLOCK_BYTES, "an append has whole blocks");
            out.extend_from_slice(block);
        }
        out.freeze()
    }

    /// Reads a header block; `None` if it is not one.
    pub fn unseal(block: &[u8]) -> Option<Self> {
        if block.len() as u64 != BLOCK_BYTES || block[..4] != MAGIC || block[4..6] != [1, 0] {
            return None;
        }
        let sum = number(block, SUM_AT, 4) as u32;
        let before = crc32c::crc32c(&block[..SUM_AT]);
        let without = crc32c::crc32c_append(crc32c::crc32c_append(before, &[0; 4]), &block[SUM_AT + 4..]);
        let count = number(block, 6, 2) as usize;
        if sum != without || count > ENTRIES_MAX {
            return None;
        }
        let entry = |at: usize| {
            let at = HEAD_BYTES + at * ENTRY_BYTES;
            let (address, count) = (number(block, at, 8), number(block, at + 8, 4) as u32);
            let block_address = address & ((1 << ADDRESS_BITS) - 1);
            match address >> ADDRESS_BITS {
                0 => Some(Entry::Data { block: block_address, checksum: number(block, at + 12, 4) as u32 }),
                1 => Some(Entry::Zeros { block: block_address, count }),
                2 => Some(Entry::Freed { segment: u32::try_from(block_address).ok()?, count }),
                _ => None,
            }
        };
        let header = Self {
            layer: LayerId(u128::from(number(block, 8, 8)) | u128::from(number(block, 16, 8)) << 64),
            opening: number(block, 24, 8),
            sequence: number(block, 32, 8),
            stable: number(block, 56, 8),
            segment: number(block, 40, 4) as u32,
            block: number(block, 44, 4) as u32,
            entries: (0..count).map(entry).collect::<Option<_>>()?,
        };
        (header.data_blocks() as u64 == number(block, 48, 4)).then_some(header)
    }
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// The checksum of a block in an entry.
pub fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let block = 0u64..1 << 40;
        let entry = prop_oneof![
            (block.clone(), any::<u32>()).prop_map(|(block, checksum)| Entry::Data { block, checksum }),
            (block, any::<u32>()).prop_map(|(block, count)| Entry::Zeros { block, count }),
            (any::<u32>(), any::<u32>()).prop_map(|(segment, count)| Entry::Freed { segment, count }),
        ];
        proptest::collection::vec(entry, 0..ENTRIES_MAX)
    }

    proptest! {
        #[test]
        fn headers_come_back_and_one_wrong_bit_is_found(
            entries in entries(), sequence: u64, opening: u64, bit in 0usize..4096 * 8
        ) {
            let header = Header { layer: LayerId(3 << 70), opening, sequence, stable: sequence / 2, segment: 4, block: 77, entries };
            let data = vec![Bytes::from(vec![9u8; 4096]); header.data_blocks() as usize];
            let sealed = header.seal(&data);
            prop_assert_eq!(sealed.len(), header.blocks() as usize * 4096);
            prop_assert_eq!(Header::unseal(&sealed[..4096]), Some(header));
            let mut changed = sealed[..4096].to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::unseal(&changed), None);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = Header::unseal(&bytes);
        }
    }
}
