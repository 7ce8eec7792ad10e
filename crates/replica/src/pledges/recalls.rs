//! Recalls of pledges on their way to sessions.

use crate::context::Out;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Pledges that one notification recalls.
const RECALLED_AT_ONCE: usize = 256;

/// Recalls to be sent, by session.
#[derive(Debug, Default)]
pub(crate) struct Recalls(pub(super) BTreeMap<SessionId, Vec<Pledge>>);

impl Recalls {
    pub fn add(&mut self, recalls: Vec<(SessionId, Pledge)>) {
        recalls.into_iter().for_each(|(session, pledge)| self.0.entry(session).or_default().push(pledge));
    }

    /// Adds recalls without pledges.
    pub fn ask_to_forget(&mut self, sessions: &BTreeSet<SessionId>) {
        sessions.iter().for_each(|session| _ = self.0.entry(*session).or_default());
    }

    /// Has the host send them.
    pub fn send(self, partition: PartitionNumber, term: u64, out: &mut Out) {
        for (session, pledges) in self.0 {
            let recall = |pledges: &[Pledge]| Notification::Recall { partition, term, pledges: pledges.to_vec() };
            match pledges.is_empty() {
                true => out.recalls.push((session, recall(&[]))),
                false => out.recalls.extend(pledges.chunks(RECALLED_AT_ONCE).map(|some| (session, recall(some)))),
            }
        }
    }
}
