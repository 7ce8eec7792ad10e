//! Changes: gathered into appends to the log, then entered into the map.

use super::blocks::{Cut, Item};
use super::{Core, Disk, Log};
use crate::format::append::{ENTRIES_MAX, Entry, Header, checksum};
use crate::format::{BLOCK_BYTES, PAGE_ENTRIES};
use crate::layer::Stack;
use crate::map::Place;
use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{Error, Result, SHARD_BYTES};
use hekate_threads::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A change of a vDisk's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Write {
        offset: u64,
        data: Bytes,
    },
    /// The range becomes zeros and gives its space back.
    Zero {
        offset: u64,
        length: u64,
    },
}

/// Entries of blocks and of zeros in one append.
const RANGES_MAX: usize = 160;
/// Segments with freed blocks in one append.
const FREED_MAX: usize = 80;
const _: () = assert!(RANGES_MAX + FREED_MAX <= ENTRIES_MAX, "all entries of an append fit into its header");
/// If more than a usual append waits, up to so many of them are one: it is too large for the fast lane, and takes two
/// round trips instead of one for each.
const LARGE: u32 = 10;
/// Blocks of a shard of a file.
pub(super) const SHARD_BLOCKS: u32 = (SHARD_BYTES / BLOCK_BYTES) as u32;

/// An append that is being gathered.
#[derive(Default)]
struct Gathered {
    entries: Vec<Entry>,
    data: Vec<Bytes>,
    /// Where the blocks of `data` are in the append.
    blocks: HashMap<u64, usize>,
    freed: BTreeMap<u32, u32>,
}

impl Disk {
    /// Applies changes, in their order where they overlap. Returns once all replicas have them, and with `durable` once
    /// they are on stable storage.
    ///
    /// # Errors
    /// `Invalid` beyond the end; `Denied` if the vDisk is read-only; `NoSpace`; `SessionEnded`. Then some of the changes may
    /// have been made, none of them in part of a block.
    pub fn change(&self, changes: &[Change], durable: bool) -> Result<()> {
        self.core.change(changes, durable)
    }

    /// Writes bytes. As [`Disk::change`].
    ///
    /// # Errors
    /// As [`Disk::change`].
    pub fn write(&self, offset: u64, data: Bytes, durable: bool) -> Result<()> {
        self.change(&[Change::Write { offset, data }], durable)
    }

    /// Makes a range zeros and frees its space. As [`Disk::change`].
    ///
    /// # Errors
    /// As [`Disk::change`].
    pub fn zero(&self, offset: u64, length: u64, durable: bool) -> Result<()> {
        self.change(&[Change::Zero { offset, length }], durable)
    }
}

impl Core {
    fn change(self: &Arc<Self>, changes: &[Change], durable: bool) -> Result<()> {
        for change in changes {
            match change {
                Change::Write { offset, data } => self.check_range(*offset, data.len() as u64)?,
                Change::Zero { offset, length } => self.check_range(*offset, *length)?,
            }
        }
        self.check_writable()?;
        if !durable && self.take_later(changes)? {
            return Ok(());
        }
        self.wait_for_all_changes();
        self.change_anywhere(changes, durable)
    }

    /// As [`Disk::change`], also beyond the end.
    pub(super) fn change_anywhere(self: &Arc<Self>, changes: &[Change], durable: bool) -> Result<()> {
        self.check_writable()?;
        let is_behind = {
            let mut log = self.log.lock();
            let mut cut = Cut::new(self);
            changes.iter().try_for_each(|change| cut.add(change))?;
            // A log that has lost an append ends there: what is before a durable append has to be as durable.
            let is_behind = !self.is_stable(&log) && !is_planted(Bug::DiskDurableAlone);
            self.append_all(&mut log, cut.items(), durable && !is_behind)?;
            // Zeros need no append where the map has none, and the map may be that of an owner who has lost the vDisk.
            self.unconfirmed.store(true, Ordering::Release);
            is_behind
        };
        match durable {
            true if is_behind => self.sync_and_confirm()?,
            true => self.check_owner()?,
            false => {}
        }
        // The log ends before it: a resume would drop it, though a flush after it has nothing to report any more.
        self.check_not_lost()?;
        self.checkpoint_if_due()
    }

