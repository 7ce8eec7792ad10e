//! In a new view whose log has no record yet, since a machine restarted or a disk was mounted anew: the leader compares
//! what the members hold with what it holds, at the same record, before anything is served.
//!
//! One pass over the partition's entries in the order of the index, some at a time: the members answer with a digest of
//! the same portion, and list it only if that differs. With equal logs a difference is damage. What few entries differ
//! the members take from the leader, whose copy answered until then, in one record; the operator is told. More, or
//! shards, is another kind of damage, and the partition is not served.

use crate::context::Context;
use crate::leader::Leader;
use crate::log::append::Appended;
use crate::membership::Membership;
use crate::message::{Hashed, Message, Portion};
use crate::ops::step::Commit;
use crate::view_start::level::Phase;
use hekate_brick::Brick;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Entries of a portion.
const AT_ONCE: usize = 2048;
/// Entries that a member lists of a portion; one that has more has something else altogether.
pub(crate) const LISTED_MAX: usize = 4 * AT_ONCE;
/// What members take from the leader: what fits one record with room.
const TAKEN_MAX: usize = 256;
const TAKEN_BYTES_MAX: usize = 2 << 20;

/// How far the leader is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// What is compared now, none once all was.
    portion: Option<Portion>,
    own: (u128, u64),
    /// Members that have not answered for it.
    missing: BTreeSet<BrickId>,
    /// Entries compared so far.
    pub entries: u64,
    /// What members take from the leader,
    changes: BTreeMap<Key, Change>,
    /// and which.
    differing: BTreeSet<BrickId>,
}

impl Leader {
    /// Whether the view began without memory and nothing was done in it yet.
    pub fn is_to_compare(&self, cx: &Context) -> bool {
        let own = cx.around.brick.position(cx.at.ring, cx.at.own.partition);
        cx.at.view.forgetful && !self.members.is_empty() && own.sequence > Sequence(0) && own.epoch < cx.at.view.epoch
    }

    /// Once all members have all records. None is made until the end.
    pub fn begin_comparison(&mut self, cx: &mut Context) -> Result<()> {
        cx.out.branches.push("levelling: replicas are compared");
        let (missing, changes, differing) = Default::default();
        let mut comparison = Comparison { portion: None, own: (0, 0), missing, entries: 0, changes, differing };
        let (from, _) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        comparison.ask(cx, Some(from))?;
        self.start.phase = Phase::Comparing(Box::new(comparison));
        Ok(())
    }

    /// If this portion is compared now; an answer may be to an earlier question.
    fn comparing(&mut self, portion: &Portion) -> Option<&mut Comparison> {
        let Phase::Comparing(comparison) = &mut self.start.phase else { return None };
        (comparison.portion.as_ref() == Some(portion)).then_some(comparison)
    }

    pub fn compared(&mut self, cx: &mut Context, brick: BrickId, portion: Portion, theirs: (u128, u64)) -> Result<()> {
        let Some(comparison) = self.comparing(&portion) else { return Ok(()) };
        match portion {
            _ if theirs == comparison.own => comparison.answered(cx, brick),
            Portion::Entries { .. } => {
                cx.send_member(brick, Message::List { portion });
                Ok(())
            }
            Portion::Shards => Err(differ(cx.at, brick, "stamps or lengths of shards")),
        }
    }

    pub fn listed(&mut self, cx: &mut Context, brick: BrickId, portion: Portion, theirs: Vec<Hashed>) -> Result<()> {
        let Some(comparison) = self.comparing(&portion) else { return Ok(()) };
        cx.out.branches.push("levelling: replicas differ");
        comparison.take_over(cx.at, brick, &portion, theirs, cx.around.brick)?;
        comparison.answered(cx, brick)
    }

    /// Entries so far, while it lasts.
    pub fn compared_entries(&self) -> Option<u64> {
        let Phase::Comparing(comparison) = &self.start.phase else { return None };
        Some(comparison.entries)
    }

    /// With the record that ends it the view is not new any more. Without room for it: a little later.
    pub fn end_comparison(&mut self, cx: &mut Context) -> Result<()> {
        let Phase::Comparing(comparison) = &mut self.start.phase else { return Ok(()) };
        if comparison.portion.is_some() {
            return Ok(());
        }
        let (changes, told) = (comparison.changes.values().cloned().collect(), comparison.tell(cx.at));
        match self.append_own(cx, Commit { changes, ..Commit::default() })? {
            Appended::Made(_) => {
                cx.out.notes.extend(told);
                self.start.phase = Phase::Feeding;
                Ok(())
            }
            Appended::NoRoom => Ok(()),
            Appended::Refused(error) => Err(error),
        }
    }
}

impl Comparison {
    /// Reads a portion and asks the members for the same: entries from here on, or, without that, the shards.
    fn ask(&mut self, cx: &mut Context, from: Option<Key>) -> Result<()> {
        let portion = match from {
            Some(from) => {
                let (_, objects) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
                let (_, work) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
                let end = if from < objects { objects } else { work };
                let (hashes, next) = cx.around.brick.entry_hashes(&from, &end, AT_ONCE)?;
                self.own = sum(hashes.into_iter().map(|(_, hash)| hash));
                Portion::Entries { from, to: next.unwrap_or(end) }
            }
            None => {
                self.own = digest(cx.at, cx.around.brick, &Portion::Shards)?;
                Portion::Shards
            }
        };
        self.entries += self.own.1;
        self.missing = cx.at.others().collect();
        for brick in &self.missing {
            cx.send_member(*brick, Message::Compare { portion: portion.clone() });
        }
        self.portion = Some(portion);
        Ok(())
    }

