//! Listing directories.

use super::{Caller, Filesystem};
use crate::abi::*;
use crate::directory::{Entries, Item, Listed};
use crate::encode::{Listing, ListingEntry, Outcome, bytes_of};
use bytes::Bytes;
use hekate_client::Volume;
use hekate_proto::{Attr, Error, InodeId, Name, NodeKind, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::time::Duration;

/// The first two entries of a listing.
const DOTS: [&[u8]; 2] = [b".", b".."];
/// Inode number listed for `..`, because the parent is not known here. Programs take the number from stat(2).
const UNKNOWN_INO: u64 = 0xffff_ffff;

impl Filesystem {
    pub(super) fn opendir(&self, caller: &Caller) -> Outcome {
        let handle = self.handles.insert(caller.inode);
        self.losses.opened(caller.inode, handle);
        Ok(bytes_of(&OpenOut { handle, flags: 0, padding: 0 }))
    }

    pub(super) fn releasedir(&self, caller: &Caller, handle: u64) -> Outcome {
        self.handles.remove(handle);
        if !self.handles.is_open(caller.inode) {
            self.losses.closed(caller.inode);
        }
        Ok(Bytes::new())
    }

    /// `offset` is the number of entries before the first requested one.
    pub(super) fn readdir(
        &self,
        caller: &Caller,
        handle: u64,
        offset: u64,
        size: u32,
        flags: u32,
        plus: bool,
    ) -> Outcome {
        let handle = self.handles.get(handle).ok_or(Errno::BADF)?;
        let mut entries = handle.entries.lock();
        if offset == 0 {
            *entries = Entries::default();
        }
        let mut listing = Listing::new(size);
        let mut next = offset;
        while let Some(dot) = DOTS.get(next as usize) {
            if !listing.push(&self.dot(caller, dot, plus), next + 1) {
                return Ok(listing.into_bytes());
            }
            next += 1;
        }
        let mut fetch = |after: Option<Name>, limit: u32| -> Result<(Vec<Item>, bool)> {
            let list = if flags & OFlags::NOATIME.bits() != 0 { Volume::list_quietly } else { Volume::list };
            let (found, end) = list(&self.volume, &caller.context, handle.inode, after, limit, plus)?;
            Ok((found.into_iter().map(Item::from).collect(), end))
        };
        loop {
            match entries.at(next - DOTS.len() as u64, &mut fetch) {
                Ok(Some(listed)) if self.push(caller.inode, &mut listing, &listed, plus) => {
                    next = number_after(&listed)
                }
                // Entries that were found are returned; an error that lasts is returned by the next request. A
                // removed directory has no entries, not even the first two.
                Err(error) if next == offset || error == Error::NotFound => return Err(error.into()),
                _ => return Ok(listing.into_bytes()),
            }
        }
    }

    fn dot<'a>(&self, caller: &Caller, name: &'a [u8], plus: bool) -> ListingEntry<'a> {
        let own = name.len() == 1 || caller.inode.number() == ROOT_NODE;
        let ino = if own { caller.inode.number() } else { UNKNOWN_INO };
        ListingEntry { name, ino, kind: NodeKind::Directory, plus: plus.then(EntryOut::default) }
    }

    /// Appends an entry. Its attributes are included only if the kernel may use them, because they are pledged or
    /// younger than the cache time; otherwise the kernel requests them.
    fn push(&self, dir: InodeId, listing: &mut Listing, listed: &Listed, plus: bool) -> bool {
        let item = listed.item;
        let may_use = |attr: &&Attr| {
            plus && match self.cache {
                Duration::ZERO => !self.volume.pledges().validity(attr).is_zero(),
                cache => listed.fetched.elapsed() < cache,
            }
        };
        let known = item.attr.as_deref().filter(may_use);
        let plus_entry = |attr: &Attr| {
            let name = self.name_validity(&(dir, item.name.clone()), Some(attr.id));
            self.entry_out(attr, name)
        };
        let entry = ListingEntry {
            name: item.name.as_bytes(),
            ino: item.inode.number(),
            kind: item.kind,
            plus: plus.then(|| known.map(plus_entry).unwrap_or_default()),
        };
        let fits = listing.push(&entry, number_after(listed));
        if let Some(attr) = known.filter(|_| !fits) {
            self.nodes.forget(attr.id.number(), 1);
        }
        fits
    }
}

/// Offset of the entry after this one.
fn number_after(listed: &Listed) -> u64 {
    listed.number + 1 + DOTS.len() as u64
}
