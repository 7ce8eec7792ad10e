//! Reading a shard: each block from the newest place that has it, each checked against its checksum.
//!
//! A reader takes where each block is under the state's lock and reads the data file after it. A block found to be at
//! home is not written there meanwhile: only a checkpoint writes blocks home, and only those that an overlay had.

use crate::blocks::{Blocks, State};
use crate::checksum::{CRC_BLOCKS, block_checksum};
use crate::home::Home;
use bytes::{Bytes, BytesMut};
use hekate_proto::*;

/// Where a block's bytes are.
enum Place {
    Hole,
    Pending(Bytes),
    Home,
}

impl Blocks {
    pub fn read_shard(&self, ring: RingId, shard: ShardId, offset: u32, length: u32) -> Result<Bytes> {
        let (first, end, places) = {
            let state = self.state.read();
            let Some(record) = self.shard_in(&state, ring, shard)? else { return Ok(Bytes::new()) };
            let end = record.length.min(offset.saturating_add(length));
            if end <= offset {
                return Ok(Bytes::new());
            }
            let first = offset / BLOCK_BYTES as u32;
            (first, end, self.places(&state, ring, shard, first, end.div_ceil(BLOCK_BYTES as u32))?)
        };
        let mut buffer = BytesMut::zeroed(places.len() * BLOCK_BYTES);
        self.fill(shard, first, &places, &mut buffer)?;
        let from = (offset % BLOCK_BYTES as u32) as usize;
        Ok(buffer.freeze().slice(from..from + (end - offset) as usize))
    }

    pub fn shards(&self, ring: RingId, partition: PartitionNumber, count: u32) -> Result<Vec<ShardId>> {
        // Before the index: what a checkpoint moves there meanwhile is in one of them.
        let state = self.state.read();
        let mut shards = std::collections::BTreeMap::new();
        let (from, to) = Key::object_range(ring, partition, count);
        self.index.scan(from.as_bytes(), to.as_bytes(), &mut |key, _| {
            let key = Key::from_bytes(Bytes::copy_from_slice(key));
            if let Some(shard) = key.as_shard() {
                shards.insert(shard, true);
            }
            true
        })?;
        for overlay in state.layers_oldest_first() {
            for (shard, change) in &overlay.shards {
                if change.ring == ring && shard.position().partition(count) == partition {
                    shards.insert(*shard, change.record.is_some());
                }
            }
        }
        Ok(shards.into_iter().filter_map(|(shard, exists)| exists.then_some(shard)).collect())
    }

    fn places(&self, state: &State, ring: RingId, shard: ShardId, first: u32, end: u32) -> Result<Vec<(u32, Place)>> {
        let mut places = Vec::with_capacity((end - first) as usize);
        let mut block = first;
        while block < end {
            let group = block / CRC_BLOCKS;
            let sums = self.group(state, ring, shard, group as u16)?;
            let group_end = end.min((group + 1) * CRC_BLOCKS);
            for block in block..group_end {
                let sum = sums[(block % CRC_BLOCKS) as usize];
                let pending = || state.shard_layers(shard).find_map(|overlay| overlay.pending.get(&block).cloned());
                let place = match sum {
                    0 => Place::Hole,
                    _ => pending().map_or(Place::Home, Place::Pending),
                };
                places.push((sum, place));
            }
            block = group_end;
        }
        Ok(places)
    }

    fn fill(&self, shard: ShardId, first: u32, places: &[(u32, Place)], buffer: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < places.len() {
            let run = places[at..].iter().take_while(|(_, place)| matches!(place, Place::Home)).count();
            if run > 0 {
                let into = &mut buffer[at * BLOCK_BYTES..(at + run) * BLOCK_BYTES];
                self.home.read(shard, first + at as u32, into)?;
            } else if let Place::Pending(bytes) = &places[at].1 {
                buffer[at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES].copy_from_slice(bytes);
            }
            at += run.max(1);
        }
        for (index, (sum, _)) in places.iter().enumerate().filter(|(_, (sum, _))| *sum != 0) {
            let block = first + index as u32;
            let bytes = &buffer[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES];
            if block_checksum(shard, block, bytes) != *sum {
                return Err(Error::Damaged { what: format!("block {block} of {}", Home::path(shard)) });
            }
        }
        Ok(())
    }
}
