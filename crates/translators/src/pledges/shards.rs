//! Shards of files that leaders have pledged, and those of their bytes that are remembered.
//!
//! Invariant: the shards of a file were pledged for the layout that is named here. A layout that is in use is known from
//! the inode's leader, which changes it only after its own pledge was returned: so bytes that a truncate removed are
//! never answered, though nobody recalls them.

use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{DataId, InodeId, Layout, PartitionNumber, VolumeId};
use hekate_threads::HashMap;
use std::collections::BTreeMap;

/// Memory for all files, in bytes, in two generations of half as much.
const MEMORY_MAX: usize = 32 << 20;
/// What a shard takes besides its bytes.
const SHARD_MEMORY: usize = 256;
/// Runs of a shard whose bytes are remembered. With one more the others are forgotten.
const RUNS_MAX: usize = 64;

/// Says that nothing is pledged, in place of a file's number.
pub(crate) const NOT_PLEDGED: u64 = 0;

#[derive(Debug, Default)]
pub(super) struct Shards {
    newer: HashMap<InodeId, File>,
    older: HashMap<InodeId, File>,
    newer_memory: usize,
    /// The data ids of these files.
    inodes: HashMap<DataId, InodeId>,
    /// The last number that a file was given.
    last: u64,
    /// Files that were forgotten for want of room, and that doors have not forgotten yet.
    evicted: Vec<InodeId>,
}

/// The pledged shards of one file, which is forgotten as a whole.
#[derive(Debug)]
struct File {
    /// Never given again: whoever finds it unchanged knows that nothing was forgotten meanwhile.
    number: u64,
    volume: VolumeId,
    layout: Layout,
    /// The partitions that have pledged something.
    partitions: Vec<PartitionNumber>,
    shards: HashMap<(DataId, u64), Shard>,
    memory: usize,
}

#[derive(Debug)]
struct Shard {
    partition: PartitionNumber,
    /// Number of the pledge.
    pledge: u64,
    /// What was read, by its place in the shard.
    runs: BTreeMap<u32, Bytes>,
}

/// A read of a shard whose reply carried a pledge.
pub(crate) struct ShardRead<'a> {
    pub volume: VolumeId,
    pub inode: InodeId,
    pub layout: &'a Layout,
    pub shard: (DataId, u64),
    /// Place of the first byte in the shard.
    pub offset: u32,
    /// `None`: they are not remembered.
    pub bytes: Option<&'a Bytes>,
}

impl Shards {
    /// Takes a pledge. Returns the number of the file.
    pub(super) fn remember(&mut self, read: &ShardRead, partition: PartitionNumber, pledge: u64) -> u64 {
        let known = self.take(read.inode).filter(|file| file.layout == *read.layout);
        let mut file = known.unwrap_or_else(|| {
            self.last += 1;
            let (volume, layout) = (read.volume, read.layout.clone());
            File { number: self.last, volume, layout, partitions: Vec::new(), shards: HashMap::default(), memory: 0 }
        });
        if !file.partitions.contains(&partition) {
            file.partitions.push(partition);
        }
        let shard = file.shards.entry(read.shard).or_insert_with(|| {
            file.memory += SHARD_MEMORY;
            Shard { partition, pledge, runs: BTreeMap::new() }
        });
        (shard.partition, shard.pledge) = (partition, pledge);
        if let Some(bytes) = read.bytes.filter(|bytes| !bytes.is_empty()) {
            if shard.runs.len() >= RUNS_MAX {
                file.memory -= shard.runs.values().map(Bytes::len).sum::<usize>();
                shard.runs.clear();
            }
            // Bytes that came with a frame share its memory.
            let before = shard.runs.insert(read.offset, Bytes::copy_from_slice(bytes));
            file.memory = file.memory + bytes.len() - before.map_or(0, |before| before.len());
        }
        self.put(read.inode, file)
    }

    /// Removes a file.
    fn take(&mut self, inode: InodeId) -> Option<File> {
        let file = match self.newer.remove(&inode) {
            Some(file) => {
                self.newer_memory -= file.memory;
                file
            }
            None => self.older.remove(&inode)?,
        };
        self.forget_data(&file, inode);
        Some(file)
    }

