//! What directories are like after changes that this mount made in them, for a mount that caches.
//!
//! A change in a directory makes the kernel forget the directory's attributes, and before the next one it asks for them again, since it
//! checks permissions. So each answer to a change brings them along, which saves a message a change. Invariants: what is
//! told has everything in it that this mount has changed and answered; together with the kernel it is believed no longer than
//! the mount caches anything.

use hekate_proto::{Attr, InodeId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Directories remembered; more are forgotten all at once.
const KNOWN_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Changes that have ended and brought nothing along.
    others: u64,
    known: HashMap<InodeId, (Attr, Instant)>,
}

/// When a change began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    others: u64,
    at: Instant,
}

impl Recent {
    pub(super) fn begin(&self) -> Begun {
        Begun { others: self.0.lock().others, at: Instant::now() }
    }

    /// A change has ended and brought this along, which does not count if it may be older than what ended meanwhile.
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

    /// A change has ended after which it is not known what directories are like.
    pub(super) fn forget(&self) {
        let mut state = self.0.lock();
        state.others += 1;
        state.known.clear();
    }

    /// The attributes, and for how long they may still be believed.
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
        }
    }

    #[test]
    fn the_newest_counts_in_whatever_order_answers_come() {
        let recent = Recent::default();
        let (first, second) = (recent.begin(), recent.begin());
        recent.learn(second, attr(6));
        recent.learn(first, attr(5));
        assert_eq!(recent.get(ROOT, SECOND).unwrap().0.change, 6);
        assert!(recent.get(ROOT, Duration::ZERO).is_none());
    }

    #[test]
    fn what_began_before_another_change_ended_does_not_count() {
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
