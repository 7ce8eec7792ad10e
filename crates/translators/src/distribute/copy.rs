//! copy_file_range: shards copy from shards; what rests beside an inode goes through the client. A hole is copied by punching, so that
//! its length does not count.

use super::Distribute;
use super::bytes::Told;
use hekate_graph::Context;
use hekate_proto::*;

/// Bytes of data of one op: who asks for more is told how many were copied, and goes on (copy_file_range(2)).
const COPY_AT_ONCE: u64 = 16 << 20;
/// Bytes that one shard takes from another at once.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a hole that are copied at once: FUSE answers with 32 bits, and what it asks for next should begin with a block.
const HOLE_AT_ONCE: u64 = (1 << 32) - BLOCK_BYTES as u64;

type FileOffset = (InodeId, u64);

impl Distribute {
    /// -> `Copied`.
    pub(super) fn copy(
        &self,
        context: &Context,
        (from, from_offset): FileOffset,
        (to, to_offset): FileOffset,
        length: u64,
        (drop_set_id, touch): (bool, bool),
    ) -> Result<Reply> {
        loop {
            let source = self.attr(context, from)?;
            let length = length.min(source.size.saturating_sub(from_offset));
            if length == 0 {
                return Ok(Reply::Copied { bytes: 0 });
            }
            // A kernel compares them as well, but may know of a shorter file.
            if from == to && from_offset.abs_diff(to_offset) < length {
                return Err(Error::invalid("a copy within a file whose ranges overlap"));
            }
            let at_once = length.min(COPY_AT_ONCE);
            let small = self.known_shape(to).is_none() && to_offset.saturating_add(at_once) <= INLINE_MAX;
            if source.layout.is_inline() || small {
                return self.copy_here(context, (from, from_offset), (to, to_offset), at_once, (drop_set_id, touch));
            }
            let Some(hole) = self.hole_at(context, &source, from_offset, length)? else { continue };
            let length = if hole > 0 { hole } else { at_once };
            let end = to_offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
            // Whether the time of access is due is by the times before the write.
            if from == to {
                self.read_by(context, from, touch)?;
            }
            let layout = self.in_shards(context, to)?.layout;
            let told = match hole > 0 {
                true => self.punch(context, to, &layout, to_offset..end, end, drop_set_id),
                false => {
                    let ops = self.copies(&source.layout, from_offset, &layout, to_offset, length);
                    self.tell(context, to, &layout, Told { ops, end, reach: end, drop_set_id })
                }
            };
            match told {
                Ok(true) if self.read_by(context, from, touch && from != to)?.layout == source.layout => {
                    return Ok(Reply::Copied { bytes: length });
                }
                Ok(true) => {}
                Ok(false) => _ = self.attr(context, to)?,
                // Reading it mends it, if any replica has it right.
                Err(Error::Damaged { .. }) => {
                    return self.copy_here(context, (from, from_offset), (to, to_offset), length, (drop_set_id, touch));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the hole that the source has at `from`, of the next `length` and of what one answer can say; 0 if data begins before
    /// it is worth a step of its own. `None`: the layout has changed meanwhile.
    fn hole_at(&self, context: &Context, source: &Attr, from: u64, length: u64) -> Result<Option<u64>> {
        let end = from + length.min(COPY_AT_ONCE);
        let Some(found) = self.seek_in(context, source, (from, end), false)? else { return Ok(None) };
        let data_at = match found {
            Some(at) => at,
            None => self.next_shard(context, source, end)?.unwrap_or(source.size).max(end),
        };
        let hole = (data_at - from).min(length).min(HOLE_AT_ONCE);
        Ok(Some(if hole >= length.min(RUN_BYTES_MAX) { hole } else { 0 }))
    }

    /// The inode, after it was read.
    fn read_by(&self, context: &Context, inode: InodeId, touch: bool) -> Result<Attr> {
        self.attr_by(context, if touch { InodeOp::Accessed { inode } } else { InodeOp::GetAttr { inode } })
    }

    /// One op for each stretch that lies in one shard on both sides.
    fn copies(
        &self,
        from: &Layout,
        from_offset: u64,
        to: &Layout,
        to_offset: u64,
        length: u64,
    ) -> Vec<(ShardId, DataOp)> {
        let volume = self.replicate.map().volume;
        let first = |layout: &Layout, at: u64, length: u64| {
            layout.shard_runs(volume, at, length.min(RUN_BYTES_MAX) as usize).into_iter().next()
        };
        let mut ops = Vec::new();
        let mut done = 0;
        while done < length {
            let left = length - done;
            let (Some((source, offset, count)), Some((shard, at, room))) =
                (first(from, from_offset + done, left), first(to, to_offset + done, left))
            else {
                break;
            };
            let count = count.min(room);
            let (data, index) = (source.data, source.index);
            let range = ShardRange { data, index, offset: offset as u32, length: count as u32 };
            let (data, index, offset) = (shard.data, shard.index, at as u32);
            ops.push((shard, DataOp::CopyShard { from: range, data, index, offset }));
            done += count as u64;
        }
        ops
    }

    fn copy_here(
        &self,
        context: &Context,
        (from, from_offset): FileOffset,
        (to, to_offset): FileOffset,
        length: u64,
        (drop_set_id, touch): (bool, bool),
    ) -> Result<Reply> {
        let length = length.min(RUN_BYTES_MAX) as u32;
        let Reply::FileData { bytes, .. } = self.read(context, from, (from_offset, length), touch)? else {
            return Err(super::unexpected());
        };
        let copied = bytes.len() as u64;
        if copied > 0 {
            self.write(context, to, to_offset, bytes, drop_set_id)?;
        }
        Ok(Reply::Copied { bytes: copied })
    }
}
