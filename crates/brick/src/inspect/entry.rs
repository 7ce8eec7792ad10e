//! Decodes and checks keys and values of the index one by one. `docs/format/index.md` describes them.

use crate::CRC_BLOCKS;
use crate::machine::decode_group;
use bytes::Bytes;
use hekate_proto::*;

/// An entry of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// An inode.
    Inode { inode: InodeId, record: InodeRecord },
    /// The bytes of a small file, or a symlink's target.
    Content { inode: InodeId, bytes: Bytes },
    /// An extended attribute.
    Xattr { inode: InodeId, name: Bytes, value: Bytes },
    /// What a partition that has names of a directory knows of the directory.
    Stub { directory: InodeId, record: StubRecord },
    /// A name.
    Name { directory: InodeId, name: Name, record: NameRecord },
    /// A shard.
    Shard { shard: ShardId, record: ShardRecord },
    /// Checksums of 64 blocks of a shard.
    Checksums { shard: ShardId, group: u16, sums: Vec<u32> },
    /// A partition's counters.
    Partition { record: PartitionRecord },
    /// The intent of an op over several partitions.
    Intent { intent: IntentId, record: IntentRecord },
    /// A leg of such an op that this partition has executed.
    LegDone { intent: IntentId, number: u16 },
    /// The last result in a slot of a session.
    Session { session: SessionId, slot: u16, record: SessionRecord },
    /// An inode without a name, which may be open.
    Orphan { inode: InodeId },
    /// A file whose times may be older than those in answers.
    Writing { inode: InodeId },
    /// A marker: fast writes of the partition may not be on stable storage.
    Loose,
    /// A mapping right that a session has lost.
    PassedOn { session: SessionId, volume: VolumeId, inode: InodeId, since: MappedSince },
    /// A data id whose shards are to be removed.
    Garbage { data: DataId, record: GarbageRecord },
    /// A name that a rename of another partition holds; without a name: the volume's moves of directories.
    Hold {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: Bytes,
        /// The intent that holds it.
        intent: IntentId,
    },
    /// The progress of a learner.
    Heal { record: HealRecord },
    /// Fast writes of a shard that may not be on every member.
    Unsettled { shard: ShardId, record: UnsettledRecord },
}

/// Numbers of the tables in `docs/format/index.md`.
const OBJECTS: u8 = 1;
const WORK: u8 = 2;
const OWN: u8 = 3;
const XATTR_NAME_MAX: usize = 255;
const XATTR_VALUE_MAX: usize = 64 << 10;
const SYMLINK_MAX: usize = 4095;
const GROUPS_MAX: u16 = 16;

type Decoded<T> = std::result::Result<T, String>;

impl Entry {
    /// Decodes an entry. The error says what is wrong with it.
    pub fn decode(key: &Key, value: Bytes) -> Decoded<(KeyPrefix, Self)> {
        let (Some(kind), Some(place), Some(id)) = (key.kind(), key.prefix(), key.id()) else {
            return Err("a key of no known kind".into());
        };
        let table = key.as_bytes()[0];
        let known = match kind {
            Kind::Heal | Kind::Unsettled => OWN,
            _ if kind < Kind::Partition => OBJECTS,
            _ => WORK,
        };
        if table != known {
            return Err(format!("{kind:?} in table {table}"));
        }
        let entry = match table {
            OBJECTS => Self::decode_object(kind, id, key, place, value)?,
            WORK => Self::decode_work(kind, id, key, place, value)?,
            _ if kind == Kind::Unsettled => {
                let shard = ShardId { volume: place.volume, data: DataId(id), index: number(&key.rest(), 0)? };
                check(key.rest().len() == 8, "a shard's key of the wrong length")?;
                check(place.position == shard.position(), "the key's position is not the shard's")?;
                Self::Unsettled { shard, record: whole(value)? }
            }
            _ => Self::Heal { record: without_rest(&key.rest(), value)? },
        };
        Ok((place, entry))
    }

