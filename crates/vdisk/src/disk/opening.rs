//! Opening: the token, the stack of layers, and the end of the log.

use super::append::SHARD_BLOCKS;
use super::{Core, Counts, DISK, Disk, Log, Settings, is_writable};
use crate::catalogue::{Catalogue, OWNER};
use crate::format::append::{Entry, Header, checksum};
use crate::format::{BLOCK_BYTES, DiskKind, DiskRecord, LayerState, LogPosition, Record, SnapshotRecord};
use crate::layer::{Layer, Stack, map_name, segment_name, segment_number};
use crate::map::Map;
use crate::store::{Hold, OpenFile, Store, Version};
use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{Condition, Error, InodeId, Result};
use hekate_threads::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks that a recovery reads at once.
const READ_BLOCKS: u32 = 64;

/// The session that has a vDisk open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The session, which `--steal` ends.
    pub session: u64,
    /// Machine and process, as it wrote them.
    pub who: String,
}

/// Name, directory and record of a vDisk.
type Place = (String, InodeId, (DiskRecord, Version));

/// An append that was read back.
enum Found {
    Append(Header),
    /// The log ends here.
    End,
}

impl Disk {
    /// Opens a vDisk for reading and writing, with the fencing token of this session. A template, and a vDisk that has lost
    /// changes, is opened read-only.
    ///
    /// `who`: machine and process, for people.
    ///
    /// # Errors
    /// `Invalid` with the known names if there is none; `Unavailable`, which names the holder, if another session has it.
    pub fn open(catalogue: &Catalogue, name: &str, who: &str, settings: Settings) -> Result<Self> {
        let (directory, _) = catalogue.disk(name)?;
        let hold = take_token(&**catalogue.store(), directory, name, who)?;
        Self::open_with(catalogue, (directory, name), hold, settings)
    }

    /// As [`Disk::open`], also if another session has the vDisk, which it takes away: whatever that session does later has
    /// no effect, and its flushes fail. What it has not flushed may be lost.
    ///
    /// # Errors
    /// As [`Disk::open`]; `Unavailable` if yet another one opens the vDisk at this moment.
    pub fn steal(catalogue: &Catalogue, name: &str, who: &str, settings: Settings) -> Result<Self> {
        let store = &**catalogue.store();
        let (directory, _) = catalogue.disk(name)?;
        // The other's lock stays with the file that had the name.
        store.put(directory, OWNER, Bytes::new(), Condition::Always)?;
        let hold = take_token(store, directory, name, who)?;
        Self::open_with(catalogue, (directory, name), hold, settings)
    }

    fn open_with(
        catalogue: &Catalogue,
        (directory, name): (InodeId, &str),
        hold: Hold,
        settings: Settings,
    ) -> Result<Self> {
        let store = catalogue.store().clone();
        let (record, version) = store.fetch_version(directory, DISK)?;
        let record = DiskRecord::unseal(&record)?;
        let claimed = |put: Result<_>| match put {
            Err(Error::ConditionFailed) => Err(Error::Unavailable {
                what: format!("another process opens vDisk {name} at this moment; try again"),
            }),
            put => put,
        };
        // Also one that has lost changes: its owner before may note another loss, resume it, or still write its map. Nobody
        // writes a template.
        let claims = record.kind == DiskKind::Disk;
        // The process that had the vDisk before can replace neither record any more.
        let version = match claims {
            true => claimed(store.put(directory, DISK, record.seal(), version.condition()))?,
            false => version,
        };
        let opened = Stack::open(&*store, record.head);
        // If the record was replaced since, another opening may have sealed this head, or removed layers below it.
        if store.version(directory, DISK)? != version {
            claimed(Err(Error::ConditionFailed))?;
        }
        let (stack, mut state) = opened?;
        if claims && state.writing {
            copy_map(&store, stack.head(), &mut state)?;
        }
        let puts = claims && !is_planted(Bug::DiskStateKept);
        match if puts { stack.head().put_state(&*store, &state) } else { Ok(()) } {
            Err(Error::ConditionFailed) => {
                return Err(Error::Unavailable { what: format!("vDisk {name} is written at this moment; try again") });
            }
            put => put?,
        }
        let writable = is_writable(&record);
        let place = (name.into(), directory, (record, version));
        let core = Arc::new(Core::new((store, settings), place, stack, &state, Some(hold)));
        core.replay(&mut core.log.lock())?;
        if writable {
            core.keep_replayed()?;
            core.begin_writing()?;
            core.remove_unused()?;
            core.read_only.store(false, Ordering::Release);
        }
        Ok(Self { core })
    }

