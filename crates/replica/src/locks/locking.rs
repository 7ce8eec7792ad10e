//! Lock ops at the leader: which sessions may send them, and how waiting sessions are notified. `locks.rs` is the
//! table.
//!
//! A lock that waits blocks nothing: its op and its retries are answered `Waiting` at once. Once the op has an answer
//! its ticket is in [`Out::ended_waits`], and one more retry returns the answer. Locks are in memory only, so nothing here is
//! settled or synced, and absent members do not matter.
//!
//! Invariant (R19 of `docs/replication.md`): a leader that grants more than an owner holds has the locks of every session
//! that an earlier leader may have granted one. It has led in each view since one after whose beginning the sessions were
//! read, and each of them has restored its locks or ended. Before that moment an earlier leader could grant locks to sessions that
//! began later than the list; after it only this leader grants.

use crate::context::{Context, Out, Token};
use crate::invariants::require;
use crate::leader::Leader;
use crate::locks::{LockSettings, LockTable, Ticket};
use crate::ops::step::{Ask, Stop};
use crate::ops::tree::Tree;
use crate::pledges::Recalls;
use hekate_proto::*;

/// The leader's lock table. It grants nothing before it knows which sessions may hold locks of an earlier leader.
#[derive(Debug, Default)]
pub(crate) struct Locking {
    locks: LockTable,
    knows_sessions: bool,
    /// The last view that this leader has begun.
    epoch: Option<Epoch>,
}

impl Locking {
    pub fn knows_sessions(&self) -> bool {
        self.knows_sessions
    }

    /// Goes on with the locks of this view or of the one before, in which no other replica has led.
    ///
    /// # Errors
    ///
    /// `Bug` if another replica may have led since.
    pub fn begin_view(&mut self, epoch: Epoch) -> Result<()> {
        let before = self.epoch.replace(epoch);
        require(before.is_none_or(|before| before == epoch || before.0 + 1 == epoch.0), "R19", || {
            format!("a leader of view {epoch} has the locks of an earlier view than the one before: {before:?}")
        })
    }

    /// Until all sessions have restored their locks or ended, requests that would not wait are refused.
    pub fn refuse_meanwhile(&mut self) {
        self.locks.refuse_meanwhile();
    }
}

impl Leader {
    /// Sets the sessions that may hold locks and pledges of an earlier leader. Only the first list that was read in this view
    /// counts: sessions that begin later hold none.
    ///
    /// # Errors
    ///
    /// `Bug` if the view has not begun.
    pub fn know_sessions(&mut self, cx: &mut Context, epoch: Epoch, sessions: Vec<SessionId>) -> Result<()> {
        if self.locking.knows_sessions || epoch != cx.at.view.epoch {
            return Ok(());
        }
        require(cx.at.view.opened, "R19", || format!("the sessions were read before view {epoch} began"))?;
        self.locking.knows_sessions = true;
        let mut recalls = Recalls::default();
        self.pledges.know_sessions(&sessions, cx.around.elapsed, &mut recalls);
        recalls.send(cx.at.own.partition, self.pledges.term(), cx.out);
        self.requests.retry_if_any();
        self.locking.locks = LockTable::recovering(LockSettings::default(), sessions);
        Ok(())
    }

    /// True if the session has yet to restore the locks that an earlier leader granted it.
    pub fn awaits(&self, session: SessionId) -> bool {
        self.locking.locks.unrestored().contains(&session)
    }

    /// Sessions that have yet to restore their locks.
    pub fn unrestored_sessions(&self) -> Vec<SessionId> {
        self.locking.locks.unrestored().iter().copied().collect()
    }

    pub fn lock_op(&mut self, cx: &mut Context, token: Token, ask: &Ask, op: &LockOp) {
        let answer = self.lock_answer(cx, ask, op);
        cx.out.answers.push((token, answer));
        self.report_ended_waits(cx.out);
    }

    fn lock_answer(&mut self, cx: &mut Context, ask: &Ask, op: &LockOp) -> Result<Reply> {
        if !self.locking.knows_sessions {
            return Err(Error::Unavailable {
                what: "the partition's new leader does not know the sessions yet".into(),
            });
        }
        if self.awaits(ask.session) && !matches!(op, LockOp::Restore { .. }) {
            cx.out.branches.push("a session has yet to tell its locks");
            return Err(Error::LocksNotRestored);
        }
        let ticket = Ticket { session: ask.session, op_id: ask.op_id };
        let reply = match op {
            LockOp::Restore { locks, done } => self.restore_locks(cx, ticket, ask, (locks, *done))?,
            LockOp::Get { inode, lock } | LockOp::Set { inode, lock, .. } => {
                // An unlock is always allowed.
                if lock.kind != LockKind::Unlock
                    && let Err(error) = check_inode(cx, ask, *inode)
                {
                    // The session ends a wait that it asks about with this answer, and uses its slot again.
                    if error == Error::Stale {
                        self.locking.locks.cancel(ticket);
                    }
                    return Err(error);
                }
                self.locking.locks.execute(ticket, ask.volume, op)
            }
            LockOp::Cancel { .. } | LockOp::Release { .. } => self.locking.locks.execute(ticket, ask.volume, op),
        };
        reply.unwrap_or(Ok(Reply::Waiting { op_id: ask.op_id }))
    }

    /// Restores a session's locks. Locks on inodes that this partition does not have are lost.
    fn restore_locks(
        &mut self,
        cx: &Context,
        ticket: Ticket,
        ask: &Ask,
        (locks, done): (&[(InodeId, Lock)], bool),
    ) -> Result<Option<Result<Reply>>> {
        let (mut here, mut gone) = (Vec::with_capacity(locks.len()), Vec::new());
        for lock in locks {
            match check_inode(cx, ask, lock.0) {
                Ok(()) => here.push(*lock),
                Err(Error::Stale | Error::Invalid { .. }) => gone.push(*lock),
                Err(error) => return Err(error),
            }
        }
        let answer = self.locking.locks.execute(ticket, ask.volume, &LockOp::Restore { locks: here, done });
        Ok(answer.map(|answer| match answer {
            Ok(Reply::Restored { mut lost }) => {
                lost.extend(gone);
                Ok(Reply::Restored { lost })
            }
            other => other,
        }))
    }

    /// Releases all locks of a session that ended.
    pub fn end_locks(&mut self, session: SessionId, out: &mut Out) {
        self.locking.locks.end_session(session);
        self.report_ended_waits(out);
    }

    fn report_ended_waits(&mut self, out: &mut Out) {
        out.ended_waits.extend(self.locking.locks.take_ended_waits().into_iter().map(|wait| wait.ticket));
    }
}

/// Checks that this partition has the inode.
/// Refuses an inode that does not exist, or is another partition's.
///
/// # Errors
///
/// `Stale` if it does not exist, `Invalid` for another partition's, or the brick's error.
pub(crate) fn check_inode(cx: &Context, ask: &Ask, inode: InodeId) -> Result<()> {
    if ask.partition(inode.position()) != cx.at.own.partition {
        return Err(Error::invalid("an inode of another partition"));
    }
    match Tree::new(cx.around.brick, ask, ask.partition(inode.position())).inode(inode) {
        Ok(_) => Ok(()),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Wait | Stop::Leg(_)) => Err(Error::bug("reading an inode would have to wait")),
    }
}

#[cfg(test)]
mod tests;
