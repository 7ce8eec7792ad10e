//! Removal of uploads that were not completed, and of directories that no key needs any more.

use super::error::{Error, Result};
use super::model::Collected;
use super::multipart::lock_of;
use super::paths::Step;
use super::{DURABLE, Store, context, is_gone};
use hekate_proto::{InodeId, Name, NodeKind, Time};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names in one round trip.
const PAGE: u32 = 1000;

/// A directory whose subdirectories are being visited.
struct Visit {
    inode: InodeId,
    /// The name that leads to it. `None` for the bucket.
    step: Option<Step>,
    subdirectories: VecDeque<(Name, InodeId)>,
    after: Option<Name>,
    end: bool,
}

impl Visit {
    fn new(inode: InodeId, step: Option<Step>) -> Self {
        Self { inode, step, subdirectories: VecDeque::new(), after: None, end: false }
    }
}

impl Store {
    /// Removes uploads that began longer ago than `older_than`, those of buckets that were removed, and empty implied
    /// directories that did not change for this time. It visits every directory of every bucket.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn collect(&self, older_than: Duration) -> Result<Collected> {
        let before = before(older_than);
        let mut collected = Collected::default();
        for bucket in self.buckets()? {
            match self.bucket(&bucket.name) {
                Ok(found) => collected.directories += self.prune_tree(found.inode, Some(before))?,
                Err(Error::NoSuchBucket) => {}
                Err(other) => return Err(other),
            }
        }
        let Some(top) = self.uploads_top()? else { return Ok(collected) };
        for (name, of_bucket) in self.directories(top)? {
            collected.uploads += self.collect_uploads(of_bucket, before)?;
            let text = String::from_utf8_lossy(name.as_bytes());
            if self.bucket(&text) == Err(Error::NoSuchBucket) {
                self.remove_empty(top, name)?;
            }
        }
        Ok(collected)
    }

    fn collect_uploads(&self, of_bucket: InodeId, before: Time) -> Result<u64> {
        let mut removed = 0;
        for (name, directory) in self.directories(of_bucket)? {
            match self.volume().getattr(&context(), directory) {
                Ok(attr) if attr.btime < before => {}
                Err(error) if !is_gone(&error) => return Err(error.into()),
                _ => continue,
            }
            let _no_completion = self.inner.upload_locks[lock_of(directory)].lock();
            self.drop_upload(of_bucket, &String::from_utf8_lossy(name.as_bytes()), directory)?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes all uploads of a bucket.
    pub(super) fn drop_uploads(&self, bucket: &str) -> Result<()> {
        let Some(top) = self.uploads_top()? else { return Ok(()) };
        let Some(of_bucket) = self.uploads_of(bucket)? else { return Ok(()) };
        for (name, directory) in self.directories(of_bucket)? {
            self.drop_upload(of_bucket, &String::from_utf8_lossy(name.as_bytes()), directory)?;
        }
        self.remove_empty(top, Name::try_from(bucket).map_err(hekate_proto::Error::from)?)
    }

    fn remove_empty(&self, parent: InodeId, name: Name) -> Result<()> {
        match self.volume().rmdir(DURABLE, parent, name) {
            Err(hekate_proto::Error::NotEmpty) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            done => Ok(done?),
        }
    }

    /// The directories in a directory of the system directory.
    fn directories(&self, parent: InodeId) -> Result<Vec<(Name, InodeId)>> {
        let mut visit = Visit::new(parent, None);
        while !visit.end {
            self.read_page(&mut visit)?;
        }
        Ok(visit.subdirectories.into())
    }

    fn read_page(&self, visit: &mut Visit) -> Result<()> {
        let listed = self.volume().list_quietly(&context(), visit.inode, visit.after.take(), PAGE, false);
        let (entries, end) = match listed {
            Err(error) if is_gone(&error) => (Vec::new(), true),
            listed => listed?,
        };
        visit.after = entries.last().map(|entry| entry.name.clone());
        visit.end = end;
        let directories = entries.into_iter().filter(|entry| entry.kind == NodeKind::Directory);
        visit.subdirectories.extend(directories.map(|entry| (entry.name, entry.inode)));
        Ok(())
    }

    /// Removes the empty implied directories of a bucket that did not change since `before`. Returns their number.
    pub(super) fn prune_tree(&self, bucket: InodeId, before: Option<Time>) -> Result<u64> {
        let (mut visits, mut removed) = (vec![Visit::new(bucket, None)], 0);
        while let Some(visit) = visits.last_mut() {
            if let Some((name, inode)) = visit.subdirectories.pop_front() {
                let step = Step::new(visit.inode, name, inode);
                visits.push(Visit::new(inode, Some(step)));
            } else if !visit.end {
                self.read_page(visit)?;
            } else if let Some(step) = visits.pop().and_then(|visit| visit.step) {
                removed += u64::from(self.prune_one(&step, before)?);
            }
        }
        Ok(removed)
    }
}

fn before(older_than: Duration) -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(now.saturating_sub(older_than).as_nanos()).unwrap_or(i64::MAX))
}
