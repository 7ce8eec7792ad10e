//! An open vDisk: its log, its map, its stack of layers, and what is done with them.
//!
//! Invariants:
//! - One append at a time: appends of a layer are in order, and one that failed leaves nothing that is read.
//! - The map names a block only after its append has ended, and a checkpoint only after it is on stable storage.
//! - No lock but `log` is held over IO of the log, and `map` over none at all.

mod append;
mod backlog;
mod blocks;
mod checkpoint;
mod cleaning;
mod loss;
mod opening;
mod reading;
mod segments;
mod snapshots;

use crate::format::{
    DiskKind, DiskRecord, Durability, Health, LayerId, LayerState, LogPosition, Record, SEGMENT_BLOCKS_MAX, SIZE_MAX,
    SegmentUse,
};
use crate::layer::{Layer, Stack};
use crate::map::{Map, Page, Place};
use crate::store::{Hold, OpenFile, Store, Version};
use bytes::Bytes;
use hekate_proto::{Error, InodeId, Result};
use hekate_threads::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use append::Change;
pub use opening::Holder;
pub(crate) use opening::{holder_of, make_files, take_token};
pub use reading::Extent;

/// The file that holds a vDisk's record.
pub(crate) const DISK: &str = "disk";

/// Limits of an open vDisk.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Pages of the map that are kept in memory, of 4 KiB for 2 MiB of the vDisk each.
    pub map_pages: usize,
    /// Bytes of the log after which a checkpoint is made: what a recovery reads at most, and some more.
    pub checkpoint_bytes: u64,
    /// Blocks with data in an append.
    pub append_blocks: u32,
    /// Checkpoints are made by a thread of their own.
    pub background: bool,
}

impl Default for Settings {
    fn default() -> Self {
        // 64 MiB of map cover 32 GiB. An append of 16 blocks with its header is the largest fast write.
        Self { map_pages: 16384, checkpoint_bytes: 256 << 20, append_blocks: 15, background: true }
    }
}

/// What an open vDisk has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub appends: u64,
    pub blocks_written: u64,
    pub blocks_read: u64,
    pub flushes: u64,
    pub checkpoints: u64,
    pub map_pages: u64,
    /// Bytes that were acknowledged and are not in the log yet.
    pub backlog_bytes: u64,
}

/// A vDisk, a snapshot or a template that is open. Clones are handles of the same.
#[derive(Clone)]
pub struct Disk {
    core: Arc<Core>,
}

pub(crate) struct Core {
    store: Arc<dyn Store>,
    settings: Settings,
    /// Its name when it was opened, with that of the snapshot.
    name: String,
    /// Its directory.
    directory: InodeId,
    record: Mutex<(DiskRecord, Version)>,
    /// The state of the layer that is written, as it is recorded.
    recorded: Mutex<LayerState>,
    size: AtomicU64,
    log: Mutex<Log>,
    map: Mutex<Map>,
    stack: RwLock<Arc<Stack>>,
    /// Segments with writes that no sync has covered.
    unsynced: Mutex<BTreeMap<InodeId, Arc<OpenFile>>>,
    flushing: Mutex<()>,
    /// Something was written since this process was last seen to be the owner.
    unconfirmed: AtomicBool,
    /// Number of the next append, once the last one has ended.
    appended: AtomicU64,
    /// All appends before this one are on stable storage.
    stable: AtomicU64,
    checkpointing: Mutex<()>,
    checkpoint_runs: AtomicBool,
    /// Nothing may be written: a snapshot, a template, or a vDisk with lost changes.
    read_only: AtomicBool,
    /// Another process has opened the vDisk since: nothing of this one counts any more.
    deposed: AtomicBool,
    /// The next flush fails.
    owes_error: AtomicBool,
    /// The map leads to blocks that were lost, until state and log are read again.
    lost: AtomicBool,
    counts: Counts,
    backlog: backlog::Backlog,
    /// The fencing token: no other session has it until this one has ended everywhere.
    hold: Mutex<Option<Hold>>,
}

#[derive(Default)]
struct Counts {
    appends: AtomicU64,
    blocks_written: AtomicU64,
    blocks_read: AtomicU64,
    flushes: AtomicU64,
    checkpoints: AtomicU64,
}

/// The log of the layer that is written.
struct Log {
    position: LogPosition,
    /// The layer below, as it was recorded.
    parent: Option<LayerId>,
    segment: Option<Arc<OpenFile>>,
    /// Appends to the segment so far.
    segment_appends: u32,
    /// The segment that will be the next one.
    spare: Option<segments::Spare>,
    next_segment: u32,
    /// Blocks of a segment.
    segment_blocks: u32,
    uses: BTreeMap<u32, SegmentUse>,
    /// Bytes of the log since the last checkpoint.
    bytes: u64,
    /// Of each shard with appends that were read back, a block: segment and shard in it, then the block.
    replayed: BTreeMap<(u32, u32), u32>,
    /// Why nothing can be written until the vDisk is opened again.
    failed: Option<Error>,
}

