//! The last changes of a store, for watches. Pure.

use super::Revision;
use std::collections::VecDeque;

/// Keys of changes that are retained. For a watch that is further behind, [`Changes::after`] returns `None`.
const RETAINED: usize = 4096;

/// The last changes of a store.
#[derive(Debug, Default)]
pub struct Changes {
    /// In order of their revisions.
    recent: VecDeque<(Revision, String)>,
    /// Every change after this revision is in `recent`.
    retained_after: Revision,
    last: Revision,
}

impl Changes {
    /// Without changes. `last`: revision of the last change before.
    pub fn new(last: Revision) -> Self {
        Self { recent: VecDeque::new(), retained_after: last, last }
    }

    /// The revision of the last change.
    pub fn last(&self) -> Revision {
        self.last
    }

    /// Adds the next change. Returns its revision.
    pub fn add<'a>(&mut self, keys: impl IntoIterator<Item = &'a str>) -> Revision {
        self.add_at(Revision(self.last.0 + 1), keys);
        self.last
    }

    /// Adds changes of one revision, which is not before the last one.
    pub fn add_at<'a>(&mut self, revision: Revision, keys: impl IntoIterator<Item = &'a str>) {
        assert!(revision >= self.last, "changes arrive in the order of their revisions");
        self.last = revision;
        self.recent.extend(keys.into_iter().map(|key| (revision, key.to_string())));
        while self.recent.len() > RETAINED {
            let dropped = self.recent.pop_front();
            self.retained_after = dropped.map_or(self.last, |(revision, _)| revision);
        }
    }

    /// Keys with one of the prefixes that have changed after a revision, each once, in order. `None` if these changes
    /// are not retained.
    pub fn after(&self, revision: Revision, prefixes: &[&str]) -> Option<Vec<String>> {
        if revision < self.retained_after {
            return None;
        }
        let is_watched = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix));
        let begin = self.recent.partition_point(|(at, _)| *at <= revision);
        let changed = self.recent.range(begin..).map(|(_, key)| key).filter(|key| is_watched(key));
        let mut keys: Vec<String> = changed.cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_until_they_are_dropped() {
        let mut changes = Changes::new(Revision(10));
        assert_eq!(changes.add(["/b", "/a"]), Revision(11));
        assert_eq!(changes.add(["/b"]), Revision(12));
        assert_eq!(changes.after(Revision(10), &["/"]).unwrap(), ["/a", "/b"]);
        assert_eq!(changes.after(Revision(11), &["/x", "/b"]).unwrap(), ["/b"]);
        assert!(changes.after(Revision(11), &["/a"]).unwrap().is_empty());
        assert!(changes.after(Revision(12), &["/"]).unwrap().is_empty());
        assert_eq!(changes.after(Revision(9), &["/"]), None, "before this store was opened");
        for _ in 0..RETAINED {
            changes.add(["/c"]);
        }
        assert_eq!(changes.after(Revision(11), &["/"]), None);
        assert_eq!(changes.after(Revision(12), &["/"]).unwrap(), ["/c"]);
    }
}
