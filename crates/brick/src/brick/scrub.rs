//! Scrubbing: all that rests on the disk is read and checked in small steps, while the brick is in use.
//!
//! A pass goes through the index in key order, and through each shard's blocks when it reaches the shard's record; then
//! through the directories of data files. A data file that no record knows is removed: a crash between the commit of
//! the index and the removal of a file leaves one. A pass reports what it finds; the server repairs it from another
//! replica.

use crate::brick::Brick;
use crate::brick::merged_index::{BlockSource, MergedIndex};
use crate::checksum::block_checksum;
use crate::disk::home::Home;
use bytes::Bytes;
use hekate_proto::*;

/// Where a pass is, and the volume that it is limited to, if it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubCursor(Stage, Option<VolumeId>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// Entries from this key on.
    Index(Key),
    /// Blocks from this one on of the shard with this key.
    Shard(Key, u32),
    /// Directories of data files, from this number on.
    Files(u32),
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A block does not match its checksum, or cannot be read.
    Block { ring: RingId, shard: ShardId, block: u32 },
    /// An entry of the index does not match its seal.
    Entry { key: Key },
    /// A data file that no record knew; it has been removed.
    Stray { path: String },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubStep {
    pub bytes: u64,
    pub findings: Vec<Finding>,
}

/// Entries that a step visits at most.
const ENTRIES: usize = 1024;
/// Blocks that a step reads at most: 1 MiB.
const BLOCKS: u32 = 256;
/// Reads of a block that changes while it is read, before the pass continues without checking it.
const TRIES: usize = 8;

impl Default for ScrubCursor {
    fn default() -> Self {
        Self(Stage::Index(Key::from_bytes(Bytes::new())), None)
    }
}

impl ScrubCursor {
    /// A pass over one volume. It leaves out the directories of data files: a stray file belongs to no volume.
    pub fn of_volume(volume: VolumeId) -> Self {
        Self(Stage::Index(Key::from_bytes(Bytes::new())), Some(volume))
    }

    pub fn is_done(&self) -> bool {
        self.0 == Stage::Done
    }

    /// The key that the pass has reached; `None` once it has visited all entries.
    pub fn key(&self) -> Option<&Key> {
        match &self.0 {
            Stage::Index(key) | Stage::Shard(key, _) => Some(key),
            Stage::Files(_) | Stage::Done => None,
        }
    }
}

impl Brick {
    /// Does the next step: checks at most 1,024 entries, 1 MiB of a shard, or the names in one directory of data files.
    ///
    /// # Errors
    /// `Io`: a directory cannot be listed. `Poisoned`: also when keys of the index are out of order, so that any entry
    /// may be missing.
    pub fn scrub(&self, cursor: &mut ScrubCursor) -> Result<ScrubStep> {
        let mut step = ScrubStep::default();
        cursor.0 = match std::mem::replace(&mut cursor.0, Stage::Done) {
            Stage::Index(from) => self.scrub_entries(from, cursor.1, &mut step)?,
            Stage::Shard(key, first) => self.scrub_shard(key, first, &mut step)?,
            Stage::Files(_) if cursor.1.is_some() => Stage::Done,
            Stage::Files(number) => self.scrub_files(number, &mut step)?,
            Stage::Done => Stage::Done,
        };
        Ok(step)
    }

    fn scrub_entries(&self, from: Key, volume: Option<VolumeId>, step: &mut ScrubStep) -> Result<Stage> {
        let mut next = Stage::Files(0);
        let mut seen = 0;
        let mut visit = |key: &[u8], value: Result<Bytes>| {
            let key = Key::from_bytes(Bytes::copy_from_slice(key));
            seen += 1;
            if volume.is_some() && key.prefix().map(|place| place.volume) != volume {
                if seen == ENTRIES {
                    next = Stage::Index(key.successor());
                }
                return seen < ENTRIES;
            }
            step.bytes += (key.as_bytes().len() + value.as_ref().map_or(0, Bytes::len)) as u64;
            if value.is_err() {
                step.findings.push(Finding::Entry { key: key.clone() });
            }
            if key.as_shard().is_some() {
                next = Stage::Shard(key, 0);
                return false;
            }
            if seen == ENTRIES {
                next = Stage::Index(key.successor());
            }
            seen < ENTRIES
        };
        let end = [u8::MAX; 64];
        self.guarded(|| self.disk.index.scan_all(from.as_bytes(), &end, &mut visit))?;
        let to = match &next {
            Stage::Index(key) | Stage::Shard(key, _) => key.successor(),
            Stage::Files(_) | Stage::Done => Key::from_bytes(Bytes::copy_from_slice(&end)),
        };
        self.check_lookups(&from, &to)?;
        Ok(next)
    }

