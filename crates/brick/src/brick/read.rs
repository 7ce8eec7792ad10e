//! Reads: what the overlays and the index say, and blocks from the journal or from home, each checked.

use super::Brick;
use super::merged_index::{BlockSource, MergedIndex, durable_shards, read_places};
use crate::machine::LogPosition;
use bytes::Bytes;
use hekate_proto::*;

/// How often all of a partition is looked through before writers have to wait for it.
const SCANS_MAX: usize = 3;

impl Brick {
    /// Reads under the machine's lock; nothing of a brick that stopped.
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

    /// At most `limit` entries of `from..to`, in order.
    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>> {
        self.view(|view| view.scan(from, to, limit))
    }

    /// A shard as it is.
    pub fn shard(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        self.view(|view| view.shard(ring, shard))
    }

    /// All shards of a partition (one of `count`).
    pub fn shards(&self, ring: RingId, partition: PartitionNumber, count: u32) -> Result<Vec<ShardId>> {
        // It may take long, so not under the machine's lock: unless checkpoints end again and again meanwhile, each of
        // which moves shards from the overlay to the index.
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

    /// At most `length` bytes of a shard from `offset`, each block checked; short at the shard's end.
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
        Ok(buffer.freeze().slice(from..from + (end - offset) as usize))
    }

    /// Of the blocks `first..end`, which are holes: never written, or cut off or punched since.
    pub fn holes(&self, ring: RingId, shard: ShardId, first: u32, end: u32) -> Result<Vec<bool>> {
        let places = self.view(|view| match view.shard(ring, shard)? {
            Some(_) => view.places(ring, shard, first, end),
            None => Ok(vec![(0, BlockSource::Hole); end.saturating_sub(first) as usize]),
        })?;
        Ok(places.into_iter().map(|(sum, _)| sum == 0).collect())
    }

    /// A block, checked, also behind the shard's end; `None` for a hole.
    pub fn read_block(&self, ring: RingId, shard: ShardId, block: u32) -> Result<Option<Bytes>> {
        let places = self.view(|view| view.places(ring, shard, block, block + 1))?;
        if matches!(places[..], [(0, _)]) {
            return Ok(None);
        }
        Ok(Some(read_places(&self.disk.home, shard, block, &places)?.freeze()))
    }

    /// Whether these bytes are what a block is to hold: by its checksum, whatever the block itself holds by now.
    pub fn is_meant(&self, ring: RingId, shard: ShardId, block: u32, bytes: &[u8]) -> Result<bool> {
        let places = self.view(|view| view.places(ring, shard, block, block + 1))?;
        Ok(matches!(places[..], [(sum, _)] if sum != 0 && sum == crate::block_checksum(shard, block, bytes)))
    }

    /// A block of a data file as it is, unchecked.
    pub fn read_home(&self, shard: ShardId, block: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.disk.home.read(shard, block, &mut bytes)?;
        Ok(bytes)
    }

    /// So many blocks of it, with zeros for those that cannot be read.
    pub fn readable_home(&self, shard: ShardId, first: u32, count: usize) -> Result<Vec<u8>> {
        self.disk.home.readable(shard, first, count)
    }

    /// Whether the shard was given up and a checkpoint has yet to remove it: it cannot be written.
    pub fn is_dropped(&self, shard: ShardId) -> bool {
        self.machine.read().state().is_dropped(shard)
    }

    /// How far a partition's log has come here.
    pub fn position(&self, ring: RingId, partition: PartitionNumber) -> LogPosition {
        self.machine.read().state().position(ring, partition)
    }
}
