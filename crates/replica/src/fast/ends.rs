//! Ends of files that sessions move under grants (G8 and G9 of `docs/coherence.md`).
//!
//! The record that gives such a grant has the limit up to which the session may move the end (`size_high` of the inode),
//! and says so in the file's writing marker. The session reports the end when it returns the grant. If it does not, or
//! if another leader finds the marker, the end is *unknown*: nobody is shown the file's size, and no record changes its
//! inode, until the shards have been asked (`ops/ends.rs`).

use super::times::File;
use crate::context::Context;
use crate::leader::Leader;
use crate::log::append::Draft;
use crate::ops::step::{Ask, Commit, EndBy, EndChange, OpProgress};
use crate::transactions::driven::{Aim, Driven};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// The value of a marker of a file whose end a session may move.
const SIZED: &[u8] = &[1];

/// Files whose ends are not, or may not be, as recorded.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// Files whose markers say that a session may move the end.
    sized: BTreeSet<File>,
    /// The shards have to be asked.
    unknown: BTreeSet<File>,
    /// Ends that sessions have reported, with the versions of the layouts by which they wrote.
    reported: BTreeMap<File, (u32, u64)>,
}

impl Ends {
    /// Forgets what the markers in the log say. A leader that begins reads them again.
    pub fn forget(&mut self) {
        self.sized.clear();
        self.unknown.clear();
    }

    pub fn is_idle(&self) -> bool {
        self.sized.is_empty() && self.unknown.is_empty() && self.reported.is_empty()
    }

    pub fn is_sized(&self, file: &File) -> bool {
        self.sized.contains(file)
    }

    pub fn is_unknown(&self, file: &File) -> bool {
        self.unknown.contains(file)
    }

    /// True if the file's record has not the end that is known.
    pub fn is_unrecorded(&self, file: &File) -> bool {
        self.unknown.contains(file) || self.reported.contains_key(file)
    }

    pub fn is_any_unrecorded(&self) -> bool {
        !self.unknown.is_empty() || !self.reported.is_empty()
    }

    /// The marker of the file says that a session may move the end.
    pub fn sized(&mut self, file: File) {
        self.sized.insert(file);
    }

    /// The end of a file may have been moved, and nobody will say to where.
    pub fn lost(&mut self, file: File) {
        if self.sized.contains(&file) {
            self.unknown.insert(file);
        }
    }

    pub fn report(&mut self, file: File, layout_version: u32, end: u64) {
        let known = self.reported.entry(file).or_default();
        *known = (*known).max((layout_version, end));
    }

    /// The end of a file as far as it is known and not recorded. `is_over`: no session may move it any more.
    pub fn unrecorded(&self, file: &File, is_over: bool) -> Option<End> {
        let reported = self.reported.get(file).copied();
        let is_over = is_over && self.is_sized(file);
        (reported.is_some() || is_over).then_some(End { reported, is_over })
    }

    /// A record has the end.
    pub fn recorded(&mut self, file: &File, end: End) {
        self.reported.remove(file);
        if end.is_over {
            self.sized.remove(file);
        }
    }

    /// A record has the end that the shards have told.
    pub fn found(&mut self, file: &File) {
        self.unknown.remove(file);
        self.reported.remove(file);
        self.sized.remove(file);
    }
}

/// The end of a file, as it is to be recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    reported: Option<(u32, u64)>,
    /// No session may move it any more.
    is_over: bool,
}

impl End {
    pub fn apply(self, inode: &mut InodeRecord) {
        if let Some((version, end)) = self.reported
            && (version == inode.layout.version || is_planted(Bug::OldEndTaken))
        {
            // It is a client's word: it cannot have written beyond the limit.
            inode.size = inode.size.max(end.min(inode.size_high));
        }
        if self.is_over {
            inode.size_high = inode.size;
        }
    }
}

/// The value of the marker of a file whose end a session may move.
pub fn sized_marker() -> bytes::Bytes {
    bytes::Bytes::from_static(SIZED)
}

/// True if the marker says that a session may move the file's end.
pub fn is_sized_marker(value: &[u8]) -> bool {
    value == SIZED
}

