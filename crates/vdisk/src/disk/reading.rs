//! Reads: from the map to the segments.

use super::{Core, Disk, zeros};
use crate::format::{BLOCK_BYTES, PAGE_ENTRIES};
use crate::layer::Stack;
use crate::map::Place;
use bytes::{Bytes, BytesMut};
use hekate_proto::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Times that a read follows blocks which a scrub has moved.
pub(super) const FOLLOWS_MAX: usize = 8;

/// A range of bytes that all have data, or all none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub length: u64,
    pub is_hole: bool,
}

/// Blocks in a row.
#[derive(Clone, Copy)]
struct Run {
    /// The place of the first.
    place: Place,
    count: u64,
}

/// The part of a run that a read needs.
#[derive(Clone, Copy)]
struct Piece {
    run: Run,
    /// The first block of the run.
    block: u64,
    /// The offset in the run.
    within: u64,
    length: usize,
}

impl Piece {
    /// The segment, and the offset in it.
    fn start(&self) -> Option<(u32, u64)> {
        let (segment, block) = self.run.place.segment_and_block()?;
        Some((segment, u64::from(block) * BLOCK_BYTES + self.within))
    }
}

/// Blocks between two pieces that are read at once: the header of an append, or a block that was written again.
const GAP_BLOCKS: u64 = 2;
/// Bytes that are read at once.
const NEAR_BYTES: u64 = 1 << 20;

/// The number of pieces from the first on that lie behind each other in a segment, with small gaps.
fn near(pieces: &[Piece]) -> usize {
    let Some((segment, begin)) = pieces.first().and_then(Piece::start) else { return 1 };
    let (depth, mut end, mut count) = (pieces[0].run.place.depth(), begin + pieces[0].length as u64, 1);
    for piece in &pieces[1..] {
        let Some((next_segment, start)) = piece.start() else { break };
        let follows = (end..=end + GAP_BLOCKS * BLOCK_BYTES).contains(&start);
        let next_end = start + piece.length as u64;
        if (piece.run.place.depth(), next_segment) != (depth, segment) || !follows || next_end - begin > NEAR_BYTES {
            break;
        }
        (end, count) = (next_end, count + 1);
    }
    count
}

impl Disk {
    /// Reads bytes. What was never written is zeros.
    ///
    /// # Errors
    /// `Invalid` beyond the end; `Damaged` or `Io` if no replica can read them; `SessionEnded`.
    pub fn read(&self, offset: u64, length: u32) -> Result<Bytes> {
        self.core.check_range(offset, u64::from(length))?;
        self.core.wait_for_changes(offset, u64::from(length));
        self.core.read(offset, u64::from(length))
    }

    /// The number of reads that bytes need.
    ///
    /// # Errors
    /// As [`Disk::read`].
    pub fn places(&self, offset: u64, length: u64) -> Result<usize> {
        self.core.check_range(offset, length)?;
        let (first, last) = (offset / BLOCK_BYTES, (offset + length).div_ceil(BLOCK_BYTES));
        let runs = self.core.runs(first, last, usize::MAX)?;
        let whole = |run| Piece { run, block: 0, within: 0, length: (run.count * BLOCK_BYTES) as usize };
        let pieces: Vec<Piece> = runs.into_iter().map(whole).collect();
        let (mut rest, mut count) = (&pieces[..], 0);
        while !rest.is_empty() {
            count += 1;
            rest = &rest[near(rest)..];
        }
        Ok(count)
    }

    /// The extents from `offset`, at most `limit` of them, up to `length` bytes.
    ///
    /// # Errors
    /// As [`Disk::read`].
    pub fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.core.check_range(offset, length)?;
        self.core.wait_for_changes(offset, length);
        self.core.extents(offset, length, limit)
    }
}

impl Core {
    pub(super) fn read_block(&self, block: u64) -> Result<Bytes> {
        self.read(block * BLOCK_BYTES, BLOCK_BYTES)
    }

