//! The index in redb: one table of entries and one with the meta record, in one file of the brick's storage.
//!
//! Reads use a snapshot that each commit replaces: they do not wait for a checkpoint, and never see half of one.

use super::backend::{Backend, Found, Reading};
use super::{Index, IndexChange, seal, unseal};
use crate::storage::Storage;
use bytes::Bytes;
use hekate_proto::{Error, Result};
use hekate_threads::{Mutex, RwLock};
use redb::{Database, ReadOnlyTable, ReadableDatabase, Table, TableDefinition};
use std::ops::Bound;
use std::sync::Arc;

const ENTRIES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<&[u8], &[u8]> = TableDefinition::new("meta");
const META_KEY: &[u8] = b"checkpoint";

type Snapshot = ReadOnlyTable<&'static [u8], &'static [u8]>;
type Entries<'a> = Table<'a, &'static [u8], &'static [u8]>;

/// The index of a brick.
///
/// After a write that failed, redb reads nothing more from its file. So when a commit finds no room, the file is
/// closed, and the next commit or failed read opens it again, as after the death of the process; the commit has changed
/// nothing.
pub struct RedbIndex {
    storage: Arc<dyn Storage>,
    cache_bytes: usize,
    reading: Reading,
    opened: RwLock<Opened>,
    /// Held by a commit. A reader that met an error waits for it and reads once more.
    committing: Mutex<()>,
    found: Arc<Found>,
}

struct Opened {
    /// `None`: a commit found no room, and the file has not been opened again.
    database: Option<Database>,
    snapshot: Arc<Snapshot>,
}

impl RedbIndex {
    /// Makes the index of a new brick. A power cut during this leaves an index that cannot be opened; the directory is
    /// no brick yet, since `brick.toml` is written last.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: the files cannot be made.
    pub fn create(storage: &dyn Storage) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("make the index", e);
        storage.create_directory("index").map_err(failed)?;
        let backend = Backend::open(storage, true, Reading::Strict, Arc::default())?;
        storage.sync_directory("index").map_err(failed)?;
        let database = Database::builder().create_with_backend(backend).map_err(index_error)?;
        let mut transaction = database.begin_write().map_err(index_error)?;
        transaction.set_quick_repair(true);
        transaction.open_table(ENTRIES).map_err(index_error)?;
        transaction.open_table(META).map_err(index_error)?;
        transaction.commit().map_err(index_error)
    }

    /// Opens the index of a brick, with a cache of at most `cache_bytes`.
    ///
    /// # Errors
    /// `Damaged`: the file is damaged or its sums are missing. `NoSpace`: opening it needs room. `Io`: the disk failed.
    pub fn open(storage: Arc<dyn Storage>, cache_bytes: usize, reading: Reading) -> Result<Self> {
        let found = Arc::<Found>::default();
        let opened = open(&*storage, cache_bytes, reading, &found)?;
        Ok(Self { storage, cache_bytes, reading, opened: RwLock::new(opened), committing: Mutex::new(()), found })
    }

    /// Damage and lack of room that reads and writes of the index find, for a caller that passes the index on.
    pub fn found(&self) -> Arc<Found> {
        self.found.clone()
    }

    /// Reads all pages of the last commit, and compares each with the checksum in its parent.
    ///
    /// # Errors
    /// `Damaged`, `Io`: the files cannot be opened.
    pub fn check_pages(storage: &dyn Storage, cache_bytes: usize) -> Result<Pages> {
        let found = Arc::<Found>::default();
        let mut database = open_database(storage, cache_bytes, Reading::Salvage, &found)?;
        let tree = database.check_integrity().map_err(index_error);
        Ok(Pages { tree, flipped: found.take_mended(), wrong: found.wrong() })
    }

    /// Reads a snapshot. After an error it reads the newest one, if the file was opened again meanwhile.
    fn read<T>(&self, mut read: impl FnMut(&Snapshot) -> Result<T>) -> Result<T> {
        let snapshot = || self.opened.read().snapshot.clone();
        let first = snapshot();
        read(&first).or_else(|error| {
            let _alone = self.committing.lock();
            self.open_if_closed().map_err(|error| match error {
                Error::NoSpace { what } => Error::Unavailable { what },
                other => other,
            })?;
            let now = snapshot();
            if Arc::ptr_eq(&first, &now) { Err(error) } else { read(&now) }
        })
    }

    fn try_commit(&self, changes: &mut dyn Iterator<Item = IndexChange<'_>>, meta: &[u8]) -> Result<()> {
        let opened = self.opened.read();
        let database = opened.database.as_ref().ok_or_else(|| Error::Io { what: "the index is closed".into() })?;
        let mut transaction = database.begin_write().map_err(index_error)?;
        // Without quick repair, an opening after a crash reads every page, and damage to a page can pass for an
        // unfinished commit.
        transaction.set_quick_repair(true);
        {
            let mut entries = transaction.open_table(ENTRIES).map_err(index_error)?;
            put_all(&mut entries, &changes.collect::<Vec<_>>())?;
            let mut sealed = Vec::new();
            seal(META_KEY, meta, &mut sealed);
            let mut table = transaction.open_table(META).map_err(index_error)?;
            table.insert(META_KEY, &sealed[..]).map_err(index_error)?;
        }
        transaction.commit().map_err(index_error)?;
        let snapshot = Arc::new(snapshot_of(database)?);
        drop(opened);
        self.opened.write().snapshot = snapshot;
        Ok(())
    }

    /// Opens the file as the last commit left it, if it is closed. `NoSpace` if that finds no room either.
    fn open_if_closed(&self) -> Result<()> {
        let mut opened = self.opened.write();
        if opened.database.is_none() {
            *opened = open(&*self.storage, self.cache_bytes, self.reading, &self.found)?;
        }
        Ok(())
    }
}

