//! Times of files that are overwritten on the fast lane (rule 27 of `docs/fast-lane.md`). The inode's leader
//! acknowledges them before the members have them.
//!
//! The first such write puts a *writing marker* for the inode into the log and on stable storage of all members. From
//! then on the leader keeps the inode's times in memory. A record gets them once a client asks for them or changes the
//! inode in another way. A leader that finds the marker when it begins sets the inode's times to its own clock, so no
//! write is later than the times say. The marker is removed when the file is idle, and with any other change of the
//! inode, whose times, as of utimensat(2), then hold for the next leader too. It stays while a session may answer the
//! times from before the leader began (P8): otherwise the next leader would not know that it has to hide the new ones.
//!
//! While a session has a grant (`pledges/grants.rs`) it does not even tell when it writes. The marker stays as long.

use super::ends::{End, Ends, is_sized_marker, sized_marker};
use crate::context::{Around, Context, Token};
use crate::leader::Leader;
use crate::log::append::Appended;
use crate::ops::step::{Ask, Commit};
use crate::ops::tree::before;
use crate::pledges::{Ending, Recalls, Written};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;

/// Time without a write after which a file's marker is removed, in ns: 500 ms.
const IDLE_NS: u64 = 500_000_000;
/// Time without a word of a session after which its grant is recalled, in ns: 10 s. It may have missed the reply.
const SILENT_NS: u64 = 10_000_000_000;
/// Files that have a marker at the same time.
const FILES_MAX: usize = 1024;
/// Files that one record covers.
const FILES_AT_ONCE: usize = 64;
/// Added to the change counter when times are renewed, so that the counter repeats no value that a client has received.
/// An earlier leader may have acknowledged values that no record has.
const LEAP: u64 = 1 << 32;

/// A file of a volume.
pub(crate) type File = (VolumeId, InodeId);

/// The files that are being written.
#[derive(Debug, Default)]
pub(crate) struct Times {
    marked: BTreeMap<File, Marked>,
    /// The time of the last write that no record has, and the number of such writes.
    unrecorded: BTreeMap<File, (Time, u64)>,
    /// Files whose markers this leader found when it began, and whether sessions may have moved their ends.
    found: Vec<(File, bool)>,
    pub(super) ends: Ends,
}

#[derive(Debug)]
struct Marked {
    by: Sequence,
    used_at: Time,
}

impl Times {
    pub fn forget(&mut self) {
        self.marked.clear();
        self.found.clear();
        self.ends.forget();
    }

    /// Notes a marker that is in the log.
    pub fn find(&mut self, file: File, marker: &[u8]) {
        self.found.push((file, is_sized_marker(marker) && !is_planted(Bug::FoundEndNotAsked)));
    }

