//! Where a file or directory rests: its partition, replicas, pieces and shards, with what each replica has of them.
//!
//! Whatever is asked of several replicas is read under the partition's lock, so a write that is on its way is on all of
//! them or on none. Different shards may be of different moments.

use crate::node::Node;
use crate::partition::{Hosted, HostedRing};
use hekate_brick::Brick;
use hekate_cluster::VolumeInfo;
use hekate_proto::*;
use hekate_replica::Partition;
use parking_lot::RwLockReadGuard;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shards in one answer: some 600 bytes each with three replicas, in a frame of 16 MiB.
const SHARDS_MAX: usize = 2048;
/// Shards that one answer looks for, there or not: 256 GiB of a file with holes.
const SHARDS_TRIED_MAX: usize = 65_536;

/// How long what is on its way to the members is waited for.
const SETTLED_LIMIT: Duration = Duration::from_secs(1);
const SETTLED_PAUSE: Duration = Duration::from_millis(1);

/// What is looked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WhereRequest {
    /// The volume's name.
    pub volume: String,
    /// The path from its root: names are bytes.
    pub path: Vec<u8>,
    /// Shards are listed from this byte of the file on.
    pub offset: u64,
}

/// Answers; `NotFound` and `NotDirectory` are of the path.
pub fn where_is(node: &Node, wanted: &WhereRequest) -> Result<Value> {
    let volume = volume_called(node, &wanted.volume)?;
    let ring = node.ring(volume.ring)?;
    let infos = node.registry.bricks()?.into_iter();
    let directories = infos.map(|info| (info.brick, info.directory)).collect();
    Search { volume: &volume, ring: &ring, directories }.answer(wanted)
}

fn volume_called(node: &Node, name: &str) -> Result<Arc<VolumeInfo>> {
    let volumes: Vec<_> = node.volumes.read().values().cloned().collect();
    let found = volumes.iter().find(|volume| volume.name == name && !volume.deleting);
    found.cloned().ok_or_else(|| {
        let mut names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        names.sort_unstable();
        Error::invalid(format!("there is no volume called {name:?}; there are: {}", names.join(", ")))
    })
}

struct Search<'a> {
    volume: &'a VolumeInfo,
    ring: &'a HostedRing,
    directories: HashMap<BrickId, String>,
}

