//! fallocate, SEEK_DATA and SEEK_HOLE.

use super::bytes::ShardChanges;
use super::{Distribute, unexpected};
use crate::replicate::Recipient;
use hekate_graph::Context;
use hekate_proto::*;
use std::ops::Range;

/// Shards changed or queried in one batch. The caller may give up between two batches.
const SHARDS_AT_ONCE: u64 = 32;
/// Partitions queried in one batch; a frame holds at most 1,024 requests.
const PARTITIONS_AT_ONCE: usize = 512;

/// The error for a caller that gave up because of a signal or the time limit of a soft mount.
pub(super) fn gave_up() -> Error {
    Error::Unavailable { what: "the caller gave up between two parts of the op; the parts before it are done".into() }
}
/// Result of a search in the shards of a range.
pub(super) enum Seek {
    /// Position in the file.
    At(u64),
    Nothing,
    /// The layout changed meanwhile: the search must be repeated.
    LayoutChanged,
}

impl Distribute {
    /// Executes fallocate(2). Replies `Done`.
    pub(super) fn allocate(
        &self,
        context: &Context,
        inode: InodeId,
        offset: u64,
        length: u64,
        mode: Allocate,
        drop_set_id: bool,
    ) -> Result<Reply> {
        if length == 0 {
            return Err(Error::invalid("fallocate has a length of 0 bytes"));
        }
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
        if self.known_shape(inode).is_none() {
            let op = DataOp::Allocate { inode, offset, length, mode, drop_set_id };
            match self.forward(context, self.home(inode), Op::Data { op })? {
                Reply::Node { .. } => {}
                done => return Ok(done),
            }
        }
        // There is nothing to punch beyond the end of the file.
        let end = match mode {
            Allocate::Punch => end.min(self.attr(context, inode)?.size),
            Allocate::Reserve { .. } | Allocate::Zero { .. } => end,
        };
        let mut at = offset;
        loop {
            let layout = self.ensure_in_shards(context, inode)?.layout;
            // A hole is made in one step, whatever its length. The cost of space and zeros depends on their length.
            let is_hole = mode == Allocate::Punch;
            let at_once = is_hole && layout.pieces.len() == 1;
            let most = if at_once { end } else { (at / SHARD_BYTES + SHARDS_AT_ONCE) * SHARD_BYTES };
            let part_end = end.min(most).max(at);
            let is_done = match is_hole {
                true => self.punch(context, inode, &layout, at..part_end, 0, drop_set_id)?,
                false => self.allocate_shards(context, inode, &layout, at..part_end, mode, drop_set_id)?,
            };
            if !is_done {
                self.attr(context, inode)?;
            } else if part_end >= end {
                return Ok(Reply::Done);
            } else if context.interrupted() {
                return Err(gave_up());
            } else {
                at = part_end;
            }
        }
    }

    /// Allocates a range in shards. False if the layout changed meanwhile: then it must be repeated.
    fn allocate_shards(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        range: Range<u64>,
        mode: Allocate,
        drop_set_id: bool,
    ) -> Result<bool> {
        let (fill, keep_size) = match mode {
            Allocate::Reserve { keep_size } => (Fill::Holes, keep_size),
            Allocate::Zero { keep_size } => (Fill::Zeros, keep_size),
            Allocate::Punch => (Fill::Nothing, true),
        };
        let runs = layout.shard_runs(self.replicate.map().volume, range.start, (range.end - range.start) as usize);
        let op = |(shard, offset, count): ShardRun| {
            let (data, index, offset, length) = (shard.data, shard.index, offset as u32, count as u32);
            (shard, DataOp::AllocateShard { data, index, offset, length, fill })
        };
        let ops = runs.into_iter().map(op).collect();
        let end = if keep_size { 0 } else { range.end };
        let reach = if fill == Fill::Nothing { 0 } else { range.end };
        if keep_size && reach > 0 {
            // Zeros may make shards longer. So no session may move the end from now on, and no shard is asked for it.
            let layout_version = layout.version;
            let op = DataOp::Wrote { inode, layout_version, end: 0, reach, drop_set_id: false, fast: false, age: 0 };
            let home = Recipient::Leader(self.home(inode));
            if !self.learn_told(self.replicate.send(context, home, Op::Data { op }))? {
                return Ok(false);
            }
        }
        self.change_shards(context, inode, layout, ShardChanges { ops, end, reach, drop_set_id, within: false })
    }

