//! Shards that the leader has recently dropped or cut, and data ids whose shards it has yet to drop.

use crate::ops::recent_truncates::{Cut, Cuts};
use hekate_proto::*;
use std::borrow::Cow;
use std::collections::VecDeque;

/// Dropped data ids that are remembered, the last ones.
const DROPPED_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Discarded {
    /// Data ids whose shards were dropped. Writes to them are refused.
    dropped: VecDeque<DataId>,
    cuts: Cuts,
    /// Data ids whose shards are to be dropped.
    garbage: VecDeque<(Key, GarbageRecord)>,
}

impl Discarded {
    pub fn note_cut(&mut self, cut: Cut) {
        self.cuts.note(cut);
    }

    /// Moves a `Wrote` op to the current layout; see [`Cuts::carry_over`].
    pub fn carry_over<'a>(&self, volume: VolumeId, op: &'a Op) -> (Cow<'a, Op>, bool) {
        self.cuts.carry_over(volume, op)
    }

    pub fn note_dropped(&mut self, data: DataId) {
        if self.dropped.back() != Some(&data) {
            self.dropped.push_back(data);
        }
        if self.dropped.len() > DROPPED_MAX {
            self.dropped.pop_front();
        }
    }

    pub fn is_dropped(&self, data: DataId) -> bool {
        self.dropped.contains(&data)
    }

    pub fn collect_later(&mut self, key: Key, record: GarbageRecord) {
        self.garbage.push_back((key, record));
    }

    /// The next data id whose shards are to be dropped.
    pub fn next_garbage(&mut self) -> Option<(Key, GarbageRecord)> {
        self.garbage.pop_front()
    }

    pub fn clear_garbage(&mut self) {
        self.garbage.clear();
    }

    /// The number of data ids whose shards are to be dropped.
    pub fn garbage_count(&self) -> usize {
        self.garbage.len()
    }
}
