//! Records that a member lacks, or the leader, from the journal of one that has them; and what becomes of who cannot be given them.

use crate::context::Context;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::{Fresh, Message};
use crate::view_start::level::Phase;
use bytes::Bytes;
use hekate_brick::{Brick, LogPosition, Since, block_checksum};
use hekate_proto::*;

impl Leader {
    /// A member lacks what comes after this.
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
            Copies::GivenBack => has_lost_records(cx.at, brick, after).to_string(),
            Copies::Hidden(place) => format!(
                "partition {} of ring {}: brick {} lacks records after {after}, and {place} of brick {}, which has them, is damaged: \
                 it is compared instead",
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

    /// Members that take no records any more.
    pub fn failed_members(&self) -> Vec<BrickId> {
        self.members.iter().filter(|(_, member)| member.failed).map(|(brick, _)| *brick).collect()
    }

    /// Members that are to learn from this leader, who cannot give them the records that they lack.
    pub fn unfed_members(&self) -> Vec<BrickId> {
        self.members.iter().filter(|(_, member)| member.unfed).map(|(brick, _)| *brick).collect()
    }

    pub fn fetches_from(&self, brick: BrickId) -> bool {
        matches!(self.start.phase, Phase::Fetching { from, .. } if from == brick)
    }

    /// Asks who has more than this leader for that, the one with most first; if none of them can give it, the best one is to lead.
    pub fn fetch(&mut self, cx: &mut Context, own: LogPosition, best: BrickId) {
        let mute = match &mut self.start.phase {
            Phase::Fetching { mute, .. } => std::mem::take(mute),
            _ => Vec::new(),
        };
        let more = self.members.iter().filter_map(|(brick, member)| Some((member.position?, *brick)));
        let from = more.filter(|(position, brick)| *position > own && !mute.contains(brick)).max();
        if let Some((_, from)) = from {
            cx.out.branches.push("levelling: the leader fetches");
            self.start.phase = Phase::Fetching { from, mute };
            return cx.send_member(from, Message::Fetch { after: own.sequence });
        }
        cx.out.branches.push("levelling: another one is to lead");
        cx.out.notes.push(format!(
            "partition {} of ring {}: brick {} lacks records after {}, and where brick {} has them its journal is damaged: that is to lead",
            cx.at.own.partition,
            cx.at.ring,
            cx.at.own.brick.text(),
            own.sequence,
            best.text()
        ));
        self.start.phase = Phase::Yielding { to: best };
    }
}

/// What became of records that another one lacks.
enum Copies {
    Sent,
    /// The journal no longer has them: nobody gives back what another lacks.
    GivenBack,
    /// Something here, file and offset, is damaged, and hides them.
    Hidden(String),
}

/// Sends the records after one, with the fresh blocks that are still as they say: what was written over them since comes with a later
/// record, what a power cut took is settled afterwards.
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

/// A leader lacks what comes after this.
pub(crate) fn answer_fetch(cx: &mut Context, leader: BrickId, after: Sequence) -> Result<()> {
    let end = match send_copies(cx, leader, after)? {
        Copies::Sent => Message::FetchEnd { after },
        Copies::GivenBack => {
            Message::FetchEnd { after: cx.around.brick.position(cx.at.ring, cx.at.own.partition).sequence }
        }
        Copies::Hidden(place) => {
            cx.out.notes.push(format!(
                "partition {} of ring {}: brick {}, which leads, lacks records after {after}, and {place} of brick {}, which has them, is \
                 damaged",
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

/// A brick that lacks what another no longer has in its journal has lost what it had told to be on stable storage.
pub(crate) fn has_lost_records(at: &Membership, brick: BrickId, after: Sequence) -> Error {
    let (number, ring, brick) = (at.own.partition, at.ring, brick.text());
    Error::Damaged {
        what: format!(
            "brick {brick} has lost records of partition {number} of ring {ring} after {after} that were on stable storage, and others no \
             longer have them in their journals; is its disk damaged, or an old copy?"
        ),
    }
}

/// What of a record's fresh blocks is still as it says, in runs.
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