impl Log {
    fn of(state: &LayerState) -> Self {
        Self {
            position: state.log,
            parent: state.parent,
            segment: None,
            segment_appends: 0,
            spare: None,
            next_segment: state.next_segment,
            segment_blocks: state.segment_blocks.clamp(2, SEGMENT_BLOCKS_MAX),
            uses: state.segments.iter().map(|segment| (segment.number, *segment)).collect(),
            bytes: 0,
            replayed: BTreeMap::new(),
            failed: None,
        }
    }

    fn add_live(&mut self, segment: u32, blocks: u32) {
        let found = self.uses.entry(segment).or_insert(SegmentUse { number: segment, live: 0, written: 0 });
        found.live += blocks;
        found.written += blocks;
    }

    fn take_live(&mut self, segment: u32, blocks: u32) -> Result<()> {
        let live = self.uses.get_mut(&segment).and_then(|found| Some((found.live.checked_sub(blocks)?, found)));
        let (left, found) = live.ok_or_else(|| Error::Damaged {
            what: format!("segment {segment} of a vDisk has fewer blocks in use than its log says"),
        })?;
        found.live = left;
        Ok(())
    }
}

impl Disk {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.core.size.load(Ordering::Acquire)
    }

    /// The name under which it was opened.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    pub(crate) fn directory(&self) -> InodeId {
        self.core.directory
    }

    /// True if nothing may be written.
    pub fn is_read_only(&self) -> bool {
        self.core.read_only.load(Ordering::Acquire)
    }

    /// True once another session has it, or this one has ended: every call fails.
    pub fn has_ended(&self) -> bool {
        self.core.deposed.load(Ordering::Acquire) || self.core.store.has_ended()
    }

    /// True if this session has the vDisk for itself: a snapshot needs no token.
    pub fn has_token(&self) -> bool {
        self.core.hold.lock().is_some()
    }

    /// True if both are handles of the same opening.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Checks that no other process has taken the vDisk.
    ///
    /// # Errors
    /// `SessionEnded` if one has; those of the store.
    pub fn confirm_owner(&self) -> Result<()> {
        self.core.check_owner()
    }

    /// The record as this handle knows it.
    pub fn record(&self) -> DiskRecord {
        self.core.record.lock().0.clone()
    }

    pub fn counters(&self) -> Counters {
        let counts = &self.core.counts;
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            appends: load(&counts.appends),
            blocks_written: load(&counts.blocks_written),
            blocks_read: load(&counts.blocks_read),
            flushes: load(&counts.flushes),
            checkpoints: load(&counts.checkpoints),
            map_pages: self.core.map.lock().len() as u64,
            backlog_bytes: self.core.backlog.bytes(),
        }
    }

    /// The layers below the one that is written.
    pub(crate) fn sealed_layers(&self) -> Vec<LayerId> {
        let stack = self.core.stack();
        let count = stack.0.len() - usize::from(!self.is_read_only());
        stack.0[..count].iter().map(|layer| layer.id).collect()
    }

    /// Makes all acknowledged changes stable, writes the map, and gives the vDisk up.
    ///
    /// # Errors
    /// Those of [`Disk::flush`] and of a checkpoint. The vDisk is given up all the same.
    pub fn close(&self) -> Result<()> {
        let done = match self.is_read_only() {
            true => Ok(()),
            false => self.flush().and_then(|()| self.core.checkpoint()),
        };
        self.core.hold.lock().take();
        done
    }
}

impl Core {
    /// The page of the map, read if it is not in memory, as an argument of `then`.
    fn with_page<R>(&self, number: u64, then: impl FnOnce(&Page) -> R) -> Result<R> {
        let mut then = Some(then);
        loop {
            let drops = {
                let mut map = self.map.lock();
                if let Some(page) = map.get(number)
                    && let Some(then) = then.take()
                {
                    return Ok(then(page));
                }
                map.drops()
            };
            let page = self.load_page(number, usize::MAX)?;
            if !self.read_only.load(Ordering::Acquire) && self.stack().head().pages().has(number) {
                // The next owner writes pages to the same file.
                self.check_owner()?;
            }
            self.map.lock().insert(number, page, drops);
        }
    }

    /// Combines the maps of the layers below this depth.
    fn load_page(&self, number: u64, below: usize) -> Result<Page> {
        for _ in 0..reading::FOLLOWS_MAX {
            if let Some(page) = self.combined(&self.stack(), number, below)? {
                return Ok(page);
            }
        }
        Err(Error::Unavailable { what: format!("{}: its layers are replaced faster than they can be read", self.name) })
    }

