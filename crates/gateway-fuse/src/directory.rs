//! An open directory: its entries by number, whatever changes in the directory meanwhile.
//!
//! A listing is fetched in batches of [`BATCH`] names in byte order. Invariants: numbers of entries increase by one,
//! and a number never denotes another name. The last [`BATCHES_HELD`] batches are kept; of the others the listing
//! keeps the name before the batch and a hash of 8 bytes for each name. A seek to a batch that is not kept fetches it
//! again: the names of that time keep their numbers, and names created since are not listed.

use bytes::Bytes;
use hekate_proto::{Attr, Entry, InodeId, Name, NodeKind, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Names fetched at once.
const BATCH: u32 = 1024;
/// Batches kept for each open directory: readers proceed mostly forward.
const BATCHES_HELD: usize = 3;

/// The open directories of a mount, by handle.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

/// One open directory.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) inode: InodeId,
    pub(crate) entries: Mutex<Entries>,
}

impl Handles {
    pub(crate) fn insert(&self, inode: InodeId) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(number, Arc::new(Handle { inode, entries: Mutex::default() }));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Handle>> {
        self.open.lock().get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) {
        self.open.lock().remove(&number);
    }

    /// True if any directory is open.
    pub(crate) fn any(&self) -> bool {
        !self.open.lock().is_empty()
    }

    pub(crate) fn is_open(&self, inode: InodeId) -> bool {
        self.open.lock().values().any(|handle| handle.inode == inode)
    }
}

/// One entry, with the parts that READDIR needs.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) inode: InodeId,
    pub(crate) kind: NodeKind,
    pub(crate) attr: Option<Box<Attr>>,
}

impl From<Entry> for Item {
    fn from(entry: Entry) -> Self {
        Self { name: entry.name, inode: entry.inode, kind: entry.kind, attr: entry.attr.map(Box::new) }
    }
}

/// Begin of a batch: the number of its first entry, and the name before it.
#[derive(Debug, Clone)]
struct Mark {
    first: u64,
    after: Option<Name>,
    /// Hash of each name of the batch, in order, once the batch was fetched.
    hashes: Arc<[u64]>,
}

#[derive(Debug)]
struct Batch {
    /// Number of the first entry.
    first: u64,
    /// Entries in order. `None`: the name was removed since it was first listed.
    items: Vec<Option<Item>>,
    fetched: Instant,
}

/// The entries of one listing.
#[derive(Debug)]
pub(crate) struct Entries {
    marks: Vec<Mark>,
    held: VecDeque<Batch>,
}

impl Default for Entries {
    fn default() -> Self {
        Self { marks: vec![Mark { first: 0, after: None, hashes: Arc::default() }], held: VecDeque::new() }
    }
}

/// Fetches a number of names after a name. Returns them, and whether they are the last ones.
pub(crate) type Fetch<'a> = dyn FnMut(Option<Name>, u32) -> Result<(Vec<Item>, bool)> + 'a;

/// An entry with its number.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) number: u64,
    pub(crate) item: &'a Item,
    pub(crate) fetched: Instant,
}

