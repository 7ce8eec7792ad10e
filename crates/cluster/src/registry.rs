//! Typed access to the records in the coordinator. `docs/format/coordinator.md` lists keys and fields.

mod rings;
mod servers;
#[cfg(test)]
mod tests;

use crate::coordinator::Coordinator;
use crate::records::*;
use hekate_proto::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Version of all records. A program refuses records of another version.
pub const RECORDS_VERSION: u32 = 2;

const VERSION_KEY: &str = "/version";

/// The records, as one of the servers uses them.
#[derive(Clone)]
pub struct Registry {
    coordinator: Arc<dyn Coordinator>,
    server: ServerId,
}

impl Registry {
    /// The records in a coordinator, for the first server.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> Self {
        Self::of(coordinator, FIRST_SERVER)
    }

    /// The records in a coordinator, for any server.
    pub fn of(coordinator: Arc<dyn Coordinator>, server: ServerId) -> Self {
        Self { coordinator, server }
    }

    pub fn server(&self) -> ServerId {
        self.server
    }

    /// The store of the records.
    pub fn coordinator(&self) -> &dyn Coordinator {
        &*self.coordinator
    }

    fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        self.coordinator.get(key)?.map(|text| parse(key, &text)).transpose()
    }

    fn list<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<T>> {
        self.coordinator.list(prefix)?.iter().map(|(key, text)| parse(key, text)).collect()
    }

    fn put<T: Serialize>(&self, key: &str, value: &T) -> Result<()> {
        self.coordinator.transact(&[], &[(key, Some(&text(value)?))]).map(|_| ())
    }

    /// Changes a record, repeatedly if other servers change it meanwhile. `change` returns true if there is anything
    /// to write. Returns the resulting record, or `None` if it does not exist.
    fn update<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        mut change: impl FnMut(&mut T) -> bool,
    ) -> Result<Option<T>> {
        loop {
            let Some(before) = self.coordinator.get(key)? else { return Ok(None) };
            let mut record: T = parse(key, &before)?;
            if !change(&mut record) || self.replace(key, &before, &text(&record)?)? {
                return Ok(Some(record));
            }
        }
    }

    fn replace(&self, key: &str, before: &str, after: &str) -> Result<bool> {
        self.coordinator.transact(&[(key, Some(before))], &[(key, Some(after))])
    }

    /// Makes the record of a new cluster.
    ///
    /// # Errors
    /// `Exists` if there is a cluster.
    pub fn create_cluster(&self, id: &str) -> Result<()> {
        let (id, version) = (text(&id)?, text(&RECORDS_VERSION)?);
        let writes = [("/cluster", Some(&id[..])), (VERSION_KEY, Some(&version[..]))];
        match self.coordinator.transact(&[("/cluster", None)], &writes)? {
            true => Ok(()),
            false => Err(Error::Exists),
        }
    }

    /// The cluster's id, 32 hex digits.
    pub fn cluster(&self) -> Result<String> {
        self.get("/cluster")?.ok_or_else(|| Error::invalid("there is no cluster here; `hekate init` makes one"))
    }

    /// Checks the version of the records.
    ///
    /// # Errors
    /// `NotSupported` if another version of the program wrote them.
    pub fn check_version(&self) -> Result<()> {
        match self.get::<u32>(VERSION_KEY)?.unwrap_or(1) {
            RECORDS_VERSION => Ok(()),
            found => Err(Error::NotSupported {
                what: format!(
                    "the cluster's records have version {found}, this program knows {RECORDS_VERSION}; use the release \
                     that wrote them, or a newer one"
                ),
            }),
        }
    }

    /// The next number of a counter, from 1. No number is returned twice.
    fn count(&self, what: &str) -> Result<u64> {
        let key = format!("/counters/{what}");
        loop {
            let before = self.coordinator.get(&key)?;
            let last = before.as_deref().map_or(Ok(0), |text| parse::<u64>(&key, text))?;
            let damaged =
                || Error::Damaged { what: format!("the coordinator's {key}: there is no number after {last}") };
            let next = last.checked_add(1).ok_or_else(damaged)?;
            let expect = [(&key[..], before.as_deref())];
            if self.coordinator.transact(&expect, &[(&key, Some(&next.to_string()))])? {
                return Ok(next);
            }
        }
    }

    /// Makes a pool with its bricks.
    ///
    /// # Errors
    /// `Invalid` if the name is not allowed or a pool has it.
    pub fn create_pool(&self, name: &str, bricks: &[BrickInfo]) -> Result<()> {
        check_name("pool", name)?;
        let key = format!("/pools/{name}");
        let mut writes = vec![(key.clone(), text(&PoolInfo { name: name.into() })?)];
        for brick in bricks {
            writes.push((brick_key(brick.brick), text(brick)?));
        }
        let writes: Vec<_> = writes.iter().map(|(key, value)| (&key[..], Some(&value[..]))).collect();
        match self.coordinator.transact(&[(&key, None)], &writes)? {
            true => Ok(()),
            false => Err(Error::invalid(format!("there is a pool called {name} already"))),
        }
    }

    /// All pools.
    pub fn pools(&self) -> Result<Vec<PoolInfo>> {
        self.list("/pools/")
    }

    /// All volumes.
    pub fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        self.list("/volumes/")
    }

    /// A volume by name.
    pub fn volume(&self, name: &str) -> Result<Option<VolumeInfo>> {
        check_name("volume", name)?;
        self.get(&format!("/volumes/{name}"))
    }

    /// Makes a volume and assigns its number.
    ///
    /// # Errors
    /// `Invalid` if the name is not allowed or a volume has it.
    pub fn create_volume(&self, mut volume: VolumeInfo) -> Result<VolumeInfo> {
        check_name("volume", &volume.name)?;
        let number = u32::try_from(self.count("volumes")?);
        let full = |_| Error::NoSpace { what: "all numbers of volumes are used".into() };
        volume.volume = VolumeId(number.map_err(full)?);
        let key = format!("/volumes/{}", volume.name);
        match self.coordinator.transact(&[(&key, None)], &[(&key, Some(&text(&volume)?))])? {
            true => Ok(volume),
            false => Err(Error::invalid(format!("there is a volume called {} already", volume.name))),
        }
    }

    /// Replaces the record of a volume.
    pub fn put_volume(&self, volume: &VolumeInfo) -> Result<()> {
        self.put(&format!("/volumes/{}", volume.name), volume)
    }

    /// Removes the record of a volume.
    pub fn forget_volume(&self, name: &str) -> Result<()> {
        self.coordinator.transact(&[], &[(&format!("/volumes/{name}"), None)]).map(|_| ())
    }

    /// Records a new session of a volume. `uid`: its user; `None` for a client that proved the secret.
    pub fn begin_session(&self, volume: VolumeId, uid: Option<u32>) -> Result<SessionId> {
        let session = SessionId(self.count("sessions")?);
        self.put(&session_key(session), &SessionInfo { session, volume, uid, server: self.server })?;
        Ok(session)
    }

    /// This server's list of blocks that a power failure removed and whose replicas have yet to agree.
    pub fn lost_blocks<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        Ok(self.get(&self.lost_blocks_key())?.unwrap_or_default())
    }

    /// Replaces that list.
    pub fn put_lost_blocks<T: Serialize>(&self, rows: &[T]) -> Result<()> {
        self.put(&self.lost_blocks_key(), &rows)
    }

    /// The key of that list. The first server's key has no number.
    fn lost_blocks_key(&self) -> String {
        match self.server {
            FIRST_SERVER => "/lost-blocks".into(),
            ServerId(number) => format!("/lost-blocks/{number:010}"),
        }
    }

    /// A session that has not ended.
    pub fn session(&self, session: SessionId) -> Result<Option<SessionInfo>> {
        self.get(&session_key(session))
    }

    /// Sessions that have not ended.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>> {
        self.list("/sessions/")
    }

    /// Sessions on a volume.
    pub fn session_count(&self, volume: VolumeId) -> Result<usize> {
        Ok(self.sessions()?.iter().filter(|session| session.volume == volume).count())
    }

    /// Removes the record of a session. A session that has ended never returns.
    pub fn end_session(&self, session: SessionId) -> Result<()> {
        self.coordinator.transact(&[], &[(&session_key(session), None)]).map(|_| ())
    }
}

fn session_key(session: SessionId) -> String {
    format!("/sessions/{:020}", session.0)
}

fn brick_key(brick: BrickId) -> String {
    format!("/bricks/{}", brick.text())
}

fn parse<T: DeserializeOwned>(key: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::Damaged { what: format!("the coordinator's {key}: {e}") })
}

fn text<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::bug(e.to_string()))
}

/// Checks the name of a pool or volume: 1 to 63 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = (1..=63).contains(&name.len())
        && name.chars().all(plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name:?} cannot be the name of a {what}; use 1 to 63 letters, digits, dots, dashes and underlines, \
         beginning with a letter or digit"
    )))
}
