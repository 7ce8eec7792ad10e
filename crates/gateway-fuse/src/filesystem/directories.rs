//! Listing directories.

use super::{Caller, Filesystem};
use crate::abi::*;
use crate::directory::{Entries, Item, Listed};
use crate::encode::{Listing, ListingEntry, Outcome, bytes_of, entry_out};
use bytes::Bytes;
use hekate_client::Volume;
use hekate_proto::{Error, Name, NodeKind, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// `.` and `..` come first.
const DOTS: [&[u8]; 2] = [b".", b".."];
/// The inode number of `..`, which we do not know; programs take the answer of stat.
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

    /// `offset` is the number of entries before the next one, counted from the start of the listing.
    pub(super) fn readdir(
        &self,
        caller: &Caller,
        handle: u64,
        (offset, size): (u64, u32),
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
                Ok(Some(listed)) if self.push(&mut listing, &listed, plus) => next = number_after(&listed),
                // What was found is answered; the error comes with the next request, if it lasts. A directory that is gone
                // has no entries, not even the first two.
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

    /// Appends an entry; with attributes that are no older than the cache may be, else the kernel asks for them.
    fn push(&self, listing: &mut Listing, listed: &Listed, plus: bool) -> bool {
        let item = listed.item;
        let known = item.attr.as_deref().filter(|_| plus && listed.fetched.elapsed() < self.cache);
        let told = known.map(|attr| entry_out(attr, self.cache)).unwrap_or_default();
        let entry = ListingEntry {
            name: item.name.as_bytes(),
            ino: item.inode.number(),
            kind: item.kind,
            plus: plus.then_some(told),
        };
        let fits = listing.push(&entry, number_after(listed));
        if let Some(attr) = known.filter(|_| fits) {
            self.nodes.told(attr.id, attr.kind, self.believed_plain(attr));
            self.nodes.saw(attr);
        }
        fits
    }
}

/// The offset of what follows an entry.
fn number_after(listed: &Listed) -> u64 {
    listed.number + 1 + DOTS.len() as u64
}
