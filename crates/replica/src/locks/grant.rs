//! Changes of the table: held locks, releases, and grants of what has become free.

use super::{EndedWait, LockTable, LockedFile, Ticket};
use hekate_proto::*;
use std::collections::BTreeSet;

impl LockTable {
    pub(super) fn conflict(&self, file: &LockedFile, wanted: &HeldLock) -> Option<HeldLock> {
        self.files.get(file)?.held.iter().find(|held| held.conflicts(wanted)).copied()
    }

    pub(super) fn waits_of(&self, session: SessionId) -> impl Iterator<Item = (Ticket, LockedFile)> {
        let ticket = |op_id| Ticket { session, op_id };
        let range = ticket(OpId(0))..=ticket(OpId(u64::MAX));
        self.waiting_at.range(range).map(|(ticket, file)| (*ticket, *file))
    }

    /// Applies a lock that conflicts with no held lock, or an unlock.
    ///
    /// # Errors
    ///
    /// `TooManyLocks` if a limit is exceeded. A change that does not add locks is never refused.
    pub(super) fn hold(&mut self, file: LockedFile, change: &HeldLock) -> Result<()> {
        let locks = self.files.entry(file).or_default();
        assert!(
            change.lock.kind == LockKind::Unlock || !locks.held.iter().any(|held| held.conflicts(change)),
            "a lock that conflicts with one that is held: {change:?}"
        );
        let after = locks_with(&locks.held, change);
        let of_session = self.held_by_session.entry(change.session).or_default();
        let of_session_after = (*of_session + after.len()).saturating_sub(locks.held.len());
        let grows = after.len() > locks.held.len();
        let refusal = if grows && after.len() > self.settings.locks_per_file_max {
            Some(format!("a file may have {}; unlock some", self.settings.locks_per_file_max))
        } else if grows && of_session_after > self.settings.locks_per_session_max {
            Some(format!("a mount may hold {} in a partition; unlock some", self.settings.locks_per_session_max))
        } else {
            locks.held = after;
            *of_session = of_session_after;
            None
        };
        self.tidy(&file, change.session);
        refusal.map_or(Ok(()), |what| Err(Error::TooManyLocks { what }))
    }

    pub(super) fn drop_held(&mut self, file: &LockedFile, goes: impl Fn(&HeldLock) -> bool) {
        let Some(locks) = self.files.get_mut(file) else { return };
        let gone: Vec<SessionId> = locks.held.iter().filter(|held| goes(held)).map(|held| held.session).collect();
        locks.held.retain(|held| !goes(held));
        for session in gone {
            if let Some(count) = self.held_by_session.get_mut(&session) {
                *count -= 1;
            }
            self.tidy(file, session);
        }
    }

    /// Removes the entries of files and sessions without locks.
    fn tidy(&mut self, file: &LockedFile, session: SessionId) {
        if self.files.get(file).is_some_and(|locks| locks.held.is_empty() && locks.waiting.is_empty()) {
            self.files.remove(file);
        }
        if self.held_by_session.get(&session) == Some(&0) {
            self.held_by_session.remove(&session);
        }
    }

    /// Removes a wait. Returns true if there was one.
    pub(super) fn stop_waiting(&mut self, ticket: Ticket) -> bool {
        let Some(file) = self.waiting_at.remove(&ticket) else { return false };
        if let Some(locks) = self.files.get_mut(&file) {
            locks.waiting.retain(|wait| wait.ticket != ticket);
        }
        self.tidy(&file, ticket.session);
        true
    }

    pub(super) fn end_wait(&mut self, ticket: Ticket, answer: Result<Reply>) {
        self.answers.keep(ticket, answer.clone());
        self.ended_waits.push(EndedWait { ticket, answer });
    }

    /// Answers every wait that can be answered now.
    pub(super) fn settle(&mut self) {
        if self.is_recovering() {
            return;
        }
        while let Some((file, place, answer)) = self.next_answer() {
            let Some(wait) = self.files.get(&file).map(|locks| locks.waiting[place]) else { return };
            self.stop_waiting(wait.ticket);
            let answer = answer.and_then(|()| self.hold(file, &wait.lock));
            if answer.is_ok() {
                self.note_unseen(wait.ticket, file, wait.lock);
            }
            self.end_wait(wait.ticket, answer.map(|()| Reply::Done));
        }
    }

    /// Notes a grant that replaces what earlier unseen ones gave its owner: taken again, those would conflict with
    /// what others were granted since.
    fn note_unseen(&mut self, ticket: Ticket, file: LockedFile, lock: HeldLock) {
        let replaced = HeldLock { lock: Lock { kind: LockKind::Unlock, ..lock.lock }, ..lock };
        for (of, locks) in self.unseen.values_mut() {
            if *of == file {
                *locks = locks_with(locks, &replaced);
            }
        }
        self.unseen.insert(ticket, (file, vec![lock]));
    }

    /// The next wait to answer. A grant to an owner that also waits elsewhere can close a cycle, so deadlocks are
    /// detected here too.
    fn next_answer(&self) -> Option<(LockedFile, usize, Result<()>)> {
        let files: BTreeSet<LockedFile> = self.waiting_at.values().copied().collect();
        for file in files {
            for (place, wait) in self.files.get(&file)?.waiting.iter().enumerate() {
                if self.is_free(&file, place) {
                    return Some((file, place, Ok(())));
                }
                if self.is_deadlock(&file, &wait.lock) {
                    return Some((file, place, Err(Error::Deadlock)));
                }
            }
        }
        None
    }
}
