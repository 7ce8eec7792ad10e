//! Cleaning of the layer that is written: blocks in use of segments that are mostly overwritten are appended again, and the
//! segments removed; layers below that nothing else leads to are merged into it.

use super::opening::read_blocks;
use super::{Core, Disk};
use crate::catalogue::making;
use crate::format::append::{Entry, Header};
use crate::format::{BLOCK_BYTES, PAGE_ENTRIES, SegmentUse};
use crate::layer::{Layer, Stack};
use crate::map::Place;
use crate::scrub::Throttle;
use bytes::Bytes;
use hekate_proto::{Error, Result};
use std::sync::Arc;

/// Blocks that are moved with one hold of the log.
const MOVE_BLOCKS: usize = 60;

impl Disk {
    /// Moves the blocks in use of segments of which less than `percent` of a hundred are. Returns the bytes that were moved.
    ///
    /// # Errors
    /// Those of reading and writing; nothing is lost, and a second call goes on.
    pub fn clean(&self, percent: u32, throttle: &Throttle) -> Result<u64> {
        let core = &self.core;
        core.check_writable()?;
        let stack = core.stack();
        let sparse = core.sparse_segments(percent);
        let mut moved = 0;
        for segment in sparse {
            if !core.clean_segment(&stack, segment.number, throttle, &mut moved)? {
                break;
            }
        }
        core.checkpoint()?;
        Ok(moved)
    }

    /// Blocks in use, and blocks that were written, of the segments of the layer that is written.
    pub fn fill(&self) -> (u64, u64) {
        let log = self.core.log.lock();
        let add = |(live, written), segment: &SegmentUse| {
            (live + u64::from(segment.live), written + u64::from(segment.written))
        };
        log.uses.values().fold((0, 0), add)
    }

    /// Copies what is seen of the layer below into the layer that is written, and takes it out of the stack. Nothing else
    /// may lead to it. It stays if another scrub, of an owner before this one, has rewritten it meanwhile. Returns the
    /// bytes that were copied.
    ///
    /// # Errors
    /// As [`Disk::clean`].
    pub(crate) fn absorb_parent(&self, throttle: &Throttle) -> Result<u64> {
        let core = &self.core;
        core.check_writable()?;
        self.restack()?;
        let stack = core.stack();
        let Some(depth) = stack.0.len().checked_sub(2) else { return Ok(0) };
        let Some(moved) = core.move_layer(&stack, depth, throttle)? else { return Ok(0) };
        core.checkpoint()?;
        {
            // The layer below the one that goes is not removed before this one leads to it.
            let _tree = making(&*core.store)?;
            let _checkpoint = core.checkpointing.lock();
            let mut log = core.log.lock();
            if log.parent != Some(stack.0[depth].id) {
                // A snapshot was made meanwhile.
                return Ok(moved);
            }
            // Blocks that another scrub has moved meanwhile were not copied.
            let Some(absorbed) = stack.0[depth].state_if_unchanged(&*core.store)? else { return Ok(moved) };
            let before = std::mem::replace(&mut log.parent, absorbed.parent);
            let captured = core.capture(&mut log);
            if let Err(error) = core.write_sealed(&mut log, captured) {
                log.parent = before;
                return Err(error);
            }
        }
        self.restack()?;
        Ok(moved)
    }

    /// Opens the layers below anew, of which a scrub may have merged some.
    pub(crate) fn restack(&self) -> Result<()> {
        let core = &self.core;
        let _checkpoint = core.checkpointing.lock();
        let mut log = core.log.lock();
        let captured = core.capture(&mut log);
        core.write_sealed(&mut log, captured)?;
        let head = core.record.lock().0.head;
        let (mut stack, _) = Stack::open(&*core.store, head)?;
        // The files of the layer that is written stay open.
        stack.0.pop();
        stack.0.push(core.stack().head().clone());
        core.set_stack(stack);
        Ok(())
    }
}

impl Core {
    fn sparse_segments(&self, percent: u32) -> Vec<SegmentUse> {
        let log = self.log.lock();
        let current = log.position.segment;
        let is_sparse = |segment: &&SegmentUse| {
            let share = u64::from(segment.live) * 100;
            segment.number != current && segment.live > 0 && share < u64::from(log.segment_blocks) * u64::from(percent)
        };
        let mut sparse: Vec<SegmentUse> = log.uses.values().filter(is_sparse).copied().collect();
        sparse.sort_unstable_by_key(|segment| segment.live);
        sparse
    }

