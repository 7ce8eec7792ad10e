//! Shards that the leader has dropped or cut lately, and data ids whose shards it has yet to collect.

use crate::ops::recent_truncates::{Cut, Cuts};
use hekate_proto::*;
use std::borrow::Cow;
use std::collections::VecDeque;

/// Data ids that are remembered; one is forgotten when as many others were dropped after it.
const DROPPED_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Discarded {
    /// Data ids whose shards were dropped: what is written to them comes too late.
    dropped: VecDeque<DataId>,
    cuts: Cuts,
    /// Data ids to collect.
    garbage: VecDeque<(Key, GarbageRecord)>,
}

impl Discarded {
    pub fn note_cut(&mut self, cut: Cut) {
        self.cuts.note(cut);
    }

    /// See [`Cuts::carry_over`].
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

    /// The next data id to collect.
    pub fn next_garbage(&mut self) -> Option<(Key, GarbageRecord)> {
        self.garbage.pop_front()
    }

    pub fn clear_garbage(&mut self) {
        self.garbage.clear();
    }

    /// Data ids to collect.
    pub fn garbage_count(&self) -> usize {
        self.garbage.len()
    }
}
