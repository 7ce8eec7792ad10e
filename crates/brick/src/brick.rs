//! A brick that is open: appending, reading, syncing.

use crate::blocks::{Blocks, State};
use crate::home::Home;
use crate::identity::{self, BrickSettings, Identity, NextLife};
use crate::index::{Index, RedbIndex};
use crate::journal::format::{EntryKind, Mark};
use crate::journal::read::Reader;
use crate::journal::{Geometry, Journal, Lsn};
use crate::recovery::{Meta, RecoveryReport};
use crate::storage::{RealStorage, Storage};
use bytes::Bytes;
use hekate_proto::*;
use parking_lot::{Mutex, RwLock};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// How far a partition's log has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    /// View of the last record.
    pub epoch: Epoch,
    /// Its number.
    pub sequence: Sequence,
}

/// A record, encoded once for all replicas.
#[derive(Debug, Clone)]
pub struct LogEntry {
    /// What it says.
    pub record: Record,
    body: Bytes,
    checksum: u32,
}

impl LogEntry {
    /// Encodes a record.
    pub fn new(record: Record) -> Self {
        let body = record.to_bytes();
        let checksum = crc32c::crc32c(&body);
        Self { record, body, checksum }
    }
}

/// One disk's store, open. All methods may be called from any thread.
pub struct Brick {
    pub(crate) id: BrickId,
    pub(crate) incarnation: Incarnation,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) geometry: Geometry,
    pub(crate) generation: u32,
    pub(crate) journal: Journal,
    pub(crate) blocks: Blocks,
    pub(crate) checkpointing: Mutex<()>,
    /// Bytes free in the file system when last asked, less what was written since.
    room: AtomicI64,
    life: Mutex<Option<NextLife>>,
    /// Held as long as the brick is open, so that no other process opens it.
    pub(crate) _lock: Option<File>,
}

/// What a brick says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrickStatus {
    /// Bytes of the file system below it, and free ones.
    pub space: (u64, u64),
    /// Bytes of the journal that recovery would read, and all.
    pub journal: (u64, u64),
    /// Memory of changes since the last checkpoint.
    pub overlay_bytes: usize,
    /// Why it stopped.
    pub poisoned: Option<String>,
}

/// Memory of changes at which a checkpoint begins, whatever the journal holds.
const OVERLAY_BYTES_MAX: usize = 64 << 20;

impl Brick {
    /// Makes a brick in an empty directory.
    pub fn create(directory: &Path, id: BrickId, cluster: &str, settings: BrickSettings) -> Result<Identity> {
        let identity = Identity::new(id, cluster, settings);
        let storage = RealStorage::new(directory);
        Identity::check_empty(directory)?;
        Self::create_on(&storage, &identity)?;
        identity.write_new(directory)?;
        Ok(identity)
    }

    /// Makes everything but `brick.toml`.
    pub fn create_on(storage: &dyn Storage, identity: &Identity) -> Result<()> {
        Home::create(storage)?;
        RedbIndex::create(storage)?;
        Journal::create(storage, geometry(identity)?)
    }

    /// Opens a brick of `cluster`, recovering what a crash left.
    pub fn open(directory: &Path, cluster: &str) -> Result<(Self, RecoveryReport)> {
        let identity = Identity::read(directory)?;
        if identity.cluster != cluster {
            return Err(Error::Denied {
                what: format!(
                    "the brick {} belongs to cluster {}, not to {cluster}; take the right disk, or make a new brick",
                    directory.display(),
                    identity.cluster
                ),
            });
        }
        let lock = identity::lock(directory)?;
        let life = identity::next_life(directory)?;
        let storage = Arc::new(RealStorage::new(directory));
        let (mut brick, report) = Self::open_on(storage, &identity, life.incarnation(), life.is_new())?;
        brick._lock = Some(lock);
        brick.life = Mutex::new(Some(life));
        Ok((brick, report))
    }

    /// Opens on any storage. `reborn`: what was not synced may be lost.
    pub fn open_on(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        incarnation: Incarnation,
        reborn: bool,
    ) -> Result<(Self, RecoveryReport)> {
        let geometry = geometry(identity)?;
        let index: Box<dyn Index> = Box::new(RedbIndex::open(&*storage, identity.settings.index_cache_bytes)?);
        let mut meta = Meta::read(&*index, geometry)?;
        // On stable storage before anything is appended, so that no record of an earlier life passes for one of this.
        meta.generation += 1;
        index.commit(&mut std::iter::empty(), &meta.to_bytes())?;
        let blocks = Blocks::new(index, Home::new(storage.clone()));
        let mut report = RecoveryReport::default();
        let end = blocks.recover(&*storage, geometry, &meta, reborn, &mut report)?;
        let journal = Journal::resume(storage.clone(), geometry, end, Lsn(meta.applied), meta.generation)?;
        let generation = meta.generation;
        let id = geometry.brick;
        let checkpointing = Mutex::new(());
        let room = AtomicI64::new(0);
        let brick = Self {
            id,
            incarnation,
            storage,
            geometry,
            generation,
            journal,
            blocks,
            checkpointing,
            room,
            life: Mutex::new(None),
            _lock: None,
        };
        brick.refresh_room()?;
        Ok((brick, report))
    }

