//! The embedded coordinator: a file, in a process of Hekate. `docs/format/coordinator.md` describes the file.

#[cfg(test)]
mod tests;

use super::changes::Changes;
use super::{CLOSED, Changed, Coordinator, Expect, Known, Listing, Outcome, Revision, Watched, Write, names_closed};
use hekate_proto::{Error, Result};
use hekate_threads::{Condvar, Mutex, now};
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// All keys and their values.
const TABLE: TableDefinition<&str, &str> = TableDefinition::new("coordinator");
/// Kept keys, with their lifetimes in milliseconds. After a restart they live for that time again.
const KEPT: TableDefinition<&str, u64> = TableDefinition::new("kept");
/// The revision of the last change, under `LAST`.
const REVISION: TableDefinition<&str, u64> = TableDefinition::new("revision");
const LAST: &str = "last";

/// A coordinator in a process of Hekate, with a file of its own.
pub struct EmbeddedCoordinator {
    /// The database in the file.
    database: Database,
    /// Kept keys with their values and times of expiry. Locked before `changes`.
    kept: Mutex<BTreeMap<String, Kept>>,
    /// The last changes. Locked while a change is written, so that changes are added in the order of their revisions.
    changes: Mutex<Changes>,
    /// Notified after each change.
    changed: Condvar,
    watches_ended: AtomicBool,
}

struct Kept {
    value: String,
    until: Instant,
}

fn failed(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => {
            let what = "the cluster's state is in use: a server of it is running here already \
                        (`hekate status` shows it, `hekate stop` ends it)";
            Error::Unavailable { what: what.into() }
        }
        other => Error::Io { what: format!("the coordinator's file: {other}") },
    }
}

impl EmbeddedCoordinator {
    /// Makes the file.
    ///
    /// # Errors
    /// `Exists` if the file exists.
    pub fn create(path: &Path) -> Result<Self> {
        if path.exists() {
            return Err(Error::Exists);
        }
        let new = path.with_extension("new");
        let _ = std::fs::remove_file(&new);
        Self::on(Database::builder().set_cache_size(4 << 20).create(&new).map_err(failed)?)?;
        std::fs::rename(&new, path).map_err(|e| Error::io(format!("make {}", path.display()), e))?;
        let parent = path.parent().unwrap_or(Path::new("."));
        std::fs::File::open(parent)
            .and_then(|directory| directory.sync_all())
            .map_err(|e| Error::io(format!("sync {}", parent.display()), e))?;
        Self::open(path)
    }

    /// Opens the file.
    ///
    /// # Errors
    /// `Invalid` if it does not exist, `Unavailable` if another process has it open.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::invalid(format!("{} is missing; `hekate init` makes a new cluster", path.display())));
        }
        Self::on(Database::builder().set_cache_size(4 << 20).open(path).map_err(failed)?)
    }

    fn on(database: Database) -> Result<Self> {
        let mut transaction = database.begin_write().map_err(failed)?;
        transaction.set_quick_repair(true);
        let kept = read_kept(&transaction)?;
        let last = {
            let table = transaction.open_table(REVISION).map_err(failed)?;
            table.get(LAST).map_err(failed)?.map_or(0, |last| last.value())
        };
        transaction.commit().map_err(failed)?;
        let (kept, changes) = (Mutex::new(kept), Mutex::new(Changes::new(Revision(last))));
        Ok(Self { database, kept, changes, changed: Condvar::new(), watches_ended: AtomicBool::new(false) })
    }

    /// Executes one write transaction that changes `keys`, unless `write` returns another outcome than `Written`.
    ///
    /// # Errors
    /// `Io` if it was not executed. If the commit fails the outcome is unknown, and later calls fail.
    fn change(&self, keys: &[&str], write: impl FnOnce(&WriteTransaction) -> Result<Outcome>) -> Result<Outcome> {
        let mut changes = self.changes.lock();
        let mut transaction = self.database.begin_write().map_err(failed)?;
        transaction.set_quick_repair(true);
        let outcome = write(&transaction)?;
        if outcome != Outcome::Written {
            return Ok(outcome);
        }
        if keys.is_empty() {
            return Ok(Outcome::Written);
        }
        let next = changes.last().0 + 1;
        transaction.open_table(REVISION).map_err(failed)?.insert(LAST, next).map_err(failed)?;
        let committed = transaction.commit();
        match &committed {
            Ok(()) => assert_eq!(changes.add(keys.iter().copied()), Revision(next)),
            // The file may have the change: every watch reads again.
            Err(_) => *changes = Changes::new(Revision(next + 1)),
        }
        drop(changes);
        self.changed.notify_all();
        match committed {
            Ok(()) => Ok(Outcome::Written),
            Err(error) => Ok(Outcome::Unknown { why: failed(error).to_string() }),
        }
    }

    /// Removes the kept keys that have expired. Returns when the next one expires.
    fn remove_expired(&self, kept: &mut BTreeMap<String, Kept>) -> Result<Option<Instant>> {
        let now = now();
        let expired: Vec<String> =
            kept.iter().filter(|(_, one)| one.until <= now).map(|(key, _)| key.clone()).collect();
        if !expired.is_empty() {
            let keys: Vec<&str> = expired.iter().map(String::as_str).collect();
            match self.change(&keys, |transaction| remove_kept(transaction, &keys))? {
                Outcome::Written => kept.retain(|key, _| !expired.contains(key)),
                Outcome::Refused | Outcome::Closed { .. } => {
                    return Err(Error::bug("the removal of expired keys was refused"));
                }
                Outcome::Unknown { why } => return Err(Error::Io { what: why }),
            }
        }
        Ok(kept.values().map(|one| one.until).min())
    }

    /// A value, also of a kept key that has expired.
    fn get_stored(&self, key: &str) -> Result<Option<String>> {
        let table = self.database.begin_read().map_err(failed)?.open_table(TABLE).map_err(failed)?;
        Ok(table.get(key).map_err(failed)?.map(|value| value.value().to_string()))
    }

    fn read(&self) -> Result<ReadTransaction> {
        self.remove_expired(&mut self.kept.lock())?;
        self.database.begin_read().map_err(failed)
    }
}