fn open(storage: &dyn Storage, cache_bytes: usize, reading: Reading, found: &Arc<Found>) -> Result<Opened> {
    let no_room = |error| found.take_no_room().map_or(error, |what| Error::NoSpace { what });
    let database = open_database(storage, cache_bytes, reading, found).map_err(no_room)?;
    let snapshot = Arc::new(snapshot_of(&database).map_err(|error| found.explain(error))?);
    Ok(Opened { database: Some(database), snapshot })
}

/// What [`RedbIndex::check_pages`] found.
pub struct Pages {
    /// Whether each page has the checksum that its parent has for it, after flipped bits were repaired.
    pub tree: Result<bool>,
    /// Blocks in which one flipped bit was repaired.
    pub flipped: Vec<u64>,
    /// Blocks that do not match their sums otherwise.
    pub wrong: Vec<u64>,
}

fn open_database(storage: &dyn Storage, cache_bytes: usize, reading: Reading, found: &Arc<Found>) -> Result<Database> {
    let backend = Backend::open(storage, false, reading, found.clone())?;
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    builder.create_with_backend(backend).map_err(|error| found.explain(index_error(error)))
}

fn snapshot_of(database: &Database) -> Result<Snapshot> {
    database.begin_read().map_err(index_error)?.open_table(ENTRIES).map_err(index_error)
}

fn index_error(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::Corrupted(what) => Error::Damaged { what: format!("the index: {what}") },
        other => Error::Io { what: format!("the index: {other}") },
    }
}

/// A run of new keys of at least this many bytes is inserted as one splice, which leaves full pages behind. That is
/// right where a key range grows at its end. Between keys that others will be inserted among, half-full pages split
/// less often.
const SPLICE_BYTES_MIN: usize = 8192;

/// Applies changes one after the other, whatever the order of their keys.
fn put_all(entries: &mut Entries<'_>, changes: &[IndexChange<'_>]) -> Result<()> {
    let mut rest = changes;
    let mut sealed = Vec::new();
    while !rest.is_empty() {
        let count = splice(entries, rest, &mut sealed)?;
        for (key, value) in &rest[..count.alone] {
            match value {
                Some(value) => {
                    seal(key, value, &mut sealed);
                    entries.insert(*key, &sealed[..]).map_err(index_error)?;
                }
                None => {
                    entries.remove(*key).map_err(index_error)?;
                }
            }
        }
        rest = &rest[count.spliced + count.alone..];
    }
    Ok(())
}

/// Of the remaining changes: the number that were inserted as a splice, and the number that must be applied one by one.
struct Count {
    spliced: usize,
    alone: usize,
}

