//! What a leader keeps in memory for its partition: the numbers that it hands out, and its clock.

use hekate_brick::Brick;
use hekate_proto::*;

/// Numbers reserved by one record: so many creates need no record of their own for it.
const NUMBERS_AT_ONCE: u64 = 4096;
/// Bits of a number below the partition's tag: 2^40 inodes a partition.
const COUNTER_BITS: u32 = 40;

/// A partition's leader.
#[derive(Debug, Clone)]
pub struct Leader {
    ring: RingId,
    number: PartitionNumber,
    count: u32,
    numbers_next: u64,
    /// Numbers below this are reserved by a record that every member has.
    numbers_reserved: u64,
    /// What a record that is on its way reserves.
    numbers_asked: u64,
    time: Time,
}

impl Leader {
    /// Takes the lead of a partition from what its brick holds. Numbers that an earlier leader had reserved are given up.
    pub fn new(brick: &Brick, ring: RingId, number: PartitionNumber, count: u32) -> Result<Self> {
        let key = Key::partition(ring, number.first_position(count));
        let record = brick.get(&key)?.map(PartitionRecord::from_bytes).transpose()?;
        let reserved = record.map_or(1, |record| record.numbers_reserved);
        Ok(Self {
            ring,
            number,
            count,
            numbers_next: reserved,
            numbers_reserved: reserved,
            numbers_asked: reserved,
            time: Time(0),
        })
    }

    /// Which partition.
    pub fn number(&self) -> PartitionNumber {
        self.number
    }

    /// How many partitions the ring has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// A number that no inode, data id or intent of this ring's partitions has had or will have. The tag in its high
    /// bits tells apart partition 3 of 16 from partition 3 of 32, so it stays unique when partitions split.
    pub fn next_number(&mut self, changes: &mut Vec<Change>) -> u64 {
        if self.numbers_next >= self.numbers_reserved {
            self.numbers_asked = self.numbers_asked.max(self.numbers_next + NUMBERS_AT_ONCE);
            let record = PartitionRecord { numbers_reserved: self.numbers_asked };
            let key = Key::partition(self.ring, self.number.first_position(self.count));
            changes.push(Change::Put { key, value: record.to_bytes() });
        }
        let tag = u64::from(self.count | self.number.0);
        self.numbers_next += 1;
        (tag << COUNTER_BITS) | (self.numbers_next - 1)
    }

    /// Every member has a record with these changes: what it reserves is reserved.
    pub fn committed(&mut self, changes: &[Change]) {
        if self.numbers_asked == self.numbers_reserved {
            return;
        }
        let reserves =
            |change: &Change| matches!(change, Change::Put { key, .. } if key.kind() == Some(Kind::Partition));
        if changes.iter().any(reserves) {
            self.numbers_reserved = self.numbers_asked;
        }
    }

    /// The time of a change: the clock's, but never before that of an earlier change.
    pub fn time(&mut self, clock: Time) -> Time {
        self.time = self.time.max(clock);
        self.time
    }
}