    fn read(&self, offset: u64, length: u64) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let (first, last) = (offset / BLOCK_BYTES, (offset + length).div_ceil(BLOCK_BYTES));
        self.counts.blocks_read.fetch_add(last - first, Ordering::Relaxed);
        let (stack, runs) = self.placed_runs(first, last)?;
        let mut pieces = Vec::with_capacity(runs.len());
        let mut at = first * BLOCK_BYTES;
        for run in runs {
            let (from, to) = (offset.max(at), (offset + length).min(at + run.count * BLOCK_BYTES));
            pieces.push(Piece { run, block: at / BLOCK_BYTES, within: from - at, length: (to - from) as usize });
            at += run.count * BLOCK_BYTES;
        }
        let mut parts = Vec::with_capacity(pieces.len());
        let mut rest = &pieces[..];
        while let Some(piece) = rest.first() {
            let count = near(rest);
            if count > 1 && self.read_near(&stack, &rest[..count], &mut parts) {
                rest = &rest[count..];
                continue;
            }
            parts.push(self.read_run(&stack, *piece)?);
            rest = &rest[1..];
        }
        if parts.len() == 1
            && let Some(only) = parts.pop()
        {
            return Ok(only);
        }
        let mut all = BytesMut::with_capacity(length as usize);
        parts.iter().for_each(|part| all.extend_from_slice(part));
        Ok(all.freeze())
    }

    /// Reads pieces that lie near to each other in a segment at once. False, and nothing is read, if that fails: then each
    /// is read on its own.
    fn read_near(&self, stack: &Stack, pieces: &[Piece], parts: &mut Vec<Bytes>) -> bool {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return false };
        let (Some((segment, from)), Some((_, to))) = (first.start(), last.start()) else { return false };
        let Some(layer) = stack.0.get(first.run.place.depth() as usize) else { return false };
        let length = (to - from) as usize + last.length;
        let read = layer
            .segment(&self.store, segment)
            .and_then(|file| self.store.read(file.id, from, length as u32))
            .ok()
            .filter(|bytes| bytes.len() == length);
        let Some(bytes) = read else { return false };
        for piece in pieces {
            if let Some((_, start)) = piece.start() {
                let at = (start - from) as usize;
                parts.push(bytes.slice(at..at + piece.length));
            }
        }
        true
    }

    /// Runs with the layers to which their places belong.
    fn placed_runs(&self, first: u64, last: u64) -> Result<(Arc<Stack>, Vec<Run>)> {
        loop {
            let stack = self.stack();
            let runs = self.runs(first, last, usize::MAX)?;
            // Layers and pages are replaced together, with the map locked.
            let _map = self.map.lock();
            if Arc::ptr_eq(&stack, &self.stack()) {
                return Ok((stack, runs));
            }
        }
    }

    /// Blocks from `first` to `last` in runs of one place or hole, at most `limit` of them.
    fn runs(&self, first: u64, last: u64, limit: usize) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let stack = self.stack();
        let mut block = first;
        while block < last {
            let page = block / PAGE_ENTRIES;
            let to = last.min((page + 1) * PAGE_ENTRIES);
            if !self.has_page(&stack, page) {
                add_run(&mut runs, Place::NOTHING, to - block);
            } else {
                self.with_page(page, |page| {
                    for at in block..to {
                        add_run(&mut runs, page.entries[(at % PAGE_ENTRIES) as usize], 1);
                    }
                })?;
            }
            if runs.len() > limit {
                runs.truncate(limit);
                break;
            }
            block = to;
        }
        Ok(runs)
    }

    fn read_run(&self, stack: &Arc<Stack>, piece: Piece) -> Result<Bytes> {
        let Piece { mut run, block, within, length } = piece;
        let mut stack = stack.clone();
        for _ in 0..FOLLOWS_MAX {
            let Some((segment, at)) = run.place.segment_and_block() else { return Ok(zeros(length)) };
            let layer = stack.0.get(run.place.depth() as usize);
            let layer = layer.ok_or_else(|| Error::Damaged { what: format!("{}: a block has no layer", self.name) })?;
            let read = layer
                .segment(&self.store, segment)
                .and_then(|file| self.store.read(file.id, u64::from(at) * BLOCK_BYTES + within, length as u32));
            match read {
                Ok(bytes) if bytes.len() == length => return Ok(bytes),
                Ok(_) => {
                    let what = format!("{}: segment {segment} of layer {} ends early", self.name, layer.id.text());
                    return Err(Error::Damaged { what });
                }
                Err(Error::NotFound | Error::Stale) => {
                    // A scrub has moved the blocks: the map says where they are now.
                    let is_own = self.is_written_at(&stack, run.place.depth());
                    if !is_own {
                        self.follow(&stack)?;
                    }
                    let (latest, now) = self.placed_runs(block, block + run.count)?;
                    let is_same = Arc::ptr_eq(&latest, &stack);
                    stack = latest;
                    let [one] = now[..] else { return self.read(block * BLOCK_BYTES + within, length as u64) };
                    // Of another stack of layers the same numbers are another place.
                    if is_own && is_same && one.place == run.place {
                        let what = format!("{}: a segment that is in use is missing", self.name);
                        return Err(Error::Damaged { what });
                    }
                    run = one;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unavailable { what: format!("{}: its blocks move faster than they can be read", self.name) })
    }

    /// True if this process writes the layer at a depth.
    fn is_written_at(&self, stack: &Stack, depth: u64) -> bool {
        depth == stack.head_depth() && !self.read_only.load(Ordering::Acquire)
    }

    /// Reads the states of the layers again, of which a scrub has replaced files, and forgets what the map knows of them.
    fn follow(&self, stack: &Arc<Stack>) -> Result<()> {
        if !Arc::ptr_eq(stack, &self.stack()) {
            // The layers are others by now.
            return Ok(());
        }
        let head = stack.head_depth();
        self.refresh(stack, None)?;
        let changed = self.map.lock().drop_clean();
        for number in changed {
            let below = self.load_page(number, head as usize)?;
            let mut map = self.map.lock();
            if !Arc::ptr_eq(stack, &self.stack()) {
                return Ok(());
            }
            map.replace_below(number, head, &below);
        }
        Ok(())
    }

    /// Reads the states again of all layers that this process does not write, and of the one whose file is `gone`.
    pub(super) fn refresh(&self, stack: &Stack, gone: Option<usize>) -> Result<()> {
        for (depth, layer) in stack.0.iter().enumerate() {
            if gone == Some(depth) || !self.is_written_at(stack, depth as u64) {
                layer.refresh(&*self.store)?;
            }
        }
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        let (first, last) = (offset / BLOCK_BYTES, (offset + length).div_ceil(BLOCK_BYTES));
        let mut all: Vec<Extent> = Vec::new();
        let stack = self.stack();
        let mut block = first;
        while block < last && all.len() <= limit {
            let page = block / PAGE_ENTRIES;
            let to = last.min((page + 1) * PAGE_ENTRIES);
            let mut add = |is_hole: bool, count: u64| {
                let length = count * BLOCK_BYTES;
                match all.last_mut() {
                    Some(last) if last.is_hole == is_hole => last.length += length,
                    _ => all.push(Extent { length, is_hole }),
                }
            };
            if self.has_page(&stack, page) {
                self.with_page(page, |page| {
                    for at in block..to {
                        add(page.entries[(at % PAGE_ENTRIES) as usize].segment_and_block().is_none(), 1);
                    }
                })?;
            } else {
                add(true, to - block);
            }
            block = to;
        }
        all.truncate(limit);
        // The first and the last block may be asked for in part.
        if let Some(first_extent) = all.first_mut() {
            first_extent.length -= offset % BLOCK_BYTES;
        }
        let total: u64 = all.iter().map(|extent| extent.length).sum();
        if let (Some(last_extent), Some(more)) = (all.last_mut(), total.checked_sub(length)) {
            last_extent.length -= more;
        }
        Ok(all)
    }
}

fn add_run(runs: &mut Vec<Run>, place: Place, count: u64) {
    if let Some(last) = runs.last_mut()
        && last.place.is_followed_by(last.count, place)
    {
        last.count += count;
        return;
    }
    runs.push(Run { place, count });
}
