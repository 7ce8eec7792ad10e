//! Rewrites a sealed layer as its plan says.

use super::Throttle;
use super::plan::{self, Entries, From};
use crate::catalogue::making;
use crate::format::append::{Entry, Header, checksum};
use crate::format::{BLOCK_BYTES, LayerId, LayerState, PAGE_ENTRIES, SegmentUse};
use crate::layer::{Layer, Pages, absent_is_fine, map_name, segment_name};
use crate::store::Store;
use bytes::{Bytes, BytesMut};
use hekate_proto::{Condition, Error, InodeId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The file whose lock lets one rewrite a layer.
const SCRUB_LOCK: &str = "scrub";
/// Blocks of data in an append.
const APPEND_BLOCKS: usize = 15;

/// New segments of a layer.
struct Writer<'a> {
    store: &'a Arc<dyn Store>,
    layer: &'a Layer,
    state: LayerState,
    file: Option<InodeId>,
    due: Vec<(u64, Bytes)>,
    /// Block of the vDisk to its new entry.
    entries: BTreeMap<u64, u64>,
    moved: u64,
}

/// Rewrites a layer: its sparse segments, and what is seen of `merged`, the layer below it, which nothing else leads to.
/// Returns the bytes that were copied; `None` if there is nothing to do, or another process rewrites the layer.
///
/// # Errors
/// Those of the store. Then the layer is as it was; what was written beside it is removed by the next rewrite.
pub fn rewrite(
    store: &Arc<dyn Store>,
    id: LayerId,
    merged: Option<LayerId>,
    percent: u32,
    throttle: &Throttle,
) -> Result<Option<u64>> {
    let (layer, state) = Layer::open(&**store, id)?;
    let sparse = plan::sparse(&state, percent);
    if !state.sealed || (sparse.is_empty() && merged.is_none()) {
        return Ok(None);
    }
    match store.put(layer.directory, SCRUB_LOCK, Bytes::new(), Condition::Absent) {
        Err(Error::ConditionFailed) => {}
        made => drop(made?),
    }
    let Some(_one) = store.lock(store.find(layer.directory, SCRUB_LOCK)?, false)? else { return Ok(None) };
    // As of before the lock was taken it may be another's.
    let (layer, state) = Layer::open(&**store, id)?;
    if !state.sealed {
        return Ok(None);
    }
    // From here on another scrub that has lost this lock, and has not noticed, cannot replace the state.
    let claimed = layer.put_state(&**store, &state).and_then(|()| remove_unused(&**store, &layer, &state));
    match claimed {
        Err(Error::ConditionFailed) => return Ok(None),
        claimed => claimed?,
    }
    let sparse = plan::sparse(&state, percent);
    if merged.is_some() && state.parent != merged {
        return Ok(None);
    }
    let below = merged.map(|merged| Layer::open(&**store, merged)).transpose()?;
    let parent = below.as_ref().map_or(state.parent, |(_, below)| below.parent);
    let (old_segments, old_map) = (state.segments.clone(), state.map);
    let mut writer = Writer {
        store,
        layer: &layer,
        state: LayerState { parent, map: old_map + 1, ..state },
        file: None,
        due: Vec::new(),
        entries: BTreeMap::new(),
        moved: 0,
    };
    writer.state.log.sequence += 1;
    let pages = writer.copy(below.as_ref().map(|(layer, _)| layer), &sparse, parent.is_none(), throttle)?;
    let moved = writer.moved;
    let next = writer.finish(pages, &sparse)?;
    // The layer below the one that goes is not removed before this one leads to it.
    let _tree = making(&**store)?;
    if let Some((below, _)) = &below
        && below.state_if_unchanged(&**store)?.is_none()
    {
        // Another scrub has rewritten it meanwhile, and may have merged what its state named.
        return Ok(None);
    }
    match layer.put_state(&**store, &next) {
        // Another process has it, or it was removed.
        Err(Error::ConditionFailed) => return Ok(None),
        put => put?,
    }
    for segment in old_segments.iter().filter(|segment| sparse.contains(&segment.number)) {
        absent_is_fine(store.remove(layer.directory, &segment_name(segment.number)))?;
    }
    absent_is_fine(store.remove(layer.directory, &map_name(old_map)))?;
    Ok(Some(moved))
}

/// Removes the files of rewrites that were not finished.
fn remove_unused(store: &dyn Store, layer: &Layer, state: &LayerState) -> Result<()> {
    let mut used: BTreeSet<String> = state.segments.iter().map(|segment| segment_name(segment.number)).collect();
    used.insert(map_name(state.map));
    layer.remove_unused(store, |name| used.contains(name))
}

fn own_page(store: &Arc<dyn Store>, layer: &Layer, number: u64) -> Result<Option<Entries>> {
    let entry = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Ok(layer.page(store, number)?.0.map(|bytes| bytes.chunks_exact(8).map(entry).collect()))
}

