//! Buckets, objects and multipart uploads in a volume. All methods block the calling thread.
//!
//! A bucket is a directory of the volume's root, an object a file below it ([`crate::key`] says which), a key that ends
//! in `/` a directory. What S3 keeps of an object beside its bytes is the attribute `hekate.s3` of the file. An upload
//! of parts is a directory in the volume's system directory.
//!
//! - An object appears with all of its bytes and metadata, in one record, on stable storage of all copies.
//! - A directory that only a key needs is *implied*: it is made with the key and removed with its last key. An operation
//!   whose directory is removed meanwhile makes it anew.
//! - No operation holds more than its page, its part of the upload memory, and what [`Limits`] says.

mod buckets;
mod collect;
mod copy;
mod directories;
mod error;
mod listing;
mod model;
mod multipart;
mod objects;
mod paths;
mod pool;
mod record;
mod upload;

pub use error::{Error, Result};
pub use hekate_proto::{Condition, Time};
pub use model::*;
pub use objects::Object;
pub use upload::Upload;

use hekate_client::{Context, Volume};
use parking_lot::Mutex;
use pool::{Memory, Pool};
use std::sync::Arc;

/// Changes return once they are on stable storage of all copies.
const DURABLE: &Context<'static> = &Context::DURABLE;
/// Times that an operation is repeated because a directory of its path was removed meanwhile.
const TRIES_MAX: usize = 64;
/// Locks of uploads that are completed or removed; an upload has one by its directory.
const UPLOAD_LOCKS: usize = 64;

/// Bounds of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Threads that write shards and read attributes side by side. A write has up to 3 changes without an answer, and a
    /// session has 256 slots for them: at most 64 threads leave slots for the callers.
    pub threads: usize,
    /// Writes that an upload has in flight, of up to 4 MiB each.
    pub upload_writes: usize,
    /// Bytes that all uploads together hold. An upload that finds none left writes what it is given on its caller's
    /// thread, which waits for it.
    pub upload_memory_bytes: u64,
    /// Least size of a part that is not the last one, in bytes.
    pub part_bytes_min: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { threads: 32, upload_writes: 4, upload_memory_bytes: 256 << 20, part_bytes_min: 5 << 20 }
    }
}

/// The buckets of one volume. A clone is another handle.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    volume: Arc<Volume>,
    limits: Limits,
    pool: Pool,
    memory: Arc<Memory>,
    /// Held while a record is read and written again, and while a directory becomes an object or ceases to be one.
    records: Mutex<()>,
    upload_locks: [Mutex<()>; UPLOAD_LOCKS],
}

impl Store {
    pub fn new(volume: Arc<Volume>) -> Self {
        Self::with_limits(volume, Limits::default())
    }

    pub fn with_limits(volume: Arc<Volume>, limits: Limits) -> Self {
        let limits = Limits { threads: limits.threads.min(64), ..limits };
        let inner = Inner {
            volume,
            limits,
            pool: Pool::new(limits.threads),
            memory: Memory::new(limits.upload_memory_bytes),
            records: Mutex::new(()),
            upload_locks: [const { Mutex::new(()) }; UPLOAD_LOCKS],
        };
        Self { inner: Arc::new(inner) }
    }

    fn volume(&self) -> &Volume {
        &self.inner.volume
    }
}

/// True if an inode or a name was removed.
fn is_gone(error: &hekate_proto::Error) -> bool {
    matches!(error, hekate_proto::Error::NotFound | hekate_proto::Error::Stale)
}

fn context() -> Context<'static> {
    Context::default()
}
