//! Ids, counters and stamps, each a type of its own so that they cannot be confused.

use crate::codec::{Input, Malformed, Wire};
use crate::object::hashed_part;
use crate::{wire_newtype, wire_struct};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

wire_newtype! {
    /// A volume. Its number is unique in the cluster and never reused.
    pub struct VolumeId(u32);
    /// A ring: the partitions that volumes with the same protection share in a pool.
    pub struct RingId(u16);
    /// A partition of a ring, 0 to P-1.
    pub struct PartitionNumber(u32);
    /// A point on a ring. Partition `p` of `P = 2^b` owns the positions whose top `b` bits are `p`.
    pub struct Position(u32);
    /// The number of a partition's view. It increases with each view change, and each request to the partition names
    /// it.
    pub struct Epoch(u64);
    /// The number of a record in its partition's log, from 1.
    pub struct Sequence(u64);
    /// A client's session. Its number is unique in the cluster. A session that has ended never returns.
    pub struct SessionId(u64);
    /// The number of an op in its session. It is never reused, and a retry carries the same number. Reads, which need
    /// no record of their result, carry 0.
    pub struct OpId(u64);
    /// A server of the cluster. Its number is never reused.
    pub struct ServerId(u32);
    /// The incarnation of a brick. An opening increases it if unsynced changes may be lost: the machine booted, the
    /// disk was mounted or the brick stopped itself since the incarnation was settled.
    pub struct Incarnation(u64);
    /// An op over several partitions, unique in its ring. The partition whose leader drives the op assigned the number.
    pub struct IntentId(u128);
}

/// A brick: a random number drawn when the brick is made, shown as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BrickId(pub u128);

impl std::fmt::Debug for BrickId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl Wire for BrickId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Ok(Self(u128::take(input)?))
    }
}

impl serde::Serialize for BrickId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> serde::Deserialize<'de> for BrickId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(|_| serde::de::Error::custom("not a brick id"))
    }
}

impl BrickId {
    /// The id as 32 hex digits.
    pub fn text(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// The session of the servers' own work (recovery, garbage collection). Its ops are never retried.
pub const SYSTEM_SESSION: SessionId = SessionId(0);

/// An inode. 128 bits: position on the ring (32), random (32), number (64, unique in the volume: `st_ino`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(u128);

impl InodeId {
    /// An id of these parts.
    pub const fn new(position: u32, random: u32, number: u64) -> Self {
        Self(((position as u128) << 96) | ((random as u128) << 64) | number as u128)
    }
    /// The inode's position on the ring.
    pub const fn position(self) -> Position {
        Position((self.0 >> 96) as u32)
    }
    /// The number that is unique in the volume: `st_ino`.
    pub const fn number(self) -> u64 {
        self.0 as u64
    }
    /// All 128 bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
    /// From all 128 bits.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }
}

impl std::fmt::Debug for InodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{:08x}-{}", (self.0 >> 96) as u32, (self.0 >> 64) as u32, self.number())
    }
}

impl Wire for InodeId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Ok(Self(u128::take(input)?))
    }
}

/// Identifies one piece of a file's bytes. Its shards are distributed by [`ShardId::position`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataId(pub u128);

impl std::fmt::Debug for DataId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "data:{:032x}", self.0)
    }
}

impl Wire for DataId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Ok(Self(u128::take(input)?))
    }
}

wire_struct! {
    /// One shard: 4 MiB of a data id, in a volume.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct ShardId {
        /// The volume that it belongs to.
        pub volume: VolumeId,
        /// The data id.
        pub data: DataId,
        /// Number of the 4 MiB in the data id, from 0.
        pub index: u64,
    }

    /// Identifies the last write to a shard. Equal stamps mean equal bytes, except on a learner that is being healed.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Stamp {
        /// Number of writes to the shard, from 1.
        pub count: u64,
        /// The session that wrote last.
        pub session: SessionId,
        /// The op that wrote last.
        pub op: OpId,
    }
}

impl Stamp {
    /// The stamp of a record that a leader makes by itself. No session has its session number, and no other record
    /// has the stamp.
    pub fn of_leader(count: u64, epoch: Epoch, sequence: Sequence) -> Self {
        Self { count, session: SessionId(1 << 63 | epoch.0), op: OpId(sequence.0) }
    }
}

impl ShardId {
    /// The shard's position on the ring: the high half of XXH3-64 over data id and index, both little-endian.
    pub fn position(self) -> Position {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.data.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.index.to_le_bytes());
        Position((xxh3_64(&bytes) >> 32) as u32)
    }
}

impl Position {
    /// The partition that owns this position on a ring of `count` partitions (a power of two).
    pub fn partition(self, count: u32) -> PartitionNumber {
        debug_assert!(count.is_power_of_two());
        let bits = count.trailing_zeros();
        PartitionNumber(if bits == 0 { 0 } else { self.0 >> (32 - bits) })
    }
}

impl PartitionNumber {
    /// The first position of this partition on a ring of `count` partitions.
    pub fn first_position(self, count: u32) -> Position {
        let bits = count.trailing_zeros();
        Position(if bits == 0 { 0 } else { self.0 << (32 - bits) })
    }
}

