//! What vDisks need of a volume: files that are read, written and synced, small files that are replaced as a whole,
//! names, and locks that end with their session.

mod volume;

#[cfg(any(test, feature = "memory"))]
pub mod memory;

use bytes::Bytes;
use hekate_proto::{Condition, InodeId, Result};
use std::sync::Arc;

pub use volume::VolumeStore;

/// A session of a volume. All changes of names are on stable storage when they return.
///
/// # Errors
/// Those of `hekate_client::Volume`; above all `NotFound`, `Exists`, `NoSpace`, `SessionEnded` once the session has ended,
/// and `Unavailable`.
pub trait Store: Send + Sync {
    /// The directory under which everything of vDisks lies.
    fn root(&self) -> InodeId;
    /// At most `length` bytes from `offset`: holes are zeros, fewer at the end of the file.
    fn read(&self, file: InodeId, offset: u64, length: u32) -> Result<Bytes>;
    /// Writes bytes to all replicas, and with `durable` to their stable storage.
    fn write(&self, file: InodeId, offset: u64, bytes: Bytes, durable: bool) -> Result<()>;
    /// Puts all earlier writes of this session to the file on stable storage.
    ///
    /// # Errors
    /// `Lost`, once, if all replicas lost some of them.
    fn sync(&self, file: InodeId) -> Result<()>;
    /// Gives the first `bytes` of a file zeros and space, on stable storage.
    fn allocate(&self, file: InodeId, bytes: u64) -> Result<()>;
    /// As `allocate`. The zeros are written if overwrites are faster than first writes.
    fn fill(&self, file: InodeId, bytes: u64) -> Result<()> {
        self.allocate(file, bytes)
    }
    /// Makes an empty file.
    fn make_file(&self, dir: InodeId, name: &str) -> Result<InodeId>;
    /// Makes an empty directory.
    fn make_directory(&self, dir: InodeId, name: &str) -> Result<InodeId>;
    fn find(&self, dir: InodeId, name: &str) -> Result<InodeId>;
    /// Replaces the content of a file by name, or makes it: nobody sees a part of it. Returns its version.
    ///
    /// # Errors
    /// `ConditionFailed` if the file is not as the condition demands.
    fn put(&self, dir: InodeId, name: &str, content: Bytes, condition: Condition) -> Result<Version>;
    /// The content of a file by name, and its version.
    fn fetch_version(&self, dir: InodeId, name: &str) -> Result<(Bytes, Version)>;
    /// The version of a file by name.
    fn version(&self, dir: InodeId, name: &str) -> Result<Version>;
    /// The content of a file by name.
    fn fetch(&self, dir: InodeId, name: &str) -> Result<Bytes> {
        Ok(self.fetch_version(dir, name)?.0)
    }
    /// All names of a directory, in byte order.
    fn list(&self, dir: InodeId) -> Result<Vec<String>>;
    /// The change counter of a directory: it differs after a name was made or removed.
    fn change_of(&self, dir: InodeId) -> Result<u64>;
    fn remove(&self, dir: InodeId, name: &str) -> Result<()>;
    /// Removes a name if its file has this version.
    ///
    /// # Errors
    /// `ConditionFailed` if it has another one.
    fn remove_version(&self, dir: InodeId, name: &str, version: &Version) -> Result<()>;
    fn remove_directory(&self, dir: InodeId, name: &str) -> Result<()>;
    /// Renames within a directory; `Exists` if something has the new name.
    fn rename(&self, dir: InodeId, name: &str, to: &str) -> Result<()>;
    /// Takes a lock on a file until it is released or the session has ended. `None`: another session holds one in
    /// conflict, and the lock is not waited for.
    fn lock(&self, file: InodeId, shared: bool) -> Result<Option<Hold>>;
    /// The content of a file stays while its name goes.
    fn opened(&self, file: InodeId);
    fn closed(&self, file: InodeId);
    /// True once the session has ended: every call fails.
    fn has_ended(&self) -> bool;
    /// The session that holds a lock on a file which another would conflict with.
    fn holder(&self, file: InodeId) -> Result<Option<u64>>;
    /// Seconds since 1970.
    fn time(&self) -> u64;
    fn random(&self) -> Result<u64>;
}

/// Tells the content of a file from any that it had before, or will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub(crate) Bytes);

impl Version {
    /// The file has this version.
    pub(crate) fn condition(&self) -> Condition {
        Condition::Matches { etag: self.0.clone() }
    }
}

/// A lock that is held until it is dropped.
pub struct Hold(Option<Box<dyn FnOnce() + Send>>);

impl Hold {
    pub(crate) fn new(release: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(release)))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

/// A file that is open: its content stays while this exists.
pub(crate) struct OpenFile {
    store: Arc<dyn Store>,
    pub(crate) id: InodeId,
}

impl OpenFile {
    pub(crate) fn new(store: &Arc<dyn Store>, id: InodeId) -> Self {
        store.opened(id);
        Self { store: store.clone(), id }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.store.closed(self.id);
    }
}