    /// Moves the blocks in use of a segment of the layer that is written, and counts their bytes. False: that layer is
    /// another one by now, for a snapshot was made or the vDisk was rolled back.
    fn clean_segment(
        self: &Arc<Self>,
        stack: &Arc<Stack>,
        segment: u32,
        throttle: &Throttle,
        moved: &mut u64,
    ) -> Result<bool> {
        let depth = stack.head_depth();
        let mut due: Vec<(u64, Place, Bytes)> = Vec::new();
        let segment_blocks = self.log.lock().segment_blocks;
        for (block, at) in blocks_of(self, stack.head(), segment, segment_blocks)? {
            let place = Place::data(depth, segment, at);
            if self.place_of(block)? != place {
                continue;
            }
            due.push((block, place, read_blocks(&self.store, stack.head(), segment, at, 1)?));
            if due.len() >= MOVE_BLOCKS && !self.move_some(stack, &mut due, throttle, moved)? {
                return Ok(false);
            }
        }
        self.move_some(stack, &mut due, throttle, moved)
    }

    fn move_some(
        self: &Arc<Self>,
        stack: &Arc<Stack>,
        due: &mut Vec<(u64, Place, Bytes)>,
        throttle: &Throttle,
        moved: &mut u64,
    ) -> Result<bool> {
        let bytes = due.len() as u64 * BLOCK_BYTES;
        if due.iter().any(|(_, _, data)| data.len() as u64 != BLOCK_BYTES) {
            return Err(Error::Damaged { what: format!("vDisk {}: a segment ends before its blocks", self.name) });
        }
        throttle.wait_for(bytes)?;
        let is_moved = self.move_blocks(stack, std::mem::take(due))?;
        *moved += if is_moved { bytes } else { 0 };
        Ok(is_moved)
    }

    /// Moves what is seen of the layer at a depth to the layer that is written. `None`: the layers are others by now.
    fn move_layer(self: &Arc<Self>, stack: &Arc<Stack>, depth: usize, throttle: &Throttle) -> Result<Option<u64>> {
        let layer = &stack.0[depth];
        let mut moved = 0;
        let pages: Vec<u64> = layer.pages().range(0, u64::MAX).collect();
        for number in pages {
            let places = self.with_page(number, |page| page.entries.clone())?;
            let mut due = Vec::new();
            for (index, place) in places.iter().enumerate() {
                if place.depth() != depth as u64 || *place == Place::NOTHING {
                    continue;
                }
                let block = number * PAGE_ENTRIES + index as u64;
                let data = match place.segment_and_block() {
                    Some((segment, at)) => match self.read_sealed(layer, segment, at)? {
                        Some(data) => data,
                        None => return Ok(None),
                    },
                    None => Bytes::new(),
                };
                due.push((block, *place, data));
            }
            for part in due.chunks(MOVE_BLOCKS) {
                throttle.wait_for(part.len() as u64 * BLOCK_BYTES)?;
                if !self.move_blocks(stack, part.to_vec())? {
                    return Ok(None);
                }
                moved += part.len() as u64 * BLOCK_BYTES;
            }
        }
        Ok(Some(moved))
    }

    /// A block of a sealed layer. `None`: another scrub has removed its segment.
    fn read_sealed(&self, layer: &Layer, segment: u32, block: u32) -> Result<Option<Bytes>> {
        match read_blocks(&self.store, layer, segment, block, 1) {
            Ok(data) if data.len() as u64 == BLOCK_BYTES => Ok(Some(data)),
            Ok(_) | Err(Error::NotFound | Error::Stale) if layer.is_unchanged(&*self.store)? => {
                let what = format!("segment {segment} of layer {} has no block {block}", layer.id.text());
                Err(Error::Damaged { what })
            }
            Ok(_) | Err(Error::NotFound | Error::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The blocks that a segment was written with, in their order, each with its block in the segment.
pub(super) fn blocks_of(core: &Core, layer: &Layer, segment: u32, segment_blocks: u32) -> Result<Vec<(u64, u32)>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at + 1 < segment_blocks {
        let header = Header::unseal(&read_blocks(&core.store, layer, segment, at, 1)?);
        let is_it = |header: &Header| (header.layer, header.segment, header.block) == (layer.id, segment, at);
        let Some(header) = header.filter(is_it) else { break };
        let mut place = at;
        for entry in &header.entries {
            if let Entry::Data { block, .. } = entry {
                place += 1;
                all.push((*block, place));
            }
        }
        at += header.blocks();
    }
    Ok(all)
}
