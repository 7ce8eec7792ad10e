//! One disk's store: a journal of changes, an ordered index, and a plain file for each shard.
//!
//! Ground state is the journal from the last checkpoint on, plus the index and the data files as that checkpoint left
//! them. Derived state is the overlay: what the journal says beyond the index. Only [`Brick::append`] changes what a
//! brick holds; only a checkpoint moves the durable state of the index, after it has synced the journal.
//! Documents: `docs/format/brick.md`, `journal.md`, `index.md`, `data.md`.

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
pub use brick::{Brick, BrickStatus, Checkpoint, Reservation};
pub use checksum::{CRC_BLOCKS, block_checksum};
pub use disk::home::data_file_path;
pub use entry::LogEntry;
pub use identity::{BrickSettings, Identity, check_own};
pub use index::meta::{Meta, PartitionLog};
pub use journal::Lsn;
pub use machine::{Amount, LogPosition};
pub use opening::recovery::{LostBlock, RecoveryReport, TornTail};
