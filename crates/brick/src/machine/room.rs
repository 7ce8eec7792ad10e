//! Room for checkpoints, reserved before a record is journaled: so a full disk can always empty its journal.
//!
//! A checkpoint needs bytes, and files for shards that have none. What the running and the next checkpoint may need at
//! most is *promised*. Growing records are refused before the promise exceeds half of the reserve (`disk/reserve.rs`)
//! and an eighth of what is free; an eighth, because a brick may share its file system with seven others. Records that
//! shrink the store may use all of the reserve, and wait for a checkpoint beyond that.
//!
//! While a checkpoint is *stalled*, because another user of the file system took what was promised, growing records are
//! refused. Records that shrink the store are taken as long as the journal has room: they may free the room that the
//! checkpoint waits for.

use hekate_proto::{Error, Result, wire_struct};

/// Number of bricks that may share a file system.
const SHARERS: u64 = 8;

wire_struct! {
    /// An amount of what a file system can run out of: bytes, and files that have to be made.
    #[derive(Copy, Default)]
    pub struct Amount {
        /// Bytes.
        pub bytes: u64,
        /// Files.
        pub files: u64,
    }
}

impl Amount {
    /// More than any other amount.
    pub const MAX: Self = Self { bytes: u64::MAX, files: u64::MAX };

    /// The sum; it saturates.
    pub fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), files: self.files.saturating_add(other.files) }
    }

    fn minus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), files: self.files.saturating_sub(other.files) }
    }

    /// Whether neither bytes nor files exceed those of `room`.
    pub fn fits(self, room: Self) -> bool {
        self.bytes <= room.bytes && self.files <= room.files
    }
}

/// Room of one kind, bytes or files: what the file system has free and what the reserve holds.
#[derive(Debug, Clone, Copy)]
struct Stock {
    free: u64,
    reserve: u64,
}

impl Stock {
    /// What may be promised for growing records.
    fn growing_max(self) -> u64 {
        self.free.min((self.reserve / 2).saturating_add(self.free / SHARERS))
    }

    fn shrinking_max(self) -> u64 {
        self.reserve.saturating_add(self.free / SHARERS)
    }

    /// Whether a record can be taken before the next checkpoint. It is counted with half of the room at most, however
    /// large it is: its changes lie together in the index, and a checkpoint always makes that much room.
    fn takes(self, needed: u64, promised: u64) -> bool {
        let max = self.shrinking_max();
        needed == 0 || promised == 0 || promised.saturating_add(needed.min(max / 2)) <= max
    }

    fn wants_checkpoint(self, promised: u64) -> bool {
        promised > (self.growing_max() / 2).max(self.reserve / 8)
    }
}

/// The room of a brick: what is free, what is in the reserve, and what is reserved for records that are about to be
/// appended.
#[derive(Debug, Clone)]
pub struct Room {
    bytes: Stock,
    files: Stock,
    /// Reserved for records that are about to be appended.
    reserved: Amount,
    /// Why the running checkpoint cannot write home.
    stalled: Option<String>,
}

impl Default for Room {
    /// Without limit, until it is measured.
    fn default() -> Self {
        let much = Stock { free: u64::MAX / 4, reserve: 0 };
        Self { bytes: much, files: much, reserved: Amount::default(), stalled: None }
    }
}

impl Room {
    /// Sets what the file system has free and what the reserve holds.
    pub fn set(&mut self, free: Amount, reserve: Amount) {
        self.bytes = Stock { free: free.bytes, reserve: reserve.bytes };
        self.files = Stock { free: free.files, reserve: reserve.files };
    }

    /// Sets why the running checkpoint cannot write home; `None`: it can.
    pub fn set_stalled(&mut self, why: Option<String>) {
        self.stalled = why;
    }

    pub fn stalled(&self) -> Option<&str> {
        self.stalled.as_deref()
    }

    fn growing_max(&self) -> Amount {
        match self.stalled {
            Some(_) => Amount::default(),
            None => Amount { bytes: self.bytes.growing_max(), files: self.files.growing_max() },
        }
    }

    pub fn reserve(&mut self, need: Amount, grows: bool, promised: Amount) -> Result<()> {
        if grows && !self.grows_by(need, promised) {
            return Err(self.full(need, promised));
        }
        self.reserved = self.reserved.plus(need);
        Ok(())
    }

    /// Whether a growing record may be promised room. One that needs no file is not refused for want of files, however
    /// many are promised.
    fn grows_by(&self, need: Amount, promised: Amount) -> bool {
        let taken = promised.plus(self.reserved).plus(need);
        let files = if need.files == 0 { 0 } else { taken.files };
        self.stalled.is_none() && Amount { files, ..taken }.fits(self.growing_max())
    }

    /// What `reserve` would still grant to growing records.
    pub fn left(&self, promised: Amount) -> Amount {
        self.growing_max().minus(promised).minus(self.reserved)
    }

