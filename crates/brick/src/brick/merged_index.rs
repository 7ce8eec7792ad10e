//! What a brick holds now: the overlays over the index, and where the bytes of each block are.
//!
//! A reader looks up the places of blocks under the machine's lock and reads the data file after it has released it. A
//! block whose place is home is not written meanwhile: only a checkpoint writes blocks home, and only those whose place
//! was the journal.

use crate::checksum::{CRC_BLOCKS, block_checksum};
use crate::disk::home::Home;
use crate::index::Index;
use crate::machine::{Before, Overlay, PartialGroup, State};
use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;
use std::ops::Bound;

pub struct MergedIndex<'a> {
    pub state: &'a State,
    pub index: &'a dyn Index,
}

/// Where a block's bytes are.
#[derive(Debug, Clone)]
pub enum BlockSource {
    /// Nowhere: it reads as zeros.
    Hole,
    /// In a record of the journal, and in memory.
    Pending(Bytes),
    /// In the data file.
    Home,
}

impl MergedIndex<'_> {
    /// The value of a key.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        match self.state.layers().find_map(|overlay| overlay.entries.get(key)) {
            Some(found) => Ok(found.clone()),
            None => self.index.get(key.as_bytes()),
        }
    }

    /// At most `limit` entries of `from..to`, in the order of their keys.
    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>> {
        self.scan_with(from, to, limit, &Err)
    }

    /// As [`MergedIndex::scan`]. For an entry whose value in the index is damaged, and which no overlay replaces,
    /// `damaged` gives the value or the error.
    pub fn scan_with(
        &self,
        from: &Key,
        to: &Key,
        limit: usize,
        damaged: &dyn Fn(Error) -> Result<Bytes>,
    ) -> Result<Vec<(Key, Bytes)>> {
        let mut failed = Ok(());
        let range = (Bound::Included(from), Bound::Excluded(to));
        let mut newer = self.state.active.entries.range::<Key, _>(range).peekable();
        let empty = Overlay::default();
        let frozen = self.state.frozen.as_deref().unwrap_or(&empty);
        let mut older = frozen.entries.range::<Key, _>(range).peekable();
        let mut found = Vec::new();
        // Moves the overlays' entries up to `until` into `found`; the newer overlay hides the older. Returns true if an
        // overlay has `until`.
        let mut drain = |until: Option<&Key>, found: &mut Vec<(Key, Bytes)>| {
            loop {
                let key = match (newer.peek(), older.peek()) {
                    (Some((a, _)), Some((b, _))) => (*a).min(*b).clone(),
                    (Some((a, _)), None) => (*a).clone(),
                    (None, Some((b, _))) => (*b).clone(),
                    (None, None) => return false,
                };
                if until.is_some_and(|until| key > *until) || found.len() >= limit {
                    return false;
                }
                let new = newer.next_if(|(k, _)| **k == key).map(|(_, v)| v);
                let old = older.next_if(|(k, _)| **k == key).map(|(_, v)| v);
                let hides = until.is_some_and(|until| key == *until);
                if let Some(Some(value)) = new.or(old) {
                    found.push((key, value.clone()));
                }
                if hides {
                    return true;
                }
            }
        };
        self.index.scan_all(from.as_bytes(), to.as_bytes(), &mut |key, value| {
            let key = Key::from_bytes(Bytes::copy_from_slice(key));
            let hidden = drain(Some(&key), &mut found);
            if found.len() >= limit {
                return false;
            }
            if !hidden {
                match value.or_else(damaged) {
                    Ok(value) => found.push((key, value)),
                    Err(error) => failed = Err(error),
                }
            }
            failed.is_ok() && found.len() < limit
        })?;
        failed?;
        drain(None, &mut found);
        Ok(found)
    }

    /// The record of a shard.
    pub fn shard(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        match self.state.shard_layers(shard).next() {
            Some(overlay) => Ok(overlay.record),
            None => self.durable_shard(ring, shard),
        }
    }

    /// The record of a shard as the index has it.
    pub fn durable_shard(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        let bytes = self.index.get(Key::shard(ring, shard).as_bytes())?;
        Ok(bytes.map(ShardRecord::from_bytes).transpose()?)
    }

    /// As [`MergedIndex::durable_shard`], for a record that changes the shard: damage of the old record is no error.
    pub fn before(&self, ring: RingId, shard: ShardId) -> Result<Before> {
        match self.durable_shard(ring, shard) {
            Err(Error::Damaged { .. }) => Ok(Before::Unreadable),
            known => known.map(Before::Is),
        }
    }

    /// All shards of a partition, of `count` in the ring. `durable`: those that the index has.
    pub fn shards(&self, ring: RingId, partition: PartitionNumber, count: u32, durable: Vec<ShardId>) -> Vec<ShardId> {
        let mut shards: BTreeMap<ShardId, bool> = durable.into_iter().map(|shard| (shard, true)).collect();
        for overlay in self.state.layers_oldest_first() {
            for (shard, change) in &overlay.shards {
                if change.ring == ring && shard.position().partition(count) == partition {
                    shards.insert(*shard, change.record.is_some());
                }
            }
        }
        shards.into_iter().filter_map(|(shard, exists)| exists.then_some(shard)).collect()
    }

    /// The checksums of a group of 64 blocks.
    pub fn group(&self, ring: RingId, shard: ShardId, number: u16) -> Result<PartialGroup> {
        let mut group = PartialGroup::default();
        for overlay in self.state.shard_layers(shard) {
            if let Some(changed) = overlay.checksums.get(&number) {
                group.fill_from(changed);
            }
        }
        if !group.is_whole()
            && let Some(durable) =
                PartialGroup::from_index(self.index.get(Key::checksums(ring, shard, number).as_bytes()))?
        {
            group.fill_from(&durable);
        }
        Ok(group)
    }

    /// Checksum and place of each of the blocks `first..end`.
    pub fn places(&self, ring: RingId, shard: ShardId, first: u32, end: u32) -> Result<Vec<(u32, BlockSource)>> {
        let mut places = Vec::with_capacity((end - first) as usize);
        let mut block = first;
        while block < end {
            let number = block / CRC_BLOCKS;
            let group = self.group(ring, shard, number as u16)?;
            let group_end = end.min((number + 1) * CRC_BLOCKS);
            for block in block..group_end {
                let sum = group.sums()[(block % CRC_BLOCKS) as usize];
                let mut layers = self.state.shard_layers(shard);
                let place = match sum {
                    0 => BlockSource::Hole,
                    _ => layers
                        .find_map(|overlay| overlay.pending.get(&block).cloned())
                        .map_or(BlockSource::Home, BlockSource::Pending),
                };
                places.push((sum, place));
            }
            block = group_end;
        }
        Ok(places)
    }
}

