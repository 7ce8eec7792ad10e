//! Structures of a brick as JSON, each with a `type`. Ids are text, as in tables; bytes that are not UTF-8 are
//! `{"hex": …}`.

use super::words;
use hekate_brick::inspect::{Entry, LogBody, LogRecord, Problem, Segment, SegmentUse, ShardBlocks};
use hekate_proto::*;
use serde_json::{Map, Value, json};

/// An entry of the index.
pub fn entry(place: KeyPrefix, entry: &Entry) -> Value {
    let mut fields = entry_fields(entry);
    for (name, value) in [
        ("type", json!("entry")),
        ("kind", json!(format!("{:?}", entry.kind()))),
        ("ring", json!(place.ring)),
        ("position", json!(format!("{:08x}", place.position.0))),
        ("volume", json!(place.volume)),
    ] {
        fields.insert(name.into(), value);
    }
    Value::Object(fields)
}

fn entry_fields(entry: &Entry) -> Map<String, Value> {
    let value = match entry {
        Entry::Inode { inode, record } => json!({ "inode": id(*inode), "record": inode_record(record) }),
        Entry::Content { inode, bytes } => json!({ "inode": id(*inode), "bytes": bytes.len() }),
        Entry::Xattr { inode, name, value } => {
            json!({ "inode": id(*inode), "name": text(name), "bytes": value.len() })
        }
        Entry::Stub { directory, record } => json!({ "directory": id(*directory), "record": {
            "alive": record.alive, "mode": record.mode, "uid": record.uid, "gid": record.gid, "spread": record.spread,
            "entries": record.entries, "directories": record.directories, "mtime": record.mtime,
            "change": record.change,
        } }),
        Entry::Name { directory, name, record } => json!({
            "directory": id(*directory), "name": text(name.as_bytes()), "inode": id(record.inode),
            "node": format!("{:?}", record.kind),
        }),
        Entry::Shard { shard, record } => json!({ "shard": shard_id(*shard), "record": shard_record(record) }),
        Entry::Checksums { shard, group, sums } => {
            json!({ "shard": shard_id(*shard), "group": group, "checksums": sums })
        }
        Entry::Partition { record } => json!({ "numbers_reserved": record.numbers_reserved }),
        Entry::Intent { intent, record } => json!({
            "intent": format!("{:032x}", intent.0), "what": record.what, "of_volume": record.volume,
            "legs": record.legs.iter().map(|leg| json!({
                "position": format!("{:08x}", leg.position.0), "number": leg.number, "leg": format!("{:?}", leg.leg),
            })).collect::<Vec<_>>(),
        }),
        Entry::LegDone { intent, number } => json!({ "intent": format!("{:032x}", intent.0), "number": number }),
        Entry::Session { session, slot, record } => {
            json!({ "session": session, "slot": slot, "op": record.op_id, "reply_bytes": record.reply.len() })
        }
        Entry::Loose => json!({}),
        Entry::PassedOn { session, volume, inode, since } => json!({
            "session": session, "of_volume": volume, "inode": id(*inode), "term": since.term, "number": since.number,
        }),
        Entry::Orphan { inode } | Entry::Writing { inode } => json!({ "inode": id(*inode) }),
        Entry::Heal { record } => {
            let differing: Vec<Value> = record.differing.iter().map(|shard| shard_id(*shard)).collect();
            let (healed, live) = (format!("{:?}", record.healed), format!("{:?}", record.live));
            json!({ "entry": "heal", "healed": healed, "live": live, "differing": differing })
        }
        Entry::Unsettled { shard, record } => {
            let write = |write: &FastWrite| json!({ "stamp": stamp(&write.stamp), "first": write.first, "blocks": write.blocks });
            json!({ "shard": shard_id(*shard), "writes": record.writes.iter().map(write).collect::<Vec<_>>() })
        }
        Entry::Hold { directory, name, intent } => {
            json!({ "directory": format!("{directory:?}"), "name": words::lossy(name), "intent": format!("{:032x}", intent.0) })
        }
        Entry::Garbage { data, record } => json!({ "data": format!("{:032x}", data.0), "shards": record.shards }),
    };
    match value {
        Value::Object(fields) => fields,
        other => Map::from_iter([("value".to_string(), other)]),
    }
}

fn inode_record(record: &InodeRecord) -> Value {
    json!({
        "kind": format!("{:?}", record.kind), "mode": record.mode, "uid": record.uid, "gid": record.gid,
        "nlink": record.nlink, "size": record.size, "device": record.device, "atime": record.atime,
        "mtime": record.mtime, "ctime": record.ctime, "btime": record.btime, "change": record.change,
        "layout_version": record.layout.version,
        "pieces": record.layout.pieces.iter().map(|piece| json!({
            "data": format!("{:032x}", piece.data.0), "length": piece.length,
        })).collect::<Vec<_>>(),
        "spread": record.spread, "parent": id(record.parent), "size_high": record.size_high, "has_capability": record.has_capability, "has_xattrs": record.has_xattrs,
    })
}

