//! The bandwidth for healing. All partitions that are led here share it; it is lower while clients are active, and
//! partitions with the fewest copies come first.

use crate::hosting::hosted_ring::HostedRing;
use hekate_replica::Address;
use hekate_threads::{Mutex, elapsed, now};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes per second that healing may send, over all partitions that are led here. The second value applies while
/// clients are active: with the other costs of healing it leaves them 50 MB/s.
const BYTES_A_SECOND: f64 = 200e6;
const BUSY_BYTES_A_SECOND: f64 = 65e6;
/// Longest time since the last tick for which bytes are granted, after the thread was delayed.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Until the partitions with the fewest copies are healed, a partition with more copies gets a share that is smaller by
/// this factor.
const LATER_SHARE: usize = 16;
/// The least that a partition may send in a tick, so that each step sends a record.
const LIMIT_MIN: usize = 4 << 10;
/// Ticks after the last op in which clients count as active.
const BUSY_TICKS: u64 = 10;

/// What the shares of the next tick depend on.
#[derive(Default)]
pub struct Rate {
    ops: AtomicU64,
    quiet_ticks: AtomicU64,
    shared: Mutex<Option<Instant>>,
}

impl Rate {
    /// Bytes for the time since the last call: ticks are late on a busy machine.
    fn bytes(&self, ops: u64) -> usize {
        let a_second = if self.is_busy(ops) { BUSY_BYTES_A_SECOND } else { BYTES_A_SECOND };
        let since = self.shared.lock().replace(now()).map_or(Duration::ZERO, elapsed);
        (a_second * since.min(PAUSE_MAX).as_secs_f64()) as usize
    }

    fn is_busy(&self, ops: u64) -> bool {
        if self.ops.swap(ops, Ordering::Relaxed) != ops {
            self.quiet_ticks.store(0, Ordering::Relaxed);
        }
        self.quiet_ticks.fetch_add(1, Ordering::Relaxed) < BUSY_TICKS
    }

    /// Divides the bytes of this tick among the partitions that have a replica to heal. `ops` is the number of ops that
    /// clients have asked for since the server started.
    pub fn share(&self, ops: u64, rings: &[Arc<HostedRing>]) {
        let mut healing: Vec<(Arc<HostedRing>, Address, usize)> = Vec::new();
        for ring in rings {
            for address in ring.leaders() {
                let Some(hosted) = ring.replica(address) else { continue };
                let partition = hosted.partition.read();
                if partition.healing().iter().any(|one| one.heard && !one.whole && !one.stuck) {
                    healing.push((ring.clone(), address, partition.view().members.len()));
                }
            }
        }
        let Some(copies) = healing.iter().map(|(_, _, copies)| *copies).min() else { return };
        let bytes = self.bytes(ops);
        let limits = limits(bytes, &healing.iter().map(|(_, _, own)| *own == copies).collect::<Vec<_>>());
        for ((ring, address, _), limit) in healing.iter().zip(limits) {
            if let Some(hosted) = ring.replica(*address) {
                hosted.partition.write().limit_healing(limit);
            }
        }
    }
}

/// The share of each partition; `are_first` says which are among those with the fewest copies.
fn limits(bytes: usize, are_first: &[bool]) -> Vec<usize> {
    let first = are_first.iter().filter(|is_first| **is_first).count().max(1);
    let share = bytes / first;
    let of = |is_first: &bool| if *is_first { share } else { share / LATER_SHARE };
    are_first.iter().map(|is_first| of(is_first).max(LIMIT_MIN)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_copies_share_it_and_others_get_little() {
        assert_eq!(limits(1 << 20, &[true, true]), [512 << 10, 512 << 10]);
        assert_eq!(limits(1 << 20, &[true, false]), [1 << 20, 64 << 10]);
        assert_eq!(limits(64 << 10, &[true; 16]), [LIMIT_MIN; 16]);
    }

    #[test]
    fn clients_count_for_a_while() {
        let rate = Rate::default();
        assert!(rate.is_busy(1));
        let quiet = (0..2 * BUSY_TICKS).take_while(|_| rate.is_busy(1)).count() as u64;
        assert_eq!(quiet, BUSY_TICKS - 1);
        assert!(!rate.is_busy(1) && rate.is_busy(2));
    }
}
