//! The leader's learners, the limits of healing, and the proof that members are equal.

use crate::heal::Learner;
use crate::heal::proof::Proving;
use hekate_proto::*;
use std::collections::BTreeMap;

/// The leader's learners, and the proof that all members are equal.
#[derive(Debug, Default)]
pub(crate) struct LearnerWork {
    pub(super) learners: BTreeMap<BrickId, Learner>,
    /// Bytes that may be sent to learners before the next tick.
    pub(super) heal_bytes: usize,
    /// Bytes for each tick, if the host sets a limit: the host divides a budget between the partitions that it leads.
    pub(super) heal_limit: Option<usize>,
    /// A client requested a change since the last tick.
    pub(super) was_asked: bool,
    /// The time of the last tick at which stuck learners were tried again, or at which no learner was stuck.
    pub(super) stuck_at: Time,
    pub(super) looked_behind_at: Time,
    pub(super) proof: Option<Box<Proving>>,
}

impl LearnerWork {
    pub fn new(learners: impl Iterator<Item = BrickId>) -> Self {
        Self { learners: learners.map(|brick| (brick, Learner::default())).collect(), ..Self::default() }
    }

    /// Replaces the learners by those of a new view. The state of the old ones, and the proof, are dropped.
    pub fn restart(&mut self, learners: impl Iterator<Item = BrickId>) {
        self.learners = learners.map(|brick| (brick, Learner::default())).collect();
        self.proof = None;
    }

    pub fn has_learner(&self, brick: BrickId) -> bool {
        self.learners.contains_key(&brick)
    }

    /// Learners that have not sent the ends of their logs.
    pub fn without_position(&self) -> impl Iterator<Item = BrickId> + '_ {
        self.learners.iter().filter(|(_, learner)| !learner.has_position()).map(|(brick, _)| *brick)
    }

    pub fn wants_tick(&self) -> bool {
        self.learners.values().any(Learner::wants_tick)
    }

    /// Sets how many bytes may be sent to learners with each tick.
    pub fn limit(&mut self, bytes: usize) {
        self.heal_limit = Some(bytes);
    }

    /// Notes that a client requested a change: healing takes a smaller share of the next tick.
    pub fn note_request(&mut self) {
        self.was_asked = true;
    }
}
