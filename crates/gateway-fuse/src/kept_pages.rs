//! Files whose pages the kernel keeps while leaders would tell of a change of their bytes.
//!
//! The kernel asks for a file's attributes before each read(2) from its pages, unless it may still use those that it has
//! (`fuse_cache_read_iter` with AUTO_INVAL_DATA), and drops all pages if the answer has another size or time of
//! modification. So pages are marked as old, the kernel forgets the attributes, and when it asks, it is given a time of
//! modification that the file never had. Nobody is shown that time: the attributes may not be used again. What mappings
//! may show is dropped at once besides (`FUSE_NOTIFY_INVAL_INODE`); that alone would not do, since the kernel takes no
//! size from an answer that it waited for meanwhile.
//!
//! Invariant: while a file is in the table, each READ of it is noted before its reply. The pages that the kernel has are
//! then those of one number (`Pledges::content_number`), or the file is marked.

use crate::passed_names::TAKEN_WITHIN;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Parts of the table, each with its own lock.
const PARTS: usize = 16;
/// Files in a part whose pages are kept though nobody has them open. With more, none are.
const CLOSED_MAX: usize = 4096;
/// Time after a change by this mount, or a read that was not pledged, in which files are opened past the page cache.
const CHANGED_FOR: Duration = Duration::from_secs(2);
/// Time within which the kernel has dropped pages after it was given attributes with which it does: the thread that asked
/// drops them once it runs. An assumption, like [`TAKEN_WITHIN`](crate::passed_names::TAKEN_WITHIN).
const DROPPED_WITHIN: Duration = Duration::from_millis(100);
/// Files in a part that are known as changed, in each of two generations.
const CHANGED_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct KeptPages {
    parts: [Mutex<Part>; PARTS],
}

#[derive(Debug, Default)]
struct Part {
    kept: HashMap<u64, Kept>,
    changed: Changed,
}

/// When files were last changed by this mount, or read without a pledge. A generation in which nothing is recent any more
/// is dropped.
#[derive(Debug, Default)]
struct Changed {
    newer: HashMap<u64, Instant>,
    older: HashMap<u64, Instant>,
    /// When the newer generation began.
    since: Option<Instant>,
}

impl Changed {
    fn note(&mut self, node: u64) {
        let now = Instant::now();
        if self.since.is_none_or(|since| now - since > CHANGED_FOR) {
            (self.older, self.since) = (std::mem::take(&mut self.newer), Some(now));
        }
        if self.newer.len() < CHANGED_MAX {
            self.newer.insert(node, now);
        }
    }

    fn is_recent(&self, node: u64) -> bool {
        let last = self.newer.get(&node).or_else(|| self.older.get(&node));
        last.is_some_and(|at| at.elapsed() <= CHANGED_FOR)
    }
}

#[derive(Debug, Default)]
struct Kept {
    /// What stands for the bytes of the pages. 0: there are none.
    number: u64,
    /// How often the pages were found to be old.
    marks: u64,
    /// `marks` when all pages were last dropped.
    dropped: u64,
    /// `marks` when the kernel was first told to drop them, and when that was.
    told: Option<(u64, Instant)>,
    /// Open files that read through pages.
    handles: u32,
    /// The last question of the kernel for attributes before it reads.
    asked: Option<Asked>,
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    at: Instant,
    /// `None`: several asked within [`TAKEN_WITHIN`].
    by: Option<Reader>,
}

/// A thread that reads an open file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader {
    /// 0 if it cannot be seen from this pid namespace.
    pub thread: u32,
    pub handle: u64,
    /// The kernel's number of its request. They grow.
    pub request: u64,
}

impl Reader {
    fn is_same(&self, other: &Self) -> bool {
        (self.thread, self.handle) == (other.thread, other.handle)
    }
}

impl Kept {
    fn is_marked(&self) -> bool {
        self.marks != self.dropped
    }

    /// True if the kernel has no page.
    fn has_none(&self) -> bool {
        self.number == 0 && !self.is_marked()
    }

    /// True if all pages are those of this number.
    fn is_whole(&mut self, number: Option<u64>) -> bool {
        if let Some((marks, _)) = self.told.filter(|(_, at)| at.elapsed() > DROPPED_WITHIN) {
            self.told = None;
            self.dropped = self.dropped.max(marks);
        }
        !self.is_marked() && (self.number == 0 || Some(self.number) == number)
    }
}

impl KeptPages {
    fn part(&self, node: u64) -> &Mutex<Part> {
        &self.parts[node as usize % PARTS]
    }

    /// True if the file was changed a moment ago: then it is opened past the page cache.
    pub(crate) fn has_changed(&self, node: u64) -> bool {
        self.part(node).lock().changed.is_recent(node)
    }

