//! Sums of the blocks of the index's file. `docs/format/index-sums.md` describes the file,
//! `docs/adr/0025-index-pages.md` says why.
//!
//! The sum of a block changes in memory when the block is written, and is stored in a file of its own before a commit
//! refers to the block. Sums are stored in [pairs](Pair) of sectors: after a power cut, a write that fails in its
//! middle, or damage to one sector, the old or the new content of the pair can be read.

use crate::storage::StorageFile;
use std::collections::BTreeSet;
use std::io::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The file of the sums, in the brick's directory.
pub const FILE: &str = "index/index.sums";
/// Bytes that one sum covers: the smallest page of redb. Larger pages are several blocks.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes that a power cut leaves either old or new (`storage.rs`).
pub const SECTOR_BYTES: usize = 512;
/// Bytes of a sector that its check covers; the check takes the other 8.
pub const CHECKED_BYTES: usize = SECTOR_BYTES - 8;
/// Sums in a sector.
const SECTOR_SUMS: usize = CHECKED_BYTES / 8;
pub const PAIR_BYTES: usize = 2 * SECTOR_BYTES;

/// Stands for the sum of a block that was never written.
const NONE: u64 = 0;

/// The sum of a block, never 0.
pub fn sum_of(block: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, block).max(1)
}

/// A sector and, behind it, its copy; each has a check.
pub struct Pair {
    bytes: [u8; PAIR_BYTES],
    /// Seed of the first sector's check, an even number; the copy's seed is one more.
    seed: u64,
}

/// The state of a pair that was read.
#[derive(Debug, PartialEq, Eq)]
pub enum PairState {
    /// Both sectors are right and equal.
    Whole,
    /// Both are right and differ: a power cut came between their writes.
    Differing,
    /// One was right, perhaps after one bit was repaired; the other has been rebuilt from it.
    Repaired,
    /// Neither is right.
    Damaged,
}

impl Pair {
    /// The seed of redb's header, which is stored as such a pair.
    pub const HEADER_SEED: u64 = 0;

    /// The seed of a pair of sums. No block's sum has such a seed.
    fn seed_of(number: usize) -> u64 {
        !(2 * number as u64 + 1)
    }

    /// A pair with this content, of at most [`CHECKED_BYTES`].
    pub fn new(seed: u64, content: &[u8]) -> Self {
        let mut pair = Self { bytes: [0; PAIR_BYTES], seed };
        pair.fill(content);
        pair
    }

