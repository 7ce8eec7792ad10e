//! Times of files that are overwritten on the fast lane (rule 27 of `docs/fast-lane.md`): the inode's leader answers before the others
//! have them.
//!
//! The first such write since a while notes the inode as *being written*, in the log and on stable storage of all members. From then on the
//! leader makes its records as ever and does not wait for them. Whoever leads next, or anew, and finds the note gives the inode its own
//! time: no write is ever older than it says. The note goes when nobody has written for a while, and with any other change of the inode:
//! what that says of times, as utimensat(2) does, counts for whoever leads next.

use crate::leader::{Leader, Unmade};
use crate::partition::{Around, Out, Place};
use crate::step::Commit;
use hekate_proto::planted::is_planted;
use hekate_proto::*;
use std::collections::BTreeMap;

/// A file that nobody writes for so long is not being written: 500 ms.
const IDLE_NS: u64 = 500_000_000;
/// Files that are noted at the same time.
const FILES_MAX: usize = 1024;
/// Files of one record.
const FILES_AT_ONCE: usize = 64;
/// What a change counter goes on by, so that it repeats nothing that somebody saw before a power cut.
const LEAP: u64 = 1 << 32;

type File = (VolumeId, InodeId);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Times {
    noted: BTreeMap<File, Noted>,
    /// What was noted when this leader began.
    found: Vec<File>,
}

#[derive(Debug)]
struct Noted {
    by: Sequence,
    used_at: Time,
}

impl Times {
    pub fn forget(&mut self) {
        self.noted.clear();
        self.found.clear();
    }

    pub fn find(&mut self, file: File) {
        self.found.push(file);
    }

    pub fn is_idle(&self) -> bool {
        self.noted.is_empty()
    }

    pub fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// Whether all members have the note on stable storage.
    pub fn is_safe(&self, file: File, stable: Sequence) -> bool {
        self.noted.get(&file).is_some_and(|noted| noted.by <= stable)
    }

    /// What a record of the file's times has in it as well.
    pub fn note(&self, ring: RingId, (volume, inode): File) -> Option<Change> {
        let is_new = !self.noted.contains_key(&(volume, inode)) && self.noted.len() < FILES_MAX;
        (is_new && !is_planted(42))
            .then(|| Change::Put { key: Key::writing(ring, volume, inode), value: bytes::Bytes::from_static(&[0]) })
    }

    /// That record was made.
    pub fn noted(&mut self, file: File, by: Sequence, now: Time) {
        if self.noted.contains_key(&file) || self.noted.len() < FILES_MAX {
            self.noted.entry(file).or_insert(Noted { by, used_at: now }).used_at = now;
        }
    }

    /// Noted files that a record changes otherwise.
    pub fn changed_by(&self, changes: &[Change]) -> Vec<File> {
        if self.noted.is_empty() {
            return Vec::new();
        }
        let file_of = |change: &Change| {
            let (Change::Put { key, .. } | Change::Delete { key }) = change else { return None };
            let is_inode = key.kind() == Some(Kind::Inode);
            is_inode.then(|| Some((key.place()?.volume, InodeId::from_bits(key.id()?)))).flatten()
        };
        changes.iter().filter_map(file_of).filter(|file| self.noted.contains_key(file)).collect()
    }

    /// What takes their notes away.
    pub fn ends(ring: RingId, files: &[File]) -> impl Iterator<Item = Change> {
        files.iter().map(move |(volume, inode)| Change::Delete { key: Key::writing(ring, *volume, *inode) })
    }

    pub fn unnote(&mut self, files: &[File]) {
        self.noted.retain(|file, _| !files.contains(file));
    }

    fn idle(&self, now: Time) -> Vec<File> {
        let is_idle = |noted: &Noted| now.0.abs_diff(noted.used_at.0) > IDLE_NS;
        let idle = self.noted.iter().filter(|(_, noted)| is_idle(noted)).map(|(file, _)| *file);
        idle.take(FILES_AT_ONCE).collect()
    }
}

impl Leader {
    /// Whoever led before may have answered times that nobody else has: files that were being written have this moment's.
    pub fn renew_times(&mut self, at: &Place, around: &Around, out: &mut Out) -> Result<()> {
        while self.times.has_found() && self.is_settled() {
            let some: Vec<File> = self.times.found.iter().take(FILES_AT_ONCE).copied().collect();
            let now = self.numbers.time(around.now);
            let mut commit = Commit { changes: Times::ends(at.ring, &some).collect(), ..Commit::default() };
            for (volume, inode) in &some {
                let key = Key::inode(at.ring, *volume, *inode, Kind::Inode);
                let found = match around.brick.get(&key) {
                    // It is mended as it was. To stop here would take all others with it.
                    Err(Error::Damaged { .. }) => None,
                    found => found?,
                };
                if let Some(value) = found.filter(|_| !is_planted(43)) {
                    let mut record = InodeRecord::from_bytes(value).map_err(Error::from)?;
                    (record.mtime, record.ctime) = (record.mtime.max(now), record.ctime.max(now));
                    record.change = record.change.saturating_add(LEAP);
                    commit.put(key, &record);
                }
            }
            match self.append_own(at, commit, around, out)? {
                Ok(_) => self.times.found.retain(|file| !some.contains(file)),
                Err(Unmade::NoRoom) => return Ok(()),
                Err(Unmade::Refused(error)) => return Err(error),
            }
            out.branches.push("times of files that were being written are renewed");
        }
        Ok(())
    }

    /// With each tick: what nobody writes any more.
    pub fn end_idle_times(&mut self, at: &Place, around: &Around, out: &mut Out) -> Result<()> {
        let idle = if self.serves() && self.all_present() { self.times.idle(around.now) } else { Vec::new() };
        if idle.is_empty() {
            return Ok(());
        }
        let commit = Commit { changes: Times::ends(at.ring, &idle).collect(), ..Commit::default() };
        if self.append_own(at, commit, around, out)?.is_ok() {
            self.times.unnote(&idle);
        }
        Ok(())
    }
}
