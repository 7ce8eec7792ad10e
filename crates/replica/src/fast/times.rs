//! Times of files that are overwritten on the fast lane (rule 27 of `docs/fast-lane.md`). The inode's leader
//! acknowledges them before the members have them.
//!
//! The first such write puts a *writing marker* for the inode into the log and on stable storage of all members. From
//! then on the leader keeps the inode's times in memory. A record gets them once a client asks for them or changes the
//! inode in another way. A leader that finds the marker when it begins sets the inode's times to its own clock, so no
//! write is later than the times say. The marker is removed when the file is idle, and with any other change of the
//! inode, whose times, as of utimensat(2), then hold for the next leader too.

use crate::context::{Around, Context, Token};
use crate::leader::Leader;
use crate::log::append::Appended;
use crate::ops::step::{Ask, Commit};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;

/// Time without a write after which a file's marker is removed, in ns: 500 ms.
const IDLE_NS: u64 = 500_000_000;
/// Files that have a marker at the same time.
const FILES_MAX: usize = 1024;
/// Files that one record covers.
const FILES_AT_ONCE: usize = 64;
/// Added to the change counter when times are renewed, so that the counter repeats no value that a client has received.
/// An earlier leader may have acknowledged values that no record has.
const LEAP: u64 = 1 << 32;

type File = (VolumeId, InodeId);

/// The files that are being written.
#[derive(Debug, Default)]
pub(crate) struct Times {
    marked: BTreeMap<File, Marked>,
    /// Files whose markers this leader found when it began.
    found: Vec<File>,
}

#[derive(Debug)]
struct Marked {
    by: Sequence,
    used_at: Time,
    /// The time of the last write that no record has, and the number of such writes.
    unrecorded: Option<(Time, u64)>,
}

impl Times {
    pub fn forget(&mut self) {
        self.marked.clear();
        self.found.clear();
    }

    pub fn find(&mut self, file: File) {
        self.found.push(file);
    }

    pub fn is_idle(&self) -> bool {
        self.marked.is_empty()
    }

    pub fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// True if all members have the file's marker, given that they have the log up to `upto`: on stable storage or, for
    /// a loose write, in memory.
    pub fn is_safe(&self, file: File, upto: Sequence) -> bool {
        self.marked.get(&file).is_some_and(|marked| marked.by <= upto)
    }

    /// The change that sets the file's marker, if the file needs one.
    pub fn marker(&self, ring: RingId, (volume, inode): File) -> Option<Change> {
        let is_new = !self.marked.contains_key(&(volume, inode)) && self.marked.len() < FILES_MAX;
        (is_new && !is_planted(Bug::WritingMarkerMissing))
            .then(|| Change::Put { key: Key::writing(ring, volume, inode), value: bytes::Bytes::from_static(&[0]) })
    }

    /// Notes a record that sets the marker or writes the times.
    pub fn marked(&mut self, file: File, by: Sequence, now: Time) {
        if self.marked.contains_key(&file) || self.marked.len() < FILES_MAX {
            self.marked.entry(file).or_insert(Marked { by, used_at: now, unrecorded: None }).used_at = now;
        }
    }

    /// Keeps the time of a write that no record has. Returns true if the file has a marker.
    fn keep(&mut self, file: File, time: Time, now: Time) -> bool {
        let Some(marked) = self.marked.get_mut(&file) else { return false };
        let count = marked.unrecorded.map_or(0, |(_, count)| count);
        (marked.unrecorded, marked.used_at) = (Some((time, count + 1)), now);
        true
    }

    fn recorded(&mut self, files: &[File]) {
        for file in files {
            if let Some(marked) = self.marked.get_mut(file) {
                marked.unrecorded = None;
            }
        }
    }

    pub fn is_unrecorded(&self, file: &File) -> bool {
        self.marked.get(file).is_some_and(|marked| marked.unrecorded.is_some())
    }

