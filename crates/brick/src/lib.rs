//! One disk's store: a journal of changes, an ordered index, and a plain file for each shard.
//!
//! Ground state is the journal from the last checkpoint on, plus the index and the data files as that checkpoint left
//! them. Derived state is the overlay: what the journal says beyond the index. Only [`Brick::append`] changes what a
//! brick holds; only a checkpoint moves the durable state of the index, after it has synced the journal.
//! Documents: `docs/format/brick.md`, `journal.md`, `index.md`, `data.md`.

mod blocks;
mod brick;
mod checkpoint;
mod checksum;
#[cfg(test)]
mod histories;
mod home;
mod identity;
pub mod index;
mod journal;
mod overlay;
mod recovery;
#[cfg(test)]
mod regressions;
mod shards;
pub mod storage;
#[cfg(test)]
mod tests;

pub use brick::{Brick, BrickStatus, LogEntry, LogPosition};
pub use checkpoint::Checkpoint;
pub use checksum::{CRC_BLOCKS, block_checksum};
pub use identity::{BrickSettings, Identity};
pub use journal::Lsn;
pub use recovery::{LostBlocks, RecoveryReport};
