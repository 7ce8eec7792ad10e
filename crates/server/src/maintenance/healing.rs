//! How fast replicas are healed: all that are led here share what may be sent, which is less while clients ask for something;
//! and last safe copies come first.

use crate::hosting::hosted_ring::HostedRing;
use hekate_replica::Address;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a second may send, from all partitions that are led here; and while clients ask for something, so that 50 MB/s are
/// left beside what healing itself costs.
const BYTES_A_SECOND: f64 = 200e6;
const BUSY_BYTES_A_SECOND: f64 = 65e6;
/// A server that was not let run for longer than this does not make up for it.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Those who have more copies get this part of their share until those with fewer are healed.
const LATER_SHARE: usize = 16;
/// A step takes a record, however little it brings.
const LIMIT_MIN: usize = 4 << 10;
/// So many ticks clients count as asking after the last that they asked.
const BUSY_TICKS: u64 = 10;

/// Who asked when, and when bytes were shared last.
#[derive(Default)]
pub struct Rate {
    ops: AtomicU64,
    quiet_ticks: AtomicU64,
    shared: Mutex<Option<Instant>>,
}

impl Rate {
    /// What may be sent for the time since this was asked last: ticks come late on a busy machine.
    fn bytes(&self, ops: u64) -> usize {
        let a_second = if self.is_busy(ops) { BUSY_BYTES_A_SECOND } else { BYTES_A_SECOND };
        let since = self.shared.lock().replace(Instant::now()).map_or(Duration::ZERO, |last| last.elapsed());
        (a_second * since.min(PAUSE_MAX).as_secs_f64()) as usize
    }

    fn is_busy(&self, ops: u64) -> bool {
        if self.ops.swap(ops, Ordering::Relaxed) != ops {
            self.quiet_ticks.store(0, Ordering::Relaxed);
        }
        self.quiet_ticks.fetch_add(1, Ordering::Relaxed) < BUSY_TICKS
    }

    /// Shares the next bytes among the partitions with replicas that can be brought on.
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

/// For each: whether it is among those with the fewest copies.
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
