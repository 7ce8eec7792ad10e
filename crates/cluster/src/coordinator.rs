//! The coordinator: get, list, and a transaction that compares before it writes.
//!
//! A kept key expires unless it is kept again; such keys say which servers live (leases, Gray and Cheriton 1989). The
//! embedded coordinator is one file in the first server or in a process of its own, which other servers query over
//! its control interface. etcd is to implement the same trait.

use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A key's expected value in a transaction. `None`: the key must not exist.
pub type Expect<'a> = (&'a str, Option<&'a str>);
/// A key's new value in a transaction. `None`: the key is removed.
pub type Write<'a> = (&'a str, Option<&'a str>);

/// A consistent key-value store.
///
/// Each method fails with `Unavailable` if the store cannot be reached; a transaction may then have been executed.
pub trait Coordinator: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &str) -> Result<Option<String>>;
    /// The keys with a prefix, in order, with their values.
    fn list(&self, prefix: &str) -> Result<Vec<(String, String)>>;
    /// Executes all writes durably, if all expected values match. True if they matched.
    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<bool>;
    /// Sets a key that expires after `lifetime`, or removes it at once if that is zero. Such keys must not be used in
    /// transactions.
    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<()>;
}

/// How long a server may serve after it has renewed its lease, by the coordinator's clock.
pub const LEASE: Duration = Duration::from_secs(3);

/// All keys and their values.
const TABLE: TableDefinition<&str, &str> = TableDefinition::new("coordinator");
/// Kept keys, with their lifetimes in milliseconds. After a restart they live for that time again.
const KEPT: TableDefinition<&str, u64> = TableDefinition::new("kept");

/// A coordinator in a process of Hekate, with a file of its own.
pub struct EmbeddedCoordinator {
    /// The database in the file.
    database: Database,
    /// Kept keys with their current values and times of expiry; the file has the first value of each.
    kept: Mutex<BTreeMap<String, Kept>>,
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
        transaction.open_table(TABLE).map_err(failed)?;
        let mut kept = BTreeMap::new();
        {
            let (table, values) =
                (transaction.open_table(KEPT).map_err(failed)?, transaction.open_table(TABLE).map_err(failed)?);
            for entry in table.iter().map_err(failed)? {
                let (key, lifetime) = entry.map_err(failed)?;
                let until = Instant::now() + Duration::from_millis(lifetime.value());
                let value = values.get(key.value()).map_err(failed)?.map(|value| value.value().to_string());
                kept.insert(key.value().to_string(), Kept { value: value.unwrap_or_default(), until });
            }
        }
        transaction.commit().map_err(failed)?;
        Ok(Self { database, kept: Mutex::new(kept) })
    }

    /// Records a kept key (`Some`), or removes it (`None`). A key is in the file from its first setting to its
    /// expiry, with its first value: after a restart of the coordinator a server must not count as dead only because
    /// it could not renew its lease meanwhile.
    fn record_kept(&self, key: &str, value: Option<(&str, Duration)>) -> Result<()> {
        let mut transaction = self.database.begin_write().map_err(failed)?;
        transaction.set_quick_repair(true);
        {
            let (mut kept, mut values) =
                (transaction.open_table(KEPT).map_err(failed)?, transaction.open_table(TABLE).map_err(failed)?);
            match value {
                Some((value, lifetime)) => {
                    kept.insert(key, lifetime.as_millis() as u64).map_err(failed)?;
                    values.insert(key, value).map_err(failed)?;
                }
                None => {
                    kept.remove(key).map_err(failed)?;
                    values.remove(key).map_err(failed)?;
                }
            }
        }
        transaction.commit().map_err(failed)
    }

    fn forget_expired(&self, kept: &mut BTreeMap<String, Kept>) -> Result<()> {
        let now = Instant::now();
        let over: Vec<String> = kept.iter().filter(|(_, one)| one.until <= now).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.record_kept(&key, None)?;
            kept.remove(&key);
        }
        Ok(())
    }
}

impl Coordinator for EmbeddedCoordinator {
    fn get(&self, key: &str) -> Result<Option<String>> {
        let mut kept = self.kept.lock();
        self.forget_expired(&mut kept)?;
        if let Some(one) = kept.get(key) {
            return Ok(Some(one.value.clone()));
        }
        drop(kept);
        let table = self.database.begin_read().map_err(failed)?.open_table(TABLE).map_err(failed)?;
        Ok(table.get(key).map_err(failed)?.map(|value| value.value().to_string()))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        let kept = {
            let mut kept = self.kept.lock();
            self.forget_expired(&mut kept)?;
            let begins = kept.iter().filter(|(key, _)| key.starts_with(prefix));
            begins.map(|(key, one)| (key.clone(), one.value.clone())).collect::<BTreeMap<_, _>>()
        };
        let table = self.database.begin_read().map_err(failed)?.open_table(TABLE).map_err(failed)?;
        let mut found = Vec::new();
        for entry in table.range(prefix..).map_err(failed)? {
            let (key, value) = entry.map_err(failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            let key = key.value().to_string();
            let value = kept.get(&key).cloned().unwrap_or_else(|| value.value().to_string());
            found.push((key, value));
        }
        Ok(found)
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<()> {
        let mut kept = self.kept.lock();
        self.forget_expired(&mut kept)?;
        if lifetime.is_zero() {
            return if kept.remove(key).is_some() { self.record_kept(key, None) } else { Ok(()) };
        }
        if !kept.contains_key(key) {
            self.record_kept(key, Some((value, lifetime)))?;
        }
        kept.insert(key.into(), Kept { value: value.into(), until: Instant::now() + lifetime });
        Ok(())
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<bool> {
        let mut transaction = self.database.begin_write().map_err(failed)?;
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(TABLE).map_err(failed)?;
            for (key, value) in expect {
                let now = table.get(key).map_err(failed)?;
                if now.as_ref().map(|now| now.value()) != *value {
                    return Ok(false);
                }
            }
            for (key, value) in writes {
                match value {
                    Some(value) => drop(table.insert(key, value).map_err(failed)?),
                    None => drop(table.remove(key).map_err(failed)?),
                }
            }
        }
        transaction.commit().map_err(failed)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::conforms;

    #[test]
    fn the_embedded_coordinator_conforms_and_remembers() {
        let directory = std::env::temp_dir().join(format!("hekate-coordinator-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("coordinator.redb");
        let coordinator = EmbeddedCoordinator::create(&path).unwrap();
        conforms(&coordinator);
        let second = EmbeddedCoordinator::open(&path).err().unwrap();
        assert!(second.to_string().contains("in use"), "{second}");
        drop(coordinator);
        let coordinator = EmbeddedCoordinator::open(&path).unwrap();
        assert_eq!(coordinator.get("/suite/b").unwrap().unwrap(), "2");
        let life = Duration::from_millis(500);
        coordinator.keep("/suite/k", "1", life).unwrap();
        drop(coordinator);
        std::thread::sleep(life * 2);
        let coordinator = EmbeddedCoordinator::open(&path).unwrap();
        let known = coordinator.get("/suite/k").unwrap();
        assert_eq!(known.unwrap(), "1", "the key was lost although its owner could not renew it");
        std::thread::sleep(life * 2);
        assert_eq!(coordinator.get("/suite/k").unwrap(), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