    /// Files of which the answer shows times that no record has.
    pub fn unrecorded_in(&self, volume: VolumeId, reply: &Reply) -> Vec<File> {
        if self.marked.is_empty() {
            return Vec::new();
        }
        let shown: Vec<InodeId> = match reply {
            Reply::Node { attr, .. } | Reply::FileData { attr, .. } => vec![attr.id],
            Reply::Fetched { object } => vec![object.attr.id],
            Reply::List { entries, .. } | Reply::Keys { entries, .. } => {
                entries.iter().filter_map(|entry| Some(entry.attr.as_ref()?.id)).collect()
            }
            _ => Vec::new(),
        };
        shown.into_iter().map(|inode| (volume, inode)).filter(|file| self.is_unrecorded(file)).collect()
    }

    /// Files with a marker whose inodes the changes put or delete.
    pub fn changed_by(&self, changes: &[Change]) -> Vec<File> {
        if self.marked.is_empty() {
            return Vec::new();
        }
        let file_of = |change: &Change| {
            let (Change::Put { key, .. } | Change::Delete { key }) = change else { return None };
            let is_inode = key.kind() == Some(Kind::Inode);
            is_inode.then(|| Some((key.prefix()?.volume, InodeId::from_bits(key.id()?)))).flatten()
        };
        changes.iter().filter_map(file_of).filter(|file| self.marked.contains_key(file)).collect()
    }

    /// The changes that remove the files' markers.
    pub fn ends(ring: RingId, files: &[File]) -> impl Iterator<Item = Change> {
        files.iter().map(move |(volume, inode)| Change::Delete { key: Key::writing(ring, *volume, *inode) })
    }

    pub fn unmark(&mut self, files: &[File]) {
        self.marked.retain(|file, _| !files.contains(file));
    }

    fn idle(&self, now: Time) -> Vec<File> {
        let is_idle = |marked: &Marked| now.0.abs_diff(marked.used_at.0) > IDLE_NS;
        let idle = self.marked.iter().filter(|(_, marked)| is_idle(marked)).map(|(file, _)| *file);
        idle.take(FILES_AT_ONCE).collect()
    }
}

impl Leader {
    /// Sets the times of files whose markers were found to the current time: an earlier leader may have acknowledged
    /// times that no replica has.
    pub fn renew_times(&mut self, cx: &mut Context) -> Result<()> {
        while self.times.has_found() && self.is_settled() {
            let some: Vec<File> = self.times.found.iter().take(FILES_AT_ONCE).copied().collect();
            let now = self.numbers.time(cx.around.now);
            let mut commit = Commit { changes: Times::ends(cx.at.ring, &some).collect(), ..Commit::default() };
            for (volume, inode) in &some {
                let key = Key::inode(cx.at.ring, *volume, *inode, Kind::Inode);
                if !is_planted(Bug::TimesNotRenewed) {
                    move_times(&mut commit, key, (now, LEAP), cx.around)?;
                }
            }
            // They are shown once no session has a pledge about older ones.
            match self.append_own_for(cx, None, commit)? {
                Appended::Made(_) => {
                    self.times.found.retain(|file| !some.contains(file));
                    self.renewed.extend(&some);
                }
                Appended::NoRoom => return Ok(()),
                Appended::Refused(error) => return Err(error),
            }
            cx.out.branches.push("times of files that were being written are renewed");
        }
        Ok(())
    }

    /// Removes the markers of idle files, with a record that has their times. Called with each tick.
    pub fn end_idle_times(&mut self, cx: &mut Context) -> Result<()> {
        let idle = if self.serves() && self.all_present() { self.times.idle(cx.around.now) } else { Vec::new() };
        if idle.is_empty() {
            return Ok(());
        }
        let (mut commit, idle) = self.unrecorded_times(cx, &idle)?;
        commit.changes.extend(Times::ends(cx.at.ring, &idle));
        if !idle.is_empty() && self.append_own(cx, commit)?.is_made() {
            self.times.unmark(&idle);
        }
        Ok(())
    }

    /// Acknowledges a write of times without a record, if the file has a marker. Returns true if it did.
    pub fn keep_times(&mut self, (token, ask): (Token, &Ask), commit: &Commit, cx: &mut Context) -> bool {
        let Some(inode) = commit.times_of else { return false };
        let file = (ask.volume, inode);
        let marked_by = if ask.loose { self.log.settled() } else { self.log.stable() };
        // The first write removes a file capability too, which needs a record.
        let is_all = matches!(&commit.changes[..], [Change::Put { key, .. }] if key.kind() == Some(Kind::Inode));
        if !is_all || !self.times.is_safe(file, marked_by) {
            return false;
        }
        let time = self.numbers.time(cx.around.now);
        if !self.times.keep(file, time, cx.around.now) {
            return false;
        }
        cx.out.branches.push("times are answered before all have them");
        self.keep_answer(ask, &Ok(Reply::Done));
        self.requests.answer_at_once(token);
        cx.out.answers.push((token, Ok(Reply::Done)));
        true
    }

