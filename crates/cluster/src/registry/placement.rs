//! What a server reads with each renewal of its lease: the rings with their views, the leases and the bricks. Only
//! records that have changed are read and parsed again.

use super::rings::{RINGS, rings_of};
use super::servers::{ALIVE, BRICKS, by_server, in_order};
use super::{Registry, parse};
use crate::coordinator::Mirror;
use crate::records::{AliveInfo, BrickInfo, RingInfo};
use hekate_proto::Result;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The rings with their views, the leases and the bricks, as they were last read.
pub struct PlacementRecords {
    mirror: Mirror,
    age_max: Duration,
    /// By the keys of their records.
    rings: BTreeMap<String, Arc<RingInfo>>,
    alive: Vec<AliveInfo>,
    bricks: Vec<BrickInfo>,
}

impl PlacementRecords {
    /// Nothing has been read. `age_max`: time after a reading after which all records are read.
    pub fn new(age_max: Duration) -> Self {
        let (rings, alive, bricks) = Default::default();
        Self { mirror: Mirror::new(&[RINGS, ALIVE, BRICKS], age_max), age_max, rings, alive, bricks }
    }

    /// All rings with their views.
    pub fn rings(&self) -> impl Iterator<Item = &Arc<RingInfo>> {
        self.rings.values()
    }

    /// The servers with a lease, as [`Registry::alive`] returns them.
    pub fn alive(&self) -> &[AliveInfo] {
        &self.alive
    }

    /// All bricks, ordered by server and directory.
    pub fn bricks(&self) -> &[BrickInfo] {
        &self.bricks
    }

    /// Parses the records of these keys again.
    fn take(&mut self, changed: &[String]) -> Result<()> {
        let rings: BTreeSet<&str> = changed.iter().filter_map(|key| ring_of(key)).collect();
        for key in rings {
            // All numbers have five digits, so no other ring's key has this prefix.
            match rings_of(self.mirror.pairs(key))?.pop() {
                Some(ring) => _ = self.rings.insert(ring.key, Arc::new(ring.info)),
                None => _ = self.rings.remove(key),
            }
        }
        if changed.iter().any(|key| key.starts_with(ALIVE)) {
            self.alive = by_server(self.parsed(ALIVE)?);
        }
        if changed.iter().any(|key| key.starts_with(BRICKS)) {
            self.bricks = in_order(self.parsed(BRICKS)?);
        }
        Ok(())
    }

    fn parsed<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<T>> {
        self.mirror.pairs(prefix).map(|(key, text)| parse(key, text)).collect()
    }
}

/// The key of the ring that a key below [`RINGS`] belongs to.
fn ring_of(key: &str) -> Option<&str> {
    let number = key.strip_prefix(RINGS)?.split('/').next()?;
    key.get(..RINGS.len() + number.len())
}

impl Registry {
    /// Brings the records up to a revision that is not older than any write which was acknowledged before the call.
    ///
    /// # Errors
    /// Those of the coordinator, and `Damaged` if a record cannot be parsed: all is read again by the next call.
    pub fn refresh(&self, known: &mut PlacementRecords) -> Result<()> {
        let changed = known.mirror.refresh(self.coordinator())?;
        let taken = known.take(&changed);
        if taken.is_err() {
            *known = PlacementRecords::new(known.age_max);
        }
        taken
    }
}