impl Entries {
    /// Entry `number`, or the next existing one. `None` after the last entry.
    pub(crate) fn at(&mut self, mut number: u64, fetch: &mut Fetch) -> Result<Option<Listed<'_>>> {
        loop {
            let (index, mark) = self.mark_of(number);
            let position = match self.held.iter().position(|batch| batch.first == mark.first) {
                Some(position) => position,
                None => self.fetch(index, mark, fetch)?,
            };
            let inside = (number - self.held[position].first) as usize;
            let found = self.held[position].items.iter().skip(inside).position(Option::is_some);
            if let Some(later) = found {
                let Batch { items, fetched, .. } = &self.held[position];
                let item = items[inside + later].as_ref();
                return Ok(item.map(|item| Listed { number: number + later as u64, item, fetched: *fetched }));
            }
            match self.marks.get(index + 1) {
                Some(next) => number = number.max(next.first),
                None => return Ok(None),
            }
        }
    }

    /// The batch of an entry number.
    fn mark_of(&self, number: u64) -> (usize, Mark) {
        let index = self.marks.partition_point(|mark| mark.first <= number).saturating_sub(1);
        (index, self.marks[index].clone())
    }

    /// Fetches the batch at a mark. Returns its position among those kept.
    fn fetch(&mut self, index: usize, mark: Mark, fetch: &mut Fetch) -> Result<usize> {
        let fetched = Instant::now();
        let next = self.marks.get(index + 1).and_then(|next| next.after.clone());
        let items = match mark.hashes.is_empty() {
            true => self.fetch_new(index, &mark, fetch)?,
            false => fetch_again(&mark, next.as_ref(), fetch)?,
        };
        if self.held.len() == BATCHES_HELD {
            self.held.pop_front();
        }
        self.held.push_back(Batch { first: mark.first, items, fetched });
        Ok(self.held.len() - 1)
    }

    /// Fetches a batch for the first time; its names get the next numbers.
    fn fetch_new(&mut self, index: usize, mark: &Mark, fetch: &mut Fetch) -> Result<Vec<Option<Item>>> {
        let (items, end) = fetch(mark.after.clone(), BATCH)?;
        if let Some(last) = items.last().filter(|_| !end) {
            let (first, after) = (mark.first + items.len() as u64, Some(copied(&last.name)));
            self.marks.push(Mark { first, after, hashes: Arc::default() });
        }
        self.marks[index].hashes = items.iter().map(|item| hash(&item.name)).collect();
        Ok(items.into_iter().map(Some).collect())
    }
}

/// Fetches a batch that was listed before: the names of that time that still exist, by number.
fn fetch_again(mark: &Mark, last: Option<&Name>, fetch: &mut Fetch) -> Result<Vec<Option<Item>>> {
    let mut items: Vec<Option<Item>> = mark.hashes.iter().map(|_| None).collect();
    let (mut after, mut number) = (mark.after.clone(), 0);
    loop {
        let (found, end) = fetch(after.take(), BATCH)?;
        let is_past = |item: &Item| last.is_some_and(|last| item.name > *last);
        let done = end || found.last().is_none_or(is_past) || number >= items.len();
        after = found.last().map(|item| copied(&item.name));
        for item in found.into_iter().take_while(|item| !is_past(item)) {
            let sought = hash(&item.name);
            if let Some(later) = mark.hashes[number..].iter().position(|known| *known == sought) {
                number += later + 1;
                items[number - 1] = Some(item);
            }
        }
        if done {
            return Ok(items);
        }
    }
}

fn hash(name: &Name) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}

