//! copy_file_range: shards copy from shards, and bytes beside an inode go through the client. A hole is copied as a
//! hole, at a cost that does not depend on its length.

use super::Distribute;
use super::bytes::ShardChanges;
use super::space::Seek;
use hekate_graph::Context;
use hekate_proto::*;

/// Most bytes of data copied by one op. The caller learns how many were copied and continues (copy_file_range(2)).
const COPY_AT_ONCE: u64 = 16 << 20;
/// Most bytes that one shard copies from another at once.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a hole copied by one op: FUSE replies with 32 bits, and the next op should begin at a block.
const HOLE_AT_ONCE: u64 = (1 << 32) - BLOCK_BYTES as u64;

/// A place in a file.
#[derive(Clone, Copy)]
pub(super) struct FilePosition {
    pub inode: InodeId,
    pub offset: u64,
}

impl Distribute {
    /// Copies at most `length` bytes. Replies `Copied` with the number of bytes. `touch`: note the source's time of
    /// access.
    pub(super) fn copy(
        &self,
        context: &Context,
        from: FilePosition,
        to: FilePosition,
        length: u64,
        drop_set_id: bool,
        touch: bool,
    ) -> Result<Reply> {
        loop {
            let source = self.attr(context, from.inode)?;
            let length = length.min(source.size.saturating_sub(from.offset));
            if length == 0 {
                return Ok(Reply::Copied { bytes: 0 });
            }
            // The kernel checks this as well, but may know an older size.
            if from.inode == to.inode && from.offset.abs_diff(to.offset) < length {
                return Err(Error::invalid("the ranges of a copy within one file overlap; copy in parts"));
            }
            let at_once = length.min(COPY_AT_ONCE);
            let small = self.known_shape(to.inode).is_none() && to.offset.saturating_add(at_once) <= INLINE_MAX;
            if source.layout.is_inline() || small {
                return self.copy_here(context, from, to, at_once, drop_set_id, touch);
            }
            let Some(hole) = self.hole_at(context, &source, from.offset, length)? else { continue };
            let length = if hole > 0 { hole } else { at_once };
            let end = to.offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
            // Whether to note the time of access depends on the file's times before the write.
            if from.inode == to.inode {
                self.read_by(context, from.inode, touch)?;
            }
            let layout = self.ensure_in_shards(context, to.inode)?.layout;
            let changed = match hole > 0 {
                true => self.punch(context, to.inode, &layout, to.offset..end, end, drop_set_id),
                false => {
                    let ops = self.copies(&source.layout, from.offset, &layout, to.offset, length);
                    self.change_shards(
                        context,
                        to.inode,
                        &layout,
                        ShardChanges { ops, end, reach: end, drop_set_id, within: false },
                    )
                }
            };
            match changed {
                Ok(true)
                    if self.read_by(context, from.inode, touch && from.inode != to.inode)?.layout == source.layout =>
                {
                    return Ok(Reply::Copied { bytes: length });
                }
                Ok(true) => {}
                Ok(false) => _ = self.attr(context, to.inode)?,
                // A read repairs the block, if a replica has an intact copy.
                Err(Error::Damaged { .. }) => {
                    return self.copy_here(context, from, to, length, drop_set_id, touch);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Length in bytes of the hole at `from`, limited to `length` and to what one reply can express. 0 if there is
    /// data, or if the hole is too short for an op of its own. `None` if the layout changed meanwhile.
    fn hole_at(&self, context: &Context, source: &Attr, from: u64, length: u64) -> Result<Option<u64>> {
        let end = from + length.min(COPY_AT_ONCE);
        let data_at = match self.seek_in(context, source, from..end, false)? {
            Seek::LayoutChanged => return Ok(None),
            Seek::At(at) => at,
            Seek::Nothing => self.next_shard(context, source, end)?.unwrap_or(source.size).max(end),
        };
        let hole = (data_at - from).min(length).min(HOLE_AT_ONCE);
        Ok(Some(if hole >= length.min(RUN_BYTES_MAX) { hole } else { 0 }))
    }

    /// Requests the inode's attributes after a read of it.
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

    /// Copies at most 1 MiB through this client.
    fn copy_here(
        &self,
        context: &Context,
        from: FilePosition,
        to: FilePosition,
        length: u64,
        drop_set_id: bool,
        touch: bool,
    ) -> Result<Reply> {
        let length = length.min(RUN_BYTES_MAX) as u32;
        let Reply::FileData { bytes, .. } = self.read(context, from.inode, from.offset, length, touch)? else {
            return Err(super::unexpected());
        };
        let copied = bytes.len() as u64;
        if copied > 0 {
            self.write(context, to.inode, to.offset, bytes, drop_set_id)?;
        }
        Ok(Reply::Copied { bytes: copied })
    }
}
