//! What a brick holds now: the overlay over the index, and blocks over data files.

use crate::brick::{LogPosition, SharedState};
use crate::checksum::CRC_BLOCKS;
use crate::home::Home;
use crate::index::Index;
use crate::overlay::{Group, Overlay, ShardOverlay};
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

/// The state that appends change and checkpoints move.
#[derive(Default)]
pub struct State {
    /// Changes since the last checkpoint began.
    pub active: Overlay,
    /// How many overlays there were before it.
    pub active_number: u64,
    /// Changes that the running checkpoint writes home.
    pub frozen: Option<Arc<Overlay>>,
    /// Each partition's log.
    pub positions: HashMap<(RingId, PartitionNumber), LogPosition>,
}

/// See the module.
pub struct Blocks {
    pub state: SharedState,
    pub index: Box<dyn Index>,
    pub home: Home,
}

/// So many home writes of one overlay's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HomeWrites {
    overlay: u64,
    writes: u64,
}

impl State {
    /// Newest first.
    fn layers(&self) -> impl Iterator<Item = &Overlay> {
        std::iter::once(&self.active).chain(self.frozen.as_deref())
    }

    /// What was changed last overrides.
    pub fn layers_oldest_first(&self) -> impl Iterator<Item = &Overlay> {
        self.frozen.as_deref().into_iter().chain(std::iter::once(&self.active))
    }

    /// A shard's changes, newest first.
    pub fn shard_layers(&self, shard: ShardId) -> impl Iterator<Item = &ShardOverlay> {
        self.layers().filter_map(move |overlay| overlay.shards.get(&shard))
    }

    fn entry(&self, key: &Key) -> Option<&Option<Bytes>> {
        self.layers().find_map(|overlay| overlay.entries.get(key))
    }
}

impl Blocks {
    pub fn new(index: Box<dyn Index>, home: Home) -> Self {
        Self { state: RwLock::default(), index, home }
    }

