//! The map from blocks of a vDisk to their places, as pages in memory. A page combines the maps of all layers; those that
//! have changed stay until a checkpoint has written them, others may go at any time.

use crate::format::PAGE_ENTRIES;
use hekate_threads::HashMap;

/// Where a block is: nothing, a hole of a layer, or a block of a segment of a layer.
///
/// The low 44 bits are a layer's own entry (0: none, 1: a hole, else segment and block), the bits above the layer's depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place(u64);

const DEPTH_SHIFT: u32 = 44;
const BLOCK_BITS: u32 = 12;
const OWN_MASK: u64 = (1 << DEPTH_SHIFT) - 1;
const HOLE: u64 = 1;

impl Place {
    pub const NOTHING: Self = Self(0);

    pub fn data(depth: u64, segment: u32, block: u32) -> Self {
        assert!(segment > 0 && block < 1 << BLOCK_BITS, "a place is a block of a segment");
        Self(depth << DEPTH_SHIFT | u64::from(segment) << BLOCK_BITS | u64::from(block))
    }

    /// A hole that hides what lower layers have.
    pub fn hole(depth: u64) -> Self {
        if depth == 0 { Self::NOTHING } else { Self(depth << DEPTH_SHIFT | HOLE) }
    }

    /// From a layer's own entry.
    pub fn of_entry(depth: u64, own: u64) -> Self {
        let own = own & OWN_MASK;
        if own == 0 { Self::NOTHING } else { Self(depth << DEPTH_SHIFT | own) }
    }

    /// The entry of the layer at this depth.
    pub fn entry_at(self, depth: u64) -> u64 {
        if self.depth() == depth { self.0 & OWN_MASK } else { 0 }
    }

    pub fn depth(self) -> u64 {
        self.0 >> DEPTH_SHIFT
    }

    /// Segment and block, if the block has data.
    pub fn segment_and_block(self) -> Option<(u32, u32)> {
        let own = self.0 & OWN_MASK;
        (own > HOLE).then_some(((own >> BLOCK_BITS) as u32, (own & ((1 << BLOCK_BITS) - 1)) as u32))
    }

    /// True if `next` goes on where `count` blocks from here end: in the same segment, or in the same hole.
    pub fn is_followed_by(self, count: u64, next: Self) -> bool {
        match (self.segment_and_block(), next.segment_and_block()) {
            (None, None) => true,
            (Some(_), Some(_)) => self.0 + count == next.0,
            _ => false,
        }
    }

    /// The segment, if the layer at this depth has the data.
    pub fn segment_at(self, depth: u64) -> Option<u32> {
        self.segment_and_block().filter(|_| self.depth() == depth).map(|(segment, _)| segment)
    }
}

/// A page of the map.
#[derive(Clone)]
pub(crate) struct Page {
    pub entries: Box<[Place]>,
    write: PageWrite,
    used: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PageWrite {
    Clean,
    /// A checkpoint is writing it.
    Running,
    Due,
}

impl Page {
    pub fn new() -> Self {
        Self { entries: vec![Place::NOTHING; PAGE_ENTRIES as usize].into(), write: PageWrite::Clean, used: 0 }
    }
}

/// The pages in memory.
pub(crate) struct Map {
    pages: HashMap<u64, Page>,
    limit: usize,
    due: usize,
    clock: u64,
    /// Counts when pages were dropped: a page that was read before may be older than one that was dropped.
    drops: u64,
}

impl Map {
    /// `limit`: pages that are kept at most, those left out that have changed.
    pub fn new(limit: usize) -> Self {
        Self { pages: HashMap::default(), limit: limit.max(16), due: 0, clock: 0, drops: 0 }
    }

    pub fn drops(&self) -> u64 {
        self.drops
    }

