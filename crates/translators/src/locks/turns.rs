//! Serializes lock ops: the ops of a session on one inode run one after the other, so that the locks that the session
//! records are those after the leader's last op, and no op runs while the session reports its locks of a partition.

use hekate_proto::{InodeId, PartitionNumber};
use hekate_threads::{Condvar, HashMap, HashSet, Mutex, now};

use std::time::Duration;

/// Interval at which a waiting op checks whether its caller gave up.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Running lock ops of a session, and partitions whose locks are being reported.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    active: HashMap<InodeId, PartitionNumber>,
    restoring: HashSet<PartitionNumber>,
}

/// The right to run one op on an inode, until it is dropped.
pub(crate) struct Turn<'a>(&'a Turns, InodeId);

/// The exclusive right to a partition, until it is dropped.
pub(super) struct Exclusive<'a>(&'a Turns, PartitionNumber);

impl Turns {
    /// Waits until no other op on the inode runs. `None` if the caller gave up.
    pub fn begin(&self, inode: InodeId, partition: PartitionNumber, gave_up: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        while state.active.contains_key(&inode) || state.restoring.contains(&partition) {
            if gave_up() {
                return None;
            }
            self.changed.wait_for(&mut state, POLL_INTERVAL);
        }
        state.active.insert(inode, partition);
        Some(Turn(self, inode))
    }

    /// Waits until no op on the partition runs. `None` if that takes longer than `limit`.
    pub fn exclusive(&self, partition: PartitionNumber, limit: Duration) -> Option<Exclusive<'_>> {
        let end = now() + limit;
        let mut state = self.state.lock();
        while state.restoring.contains(&partition) {
            if !self.changed.wait_until(&mut state, end) {
                return None;
            }
        }
        state.restoring.insert(partition);
        let exclusive = Exclusive(self, partition);
        // Dropped before `exclusive`, whose destructor takes the lock.
        let mut state = state;
        while state.active.values().any(|other| *other == partition) {
            if !self.changed.wait_until(&mut state, end) {
                return None;
            }
        }
        Some(exclusive)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().active.remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.state.lock().restoring.remove(&self.1);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InodeId = InodeId::new(1, 1, 1);
    const TWO: InodeId = InodeId::new(1, 1, 2);
    const PARTITION: PartitionNumber = PartitionNumber(3);

    #[test]
    fn ops_on_one_inode_wait_for_each_other_and_on_two_they_do_not() {
        let turns = Turns::default();
        let first = turns.begin(ONE, PARTITION, || true);
        assert!(first.is_some() && turns.begin(ONE, PARTITION, || true).is_none());
        assert!(turns.begin(TWO, PARTITION, || true).is_some());
        drop(first);
        assert!(turns.begin(ONE, PARTITION, || true).is_some());
    }

    #[test]
    fn a_report_waits_for_the_partitions_ops_and_keeps_new_ones_out() {
        let turns = Turns::default();
        let op = turns.begin(ONE, PARTITION, || true);
        assert!(turns.exclusive(PARTITION, Duration::from_millis(1)).is_none());
        drop(op);
        let exclusive = turns.exclusive(PARTITION, Duration::from_millis(1));
        assert!(exclusive.is_some() && turns.begin(TWO, PARTITION, || true).is_none());
        assert!(turns.begin(ONE, PartitionNumber(4), || true).is_some());
        drop(exclusive);
        assert!(turns.begin(TWO, PARTITION, || true).is_some());
    }
}
