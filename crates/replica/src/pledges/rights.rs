//! Mapping rights at the leader: who asks for one, what waits for one, and what becomes of one that its session does not
//! return. Rules W1, W10 and W11 of `docs/coherence.md`.
//!
//! A right that has expired is somebody else's only once a record says that the session has lost it, on stable storage
//! of all members: the next leader asks sessions which rights they have, and a session that was cut off does not know.

use super::{PER_SESSION_MAX, Recalls};
use crate::context::{Context, Token};
use crate::leader::Leader;
use crate::locks::locking::check_inode;
use crate::log::append::Appended;
use crate::log::settle::Then;
use crate::ops::step::{Ask, Commit};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// Rights that one record is about. The next tick has others.
const RECORDED_AT_ONCE: usize = 256;

/// A mapping right that a session has lost to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassedOn {
    pub session: SessionId,
    pub file: (VolumeId, InodeId),
    /// The last number that the session had it with.
    pub number: u64,
}

impl Leader {
    /// Answers a session that asks for the mapping right of a file. Returns false if it has to wait.
    pub fn map(&mut self, cx: &mut Context, token: Token, ask: &Ask, inode: InodeId) -> bool {
        if let Err(error) = check_inode(cx, ask, inode) {
            cx.out.answers.push((token, Err(error)));
            return true;
        }
        if !ask.pledge {
            cx.out.answers.push((token, Ok(Reply::Done)));
            return true;
        }
        let mut recalls = Recalls::default();
        let reply = self.pledges.map(cx.at.own.partition, ask, inode, cx.around.elapsed, &mut recalls);
        recalls.send(cx.at.own.partition, self.pledges.term(), cx.out);
        if reply.is_none() {
            cx.out.branches.push("a mapping right is recalled for another session");
        }
        let is_answered = reply.is_some();
        cx.out.answers.extend(reply.map(|reply| (token, Ok(reply))));
        is_answered
    }

    /// True if the op changes bytes that another session has mapped: it waits until that has written back and dropped its
    /// pages. Before it holds anything, since the other's writes must not wait for it.
    pub fn waits_for_mapping(&self, cx: &mut Context, ask: &Ask, op: &Op) -> bool {
        let Some(file) = changed_file(ask.volume, op) else { return false };
        if !self.pledges.is_mapped_by_another(ask.session, file) {
            return false;
        }
        let mut recalls = Recalls::default();
        self.pledges.recall_mapping(ask.session, file, cx.around.elapsed, &mut recalls);
        recalls.send(cx.at.own.partition, self.pledges.term(), cx.out);
        cx.out.branches.push("a change waits for a mapping right");
        true
    }

    /// Records that sessions have lost these rights.
    pub fn pass_rights_on(&mut self, cx: &mut Context, mut rights: Vec<PassedOn>) -> Result<()> {
        rights.truncate(RECORDED_AT_ONCE);
        if rights.is_empty() || !self.serves() || !self.all_present() {
            return Ok(());
        }
        let (term, mut commit) = (self.pledges.term(), Commit::default());
        for PassedOn { session, file, number } in &rights {
            commit.put(passed_on_key(cx, *session, *file), &MappedSince { term, number: *number });
        }
        if let Appended::Made(sequence) = self.append_own(cx, commit)? {
            self.pledges.passing_on(&rights);
            self.when(sequence, true, Then::PassedOn(rights));
        }
        Ok(())
    }

    pub fn passed_on(&mut self, cx: &mut Context, rights: &[PassedOn]) {
        self.pledges.passed_on(rights);
        self.requests.retry_if_any();
        cx.out.branches.push("a mapping right is passed on without its return");
        let (number, ring) = (cx.at.own.partition, cx.at.ring);
        let lost = rights.iter().map(|PassedOn { session, file: (volume, inode), .. }| {
            format!(
                "partition {number} of ring {ring}: session {session} of volume {volume} has lost its mapping right of \
                 {inode:?}, which it has not returned: others may have it"
            )
        });
        cx.out.notes.extend(lost);
    }

    /// The session keeps rights that an earlier leader has given it, but for those that it has lost since.
    pub fn keep_mapped(
        &self,
        cx: &mut Context,
        (session, volume): (SessionId, VolumeId),
        term: u64,
        mapped: &[KeptRight],
    ) -> Result<()> {
        let mut kept = Vec::new();
        for KeptRight { inode, since, .. } in mapped.iter().take(PER_SESSION_MAX) {
            let lost = cx.around.brick.get(&passed_on_key(cx, session, (volume, *inode)))?;
            let lost = lost.map(MappedSince::from_bytes).transpose().map_err(Error::from)?;
            match lost.is_some_and(|lost| *since <= lost) && !is_planted(Bug::PassedRightKept) {
                true => cx.out.branches.push("a session names a mapping right that it has lost"),
                false => kept.push(*inode),
            }
        }
        self.pledges.keep_mapped(session, volume, term, &kept);
        Ok(())
    }
}

fn passed_on_key(cx: &Context, session: SessionId, (volume, inode): (VolumeId, InodeId)) -> Key {
    Key::passed_on(cx.at.ring, cx.at.own.partition.first_position(cx.at.count), session, volume, inode)
}

/// The file whose bytes an op changes, or that it is told about: pages of it that another session has mapped are old then.
fn changed_file(volume: VolumeId, op: &Op) -> Option<(VolumeId, InodeId)> {
    let inode = match op {
        Op::Inode { op: InodeOp::SetAttr { inode, changes } } if changes.size.is_some() => inode,
        Op::Data {
            op:
                DataOp::Write { inode, .. }
                | DataOp::Append { inode, .. }
                | DataOp::Allocate { inode, .. }
                | DataOp::Wrote { inode, .. },
        } => inode,
        _ => return None,
    };
    Some((volume, *inode))
}
