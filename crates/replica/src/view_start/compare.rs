//! Comparison of the members' data in a forgetful view, in which no member had its memory when it was formed, while the
//! view has no record yet: a machine restarted, or a disk was mounted anew. All members hold the same records, and no
//! client is served before the end.
//!
//! The leader compares the partition's entries once, in the order of the index, a portion at a time. Each member
//! answers with a digest of the portion, and lists its entries only if the digest differs. With equal logs a difference
//! is damage. A few entries are overwritten on the members with the leader's, as clients read those until now, and the
//! operator is notified. More entries, or shards, are another kind of damage, and the partition is not served.

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
/// Entries of a portion that a member lists at most. A member with more differs too much to be mended.
pub(crate) const LISTED_MAX: usize = 4 * AT_ONCE;
/// Entries that members take from the leader at most.
const TAKEN_MAX: usize = 256;
/// Bytes of these entries at most: they fit one record, with room to spare.
const TAKEN_BYTES_MAX: usize = 2 << 20;

/// The state of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// The portion that is compared now. `None` once all were.
    portion: Option<Portion>,
    own: (u128, u64),
    /// Members that have not answered for this portion.
    missing: BTreeSet<BrickId>,
    /// Entries compared so far.
    pub entries: u64,
    /// Changes that make the members' entries equal to the leader's.
    changes: BTreeMap<Key, Change>,
    /// Members that held other entries.
    differing: BTreeSet<BrickId>,
}

impl Leader {
    /// True if the view is forgetful and has no record yet.
    pub fn must_compare(&self, cx: &Context) -> bool {
        let own = cx.around.brick.position(cx.at.ring, cx.at.own.partition);
        cx.at.view.forgetful && !self.members.is_empty() && own.sequence > Sequence(0) && own.epoch < cx.at.view.epoch
    }

    /// Begins the comparison. All members have all records, and none is made until the comparison has ended.
    pub fn begin_comparison(&mut self, cx: &mut Context) -> Result<()> {
        cx.out.branches.push("levelling: replicas are compared");
        let (missing, changes, differing) = Default::default();
        let mut comparison = Comparison { portion: None, own: (0, 0), missing, entries: 0, changes, differing };
        let (from, _) = Key::object_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        comparison.ask(cx, Some(from))?;
        self.start.phase = Phase::Comparing(Box::new(comparison));
        Ok(())
    }

    /// The comparison, if it is at this portion: an answer may belong to an earlier one.
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
        comparison.take_leaders_entries(cx.at, brick, &portion, theirs, cx.around.brick)?;
        comparison.answered(cx, brick)
    }

    /// Entries compared so far. `None` while nothing is compared.
    pub fn compared_entries(&self) -> Option<u64> {
        let Phase::Comparing(comparison) = &self.start.phase else { return None };
        Some(comparison.entries)
    }

    /// Ends the comparison with a record, so that the view is not compared again. Without room in the journal it is
    /// tried again with the next tick.
    pub fn end_comparison(&mut self, cx: &mut Context) -> Result<()> {
        let Phase::Comparing(comparison) = &mut self.start.phase else { return Ok(()) };
        if comparison.portion.is_some() {
            return Ok(());
        }
        let (changes, note) = (comparison.changes.values().cloned().collect(), comparison.note(cx.at));
        match self.append_own_for(cx, None, Commit { changes, ..Commit::default() })? {
            Appended::Made(_) => {
                cx.out.notes.extend(note);
                self.start.phase = Phase::Feeding;
                Ok(())
            }
            Appended::NoRoom => Ok(()),
            Appended::Refused(error) => Err(error),
        }
    }
}

impl Comparison {
    /// Reads a portion and asks the members for the same: the entries from `from` on, or the shards if that is `None`.
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

    /// Continues with the next portion once all members have answered: objects, then work, then shards.
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

    /// Collects the changes that make a member's portion equal to the leader's.
    fn take_leaders_entries(
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

    /// The note for the operator, if entries differed.
    fn note(&self, at: &Membership) -> Option<String> {
        let first = self.changes.keys().next()?;
        let bricks: Vec<String> = self.differing.iter().map(|brick| brick.text()).collect();
        Some(format!(
            "partition {} of ring {}: {} entries on brick {} differed from those on brick {}, which leads, though \
             their logs are equal. They were replaced by the leader's; the first is {first:?}. Check that disk: \
             `hekate brick scrub` reads all of it",
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
            "partition {} of ring {}: brick {} and brick {}, which leads, differ in {what} though their logs are \
             equal. One of them may be an old copy. The partition is not served. With the servers stopped, `hekate \
             debug compare` names what differs and `hekate brick export` copies the files out of either",
            at.own.partition,
            at.ring,
            brick.text(),
            at.own.brick.text()
        ),
    }
}

/// The sum of the hashes of a portion's entries, and their number.
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

/// The entries of a portion, for a leader whose digest differs.
pub(crate) fn list(at: &Membership, brick: &Brick, portion: &Portion) -> Result<Vec<Hashed>> {
    let found = hashes(brick, portion)?;
    if found.len() > LISTED_MAX {
        return Err(differ(at, at.view.leader, "many entries"));
    }
    Ok(found.into_iter().map(|(key, hash)| Hashed { key, hash }).collect())
}

/// The hashes of a portion's entries, `LISTED_MAX + 1` at most.
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
