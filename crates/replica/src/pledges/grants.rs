//! Grants: sessions write bytes within a file's size without a word to the leader of its inode, which therefore does not
//! know the file's times. Rules G1 to G7 of `docs/coherence.md`.
//!
//! A grant is a pledge about [`Pledged::Times`] and has the life of one: it is recalled, returned, expires and ends with
//! its session. Several sessions may have one on the same file. Before anybody is shown the file's times, and before a
//! record changes the inode in another way, the grants are recalled; a session says with the return when it last wrote.

use super::{About, Pledges, Recalls, Table};
use crate::ops::step::Ask;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

type File = (VolumeId, InodeId);

/// A file that a session may have written under a grant that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    pub file: File,
    /// Time since the last write, in ns.
    pub age: u64,
    pub end: Ending,
}

/// What a session has done to the end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It has not moved it.
    Kept,
    Reported {
        layout_version: u32,
        end: u64,
    },
    /// It may have moved it, and does not say so.
    Lost,
}

/// Grants of a table.
#[derive(Debug, Default)]
pub(super) struct Grants {
    count: usize,
    /// Files whose grants have ended since they were taken last.
    ended: Vec<Written>,
}

impl Grants {
    pub fn given(&mut self, about: &About) {
        self.count += usize::from(is_grant(about));
    }

    pub fn dropped(&mut self, about: &About) {
        self.count -= usize::from(is_grant(about));
    }
}

impl Pledges {
    /// The answer to a write that asks for a grant on the file.
    pub fn grant(&self, at: PartitionNumber, by: &Ask, inode: InodeId, given_for: GivenFor, now: Duration) -> Reply {
        let mut table = self.table();
        if !by.pledge || !table.gives(by.session, now) {
            return Reply::Done;
        }
        let about = Pledged::Times { inode };
        if table.is_mapped(by.session, (by.volume, inode)) {
            return Reply::Done;
        }
        let Some(number) = table.give((by.session, by.volume), about, false, now) else { return Reply::Done };
        let given = GivenPledges { partition: at, term: table.term, number, given_for };
        Reply::Pledged { found: Found::Done, pledges: vec![given] }
    }

    /// True if the session may be given a grant on the file now.
    pub fn may_grant(&self, session: SessionId, file: File, now: Duration) -> bool {
        let (table, about) = (self.table(), about(file));
        let is_cool = table.cooling.get(&about).is_none_or(|until| *until <= now);
        let is_free = is_cool && !table.recalled.contains_key(&about) && !table.is_mapped(session, file);
        is_free && table.gives(session, now)
    }

    /// True if this session may write the file under a grant.
    pub fn holds_grant(&self, session: SessionId, file: File) -> bool {
        let table = self.table();
        table.held.get(&about(file)).is_some_and(|all| all.iter().any(|(holder, _)| *holder == session))
    }

    /// True if no session may write under a grant.
    pub fn has_no_grants(&self) -> bool {
        self.table().grants.count == 0
    }

    /// True if a session other than `by` may write the file under a grant. `by` itself has said what it wrote before it
    /// asked, unless its grant is recalled (G3).
    pub fn hides_times(&self, by: SessionId, file: File) -> bool {
        let table = self.table();
        table.grants.count > 0 && table.hides_times(by, &about(file))
    }

    /// Recalls the grants on these files.
    pub fn recall_grants(&self, files: &[File], now: Duration, recalls: &mut Recalls) {
        let mut table = self.table();
        for about in files.iter().copied().map(about) {
            table.recall(SYSTEM_SESSION, &about, now, recalls);
        }
    }

    /// True if a session may write the file under a grant.
    pub fn has_grant(&self, file: File) -> bool {
        let table = self.table();
        table.grants.count > 0 && table.held.contains_key(&about(file))
    }

    /// Files whose grants have ended since the last call, and that may have been written under them.
    pub fn take_written(&self) -> Vec<Written> {
        std::mem::take(&mut self.table().grants.ended)
    }
}

impl Table {
    fn hides_times(&self, by: SessionId, about: &About) -> bool {
        let holders = self.held.get(about).map_or(&[][..], |all| &all[..]);
        let has_others = holders.iter().any(|(holder, _)| *holder != by);
        (has_others || self.recalled.contains_key(about)) && !is_planted(Bug::GrantNotRecalledForRead)
    }

    /// Recalls the grants of all sessions but one on the inodes of which the attributes change. Returns true if there are
    /// any.
    pub(super) fn recall_grants_on(
        &mut self,
        changed: &BTreeSet<About>,
        but: SessionId,
        now: Duration,
        recalls: &mut Recalls,
    ) -> bool {
        if self.grants.count == 0 || is_planted(Bug::GrantNotRecalledForChange) {
            return false;
        }
        let mut is_any = false;
        for (volume, changed) in changed {
            if let Pledged::Attributes { inode } = changed {
                is_any |= self.recall(but, &about((*volume, *inode)), now, recalls);
            }
        }
        is_any
    }

    /// Recalls all grants: this leader goes on in another view (G5).
    pub(super) fn recall_all_grants(&mut self, now: Duration, recalls: &mut Recalls) {
        if self.grants.count > 0 {
            let all: Vec<Arc<About>> = self.held.keys().filter(|about| is_grant(about)).cloned().collect();
            all.iter().for_each(|about| _ = self.recall(SYSTEM_SESSION, about, now, recalls));
        }
    }

    /// A grant has ended and its session has not said whether it wrote: it may have done so until now (G4).
    pub(super) fn grant_lost(&mut self, about: &About) {
        if let (volume, Pledged::Times { inode }) = about
            && !is_planted(Bug::LostGrantForgotten)
        {
            let end = if is_planted(Bug::LostEndNotAsked) { Ending::Kept } else { Ending::Lost };
            self.grants.ended.push(Written { file: (*volume, *inode), age: 0, end });
        }
    }

    /// A session that has a grant says when it last wrote the file, and to where it moved its end. It may return an earlier grant than the one that is on
    /// its way to it.
    pub(super) fn grant_reported(&mut self, about: &About, reports: &[Report]) {
        let (volume, Pledged::Times { inode }) = about else { return };
        if let Some(report) = reports.iter().find(|report| report.inode == *inode) {
            let Report { age, end, layout_version, .. } = *report;
            let end = if end == 0 { Ending::Kept } else { Ending::Reported { layout_version, end } };
            self.grants.ended.push(Written { file: (*volume, *inode), age, end });
        }
    }
}

fn about((volume, inode): File) -> About {
    (volume, Pledged::Times { inode })
}

fn is_grant(about: &About) -> bool {
    matches!(about, (_, Pledged::Times { .. }))
}
