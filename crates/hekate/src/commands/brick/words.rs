//! Structures of a brick in words.

use hekate_brick::inspect::{Entry, LogBody, LogRecord, Problem, ShardBlocks};
use hekate_proto::*;

/// An entry of the index.
pub fn entry(place: KeyPrefix, entry: &Entry) -> String {
    let of = format!("volume {}", place.volume);
    match entry {
        Entry::Inode { inode, record } => format!("inode {inode:?} of {of}: {}", inode_words(record)),
        Entry::Content { inode, bytes } => format!("content of {inode:?} of {of}: {} bytes", bytes.len()),
        Entry::Xattr { inode, name, value } => {
            format!("attribute {:?} of {inode:?} of {of}: {} bytes", lossy(name), value.len())
        }
        Entry::Stub { directory, record } => format!(
            "stub of {directory:?} of {of}: {} names, {} of them directories{}{}",
            record.entries,
            record.directories,
            if record.spread > 1 { format!(", one of {}", record.spread) } else { String::new() },
            if record.alive { "" } else { ", closed" }
        ),
        Entry::Name { directory, name, record } => {
            format!("name {name:?} in {directory:?} of {of}: {:?} {:?}", record.kind, record.inode)
        }
        Entry::Shard { shard: id, record } => format!("{}: {}", shard(*id), shard_record(record)),
        Entry::Checksums { shard: id, group, sums } => {
            let written = sums.iter().filter(|sum| **sum != 0).count();
            format!("checksums of {}, blocks from {}: {written} written", shard(*id), group * 64)
        }
        Entry::Partition { record } => {
            format!(
                "partition from {:08x} on ring {}: numbers below {} reserved",
                place.position.0, place.ring, record.numbers_reserved
            )
        }
        Entry::Intent { intent, record } => {
            format!("intent {:032x}: {} in volume {}, {} legs", intent.0, record.what, record.volume, record.legs.len())
        }
        Entry::LegDone { intent, number } => format!("leg {number} of intent {:032x} was taken", intent.0),
        Entry::Session { session, slot, record } => {
            format!("session {session} slot {slot}: op {:#x}, a reply of {} bytes", record.op_id.0, record.reply.len())
        }
        Entry::Orphan { inode } => format!("orphan {inode:?} of {of}"),
        Entry::Loose => "marker: fast writes may not be on stable storage".into(),
        Entry::PassedOn { session, volume, inode, .. } => {
            format!("session {session} has lost its mapping right of {inode:?} of volume {volume}")
        }
        Entry::Writing { inode } => format!("{inode:?} of {of} is being written"),
        Entry::Heal { record } => {
            let HealRecord { healed, live, differing } = record;
            format!("learning: healed up to {healed:?}, follows up to {live:?}, {} shards differ", differing.len())
        }
        Entry::Unsettled { shard: id, record } => {
            format!("{} fast writes to {} that some member may lack", record.writes.len(), shard(*id))
        }
        Entry::Hold { directory, name, intent } => {
            format!("a hold of {:?} in {directory:?} of {of} by intent {:032x}", lossy(name), intent.0)
        }
        Entry::Garbage { data, record } => format!("garbage {data:?} of {of}: up to {} shards", record.shards),
    }
}

fn inode_words(record: &InodeRecord) -> String {
    let InodeRecord { kind, mode, uid, gid, nlink, size, layout, .. } = record;
    let pieces: Vec<String> = layout.pieces.iter().map(|piece| format!("{:?}", piece.data)).collect();
    let rests = if pieces.is_empty() { String::new() } else { format!(" in {}", pieces.join(", ")) };
    format!("{kind:?} mode {mode:04o} owner {uid}:{gid} links {nlink} {size} bytes{rests}")
}

/// A shard's id in words.
pub fn shard(shard: ShardId) -> String {
    format!("shard {} of {:?} of volume {}", shard.index, shard.data, shard.volume)
}

fn shard_record(record: &ShardRecord) -> String {
    let Stamp { count, session, op } = record.stamp;
    let ShardRecord { length, home_blocks, reserved_blocks, .. } = record;
    let room = if reserved_blocks > home_blocks { format!(", room up to {reserved_blocks}") } else { String::new() };
    format!("{length} bytes, {home_blocks} blocks at home{room}, write {count} by session {session} op {:#x}", op.0)
}

/// A record of the journal: a line, and one for each change.
pub fn record(found: &LogRecord) -> String {
    let LogRecord { lsn, file, offset, generation, stable, applied, .. } = found;
    let mut text = format!("{} {file} at {offset} generation {generation} stable {}", lsn.0, stable.0);
    if *applied {
        text += " (in the index)";
    }
    match &found.body {
        LogBody::Malformed(why) => text += &format!(" malformed: {why}"),
        LogBody::Mark(marks) => {
            text += " mark: data files on stable storage";
            for (id, stamp) in marks {
                text += &format!("\n    {} up to write {}", shard(*id), stamp.count);
            }
        }
        LogBody::Change(Record { ring, partition, epoch, sequence, session, op_id, changes }) => {
            text += &format!(
                " change: ring {ring} partition {partition} epoch {epoch} sequence {sequence} session {session} op {:#x}",
                op_id.0
            );
            for one in changes {
                text += &format!("\n    {}", change(one));
            }
        }
    }
    text
}

/// A change.
pub fn change(change: &Change) -> String {
    let run_words = |run: &BlockRun| format!("{} blocks from {}", run.checksums.len(), run.first);
    match change {
        Change::Put { key, value } => match Entry::decode(key, value.clone()) {
            Ok((place, decoded)) => format!("put {}", entry(place, &decoded)),
            Err(why) => format!("put {key:?}, malformed: {why}"),
        },
        Change::Delete { key } => format!("delete {key:?}"),
        Change::WriteBlocks { shard: id, record, run, .. } => {
            format!("write {} of {}, now {}", run_words(run), shard(*id), shard_record(record))
        }
        Change::FreshBlocks { shard: id, record, run } => {
            format!("fresh at home: {} of {}, now {}", run_words(run), shard(*id), shard_record(record))
        }
        Change::CutShard { shard: id, record } => format!("cut {}, now {}", shard(*id), shard_record(record)),
        Change::PunchBlocks { shard: id, record, first, count } => {
            format!("punch {count} blocks from {first} of {}, now {}", shard(*id), shard_record(record))
        }
        Change::ReserveBlocks { shard: id, record, first, count } => {
            format!("room for {count} blocks from {first} of {}, now {}", shard(*id), shard_record(record))
        }
        Change::DropShard { shard: id } => format!("drop {}", shard(*id)),
        Change::Restamp { shard: id, record } => format!("another stamp: {}, now {}", shard(*id), shard_record(record)),
        Change::BeginLog => "begin another log: the replica is a learner from here on".into(),
    }
}

/// A shard and its blocks.
pub fn shard_blocks(found: &ShardBlocks) -> String {
    let runs: Vec<String> = found
        .runs()
        .into_iter()
        .map(|(first, count, state)| format!("{first}-{} {}", first + count - 1, state.text()))
        .collect();
    let bytes = found.file_bytes.map_or("no file".into(), |bytes| format!("{bytes} bytes"));
    format!(
        "{} ({bytes}) {}: {}\n    blocks {}",
        found.file,
        shard(found.shard),
        shard_record(&found.record),
        if runs.is_empty() { "none".into() } else { runs.join(", ") }
    )
}

/// A problem.
pub fn problem(problem: &Problem) -> String {
    format!("problem: {problem}")
}

/// Bytes as text.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
