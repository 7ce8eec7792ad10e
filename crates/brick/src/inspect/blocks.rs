//! Data files, and the state of each block in them. `docs/format/data.md` describes them.

use super::Problem;
use super::contents::{BLOCKS, Contents, ShardChanges};
use crate::checksum::{CRC_BLOCKS, block_checksum};
use crate::disk::home::Home;
use crate::machine::decode_group;
use crate::storage::Storage;
use hekate_proto::*;
use std::collections::BTreeSet;

/// What a read of a block returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Bytes from the data file.
    Right,
    /// Zeros: the block is a hole.
    Hole,
    /// Bytes from the journal.
    Journal,
    /// Zeros: a power cut took the block before a sync covered it.
    Lost,
    /// An error: the bytes do not match the checksum.
    Damaged,
}

/// A shard and its blocks.
#[derive(Debug, Clone)]
pub struct ShardBlocks {
    /// The shard's ring.
    pub ring: RingId,
    /// The shard.
    pub shard: ShardId,
    /// Its record.
    pub record: ShardRecord,
    /// Path of its data file, relative to the brick's directory.
    pub file: String,
    /// Length of the data file in bytes, if it exists.
    pub file_bytes: Option<u64>,
    /// The state of each block up to the shard's length.
    pub states: Vec<BlockState>,
    /// Problems of the shard.
    pub problems: Vec<Problem>,
}

/// A file below `data/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFile {
    /// Path of the file, relative to the brick's directory.
    pub file: String,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// The shard that the file is named after, if it is named so.
    pub shard: Option<ShardId>,
    /// Whether the brick has that shard.
    pub referred: bool,
}

impl ShardBlocks {
    /// Runs of blocks of one state: first block, count and state of each.
    pub fn runs(&self) -> Vec<(u32, u32, BlockState)> {
        let mut runs: Vec<(u32, u32, BlockState)> = Vec::new();
        for (block, state) in (0..).zip(&self.states) {
            match runs.last_mut() {
                Some((_, count, last)) if last == state => *count += 1,
                _ => runs.push((block, 1, *state)),
            }
        }
        runs
    }
}

impl Contents {
    /// All shards of the brick, without those whose part of the index cannot be read: [`Contents::scan`] reports these.
    pub fn shards(&self) -> BTreeSet<(RingId, ShardId)> {
        let mut shards = BTreeSet::new();
        let (from, to) = Self::all_keys();
        let _ = self.scan_index(&from, &to, &mut |key, _| {
            shards.extend(key.prefix().zip(key.as_shard()).map(|(place, shard)| (place.ring, shard)));
            true
        });
        for (key, changes) in &self.journal.shards {
            match changes.record {
                Some(_) => shards.insert(*key),
                None => shards.remove(key),
            };
        }
        shards
    }

    /// The record of a shard.
    ///
    /// # Errors
    /// `Damaged`: the index cannot be read there, or the record cannot be decoded.
    pub fn shard_record(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        let in_index = || -> Result<Option<ShardRecord>> {
            Ok(self.get_index(&Key::shard(ring, shard))?.map(ShardRecord::from_bytes).transpose()?)
        };
        match self.journal.shards.get(&(ring, shard)) {
            Some(ShardChanges { record: Some(record), length_in_index: true, .. }) => {
                let length = in_index()?.map_or(record.length, |known| known.length);
                Ok(Some(ShardRecord { length, ..*record }))
            }
            Some(changes) => Ok(changes.record),
            None => in_index(),
        }
    }

