//! Mapping rights, as doors use them: faults wait for the right, and a recall has the door drop the pages
//! ([`super::mappings`]).

use super::cache::Cache;
use super::mappings::{AfterRecall, Dropping, Next, Right};
use super::{Pledges, Pledging, Returned};
use crate::replicate::{Recipient, Replicate};
use hekate_graph::Context;
use hekate_proto::*;
use hekate_threads::{MutexGuard, boot_time, elapsed, now};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a leader that gives no pledges is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(20);
/// Time after which a leader that waits for pages to be written back is told that they still are.
pub(super) const WRITING_BACK: Duration = Duration::from_millis(500);

impl Cache {
    fn with_leases<T>(
        &mut self,
        now: Duration,
        use_them: impl FnOnce(&mut super::mappings::Mappings, &dyn Fn(&Right) -> bool) -> T,
    ) -> T {
        let mut mappings = std::mem::take(&mut self.mappings);
        let used = use_them(&mut mappings, &|right| self.is_leased(right.partition, right.term, now));
        self.mappings = mappings;
        used
    }

    /// Finds rights whose leases are over. Returns the files whose pages a thread is to drop.
    fn lose_rights(&mut self, now: Duration) -> Vec<InodeId> {
        self.with_leases(now, |mappings, is_valid| mappings.lose(now, is_valid))
    }

    /// Takes the right in the reply to a request that was sent at the moment `asked`.
    pub(super) fn take_mapping(&mut self, asked: u64, inode: InodeId, given: &GivenPledges, now: Duration) {
        let GivenPledges { partition, term, number, ref given_for } = *given;
        let GivenFor::Mapping { since } = *given_for else { return };
        if self.is_current(asked, given, now) {
            self.mappings.take(inode, Right { partition, term, number }, since, now);
        }
    }
}

impl Pledges {
    /// A file is opened to be written. Returns true if the door has to have the kernel drop pages of it, and to call
    /// `pages_are_dropped` then: others may map them for reading.
    pub fn opened_to_write(&self, inode: InodeId) -> bool {
        self.is_used && self.cache.lock().mappings.opened(inode)
    }

    /// See `opened_to_write`.
    pub fn pages_are_dropped(&self, inode: InodeId) {
        self.cache.lock().mappings.settled(inode);
    }

    /// True if this mount has the file open to be written: then all pages that the kernel gets of it need the right.
    pub fn has_writers(&self, inode: InodeId) -> bool {
        self.is_used && self.cache.lock().mappings.has_writers(inode)
    }

    /// True if the pages that the kernel has of the file are dropped before the right is returned, so that a recall of
    /// bytes need not wait for that. It must not: a fault of the file may wait for the session that changes them.
    pub fn are_pages_by_right(&self, inode: InodeId) -> bool {
        self.is_used && self.cache.lock().mappings.is_settled(inode)
    }

    /// A file that was opened to be written is closed.
    pub(crate) fn closed_to_write(&self, replicate: &Replicate, inode: InodeId) {
        if self.is_used
            && let Some(right) = { self.cache.lock().mappings.closed(inode, boot_time()) }
        {
            self.return_right(replicate, inode, right);
        }
    }

    /// Waits until the kernel may have pages of the file.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the caller gave up; `Stale` if the file is gone.
    pub(crate) fn fault(self: &Arc<Self>, replicate: &Arc<Replicate>, context: &Context, inode: InodeId) -> Result<()> {
        let (begun, mut cache) = (now(), self.cache.lock());
        loop {
            let at = boot_time();
            let next = cache.with_leases(at, |mappings, is_valid| mappings.fault(inode, elapsed(begun), at, is_valid));
            if next == Next::Go {
                return Ok(());
            }
            cache = self.wait_or_ask(replicate, context, inode, next, cache)?;
        }
    }

    /// Waits until a page that the kernel writes back may be written. False if it must not: another session has had the
    /// right since the kernel got the page.
    ///
    /// # Errors
    ///
    /// As `fault`.
    pub(crate) fn may_write_back(
        self: &Arc<Self>,
        replicate: &Arc<Replicate>,
        context: &Context,
        inode: InodeId,
    ) -> Result<bool> {
        let mut cache = self.cache.lock();
        loop {
            let next = cache.with_leases(boot_time(), |mappings, is_valid| mappings.write_back(inode, is_valid));
            if matches!(next, Next::Go | Next::Refuse) {
                return Ok(next == Next::Go);
            }
            cache = self.wait_or_ask(replicate, context, inode, next, cache)?;
        }
    }

