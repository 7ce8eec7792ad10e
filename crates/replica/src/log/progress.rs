//! The progress of a leader's log and fast lane, for reports.

use crate::partition::{Partition, Role};
use hekate_proto::*;

/// The progress of a leader's log and fast lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogProgress {
    /// The last record.
    pub last: Sequence,
    /// Every member has all records up to this one in its journal, synced or not.
    pub settled: Sequence,
    /// Every member has all records up to this one on stable storage.
    pub stable: Sequence,
    /// The number of records that each other member lacks. `None` while it is not connected.
    pub lags: Vec<(BrickId, Option<u64>)>,
    /// Shards that sessions have open for fast writes.
    pub open_shards: usize,
    /// Fast writes to these shards that some member may lack.
    pub unsettled_writes: usize,
    /// The loose-writes marker is set: a member that loses power may lose fast writes.
    pub loose: bool,
}

impl Partition {
    /// The progress of this leader. `None` for a follower.
    pub fn progress(&self) -> Option<LogProgress> {
        let Role::Leader(leader) = &self.role else { return None };
        let lag = |(brick, member): (&BrickId, &crate::leader::Member)| {
            (*brick, member.position.map(|_| leader.log.last.0.saturating_sub(member.held.0)))
        };
        Some(LogProgress {
            last: leader.log.last,
            settled: leader.log.settled,
            stable: leader.log.stable,
            lags: leader.members.iter().map(lag).collect(),
            open_shards: leader.fast.open_count(),
            unsettled_writes: leader.fast.unsettled_count(),
            loose: leader.fast.loose.is_marked(),
        })
    }
}
