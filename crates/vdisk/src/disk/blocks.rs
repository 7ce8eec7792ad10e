//! Changes of bytes, cut into changes of whole blocks.

use super::append::Change;
use super::{Core, zeros};
use crate::format::BLOCK_BYTES;
use crate::map::Place;
use bytes::{Bytes, BytesMut};
use hekate_proto::Result;
use hekate_threads::HashMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Blocks of a range of zeros in one entry of an append.
const ZEROS_MAX: u64 = 1 << 31;

/// A change of whole blocks.
pub(super) enum Item {
    Data {
        block: u64,
        data: Bytes,
    },
    Zeros {
        block: u64,
        count: u64,
    },
    /// Data that is copied from a place. It counts only while the map leads there.
    Moved {
        block: u64,
        from: Place,
        data: Bytes,
    },
}

/// Cuts changes. A block of which a change names a part is completed by what changes before it, or the vDisk, have there.
pub(super) struct Cut<'a> {
    core: &'a Core,
    items: VecDeque<Item>,
    /// Blocks that were written, and ranges of zeros that came before them.
    written: HashMap<u64, Bytes>,
    zeroed: Vec<Range<u64>>,
}

impl<'a> Cut<'a> {
    pub fn new(core: &'a Core) -> Self {
        Self { core, items: VecDeque::new(), written: HashMap::default(), zeroed: Vec::new() }
    }

    pub fn items(self) -> VecDeque<Item> {
        self.items
    }

    /// Adds a change.
    ///
    /// # Errors
    /// Those of reading a block that has to be completed.
    pub fn add(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Write { offset, data } => self.add_write(*offset, data),
            Change::Zero { offset, length } => self.add_zeros(*offset, offset + length),
        }
    }

    fn add_write(&mut self, offset: u64, data: &Bytes) -> Result<()> {
        let mut at = 0;
        while at < data.len() {
            let place = offset + at as u64;
            let (block, within) = (place / BLOCK_BYTES, (place % BLOCK_BYTES) as usize);
            let length = (data.len() - at).min(BLOCK_BYTES as usize - within);
            let part = data.slice(at..at + length);
            let whole = if length as u64 == BLOCK_BYTES { part } else { self.completed(block, within, &part)? };
            self.written.insert(block, whole.clone());
            self.items.push_back(Item::Data { block, data: whole });
            at += length;
        }
        Ok(())
    }

    fn completed(&self, block: u64, within: usize, part: &[u8]) -> Result<Bytes> {
        let before = match self.written.get(&block) {
            Some(known) => known.clone(),
            None if self.is_zeroed(block) => zeros(BLOCK_BYTES as usize),
            None => self.core.read_block(block)?,
        };
        let mut whole = BytesMut::from(&before[..]);
        whole[within..within + part.len()].copy_from_slice(part);
        Ok(whole.freeze())
    }

    fn is_zeroed(&self, block: u64) -> bool {
        self.zeroed.iter().any(|range| range.contains(&block))
    }

    fn add_zeros(&mut self, offset: u64, end: u64) -> Result<()> {
        let first = offset.next_multiple_of(BLOCK_BYTES);
        let is_to_the_end = end == self.core.size.load(Ordering::Acquire);
        // What follows the end of the vDisk in its last block is never seen.
        let last = if is_to_the_end { end.next_multiple_of(BLOCK_BYTES) } else { end / BLOCK_BYTES * BLOCK_BYTES };
        let head_end = first.min(end);
        self.add_edge(offset, head_end)?;
        if first < last {
            let (mut block, end_block) = (first / BLOCK_BYTES, last / BLOCK_BYTES);
            self.written.retain(|known, _| !(block..end_block).contains(known));
            self.zeroed.push(block..end_block);
            while block < end_block {
                let count = (end_block - block).min(ZEROS_MAX);
                self.items.push_back(Item::Zeros { block, count });
                block += count;
            }
        }
        self.add_edge(last.max(head_end), end)
    }

    /// Zeros within one block.
    fn add_edge(&mut self, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let block = from / BLOCK_BYTES;
        let has_data = match self.written.contains_key(&block) {
            true => true,
            false => !self.is_zeroed(block) && self.core.place_of(block)?.segment_and_block().is_some(),
        };
        if has_data { self.add_write(from, &zeros((to - from) as usize)) } else { Ok(()) }
    }
}
