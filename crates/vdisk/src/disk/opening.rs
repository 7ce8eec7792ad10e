//! Opening: the token, the stack of layers, and the end of the log.

use super::append::SHARD_BLOCKS;
use super::{Core, Counts, DISK, Disk, Log, Settings, is_writable};
use crate::catalogue::{Catalogue, OWNER};
use crate::format::append::{Entry, Header, checksum};
use crate::format::{BLOCK_BYTES, DiskKind, DiskRecord, LayerState, LogPosition, Record, SnapshotRecord};
use crate::layer::{Layer, Stack};
use crate::map::Map;
use crate::store::{Hold, Store};
use bytes::Bytes;
use hekate_proto::{Condition, Error, InodeId, Result};
use hekate_threads::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks that a recovery reads at once.
const READ_BLOCKS: u32 = 64;

/// Who has a vDisk open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The session, which `--steal` ends.
    pub session: u64,
    /// Machine and process, as it wrote them.
    pub who: String,
}

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
        let store = catalogue.store().clone();
        let (directory, _) = catalogue.disk(name)?;
        let hold = take_token(&*store, directory, name, who)?;
        // As of before the token was taken the record may be another session's.
        let record = DiskRecord::unseal(&store.fetch(directory, DISK)?)?;
        let (stack, state) = Stack::open(&*store, record.head)?;
        let core = Arc::new(Core::new((store, settings), name.into(), directory, record, stack, &state, Some(hold)));
        core.replay(&mut core.log.lock())?;
        if is_writable(&core.record()) {
            core.begin_writing()?;
            core.read_only.store(false, Ordering::Release);
        }
        Ok(Self { core })
    }

    /// Opens a snapshot for reading. It needs no token.
    ///
    /// # Errors
    /// `Invalid` with the known names if there is none.
    pub fn open_snapshot(catalogue: &Catalogue, name: &str, snapshot: &str, settings: Settings) -> Result<Self> {
        let (directory, record) = catalogue.disk(name)?;
        let SnapshotRecord { layer, size, .. } = catalogue.snapshot(directory, name, snapshot)?;
        let record = DiskRecord { size, head: layer, ..record };
        Self::open_sealed(catalogue, directory, format!("{name}@{snapshot}"), record, settings)
    }

    /// Opens a template for reading. It needs no token.
    ///
    /// # Errors
    /// `Invalid` with the known names if there is none, or if it is no template.
    pub fn open_template(catalogue: &Catalogue, name: &str, settings: Settings) -> Result<Self> {
        let (directory, record) = catalogue.disk(name)?;
        if record.kind != DiskKind::Template {
            return Err(Error::invalid(format!("vDisk {name} is no template")));
        }
        Self::open_sealed(catalogue, directory, name.into(), record, settings)
    }

    fn open_sealed(
        catalogue: &Catalogue,
        directory: InodeId,
        name: String,
        record: DiskRecord,
        settings: Settings,
    ) -> Result<Self> {
        let store = catalogue.store().clone();
        let (stack, state) = Stack::open(&*store, record.head)?;
        if !state.sealed {
            return Err(Error::Damaged { what: format!("{name}: its layer {} is still written", record.head.text()) });
        }
        Ok(Self { core: Arc::new(Core::new((store, settings), name, directory, record, stack, &state, None)) })
    }
}

/// Takes the token of a vDisk.
pub(crate) fn take_token(store: &dyn Store, directory: InodeId, name: &str, who: &str) -> Result<Hold> {
    let owner = store.find(directory, OWNER)?;
    let Some(hold) = store.lock(owner, false)? else {
        let who = holder_of(store, directory)?.map_or("another session".into(), |holder| holder.who);
        let what = format!(
            "vDisk {name} is open at {who}; close it there, or take it with --steal: what {who} has not flushed is then lost"
        );
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

/// Who has a vDisk open.
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
        name: String,
        directory: InodeId,
        record: DiskRecord,
        stack: Stack,
        state: &LayerState,
        hold: Option<Hold>,
    ) -> Self {
        Self {
            store,
            settings,
            name,
            directory,
            size: AtomicU64::new(record.size),
            record: Mutex::new(record),
            log: Mutex::new(Log::of(state)),
            map: Mutex::new(Map::new(settings.map_pages)),
            stack: RwLock::new(Arc::new(stack)),
            unsynced: Mutex::new(Default::default()),
            flushing: Mutex::new(()),
            appended: AtomicU64::new(state.log.sequence),
            stable: AtomicU64::new(0),
            checkpointing: Mutex::new(()),
            checkpoint_runs: AtomicBool::new(false),
            read_only: AtomicBool::new(true),
            owes_error: AtomicBool::new(false),
            counts: Counts::default(),
            backlog: Default::default(),
            hold: Mutex::new(hold),
        }
    }

    fn record(&self) -> DiskRecord {
        self.record.lock().clone()
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

    /// The append at the log's position, or at the begin of the next segment.
    fn next_append(&self, log: &Log) -> Result<Found> {
        let LogPosition { segment, block, .. } = log.position;
        if segment > 0 && log.segment_blocks - block >= 2 {
            let found = self.append_at(log, segment, block)?;
            if matches!(found, Found::Append(_)) {
                return Ok(found);
            }
        }
        self.append_at(log, log.next_segment, 0)
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
            self.header_at(log, log.next_segment.max(segment + 1), 0, header.sequence + 1)?
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
            log.position.opening = self.store.random()?;
            let LogPosition { segment, block, .. } = log.position;
            if segment > 0 && block < log.segment_blocks {
                log.segment = Some(self.stack().head().segment(&self.store, segment)?);
            }
        }
        self.checkpoint()
    }
}

/// Makes the files of a vDisk but for its record.
pub(crate) fn make_files(store: &dyn Store, directory: InodeId) -> Result<()> {
    match store.put(directory, OWNER, Bytes::new(), Condition::Absent) {
        Err(Error::ConditionFailed) => Ok(()),
        made => made,
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
