//! Keys of the index, as described in `docs/format/index.md`.
//!
//! table (1) | ring (2) | position (4) | volume (4) | id (16) | kind (1) | rest, all big-endian. So the order of
//! bytes is the order of the ring, a partition is one range of each table, and doubling the partitions splits each
//! range.
//!
//! The id has its random bits last, after the number (`docs/adr/0007-key-order.md`): inodes that are made one after
//! the other at one position are neighbours in the index, so a checkpoint fills pages instead of writing to one page
//! for each inode.

use crate::ids::*;
use bytes::Bytes;

/// Kind of a record in the index. Its comment names the table of the key: `Work`, a partition's work in progress;
/// `Own`, what a replica stores for itself; otherwise files and directories. Numbers in parentheses are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// `InodeRecord`.
    Inode = 1,
    /// The bytes of a small file, or a symlink's target.
    Content = 2,
    /// An extended attribute. Rest: its name.
    Xattr = 3,
    /// A directory's `StubRecord`.
    Stub = 4,
    /// A `NameRecord`. Rest: the name.
    Name = 5,
    /// A `ShardRecord`. Rest: index (8).
    Shard = 6,
    /// Checksums of 64 blocks. Rest: index (8), group (2).
    Checksums = 7,
    /// Work: a `PartitionRecord`.
    Partition = 16,
    /// Work: an `IntentRecord`. Id: the intent.
    Intent = 17,
    /// Work: a leg that was executed. Id: the intent. Rest: its number (2).
    LegDone = 18,
    /// Work: a `SessionRecord`. Rest: session (8), slot (2).
    Session = 19,
    /// Work: an inode without a name. Id: the inode.
    Orphan = 20,
    /// Work: a `GarbageRecord` of a data id that is no longer used. Id: the data id.
    Garbage = 21,
    /// Work: a name that is held by a rename of another partition; the value is its intent. Id: the directory. Rest:
    /// the name; empty for the hold on all moves of directories in the volume.
    Hold = 22,
    /// Work: a file whose stored times may be older than the acknowledged ones. Id: the inode.
    Writing = 23,
    /// Work: fast writes in the partition may not be on stable storage.
    Loose = 24,
    /// Work: a mapping right that a session had lost to others before it returned it, as `MappedSince`. Rest: session
    /// (8), volume (4), inode (16).
    PassedOn = 25,
    /// Own: the replica's `HealRecord`.
    Heal = 32,
    /// Own: the replica's `UnsettledRecord` of a shard. Rest: index (8).
    Unsettled = 33,
}

/// Length of the longest name of a file or an attribute.
const NAME_BYTES_MAX: usize = 255;

/// Table of files and directories.
const OBJECTS: u8 = 1;
/// Table of a partition's work in progress.
const WORK: u8 = 2;
/// Table of what a replica stores for itself: replicas need not agree on it.
const OWN: u8 = 3;
/// Offset of the kind in a key.
const KIND_AT: usize = 27;

/// Moves the parts of an id (position 32, random 32, number 64) to the order of keys: position, number, random.
const fn in_key_order(id: u128) -> u128 {
    (id >> 96 << 96) | ((id as u64 as u128) << 32) | ((id >> 64) as u32 as u128)
}

/// Inverse of [`in_key_order`].
const fn from_key_order(ordered: u128) -> u128 {
    (ordered >> 96 << 96) | ((ordered as u32 as u128) << 64) | ((ordered >> 32) as u64 as u128)
}

/// A key of the index.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

/// The part of a key before the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPrefix {
    pub ring: RingId,
    /// Position on the ring.
    pub position: Position,
    /// The volume; 0 for work of the partition itself.
    pub volume: VolumeId,
}

impl Key {
    fn build(table: u8, prefix: KeyPrefix, id: u128, kind: Kind, rest: &[&[u8]]) -> Self {
        let mut out = Vec::with_capacity(KIND_AT + 1 + rest.iter().map(|r| r.len()).sum::<usize>());
        out.push(table);
        out.extend_from_slice(&prefix.ring.0.to_be_bytes());
        out.extend_from_slice(&prefix.position.0.to_be_bytes());
        out.extend_from_slice(&prefix.volume.0.to_be_bytes());
        out.extend_from_slice(&in_key_order(id).to_be_bytes());
        out.push(kind as u8);
        rest.iter().for_each(|r| out.extend_from_slice(r));
        Self(Bytes::from(out))
    }

    /// A record that an inode has at most one of: `Inode`, `Content`, `Stub`.
    pub fn inode(ring: RingId, volume: VolumeId, inode: InodeId, kind: Kind) -> Self {
        Self::build(OBJECTS, KeyPrefix { ring, position: inode.position(), volume }, inode.bits(), kind, &[])
    }

