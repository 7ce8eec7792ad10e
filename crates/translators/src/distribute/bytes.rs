//! Reads and writes: beside the inode while bytes are few, shards from then on.

use super::{Distribute, Shape, unexpected};
use crate::replicate::{Flight, Whom};
use crate::unsynced::Losses;
use bytes::{Bytes, BytesMut};
use hekate_graph::Context;
use hekate_proto::map::VolumeMap;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// What shards were told, and what their inode's leader is to know of it.
pub(super) struct Told {
    /// One op for each shard, in file order.
    pub ops: Vec<(ShardId, DataOp)>,
    /// The file ends here at least.
    pub end: u64,
    /// There may be shards up to here.
    pub reach: u64,
    pub drop_set_id: bool,
}

impl Distribute {
    pub(super) fn read(
        &self,
        context: &Context,
        inode: InodeId,
        (offset, length): (u64, u32),
        touch: bool,
    ) -> Result<Reply> {
        let read = || Op::Data { op: DataOp::Read { inode, offset, length, touch } };
        let mut shape = match self.known_shape(inode) {
            Some(shape) => shape,
            None => match self.pass(context, self.home(inode), read())? {
                Reply::Node { attr, .. } => attr.into(),
                here => return Ok(here),
            },
        };
        loop {
            match self.read_shards(context, inode, &shape.layout, (offset, length), touch)? {
                // Beyond the size that was known before them the shards may lack what the new size counts: once more.
                (attr, Some(bytes)) if attr.size.min(offset.saturating_add(u64::from(length))) <= shape.size => {
                    return Ok(Reply::FileData { bytes, attr });
                }
                (attr, None) if attr.layout.is_inline() => match self.pass(context, self.home(inode), read())? {
                    Reply::Node { attr, .. } => shape = attr.into(),
                    here => return Ok(here),
                },
                (attr, _) => shape = attr.into(),
            }
        }
    }

    /// The bytes, or `None` if the layout has changed since.
    fn read_shards(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        (offset, length): (u64, u32),
        touch: bool,
    ) -> Result<(Attr, Option<Bytes>)> {
        let runs = layout.shard_runs(self.replicate.map().volume, offset, length as usize);
        let mut batch: Vec<_> = runs
            .iter()
            .map(|(shard, from, count)| {
                let (offset, length) = (*from as u32, *count as u32);
                let op = DataOp::ReadShard { data: shard.data, index: shard.index, offset, length };
                (Whom::Leader(self.partition(shard.position())), Op::Data { op })
            })
            .collect();
        let after = if touch { InodeOp::Accessed { inode } } else { InodeOp::GetAttr { inode } };
        batch.push((Whom::Leader(self.home(inode)), Op::Inode { op: after }));
        let mut replies = self.replicate.send_all(context, batch)?.into_iter();
        let mut parts = Vec::with_capacity(runs.len());
        for (_, _, count) in &runs {
            match replies.next().unwrap_or(Err(Error::Skipped))? {
                Reply::Data { bytes } => parts.push((bytes, *count)),
                _ => return Err(unexpected()),
            }
        }
        let Reply::Node { attr, .. } = replies.next().unwrap_or(Err(Error::Skipped))? else {
            return Err(unexpected());
        };
        self.learn(&attr);
        if attr.layout != *layout {
            return Ok((attr, None));
        }
        let wanted = (attr.size.saturating_sub(offset)).min(u64::from(length)) as usize;
        Ok((attr, Some(join(parts, wanted))))
    }