/// The file's inode, if it can be read.
fn inode_of(cx: &Context, (volume, inode): File) -> Option<InodeRecord> {
    let found = cx.around.brick.get(&Key::inode(cx.at.ring, volume, inode, Kind::Inode));
    found.ok().flatten().and_then(|value| InodeRecord::from_bytes(value).ok())
}

impl Leader {
    /// False if the op makes a file longer and its session may not be given a grant with which it moves the end. What
    /// lies behind the end must be the session's: room that fallocate(2) reserved there would be taken for its bytes.
    pub fn may_give_size(&self, cx: &Context, ask: &Ask, op: &Op) -> bool {
        let Op::Data { op: DataOp::Wrote { inode, fast: false, .. } } = op else { return true };
        let file = (ask.volume, *inode);
        let may_give = !ask.early && self.times.may_mark(file);
        if !may_give || !self.pledges.may_grant(ask.session, file, cx.around.elapsed) {
            return false;
        }
        if self.times.ends.is_unrecorded(&file) {
            return false;
        }
        if self.times.ends.is_sized(&file) {
            return self.pledges.holds_grant(ask.session, file);
        }
        inode_of(cx, file).is_some_and(|inode| inode.size_high <= inode.size)
    }

    /// Begins to close the shards of a file that are here and open for fast writes: their ends are asked for.
    fn close_shards_of(&mut self, cx: &Context, file: File) {
        if let Some(inode) = inode_of(cx, file) {
            self.fast.close_all_with(file.0, &inode.layout.pieces);
        }
    }

    /// True if a record that changes the file's inode leaves its marker: a session that goes on to write it has grown it,
    /// or the shards have told its end.
    pub fn keeps_marker(&self, draft: &Draft, file: File) -> bool {
        let is_granted = || draft.by.is_some_and(|by| self.pledges.holds_grant(by, file));
        draft.commit.end.as_ref().is_some_and(|end| {
            let keeps = match end.by {
                EndBy::Shards => true,
                // What another session has reported, or the shards have yet to tell, is recorded first.
                EndBy::Session { .. } if self.times.ends.is_unrecorded(&file) => false,
                EndBy::Session { limit: Some(_) } => true,
                EndBy::Session { limit: None } => is_granted(),
            };
            end.file == file && keeps
        })
    }

    /// Notes what a record that was made says of a file's end.
    pub fn note_ends(&mut self, commit: &Commit) {
        match commit.end.as_deref() {
            Some(EndChange { file, by: EndBy::Shards }) => self.times.ends.found(file),
            Some(EndChange { file, by: EndBy::Session { limit: Some(_) } }) => self.times.ends.sized(*file),
            _ => {}
        }
    }

    /// Begins to ask for ends that are unknown, once no session may move them any more. All are asked for at once: one
    /// with a shard in a partition that is away keeps no others waiting. Called with each tick, and when pledges end.
    pub fn find_ends(&mut self, cx: &mut Context) -> Result<()> {
        if !self.serves() || !self.all_present() || cx.at.view.too_few {
            return Ok(());
        }
        let unknown: Vec<File> = self.times.ends.unknown.iter().copied().collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let asked = self.transactions.asked_ends();
        for file @ (volume, inode) in unknown {
            let may_move = self.renewed.contains(&file) || self.pledges.has_grant(file);
            if may_move && !is_planted(Bug::EndAskedTooEarly) {
                self.recall_grants(cx, &[file]);
                continue;
            }
            if !self.numbers.has_room() || self.is_cutting(inode) || asked.contains(&file) {
                continue;
            }
            self.close_shards_of(cx, file);
            cx.out.branches.push("shards are asked for the end of a file");
            let (ask, op) = (self.ask(cx, volume), Op::Data { op: DataOp::FindEnd { inode } });
            let intent = IntentId(u128::from(self.numbers.next()));
            let driven = Driven::new(Aim::Op(ask, Box::new(op)), Vec::new(), OpProgress::default());
            // It holds nothing: ops that hold the inode wait for its end.
            self.transactions.begin(intent, Vec::new(), driven);
            self.take_next_step(cx, intent)?;
        }
        Ok(())
    }
}