    /// A file is opened through the page cache. `number`: what stands for its bytes now. Returns true if the kernel may
    /// keep the pages that it has; otherwise it drops them.
    pub(crate) fn opened(&self, node: u64, number: Option<u64>) -> bool {
        let mut part = self.part(node).lock();
        let kept = part.kept.entry(node).or_default();
        kept.handles += 1;
        let keeps = kept.number != 0 && kept.is_whole(number);
        if !keeps && kept.handles == 1 {
            // Nobody else has it open through the cache, so the kernel drops all pages before anybody reads them.
            (kept.number, kept.dropped) = (0, kept.marks);
        }
        keeps
    }

    pub(crate) fn closed(&self, node: u64) {
        let mut part = self.part(node).lock();
        if let Some(kept) = part.kept.get_mut(&node) {
            kept.handles = kept.handles.saturating_sub(1);
            if kept.handles == 0 && (kept.is_marked() || kept.number == 0) {
                part.kept.remove(&node);
            }
        }
        if part.kept.len() > CLOSED_MAX {
            part.kept.retain(|_, kept| kept.handles > 0);
        }
    }

    /// The kernel has forgotten the inode.
    pub(crate) fn remove(&self, node: u64) {
        self.part(node).lock().kept.remove(&node);
    }

    /// Bytes are about to be sent to the kernel. `number`: what stands for them, or 0. Returns true if attributes that the
    /// kernel has must not be used any more: they say that pages can be.
    pub(crate) fn note_read(&self, node: u64, number: u64) -> bool {
        let mut part = self.part(node).lock();
        let Some(kept) = part.kept.get_mut(&node) else { return false };
        if number != 0 && (kept.number == 0 || kept.number == number) {
            kept.number = number;
            return false;
        }
        kept.marks += 1;
        if number == 0 {
            part.changed.note(node);
        }
        true
    }

    /// True if the kernel may use its pages. `number`: what stands for the file's bytes now.
    pub(crate) fn is_whole(&self, node: u64, number: impl FnOnce() -> Option<u64>) -> bool {
        self.part(node).lock().kept.get_mut(&node).is_none_or(|kept| kept.is_whole(number()))
    }

    /// True if the file is open through the page cache, and the kernel has no page of it: it reads nothing without a READ.
    pub(crate) fn has_none(&self, node: u64) -> bool {
        self.part(node).lock().kept.get(&node).is_some_and(Kept::has_none)
    }

    /// True if somebody has the file open through the page cache.
    pub(crate) fn is_open(&self, node: u64) -> bool {
        self.part(node).lock().kept.get(&node).is_some_and(|kept| kept.handles > 0)
    }

    /// The kernel has asked before somebody reads, and is about to be given attributes.
    pub(crate) fn note_asked(&self, node: u64, reader: Reader) {
        if let Some(kept) = self.part(node).lock().kept.get_mut(&node) {
            let recent = kept.asked.filter(|asked| asked.at.elapsed() < TAKEN_WITHIN);
            let is_alone = recent.is_none_or(|asked| asked.by.is_some_and(|by| by.is_same(&reader)));
            kept.asked = Some(Asked { at: Instant::now(), by: (is_alone && reader.thread != 0).then_some(reader) });
        }
    }

    /// A READ has come. If it is for the first page, and has a greater number than the reader's question, the reader has
    /// taken the attributes. READs ahead (also those of posix_fadvise(2)) may be from before it asked.
    pub(crate) fn note_taken(&self, node: u64, reader: Reader) {
        if let Some(kept) = self.part(node).lock().kept.get_mut(&node)
            && kept.has_none()
            && kept
                .asked
                .and_then(|asked| asked.by)
                .is_some_and(|by| by.is_same(&reader) && by.request < reader.request)
        {
            kept.asked = None;
        }
    }

    /// How long ago the kernel asked for what it may not have taken yet, if the file is open through the page cache.
    pub(crate) fn asked_ago(&self, node: u64) -> Option<Duration> {
        let part = self.part(node).lock();
        part.kept.get(&node).filter(|kept| kept.handles > 0)?.asked.map(|asked| asked.at.elapsed())
    }

    /// The bytes of a file change by this mount.
    pub(crate) fn expect(&self, node: u64) {
        let mut part = self.part(node).lock();
        part.changed.note(node);
        part.kept.get_mut(&node).into_iter().for_each(|kept| kept.marks += 1);
    }

    /// The bytes of a file change by others. Returns true if mappings may show its pages.
    pub(crate) fn mark(&self, node: u64) -> bool {
        let mut part = self.part(node).lock();
        let Some(kept) = part.kept.get_mut(&node) else { return false };
        kept.marks += 1;
        kept.handles > 0
    }

    /// As `mark`, of all files. Returns those that mappings may show.
    pub(crate) fn mark_all(&self) -> Vec<u64> {
        let mut shown = Vec::new();
        for part in &self.parts {
            for (node, kept) in &mut part.lock().kept {
                kept.marks += 1;
                shown.extend((kept.handles > 0).then_some(*node));
            }
        }
        shown
    }

