//! One disk's store: a journal of changes, an ordered index, and a plain file for each shard.
//!
//! Ground state is the journal from the last checkpoint on, plus the index and the data files as that checkpoint left
//! them. Derived state is the overlay: what the journal says beyond the index. Only [`Brick::append`] changes what a
//! brick holds; only a checkpoint moves the durable state of the index, after it has synced the journal.
//! Documents: `docs/format/brick.md`, `journal.md`, `index.md`, `data.md`.

mod brick;
mod checksum;
mod completeness;
mod digest;
mod disk;
mod entry;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod group_commit;
mod home;
mod identity;
pub mod index;
pub mod inspect;
mod journal;
mod journal_marks;
mod machine;
mod merged_index;
mod meta;
mod open;
mod poison_note;
mod records_since;
mod recovery;
mod reserve;
mod room_queue;
mod scrub;
pub mod storage;
#[cfg(test)]
mod tests;

pub use brick::{Brick, BrickStatus, Checkpoint, Reservation};
pub use checksum::{CRC_BLOCKS, block_checksum};
pub use digest::EntryHashes;
pub use entry::LogEntry;
pub use home::data_file_path;
pub use identity::{BrickSettings, Identity, check_own};
pub use journal::Lsn;
pub use journal_marks::{ENDS_A_JOURNAL, Ends};
pub use machine::{Amount, LogPosition};
pub use meta::{Meta, PartitionLog};
pub use records_since::Since;
pub use recovery::{LostBlock, RecoveryReport, TornTail};
pub use scrub::{Finding, ScrubCursor, ScrubStep};