/// The kept keys of the file, which live for their lifetimes from now on: after a restart of the coordinator a server
/// must not count as dead only because it could not renew its lease meanwhile.
fn read_kept(transaction: &WriteTransaction) -> Result<BTreeMap<String, Kept>> {
    let (table, values) =
        (transaction.open_table(KEPT).map_err(failed)?, transaction.open_table(TABLE).map_err(failed)?);
    let mut kept = BTreeMap::new();
    for entry in table.iter().map_err(failed)? {
        let (key, lifetime) = entry.map_err(failed)?;
        let until = now() + Duration::from_millis(lifetime.value());
        let value = values.get(key.value()).map_err(failed)?.map(|value| value.value().to_string());
        kept.insert(key.value().to_string(), Kept { value: value.unwrap_or_default(), until });
    }
    Ok(kept)
}

fn remove_kept(transaction: &WriteTransaction, keys: &[&str]) -> Result<Outcome> {
    let mut kept = transaction.open_table(KEPT).map_err(failed)?;
    let mut values = transaction.open_table(TABLE).map_err(failed)?;
    for key in keys {
        kept.remove(key).map_err(failed)?;
        values.remove(key).map_err(failed)?;
    }
    Ok(Outcome::Written)
}

/// The keys with a prefix, at the revision of a transaction.
fn listed(transaction: &ReadTransaction, prefix: &str) -> Result<Listing> {
    let table = transaction.open_table(TABLE).map_err(failed)?;
    let mut pairs = Vec::new();
    for entry in table.range(prefix..).map_err(failed)? {
        let (key, value) = entry.map_err(failed)?;
        if !key.value().starts_with(prefix) {
            break;
        }
        pairs.push((key.value().to_string(), value.value().to_string()));
    }
    let revisions = transaction.open_table(REVISION).map_err(failed)?;
    let revision = revisions.get(LAST).map_err(failed)?.map_or(0, |last| last.value());
    Ok(Listing { pairs, revision: Revision(revision) })
}

/// `Closed` if the store is closed.
fn closed(transaction: &WriteTransaction) -> Result<Option<Outcome>> {
    let table = transaction.open_table(TABLE).map_err(failed)?;
    let by = table.get(CLOSED).map_err(failed)?.map(|value| value.value().to_string());
    Ok(by.map(|by| Outcome::Closed { by }))
}

/// Executes the writes if the expected values match.
fn compare_and_write(transaction: &WriteTransaction, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
    if !names_closed(expect, writes)
        && let Some(closed) = closed(transaction)?
    {
        return Ok(closed);
    }
    let mut table = transaction.open_table(TABLE).map_err(failed)?;
    for (key, value) in expect {
        let now = table.get(key).map_err(failed)?;
        if now.as_ref().map(|now| now.value()) != *value {
            return Ok(Outcome::Refused);
        }
    }
    for (key, value) in writes {
        match value {
            Some(value) => drop(table.insert(key, value).map_err(failed)?),
            None => drop(table.remove(key).map_err(failed)?),
        }
    }
    Ok(Outcome::Written)
}

