//! How far a leader's log and fast lane are, for who looks in.

use crate::partition::{Partition, Role};
use hekate_proto::*;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogProgress {
    /// The last record.
    pub last: Sequence,
    /// Every member has all records up to here, in memory,
    pub settled: Sequence,
    /// and on stable storage up to here.
    pub stable: Sequence,
    /// Records that each other member lacks; none: it is away.
    pub lags: Vec<(BrickId, Option<u64>)>,
    /// Shards that a session may write on the fast lane.
    pub open_shards: usize,
    /// Fast writes to them that some member may lack.
    pub unsettled_writes: usize,
    /// Members that lose their power may lack fast writes.
    pub loose: bool,
}

impl Partition {
    /// None: it does not lead.
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
            loose: leader.fast.loose.is_noted(),
        })
    }
}