    /// Executes SEEK_DATA or SEEK_HOLE (lseek(2)). Replies `Found` with a position.
    pub(super) fn seek(&self, context: &Context, inode: InodeId, offset: u64, hole: bool) -> Result<Reply> {
        if self.known_shape(inode).is_none() {
            let op = Op::Data { op: DataOp::Seek { inode, offset, hole } };
            if let found @ Reply::Found { .. } = self.forward(context, self.home(inode), op)? {
                return Ok(found);
            }
        }
        loop {
            let attr = self.attr(context, inode)?;
            if offset >= attr.size {
                return Err(Error::NoData);
            }
            if attr.layout.is_inline() {
                return Ok(Reply::Found { at: Some(if hole { attr.size } else { offset }) });
            }
            if let Some(at) = self.seek_shards(context, &attr, offset, hole)? {
                return Ok(Reply::Found { at: Some(at) });
            }
        }
    }

    /// Searches the shards from `offset` to the end of the file. `None` if the layout changed meanwhile.
    ///
    /// # Errors
    /// `NoData` if no data follows.
    fn seek_shards(&self, context: &Context, attr: &Attr, offset: u64, hole: bool) -> Result<Option<u64>> {
        let mut at = offset;
        while at < attr.size {
            if context.interrupted() {
                return Err(gave_up());
            }
            let end = attr.size.min((at / SHARD_BYTES + SHARDS_AT_ONCE) * SHARD_BYTES);
            match self.seek_in(context, attr, at..end, hole)? {
                Seek::LayoutChanged => return Ok(None),
                Seek::At(found) if found < attr.size => return Ok(Some(found)),
                Seek::At(_) | Seek::Nothing if hole => at = end,
                // Partitions are asked which shards exist, so that a long hole is skipped in one step.
                Seek::At(_) | Seek::Nothing => match self.next_shard(context, attr, end)? {
                    Some(next) => at = next,
                    None => break,
                },
            }
        }
        if hole { Ok(Some(attr.size)) } else { Err(Error::NoData) }
    }

    /// Searches the shards of a range, and checks that the layout has not changed.
    pub(super) fn seek_in(&self, context: &Context, attr: &Attr, range: Range<u64>, hole: bool) -> Result<Seek> {
        let length = (range.end - range.start) as usize;
        let runs = attr.layout.shard_runs(self.replicate.map().volume, range.start, length);
        let question = |(shard, offset, _): &ShardRun| {
            let op = DataOp::SeekShard { data: shard.data, index: shard.index, offset: *offset as u32, hole };
            (Recipient::Leader(self.partition(shard.position())), Op::Data { op })
        };
        let mut batch: Vec<_> = runs.iter().map(question).collect();
        batch.push((Recipient::Leader(self.home(attr.id)), Op::Inode { op: InodeOp::GetAttr { inode: attr.id } }));
        let mut replies = self.replicate.send_all(context, batch)?.into_iter().collect::<Result<Vec<_>>>()?;
        let Some(Reply::Node { attr: now, .. }) = replies.pop() else { return Err(unexpected()) };
        if now.layout != attr.layout {
            return Ok(Seek::LayoutChanged);
        }
        let mut start = range.start;
        for ((_, offset, count), reply) in runs.iter().zip(replies) {
            let Reply::Found { at } = reply else { return Err(unexpected()) };
            if let Some(inside) = at.and_then(|at| at.checked_sub(*offset)).filter(|inside| *inside < *count as u64) {
                return Ok(Seek::At(start + inside));
            }
            start += *count as u64;
        }
        Ok(Seek::Nothing)
    }

    /// Position of the first shard with data that begins at `from` or later.
    pub(super) fn next_shard(&self, context: &Context, attr: &Attr, from: u64) -> Result<Option<u64>> {
        let [Piece { data, .. }] = attr.layout.pieces[..] else { return Ok(Some(from)) };
        let (first, to) = (from / SHARD_BYTES, attr.size.div_ceil(SHARD_BYTES));
        if first >= to {
            return Ok(None);
        }
        let question = |partition| {
            (
                Recipient::Leader(PartitionNumber(partition)),
                Op::Data { op: DataOp::NextShard { data, from: first, to } },
            )
        };
        let all = self.replicate.map().partitions();
        let mut next: Option<u64> = None;
        for some in (0..all).step_by(PARTITIONS_AT_ONCE) {
            let batch = (some..all).take(PARTITIONS_AT_ONCE).map(question).collect();
            for reply in self.replicate.send_all(context, batch)? {
                let Reply::Found { at } = reply? else { return Err(unexpected()) };
                next = next.into_iter().chain(at).min();
            }
        }
        Ok(next.map(|index| (index * SHARD_BYTES).max(from)))
    }
}
