//! Turns the calls of a history into the operations on one file.

use super::attr_in;
use super::cells::{Grid, Palette};
use super::model::{Action, File, JOURNALED_BYTES_MAX, ReadPart, SizeSeen, WritePart};
use super::rounds::{AGAIN, ALL, Candidate, EARLY, SPLIT, WHOLE};
use crate::checkers::linearize::Operation;
use crate::checkers::windows::windows;
use crate::history::{Call, CallNumber, History, Moment};
use bytes::Bytes;
use hekate_proto::{
    BLOCK_BYTES, DataOp, Error, FILE_BYTES_MAX, INLINE_MAX, IO_BYTES_MAX, InodeId, InodeOp, NameOp, Op, Reply,
    SHARD_BYTES,
};
use std::collections::{BTreeMap, BTreeSet};

/// The effect or observation of a call, before it is cut into cells.
enum Said {
    Write {
        offset: u64,
        data: Bytes,
    },
    /// A write that was refused because the file was gone: its bytes in shards may be read by a client that has the
    /// file open, and the inode's leader may have found its end in the shards.
    Left {
        offset: u64,
        data: Bytes,
    },
    Truncate {
        size: u64,
    },
    Read {
        offset: u64,
        length: u64,
        bytes: Bytes,
    },
    Size(u64),
    Gone,
}

/// An answer that no state of a file gives.
pub type Wrong = (CallNumber, String);

/// The operations of one file.
pub struct Draft<'a> {
    history: &'a History,
    said: Vec<(CallNumber, Said)>,
}

impl<'a> Draft<'a> {
    /// The operations of these calls on the file.
    ///
    /// # Errors
    ///
    /// An answer that no state of a file gives, with its call.
    pub fn new(history: &'a History, inode: InodeId, calls: &[CallNumber]) -> Result<Self, Wrong> {
        let mut said = Vec::new();
        for number in calls {
            let call = history.call(*number);
            let all = match call.settled() {
                None => unknown(&call.op),
                Some(Ok(reply)) => answered(inode, &call.op, reply).map_err(|why| (*number, why))?,
                Some(Err(error)) => refused(history, call, error).map_err(|why| (*number, why))?,
            };
            said.extend(all.into_iter().map(|said| (*number, said)));
        }
        Ok(Self { history, said })
    }

    /// The file and its operations.
    pub fn finish(self) -> (File, Vec<Candidate>) {
        let power_cuts = self.history.power_cuts().to_vec();
        let grid = Grid::new(self.borders(!power_cuts.is_empty()));
        let mut palette = Palette::new();
        // Writes first, so that bytes in reads are attributed to their writer.
        let is_write = |said: &Said| matches!(said, Said::Write { .. } | Said::Left { .. });
        let (writes, others): (Vec<_>, Vec<_>) = self.said.iter().partition(|(_, said)| is_write(said));
        let mut candidates = Vec::new();
        let mut secured_at = BTreeMap::new();
        let end_max = self.said.iter().map(|(_, said)| said.end()).max().unwrap_or(0);
        for (call, said) in writes.into_iter().chain(others) {
            let shards = end_max > INLINE_MAX;
            let is_cut = self.comes_through_a_power_cut(*call);
            let own = windows(self.history, *call, || action(&grid, &mut palette, (*call, is_cut), said));
            let all = |rounds, own: Vec<Operation<Action>>, change: fn(Action) -> Action| {
                own.into_iter()
                    .map(move |own| Candidate { operation: Operation { action: change(own.action), ..own }, rounds })
            };
            match said {
                Said::Left { .. } => {
                    if shards {
                        candidates.extend(all(EARLY, own.clone(), split).map(Candidate::optional));
                    }
                    candidates.extend(all(EARLY, own, bytes_only).map(Candidate::optional));
                }
                Said::Write { .. } if shards && self.may_be_lost_meanwhile(*call) => {
                    candidates.extend(all(EARLY, own.clone(), |one| unsure(bytes_only(one))).map(Candidate::optional));
                    candidates.extend(all(ALL, own, |action| maybe(unsure(action))));
                }
                Said::Write { .. } | Said::Truncate { .. } if self.may_be_lost_meanwhile(*call) => {
                    candidates.extend(all(ALL, own, maybe));
                }
                Said::Write { .. } if shards && self.is_seen_meanwhile(*call) => {
                    if is_cut || self.may_meet_a_truncate(*call, said.range().1) {
                        candidates.extend(all(AGAIN, own.clone(), bytes_only).map(Candidate::optional));
                        candidates.extend(all(EARLY, own.clone(), bytes_only).map(Candidate::optional));
                        // The leader found its end in the shards, and a truncate came before its word.
                        candidates.extend(all(EARLY, own.clone(), split).map(Candidate::optional));
                    }
                    candidates.extend(all(SPLIT, own.clone(), split));
                    candidates.extend(all(WHOLE, own, |action| action));
                }
                _ => candidates.extend(all(ALL, own, |action| action)),
            }
            secured_at.extend(self.history.secured_at(*call).map(|at| (*call, at)));
        }
        (File { grid, palette, secured_at, power_cuts, end_max }, candidates)
    }

