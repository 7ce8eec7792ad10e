//! How the leader takes legs of ops that other partitions drive.

use crate::context::Context;
use crate::invariants::require;
use crate::leader::Leader;
use crate::log::append::{Appended, Draft};
use crate::log::settle::Then;
use crate::membership::Membership;
use crate::message::{Address, Message, Outcome};
use crate::ops::step::{Ask, Commit, Stop};
use crate::transactions::legs;
use hekate_proto::*;

impl Leader {
    /// Takes a leg of an op that another partition drives. A leg that meets a hold is answered `Busy` (`legs.rs`).
    ///
    /// # Errors
    ///
    /// As [`Leader::append`]. An error of the leg itself goes to its driver.
    #[allow(clippy::too_many_arguments, reason = "a leg and where it came from")]
    pub fn take_leg(
        &mut self,
        cx: &mut Context,
        from: Address,
        ask: &Ask,
        (intent, number): (IntentId, u16),
        leg: &Leg,
    ) -> Result<()> {
        // The driver sends the leg again.
        if !self.takes_legs() || !self.all_present() {
            return Ok(());
        }
        let busy = Message::LegEnded { intent, number, outcome: Outcome::Busy };
        if self.is_busy(cx.at, ask, leg) {
            return self.refuse_busy(cx, ask, leg, (from, busy));
        }
        let now = self.numbers.time(cx.around.now);
        let elsewhere = !cx.has_same_bricks(from.partition);
        let taken = match legs::take(cx.around.brick, ask, cx.at.own.partition, (intent, number), leg, now) {
            Ok(taken) => taken,
            Err(Stop::Error(error)) => {
                self.when(self.log.last(), false, Then::EndLeg(from, intent, number, Err(error)));
                return Ok(());
            }
            Err(_) => {
                cx.out.branches.push("a leg meets a hold");
                cx.send(from, busy);
                return Ok(());
            }
        };
        if let Some(commit) = &taken.commit {
            let mark = legs::mark_of(ask, cx.at.own.partition, intent, number);
            let is_marked = taken.more || matches!(leg, Leg::DropShards { .. }) || changes_last(commit, &mark);
            require(is_marked, "R8", || format!("leg {number} of {intent:?} is taken without a mark"))?;
            let must = !matches!(
                leg,
                Leg::MakeDirectory { .. } | Leg::FillShard { .. } | Leg::AddLink { .. } | Leg::AddObjectLink { .. }
            );
            let (session, op_id, also, step, closes) = (ask.session, ask.op_id, Vec::new(), None, false);
            let draft = Draft { session, op_id, by: Some(session), commit, also, must, step, closes };
            match self.append(cx, draft)? {
                Appended::Made(_) => {
                    // The driver says once that the mark may be removed, and the message may be lost: it is asked until
                    // it answers.
                    if !matches!(leg, Leg::DropShards { .. }) {
                        self.transactions.doubtful.insert(intent);
                    }
                    self.leg_taken(cx.at, ask, leg);
                }
                Appended::NoRoom => {
                    cx.send(from, busy);
                    return Ok(());
                }
                Appended::Refused(error) => {
                    self.when(self.log.last(), false, Then::EndLeg(from, intent, number, Err(error)));
                    return Ok(());
                }
            }
        }
        if taken.more {
            cx.send(from, busy);
            return Ok(());
        }
        self.when(self.log.last(), elsewhere, Then::EndLeg(from, intent, number, Ok(taken.reply)));
        Ok(())
    }

    /// Answers that the leg has to come again.
    fn refuse_busy(&mut self, cx: &mut Context, ask: &Ask, leg: &Leg, (to, busy): (Address, Message)) -> Result<()> {
        if let Leg::Attributes { inode } = leg {
            self.recall_grants(cx, &[(ask.volume, *inode)]);
            self.record_times(cx, &[(ask.volume, *inode)])?;
        }
        cx.out.branches.push("a leg meets a busy op");
        cx.send(to, busy);
        Ok(())
    }

    fn leg_taken(&mut self, at: &Membership, ask: &Ask, leg: &Leg) {
        let key = |dir: InodeId, name: &Name| ask.hold_key(at.own.partition, dir, name);
        match leg {
            Leg::HoldName { dir, name } => drop(self.transactions.prepared.insert(key(*dir, name))),
            Leg::ReleaseName { dir, name } | Leg::ReplaceName { dir, name, .. } => {
                self.transactions.prepared.remove(&key(*dir, name));
            }
            Leg::UnmakeDirectory { inode } => self.transactions.unborn.retain(|_, unborn| unborn != inode),
            _ => {}
        }
        self.requests.retry_if_any();
    }

    /// Schedules the removal of the marks of an intent that was removed for good, with the next sweep.
    pub fn forget_marks(&mut self, cx: &Context, intent: IntentId) -> Result<()> {
        let first = Key::leg_done(cx.at.ring, cx.at.own.partition.first_position(cx.at.count), intent, 0);
        let last = Key::leg_done(cx.at.ring, cx.at.own.partition.first_position(cx.at.count), intent, u16::MAX);
        let found = cx.around.brick.scan(&first, &last.successor(), usize::from(u16::MAX))?;
        self.transactions.forgotten.extend(found.into_iter().map(|(key, _)| key));
        self.transactions.doubtful.remove(&intent);
        if self.transactions.unborn.remove(&intent).is_some() {
            self.requests.retry();
        }
        Ok(())
    }
}

/// True if the last change of a commit puts or deletes the key.
fn changes_last(commit: &Commit, key: &Key) -> bool {
    matches!(commit.changes.last(), Some(Change::Put { key: last, .. } | Change::Delete { key: last }) if last == key)
}
