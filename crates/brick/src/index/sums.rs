//! The sums of the blocks of the index's file: `docs/format/index-sums.md` is the document, why: `docs/adr/0025-index-pages.md`.
//!
//! Sums are told in memory when a block is written, and rest in a file of their own before a commit refers to the block.
//! They rest in [pairs](Pair) of sectors, so what a power cut, a write that fails in its middle or a bad sector leaves is
//! known to be as it was or as it was to be.

use crate::storage::StorageFile;
use std::collections::BTreeSet;
use std::io::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The file of the sums, in a brick.
pub const FILE: &str = "index/index.sums";
/// Bytes that a sum is of: the index's page. Greater pages are several blocks.
pub const BLOCK_BYTES: usize = 4096;
/// What a power cut leaves old or new (`storage.rs`).
pub const SECTOR_BYTES: usize = 512;
/// Bytes of a sector that its check, which fills the rest, is of.
pub const CHECKED_BYTES: usize = SECTOR_BYTES - 8;
/// Sums of a sector.
const SECTOR_SUMS: usize = CHECKED_BYTES / 8;
/// Bytes of a sector and its copy.
pub const PAIR_BYTES: usize = 2 * SECTOR_BYTES;

/// Of a block that was never written.
const NONE: u64 = 0;

/// The sum of a block, never 0.
pub fn sum_of(block: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, block).max(1)
}

/// A sector and its copy behind it, each with a check.
pub struct Pair {
    bytes: [u8; PAIR_BYTES],
    /// Of the checks: even, and one more for the copy.
    seed: u64,
}

/// What is read of a pair.
#[derive(Debug, PartialEq, Eq)]
pub enum PairState {
    /// Both are right and the same.
    Whole,
    /// Both are right: a power cut came between them.
    Uneven,
    /// One of them was, but for a bit; now both are.
    Mended,
    /// Neither is.
    Damaged,
}

impl Pair {
    /// The seed of redb's header, which is such a pair.
    pub const HEADER_SEED: u64 = 0;

    /// Of sums. No sum of a block has such a seed.
    fn seed_of(number: usize) -> u64 {
        !(2 * number as u64 + 1)
    }

    /// Of at most [`CHECKED_BYTES`].
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

    /// As it rests. The first that is right counts, else the first that is a bit away from that.
    pub fn read(seed: u64, bytes: [u8; PAIR_BYTES]) -> (Self, PairState) {
        let mut pair = Self { bytes, seed };
        let is_right = |half: usize, sector: &[u8]| {
            sector[CHECKED_BYTES..] == xxh3_64_with_seed(&sector[..CHECKED_BYTES], seed | half as u64).to_le_bytes()
        };
        let mut sectors =
            *pair.bytes.as_chunks::<SECTOR_BYTES>().0.first_chunk::<2>().unwrap_or(&[[0; SECTOR_BYTES]; 2]);
        let right: Vec<usize> = (0..2).filter(|half| is_right(*half, &sectors[*half])).collect();
        let mend = |half: &usize| put_bit_right(&mut sectors[*half], |sector| is_right(*half, sector));
        let Some(half) = right.first().copied().or_else(|| (0..2).find(mend)) else {
            return (pair, PairState::Damaged);
        };
        pair.fill(&sectors[half][..CHECKED_BYTES]);
        let state = match right.len() {
            2 if pair.bytes == bytes => PairState::Whole,
            2 => PairState::Uneven,
            _ => PairState::Mended,
        };
        (pair, state)
    }

    /// What the checks are of.
    pub fn content(&self) -> &[u8] {
        &self.bytes[..CHECKED_BYTES]
    }

