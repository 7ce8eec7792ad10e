//! The records of the coordinator, typed. `docs/format/coordinator.md` lists keys and fields.

use crate::coordinator::Coordinator;
use crate::placement::{Candidate, place};
use hekate_proto::map::{Member, View, VolumeMap, check_views};
use hekate_proto::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Partitions of a new ring; they double as a pool grows.
pub const PARTITIONS_NEW: u32 = 16;

/// `/bricks/ID`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct BrickInfo {
    /// The brick.
    pub brick: BrickId,
    /// Its directory on its server.
    pub directory: String,
    /// The pool that it is in.
    pub pool: String,
    /// Bytes of its disk when it joined.
    pub weight: u64,
}

/// `/pools/NAME`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct PoolInfo {
    /// The pool.
    pub name: String,
}

/// `/rings/NUMBER`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct RingInfo {
    /// The ring.
    pub ring: RingId,
    /// On which pool.
    pub pool: String,
    /// Copies of everything.
    pub copies: u32,
    /// A view a partition.
    pub views: Vec<View>,
}

impl RingInfo {
    /// As it was read, if positions lead to its partitions.
    fn checked(self) -> Result<Self> {
        check_views(&self.views).map_err(|malformed| Error::Damaged {
            what: format!("the coordinator's record of ring {}: {}", self.ring, malformed.0),
        })?;
        Ok(self)
    }
}

/// `/volumes/NAME`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The volume's number.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its ring.
    pub ring: RingId,
    /// Copies.
    pub copies: u32,
    /// Who made it: may use it.
    pub owner_uid: u32,
    /// Who else may.
    pub allowed_uids: Vec<u32>,
    /// Translators on top of the fixed bottom.
    pub layers: Vec<String>,
    /// Being deleted: takes no sessions any more.
    pub deleting: bool,
}

/// `/sessions/NUMBER`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct SessionInfo {
    /// The session.
    pub session: SessionId,
    /// On which volume.
    pub volume: VolumeId,
    /// Whose it is, as the kernel said; none: who knows the secret.
    pub uid: Option<u32>,
}

/// Typed access to a coordinator.
#[derive(Clone)]
pub struct Registry {
    coordinator: Arc<dyn Coordinator>,
}

impl Registry {
    /// On a coordinator.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> Self {
        Self { coordinator }
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

    /// Makes the record of a new cluster.
    pub fn create_cluster(&self, id: &str) -> Result<()> {
        match self.coordinator.transact(&[("/cluster", None)], &[("/cluster", Some(&text(&id)?))])? {
            true => Ok(()),
            false => Err(Error::Exists),
        }
    }

    /// The cluster's id, 32 hex digits.
    pub fn cluster(&self) -> Result<String> {
        self.get("/cluster")?.ok_or_else(|| Error::invalid("there is no cluster here; `hekate init` makes one"))
    }

    /// The next number of a counter, from 1; never given again.
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

