//! Block devices in a volume: thin, with snapshots and clones.
//!
//! A vDisk is a stack of layers. Writes are appended to the log of the uppermost layer, in segments of 16 MiB; a map leads
//! from each block to its place. A snapshot seals the layer and begins another above it, a clone begins one above that of
//! a snapshot. `docs/format/vdisk.md` describes the files, `docs/vdisks.md` is for operators.
//!
//! Everything lies in the volume's system directory, and is read and written as any client does. The fencing token is a
//! lock of the session: a session that has ended is refused by every brick before another gets the lock.

pub mod catalogue;
pub mod disk;
pub mod format;
mod layer;
mod map;
#[cfg(feature = "measuring")]
pub mod measure;
pub mod orders;
pub mod scrub;
pub mod store;

pub use catalogue::{Catalogue, DiskInfo, Usage, check_name};
pub use disk::{Change, Counters, Disk, Extent, Holder, Settings};
pub use format::{DiskKind, DiskRecord, Durability, Health, SnapshotRecord};
pub use store::{Store, VolumeStore};

#[cfg(test)]
mod tests;
