//! Where a file or directory is: its partition, replicas, pieces and shards, and what each replica has of them. Shards
//! are read one after another, so two of them may be of different moments.

mod held;

pub use held::held_here;

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use hekate_cluster::VolumeInfo;
use hekate_control::Where;
use hekate_control::location::{
    Contents, InodeCopy, Place, PlacedReplica, ShardCopy, ShardPlace, StubCopy, WhereReply,
};
use hekate_control::peer::{HELD_LOOKS_MAX, HeldCopy, Look, LookAt};
use hekate_proto::*;
use hekate_threads::HashMap;
use held::Holders;

/// Shards in one answer: some 600 bytes each with three replicas, which is far below a frame of 16 MiB.
const SHARDS_MAX: usize = 2048;
/// Shards that one answer looks for, whether they exist or not: 256 GiB of a file with holes.
const SHARDS_TRIED_MAX: usize = 65_536;

/// Where a file or directory is stored.
///
/// # Errors
///
/// `NotFound` and `NotDirectory` for the path, `Invalid` for the volume; those of the replicas.
pub fn where_is(node: &Node, wanted: &Where) -> Result<WhereReply> {
    let volume = node.volumes.called(&wanted.volume).ok_or_else(|| node.no_volume(&wanted.volume))?;
    let ring = node.ring(volume.ring)?;
    let infos = node.cluster.registry().bricks()?.into_iter();
    let directories = infos.map(|info| (info.brick, info.directory)).collect();
    let holders = Holders::new(node, &ring)?;
    Search { volume: &volume, ring: &ring, directories, holders }.answer(wanted)
}

struct Search<'a> {
    volume: &'a VolumeInfo,
    ring: &'a HostedRing,
    directories: HashMap<BrickId, String>,
    holders: Holders<'a>,
}