    /// Another file may have the data by now.
    fn forget_data(&mut self, file: &File, inode: InodeId) {
        for piece in &file.layout.pieces {
            if self.inodes.get(&piece.data) == Some(&inode) {
                self.inodes.remove(&piece.data);
            }
        }
    }

    fn put(&mut self, inode: InodeId, file: File) -> u64 {
        if file.memory > MEMORY_MAX / 2 {
            self.evicted.push(inode);
            return NOT_PLEDGED;
        }
        if self.newer_memory + file.memory > MEMORY_MAX / 2 {
            for (evicted, file) in std::mem::replace(&mut self.older, std::mem::take(&mut self.newer)) {
                self.forget_data(&file, evicted);
                self.evicted.push(evicted);
            }
            self.newer_memory = 0;
        }
        self.inodes.extend(file.layout.pieces.iter().map(|piece| (piece.data, inode)));
        self.newer_memory += file.memory;
        let number = file.number;
        self.newer.insert(inode, file);
        number
    }

    fn get(&self, inode: InodeId) -> Option<&File> {
        self.newer.get(&inode).or_else(|| self.older.get(&inode))
    }

    /// The number of the file, if it has this layout, and all of these partitions pass the check.
    pub(super) fn number(
        &self,
        inode: InodeId,
        layout: &Layout,
        is_valid: impl Fn(PartitionNumber) -> bool,
    ) -> Option<u64> {
        let file = self.get(inode).filter(|file| file.layout == *layout)?;
        file.partitions.iter().all(|partition| is_valid(*partition)).then_some(file.number)
    }

    /// Bytes of a file with this layout, if all of them are remembered.
    pub(super) fn read(
        &self,
        (inode, layout): (InodeId, &Layout),
        offset: u64,
        length: usize,
        is_valid: impl Fn(PartitionNumber) -> bool,
    ) -> Option<Vec<u8>> {
        let is_it = |file: &&File| file.layout == *layout || is_planted(Bug::OldLayoutAnswered);
        let file = self.get(inode).filter(is_it)?;
        let mut bytes = Vec::with_capacity(length);
        for (shard, from, count) in layout.shard_runs(file.volume, offset, length) {
            let known = file.shards.get(&(shard.data, shard.index)).filter(|known| is_valid(known.partition))?;
            let (start, run) = known.runs.range(..=from as u32).next_back()?;
            let skipped = from as usize - *start as usize;
            bytes.extend_from_slice(run.get(skipped..skipped + count)?);
        }
        (bytes.len() == length).then_some(bytes)
    }

    /// Forgets a file.
    pub(super) fn forget(&mut self, inode: InodeId) {
        self.take(inode);
    }

    /// Forgets the file of a shard whose pledge of this number, or an earlier one, is recalled. Returns the file, also if
    /// nothing is known of the shard itself.
    pub(super) fn recalled(
        &mut self,
        shard: (DataId, u64),
        partition: PartitionNumber,
        pledge: u64,
    ) -> Option<InodeId> {
        let inode = *self.inodes.get(&shard.0)?;
        // One that was given since is about the same bytes.
        let known = self.get(inode).and_then(|file| file.shards.get(&shard));
        if known.is_some_and(|known| known.partition != partition || known.pledge > pledge) {
            return None;
        }
        self.take(inode);
        Some(inode)
    }

    /// Forgets all files of which the partition has pledged something.
    pub(super) fn forget_partition(&mut self, partition: PartitionNumber) {
        let all = self.newer.iter().chain(&self.older);
        let has_it = all.filter(|(_, file)| file.partitions.contains(&partition));
        let inodes: Vec<InodeId> = has_it.map(|(inode, _)| *inode).collect();
        inodes.into_iter().for_each(|inode| _ = self.take(inode));
    }

    /// Forgets all files.
    pub(super) fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
        self.inodes.clear();
        self.newer_memory = 0;
    }

    pub(super) fn evict_again(&mut self, files: Vec<InodeId>) {
        self.evicted.extend(files);
    }

    /// Files that were forgotten for want of room since the last call.
    pub(super) fn take_evicted(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.evicted)
    }
}