/// An inode's id.
pub fn id(inode: InodeId) -> String {
    format!("{inode:?}")
}

fn shard_id(shard: ShardId) -> Value {
    json!({ "volume": shard.volume, "data": format!("{:032x}", shard.data.0), "index": shard.index })
}

fn stamp(stamp: &Stamp) -> Value {
    json!({ "count": stamp.count, "session": stamp.session, "op": stamp.op })
}

fn shard_record(record: &ShardRecord) -> Value {
    json!({ "stamp": stamp(&record.stamp), "length": record.length, "home_blocks": record.home_blocks, "reserved_blocks": record.reserved_blocks })
}

/// Bytes as text if they are UTF-8, else in hex.
pub fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

/// A record of the journal.
pub fn record(found: &LogRecord) -> Value {
    let mut value = json!({
        "type": "record", "lsn": found.lsn.0, "file": found.file, "offset": found.offset,
        "generation": found.generation, "stable": found.stable.0, "applied": found.applied,
    });
    match &found.body {
        LogBody::Malformed(why) => value["malformed"] = json!(why),
        LogBody::Mark(marks) => {
            value["kind"] = json!("mark");
            let row = |(shard, at): &(ShardId, Stamp)| json!({ "shard": shard_id(*shard), "stamp": stamp(at) });
            value["shards"] = marks.iter().map(row).collect();
        }
        LogBody::Change(record) => {
            value["kind"] = json!("change");
            value["ring"] = json!(record.ring);
            value["partition"] = json!(record.partition);
            value["epoch"] = json!(record.epoch);
            value["sequence"] = json!(record.sequence);
            value["session"] = json!(record.session);
            value["op"] = json!(record.op_id);
            value["changes"] = record.changes.iter().map(change).collect();
        }
    }
    value
}

fn change(change: &Change) -> Value {
    let run = |run: &BlockRun| json!({ "first": run.first, "checksums": run.checksums });
    let mut value = match change {
        Change::Put { key, value } => match Entry::decode(key, value.clone()) {
            Ok((place, decoded)) => json!({ "change": "put", "entry": entry(place, &decoded) }),
            Err(why) => json!({ "change": "put", "key": format!("{key:?}"), "malformed": why }),
        },
        Change::Delete { key } => json!({ "change": "delete", "key": format!("{key:?}") }),
        Change::WriteBlocks { shard, record, run: blocks, .. } => {
            json!({ "change": "write_blocks", "shard": shard_id(*shard), "record": shard_record(record), "run": run(blocks) })
        }
        Change::FreshBlocks { shard, record, run: blocks } => {
            json!({ "change": "fresh_blocks", "shard": shard_id(*shard), "record": shard_record(record), "run": run(blocks) })
        }
        Change::CutShard { shard, record } => {
            json!({ "change": "cut_shard", "shard": shard_id(*shard), "record": shard_record(record) })
        }
        Change::PunchBlocks { shard, record, first, count } => {
            let (shard, record) = (shard_id(*shard), shard_record(record));
            json!({ "change": "punch_blocks", "shard": shard, "record": record, "first": first, "count": count })
        }
        Change::ReserveBlocks { shard, record, first, count } => {
            let (shard, record) = (shard_id(*shard), shard_record(record));
            json!({ "change": "reserve_blocks", "shard": shard, "record": record, "first": first, "count": count })
        }
        Change::DropShard { shard } => json!({ "change": "drop_shard", "shard": shard_id(*shard) }),
        Change::Restamp { shard, record } => {
            json!({ "change": "restamp", "shard": shard_id(*shard), "record": shard_record(record) })
        }
        Change::BeginLog => json!({ "change": "begin_log" }),
    };
    value["words"] = json!(words::change(change));
    value
}

/// A file of the journal.
pub fn segment(segment: &Segment) -> Value {
    let why = match &segment.used {
        SegmentUse::Unreadable(why) => json!(why),
        _ => Value::Null,
    };
    json!({ "type": "segment", "file": segment.file, "number": segment.number, "state": segment_use(&segment.used), "why": why })
}

/// The use of a segment, as a word.
pub fn segment_use(used: &SegmentUse) -> &'static str {
    match used {
        SegmentUse::InUse => "in use",
        SegmentUse::Recyclable => "recyclable",
        SegmentUse::Zero => "zero",
        SegmentUse::Stale => "stale",
        SegmentUse::Unreadable(_) => "unreadable",
    }
}

/// A shard and its blocks.
pub fn shard_blocks(found: &ShardBlocks) -> Value {
    let run = |(first, count, state): (u32, u32, hekate_brick::inspect::BlockState)| json!({ "first": first, "count": count, "state": state.text() });
    json!({
        "type": "shard", "file": found.file, "file_bytes": found.file_bytes, "ring": found.ring,
        "shard": shard_id(found.shard), "record": shard_record(&found.record),
        "blocks": found.runs().into_iter().map(run).collect::<Vec<_>>(),
    })
}

/// A problem.
pub fn problem(problem: &Problem) -> Value {
    json!({ "type": "problem", "file": problem.file, "offset": problem.offset, "what": problem.what })
}