    /// True if all appends are on stable storage.
    fn is_stable(&self, log: &Log) -> bool {
        self.stable.load(Ordering::Acquire) >= log.position.sequence
    }

    /// Copies blocks, or holes (without data), to the layer that is written, unless the map leads elsewhere meanwhile. False:
    /// the stack of layers is another one than `stack`, to which the places belong, and nothing was copied. The copies are
    /// on stable storage before the map leads to them, as the blocks may have been.
    pub(super) fn move_blocks(self: &Arc<Self>, stack: &Arc<Stack>, moved: Vec<(u64, Place, Bytes)>) -> Result<bool> {
        self.check_writable()?;
        {
            let mut log = self.log.lock();
            if self.hold.lock().is_none() {
                // It was closed while it was scrubbed.
                return Err(Error::SessionEnded);
            }
            if !Arc::ptr_eq(stack, &self.stack()) {
                return Ok(false);
            }
            let items = moved.into_iter().map(|(block, from, data)| Item::Moved { block, from, data }).collect();
            self.append_all(&mut log, items, true)?;
        }
        self.checkpoint_if_due()?;
        Ok(true)
    }

    fn append_all(self: &Arc<Self>, log: &mut Log, mut items: VecDeque<Item>, durable: bool) -> Result<()> {
        while !items.is_empty() {
            self.append(log, &mut items, durable)?;
        }
        Ok(())
    }

    pub(super) fn place_of(&self, block: u64) -> Result<Place> {
        if !self.has_page(&self.stack(), block / PAGE_ENTRIES) {
            return Ok(Place::NOTHING);
        }
        self.with_page(block / PAGE_ENTRIES, |page| page.entries[(block % PAGE_ENTRIES) as usize])
    }

    /// Appends as many items as fit into one append.
    fn append(self: &Arc<Self>, log: &mut Log, items: &mut VecDeque<Item>, durable: bool) -> Result<()> {
        if let Some(error) = &log.failed {
            return Err(error.clone());
        }
        if log.segment.is_none() || log.segment_blocks - log.position.block < 2 {
            self.begin_segment(log)?;
        }
        let usual = self.settings.append_blocks;
        let most = if items.len() > usual as usize { LARGE * usual } else { usual };
        let room = room_of(log.position.block, log.segment_blocks, most);
        let gathered = self.gather(log, items, room)?;
        if gathered.entries.is_empty() {
            return Ok(());
        }
        let freed = gathered.freed.iter().map(|(segment, count)| Entry::Freed { segment: *segment, count: *count });
        let position = log.position;
        let header = Header {
            layer: self.stack().head().id,
            opening: position.opening,
            sequence: position.sequence,
            stable: self.stable.load(Ordering::Acquire).min(position.sequence),
            segment: position.segment,
            block: position.block,
            entries: gathered.entries.iter().copied().chain(freed).collect(),
        };
        let bytes = header.seal(&gathered.data);
        let segment = log.segment.clone().ok_or_else(|| Error::bug("an append without a segment"))?;
        let length = bytes.len() as u64;
        self.store.write(segment.id, u64::from(position.block) * BLOCK_BYTES, bytes, durable)?;
        let is_stable = durable && self.is_stable(log);
        if !is_stable {
            // Not before the write has ended: a sync beside it would count as one of it.
            self.unsynced.lock().insert(segment.id, segment.clone());
        }
        self.unconfirmed.store(true, Ordering::Release);
        if let Err(error) = self.enter(log, &header) {
            // The log has what the map has not: only reading the log again makes them equal.
            log.failed = Some(error.clone());
            return Err(error);
        }
        if is_stable {
            self.stable.fetch_max(log.position.sequence, Ordering::AcqRel);
        }
        log.bytes += length;
        self.counts.appends.fetch_add(1, Ordering::Relaxed);
        self.counts.blocks_written.fetch_add(u64::from(header.data_blocks()), Ordering::Relaxed);
        log.segment_appends += 1;
        let quarter = log.segment_blocks / 4;
        if position.block < quarter && log.position.block >= quarter {
            self.prepare_segment(log);
        }
        Ok(())
    }