    /// What a power cut took is settled (the replicas are even, a checkpoint has been): from now on the brick knows that
    /// it is in its new life, and the next start takes everything in its files for its own.
    pub fn settle_life(&self) -> Result<()> {
        match self.life.lock().take() {
            Some(life) => life.settle(),
            None => Ok(()),
        }
    }

    /// Which brick this is.
    pub fn id(&self) -> BrickId {
        self.id
    }

    /// In which life.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Takes a record: it is in the journal file when this returns, and every read sees it. Durable once
    /// [`Brick::sync`] has covered the returned position. Waits while the journal is full.
    pub fn append(&self, entry: &LogEntry) -> Result<Lsn> {
        let record = &entry.record;
        let at = self.position(record.ring, record.partition);
        if record.sequence.0 != at.sequence.0 + 1 || record.epoch < at.epoch {
            return Err(Error::bug(format!(
                "record {} of epoch {} after {} of epoch {} in partition {}",
                record.sequence, record.epoch, at.sequence, at.epoch, record.partition
            )));
        }
        self.room.fetch_sub(entry.body.len() as i64, Ordering::Relaxed);
        if self.awaits_removal(&record.changes) {
            return Err(Error::bug("a write to a shard that is being dropped"));
        }
        let apply = |_| self.blocks.apply(record);
        let (end, applied) = self.journal.append(EntryKind::Change, &entry.body, entry.checksum, apply)?;
        applied.inspect_err(|error| self.poison(error))?;
        Ok(end)
    }

    /// Asks the file system how much room there is, less what has yet to be written home.
    pub fn refresh_room(&self) -> Result<()> {
        let (_, free) = self.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let room = i64::try_from(free).unwrap_or(i64::MAX) - self.blocks.overlay_bytes() as i64;
        self.room.store(room, Ordering::Relaxed);
        Ok(())
    }

    /// `NoSpace` unless more than `kept` bytes would be left.
    pub fn check_room(&self, kept: u64) -> Result<()> {
        let room = self.room.load(Ordering::Relaxed);
        if room > kept as i64 {
            return Ok(());
        }
        Err(Error::NoSpace {
            what: format!("on brick {}: {} MiB are left, which deletes need", self.id.text(), room >> 20),
        })
    }

    /// Writes fresh blocks home, before the record that tells of them is appended.
    pub fn write_fresh(&self, shard: ShardId, first_block: u32, parts: &[&[u8]]) -> Result<()> {
        self.room.fetch_sub(parts.iter().map(|part| part.len() as i64).sum(), Ordering::Relaxed);
        self.blocks.home.write(shard, first_block, parts).inspect_err(|error| {
            if !matches!(error, Error::NoSpace { .. }) {
                self.poison(error);
            }
        })
    }

    /// Puts the data files of these shards on stable storage, as far as they have bytes that no sync has covered.
    /// -> the position to [`Brick::sync`] to.
    pub fn sync_shards(&self, shards: &[ShardId]) -> Result<Lsn> {
        let mut marks = Vec::new();
        for shard in shards {
            if let Some((stamp, writes)) = self.blocks.unsynced_home(*shard) {
                self.blocks.home.sync(*shard).inspect_err(|error| self.poison(error))?;
                self.blocks.home_synced(*shard, writes);
                marks.push((*shard, stamp));
            }
        }
        if marks.is_empty() {
            return Ok(self.journal.end());
        }
        let body = Mark { shards: marks }.to_bytes();
        Ok(self.journal.append(EntryKind::Mark, &body, crc32c::crc32c(&body), |_| ())?.0)
    }

    /// Returns once everything before `upto` is on stable storage.
    pub fn sync(&self, upto: Lsn) -> Result<()> {
        self.journal.sync(upto)
    }

    /// Where the journal ends.
    pub fn end(&self) -> Lsn {
        self.journal.end()
    }