/// Inserts the ascending run of new keys at the beginning of the changes, if it lies between two keys and is long
/// enough.
fn splice(entries: &mut Entries<'_>, changes: &[IndexChange<'_>], sealed: &mut Vec<u8>) -> Result<Count> {
    let Some((first, Some(_))) = changes.first() else { return Ok(Count { spliced: 0, alone: 1 }) };
    let mut cursor = entries.lower_bound_mut(Bound::Included(*first)).map_err(index_error)?;
    let next = cursor.peek_next().map_err(index_error)?.map(|(key, _)| key.value().to_vec());
    let is_new = |(key, value): &IndexChange| value.is_some() && next.as_deref().is_none_or(|next| *key < next);
    let ascends = |at: usize| at == 0 || changes[at - 1].0 < changes[at].0;
    let length = (0..changes.len()).take_while(|at| ascends(*at) && is_new(&changes[*at])).count();
    let run = &changes[..length];
    let bytes: usize = run.iter().map(|(key, value)| key.len() + value.map_or(0, <[u8]>::len)).sum();
    if bytes < SPLICE_BYTES_MIN {
        cursor.close().map_err(index_error)?;
        // An empty run: the first key exists already.
        return Ok(Count { spliced: 0, alone: run.len().max(1) });
    }
    for (key, value) in run {
        seal(key, value.unwrap_or_default(), sealed);
        cursor.insert_before(*key, &sealed[..]).map_err(index_error)?;
    }
    cursor.close().map_err(index_error)?;
    Ok(Count { spliced: run.len(), alone: 0 })
}

impl Index for RedbIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let sealed = self.read(|snapshot| {
            let sealed = snapshot.get(key).map_err(index_error)?;
            Ok(sealed.map(|sealed| unseal(key, sealed.value())))
        })?;
        sealed.transpose()
    }

    fn scan_all(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], Result<Bytes>) -> bool) -> Result<()> {
        let mut from = Bound::Included(from.to_vec());
        self.read(|snapshot| {
            let range = (from.as_ref().map(Vec::as_slice), Bound::Excluded(to));
            for entry in snapshot.range::<&[u8]>(range).map_err(index_error)? {
                let (key, sealed) = entry.map_err(index_error)?;
                if !visit(key.value(), unseal(key.value(), sealed.value())) {
                    break;
                }
                from = Bound::Excluded(key.value().to_vec());
            }
            Ok(())
        })
    }

    fn lost(&self, from: &[u8], to: &[u8]) -> Result<Option<Bytes>> {
        self.read(|snapshot| lost_of(snapshot, from, to))
    }

    fn commit(&self, changes: &mut dyn Iterator<Item = IndexChange<'_>>, meta: &[u8]) -> Result<()> {
        let _alone = self.committing.lock();
        self.open_if_closed()?;
        self.found.take_no_room();
        self.try_commit(changes, meta).map_err(|error| match self.found.take_no_room() {
            None => error,
            Some(what) => {
                drop(self.opened.write().database.take());
                Error::NoSpace { what }
            }
        })
    }

    fn broken(&self) -> Option<String> {
        self.found.broken()
    }

    fn wrong_blocks(&self) -> Vec<u64> {
        self.found.wrong()
    }

    fn take_mended(&self) -> Vec<u64> {
        self.found.take_mended()
    }

    fn meta(&self) -> Result<Option<Bytes>> {
        let opened = self.opened.read();
        let database = opened.database.as_ref().ok_or_else(|| Error::Io { what: "the index is closed".into() })?;
        let table = database.begin_read().map_err(index_error)?.open_table(META).map_err(index_error)?;
        let sealed = table.get(META_KEY).map_err(index_error)?;
        sealed.map(|sealed| unseal(META_KEY, sealed.value())).transpose()
    }
}

fn lost_of(snapshot: &Snapshot, from: &[u8], to: &[u8]) -> Result<Option<Bytes>> {
    let mut before = Vec::new();
    for entry in snapshot.range(from..to).map_err(index_error)? {
        let (key, sealed) = entry.map_err(index_error)?;
        let key = key.value();
        let found = snapshot.get(key).map_err(index_error)?;
        let is_found = found.is_some_and(|found| found.value() == sealed.value());
        if !is_found || !before.is_empty() && *before >= *key {
            return Ok(Some(Bytes::copy_from_slice(key)));
        }
        before.clear();
        before.extend_from_slice(key);
    }
    Ok(None)
}
