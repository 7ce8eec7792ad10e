//! Reads of entries, shard records and blocks. Blocks come from the journal's records in memory or from home, each
//! checked.

use super::Brick;
use super::merged_index::{BlockSource, MergedIndex, durable_shards, read_places};
use crate::machine::LogPosition;
use bytes::Bytes;
use hekate_proto::*;

/// Scans of a partition's shards without the machine's lock. The scan after them holds the lock, and writers wait.
const SCANS_MAX: usize = 3;

impl Brick {
    /// Calls `read` with the state and the index, under the machine's lock. `Poisoned` if the brick has stopped.
    pub(crate) fn view<T>(&self, read: impl FnOnce(&MergedIndex) -> Result<T>) -> Result<T> {
        self.guarded(|| {
            let machine = self.machine.read();
            machine.check_alive()?;
            read(&MergedIndex { state: machine.state(), index: &*self.disk.index })
        })
    }

    /// The value of a key.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        self.view(|view| view.get(key))
    }

    /// At most `limit` entries of `from..to`, in the order of their keys.
    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>> {
        self.view(|view| view.scan(from, to, limit))
    }

    /// The record of a shard; `None`: it does not exist, or was dropped.
    pub fn shard(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        self.view(|view| view.shard(ring, shard))
    }

    /// All shards of a partition, of `count` in the ring.
    pub fn shards(&self, ring: RingId, partition: PartitionNumber, count: u32) -> Result<Vec<ShardId>> {
        // The scan may take long, so it does not hold the machine's lock. A checkpoint that ends meanwhile moves shards
        // from the overlay to the index, and the scan is repeated.
        for _ in 0..SCANS_MAX {
            let applied = self.machine.read().applied();
            let durable = self.guarded(|| durable_shards(&*self.disk.index, ring, partition, count))?;
            let found = self.view(|view| Ok(view.shards(ring, partition, count, durable)))?;
            if self.machine.read().applied() == applied {
                return Ok(found);
            }
        }
        self.view(|view| {
            let durable = durable_shards(view.index, ring, partition, count)?;
            Ok(view.shards(ring, partition, count, durable))
        })
    }

    /// At most `length` bytes of a shard from `offset` on, fewer at the shard's end. Each block is checked.
    ///
    /// # Errors
    /// `Damaged`: a block does not match its checksum; it names the block.
    pub fn read_shard(&self, ring: RingId, shard: ShardId, offset: u32, length: u32) -> Result<Bytes> {
        let block = BLOCK_BYTES as u32;
        let found = self.view(|view| {
            let Some(record) = view.shard(ring, shard)? else { return Ok(None) };
            let end = record.length.min(offset.saturating_add(length));
            if end <= offset {
                return Ok(None);
            }
            Ok(Some((end, view.places(ring, shard, offset / block, end.div_ceil(block))?)))
        })?;
        let Some((end, places)) = found else { return Ok(Bytes::new()) };
        let buffer = read_places(&self.disk.home, shard, offset / block, &places)?;
        let from = (offset % block) as usize;
        Ok(buffer.slice(from..from + (end - offset) as usize))
    }

    /// For each of the blocks `first..end` whether it is a hole: never written, or cut off or punched since.
    pub fn holes(&self, ring: RingId, shard: ShardId, first: u32, end: u32) -> Result<Vec<bool>> {
        let places = self.view(|view| match view.shard(ring, shard)? {
            Some(_) => view.places(ring, shard, first, end),
            None => Ok(vec![(0, BlockSource::Hole); end.saturating_sub(first) as usize]),
        })?;
        Ok(places.into_iter().map(|(sum, _)| sum == 0).collect())
    }

    /// A block, checked; it may lie behind the shard's end. `None`: it is a hole.
    pub fn read_block(&self, ring: RingId, shard: ShardId, block: u32) -> Result<Option<Bytes>> {
        let places = self.view(|view| view.places(ring, shard, block, block + 1))?;
        if matches!(places[..], [(0, _)]) {
            return Ok(None);
        }
        Ok(Some(read_places(&self.disk.home, shard, block, &places)?))
    }

    /// Whether these bytes match this brick's checksum of the block, for a copy of the block from elsewhere. The
    /// block's own bytes are not read.
    pub fn is_meant(&self, ring: RingId, shard: ShardId, block: u32, bytes: &[u8]) -> Result<bool> {
        let places = self.view(|view| view.places(ring, shard, block, block + 1))?;
        Ok(matches!(places[..], [(sum, _)] if sum != 0 && sum == crate::block_checksum(shard, block, bytes)))
    }

    /// A block of a data file, not checked.
    pub fn read_home(&self, shard: ShardId, block: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.disk.home.read(shard, block, &mut bytes)?;
        Ok(bytes)
    }

    /// `count` blocks of a data file, not checked; zeros for those that the disk cannot read.
    pub fn readable_home(&self, shard: ShardId, first: u32, count: usize) -> Result<Vec<u8>> {
        self.disk.home.readable(shard, first, count)
    }

    /// Whether the shard was dropped and a checkpoint has yet to remove its file: it cannot be written.
    pub fn is_dropped(&self, shard: ShardId) -> bool {
        self.machine.read().state().is_dropped(shard)
    }

    /// Epoch and sequence of the partition's last record.
    pub fn position(&self, ring: RingId, partition: PartitionNumber) -> LogPosition {
        self.machine.read().state().position(ring, partition)
    }
}
