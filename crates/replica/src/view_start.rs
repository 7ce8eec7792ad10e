//! The start of a view: its leader brings all members to one log, compares their data where it must, and opens the
//! view.

pub(crate) mod compare;
pub(crate) mod feed;
pub(crate) mod level;

use crate::message::BlockAt;
use crate::view_start::level::Phase;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Where a leader is between the start of its view and serving.
#[derive(Debug, Default)]
pub(crate) struct ViewStart {
    phase: Phase,
    /// All members have one log, on stable storage. The coordinator is asked to record that the view begins.
    may_open: bool,
    /// `Some(true)` if every member lost some bytes, so that it is unknown which repeated writes were done. `None` once
    /// no such write counts as done.
    lost_writes: Option<bool>,
    /// Blocks lost in power cuts, and the members that lost each.
    lost_on: BTreeMap<BlockAt, BTreeSet<BrickId>>,
}

impl ViewStart {
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// True if the leader has done all that must precede the opening of the view.
    pub fn may_open(&self) -> bool {
        self.may_open
    }

    /// Records that all members have one log, on stable storage.
    pub fn allow_open(&mut self) {
        self.may_open = true;
    }
}
