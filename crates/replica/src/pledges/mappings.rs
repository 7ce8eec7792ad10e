//! Mapping rights: of the sessions that map a file for writing, one at a time has pages of it. Rules W1 to W11 of
//! `docs/coherence.md`.
//!
//! A right is a pledge about [`Pledged::Mapping`] and has the life of one: it is recalled, returned, expires and ends with
//! its session. It differs in four points: one session has it, a session that asks for it waits, it is given again at
//! once after a recall, and a leader that begins gives none before each session has said which it has, or has ended.
//!
//! Invariant: `since` has an entry for each right that is given, and no other.

use super::{About, EXPIRES_AFTER, Forgetting, Late, PATIENCE, PassedOn, Pledges, RESEND_INTERVAL, Recalls, Table};
use crate::ops::step::Ask;
use hekate_proto::*;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

type File = (VolumeId, InodeId);

/// How long a session may go on writing back pages, for a right that is recalled, if it says all the time that it does.
const WRITING_BACK_MAX: Duration = Duration::from_secs(60);

/// Rights of a table.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// The number from which on its session has had the right without a break. 0: it had it from an earlier leader.
    since: HashMap<File, u64>,
    /// Sessions that have not said which rights of an earlier leader they have. Nobody is given a right before they have,
    /// or have ended.
    unheard: BTreeSet<SessionId>,
    /// When the leader began to wait for them.
    unheard_since: Duration,
    /// When they were last asked.
    asked: Duration,
    /// Rights that have expired, of which a record is on its way that says so.
    passing: BTreeSet<File>,
}

impl Mappings {
    /// A view begins: records on their way may not be made.
    pub fn begin(&mut self) {
        self.passing.clear();
    }

    /// A right has expired.
    pub fn expired(&self, about: &About, (session, number): (SessionId, u64), late: &mut Late) {
        if let Some(file) = mapped_file(about).filter(|file| !self.passing.contains(file)) {
            late.rights.push(PassedOn { session, file, number });
        }
    }

    pub fn given(&mut self, about: &About, number: u64) {
        if let Some(file) = mapped_file(about) {
            self.since.insert(file, number);
        }
    }

    pub fn await_sessions(&mut self, sessions: BTreeSet<SessionId>, now: Duration) {
        (self.unheard, self.unheard_since, self.asked) = (sessions, now, now);
    }

    /// The session has said which rights it has, or has ended. Returns true if rights may be given now.
    pub fn heard(&mut self, session: SessionId) -> bool {
        self.unheard.remove(&session) && self.unheard.is_empty()
    }

    pub fn awaits(&self) -> bool {
        !self.unheard.is_empty()
    }

    /// The sessions that are waited for, each with the time since.
    pub fn slow(&self, now: Duration) -> impl Iterator<Item = (SessionId, Duration)> {
        let since = now.saturating_sub(self.unheard_since);
        self.unheard.iter().filter(move |_| since >= PATIENCE).map(move |session| (*session, since))
    }

    pub fn awaits_word_of(&self, session: SessionId) -> bool {
        self.unheard.contains(&session)
    }

    pub fn ask_again(&mut self, now: Duration, recalls: &mut Recalls) {
        if self.awaits() && self.asked + RESEND_INTERVAL <= now {
            self.asked = now;
            recalls.ask_to_forget(&self.unheard);
        }
    }

    pub fn dropped(&mut self, about: &About) {
        if let Some(file) = mapped_file(about) {
            self.since.remove(&file);
            self.passing.remove(&file);
        }
    }
}