    /// Opens a snapshot for reading. It needs no token.
    ///
    /// # Errors
    /// `Invalid` with the known names if there is none.
    pub fn open_snapshot(catalogue: &Catalogue, name: &str, snapshot: &str, settings: Settings) -> Result<Self> {
        let (directory, record, version) = catalogue.disk_version(name)?;
        let SnapshotRecord { layer, size, .. } = catalogue.snapshot(directory, name, snapshot)?;
        let record = DiskRecord { size, head: layer, ..record };
        Self::open_sealed(catalogue, (format!("{name}@{snapshot}"), directory, (record, version)), settings)
    }

    /// Opens a template for reading. It needs no token.
    ///
    /// # Errors
    /// `Invalid` with the known names if there is none, or if it is no template.
    pub fn open_template(catalogue: &Catalogue, name: &str, settings: Settings) -> Result<Self> {
        let (directory, record, version) = catalogue.disk_version(name)?;
        if record.kind != DiskKind::Template {
            return Err(Error::invalid(format!("vDisk {name} is no template")));
        }
        Self::open_sealed(catalogue, (name.into(), directory, (record, version)), settings)
    }

    fn open_sealed(catalogue: &Catalogue, place: Place, settings: Settings) -> Result<Self> {
        let store = catalogue.store().clone();
        let (name, _, (record, _)) = &place;
        let (stack, state) = Stack::open(&*store, record.head)?;
        if !state.sealed {
            return Err(Error::Damaged { what: format!("{name}: its layer {} is still written", record.head.text()) });
        }
        Ok(Self { core: Arc::new(Core::new((store, settings), place, stack, &state, None)) })
    }
}

/// Takes the token of a vDisk.
pub(crate) fn take_token(store: &dyn Store, directory: InodeId, name: &str, who: &str) -> Result<Hold> {
    let owner = store.find(directory, OWNER)?;
    let Some(hold) = store.lock(owner, false)? else {
        let who = holder_of(store, directory)?.map_or("another session".into(), |holder| holder.who);
        let what = format!("vDisk {name} is open at {who}; close it there, or take it away with: hekate vdisk steal");
        return Err(Error::Unavailable { what });
    };
    // The lock is on the file, and so is the name of the holder: it is written, not replaced.
    let mut text = who.as_bytes().to_vec();
    text.resize(WHO_BYTES, 0);
    store.write(owner, 0, text.into(), false)?;
    Ok(hold)
}

/// Bytes of the text that names the holder.
const WHO_BYTES: usize = 256;

/// The session that has a vDisk open.
pub(crate) fn holder_of(store: &dyn Store, directory: InodeId) -> Result<Option<Holder>> {
    let owner = store.find(directory, OWNER)?;
    let Some(session) = store.holder(owner)? else { return Ok(None) };
    let text = store.read(owner, 0, WHO_BYTES as u32)?;
    let text: Vec<u8> = text.iter().copied().take_while(|byte| *byte != 0).collect();
    let who = String::from_utf8_lossy(&text).into_owned();
    Ok(Some(Holder { session, who: if who.is_empty() { format!("session {session}") } else { who } }))
}

impl Core {
    fn new(
        (store, settings): (Arc<dyn Store>, Settings),
        (name, directory, record): Place,
        stack: Stack,
        state: &LayerState,
        hold: Option<Hold>,
    ) -> Self {
        Self {
            store,
            settings,
            name,
            directory,
            size: AtomicU64::new(record.0.size),
            record: Mutex::new(record),
            recorded: Mutex::new(state.clone()),
            deposed: AtomicBool::new(false),
            log: Mutex::new(Log::of(state)),
            map: Mutex::new(Map::new(settings.map_pages)),
            stack: RwLock::new(Arc::new(stack)),
            unsynced: Mutex::new(Default::default()),
            flushing: Mutex::new(()),
            unconfirmed: AtomicBool::new(false),
            appended: AtomicU64::new(state.log.sequence),
            stable: AtomicU64::new(0),
            checkpointing: Mutex::new(()),
            checkpoint_runs: AtomicBool::new(false),
            read_only: AtomicBool::new(true),
            owes_error: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            counts: Counts::default(),
            backlog: Default::default(),
            hold: Mutex::new(hold),
        }
    }

