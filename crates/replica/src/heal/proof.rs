//! The proof that all members hold the same, while they serve: entry by entry, and of each shard its stamp and length.
//!
//! It goes through the partition once, portion by portion. The leader names the record at which it is; what one replica says to
//! another keeps its order, so each member can say what it held with exactly that record. Shards that a session may write past the
//! log are left out, and counted.

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
/// Portions that differ and are remembered.
const DIFFERING_MAX: usize = 16;

/// How far it is, for who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// Who asked for it.
    pub run: u64,
    /// Entries and shards that all members hold alike.
    pub equal: u64,
    /// Shards that were being written.
    pub left_out: u64,
    /// Members, and from which key on they hold something else.
    pub differing: Vec<(BrickId, Key)>,
    /// All was gone through.
    pub ended: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Proving {
    told: Proof,
    /// The portion that is asked for now: at which record, from where, up to where.
    sequence: Sequence,
    from: Key,
    to: Key,
    own: (u128, u64),
    missing: BTreeSet<BrickId>,
    differs: bool,
    /// It was asked for meanwhile, by this one: once this has ended it begins anew.
    again: Option<u64>,
    /// That of another run, which had ended when this was begun.
    before: Option<Proof>,
}

/// A question that waits for its record.
#[derive(Debug)]
pub(crate) struct Question {
    pub sequence: Sequence,
    pub from: Key,
    pub to: Key,
    pub left_out: Vec<ShardId>,
}

impl Question {
    /// To be asked when the replica holds exactly that record.
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
    /// From the beginning. Without all members there is nothing to prove.
    pub fn begin_proof(&mut self, cx: &mut Context, run: u64) -> Result<()> {
        if !self.serves() || !self.all_present() {
            self.healing.proof = None;
            return Ok(());
        }
        // Answers name the record only: what members say to the one that runs would count for another one's portion.
        if let Some(running) = self.healing.proof.as_mut().filter(|proof| !proof.told.ended) {
            running.again = Some(run);
            return Ok(());
        }
        let is_alone = cx.at.others().next().is_none();
        let (from, _) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        self.prove_from(cx, from, Proof { run, ended: is_alone, ..Proof::default() })
    }

    fn prove_from(&mut self, cx: &mut Context, from: Key, mut told: Proof) -> Result<()> {
        let (_, objects) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        let (work, end) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        let (from, limit) = if from < objects { (from, objects) } else { (from.max(work), end) };
        if from >= limit {
            told.ended = true;
        }
        let (hashes, next) =
            if told.ended { Default::default() } else { cx.around.brick.entry_hashes(&from, &limit, PORTION)? };
        let (sequence, to) = (self.log.last(), next.unwrap_or(limit));
        let left_out = self.fast.open_between(cx.at.ring, &from, &to);
        told.left_out += left_out.len() as u64;
        let own = sum(hashes.into_iter().map(|(_, hash)| hash));
        let own = if told.ended { own } else { add(own, shards(cx.at, cx.around.brick, (&from, &to), &left_out)?) };
        let missing: BTreeSet<BrickId> = if told.ended { BTreeSet::new() } else { cx.at.others().collect() };
        for brick in &missing {
            let (from, to, left_out) = (from.clone(), to.clone(), left_out.clone());
            cx.send_member(*brick, Message::Prove { sequence, from, to, left_out });
        }
        let proving = Proving { told, sequence, from, to, own, missing, differs: false, again: None, before: None };
        self.healing.proof = Some(Box::new(proving));
        Ok(())
    }

    /// A member has told what it held.
    pub fn proved(&mut self, cx: &mut Context, brick: BrickId, sequence: Sequence, theirs: (u128, u64)) -> Result<()> {
        let Some(proof) = self.healing.proof.as_mut().filter(|proof| proof.sequence == sequence) else { return Ok(()) };
        if !proof.missing.remove(&brick) {
            return Ok(());
        }
        if theirs != proof.own {
            proof.differs = true;
            if proof.told.differing.len() < DIFFERING_MAX {
                proof.told.differing.push((brick, proof.from.clone()));
            }
        }
        if proof.missing.is_empty() { self.go_on_proving(cx) } else { Ok(()) }
    }

    fn go_on_proving(&mut self, cx: &mut Context) -> Result<()> {
        let Some(proof) = self.healing.proof.take() else { return Ok(()) };
        let Proving { mut told, to, own, differs, again, before, .. } = *proof;
        if !differs {
            told.equal += own.1;
        }
        self.prove_from(cx, to, told)?;
        let Some(proof) = &mut self.healing.proof else { return Ok(()) };
        (proof.again, proof.before) = (again, before);
        let Some(run) = again.filter(|_| proof.told.ended) else { return Ok(()) };
        let ended = proof.told.clone();
        self.begin_proof(cx, run)?;
        // Who asked for it has yet to see it.
        if let Some(proof) = &mut self.healing.proof {
            proof.before = Some(ended);
        }
        Ok(())
    }

    /// Somebody went away, or came back: what is not proved is not proved.
    pub fn end_proof(&mut self) {
        self.healing.proof.take_if(|proof| !proof.told.ended);
    }

    /// The last one, and what had ended before it.
    pub fn proofs(&self) -> impl Iterator<Item = &Proof> {
        self.healing.proof.iter().flat_map(|proof| std::iter::once(&proof.told).chain(&proof.before))
    }
}