    /// True if bytes were read, or a size was shown, during the call.
    fn is_seen_meanwhile(&self, call: CallNumber) -> bool {
        let writer = self.history.call(call);
        let overlaps = |reader: &Call| {
            reader.returned().is_none_or(|returned| returned >= writer.invoked)
                && writer.returned().is_none_or(|returned| returned >= reader.invoked)
        };
        let mut seen = self.said.iter().filter(|(_, said)| matches!(said, Said::Read { .. } | Said::Size(_)));
        seen.any(|(reader, _)| overlaps(self.history.call(*reader)))
    }

    /// True if the layout that the client used may have been replaced during the write, so that the client writes the
    /// bytes once more under the next one: a truncate may have cut some of them, or the leader that knew of the
    /// truncate is gone. No other write is repeated.
    fn may_meet_a_truncate(&self, call: CallNumber, end: u64) -> bool {
        let returned = self.history.call(call).returned().unwrap_or(Moment::MAX);
        self.said.iter().any(|(truncate, said)| {
            let Said::Truncate { size } = said else { return false };
            let invoked = self.history.call(*truncate).invoked;
            invoked <= returned && (*size < end || self.history.has_new_leaders(invoked, returned))
        })
    }

    /// True if the power failed while the answer was on its way, or between the write to the shards and the request to
    /// the inode's leader: the bytes may be lost, and the size may stay.
    fn may_be_lost_meanwhile(&self, call: CallNumber) -> bool {
        let writer = self.history.call(call);
        let is_sure = writer.durable && writer.returned().is_some();
        !is_sure && self.comes_through_a_power_cut(call)
    }

    fn comes_through_a_power_cut(&self, call: CallNumber) -> bool {
        let call = self.history.call(call);
        let in_flight = |cut: &Moment| call.invoked <= *cut && call.returned().is_none_or(|returned| *cut <= returned);
        self.history.power_cuts().iter().any(in_flight)
    }

    /// Borders: where operations begin and end, and where shards do; with `blocks` also at the blocks of writes. A
    /// power cut takes single blocks of a write that was not synced, of a small one too if a learner had received some
    /// of its blocks.
    fn borders(&self, blocks: bool) -> BTreeSet<u64> {
        let mut borders = BTreeSet::from([0]);
        for (_, said) in &self.said {
            let (from, to) = said.range();
            borders.extend([from, to]);
            borders.extend((from / SHARD_BYTES..to.div_ceil(SHARD_BYTES)).skip(1).map(|shard| shard * SHARD_BYTES));
            if blocks && matches!(said, Said::Write { .. }) {
                let block = BLOCK_BYTES as u64;
                borders.extend((from / block..to.div_ceil(block)).skip(1).map(|number| number * block));
            }
        }
        borders
    }
}

