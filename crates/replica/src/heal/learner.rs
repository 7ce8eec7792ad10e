//! The learner's side of healing. A learner comes back to its partition, or is new there, and lacks what the members
//! have.
//!
//! Its part of the index is compared with the leader's once, portion by portion, as the leader (`heal.rs`) directs. The
//! learner applies the leader's records to all that lies before the end of the current portion. The rest of the index
//! is compared later, so changes that it does not apply there need no list. Its progress is in the index, and moves in
//! the same journal records as the data, so that it continues there after a crash.
//!
//! Equal stamps mean equal shards only where the replica has applied all records. So all shards of a portion that was
//! interrupted are compared by their blocks. Where the comparison begins anew they get stamps that no other replica
//! has.

use crate::membership::Membership;
use crate::message::{BlockHash, Fresh, Hashed, HealStep, HeldShard, Message, Portion};
use crate::view_start::compare::{LISTED_MAX, add, hashes, sum};
use hekate_brick::{Brick, LogEntry};
use hekate_proto::*;
use std::collections::BTreeMap;

/// The state of a learner.
#[derive(Debug)]
pub(crate) struct Learning {
    /// How far the replica has healed. `None`: it has all that its log says.
    pub record: Option<HealRecord>,
    /// The log is to restart behind this record of the leader's.
    pub restart: Option<Sequence>,
    /// Shards whose block hashes the leader asks for, once the replica has the record.
    pub questions: Vec<(Sequence, ShardId)>,
}

/// The learner's form of a leader's record.
pub(crate) struct Own {
    pub entry: LogEntry,
    pub fresh: Vec<Fresh>,
    /// How far the replica has healed with the record.
    heal: Option<HealRecord>,
    /// The message to the leader once the record is appended.
    pub tell: Option<Message>,
    /// The replica has everything.
    pub ends: bool,
}

pub(crate) fn heal_key(at: &Membership) -> Key {
    Key::heal(at.ring, at.own.partition.first_position(at.count))
}

impl Learning {
    pub fn read(at: &Membership, brick: &Brick) -> Result<Self> {
        let record = brick.get(&heal_key(at))?.map(HealRecord::from_bytes).transpose()?;
        Ok(Self { record, restart: None, questions: Vec::new() })
    }

    /// Drops what an earlier leader, or an earlier process of the leader, has sent.
    pub fn forget(&mut self) {
        self.restart = None;
        self.questions.clear();
    }

    /// Changes that give shards of the interrupted portion stamps that no other replica has. These shards have the
    /// leader's stamps and not all of its bytes, and the healing record that names them is about to be replaced.
    pub fn restamp_interrupted(&self, at: &Membership, brick: &Brick) -> Result<Vec<Change>> {
        let Some(HealRecord { healed, live, .. }) = &self.record else { return Ok(Vec::new()) };
        let own = OpId(at.own.brick.0 as u64);
        let restamp = |(shard, record): (ShardId, ShardRecord)| {
            let stamp = Stamp { session: SYSTEM_SESSION, op: own, ..record.stamp };
            Change::Restamp { shard, record: ShardRecord { stamp, ..record } }
        };
        Ok(brick.shards_between(at.ring, healed, live)?.into_iter().map(restamp).collect())
    }

    /// The record that restarts the log behind `sequence`. `also`: further changes of it.
    pub fn restarted(&mut self, at: &Membership, sequence: Sequence, also: impl Iterator<Item = Change>) -> LogEntry {
        let (first, _) = Key::object_range(at.ring, at.own.partition, at.count);
        let record = HealRecord { healed: first.clone(), live: first, differing: Vec::new() };
        let mut changes = vec![Change::BeginLog, Change::Put { key: heal_key(at), value: record.to_bytes() }];
        changes.extend(also);
        let (ring, partition, epoch) = (at.ring, at.own.partition, at.view.epoch);
        self.record = Some(record);
        LogEntry::new(Record { ring, partition, epoch, sequence, session: SYSTEM_SESSION, op_id: OpId(0), changes })
    }

