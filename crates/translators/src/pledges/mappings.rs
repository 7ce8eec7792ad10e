//! Mapping rights of a session, and what the kernel may have of mapped files (`docs/coherence.md`, rules W1 to W11). Pure:
//! the time comes in.
//!
//! Invariant: a page of a file that this mount has open for writing is given to the kernel, and taken from it, only under
//! the right of the file, or while the pages that the kernel has are being dropped for another session. What was given
//! under a right is dropped before the right is returned.

use hekate_proto::*;
use hekate_threads::HashMap;
use std::time::Duration;

/// Time for which a right is kept after the last fault, so that the program gets to use the page.
const HOLD_MIN: Duration = Duration::from_millis(10);
/// How long a fault waits at first until the kernel has dropped pages: it may wait for just this page.
const FAULT_WAIT: Duration = Duration::from_millis(5);
/// The wait doubles with each attempt to drop all pages, up to this.
const FAULT_WAIT_MAX: Duration = Duration::from_millis(320);
/// Time after which a return that was not answered has surely arrived, or never will.
const RETURNED_FOR: Duration = Duration::from_secs(600);
/// Pause after which who waits looks again, also whether its caller has given up.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Right {
    pub partition: PartitionNumber,
    pub term: u64,
    pub number: u64,
}

impl Right {
    /// True if the same leader gave it under this number or an earlier one.
    fn is_until(&self, other: &Right) -> bool {
        (self.partition, self.term) == (other.partition, other.term) && self.number <= other.number
    }
}

/// What a fault, or a page that is written back, does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Go,
    Wait(Duration),
    /// Ask the leader for the right. The caller says when it has done so (`Mappings::asked`).
    Ask,
    /// Another session has had the right since the page was read.
    Refuse,
}

/// What to do after a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterRecall {
    /// The session does not have it, or has a later one: it is returned at once (`Mappings::told_of_return` comes next).
    Return,
    /// A thread is to drop the pages (`Mappings::next_drop`).
    Drop,
    /// It is returned later.
    Nothing,
}

/// What the thread that drops pages does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropping {
    Wait(Duration),
    /// Have the kernel drop the pages.
    Pass,
    /// Return the right.
    Return(Right),
    End,
}

#[derive(Debug, Default)]
struct Mapped {
    /// Open files that may be written.
    writers: u32,
    /// The kernel has no pages that it got before there were writers.
    is_settled: bool,
    right: Option<Right>,
    /// Since when the session has had the right, or the lost one, without a break.
    since: MappedSince,
    /// A right whose lease is over, or that an earlier leader gave. The kernel may have pages of it.
    lost: Option<Right>,
    /// The kernel may have pages that are older than what another session has stored.
    is_stale: bool,
    /// Somebody asks for the right.
    is_asking: bool,
    /// The recall that is to be answered.
    recalled: Option<Right>,
    /// The last right that was returned, and when. The return may still be on its way.
    returned: Option<(Right, Duration)>,
    is_returning: bool,
    /// A thread drops pages.
    is_dropping: bool,
    pass: Option<Pass>,
    /// When a fault was last answered, or the right was given.
    fault_at: Duration,
}

/// The kernel is dropping pages.
#[derive(Debug, Clone, Copy)]
struct Pass {
    /// It was given another page meanwhile.
    is_spoiled: bool,
    /// How long faults wait.
    wait: Duration,
}

impl Mapped {
    fn lose(&mut self) {
        self.lost = self.right.take().or(self.lost);
    }

    /// A right is about to be returned.
    fn note_returning(&mut self, right: Right, now: Duration) {
        (self.returned, self.is_returning) = (Some((right, now)), true);
    }

