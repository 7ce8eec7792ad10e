//! A walk over the keys of a directory and of all directories below it, in the order of the keys.

use super::level::{Level, What};
use crate::storage::Store;
use crate::storage::error::Result;
use hekate_proto::{Attr, InodeId};

/// Names that a walk holds, unless its directories are nested more than 512 deep: each then holds 16.
pub(super) const ENTRIES_MAX: usize = 8192;
/// Least number of names in one request.
const ENTRIES_MIN: usize = 16;

/// What a walk comes to.
pub(super) enum Found {
    Object {
        key: Vec<u8>,
        inode: InodeId,
        attr: Option<Attr>,
    },
    /// A directory, and the begin of all of its keys. [`Walk::descend`] visits it.
    Directory {
        key: Vec<u8>,
        inode: InodeId,
    },
}

impl Found {
    /// The escaped key.
    pub fn key(&self) -> &[u8] {
        match self {
            Found::Object { key, .. } | Found::Directory { key, .. } => key,
        }
    }
}

/// What all levels of a walk share. Keys are escaped.
pub(super) struct Reader<'a> {
    pub store: &'a Store,
    /// Only keys that begin with it.
    pub prefix: Vec<u8>,
    /// Only keys that are greater; empty: all.
    pub after: Vec<u8>,
    /// Names that the caller needs at most.
    wanted: usize,
    /// Names that levels hold.
    pub held: usize,
}

impl Reader<'_> {
    /// Names to ask for in the next request.
    pub fn page(&self) -> u32 {
        let left = ENTRIES_MAX.saturating_sub(self.held) / 4;
        self.wanted.min(left).max(ENTRIES_MIN) as u32
    }

    /// What the key of a level leaves of the prefix.
    pub fn prefix_below(&self, key: &[u8]) -> Vec<u8> {
        self.prefix.get(key.len()..).unwrap_or_default().to_vec()
    }

    /// What the key of a level leaves of the key after which the walk begins. `None`: all keys of the level are wanted.
    pub fn after_below(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.after.strip_prefix(key).filter(|_| !self.after.is_empty()).map(<[u8]>::to_vec)
    }
}

pub(super) struct Walk<'a> {
    reader: Reader<'a>,
    /// The directory that has all keys with the prefix, and its key.
    top: (InodeId, Vec<u8>),
    levels: Vec<Level>,
}

impl<'a> Walk<'a> {
    /// A walk over the keys with a prefix. `top`: the directory that has all of them, and its key. `wanted`: the number
    /// of keys that the caller needs at most. It begins with [`Walk::seek`].
    pub fn new(store: &'a Store, top: (InodeId, Vec<u8>), prefix: Vec<u8>, wanted: usize) -> Self {
        let reader = Reader { store, prefix, after: Vec::new(), wanted, held: 0 };
        Self { reader, top, levels: Vec::new() }
    }

    /// Goes on behind a key.
    pub fn seek(&mut self, after: Vec<u8>) {
        let (top, key) = &self.top;
        let is_behind = after > *key && !after.starts_with(key);
        (self.reader.after, self.reader.held) = (after, 0);
        self.levels.clear();
        if !is_behind {
            self.levels.push(Level::directory(&self.reader, *top, key.clone()));
        }
    }

    /// Goes on behind all keys that begin with `prefix`. No text has the byte ff.
    pub fn skip(&mut self, prefix: &[u8]) {
        self.seek([prefix, &[0xff]].concat());
    }

    /// The next key or directory.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn next(&mut self) -> Result<Option<Found>> {
        while let Some(level) = self.levels.last_mut() {
            let Some(item) = level.next(&mut self.reader)? else {
                self.levels.pop();
                continue;
            };
            let key = item.order;
            match item.what {
                What::Object { inode, attr } => return Ok(Some(Found::Object { key, inode, attr })),
                What::Directory { inode } => return Ok(Some(Found::Directory { key, inode })),
                What::Hidden | What::Cut { .. } => {}
            }
        }
        Ok(None)
    }

    /// Visits a directory next.
    pub fn descend(&mut self, directory: Found) {
        if let Found::Directory { key, inode } = directory {
            self.levels.push(Level::directory(&self.reader, inode, key));
        }
    }
}
