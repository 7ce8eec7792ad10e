//! The rings that this server has replicas of.

use crate::hosting::hosted_ring::HostedRing;
use hekate_control::partition::WaitingPartition;
use hekate_proto::{Error, PartitionNumber, Result, RingId};
use hekate_replica::Partition;
use hekate_threads::{HashMap, RwLock};
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

    /// What `look` finds at each leader that is here, under the leader's shared lock.
    pub fn of_leaders<T>(&self, mut look: impl FnMut(RingId, &Partition) -> T) -> Vec<T> {
        let mut found = Vec::new();
        for ring in self.all() {
            for hosted in ring.leaders().into_iter().filter_map(|address| ring.replica(address)) {
                found.push(look(ring.ring, &hosted.partition.read()));
            }
        }
        found
    }

    /// The partitions led here that do not serve, or accept no changes.
    pub fn waiting(&self) -> Vec<WaitingPartition> {
        let of_ring = |ring: &Arc<HostedRing>| {
            let row = |partition| {
                let waits_for = ring.waits_for(partition)?;
                Some(WaitingPartition { ring: ring.ring, partition, waits_for })
            };
            (0..ring.count()).map(PartitionNumber).filter_map(row).collect::<Vec<_>>()
        };
        self.all().iter().flat_map(of_ring).collect()
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