    /// True if nothing is to be remembered of the file.
    fn is_over(&self) -> bool {
        let is_busy = self.is_asking || self.is_returning || self.is_dropping;
        self.writers == 0 && !is_busy && self.recalled.is_none() && self.returned.is_none()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Mappings {
    files: HashMap<InodeId, Mapped>,
}

impl Mappings {
    /// A file is opened to be written. Returns true if no other open file of it is.
    pub fn opened(&mut self, inode: InodeId) -> bool {
        let file = self.files.entry(inode).or_default();
        file.writers += 1;
        file.writers == 1
    }

    /// The kernel has no pages of the file that it got before it was opened to be written.
    pub fn settled(&mut self, inode: InodeId) {
        self.files.get_mut(&inode).into_iter().for_each(|file| file.is_settled = true);
    }

    /// A file that was opened to be written is closed. Returns the right that is to be returned.
    pub fn closed(&mut self, inode: InodeId, now: Duration) -> Option<Right> {
        let file = self.files.get_mut(&inode)?;
        file.writers = file.writers.saturating_sub(1);
        if file.writers > 0 {
            return None;
        }
        // The kernel has written back all pages before it closes the last file.
        (file.is_settled, file.lost, file.is_stale) = (false, None, false);
        let right = file.right.filter(|_| !file.is_dropping && !file.is_asking);
        if let Some(right) = right {
            file.right = None;
            file.note_returning(right, now);
        }
        self.forget(inode);
        right
    }

    fn forget(&mut self, inode: InodeId) {
        if self.files.get(&inode).is_some_and(Mapped::is_over) {
            self.files.remove(&inode);
        }
    }

    /// True if a file has an open file that may be written.
    pub fn has_writers(&self, inode: InodeId) -> bool {
        self.files.get(&inode).is_some_and(|file| file.writers > 0)
    }

    /// True if the kernel has pages of the file only under the right.
    pub fn is_settled(&self, inode: InodeId) -> bool {
        self.files.get(&inode).is_some_and(|file| file.writers > 0 && file.is_settled)
    }

    /// A page is wanted, by somebody who has `waited` for it so long. `is_valid`: the lease of a right is not over.
    pub fn fault(
        &mut self,
        inode: InodeId,
        waited: Duration,
        now: Duration,
        is_valid: impl Fn(&Right) -> bool,
    ) -> Next {
        let Some(file) = self.files.get_mut(&inode).filter(|file| file.writers > 0) else { return Next::Go };
        if let Some(left) = file.pass.and_then(|pass| pass.wait.checked_sub(waited)).filter(|left| !left.is_zero()) {
            return Next::Wait(left);
        }
        if file.right.is_some_and(|right| !is_valid(&right)) {
            file.lose();
        }
        if file.is_returning || file.is_asking || file.is_stale && file.pass.is_none() {
            return Next::Wait(LOOK_AGAIN);
        }
        if file.right.is_none() {
            file.is_asking = true;
            return Next::Ask;
        }
        file.pass.iter_mut().for_each(|pass| pass.is_spoiled = true);
        if file.recalled.is_none() {
            file.fault_at = now;
        }
        Next::Go
    }

    /// A page is written back.
    pub fn write_back(&mut self, inode: InodeId, is_valid: impl Fn(&Right) -> bool) -> Next {
        let Some(file) = self.files.get_mut(&inode) else { return Next::Refuse };
        if file.right.is_some_and(|right| !is_valid(&right)) {
            file.lose();
        }
        match (file.is_stale, file.right, file.lost) {
            (true, ..) | (_, None, None) => Next::Refuse,
            (_, Some(_), _) => Next::Go,
            _ if file.is_asking || file.is_returning => Next::Wait(LOOK_AGAIN),
            _ => {
                file.is_asking = true;
                Next::Ask
            }
        }
    }

    /// Takes the right from a reply. `since`: the number from which on the session has had it without a break; 0: it had
    /// it from an earlier leader.
    pub fn take(&mut self, inode: InodeId, given: Right, since: u64, now: Duration) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        // Its return is on the way: the leader does not know yet.
        if file.returned.is_some_and(|(returned, _)| given.is_until(&returned)) {
            return;
        }
        let before = file.right.or(file.lost);
        let first = Right { number: since, ..given };
        let is_unbroken = before.is_some_and(|before| since == 0 || first.is_until(&before));
        file.is_stale |= before.is_some() && !is_unbroken;
        if !is_unbroken {
            let number = if since == 0 { given.number } else { since };
            file.since = MappedSince { term: given.term, number };
        }
        if file.right.is_none() {
            file.fault_at = now;
        }
        (file.right, file.lost, file.returned) = (Some(given), None, None);
    }

    /// The leader has answered the session's request for the right. Returns true if a thread is to drop pages.
    pub fn asked(&mut self, inode: InodeId) -> bool {
        let Some(file) = self.files.get_mut(&inode) else { return false };
        file.is_asking = false;
        let is_due = file.recalled.is_some() || file.is_stale || file.writers == 0 && file.right.is_some();
        let begins = is_due && !file.is_dropping;
        file.is_dropping |= begins;
        self.forget(inode);
        begins
    }

    /// The leader recalls a right.
    pub fn recalled(&mut self, inode: InodeId, right: Right, now: Duration) -> AfterRecall {
        let file = self.files.entry(inode).or_default();
        if file.is_returning {
            return AfterRecall::Nothing;
        }
        let has = file.right.is_some() || file.lost.is_some() || file.is_asking || file.is_dropping;
        let has_later = file.right.is_some_and(|own| right.is_until(&own) && own != right);
        if !has || has_later {
            file.note_returning(right, now);
            return AfterRecall::Return;
        }
        if file.recalled.is_none_or(|known| !right.is_until(&known)) {
            file.recalled = Some(right);
        }
        // The reply that brings it may be on its way.
        if file.is_dropping || file.is_asking {
            return AfterRecall::Nothing;
        }
        file.is_dropping = true;
        AfterRecall::Drop
    }

    /// What the thread that drops pages of a file does next. It has seen the kernel drop them, with `has_passed`.
    pub fn next_drop(&mut self, inode: InodeId, has_passed: bool, now: Duration) -> Dropping {
        let Some(file) = self.files.get_mut(&inode) else { return Dropping::End };
        let pass = file.pass.take_if(|_| has_passed);
        if let Some(Pass { is_spoiled, wait }) = pass {
            if is_spoiled {
                file.pass = Some(Pass { is_spoiled: false, wait: (wait * 2).min(FAULT_WAIT_MAX) });
                return Dropping::Pass;
            }
            (file.lost, file.is_stale) = (None, false);
        }
        let is_held = file.right.is_some() && !file.is_stale && file.writers > 0;
        let left = (file.fault_at + HOLD_MIN).saturating_sub(now);
        if file.recalled.is_some() && is_held && !left.is_zero() {
            return Dropping::Wait(left);
        }
        let Some(recalled) = file.recalled else {
            if pass.is_none() && (file.is_stale || file.lost.is_some()) {
                file.pass = Some(Pass { is_spoiled: false, wait: FAULT_WAIT });
                return Dropping::Pass;
            }
            return self.end_drop(inode, now);
        };
        if pass.is_none() {
            file.pass = Some(Pass { is_spoiled: false, wait: FAULT_WAIT });
            return Dropping::Pass;
        }
        file.recalled = None;
        file.right.take_if(|own| own.is_until(&recalled));
        file.note_returning(recalled, now);
        Dropping::Return(recalled)
    }

    fn end_drop(&mut self, inode: InodeId, now: Duration) -> Dropping {
        let Some(file) = self.files.get_mut(&inode) else { return Dropping::End };
        file.is_dropping = false;
        // It was closed meanwhile.
        if let Some(right) = file.right.take_if(|_| file.writers == 0) {
            file.is_dropping = true;
            file.note_returning(right, now);
            return Dropping::Return(right);
        }
        self.forget(inode);
        Dropping::End
    }

    /// The leader was told that a right is returned. `is_known`: it has said so.
    pub fn told_of_return(&mut self, inode: InodeId, is_known: bool) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.is_returning = false;
            if is_known {
                file.returned = None;
            }
        }
        self.forget(inode);
    }

    /// The leases of rights are over, unless `is_valid`. Returns the files whose pages a thread is to drop.
    pub fn lose(&mut self, now: Duration, is_valid: impl Fn(&Right) -> bool) -> Vec<InodeId> {
        let mut dropped = Vec::new();
        self.files.retain(|_, file| {
            file.returned.take_if(|(_, at)| *at + RETURNED_FOR <= now);
            !file.is_over()
        });
        for (inode, file) in &mut self.files {
            if file.right.is_some_and(|right| !is_valid(&right)) {
                file.lose();
            }
            if file.lost.is_some() && !file.is_dropping {
                file.is_dropping = true;
                dropped.push(*inode);
            }
        }
        dropped.sort_unstable();
        dropped
    }

    /// The lease of a partition's rights was over, and begins anew: others may have had them meanwhile.
    pub fn lose_partition(&mut self, partition: PartitionNumber) {
        let is_there = |file: &&mut Mapped| file.right.is_some_and(|right| right.partition == partition);
        self.files.values_mut().filter(is_there).for_each(Mapped::lose);
    }

    /// The rights that the session keeps at a new leader: no other session has had them, as far as it knows.
    pub fn kept(&self) -> Vec<KeptRight> {
        let is_kept = |file: &&Mapped| !file.is_stale && file.writers > 0;
        let right = |file: &Mapped| file.right.or(file.lost);
        let mut kept: Vec<_> = self
            .files
            .iter()
            .filter(|(_, file)| is_kept(file))
            .filter_map(|(inode, file)| {
                right(file).map(|right| KeptRight { partition: right.partition, inode: *inode, since: file.since })
            })
            .collect();
        kept.sort_unstable();
        kept
    }

    /// True if the session has the right, as far as the lease allows.
    pub fn has(&self, inode: InodeId, is_valid: impl Fn(&Right) -> bool) -> bool {
        self.files.get(&inode).and_then(|file| file.right).is_some_and(|right| is_valid(&right))
    }
}

#[cfg(test)]
mod tests;