    /// Reads all blocks of a shard and compares them with their checksums.
    ///
    /// # Errors
    /// Those of [`Contents::shard_record`]. Damage of blocks and checksums is in the result.
    pub fn shard_blocks(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardBlocks>> {
        self.visit_blocks(ring, shard, &mut |_, _| ())
    }

    /// As [`Contents::shard_blocks`]. `visit` gets each block's state, and its bytes if it has any.
    pub(super) fn visit_blocks(
        &self,
        ring: RingId,
        shard: ShardId,
        visit: &mut dyn FnMut(BlockState, &[u8]),
    ) -> Result<Option<ShardBlocks>> {
        let Some(record) = self.shard_record(ring, shard)? else { return Ok(None) };
        let file = Home::path(shard);
        let mut found =
            ShardBlocks { ring, shard, record, file, file_bytes: None, states: Vec::new(), problems: Vec::new() };
        self.judge_record(&mut found);
        let none = ShardChanges::default();
        let changes = self.journal.shards.get(&(ring, shard)).unwrap_or(&none);
        let (sums, unknown) = self.checksums(&mut found, changes);
        let bytes = self.read_file(&mut found);
        let count = record.length.div_ceil(BLOCK_BYTES as u32).min(BLOCKS);
        for block in 0..count {
            let at_home = &bytes[block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES];
            let (sum, pending) = (sums[block as usize], changes.pending.get(&block));
            let right = |bytes: &[u8]| block_checksum(shard, block, bytes) == sum;
            let state = if unknown.contains(&(block / CRC_BLOCKS)) && !changes.sums.contains_key(&block) {
                BlockState::Damaged
            } else {
                match pending {
                    _ if sum == 0 => BlockState::Hole,
                    Some(bytes) if right(bytes) => BlockState::Journal,
                    Some(_) => BlockState::Damaged,
                    None if right(at_home) => BlockState::Right,
                    None if self.may_be_lost(shard, changes, block) => BlockState::Lost,
                    None => BlockState::Damaged,
                }
            };
            let bytes = pending.map_or(at_home, |bytes| bytes);
            self.judge_tail(&mut found, block, state, bytes);
            visit(state, bytes);
            found.states.push(state);
        }
        let behind = (count..BLOCKS).filter(|block| sums[*block as usize] != 0).count();
        if behind > 0 {
            let what = format!("{behind} blocks behind its length have checksums");
            found.problems.push(Problem::new(&found.file, None, what));
        }
        for (first, count, _) in found.runs().into_iter().filter(|(_, _, state)| *state == BlockState::Damaged) {
            let what = format!("blocks {first} to {}: damaged", first + count - 1);
            let what = if count == 1 { format!("block {first}: damaged") } else { what };
            found.problems.push(Problem::new(&found.file, Some(u64::from(first) * BLOCK_BYTES as u64), what));
        }
        Ok(Some(found))
    }

    /// Whether a power cut may have taken the block: it is a fresh one above its shard's last mark, in a new
    /// incarnation.
    fn may_be_lost(&self, shard: ShardId, changes: &ShardChanges, block: u32) -> bool {
        let Some(count) = changes.fresh.get(&block) else { return false };
        let marked = self.journal.marks.get(&shard).is_some_and(|mark| mark.count >= *count);
        self.reborn && !marked
    }

    fn judge_record(&self, found: &mut ShardBlocks) {
        let ShardRecord { length, home_blocks, reserved_blocks, .. } = found.record;
        if u64::from(length) > u64::from(home_blocks) * BLOCK_BYTES as u64 || home_blocks.max(reserved_blocks) > BLOCKS
        {
            let what =
                format!("a shard of {length} bytes with {home_blocks} blocks at home, room up to {reserved_blocks}");
            found.problems.push(Problem::new(&found.file, None, what));
        }
    }

    /// Checks that the bytes behind the shard's end in its last block are zeros.
    fn judge_tail(&self, found: &mut ShardBlocks, block: u32, state: BlockState, bytes: &[u8]) {
        let inside = (found.record.length as usize).saturating_sub(block as usize * BLOCK_BYTES).min(BLOCK_BYTES);
        let readable = matches!(state, BlockState::Right | BlockState::Journal);
        if readable && bytes[inside..].iter().any(|byte| *byte != 0) {
            let offset = u64::from(block) * BLOCK_BYTES as u64 + inside as u64;
            found.problems.push(Problem::new(&found.file, Some(offset), "bytes behind the shard's end are not zeros"));
        }
    }

    /// The checksum of each block, and the numbers of groups that cannot be read.
    fn checksums(&self, found: &mut ShardBlocks, changes: &ShardChanges) -> (Vec<u32>, BTreeSet<u32>) {
        let (mut sums, mut unknown) = (vec![0; BLOCKS as usize], BTreeSet::new());
        for group in (0..BLOCKS / CRC_BLOCKS).filter(|_| !changes.dropped) {
            let value = self.get_index(&Key::checksums(found.ring, found.shard, group as u16));
            match value.and_then(|value| value.map(|value| decode_group(&value)).transpose()) {
                Ok(None) => {}
                Ok(Some(values)) => {
                    let from = (group * CRC_BLOCKS) as usize;
                    sums[from..from + CRC_BLOCKS as usize].copy_from_slice(&values);
                }
                Err(error) => {
                    unknown.insert(group);
                    found.problems.push(Problem::index(format!("checksums of {}: {error}", found.file)));
                }
            }
        }
        for (block, sum) in &changes.sums {
            sums[*block as usize] = *sum;
        }
        (sums, unknown)
    }

    /// The bytes of the data file, with zeros where it has none.
    fn read_file(&self, found: &mut ShardBlocks) -> Vec<u8> {
        let mut bytes = vec![0; SHARD_BYTES as usize];
        let mut read = || -> std::io::Result<Option<u64>> {
            let file = match self.storage.open(&found.file, false) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                other => other?,
            };
            let length = file.length()?;
            // Block by block after an error, so that an unreadable sector costs only its own block.
            if file.read_at(&mut bytes, 0).is_err() {
                for block in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
                    let offset = (block.0 * BLOCK_BYTES) as u64;
                    if file.read_at(block.1, offset).is_err() {
                        block.1.fill(0xff);
                    }
                }
            }
            Ok(Some(length))
        };
        match read() {
            Ok(length) => found.file_bytes = length,
            Err(error) => found.problems.push(Problem::new(&found.file, None, error.to_string())),
        }
        bytes
    }

    /// All files below `data/`, and whether the brick has a shard for each.
    pub fn data_files(&self, shards: &BTreeSet<(RingId, ShardId)>) -> (Vec<DataFile>, Vec<Problem>) {
        let known: BTreeSet<ShardId> = shards.iter().map(|(_, shard)| *shard).collect();
        let (mut files, mut problems) = (Vec::new(), Vec::new());
        for number in 0..256 {
            let directory = format!("data/{number:02x}");
            let names = match self.storage.list(&directory) {
                Ok(names) => names,
                Err(error) => {
                    problems.push(Problem::new(&directory, None, error.to_string()));
                    continue;
                }
            };
            for name in names {
                let file = format!("{directory}/{name}");
                let shard = shard_of(&name).filter(|shard| Home::path(*shard) == file);
                let referred = shard.is_some_and(|shard| known.contains(&shard));
                match self.storage.open(&file, false).and_then(|open| open.length()) {
                    Ok(bytes) => files.push(DataFile { file, bytes, shard, referred }),
                    Err(error) => problems.push(Problem::new(file, None, error.to_string())),
                }
            }
        }
        files.sort_by(|a, b| a.file.cmp(&b.file));
        (files, problems)
    }
}

/// The shard that a data file is named after.
fn shard_of(name: &str) -> Option<ShardId> {
    let mut parts = name.split('-');
    let volume = u32::from_str_radix(parts.next()?, 16).ok()?;
    let data = u128::from_str_radix(parts.next()?, 16).ok()?;
    let index = u64::from_str_radix(parts.next()?, 16).ok()?;
    parts.next().is_none().then_some(ShardId { volume: VolumeId(volume), data: DataId(data), index })
}
