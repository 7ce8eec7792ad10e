//! Checkpoints: what the overlay holds goes home, then the index moves, then the journal's space is free again.
//!
//! Order, each step on stable storage before the next: journal, data files, index. So the index is never ahead of
//! anything, and a crash in between leaves a journal that says all of it again. Appends go on meanwhile.

use crate::blocks::encode_group;
use crate::brick::Brick;
use crate::checksum::CRC_BLOCKS;
use crate::index::IndexChange;
use crate::journal::Lsn;
use crate::overlay::{Overlay, ShardOverlay};
use crate::recovery::Meta;
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// A checkpoint that has begun.
pub struct Checkpoint<'a> {
    brick: &'a Brick,
    _alone: MutexGuard<'a, ()>,
    upto: Lsn,
    frozen: Arc<Overlay>,
    meta: Meta,
}

impl Checkpoint<'_> {
    /// Writes home, then the index, then gives the journal back. An error poisons the brick.
    pub fn finish(self) -> Result<()> {
        let written = self.brick.write_home(self.upto, &self.frozen, &self.meta);
        written.inspect_err(|error| self.brick.poison(error))
    }
}

impl Brick {
    /// Writes everything home that was appended before now. Errors poison the brick.
    pub fn checkpoint(&self) -> Result<()> {
        self.begin_checkpoint().finish()
    }

    /// Decides what the checkpoint writes home. Between this and `finish`, a server syncs its other bricks: what this
    /// one gives back of its journal is then on stable storage everywhere.
    pub fn begin_checkpoint(&self) -> Checkpoint<'_> {
        let alone = self.checkpointing.lock();
        let (upto, frozen, meta) = self.freeze();
        Checkpoint { brick: self, _alone: alone, upto, frozen, meta }
    }

    fn write_home(&self, upto: Lsn, frozen: &Overlay, meta: &Meta) -> Result<()> {
        if frozen.is_empty() {
            self.blocks.state.write().frozen = None;
            return Ok(());
        }
        self.journal.sync(upto)?;
        // File order: the disk sees a sweep, not jumps.
        let mut shards: Vec<(&ShardId, &ShardOverlay)> = frozen.shards.iter().collect();
        shards.sort_by_key(|(shard, _)| **shard);
        for (shard, overlay) in &shards {
            self.write_shard_home(**shard, overlay)?;
        }
        for (shard, overlay) in &shards {
            let wrote = !overlay.pending.is_empty() || overlay.home_synced < overlay.home_writes;
            if overlay.record.is_some() && wrote {
                self.blocks.home.sync(**shard)?;
            }
        }
        self.commit(frozen, &shards, meta)?;
        // As long as the overlay says that they are dropped, nobody writes these shards anew.
        for (shard, _) in shards.iter().filter(|(_, overlay)| overlay.record.is_none()) {
            self.blocks.home.remove(**shard)?;
        }
        self.blocks.state.write().frozen = None;
        self.journal.recycle(upto);
        Ok(())
    }

    fn freeze(&self) -> (Lsn, Arc<Overlay>, Meta) {
        self.journal.at_rest(|end| {
            let mut state = self.blocks.state.write();
            let frozen = Arc::new(std::mem::take(&mut state.active));
            state.active_number += 1;
            state.frozen = Some(frozen.clone());
            let meta = Meta::new(end, self.generation, &state.positions);
            (end, frozen, meta)
        })
    }

    fn write_shard_home(&self, shard: ShardId, overlay: &ShardOverlay) -> Result<()> {
        let Some(record) = overlay.record else { return Ok(()) };
        if let Some(cut) = overlay.cut_from {
            self.punch_holes(shard, overlay, cut, record.home_blocks)?;
        }
        let mut run: Vec<&[u8]> = Vec::new();
        let mut first = 0;
        for (block, bytes) in &overlay.pending {
            if *block != first + run.len() as u32 || run.len() == CRC_BLOCKS as usize {
                self.write_run(shard, first, &run)?;
                run.clear();
                first = *block;
            }
            run.push(bytes);
        }
        self.write_run(shard, first, &run)
    }

    /// Gives back blocks that a cut took and nothing wrote since. All groups from the cut on are in the overlay; what
    /// becomes fresh meanwhile lies after `end`.
    fn punch_holes(&self, shard: ShardId, overlay: &ShardOverlay, cut: u32, end: u32) -> Result<()> {
        let written = |block: u32| {
            let group = overlay.checksums.get(&((block / CRC_BLOCKS) as u16));
            group.is_none_or(|group| group[(block % CRC_BLOCKS) as usize] != 0)
        };
        let mut block = cut;
        while block < end {
            let hole_end = (block..end).find(|block| written(*block)).unwrap_or(end);
            if hole_end > block {
                self.blocks.home.punch(shard, block, hole_end)?;
            }
            block = hole_end + 1;
        }
        Ok(())
    }

    fn write_run(&self, shard: ShardId, first: u32, run: &[&[u8]]) -> Result<()> {
        if run.is_empty() { Ok(()) } else { self.blocks.home.write(shard, first, run) }
    }

    fn commit(&self, frozen: &Overlay, shards: &[(&ShardId, &ShardOverlay)], meta: &Meta) -> Result<()> {
        let mut changes: Vec<(Key, Option<Bytes>)> = Vec::new();
        for (shard, overlay) in shards {
            self.shard_changes(**shard, overlay, &mut changes)?;
        }
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        let shard_changes = changes.iter().map(|(key, value)| (key, value));
        let mut all = frozen
            .entries
            .iter()
            .chain(shard_changes)
            .map(|(key, value)| -> IndexChange { (key.as_bytes(), value.as_deref()) });
        self.blocks.index.commit(&mut all, &meta.to_bytes())
    }

    fn shard_changes(
        &self,
        shard: ShardId,
        overlay: &ShardOverlay,
        changes: &mut Vec<(Key, Option<Bytes>)>,
    ) -> Result<()> {
        let key = Key::shard(overlay.ring, shard);
        match overlay.record {
            Some(record) => {
                changes.push((key, Some(record.to_bytes())));
                for (group, sums) in &overlay.checksums {
                    changes.push((Key::checksums(overlay.ring, shard, *group), Some(encode_group(sums))));
                }
            }
            None => {
                let before = self.blocks.index.get(key.as_bytes())?.map(ShardRecord::from_bytes).transpose()?;
                let groups = before.map_or(0, |record| record.home_blocks.div_ceil(CRC_BLOCKS));
                changes.push((key, None));
                changes.extend((0..groups).map(|g| (Key::checksums(overlay.ring, shard, g as u16), None)));
            }
        }
        Ok(())
    }
}