    fn decode_object(kind: Kind, id: u128, key: &Key, place: KeyPrefix, value: Bytes) -> Decoded<Self> {
        let rest = key.rest();
        let inode = InodeId::from_bits(id);
        // Stubs and names are also at other positions: where the directory's spread puts them.
        if kind < Kind::Stub && place.position != inode.position() {
            return Err(format!("the position of {inode:?} is {:08x}", inode.position().0));
        }
        match kind {
            Kind::Inode => Ok(Self::Inode { inode, record: without_rest(&rest, value)? }),
            Kind::Stub => Ok(Self::Stub { directory: inode, record: without_rest(&rest, value)? }),
            Kind::Content => {
                check(rest.is_empty(), "the key is longer than one of its kind")?;
                check(value.len() <= INLINE_MAX as usize, "more bytes than are stored beside an inode")?;
                Ok(Self::Content { inode, bytes: value })
            }
            Kind::Xattr => {
                check((1..=XATTR_NAME_MAX).contains(&rest.len()), "an attribute's name of the wrong length")?;
                check(value.len() <= XATTR_VALUE_MAX, "an attribute's value of over 64 KiB")?;
                Ok(Self::Xattr { inode, name: rest, value })
            }
            Kind::Name => {
                let name = Name::new(rest).map_err(|error| error.0.to_string())?;
                Ok(Self::Name { directory: inode, name, record: whole(value)? })
            }
            Kind::Shard => {
                let shard = ShardId { volume: place.volume, data: DataId(id), index: number(&rest, 0)? };
                check(rest.len() == 8, "a shard's key of the wrong length")?;
                check(place.position == shard.position(), "the key's position is not the shard's")?;
                Ok(Self::Shard { shard, record: whole(value)? })
            }
            _ => {
                let shard = ShardId { volume: place.volume, data: DataId(id), index: number(&rest, 0)? };
                let group = short(&rest, 8)?;
                check(rest.len() == 10, "a key of checksums of the wrong length")?;
                check(place.position == shard.position(), "the key's position is not the shard's")?;
                check(group < GROUPS_MAX, "checksums behind the end of a shard")?;
                let sums = decode_group(&value).map_err(|error| error.to_string())?;
                debug_assert_eq!(sums.len(), CRC_BLOCKS as usize);
                Ok(Self::Checksums { shard, group, sums: sums.to_vec() })
            }
        }
    }

    fn decode_work(kind: Kind, id: u128, key: &Key, place: KeyPrefix, value: Bytes) -> Decoded<Self> {
        let rest = key.rest();
        let partitions_own = !matches!(kind, Kind::Orphan | Kind::Writing | Kind::Garbage | Kind::Hold);
        check(!partitions_own || place.volume == VolumeId(0), "a partition's own entry in a volume")?;
        match kind {
            Kind::Partition => Ok(Self::Partition { record: without_rest(&rest, value)? }),
            Kind::Intent => Ok(Self::Intent { intent: IntentId(id), record: without_rest(&rest, value)? }),
            Kind::LegDone => {
                check(rest.len() == 2, "a leg's key of the wrong length")?;
                // A leg that makes a directory has the inode's id: no client learns it before the directory's name
                // exists.
                check(value[..] == [0] || value.len() == 16, "a leg's value is one byte, 0, or an inode's id")?;
                Ok(Self::LegDone { intent: IntentId(id), number: short(&rest, 0)? })
            }
            Kind::Session => {
                check(rest.len() == 10, "a session's key of the wrong length")?;
                let (session, slot) = (SessionId(number(&rest, 0)?), short(&rest, 8)?);
                let record: SessionRecord = whole(value)?;
                check(record.op_id.0 & 0xff == u64::from(slot), "the result of an op of another slot")?;
                Reply::from_bytes(record.reply.clone()).map_err(|error| format!("its reply: {error}"))?;
                Ok(Self::Session { session, slot, record })
            }
            Kind::Orphan => {
                let inode = InodeId::from_bits(id);
                check(rest.is_empty(), "the key is longer than one of its kind")?;
                check(matches!(value[..], [0 | 1]), "an orphan's value is one byte, 0 or 1")?;
                check(place.position == inode.position(), "the key's position is not the inode's")?;
                Ok(Self::Orphan { inode })
            }
            Kind::Writing => {
                let inode = InodeId::from_bits(id);
                check(rest.is_empty(), "the key is longer than one of its kind")?;
                check(matches!(value[..], [0 | 1]), "the value of a file that is being written is one byte, 0 or 1")?;
                check(place.position == inode.position(), "the key's position is not the inode's")?;
                Ok(Self::Writing { inode })
            }
            Kind::Loose => {
                check(rest.is_empty(), "the key is longer than one of its kind")?;
                check(value[..] == [0], "the value of the marker of fast writes is one byte, 0")?;
                Ok(Self::Loose)
            }
            Kind::PassedOn => {
                check(rest.len() == 28, "the key of a lost mapping right of the wrong length")?;
                // The volume is bytes 8 to 11.
                let (session, volume) = (SessionId(number(&rest, 0)?), VolumeId(number(&rest, 4)? as u32));
                let inode = InodeId::from_bits(u128::from(number(&rest, 12)?) << 64 | u128::from(number(&rest, 20)?));
                Ok(Self::PassedOn { session, volume, inode, since: whole(value)? })
            }
            Kind::Hold => {
                check(rest.len() <= XATTR_NAME_MAX, "a name of more than 255 bytes")?;
                Ok(Self::Hold { directory: InodeId::from_bits(id), name: rest, intent: whole(value)? })
            }
            _ => Ok(Self::Garbage { data: DataId(id), record: without_rest(&rest, value)? }),
        }
    }