    /// A directory's stub, in the partition of the prefix.
    pub fn stub(prefix: KeyPrefix, dir: InodeId) -> Self {
        Self::build(OBJECTS, prefix, dir.bits(), Kind::Stub, &[])
    }

    /// A name. `prefix` has the position of [`name_position`].
    pub fn name(prefix: KeyPrefix, dir: InodeId, name: &[u8]) -> Self {
        Self::build(OBJECTS, prefix, dir.bits(), Kind::Name, &[name])
    }

    pub fn xattr(ring: RingId, volume: VolumeId, inode: InodeId, name: &[u8]) -> Self {
        Self::build(OBJECTS, KeyPrefix { ring, position: inode.position(), volume }, inode.bits(), Kind::Xattr, &[name])
    }

    pub fn shard(ring: RingId, shard: ShardId) -> Self {
        let prefix = KeyPrefix { ring, position: shard.position(), volume: shard.volume };
        Self::build(OBJECTS, prefix, shard.data.0, Kind::Shard, &[&shard.index.to_be_bytes()])
    }

    /// Group `group` of a shard's checksums.
    pub fn checksums(ring: RingId, shard: ShardId, group: u16) -> Self {
        let prefix = KeyPrefix { ring, position: shard.position(), volume: shard.volume };
        let rest: [&[u8]; 2] = [&shard.index.to_be_bytes(), &group.to_be_bytes()];
        Self::build(OBJECTS, prefix, shard.data.0, Kind::Checksums, &rest)
    }

    /// The partition's own record. `position` is the partition's first one.
    pub fn partition(ring: RingId, position: Position) -> Self {
        Self::build(WORK, KeyPrefix { ring, position, volume: VolumeId(0) }, 0, Kind::Partition, &[])
    }

    /// An intent of the partition that begins at `position`.
    pub fn intent(ring: RingId, position: Position, intent: IntentId) -> Self {
        Self::build(WORK, KeyPrefix { ring, position, volume: VolumeId(0) }, intent.0, Kind::Intent, &[])
    }

    /// An executed leg, in the partition that begins at `position`.
    pub fn leg_done(ring: RingId, position: Position, intent: IntentId, number: u16) -> Self {
        let prefix = KeyPrefix { ring, position, volume: VolumeId(0) };
        Self::build(WORK, prefix, intent.0, Kind::LegDone, &[&number.to_be_bytes()])
    }

    /// The result of an op of a session.
    pub fn session(ring: RingId, position: Position, session: SessionId, slot: u16) -> Self {
        let rest: [&[u8]; 2] = [&session.0.to_be_bytes(), &slot.to_be_bytes()];
        Self::build(WORK, KeyPrefix { ring, position, volume: VolumeId(0) }, 0, Kind::Session, &rest)
    }

    /// The prefix of all results of a session.
    pub fn session_prefix(ring: RingId, position: Position, session: SessionId) -> Self {
        let prefix = KeyPrefix { ring, position, volume: VolumeId(0) };
        Self::build(WORK, prefix, 0, Kind::Session, &[&session.0.to_be_bytes()])
    }

    pub fn orphan(ring: RingId, volume: VolumeId, inode: InodeId) -> Self {
        Self::build(WORK, KeyPrefix { ring, position: inode.position(), volume }, inode.bits(), Kind::Orphan, &[])
    }

    /// A file that is being overwritten by fast writes.
    pub fn writing(ring: RingId, volume: VolumeId, inode: InodeId) -> Self {
        Self::build(WORK, KeyPrefix { ring, position: inode.position(), volume }, inode.bits(), Kind::Writing, &[])
    }

    /// The marker of fast writes that may not be on stable storage, in the partition that begins at `position`.
    pub fn loose(ring: RingId, position: Position) -> Self {
        Self::build(WORK, KeyPrefix { ring, position, volume: VolumeId(0) }, 0, Kind::Loose, &[])
    }

    /// A mapping right that a session has lost, in the partition that begins at `position`.
    pub fn passed_on(ring: RingId, position: Position, session: SessionId, volume: VolumeId, inode: InodeId) -> Self {
        let rest: [&[u8]; 3] = [&session.0.to_be_bytes(), &volume.0.to_be_bytes(), &inode.bits().to_be_bytes()];
        Self::build(WORK, KeyPrefix { ring, position, volume: VolumeId(0) }, 0, Kind::PassedOn, &rest)
    }

    /// The prefix of all mapping rights that a session has lost.
    pub fn passed_on_prefix(ring: RingId, position: Position, session: SessionId) -> Self {
        let prefix = KeyPrefix { ring, position, volume: VolumeId(0) };
        Self::build(WORK, prefix, 0, Kind::PassedOn, &[&session.0.to_be_bytes()])
    }