    /// Records a pool with its bricks.
    pub fn create_pool(&self, name: &str, bricks: &[BrickInfo]) -> Result<()> {
        check_name("pool", name)?;
        let key = format!("/pools/{name}");
        let mut writes = vec![(key.clone(), text(&PoolInfo { name: name.into() })?)];
        for brick in bricks {
            writes.push((format!("/bricks/{}", brick.brick.text()), text(brick)?));
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

    /// All bricks.
    pub fn bricks(&self) -> Result<Vec<BrickInfo>> {
        self.list("/bricks/")
    }

    /// All rings.
    pub fn rings(&self) -> Result<Vec<RingInfo>> {
        let rings: Vec<RingInfo> = self.list("/rings/")?;
        rings.into_iter().map(RingInfo::checked).collect()
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

    /// The pool's ring for so many copies; made and placed if it is the first of its kind.
    pub fn ring_for(&self, pool: &str, copies: u32, incarnation: impl Fn(BrickId) -> Incarnation) -> Result<RingInfo> {
        if self.get::<PoolInfo>(&format!("/pools/{pool}"))?.is_none() {
            let known: Vec<_> = self.pools()?.into_iter().map(|pool| pool.name).collect();
            return Err(Error::invalid(format!("there is no pool called {pool}; there are: {}", known.join(", "))));
        }
        if let Some(ring) = self.rings()?.into_iter().find(|ring| ring.pool == pool && ring.copies == copies) {
            return Ok(ring);
        }
        let candidates: Vec<_> = self
            .bricks()?
            .into_iter()
            .filter(|brick| brick.pool == pool)
            .map(|brick| Candidate { brick: brick.brick, weight: brick.weight, domain: brick.brick.text() })
            .collect();
        let placed = place(&candidates, copies, PARTITIONS_NEW)?;
        let member = |brick: &BrickId| Member { brick: *brick, incarnation: incarnation(*brick) };
        let views = placed.iter().map(|bricks| View {
            epoch: Epoch(1),
            leader: bricks[0],
            members: bricks.iter().map(member).collect(),
        });
        let number = u16::try_from(self.count("rings")?).map_err(|_| Error::NoSpace { what: "for rings".into() })?;
        let ring = RingInfo { ring: RingId(number), pool: pool.into(), copies, views: views.collect() };
        self.put_ring(&ring)?;
        Ok(ring)
    }

    /// Records a ring, for example with new views.
    pub fn put_ring(&self, ring: &RingInfo) -> Result<()> {
        self.put(&format!("/rings/{:05}", ring.ring.0), ring)
    }

    /// Records a new volume and gives it its number.
    pub fn create_volume(&self, mut volume: VolumeInfo) -> Result<VolumeInfo> {
        check_name("volume", &volume.name)?;
        let number = u32::try_from(self.count("volumes")?);
        volume.volume = VolumeId(number.map_err(|_| Error::NoSpace { what: "for volumes".into() })?);
        let key = format!("/volumes/{}", volume.name);
        match self.coordinator.transact(&[(&key, None)], &[(&key, Some(&text(&volume)?))])? {
            true => Ok(volume),
            false => Err(Error::invalid(format!("there is a volume called {} already", volume.name))),
        }
    }

    /// Changes the record of a volume.
    pub fn put_volume(&self, volume: &VolumeInfo) -> Result<()> {
        self.put(&format!("/volumes/{}", volume.name), volume)
    }

    /// Forgets a volume.
    pub fn forget_volume(&self, name: &str) -> Result<()> {
        self.coordinator.transact(&[], &[(&format!("/volumes/{name}"), None)]).map(|_| ())
    }

    /// The map that clients get.
    pub fn map(&self, volume: &VolumeInfo) -> Result<VolumeMap> {
        let ring: Option<RingInfo> = self.get(&format!("/rings/{:05}", volume.ring.0))?;
        let ring = ring.ok_or_else(|| Error::bug(format!("volume {} without its ring", volume.name)))?.checked()?;
        Ok(VolumeMap {
            volume: volume.volume,
            name: volume.name.clone(),
            ring: ring.ring,
            copies: ring.copies,
            views: ring.views,
        })
    }

    /// Begins a session.
    pub fn begin_session(&self, volume: VolumeId, uid: Option<u32>) -> Result<SessionId> {
        let session = SessionId(self.count("sessions")?);
        self.put(&format!("/sessions/{:020}", session.0), &SessionInfo { session, volume, uid })?;
        Ok(session)
    }

    /// Rows of the list of blocks that a power cut took and replicas have yet to agree on.
    pub fn lost_blocks<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        Ok(self.get("/lost-blocks")?.unwrap_or_default())
    }

    /// Replaces that list.
    pub fn put_lost_blocks<T: Serialize>(&self, rows: &[T]) -> Result<()> {
        self.put("/lost-blocks", &rows)
    }

    /// Sessions that have not ended.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>> {
        self.list("/sessions/")
    }

    /// Ends a session for ever.
    pub fn end_session(&self, session: SessionId) -> Result<()> {
        self.coordinator.transact(&[], &[(&format!("/sessions/{:020}", session.0), None)]).map(|_| ())
    }
}

fn parse<T: DeserializeOwned>(key: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::Damaged { what: format!("the coordinator's {key}: {e}") })
}

fn text<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::bug(e.to_string()))
}

/// Names of pools and volumes: 1 to 63 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = (1..=63).contains(&name.len())
        && name.chars().all(plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name:?} cannot be the name of a {what}: 1 to 63 letters, digits, dots, dashes and underlines, a letter or digit first"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_volumes_cannot_leave_their_folder() {
        for bad in ["", "../x", "a/b", ".hidden", "a b", &"x".repeat(64)] {
            assert!(check_name("volume", bad).is_err(), "{bad}");
        }
        assert!(check_name("volume", "photos-2026_a.b").is_ok());
    }
}