    /// Checks that lookups find every entry that the scan found. If the order of keys is damaged, any entry may be
    /// missing: the brick stops.
    fn check_lookups(&self, from: &Key, to: &Key) -> Result<()> {
        let lost = self.guarded(|| self.disk.index.lost(from.as_bytes(), to.as_bytes()))?;
        let lost = lost.map(Key::from_bytes).or_else(|| (to <= from).then(|| to.clone()));
        let Some(key) = lost else { return Ok(()) };
        let at = format!("at {key:?} in the index of brick {}", self.id().text());
        Err(self.poison(&Error::Damaged { what: format!("keys are out of order {at}; it is to be replaced") }))
    }

    /// Entries of a range whose value in the index is damaged, and that no newer change in the overlay replaces.
    pub fn damaged_entries(&self, from: &Key, to: &Key) -> Result<Vec<Key>> {
        let mut found = Vec::new();
        let mut visit = |key: &[u8], value: Result<Bytes>| {
            if value.is_err() {
                found.push(Key::from_bytes(Bytes::copy_from_slice(key)));
            }
            true
        };
        self.guarded(|| self.disk.index.scan_all(from.as_bytes(), to.as_bytes(), &mut visit))?;
        found.retain(|key| {
            let now = match (key.as_shard(), key.prefix()) {
                (Some(shard), Some(place)) => self.shard(place.ring, shard).map(|_| ()),
                _ => self.get(key).map(|_| ()),
            };
            matches!(now, Err(Error::Damaged { .. }))
        });
        Ok(found)
    }

    fn scrub_shard(&self, key: Key, first: u32, step: &mut ScrubStep) -> Result<Stage> {
        let next = Stage::Index(key.successor());
        let (Some(shard), Some(place)) = (key.as_shard(), key.prefix()) else { return Ok(next) };
        let ring = place.ring;
        // Blocks behind the shard's end may be at home too.
        let home_blocks = match self.shard(ring, shard) {
            Ok(record) => record.map_or(0, |record| record.home_blocks),
            // The damaged entry is a finding of `scrub_entries`.
            Err(Error::Damaged { .. }) => 0,
            Err(error) => return Err(error),
        };
        let end = home_blocks.min(first + BLOCKS);
        for block in first..end {
            if !self.block_is_right(ring, shard, block)? {
                step.findings.push(Finding::Block { ring, shard, block });
            }
            step.bytes += BLOCK_BYTES as u64;
        }
        Ok(if end < home_blocks { Stage::Shard(key, end) } else { next })
    }

