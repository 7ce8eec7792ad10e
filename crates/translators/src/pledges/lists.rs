//! Directories as they were listed last (rule C10 of `docs/coherence.md`).
//!
//! A directory's change count grows by one with each record that changes its names. A list came with the count of that
//! moment: while the directory's attributes are pledged with the same count, under the same lease, the names are the
//! same.

use super::cache::LeaseOf;
use bytes::{Bytes, BytesMut};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{Entry, InodeId, Name, NodeKind};
use hekate_threads::HashMap;

/// Names that are remembered, in two generations of half as many.
const NAMES_MAX: usize = 131_072;
/// What a page takes besides its names, counted as so many of them.
const PAGE_NAMES: usize = 8;

/// Names that are looked up in a directory, and missing, before it is listed: what else is missing is known then.
const MISSED_MIN: u32 = 4;
/// It is listed again after so many times as many, if that did not help.
const MISSED_FACTOR: u32 = 8;
/// Directories whose missing names are counted.
const MISSED_MAX: usize = 4096;

/// A directory, and the name after which a page of its list begins.
pub(super) type Place = (InodeId, Option<Name>);

/// What a list showed of a name.
pub(super) type Listed = (Name, InodeId, NodeKind);

/// A part of a list.
#[derive(Debug)]
pub(super) struct Page {
    /// Names that were asked for.
    limit: u32,
    /// In the order of names.
    pub entries: Vec<Listed>,
    /// There are no more.
    pub end: bool,
    /// The directory's change count.
    change: u64,
    lease: LeaseOf,
}

impl Page {
    /// What a reply shows. `None` if its names are in no order.
    pub fn new(limit: u32, (entries, end): (&[Entry], bool), change: u64, lease: LeaseOf) -> Option<Self> {
        if !entries.is_sorted_by(|one, next| one.name < next.name) {
            return None;
        }
        let entries = names_of(entries).zip(entries).map(|(name, entry)| (name, entry.inode, entry.kind)).collect();
        Some(Self { limit, entries, end, change, lease })
    }

    fn is_current(&self, change: u64, lease: LeaseOf) -> bool {
        (self.change, self.lease) == (change, lease) || is_planted(Bug::OldListAnswered)
    }

    /// True if the page is the answer to a list of so many names.
    pub fn answers(&self, limit: u32) -> bool {
        self.limit == limit || self.end && self.entries.len() as u64 <= u64::from(limit)
    }

    fn weight(&self) -> usize {
        self.entries.len() + PAGE_NAMES
    }
}

#[derive(Debug, Default)]
pub(super) struct Lists {
    newer: HashMap<Place, Page>,
    older: HashMap<Place, Page>,
    /// Names of the newer ones.
    names: usize,
    /// Names that servers said are missing, by directory.
    missed: HashMap<InodeId, u32>,
}

impl Lists {
    pub fn remember(&mut self, place: Place, page: Page) {
        self.older.remove(&place);
        if self.names + page.weight() > NAMES_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
            self.names = 0;
        }
        self.names += page.weight();
        if let Some(before) = self.newer.insert(place, page) {
            self.names -= before.weight();
        }
    }

    /// A server has said that a name is missing from the directory, of which no list is known. True if it is to be
    /// listed now.
    pub fn missed(&mut self, dir: InodeId) -> bool {
        if self.missed.len() >= MISSED_MAX {
            self.missed.clear();
        }
        let count = self.missed.entry(dir).or_default();
        *count = count.saturating_add(1);
        let mut due = MISSED_MIN;
        while due < *count {
            due = due.saturating_mul(MISSED_FACTOR);
        }
        due == *count
    }

    /// The page of the directory's list that begins here, if its names are those of this change count.
    pub fn get(&self, place: &Place, change: u64, lease: LeaseOf) -> Option<&Page> {
        let page = self.newer.get(place).or_else(|| self.older.get(place))?;
        page.is_current(change, lease).then_some(page)
    }

    /// True if the directory was listed, and may have been short enough for one page.
    pub fn has(&self, dir: InodeId) -> bool {
        let place = (dir, None);
        self.newer.contains_key(&place) || self.older.contains_key(&place)
    }

    /// True if the directory with this change count has no such name.
    pub fn lacks(&self, dir: InodeId, name: &Name, change: u64, lease: LeaseOf) -> bool {
        let page = self.get(&(dir, None), change, lease).filter(|page| page.end);
        page.is_some_and(|page| page.entries.binary_search_by(|(listed, ..)| listed.cmp(name)).is_err())
    }
}

/// The names of entries, in one piece of memory of their own: those that came with a frame share its memory.
fn names_of(entries: &[Entry]) -> impl Iterator<Item = Name> {
    let mut all = BytesMut::with_capacity(entries.iter().map(|entry| entry.name.as_bytes().len()).sum());
    entries.iter().for_each(|entry| all.extend_from_slice(entry.name.as_bytes()));
    let (mut all, given) = (all.freeze(), entries.iter().map(|entry| entry.name.clone()));
    given.map(move |name| {
        let own: Bytes = all.split_to(name.as_bytes().len());
        Name::new(own).unwrap_or(name)
    })
}
