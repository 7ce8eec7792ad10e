//! The proof that all members hold the same data while they serve: all entries, and the stamp and length of each shard.
//!
//! The leader compares the partition once, portion by portion. It names the record at which a portion is compared.
//! Messages from one replica to another keep their order, so each member can digest the portion at exactly that record.
//! Shards that are open for fast writes are left out, and counted.

use crate::context::Context;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::message::Message;
use crate::view_start::compare::{add, sum};
use hekate_brick::Brick;
use hekate_proto::*;
use std::collections::BTreeSet;

/// Entries of a portion.
const PORTION: usize = 1024;
/// Differing portions that are reported at most.
const DIFFERING_MAX: usize = 16;

/// The progress of a proof.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// Identifies the request for the proof.
    pub run: u64,
    /// Entries and shards that are equal on all members.
    pub equal: u64,
    /// Shards that were left out, since they were open for fast writes.
    pub left_out: u64,
    /// Members that differ, each with the first key of a portion that does.
    pub differing: Vec<(BrickId, Key)>,
    /// The whole partition was compared.
    pub ended: bool,
}

/// A proof that is under way or has ended.
#[derive(Debug)]
pub(crate) struct Proving {
    progress: Proof,
    /// The portion that is compared now: the record, the first key, and the end.
    sequence: Sequence,
    from: Key,
    to: Key,
    own: (u128, u64),
    missing: BTreeSet<BrickId>,
    differs: bool,
    /// The run that requested another proof meanwhile. That proof begins once this one has ended.
    again: Option<u64>,
    /// The proof that had ended when this one was begun, so that its run can still read the result.
    before: Option<Proof>,
}

/// A digest that the leader asks for at a record.
#[derive(Debug)]
pub(crate) struct Question {
    pub sequence: Sequence,
    pub from: Key,
    pub to: Key,
    pub left_out: Vec<ShardId>,
}

impl Question {
    /// Sends the digest. The replica must hold exactly the named record.
    pub fn answer(self, cx: &mut Context, brick: &Brick) -> Result<()> {
        let (mut from, mut total) = (self.from.clone(), (0, 0));
        while from < self.to {
            let (hashes, next) = brick.entry_hashes(&from, &self.to, PORTION)?;
            total = add(total, sum(hashes.into_iter().map(|(_, hash)| hash)));
            let Some(next) = next else { break };
            from = next;
        }
        let total = add(total, shards(cx.at, brick, (&self.from, &self.to), &self.left_out)?);
        cx.at.send_member(
            cx.out,
            cx.at.view.leader,
            Message::Proved { sequence: self.sequence, sum: total.0, count: total.1 },
        );
        Ok(())
    }
}

fn shards(at: &Membership, brick: &Brick, (from, to): (&Key, &Key), left_out: &[ShardId]) -> Result<(u128, u64)> {
    let found = brick.shard_hashes_between(at.ring, from, to)?;
    Ok(sum(found.into_iter().filter(|(shard, _)| !left_out.contains(shard)).map(|(_, hash)| hash)))
}

impl Leader {
    /// Begins a proof. Does nothing unless all members are connected.
    pub fn begin_proof(&mut self, cx: &mut Context, run: u64) -> Result<()> {
        if !self.serves() || !self.all_present() {
            self.healing.proof = None;
            return Ok(());
        }
        // Members' answers name the record only, so an answer to the running proof could count for the new one.
        if let Some(running) = self.healing.proof.as_mut().filter(|proof| !proof.progress.ended) {
            running.again = Some(run);
            return Ok(());
        }
        let is_alone = cx.at.others().next().is_none();
        let (from, _) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        self.prove_from(cx, from, Proof { run, ended: is_alone, ..Proof::default() })
    }

    fn prove_from(&mut self, cx: &mut Context, from: Key, mut progress: Proof) -> Result<()> {
        let (_, objects) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        let (work, end) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        let (from, limit) = if from < objects { (from, objects) } else { (from.max(work), end) };
        if from >= limit {
            progress.ended = true;
        }
        let (hashes, next) =
            if progress.ended { Default::default() } else { cx.around.brick.entry_hashes(&from, &limit, PORTION)? };
        let (sequence, to) = (self.log.last(), next.unwrap_or(limit));
        let left_out = self.fast.open_between(cx.at.ring, &from, &to);
        progress.left_out += left_out.len() as u64;
        let own = sum(hashes.into_iter().map(|(_, hash)| hash));
        let own = if progress.ended { own } else { add(own, shards(cx.at, cx.around.brick, (&from, &to), &left_out)?) };
        let missing: BTreeSet<BrickId> = if progress.ended { BTreeSet::new() } else { cx.at.others().collect() };
        for brick in &missing {
            let (from, to, left_out) = (from.clone(), to.clone(), left_out.clone());
            cx.send_member(*brick, Message::Prove { sequence, from, to, left_out });
        }
        let proving = Proving { progress, sequence, from, to, own, missing, differs: false, again: None, before: None };
        self.healing.proof = Some(Box::new(proving));
        Ok(())
    }

    /// Takes a member's digest.
    pub fn proved(&mut self, cx: &mut Context, brick: BrickId, sequence: Sequence, theirs: (u128, u64)) -> Result<()> {
        let Some(proof) = self.healing.proof.as_mut().filter(|proof| proof.sequence == sequence) else { return Ok(()) };
        if !proof.missing.remove(&brick) {
            return Ok(());
        }
        if theirs != proof.own {
            proof.differs = true;
            if proof.progress.differing.len() < DIFFERING_MAX {
                proof.progress.differing.push((brick, proof.from.clone()));
            }
        }
        if proof.missing.is_empty() { self.continue_proof(cx) } else { Ok(()) }
    }

    fn continue_proof(&mut self, cx: &mut Context) -> Result<()> {
        let Some(proof) = self.healing.proof.take() else { return Ok(()) };
        let Proving { mut progress, to, own, differs, again, before, .. } = *proof;
        if !differs {
            progress.equal += own.1;
        }
        self.prove_from(cx, to, progress)?;
        let Some(proof) = &mut self.healing.proof else { return Ok(()) };
        (proof.again, proof.before) = (again, before);
        let Some(run) = again.filter(|_| proof.progress.ended) else { return Ok(()) };
        let ended = proof.progress.clone();
        self.begin_proof(cx, run)?;
        // The run that asked for the proof has not seen its end yet.
        if let Some(proof) = &mut self.healing.proof {
            proof.before = Some(ended);
        }
        Ok(())
    }

    /// Drops a proof that has not ended: a member went away or came back.
    pub fn end_proof(&mut self) {
        self.healing.proof.take_if(|proof| !proof.progress.ended);
    }

    /// The last proof, and the one that had ended before it.
    pub fn proofs(&self) -> impl Iterator<Item = &Proof> {
        self.healing.proof.iter().flat_map(|proof| std::iter::once(&proof.progress).chain(&proof.before))
    }
}
