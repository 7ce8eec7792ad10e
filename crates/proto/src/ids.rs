//! Ids, counters and stamps: a newtype for each, so that none is taken for another.

use crate::codec::{Input, Malformed, Wire};
use crate::{wire_newtype, wire_struct};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

wire_newtype! {
    /// A volume, numbered once per cluster and never re-used.
    pub struct VolumeId(u32);
    /// A ring: the partitions that volumes of one protection share in a pool.
    pub struct RingId(u16);
    /// A partition of a ring, 0 to P-1.
    pub struct PartitionNumber(u32);
    /// A point on a ring. Partition `p` of `P = 2^b` owns the positions whose top `b` bits are `p`.
    pub struct Position(u32);
    /// The counter of a partition's view changes. Every op carries it.
    pub struct Epoch(u64);
    /// The number of a record in its partition's log, from 1.
    pub struct Sequence(u64);
    /// A client's session, numbered once per cluster. It ends once and never returns.
    pub struct SessionId(u64);
    /// An op in its session, never re-used: a retry carries the same one. Reads, which need no retry, carry 0.
    pub struct OpId(u64);
    /// A server of the cluster, numbered once and never re-used.
    pub struct ServerId(u32);
    /// How often a brick's machine booted or its disk was mounted anew, as far as the brick has seen.
    pub struct Incarnation(u64);
    /// One op over several partitions, unique in its ring: a number of the driver's partition.
    pub struct IntentId(u128);
}

/// A brick, drawn at random when it is made; shown as 32 hex digits.
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
    /// The form that people see: 32 hex digits.
    pub fn text(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// The session of the servers' own housekeeping (recovery, collection). Its ops need no retry.
pub const SYSTEM_SESSION: SessionId = SessionId(0);

/// 128 bits: position on the ring (32), random (32), number (64, unique in the volume: `st_ino`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(u128);

impl InodeId {
    /// Puts the three parts together.
    pub const fn new(position: u32, random: u32, number: u64) -> Self {
        Self(((position as u128) << 96) | ((random as u128) << 64) | number as u128)
    }
    /// Where on the ring the inode lives.
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

/// What holds a piece of a file's bytes; its shards are spread by `shard_position`.
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
    /// One 4 MiB shard: number `index` of a data id, in a volume.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct ShardId {
        /// The volume that owns it.
        pub volume: VolumeId,
        /// Whose bytes.
        pub data: DataId,
        /// Which 4 MiB of them.
        pub index: u64,
    }

    /// The last write to a shard. Equal stamps mean equal bytes.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Stamp {
        /// Writes so far, from 1.
        pub count: u64,
        /// Who wrote last.
        pub session: SessionId,
        /// With which op.
        pub op: OpId,
    }
}

impl Stamp {
    /// Of a record that a leader makes by itself: no session has such a number, and no other leader or record the same.
    pub fn of_leader(count: u64, epoch: Epoch, sequence: Sequence) -> Self {
        Self { count, session: SessionId(1 << 63 | epoch.0), op: OpId(sequence.0) }
    }
}

impl ShardId {
    /// Where on the ring the shard lives: XXH3-64 of the data id and the index, both little-endian; its high half.
    pub fn position(self) -> Position {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.data.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.index.to_le_bytes());
        Position((xxh3_64(&bytes) >> 32) as u32)
    }
}

impl Position {
    /// The partition that owns this position on a ring of `count` (a power of two) partitions.
    pub fn partition(self, count: u32) -> PartitionNumber {
        debug_assert!(count.is_power_of_two());
        let bits = count.trailing_zeros();
        PartitionNumber(if bits == 0 { 0 } else { self.0 >> (32 - bits) })
    }
}

impl PartitionNumber {
    /// The first position that this partition of `count` owns.
    pub fn first_position(self, count: u32) -> Position {
        let bits = count.trailing_zeros();
        Position(if bits == 0 { 0 } else { self.0 << (32 - bits) })
    }
}

/// Where the name of a directory rests. `spread` (a power of two) partitions share the names: the directory's own
/// position for one; else the position turned by the top bits of the name's hash.
pub fn name_position(directory: InodeId, name: &Name, spread: u32) -> Position {
    if spread <= 1 {
        return directory.position();
    }
    turned(directory, (xxh3_64(name.as_bytes()) >> 32) as u32 & (spread - 1), spread)
}

/// Where the names of a directory rest, its own position first: one in each of the partitions that share them.
pub fn name_positions(directory: InodeId, spread: u32) -> impl Iterator<Item = Position> {
    (0..spread.max(1)).map(move |part| turned(directory, part, spread.max(1)))
}

fn turned(directory: InodeId, part: u32, spread: u32) -> Position {
    let step = (1u64 << 32) / u64::from(spread);
    Position(directory.position().0.wrapping_add((u64::from(part) * step) as u32))
}

impl PartitionNumber {
    /// Where a directory's names rest in this partition of `count`, if there are any: they turn the top bits of its
    /// position only, and no two of its parts share a partition. So a partition finds them whatever the spread is.
    pub fn names_position(self, directory: InodeId, count: u32) -> Position {
        let below = u32::MAX.checked_shr(count.trailing_zeros()).unwrap_or(0);
        Position(self.first_position(count).0 | (directory.position().0 & below))
    }
}

/// Whether a directory can have so many partitions on a ring of `count`.
pub fn is_spread(spread: u32, count: u32) -> bool {
    spread.is_power_of_two() && spread <= count
}

/// A name in a directory: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

impl Name {
    /// Checks and takes the bytes.
    pub fn new(bytes: Bytes) -> Result<Self, Malformed> {
        match &bytes[..] {
            b"" => Err(Malformed("an empty name")),
            b"." | b".." => Err(Malformed("the name is . or ..")),
            b if b.len() > 255 => Err(Malformed("a name over 255 bytes")),
            b if b.contains(&b'/') || b.contains(&0) => Err(Malformed("a name with / or NUL in it")),
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