    /// When the last has answered it goes on: objects, work, shards.
    fn answered(&mut self, cx: &mut Context, brick: BrickId) -> Result<()> {
        self.missing.remove(&brick);
        if !self.missing.is_empty() {
            return Ok(());
        }
        let (_, objects) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        let (work, end) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        match self.portion.take() {
            Some(Portion::Entries { to, .. }) if to == objects => self.ask(cx, Some(work)),
            Some(Portion::Entries { to, .. }) if to == end => self.ask(cx, None),
            Some(Portion::Entries { to, .. }) => self.ask(cx, Some(to)),
            Some(Portion::Shards) | None => Ok(()),
        }
    }

    /// What a member holds otherwise is to be as it is here.
    fn take_over(
        &mut self,
        at: &Membership,
        brick: BrickId,
        portion: &Portion,
        theirs: Vec<Hashed>,
        own: &Brick,
    ) -> Result<()> {
        let ours: BTreeMap<Key, u128> = hashes(own, portion)?.into_iter().collect();
        let theirs: BTreeMap<Key, u128> = theirs.into_iter().map(|hashed| (hashed.key, hashed.hash)).collect();
        for key in ours.iter().filter(|(key, hash)| theirs.get(*key) != Some(*hash)).map(|(key, _)| key) {
            if let Some(value) = own.get(key)? {
                self.changes.insert(key.clone(), Change::Put { key: key.clone(), value });
            }
        }
        for key in theirs.into_keys().filter(|key| !ours.contains_key(key)) {
            self.changes.insert(key.clone(), Change::Delete { key });
        }
        self.differing.insert(brick);
        let bytes = |change: &Change| match change {
            Change::Put { key, value } => key.as_bytes().len() + value.len(),
            _ => 0,
        };
        let is_too_much =
            self.changes.len() > TAKEN_MAX || self.changes.values().map(bytes).sum::<usize>() > TAKEN_BYTES_MAX;
        if is_too_much { Err(differ(at, brick, "many entries")) } else { Ok(()) }
    }

    /// For the operator: what was found, if anything was.
    fn tell(&self, at: &Membership) -> Option<String> {
        let first = self.changes.keys().next()?;
        let bricks: Vec<String> = self.differing.iter().map(|brick| brick.text()).collect();
        Some(format!(
            "partition {} of ring {}: {} entries on brick {} were not as on brick {}, which leads, though their logs are \
             equal; they are now as there. The first is {first:?}. Is that disk sound? `hekate brick scrub` reads all of it",
            at.own.partition,
            at.ring,
            self.changes.len(),
            bricks.join(", "),
            at.own.brick.text()
        ))
    }
}

fn differ(at: &Membership, brick: BrickId, what: &str) -> Error {
    Error::Damaged {
        what: format!(
            "partition {} of ring {}: brick {} and brick {}, which leads, differ in {what} though their logs are equal; \
             was one restored from an old copy? Nothing of it is served. With the servers stopped, `hekate debug compare` \
             names what differs and `hekate brick export` gets the files out of either",
            at.own.partition,
            at.ring,
            brick.text(),
            at.own.brick.text()
        ),
    }
}

/// The sum of a portion's hashes, and how many there are.
pub(crate) fn digest(at: &Membership, brick: &Brick, portion: &Portion) -> Result<(u128, u64)> {
    let (mut from, to) = match portion {
        Portion::Entries { from, to } => (from.clone(), to),
        Portion::Shards => {
            let shards = brick.shard_hashes(at.ring, at.own.partition, at.count)?;
            return Ok(sum(shards.into_iter().map(|(_, hash)| hash)));
        }
    };
    let mut total = (0, 0);
    while from < *to {
        let (hashes, next) = brick.entry_hashes(&from, to, AT_ONCE)?;
        total = add(total, sum(hashes.into_iter().map(|(_, hash)| hash)));
        let Some(next) = next else { break };
        from = next;
    }
    Ok(total)
}

/// What a member lists of a portion that differs.
pub(crate) fn list(at: &Membership, brick: &Brick, portion: &Portion) -> Result<Vec<Hashed>> {
    let found = hashes(brick, portion)?;
    if found.len() > LISTED_MAX {
        return Err(differ(at, at.view.leader, "many entries"));
    }
    Ok(found.into_iter().map(|(key, hash)| Hashed { key, hash }).collect())
}

/// A portion's entries, one more than the limit at most.
pub(crate) fn hashes(brick: &Brick, portion: &Portion) -> Result<Vec<(Key, u128)>> {
    let Portion::Entries { from, to } = portion else { return Ok(Vec::new()) };
    let (mut found, mut from) = (Vec::new(), from.clone());
    while from < *to {
        let (hashes, next) = brick.entry_hashes(&from, to, AT_ONCE)?;
        found.extend(hashes);
        found.truncate(LISTED_MAX + 1);
        match next {
            Some(next) if found.len() <= LISTED_MAX => from = next,
            _ => break,
        }
    }
    Ok(found)
}

pub(crate) fn sum(hashes: impl Iterator<Item = u128>) -> (u128, u64) {
    hashes.fold((0, 0), |total, hash| add(total, (hash, 1)))
}

pub(crate) fn add(one: (u128, u64), other: (u128, u64)) -> (u128, u64) {
    (one.0.wrapping_add(other.0), one.1 + other.1)
}
