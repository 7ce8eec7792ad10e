//! Files of which two mounts write back pages that programs changed through shared mappings (mmap(2) with MAP_SHARED).
//!
//! A mount without pledges has its own pages and writes back whole pages, so a store through one can overwrite a store
//! through another without an error (docs/limits.md). Mounts with mapping rights report no files. The server that leads the file's inode logs it, once for each file. What
//! it knows is in memory.

use crate::hosting::node::Node;
use crate::request::sessions::Session;
use hekate_cluster::SessionOwner;
use hekate_control::status::MappedFile;
use hekate_proto::*;
use hekate_threads::{HashMap, Mutex, elapsed, now};
use std::time::{Duration, Instant};

/// Files that are remembered, of some 100 bytes each; a new one replaces the one that was written back longest ago.
const KEPT_MAX: usize = 4096;
/// Two mounts that write back a file with more time between them use it one after the other, not at once: a kernel
/// writes a page back some 35 s after it was stored to.
const TOGETHER: Duration = Duration::from_secs(300);
/// Files of one heartbeat that are noted; the client's library names no more.
const NOTED_AT_ONCE: usize = 1024;
/// Files that `hekate status` lists.
const NAMED_MAX: usize = 16;

type File = (VolumeId, InodeId);

/// The sessions that last wrote back mapped pages of each file.
#[derive(Default)]
pub struct Mappings(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: HashMap<File, Writer>,
    count: u64,
}

/// The session that last wrote back pages of a file.
#[derive(Debug, Clone, Copy)]
struct Writer {
    session: SessionId,
    at: Instant,
    /// Another session that wrote back pages of the file: the log has named both.
    other: Option<SessionId>,
}

impl Mappings {
    /// Files of which two mounts wrote back mapped pages, since the server started.
    pub fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// Notes that a session has written back pages of a file. `lives` says whether another session has not ended.
    /// Returns the other session if it wrote back the file less than 300 s ago and the log has not named them.
    fn note(
        &self,
        file: File,
        session: SessionId,
        now: Instant,
        lives: impl Fn(SessionId) -> bool,
    ) -> Option<SessionId> {
        let mut known = self.0.lock();
        let Some(before) = known.files.get(&file).copied() else {
            known.make_room();
            known.files.insert(file, Writer { session, at: now, other: None });
            return None;
        };
        let met = before.session != session && now.duration_since(before.at) < TOGETHER && lives(before.session);
        let is_new = met && before.other.is_none();
        let other = if met { Some(before.session) } else { before.other };
        known.files.insert(file, Writer { session, at: now, other });
        known.count += u64::from(is_new);
        is_new.then_some(before.session)
    }
}

impl Known {
    fn make_room(&mut self) {
        if self.files.len() >= KEPT_MAX
            && let Some(oldest) = self.files.iter().min_by_key(|(_, writer)| writer.at).map(|(file, _)| *file)
        {
            self.files.remove(&oldest);
        }
    }
}

/// Notes the files of a heartbeat whose inodes are led here.
pub fn note(node: &Node, session: &Session, mapped: &[InodeId]) {
    let Ok(volume) = node.volume(session.volume) else { return };
    let Ok(ring) = node.ring(volume.ring) else { return };
    let is_led = |inode: &&InodeId| ring.leader(inode.position().partition(ring.count())).is_ok();
    for inode in mapped.iter().take(NOTED_AT_ONCE).filter(is_led) {
        let lives = |other| node.sessions.get(other).is_ok();
        let Some(other) = node.statistics.mappings.note((volume.volume, *inode), session.id, now(), lives) else {
            continue;
        };
        log::warn!(
            "volume {}: inode {} (find MOUNT -inum {}) is mapped and stored to by two mounts, {} and {}; \
             mappings of mounts with --cache or nopledges are not coherent, and stores of one may overwrite those of the \
             other without an error. Mount without these, or use the file without mmap (SQLite: PRAGMA \
             journal_mode=DELETE); see docs/limits.md",
            volume.name,
            inode.number(),
            inode.number(),
            client(node, other),
            client(node, session.id),
        );
    }
}

/// A client's name for people; its mount logs the same session number.
fn client(node: &Node, session: SessionId) -> String {
    match node.sessions.get(session).map(|session| session.owner.clone()) {
        Ok(SessionOwner::Uid(uid)) => format!("session {} of user {uid}", session.0),
        Ok(SessionOwner::Client(name)) => format!("session {} of client {name}", session.0),
        Ok(SessionOwner::Server(server)) => format!("session {} of server {server}", session.0),
        Err(_) => format!("session {}", session.0),
    }
}

/// The files that two mounts have mapped most recently, for `hekate status`.
pub fn rows(node: &Node) -> Vec<MappedFile> {
    let known = node.statistics.mappings.0.lock();
    let mut met: Vec<(File, Writer)> = known
        .files
        .iter()
        .filter(|(_, writer)| writer.other.is_some())
        .map(|(file, writer)| (*file, *writer))
        .collect();
    drop(known);
    met.sort_by_key(|(_, writer)| std::cmp::Reverse(writer.at));
    let row = |((volume, inode), writer): (File, Writer)| MappedFile {
        volume: node.volumes.name(volume),
        inode: inode.number(),
        sessions: (writer.session, writer.other),
        seconds_ago: elapsed(writer.at).as_secs(),
    };
    met.into_iter().take(NAMED_MAX).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);

    fn file(number: u64) -> File {
        (VolumeId(1), InodeId::new(0, 0, number))
    }

    #[test]
    fn a_file_of_two_living_sessions_is_logged_once() {
        let (mappings, now) = (Mappings::default(), Instant::now());
        let all_live = |_| true;
        assert_eq!(mappings.note(file(1), ONE, now, all_live), None);
        assert_eq!(mappings.note(file(1), ONE, now, all_live), None, "its own pages");
        assert_eq!(mappings.note(file(2), TWO, now, all_live), None, "another file");
        assert_eq!(mappings.note(file(1), TWO, now, all_live), Some(ONE));
        assert_eq!(mappings.note(file(1), ONE, now, all_live), None, "the log has named both");
        assert_eq!(mappings.count(), 1);
    }

    #[test]
    fn a_session_that_has_ended_or_wrote_long_ago_is_not_named() {
        let (mappings, now) = (Mappings::default(), Instant::now());
        mappings.note(file(1), ONE, now, |_| true);
        assert_eq!(mappings.note(file(1), TWO, now, |_| false), None, "the first mount has ended");
        assert_eq!(mappings.note(file(1), ONE, now + TOGETHER, |_| true), None, "they take turns");
        assert_eq!(mappings.count(), 0);
    }

    #[test]
    fn the_files_are_bounded_and_the_oldest_is_dropped() {
        let (mappings, now) = (Mappings::default(), Instant::now());
        for number in 0..=KEPT_MAX as u64 {
            mappings.note(file(number), ONE, now + Duration::from_millis(number), |_| true);
        }
        let known = mappings.0.lock();
        assert_eq!((known.files.len(), known.files.contains_key(&file(0))), (KEPT_MAX, false));
        assert!(known.files.contains_key(&file(1)));
    }
}
