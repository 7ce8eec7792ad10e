//! Buckets: directories of the volume's root whose names are valid for buckets.

use super::error::{Error, Result};
use super::model::{Actor, Bucket, BucketEntry, BucketSettings};
use super::{DURABLE, Store, context, is_gone, record};
use hekate_client::{New, ObjectName, SetXattr};
use hekate_proto::{Name, NewNode, NodeKind, ROOT};

/// Names of the root in one round trip.
const PAGE: u32 = 1000;
/// Permission bits of directories, unless the bucket says otherwise.
pub(super) const DIRECTORY_MODE: u16 = 0o755;

impl Store {
    /// Makes a bucket.
    ///
    /// # Errors
    /// `InvalidBucketName`; `BucketAlreadyOwnedByYou`; `BucketAlreadyExists` if something else has the name.
    pub fn create_bucket(&self, name: &str, actor: &Actor, settings: &BucketSettings) -> Result<()> {
        let value = record::of_settings(settings)?;
        let owner = settings.owner.unwrap_or(*actor);
        let mode = settings.directory_mode.unwrap_or(DIRECTORY_MODE);
        let node = NewNode::Directory;
        let new = New { node, mode, uid: owner.uid, gid: owner.gid, umask: 0, exclusive: true };
        let made = match self.volume().create(DURABLE, ROOT, bucket_name(name)?, new) {
            Err(hekate_proto::Error::Exists) => return Err(self.taken(name)?),
            made => made?.0,
        };
        if *settings != BucketSettings::default() {
            self.volume().setxattr(DURABLE, made.id, record::ATTRIBUTE, value, SetXattr::default())?;
        }
        Ok(())
    }

    /// Why a bucket of this name cannot be made.
    fn taken(&self, name: &str) -> Result<Error> {
        match self.bucket(name) {
            Ok(_) => Ok(Error::BucketAlreadyOwnedByYou),
            Err(Error::NoSuchBucket) => Ok(Error::BucketAlreadyExists),
            Err(other) => Err(other),
        }
    }

    /// A bucket with its settings.
    ///
    /// # Errors
    /// `NoSuchBucket`, also if no bucket can have the name.
    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        let name = bucket_name(name).map_err(|_| Error::NoSuchBucket)?;
        let name = ObjectName { dir: ROOT, name, alternate: None };
        let found = match self.volume().fetch(&context(), &name, record::ATTRIBUTE, false) {
            Err(error) if is_gone(&error) => return Err(Error::NoSuchBucket),
            found => found?,
        };
        if found.attr.kind != NodeKind::Directory {
            return Err(Error::NoSuchBucket);
        }
        let settings = record::settings(found.attribute.as_ref())?;
        let owner = Actor { uid: found.attr.uid, gid: found.attr.gid };
        Ok(Bucket { created: found.attr.btime, settings, inode: found.attr.id, owner })
    }

    /// All buckets, in the order of their names.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn buckets(&self) -> Result<Vec<BucketEntry>> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let (entries, end) = self.volume().list_quietly(&context(), ROOT, after, PAGE, false)?;
            after = entries.last().map(|entry| entry.name.clone());
            let directories = entries.into_iter().filter(|entry| entry.kind == NodeKind::Directory);
            names.extend(directories.filter_map(|entry| Some((valid(entry.name.as_bytes())?, entry.inode))));
            if end {
                break;
            }
        }
        let volume = self.inner.volume.clone();
        let found = self.inner.pool.map(names, move |(name, inode)| match volume.getattr(&context(), inode) {
            Ok(attr) => Ok(Some(BucketEntry { name, created: attr.btime })),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(Error::from(error)),
        });
        found.into_iter().filter_map(Result::transpose).collect()
    }

    /// Replaces the settings of a bucket.
    ///
    /// # Errors
    /// `NoSuchBucket`; `MetadataTooLarge` if the settings have more than 64 KiB.
    pub fn set_settings(&self, bucket: &str, settings: &BucketSettings) -> Result<()> {
        let found = self.bucket(bucket)?;
        let value = record::of_settings(settings)?;
        match self.volume().setxattr(DURABLE, found.inode, record::ATTRIBUTE, value, SetXattr::default()) {
            Err(error) if is_gone(&error) => Err(Error::NoSuchBucket),
            done => Ok(done?),
        }
    }

    /// Removes a bucket without objects, and its uploads.
    ///
    /// # Errors
    /// `NoSuchBucket`; `BucketNotEmpty` also if it has files that are no objects, symbolic links for instance.
    pub fn delete_bucket(&self, name: &str) -> Result<()> {
        let bucket = self.bucket(name)?;
        let directory = bucket_name(name)?;
        let remove = || self.volume().rmdir(DURABLE, ROOT, directory.clone());
        let removed = match remove() {
            // Empty directories of interrupted operations are no objects and are removed with the bucket.
            Err(hekate_proto::Error::NotEmpty) => {
                self.prune_tree(bucket.inode, None)?;
                remove()
            }
            removed => removed,
        };
        match removed {
            Err(hekate_proto::Error::NotEmpty) => Err(Error::BucketNotEmpty),
            Err(error) if is_gone(&error) => Err(Error::NoSuchBucket),
            removed => {
                removed?;
                self.drop_uploads(name)
            }
        }
    }
}

fn bucket_name(name: &str) -> Result<Name> {
    valid(name.as_bytes()).and_then(|name| Name::try_from(&name[..]).ok()).ok_or(Error::InvalidBucketName)
}

/// The name, if a bucket can have it: 3 to 63 lower-case letters, digits, dots and hyphens, with a letter or digit at
/// both ends and on both sides of a dot, and not the form of an IPv4 address.
pub(super) fn valid(name: &[u8]) -> Option<String> {
    let is_label = |label: &[u8]| {
        let ends = [label.first(), label.last()];
        ends.iter().all(|end| end.is_some_and(|end| end.is_ascii_lowercase() || end.is_ascii_digit()))
            && label.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    };
    let text = std::str::from_utf8(name).ok()?;
    let is_valid = (3..=63).contains(&name.len())
        && name.split(|byte| *byte == b'.').all(is_label)
        && text.parse::<std::net::Ipv4Addr>().is_err();
    is_valid.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::valid;

    #[test]
    fn names_of_buckets_are_those_of_s3() {
        for good in ["abc", "a.b", "0-0", "my-bucket.example", &"x".repeat(63)] {
            assert_eq!(valid(good.as_bytes()).as_deref(), Some(good));
        }
        let long = "x".repeat(64);
        for bad in ["ab", "Abc", "-ab", "ab-", "a..b", ".ab", "a.-b", "a_b", "a/b", "192.168.1.1", "lost+found", &long]
        {
            assert_eq!(valid(bad.as_bytes()), None, "{bad}");
        }
    }
}