    fn fill(&mut self, content: &[u8]) {
        for (half, sector) in (0..).zip(self.bytes.as_chunks_mut::<SECTOR_BYTES>().0) {
            sector[..content.len()].copy_from_slice(content);
            let check = xxh3_64_with_seed(&sector[..CHECKED_BYTES], self.seed | half);
            sector[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        }
    }

    /// Reads a stored pair: the first sector that is right counts; if none is, the first that one flipped bit makes
    /// right.
    pub fn read(seed: u64, bytes: [u8; PAIR_BYTES]) -> (Self, PairState) {
        let mut pair = Self { bytes, seed };
        let is_right = |half: usize, sector: &[u8]| {
            sector[CHECKED_BYTES..] == xxh3_64_with_seed(&sector[..CHECKED_BYTES], seed | half as u64).to_le_bytes()
        };
        let mut sectors =
            *pair.bytes.as_chunks::<SECTOR_BYTES>().0.first_chunk::<2>().unwrap_or(&[[0; SECTOR_BYTES]; 2]);
        let right: Vec<usize> = (0..2).filter(|half| is_right(*half, &sectors[*half])).collect();
        let repair = |half: &usize| repair_bit(&mut sectors[*half], |sector| is_right(*half, sector));
        let Some(half) = right.first().copied().or_else(|| (0..2).find(repair)) else {
            return (pair, PairState::Damaged);
        };
        pair.fill(&sectors[half][..CHECKED_BYTES]);
        let state = match right.len() {
            2 if pair.bytes == bytes => PairState::Whole,
            2 => PairState::Differing,
            _ => PairState::Repaired,
        };
        (pair, state)
    }

    /// The content that the checks cover.
    pub fn content(&self) -> &[u8] {
        &self.bytes[..CHECKED_BYTES]
    }

    /// The pair as it is stored.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Flips the one bit that makes `is_right` true, if there is one. A sum has 64 bits and a block has 2^15, so other
/// damage is taken for a flipped bit with a probability of 2^-49.
pub fn repair_bit(bytes: &mut [u8], is_right: impl Fn(&[u8]) -> bool) -> bool {
    for at in 0..bytes.len() * 8 {
        let (byte, bit) = (at / 8, 1 << (at % 8));
        bytes[byte] ^= bit;
        if is_right(bytes) {
            return true;
        }
        bytes[byte] ^= bit;
    }
    false
}

/// The sums of all blocks, and the pairs that have changed since they were stored.
#[derive(Default)]
pub struct Sums {
    of_blocks: Vec<u64>,
    changed: BTreeSet<usize>,
}

/// Consecutive pairs to be written: the offset and the bytes.
pub type Run = (u64, Vec<u8>);

impl Sums {
    /// Reads the sums of an index of `index_bytes` bytes. The blocks of a damaged pair have no sum, so that none of
    /// them is read.
    pub fn read(file: &dyn StorageFile, index_bytes: u64) -> Result<Self> {
        let mut bytes = vec![0; file.length()? as usize];
        let length = file.read_at(&mut bytes, 0)?;
        bytes.resize(length.next_multiple_of(PAIR_BYTES), 0);
        let mut sums = Self::default();
        for (number, stored) in bytes.as_chunks::<PAIR_BYTES>().0.iter().enumerate() {
            // A pair of blocks that were never written.
            let is_empty = stored.iter().all(|byte| *byte == 0);
            let (pair, state) = if is_empty {
                (Pair::new(0, &[]), PairState::Whole)
            } else {
                Pair::read(Pair::seed_of(number), *stored)
            };
            match state {
                PairState::Damaged => sums.of_blocks.extend([NONE; SECTOR_SUMS]),
                state => {
                    let words = pair.content().as_chunks::<8>().0;
                    sums.of_blocks.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
                    sums.changed.extend((state != PairState::Whole).then_some(number));
                }
            }
        }
        sums.resize(index_bytes);
        Ok(sums)
    }

    /// Sets the length of the index's file.
    pub fn resize(&mut self, index_bytes: u64) {
        self.of_blocks.resize(index_bytes as usize / BLOCK_BYTES, NONE);
    }

    /// The sum of a block; `None`: it was never written, or its pair is damaged.
    pub fn of(&self, block: u64) -> Option<u64> {
        self.of_blocks.get(block as usize).copied().filter(|sum| *sum != NONE)
    }

    /// Sets the sum of a block that is written.
    pub fn put(&mut self, block: u64, bytes: &[u8]) {
        let at = block as usize;
        if self.of_blocks.len() <= at {
            self.of_blocks.resize(at + 1, NONE);
        }
        self.of_blocks[at] = sum_of(block, bytes);
        self.changed.insert(at / SECTOR_SUMS);
    }

    /// The pairs that have changed since the last call.
    pub fn take_changed(&mut self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for number in std::mem::take(&mut self.changed) {
            let offset = (number * PAIR_BYTES) as u64;
            let pair = self.pair(number);
            match runs.last_mut() {
                Some((from, run)) if *from + run.len() as u64 == offset => run.extend_from_slice(pair.bytes()),
                _ => runs.push((offset, pair.bytes().to_vec())),
            }
        }
        runs
    }

    fn pair(&self, number: usize) -> Pair {
        let from = (number * SECTOR_SUMS).min(self.of_blocks.len());
        let sums = &self.of_blocks[from..self.of_blocks.len().min(from + SECTOR_SUMS)];
        let content: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        Pair::new(Pair::seed_of(number), &content)
    }
}

/// Bytes of the file of sums for an index of `index_bytes` bytes.
pub fn file_bytes(index_bytes: u64) -> u64 {
    (index_bytes / BLOCK_BYTES as u64).div_ceil(SECTOR_SUMS as u64) * PAIR_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{MemoryStorage, Storage};

    const BLOCKS: u64 = 200;

    fn block(number: u64) -> Vec<u8> {
        vec![number as u8; BLOCK_BYTES]
    }

    /// A stored file of sums, of all blocks but every fifth.
    fn at_rest() -> (MemoryStorage, std::sync::Arc<dyn StorageFile>) {
        let storage = MemoryStorage::new();
        let file = storage.open(FILE, true).unwrap();
        let mut sums = Sums::default();
        sums.resize(BLOCKS * BLOCK_BYTES as u64);
        (0..BLOCKS).filter(|number| number % 5 != 0).for_each(|number| sums.put(number, &block(number)));
        for (offset, run) in sums.take_changed() {
            file.write_at(&[&run], offset).unwrap();
        }
        assert!(sums.take_changed().is_empty());
        assert_eq!(file.length().unwrap(), file_bytes(BLOCKS * BLOCK_BYTES as u64));
        (storage, file)
    }

    fn read(file: &dyn StorageFile) -> Sums {
        Sums::read(file, BLOCKS * BLOCK_BYTES as u64).unwrap()
    }

    fn right(sums: &Sums) -> Vec<u64> {
        (0..BLOCKS).filter(|number| sums.of(*number) == Some(sum_of(*number, &block(*number)))).collect()
    }

    /// The expected bytes come from `tests/e2e/index_sums.py`, which follows the document and not this code.
    #[test]
    fn a_sum_and_a_check_are_those_of_the_document() {
        assert_eq!(sum_of(1, &[0x2a; BLOCK_BYTES]), 0xb44e_8a7e_3a74_615c);
        let pair = Pair::new(Pair::seed_of(0), &[0x2a; CHECKED_BYTES]);
        assert_eq!(pair.bytes()[CHECKED_BYTES..SECTOR_BYTES], 0xbcc9_e215_b761_b867_u64.to_le_bytes());
        assert_eq!((Pair::seed_of(0), Pair::seed_of(3)), (u64::MAX - 1, u64::MAX - 7));
    }

    #[test]
    fn a_stored_sum_belongs_to_its_own_block() {
        let (_, file) = at_rest();
        let sums = read(&*file);
        assert_eq!(right(&sums), (0..BLOCKS).filter(|number| number % 5 != 0).collect::<Vec<_>>());
        assert_eq!(sums.of(BLOCKS), None);
        let mut alike = Sums::default();
        alike.put(1, &block(1));
        alike.put(2, &block(1));
        assert_ne!(alike.of(1), alike.of(2), "the same bytes in another place");
    }

    fn bytes_of(file: &dyn StorageFile) -> Vec<u8> {
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// All sums can be read from the damaged file, and what is then written is the sound file.
    fn is_put_right(file: &dyn StorageFile, sound: &[u8], damage: impl Fn(&mut [u8])) {
        let all = right(&read(file));
        let mut damaged = sound.to_vec();
        damage(&mut damaged);
        file.write_at(&[&damaged], 0).unwrap();
        let mut sums = read(file);
        assert_eq!(right(&sums), all);
        for (offset, run) in sums.take_changed() {
            file.write_at(&[&run], offset).unwrap();
        }
        assert_eq!(bytes_of(file), sound);
    }

    #[test]
    fn a_flipped_bit_or_a_bad_sector_of_the_sums_is_repaired_and_rewritten() {
        let (_, file) = at_rest();
        let sound = bytes_of(&*file);
        for at in (0..sound.len() * 8).step_by(37) {
            is_put_right(&*file, &sound, |bytes| bytes[at / 8] ^= 1 << (at % 8));
        }
        for sector in 0..sound.len() / SECTOR_BYTES {
            is_put_right(&*file, &sound, |bytes| bytes[sector * SECTOR_BYTES..][..SECTOR_BYTES].fill(0xaa));
        }
        // Damage in both sectors, at different places.
        is_put_right(&*file, &sound, |bytes| (bytes[100], bytes[600]) = (bytes[100] ^ 1, bytes[600] ^ 1));
    }

    #[test]
    fn a_damaged_pair_of_sums_hides_its_own_blocks_alone() {
        let (_, file) = at_rest();
        file.write_at(&[&[0xaa; 600]], PAIR_BYTES as u64 + 100).unwrap();
        let known = right(&read(&*file));
        let others = |number: &u64| !number.is_multiple_of(5) && !(63..126).contains(number);
        assert_eq!(known, (0..BLOCKS).filter(others).collect::<Vec<_>>());
        // A file that was growing, as a power cut may leave it.
        file.set_length(PAIR_BYTES as u64 + 17).unwrap();
        assert!(right(&read(&*file)).iter().all(|number| *number < 63));
    }

    /// Bytes up to some place are new, those behind it are old.
    #[test]
    fn a_write_that_fails_anywhere_leaves_every_sum_old_or_new() {
        let (_, file) = at_rest();
        let old = bytes_of(&*file);
        let mut sums = read(&*file);
        sums.put(5, &block(5));
        sums.put(6, &block(77));
        let (offset, run) = sums.take_changed().remove(0);
        for end in 0..=run.len() {
            file.write_at(&[&old], 0).unwrap();
            file.write_at(&[&run[..end]], offset).unwrap();
            let found = read(&*file);
            let is_old = found.of(5).is_none() && found.of(6) == Some(sum_of(6, &block(6)));
            let is_new = found.of(5) == sums.of(5) && found.of(6) == sums.of(6);
            assert!(is_old || is_new, "{end} bytes");
            assert_eq!(found.of(7), sums.of(7), "{end} bytes");
        }
    }
}