    /// The kind of the entry.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Inode { .. } => Kind::Inode,
            Self::Content { .. } => Kind::Content,
            Self::Xattr { .. } => Kind::Xattr,
            Self::Stub { .. } => Kind::Stub,
            Self::Name { .. } => Kind::Name,
            Self::Shard { .. } => Kind::Shard,
            Self::Checksums { .. } => Kind::Checksums,
            Self::Partition { .. } => Kind::Partition,
            Self::Intent { .. } => Kind::Intent,
            Self::LegDone { .. } => Kind::LegDone,
            Self::Session { .. } => Kind::Session,
            Self::Orphan { .. } => Kind::Orphan,
            Self::Writing { .. } => Kind::Writing,
            Self::Loose => Kind::Loose,
            Self::PassedOn { .. } => Kind::PassedOn,
            Self::Garbage { .. } => Kind::Garbage,
            Self::Hold { .. } => Kind::Hold,
            Self::Heal { .. } => Kind::Heal,
            Self::Unsettled { .. } => Kind::Unsettled,
        }
    }

    /// Whether content of this length, in bytes, can be a symlink's target.
    pub(super) fn fits_symlink(bytes: usize) -> bool {
        (1..=SYMLINK_MAX).contains(&bytes)
    }
}

fn check(holds: bool, else_say: &str) -> Decoded<()> {
    if holds { Ok(()) } else { Err(else_say.into()) }
}

fn whole<T: Wire>(value: Bytes) -> Decoded<T> {
    T::from_bytes(value).map_err(|error| error.to_string())
}

/// Decodes the value of a key that ends with its kind.
fn without_rest<T: Wire>(rest: &Bytes, value: Bytes) -> Decoded<T> {
    check(rest.is_empty(), "the key is longer than one of its kind")?;
    whole(value)
}

fn number(rest: &Bytes, at: usize) -> Decoded<u64> {
    let bytes = rest.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_be_bytes).ok_or_else(|| "a key that is too short".into())
}

fn short(rest: &Bytes, at: usize) -> Decoded<u16> {
    let bytes = rest.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u16::from_be_bytes).ok_or_else(|| "a key that is too short".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_legs_orphans_and_files_that_are_written_are_those_of_the_document() {
        let leg = Key::leg_done(RingId(1), Position(0), IntentId(5), 7);
        let orphan = Key::orphan(RingId(1), VolumeId(1), InodeId::new(3, 1, 9));
        let decodes = |key: &Key, value: &[u8]| Entry::decode(key, Bytes::copy_from_slice(value)).is_ok();
        assert!([&[0][..], &[7; 16]].into_iter().all(|value| decodes(&leg, value)));
        assert!([&[][..], &[1], &[0, 0], &[7; 15]].into_iter().all(|value| !decodes(&leg, value)));
        assert!([[0], [1]].into_iter().all(|value| decodes(&orphan, &value)));
        let written = Key::writing(RingId(1), VolumeId(1), InodeId::new(3, 1, 9));
        assert!([[0], [1]].into_iter().all(|value| decodes(&written, &value)));
        for key in [&orphan, &written] {
            assert!([&[][..], &[2], &[0, 0]].into_iter().all(|value| !decodes(key, value)));
        }
    }

    #[test]
    fn the_key_of_a_lost_mapping_right_has_session_volume_and_inode() {
        let (session, volume, inode) =
            (SessionId(u64::MAX - 1), VolumeId(0xfedc_ba98), InodeId::new(3, 0xffff_0001, 9));
        let since = MappedSince { term: 7, number: 8 };
        let key = Key::passed_on(RingId(1), Position(0), session, volume, inode);
        assert!(key.is_well_formed());
        let (_, entry) = Entry::decode(&key, since.to_bytes()).unwrap();
        assert_eq!(entry, Entry::PassedOn { session, volume, inode, since });
        assert!(Entry::decode(&key, Bytes::from_static(&[0; 17])).is_err());
    }
}