    /// Takes items for one append with at most `room` blocks of data. The pages of the map that it changes are in memory
    /// afterwards.
    fn gather(&self, log: &Log, items: &mut VecDeque<Item>, room: u32) -> Result<Gathered> {
        let (stack, mut gathered) = (self.stack(), Gathered::default());
        let depth = stack.head_depth();
        while let Some(item) = items.pop_front() {
            if gathered.is_full(room) {
                items.push_front(item);
                break;
            }
            match item {
                Item::Data { block, data } => {
                    if gathered.has_zeros(block, 1) {
                        items.push_front(Item::Data { block, data });
                        break;
                    }
                    let place = self.page_place(block)?;
                    gathered.add(block, data, place.segment_at(depth), log.position.segment);
                }
                Item::Moved { block, from, data } => {
                    let place = self.page_place(block)?;
                    let is_new = !gathered.blocks.contains_key(&block) && !gathered.has_zeros(block, 1);
                    if place == from && is_new && data.is_empty() {
                        gathered.entries.push(Entry::Zeros { block, count: 1 });
                    } else if place == from && is_new {
                        gathered.add(block, data, place.segment_at(depth), log.position.segment);
                    }
                }
                Item::Zeros { block, count } => {
                    let is_written = gathered.blocks.keys().any(|known| (block..block + count).contains(known));
                    if is_written || gathered.has_zeros(block, count) {
                        items.push_front(Item::Zeros { block, count });
                        break;
                    }
                    let done = self.gather_zeros(&stack, &mut gathered, block, count)?;
                    if done < count {
                        items.push_front(Item::Zeros { block: block + done, count: count - done });
                        break;
                    }
                }
            }
        }
        Ok(gathered)
    }

    /// The place of a block, whose page is in memory afterwards.
    fn page_place(&self, block: u64) -> Result<Place> {
        self.with_page(block / PAGE_ENTRIES, |page| page.entries[(block % PAGE_ENTRIES) as usize])
    }

    /// Adds zeros, page by page, until the append is full. Returns the number of blocks.
    fn gather_zeros(&self, stack: &Stack, gathered: &mut Gathered, block: u64, count: u64) -> Result<u64> {
        let (depth, end) = (stack.head_depth(), block + count);
        let (mut covered, mut has_data) = (count, false);
        for number in self.pages_in(stack, block, end) {
            let from = block.max(number * PAGE_ENTRIES);
            let to = end.min((number + 1) * PAGE_ENTRIES);
            let places: Vec<Place> = self
                .with_page(number, |page| (from..to).map(|at| page.entries[(at % PAGE_ENTRIES) as usize]).collect())?;
            // A page can lead to more segments than an append has entries.
            let stops = (from..to).zip(&places).find(|(_, place)| {
                let segment = place.segment_at(depth);
                let is_one_more = segment.is_some_and(|segment| !gathered.freed.contains_key(&segment));
                if is_one_more && gathered.freed.len() >= FREED_MAX {
                    return true;
                }
                has_data |= place.segment_and_block().is_some();
                segment.into_iter().for_each(|segment| *gathered.freed.entry(segment).or_default() += 1);
                false
            });
            if let Some((at, _)) = stops {
                covered = at - block;
                break;
            }
        }
        if has_data {
            gathered.entries.push(Entry::Zeros { block, count: covered as u32 });
        }
        Ok(covered)
    }

