//! Reads: from the map to the segments.

use super::{Core, Disk, zeros};
use crate::format::{BLOCK_BYTES, PAGE_ENTRIES};
use crate::map::Place;
use bytes::{Bytes, BytesMut};
use hekate_proto::{Error, Result};
use std::sync::atomic::Ordering;

/// Times that a read follows blocks which a scrub has moved.
const FOLLOWS_MAX: usize = 8;

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
        let runs = self.runs(first, last, usize::MAX)?;
        let mut parts = Vec::with_capacity(runs.len());
        let mut at = first * BLOCK_BYTES;
        for run in runs {
            let from = offset.max(at);
            let to = (offset + length).min(at + run.count * BLOCK_BYTES);
            parts.push(self.read_run(run, at / BLOCK_BYTES, from - at, (to - from) as usize)?);
            at += run.count * BLOCK_BYTES;
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

    /// Reads `length` bytes from the offset `within` a run that begins with `block`.
    fn read_run(&self, run: Run, block: u64, within: u64, length: usize) -> Result<Bytes> {
        let mut run = run;
        for _ in 0..FOLLOWS_MAX {
            let Some((segment, at)) = run.place.segment_and_block() else { return Ok(zeros(length)) };
            let stack = self.stack();
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
                    // A scrub has moved the blocks: the map of the layer says where they are now.
                    self.follow(run.place.depth() as usize)?;
                    let now = self.runs(block, block + run.count, usize::MAX)?;
                    let [one] = now[..] else { return self.read(block * BLOCK_BYTES + within, length as u64) };
                    run = one;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unavailable { what: format!("{}: its blocks move faster than they can be read", self.name) })
    }

    /// Reads the states of the layers again, of which a scrub has replaced files, and forgets what the map knows of them.
    fn follow(&self, depth: usize) -> Result<()> {
        let stack = self.stack();
        let head = stack.head_depth();
        let is_written = !self.read_only.load(Ordering::Acquire);
        if depth as u64 == head && is_written {
            return Err(Error::Damaged { what: format!("{}: a segment that is in use is missing", self.name) });
        }
        for (at, layer) in stack.0.iter().enumerate() {
            if at as u64 != head || !is_written {
                layer.refresh(&*self.store)?;
            }
        }
        let changed = self.map.lock().drop_clean();
        for number in changed {
            let below = self.load_page(number, head as usize)?;
            self.map.lock().replace_below(number, head, &below);
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
