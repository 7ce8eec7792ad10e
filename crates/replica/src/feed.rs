//! Records that a member lacks, or the leader, from the journal of one that has them; and what becomes of who cannot be given them.

use crate::leader::Leader;
use crate::level::Phase;
use crate::message::{Fresh, Message};
use crate::partition::{Around, Out, Place};
use bytes::Bytes;
use hekate_brick::{Brick, Since, block_checksum};
use hekate_proto::*;

impl Leader {
    /// A member lacks what comes after this.
    pub fn feed(&mut self, at: &Place, brick: BrickId, after: Sequence, around: &Around, out: &mut Out) -> Result<()> {
        if let Some(member) = self.members.get_mut(&brick) {
            member.held = after;
        }
        if after >= self.last {
            return Ok(());
        }
        let Some(why) = send_copies(at, brick, after, around, out)? else {
            out.branches.push("levelling: a member is fed");
            return Ok(());
        };
        if let Some(member) = self.members.get_mut(&brick).filter(|member| !member.unfed) {
            member.unfed = true;
            out.notes.push(why);
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

    /// All records came that this leader lacked, or the other one cannot give them, and is to lead instead.
    pub fn fetch_ended(
        &mut self,
        at: &Place,
        from: BrickId,
        after: Sequence,
        around: &Around,
        out: &mut Out,
    ) -> Result<()> {
        let own = around.brick.position(at.ring, at.own.partition).sequence;
        if after <= own {
            return self.decide(at, around, out);
        }
        out.branches.push("levelling: another one is to lead");
        out.notes.push(format!(
            "partition {} of ring {}: brick {} lacks records after {own}, and brick {} cannot give them from its journal: that is to lead",
            at.own.partition,
            at.ring,
            at.own.brick.text(),
            from.text()
        ));
        self.phase = Phase::Yielding { to: from };
        Ok(())
    }
}

/// Sends the records after one, with the fresh blocks that are still as they say: what was written over them since comes with a later
/// record, what a power cut took is settled afterwards. -> why it cannot.
pub(crate) fn send_copies(
    at: &Place,
    to: BrickId,
    after: Sequence,
    around: &Around,
    out: &mut Out,
) -> Result<Option<String>> {
    let (number, ring, brick, own) = (at.own.partition, at.ring, to.text(), at.own.brick.text());
    let records = match around.brick.records_since(ring, number, after)? {
        Since::All(records) => records,
        Since::GivenBack => {
            // Nobody gives back what another lacks.
            out.branches.push("levelling: a member has lost records");
            return Ok(Some(format!(
                "partition {number} of ring {ring}: brick {brick} has lost records after {after} that were on stable storage, and brick {own} no longer \
                 has them in its journal; is its disk damaged, or an old copy? It is compared with the others"
            )));
        }
        Since::Hidden(place) => {
            out.branches.push("levelling: a journal that has rotted hides records");
            return Ok(Some(format!(
                "partition {number} of ring {ring}: brick {brick} lacks records after {after}, and {place} of brick {own}, which has \
                 them, is damaged: it is compared instead"
            )));
        }
    };
    for entry in records {
        let fresh = fresh_of(around.brick, &entry.record)?;
        at.send_member(out, to, Message::Append { entry, fresh, copied: true });
    }
    Ok(None)
}

/// What of a record's fresh blocks is still as it says, in runs.
pub(crate) fn fresh_of(brick: &Brick, record: &Record) -> Result<Vec<Fresh>> {
    let mut found = Vec::new();
    for change in &record.changes {
        let Change::FreshBlocks { shard, run, .. } = change else { continue };
        let bytes = Bytes::from(brick.read_home_blocks(*shard, run.first, run.checksums.len())?);
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