    pub fn has(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// True if a checkpoint is due, so that pages can be dropped again.
    pub fn is_full(&self) -> bool {
        self.due * 2 > self.limit
    }

    pub fn get(&mut self, page: u64) -> Option<&Page> {
        self.clock += 1;
        let clock = self.clock;
        let found = self.pages.get_mut(&page)?;
        found.used = clock;
        Some(found)
    }

    /// Adds a page that was read while [`Map::drops`] was `drops`. Otherwise nothing happens: it has to be read again.
    pub fn insert(&mut self, number: u64, mut page: Page, drops: u64) {
        if drops != self.drops || self.pages.contains_key(&number) {
            return;
        }
        self.clock += 1;
        page.used = self.clock;
        self.pages.insert(number, page);
        if self.pages.len() > self.limit {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let mut clean: Vec<(u64, u64)> = self
            .pages
            .iter()
            .filter(|(_, page)| page.write == PageWrite::Clean)
            .map(|(number, page)| (page.used, *number))
            .collect();
        let share = (self.limit / 8).min(clean.len().saturating_sub(1));
        if share == 0 {
            return;
        }
        clean.select_nth_unstable(share);
        for (_, number) in &clean[..share] {
            self.pages.remove(number);
        }
        self.drops += 1;
    }

    /// Changes an entry of a page in memory. False if the page is not there.
    pub fn set(&mut self, page: u64, index: usize, place: Place) -> bool {
        let Some(found) = self.pages.get_mut(&page) else { return false };
        found.entries[index] = place;
        if found.write != PageWrite::Due {
            found.write = PageWrite::Due;
            self.due += 1;
        }
        true
    }

    /// The pages that have to be written, in their order. [`Map::written`] must follow.
    pub fn begin_writes(&mut self) -> Vec<(u64, Box<[Place]>)> {
        let mut due: Vec<(u64, Box<[Place]>)> = Vec::with_capacity(self.due);
        for (number, page) in &mut self.pages {
            if page.write == PageWrite::Due {
                page.write = PageWrite::Running;
                due.push((*number, page.entries.clone()));
            }
        }
        self.due = 0;
        due.sort_unstable_by_key(|(number, _)| *number);
        due
    }

    /// The writes of these pages have ended.
    pub fn written(&mut self, pages: impl Iterator<Item = u64>, done: bool) {
        for number in pages {
            if let Some(page) = self.pages.get_mut(&number)
                && page.write == PageWrite::Running
            {
                page.write = if done { PageWrite::Clean } else { PageWrite::Due };
                self.due += usize::from(!done);
            }
        }
    }

    /// The pages in memory from `from` to `to`, without `to`.
    pub fn pages_in(&self, from: u64, to: u64) -> Vec<u64> {
        self.pages.keys().filter(|page| (from..to).contains(*page)).copied().collect()
    }

    /// Forgets the pages that have not changed. Returns the others.
    pub fn drop_clean(&mut self) -> Vec<u64> {
        self.pages.retain(|_, page| page.write != PageWrite::Clean);
        self.drops += 1;
        self.pages.keys().copied().collect()
    }

    /// Replaces what a page knows of the layers below `depth`.
    pub fn replace_below(&mut self, number: u64, depth: u64, below: &Page) {
        let Some(page) = self.pages.get_mut(&number) else { return };
        for (place, now) in page.entries.iter_mut().zip(&below.entries) {
            if place.depth() != depth || *place == Place::NOTHING {
                *place = *now;
            }
        }
    }

    /// Forgets all pages.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.due = 0;
        self.drops += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_parts() {
        let place = Place::data(5, u32::MAX, 4095);
        assert_eq!((place.depth(), place.segment_and_block()), (5, Some((u32::MAX, 4095))));
        assert_eq!(Place::of_entry(9, place.entry_at(5)), Place::data(9, u32::MAX, 4095));
        assert_eq!((place.entry_at(4), place.segment_at(4), place.segment_at(5)), (0, None, Some(u32::MAX)));
        assert_eq!((Place::hole(3).segment_and_block(), Place::hole(3).entry_at(3)), (None, 1));
        assert_eq!(Place::hole(0), Place::NOTHING);
    }

    #[test]
    fn changed_pages_stay_and_a_page_of_before_a_drop_is_refused() {
        let mut map = Map::new(16);
        let drops = map.drops();
        map.insert(0, Page::new(), drops);
        assert!(map.set(0, 7, Place::data(0, 1, 1)) && !map.set(1, 0, Place::NOTHING));
        for page in 1..40 {
            map.insert(page, Page::new(), map.drops());
        }
        assert!(map.len() <= 16 && map.has(0) && map.drops() > drops);
        map.insert(500, Page::new(), drops);
        assert!(!map.has(500));
        let due = map.begin_writes();
        assert_eq!((due.len(), due[0].0, due[0].1[7]), (1, 0, Place::data(0, 1, 1)));
        assert!(map.set(0, 8, Place::NOTHING));
        map.written([0].into_iter(), true);
        assert_eq!(map.begin_writes().len(), 1, "a change during the write is due again");
        map.written([0].into_iter(), false);
        assert_eq!(map.due, 1);
    }
}
