//! Typed access to the records in the coordinator. `docs/format/coordinator.md` lists keys and fields.
//!
//! A transaction whose outcome is unknown may still be executed later. So each change is made such that it can be
//! executed once only, and is recognised: its transaction expects a value that no record ever has again. Values do not
//! return because numbers, epochs and counts in them only grow, and because a key that was removed is made anew only
//! in one transaction with a counter ([ADR 30](../../../docs/adr/0030-unknown-outcomes.md)).
//!
//! A method that fails with `Unavailable` may have made its change, or the change may be made later. Calling it again
//! does no harm.

mod access;
mod attempts;
mod doors;
mod etcd;
mod nbd;
mod placement;
mod rings;
mod s3;
mod servers;
#[cfg(test)]
mod tests;

use crate::coordinator::{Coordinator, Expect, Write};
use crate::records::*;
pub use access::{AuthorityInfo, BACK, ClientCertificate, ClientInfo, TokenInfo};
use attempts::Attempts;
pub use doors::DoorInfo;
pub use etcd::{EtcdInfo, EtcdMember};
use hekate_proto::map::{GraphSpec, LayerSpec};
use hekate_proto::*;
pub use nbd::{NbdDoorInfo, NbdTls};
pub use placement::PlacementRecords;
pub use s3::{S3DoorInfo, S3Grant, S3KeyInfo, S3Tls};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Version of all records. A program refuses records of another version.
pub const RECORDS_VERSION: u32 = 5;

const VERSION_KEY: &str = "/version";

