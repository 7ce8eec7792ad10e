//! The vocabulary that all Hekate processes share: ids, attributes, ops, replies, errors, the map, and their
//! encoding.
//!
//! The crate does no IO and holds no state. The wire (`docs/format/wire.md`), the journal (`docs/format/journal.md`)
//! and the index (`docs/format/index.md`) all use the encoding of [`codec`]: fixed widths, little-endian, explicit
//! numbers, and decoders that return [`codec::Malformed`] for bad input and never panic.
//!
//! Read in this order: `ids` and `attr` (what exists), `op` and `reply` (what can be asked and answered), `error`,
//! `map` (where to ask), `change` and `key` (what is stored).

pub mod attr;
pub mod change;
pub mod codec;
pub mod error;
pub mod ids;
pub mod key;
pub mod lock;
pub mod map;
pub mod object;
pub mod op;
pub mod planted;
mod pledge;
pub mod reply;

pub use attr::{Attr, AttrChanges, Layout, NewNode, NodeKind, Piece, SetTime, ShardRun, Time};
pub use change::*;
pub use codec::{Input, Malformed, Wire};
pub use error::{Error, Result};
pub use ids::*;
pub use key::{Key, KeyPrefix, Kind};
pub use lock::{HeldLock, LOCK_END, Lock, LockHolder, LockKind, LockOwner, LockStyle, locks_with};
pub use object::{ESCAPE, ESCAPED_NAME, KEY_BYTES_MAX, etag_of};
pub use op::{
    Allocate, Condition, DataOp, Fill, InodeOp, Leg, LockOp, NameOp, Op, PutSource, RawStep, RenameMode, Request,
    ShardRange, Target, VolumeOp,
};
pub use pledge::{GivenFor, GivenPledges, KeptRight, MappedSince, Notification, PLEDGE_LEASE, Pledge, Pledged, Report};
pub use reply::{Entry, Fetched, Found, Reply, StubView, VolumeSpace};

/// Length of one shard of a file: 4 MiB. A read or write is atomic within one shard.
pub const SHARD_BYTES: u64 = 4 << 20;
/// Length of one checksummed block.
pub const BLOCK_BYTES: usize = 4096;
/// Longest file whose bytes are stored beside its inode.
pub const INLINE_MAX: u64 = 16 << 10;
/// Longest file. As a signed 64-bit `off_t` its offsets are positive, with room for sums of an offset and a length.
pub const FILE_BYTES_MAX: u64 = 1 << 60;
/// Longest single read or write op, in bytes: one shard.
pub const IO_BYTES_MAX: usize = 4 << 20;
/// The inode id of every volume's root directory.
pub const ROOT: InodeId = InodeId::new(0, 0, 1);
/// The inode id of every volume's system directory: the top of a tree that no name of the volume leads to. Uploads of
/// objects are there.
pub const SYSTEM: InodeId = InodeId::new(0, 0, 2);
/// How reports show the path of [`SYSTEM`], which no path leads to.
pub const SYSTEM_PATH: &str = "(system)";
