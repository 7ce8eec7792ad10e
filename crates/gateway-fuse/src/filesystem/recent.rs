//! Attributes of directories after changes by this mount, for a mount that caches.
//!
//! After a change in a directory the kernel drops the directory's cached attributes, and requests them again before
//! the next change to check permissions. So the reply to each change contains them, which saves a request for each
//! change. Invariants: attributes kept here include all changes that this mount made and answered; the time during
//! which they are used here and by the kernel is at most the mount's cache time.

use hekate_proto::{Attr, InodeId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Directories remembered; at the limit all are forgotten.
const KNOWN_MAX: usize = 256;

/// Attributes of recently changed directories.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of finished changes whose reply had no attributes.
    others: u64,
    known: HashMap<InodeId, (Attr, Instant)>,
}

/// The state when a change began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    others: u64,
    at: Instant,
}

impl Recent {
    pub(super) fn begin(&self) -> Begun {
        Begun { others: self.0.lock().others, at: Instant::now() }
    }

    /// Stores the attributes of a finished change, unless another change that finished meanwhile may have made them
    /// old.
    pub(super) fn learn(&self, begun: Begun, attr: Attr) {
        let mut state = self.0.lock();
        let is_newest = state.known.get(&attr.id).is_none_or(|(known, _)| known.change <= attr.change);
        if state.others != begun.others || !is_newest {
            return;
        }
        if state.known.len() >= KNOWN_MAX {
            state.known.clear();
        }
        state.known.insert(attr.id, (attr, begun.at));
    }

    /// A change finished that may have changed attributes of directories in an unknown way.
    pub(super) fn forget(&self) {
        let mut state = self.0.lock();
        state.others += 1;
        state.known.clear();
    }

    /// The attributes, and how long they may still be used.
    pub(super) fn get(&self, directory: InodeId, cache: Duration) -> Option<(Attr, Duration)> {
        let state = self.0.lock();
        let (attr, at) = state.known.get(&directory)?;
        let left = cache.checked_sub(at.elapsed()).filter(|left| !left.is_zero())?;
        Some((attr.clone(), left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn attr(change: u64) -> Attr {
        let (kind, layout) = (NodeKind::Directory, Layout::inline(0));
        let (mode, uid, gid, nlink, size, device) = (0o755, 0, 0, 2, 0, 0);
        let (atime, mtime, ctime, btime) = (Time(0), Time(0), Time(0), Time(0));
        let (spread, has_xattrs) = (1, false);
        Attr {
            id: ROOT,
            kind,
            mode,
            uid,
            gid,
            nlink,
            size,
            device,
            atime,
            mtime,
            ctime,
            btime,
            change,
            layout,
            spread,
            has_xattrs,
            etag: bytes::Bytes::new(),
            implied: false,
        }
    }

    #[test]
    fn the_newest_attributes_are_kept_in_whatever_order_replies_arrive() {
        let recent = Recent::default();
        let (first, second) = (recent.begin(), recent.begin());
        recent.learn(second, attr(6));
        recent.learn(first, attr(5));
        assert_eq!(recent.get(ROOT, SECOND).unwrap().0.change, 6);
        assert!(recent.get(ROOT, Duration::ZERO).is_none());
    }

    #[test]
    fn attributes_from_before_another_change_are_not_used() {
        let recent = Recent::default();
        let begun = recent.begin();
        recent.learn(recent.begin(), attr(1));
        recent.forget();
        assert!(recent.get(ROOT, SECOND).is_none());
        recent.learn(begun, attr(7));
        assert!(recent.get(ROOT, SECOND).is_none());
        recent.learn(recent.begin(), attr(8));
        assert!(recent.get(ROOT, SECOND).unwrap().1 <= SECOND);
    }
}
