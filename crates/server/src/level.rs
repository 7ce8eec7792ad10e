//! Before a partition is served: its replicas are made even, and ops that a crash cut short are undone or finished.

use crate::batch::stopped;
use crate::locked::Locked;
use crate::node::Node;
use crate::partition::HostedRing;
use crate::syncer::Needs;
use hekate_brick::{Brick, LogEntry, LogPosition, LostBlock, block_checksum};
use hekate_cluster::{Registry, RingInfo};
use hekate_proto::*;
use hekate_replica::{Ask, Commit, Partitions, Stop, recover_intent};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Entries of one step.
const AT_ONCE: usize = 512;

/// Records that a brick lacks.
struct Missing<'a> {
    from: &'a Arc<Brick>,
    to: &'a Arc<Brick>,
    records: Vec<LogEntry>,
}

/// The member with the greatest (epoch, sequence) has everything that was acknowledged; the others get what they lack
/// from its journal. All is read before anything is appended: appending may need a checkpoint, which gives back what
/// others would still read.
pub fn level(rings: &[RingInfo], bricks: &HashMap<BrickId, Arc<Brick>>) -> Result<()> {
    let mut missing = Vec::new();
    for ring in rings {
        for (index, view) in ring.views.iter().enumerate() {
            let number = PartitionNumber(index as u32);
            let members: Vec<&Arc<Brick>> =
                view.members.iter().filter_map(|member| bricks.get(&member.brick)).collect();
            // What other servers have as well is not for this one alone to make even.
            if members.len() < view.members.len() {
                continue;
            }
            let at = |brick: &Brick| brick.position(ring.ring, number);
            let Some(best) = members.iter().max_by_key(|brick| at(brick)) else { continue };
            for brick in members.iter().filter(|brick| at(brick) < at(best)) {
                let records = records_for(ring.ring, number, best, brick)?;
                missing.push(Missing { from: best, to: brick, records });
            }
        }
    }
    missing.iter().try_for_each(bring_up)
}

fn records_for(ring: RingId, number: PartitionNumber, from: &Brick, to: &Brick) -> Result<Vec<LogEntry>> {
    let LogPosition { sequence, .. } = to.position(ring, number);
    let records = from.records_since(ring, number, sequence)?;
    if records.first().is_none_or(|entry| entry.record.sequence.0 != sequence.0 + 1) {
        return Err(Error::Damaged {
            what: format!(
                "brick {} lacks records of partition {number} of ring {ring} that brick {} no longer has in its journal; \
                 was it restored from an old copy?",
                to.id().text(),
                from.id().text()
            ),
        });
    }
    Ok(records)
}

fn bring_up(missing: &Missing) -> Result<()> {
    for entry in &missing.records {
        // Nobody else writes home while the server starts.
        if missing.to.wants_checkpoint() || missing.to.awaits_removal(&entry.record.changes) {
            missing.to.checkpoint()?;
        }
        copy_fresh(&entry.record, missing.from, missing.to)?;
        missing.to.append_copied(entry)?;
    }
    missing.to.sync(missing.to.end())
}

/// Bytes that a record says are home already: as far as the other brick still has them. What was written over them
/// since comes with a later record, what it lost is settled by `settle_lost`.
fn copy_fresh(record: &Record, from: &Brick, to: &Brick) -> Result<()> {
    for change in &record.changes {
        let Change::FreshBlocks { shard, run, .. } = change else { continue };
        for (block, sum) in (run.first..).zip(&run.checksums) {
            let bytes = from.read_home(*shard, block)?;
            if block_checksum(*shard, block, &bytes) == *sum {
                to.write_fresh(record.ring, *shard, block, &[&bytes])?;
            }
        }
    }
    Ok(())
}

/// Lost blocks as the coordinator records them: ring, volume, data id, shard, block.
type LostRow = (u16, u32, String, u64, u32);