impl Writer<'_> {
    /// Copies blocks, and returns the plan of each page.
    fn copy(
        &mut self,
        below: Option<&Layer>,
        sparse: &BTreeSet<u32>,
        is_lowest: bool,
        throttle: &Throttle,
    ) -> Result<Vec<(u64, Vec<From>)>> {
        let mut numbers: BTreeSet<u64> = self.layer.pages().range(0, u64::MAX).collect();
        if let Some(below) = below {
            numbers.extend(below.pages().range(0, u64::MAX));
        }
        let mut pages = Vec::new();
        for number in numbers {
            let own = own_page(self.store, self.layer, number)?.unwrap_or_default();
            let merged = below.map(|below| own_page(self.store, below, number)).transpose()?.flatten();
            let plan = plan::page(&own, merged.as_ref(), sparse, is_lowest);
            for (index, from) in plan.iter().enumerate() {
                let (layer, segment, block) = match (from, below) {
                    (From::Own { segment, block }, _) => (self.layer, segment, block),
                    (From::Merged { segment, block }, Some(below)) => (below, segment, block),
                    _ => continue,
                };
                let file = layer.segment(self.store, *segment)?;
                let data = self.store.read(file.id, u64::from(*block) * BLOCK_BYTES, BLOCK_BYTES as u32)?;
                throttle.wait_for(BLOCK_BYTES)?;
                self.due.push((number * PAGE_ENTRIES + index as u64, data));
                if self.due.len() == APPEND_BLOCKS {
                    self.append()?;
                }
            }
            pages.push((number, plan));
        }
        self.append()?;
        Ok(pages)
    }

    /// Appends the blocks that are due.
    fn append(&mut self) -> Result<()> {
        while !self.due.is_empty() {
            let room = self.state.segment_blocks.saturating_sub(self.state.log.block);
            let file = match self.file {
                Some(file) if room >= 2 => file,
                _ => self.begin_segment()?,
            };
            let position = self.state.log;
            let count = self.due.len().min((self.state.segment_blocks - position.block - 1) as usize);
            let taken: Vec<(u64, Bytes)> = self.due.drain(..count).collect();
            let entry = |(block, data): &(u64, Bytes)| Entry::Data { block: *block, checksum: checksum(data) };
            let header = Header {
                layer: self.layer.id,
                opening: position.opening,
                sequence: position.sequence,
                stable: 0,
                segment: position.segment,
                block: position.block,
                entries: taken.iter().map(entry).collect(),
            };
            let data: Vec<Bytes> = taken.iter().map(|(_, data)| data.clone()).collect();
            self.store.write(file, u64::from(position.block) * BLOCK_BYTES, header.seal(&data), false)?;
            for (at, (block, _)) in taken.iter().enumerate() {
                self.entries.insert(*block, plan::entry(position.segment, position.block + 1 + at as u32));
            }
            if let Some(segment) = self.state.segments.last_mut() {
                segment.live += count as u32;
                segment.written += count as u32;
            }
            self.state.log.sequence += 1;
            self.state.log.block += header.blocks();
            self.moved += count as u64 * BLOCK_BYTES;
        }
        Ok(())
    }

    fn begin_segment(&mut self) -> Result<InodeId> {
        if let Some(full) = self.file {
            self.store.sync(full)?;
        }
        let mut number = self.state.next_segment;
        let file = loop {
            match self.store.make_file(self.layer.directory, &segment_name(number)) {
                // Left by a rewrite that was not finished.
                Err(Error::Exists) => number += 1,
                made => break made?,
            }
        };
        self.store.allocate(file, u64::from(self.state.segment_blocks) * BLOCK_BYTES)?;
        self.state.next_segment = number + 1;
        self.state.segments.push(SegmentUse { number, live: 0, written: 0 });
        (self.state.log.segment, self.state.log.block) = (number, 0);
        self.file = Some(file);
        Ok(file)
    }

    /// Writes the new map. Everything is on stable storage then. Returns the layer's new state.
    fn finish(mut self, pages: Vec<(u64, Vec<From>)>, sparse: &BTreeSet<u32>) -> Result<LayerState> {
        if let Some(file) = self.file {
            self.store.sync(file)?;
        }
        let map = loop {
            match self.store.make_file(self.layer.directory, &map_name(self.state.map)) {
                Err(Error::Exists) => self.state.map += 1,
                made => break made?,
            }
        };
        let mut present = Pages::default();
        for (number, plan) in pages {
            let mut bytes = BytesMut::with_capacity(BLOCK_BYTES as usize);
            for (index, from) in plan.iter().enumerate() {
                let entry = match from {
                    From::Kept(entry) => *entry,
                    _ => self
                        .entries
                        .get(&(number * PAGE_ENTRIES + index as u64))
                        .copied()
                        .ok_or_else(|| Error::bug("a block that a scrub was to copy has no new place"))?,
                };
                bytes.extend_from_slice(&entry.to_le_bytes());
            }
            if bytes.iter().any(|byte| *byte != 0) {
                present.set(number);
                self.store.write(map, number * BLOCK_BYTES, bytes.freeze(), false)?;
            }
        }
        self.store.sync(map)?;
        self.state.pages = present.to_bytes();
        self.state.segments.retain(|segment| !sparse.contains(&segment.number));
        Ok(self.state)
    }
}
