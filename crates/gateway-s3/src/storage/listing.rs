//! Keys of a bucket in the order of their bytes, a page at a time, with prefix and delimiter.
//!
//! With the delimiter `/` a page costs one request for each page of names of one directory. Any other delimiter, or
//! none, walks the directories below. A page holds the names of the directories on its way, at most
//! [`walk::ENTRIES_MAX`] of them and a few for each level.

mod level;
mod walk;

use super::directories::DIRECTORY_ETAG;
use super::error::{Error, Result};
use super::model::{ListQuery, Listed, Metadata, ObjectInfo};
use super::objects::etag_text;
use super::paths::Missing;
use super::{Store, context, is_gone};
use crate::key::{directories_of, escape, text_of};
use hekate_proto::{Attr, InodeId, KEY_BYTES_MAX, NodeKind};
use walk::{Found, Walk};

/// Most keys and prefixes of a page.
pub const PAGE_MAX: usize = 1000;

/// A key of a page whose attributes may still have to be read.
struct Keyed {
    key: String,
    inode: InodeId,
    attr: Option<Attr>,
}

/// A page in the making.
struct Page<'a> {
    query: &'a ListQuery,
    delimiter: Option<&'a str>,
    max: usize,
    objects: Vec<Keyed>,
    prefixes: Vec<String>,
    /// The last key or prefix.
    last: Option<String>,
}

/// What a key is in a page.
enum Shown {
    Object,
    /// One of several keys that are listed as one prefix.
    Prefix(String),
}

impl Page<'_> {
    fn shown(&self, key: &str) -> Shown {
        let rest = key.get(self.query.prefix.len()..).unwrap_or_default();
        let delimiter = self.delimiter.and_then(|delimiter| Some((rest.find(delimiter)?, delimiter.len())));
        match delimiter {
            Some((at, length)) => Shown::Prefix(format!("{}{}", self.query.prefix, &rest[..at + length])),
            None => Shown::Object,
        }
    }

    fn is_full(&self) -> bool {
        self.objects.len() + self.prefixes.len() >= self.max
    }
}

impl Store {
    /// A page of keys. At most 1,000 keys and prefixes.
    ///
    /// A prefix is listed if it is greater than [`ListQuery::after`], so a page that ends in a prefix goes on behind all
    /// keys that begin with it.
    ///
    /// # Errors
    /// `NoSuchBucket`.
    pub fn list(&self, bucket: &str, query: &ListQuery) -> Result<Listed> {
        let bucket = self.bucket(bucket)?.inode;
        let delimiter = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let max = query.max.min(PAGE_MAX);
        let mut page = Page { query, delimiter, max, objects: Vec::new(), prefixes: Vec::new(), last: None };
        let Some((top, key)) = self.top_of(bucket, &query.prefix)?.filter(|_| max > 0) else {
            return Ok(Listed::default());
        };
        let mut walk = Walk::new(self, (top, key), escape(query.prefix.as_bytes()), max + 1);
        walk.seek(escape(query.after.as_bytes()));
        let is_more = fill(&mut page, &mut walk)?;
        let next = page.last.filter(|_| is_more);
        Ok(Listed { objects: self.with_attributes(page.objects)?, prefixes: page.prefixes, next })
    }

    /// The directory that has all keys with a prefix, and its escaped key.
    fn top_of(&self, bucket: InodeId, prefix: &str) -> Result<Option<(InodeId, Vec<u8>)>> {
        let Some((above, _)) = prefix.rsplit_once('/') else { return Ok(Some((bucket, Vec::new()))) };
        if prefix.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        let steps = self.walk(bucket, &directories_of(above), Missing::Stop)?;
        let key = escape(&prefix.as_bytes()[..above.len() + 1]);
        Ok(steps.map(|steps| (steps.last().map_or(bucket, |step| step.inode), key)))
    }

    /// The objects of a page, without those that were removed meanwhile.
    fn with_attributes(&self, found: Vec<Keyed>) -> Result<Vec<ObjectInfo>> {
        let missing: Vec<InodeId> =
            found.iter().filter(|keyed| keyed.attr.is_none()).map(|keyed| keyed.inode).collect();
        let volume = self.inner.volume.clone();
        let read = self.inner.pool.map(missing, move |inode| match volume.getattr(&context(), inode) {
            Ok(attr) => Ok(Some(attr)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(Error::from(error)),
        });
        let (mut read, mut objects) = (read.into_iter(), Vec::with_capacity(found.len()));
        for Keyed { key, attr, .. } in found {
            let attr = match attr {
                Some(attr) => Some(attr),
                None => read.next().transpose()?.flatten(),
            };
            objects.extend(attr.map(|attr| listed(key, &attr)));
        }
        Ok(objects)
    }
}

fn listed(key: String, attr: &Attr) -> ObjectInfo {
    let (size, etag) = match attr.kind {
        NodeKind::Directory => (0, DIRECTORY_ETAG.to_owned()),
        _ => (attr.size, etag_text(attr)),
    };
    ObjectInfo { key, size, modified: attr.mtime, etag, metadata: Metadata::default() }
}

/// Fills the page. True if there are more keys.
fn fill(page: &mut Page, walk: &mut Walk) -> Result<bool> {
    while let Some(found) = walk.next()? {
        let Some(key) = text_of(found.key()).filter(|key| key.len() <= KEY_BYTES_MAX) else { continue };
        let prefix = match (page.shown(&key), &found) {
            (Shown::Prefix(prefix), _) => prefix,
            (Shown::Object, Found::Directory { .. }) => {
                walk.descend(found);
                continue;
            }
            (Shown::Object, Found::Object { .. }) => {
                if page.is_full() {
                    return Ok(true);
                }
                page.last = Some(key.clone());
                if let Found::Object { inode, attr, .. } = found {
                    page.objects.push(Keyed { key, inode, attr });
                }
                continue;
            }
        };
        // A directory's key is a whole prefix, and its keys are behind it; other prefixes are skipped by a search.
        let is_whole = matches!(found, Found::Directory { .. }) && prefix == key;
        if prefix > page.query.after {
            if page.is_full() {
                return Ok(true);
            }
            page.last = Some(prefix.clone());
            page.prefixes.push(prefix.clone());
        }
        if !is_whole {
            walk.skip(&escape(prefix.as_bytes()));
        }
    }
    Ok(false)
}