    pub fn release(&mut self, need: Amount) {
        self.reserved = self.reserved.minus(need);
    }

    /// Whether a record can be taken before the next checkpoint.
    pub fn takes(&self, need: Amount, promised: Amount) -> bool {
        self.stalled.is_some()
            || self.bytes.takes(need.bytes, promised.bytes) && self.files.takes(need.files, promised.files)
    }

    /// Subtracts bytes from the free room, for blocks that are written home at once. Whether the store may grow has
    /// been decided by `reserve`, on every replica.
    pub fn take(&mut self, bytes: u64) -> Result<()> {
        let left = self.bytes.free.checked_sub(bytes);
        self.bytes.free = left.ok_or_else(|| self.full(Amount { bytes, files: 0 }, Amount::default()))?;
        Ok(())
    }

    /// Whether a checkpoint should begin, so that promises are redeemed before growing records are refused; or, when
    /// they are refused anyway, before deletes have to wait.
    pub fn wants_checkpoint(&self, promised: Amount) -> bool {
        self.bytes.wants_checkpoint(promised.bytes) || self.files.wants_checkpoint(promised.files)
    }

    /// Whether more than a quarter of what may be promised to growing records is promised: a checkpoint redeems it, and
    /// a record that is refused now may fit then.
    pub fn is_promised(&self, promised: Amount) -> bool {
        let max = self.growing_max();
        let fills = |promised: u64, max: u64| max > 0 && promised > max / 4;
        fills(promised.bytes, max.bytes) || fills(promised.files, max.files)
    }

    fn full(&self, need: Amount, promised: Amount) -> Error {
        let (bytes, files) = (self.bytes, self.files);
        let lacks_files =
            need.files > 0 && promised.plus(self.reserved).files.saturating_add(need.files) > files.growing_max();
        let what = match &self.stalled {
            Some(why) => why.clone(),
            None if lacks_files => format!(
                "its file system has {} inodes left, and {} files are kept for deletes (`df -i`); remove files there, \
                 or make it anew with more inodes",
                files.free, files.reserve
            ),
            None => format!(
                "{} MiB are free and {} MiB are kept for deletes; remove files or add a brick",
                bytes.free >> 20,
                bytes.reserve >> 20
            ),
        };
        Error::NoSpace { what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn files(count: u64) -> Amount {
        Amount { bytes: 4096, files: count }
    }

    fn room(files: u64, spare: u64) -> Room {
        let mut room = Room::default();
        room.set(Amount { bytes: GIB, files }, Amount { bytes: 0, files: spare });
        room
    }

    #[test]
    fn files_are_promised_up_to_half_of_the_spare_ones_and_an_eighth_of_the_rest() {
        let mut room = room(800, 100);
        room.reserve(files(150), true, Amount::default()).unwrap();
        let refused = room.reserve(files(1), true, Amount::default()).unwrap_err();
        assert!(refused.to_string().contains("inodes"), "{refused}");
        room.release(files(150));
        assert!(room.reserve(files(1), true, files(150)).is_err(), "promised counts as kept does");
        assert!(room.takes(files(50), files(150)) && !room.takes(files(51), files(150)));
    }

    #[test]
    fn a_record_that_needs_no_file_is_not_refused_for_want_of_files() {
        let mut room = room(0, 100);
        assert!(room.reserve(files(1), true, Amount::default()).is_err(), "spare files are for checkpoints alone");
        room.reserve(files(0), true, files(50)).unwrap();
        assert!(room.takes(files(0), files(1000)));
    }

    #[test]
    fn a_checkpoint_may_make_room_if_a_quarter_is_promised() {
        let mut room = room(800, 0);
        assert!(!room.is_promised(files(25)) && room.is_promised(files(26)));
        room.set_stalled(Some("no inodes".into()));
        assert!(!room.is_promised(files(26)), "it is tried again by itself");
    }

    #[test]
    fn a_file_system_that_counts_no_files_never_lacks_them() {
        let mut room = room(u64::MAX, 0);
        room.reserve(files(1 << 40), true, files(1 << 40)).unwrap();
        assert!(!room.wants_checkpoint(files(1 << 40)));
    }

    #[test]
    fn a_stalled_checkpoint_refuses_growing_records_and_takes_the_others() {
        let mut room = room(1000, 10);
        room.set_stalled(Some("no inodes".into()));
        let refused = room.reserve(files(0), true, Amount::default()).unwrap_err();
        assert!(refused.to_string().contains("no inodes"), "{refused}");
        assert_eq!(room.left(Amount::default()), Amount::default());
        room.reserve(files(0), false, Amount::MAX).unwrap();
        assert!(room.takes(files(0), Amount::MAX));
        room.set_stalled(None);
        room.reserve(files(1), true, Amount::default()).unwrap();
    }
}
