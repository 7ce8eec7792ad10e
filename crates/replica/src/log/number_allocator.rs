//! The leader's numbers for new inodes, data ids and intents, and its clock.

use crate::invariants::require;
use hekate_brick::Brick;
use hekate_proto::*;

/// Numbers that one record reserves, so that 16,384 creates need one record more.
const NUMBERS_AT_ONCE: u64 = 16_384;
/// The leader reserves more when fewer than this are left.
const NUMBERS_LOW: u64 = NUMBERS_AT_ONCE / 2;
/// No op begins when fewer than this are left: ops in flight may draw some.
const NUMBERS_MIN: u64 = 1024;
/// Bits of a number below the partition's tag: 2^40 numbers a partition.
const COUNTER_BITS: u32 = 40;

/// Allocates numbers that no inode, data id or intent of the ring had or will have. A number is assigned once its
/// reservation is on stable storage of all members: otherwise the next leader could assign it again after a power cut.
#[derive(Debug, Clone)]
pub struct Numbers {
    key: Key,
    tag: u64,
    next: u64,
    /// Numbers below this are reserved by a record.
    reserved: u64,
    /// Numbers below this are reserved by a record that is on stable storage of all members.
    safe: u64,
    time: Time,
}

impl Numbers {
    /// Continues after the reservation in the brick. Numbers that an earlier leader reserved and did not use are
    /// skipped.
    ///
    /// # Errors
    ///
    /// The brick's error, or a decoding error of the partition's record.
    pub fn new(brick: &Brick, ring: RingId, number: PartitionNumber, count: u32) -> Result<Self> {
        let key = Key::partition(ring, number.first_position(count));
        let record = brick.get(&key)?.map(PartitionRecord::from_bytes).transpose()?;
        let reserved = record.map_or(1, |record| record.numbers_reserved);
        Ok(Self { key, tag: u64::from(count | number.0), next: reserved, reserved, safe: reserved, time: Time(0) })
    }

    /// Skips numbers that records from another member reserve: they were for an earlier leader.
    pub fn skip_reserved(&mut self, brick: &Brick) -> Result<()> {
        let record = brick.get(&self.key)?.map(PartitionRecord::from_bytes).transpose()?;
        let reserved = record.map_or(1, |record| record.numbers_reserved);
        if reserved > self.reserved {
            (self.next, self.reserved, self.safe) = (reserved, reserved, reserved);
        }
        Ok(())
    }

    /// Distinguishes this partition from the others of the ring.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The next number. The tag in its high bits distinguishes partition 3 of 16 from partition 3 of 32, so numbers
    /// stay unique when partitions split.
    pub fn next(&mut self) -> u64 {
        self.next += 1;
        (self.tag << COUNTER_BITS) | (self.next - 1)
    }

    /// The partition, of `count`, that handed out a number. `None` if no such partition did.
    pub fn partition_of(number: u64, count: u32) -> Option<PartitionNumber> {
        let tag = (number >> COUNTER_BITS) as u32;
        // The tag's highest bit is the number of partitions at that time. It may have doubled since.
        let then = 1u32.checked_shl(tag.checked_ilog2()?)?;
        (then <= count).then(|| PartitionNumber((tag - then) * (count / then)))
    }

    /// R13: all numbers that were handed out are reserved by a record on stable storage of all members.
    ///
    /// # Errors
    ///
    /// `Bug` if one is not.
    pub fn check(&self) -> Result<()> {
        require(self.next <= self.safe && self.safe <= self.reserved, "R13", || {
            format!("numbers below {} are used, {} safe, {} reserved", self.next, self.safe, self.reserved)
        })
    }

    /// True if enough numbers are left for an op to begin.
    pub fn has_room(&self) -> bool {
        self.next + NUMBERS_MIN <= self.safe
    }

    /// The reservation that the next record must carry, and its upper bound. `None` while enough numbers are left.
    pub fn reservation(&self) -> Option<(u64, Change)> {
        if self.next + NUMBERS_LOW <= self.reserved {
            return None;
        }
        let upto = self.reserved + NUMBERS_AT_ONCE;
        let value = PartitionRecord { numbers_reserved: upto }.to_bytes();
        Some((upto, Change::Put { key: self.key.clone(), value }))
    }

    /// Notes that a record reserves the numbers below `upto`.
    pub fn reserved(&mut self, upto: u64) {
        self.reserved = self.reserved.max(upto);
    }

    /// Notes that the record that reserves the numbers below `upto` is on stable storage of all members.
    pub fn made_safe(&mut self, upto: u64) {
        self.safe = self.safe.max(upto);
    }

    /// The time of a change: the clock's, but never earlier than that of the last change.
    pub fn time(&mut self, clock: Time) -> Time {
        self.time = self.time.max(clock);
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition that took a leg asks the partition that drives the op, which it finds by the intent's number.
    #[test]
    fn a_number_says_who_handed_it_out_also_when_partitions_have_doubled() {
        for (count, number) in [1, 4, 8].into_iter().flat_map(|count| (0..count).map(move |number| (count, number))) {
            let key = Key::partition(RingId(1), PartitionNumber(number).first_position(count));
            let tag = u64::from(count | number);
            let drawn = Numbers { key, tag, next: 1, reserved: 1, safe: 1, time: Time(0) }.next();
            for doubled in [1, 2, 4] {
                let found = Numbers::partition_of(drawn, count * doubled);
                assert_eq!(found, Some(PartitionNumber(number * doubled)), "{number} of {count}");
            }
            assert_eq!(Numbers::partition_of(drawn, count / 2), None, "the number of partitions never decreases");
        }
        assert_eq!(Numbers::partition_of(7, 8), None);
    }
}