impl Said {
    /// The byte range that it names or shows.
    fn range(&self) -> (u64, u64) {
        match self {
            Said::Write { offset, data } | Said::Left { offset, data } => (*offset, offset + data.len() as u64),
            Said::Read { offset, bytes, .. } => (*offset, offset + bytes.len() as u64),
            Said::Truncate { size } => (*size, *size),
            Said::Size(_) | Said::Gone => (0, 0),
        }
    }

    /// The size up to which it may extend the file, in bytes.
    fn end(&self) -> u64 {
        match self {
            Said::Write { .. } | Said::Left { .. } | Said::Truncate { .. } => self.range().1,
            Said::Read { .. } | Said::Size(_) | Said::Gone => 0,
        }
    }
}

fn unknown(op: &Op) -> Vec<Said> {
    match op {
        Op::Data { op: DataOp::Write { offset, data, .. } } if !data.is_empty() => {
            vec![Said::Write { offset: *offset, data: data.clone() }]
        }
        Op::Inode { op: InodeOp::SetAttr { changes, .. } } => {
            changes.size.map(|size| Said::Truncate { size }).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn left(op: &Op) -> Option<Said> {
    match op {
        Op::Data { op: DataOp::Write { offset, data, .. } } if !data.is_empty() => {
            Some(Said::Left { offset: *offset, data: data.clone() })
        }
        _ => None,
    }
}

fn answered(inode: InodeId, op: &Op, reply: &Reply) -> Result<Vec<Said>, String> {
    match (op, reply) {
        (Op::Data { op: DataOp::Write { .. } }, Reply::Done) => Ok(unknown(op)),
        (Op::Data { op: DataOp::Read { offset, length, .. } }, Reply::FileData { bytes, .. }) => {
            let length = u64::from(*length);
            if bytes.len() as u64 > length {
                return Err(format!("a read of {length} bytes gave {}", bytes.len()));
            }
            Ok(vec![Said::Read { offset: *offset, length, bytes: bytes.clone() }])
        }
        (Op::Inode { op: InodeOp::SetAttr { changes, .. } }, Reply::Node { attr, .. }) => match changes.size {
            Some(size) if size != attr.size => Err(format!("a truncate to {size} answers a size of {}", attr.size)),
            Some(size) => Ok(vec![Said::Truncate { size }]),
            None => Ok(vec![Said::Size(attr.size)]),
        },
        (Op::Data { .. }, _) => Err("an answer of another kind than the op's".into()),
        (_, reply) => match attr_in(reply) {
            Some(attr) if attr.id == inode => Ok(vec![Said::Size(attr.size)]),
            _ => Err("an answer about another inode".into()),
        },
    }
}

fn refused(history: &History, call: &Call, error: &Error) -> Result<Vec<Said>, String> {
    let end = |offset: u64, data: &Bytes| offset.saturating_add(data.len() as u64);
    let right = match (&call.op, error) {
        (Op::Data { op: DataOp::Write { offset, data, .. } }, Error::TooLarge) => end(*offset, data) > FILE_BYTES_MAX,
        (Op::Data { op: DataOp::Write { data, .. } }, Error::Invalid { .. }) => data.len() > IO_BYTES_MAX,
        (Op::Data { op: DataOp::Read { length, .. } }, Error::Invalid { .. }) => *length as usize > IO_BYTES_MAX,
        (Op::Inode { op: InodeOp::SetAttr { changes, .. } }, Error::TooLarge) => {
            changes.size.is_some_and(|size| size > FILE_BYTES_MAX)
        }
        (_, Error::Stale) => match may_be_removed(history, call.returned()) {
            true => return Ok(left(&call.op).into_iter().chain([Said::Gone]).collect()),
            false => return Err("the file is gone, but no call had asked to remove or replace anything".into()),
        },
        _ => false,
    };
    match right {
        true => Ok(Vec::new()),
        false => Err("no state of a file gives this answer".into()),
    }
}

/// True if a call that may remove a file was made before this moment, or a power cut may have taken the file.
fn may_be_removed(history: &History, before: Option<Moment>) -> bool {
    let is_earlier = |cut: &Moment| before.is_none_or(|before| *cut <= before);
    history.power_cuts().iter().any(is_earlier)
        || history.calls().any(|(_, call)| {
            let removes = matches!(&call.op, Op::Name { op: NameOp::Unlink { .. } | NameOp::Rename { .. } });
            removes && !matches!(call.settled(), Some(Err(_))) && before.is_none_or(|before| call.invoked <= before)
        })
}

/// A write whose bytes in shards are visible before the inode's leader has received its end, so before the size.
fn split(action: Action) -> Action {
    match bytes_only(action) {
        Action::Write { call, mut parts } => {
            let end = parts.iter().map(|part| part.size_end).max().unwrap_or(0);
            parts.push(WritePart {
                cells: 0..0,
                contents: Vec::new(),
                end,
                size_end: end,
                large: false,
                unsure: false,
            });
            Action::Write { call, parts }
        }
        other => other,
    }
}

/// The bytes of a write that the inode's leader refused: a truncate replaced the layout, so the client writes again.
fn bytes_only(action: Action) -> Action {
    match action {
        Action::Write { call, parts } => {
            let parts = parts.into_iter().map(|part| WritePart { end: 0, ..part }).collect();
            Action::Write { call, parts }
        }
        other => other,
    }
}

fn maybe(action: Action) -> Action {
    Action::Maybe(Box::new(action))
}

/// A write of which each byte may be lost when it takes effect.
fn unsure(action: Action) -> Action {
    match action {
        Action::Write { call, parts } => {
            let parts = parts.into_iter().map(|part| WritePart { unsure: true, ..part }).collect();
            Action::Write { call, parts }
        }
        other => other,
    }
}

/// `is_cut`: the power failed during the call.
fn action(grid: &Grid, palette: &mut Palette, (call, is_cut): (CallNumber, bool), said: &Said) -> Action {
    match said {
        Said::Truncate { size } => Action::Truncate { call, size: *size },
        Said::Size(size) => Action::Size(*size),
        Said::Gone => Action::Gone { call },
        Said::Write { offset, data } | Said::Left { offset, data } => {
            let large = data.len() > JOURNALED_BYTES_MAX;
            let part = |(from, to): (u64, u64)| {
                let cells = grid.cells(from, to);
                let bytes = data.slice((from - offset) as usize..(to - offset) as usize);
                let contents = palette.contents(grid, cells.clone(), &bytes, Some(call));
                WritePart { cells, contents, end: to, size_end: to, large, unsure: false }
            };
            Action::Write { call, parts: in_shards(*offset, offset + data.len() as u64).map(part).collect() }
        }
        Said::Read { offset, length, bytes } => {
            let shown = offset + bytes.len() as u64;
            let part = |(from, to): (u64, u64)| {
                let seen = shown.clamp(from, to);
                let cells = if seen > from { grid.cells(from, seen) } else { 0..0 };
                let slice = bytes.slice((from.min(seen) - offset).min(bytes.len() as u64) as usize..);
                let contents = palette.contents(grid, cells.clone(), &slice, None);
                let size = match is_cut {
                    // The bytes may be from before the power cut, and the size from after it.
                    true => SizeSeen::AtLeast(if seen > from { seen } else { 0 }),
                    false => size_seen(from, seen, to),
                };
                ReadPart { cells, contents, size }
            };
            Action::Read { parts: in_shards(*offset, offset.saturating_add(*length)).map(part).collect() }
        }
    }
}

/// The size that follows if a read of `from..to` returned the bytes up to `seen`.
fn size_seen(from: u64, seen: u64, to: u64) -> SizeSeen {
    if seen == to {
        SizeSeen::AtLeast(to)
    } else if seen > from {
        SizeSeen::Exactly(seen)
    } else {
        SizeSeen::AtMost(from)
    }
}

/// `from..to` cut where shards begin.
fn in_shards(from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let end = (at / SHARD_BYTES + 1).saturating_mul(SHARD_BYTES).min(to);
        let part = (at < to).then_some((at, end));
        at = end;
        part
    })
}