    /// As [`Core::load_page`]. `None`: a scrub has replaced files of layers, whose states were read again.
    fn combined(&self, stack: &Stack, number: u64, below: usize) -> Result<Option<Page>> {
        let mut page = Page::new();
        let mut missing = page.entries.len();
        let mut next = Some(stack.head().id);
        for (depth, layer) in stack.0.iter().enumerate().rev() {
            // One that was merged into the layer above it may still be there, without the holes that hid its blocks.
            if next != Some(layer.id) {
                continue;
            }
            if depth >= below {
                next = layer.parent();
                continue;
            }
            let (own, parent) = match layer.page(&self.store, number) {
                Err(Error::NotFound | Error::Stale) => {
                    self.refresh(stack, Some(depth))?;
                    return Ok(None);
                }
                read => read?,
            };
            next = parent;
            let Some(own) = own else { continue };
            for (place, entry) in page.entries.iter_mut().zip(own.chunks_exact(8)) {
                if *place == Place::NOTHING {
                    let entry = entry.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                    *place = Place::of_entry(depth as u64, entry);
                    missing -= usize::from(*place != Place::NOTHING);
                }
            }
            if missing == 0 {
                break;
            }
        }
        Ok(Some(page))
    }

    pub(crate) fn stack(&self) -> Arc<Stack> {
        self.stack.read().clone()
    }

    /// Replaces the layers by others, to whose depths no page in memory belongs.
    fn set_stack(&self, stack: Stack) {
        let mut map = self.map.lock();
        *self.stack.write() = Arc::new(stack);
        map.clear();
    }

    /// True if any layer, or memory, has the page.
    fn has_page(&self, stack: &Stack, page: u64) -> bool {
        self.map.lock().has(page) || stack.has_page(page)
    }

    fn check_range(&self, offset: u64, length: u64) -> Result<()> {
        let size = self.size.load(Ordering::Acquire);
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => {
                Err(Error::invalid(format!("{length} bytes from {offset} are not within the {size} of {}", self.name)))
            }
        }
    }

    /// Notes that another process has the vDisk now.
    fn depose(&self) -> Error {
        if !self.deposed.swap(true, Ordering::AcqRel) {
            log::error!("vDisk {}: another process has taken it; what this one has not flushed is lost", self.name);
        }
        Error::SessionEnded
    }

    /// Checks that no other process has opened the vDisk, so that the next one sees what was written.
    fn check_owner(&self) -> Result<()> {
        loop {
            let stack = self.stack();
            if self.deposed.load(Ordering::Acquire) {
                return Err(self.depose());
            }
            if stack.head().is_unchanged(&*self.store)? {
                return Ok(());
            }
            // After a snapshot by this process a scrub may change the layer that was written.
            if Arc::ptr_eq(stack.head(), self.stack().head()) {
                return Err(self.depose());
            }
        }
    }

    /// Replaces the state of the layer that is written.
    fn put_state(&self, layer: &Layer, state: &LayerState) -> Result<()> {
        match layer.put_state(&*self.store, state) {
            Err(Error::ConditionFailed | Error::NotFound | Error::Stale) => Err(self.depose()),
            put => {
                put?;
                *self.recorded.lock() = state.clone();
                Ok(())
            }
        }
    }

    fn check_writable(&self) -> Result<()> {
        if self.deposed.load(Ordering::Acquire) {
            return Err(Error::SessionEnded);
        }
        if !self.read_only.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::Denied {
            what: match self.record.lock().0.health {
                Health::Lost { .. } => {
                    let name = &self.name;
                    format!(
                        "vDisk {name} is read-only, because changes were lost that no flush had covered; check it, then: \
                         hekate vdisk resume"
                    )
                }
                Health::Good => format!("{} is a snapshot or a template; write to a clone of it", self.name),
            },
        })
    }

    /// Replaces the vDisk's record.
    fn put_record(&self, change: impl FnOnce(&mut DiskRecord)) -> Result<()> {
        let mut record = self.record.lock();
        let mut next = record.0.clone();
        change(&mut next);
        match self.store.put(self.directory, DISK, next.seal(), record.1.condition()) {
            Err(Error::ConditionFailed) => Err(self.depose()),
            put => {
                *record = (next, put?);
                Ok(())
            }
        }
    }
}

/// Checks the size of a vDisk.
///
/// # Errors
/// `Invalid` if it is 0, no multiple of 512, or too large.
pub fn check_size(size: u64) -> Result<()> {
    if size == 0 || !size.is_multiple_of(512) || size > SIZE_MAX {
        return Err(Error::invalid(format!("{size} bytes: a vDisk has a multiple of 512 bytes, at most 64 TiB")));
    }
    Ok(())
}

/// True if the vDisk may be written as far as its record says.
fn is_writable(record: &DiskRecord) -> bool {
    record.kind == DiskKind::Disk && record.health == Health::Good
}

/// True if writes are acknowledged before all replicas have them.
fn is_async(record: &DiskRecord) -> bool {
    record.durability == Durability::Async
}

/// A block of zeros.
fn zeros(length: usize) -> Bytes {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    if length <= ZEROS.len() { Bytes::from_static(&ZEROS[..length]) } else { vec![0; length].into() }
}