impl Coordinator for EmbeddedCoordinator {
    fn get(&self, key: &str) -> Result<Option<String>> {
        let table = self.read()?.open_table(TABLE).map_err(failed)?;
        Ok(table.get(key).map_err(failed)?.map(|value| value.value().to_string()))
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        listed(&self.read()?, prefix)
    }

    fn changes(&self, known: &[Known<'_>]) -> Result<Vec<Changed>> {
        self.remove_expired(&mut self.kept.lock())?;
        let changes = self.changes.lock();
        // While the lock is held no change is written.
        let transaction = self.database.begin_read().map_err(failed)?;
        let revision = changes.last();
        let keys = known.iter().map(|known| {
            let after = known.after.filter(|after| *after <= revision);
            after.and_then(|after| changes.after(after, &[known.prefix]))
        });
        let keys: Vec<_> = keys.collect();
        drop(changes);
        let table = transaction.open_table(TABLE).map_err(failed)?;
        let read = |key: String| {
            let value = table.get(&key[..]).map_err(failed)?.map(|value| value.value().to_string());
            Ok((key, value))
        };
        let of_prefix = |(known, keys): (&Known<'_>, Option<Vec<String>>)| match keys {
            Some(keys) => {
                let pairs = keys.into_iter().map(read).collect::<Result<_>>()?;
                Ok(Changed { pairs, revision, is_partial: true })
            }
            None => Ok(listed(&transaction, known.prefix)?.into()),
        };
        known.iter().zip(keys).map(of_prefix).collect()
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        let keys: Vec<&str> = writes.iter().map(|(key, _)| *key).collect();
        self.change(&keys, |transaction| compare_and_write(transaction, expect, writes))
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<Outcome> {
        let mut kept = self.kept.lock();
        self.remove_expired(&mut kept)?;
        if let Some(by) = self.get_stored(CLOSED)? {
            return Ok(Outcome::Closed { by });
        }
        if kept.get(key).is_none_or(|one| one.value != value) {
            let milliseconds = lifetime.as_millis() as u64;
            let outcome = self.change(&[key], |transaction| {
                transaction.open_table(KEPT).map_err(failed)?.insert(key, milliseconds).map_err(failed)?;
                transaction.open_table(TABLE).map_err(failed)?.insert(key, value).map_err(failed)?;
                Ok(Outcome::Written)
            })?;
            if outcome != Outcome::Written {
                return Ok(outcome);
            }
        }
        kept.insert(key.into(), Kept { value: value.into(), until: now() + lifetime });
        Ok(Outcome::Written)
    }

    fn release(&self, key: &str) -> Result<Outcome> {
        let mut kept = self.kept.lock();
        self.remove_expired(&mut kept)?;
        if !kept.contains_key(key) {
            return Ok(Outcome::Written);
        }
        let outcome = self.change(&[key], |transaction| remove_kept(transaction, &[key]))?;
        if outcome == Outcome::Written {
            kept.remove(key);
        }
        Ok(outcome)
    }

    fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched> {
        let end = now() + limit;
        loop {
            let next_expiry = self.remove_expired(&mut self.kept.lock())?;
            let mut changes = self.changes.lock();
            if self.watches_ended.load(Ordering::Relaxed) {
                return Err(Error::Unavailable { what: "the coordinator's process stops".into() });
            }
            let revision = changes.last();
            match changes.after(after, prefixes) {
                // Of a store that was restored from an older copy.
                _ if after > revision => return Ok(Watched::ReadAgain),
                None => return Ok(Watched::ReadAgain),
                Some(keys) if !keys.is_empty() => return Ok(Watched::Changed { keys, revision }),
                Some(_) if now() >= end => return Ok(Watched::Unchanged { revision }),
                Some(_) => _ = self.changed.wait_until(&mut changes, next_expiry.map_or(end, |next| end.min(next))),
            }
        }
    }

    fn end_watches(&self) {
        // Under the lock, so that a watch either sees the flag or waits for the notification.
        let changes = self.changes.lock();
        self.watches_ended.store(true, Ordering::Relaxed);
        drop(changes);
        self.changed.notify_all();
    }
}