/// The records in the coordinator, as one server reads and changes them.
///
/// # Errors
/// Unless a method says otherwise: those of the coordinator; `Damaged` if a record cannot be parsed; `Unavailable` if
/// the outcome of a change is unknown after three attempts; `NoSpace` if all numbers of a kind are assigned.
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
        self.coordinator.list(prefix)?.pairs.iter().map(|(key, text)| parse(key, text)).collect()
    }

    /// Changes a record, repeatedly if other servers change it meanwhile. `change` returns true if there is anything
    /// to write; no record may get a value that it has had before. Returns the resulting record, or `None` if it does
    /// not exist.
    fn update<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        mut change: impl FnMut(&mut T) -> bool,
    ) -> Result<Option<T>> {
        let (mut attempts, mut written) = (Attempts::default(), None);
        loop {
            let Some(before) = self.coordinator.get(key)? else { return Ok(None) };
            let mut record: T = parse(key, &before)?;
            if attempts.are_unsure() && written.as_ref() == Some(&before) || !change(&mut record) {
                return Ok(Some(record));
            }
            let after = text(&record)?;
            let outcome = self.coordinator.transact(&[(key, Some(&before))], &[(key, Some(&after))]);
            if attempts.is_written(outcome)? {
                return Ok(Some(record));
            }
            written = Some(after);
        }
    }

    /// Removes a record, if `is_it` accepts it. Any other record under the key remains.
    fn remove<T: DeserializeOwned>(&self, key: &str, is_it: impl Fn(&T) -> bool) -> Result<()> {
        let mut attempts = Attempts::default();
        loop {
            let Some(before) = self.coordinator.get(key)? else { return Ok(()) };
            if !is_it(&parse(key, &before)?) {
                return Ok(());
            }
            if attempts.is_written(self.coordinator.transact(&[(key, Some(&before))], &[(key, None)]))? {
                return Ok(());
            }
        }
    }

    /// Makes the record of a new cluster.
    ///
    /// # Errors
    /// `Exists` if there is a cluster.
    pub fn create_cluster(&self, id: &str) -> Result<()> {
        let (id, version) = (text(&id)?, text(&RECORDS_VERSION)?);
        let writes = [("/cluster", Some(&id[..])), (VERSION_KEY, Some(&version[..]))];
        let mut attempts = Attempts::default();
        loop {
            match self.coordinator.get("/cluster")? {
                // The id is random, so an earlier attempt has written it.
                Some(found) if attempts.are_unsure() && found == id => return Ok(()),
                Some(_) => return Err(Error::Exists),
                None => {}
            }
            if attempts.is_written(self.coordinator.transact(&[("/cluster", None)], &writes))? {
                return Ok(());
            }
        }
    }

    /// The cluster's id, 32 hex digits.
    ///
    /// # Errors
    /// `Invalid` if there is no cluster.
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

    /// The next number of a counter, from 1. No number is returned twice; one may be left out.
    fn count(&self, what: &str) -> Result<u64> {
        let mut attempts = Attempts::default();
        loop {
            let counter = self.counter(what)?;
            if attempts.is_written(self.coordinator.transact(&[counter.expect()], &[counter.write()]))? {
                return Ok(counter.next);
            }
        }
    }

    /// A counter's value, and the one after it.
    fn counter(&self, what: &str) -> Result<Counter> {
        let key = format!("/counters/{what}");
        let before = self.coordinator.get(&key)?;
        let last = before.as_deref().map_or(Ok(0), |text| parse::<u64>(&key, text))?;
        let next = last.checked_add(1);
        let damaged = || Error::Damaged { what: format!("the coordinator's {key}: there is no number after {last}") };
        let next = next.ok_or_else(damaged)?;
        Ok(Counter { key, before, next, after: next.to_string() })
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
        // A brick's id is random, so only an earlier attempt of this call can have written its record.
        let own = writes.last().cloned().unwrap_or_default();
        let writes: Vec<_> = writes.iter().map(|(key, value)| (&key[..], Some(&value[..]))).collect();
        let mut attempts = Attempts::default();
        loop {
            if self.coordinator.get(&key)?.is_some() {
                let is_own = attempts.are_unsure() && self.coordinator.get(&own.0)?.as_ref() == Some(&own.1);
                let exists = || Error::invalid(format!("there is a pool called {name} already; use another name"));
                return if is_own { Ok(()) } else { Err(exists()) };
            }
            if attempts.is_written(self.coordinator.transact(&[(&key, None)], &writes))? {
                return Ok(());
            }
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
    ///
    /// # Errors
    /// `Invalid` if the name is not allowed.
    pub fn volume(&self, name: &str) -> Result<Option<VolumeInfo>> {
        check_name("volume", name)?;
        self.get(&volume_key(name))
    }

    /// Makes a volume and assigns its number.
    ///
    /// # Errors
    /// `Invalid` if the name is not allowed or a volume has it.
    pub fn create_volume(&self, volume: VolumeInfo) -> Result<VolumeInfo> {
        check_name("volume", &volume.name)?;
        let key = volume_key(&volume.name);
        let creation = random()?;
        let mut attempts = Attempts::default();
        loop {
            // The counter is read first: making a volume changes it.
            let counter = self.counter("volumes")?;
            match self.get::<VolumeInfo>(&key)? {
                Some(found) if found.creation == creation && attempts.are_unsure() => return Ok(found),
                Some(_) => return Err(Error::invalid(format!("there is a volume called {} already", volume.name))),
                None => {}
            }
            let full = |_| Error::NoSpace { what: "all numbers of volumes are assigned; make another cluster".into() };
            let number = VolumeId(u32::try_from(counter.next).map_err(full)?);
            let made = VolumeInfo { volume: number, creation, ..volume.clone() };
            let record = text(&made)?;
            let writes = [counter.write(), (&key[..], Some(&record[..]))];
            if attempts.is_written(self.coordinator.transact(&[counter.expect(), (&key, None)], &writes))? {
                return Ok(made);
            }
        }
    }

    /// Gives a volume these translators. Returns its record; `None` if the volume does not exist any more.
    pub fn set_graph(&self, volume: &VolumeInfo, layers: &[LayerSpec]) -> Result<Option<VolumeInfo>> {
        let set = |found: &mut VolumeInfo| {
            let is_changed = found.volume == volume.volume && found.graph.layers != layers;
            if is_changed {
                found.graph = GraphSpec { change: found.graph.change + 1, layers: layers.into() };
            }
            is_changed
        };
        let found = self.update(&volume_key(&volume.name), set)?;
        Ok(found.filter(|found| found.volume == volume.volume))
    }

    /// Records that the deletion of a volume begins. Returns its record; `None` if the volume does not exist any more.
    pub fn begin_deletion(&self, volume: &VolumeInfo) -> Result<Option<VolumeInfo>> {
        let begin =
            |found: &mut VolumeInfo| found.volume == volume.volume && !std::mem::replace(&mut found.deleting, true);
        let found = self.update(&volume_key(&volume.name), begin)?;
        Ok(found.filter(|found| found.volume == volume.volume))
    }

    /// Removes the record of a volume. The record of a later volume with the same name remains.
    pub fn forget_volume(&self, volume: &VolumeInfo) -> Result<()> {
        self.remove(&volume_key(&volume.name), |found: &VolumeInfo| found.volume == volume.volume)
    }

    /// Records a new session of a volume. `uid`: its user; `None` for a client that proved the secret. If the outcome
    /// of an attempt is unknown, an unused session may remain, which this server expires.
    pub fn begin_session(&self, volume: VolumeId, owner: &SessionOwner) -> Result<SessionId> {
        let mut attempts = Attempts::default();
        loop {
            let counter = self.counter("sessions")?;
            let session = SessionId(counter.next);
            let key = session_key(session);
            let record = text(&SessionInfo { session, volume, owner: owner.clone(), server: self.server })?;
            let writes = [counter.write(), (&key[..], Some(&record[..]))];
            if attempts.is_written(self.coordinator.transact(&[counter.expect()], &writes))? {
                return Ok(session);
            }
        }
    }

    /// This server's list of blocks that were lost in power cuts and are not reconciled with the other replicas yet.
    pub fn lost_blocks<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        let found: Option<LostBlocks<T>> = self.get(&self.lost_blocks_key())?;
        Ok(found.map(|found| found.blocks).unwrap_or_default())
    }

    /// Replaces this server's list of lost blocks.
    pub fn put_lost_blocks<T: Serialize + DeserializeOwned + PartialEq + Clone>(&self, rows: &[T]) -> Result<()> {
        let key = self.lost_blocks_key();
        let mut attempts = Attempts::default();
        loop {
            let before = self.coordinator.get(&key)?;
            let found = before.as_deref().map(|text| parse::<LostBlocks<T>>(&key, text)).transpose()?;
            let found = found.unwrap_or_default();
            if found.blocks == rows {
                return Ok(());
            }
            let record = text(&LostBlocks { change: found.change.wrapping_add(1), blocks: rows.to_vec() })?;
            let expect = [(&key[..], before.as_deref())];
            if attempts.is_written(self.coordinator.transact(&expect, &[(&key, Some(&record))]))? {
                return Ok(());
            }
        }
    }

    /// The key of this server's list of lost blocks. The first server's key has no number.
    fn lost_blocks_key(&self) -> String {
        match self.server {
            FIRST_SERVER => "/lost-blocks".into(),
            ServerId(number) => format!("/lost-blocks/{number:010}"),
        }
    }

    /// The record of a session. `None`: it has ended or never existed.
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

    /// Removes the record of a session. Its number is never assigned again.
    pub fn end_session(&self, session: SessionId) -> Result<()> {
        self.remove(&session_key(session), |_: &SessionInfo| true)
    }
}

/// A counter that was read.
struct Counter {
    key: String,
    before: Option<String>,
    next: u64,
    after: String,
}

impl Counter {
    /// Its value is unchanged. A transaction that expects this and counts cannot be executed twice.
    fn expect(&self) -> Expect<'_> {
        (&self.key, self.before.as_deref())
    }

    fn write(&self) -> Write<'_> {
        (&self.key, Some(&self.after))
    }
}

fn volume_key(name: &str) -> String {
    format!("/volumes/{name}")
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

/// A random number by which a caller recognises its own record.
fn random() -> Result<u64> {
    hekate_threads::random().map_err(|e| Error::io("random bytes".to_string(), e))
}

fn text<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::bug(e.to_string()))
}

/// Checks the name of a pool or volume: 1 to 63 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit.
///
/// # Errors
/// `Invalid` with the rule, if the name does not follow it.
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