    pub fn is_idle(&self) -> bool {
        self.marked.is_empty() && self.unrecorded.is_empty() && self.ends.is_idle()
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

    /// True if the file has a marker, or may get one.
    pub fn may_mark(&self, file: File) -> bool {
        self.marked.contains_key(&file) || self.marked.len() < FILES_MAX
    }

    /// The change that says in the file's marker that a session may move its end.
    pub fn size_marker(&self, ring: RingId, (volume, inode): File) -> Option<Change> {
        let is_new = !self.ends.is_sized(&(volume, inode));
        is_new.then(|| Change::Put { key: Key::writing(ring, volume, inode), value: sized_marker() })
    }

    /// Notes a record that sets the marker or writes the times.
    pub fn marked(&mut self, file: File, by: Sequence, now: Time) {
        if self.marked.contains_key(&file) || self.marked.len() < FILES_MAX {
            self.marked.entry(file).or_insert(Marked { by, used_at: now }).used_at = now;
        }
    }

    /// Keeps the time of a write that no record has. Returns true if the file has a marker.
    fn keep(&mut self, file: File, time: Time, now: Time) -> bool {
        let Some(marked) = self.marked.get_mut(&file) else { return false };
        marked.used_at = now;
        self.note(file, time);
        true
    }

    fn note(&mut self, file: File, time: Time) {
        let (last, count) = self.unrecorded.entry(file).or_insert((time, 0));
        (*last, *count) = ((*last).max(time), *count + 1);
    }

    fn recorded(&mut self, Recorded { files, ends }: &Recorded) {
        files.iter().for_each(|file| _ = self.unrecorded.remove(file));
        ends.iter().for_each(|(file, end)| self.ends.recorded(file, *end));
    }

    /// True if the file has times, or an end, that no record has.
    pub fn is_unrecorded(&self, file: &File) -> bool {
        self.unrecorded.contains_key(file) || self.ends.is_unrecorded(file)
    }

    /// Files of which the answer shows times, or ends, that no record has.
    pub fn unrecorded_in(&self, volume: VolumeId, reply: &Reply) -> Vec<File> {
        if self.unrecorded.is_empty() && !self.ends.is_any_unrecorded() {
            return Vec::new();
        }
        shown_in(volume, reply).filter(|file| self.is_unrecorded(file)).collect()
    }

    /// Files with a marker, or with times that no record has, whose inodes the changes put or delete.
    pub fn changed_by(&self, changes: &[Change]) -> Vec<File> {
        if self.is_idle() {
            return Vec::new();
        }
        let file_of = |change: &Change| {
            let (Change::Put { key, .. } | Change::Delete { key }) = change else { return None };
            let is_inode = key.kind() == Some(Kind::Inode);
            is_inode.then(|| Some((key.prefix()?.volume, InodeId::from_bits(key.id()?)))).flatten()
        };
        let is_known = |file: &File| self.marked.contains_key(file) || self.is_unrecorded(file);
        changes.iter().filter_map(file_of).filter(is_known).collect()
    }

    /// The changes that remove the files' markers.
    pub fn ends(ring: RingId, files: &[File]) -> impl Iterator<Item = Change> {
        files.iter().map(move |(volume, inode)| Change::Delete { key: Key::writing(ring, *volume, *inode) })
    }

    pub fn unmark(&mut self, files: &[File]) {
        self.marked.retain(|file, _| !files.contains(file));
    }

    /// Files that have not been written for long, as far as this leader knows.
    fn idle(&self, now: Time, limit: u64) -> impl Iterator<Item = File> {
        let is_idle = move |marked: &Marked| now.0.abs_diff(marked.used_at.0) > limit;
        self.marked.iter().filter(move |(_, marked)| is_idle(marked)).map(|(file, _)| *file)
    }

    /// Files without a marker that have times which no record has.
    fn unmarked(&self) -> impl Iterator<Item = File> {
        self.unrecorded.keys().filter(|file| !self.marked.contains_key(file)).copied()
    }
}

/// What a record has of files that were written without one.
#[derive(Debug, Default)]
struct Recorded {
    /// Their times.
    files: Vec<File>,
    ends: Vec<(File, End)>,
}

/// Files of which the answer shows the times.
fn shown_in(volume: VolumeId, reply: &Reply) -> impl Iterator<Item = File> {
    let shown: Vec<InodeId> = match reply {
        Reply::Node { attr, .. } | Reply::FileData { attr, .. } => vec![attr.id],
        Reply::Fetched { object } => vec![object.attr.id],
        Reply::List { entries, .. } | Reply::Keys { entries, .. } => {
            entries.iter().filter_map(|entry| Some(entry.attr.as_ref()?.id)).collect()
        }
        _ => Vec::new(),
    };
    shown.into_iter().map(move |inode| (volume, inode))
}

impl Leader {
    /// Sets the times of files whose markers were found to the current time: an earlier leader may have acknowledged
    /// times that no replica has.
    pub fn renew_times(&mut self, cx: &mut Context) -> Result<()> {
        while self.times.has_found() && self.is_settled() {
            let found: Vec<(File, bool)> = self.times.found.iter().take(FILES_AT_ONCE).copied().collect();
            let some: Vec<File> = found.iter().map(|(file, _)| *file).collect();
            let now = self.numbers.time(cx.around.now);
            let mut commit = Commit::default();
            for (volume, inode) in &some {
                let key = Key::inode(cx.at.ring, *volume, *inode, Kind::Inode);
                if !is_planted(Bug::TimesNotRenewed) {
                    change_inode(&mut commit, key, cx.around, |inode| move_times(inode, (now, LEAP)))?;
                }
            }
            // They are shown once no session has a pledge about older ones.
            match self.append_own_for(cx, None, commit)? {
                Appended::Made(sequence) => {
                    self.times.found.retain(|(file, _)| !some.contains(file));
                    for (file, _) in found.iter().filter(|(_, is_sized)| *is_sized) {
                        self.times.ends.sized(*file);
                        self.times.ends.lost(*file);
                    }
                    some.iter().for_each(|file| self.times.marked(*file, sequence, cx.around.now));
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
        if !self.serves() || !self.all_present() {
            return Ok(());
        }
        let late: Vec<File> = self.times.unmarked().take(FILES_AT_ONCE).collect();
        if !late.is_empty() {
            self.record_times(cx, &late)?;
        }
        let may_end = |file: &File| {
            !self.pledges.has_grant(*file) && !self.renewed.contains(file) && !self.times.ends.is_unknown(file)
        };
        let idle: Vec<File> = self.times.idle(cx.around.now, IDLE_NS).filter(may_end).take(FILES_AT_ONCE).collect();
        if !self.pledges.has_no_grants() {
            let silent: Vec<File> = self.times.idle(cx.around.now, SILENT_NS).take(FILES_AT_ONCE).collect();
            self.recall_grants(cx, &silent);
        }
        if idle.is_empty() {
            return Ok(());
        }
        let (mut commit, recorded) = self.unrecorded_times(cx, &idle)?;
        commit.changes.extend(Times::ends(cx.at.ring, &recorded.files));
        if !recorded.files.is_empty() && self.append_own(cx, commit)?.is_made() {
            self.times.recorded(&recorded);
            self.times.unmark(&recorded.files);
        }
        Ok(())
    }

    pub fn recall_grants(&self, cx: &mut Context, files: &[File]) {
        let mut recalls = Recalls::default();
        self.pledges.recall_grants(files, cx.around.elapsed, &mut recalls);
        recalls.send(cx.at.own.partition, self.pledges.term(), cx.out);
    }

    /// Keeps the times, and the ends, of what sessions wrote under grants that have ended.
    pub fn note_granted_writes(&mut self, cx: &Context) {
        for Written { file, age, end } in self.pledges.take_written() {
            match end {
                Ending::Lost => self.times.ends.lost(file),
                Ending::Reported { layout_version, end } => self.times.ends.report(file, layout_version, end),
                Ending::Kept => {}
            }
            let time = before(self.numbers.time(cx.around.now), age);
            if !self.times.keep(file, time, cx.around.now) {
                self.times.note(file, time);
            }
        }
    }

    /// Acknowledges a write of times without a record, if the file has a marker. Returns true if it did.
    pub fn keep_times(&mut self, (token, ask): (Token, &Ask), commit: &Commit, cx: &mut Context) -> bool {
        let Some((inode, time)) = commit.times_of else { return false };
        let file = (ask.volume, inode);
        let marked_by = if ask.loose { self.log.settled() } else { self.log.stable() };
        // The first write removes a file capability too, which needs a record.
        let is_all = matches!(&commit.changes[..], [Change::Put { key, .. }] if key.kind() == Some(Kind::Inode));
        if !is_all || !self.times.is_safe(file, marked_by) {
            return false;
        }
        if !self.times.keep(file, time, cx.around.now) {
            return false;
        }
        cx.out.branches.push("times are answered before all have them");
        self.keep_answer(ask, &Ok(Reply::Done));
        self.requests.answer_at_once(token);
        // While the shards are asked for its end nobody may begin to move it.
        let reply = match self.times.ends.is_unknown(&file) {
            true => Reply::Done,
            false => self.pledges.grant(cx.at.own.partition, ask, inode, GivenFor::Times, cx.around.elapsed),
        };
        cx.out.answers.push((token, Ok(reply)));
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
        Ok(!recorded.files.is_empty())
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

    /// True if the answer shows times that another session may have moved under a grant.
    pub fn shows_granted(&self, ask: &Ask, reply: &Reply) -> bool {
        !self.pledges.has_no_grants()
            && shown_in(ask.volume, reply).any(|file| self.pledges.hides_times(ask.session, file))
    }

    /// True if the answer shows only times that a record has. Otherwise grants are recalled, kept times are recorded, and
    /// the caller tries again.
    pub fn shows_recorded_times(&mut self, cx: &mut Context, ask: &Ask, reply: &Reply) -> Result<bool> {
        if self.shows_granted(ask, reply) {
            let is_hidden = |file: &File| self.pledges.hides_times(ask.session, *file);
            let hidden: Vec<File> = shown_in(ask.volume, reply).filter(is_hidden).collect();
            self.recall_grants(cx, &hidden);
            cx.out.branches.push("a read waits for grants");
            return Ok(false);
        }
        let unrecorded = self.times.unrecorded_in(ask.volume, reply);
        if !unrecorded.is_empty() && self.all_present() && self.record_times(cx, &unrecorded)? {
            self.requests.retry();
        }
        Ok(unrecorded.is_empty())
    }

    /// Records times that were kept, before a record changes these files in another way: the record's times have to
    /// come later. Returns true if the record must wait.
    pub fn must_record_times(&mut self, cx: &mut Context, changed: &[File]) -> Result<bool> {
        let is_ahead = |file: &File| self.times.ends.is_sized(file) && !self.pledges.has_grant(*file);
        let is_unrecorded = |file: &&File| self.times.is_unrecorded(file) || is_ahead(file);
        let unrecorded: Vec<File> = changed.iter().filter(is_unrecorded).copied().collect();
        if unrecorded.is_empty() {
            return Ok(false);
        }
        // Without room in the journal it is tried again when there is some.
        if self.record_times(cx, &unrecorded)? {
            self.requests.retry();
        }
        Ok(true)
    }

    /// The changes that record the files' kept times and ends, and the files that they cover. Inodes that cannot be
    /// read are left out until they are repaired, and those with an unknown end until it is known.
    fn unrecorded_times(&self, cx: &Context, files: &[File]) -> Result<(Commit, Recorded)> {
        let now = cx.around.now;
        let mut commit = Commit { times_of: files.first().map(|(_, inode)| (*inode, now)), ..Commit::default() };
        let mut recorded = Recorded::default();
        for file @ (volume, inode) in files.iter().filter(|file| !self.times.ends.is_unknown(file)) {
            let times = self.times.unrecorded.get(file).copied();
            let is_over = !self.pledges.has_grant(*file);
            let ends = self.times.ends.unrecorded(file, is_over);
            let key = Key::inode(cx.at.ring, *volume, *inode, Kind::Inode);
            let is_read = match (times, ends) {
                (None, None) => true,
                _ => change_inode(&mut commit, key, cx.around, |inode| {
                    times.into_iter().for_each(|times| move_times(inode, times));
                    ends.iter().for_each(|end| end.apply(inode));
                })?,
            };
            recorded.files.extend(is_read.then_some(*file));
            recorded.ends.extend(ends.filter(|_| is_read).map(|end| (*file, end)));
        }
        Ok((commit, recorded))
    }
}

/// Changes an inode. Returns false if it cannot be read.
fn change_inode(commit: &mut Commit, key: Key, around: &Around, change: impl FnOnce(&mut InodeRecord)) -> Result<bool> {
    let found = match around.brick.get(&key) {
        // The inode is repaired as it was. An error here would stop the whole partition.
        Err(Error::Damaged { .. }) => return Ok(false),
        found => found?,
    };
    if let Some(value) = found {
        let mut record = InodeRecord::from_bytes(value).map_err(Error::from)?;
        change(&mut record);
        commit.put(key, &record);
    }
    Ok(true)
}

/// Raises an inode's times to `time`, unless they are later, and its change counter by `changes`.
fn move_times(inode: &mut InodeRecord, (time, changes): (Time, u64)) {
    (inode.mtime, inode.ctime) = (inode.mtime.max(time), inode.ctime.max(time));
    inode.change = inode.change.saturating_add(changes);
    inode.etag = bytes::Bytes::new();
}