impl Pledges {
    /// The answer to a session that asks for the mapping right of a file. `None`: it has to wait, for the session that has
    /// the right, or for those that write under grants.
    pub fn map(
        &self,
        at: PartitionNumber,
        by: &Ask,
        inode: InodeId,
        now: Duration,
        recalls: &mut Recalls,
    ) -> Option<Reply> {
        let mut table = self.table();
        let about = about((by.volume, inode));
        let holder = table.mapped_by(&about);
        let gives = table.gives(by.session, now) && !table.mappings.awaits();
        let number = match holder {
            // Its return may be on the way, so it gets no other number: it knows what it has returned.
            Some((session, number)) if session == by.session && (!gives || table.is_recalled(&about)) => {
                table.note_writing_back(&about, now);
                number
            }
            Some((session, _)) if session != by.session => {
                table.recall(by.session, &about, now, recalls);
                return None;
            }
            _ if !gives || table.recall(by.session, &(by.volume, Pledged::Times { inode }), now, recalls) => {
                if let Forgetting::Awaited { delays, .. } = &mut table.forgetting {
                    *delays = true;
                }
                return None;
            }
            _ => table.give((by.session, by.volume), Pledged::Mapping { inode }, true, now)?,
        };
        let since = table.mappings.since.get(&(by.volume, inode)).copied().unwrap_or(number);
        let given = GivenPledges { partition: at, term: table.term, number, given_for: GivenFor::Mapping { since } };
        Some(Reply::Pledged { found: Found::Done, pledges: vec![given] })
    }

    /// True if a session other than `by` has the right of this file.
    pub fn is_mapped_by_another(&self, by: SessionId, file: File) -> bool {
        self.table().is_mapped(by, file)
    }

    /// Recalls the right of a file from all sessions but one.
    pub fn recall_mapping(&self, by: SessionId, file: File, now: Duration, recalls: &mut Recalls) {
        self.table().recall(by, &about(file), now, recalls);
    }

    /// A record is on its way that says that these rights are lost.
    pub fn passing_on(&self, rights: &[PassedOn]) {
        self.table().mappings.passing.extend(rights.iter().map(|right| right.file));
    }

    /// No later leader takes the word of these sessions for their rights. Others may have them.
    pub fn passed_on(&self, rights: &[PassedOn]) {
        let mut table = self.table();
        for PassedOn { session, file, number } in rights {
            table.mappings.passing.remove(file);
            if table.mapped_by(&about(*file)) == Some((*session, *number)) {
                table.drop_of(*session, &about(*file));
            }
        }
    }

    /// The session keeps these rights, which an earlier leader has given it. Counts only until it has said what it has
    /// forgotten: nobody is given a right before.
    pub fn keep_mapped(&self, session: SessionId, volume: VolumeId, term: u64, mapped: &[InodeId]) {
        let mut table = self.table();
        if !table.mappings.unheard.contains(&session) || table.term != term {
            return;
        }
        for inode in mapped {
            // Two sessions cannot have had it. One of them does not know yet that it has lost it.
            if table.mapped_by(&about((volume, *inode))).is_none() {
                let number = table.insert(session, (volume, Pledged::Mapping { inode: *inode }));
                debug_assert!(number > 0, "numbers begin with 1");
                table.mappings.since.insert((volume, *inode), 0);
            }
        }
    }
}

impl Table {
    /// True if a session other than `by` has the right of this file.
    pub(super) fn is_mapped(&self, by: SessionId, file: File) -> bool {
        !self.mappings.since.is_empty() && self.mapped_by(&about(file)).is_some_and(|(session, _)| session != by)
    }

    fn mapped_by(&self, about: &About) -> Option<(SessionId, u64)> {
        self.held.get(about).and_then(|holders| holders.first()).copied()
    }

    fn is_recalled(&self, about: &About) -> bool {
        self.recalled.contains_key(about)
    }

    /// The session that has the right asks for it while it is recalled: it is writing back pages, and is not late.
    fn note_writing_back(&mut self, about: &About, now: Duration) {
        if let Some(recalled) = self.recalled.get_mut(about)
            && now < recalled.begun + WRITING_BACK_MAX
            && now < recalled.since + PATIENCE + EXPIRES_AFTER
        {
            recalled.since = now;
        }
    }
}

pub(super) fn is_mapping(about: &About) -> bool {
    mapped_file(about).is_some()
}

fn mapped_file(about: &About) -> Option<File> {
    match about {
        (volume, Pledged::Mapping { inode }) => Some((*volume, *inode)),
        _ => None,
    }
}

fn about((volume, inode): File) -> About {
    (volume, Pledged::Mapping { inode })
}

#[cfg(test)]
mod tests;