/// Blocks that an earlier start found lost and did not settle.
pub fn read_lost(registry: &Registry) -> Result<BTreeSet<LostBlock>> {
    let rows: Vec<LostRow> = registry.lost_blocks()?;
    let row = |(ring, volume, data, index, block): LostRow| {
        let data =
            u128::from_str_radix(&data, 16).map_err(|_| Error::Damaged { what: "the list of lost blocks".into() })?;
        let shard = ShardId { volume: VolumeId(volume), data: DataId(data), index };
        Ok(LostBlock { ring: RingId(ring), shard, block })
    };
    rows.into_iter().map(row).collect()
}

/// Records them; an empty list: they are settled.
pub fn record_lost(registry: &Registry, lost: &BTreeSet<LostBlock>) -> Result<()> {
    let row = |lost: &LostBlock| -> LostRow {
        let shard = lost.shard;
        (lost.ring.0, shard.volume.0, format!("{:032x}", shard.data.0), shard.index, lost.block)
    };
    registry.put_lost_blocks(&lost.iter().map(row).collect::<Vec<_>>())
}

/// Fresh blocks that a power cut took from some members: all get them from one that has them; what none has never
/// happened, and is zeros on all.
pub fn settle_lost(node: &Node, lost: &BTreeSet<LostBlock>) -> Result<()> {
    for one in lost {
        let ring = node.ring(one.ring)?;
        let at = one.shard.position().partition(ring.count());
        with_locks(node, &ring, one.shard.volume, at, |locked, ask| {
            let hosted = locked.hosted(at)?;
            let found = hosted.members.iter().find_map(|member| block_of(member, one).transpose()).transpose()?;
            let bytes = found.unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
            let shards: Result<Vec<_>> =
                hosted.members.iter().map(|member| member.shard(one.ring, one.shard)).collect();
            let Some(newest) = shards?.into_iter().flatten().max_by_key(|record| record.stamp.count) else {
                return Ok(());
            };
            let stamp = Stamp { count: newest.stamp.count + 1, session: ask.session, op: ask.op_id };
            let record = ShardRecord { stamp, ..newest };
            let checksums = vec![block_checksum(one.shard, one.block, &bytes)];
            let run = BlockRun { first: one.block, checksums };
            let changes = vec![Change::WriteBlocks { shard: one.shard, record, run, bytes }];
            Ok(locked.commit(at, Commit { changes, ..Commit::default() })?)
        })?;
    }
    Ok(())
}

/// The block as a member has it; `None` for a hole and for damage.
fn block_of(member: &Brick, lost: &LostBlock) -> Result<Option<bytes::Bytes>> {
    let block = BLOCK_BYTES as u32;
    let read = match member.read_shard(lost.ring, lost.shard, lost.block * block, block) {
        Err(Error::Damaged { .. }) => return Ok(None),
        other => other?,
    };
    if read.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let mut whole = bytes::BytesMut::from(&read[..]);
    whole.resize(BLOCK_BYTES, 0);
    Ok(Some(whole.freeze()))
}

/// A machine that booted or a disk that was mounted anew makes a new view. -> whether there are any.
pub fn renew_incarnations(ring: &mut RingInfo, bricks: &HashMap<BrickId, Arc<Brick>>) -> bool {
    let mut renewed = false;
    for view in &mut ring.views {
        let mut changed = false;
        for member in &mut view.members {
            if let Some(brick) = bricks.get(&member.brick)
                && brick.incarnation() != member.incarnation
            {
                member.incarnation = brick.incarnation();
                changed = true;
            }
        }
        if changed {
            view.epoch = Epoch(view.epoch.0 + 1);
            renewed = true;
        }
    }
    renewed
}

fn system_ask(ring: &HostedRing, volume: VolumeId) -> Ask {
    let (session, op_id, now) = (SYSTEM_SESSION, OpId(0), Node::clock());
    Ask { ring: ring.ring, count: ring.count(), volume, session, op_id, now, alone: true }
}