    /// As it is to rest.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Puts right the one bit that makes `is_right` say so, if there is one. Of 64 bits of a sum, the 2^15 tries for a block
/// leave a chance of 2^-49 that they mend wrongly what is damaged otherwise.
pub fn put_bit_right(bytes: &mut [u8], is_right: impl Fn(&[u8]) -> bool) -> bool {
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

/// The sums of all blocks, and which pairs of them have changed since they were written.
#[derive(Default)]
pub struct Sums {
    of_blocks: Vec<u64>,
    changed: BTreeSet<usize>,
}

/// Pairs that are to be written, one behind the other, at an offset.
pub type Run = (u64, Vec<u8>);

impl Sums {
    /// As they rest, of an index of so many bytes. Of a pair that is damaged no sum is known: none of its blocks is believed.
    pub fn read(file: &dyn StorageFile, index_bytes: u64) -> Result<Self> {
        let mut bytes = vec![0; file.length()? as usize];
        let length = file.read_at(&mut bytes, 0)?;
        bytes.resize(length.next_multiple_of(PAIR_BYTES), 0);
        let mut sums = Self::default();
        for (number, rests) in bytes.as_chunks::<PAIR_BYTES>().0.iter().enumerate() {
            // Of blocks that were never written.
            let is_empty = rests.iter().all(|byte| *byte == 0);
            let (pair, state) = if is_empty {
                (Pair::new(0, &[]), PairState::Whole)
            } else {
                Pair::read(Pair::seed_of(number), *rests)
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

    /// The index has so many bytes now.
    pub fn resize(&mut self, index_bytes: u64) {
        self.of_blocks.resize(index_bytes as usize / BLOCK_BYTES, NONE);
    }

    /// The sum of a block, if it was ever written.
    pub fn of(&self, block: u64) -> Option<u64> {
        self.of_blocks.get(block as usize).copied().filter(|sum| *sum != NONE)
    }

    /// A block is written.
    pub fn put(&mut self, block: u64, bytes: &[u8]) {
        let at = block as usize;
        if self.of_blocks.len() <= at {
            self.of_blocks.resize(at + 1, NONE);
        }
        self.of_blocks[at] = sum_of(block, bytes);
        self.changed.insert(at / SECTOR_SUMS);
    }

    /// The pairs that have changed since this was last asked.
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

/// Bytes that the sums of an index of so many bytes take.
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

    /// Sums of all blocks but every fifth, at rest.
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

    /// Computed by `tests/e2e/index_sums.py`, which reads the document and not this code.
    #[test]
    fn a_sum_and_a_check_are_those_of_the_document() {
        assert_eq!(sum_of(1, &[0x2a; BLOCK_BYTES]), 0xb44e_8a7e_3a74_615c);
        let pair = Pair::new(Pair::seed_of(0), &[0x2a; CHECKED_BYTES]);
        assert_eq!(pair.bytes()[CHECKED_BYTES..SECTOR_BYTES], 0xbcc9_e215_b761_b867_u64.to_le_bytes());
        assert_eq!((Pair::seed_of(0), Pair::seed_of(3)), (u64::MAX - 1, u64::MAX - 7));
    }

    #[test]
    fn sums_rest_and_are_of_their_own_block_alone() {
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

    /// What is read of the damaged file is all, and what is then written is the sound file.
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
    fn a_flipped_bit_or_a_bad_sector_of_the_sums_is_put_right_and_written_anew() {
        let (_, file) = at_rest();
        let sound = bytes_of(&*file);
        for at in (0..sound.len() * 8).step_by(37) {
            is_put_right(&*file, &sound, |bytes| bytes[at / 8] ^= 1 << (at % 8));
        }
        for sector in 0..sound.len() / SECTOR_BYTES {
            is_put_right(&*file, &sound, |bytes| bytes[sector * SECTOR_BYTES..][..SECTOR_BYTES].fill(0xaa));
        }
        // In both, and in different places.
        is_put_right(&*file, &sound, |bytes| (bytes[100], bytes[600]) = (bytes[100] ^ 1, bytes[600] ^ 1));
    }

    #[test]
    fn a_damaged_pair_of_sums_hides_its_own_blocks_alone() {
        let (_, file) = at_rest();
        file.write_at(&[&[0xaa; 600]], PAIR_BYTES as u64 + 100).unwrap();
        let known = right(&read(&*file));
        let others = |number: &u64| !number.is_multiple_of(5) && !(63..126).contains(number);
        assert_eq!(known, (0..BLOCKS).filter(others).collect::<Vec<_>>());
        // As a power cut leaves a file that was growing.
        file.set_length(PAIR_BYTES as u64 + 17).unwrap();
        assert!(right(&read(&*file)).iter().all(|number| *number < 63));
    }

    /// The bytes up to some place are new, those behind it old.
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
