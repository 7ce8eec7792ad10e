//! Since when replicas lack records of a partition, and how fast each is healed.
//!
//! The epochs are in memory: after a restart of the server it is unknown since when a replica lacks records.

use hekate_proto::map::View;
use hekate_proto::*;
use hekate_replica::Healing;
use hekate_threads::{HashMap, Mutex, elapsed, now};
use std::time::{Duration, Instant};

/// Age after which the beginning of a healing is forgotten, and its rate is measured anew.
const ESTIMATE_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A replica of a partition.
type At = (RingId, PartitionNumber, BrickId);

/// The replicas that lack records of a partition, as far as this server has seen them leave.
#[derive(Default)]
pub struct HealProgress {
    /// The epoch of the first view without the replica.
    left: Mutex<HashMap<At, Epoch>>,
    begun: Mutex<HashMap<At, Begun>>,
}

/// How far a replica's healing was when it was first seen.
#[derive(Clone, Copy)]
struct Begun {
    seen: Instant,
    /// Healed part of the replica, in ten-thousandths.
    done: u32,
}

impl HealProgress {
    /// Notes which replicas a partition's new view leaves out, and which it takes in.
    pub fn note_view(&self, ring: RingId, partition: PartitionNumber, before: &View, view: &View) {
        let mut left = self.left.lock();
        for member in before.members.iter().filter(|member| !view.has_member(member.brick)) {
            left.entry((ring, partition, member.brick)).or_insert(view.epoch);
        }
        for member in &view.members {
            left.remove(&(ring, partition, member.brick));
        }
    }

    /// The epoch of the first view without the replica; `None` if it left before this server started.
    pub fn left_in(&self, at: At) -> Option<Epoch> {
        self.left.lock().get(&at).copied()
    }

    /// Seconds until a replica is healed, at the rate since its healing was first seen; `None` if the rate is not
    /// known.
    pub fn seconds_left(&self, at: At, healing: &Healing) -> Option<f64> {
        let mut begun = self.begun.lock();
        begun.retain(|_, begun| elapsed(begun.seen) < ESTIMATE_KEPT);
        if healing.whole || !healing.heard {
            begun.remove(&at);
            return None;
        }
        let from = *begun.entry(at).or_insert(Begun { seen: now(), done: healing.done });
        let healed = f64::from(healing.done.checked_sub(from.done).filter(|healed| *healed > 0)?);
        Some(elapsed(from.seen).as_secs_f64() * f64::from(10_000 - healing.done) / healed)
    }
}
