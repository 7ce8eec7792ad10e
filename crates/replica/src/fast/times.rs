//! Times of files that are overwritten on the fast lane (rule 27 of `docs/fast-lane.md`): the inode's leader answers before the others
//! have them.
//!
//! The first such write since a while notes the inode as *being written*, in the log and on stable storage of all members. From then on the
//! leader keeps times in memory; a record has them once somebody asks for them, or changes the inode otherwise. Whoever leads next, or anew, and finds the note gives the inode its own
//! time: no write is ever older than it says. The note goes when nobody has written for a while, and with any other change of the inode:
//! what that says of times, as utimensat(2) does, counts for whoever leads next.

use crate::context::{Around, Context, Token};
use crate::leader::Leader;
use crate::log::append::Appended;
use crate::ops::step::{Ask, Commit};
use hekate_proto::planted::{Bug, is_planted};
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
    /// The last write that no record tells, and how many there are.
    untold: Option<(Time, u64)>,
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

    /// Whether all members have the note, as all of them have what is in the log up to here: on stable storage, or, for a write that
    /// need not be there itself, in memory.
    pub fn is_safe(&self, file: File, upto: Sequence) -> bool {
        self.noted.get(&file).is_some_and(|noted| noted.by <= upto)
    }

    /// What a record of the file's times has in it as well.
    pub fn note(&self, ring: RingId, (volume, inode): File) -> Option<Change> {
        let is_new = !self.noted.contains_key(&(volume, inode)) && self.noted.len() < FILES_MAX;
        (is_new && !is_planted(Bug::WritingMarkerMissing))
            .then(|| Change::Put { key: Key::writing(ring, volume, inode), value: bytes::Bytes::from_static(&[0]) })
    }

    /// That record was made.
    pub fn noted(&mut self, file: File, by: Sequence, now: Time) {
        if self.noted.contains_key(&file) || self.noted.len() < FILES_MAX {
            self.noted.entry(file).or_insert(Noted { by, used_at: now, untold: None }).used_at = now;
        }
    }

    /// A write at this time, which no record tells. -> whether the file is noted.
    fn keep(&mut self, file: File, time: Time, now: Time) -> bool {
        let Some(noted) = self.noted.get_mut(&file) else { return false };
        let count = noted.untold.map_or(0, |(_, count)| count);
        (noted.untold, noted.used_at) = (Some((time, count + 1)), now);
        true
    }

    fn told(&mut self, files: &[File]) {
        for file in files {
            if let Some(noted) = self.noted.get_mut(file) {
                noted.untold = None;
            }
        }
    }

    fn is_untold(&self, file: &File) -> bool {
        self.noted.get(file).is_some_and(|noted| noted.untold.is_some())
    }

    /// Files of which an answer shows times that are not as a record has them.
    pub fn untold_in(&self, volume: VolumeId, reply: &Reply) -> Vec<File> {
        if self.noted.is_empty() {
            return Vec::new();
        }
        let shown: Vec<InodeId> = match reply {
            Reply::Node { attr, .. } | Reply::FileData { attr, .. } => vec![attr.id],
            Reply::List { entries, .. } => entries.iter().filter_map(|entry| Some(entry.attr.as_ref()?.id)).collect(),
            _ => Vec::new(),
        };
        shown.into_iter().map(|inode| (volume, inode)).filter(|file| self.is_untold(file)).collect()
    }

    /// Noted files that a record changes otherwise.
    pub fn changed_by(&self, changes: &[Change]) -> Vec<File> {
        if self.noted.is_empty() {
            return Vec::new();
        }
        let file_of = |change: &Change| {
            let (Change::Put { key, .. } | Change::Delete { key }) = change else { return None };
            let is_inode = key.kind() == Some(Kind::Inode);
            is_inode.then(|| Some((key.prefix()?.volume, InodeId::from_bits(key.id()?)))).flatten()
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
            match self.append_own(cx, commit)? {
                Appended::Made(_) => self.times.found.retain(|file| !some.contains(file)),
                Appended::NoRoom => return Ok(()),
                Appended::Refused(error) => return Err(error),
            }
            cx.out.branches.push("times of files that were being written are renewed");
        }
        Ok(())
    }

    /// With each tick: what nobody writes any more.
    pub fn end_idle_times(&mut self, cx: &mut Context) -> Result<()> {
        let idle = if self.serves() && self.all_present() { self.times.idle(cx.around.now) } else { Vec::new() };
        if idle.is_empty() {
            return Ok(());
        }
        let (mut commit, idle) = self.untold_times(cx, &idle)?;
        commit.changes.extend(Times::ends(cx.at.ring, &idle));
        if !idle.is_empty() && self.append_own(cx, commit)?.is_made() {
            self.times.unnote(&idle);
        }
        Ok(())
    }

    /// Answers a write of times alone, if its file is noted: no record is made. -> whether it did.
    pub fn keep_times(&mut self, (token, ask): (Token, &Ask), commit: &Commit, cx: &mut Context) -> bool {
        let Some(inode) = commit.times_of else { return false };
        let file = (ask.volume, inode);
        let noted_by = if ask.loose { self.log.settled() } else { self.log.stable() };
        // A file capability goes with the first write.
        let is_all = matches!(&commit.changes[..], [Change::Put { key, .. }] if key.kind() == Some(Kind::Inode));
        if !is_all || !self.times.is_safe(file, noted_by) {
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

    /// A record tells times that were kept. -> whether any was told.
    pub fn tell_times(&mut self, cx: &mut Context, files: &[File]) -> Result<bool> {
        let (commit, told) = self.untold_times(cx, files)?;
        if !commit.changes.is_empty() {
            match self.append_own(cx, commit)? {
                Appended::Made(_) => {}
                Appended::NoRoom => return Ok(false),
                Appended::Refused(error) => return Err(error),
            }
        }
        self.times.told(&told);
        Ok(!told.is_empty())
    }

    /// Noted files that a record changes otherwise, but for those that it mends: what was kept of them is told once they can be read.
    pub fn changes_times(&self, cx: &Context, changes: &[Change]) -> Vec<File> {
        let mut files = self.times.changed_by(changes);
        files.retain(|(volume, inode)| {
            let key = Key::inode(cx.at.ring, *volume, *inode, Kind::Inode);
            !matches!(cx.around.brick.get(&key), Err(Error::Damaged { .. }))
        });
        files
    }

    /// Whether an answer is as records have it. If it shows times that none tells they are told, and it is to be found again.
    pub fn tells_times_of(&mut self, cx: &mut Context, ask: &Ask, reply: &Reply) -> Result<bool> {
        let untold = self.times.untold_in(ask.volume, reply);
        if !untold.is_empty() && self.all_present() && self.tell_times(cx, &untold)? {
            self.requests.retry();
        }
        Ok(untold.is_empty())
    }

    /// Before a record changes such a file otherwise, times that were kept are told: what it says is over them. -> whether it must wait.
    pub fn must_tell_times(&mut self, cx: &mut Context, changed: &[File]) -> Result<bool> {
        let untold: Vec<File> = changed.iter().filter(|file| self.times.is_untold(file)).copied().collect();
        if untold.is_empty() {
            return Ok(false);
        }
        // Without room for them it is tried again when there is some.
        if self.tell_times(cx, &untold)? {
            self.requests.retry();
        }
        Ok(true)
    }

    /// -> also the files that it has all of; not those that cannot be read until they are mended.
    fn untold_times(&self, cx: &Context, files: &[File]) -> Result<(Commit, Vec<File>)> {
        let mut commit = Commit { times_of: files.first().map(|(_, inode)| *inode), ..Commit::default() };
        let mut told = Vec::new();
        for file @ (volume, inode) in files {
            let untold = self.times.noted.get(file).and_then(|noted| noted.untold);
            let key = Key::inode(cx.at.ring, *volume, *inode, Kind::Inode);
            let is_moved = match untold {
                Some(untold) => move_times(&mut commit, key, untold, cx.around)?,
                None => true,
            };
            told.extend(is_moved.then_some(*file));
        }
        Ok((commit, told))
    }
}

/// An inode's times move to this one, if they are not later, and its change counter by so much. -> whether it could be read.
fn move_times(commit: &mut Commit, key: Key, (time, changes): (Time, u64), around: &Around) -> Result<bool> {
    let found = match around.brick.get(&key) {
        // It is mended as it was. To stop here would take all others with it.
        Err(Error::Damaged { .. }) => return Ok(false),
        found => found?,
    };
    if let Some(value) = found {
        let mut record = InodeRecord::from_bytes(value).map_err(Error::from)?;
        (record.mtime, record.ctime) = (record.mtime.max(time), record.ctime.max(time));
        record.change = record.change.saturating_add(changes);
        commit.put(key, &record);
    }
    Ok(true)
}