    /// Records times that were kept in memory. Returns true if any file's were.
    pub fn record_times(&mut self, cx: &mut Context, files: &[File]) -> Result<bool> {
        let (commit, recorded) = self.unrecorded_times(cx, files)?;
        if !commit.changes.is_empty() {
            match self.append_own(cx, commit)? {
                Appended::Made(_) => {}
                Appended::NoRoom => return Ok(false),
                Appended::Refused(error) => return Err(error),
            }
        }
        self.times.recorded(&recorded);
        Ok(!recorded.is_empty())
    }

    /// Files with a marker that the changes affect, except for inodes that the changes repair: their times are recorded
    /// once the inodes can be read.
    pub fn changes_times(&self, cx: &Context, changes: &[Change]) -> Vec<File> {
        let mut files = self.times.changed_by(changes);
        files.retain(|(volume, inode)| {
            let key = Key::inode(cx.at.ring, *volume, *inode, Kind::Inode);
            !matches!(cx.around.brick.get(&key), Err(Error::Damaged { .. }))
        });
        files
    }

    /// True if the answer shows only times that a record has. Otherwise they are recorded, and the caller tries again.
    pub fn shows_recorded_times(&mut self, cx: &mut Context, ask: &Ask, reply: &Reply) -> Result<bool> {
        let unrecorded = self.times.unrecorded_in(ask.volume, reply);
        if !unrecorded.is_empty() && self.all_present() && self.record_times(cx, &unrecorded)? {
            self.requests.retry();
        }
        Ok(unrecorded.is_empty())
    }

    /// Records times that were kept, before a record changes these files in another way: the record's times have to
    /// come later. Returns true if the record must wait.
    pub fn must_record_times(&mut self, cx: &mut Context, changed: &[File]) -> Result<bool> {
        let unrecorded: Vec<File> = changed.iter().filter(|file| self.times.is_unrecorded(file)).copied().collect();
        if unrecorded.is_empty() {
            return Ok(false);
        }
        // Without room in the journal it is tried again when there is some.
        if self.record_times(cx, &unrecorded)? {
            self.requests.retry();
        }
        Ok(true)
    }

    /// The changes that record the files' kept times, and the files that they cover. Inodes that cannot be read are
    /// left out until they are repaired.
    fn unrecorded_times(&self, cx: &Context, files: &[File]) -> Result<(Commit, Vec<File>)> {
        let mut commit = Commit { times_of: files.first().map(|(_, inode)| *inode), ..Commit::default() };
        let mut recorded = Vec::new();
        for file @ (volume, inode) in files {
            let unrecorded = self.times.marked.get(file).and_then(|marked| marked.unrecorded);
            let key = Key::inode(cx.at.ring, *volume, *inode, Kind::Inode);
            let is_moved = match unrecorded {
                Some(unrecorded) => move_times(&mut commit, key, unrecorded, cx.around)?,
                None => true,
            };
            recorded.extend(is_moved.then_some(*file));
        }
        Ok((commit, recorded))
    }
}

/// Raises an inode's times to `time`, unless they are later, and its change counter by `changes`. Returns false if the
/// inode cannot be read.
fn move_times(commit: &mut Commit, key: Key, (time, changes): (Time, u64), around: &Around) -> Result<bool> {
    let found = match around.brick.get(&key) {
        // The inode is repaired as it was. An error here would stop the whole partition.
        Err(Error::Damaged { .. }) => return Ok(false),
        found => found?,
    };
    if let Some(value) = found {
        let mut record = InodeRecord::from_bytes(value).map_err(Error::from)?;
        (record.mtime, record.ctime) = (record.mtime.max(time), record.ctime.max(time));
        record.change = record.change.saturating_add(changes);
        record.etag = bytes::Bytes::new();
        commit.put(key, &record);
    }
    Ok(true)
}