    /// Waits, or asks for the right.
    fn wait_or_ask<'a>(
        self: &'a Arc<Self>,
        replicate: &Arc<Replicate>,
        context: &Context,
        inode: InodeId,
        next: Next,
        mut cache: MutexGuard<'a, Cache>,
    ) -> Result<MutexGuard<'a, Cache>> {
        match next {
            Next::Go | Next::Refuse => return Ok(cache),
            Next::Wait(limit) => _ = self.changed.wait_for(&mut cache, limit),
            Next::Ask => {
                drop(cache);
                self.ask_for_right(replicate, context, inode)?;
                cache = self.cache.lock();
            }
        }
        if context.interrupted() {
            return Err(Error::Unavailable {
                what: "the caller gave up while another mount had the mapping right".into(),
            });
        }
        Ok(cache)
    }

    fn ask_for_right(self: &Arc<Self>, replicate: &Arc<Replicate>, context: &Context, inode: InodeId) -> Result<()> {
        let partition = replicate.map().partition_of(inode.position());
        let reply = replicate.send(context, Recipient::Leader(partition), Op::Inode { op: InodeOp::Map { inode } });
        let (begins, has) = {
            let mut cache = self.cache.lock();
            let begins = cache.mappings.asked(inode);
            (begins, cache.with_leases(boot_time(), |mappings, is_valid| mappings.has(inode, is_valid)))
        };
        self.changed.notify_all();
        if begins {
            self.start_dropping(replicate, inode);
        }
        reply?;
        if !has {
            // The leader is new, or has not yet taken what was returned.
            hekate_threads::sleep(ASK_PAUSE);
        }
        Ok(())
    }

    /// Takes mapping rights out of what is recalled. Those that the session does not have are returned at once.
    pub(super) fn recall_rights(
        self: &Arc<Self>,
        replicate: &Arc<Replicate>,
        (partition, term): (PartitionNumber, u64),
        pledges: &mut Vec<Pledge>,
    ) {
        pledges.retain(|Pledge { about, number }| {
            let Pledged::Mapping { inode } = *about else { return true };
            let right = Right { partition, term, number: *number };
            let after = { self.cache.lock().mappings.recalled(inode, right, boot_time()) };
            match after {
                AfterRecall::Return => self.return_right(replicate, inode, right),
                AfterRecall::Drop => self.start_dropping(replicate, inode),
                AfterRecall::Nothing => {}
            }
            false
        });
    }

    /// Has pages dropped whose right's lease is over.
    pub(super) fn drop_lost(self: &Arc<Self>, replicate: &Arc<Replicate>) {
        let lost = { self.cache.lock().lose_rights(boot_time()) };
        lost.into_iter().for_each(|inode| self.start_dropping(replicate, inode));
    }

    /// Starts a thread that has the kernel drop the pages of a file. The file is marked so.
    fn start_dropping(self: &Arc<Self>, replicate: &Arc<Replicate>, inode: InodeId) {
        let (pledges, own) = (self.clone(), replicate.clone());
        if let Err(error) = hekate_threads::spawn("hekate-drop", move || pledges.drop_pages(&own, inode)) {
            log::warn!("cannot start a thread that drops pages, so this one does: {error}");
            self.drop_pages(replicate, inode);
        }
    }

    fn drop_pages(&self, replicate: &Replicate, inode: InodeId) {
        let mut has_passed = false;
        loop {
            let next = { self.cache.lock().mappings.next_drop(inode, has_passed, boot_time()) };
            self.changed.notify_all();
            has_passed = next == Dropping::Pass;
            match next {
                Dropping::Wait(left) => hekate_threads::sleep(left),
                Dropping::Pass => {
                    if let Some(watcher) = self.watcher.get() {
                        watcher.drop_mapped(inode, &|| self.tell_of_writing_back(replicate, inode));
                    }
                }
                Dropping::Return(right) => self.return_right(replicate, inode, right),
                Dropping::End => return,
            }
        }
    }

    /// The leader learns that pages are still being written back: who asks for a right that it has is not late.
    fn tell_of_writing_back(&self, replicate: &Replicate, inode: InodeId) {
        let context = Context { deadline: Some(now() + WRITING_BACK), ..Context::default() };
        let partition = replicate.map().partition_of(inode.position());
        // If the leader cannot be reached the lease ends, and pages that are written back then ask for the right.
        let _ = replicate.send(&context, Recipient::Leader(partition), Op::Inode { op: InodeOp::Map { inode } });
    }

    fn return_right(&self, replicate: &Replicate, inode: InodeId, right: Right) {
        let Right { partition, term, number } = right;
        let pledges = vec![Pledge { about: Pledged::Mapping { inode }, number }];
        let is_known = replicate.server_of(Recipient::Leader(partition)).is_ok_and(|server| {
            self.give_back(replicate, server, Returned { partition, term, pledges, untold: Vec::new() })
        });
        self.cache.lock().mappings.told_of_return(inode, is_known);
        self.changed.notify_all();
    }
}

impl Pledging {
    /// A file is closed that was opened to be written.
    pub fn closed_to_write(&self, inode: InodeId) {
        self.pledges.closed_to_write(&self.replicate, inode);
    }

    /// Waits until the kernel may have pages of a file that is open to be written.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the caller gave up; `Stale` if the file is gone.
    pub fn fault(&self, context: &Context, inode: InodeId) -> Result<()> {
        self.pledges.fault(&self.replicate, context, inode)
    }

    /// Waits until a page that the kernel writes back may be written. False if it must not: another session has had the
    /// right since the kernel got the page.
    ///
    /// # Errors
    ///
    /// As `fault`.
    pub fn may_write_back(&self, context: &Context, inode: InodeId) -> Result<bool> {
        self.pledges.may_write_back(&self.replicate, context, inode)
    }
}