    /// The learner's part of a leader's record. `None` if it must wait until the brick has written a checkpoint.
    ///
    /// # Errors
    ///
    /// The brick's error if the learner's data cannot be read.
    pub fn own(
        &self,
        at: &Membership,
        brick: &Brick,
        (entry, fresh): (&LogEntry, &[Fresh]),
        step: Option<&HealStep>,
    ) -> Result<Option<Own>> {
        let Some(now) = &self.record else {
            return Ok(Some(Own { entry: entry.clone(), fresh: fresh.to_vec(), heal: None, tell: None, ends: false }));
        };
        let (mut heal, mut taken, mut tell, mut ends) = (now.clone(), Vec::new(), None, false);
        match step {
            None => {}
            Some(HealStep::Compare { from, to, sum, count, shards }) => {
                if shards.iter().any(|held| brick.is_dropped(held.shard)) {
                    return Ok(None);
                }
                let (sequence, portion) = (entry.record.sequence, (from, to));
                let (next, differs) = self.compare(at, brick, now, sequence, portion, (*sum, *count), shards)?;
                (heal, tell) = (next, Some(differs));
            }
            Some(HealStep::Take { changes, reconciled }) => {
                heal.differing.retain(|shard| !reconciled.contains(shard));
                taken.clone_from(changes);
            }
            Some(HealStep::End) => ends = true,
        }
        let mut record = entry.record.clone();
        record.changes.retain(|change| follows(at, &heal, change));
        let fresh = fresh.iter().filter(|one| is_followed(at, &heal, one.shard)).cloned().collect();
        record.changes.extend(taken);
        let key = heal_key(at);
        if ends {
            // The journal's earlier records are of the healing, and of no use to other replicas.
            record.changes.insert(0, Change::BeginLog);
            record.changes.push(Change::Delete { key });
        } else if heal != *now {
            record.changes.push(Change::Put { key, value: heal.to_bytes() });
        }
        let heal = (!ends).then_some(heal);
        Ok(Some(Own { entry: LogEntry::new(record), fresh, heal, tell, ends }))
    }

    /// Notes that the learner's record was appended. Returns the message to the leader.
    pub fn took(&mut self, own: Own) -> Option<Message> {
        if self.record.is_some() {
            self.record = own.heal;
        }
        own.tell
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the step")]
    fn compare(
        &self,
        at: &Membership,
        brick: &Brick,
        now: &HealRecord,
        sequence: Sequence,
        (from, to): (&Key, &Key),
        theirs: (u128, u64),
        their_shards: &[HeldShard],
    ) -> Result<(HealRecord, Message)> {
        let mut listed = hashes(brick, &Portion::Entries { from: from.clone(), to: to.clone() })?;
        let mut to = to.clone();
        let is_cut = listed.len() > LISTED_MAX;
        if is_cut && let Some((key, _)) = listed.pop() {
            to = key;
        }
        let own = listed.iter().fold((0, 0), |total, (_, hash)| add(total, sum(std::iter::once(*hash))));
        let entries = (is_cut || own != theirs)
            .then(|| listed.into_iter().map(|(key, hash)| Hashed { key, hash }).collect::<Vec<_>>());
        let own_shards: BTreeMap<ShardId, ShardRecord> =
            brick.shards_between(at.ring, from, &to)?.into_iter().collect();
        let in_portion = |shard: &ShardId| Key::shard(at.ring, *shard) < to;
        let theirs = their_shards.iter().filter(|held| in_portion(&held.shard));
        let theirs: BTreeMap<ShardId, ShardRecord> =
            theirs.filter_map(|held| Some((held.shard, held.record?))).collect();
        let is_uncertain = |shard: &ShardId| Key::shard(at.ring, *shard) < now.live || at.may_lack(*shard);
        let mut shards: Vec<ShardId> = own_shards.keys().chain(theirs.keys()).copied().collect();
        shards.sort_unstable();
        shards.dedup();
        shards.retain(|shard| is_uncertain(shard) || own_shards.get(shard) != theirs.get(shard));
        let behind = now.differing.iter().filter(|shard| !in_portion(shard));
        let differing = shards.iter().chain(behind).copied().collect();
        let heal = HealRecord { healed: from.clone(), live: now.live.clone().max(to.clone()), differing };
        let held = |shard: &ShardId| HeldShard { shard: *shard, record: own_shards.get(shard).copied() };
        let shards = shards.iter().map(held).collect();
        Ok((heal, Message::Differs { sequence, to, entries, shards }))
    }
}

/// True if the change is to a key or shard for which the learner applies the leader's records already.
fn follows(at: &Membership, heal: &HealRecord, change: &Change) -> bool {
    match change {
        Change::Put { key, .. } | Change::Delete { key } => *key < heal.live,
        of_shard => of_shard.shard().is_some_and(|shard| is_followed(at, heal, shard)),
    }
}

fn is_followed(at: &Membership, heal: &HealRecord, shard: ShardId) -> bool {
    Key::shard(at.ring, shard) < heal.live && !heal.differing.contains(&shard)
}

/// The hashes of a shard's blocks.
pub(crate) fn block_hashes(at: &Membership, brick: &Brick, shard: ShardId) -> Result<Vec<BlockHash>> {
    let hashes = brick.block_hashes(at.ring, shard)?;
    Ok(hashes.into_iter().map(|(block, hash)| BlockHash { block, hash }).collect())
}
