//! Records that a member or the leader lacks are read from the journal of a replica that has them. A member that cannot
//! be sent them becomes a learner.

use crate::context::Context;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{Fresh, Message};
use crate::view_start::level::Phase;
use bytes::Bytes;
use hekate_brick::{Brick, LogPosition, Since, block_checksum};
use hekate_proto::*;

impl Leader {
    /// Sends a member the records after `after`.
    pub fn feed(&mut self, cx: &mut Context, brick: BrickId, after: Sequence) -> Result<()> {
        if let Some(member) = self.members.get_mut(&brick) {
            member.held = after;
        }
        if after >= self.log.last() {
            return Ok(());
        }
        let why = match send_copies(cx, brick, after)? {
            Copies::Sent => {
                cx.out.branches.push("levelling: a member is fed");
                return Ok(());
            }
            Copies::GivenBack => lacks_released_records(cx.at, brick, after).to_string(),
            Copies::Hidden(place) => format!(
                "partition {} of ring {}: brick {} lacks records after {after}, and {place} of brick {}, which has \
                 them, is damaged. The former becomes a learner and is compared",
                cx.at.own.partition,
                cx.at.ring,
                brick.text(),
                cx.at.own.brick.text()
            ),
        };
        if let Some(member) = self.members.get_mut(&brick).filter(|member| !member.unfed) {
            member.unfed = true;
            cx.out.notes.push(why);
        }
        Ok(())
    }

    /// Members that cannot append records any more.
    pub fn failed_members(&self) -> Vec<BrickId> {
        self.members.iter().filter(|(_, member)| member.failed).map(|(brick, _)| *brick).collect()
    }

    /// Members that are to be learners, since the leader cannot send them the records that they lack.
    pub fn unfed_members(&self) -> Vec<BrickId> {
        self.members.iter().filter(|(_, member)| member.unfed).map(|(brick, _)| *brick).collect()
    }

    pub fn fetches_from(&self, brick: BrickId) -> bool {
        matches!(self.start.phase, Phase::Fetching { from, .. } if from == brick)
    }

    /// Asks a member for the records that this leader lacks, the member with the longest log first. If no member can
    /// send them, the member with the longest log is to lead.
    pub fn fetch(&mut self, cx: &mut Context, own: LogPosition, best: BrickId) {
        let unreadable = match &mut self.start.phase {
            Phase::Fetching { unreadable, .. } => std::mem::take(unreadable),
            _ => Vec::new(),
        };
        let more = self.members.iter().filter_map(|(brick, member)| Some((member.position?, *brick)));
        let from = more.filter(|(position, brick)| *position > own && !unreadable.contains(brick)).max();
        if let Some((_, from)) = from {
            cx.out.branches.push("levelling: the leader fetches");
            self.start.phase = Phase::Fetching { from, unreadable };
            return cx.send_member(from, Message::Fetch { after: own.sequence });
        }
        cx.out.branches.push("levelling: another one is to lead");
        cx.out.notes.push(format!(
            "partition {} of ring {}: brick {}, which leads, lacks records after {}, and the journal of brick {}, \
             which has them, is damaged there. The latter is to lead",
            cx.at.own.partition,
            cx.at.ring,
            cx.at.own.brick.text(),
            own.sequence,
            best.text()
        ));
        self.start.phase = Phase::Yielding { to: best };
    }
}

/// The result of reading records that another replica lacks from this brick's journal.
enum Copies {
    Sent,
    /// The journal has discarded them: all members had them on stable storage.
    GivenBack,
    /// Damage at this place (file and offset) hides them.
    Hidden(String),
}

/// Sends the records after `after`, with those of their fresh blocks whose checksums still match. A block that was
/// overwritten since comes with a later record. A block that a power cut took is reconciled afterwards.
fn send_copies(cx: &mut Context, to: BrickId, after: Sequence) -> Result<Copies> {
    let records = match cx.around.brick.records_since(cx.at.ring, cx.at.own.partition, after)? {
        Since::All(records) => records,
        Since::GivenBack => {
            cx.out.branches.push("levelling: a member has lost records");
            return Ok(Copies::GivenBack);
        }
        Since::Hidden(place) => {
            cx.out.branches.push("levelling: a journal that has rotted hides records");
            return Ok(Copies::Hidden(place));
        }
    };
    for entry in records {
        let fresh = fresh_of(cx.around.brick, &entry.record)?;
        cx.send_member(to, Message::Append { entry, fresh, copied: true });
    }
    Ok(Copies::Sent)
}

/// Answers a leader that lacks the records after `after`.
pub(crate) fn answer_fetch(cx: &mut Context, leader: BrickId, after: Sequence) -> Result<()> {
    let end = match send_copies(cx, leader, after)? {
        Copies::Sent => Message::FetchEnd { after },
        Copies::GivenBack => {
            Message::FetchEnd { after: cx.around.brick.position(cx.at.ring, cx.at.own.partition).sequence }
        }
        Copies::Hidden(place) => {
            cx.out.notes.push(format!(
                "partition {} of ring {}: brick {}, which leads, lacks records after {after}, and {place} of brick {}, \
                 which has them, is damaged",
                cx.at.own.partition,
                cx.at.ring,
                leader.text(),
                cx.at.own.brick.text()
            ));
            Message::Unreadable
        }
    };
    cx.send_member(leader, end);
    Ok(())
}

/// The error for a brick that lacks records which other journals have discarded. Unless it has just become a member
/// again, it has lost records that it had acknowledged as being on stable storage.
pub(crate) fn lacks_released_records(at: &Membership, brick: BrickId, after: Sequence) -> Error {
    let (number, ring, brick) = (at.own.partition, at.ring, brick.text());
    Error::Damaged {
        what: format!(
            "brick {brick} lacks records of partition {number} of ring {ring} after {after} that were on stable storage \
             of all members, and no other journal has them any more. Unless it had just been healed, check whether its \
             disk is damaged or an old copy"
        ),
    }
}

/// The fresh blocks of a record whose checksums still match, as runs of adjacent blocks.
pub(crate) fn fresh_of(brick: &Brick, record: &Record) -> Result<Vec<Fresh>> {
    let mut found = Vec::new();
    for change in &record.changes {
        let Change::FreshBlocks { shard, run, .. } = change else { continue };
        let bytes = Bytes::from(brick.readable_home(*shard, run.first, run.checksums.len())?);
        let is_right = |index: usize, sum: &u32| {
            let block = bytes.get(index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES).unwrap_or_default();
            block_checksum(*shard, run.first + index as u32, block) == *sum
        };
        let all: Vec<bool> = run.checksums.iter().enumerate().map(|(index, sum)| is_right(index, sum)).collect();
        let mut at = 0;
        for same in all.chunk_by(|one, next| one == next) {
            let end = at + same.len();
            if same.first() == Some(&true) {
                let bytes = bytes.slice(at * BLOCK_BYTES..end * BLOCK_BYTES);
                found.push(Fresh { shard: *shard, first_block: run.first + at as u32, bytes });
            }
            at = end;
        }
    }
    Ok(found)
}
