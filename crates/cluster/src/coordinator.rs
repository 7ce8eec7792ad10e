//! The coordinator: get, list, and a transaction that compares before it writes.
//!
//! `embedded` is one file in the first server, which the others ask over its control interface; etcd implements the same
//! trait, with leases and watches, which arrive together with views that change.

use hekate_proto::{Error, Result};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;

/// What a transaction expects: the key's value, or that it is absent.
pub type Expect<'a> = (&'a str, Option<&'a str>);
/// What a transaction writes: the key's value, or that it goes.
pub type Write<'a> = (&'a str, Option<&'a str>);

/// See the module.
pub trait Coordinator: Send + Sync {
    /// A key's value.
    fn get(&self, key: &str) -> Result<Option<String>>;
    /// Keys that begin so, in order, with their values.
    fn list(&self, prefix: &str) -> Result<Vec<(String, String)>>;
    /// Writes everything, durably, if everything is as expected. -> whether it was.
    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<bool>;
}

const TABLE: TableDefinition<&str, &str> = TableDefinition::new("coordinator");

/// The coordinator in the first server's own process: a file of its own.
pub struct EmbeddedCoordinator {
    database: Database,
}

fn failed(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => {
            Error::Unavailable { what: "the cluster's state is in use; is a server running here already?".into() }
        }
        other => Error::Io { what: format!("the coordinator's file: {other}") },
    }
}

impl EmbeddedCoordinator {
    /// Makes the file; it must not be there.
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
        transaction.commit().map_err(failed)?;
        Ok(Self { database })
    }
}

impl Coordinator for EmbeddedCoordinator {
    fn get(&self, key: &str) -> Result<Option<String>> {
        let table = self.database.begin_read().map_err(failed)?.open_table(TABLE).map_err(failed)?;
        Ok(table.get(key).map_err(failed)?.map(|value| value.value().to_string()))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        let table = self.database.begin_read().map_err(failed)?.open_table(TABLE).map_err(failed)?;
        let mut found = Vec::new();
        for entry in table.range(prefix..).map_err(failed)? {
            let (key, value) = entry.map_err(failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push((key.value().to_string(), value.value().to_string()));
        }
        Ok(found)
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
        assert_eq!(EmbeddedCoordinator::open(&path).unwrap().get("/suite/b").unwrap().unwrap(), "2");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