    pub(super) fn write(
        &self,
        context: &Context,
        inode: InodeId,
        offset: u64,
        data: Bytes,
        drop_set_id: bool,
    ) -> Result<Reply> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
        loop {
            let layout = match self.known_shape(inode) {
                Some(shape) => shape.layout,
                None if end <= INLINE_MAX => {
                    let op = DataOp::Write { inode, offset, data: data.clone(), drop_set_id };
                    match self.pass(context, self.home(inode), Op::Data { op })? {
                        Reply::Node { .. } => continue,
                        done => return Ok(done),
                    }
                }
                None => self.in_shards(context, inode)?.layout,
            };
            if self.write_shards(context, inode, &layout, offset, &data, drop_set_id)? {
                return Ok(Reply::Done);
            }
            self.attr(context, inode)?;
        }
    }

    /// Where the bytes are; beside the inode they are not from now on.
    pub(super) fn in_shards(&self, context: &Context, inode: InodeId) -> Result<Shape> {
        loop {
            if let Some(shape) = self.known_shape(inode) {
                return Ok(shape);
            }
            match self.pass(context, self.home(inode), Op::Data { op: DataOp::Spill { inode } })? {
                Reply::Node { attr, .. } if !attr.layout.is_inline() => return Ok(attr.into()),
                Reply::Node { .. } => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// Shards in file order, then the inode's leader. False: the layout has changed meanwhile, so nothing counts.
    pub(super) fn write_shards(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        offset: u64,
        data: &Bytes,
        drop_set_id: bool,
    ) -> Result<bool> {
        let runs = layout.shard_runs(self.replicate.map().volume, offset, data.len());
        // What makes the file longer is the leader's.
        let is_within = self.known_shape(inode).is_some_and(|shape| offset + data.len() as u64 <= shape.size);
        let before = self.replicate.map();
        let fast = is_within && matches!(&runs[..], [(shard, ..)] if self.replicate.may_be_fast(*shard, data.len()));
        if let (true, [(shard, from, _)]) = (fast, &runs[..])
            && let Some(flight) = self.replicate.begin_fast(context, *shard, *from as u32, data)
        {
            let done = self.tell_beside(context, (inode, layout), (flight, *from as u32), offset, data, drop_set_id);
            self.note_unsynced(context, inode, &[*shard], &before);
            self.limit_unsynced(context)?;
            return done;
        }
        if let (true, [(shard, from, _)]) = (is_within, &runs[..])
            && self.replicate.write_raw(context, *shard, *from as u32, data)?
        {
            return Ok(true);
        }
        let mut taken = 0;
        let op = |(shard, from, count): (ShardId, u64, usize)| {
            let bytes = data.slice(taken..taken + count);
            taken += count;
            let (data, index, offset) = (shard.data, shard.index, from as u32);
            (shard, DataOp::WriteShard { data, index, offset, bytes, follow: None, fast })
        };
        let ops = runs.into_iter().map(op).collect();
        let end = offset + data.len() as u64;
        self.tell(context, inode, layout, Told { ops, end, reach: end, drop_set_id })
    }

    /// Tells the inode's leader while the bytes are on their way to all members, which is within the size that the file has. They take
    /// them only if nothing has changed the shard since they were allowed, a truncate least of all; so the two need no order. If the
    /// write ends up with the shard's leader, the inode's is told after it, as always. False: the layout has changed meanwhile, so
    /// nothing counts.
    fn tell_beside(
        &self,
        context: &Context,
        (inode, layout): (InodeId, &Layout),
        (flight, from): (Flight<'_>, u32),
        offset: u64,
        data: &Bytes,
        drop_set_id: bool,
    ) -> Result<bool> {
        let end = offset + data.len() as u64;
        let home = Whom::Leader(self.home(inode));
        let wrote = Op::Data {
            op: DataOp::Wrote { inode, layout_version: layout.version, end, reach: end, drop_set_id, fast: true },
        };
        let told =
            if is_planted(Bug::TimesOff) { Ok(Reply::Done) } else { self.replicate.send(context, home, wrote.clone()) };
        let told = match flight.finish(context, from, data) {
            Ok(true) => told,
            Ok(false) => self.replicate.send(context, home, wrote),
            Err(error) => Err(error),
        };
        match told {
            Ok(reply) => {
                self.learn_layout(&reply);
                Ok(true)
            }
            Err(Error::LayoutChanged) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes shards, then tells the inode's leader. False: the layout has changed meanwhile, so nothing counts.
    pub(super) fn tell(&self, context: &Context, inode: InodeId, layout: &Layout, told: Told) -> Result<bool> {
        Ok(self.tell_all(context, inode, layout, told)?.is_some())
    }

    /// The same. -> what the shards' leaders answered, in the order of the ops; `None`: the layout has changed meanwhile.
    pub(super) fn tell_all(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        told: Told,
    ) -> Result<Option<Vec<Reply>>> {
        let Told { ops, end, reach, drop_set_id } = told;
        let shards: Vec<ShardId> = ops.iter().map(|(shard, _)| *shard).collect();
        let home = self.home(inode);
        let whom = |shard: &ShardId| Whom::Leader(self.partition(shard.position()));
        let mut batch: Vec<_> = ops.into_iter().map(|(shard, op)| (whom(&shard), Op::Data { op })).collect();
        let wrote = DataOp::Wrote { inode, layout_version: layout.version, end, reach, drop_set_id, fast: false };
        batch.push((Whom::Leader(home), Op::Data { op: wrote }));
        let before = self.replicate.map();
        let replies = self.replicate.send_all(context, batch)?;
        self.note_unsynced(context, inode, &shards, &before);
        let mut answers = Vec::with_capacity(shards.len());
        for (index, reply) in replies.into_iter().enumerate() {
            match reply {
                Ok(reply) => {
                    if let Some(shard) = shards.get(index) {
                        self.replicate.note_allowed(*shard, &reply);
                    }
                    self.learn_layout(&reply);
                    answers.push(reply);
                }
                Err(Error::LayoutChanged) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        self.grow(inode, layout, end);
        self.limit_unsynced(context)?;
        Ok(Some(answers))
    }

    /// What was written counts, and this mount knew a layout from before a truncate.
    fn learn_layout(&self, reply: &Reply) {
        if let Reply::Node { attr, .. } = reply {
            self.learn(attr);
        }
    }

    /// What an fsync has to cover: a write that was sent under this map, whatever became of it.
    fn note_unsynced(&self, context: &Context, inode: InodeId, shards: &[ShardId], before: &VolumeMap) {
        if context.durable {
            return;
        }
        let (mut unsynced, losses, home) = (self.unsynced.lock(), Losses(before), self.home(inode));
        shards.iter().for_each(|shard| unsynced.wrote(inode, *shard, losses.of(losses.place(*shard))));
        unsynced.changed(home, [inode], losses.of(home));
    }

    fn limit_unsynced(&self, context: &Context) -> Result<()> {
        if self.unsynced.lock().is_full() { self.sync_everything(context) } else { Ok(()) }
    }
}

/// Runs one after the other, holes between and after them as zeros, `wanted` bytes in all.
fn join(mut parts: Vec<(Bytes, usize)>, wanted: usize) -> Bytes {
    if parts.len() == 1 && parts[0].0.len() >= wanted {
        return parts.remove(0).0.slice(..wanted);
    }
    let mut joined = BytesMut::with_capacity(wanted);
    let mut start = 0;
    for (bytes, count) in parts {
        joined.extend_from_slice(&bytes);
        start += count;
        joined.resize(start, 0);
    }
    joined.truncate(wanted);
    joined.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_runs_keep_their_places_and_holes_read_as_zeros() {
        let parts = vec![(Bytes::from_static(b"ab"), 4), (Bytes::from_static(b"cd"), 4)];
        assert_eq!(&join(parts, 7)[..], b"ab\0\0cd\0");
        assert_eq!(&join(vec![(Bytes::from_static(b"abc"), 3)], 2)[..], b"ab");
        assert_eq!(&join(vec![], 0)[..], b"");
    }
}