    /// A data id that is no longer used, at the position of the inode that had it.
    pub fn garbage(ring: RingId, volume: VolumeId, position: Position, data: DataId) -> Self {
        Self::build(WORK, KeyPrefix { ring, position, volume }, data.0, Kind::Garbage, &[])
    }

    /// A name that a rename holds. `prefix` has the position of the name.
    pub fn hold(prefix: KeyPrefix, dir: InodeId, name: &[u8]) -> Self {
        Self::build(WORK, prefix, dir.bits(), Kind::Hold, &[name])
    }

    /// Progress of a learning replica of the partition that begins at `position`. Replicas need not agree on it.
    pub fn heal(ring: RingId, position: Position) -> Self {
        Self::build(OWN, KeyPrefix { ring, position, volume: VolumeId(0) }, 0, Kind::Heal, &[])
    }

    /// The fast writes to a shard that this replica has and others may lack.
    pub fn unsettled(ring: RingId, shard: ShardId) -> Self {
        let prefix = KeyPrefix { ring, position: shard.position(), volume: shard.volume };
        Self::build(OWN, prefix, shard.data.0, Kind::Unsettled, &[&shard.index.to_be_bytes()])
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A key read from the index.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Kind of the record. `None` if the bytes are not a key.
    pub fn kind(&self) -> Option<Kind> {
        use Kind::*;
        let all = [
            Inode, Content, Xattr, Stub, Name, Shard, Checksums, Partition, Intent, LegDone, Session, Orphan, Garbage,
            Hold, Writing, Loose, PassedOn, Heal, Unsettled,
        ];
        let byte = *self.0.get(KIND_AT)?;
        all.into_iter().find(|k| *k as u8 == byte)
    }

    /// Ring, position and volume. `None` if the bytes are not a key.
    pub fn prefix(&self) -> Option<KeyPrefix> {
        let b = &self.0;
        if b.len() <= KIND_AT {
            return None;
        }
        Some(KeyPrefix {
            ring: RingId(u16::from_be_bytes([b[1], b[2]])),
            position: Position(u32::from_be_bytes([b[3], b[4], b[5], b[6]])),
            volume: VolumeId(u32::from_be_bytes([b[7], b[8], b[9], b[10]])),
        })
    }

    /// The 128-bit id: inode, data id or intent. `None` if the bytes are not a key.
    pub fn id(&self) -> Option<u128> {
        let id: [u8; 16] = self.0.get(11..KIND_AT)?.try_into().ok()?;
        Some(from_key_order(u128::from_be_bytes(id)))
    }

    /// The shard, if this is the key of a shard.
    pub fn as_shard(&self) -> Option<ShardId> {
        self.shard_of(Kind::Shard)
    }

    /// The shard, if this is the key of a shard's unsettled writes.
    pub fn as_unsettled(&self) -> Option<ShardId> {
        self.shard_of(Kind::Unsettled)
    }

    fn shard_of(&self, kind: Kind) -> Option<ShardId> {
        if self.kind()? != kind {
            return None;
        }
        let index = u64::from_be_bytes(self.rest()[..].try_into().ok()?);
        Some(ShardId { volume: self.prefix()?.volume, data: DataId(self.id()?), index })
    }

    /// True if the bytes are a key: a known kind in its table, with a rest of the right length.
    pub fn is_well_formed(&self) -> bool {
        use Kind::*;
        let Some(kind) = self.kind() else { return false };
        let rest = self.0.len() - KIND_AT - 1;
        let (table, lengths) = match kind {
            Inode | Content | Stub => (OBJECTS, 0..=0),
            Xattr | Name => (OBJECTS, 1..=NAME_BYTES_MAX),
            Shard => (OBJECTS, 8..=8),
            Checksums => (OBJECTS, 10..=10),
            Partition | Intent | Orphan | Garbage | Writing | Loose => (WORK, 0..=0),
            LegDone => (WORK, 2..=2),
            Session => (WORK, 10..=10),
            PassedOn => (WORK, 28..=28),
            Hold => (WORK, 0..=NAME_BYTES_MAX),
            Heal => (OWN, 0..=0),
            Unsettled => (OWN, 8..=8),
        };
        self.0[0] == table && lengths.contains(&rest)
    }

    /// The bytes after the kind.
    pub fn rest(&self) -> Bytes {
        self.0.slice((KIND_AT + 1).min(self.0.len())..)
    }

    /// The first key after all keys that begin with these bytes.
    pub fn prefix_end(&self) -> Self {
        let mut out = self.0.to_vec();
        while let Some(last) = out.pop() {
            if last < u8::MAX {
                out.push(last + 1);
                return Self(Bytes::from(out));
            }
        }
        Self(Bytes::from_static(&[u8::MAX; KIND_AT + 1]))
    }

    /// The first key after this one.
    pub fn successor(&self) -> Self {
        let mut out = self.0.to_vec();
        out.push(0);
        Self(Bytes::from(out))
    }

    /// Range of the work keys of partition `number` of `count`: from, to (exclusive).
    pub fn work_range(ring: RingId, number: PartitionNumber, count: u32) -> (Self, Self) {
        Self::table_range(WORK, ring, number, count)
    }

    /// Range of the object keys of partition `number` of `count`: from, to (exclusive).
    pub fn object_range(ring: RingId, number: PartitionNumber, count: u32) -> (Self, Self) {
        Self::table_range(OBJECTS, ring, number, count)
    }

    /// Range of the own keys of partition `number` of `count`: from, to (exclusive).
    pub fn own_range(ring: RingId, number: PartitionNumber, count: u32) -> (Self, Self) {
        Self::table_range(OWN, ring, number, count)
    }

    fn table_range(table: u8, ring: RingId, number: PartitionNumber, count: u32) -> (Self, Self) {
        let start = |position: u64| {
            // The position after the last one is the first position of the next ring.
            let bits = (u64::from(ring.0) << 32) + position;
            let mut out = vec![table];
            out.extend_from_slice(&bits.to_be_bytes()[2..]);
            Self(Bytes::from(out))
        };
        let first = u64::from(number.first_position(count).0);
        (start(first), start(first + (1 << 32) / u64::from(count)))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.kind(), self.prefix(), self.id()) {
            (Some(kind), Some(prefix), Some(id)) => write!(
                f,
                "{kind:?}[ring {} position {:08x} volume {} id {id:032x} {:?}]",
                prefix.ring,
                prefix.position.0,
                prefix.volume,
                self.rest()
            ),
            _ => write!(f, "Key({:?})", self.0),
        }
    }
}