    /// Stops the brick: nothing is appended or acknowledged as durable any more.
    pub fn poison(&self, error: &Error) {
        let what = error.detail().unwrap_or("a failed write").to_string();
        self.journal.fail(&Error::Poisoned { what });
    }

    /// The value of a key.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        self.blocks.get(key)
    }

    /// At most `limit` entries of `from..to`, in order.
    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>> {
        self.blocks.scan(from, to, limit)
    }

    /// A shard as it is.
    pub fn shard(&self, ring: RingId, shard: ShardId) -> Result<Option<ShardRecord>> {
        self.blocks.shard(ring, shard)
    }

    /// A block of a data file as it is, unchecked.
    pub fn read_home(&self, shard: ShardId, block: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.blocks.home.read(shard, block, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether the shard was given up and a checkpoint has yet to remove it: it cannot be written.
    pub fn is_dropped(&self, shard: ShardId) -> bool {
        self.blocks.is_dropped(shard)
    }

    /// Whether any of the changes writes a shard that a checkpoint has yet to remove: they must wait for it.
    pub fn awaits_removal(&self, changes: &[Change]) -> bool {
        changes.iter().filter_map(writes_shard).any(|shard| self.is_dropped(shard))
    }

    /// Shards with bytes that only [`Brick::sync_shards`] makes durable.
    pub fn unsynced_shards(&self) -> Vec<ShardId> {
        self.blocks.unsynced_shards()
    }

    /// At most `length` bytes of a shard from `offset`, each block checked; short at the shard's end.
    pub fn read_shard(&self, ring: RingId, shard: ShardId, offset: u32, length: u32) -> Result<Bytes> {
        self.blocks.read_shard(ring, shard, offset, length)
    }

    /// All shards of a partition (one of `count`).
    pub fn shards(&self, ring: RingId, partition: PartitionNumber, count: u32) -> Result<Vec<ShardId>> {
        self.blocks.shards(ring, partition, count)
    }

    /// How far a partition's log has come here.
    pub fn position(&self, ring: RingId, partition: PartitionNumber) -> LogPosition {
        self.blocks.state.read().positions.get(&(ring, partition)).copied().unwrap_or_default()
    }

    /// The records of a partition after `after` that the journal still has.
    pub fn records_since(&self, ring: RingId, partition: PartitionNumber, after: Sequence) -> Result<Vec<LogEntry>> {
        let mut reader = Reader::new(&*self.storage, self.geometry, self.journal.oldest());
        let mut found = Vec::new();
        let end = self.journal.end();
        while reader.position() < end {
            let Some(entry) = reader.next()? else { break };
            if entry.kind != EntryKind::Change {
                continue;
            }
            let record = Record::from_bytes(entry.body)?;
            if record.ring == ring && record.partition == partition && record.sequence > after {
                found.push(LogEntry::new(record));
            }
        }
        Ok(found)
    }

    /// Whether it is time to write home.
    pub fn wants_checkpoint(&self) -> bool {
        let (used, all) = self.journal.fill();
        used > all / 2 || self.blocks.state.read().active.bytes > OVERLAY_BYTES_MAX
    }

    /// Whether a checkpoint would give space back to the file system.
    pub fn could_free_space(&self) -> bool {
        self.blocks.state.read().active.frees_space
    }

    /// What the brick says of itself.
    pub fn status(&self) -> Result<BrickStatus> {
        let space = self.storage.space().map_err(|e| Error::io("statvfs of the brick", e))?;
        let overlay_bytes = self.blocks.overlay_bytes();
        let poisoned = self.journal.failure().map(|error| error.to_string());
        Ok(BrickStatus { space, journal: self.journal.fill(), overlay_bytes, poisoned })
    }
}

fn writes_shard(change: &Change) -> Option<ShardId> {
    match change {
        Change::WriteBlocks { shard, .. } | Change::FreshBlocks { shard, .. } | Change::CutShard { shard, .. } => {
            Some(*shard)
        }
        Change::Put { .. } | Change::Delete { .. } | Change::DropShard { .. } => None,
    }
}

pub(crate) fn geometry(identity: &Identity) -> Result<Geometry> {
    let BrickSettings { journal_segments, segment_bytes, .. } = identity.settings;
    let sane = (4..=65_536).contains(&journal_segments) && ((64 << 10)..=(1 << 30)).contains(&segment_bytes);
    if !sane {
        return Err(Error::invalid(format!(
            "a journal of {journal_segments} segments of {segment_bytes} bytes; at least 4, of 64 KiB to 1 GiB"
        )));
    }
    Ok(Geometry { brick: identity.brick_id()?, segments: journal_segments, segment_bytes })
}

pub(crate) type SharedState = RwLock<State>;