/// A copy of the name that does not share memory with the reply in which it arrived.
fn copied(name: &Name) -> Name {
    Name::new(Bytes::copy_from_slice(name.as_bytes())).unwrap_or_else(|_| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    type Directory = BTreeSet<String>;

    fn list(directory: &Directory, after: Option<Name>, limit: u32) -> (Vec<Item>, bool) {
        let after = after.map(|name| String::from_utf8(name.as_bytes().to_vec()).unwrap());
        let mut rest = directory.iter().filter(|name| after.as_ref().is_none_or(|after| *name > after));
        let item = |name: &String| {
            let (inode, kind) = (InodeId::new(1, 1, 5), NodeKind::File);
            Item { name: Name::try_from(name.as_str()).unwrap(), inode, kind, attr: None }
        };
        let items = rest.by_ref().take(limit as usize).map(item).collect();
        (items, rest.next().is_none())
    }

    fn directory(count: usize) -> Directory {
        (0..count).map(|number| format!("{number:06}")).collect()
    }

    /// Lists from a number on. Returns names with their numbers.
    fn read(entries: &mut Entries, directory: &Directory, from: u64, count: usize) -> Vec<(u64, String)> {
        let (mut found, mut next) = (Vec::new(), from);
        while found.len() < count {
            let fetch = &mut |after, limit| Ok(list(directory, after, limit));
            let Some(Listed { number, item, .. }) = entries.at(next, fetch).unwrap() else { break };
            found.push((number, String::from_utf8(item.name.as_bytes().to_vec()).unwrap()));
            next = number + 1;
        }
        found
    }

    #[test]
    fn a_hundred_thousand_names_are_listed_once_each_with_few_of_them_held() {
        let (directory, mut entries) = (directory(100_000), Entries::default());
        let found = read(&mut entries, &directory, 0, usize::MAX);
        assert!(found.iter().map(|(_, name)| name).eq(directory.iter()));
        assert!(found.iter().map(|(number, _)| *number).eq(0..100_000));
        assert!(entries.held.len() <= BATCHES_HELD && entries.marks.len() <= 100);
    }

    #[test]
    fn going_back_finds_the_same_entries_again() {
        let (directory, mut entries) = (directory(10_000), Entries::default());
        let all = read(&mut entries, &directory, 0, usize::MAX);
        for from in [0usize, 1023, 1024, 1500, 5000, 9999] {
            assert_eq!(read(&mut entries, &directory, from as u64, 2000), all[from..(from + 2000).min(10_000)]);
        }
        assert_eq!(read(&mut entries, &directory, 10_000, 1), []);
        assert_eq!(read(&mut entries, &directory, 1 << 62, 1), []);
    }

    #[test]
    fn names_that_come_and_go_move_no_others_in_a_forward_listing() {
        let (mut directory, mut entries) = (directory(5000), Entries::default());
        let first = read(&mut entries, &directory, 0, 1000);
        first.iter().for_each(|(_, name)| assert!(directory.remove(name)));
        directory.insert("000000-back".into());
        let rest = read(&mut entries, &directory, 1000, usize::MAX);
        assert_eq!((rest.len(), rest[0].1.as_str()), (4000, "001000"));
    }

    #[test]
    fn a_batch_that_shrank_is_followed_by_the_next_without_loss() {
        let (mut directory, mut entries) = (directory(8000), Entries::default());
        read(&mut entries, &directory, 0, usize::MAX);
        (100..200).for_each(|number| assert!(directory.remove(&format!("{number:06}"))));
        let again = read(&mut entries, &directory, 0, usize::MAX);
        assert!(again.iter().map(|(_, name)| name).eq(directory.iter()));
        assert!(again.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn names_keep_their_numbers_when_others_of_a_batch_that_is_not_held_come_and_go() {
        let (mut directory, mut entries) = (directory(9000), Entries::default());
        let listed = read(&mut entries, &directory, 0, usize::MAX);
        (100..1300).filter(|number| number % 3 == 0).for_each(|n| assert!(directory.remove(&format!("{n:06}"))));
        (0..3000).for_each(|number| assert!(directory.insert(format!("000150-{number}"))));
        let again = read(&mut entries, &directory, 0, usize::MAX);
        let left: Vec<_> = listed.into_iter().filter(|(_, name)| directory.contains(name)).collect();
        assert_eq!(again, left);
    }

    #[test]
    fn any_place_is_found_again_in_any_order_when_others_went() {
        let (mut directory, mut entries) = (directory(25_000), Entries::default());
        let listed = read(&mut entries, &directory, 0, usize::MAX);
        let mut state = 7u64;
        let mut places: Vec<usize> = (0..2000).map(|place| place * 12).collect();
        for at in (1..places.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            places.swap(at, (state >> 33) as usize % (at + 1));
        }
        for place in &places {
            assert_eq!(read(&mut entries, &directory, *place as u64, 1), listed[*place..place + 1]);
        }
        let gone = (0..25_000).filter(|place| place % 12 != 0 && place % 7 == 0).take(3000);
        gone.for_each(|place| assert!(directory.remove(&listed[place].1)));
        for place in &places {
            assert_eq!(read(&mut entries, &directory, *place as u64, 1), listed[*place..place + 1]);
        }
    }

    #[test]
    fn an_empty_directory_has_no_entries_and_an_error_is_passed_on() {
        let mut entries = Entries::default();
        assert_eq!(read(&mut entries, &Directory::new(), 0, 5), []);
        let mut failing = Entries::default();
        assert!(failing.at(0, &mut |_, _| Err(hekate_proto::Error::Stale)).is_err());
    }
}
