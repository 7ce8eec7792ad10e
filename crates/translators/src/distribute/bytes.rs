//! Reads and writes of a file's bytes: small files are stored beside the inode, larger ones in shards.

use super::{Distribute, Shape, unexpected};
use crate::pledges::Reading;
use crate::pledges::grants::Grant;
use crate::replicate::{Flight, Recipient};
use crate::unsynced::Losses;
use bytes::{Bytes, BytesMut};
use hekate_graph::Context;
use hekate_proto::map::VolumeMap;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::sync::atomic::Ordering;

/// Bytes of the longest write that makes a file longer on the fast path. On the leader's path longer ones go to the data
/// files at once; on the fast path they would go through the journals first, which costs more than a round trip saves.
const GROWTH_BYTES_MAX: usize = 32 << 10;

/// Changes of a file's shards, and the values that the inode's leader receives after them.
pub(super) struct ShardChanges {
    /// One op for each shard, in file order.
    pub ops: Vec<(ShardId, DataOp)>,
    /// Lower bound of the file's size after the changes, in bytes.
    pub end: u64,
    /// Upper bound of the file offsets at which shards may exist after the changes, in bytes.
    pub reach: u64,
    /// True if the set-user-id and set-group-id bits are cleared.
    pub drop_set_id: bool,
    /// True if the bytes lie within the file's size: then the leader may keep the times without a record.
    pub within: bool,
}

/// A write to a file whose bytes are in shards.
#[derive(Clone, Copy)]
pub(super) struct FileWrite<'a> {
    pub inode: InodeId,
    pub layout: &'a Layout,
    /// Offset of the first byte in the file.
    pub offset: u64,
    pub data: &'a Bytes,
    pub drop_set_id: bool,
}

impl FileWrite<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

impl Distribute {
    /// Reads a range of the file. Replies `FileData`. `touch`: note the time of access.
    pub(super) fn read(
        &self,
        context: &Context,
        inode: InodeId,
        offset: u64,
        length: u32,
        touch: bool,
    ) -> Result<Reply> {
        let read = || Op::Data { op: DataOp::Read { inode, offset, length, touch } };
        let mut shape = match self.known_shape(inode) {
            Some(shape) => shape,
            None => match self.forward(context, self.home(inode), read())? {
                Reply::Node { attr, .. } => attr.into(),
                here => return Ok(here),
            },
        };
        loop {
            match self.read_shards(context, inode, &shape.layout, offset, length, touch)? {
                // If the file has grown meanwhile, the shards may have been read before the bytes of the growth were
                // written: read again.
                (attr, Some(bytes)) if attr.size.min(offset.saturating_add(u64::from(length))) <= shape.size => {
                    return Ok(Reply::FileData { bytes, attr });
                }
                (attr, None) if attr.layout.is_inline() => match self.forward(context, self.home(inode), read())? {
                    Reply::Node { attr, .. } => shape = attr.into(),
                    here => return Ok(here),
                },
                (attr, _) => shape = attr.into(),
            }
        }
    }

    /// Reads shards, then the inode's attributes. The bytes are `None` if the layout has changed meanwhile.
    fn read_shards(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        offset: u64,
        length: u32,
        touch: bool,
    ) -> Result<(Attr, Option<Bytes>)> {
        let runs = layout.shard_runs(self.replicate.map().volume, offset, length as usize);
        let mut batch: Vec<_> = runs
            .iter()
            .map(|(shard, from, count)| {
                let (offset, length) = (*from as u32, *count as u32);
                let op = DataOp::ReadShard { data: shard.data, index: shard.index, offset, length };
                (Recipient::Leader(self.partition(shard.position())), Op::Data { op })
            })
            .collect();
        let home = Recipient::Leader(self.home(inode));
        let attributes = Op::Inode { op: InodeOp::GetAttr { inode } };
        batch.push((home, if touch { Op::Inode { op: InodeOp::Accessed { inode } } } else { attributes.clone() }));
        let behind = context.reads_after.filter(|_| touch);
        // What was read behind an earlier attempt is too old.
        behind.into_iter().for_each(|after| after.lock().clear());
        batch.extend(behind.map(|_| (home, attributes)));
        let mut reading = Reading { inode, layout, number: None, behind };
        let mut replies = self.replicate.send_reading(context, batch, Some(&mut reading))?.into_iter();
        if let (Some(content), Some(number)) = (context.content, reading.number) {
            content.store(number, Ordering::Relaxed);
        }
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
        if attr.layout != *layout && !is_planted(Bug::ChangedLayoutRead) {
            return Ok((attr, None));
        }
        let wanted = (attr.size.saturating_sub(offset)).min(u64::from(length)) as usize;
        Ok((attr, Some(join(parts, wanted))))
    }

