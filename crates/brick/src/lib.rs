//! The store on one disk: a journal of changes, an ordered index, and a data file for each shard.
//!
//! Ground state is the index and the data files as the last checkpoint left them, and the records that the journal
//! holds behind that checkpoint. Derived state is the overlay: the changes of those records, in memory. A change is
//! appended to the journal, applied to the overlay, and later written *home* by a checkpoint: bytes to data files,
//! entries to the index. Only [`Brick::append`] and [`Brick::append_now`] change what a brick holds; only a checkpoint
//! moves the durable state of the index, after it has synced the journal and the data files.
//!
//! | module | what it does |
//! |---|---|
//! | `brick` | [`Brick`]: drives the machine on its callers' threads; appends, syncs, reads, checkpoints, scrubs |
//! | `machine` | the state machine: decides where a record goes, what it changes, what a checkpoint writes |
//! | `disk` | does the IO that the machine asks for: on the journal, the index, data files and the reserve |
//! | `opening` | creates and opens a brick; recovery replays the journal |
//! | `journal`, `index` | the files of the journal, and the ordered store that redb keeps in one file |
//! | `storage` | the trait below all files: the real file system, memory, faults, power cuts |
//! | `inspect` | reads a stopped brick without changing it, and without machine and recovery |
//!
//! | word | meaning |
//! |---|---|
//! | home | a block's place in the data file of its shard |
//! | fresh block | one that no record ever named; it is written home before its record, which then has no bytes |
//! | mark | a record that says that data files are on stable storage, up to a stamp each |
//! | overlay | changes in memory: the *active* one takes appends, the *frozen* one is written home by a checkpoint |
//! | `written`, `stable`, `applied` | positions: the log is in the journal's files, is synced, is in the index up to here |
//! | generation | number of an opening; it grows, with gaps, and a record has that of the opening that appended it |
//! | incarnation | number of boots, mounts and stops after which unsynced changes may be lost |
//! | promised | room that the running and the next checkpoint may need at most |
//! | stalled | of a checkpoint: it waits for room that another user of the file system took |
//! | poisoned | of a brick: it has stopped itself after a failed write or sync, or a failed assertion |
//!
//! The formats are documented in `docs/format/brick.md`, `journal.md`, `index.md` and `data.md`; the invariants that
//! those documents number are asserted under their numbers here ("journal invariant 3").

mod brick;
mod checksum;
mod disk;
mod entry;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod identity;
pub mod index;
pub mod inspect;
mod journal;
mod machine;
mod opening;
pub mod storage;
#[cfg(test)]
mod tests;

pub use brick::digest::EntryHashes;
pub use brick::log_ends::{ENDS_A_JOURNAL, Ends};
pub use brick::records_since::Since;
pub use brick::scrub::{Finding, ScrubCursor, ScrubStep};
pub use brick::{Brick, BrickStatus, Checkpoint, RecordLife, Reservation};
pub use checksum::{CRC_BLOCKS, block_checksum};
pub use disk::home::data_file_path;
pub use entry::LogEntry;
pub use identity::{BrickSettings, Identity, check_own};
pub use index::meta::{Meta, PartitionLog};
pub use journal::Lsn;
pub use machine::{Amount, LogPosition};
pub use opening::recovery::{LostBlock, RecoveryReport, TornTail};