impl Search<'_> {
    fn answer(&self, wanted: &WhereRequest) -> Result<Value> {
        let inode = self.walk(&wanted.path)?;
        let (place, record) = self.inode(inode)?;
        let mut answer = json!({
            "volume": self.volume.name,
            "volume_id": self.volume.volume,
            "ring": self.ring.ring,
            "path": String::from_utf8_lossy(&wanted.path),
            "inode": format!("{inode:?}"),
            "number": inode.number(),
            "kind": format!("{:?}", record.kind).to_lowercase(),
            "size": record.size,
            "place": place,
        });
        if record.kind == NodeKind::Directory {
            answer["names"] = self.names(inode, record.spread)?;
        }
        if record.kind == NodeKind::File {
            answer["beside_the_inode"] = record.layout.is_inline().into();
            answer["pieces"] = pieces(&record.layout, record.size);
            let (shards, next) = self.shards(&record, wanted.offset)?;
            answer["shards"] = shards.into();
            answer["next_offset"] = next.into();
        }
        Ok(answer)
    }

    /// The inode under a path. Symbolic links are not followed.
    fn walk(&self, path: &[u8]) -> Result<InodeId> {
        let mut at = ROOT;
        let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        for name in names {
            let name = Name::new(name.to_vec().into()).map_err(|malformed| Error::invalid(malformed.0))?;
            at = self.name_in(at, &name)?;
        }
        Ok(at)
    }

    fn name_in(&self, directory: InodeId, name: &Name) -> Result<InodeId> {
        // Where names rest is the directory's to say.
        let spread = match self.value::<InodeRecord>(&self.key(directory, Kind::Inode))?.ok_or(Error::NotFound)? {
            InodeRecord { kind: NodeKind::Directory, spread, .. } => spread,
            _ => return Err(Error::NotDirectory),
        };
        let position = name_position(directory, name, spread);
        let place = Place { ring: self.ring.ring, position, volume: self.volume.volume };
        let found: Option<NameRecord> = self.value(&Key::name(place, directory, name.as_bytes()))?;
        found.map(|record| record.inode).ok_or(Error::NotFound)
    }

    fn key(&self, inode: InodeId, kind: Kind) -> Key {
        Key::inode(self.ring.ring, self.volume.volume, inode, kind)
    }

    fn partition_of(&self, position: Position) -> PartitionNumber {
        position.partition(self.ring.count())
    }

    /// The value of a key, as the leader of its partition has it.
    fn value<T: Wire>(&self, key: &Key) -> Result<Option<T>> {
        let place = key.place().ok_or_else(|| Error::bug("a key without a place"))?;
        let (_, leader) = self.ring.leader(self.partition_of(place.position))?;
        Ok(leader.brick.get(key)?.map(T::from_bytes).transpose()?)
    }

    /// The inode as its leader has it, and where that is.
    fn inode(&self, id: InodeId) -> Result<(Value, InodeRecord)> {
        let key = self.key(id, Kind::Inode);
        let record = self.value(&key)?.ok_or(Error::NotFound)?;
        let place = self.place_of(id.position(), |brick| {
            let held: Option<InodeRecord> = brick.get(&key)?.map(InodeRecord::from_bytes).transpose()?;
            Ok(held.map(|held| json!({ "change": held.change, "size": held.size, "mtime": held.mtime })))
        })?;
        Ok((place, record))
    }

    /// Where a directory's names rest: each partition that shares them.
    fn names(&self, id: InodeId, spread: u32) -> Result<Value> {
        if !is_spread(spread, self.ring.count()) {
            return Err(Error::Damaged { what: format!("a directory with names in {spread} partitions") });
        }
        name_positions(id, spread).map(|position| self.stub(id, position)).collect()
    }

    fn stub(&self, id: InodeId, position: Position) -> Result<Value> {
        let key = Key::stub(Place { ring: self.ring.ring, position, volume: self.volume.volume }, id);
        self.place_of(position, |brick| {
            let held: Option<StubRecord> = brick.get(&key)?.map(StubRecord::from_bytes).transpose()?;
            Ok(held
                .map(|held| json!({ "change": held.change, "entries": held.entries, "directories": held.directories })))
        })
    }

    /// The shards of a file from a byte on, and where to go on if that is not all.
    fn shards(&self, record: &InodeRecord, offset: u64) -> Result<(Vec<Value>, Option<u64>)> {
        let (mut found, mut tried) = (Vec::new(), 0);
        let mut at = offset;
        while at < record.size {
            if found.len() == SHARDS_MAX || tried == SHARDS_TRIED_MAX {
                return Ok((found, Some(at)));
            }
            let runs = record.layout.shard_runs(self.volume.volume, at, SHARD_BYTES as usize);
            let Some((shard, in_shard, length)) = runs.first() else { break };
            if let Some(mut row) = self.shard(*shard)? {
                row["file_offset"] = (at - in_shard).into();
                found.push(row);
            }
            (at, tried) = (at + *length as u64, tried + 1);
        }
        Ok((found, None))
    }

    /// `None`: no replica has it, so it is a hole.
    fn shard(&self, shard: ShardId) -> Result<Option<Value>> {
        let mut row = self.place_of(shard.position(), |brick| {
            let held = brick.shard(self.ring.ring, shard)?;
            Ok(held.map(|held| json!({ "stamp": stamp_text(held.stamp), "length": held.length })))
        })?;
        let replicas = row["replicas"].as_array().into_iter().flatten();
        if replicas.clone().all(|replica| replica["has"].is_null()) {
            return Ok(None);
        }
        row["data"] = format!("{:032x}", shard.data.0).into();
        row["index"] = shard.index.into();
        Ok(Some(row))
    }

    /// A partition with its replicas, and what each has of something.
    fn place_of(&self, position: Position, has: impl Fn(&Brick) -> Result<Option<Value>>) -> Result<Value> {
        let number = self.partition_of(position);
        let (leader, hosted) = self.ring.leader(number)?;
        let (leader, members) = (leader.brick, self.ring.members(number)?);
        let mut replicas = Vec::new();
        let settled = settled(hosted);
        for brick in &members {
            // One replica that cannot be read does not hide what the others have.
            let (held, error) = match has(brick) {
                Ok(held) => (held, None),
                Err(error) => (None, Some(error.to_string())),
            };
            replicas.push(json!({
                "brick": brick.id(), "directory": self.directories.get(&brick.id()), "leader": brick.id() == leader,
                "has": held, "error": error, "sequence": brick.position(self.ring.ring, number).sequence,
            }));
        }
        let equal = replicas.iter().all(|one| one["error"].is_null() && one["has"] == replicas[0]["has"]);
        Ok(json!({
            "partition": number, "position": format!("{:08x}", position.0), "epoch": settled.view().epoch,
            "replicas": replicas, "equal": equal,
        }))
    }
}

/// The leader, when its members have what it has; one that waits for a member is shown as it is.
fn settled(hosted: &Hosted) -> RwLockReadGuard<'_, Partition> {
    let begun = Instant::now();
    loop {
        let partition = hosted.partition.read();
        if partition.is_settled() || begun.elapsed() > SETTLED_LIMIT {
            return partition;
        }
        drop(partition);
        std::thread::sleep(SETTLED_PAUSE);
    }
}

fn stamp_text(Stamp { count, session, op }: Stamp) -> String {
    format!("{count}/{session}/{op}")
}

/// A file's pieces, with the bytes of the file that they hold.
fn pieces(layout: &Layout, size: u64) -> Value {
    let mut start = 0u64;
    let piece = |piece: &Piece| {
        let from = start;
        start = start.saturating_add(piece.length);
        let length = start.min(size).saturating_sub(from);
        json!({ "data": format!("{:032x}", piece.data.0), "file_offset": from, "length": length })
    };
    layout.pieces.iter().map(piece).collect()
}
