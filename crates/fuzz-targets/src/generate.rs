//! Well-formed values from bytes: records for a brick, and one value of each variant for the corpus.

use crate::mutate::Random;
use bytes::Bytes;
use hekate_brick::{CRC_BLOCKS, block_checksum};
use hekate_proto::*;
use std::sync::OnceLock;

/// Blocks of a shard: 4 MiB of them.
const SHARD_BLOCKS: u32 = (SHARD_BYTES / BLOCK_BYTES as u64) as u32;
/// Changes in a generated record.
const CHANGES_MAX: usize = 6;

/// Bytes that choose the values; it yields zeros once they are used up.
pub struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn word(&mut self) -> u32 {
        let mut bytes = [0; 4];
        let taken = self.take(4);
        bytes[..taken.len()].copy_from_slice(taken);
        u32::from_le_bytes(bytes)
    }

    /// Usually small, so that generated values meet; sometimes any number.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::from(self.word()) << 32 | u64::from(self.word()),
            254 => u64::from(self.word()),
            small => u64::from(small % 8),
        }
    }

    /// At most `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A record of ring 1; the caller numbers it. `own`: only such records as replicas make (`docs/format/journal.md`).
    pub fn record(&mut self, own: bool) -> Record {
        let count = 1 + usize::from(self.byte()) % CHANGES_MAX;
        Record {
            ring: if own { RingId(1) } else { RingId(self.number() as u16) },
            partition: PartitionNumber(u32::from(self.byte()) % 4),
            epoch: Epoch(1),
            sequence: Sequence(1),
            session: SessionId(self.number()),
            op_id: OpId(self.number()),
            changes: (0..count).map(|_| self.change(own)).collect(),
        }
    }

    fn change(&mut self, own: bool) -> Change {
        let kind = self.byte() % 10;
        let shard = self.shard();
        let (first, count) = if own { self.run() } else { (self.number() as u32, self.byte() as usize % 10) };
        match kind {
            0..=2 => Change::Put { key: self.key(shard, own), value: Bytes::copy_from_slice(self.small()) },
            3 => Change::Delete { key: self.key(shard, own) },
            4 => {
                let blocks = if own { count } else { self.number() as usize % 10 };
                let bytes = vec![self.byte(); blocks * BLOCK_BYTES];
                let run = self.checksums(shard, first, count, &bytes);
                Change::WriteBlocks { shard, record: self.shard_record(first, count, own), run, bytes: bytes.into() }
            }
            5 => {
                let bytes = vec![self.byte(); count * BLOCK_BYTES];
                let run = self.checksums(shard, first, count, &bytes);
                Change::FreshBlocks { shard, record: self.shard_record(first, count, own), run }
            }
            6 => Change::CutShard { shard, record: self.shard_record(first, 0, own) },
            7 => {
                let record = self.shard_record(first, count, own);
                Change::PunchBlocks { shard, record, first, count: count as u32 }
            }
            8 => {
                let record = ShardRecord {
                    reserved_blocks: first.wrapping_add(count as u32),
                    ..self.shard_record(first, 0, own)
                };
                Change::ReserveBlocks { shard, record, first, count: count as u32 }
            }
            _ => Change::DropShard { shard },
        }
    }

    /// First block and count of a few blocks inside a shard. They are usually near its start, because a file in memory
    /// is as long as its last block.
    fn run(&mut self) -> (u32, usize) {
        let reach = if self.byte() == 255 { SHARD_BLOCKS } else { 2 * CRC_BLOCKS };
        let first = self.number() as u32 % reach;
        (first, 1 + usize::from(self.byte() % 4).min((SHARD_BLOCKS - first - 1) as usize))
    }

    fn shard(&mut self) -> ShardId {
        let (data, index) = (u128::from(self.number()), self.number());
        ShardId { volume: VolumeId(1), data: DataId(data), index }
    }

    fn checksums(&mut self, shard: ShardId, first: u32, count: usize, bytes: &[u8]) -> BlockRun {
        let sum = |(number, block): (usize, &[u8])| block_checksum(shard, first.wrapping_add(number as u32), block);
        let mut checksums: Vec<u32> = bytes.chunks(BLOCK_BYTES).enumerate().map(sum).collect();
        checksums.resize(count, 1);
        BlockRun { first, checksums }
    }

    fn shard_record(&mut self, first: u32, count: usize, own: bool) -> ShardRecord {
        let stamp = Stamp { count: self.number(), session: SessionId(1), op: OpId(self.number()) };
        let (length, home_blocks) = if own {
            let end = first + count as u32;
            (end * BLOCK_BYTES as u32, (end + self.byte() as u32 % 8).min(SHARD_BLOCKS))
        } else {
            (self.number() as u32, self.number() as u32)
        };
        ShardRecord { stamp, length, home_blocks, reserved_blocks: 0 }
    }

    /// A key for an entry. Replicas change a shard's record only by changes of its blocks, so such keys are left out if
    /// `own`.
    fn key(&mut self, shard: ShardId, own: bool) -> Key {
        let (ring, volume) = (RingId(1), VolumeId(1));
        let inode = InodeId::new(self.word(), 0, self.number());
        let place = KeyPrefix { ring, position: inode.position(), volume };
        match self.byte() % if own { 6 } else { 9 } {
            0 => Key::inode(ring, volume, inode, Kind::Inode),
            1 => Key::inode(ring, volume, inode, Kind::Content),
            2 => Key::name(place, inode, self.small()),
            3 => Key::xattr(ring, volume, inode, self.small()),
            4 => Key::session(ring, inode.position(), SessionId(self.number()), u16::from(self.byte())),
            5 => Key::garbage(ring, volume, inode.position(), shard.data),
            6 => Key::shard(ring, shard),
            7 => Key::checksums(ring, shard, self.number() as u16),
            _ => Key::from_bytes(Bytes::copy_from_slice(self.small())),
        }
    }

    fn small(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte());
        self.take(count)
    }
}

/// A value of each variant of an enum, two levels deep for `depth` 2; one value of a struct for 0. The values come from
/// decoding bytes that are mostly small numbers, so a new variant needs no line here.
pub fn one_of_each<T: Wire>(depth: usize) -> Vec<T> {
    let range = |used: bool| if used { 0..=40u8 } else { 0..=0 };
    let prefixes = range(depth > 0).flat_map(|first| range(depth > 1).map(move |second| [first, second]));
    prefixes.filter_map(|prefix| any_that_begins(&prefix[..depth])).collect()
}

fn any_that_begins<T: Wire>(prefix: &[u8]) -> Option<T> {
    let begun = |rest: &Vec<u8>| Input::new([prefix, rest].concat().into());
    fillers().iter().find_map(|rest| T::take(&mut begun(rest)).ok())
}

/// Inputs to decode: zeros, small numbers and short texts.
fn fillers() -> &'static [Vec<u8>] {
    static FILLERS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FILLERS.get_or_init(|| {
        let mut random = Random::new(7);
        (0..40_000).map(|_| filler(&mut random)).collect()
    })
}

fn filler(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < 200 {
        match random.below(6) {
            0 => bytes.extend_from_slice(&[1, 0, 0, 0, b'a']),
            1 => bytes.extend_from_slice(&[2, 0, 0, 0, b'b', b'c']),
            2 => bytes.push(1 + random.below(3) as u8),
            _ => bytes.resize(bytes.len() + 1 + random.below(16), 0),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_its_seed() {
        let mut labels: Vec<_> = one_of_each::<Op>(2).iter().map(Op::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels, hekate_proto::op::OP_LABELS);
        assert_eq!(one_of_each::<Leg>(1).len(), 28);
    }
}
