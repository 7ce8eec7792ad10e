//! The rings that this server has replicas of.

use crate::hosting::hosted_ring::HostedRing;
use hekate_proto::{Error, Result, RingId};
use parking_lot::{RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// The rings that this server has replicas of, by number.
#[derive(Default)]
pub struct Rings(RwLock<HashMap<RingId, Arc<HostedRing>>>);

impl Rings {
    /// A ring that is hosted here.
    ///
    /// # Errors
    ///
    /// `Protocol` if this server has no replica of the ring.
    pub fn get(&self, ring: RingId) -> Result<Arc<HostedRing>> {
        let found = self.0.read().get(&ring).cloned();
        found.ok_or_else(|| Error::Protocol { what: format!("ring {ring} is not served here") })
    }

    /// All rings at this moment; the lock is not held while the caller works on them.
    pub fn all(&self) -> Vec<Arc<HostedRing>> {
        self.0.read().values().cloned().collect()
    }

    /// All rings, under the lock: for a caller that neither waits nor hosts a ring meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, HashMap<RingId, Arc<HostedRing>>> {
        self.0.read()
    }

    /// Serves a ring from now on, in place of an earlier one of its number.
    pub fn put(&self, ring: Arc<HostedRing>) {
        self.0.write().insert(ring.ring, ring);
    }

    /// Data ids that wait to be collected and ops in progress, of all replicas here.
    pub fn work_left(&self) -> usize {
        let of_ring = |ring: &Arc<HostedRing>| -> usize {
            ring.replicas().map(|(_, hosted)| hosted.partition.read().work_left()).sum()
        };
        self.all().iter().map(of_ring).sum()
    }
}