    /// Enters the appends that the log has behind the last checkpoint.
    pub(super) fn replay(&self, log: &mut Log) -> Result<()> {
        while let Found::Append(header) = self.next_append(log)? {
            log.next_segment = log.next_segment.max(header.segment + 1);
            self.enter(log, &header)?;
            log.bytes += u64::from(header.blocks()) * BLOCK_BYTES;
            for block in [header.block, header.block + header.blocks() - 1] {
                log.replayed.insert((header.segment, block / SHARD_BLOCKS), block);
            }
        }
        Ok(())
    }

    /// Makes the appends of an earlier session this one's, so that a sync covers them: a sync covers the shards that its
    /// session has written. One block of each is written again as it is.
    fn adopt_appends(&self, log: &mut Log) -> Result<()> {
        let stack = self.stack();
        while let Some(((segment, shard), block)) = log.replayed.pop_first() {
            let file = stack.head().segment(&self.store, segment)?;
            let bytes = read_blocks(&self.store, stack.head(), segment, block, 1)?;
            if let Err(error) = self.store.write(file.id, u64::from(block) * BLOCK_BYTES, bytes, false) {
                log.replayed.insert((segment, shard), block);
                return Err(error);
            }
            self.unsynced.lock().insert(file.id, file.clone());
        }
        Ok(())
    }

    /// Puts the appends that were read back on stable storage, and reads them once more: what all replicas have lost after
    /// the first reading ends the log, and is not in the map.
    pub(super) fn keep_replayed(&self) -> Result<()> {
        {
            let mut log = self.log.lock();
            if log.replayed.is_empty() {
                return Ok(());
            }
            self.adopt_appends(&mut log)?;
        }
        self.sync_segments()?;
        self.reload()
    }

    /// The append at the log's position, or at the begin of the next segment.
    fn next_append(&self, log: &Log) -> Result<Found> {
        let LogPosition { segment, block, .. } = log.position;
        if segment > 0 && log.segment_blocks - block >= 2 {
            let found = self.append_at(log, segment, block)?;
            if matches!(found, Found::Append(_)) {
                return Ok(found);
            }
        }
        for next in self.segments_from(log.next_segment)? {
            let found = self.append_at(log, next, 0)?;
            if matches!(found, Found::Append(_)) {
                return Ok(found);
            }
        }
        Ok(Found::End)
    }

    /// Numbers of the segments that exist, from `first` on.
    fn segments_from(&self, first: u32) -> Result<Vec<u32>> {
        let names = self.store.list(self.stack().head().directory)?;
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| segment_number(name)).collect();
        numbers.retain(|number| *number >= first);
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Removes segments and maps that earlier openings have made and nothing leads to.
    fn remove_unused(&self) -> Result<()> {
        let stack = self.stack();
        let mut used: BTreeSet<String> = self.log.lock().uses.keys().map(|number| segment_name(*number)).collect();
        used.insert(map_name(stack.head().map_number()));
        match stack.head().remove_unused(&*self.store, |name| used.contains(name)) {
            Err(Error::ConditionFailed) => Err(self.depose()),
            removed => removed,
        }
    }

    fn append_at(&self, log: &Log, segment: u32, block: u32) -> Result<Found> {
        let Some(header) = self.header_at(log, segment, block, log.position.sequence)? else { return Ok(Found::End) };
        let data = read_blocks(&self.store, self.stack().head(), segment, block + 1, header.data_blocks())?;
        let sums = header.entries.iter().filter_map(|entry| match entry {
            Entry::Data { checksum, .. } => Some(*checksum),
            _ => None,
        });
        let is_whole = data.len() as u64 == u64::from(header.data_blocks()) * BLOCK_BYTES
            && data.chunks_exact(BLOCK_BYTES as usize).map(checksum).eq(sums);
        if is_whole {
            return Ok(Found::Append(header));
        }
        // An append that was not flushed may be lost in part. One that a later one calls stable was whole.
        let after = block + header.blocks();
        let next = if after < log.segment_blocks {
            self.header_at(log, segment, after, header.sequence + 1)?
        } else {
            let mut later = self.segments_from(segment + 1)?.into_iter();
            later.find_map(|next| self.header_at(log, next, 0, header.sequence + 1).transpose()).transpose()?
        };
        if next.is_some_and(|next| next.stable > header.sequence) {
            let what = format!("vDisk {}: blocks of segment {segment} do not match their checksums", self.name);
            return Err(Error::Damaged { what });
        }
        Ok(Found::End)
    }