    /// The pages that exist and have some of these blocks, in their order.
    pub(super) fn pages_in(&self, stack: &Stack, from: u64, to: u64) -> Vec<u64> {
        let (first, last) = (from / PAGE_ENTRIES, to.div_ceil(PAGE_ENTRIES));
        let mut all = self.map.lock().pages_in(first, last);
        for layer in &stack.0 {
            all.extend(layer.pages().range(first, last));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Enters an append into the map, and moves the log's position behind it.
    pub(super) fn enter(&self, log: &mut Log, header: &Header) -> Result<()> {
        let stack = self.stack();
        let depth = stack.head_depth();
        let mut at = header.block;
        for entry in &header.entries {
            match *entry {
                Entry::Data { block, .. } => {
                    at += 1;
                    self.set_place(block, Place::data(depth, header.segment, at))?;
                }
                Entry::Zeros { block, count } => self.set_zeros(&stack, block, u64::from(count))?,
                Entry::Freed { .. } => {}
            }
        }
        // Before the freed blocks, which may be of this append.
        log.add_live(header.segment, header.data_blocks());
        for entry in &header.entries {
            if let Entry::Freed { segment, count } = *entry {
                log.take_live(segment, count)?;
            }
        }
        log.position.sequence = header.sequence + 1;
        log.position.segment = header.segment;
        log.position.block = header.block + header.blocks();
        self.appended.store(log.position.sequence, Ordering::Release);
        Ok(())
    }

    fn set_place(&self, block: u64, place: Place) -> Result<()> {
        let (page, index) = (block / PAGE_ENTRIES, (block % PAGE_ENTRIES) as usize);
        while !self.map.lock().set(page, index, place) {
            self.with_page(page, |_| ())?;
        }
        Ok(())
    }

    fn set_zeros(&self, stack: &Stack, block: u64, count: u64) -> Result<()> {
        let (depth, end) = (stack.head_depth(), block + count);
        for page in self.pages_in(stack, block, end) {
            let (from, to) = (block.max(page * PAGE_ENTRIES), end.min((page + 1) * PAGE_ENTRIES));
            let known = self.with_page(page, |page| page.entries.clone())?;
            for at in from..to {
                let before = known[(at % PAGE_ENTRIES) as usize];
                if before != Place::NOTHING && before != Place::hole(depth) {
                    self.set_place(at, Place::hole(depth))?;
                }
            }
        }
        Ok(())
    }
}

impl Gathered {
    fn is_full(&self, room: u32) -> bool {
        self.data.len() >= room as usize || self.entries.len() >= RANGES_MAX || self.freed.len() >= FREED_MAX
    }

    /// True if any of these blocks becomes zeros.
    fn has_zeros(&self, block: u64, count: u64) -> bool {
        self.entries.iter().any(|entry| match *entry {
            Entry::Zeros { block: from, count: zeros } => from < block + count && block < from + u64::from(zeros),
            _ => false,
        })
    }

    /// Adds a block. `before`: the segment in which the layer has it.
    fn add(&mut self, block: u64, data: Bytes, before: Option<u32>, current: u32) {
        self.entries.push(Entry::Data { block, checksum: checksum(&data) });
        self.data.push(data);
        let before = match self.blocks.insert(block, self.data.len()) {
            Some(_) => Some(current),
            None => before,
        };
        if let Some(segment) = before {
            *self.freed.entry(segment).or_default() += 1;
        }
    }
}

/// Blocks of data that an append at this block of a segment has. It ends with the shard, so that one record makes it
/// whole or not at all, and leaves no single block, in which no append has room.
fn room_of(block: u32, segment_blocks: u32, most: u32) -> u32 {
    // Blocks to the end of the shard, or of the segment.
    let left = (SHARD_BLOCKS - block % SHARD_BLOCKS).min(segment_blocks - block);
    match left {
        // Across two shards: rare, and its checksums tell if a part is missing.
        1 => most.min(segment_blocks - block - 1),
        2..=3 => left - 1,
        _ if most + 1 >= left => left - 1,
        _ if most + 2 == left && most > 1 => most - 1,
        _ => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_end_with_their_shard() {
        for (segment_blocks, most) in [(4096, 1), (4096, 2), (4096, 15), (4096, 150), (20, 3), (20, 150), (3000, 15)] {
            let mut block = 0;
            while segment_blocks - block >= 2 {
                let room = room_of(block, segment_blocks, most);
                let end = block + room;
                assert!(room >= 1 && end < segment_blocks, "{room} at {block}");
                assert!(block / SHARD_BLOCKS == end / SHARD_BLOCKS || SHARD_BLOCKS - block % SHARD_BLOCKS == 1);
                block = end + 1;
            }
        }
    }
}