/// The shards of a partition that the index has, of `count` in the ring.
pub fn durable_shards(index: &dyn Index, ring: RingId, partition: PartitionNumber, count: u32) -> Result<Vec<ShardId>> {
    let mut shards = Vec::new();
    let (from, to) = Key::object_range(ring, partition, count);
    // A shard whose record is damaged is listed too.
    index.scan_all(from.as_bytes(), to.as_bytes(), &mut |key, _| {
        shards.extend(Key::from_bytes(Bytes::copy_from_slice(key)).as_shard());
        true
    })?;
    Ok(shards)
}

/// The bytes of consecutive blocks from `first` on, each checked (data invariant 7).
///
/// # Errors
/// `Damaged`: a block does not match its checksum.
pub fn read_places(home: &Home, shard: ShardId, first: u32, places: &[(u32, BlockSource)]) -> Result<Bytes> {
    let mut buffer = Vec::with_capacity(places.len() * BLOCK_BYTES);
    let mut at = 0;
    while at < places.len() {
        let run = places[at..].iter().take_while(|(_, place)| matches!(place, BlockSource::Home)).count();
        match &places[at].1 {
            BlockSource::Home => home.append(shard, first + at as u32, run, &mut buffer)?,
            BlockSource::Pending(bytes) => buffer.extend_from_slice(bytes),
            BlockSource::Hole => buffer.resize(buffer.len() + BLOCK_BYTES, 0),
        }
        at += run.max(1);
    }
    assert_eq!(buffer.len(), places.len() * BLOCK_BYTES, "each block has its bytes");
    for (index, (sum, _)) in places.iter().enumerate().filter(|(_, (sum, _))| *sum != 0) {
        let block = first + index as u32;
        let found = block_checksum(shard, block, &buffer[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES]);
        if found != *sum && !is_planted(Bug::ChecksumMismatchReturned) {
            return Err(Error::Damaged { what: format!("block {block} of {}", Home::path(shard)) });
        }
    }
    Ok(buffer.into())
}