    /// The kernel asks for attributes before it reads from pages. True if the answer has to make it drop them.
    pub(crate) fn must_drop(&self, node: u64, number: impl FnOnce() -> Option<u64>) -> bool {
        let mut part = self.part(node).lock();
        let Some(kept) = part.kept.get_mut(&node) else { return false };
        if kept.is_whole(number()) {
            return false;
        }
        if !kept.is_marked() {
            kept.marks += 1;
        }
        if kept.told.is_none_or(|(marks, _)| marks != kept.marks) {
            kept.told = Some((kept.marks, Instant::now()));
            kept.number = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the time pass within which the kernel drops pages.
    fn wait(pages: &KeptPages, node: u64) {
        let mut part = pages.part(node).lock();
        let told = part.kept.get_mut(&node).and_then(|kept| kept.told.as_mut());
        told.into_iter().for_each(|(_, at)| *at -= 2 * DROPPED_WITHIN);
    }

    #[test]
    fn pages_of_one_number_are_kept_until_the_file_is_marked() {
        let pages = KeptPages::default();
        assert!(!pages.opened(1, Some(5)), "there are none yet");
        assert!(pages.has_none(1) && !pages.has_none(2));
        assert!(!pages.note_read(1, 5) && !pages.note_read(1, 5));
        assert!(!pages.has_none(1));
        assert!(pages.is_whole(1, || Some(5)) && !pages.is_whole(1, || Some(6)) && !pages.is_whole(1, || None));
        pages.closed(1);
        assert!(pages.opened(1, Some(5)), "they are kept while nobody has the file open");
        assert!(pages.mark(1), "a mapping may show them");
        assert!(!pages.is_whole(1, || Some(5)));
        assert!(pages.must_drop(1, || Some(5)));
        assert!(!pages.has_none(1) && !pages.is_whole(1, || Some(5)), "they are not dropped yet");
        pages.mark(1);
        wait(&pages, 1);
        assert!(!pages.is_whole(1, || Some(5)), "it was marked meanwhile");
        assert!(pages.must_drop(1, || Some(5)) && pages.must_drop(1, || Some(5)));
        wait(&pages, 1);
        assert!(pages.is_whole(1, || Some(9)), "there are none");
        assert!(!pages.must_drop(1, || Some(9)));
    }

    #[test]
    fn pages_of_two_numbers_or_of_none_are_old() {
        let pages = KeptPages::default();
        pages.opened(1, Some(5));
        assert!(!pages.note_read(1, 5));
        assert!(pages.note_read(1, 6), "of two numbers");
        assert!(pages.must_drop(1, || Some(6)));
        pages.opened(2, None);
        assert!(!pages.has_changed(2));
        assert!(pages.note_read(2, 0) && !pages.is_whole(2, || None));
        assert!(pages.has_changed(2), "it is opened past the cache for a while");
        assert!(!pages.opened(2, None));
        assert!(!pages.is_whole(2, || None), "another open file may have read old pages");
        assert!(!pages.note_read(3, 0), "nobody reads it through pages");
    }

    #[test]
    fn whoever_reads_the_first_page_has_taken_what_it_asked_for() {
        let pages = KeptPages::default();
        let [one, other] = [7, 8].map(|thread| Reader { thread, handle: 3, request: 20 });
        let [reads, other_reads] = [one, other].map(|reader| Reader { request: 22, ..reader });
        pages.opened(1, Some(5));
        assert_eq!(pages.asked_ago(1), None);
        pages.note_asked(1, one);
        for reader in [other_reads, Reader { handle: 4, ..reads }, Reader { request: 18, ..one }] {
            pages.note_taken(1, reader);
            assert!(pages.asked_ago(1).is_some(), "{reader:?} is another one");
        }
        pages.note_asked(1, one);
        pages.note_taken(1, reads);
        assert_eq!(pages.asked_ago(1), None);
        pages.note_asked(1, one);
        pages.note_asked(1, other);
        [reads, other_reads].iter().for_each(|reader| pages.note_taken(1, *reader));
        assert!(pages.asked_ago(1).is_some(), "the first of them may have taken nothing yet");
        pages.opened(2, Some(5));
        pages.note_asked(2, one);
        pages.note_read(2, 5);
        pages.note_taken(2, reads);
        assert!(pages.asked_ago(2).is_some(), "the kernel may have read ahead before it asked");
    }

    #[test]
    fn the_number_may_change_without_a_mark() {
        let pages = KeptPages::default();
        pages.opened(1, Some(5));
        pages.note_read(1, 5);
        assert!(pages.must_drop(1, || Some(7)));
        wait(&pages, 1);
        assert!(!pages.note_read(1, 7) && pages.is_whole(1, || Some(7)));
        pages.closed(1);
        assert!(!pages.opened(1, Some(8)), "the kernel drops them");
        assert!(pages.is_whole(1, || Some(8)));
        pages.expect(1);
        assert!(!pages.is_whole(1, || Some(8)) && pages.has_changed(1));
        assert_eq!(pages.mark_all(), [1]);
        pages.closed(1);
        assert!(!pages.mark(1), "a marked file that nobody has open is forgotten");
        pages.remove(1);
    }
}