/// Position of a name in a directory whose names `spread` partitions (a power of two) share. For a spread of 1 it is
/// the directory's own position; otherwise the name's hash selects one of [`name_positions`].
pub fn name_position(directory: InodeId, name: &Name, spread: u32) -> Position {
    if spread <= 1 {
        return directory.position();
    }
    turned(directory, (xxh3_64(hashed_part(name.as_bytes())) >> 32) as u32 & (spread - 1), spread)
}

/// Positions of a directory's names, one in each partition that shares them. The first is the directory's own.
pub fn name_positions(directory: InodeId, spread: u32) -> impl Iterator<Item = Position> {
    (0..spread.max(1)).map(move |part| turned(directory, part, spread.max(1)))
}

/// The directory's position plus `part` of `spread` equal steps around the ring.
fn turned(directory: InodeId, part: u32, spread: u32) -> Position {
    let step = (1u64 << 32) / u64::from(spread);
    Position(directory.position().0.wrapping_add((u64::from(part) * step) as u32))
}

impl PartitionNumber {
    /// Position that a directory's names have in this partition of `count`, if it has any. All positions of a
    /// directory differ only in the top bits, and no two are in one partition, so the result does not depend on the
    /// spread.
    pub fn names_position(self, directory: InodeId, count: u32) -> Position {
        let below = u32::MAX.checked_shr(count.trailing_zeros()).unwrap_or(0);
        Position(self.first_position(count).0 | (directory.position().0 & below))
    }
}

/// True if `spread` partitions can share the names of a directory on a ring of `count`.
pub fn is_spread(spread: u32, count: u32) -> bool {
    spread.is_power_of_two() && spread <= count
}

/// A name in a directory: 1 to 255 bytes, without `/` and NUL, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

impl Name {
    /// Checks the bytes of a name.
    ///
    /// # Errors
    /// `Malformed`, with the reason, if they are not a name.
    pub fn new(bytes: Bytes) -> Result<Self, Malformed> {
        match &bytes[..] {
            b"" => Err(Malformed("the name is empty")),
            b"." | b".." => Err(Malformed("the name is . or ..")),
            b if b.len() > 255 => Err(Malformed("the name is longer than 255 bytes")),
            b if b.contains(&b'/') || b.contains(&0) => Err(Malformed("the name contains / or NUL")),
            _ => Ok(Self(bytes)),
        }
    }
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
    /// The bytes, shared.
    pub fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl TryFrom<&str> for Name {
    type Error = Malformed;
    fn try_from(text: &str) -> Result<Self, Malformed> {
        Self::new(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Wire for Name {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Self::new(Bytes::take(input)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_cut_the_ring_into_equal_ranges() {
        assert_eq!(Position(u32::MAX).partition(16), PartitionNumber(15));
        assert_eq!(Position(0x1000_0000).partition(16), PartitionNumber(1));
        assert_eq!(Position(7).partition(1), PartitionNumber(0));
        assert_eq!(PartitionNumber(3).first_position(16), Position(0x3000_0000));
    }

    #[test]
    fn doubling_the_partitions_splits_each_in_two() {
        for p in [0u32, 0x1234_5678, 0x8fff_ffff, u32::MAX] {
            assert_eq!(Position(p).partition(32).0 / 2, Position(p).partition(16).0);
        }
    }

    #[test]
    fn a_partition_finds_its_share_of_a_directory_whatever_the_spread() {
        for (count, spread) in [(1, 1), (4, 1), (4, 2), (4, 4), (16, 8), (1 << 16, 1 << 16)] {
            for position in [0u32, 0x1234_5678, 0x8fff_ffff, u32::MAX] {
                let dir = InodeId::new(position, 1, 1);
                let all: Vec<Position> = name_positions(dir, spread).collect();
                assert_eq!((all.len(), all[0]), (spread as usize, Position(position)));
                for at in &all {
                    assert_eq!(at.partition(count).names_position(dir, count), *at);
                }
                let name = Name::try_from("some name").unwrap();
                assert!(all.contains(&name_position(dir, &name, spread)));
                let partitions: std::collections::BTreeSet<_> = all.iter().map(|at| at.partition(count)).collect();
                assert_eq!(partitions.len(), all.len());
            }
        }
        assert!(is_spread(1, 1) && is_spread(4, 16) && !is_spread(0, 4) && !is_spread(3, 4) && !is_spread(8, 4));
    }

    #[test]
    fn names_are_checked_where_they_enter() {
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert!(Name::try_from(bad).is_err(), "{bad:?}");
        }
        assert!(Name::new(Bytes::from(vec![b'x'; 256])).is_err());
        assert!(Name::new(Bytes::from(vec![0xff; 255])).is_ok());
    }

    #[test]
    fn an_inode_id_keeps_its_parts() {
        let id = InodeId::new(0xdead_beef, 7, 42);
        assert_eq!((id.position(), id.number()), (Position(0xdead_beef), 42));
    }
}
