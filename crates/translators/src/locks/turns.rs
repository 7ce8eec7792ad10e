//! Who may speak of a file's locks now: the ops of one session on one inode go one after the other, so that what the
//! session remembers is what the leader did last; and while a partition's leader is told everything, nobody else speaks to it.

use hekate_proto::{InodeId, PartitionNumber};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How often one who waits looks whether its caller gave up.
const LOOK_UP: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    speaking: HashMap<InodeId, PartitionNumber>,
    told: HashSet<PartitionNumber>,
}

/// One op's turn, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns, InodeId);

/// A partition of one's own, until it is dropped.
pub(super) struct Alone<'a>(&'a Turns, PartitionNumber);

impl Turns {
    /// Waits for it; none if the caller gave up.
    pub fn begin(&self, inode: InodeId, partition: PartitionNumber, gave_up: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        while state.speaking.contains_key(&inode) || state.told.contains(&partition) {
            if gave_up() {
                return None;
            }
            self.changed.wait_for(&mut state, LOOK_UP);
        }
        state.speaking.insert(inode, partition);
        Some(Turn(self, inode))
    }

    /// Waits until those who speak to the partition have ended; none if that takes too long, or another is at it.
    pub fn alone(&self, partition: PartitionNumber, limit: Duration) -> Option<Alone<'_>> {
        let end = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.told.contains(&partition) {
            if self.changed.wait_until(&mut state, end).timed_out() {
                return None;
            }
        }
        state.told.insert(partition);
        let alone = Alone(self, partition);
        while state.speaking.values().any(|other| *other == partition) {
            if self.changed.wait_until(&mut state, end).timed_out() {
                drop(state);
                return None;
            }
        }
        Some(alone)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().speaking.remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state.lock().told.remove(&self.1);
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
    fn telling_a_partition_waits_for_its_ops_and_keeps_new_ones_out() {
        let turns = Turns::default();
        let op = turns.begin(ONE, PARTITION, || true);
        assert!(turns.alone(PARTITION, Duration::from_millis(1)).is_none());
        drop(op);
        let alone = turns.alone(PARTITION, Duration::from_millis(1));
        assert!(alone.is_some() && turns.begin(TWO, PARTITION, || true).is_none());
        assert!(turns.begin(ONE, PartitionNumber(4), || true).is_some());
        drop(alone);
        assert!(turns.begin(TWO, PARTITION, || true).is_some());
    }
}