    /// Whether a block at home matches its checksum. A block whose place or checksum changes meanwhile is read again.
    fn block_is_right(&self, ring: RingId, shard: ShardId, block: u32) -> Result<bool> {
        let place = || self.view(|view| Ok(view.places(ring, shard, block, block + 1)?.pop()));
        let mut now = match place() {
            Err(Error::Damaged { .. }) => return Ok(true),
            now => now?,
        };
        for _ in 0..TRIES {
            let Some((sum, BlockSource::Home)) = &now else { return Ok(true) };
            let sum = *sum;
            let mut bytes = vec![0; BLOCK_BYTES];
            let read = self.disk.home.read(shard, block, &mut bytes);
            if read.is_ok() && block_checksum(shard, block, &bytes) == sum {
                return Ok(true);
            }
            now = place()?;
            if matches!(&now, Some((again, BlockSource::Home)) if *again == sum) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn scrub_files(&self, number: u32, step: &mut ScrubStep) -> Result<Stage> {
        let directory = Home::directory_of(number);
        let names = self.disk.storage.list(&directory).map_err(|e| Error::io(format!("list {directory}"), e))?;
        for name in names {
            let Some(shard) = Home::shard_of(&name) else { continue };
            if !self.is_known(shard)? && self.remove_stray(shard)? {
                step.findings.push(Finding::Stray { path: Home::path(shard) });
            }
        }
        Ok(if number + 1 < Home::DIRECTORIES { Stage::Files(number + 1) } else { Stage::Done })
    }

    fn is_known(&self, shard: ShardId) -> Result<bool> {
        self.view(|view: &MergedIndex| {
            if view.state.shard_layers(shard).next().is_some() {
                return Ok(true);
            }
            let mut rings: Vec<RingId> = view.state.positions.keys().map(|(ring, _)| *ring).collect();
            rings.dedup();
            for ring in rings {
                match view.durable_shard(ring, shard) {
                    Ok(None) => {}
                    Ok(Some(_)) | Err(Error::Damaged { .. }) => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            Ok(false)
        })
    }

    /// Removes a stray file, unless a write of the shard has begun. Returns true if it was removed.
    fn remove_stray(&self, shard: ShardId) -> Result<bool> {
        let Some((id, io)) = self.machine.write().remove_stray(shard)? else { return Ok(false) };
        // A checkpoint may have committed the shard's record after it was looked up; writes are refused from now on.
        let removed = match self.is_known(shard) {
            Ok(false) => self.perform(id, &io, &[]).map(|()| true),
            known => {
                self.machine.write().done(id, Ok(()))?;
                known.map(|_| false)
            }
        };
        self.wake_writers();
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{MemoryStorage, Storage};
    use crate::tests::support::*;

    fn write(brick: &Brick, index: u64, first: u32, count: u32) {
        let (run, bytes) = run_of(shard(index), first, 6, count);
        let count = brick.position(RING, PARTITION).sequence.0 + 1;
        let stamp = Stamp { count, session: SessionId(1), op: OpId(1) };
        let record = ShardRecord { stamp, length: 1000 * BLOCK, home_blocks: 1000, reserved_blocks: 0 };
        append(brick, vec![Change::WriteBlocks { shard: shard(index), record, run, bytes }]);
    }

    const SEGMENT: u64 = 2 << 20;

    fn new() -> (MemoryStorage, Brick) {
        let storage = new_storage_with(SEGMENT);
        let brick = open_on(storage.clone(), &identity_with(SEGMENT), false).0;
        (storage, brick)
    }

    fn pass(brick: &Brick) -> (u64, Vec<Finding>) {
        let (mut cursor, mut bytes, mut findings) = (ScrubCursor::default(), 0, Vec::new());
        while !cursor.is_done() {
            let step = brick.scrub(&mut cursor).unwrap();
            bytes += step.bytes;
            findings.extend(step.findings);
        }
        (bytes, findings)
    }

    #[test]
    fn a_pass_reads_everything_and_names_each_damaged_block() {
        let (storage, brick) = new();
        for index in 0..3 {
            write(&brick, index, 10, 40);
            write(&brick, index, 700, 1);
        }
        brick.checkpoint().unwrap();
        let (bytes, findings) = pass(&brick);
        assert!(bytes > 3 * 1000 * BLOCK_BYTES as u64, "{bytes}");
        assert_eq!(findings, []);
        storage.flip_bit(&Home::path(shard(1)), 12 * BLOCK_BYTES + 99);
        storage.flip_bit(&Home::path(shard(2)), 700 * BLOCK_BYTES);
        let mut found = pass(&brick).1;
        found.sort_by_key(|finding| format!("{finding:?}"));
        let block = |index, block| Finding::Block { ring: RING, shard: shard(index), block };
        assert_eq!(found, [block(1, 12), block(2, 700)]);
    }

    #[test]
    fn a_scrub_removes_stray_data_files_and_keeps_those_being_written() {
        let (storage, brick) = new();
        write(&brick, 0, 0, 1);
        brick.checkpoint().unwrap();
        storage.open(&Home::path(shard(8)), true).unwrap();
        brick.write_fresh(RING, shard(9), 0, &[&[1; BLOCK_BYTES]]).unwrap();
        let other = format!("{}/a foreign file", Home::directory_of(0));
        storage.open(&other, true).unwrap();
        assert_eq!(pass(&brick).1, [Finding::Stray { path: Home::path(shard(8)) }]);
        let paths = storage.paths();
        for (path, stays) in [(Home::path(shard(0)), true), (Home::path(shard(8)), false), (other, true)] {
            assert_eq!(paths.contains(&path), stays, "{path}");
        }
        assert!(paths.contains(&Home::path(shard(9))), "its record comes next");
    }

    #[test]
    fn a_damaged_entry_is_named_and_the_pass_goes_on() {
        let (storage, brick) = new();
        for index in 0..3 {
            write(&brick, index, 0, 1);
        }
        brick.checkpoint().unwrap();
        // The stamp of the second record: count 2, session 1, op 1.
        let value: Vec<u8> = [2u64, 1, 1].iter().flat_map(|part| part.to_le_bytes()).collect();
        // Its pages are in the cache of the open index.
        drop(brick);
        flip_in_index(&storage, &value, 1);
        let brick = open_on(storage.clone(), &identity_with(SEGMENT), false).0;
        let key = Key::shard(RING, shard(1));
        assert_eq!(pass(&brick).1, [Finding::Entry { key: key.clone() }]);
        // A comparison finds that the entry differs from that on every other brick.
        let (from, to) = Key::object_range(RING, PartitionNumber(0), 1);
        assert_eq!(brick.damaged_entries(&from, &to).unwrap(), [key]);
        brick.entry_hashes(&from, &to, 100).unwrap();
        let found = brick.shards_between(RING, &from, &to).unwrap();
        let stamps: Vec<bool> = found.iter().map(|(_, record)| record.stamp.session == SessionId(1)).collect();
        assert_eq!(stamps.iter().filter(|is_read| **is_read).count(), 2, "{found:?}");
        assert_eq!(found.len(), 3);
        // A write of the shard replaces the damaged record.
        write(&brick, 1, 0, 1);
        assert_eq!(brick.damaged_entries(&from, &to).unwrap(), []);
    }
}