    pub fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        if let Some(found) = self.state.read().entry(key) {
            return Ok(found.clone());
        }
        self.index.get(key.as_bytes())
    }

    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>> {
        let state = self.state.read();
        let range = (Bound::Included(from), Bound::Excluded(to));
        let mut newer = state.active.entries.range::<Key, _>(range).peekable();
        let empty = Overlay::default();
        let frozen = state.frozen.as_deref().unwrap_or(&empty);
        let mut older = frozen.entries.range::<Key, _>(range).peekable();
        let mut found = Vec::new();
        // Takes what the overlays have before `until`, the newer one hiding the older.
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
        self.index.scan(from.as_bytes(), to.as_bytes(), &mut |key, value| {
            let key = Key::from_bytes(Bytes::copy_from_slice(key));
            let hidden = drain(Some(&key), &mut found);
            if found.len() >= limit {
                return false;
            }
            if !hidden {
                found.push((key, value));
            }
            found.len() < limit
        })?;
        drain(None, &mut found);
        Ok(found)
    }

    /// Takes a record's changes; called in log order.
    pub fn apply(&self, record: &Record) -> Result<()> {
        let mut state = self.state.write();
        for change in &record.changes {
            self.apply_change(&mut state, record.ring, change)?;
        }
        let position = LogPosition { epoch: record.epoch, sequence: record.sequence };
        state.positions.insert((record.ring, record.partition), position);
        Ok(())
    }

    fn apply_change(&self, state: &mut State, ring: RingId, change: &Change) -> Result<()> {
        match change {
            Change::Put { key, value } => state.active.put(key.clone(), Some(value.clone())),
            Change::Delete { key } => state.active.put(key.clone(), None),
            Change::WriteBlocks { shard, record, run, bytes } => {
                if bytes.len() != run.checksums.len() * BLOCK_BYTES {
                    return Err(Error::bug("a run whose bytes are not its blocks"));
                }
                self.set_checksums(state, ring, *shard, run)?;
                state.active.bytes += bytes.len();
                let overlay = state.active.shard(ring, *shard);
                overlay.record = Some(*record);
                for index in 0..run.checksums.len() {
                    let block = bytes.slice(index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES);
                    overlay.pending.insert(run.first + index as u32, block);
                }
            }
            Change::FreshBlocks { shard, record, run } => {
                self.set_checksums(state, ring, *shard, run)?;
                let overlay = state.active.shard(ring, *shard);
                overlay.record = Some(*record);
                overlay.home_writes += 1;
            }
            Change::CutShard { shard, record } => {
                state.active.frees_space = true;
                self.cut(state, ring, *shard, *record)?;
            }
            Change::DropShard { shard } => {
                state.active.frees_space = true;
                let overlay = state.active.shard(ring, *shard);
                overlay.record = None;
                overlay.pending.clear();
                overlay.checksums.clear();
            }
        }
        Ok(())
    }

    fn set_checksums(&self, state: &mut State, ring: RingId, shard: ShardId, run: &BlockRun) -> Result<()> {
        let mut block = run.first;
        let mut rest = &run.checksums[..];
        while !rest.is_empty() {
            let (group, from) = ((block / CRC_BLOCKS) as u16, (block % CRC_BLOCKS) as usize);
            let count = rest.len().min(CRC_BLOCKS as usize - from);
            let now = self.group_for_change(state, ring, shard, group)?;
            now[from..from + count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            block += count as u32;
        }
        Ok(())
    }

    /// The active overlay's copy of a group, made from what it is now.
    fn group_for_change<'a>(
        &self,
        state: &'a mut State,
        ring: RingId,
        shard: ShardId,
        group: u16,
    ) -> Result<&'a mut Group> {
        let known = state.active.shards.get(&shard).is_some_and(|overlay| overlay.checksums.contains_key(&group));
        if !known {
            let now = self.group(state, ring, shard, group)?;
            state.active.bytes += size_of::<Group>();
            state.active.shard(ring, shard).checksums.insert(group, Box::new(now));
        }
        let overlay = state.active.shard(ring, shard);
        overlay.checksums.get_mut(&group).map(|group| &mut **group).ok_or_else(|| Error::bug("a group just made"))
    }

    /// Checksums of a group as they are now.
    pub fn group(&self, state: &State, ring: RingId, shard: ShardId, group: u16) -> Result<Group> {
        for overlay in state.shard_layers(shard) {
            if let Some(found) = overlay.checksums.get(&group) {
                return Ok(**found);
            }
        }
        match self.index.get(Key::checksums(ring, shard, group).as_bytes())? {
            Some(bytes) => decode_group(&bytes),
            None => Ok([0; CRC_BLOCKS as usize]),
        }
    }

    fn cut(&self, state: &mut State, ring: RingId, shard: ShardId, record: ShardRecord) -> Result<()> {
        let kept = record.length.div_ceil(BLOCK_BYTES as u32);
        let groups = record.home_blocks.div_ceil(CRC_BLOCKS);
        for group in kept / CRC_BLOCKS..groups {
            let now = self.group_for_change(state, ring, shard, group as u16)?;
            let from = (kept.saturating_sub(group * CRC_BLOCKS)).min(CRC_BLOCKS);
            now[from as usize..].fill(0);
        }
        let overlay = state.active.shard(ring, shard);
        overlay.record = Some(record);
        overlay.pending.split_off(&kept);
        overlay.cut_from = Some(overlay.cut_from.map_or(kept, |before| before.min(kept)));
        Ok(())
    }

    pub fn shard(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        self.shard_in(&self.state.read(), ring, shard)
    }

    pub fn shard_in(&self, state: &State, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        if let Some(overlay) = state.shard_layers(shard).next() {
            return Ok(overlay.record);
        }
        let bytes = self.index.get(Key::shard(ring, shard).as_bytes())?;
        Ok(bytes.map(ShardRecord::from_bytes).transpose()?)
    }

    /// Whether a checkpoint has yet to remove the shard: until then it cannot come back.
    pub fn is_dropped(&self, shard: ShardId) -> bool {
        self.state.read().shard_layers(shard).any(|overlay| overlay.record.is_none())
    }

    /// Bytes of memory that changes take, and that home will take.
    pub fn overlay_bytes(&self) -> usize {
        let state = self.state.read();
        state.active.bytes + state.frozen.as_ref().map_or(0, |frozen| frozen.bytes)
    }

    /// Shards with bytes at home that no sync has covered.
    pub fn unsynced_shards(&self) -> Vec<ShardId> {
        let state = self.state.read();
        let unsynced = |overlay: &ShardOverlay| overlay.home_synced < overlay.home_writes;
        let all = state.layers().flat_map(|layer| layer.shards.iter());
        all.filter(|(_, overlay)| unsynced(overlay)).map(|(shard, _)| *shard).collect()
    }

    /// If the shard's data file has bytes that no sync has covered: its last stamp, and what to tell `home_synced`.
    pub fn unsynced_home(&self, shard: ShardId) -> Option<(Stamp, HomeWrites)> {
        let state = self.state.read();
        let unsynced = state.shard_layers(shard).any(|overlay| overlay.home_synced < overlay.home_writes);
        let stamp = state.shard_layers(shard).next().and_then(|overlay| overlay.record)?.stamp;
        let writes = state.active.shards.get(&shard).map_or(0, |overlay| overlay.home_writes);
        unsynced.then_some((stamp, HomeWrites { overlay: state.active_number, writes }))
    }

    /// The data file was synced after these home writes. Nothing, if a checkpoint has begun since: it syncs them.
    pub fn home_synced(&self, shard: ShardId, HomeWrites { overlay, writes }: HomeWrites) {
        let mut state = self.state.write();
        if state.active_number != overlay {
            return;
        }
        if let Some(overlay) = state.active.shards.get_mut(&shard) {
            overlay.home_synced = overlay.home_synced.max(writes);
        }
    }
}

/// A group as the index has it.
pub fn decode_group(bytes: &[u8]) -> Result<Group> {
    let mut group = [0; CRC_BLOCKS as usize];
    if bytes.len() != size_of::<Group>() {
        return Err(Error::Damaged { what: "a group of checksums of the wrong size".into() });
    }
    for (sum, bytes) in group.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *sum = u32::from_le_bytes(*bytes);
    }
    Ok(group)
}

/// A group as the index has it.
pub fn encode_group(group: &Group) -> Bytes {
    group.iter().flat_map(|sum| sum.to_le_bytes()).collect()
}
