//! The numbers that a leader hands out, and its clock.

use crate::invariants::require;
use hekate_brick::Brick;
use hekate_proto::*;

/// Numbers reserved by one record: so many creates need no record of their own for it.
const NUMBERS_AT_ONCE: u64 = 16_384;
/// With less than this left, more are reserved.
const NUMBERS_LOW: u64 = NUMBERS_AT_ONCE / 2;
/// With less than this left, no op begins: those that have begun may draw some.
const NUMBERS_MIN: u64 = 1024;
/// Bits of a number below the partition's tag: 2^40 inodes a partition.
const COUNTER_BITS: u32 = 40;

/// Numbers that no inode, data id or intent of this ring's partitions has had or will have: only those are handed out
/// whose reservation is on stable storage of all members, or a power cut would have them handed out again.
#[derive(Debug, Clone)]
pub struct Numbers {
    key: Key,
    tag: u64,
    next: u64,
    /// Numbers below this are reserved by a record.
    reserved: u64,
    /// Numbers below this by one that is on stable storage.
    safe: u64,
    time: Time,
}

impl Numbers {
    /// Goes on from what a partition's brick holds. Numbers that an earlier leader had reserved are given up.
    pub fn new(brick: &Brick, ring: RingId, number: PartitionNumber, count: u32) -> Result<Self> {
        let key = Key::partition(ring, number.first_position(count));
        let record = brick.get(&key)?.map(PartitionRecord::from_bytes).transpose()?;
        let reserved = record.map_or(1, |record| record.numbers_reserved);
        Ok(Self { key, tag: u64::from(count | number.0), next: reserved, reserved, safe: reserved, time: Time(0) })
    }

    /// Records were taken from another member since: what they reserve was for an earlier leader to hand out.
    pub fn skip_reserved(&mut self, brick: &Brick) -> Result<()> {
        let record = brick.get(&self.key)?.map(PartitionRecord::from_bytes).transpose()?;
        let reserved = record.map_or(1, |record| record.numbers_reserved);
        if reserved > self.reserved {
            (self.next, self.reserved, self.safe) = (reserved, reserved, reserved);
        }
        Ok(())
    }

    /// Tells this partition apart from the ring's others.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The next one. The tag in its high bits tells apart partition 3 of 16 from partition 3 of 32, so it stays unique
    /// when partitions split.
    pub fn next(&mut self) -> u64 {
        self.next += 1;
        (self.tag << COUNTER_BITS) | (self.next - 1)
    }

    /// The partition, of `count`, that handed out a number.
    pub fn partition_of(number: u64, count: u32) -> Option<PartitionNumber> {
        let tag = (number >> COUNTER_BITS) as u32;
        // Its ring had as many partitions as the tag's highest bit says; since then they may have doubled.
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

    /// Whether an op may begin.
    pub fn has_room(&self) -> bool {
        self.next + NUMBERS_MIN <= self.safe
    }

    /// What the next record says if numbers run low, and up to where it reserves them.
    pub fn reservation(&self) -> Option<(u64, Change)> {
        if self.next + NUMBERS_LOW <= self.reserved {
            return None;
        }
        let upto = self.reserved + NUMBERS_AT_ONCE;
        let value = PartitionRecord { numbers_reserved: upto }.to_bytes();
        Some((upto, Change::Put { key: self.key.clone(), value }))
    }

    /// A record reserves them.
    pub fn reserved(&mut self, upto: u64) {
        self.reserved = self.reserved.max(upto);
    }

    /// It is on stable storage of all members.
    pub fn made_safe(&mut self, upto: u64) {
        self.safe = self.safe.max(upto);
    }

    /// The time of a change: the clock's, but never before that of an earlier change.
    pub fn time(&mut self, clock: Time) -> Time {
        self.time = self.time.max(clock);
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has a mark of an op asks that partition whether it may go.
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
            assert_eq!(Numbers::partition_of(drawn, count / 2), None, "so few there never are again");
        }
        assert_eq!(Numbers::partition_of(7, 8), None);
    }
}
