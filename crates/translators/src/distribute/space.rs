//! fallocate, SEEK_DATA and SEEK_HOLE.

use super::bytes::Told;
use super::{Distribute, unexpected};
use crate::replicate::Whom;
use hekate_graph::Context;
use hekate_proto::*;

/// Shards changed or asked for at once; between two batches a caller may give up.
const SHARDS_AT_ONCE: u64 = 32;
/// The same of partitions; a frame holds no more than 1,024 requests.
const PARTITIONS_AT_ONCE: usize = 512;

/// Whoever asks is told which it was: a signal, or a soft mount's time.
pub(super) fn gave_up() -> Error {
    Error::Unavailable { what: "the caller gave up between two parts of the op".into() }
}

impl Distribute {
    /// -> `Done`.
    pub(super) fn allocate(
        &self,
        context: &Context,
        inode: InodeId,
        (offset, length): (u64, u64),
        mode: Allocate,
        drop_set_id: bool,
    ) -> Result<Reply> {
        if length == 0 {
            return Err(Error::invalid("fallocate of no bytes"));
        }
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
        if self.known_shape(inode).is_none() {
            let op = DataOp::Allocate { inode, offset, length, mode, drop_set_id };
            match self.pass(context, self.home(inode), Op::Data { op })? {
                Reply::Node { .. } => {}
                done => return Ok(done),
            }
        }
        // Behind the end of the file there is nothing to punch.
        let end = match mode {
            Allocate::Punch => end.min(self.attr(context, inode)?.size),
            Allocate::Reserve { .. } | Allocate::Zero { .. } => end,
        };
        let mut at = offset;
        loop {
            let layout = self.in_shards(context, inode)?.layout;
            // Holes are made at once, however long the range; room and zeros cost by what is asked for.
            let is_hole = mode == Allocate::Punch;
            let at_once = is_hole && layout.pieces.len() == 1;
            let most = if at_once { end } else { (at / SHARD_BYTES + SHARDS_AT_ONCE) * SHARD_BYTES };
            let part_end = end.min(most).max(at);
            let is_done = match is_hole {
                true => self.punch(context, inode, &layout, at..part_end, 0, drop_set_id)?,
                false => self.allocate_shards(context, inode, &layout, (at, part_end), mode, drop_set_id)?,
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

    /// False: the layout has changed meanwhile.
    fn allocate_shards(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        (from, end): (u64, u64),
        mode: Allocate,
        drop_set_id: bool,
    ) -> Result<bool> {
        let (fill, keep_size) = match mode {
            Allocate::Reserve { keep_size } => (Fill::Holes, keep_size),
            Allocate::Zero { keep_size } => (Fill::Zeros, keep_size),
            Allocate::Punch => (Fill::Nothing, true),
        };
        let runs = layout.shard_runs(self.replicate.map().volume, from, (end - from) as usize);
        let op = |(shard, offset, count): ShardRun| {
            let (data, index, offset, length) = (shard.data, shard.index, offset as u32, count as u32);
            (shard, DataOp::AllocateShard { data, index, offset, length, fill })
        };
        let ops = runs.into_iter().map(op).collect();
        let told_end = if keep_size { 0 } else { end };
        let reach = if fill == Fill::Nothing { 0 } else { end };
        self.tell(context, inode, layout, Told { ops, end: told_end, reach, drop_set_id })
    }

    /// -> `Found`, with a place.
    pub(super) fn seek(&self, context: &Context, inode: InodeId, offset: u64, hole: bool) -> Result<Reply> {
        if self.known_shape(inode).is_none() {
            let op = Op::Data { op: DataOp::Seek { inode, offset, hole } };
            if let found @ Reply::Found { .. } = self.pass(context, self.home(inode), op)? {
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
            if let Some(found) = self.seek_shards(context, &attr, offset, hole)? {
                return found.map(|at| Reply::Found { at: Some(at) });
            }
        }
    }

    /// `None`: the layout has changed meanwhile.
    fn seek_shards(&self, context: &Context, attr: &Attr, offset: u64, hole: bool) -> Result<Option<Result<u64>>> {
        let mut at = offset;
        while at < attr.size {
            if context.interrupted() {
                return Err(gave_up());
            }
            let end = attr.size.min((at / SHARD_BYTES + SHARDS_AT_ONCE) * SHARD_BYTES);
            let Some(found) = self.seek_in(context, attr, (at, end), hole)? else { return Ok(None) };
            match found {
                Some(found) if found < attr.size => return Ok(Some(Ok(found))),
                _ if hole => at = end,
                // Far apart data is found by asking which shards there are.
                _ => match self.next_shard(context, attr, end)? {
                    Some(next) => at = next,
                    None => break,
                },
            }
        }
        Ok(Some(if hole { Ok(attr.size) } else { Err(Error::NoData) }))
    }

    /// Looks in the shards of a range, and whether the layout is the one still.
    pub(super) fn seek_in(
        &self,
        context: &Context,
        attr: &Attr,
        (from, end): (u64, u64),
        hole: bool,
    ) -> Result<Option<Option<u64>>> {
        let runs = attr.layout.shard_runs(self.replicate.map().volume, from, (end - from) as usize);
        let question = |(shard, offset, _): &ShardRun| {
            let op = DataOp::SeekShard { data: shard.data, index: shard.index, offset: *offset as u32, hole };
            (Whom::Leader(self.partition(shard.position())), Op::Data { op })
        };
        let mut batch: Vec<_> = runs.iter().map(question).collect();
        batch.push((Whom::Leader(self.home(attr.id)), Op::Inode { op: InodeOp::GetAttr { inode: attr.id } }));
        let mut replies = self.replicate.send_all(context, batch)?.into_iter().collect::<Result<Vec<_>>>()?;
        let Some(Reply::Node { attr: now, .. }) = replies.pop() else { return Err(unexpected()) };
        if now.layout != attr.layout {
            return Ok(None);
        }
        let mut start = from;
        for ((_, offset, count), reply) in runs.iter().zip(replies) {
            let Reply::Found { at } = reply else { return Err(unexpected()) };
            if let Some(inside) = at.and_then(|at| at.checked_sub(*offset)).filter(|inside| *inside < *count as u64) {
                return Ok(Some(Some(start + inside)));
            }
            start += *count as u64;
        }
        Ok(Some(None))
    }

    /// Where the first shard with data begins that is not before `from`.
    pub(super) fn next_shard(&self, context: &Context, attr: &Attr, from: u64) -> Result<Option<u64>> {
        let [Piece { data, .. }] = attr.layout.pieces[..] else { return Ok(Some(from)) };
        let (first, to) = (from / SHARD_BYTES, attr.size.div_ceil(SHARD_BYTES));
        if first >= to {
            return Ok(None);
        }
        let question = |partition| {
            (Whom::Leader(PartitionNumber(partition)), Op::Data { op: DataOp::NextShard { data, from: first, to } })
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