    fn header_at(&self, log: &Log, segment: u32, block: u32, sequence: u64) -> Result<Option<Header>> {
        let bytes = read_blocks(&self.store, self.stack().head(), segment, block, 1)?;
        let layer = self.stack().head().id;
        let is_it = |header: &Header| {
            (header.layer, header.opening, header.sequence) == (layer, log.position.opening, sequence)
                && (header.segment, header.block) == (segment, block)
                && block + header.blocks() <= log.segment_blocks
        };
        Ok(Header::unseal(&bytes).filter(is_it))
    }

    /// Makes appends of this opening different from those of others, of which some may lie behind the end of the log.
    pub(super) fn begin_writing(&self) -> Result<()> {
        {
            let mut log = self.log.lock();
            self.adopt_appends(&mut log)?;
            // They go to a segment of their own: an earlier opening may still write to the last one.
            if !is_planted(Bug::DiskOpeningShared) {
                log.position.opening = self.store.random()?;
            }
            (log.segment, log.spare) = (None, None);
        }
        self.checkpoint()
    }
}

/// Makes the files of a vDisk but for its record.
pub(crate) fn make_files(store: &dyn Store, directory: InodeId) -> Result<()> {
    match store.put(directory, OWNER, Bytes::new(), Condition::Absent) {
        Err(Error::ConditionFailed) => Ok(()),
        made => made.map(|_| ()),
    }
}

/// Blocks of a segment; fewer if it does not exist, or ends before.
pub(super) fn read_blocks(
    store: &Arc<dyn Store>,
    layer: &Layer,
    segment: u32,
    block: u32,
    count: u32,
) -> Result<Bytes> {
    let file = match layer.segment(store, segment) {
        Err(Error::NotFound) => return Ok(Bytes::new()),
        found => found?,
    };
    if count <= READ_BLOCKS {
        return store.read(file.id, u64::from(block) * BLOCK_BYTES, count * BLOCK_BYTES as u32);
    }
    let mut all = Vec::with_capacity(count as usize * BLOCK_BYTES as usize);
    let mut at = block;
    while at < block + count {
        let blocks = READ_BLOCKS.min(block + count - at);
        all.extend_from_slice(&store.read(file.id, u64::from(at) * BLOCK_BYTES, blocks * BLOCK_BYTES as u32)?);
        at += blocks;
    }
    Ok(all.into())
}

/// Pages that are copied at once.
const COPY_PAGES: u64 = 64;

/// Copies the map of a layer to a file that nobody else writes: whoever had the layer may still write pages that its state
/// has announced. They are of appends that are in the log, so each of them may be copied or not.
fn copy_map(store: &Arc<dyn Store>, layer: &Layer, state: &mut LayerState) -> Result<()> {
    let mut next = state.map + 1;
    // Another process may copy the map at this moment, or has left a part of one.
    let file = loop {
        match store.make_file(layer.directory, &map_name(next)) {
            Err(Error::Exists) => next += 1,
            made => break Arc::new(OpenFile::new(store, made?)),
        }
    };
    let pages = layer.pages();
    let mut due = pages.range(0, u64::MAX).peekable();
    while let Some(first) = due.next() {
        let mut count = 1;
        while count < COPY_PAGES && due.next_if_eq(&(first + count)).is_some() {
            count += 1;
        }
        let bytes = layer.read_pages(store, first, count)?;
        store.write(file.id, first * BLOCK_BYTES, bytes, false)?;
    }
    store.sync(file.id)?;
    (state.map, state.writing) = (next, false);
    layer.use_map(next, file);
    Ok(())
}