/// Does something of the server's own, with the locks that it turns out to need.
pub fn with_locks(
    node: &Node,
    ring: &HostedRing,
    volume: VolumeId,
    at: PartitionNumber,
    mut act: impl FnMut(&mut Locked, &Ask) -> std::result::Result<(), Stop>,
) -> Result<()> {
    let mut numbers = BTreeSet::from([at]);
    loop {
        // While the server starts nobody else does. A brick that has stopped says so where it is used.
        let _ = node.checkpoint_if_wanted();
        let ask = system_ask(ring, volume);
        let mut locked = Locked::lock(ring, &ask, &numbers, &node.chores, &node.syncers)?;
        match act(&mut locked, &ask) {
            Ok(()) => return Ok(()),
            Err(Stop::Lock(number)) => drop(numbers.insert(number)),
            Err(stop) => return Err(stopped(stop)),
        }
    }
}

/// A partition's work entries.
pub fn work(ring: &HostedRing, number: PartitionNumber) -> Result<Vec<(Key, bytes::Bytes)>> {
    let (mut from, to) = Key::work_range(ring.ring, number, ring.count());
    let hosted = ring.read(number)?;
    let mut all = Vec::new();
    loop {
        let found = hosted.brick().scan(&from, &to, AT_ONCE)?;
        let Some((last, _)) = found.last() else { return Ok(all) };
        from = last.successor();
        all.extend(found);
    }
}

/// Undoes or finishes what intents name, removes the marks of their legs, and learns what there is to collect.
pub fn recover(node: &Node, ring: &HostedRing) -> Result<()> {
    let mut marks = Vec::new();
    for number in ring.hosted() {
        for (key, value) in work(ring, number)? {
            let (Some(id), Some(place)) = (key.id(), key.place()) else { continue };
            match key.kind() {
                Some(Kind::Intent) => {
                    let record = IntentRecord::from_bytes(value)?;
                    with_locks(node, ring, record.volume, number, |locked, ask| {
                        recover_intent(locked, ask, number, IntentId(id), &record)
                    })?;
                }
                Some(Kind::LegDone) => marks.push((ring.ring, number, key)),
                Some(Kind::Orphan) => {
                    node.chores.lock().orphans.push((ring.ring, place.volume, InodeId::from_bits(id)));
                }
                Some(Kind::Garbage) => {
                    let record = GarbageRecord::from_bytes(value)?;
                    node.chores.lock().garbage.push((ring.ring, key, record));
                }
                _ => {}
            }
        }
    }
    // Legs that recovery itself took have left marks of their own.
    let taken = std::mem::take(&mut node.chores.lock().swept);
    marks.extend(taken);
    sync_all(node, ring)?;
    remove(node, &marks)
}

/// Everything that the ring's bricks acknowledged is on stable storage.
pub fn sync_all(node: &Node, ring: &HostedRing) -> Result<()> {
    let mut needs = Needs::default();
    ring.bricks().iter().for_each(|brick| needs.journal(brick, brick.end()));
    node.syncers.sync(needs)
}

/// Removes entries, those of a partition in records of many.
pub fn remove(node: &Node, entries: &[(RingId, PartitionNumber, Key)]) -> Result<()> {
    let mut grouped: HashMap<(RingId, PartitionNumber), Vec<Key>> = HashMap::new();
    for (ring, number, key) in entries {
        grouped.entry((*ring, *number)).or_default().push(key.clone());
    }
    for ((ring, number), keys) in grouped {
        let ring = node.ring(ring)?;
        for keys in keys.chunks(AT_ONCE) {
            with_locks(node, &ring, VolumeId(0), number, |locked, _| {
                let mut commit = Commit::default();
                keys.iter().for_each(|key| commit.delete(key.clone()));
                Ok(locked.commit(number, commit)?)
            })?;
        }
    }
    Ok(())
}

/// Results that a session's retries would have asked for.
pub fn forget_session(node: &Node, ring: &HostedRing, session: SessionId) -> Result<()> {
    let mut found = Vec::new();
    for number in ring.hosted() {
        let prefix = Key::session_prefix(ring.ring, number.first_position(ring.count()), session);
        let entries = ring.read(number)?.brick().scan(&prefix, &prefix.prefix_end(), SESSION_SLOTS)?;
        found.extend(entries.into_iter().map(|(key, _)| (ring.ring, number, key)));
    }
    remove(node, &found)
}