impl crate::codec::Wire for Key {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(input: &mut crate::codec::Input) -> Result<Self, crate::codec::Malformed> {
        Ok(Self(Bytes::take(input)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_one_range_and_ranges_tile_the_ring() {
        let ring = RingId(3);
        for n in 0..16 {
            let (from, to) = Key::object_range(ring, PartitionNumber(n), 16);
            let inside = InodeId::new(PartitionNumber(n).first_position(16).0 + 5, 1, 2);
            let key = Key::inode(ring, VolumeId(1), inside, Kind::Inode);
            assert!(from < key && key < to);
            if n < 15 {
                assert_eq!(to, Key::object_range(ring, PartitionNumber(n + 1), 16).0);
            } else {
                assert_eq!(to, Key::object_range(RingId(4), PartitionNumber(0), 16).0);
            }
        }
    }

    #[test]
    fn inodes_of_a_place_sort_by_number_whatever_is_random() {
        let key = |random, number| Key::inode(RingId(1), VolumeId(1), InodeId::new(9, random, number), Kind::Inode);
        assert!(key(u32::MAX, 1) < key(0, 2) && key(7, 2) < key(3, u64::MAX));
        let elsewhere = Key::inode(RingId(1), VolumeId(1), InodeId::new(8, 1, u64::MAX), Kind::Inode);
        assert!(elsewhere < key(0, 0), "the position comes first");
    }

    #[test]
    fn a_key_gives_its_id_back() {
        let prefix = KeyPrefix { ring: RingId(1), position: Position(0xdead_beef), volume: VolumeId(1) };
        for id in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0011_2233_4455_6677, 1 << 64, 1 << 96, 1 << 127, 1 << 63] {
            let inode = InodeId::from_bits(id);
            assert_eq!(Key::stub(prefix, inode).id(), Some(id));
            assert_eq!(Key::inode(prefix.ring, prefix.volume, inode, Kind::Content).id(), Some(id));
            let shard = ShardId { volume: VolumeId(1), data: DataId(id), index: 3 };
            assert_eq!(Key::shard(prefix.ring, shard).as_shard(), Some(shard));
        }
    }

    #[test]
    fn an_id_rests_as_position_number_random() {
        let inode = InodeId::new(0x1122_3344, 0xaabb_ccdd, 0x0102_0304_0506_0708);
        let key = Key::inode(RingId(1), VolumeId(1), inode, Kind::Inode);
        let expected = [0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8, 0xaa, 0xbb, 0xcc, 0xdd];
        assert_eq!(key.as_bytes()[11..KIND_AT], expected);
    }

    #[test]
    fn names_sort_by_bytes_within_their_directory() {
        let prefix = KeyPrefix { ring: RingId(0), position: Position(9), volume: VolumeId(1) };
        let dir = InodeId::new(9, 0, 1);
        let key = |n: &str| Key::name(prefix, dir, n.as_bytes());
        assert!(key("a") < key("aa") && key("aa") < key("b"));
        assert!(key("b") < key("").prefix_end());
        assert_eq!(key("a").kind(), Some(Kind::Name));
        assert_eq!(&key("abc").rest()[..], b"abc");
    }
}