    /// Writes `data` at `offset`. Replies `Done`.
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
                    match self.forward(context, self.home(inode), Op::Data { op })? {
                        Reply::Node { .. } => continue,
                        done => return Ok(done),
                    }
                }
                None => self.ensure_in_shards(context, inode)?.layout,
            };
            let write = FileWrite { inode, layout: &layout, offset, data: &data, drop_set_id };
            if self.write_shards(context, &write)? {
                return Ok(Reply::Done);
            }
            self.attr(context, inode)?;
        }
    }

    /// The file's shape, once its bytes are in shards. Bytes beside the inode are moved there first.
    pub(super) fn ensure_in_shards(&self, context: &Context, inode: InodeId) -> Result<Shape> {
        loop {
            if let Some(shape) = self.known_shape(inode) {
                return Ok(shape);
            }
            match self.forward(context, self.home(inode), Op::Data { op: DataOp::Spill { inode } })? {
                Reply::Node { attr, .. } if !attr.layout.is_inline() => return Ok(attr.into()),
                Reply::Node { .. } => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// Writes to shards in file order, then to the inode's leader. False if the layout changed meanwhile: then the
    /// write must be repeated.
    pub(super) fn write_shards(&self, context: &Context, write: &FileWrite<'_>) -> Result<bool> {
        let FileWrite { inode, layout, offset, data, drop_set_id } = *write;
        let runs = layout.shard_runs(self.replicate.map().volume, offset, data.len());
        let is_within = self.known_shape(inode).is_some_and(|shape| write.end() <= shape.size);
        let before = self.replicate.map();
        let known = self.replicate.pledges().grant(inode, layout.version, context.durable);
        let grant = known.filter(|grant| !drop_set_id && (is_within || write.end() <= grant.limit));
        // A write that makes the file longer, without a grant to do that, takes the leader's path.
        let may_be_fast = is_within || grant.is_some() && data.len() <= GROWTH_BYTES_MAX;
        let fast = may_be_fast && matches!(&runs[..], [(shard, ..)] if self.replicate.may_be_fast(*shard, data.len()));
        if let (true, [(shard, from, _)]) = (fast, &runs[..])
            && let Some(flight) = self.replicate.begin_fast(context, *shard, *from as u32, data)
        {
            let done = self.finish_fast(context, write, (flight, grant, is_within), *from as u32);
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
        let end = write.end();
        let changes = ShardChanges { ops, end, reach: end, drop_set_id, within: is_within };
        Ok(self.change_shards_granted(context, inode, layout, (changes, grant))?.is_some())
    }

    /// Completes a fast write, which lies within the file's size or within a grant. Without a grant the inode's leader is
    /// asked while the bytes are on their way to all members: they accept the write only if nothing, a truncate
    /// included, has changed the shard since the leader allowed it, so the two need no order. If the write had to take
    /// the leader's path, or the grant is over, the inode's leader is asked after it. False if the layout changed
    /// meanwhile: then the write must be repeated.
    fn finish_fast(
        &self,
        context: &Context,
        write: &FileWrite<'_>,
        (flight, grant, is_within): (Flight<'_>, Option<Grant>, bool),
        from: u32,
    ) -> Result<bool> {
        let FileWrite { inode, layout, data, drop_set_id, .. } = *write;
        let (end, reach, layout_version) = (write.end(), write.end(), layout.version);
        let home = Recipient::Leader(self.home(inode));
        let op = DataOp::Wrote { inode, layout_version, end, reach, drop_set_id, fast: is_within, age: 0 };
        let wrote = Op::Data { op };
        let told = match grant {
            _ if is_planted(Bug::TimesOff) => Some(Ok(Reply::Done)),
            Some(_) => None,
            None => Some(flight.send_beside(context, home, wrote.clone())),
        };
        let is_fast = flight.finish(context, from, data)?;
        let told = match (told, grant) {
            (Some(told), _) if is_fast => told,
            (None, Some(grant)) if self.replicate.pledges().wrote(inode, &grant, end) => Ok(Reply::Done),
            _ => self.replicate.send(context, home, wrote),
        };
        let is_told = self.learn_told(told)?;
        if is_told && !is_within {
            self.note_size(inode, layout, end);
            self.replicate.pledges().grew(inode, layout.version, end);
        }
        Ok(is_told)
    }

    /// Takes the reply of the inode's leader to the word of a write. False if the layout changed meanwhile.
    pub(super) fn learn_told(&self, told: Result<Reply>) -> Result<bool> {
        match told {
            Ok(reply) => {
                self.learn_layout(&reply);
                Ok(true)
            }
            Err(Error::LayoutChanged) => Ok(is_planted(Bug::ChangedLayoutWritten)),
            Err(error) => Err(error),
        }
    }

    /// Changes shards, then informs the inode's leader. False if the layout changed meanwhile: then the changes must
    /// be repeated.
    pub(super) fn change_shards(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        changes: ShardChanges,
    ) -> Result<bool> {
        Ok(self.change_shards_replies(context, inode, layout, changes)?.is_some())
    }

    /// As [`Distribute::change_shards`]. Returns the replies in the order of the ops, or `None` if the layout changed
    /// meanwhile.
    pub(super) fn change_shards_replies(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        changes: ShardChanges,
    ) -> Result<Option<Vec<Reply>>> {
        self.change_shards_granted(context, inode, layout, (changes, None))
    }

    /// As [`Distribute::change_shards_replies`]. With a grant the inode's leader is told only if it is over by the end.
    fn change_shards_granted(
        &self,
        context: &Context,
        inode: InodeId,
        layout: &Layout,
        (changes, grant): (ShardChanges, Option<Grant>),
    ) -> Result<Option<Vec<Reply>>> {
        let ShardChanges { ops, end, reach, drop_set_id, within: fast } = changes;
        let shards: Vec<ShardId> = ops.iter().map(|(shard, _)| *shard).collect();
        let home = self.home(inode);
        let recipient = |shard: &ShardId| Recipient::Leader(self.partition(shard.position()));
        let mut batch: Vec<_> = ops.into_iter().map(|(shard, op)| (recipient(&shard), Op::Data { op })).collect();
        let layout_version = layout.version;
        let op = DataOp::Wrote { inode, layout_version, end, reach, drop_set_id, fast, age: 0 };
        let (home, wrote) = (Recipient::Leader(home), Op::Data { op });
        batch.extend(grant.is_none().then(|| (home, wrote.clone())));
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
        if let Some(grant) = grant
            && !self.replicate.pledges().wrote(inode, &grant, end)
            && !self.learn_told(self.replicate.send(context, home, wrote))?
        {
            return Ok(None);
        }
        self.note_size(inode, layout, end);
        self.replicate.pledges().grew(inode, layout.version, end);
        self.limit_unsynced(context)?;
        Ok(Some(answers))
    }

    /// Stores the layout of a reply to a write. A leader returns its current layout with a write that it accepted
    /// although the client's layout is older than a truncate.
    fn learn_layout(&self, reply: &Reply) {
        if let Reply::Node { attr, .. } = reply {
            self.learn(attr);
        }
    }

    /// Notes what a later fsync has to cover: a write that was sent under the map `before`, whatever its outcome.
    fn note_unsynced(&self, context: &Context, inode: InodeId, shards: &[ShardId], before: &VolumeMap) {
        if context.durable {
            return;
        }
        let (mut unsynced, losses, home) = (self.unsynced.lock(), Losses(before), self.home(inode));
        shards.iter().for_each(|shard| unsynced.wrote(inode, *shard, losses.of(losses.place(*shard))));
        unsynced.changed(home, [inode], losses.of(home));
    }

    /// Syncs everything if too much is unsynced.
    fn limit_unsynced(&self, context: &Context) -> Result<()> {
        if self.unsynced.lock().is_full() { self.sync_everything(context) } else { Ok(()) }
    }
}

/// Joins consecutive runs to `wanted` bytes. Missing bytes within and after a run are zeros.
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