impl Search<'_> {
    fn answer(&self, wanted: &Where) -> Result<WhereReply> {
        let inode = self.walk(&wanted.path)?;
        let (place, record) = self.inode(inode)?;
        Ok(WhereReply {
            volume: self.volume.name.clone(),
            volume_id: self.volume.volume,
            ring: self.ring.ring,
            path: String::from_utf8_lossy(&wanted.path).into_owned(),
            inode: format!("{inode:?}"),
            number: inode.number(),
            kind: format!("{:?}", record.kind).to_lowercase(),
            size: record.size,
            place,
            contents: self.contents(inode, &record, wanted.offset)?,
        })
    }

    fn contents(&self, inode: InodeId, record: &InodeRecord, offset: u64) -> Result<Contents> {
        Ok(match record.kind {
            NodeKind::Directory => Contents::Directory { names: self.names(inode, record.spread)? },
            NodeKind::File => {
                let (shards, next_offset) = self.shards(record, offset)?;
                let pieces = pieces(&record.layout, record.size);
                Contents::File { beside_the_inode: record.layout.is_inline(), pieces, shards, next_offset }
            }
            _ => Contents::Other {},
        })
    }

    /// The inode at a path. Symbolic links are not followed.
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
        // The directory's inode says in which partitions its names are.
        let spread = match self.value::<InodeRecord>(&self.key(directory, Kind::Inode))?.ok_or(Error::NotFound)? {
            InodeRecord { kind: NodeKind::Directory, spread, .. } => spread,
            _ => return Err(Error::NotDirectory),
        };
        let position = name_position(directory, name, spread);
        let place = KeyPrefix { ring: self.ring.ring, position, volume: self.volume.volume };
        let found: Option<NameRecord> = self.value(&Key::name(place, directory, name.as_bytes()))?;
        found.map(|record| record.inode).ok_or(Error::NotFound)
    }

    fn key(&self, inode: InodeId, kind: Kind) -> Key {
        Key::inode(self.ring.ring, self.volume.volume, inode, kind)
    }

    fn partition_of(&self, position: Position) -> PartitionNumber {
        position.partition(self.ring.count())
    }

    fn look(&self, position: Position, what: LookAt) -> Look {
        Look { partition: self.partition_of(position), what }
    }

    /// The value of a key at the leader of its partition.
    fn value<T: Wire>(&self, key: &Key) -> Result<Option<T>> {
        let place = key.prefix().ok_or_else(|| Error::bug("a key of an inode has no position"))?;
        let look = self.look(place.position, LookAt::Key(key.as_bytes().to_vec()));
        let found = self.holders.by_leader(look)?;
        Ok(found.map(|value| T::from_bytes(value.into())).transpose()?)
    }

    /// An inode as its leader has it, and its partition with what each replica has.
    fn inode(&self, id: InodeId) -> Result<(Place<InodeCopy>, InodeRecord)> {
        let key = self.key(id, Kind::Inode);
        let record = self.value(&key)?.ok_or(Error::NotFound)?;
        let show = |held: InodeRecord| InodeCopy { change: held.change, mtime: held.mtime, size: held.size };
        let place = self.place_of_key(id.position(), &key, show)?;
        Ok((place, record))
    }

    /// The partitions that share a directory's names, with what each replica has.
    fn names(&self, id: InodeId, spread: u32) -> Result<Vec<Place<StubCopy>>> {
        if !is_spread(spread, self.ring.count()) {
            return Err(Error::Damaged { what: format!("a directory with names in {spread} partitions") });
        }
        let stub = |position| {
            let key = Key::stub(KeyPrefix { ring: self.ring.ring, position, volume: self.volume.volume }, id);
            self.place_of_key(position, &key, |held: StubRecord| StubCopy {
                change: held.change,
                directories: held.directories,
                entries: held.entries,
            })
        };
        name_positions(id, spread).map(stub).collect()
    }

    /// The shards of a file from a byte on, and the byte to continue at if there are more.
    fn shards(&self, record: &InodeRecord, offset: u64) -> Result<(Vec<ShardPlace>, Option<u64>)> {
        let (mut found, mut tried) = (Vec::new(), 0);
        let mut at = offset;
        // A client that writes the file need not have told its end yet.
        let end = record.size.max(record.size_high);
        while at < end {
            if found.len() >= SHARDS_MAX || tried >= SHARDS_TRIED_MAX {
                return Ok((found, Some(at)));
            }
            let mut next = Vec::new();
            while at < end && next.len() < HELD_LOOKS_MAX {
                let runs = record.layout.shard_runs(self.volume.volume, at, SHARD_BYTES as usize);
                let Some((shard, in_shard, length)) = runs.first() else { break };
                next.push((*shard, at - in_shard));
                at += *length as u64;
            }
            if next.is_empty() {
                break;
            }
            tried += next.len();
            let look =
                |(shard, _): &(ShardId, u64)| self.look(shard.position(), LookAt::Shard(shard.to_bytes().to_vec()));
            let rows = self.holders.by_all(&next.iter().map(look).collect::<Vec<_>>())?;
            for ((shard, from), held) in next.into_iter().zip(rows) {
                found.extend(self.shard(shard, from, held)?);
            }
        }
        Ok((found, None))
    }

    /// A shard's row; `None` if no replica has the shard, so that it is a hole.
    fn shard(&self, shard: ShardId, file_offset: u64, held: Vec<HeldCopy>) -> Result<Option<ShardPlace>> {
        if held.iter().all(|replica| replica.has.is_none() && replica.error.is_none()) {
            return Ok(None);
        }
        let show = |held: ShardRecord| ShardCopy { length: held.length, stamp: stamp_text(held.stamp) };
        let place = self.place_of(shard.position(), held, show)?;
        Ok(Some(ShardPlace { place, data: format!("{:032x}", shard.data.0), index: shard.index, file_offset }))
    }

    fn place_of_key<T: Wire, C: PartialEq>(
        &self,
        position: Position,
        key: &Key,
        show: impl Fn(T) -> C,
    ) -> Result<Place<C>> {
        let looks = [self.look(position, LookAt::Key(key.as_bytes().to_vec()))];
        let held = self.holders.by_all(&looks)?.pop().unwrap_or_default();
        self.place_of(position, held, show)
    }

    /// A partition with its replicas, and what each has of an item.
    fn place_of<T: Wire, C: PartialEq>(
        &self,
        position: Position,
        held: Vec<HeldCopy>,
        show: impl Fn(T) -> C,
    ) -> Result<Place<C>> {
        let number = self.partition_of(position);
        let view = self.ring.view(number)?;
        let mut replicas = Vec::new();
        for HeldCopy { brick, sequence, has, mut error } in held {
            let has = match has.map(|has| T::from_bytes(has.into())).transpose() {
                Ok(has) => has.map(&show),
                Err(malformed) => {
                    error = Some(malformed.0.into());
                    None
                }
            };
            let directory = self.directories.get(&brick).cloned();
            replicas.push(PlacedReplica { brick, directory, leader: brick == view.leader, has, error, sequence });
        }
        let equal = replicas.iter().all(|one| one.error.is_none() && one.has == replicas[0].has);
        let position = format!("{:08x}", position.0);
        Ok(Place { partition: number, position, epoch: view.epoch, replicas, equal })
    }
}

fn stamp_text(Stamp { count, session, op }: Stamp) -> String {
    format!("{count}/{session}/{op}")
}

/// A file's pieces, and the bytes of the file that each holds.
fn pieces(layout: &Layout, size: u64) -> Vec<hekate_control::location::Piece> {
    let mut start = 0u64;
    let piece = |piece: &Piece| {
        let file_offset = start;
        start = start.saturating_add(piece.length);
        let length = start.min(size).saturating_sub(file_offset);
        hekate_control::location::Piece { data: format!("{:032x}", piece.data.0), file_offset, length }
    };
    layout.pieces.iter().map(piece).collect()
}
